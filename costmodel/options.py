"""The options of ``costmodel`` that stand for the settings of a question, stated once for every command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from costmodel.errors import shown


def _size(text: str) -> int:
    if not re.fullmatch("-?[0-9]{1,1000}", text):
        raise typer.BadParameter(f"{shown(text)} is not a whole number: use one such as 32")
    return int(text)


def _image(text: str) -> tuple[int, int]:
    height, cross, width = text.partition("x")
    try:
        return _size(height), _size(width if cross else height)
    except typer.BadParameter:
        raise typer.BadParameter(f"{shown(text)} is not an image size: use one such as 224 or 224x320") from None


def _checkpoint(text: str) -> Any:
    if text.isdecimal():
        return _size(text)
    return tuple(text.split(",")) if "," in text else text


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _lora(text: str) -> dict[str, Any]:
    rank, colon, targets = text.partition(":")
    if not colon:
        raise typer.BadParameter(f"{shown(text)} is not a rank and parts: use text such as 8:qkv,mlp.up")
    return {"rank": _size(rank), "targets": _names(targets)}


def _option(metavar: str, text: str, parser: Callable[[str], Any] | None = None) -> Any:
    return Annotated[str | None if parser is None else Any, typer.Option(parser=parser, metavar=metavar, help=text)]


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A ready model's name, or the path of a YAML or JSON file.")
]
Models = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="Ready models' names, or paths of YAML or JSON files.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SETTINGS = {
    "batch": _option("N", "Samples in a batch (default 1).", _size),
    "seq": _option("N", "Tokens in a sequence (default: the model's context).", _size),
    "target_seq": _option("N", "Tokens in a target of an encoder-decoder (default: as in the sequence).", _size),
    "image": _option("HxW", "Image size, such as 224 or 224x320 (default: the model's own).", _image),
    "mode": _option("train|inference", "With or without a backward pass."),
    "optimizer": _option("NAME|FILE", "Optimizer (default adamw)."),
    "precision": _option("NAME|FILE", "Precision policy (default fp32)."),
    "attention": _option("eager|flash|efficient", "Attention: scores stored, or a fused kernel."),
    "loss": _option("cross_entropy|mean_squared_error|none", "Loss (default: the model's own)."),
    "loss_chunks": _option("N", "Chunks of rows that head and cross-entropy run over together (default 1).", _size),
    "device": _option("gpu|cpu", "Whose kernels decide what is kept."),
    "flop_rule": _option("pytorch|arithmetic", "Count FLOPs as PyTorch does, or as done."),
    "attention_pairs": _option("full|visible", "Count attention's full square, or only what masks leave."),
    "checkpoint": _option(
        "none|block|sqrt|selective|N|NAMES",
        "What backward recomputes: equal blocks, groups of N, attention's core, or parts by name.",
        _checkpoint,
    ),
    "accumulate": _option("N", "Micro-batches to an optimizer step (default 1).", _size),
    "freeze": _option("NAMES", "Parts whose weights are not trained, such as embedding,mlp.", _names),
    "lora": _option("RANK:NAMES", "Adapters, which alone are trained then, such as 8:qkv,mlp.up.", _lora),
    "update": _option("loop|foreach|fused", "The optimizer updates weights one by one, all at once, or in one kernel."),
    "allocator": _option("exact|cuda", "What the peak counts: tensors, or the blocks of PyTorch's CUDA allocator."),
}
"""An option for each setting of `predict`."""


Out = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write all cells to FILE.parquet or FILE.zarr instead of a table.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a file that an interrupt left.")]
Quantities = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Such as memory.peak,flops.total (default: all; in a table a few).")
]
Over = Annotated[
    list[str] | None, typer.Option(metavar="FIELD=VALUES", help="Vary a field of the model: layers=6:48:6.")
]


def sweeping(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A command that asks over a grid, from a function of the model, of all axes and of what the command alone takes.

    It gets the argument MODEL in front, and before `as_json` options for fields and for the values of each setting.
    """
    return _sweeping(answer, _OVER)


def choosing(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The same without options for fields; a setting that is given one value has it, and not a list."""
    return _sweeping(answer, single=True)


def comparing(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The same from a function of several models."""
    return _sweeping(answer, _OVER)


_NAMED = inspect.Parameter.KEYWORD_ONLY
_OVER = inspect.Parameter("over", _NAMED, default=None, annotation=Over)


def _sweeping(answer: Callable[..., Any], *fields: inspect.Parameter, single: bool = False) -> Callable[..., Any]:
    model, _, *own, as_json = inspect.signature(answer, eval_str=True).parameters.values()

    @wraps(answer)
    def command(**given: Any) -> Any:
        from costmodel.ranges import read_asked

        asked = {name: _once(name, value) for name in SETTINGS if (value := given.pop(name)) is not None}
        axes = read_asked(asked, given.pop("over", None) or [])
        if single:
            axes = {name: v[0] if isinstance(v, list) and len(v) == 1 else v for name, v in axes.items()}
        return answer(given.pop(model.name), axes, **given)

    swept = {name: kind if name in _OF_NAMES else _values(_help(kind)) for name, kind in SETTINGS.items()}
    parameters = [
        *(parameter.replace(kind=_NAMED) for parameter in (model, *own)),
        *fields,
        *(inspect.Parameter(name, _NAMED, default=None, annotation=kind) for name, kind in swept.items()),
        as_json.replace(kind=_NAMED),
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


_OF_NAMES = ("freeze", "lora")
"""Settings whose one value is several names with commas between."""


def _values(text: str) -> Any:
    """An option for the values of an axis, which is told how often it is given."""
    return Annotated[list[str] | None, typer.Option(metavar="VALUES", help=text)]


def _once(name: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) > 1:
        raise typer.BadParameter(f"axis {name} is given twice: put all its values in one, as in {','.join(value)}")
    return value[0]


def _help(kind: Any) -> str:
    return kind.__metadata__[0].help


def asking(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A command that asks for a prediction, from a function of the prediction and of what the command alone takes.

    It gets the argument MODEL in front, and an option for each setting before `as_json`.
    """
    return _asking(answer, 1, lambda model, given: (_predicted(model, given),))


def asking_of(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The same from a function of the model and of the settings that are given, by name."""
    return _asking(answer, 2, lambda model, given: (model, given))


def _asking(answer: Callable[..., Any], first: int, of: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """`first`: how many parameters of `answer` stand for model and settings, which `of` makes of them."""
    *own, as_json = list(inspect.signature(answer, eval_str=True).parameters.values())[first:]
    named = inspect.Parameter.KEYWORD_ONLY

    @wraps(answer)
    def command(*, model: str, **given: Any) -> Any:
        settings = {name: value for name in SETTINGS if (value := given.pop(name)) is not None}
        return answer(*of(model, settings), **given)

    parameters = [
        inspect.Parameter("model", named, annotation=Model),
        *(parameter.replace(kind=named) for parameter in own),
        *(inspect.Parameter(name, named, default=None, annotation=kind) for name, kind in SETTINGS.items()),
        as_json.replace(kind=named),
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _predicted(model: str, settings: dict[str, Any]) -> Any:
    """The prediction asked for; settings that are not given are left to `predict`."""
    import costmodel

    return costmodel.predict(model, **settings)
