"""``costmodel roofline``: hold a model against the clock of this machine."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.commands import MODEL, Reply, Verbs, argument, epilog, option, read_share, verb, writable
from costmodel.cli.options import SINGLE
from costmodel.display.table import is_terminal
from costmodel.errors import SettingError
from costmodel.training.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from costmodel.roofline.baseline import Changes

EXECUTED = {n for n, setting in SETTINGS.items() if setting.executed == "any" and setting.needs != "cache"}
RUN = [option for option in SINGLE if option.name in EXECUTED]
"""Settings that change what is run here, or what is counted of it."""
ROUNDS = option("--rounds", metavar="N", type=int, help="So many passes, or turns of each layer alone, and no more.")
THREADS = option("--threads", metavar="N", type=int, default=1, help="How many matrix products may use (1).")
NO_CLASSES = option("--no-classes", is_flag=True, help="Do not measure what bounds each layer.")
SAVE = option(
    "--save", metavar="FILE", callback=writable, help="Keep it: as a baseline, and a check to be drawn again."
)
AGAINST = option(
    "--against", metavar="FILE", help="Hold against a baseline; exit 1 if anything is slower beyond noise."
)


@verb(
    option("--thorough", is_flag=True, help="More probes, each measured for longer."),
    option("--threads", metavar="N", type=int, default=1, help="How many BLAS may use."),
    option(
        "--budget", metavar="SECONDS", type=float, help="How long to go on for what is unresolved (45; thorough 180)."
    ),
    option("--keep", is_flag=True, help="Keep the result even if too much of it is unresolved."),
    examples=("roofline calibrate", "roofline calibrate --thorough --json", "roofline calibrate --budget 120 --keep"),
)
def calibrate(thorough: bool, threads: int, budget: float | None, keep: bool) -> tuple[Reply, int]:
    """Measure this machine, and keep the result for the other commands: exit code 1 if too much of it is unresolved."""
    from costmodel.roofline.calibration import check_asked, how_long
    from costmodel.roofline.kept import MOST_UNRESOLVED, path_of
    from costmodel.roofline.kept import calibrate as measured

    check_asked(threads, budget)
    _note(f"calibrating takes {how_long(thorough, budget)}")
    calibration = measured(
        thorough, threads=threads, progress=is_terminal(sys.stderr), keep=keep or None, budget=budget
    )
    resolved = keep or calibration.unresolved <= MOST_UNRESOLVED
    verdict = f"not kept: more than {MOST_UNRESOLVED:.0%} of the probes are unresolved (--keep keeps it)"
    if resolved:
        verdict = f"kept in {path_of(calibration.machine)}"
    return Reply(json.loads(calibration.model_dump_json()), f"{calibration}\n\n{verdict}"), 0 if resolved else 1


@verb(
    option("--budget", metavar="SECONDS", type=float, help="How long all measurements may take (230)."),
    THREADS,
    examples=("roofline validate", "roofline validate --threads 2", "roofline validate --budget 600 --json"),
)
def validate(budget: float | None, threads: int) -> Any:
    """How far predictions are off on this machine, for layers and programs that no calibration touched."""
    from costmodel.roofline.calibration import bar
    from costmodel.roofline.validation import BUDGET
    from costmodel.roofline.validation import validate as validated

    with bar(is_terminal(sys.stderr), "validating") as progress:
        return validated(progress, budget=BUDGET if budget is None else budget, threads=threads)


@verb(
    MODEL,
    option("--level", metavar="1-6", type=int, default=6, help="Which model of host time (6: all that is known)."),
    ROUNDS,
    NO_CLASSES,
    option(
        "--reuse",
        metavar="warm|SIZE",
        help="Each layer alone: warm, or cold, so much being touched between two runs (64MiB).",
    ),
    option(
        "--budget",
        metavar="SECONDS",
        type=float,
        help="How long to go on for what is unresolved (8, or four passes of a model that takes longer).",
    ),
    THREADS,
    option(
        "--fail-over",
        metavar="SHARE",
        callback=read_share,
        help="Exit 1 if the median error of the layers is more, such as 25%.",
    ),
    SAVE,
    AGAINST,
    *RUN,
    examples=(
        "roofline check mlp-mnist --batch 32",
        "roofline check mlp-mnist --batch 32 --level 1 --no-classes --json",
        "roofline check mlp-lenet-300-100 --batch 64 --rounds 2 --fail-over 400%",
        "roofline check mlp-mnist --batch 32 --out check.html",
    ),
    drawn=True,
)
def check(
    model: str,
    level: int,
    rounds: int | None,
    no_classes: bool,
    reuse: str | None,
    budget: float | None,
    threads: int,
    fail_over: float | None,
    save: str | None,
    against: str | None,
    settings: dict[str, Any],
) -> tuple[Reply, int]:
    """Predict each layer's time on this machine, measure it, and say how far apart they are and what bounds it."""
    from costmodel.cost.report import headline
    from costmodel.roofline.checking import check as checked
    from costmodel.roofline.recorder import runnable

    prediction = runnable(model, settings)
    history = History(save, against, lambda: headline(prediction))
    check = checked(
        prediction,
        level=level,
        rounds=rounds,
        classes=not no_classes,
        reuse=reuse or "in place",
        budget=budget,
        threads=threads,
        progress=is_terminal(sys.stderr),
        say=_note,
    )
    answer, code = history.answer(check)
    if fail_over is None:
        return answer, code
    fails = check.fails(fail_over)
    if not check.errors.predicted:
        return Reply(answer.data, f"{answer.text}\n\nno layer is resolved, so none is judged", check), code
    verdict = f"median error {check.errors.median:.1%}, {'over' if fails else 'within'} {fail_over:.1%}"
    return Reply(answer.data, f"{answer.text}\n\n{verdict}", check), 1 if fails else code


@verb(
    argument("model", "A ready model's name, the path of a YAML or JSON file, or of a check kept by --save."),
    option("--out", metavar="FILE", default="roofline.png", help="FILE.png, .svg, .pdf, or .html to hover over."),
    option("--kind", metavar="roofline|scatter|bars|all", default="roofline", help="What to draw."),
    option("--dark", is_flag=True, help="On black; a page follows the reader's system."),
    ROUNDS,
    NO_CLASSES,
    *RUN,
    examples=(
        "roofline plot mlp-mnist --batch 32 --out roofline.png",
        "roofline plot mlp-mnist --batch 32 --no-classes --kind scatter --out scatter.html",
        "roofline plot saved.json --kind all --out check.html",
    ),
)
def plot(
    model: str, out: str, kind: str, dark: bool, rounds: int | None, no_classes: bool, settings: dict[str, Any]
) -> Reply:
    """Draw a check, now or as it was kept: the roofline with every measured ceiling, predicted against measured, or
    the time of each layer; all of them on one page, or in a file each."""
    from costmodel.roofline.baseline import is_saved, read_chart
    from costmodel.roofline.checking import check as checked
    from costmodel.roofline.pictures import check_drawable, draw
    from costmodel.roofline.recorder import runnable

    check_drawable(out, kind)
    if is_saved(model):
        if settings or rounds is not None or no_classes:
            raise SettingError(f"{model} has been measured: leave out all but --out, --kind and --dark")
        chart, machine = read_chart(model)
        data = {"question": chart.title}
    else:
        prediction = runnable(model, settings)
        check = checked(prediction, rounds=rounds, classes=not no_classes, progress=is_terminal(sys.stderr), say=_note)
        chart, machine, data = check.chart, str(check.calibration.machine), check.to_dict()
    files = draw(chart, machine, out, kind=kind, dark=dark)
    return Reply({"file": files[0], "files": files, **data}, f"wrote {', '.join(files)}")


@verb(
    MODEL,
    ROUNDS,
    option(
        "--budget", metavar="SECONDS", type=float, help="How long to run the passes, each of them twice at least (30)."
    ),
    THREADS,
    SAVE,
    AGAINST,
    *RUN,
    examples=(
        "roofline profile mlp-mnist --batch 64",
        "roofline profile mlp-lenet-300-100 --mode inference --rounds 5 --json",
    ),
)
def profile(
    model: str,
    rounds: int | None,
    budget: float | None,
    threads: int,
    save: str | None,
    against: str | None,
    settings: dict[str, Any],
) -> tuple[Reply, int]:
    """Run a model whole, forward and forward with backward: latency, throughput, memory, bottleneck and efficiency."""
    from costmodel.roofline.profiling import predictions_of, question_of
    from costmodel.roofline.profiling import profile as profiled

    history = History(save, against, lambda: question_of(predictions_of(model, settings)))
    progress = is_terminal(sys.stderr)
    measured = profiled(model, rounds=rounds, budget=budget, threads=threads, progress=progress, say=_note, **settings)
    return history.answer(measured)


@verb(
    MODEL,
    argument("other", "The model to compare with."),
    ROUNDS,
    THREADS,
    *RUN,
    examples=(
        "roofline compare mlp-mnist mlp-lenet-300-100 --batch 64",
        "roofline compare mlp-mnist mlp-mnist --json",
    ),
)
def compare(model: str, other: str, rounds: int | None, threads: int, settings: dict[str, Any]) -> Any:
    """How many times as fast the second model is, with a 95 % interval, measured side by side."""
    from costmodel.roofline.profiling import compare as compared

    return compared(model, other, rounds=rounds, threads=threads, progress=is_terminal(sys.stderr), **settings)


class History:
    """What timings are held against, read before minutes are spent on measuring, and where they are kept.

    question: how that of both starts.
    """

    def __init__(self, save: str | None, against: str | None, question: Callable[[], str]) -> None:
        from costmodel.roofline.baseline import check_question, read

        self.path = save
        self.then = None if against is None else read(against)
        if self.then is not None:
            check_question(self.then, question(), start=True)

    def answer(self, measured: Any) -> tuple[Reply, int]:
        """A measurement, kept, and what changed: exit code 1 if anything is slower."""
        from costmodel.roofline.baseline import baseline_of, changes_between, save

        changes: Changes | None = None if self.then is None else changes_between(self.then, baseline_of(measured))
        if self.path is not None:
            save(measured, self.path)
        if changes is None:
            return Reply(measured.to_dict(), str(measured), measured), 0
        data = {**measured.to_dict(), "against": changes.to_dict()}
        return Reply(data, f"{measured}\n\n{changes}", measured), 1 if changes.slower else 0


def _note(message: str) -> None:
    """What there is to know of the calibration, apart from the answer."""
    click.echo(f"note: {message}", err=True)


roofline = Verbs(
    "roofline",
    {"Commands": ("roofline", ("calibrate", "validate", "check", "plot", "profile", "compare"))},
    help="Hold predictions against the clock of this machine.",
    epilog=epilog("roofline calibrate", "roofline validate"),
)
