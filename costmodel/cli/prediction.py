"""``costmodel predict | explain | fits | timeline | ranks | collectives``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.commands import MODEL, NETWORK, QUANTITY, RESERVE, Reply, option, verb
from costmodel.cli.options import OPTIONS
from costmodel.training.layout import DEGREES

if TYPE_CHECKING:
    from costmodel.performance.time import Time


RUN = (
    option("--samples", metavar="N", help="With --on: of a run, or of each of its epochs, such as 1.28e6 or 1.28M."),
    option("--tokens", metavar="N", help="With --on: the same in tokens, such as 300e9 or 300B."),
    option("--steps", metavar="N", help="With --on: the same in steps."),
    option("--epochs", type=float, metavar="N", help="How often all of these are taken."),
    option("--loader", metavar="RATE", help="Samples loaded for all of them: '2000 images/s', '2e6 tokens/s'."),
)
"""Of how long a run takes; each is an argument of `Time.run`."""
BILL = (
    option("--pue", type=float, metavar="RATIO", help="What the data centre draws over its devices, for energy: 1.1."),
    option("--power", metavar="WATTS", help="Of a device: typical (default), tdp, or watts such as '330 W'."),
    option("--intensity", metavar="CARBON", help="Of the electricity, for carbon: '400 g/kWh'."),
    option("--price", type=float, metavar="MONEY", help="Of a device for an hour (default: the machine's own)."),
)
"""Of what a run draws, emits and costs; nothing of it has a value of its own."""


def _duration(name: str, example: str, text: str) -> click.Option:
    """An option that takes a time; text: what it is of, for its help."""

    def seconds(_: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        from costmodel.performance.jobs import read_duration

        return read_duration(str(parameter.name), _plain(value), example)

    return option(name, metavar="TIME", callback=seconds, help=f"{text}: '{example}'.")


FAILURES = (
    _duration("--mtbf", "50000 h", "Of a run whose devices fail, between failures of one"),
    _duration("--checkpoint-time", "60 s", "With --mtbf, that writing a checkpoint holds it up"),
    _duration("--restart-time", "10 min", "With --mtbf, from a failure until it runs again"),
)
"""Of what is lost where devices fail."""


def _measured(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Seconds of a step, or by phase of each, from texts ``TIME`` or ``PHASE=TIME``; None if nothing was measured."""
    times = [(phase.strip(), _plain(time)) for phase, _, time in (text.rpartition("=") for text in texts)]
    if len(times) == 1 and not times[0][0]:
        return times[0][1]
    phases = [phase for phase, _ in times]
    if not all(phases) or len(set(phases)) < len(phases):
        raise click.BadParameter("give it once for the step, or once for each phase, such as forward=200ms")
    return dict(times) or None


@verb(
    MODEL,
    option("--tier", type=click.Choice(("ceiling", "typical", "calibrated")), help="Where constants of --on are from."),
    option("--depth", type=int, metavar="N", help="Sum layers up by part, so many levels down."),
    option("--shapes", is_flag=True, help="Also print the shape of each layer's output."),
    option("--allow-tf32", is_flag=True, default=None, help="With --on, let products of fp32 be rounded to tf32."),
    option("--channels-last", is_flag=True, help="With --on, convolutions have channels last in memory."),
    NETWORK,
    option(
        "--measured",
        multiple=True,
        callback=_measured,
        metavar="[PHASE=]TIME",
        help="With --on, what a step took, '600 ms', or each of its phases: its MFU beside the prediction.",
    ),
    *RUN,
    *BILL,
    *FAILURES,
    *OPTIONS,
    examples=(
        "predict gpt2-small --batch 32 --seq 512",
        "predict gpt2-small --batch 32 --seq 512 --on h100-sxm --stack compiled",
        "predict resnet50 --batch 256 --on h100-sxm --samples 1.28e6 --epochs 90 --loader 2000images/s --price 2.5",
        "predict llama-3.1-8b --seq 4096 --precision bf16 --tp 2 --fsdp 8 --on h100-sxm --network 400Gb/s",
        "predict gpt2-small --batch 32 --on h100-sxm --tokens 10e9 --devices 8 --pue 1.1 --intensity 400g/kWh",
        "predict gpt2-small --batch 32 --seq 512 --precision bf16-autocast --on a100-sxm --measured 600ms",
        "predict gpt2-small --depth 1",
        "predict gpt2-small --batch 32 --precision bf16-autocast --checkpoint block",
        "predict resnet50 --batch 8 --image 224x320 --mode inference",
        "predict gpt2-small --batch 32 --seq 512 --on h100-sxm --out roofline.png",
        "predict my-model.yaml --json",
    ),
    drawn=True,
)
def predict(
    model: str,
    tier: str | None,
    depth: int | None,
    shapes: bool,
    settings: dict[str, Any],
    allow_tf32: bool | None,
    channels_last: bool,
    network: str | None,
    measured: Any,
    **run: Any,
) -> Any:
    """What a model costs: parameters, FLOPs and memory, in total and by layer; with --on how long a step takes.

    A time comes with its range, what bounds it, and the layers that take longest; a run of --samples, --tokens or
    --steps with its energy if --pue is given, its carbon if --intensity is, and its money if there is a price. As a
    picture --out draws what each part has, or with --on the roofline.
    """
    from costmodel.analysis.predict import predict as predicted

    run = {name: value for name, value in run.items() if value is not None}
    alone = not any(name in settings for name in (*DEGREES, "dp", "pp", "zero"))
    if run and settings.get("on") is not None and "devices" in settings and alone:  # which work side by side
        run["devices"] = settings.pop("devices")
    of_time = {
        "--tier": tier,
        "--allow-tf32": allow_tf32,
        "--channels-last": channels_last,
        "--network": network,
        "--measured": measured,
    }
    of_time |= {f"--{name.replace('_', '-')}": value for name, value in run.items()}
    options = [name for name, value in of_time.items() if value not in (None, False)]
    if options and settings.get("on") is None:
        raise click.UsageError(f"{' and '.join(options)}: give --on MACHINE too, whose time that is about")
    prediction = predicted(model, **settings)
    if prediction.settings.on is not None:
        machine: Any = prediction.settings.on
        constants: Any = tier  # checked there
        stack: Any = prediction.settings.stack
        how: Any = {"allow_tf32": allow_tf32, "channels_last": channels_last, "network": network}
        time = prediction.on(machine, stack=stack, tier=constants, **how)
        if measured is not None:
            if run:
                raise click.UsageError("--measured is of a step, and the others are of a run: ask for one at a time")
            return time.mfu_of(measured)
        return _with_run(time, run) if run else time
    if depth is None and not shapes:
        return prediction
    data = prediction.to_dict()
    if depth is not None:
        data["parts"] = [row.to_dict() for row in prediction.by_part(depth)]
    return Reply(data, prediction.report(depth=depth, shapes=shapes), prediction)


def _plain(amount: str) -> float | str:
    """A number that has no unit, as one; any other text as it is."""
    try:
        return float(amount)
    except ValueError:
        return amount


def _with_run(time: Time, options: dict[str, Any]) -> Reply:
    """A time, and before it the run that is asked for, with what it draws, emits and costs."""
    bill = {name: options.pop(name) for name in ("pue", "power", "intensity", "price") if name in options}
    losses = {name: options.pop(name) for name in ("mtbf", "checkpoint_time", "restart_time") if name in options}
    if losses and len(losses) < len(FAILURES):
        raise click.UsageError("goodput needs --mtbf, --checkpoint-time and --restart-time: give all of them")
    run = time.run(**options)
    answers: dict[str, Any] = {"run": run}
    if losses:
        mtbf, checkpoint, restart = losses.values()
        answers["goodput"] = run.goodput(mtbf=mtbf, checkpoint=checkpoint, restart=restart)
        run = answers["goodput"].whole
    if {"power", "intensity"} & bill.keys() and "pue" not in bill:
        raise click.UsageError("energy and carbon need --pue RATIO: 1 for the devices alone, 1.1 in a good data centre")
    if "pue" in bill:
        power = _plain(bill.get("power", "typical"))
        answers["energy"] = run.energy(pue=bill["pue"], power=power)
        if "intensity" in bill:
            answers["carbon"] = answers.pop("energy").carbon(_plain(bill["intensity"]))
    if "price" in bill or time.machine.price is not None:
        answers["money"] = run.money(price=bill.get("price"))
    sheets = [answer.sheet() for answer in answers.values()]  # of one question, which stands before them all
    parts = [sheet._replace(head=sheet.head[n > 0 :]).text() for n, sheet in enumerate(sheets)]
    text = "\n\n".join([*parts, str(time)])
    return Reply({**time.to_dict(), **{name: answer.to_dict() for name, answer in answers.items()}}, text, time)


@verb(
    MODEL,
    QUANTITY,
    option("--latex", is_flag=True, help="Print it for a paper: an equation, its letters, and what to cite."),
    *OPTIONS,
    examples=(
        "explain gpt2-small params",
        "explain gpt2-small memory.activations --batch 32 --seq 512",
        "explain gpt2-small flops.total --latex",
    ),
)
def explain(model: str, quantity: str, latex: bool, settings: dict[str, Any]) -> Any:
    """One quantity: its formula, what each letter is, the numbers put in, its value and its sources."""
    from costmodel.analysis.predict import predict as predicted

    explanation = predicted(model, **settings).explain(quantity)
    return Reply(explanation.to_dict(), explanation.latex(), explanation) if latex else explanation


@verb(
    MODEL,
    click.Argument(
        ["memory"],
        required=False,
        metavar="[MEMORY]",
        help="What there is, such as 24GiB or 80GB, or a machine such as h100-sxm (default: that of --on).",
    ),
    RESERVE,
    option("--choose", is_flag=True, help="Find the checkpoint that fits and recomputes least."),
    *OPTIONS,
    examples=(
        "fits gpt2-small 24GiB --batch 32 --seq 512 --checkpoint block --reserve 1GiB",
        "fits gpt2-small 24GiB --batch 32 --seq 512 --choose",
        "fits llama-3.1-8b h100-sxm --mode inference --precision bf16 --attention flash",
    ),
    judged=True,
)
def fits(model: str, memory: str | None, reserve: str | None, choose: bool, settings: dict[str, Any]) -> Any:
    """Whether the peak fits: exit code 0 if it does, 1 if it does not."""
    if choose:
        from costmodel.analysis.checkpoint import cheapest_checkpoint

        return cheapest_checkpoint(model, memory, reserve=reserve, **settings)
    from costmodel.analysis.predict import predict as predicted

    return predicted(model, **settings).fits(memory, reserve=reserve)


@verb(
    MODEL,
    *OPTIONS,
    examples=(
        "timeline gpt2-small --batch 8 --seq 512",
        "timeline gpt2-small --batch 8 --checkpoint block --out memory.png",
    ),
    drawn=True,
)
def timeline(model: str, settings: dict[str, Any]) -> Any:
    """What is alive at the steps that matter, and where the peak is; with --json at every step."""
    from costmodel.analysis.predict import predict as predicted

    return predicted(model, **settings).timeline


@verb(
    MODEL,
    *OPTIONS,
    examples=(
        "ranks llama-3.1-8b --seq 4096 --tp 8",
        "ranks llama-3.1-8b --seq 4096 --pp 4 --accumulate 8 --out pipeline.png",
    ),
    drawn=True,
)
def ranks(model: str, settings: dict[str, Any]) -> Any:
    """The ranks of a layout that differ, the heaviest first: parameters, FLOPs, memory and what each sends.

    As a picture a pipeline's step, a lane for each rank.
    """
    from costmodel.analysis.predict import predict as predicted

    return predicted(model, **settings).ranks


@verb(
    MODEL,
    NETWORK,
    *OPTIONS,
    examples=(
        "collectives llama-3.1-8b --seq 4096 --tp 8 --sp true",
        "collectives llama-3.1-8b --seq 4096 --precision bf16 --tp 8 --on dgx-h100",
    ),
)
def collectives(model: str, settings: dict[str, Any], network: str | None) -> Any:
    """Every collective of one step of the heaviest rank: sums by axis and operation, then each in order.

    With --on the seconds of each, and what the device waits for.
    """
    from costmodel.analysis.predict import predict as predicted

    prediction = predicted(model, **settings)
    if (machine := prediction.settings.on) is None:
        if network is not None:
            raise click.UsageError("--network: give --on CLUSTER too, whose nodes it joins")
        return prediction.collectives
    from costmodel.performance.report import StepCollectives

    stack: Any = prediction.settings.stack
    time = prediction.on(machine, stack=stack, network=network)  # type: ignore[arg-type]
    return StepCollectives(time.question, tuple(time.collectives), time.seconds, time.joined)
