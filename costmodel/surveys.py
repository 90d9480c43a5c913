"""The commands that ask several questions at once: ``costmodel sweep | pareto | compare``."""

from typing import Annotated, Any

import typer

from costmodel.application import Plot, Reserve, examples, group, json_text
from costmodel.options import Json, Model, Models, Out, Quantities, Resume, comparing, sweeping

app = group()

Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="With --plot, draw the edge of what fits so much.")]


@app.command(
    epilog=examples(
        "sweep gpt2-small --batch 1:64:*2 --seq 512,1024 --optimizer sgd,adamw --out sweep.parquet",
        "sweep gpt2-small --over layers=6:24:6 --over width=768,1536 --quantities params,memory.peak",
        "sweep resnet50 --batch 8,16 --image 224,224x320 --json",
        "sweep gpt2-small --batch 1:64 --seq 128:1024:64 --plot fits.png --memory 24GiB",
    )
)
@sweeping
def sweep(
    model: Model,
    asked: Any,
    quantities: Quantities = None,
    out: Out = None,
    resume: Resume = False,
    plot: Plot = None,
    memory: Memory = None,
    reserve: Reserve = "",
    as_json: Json = False,
) -> str:
    """A grid of questions: options take several values, as 1,2,4 or in ranges 1:64, 6:48:6, 1:64:*2, ends included.

    Names of parts to checkpoint together are joined as in --checkpoint none,mlp+attention.
    """
    from costmodel.grids import drawn, printed, summary, written
    from costmodel.ranges import read_names

    named = read_names("--quantities", quantities)
    if plot is not None:
        drawn(model, asked, named, plot, memory, reserve)
    elif memory or reserve:
        raise typer.BadParameter("--memory and --reserve are drawn: give --plot FILE too")
    if resume and out is None:
        raise typer.BadParameter("--resume goes on with a file: give its --out FILE too")
    if out is None:
        return printed(model, asked, named, as_json)
    found = written(model, asked, named, out, resume)
    return json_text(found) if as_json else summary(found)


Wanted = Annotated[
    list[str], typer.Argument(metavar="QUANTITY...", help="Of which less is better: memory.peak, flops.hardware, ...")
]
Most = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Of which more is better: batch, seq, ...")]


@app.command(
    epilog=examples(
        "pareto gpt2-small memory.peak flops.hardware --batch 8 --checkpoint none,selective,block,mlp+attention",
        "pareto resnet50 memory.peak --most batch --batch 1:64:*2 --optimizer sgd,adamw --json",
    )
)
@sweeping
def pareto(
    model: Model,
    asked: Any,
    quantities: Wanted,
    most: Most = None,
    plot: Plot = None,
    as_json: Json = False,
) -> str:
    """The cells of a grid of questions that no other beats. MODEL may be a sweep that was saved, as sweep.parquet."""
    from costmodel.grids import unbeaten

    return unbeaten(model, asked, quantities, most or (), plot, as_json)


AtEqual = Annotated[
    str | None, typer.Option(metavar="QUANTITY", help="Size all but the first to come nearest to its params, ...")
]
By = Annotated[str, typer.Option(metavar="SIZE", help="What to turn for that: width, layers, ...")]


@app.command(
    epilog=examples(
        "compare gpt2-small resnet50 mlp-mnist --batch 8",
        "compare gpt2-small --optimizer sgd,adamw --checkpoint none,block",
        "compare gpt2-small --over layers=12,24 --over width=768,1536",
        "compare gpt2-small gpt2-medium --at-equal params --plot bars.png",
    )
)
@comparing
def compare(
    models: Models,
    asked: Any,
    at_equal: AtEqual = None,
    by: By = "width",
    quantities: Quantities = None,
    plot: Plot = None,
    as_json: Json = False,
) -> str:
    """Models or settings side by side: values, differences and ratios to the first. Options take several values."""
    from costmodel.analysis.compare import compare as beside
    from costmodel.ranges import read_names

    named = read_names("--quantities", quantities)
    found = beside(*models, at_equal=at_equal, by=by, quantities=named, **asked)
    if plot is not None:
        found.plot(plot)
    return json_text(found.to_dict()) if as_json else str(found)
