"""The commands that hold a model against the clock: ``costmodel roofline check | plot | profile | compare``."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from costmodel.options import Json, asking_of
from costmodel.roofline.commands import app

Rounds = Annotated[int | None, typer.Option(metavar="N", help="Turns of measurement: more make intervals narrower.")]
Level = Annotated[int, typer.Option(metavar="1-6", help="Which model of host time (6: all that is known).")]
Reuse = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Cold: so much is touched between two runs of a layer (64MiB).")
]
Quick = Annotated[bool, typer.Option("--no-classes", help="Do not measure what bounds each layer.")]
Page = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Also write a page with tables and pictures.")]
FailOver = Annotated[
    str | None, typer.Option(metavar="SHARE", help="Exit 1 if the median error of the layers is more, such as 25%.")
]
Save = Annotated[str | None, typer.Option(metavar="FILE", help="Keep the timings as a baseline.")]
Against = Annotated[
    str | None, typer.Option(metavar="FILE", help="Hold against a baseline; exit 1 if anything is slower beyond noise.")
]
Out = Annotated[str, typer.Option(metavar="FILE", help="FILE.png, .svg, .pdf, or .html to hover over.")]
Kind = Annotated[str, typer.Option(metavar="roofline|scatter|bars", help="What to draw.")]
Dark = Annotated[bool, typer.Option("--dark", help="On black; a page follows the reader's system.")]
Other = Annotated[str, typer.Argument(metavar="OTHER", help="The model to compare with.")]


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  costmodel roofline {line}" for line in lines)


@app.command(
    epilog=_examples(
        "check mlp-mnist --batch 32",
        "check mlp-mnist --batch 32 --level 1 --no-classes --json",
        "check mlp-lenet-300-100 --batch 64 --rounds 2 --fail-over 400%",
    )
)
@asking_of
def check(
    model: str,
    settings: dict[str, Any],
    level: Level = 6,
    rounds: Rounds = None,
    no_classes: Quick = False,
    reuse: Reuse = None,
    html: Page = None,
    fail_over: FailOver = None,
    save: Save = None,
    against: Against = None,
    as_json: Json = False,
) -> tuple[str, int]:
    """Predict each layer's time on this machine, measure it, and say how far apart they are and what bounds it."""
    from costmodel.roofline import comparison as baseline
    from costmodel.roofline.checking import asked
    from costmodel.roofline.checking import check as checked

    most = None if fail_over is None else _share(fail_over)
    _check_writable(html, save)
    then = None if against is None else baseline.read(against)
    prediction = asked(model, settings)
    found = checked(
        prediction,
        level=level,
        rounds=rounds,
        classes=not no_classes,
        reuse=reuse or 0,
        progress=_shown(),
        say=_note,
    )
    if html is not None:
        found.to_html(html)
    changes = None if then is None else baseline.against(found, then)
    if save is not None:
        baseline.save(found, save)
    data = {**found.to_dict(), **({} if changes is None else {"against": changes.to_dict()})}
    parts = [str(found), *([] if changes is None else [str(changes)])]
    failed = most is not None and found.fails(most)
    if most is not None:
        parts.append(f"median error {found.errors.median:.1%}, {'over' if failed else 'within'} {most:.1%}")
    code = 1 if failed or (changes is not None and changes.slower) else 0
    return (json.dumps(data, indent=2) if as_json else "\n\n".join(parts)), code


@app.command(
    epilog=_examples(
        "plot mlp-mnist --batch 32 --out roofline.png",
        "plot mlp-mnist --batch 32 --no-classes --kind scatter --out scatter.html",
    )
)
@asking_of
def plot(
    model: str,
    settings: dict[str, Any],
    out: Out = "roofline.png",
    kind: Kind = "roofline",
    dark: Dark = False,
    rounds: Rounds = None,
    no_classes: Quick = False,
    as_json: Json = False,
) -> str:
    """Draw a check: the roofline with every measured ceiling, predicted against measured, or the time of each layer."""
    from costmodel.roofline.checking import asked
    from costmodel.roofline.checking import check as checked
    from costmodel.roofline.pictures import check_drawable

    check_drawable(out, kind)
    prediction = asked(model, settings)
    found = checked(prediction, rounds=rounds, classes=not no_classes, progress=_shown(), say=_note)
    found.plot(out, kind=kind, dark=dark)
    return json.dumps({"file": out, **found.to_dict()}, indent=2) if as_json else f"wrote {out}"


@app.command(
    epilog=_examples(
        "profile mlp-mnist --batch 64",
        "profile mlp-lenet-300-100 --mode inference --rounds 5 --json",
    )
)
@asking_of
def profile(
    model: str,
    settings: dict[str, Any],
    rounds: Rounds = None,
    save: Save = None,
    against: Against = None,
    as_json: Json = False,
) -> tuple[str, int]:
    """Run a model whole, forward and forward with backward: latency, throughput, memory, bottleneck and efficiency."""
    from costmodel.roofline import comparison as baseline
    from costmodel.roofline.profiling import profile as profiled

    _check_writable(save)
    then = None if against is None else baseline.read(against)
    found = profiled(model, rounds=rounds, progress=_shown(), say=_note, **settings)
    changes = None if then is None else baseline.against(found, then)
    if save is not None:
        baseline.save(found, save)
    data = {**found.to_dict(), **({} if changes is None else {"against": changes.to_dict()})}
    text = "\n\n".join([str(found), *([] if changes is None else [str(changes)])])
    return (json.dumps(data, indent=2) if as_json else text), 1 if changes is not None and changes.slower else 0


@app.command(epilog=_examples("compare mlp-mnist mlp-lenet-300-100 --batch 64", "compare mlp-mnist mlp-mnist --json"))
@asking_of
def compare(model: str, settings: dict[str, Any], other: Other, rounds: Rounds = None, as_json: Json = False) -> str:
    """How many times as fast the second model is, with a 95 % interval, measured side by side."""
    from costmodel.roofline.comparison import compare as compared

    found = compared(model, other, rounds=rounds, progress=_shown(), **settings)
    return json.dumps(found.to_dict(), indent=2) if as_json else str(found)


def _note(message: str) -> None:
    """What there is to know of the calibration, apart from the answer."""
    typer.echo(f"note: {message}", err=True)


def _check_writable(*paths: str | None) -> None:
    """Before minutes are spent on measuring."""
    from costmodel.display.figures import check_writable

    for path in paths:
        if path is not None:
            check_writable(path)


def _share(text: str) -> float:
    """``25%`` or ``0.25``. Raises SettingError."""
    from costmodel.errors import SettingError, shown

    number, percent, rest = text.partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < float("inf"):
        raise SettingError(f"--fail-over {shown(text)} is not a share: use one such as 25%")
    return value


def _shown() -> bool:
    """Whether a bar makes sense: only where someone looks."""
    return sys.stderr.isatty()
