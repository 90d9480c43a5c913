"""``costmodel solve | break-even | sensitivity | recommend | compare``."""

from __future__ import annotations

from typing import Any

import click

from costmodel.cli.commands import MODEL, QUANTITY, RESERVE, argument, option, verb
from costmodel.cli.options import AXES, OPTIONS, OVER, QUANTITIES, axes


@verb(
    MODEL,
    QUANTITY,
    argument("target", "Such as 24GiB for memory, else 124M or 2.5T."),
    option("--for", "for_", metavar="SIZE", default="batch", help="What to find: batch, seq, layers, width, ..."),
    RESERVE,
    *OPTIONS,
    examples=(
        "solve gpt2-small memory.peak 24GiB --for batch --seq 512",
        "solve gpt2-small params 1B --for layers",
        "solve gpt2-small memory.peak 24GiB --for batch --seq 512 --out batch.png",
        "solve resnet50 flops.total 2.5TFLOP --for image --json",
    ),
    drawn=True,
)
def solve(
    model: str, quantity: str, target: str, for_: str, reserve: str | None, settings: dict[str, Any]
) -> tuple[Any, int]:
    """The largest size at which a quantity is within a target; the smallest, where it falls with the size.

    Exit code 0, or 1 if there is none.
    """
    from costmodel.analysis.solve import solve as solved

    found = solved(model, quantity, target, for_=for_, reserve=reserve or 0, **settings)
    return found, 0 if found else 1


@verb(
    MODEL,
    argument("a", "A quantity, or a part's: attention (its FLOPs), attention:params, ..."),
    argument("b", "Another, given in the same way."),
    option("--for", "for_", metavar="SIZE", default="seq", help="What grows: batch, seq, layers, width, ..."),
    *OPTIONS,
    examples=(
        "break-even gpt2-small attention mlp --for seq",
        "break-even resnet50 memory.activations memory.weights --for batch --json",
    ),
)
def break_even(model: str, a: str, b: str, for_: str, settings: dict[str, Any]) -> tuple[Any, int]:
    """Where one cost passes another as a size grows: exit code 0, or 1 if it does nowhere."""
    from costmodel.analysis.break_even import break_even as crossing

    found = crossing(model, a, b, for_=for_, **settings)
    return found, 0 if found else 1


@verb(
    MODEL,
    QUANTITY,
    *OPTIONS,
    examples=("sensitivity gpt2-small memory.peak --batch 8", "sensitivity resnet50 flops.total"),
)
def sensitivity(model: str, quantity: str, settings: dict[str, Any]) -> Any:
    """Which size moves a quantity most: elasticities, from derivatives of its formula."""
    from costmodel.analysis.sensitivity import sensitivity as elasticities

    return elasticities(model, quantity, **settings)


@verb(
    MODEL,
    click.Argument(["memory"], required=False, metavar="[MEMORY]"),
    option("--samples", metavar="N", type=int, help="Of an optimizer step, by accumulating (default: one batch)."),
    RESERVE,
    option(
        "--flops-per-byte",
        metavar="N",
        type=float,
        default=100,
        help="FLOPs that the device could do while it moves a byte.",
    ),
    *AXES,
    examples=(
        "recommend gpt2-small 24GiB",
        "recommend llama-3.1-8b --on h100-sxm --seq 4096",
        "recommend gpt2-small 24GiB --seq 512 --samples 512 --optimizer adamw --reserve 1GiB",
        "recommend resnet50 16GiB --precision fp32,bf16-autocast --checkpoint none,block --json",
    ),
)
def recommend(
    model: str,
    memory: str | None,
    samples: int | None,
    reserve: str | None,
    flops_per_byte: float,
    settings: dict[str, Any],
) -> tuple[Any, int]:
    """Settings that fit, ranked by how much of a step is work on its samples, or by samples a second with --on.

    MEMORY is what there is, such as 24GiB or 80GB: that of the machine unless given. Exit code 0, or 1 if nothing fits.

    What is given stays; of several values one is chosen.
    """
    from costmodel.analysis.recommend import recommend as recommended

    asked = {name: v[0] if isinstance(v, list) and len(v) == 1 else v for name, v in settings.items()}
    found = recommended(
        model, memory=memory, samples=samples, reserve=reserve or 0, flops_per_byte=flops_per_byte, **asked
    )
    return found, 0 if found else 1


@verb(
    argument("models", "Ready models' names, or paths of YAML or JSON files.", several="MODEL..."),
    option("--at-equal", metavar="QUANTITY", help="Size all but the first to come nearest to its params, ..."),
    option("--by", metavar="SIZE", default="width", help="What to turn for that: width, layers, ..."),
    QUANTITIES,
    OVER,
    *AXES,
    examples=(
        "compare gpt2-small resnet50 mlp-mnist --batch 8",
        "compare gpt2-small --optimizer sgd,adamw --checkpoint none,block",
        "compare gpt2-small --over layers=12,24 --over width=768,1536",
        "compare gpt2-small gpt2-medium --at-equal params --out bars.png",
    ),
    drawn=True,
)
def compare(
    models: tuple[str, ...],
    at_equal: str | None,
    by: str,
    quantities: list[str] | None,
    over: tuple[str, ...],
    settings: dict[str, Any],
) -> Any:
    """Models or settings side by side: values, differences and ratios to the first. Options take several values."""
    from costmodel.analysis.compare import compare as compared

    return compared(*models, at_equal=at_equal, by=by, quantities=quantities, **axes(settings, over))
