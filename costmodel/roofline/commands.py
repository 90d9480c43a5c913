"""The commands under ``costmodel roofline``, as typer reads them; what they need is loaded when they run."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from costmodel.options import Json

if TYPE_CHECKING:
    from costmodel.roofline.calibration import Progress

app = typer.Typer(
    help="Hold predictions against the clock of this machine.",
    add_completion=False,
    rich_markup_mode=None,
    epilog="\b\nExamples:\n  costmodel roofline calibrate\n  costmodel roofline validate",
)

Thorough = Annotated[bool, typer.Option("--thorough", help="Take up to a minute instead of ten seconds.")]
Threads = Annotated[int, typer.Option(help="How many BLAS may use.")]


@app.command(epilog="\b\nExamples:\n  costmodel roofline calibrate\n  costmodel roofline calibrate --thorough --json")
def calibrate(thorough: Thorough = False, threads: Threads = 1, as_json: Json = False) -> str:
    """Measure this machine, and keep the result for the other commands."""
    from costmodel.roofline.calibration import calibrate as measured
    from costmodel.roofline.calibration import path_of

    found = measured(thorough, threads=threads, progress=_shown())
    if as_json:
        return found.model_dump_json(indent=2)
    return f"{found}\n\nkept in {path_of(found.machine)}"


@app.command(epilog="\b\nExamples:\n  costmodel roofline validate\n  costmodel roofline validate --json")
def validate(as_json: Json = False) -> str:
    """How far predictions are off on this machine, for layers and programs that no calibration touched."""
    from costmodel.roofline.calibration import bar
    from costmodel.roofline.validation import validate as validated

    with bar(_shown(), "validating") as told:
        found = validated(told)
    return json.dumps(found.to_dict(), indent=2) if as_json else str(found)


def _shown() -> bool | Progress:
    """Whether a bar makes sense: only where someone looks."""
    return sys.stderr.isatty()
