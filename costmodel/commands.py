"""The commands of ``costmodel``, as typer reads them: from arguments to a question, and the text of its answer."""

from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from costmodel.application import Plot, Quantity, Reserve, examples, json_text
from costmodel.options import Json, Model, asking

LATER = ("solve", "break-even", "sensitivity", "recommend", "compare", "sweep", "pareto", "roofline")
"""Commands that are made only when they are asked for: they would slow down every cold start."""


class Commands(TyperGroup):
    """The commands here, and those in `LATER`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every name, in the order of the help."""
        return [*super().list_commands(ctx), *LATER]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        if cmd_name == "roofline":
            from costmodel.roofline.questions import app as roofline

            group = typer.main.get_command(roofline)
            group.name = cmd_name
            return group
        if cmd_name in ("sweep", "pareto", "compare"):
            from costmodel.surveys import app as later
        else:
            from costmodel.inversions import app as later
        return cast(TyperGroup, typer.main.get_command(later)).get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments begin with; an error that names the nearest ones if there is none."""
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            from difflib import get_close_matches  # only errors need it

            near = get_close_matches(args[0], self.list_commands(ctx))
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            error.message = f"No such command {args[0]!r}.{meant}"
            raise


app = typer.Typer(
    cls=Commands,
    help="What a neural network costs, exact and explained: parameters, FLOPs and memory from its description alone.",
    epilog=examples("predict gpt2-small --batch 32 --seq 512", "models", "predict --help"),
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


Memory = Annotated[str, typer.Argument(metavar="MEMORY", help="What there is, such as 24GiB or 80GB.")]
Choose = Annotated[bool, typer.Option("--choose", help="Find the checkpoint that fits and recomputes least.")]


@app.command(
    epilog=examples(
        "predict gpt2-small --batch 32 --seq 512",
        "predict gpt2-small --batch 32 --precision bf16-autocast --checkpoint block",
        "predict resnet50 --batch 8 --image 224x320 --mode inference",
        "predict my-model.yaml --json",
    )
)
@asking
def predict(prediction: Any, as_json: Json = False) -> str:
    """What a model costs: parameters, FLOPs and memory, in total and by layer."""
    return json_text(prediction.to_dict()) if as_json else str(prediction)


@app.command(epilog=examples("explain gpt2-small params", "explain gpt2-small memory.activations --batch 32 --seq 512"))
@asking
def explain(prediction: Any, quantity: Quantity, as_json: Json = False) -> str:
    """One quantity: its formula, what each letter is, the numbers put in, its value and its sources."""
    explanation = prediction.explain(quantity)
    return json_text(explanation.to_dict()) if as_json else str(explanation)


@app.command(
    epilog=examples(
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
        from costmodel.analysis.checkpoint import choose as cheapest

        answer = cheapest(prediction, memory, reserve or 0)
    return (json_text(answer.to_dict()) if as_json else str(answer)), 0 if answer else 1


@app.command(
    epilog=examples(
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
    return json_text(found.to_dict()) if as_json else str(found)


Family = Annotated[str | None, typer.Option(metavar="NAME", help="Only names that start so, such as llama.")]
Params = Annotated[str | None, typer.Option(metavar="N", help="Only with as many parameters, such as 8e9 or 8B.")]


@app.command(epilog=examples("models", "models --family llama --max-params 8e9", "models --json"))
def models(family: Family = None, min_params: Params = None, max_params: Params = None, as_json: Json = False) -> str:
    """The ready models, with their parameters and where their numbers come from."""
    from textwrap import shorten

    from costmodel.display.table import Table
    from costmodel.importers.zoo import models as entries

    found = entries(family, min_params=min_params, max_params=max_params)
    if as_json:
        fields = ("name", "architecture", "params", "notes")
        return json_text([{field: getattr(entry, field) for field in fields} for entry in found])
    rows = [
        (entry.name, entry.architecture, f"{entry.params:,}", shorten(entry.notes, 60, placeholder=" ..."))
        for entry in found
    ]
    return Table(("model", "architecture", "params", "source"), rows, words=frozenset({0, 1, 3})).text()


@app.command(epilog=examples("show gpt2-small > my-model.yaml", "show resnet50 --json"))
def show(model: Model, as_json: Json = False) -> str:
    """A model's description, which a file can hold: every field that is not at its default."""
    from costmodel.importers.files import describe, to_yaml
    from costmodel.importers.zoo import load

    loaded = load(model)
    return json_text(describe(loaded)) if as_json else to_yaml(loaded).rstrip()
