"""``costmodel predict | explain | fits | timeline``."""

from __future__ import annotations

from typing import Any

import click

from costmodel.cli.commands import MODEL, QUANTITY, RESERVE, Shown, argument, option, verb
from costmodel.cli.options import SETTINGS


@verb(
    MODEL,
    option("--tier", type=click.Choice(("ceiling", "typical", "calibrated")), help="Where constants of --on are from."),
    option("--depth", type=int, metavar="N", help="Sum layers up by part, so many levels down."),
    option("--shapes", is_flag=True, help="Also print the shape of each layer's output."),
    *SETTINGS,
    examples=(
        "predict gpt2-small --batch 32 --seq 512",
        "predict gpt2-small --batch 32 --seq 512 --on h100-sxm --stack compiled",
        "predict gpt2-small --depth 1",
        "predict gpt2-small --batch 32 --precision bf16-autocast --checkpoint block",
        "predict resnet50 --batch 8 --image 224x320 --mode inference",
        "predict gpt2-small --batch 32 --seq 512 --on h100-sxm --out roofline.png",
        "predict my-model.yaml --json",
    ),
    drawn=True,
)
def predict(model: str, tier: str | None, depth: int | None, shapes: bool, settings: dict[str, Any]) -> Any:
    """What a model costs: parameters, FLOPs and memory, in total and by layer; with --on how long a step takes.

    A time comes with its range, what bounds it, and the layers that take longest. As a picture --out draws what each
    part has, or with --on the roofline.
    """
    from costmodel.cost.prediction import predict as predicted

    found = predicted(model, **settings)
    if found.settings.on is not None:
        machine: Any = found.settings.on
        given: Any = tier  # checked there
        return found.on(machine, stack=found.settings.stack, tier=given)
    if tier:
        raise click.UsageError("--tier is of a time: give --on MACHINE too")
    if depth is None and not shapes:
        return found
    data = found.to_dict()
    if depth is not None:
        data["parts"] = [row.to_dict() for row in found.by_part(depth)]
    return Shown(data, found.report(depth=depth, shapes=shapes), found)


@verb(
    MODEL,
    QUANTITY,
    *SETTINGS,
    examples=("explain gpt2-small params", "explain gpt2-small memory.activations --batch 32 --seq 512"),
)
def explain(model: str, quantity: str, settings: dict[str, Any]) -> Any:
    """One quantity: its formula, what each letter is, the numbers put in, its value and its sources."""
    from costmodel.cost.prediction import predict as predicted

    return predicted(model, **settings).explain(quantity)


@verb(
    MODEL,
    argument("memory", "What there is, such as 24GiB or 80GB."),
    RESERVE,
    option("--choose", is_flag=True, help="Find the checkpoint that fits and recomputes least."),
    *SETTINGS,
    examples=(
        "fits gpt2-small 24GiB --batch 32 --seq 512 --checkpoint block --reserve 1GiB",
        "fits gpt2-small 24GiB --batch 32 --seq 512 --choose",
    ),
)
def fits(model: str, memory: str, reserve: str | None, choose: bool, settings: dict[str, Any]) -> tuple[Any, int]:
    """Whether the peak fits: exit code 0 if it does, 1 if it does not."""
    from costmodel.cost.prediction import predict as predicted

    prediction = predicted(model, **settings)
    found: Any = prediction.fits(memory, reserve=reserve or 0)
    if choose:
        from costmodel.analysis.checkpoint import choose as cheapest

        found = cheapest(prediction, memory, reserve or 0)
    return found, 0 if found else 1


@verb(
    MODEL,
    *SETTINGS,
    examples=(
        "timeline gpt2-small --batch 8 --seq 512",
        "timeline gpt2-small --batch 8 --checkpoint block --out memory.png",
    ),
    drawn=True,
)
def timeline(model: str, settings: dict[str, Any]) -> Any:
    """What is alive at the steps that matter, and where the peak is; with --json at every step."""
    from costmodel.cost.prediction import predict as predicted

    return predicted(model, **settings).timeline
