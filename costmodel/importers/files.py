"""Model files: YAML or JSON to an architecture and back, with errors that say what is wrong and on which line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from costmodel.documents.files import SUFFIXES, culprit, is_path, shown_path, text_of
from costmodel.errors import CostModelError, SpecError, shown, unknown
from costmodel.training.settings import SETTINGS, Settings, check_names

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture
    from costmodel.documents.document import Document

ARCHITECTURES = {
    "mlp": ("costmodel.architectures.mlp", "MLP"),
    "cnn": ("costmodel.architectures.cnn", "CNN"),
    "transformer": ("costmodel.architectures.transformer", "Transformer"),
    "imported": ("costmodel.importers.torch.model", "Imported"),
    "encoder_decoder": ("costmodel.architectures.encoder_decoder", "EncoderDecoder"),
    "vision_transformer": ("costmodel.architectures.vision_transformer", "VisionTransformer"),
}
"""Where each architecture lives, by the name that files give it."""


def read(path: str | os.PathLike[str]) -> Architecture:
    """The model that a YAML or JSON file describes.

    Raises SpecError: file, line, what is wrong there, and what would be right.
    """
    from costmodel.documents.document import parse

    where = shown_path(path)
    return build_document(parse(text_of(path, where), where))


def asked_in(model: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model and the settings of a question: what a file that has both says, and over that what is given.

    Such a file has the model's name, its description or the path of one under ``model``, beside settings by name; a
    path is sought beside the file. A model that is no such file is returned as it is. Raises SpecError, with the line.
    """
    settings = dict(given)
    if not isinstance(model, str | os.PathLike) or not os.path.isfile(model):
        return model, settings
    path = os.fsdecode(model)
    where = shown_path(path)
    if not path.lower().endswith(SUFFIXES) or not re.search(
        '^ *[{"]*model"?:', text := text_of(path, where), re.MULTILINE
    ):
        return model, settings
    from costmodel.documents.document import parse

    document = parse(text, where)
    if not isinstance(document.data, Mapping) or {"model", "architecture"} & document.data.keys() != {"model"}:
        return model, settings
    own = dict(document.data)
    named = own.pop("model")
    if isinstance(named, str) and is_path(named):
        named = os.path.join(os.path.dirname(path), named)
    try:
        asked = build(named, "") if isinstance(named, Mapping) else named
        if isinstance(named, str) and named in ARCHITECTURES:
            raise SpecError(f"{named} is an architecture, no model: describe one with 'architecture: {named}'")
        settings_of(own)
    except CostModelError as error:
        blamed = next((name for name in own if re.search(rf"\b{re.escape(str(name))}\b", str(error))), "model")
        raise SpecError(f"{document.place((blamed,))}: {error}") from None
    return asked, own | settings


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings by name, the files of declarations read. Raises UnknownNameError, SettingError, SpecError."""
    check_names(given)
    return Settings(**{name: read_setting(name, value) for name, value in given.items()})


def read_setting(name: str, value: Any) -> Any:
    """The value of a setting with the file of a declaration read. Raises CostModelError."""
    if name == "on" and value is not None:
        return _machine(value)
    kind = SETTINGS[name].declaration
    return value if kind is None else kind.from_file(value)


def _machine(value: Any) -> Any:
    """What time is asked of: a known name, a path as text, or a machine or cluster, from its fields too."""
    from costmodel.hardware.cluster import machine_or_cluster

    if is_path(value):
        return os.fspath(value)
    machine = machine_or_cluster(value)  # an unknown name is refused here
    return machine if isinstance(value, Mapping) else value


def build_document(document: Document) -> Architecture:
    """The model that a parsed file describes. Raises SpecError, with the line."""
    try:
        return build(document.data, "")
    except SpecError as error:
        raise SpecError(f"{document.place(culprit(error, document))}: {error}") from None


def as_json(data: Any, what: str) -> Any:
    """Plain data as JSON gives it back, with lists for tuples. Raises CostModelError if it is not `what`, nor JSON."""
    import json

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


def to_yaml(model: Architecture, width: int = 110) -> str:
    """`describe` as YAML text, which `read` takes; width: columns after which a line ends where its word does."""
    from costmodel.documents.document import dump

    return dump(describe(model), width)


def _home(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__name__


def build(data: Any, where: str) -> Architecture:
    """The model that plain data describes, as `describe` gives it; `where` names the data in errors.

    Raises SpecError.
    """
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
        raise SpecError(f"{prefix}no architecture is given: {example}{published}")
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
