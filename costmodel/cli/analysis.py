"""``costmodel solve | break-even | sensitivity | recommend | layouts | compare``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from costmodel.cli.commands import (
    MODEL,
    NETWORK,
    QUANTITY,
    RESERVE,
    argument,
    counted,
    option,
    public,
    read_share,
    verb,
)
from costmodel.cli.options import AXES, CHANGED, OPTIONS, OVER, QUANTITIES, SINGLE, read_several
from costmodel.errors import SettingError, SpecError, shown
from costmodel.training.setting import from_text

solve = public(
    "solve",
    """The largest size at which a quantity is within a target; the smallest, where it falls with the size.

    Exit code 0, or 1 if there is none.
    """,
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
    judged=True,
)
break_even = public(
    "break_even",
    "Where one cost passes another as a size grows: exit code 0, or 1 if it does nowhere.",
    MODEL,
    argument("a", "A quantity, or a part's: attention (its FLOPs), attention:params, ..."),
    argument("b", "Another, given in the same way."),
    option("--for", "for_", metavar="SIZE", default="seq", help="What grows: batch, seq, layers, width, ..."),
    *OPTIONS,
    examples=(
        "break-even gpt2-small attention mlp --for seq",
        "break-even resnet50 memory.activations memory.weights --for batch --json",
    ),
    judged=True,
)
sensitivity = public(
    "sensitivity",
    "Which size moves a quantity most: elasticities, from derivatives of its formula.",
    MODEL,
    QUANTITY,
    *OPTIONS,
    examples=("sensitivity gpt2-small memory.peak --batch 8", "sensitivity resnet50 flops.total"),
)


def _choices(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Values between which one is chosen; what is given once by itself."""
    return {name: v[0] if isinstance(v, list) and len(v) == 1 else v for name, v in settings.items()}


@verb(
    MODEL,
    click.Argument(["memory"], required=False, metavar="[MEMORY]"),
    option("--samples", metavar="N", type=int, help="Of a step on all devices, by accumulating (default: one batch)."),
    RESERVE,
    option(
        "--flops-per-byte",
        metavar="N",
        type=float,
        default=100,
        help="FLOPs that the device could do while it moves a byte.",
    ),
    CHANGED,
    *AXES,
    examples=(
        "recommend gpt2-small 24GiB",
        "recommend llama-3.1-8b --on h100-sxm --seq 4096",
        "recommend gpt2-small 24GiB --seq 512 --samples 512 --optimizer adamw --reserve 1GiB",
        "recommend resnet50 16GiB --precision fp32,bf16-autocast --checkpoint none,block --json",
    ),
    judged=True,
)
def recommend(
    model: str,
    memory: str | None,
    samples: int | None,
    reserve: str | None,
    flops_per_byte: float,
    settings: dict[str, Any],
) -> Any:
    """Settings that fit, ranked by how much of a step is work on its samples, or by samples a second with --on.

    MEMORY is what there is, such as 24GiB or 80GB: that of the machine unless given. Exit code 0, or 1 if nothing fits.

    What is given stays; of several values one is chosen.
    """
    from costmodel.analysis.recommend import recommend as recommended

    return recommended(
        model, memory=memory, samples=samples, reserve=reserve, flops_per_byte=flops_per_byte, **_choices(settings)
    )


@verb(
    MODEL,
    click.Argument(["memory"], required=False, metavar="[MEMORY]"),
    RESERVE,
    NETWORK,
    option(
        "--within",
        metavar="SHARE",
        callback=read_share,
        default="5%",
        help="Work out those at most so much slower than the best, and name the simplest of them.",
    ),
    option("--every", is_flag=True, help="Work out all that fit, not those near the best alone."),
    CHANGED,
    *(one if one.name == "pp_split" else several for one, several in zip(SINGLE, AXES, strict=True)),
    examples=(
        "layouts llama-3.1-8b --devices 16 --on h100-sxm --seq 8192 --global-batch 64",
        "layouts llama-3.1-70b 80GB --devices 256 --seq 8192 --global-batch 1024 --runtime megatron --tp 4,8",
        "layouts gpt2-small 8GiB --devices 4 --global-batch 32 --seq 512 --json",
    ),
    drawn=True,
    judged=True,
)
def layouts(
    model: str,
    memory: str | None,
    reserve: str | None,
    network: str | None,
    within: float,
    every: bool,
    settings: dict[str, Any],
) -> Any:
    """Every layout over --devices that fits, ranked by tokens a second with --on, else by memory.

    MEMORY is what a device has, such as 80GB: that of the machine unless given. Exit code 0, or 1 if nothing fits.

    What is given stays; of several values one is chosen, as degrees are that are left out. Megatron's experts may be
    split over other ranks than those of --tp: of such a layout its etp is said. The fastest pipelines are tried with
    fewer layers in the first and last stages too: pp_split 4x5,5x2,2 is 5 stages of 4 layers, 2 of 5 and one of 2.
    """
    from costmodel.analysis.layouts import layouts as every_layout

    choices = _choices(settings)
    choices |= {"memory": memory, "reserve": reserve, "network": network, "within": within, "every": every}
    with counted("layouts") as progress:
        return every_layout(model, progress=progress, **choices)


def _named(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _prices(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Prices by machine, from texts ``MACHINE=MONEY``. Raises SettingError."""
    prices = {}
    for text in texts:
        name, equals, price = text.rpartition("=")
        if not equals or type(amount := from_text(price.strip())) not in (int, float):
            raise SettingError(f"--price {shown(text)} is no machine and money an hour: use text such as h100-sxm=2.5")
        if name.strip() in prices:
            raise SettingError(f"--price {name.strip()} is given twice: leave one out")
        prices[name.strip()] = amount
    return prices


def _listed(path: str) -> dict[str, Any]:
    """Prices by machine, from a YAML or JSON file. Raises SpecError."""
    from costmodel.documents.document import parse
    from costmodel.documents.files import shown_path, text_of

    where = shown_path(path)
    data = parse(text_of(path, where, "price"), where, "prices, with lines such as 'h100-sxm: 2.5'").data
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise SpecError(f"{where}: prices are of machines by name: use lines such as 'h100-sxm: 2.5'")
    return data


@verb(
    MODEL,
    option("--machines", metavar="NAME,...|WORDS", callback=_named, help="Some, such as h100-sxm,l4 or 'nvidia ada'."),
    option("--counts", metavar="N,...", callback=read_several, help="How many of a machine (default 1,2,4,8)."),
    option("--by", metavar="ORDER", help="rate, seconds, headroom, joules, money, memory or name."),
    option("--price", multiple=True, callback=_prices, metavar="MACHINE=MONEY", help="Of a device for an hour."),
    option("--prices", metavar="FILE", help="The same of several: YAML or JSON, a line such as h100-sxm: 2.5 each."),
    option("--tokens", metavar="N", help="Of the job that money is of, such as 300e9 (default 1e6)."),
    option("--samples", metavar="N", help="The same in samples."),
    RESERVE,
    *OPTIONS,
    examples=(
        "gpus llama-3.1-8b --mode decode",
        "gpus llama-3.1-70b --mode decode --batch 16 --machines h100-sxm,h200-sxm,a100-sxm --price h100-sxm=2.5",
        "gpus resnet50 --batch 256 --samples 115e6 --prices prices.yaml --by money --out offers.csv",
    ),
    judged=True,
)
def gpus(
    model: str,
    machines: list[str] | None,
    price: dict[str, Any],
    prices: str | None,
    settings: dict[str, Any],
    **options: Any,
) -> Any:
    """Which machine: every ready one, and 2, 4, 8 of it, in three groups: fits with room, fits tightly, does not.

    Each with what is to spare, tokens or samples a second with their range, joules, and money for a job where there are
    prices; sorted by money then, else by rate. In 16 bits and with fused attention unless these are given.
    """
    from costmodel.analysis.gpus import gpus as offers
    from costmodel.hardware.catalogue import machine_name

    own = {machine_name(name) for name in price}
    others = {} if prices is None else _listed(prices)
    known = {name: amount for name, amount in others.items() if machine_name(name) not in own} | price
    some = machines[0] if machines is not None and len(machines) == 1 else machines
    options = {name: value for name, value in options.items() if value is not None}
    with counted("machines") as progress:
        return offers(model, machines=some, prices=known, progress=progress, **options, **settings)


compare = public(
    "compare",
    "Models or settings side by side: values, differences and ratios to the first. Options take several values.",
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
