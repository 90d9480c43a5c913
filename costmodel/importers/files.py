"""Model files: YAML or JSON to an architecture and back, with errors that say what is wrong and on which line."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from costmodel.errors import CostModelError, SpecError, shown, unknown
from costmodel.training.declaration import built
from costmodel.training.optimizers import Optimizer
from costmodel.training.precision import Precision
from costmodel.training.settings import SETTING_NAMES, Settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture
    from costmodel.importers.document import Document

Made = TypeVar("Made")

ARCHITECTURES = {
    "mlp": ("costmodel.architectures.mlp", "MLP"),
    "cnn": ("costmodel.architectures.cnn", "CNN"),
    "transformer": ("costmodel.architectures.transformer", "Transformer"),
    "imported": ("costmodel.importers.torch.model", "Imported"),
    "encoder_decoder": ("costmodel.architectures.encoder_decoder", "EncoderDecoder"),
    "vision_transformer": ("costmodel.architectures.vision_transformer", "VisionTransformer"),
}
"""Where each architecture lives, by the name that files give it."""

SUFFIXES = (".yaml", ".yml", ".json")
MOST_BYTES = 2**20
"""Longer files are refused: the largest model of the zoo takes a hundredth of it."""


def read(path: str | os.PathLike[str]) -> Architecture:
    """The model that a YAML or JSON file describes.

    Raises SpecError: file, line, what is wrong there, and what would be right.
    """
    from costmodel.importers.document import parse

    where = shown_path(path)
    return build_document(parse(_checked(path, where), where))


def read_fields(path: str | os.PathLike[str], what: str, made: Callable[[Any], Made]) -> Made:
    """What `made` makes of the data in a YAML or JSON file that describes a `what`, such as an optimizer.

    Raises SpecError, with the line; errors of `made` name a value by its path, `what` first.
    """
    from costmodel.importers.document import Document, parse

    where = shown_path(path)
    found = parse(_checked(path, where), where, f"the {what}'s fields")
    lines = {(what, *place): line for place, line in found.lines.items()}
    try:
        return made(found.data)
    except CostModelError as error:
        document = Document({what: found.data}, where, lines)
        raise SpecError(f"{document.place(_culprit(SpecError(str(error)), document))}: {error}") from None


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings by name, an optimizer's or a precision's path read. Raises UnknownNameError, SettingError, SpecError."""
    for name in given:
        if name not in SETTING_NAMES:
            raise unknown("setting", name, SETTING_NAMES)
    return Settings(**{name: _declared(name, value) for name, value in given.items()})


def _declared(name: str, value: Any) -> Any:
    kind = {"optimizer": Optimizer, "precision": Precision}.get(name)
    if kind is None or not (isinstance(value, os.PathLike) or (isinstance(value, str) and is_path(value))):
        return value
    return read_fields(value, name, lambda data: built(kind, data, name))


def is_path(name: str) -> bool:
    """Whether text is a path: it has a directory separator, or ends in .yaml, .yml or .json."""
    separators = {os.sep, os.altsep or os.sep}
    return name.lower().endswith(SUFFIXES) or any(separator in name for separator in separators)


def build(data: Any, where: str) -> Architecture:
    """The model that plain data describes, as `describe` gives it; `where` names the data in errors.

    Raises SpecError.
    """
    return _build(data, where)


def build_document(document: Document) -> Architecture:
    """The model that a parsed file describes. Raises SpecError, with the line."""
    try:
        return _build(document.data, "")
    except SpecError as error:
        raise SpecError(f"{document.place(_culprit(error, document))}: {error}") from None


def as_json(data: Any, what: str) -> Any:
    """Plain data as JSON gives it back, with lists for tuples. Raises CostModelError if it is not `what`, nor JSON."""
    try:
        return json.loads(json.dumps(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise CostModelError(f"this is not {what}: {error}") from None


def describe(model: Architecture) -> dict[str, Any]:
    """Plain data that `build` makes an equal model of: the architecture, and each field that is not at its default.

    Raises SpecError for a class of one's own that is more than one of ours: no file can name it.
    """
    homes = {home: name for name, home in ARCHITECTURES.items()}
    cls = type(model)
    known = next(base for base in cls.__mro__ if _home(base) in homes or base is object)
    if any(map(_says_something, cls.__mro__[: cls.__mro__.index(known)])):
        raise SpecError(
            f"{cls.__name__} is a class of one's own, which no file can name: use {', '.join(ARCHITECTURES)}"
        )
    fields = model.model_dump(mode="json", exclude_defaults=True)
    return {"architecture": homes[_home(known)], **fields}


def _says_something(cls: type) -> bool:
    """Whether a class adds to what it inherits, or changes it."""
    given = {"model_config", "_abc_impl"}  # by pydantic and abc, with names between two underscores
    own = [name for name in vars(cls) if name not in given and not (name.startswith("__") and name.endswith("__"))]
    return bool(own or vars(cls).get("__annotations__"))


def to_yaml(model: Architecture) -> str:
    """`describe` as YAML text, which `read` takes."""
    from costmodel.importers.document import dump

    return dump(describe(model))


def _home(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__name__


def _build(data: Any, where: str) -> Architecture:
    prefix = f"{where}: " if where else ""
    example = "start with a line such as 'architecture: transformer'"
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise SpecError(f"{prefix}a model is described by named fields, not by {_kind(data)}: {example}")
    if "model_type" in data and "architecture" not in data:
        return _published(data, prefix)
    fields = dict(data)
    name = fields.pop("architecture", None)
    if name is None:
        published = "; a published configuration has a model_type, such as 'llama'"
        known = ", ".join(sorted(ARCHITECTURES))
        raise SpecError(f"{prefix}no architecture is given: {example} ({known}){published}")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise SpecError(f"{prefix}{unknown('architecture', name, ARCHITECTURES)}")
    module, attribute = ARCHITECTURES[name]
    try:
        return getattr(import_module(module), attribute)(**fields)
    except SpecError as error:
        raise SpecError(f"{prefix}{error}", path=error.path) from None


def _published(data: dict[str, Any], prefix: str) -> Architecture:
    """The model of a published configuration, which names its family and not its architecture."""
    try:
        return import_module("costmodel.importers.huggingface.families").read_config(data)
    except CostModelError as error:
        raise SpecError(f"{prefix}{error}", path=getattr(error, "path", ())) from None


def _kind(data: Any) -> str:
    kinds = {dict: "a mapping with keys that are not words", list: "a list", type(None): "nothing"}
    return kinds.get(type(data), f"a single value ({shown(data)})")


def _culprit(error: SpecError, document: Document) -> tuple[str | int, ...]:
    """Path of the value to blame: of those that validation or the message names, the most exact, else the first."""
    named = ([int(p) if p.isdecimal() else p for p in re.findall(r"\w+", w)] for w in re.findall(r"\S+", str(error)))
    return max((document.nearest(path) for path in (error.path, *map(tuple, named))), key=len)


def _checked(path: str | os.PathLike[str], where: str) -> str:
    """A file's text, which is JSON if the file is called so. What is JSON to excess is left to who parses it."""
    text = _text(path, where)
    if os.fsdecode(path).lower().endswith(".json") and text.strip():
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            raise SpecError(
                f"{where}, line {error.lineno}: not valid JSON: {error.msg[0].lower()}{error.msg[1:]}: mend or "
                "complete the file there"
            ) from None
        except (ValueError, RecursionError):
            pass
    return text


def _text(path: str | os.PathLike[str], where: str) -> str:
    """A file's text: regular, of at most MOST_BYTES, UTF-8."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind == stat.S_IFDIR:
            raise SpecError(f"{where} is a directory: name a model file in it")
        if kind != stat.S_IFREG:
            raise SpecError(f"{where} is a device or pipe: name a regular file")
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"cannot read {where}: {reason.lower()}: give the path of a YAML or JSON file") from None
    if len(content) > MOST_BYTES:
        raise SpecError(f"{where} is larger than {MOST_BYTES:,} bytes: a model file is a few thousand at most")
    if b"\0" in content:
        raise SpecError(f"{where} is binary: a model file is YAML or JSON text in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{where}, line {line}: not UTF-8 text: save the file as UTF-8") from None


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path fit for one line of text."""
    text = os.fsdecode(path)
    text = text if len(text) <= 200 else "..." + text[-197:]
    return text if text.isprintable() else ascii(text)
