"""The commands of ``costmodel``, as typer reads them: from arguments to a question, and the text of its answer."""

import json
import re
import sys
from typing import Annotated, Any

import typer

from costmodel.errors import shown


def _examples(*lines: str) -> str:
    # \b keeps click from filling the lines.
    return "\b\nExamples:\n" + "\n".join(f"  costmodel {line}" for line in lines)


app = typer.Typer(
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


def _size(text: str) -> int:
    if not re.fullmatch("-?[0-9]{1,1000}", text):
        raise typer.BadParameter(f"{shown(text)} is not a whole number: use one such as 32")
    return int(text)


def _image(text: str) -> tuple[int, int]:
    height, *width = text.split("x", 1)
    return _size(height), _size(width[0] if width else height)


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A ready model's name, or the path of a YAML or JSON file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Batch = Annotated[int | None, typer.Option(parser=_size, metavar="N", help="Samples in a batch (default 1).")]
Seq = Annotated[
    int | None, typer.Option(parser=_size, metavar="N", help="Tokens in a sequence (default: the model's context).")
]
Image = Annotated[
    Any,
    typer.Option(parser=_image, metavar="HxW", help="Image size, such as 224 or 224x320 (default: the model's own)."),
]
Mode = Annotated[str | None, typer.Option(metavar="train|inference", help="With or without a backward pass.")]
Optimizer = Annotated[str | None, typer.Option(metavar="NAME", help="Optimizer (default adamw).")]
Precision = Annotated[str | None, typer.Option(metavar="NAME", help="Precision policy (default fp32).")]
Attention = Annotated[
    str | None, typer.Option(metavar="eager|flash|efficient", help="Attention: scores stored, or a fused kernel.")
]
Loss = Annotated[
    str | None,
    typer.Option(metavar="cross_entropy|mean_squared_error|none", help="Loss (default: the model's own)."),
]
Device = Annotated[str | None, typer.Option(metavar="gpu|cpu", help="Whose kernels decide what is kept.")]
FlopRule = Annotated[
    str | None, typer.Option(metavar="pytorch|arithmetic", help="Count FLOPs as PyTorch does, or as done.")
]
Pairs = Annotated[
    str | None, typer.Option(metavar="full|visible", help="Count attention's full square, or only what masks leave.")
]


def _checkpoint(text: str) -> Any:
    if text.isdecimal():
        return _size(text)
    return tuple(text.split(",")) if "," in text else text


Checkpoint = Annotated[
    Any,
    typer.Option(
        parser=_checkpoint,
        metavar="none|block|sqrt|selective|N|NAMES",
        help="What backward recomputes: equal blocks, groups of N, attention's core, or parts by name.",
    ),
]
Memory = Annotated[str, typer.Argument(metavar="MEMORY", help="What there is, such as 24GiB or 80GB.")]
Reserve = Annotated[str, typer.Option(metavar="SIZE", help="Memory to leave for what is not modelled.")]


@app.command(
    epilog=_examples(
        "predict gpt2-small --batch 32 --seq 512",
        "predict gpt2-small --batch 32 --precision bf16-autocast --checkpoint block",
        "predict resnet50 --batch 8 --image 224x320 --mode inference",
        "predict my-model.yaml --json",
    )
)
def predict(
    model: Model,
    batch: Batch = None,
    seq: Seq = None,
    image: Image = None,
    mode: Mode = None,
    optimizer: Optimizer = None,
    precision: Precision = None,
    attention: Attention = None,
    loss: Loss = None,
    device: Device = None,
    flop_rule: FlopRule = None,
    attention_pairs: Pairs = None,
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> str:
    """What a model costs: parameters, FLOPs and memory, in total and by layer."""
    prediction = _predict(locals())
    return _json(prediction.to_dict()) if as_json else str(prediction)


@app.command(
    epilog=_examples("explain gpt2-small params", "explain gpt2-small memory.activations --batch 32 --seq 512")
)
def explain(
    model: Model,
    quantity: Annotated[
        str, typer.Argument(metavar="QUANTITY", help="params, flops.forward, memory.activations, memory.peak, ...")
    ],
    batch: Batch = None,
    seq: Seq = None,
    image: Image = None,
    mode: Mode = None,
    optimizer: Optimizer = None,
    precision: Precision = None,
    attention: Attention = None,
    loss: Loss = None,
    device: Device = None,
    flop_rule: FlopRule = None,
    attention_pairs: Pairs = None,
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> str:
    """One quantity: its formula, what each letter is, the numbers put in, its value and its sources."""
    explanation = _predict({k: v for k, v in locals().items() if k != "quantity"}).explain(quantity)
    return _json(explanation.to_dict()) if as_json else str(explanation)


@app.command(epilog=_examples("fits gpt2-small 24GiB --batch 32 --seq 512 --checkpoint block --reserve 1GiB"))
def fits(
    model: Model,
    memory: Memory,
    reserve: Reserve = "",
    batch: Batch = None,
    seq: Seq = None,
    image: Image = None,
    mode: Mode = None,
    optimizer: Optimizer = None,
    precision: Precision = None,
    attention: Attention = None,
    loss: Loss = None,
    device: Device = None,
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> tuple[str, int]:
    """Whether the peak fits: exit code 0 if it does, 1 if it does not."""
    asked = {name: value for name, value in locals().items() if name not in ("memory", "reserve")}
    answer = _predict(asked).fits(memory, reserve=reserve or 0)
    return (_json(answer.to_dict()) if as_json else str(answer)), 0 if answer else 1


@app.command(epilog=_examples("models", "models --json"))
def models(as_json: Json = False) -> str:
    """The ready models, with their parameters and where their numbers come from."""
    from textwrap import shorten

    from costmodel.table import Table
    from costmodel.zoo import models as entries

    if as_json:
        fields = ("name", "architecture", "params", "notes")
        return _json([{field: getattr(entry, field) for field in fields} for entry in entries()])
    rows = [
        (entry.name, entry.architecture, f"{entry.params:,}", shorten(entry.notes, 60, placeholder=" ..."))
        for entry in entries()
    ]
    return Table(("model", "architecture", "params", "source"), rows, words=frozenset({0, 1, 3})).text()


@app.command(epilog=_examples("show gpt2-small > my-model.yaml", "show resnet50 --json"))
def show(model: Model, as_json: Json = False) -> str:
    """A model's description, which a file can hold: every field that is not at its default."""
    from costmodel.files import describe, to_yaml
    from costmodel.zoo import load

    loaded = load(model)
    return _json(describe(loaded)) if as_json else to_yaml(loaded).rstrip()


def _predict(arguments: dict[str, Any]) -> Any:
    """The prediction that a command's arguments ask for; those not given are left to `predict`."""
    import costmodel

    given = {name: value for name, value in arguments.items() if value is not None and name not in ("model", "as_json")}
    if given.get("loss") == "none":
        given["loss"] = None
    return costmodel.predict(arguments["model"], **given)


def _json(data: Any) -> str:
    ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
    return json.dumps(data, indent=2, ensure_ascii=ascii_only)
