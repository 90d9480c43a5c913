"""The commands that ask which size or setting: ``costmodel solve | break-even | sensitivity | recommend``."""

from typing import Annotated, Any

import typer

from costmodel.application import Plot, Quantity, Reserve, examples, group, json_text
from costmodel.options import Json, Model, asking, asking_of, choosing

app = group()

For = Annotated[str, typer.Option("--for", metavar="SIZE", help="What to find: batch, seq, layers, width, ...")]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="Such as 24GiB for memory, else 124M or 2.5T.")]


@app.command(
    epilog=examples(
        "solve gpt2-small memory.peak 24GiB --for batch --seq 512",
        "solve gpt2-small params 1B --for layers",
        "solve resnet50 flops.total 2.5TFLOP --for image --json",
    )
)
@asking_of
def solve(
    model: str,
    settings: dict[str, Any],
    quantity: Quantity,
    target: Target,
    for_: For = "batch",
    reserve: Reserve = "",
    plot: Plot = None,
    as_json: Json = False,
) -> tuple[str, int]:
    """The largest size at which a quantity is within a target; the smallest, where it falls with the size.

    Exit code 0, or 1 if there is none.
    """
    from costmodel.analysis.solve import solve as find

    found = find(model, quantity, target, for_=for_, reserve=reserve or 0, **settings)
    if plot is not None:
        found.plot(plot)
    return (json_text(found.to_dict()) if as_json else str(found)), 0 if found else 1


Cost = typer.Argument(help="A quantity, or a part's: attention (its FLOPs), attention:params, ...")


@app.command(
    "break-even",
    epilog=examples(
        "break-even gpt2-small attention mlp --for seq",
        "break-even resnet50 memory.activations memory.weights --for batch --json",
    ),
)
@asking_of
def break_even(
    model: str,
    settings: dict[str, Any],
    a: Annotated[str, Cost],
    b: Annotated[str, Cost],
    for_: For = "seq",
    as_json: Json = False,
) -> tuple[str, int]:
    """Where one cost passes another as a size grows: exit code 0, or 1 if it does nowhere."""
    from costmodel.analysis.break_even import break_even as find

    found = find(model, a, b, for_=for_, **settings)
    return (json_text(found.to_dict()) if as_json else str(found)), 0 if found else 1


@app.command(epilog=examples("sensitivity gpt2-small memory.peak --batch 8", "sensitivity resnet50 flops.total"))
@asking
def sensitivity(prediction: Any, quantity: Quantity, as_json: Json = False) -> str:
    """Which size moves a quantity most: elasticities, from derivatives of its formula."""
    from costmodel.analysis.sensitivity import sensitivities

    found = sensitivities(prediction, quantity)
    return json_text(found.to_dict()) if as_json else str(found)


Memory = Annotated[str, typer.Option(metavar="SIZE", help="What there is, such as 24GiB or 80GB.")]
Samples = Annotated[
    int | None, typer.Option(metavar="N", help="Of an optimizer step, by accumulating (default: one batch).")
]
Rate = Annotated[float, typer.Option(metavar="N", help="FLOPs that the device could do while it moves a byte.")]


@app.command(
    epilog=examples(
        "recommend gpt2-small --memory 24GiB",
        "recommend gpt2-small --memory 24GiB --seq 512 --samples 512 --optimizer adamw --reserve 1GiB",
        "recommend resnet50 --memory 16GiB --precision fp32,bf16-autocast --checkpoint none,block --json",
    )
)
@choosing
def recommend(
    model: Model,
    asked: Any,
    memory: Memory,
    samples: Samples = None,
    reserve: Reserve = "",
    flops_per_byte: Rate = 100,
    as_json: Json = False,
) -> tuple[str, int]:
    """Settings that fit, ranked by how much of a step is work on its samples: exit code 0, or 1 if nothing fits.

    What is given stays; of several values one is chosen.
    """
    from costmodel.analysis.recommend import recommend as choose

    found = choose(model, memory=memory, samples=samples, reserve=reserve or 0, flops_per_byte=flops_per_byte, **asked)
    return (json_text(found.to_dict()) if as_json else str(found)), 0 if found else 1
