"""The commands of ``costmodel``, as typer reads them: from arguments to a question, and the text of its answer."""

import json
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from costmodel.options import Json, Model, Models, Out, Quantities, Resume, asking, asking_of, comparing, sweeping


def _examples(*lines: str) -> str:
    # \b keeps click from filling the lines.
    return "\b\nExamples:\n" + "\n".join(f"  costmodel {line}" for line in lines)


class Commands(TyperGroup):
    """Makes the commands under ``roofline`` only when they are asked for: they would slow down every cold start."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every name, in the order of the help."""
        return [*super().list_commands(ctx), "roofline"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        if cmd_name != "roofline":
            return super().get_command(ctx, cmd_name)
        from costmodel.roofline.questions import app as roofline

        group = typer.main.get_command(roofline)
        group.name = cmd_name
        return group


app = typer.Typer(
    cls=Commands,
    help="What a neural network costs, exact and explained: parameters, FLOPs and memory from its description alone.",
    epilog=_examples("predict gpt2-small --batch 32 --seq 512", "models", "predict --help"),
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

UsageError: Any = typer.BadParameter.__mro__[2]
"""The base of what typer raises for a command line that it cannot read."""


def command() -> Any:
    """The click command behind `app`."""
    return typer.main.get_command(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from costmodel import __version__

        typer.echo(f"costmodel {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


Quantity = Annotated[
    str, typer.Argument(metavar="QUANTITY", help="params, flops.forward, memory.activations, memory.peak, ...")
]
Memory = Annotated[str, typer.Argument(metavar="MEMORY", help="What there is, such as 24GiB or 80GB.")]
Plot = Annotated[str | None, typer.Option(metavar="FILE", help="Also draw it, as FILE.png, .svg or .pdf.")]
Choose = Annotated[bool, typer.Option("--choose", help="Find the checkpoint that fits and recomputes least.")]
Reserve = Annotated[str, typer.Option(metavar="SIZE", help="Memory to leave for what is not modelled.")]


@app.command(
    epilog=_examples(
        "predict gpt2-small --batch 32 --seq 512",
        "predict gpt2-small --batch 32 --precision bf16-autocast --checkpoint block",
        "predict resnet50 --batch 8 --image 224x320 --mode inference",
        "predict my-model.yaml --json",
    )
)
@asking
def predict(prediction: Any, as_json: Json = False) -> str:
    """What a model costs: parameters, FLOPs and memory, in total and by layer."""
    return _json(prediction.to_dict()) if as_json else str(prediction)


@app.command(
    epilog=_examples("explain gpt2-small params", "explain gpt2-small memory.activations --batch 32 --seq 512")
)
@asking
def explain(prediction: Any, quantity: Quantity, as_json: Json = False) -> str:
    """One quantity: its formula, what each letter is, the numbers put in, its value and its sources."""
    explanation = prediction.explain(quantity)
    return _json(explanation.to_dict()) if as_json else str(explanation)


@app.command(
    epilog=_examples(
        "fits gpt2-small 24GiB --batch 32 --seq 512 --checkpoint block --reserve 1GiB",
        "fits gpt2-small 24GiB --batch 32 --seq 512 --choose",
    )
)
@asking
def fits(
    prediction: Any, memory: Memory, reserve: Reserve = "", choose: Choose = False, as_json: Json = False
) -> tuple[str, int]:
    """Whether the peak fits: exit code 0 if it does, 1 if it does not."""
    answer: Any = prediction.fits(memory, reserve=reserve or 0)
    if choose:
        from costmodel.choice import choose as cheapest

        answer = cheapest(prediction, memory, reserve or 0)
    return (_json(answer.to_dict()) if as_json else str(answer)), 0 if answer else 1


For = Annotated[str, typer.Option("--for", metavar="SIZE", help="What to find: batch, seq, layers, width, ...")]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="Such as 24GiB for memory, else 124M or 2.5T.")]


@app.command(
    epilog=_examples(
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
    """The largest size at which a quantity is within a target: exit code 0, or 1 if there is none."""
    from costmodel.inverse import solve as find

    found = find(model, quantity, target, for_=for_, reserve=reserve or 0, **settings)
    if plot is not None:
        found.plot(plot)
    return (_json(found.to_dict()) if as_json else str(found)), 0 if found else 1


Cost = typer.Argument(help="A quantity, or a part's: attention (its FLOPs), attention:params, ...")


@app.command(
    "break-even",
    epilog=_examples(
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
    from costmodel.crossing import break_even as find

    found = find(model, a, b, for_=for_, **settings)
    return (_json(found.to_dict()) if as_json else str(found)), 0 if found else 1


@app.command(epilog=_examples("sensitivity gpt2-small memory.peak --batch 8", "sensitivity resnet50 flops.total"))
@asking
def sensitivity(prediction: Any, quantity: Quantity, as_json: Json = False) -> str:
    """Which size moves a quantity most: elasticities, from derivatives of its formula."""
    from costmodel.elasticity import sensitivities

    found = sensitivities(prediction, quantity)
    return _json(found.to_dict()) if as_json else str(found)


AtEqual = Annotated[
    str | None, typer.Option(metavar="QUANTITY", help="Size all but the first to come nearest to its params, ...")
]
By = Annotated[str, typer.Option(metavar="SIZE", help="What to turn for that: width, layers, ...")]


@app.command(
    epilog=_examples(
        "compare gpt2-small resnet50 mlp-mnist --batch 8",
        "compare gpt2-small --optimizer sgd,adamw --checkpoint none,block",
        "compare gpt2-small gpt2-medium --at-equal params --plot bars.png",
    )
)
@comparing
def compare(
    models: Models,
    asked: Any,
    at_equal: AtEqual = None,
    by: By = "width",
    plot: Plot = None,
    as_json: Json = False,
) -> str:
    """Models or settings side by side: values, differences and ratios to the first. Options take several values."""
    from costmodel.comparison import compare as beside

    found = beside(*models, at_equal=at_equal, by=by, **asked)
    if plot is not None:
        found.plot(plot)
    return _json(found.to_dict()) if as_json else str(found)


@app.command(
    epilog=_examples(
        "timeline gpt2-small --batch 8 --seq 512",
        "timeline gpt2-small --batch 8 --checkpoint block --plot memory.png",
    )
)
@asking
def timeline(prediction: Any, plot: Plot = None, as_json: Json = False) -> str:
    """What is alive at the steps that matter, and where the peak is; with --json at every step."""
    found = prediction.timeline
    if plot is not None:
        found.plot(plot)
    return _json(found.to_dict()) if as_json else str(found)


Family = Annotated[str | None, typer.Option(metavar="NAME", help="Only names that start so, such as llama.")]
Params = Annotated[str | None, typer.Option(metavar="N", help="Only with as many parameters, such as 8e9 or 8B.")]


@app.command(epilog=_examples("models", "models --family llama --max-params 8e9", "models --json"))
def models(family: Family = None, min_params: Params = None, max_params: Params = None, as_json: Json = False) -> str:
    """The ready models, with their parameters and where their numbers come from."""
    from textwrap import shorten

    from costmodel.table import Table
    from costmodel.zoo import models as entries

    found = entries(family, min_params=min_params, max_params=max_params)
    if as_json:
        fields = ("name", "architecture", "params", "notes")
        return _json([{field: getattr(entry, field) for field in fields} for entry in found])
    rows = [
        (entry.name, entry.architecture, f"{entry.params:,}", shorten(entry.notes, 60, placeholder=" ..."))
        for entry in found
    ]
    return Table(("model", "architecture", "params", "source"), rows, words=frozenset({0, 1, 3})).text()


@app.command(epilog=_examples("show gpt2-small > my-model.yaml", "show resnet50 --json"))
def show(model: Model, as_json: Json = False) -> str:
    """A model's description, which a file can hold: every field that is not at its default."""
    from costmodel.files import describe, to_yaml
    from costmodel.zoo import load

    loaded = load(model)
    return _json(describe(loaded)) if as_json else to_yaml(loaded).rstrip()


def _json(data: Any) -> str:
    ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
    return json.dumps(data, indent=2, ensure_ascii=ascii_only)


@app.command(
    epilog=_examples(
        "sweep gpt2-small --batch 1:64:*2 --seq 512,1024 --optimizer sgd,adamw --out sweep.parquet",
        "sweep gpt2-small --over layers=6:24:6 --over width=768,1536 --quantities params,memory.peak",
        "sweep resnet50 --batch 8,16 --image 224,224x320 --json",
    )
)
@sweeping
def sweep(
    model: Model,
    asked: Any,
    quantities: Quantities = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> str:
    """A grid of questions: options take several values, as 1,2,4 or in ranges 1:64, 6:48:6, 1:64:*2, ends included.

    Names of parts to checkpoint together are joined as in --checkpoint none,mlp+attention.
    """
    from costmodel.grids import printed, summary, written

    named = quantities.split(",") if quantities else None
    if out is None:
        return printed(model, asked, named, as_json)
    found = written(model, asked, named, out, resume)
    return _json(found) if as_json else summary(found)
