"""Ready models: the specs that ship with the package, by their name or by what people type for it.

That is ids of model hubs, names of other libraries, and releases tuned from a model. A tuned release (instruct, chat)
has the architecture of the model that it was tuned from, and so its costs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from importlib import import_module
from math import inf
from textwrap import shorten
from typing import Any, Final

from costmodel.architectures.base import Architecture
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import read_count
from costmodel.documents.arguments import called, typed
from costmodel.documents.files import SPECS, is_path, shown_path, text_of, write
from costmodel.errors import LONGEST_ERROR, SettingError, SpecError, UnknownNameError, nearest, shown, unknown
from costmodel.importers.files import ARCHITECTURES, build, read
from costmodel.training.frozen import Frozen, frozen
from costmodel.training.settings import Settings

HUB_ID = r"(?P<owner>[\w.-]+)/[\w.-]+(?<!\.yaml)(?<!\.yml)(?<!\.json)"
"""An owner and a name, as model hubs write them."""


@frozen()
class ZooEntry(Frozen):
    """A ready model: the name that `load` takes, and what it names, read when first asked for."""

    name: str

    @cached_property
    def model(self) -> Architecture:
        """The model itself."""
        return load(self.name)

    def __repr__(self) -> str:
        return f"{self.name}: {self.architecture}, {self.params:,} parameters"

    @property
    def architecture(self) -> str:
        """CNN, MLP, Transformer, VisionTransformer or EncoderDecoder."""
        return ARCHITECTURES[_fields(self.name)["architecture"]][1]

    @property
    def notes(self) -> str:
        """Where the model's numbers come from."""
        return _fields(self.name)["notes"]

    @property
    def params(self) -> int:
        """Trained weights."""
        return _fields(self.name)["params"]


class Models(Answer, list[ZooEntry]):
    """Ready models, shown as a table with a line for each."""

    def to_dict(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What each is, and its parameters."""
        return [{name: getattr(entry, name) for name in ("name", "architecture", "params", "notes")} for entry in self]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each model."""
        return self.to_dict()

    def sheet(self) -> Sheet:
        """What there is to read."""
        rows = [(e.name, e.architecture, f"{e.params:,}", shorten(e.notes, 60, placeholder=" ...")) for e in self]
        return Sheet(
            [],
            [Table(("model", "architecture", "params", "source"), rows, words=frozenset({0, 1, 3}), worth=("params",))],
        )


@called
def load(model: str | os.PathLike[str] | Architecture, *, over: Mapping[str, Any] | None = None) -> Architecture:
    """A model by its name in the zoo, or from a YAML or JSON file.

    Args:
        model: a name, in any case and with "-", "_" or nothing between its parts, or what model hubs and other
            libraries call it, such as "gpt2" or "meta-llama/Llama-3.1-8B"; or a path, which is what has a directory
            separator or ends in .yaml, .yml or .json. A model is returned as it is.
        over: other values for fields of it, such as {"layers": 24}, those of parts by dotted names.

    Raises:
        SpecError: the file cannot be read or describes no model.
        UnknownNameError: no ready model has that name, or no field; the nearest are listed.

    Example:
        >>> import costmodel as cm
        >>> cm.load("gpt2").layers
        12
        >>> cm.load("gpt2", over={"layers": 24}).title
        'gpt2-small with layers 24'

    """
    if over is not None:
        return load(model).changed(over)
    if isinstance(model, Architecture):
        return model
    if is_path(model):
        return _from_path(model)
    if not isinstance(model, str):
        raise SpecError(
            f"{shown(model)} is not a model: give a name such as 'gpt2-small', a file's path, or an MLP, CNN, "
            "Transformer, VisionTransformer or EncoderDecoder"
        )
    return _ready(model)


@typed
def models(
    family: str | None = None, *, min_params: float | str | None = None, max_params: float | str | None = None
) -> Models:
    """Every ready model, by name; or those of a family, of at least and at most so many parameters.

    Args:
        family: how names start, such as "llama", "llama-3" or "resnet".
        min_params: the fewest parameters, such as 1e9 or "1B".
        max_params: the most.

    Raises:
        UnknownNameError: no ready model is of the family; the nearest families are listed.
        SettingError: no number of parameters.

    Example:
        >>> import costmodel as cm
        >>> [entry.name for entry in cm.models(family="mlp")]
        ['mlp-batchnorm', 'mlp-lenet-300-100', 'mlp-mnist']

    """
    names = list(_names().values())
    if family is not None and not isinstance(family, str):
        raise SettingError(f"family={shown(family)} is not the start of a name: use one such as 'llama'")
    if family is not None:
        start = plain(family)
        names = [name for name in names if start and plain(name).startswith(start)]
        if not names:
            raise unknown("family", family, {_stem(name) for name in _names().values()})
    least, most = _number("min_params", min_params, 0.0), _number("max_params", max_params, inf)
    entries = [ZooEntry(name) for name in names]
    if min_params is None and max_params is None:
        return Models(entries)
    return Models(entry for entry in entries if least <= entry.params <= most)


def _stem(name: str) -> str:
    """The letters that a name starts with, which its family shares."""
    return re.match("[a-z]*", name).group()  # type: ignore[union-attr]


def _number(setting: str, given: float | str | None, default: float) -> float:
    if given is None:
        return default
    number = read_count(given)
    if number is None or number < 0:
        raise SettingError(f"{setting}={shown(given)} is not a number of parameters: use one such as 8e9 or '8B'")
    return float(number)


def _ready(name: str) -> Architecture:
    known = _names()
    if found := known.get(plain(name)) or ready_name(name, known):
        return _spec(found)
    if os.path.isdir(name):
        raise SpecError(f"{shown_path(name)} is a directory: name a model file in it")
    if os.path.lexists(name):
        raise SpecError(f"{shown(name)} is no ready model, but a file: use {shown_path(os.path.join('.', name))}")
    raise _unknown(name, known.values())


MOST_NEAR = 3
"""Models that an error names; of a larger family it says how to list all."""


def _unknown(name: str, known: Iterable[str]) -> UnknownNameError:
    """Error of a name that no ready model has: the nearest, and how to see the others."""
    error = unknown("model", name, known)
    parts = [each.strip() for each in name.split(",")]
    if len(parts) > 1 and all(plain(each) in _names() or ready_name(each, _names()) for each in parts):
        return UnknownNameError(f"{shown(name)} is {len(parts)} models: name one, or in compare each by itself")
    near = nearest(name, known, most=1_000)
    words = [each for each in known if name and name.casefold() in each.split("-")]
    if len(near) > MOST_NEAR:
        return UnknownNameError(f"{str(error)[:-1]}, or others of costmodel models --family {name}?")
    if near or not words:
        all_ = " (costmodel models lists all)"
        return error if near or len(f"error: {error}{all_}") >= LONGEST_ERROR else UnknownNameError(f"{error}{all_}")
    return UnknownNameError(f"unknown model {shown(name)}: did you mean {' or '.join(map(repr, words[:MOST_NEAR]))}?")


READY: Final = os.path.join(SPECS, "ready.json")
"""The fields and parameters of all ready models, a line for each: read sooner than YAML, and written from it by
`write_ready`."""


@cache
def _spec(name: str) -> Architecture:
    fields = {field: value for field, value in _fields(name).items() if field not in ("architecture", "params")}
    module, attribute = ARCHITECTURES[_fields(name)["architecture"]]
    return getattr(import_module(module), attribute).unchecked(fields)


@cache
def _fields(name: str) -> dict[str, Any]:
    """What is written of a ready model."""
    import json

    return json.loads(_ready_fields()[name])


@cache
def _names() -> dict[str, str]:
    """Names by their plain form."""
    return {plain(name): name for name in _ready_fields()}


@cache
def _ready_fields() -> dict[str, str]:
    """The fields of each ready model, as JSON."""
    with open(READY, encoding="utf-8") as file:
        lines = (line.partition(": ") for line in file.read().splitlines()[1:-1])
    return {name.strip('"'): fields.rstrip(",") for name, _, fields in lines}


def write_ready() -> None:
    """Write `READY` from the specs, as ``python -m costmodel.importers.zoo`` does. Raises SpecError."""
    import json

    from costmodel.architectures.trace import trace
    from costmodel.documents.document import parse

    def line(name: str) -> str:
        path = os.path.join(SPECS, f"{name}.yaml")
        fields = parse(text_of(path, path), path).data
        model = build(fields, path)
        weights = trace(model, Settings(mode="inference")).weights
        params = sum(weight.elements * weight.times for weight in weights)
        stated = model.stated() if model.DATA_ALONE else {k: v for k, v in fields.items() if k != "architecture"}
        fields = {"architecture": fields["architecture"], "params": params, **stated}
        return f"{json.dumps(name)}: {json.dumps(fields)}"

    names = sorted(name.removesuffix(".yaml") for name in os.listdir(SPECS) if name.endswith(".yaml"))
    write("{\n" + ",\n".join(map(line, names)) + "\n}\n", READY)


def _from_path(path: str | os.PathLike[str]) -> Architecture:
    if not os.path.lexists(path):
        from difflib import get_close_matches  # only errors need it

        hub_id = re.fullmatch(HUB_ID, os.fsdecode(path))
        if hub_id and not os.path.isdir(hub_id["owner"]) and (found := ready_name(hub_id[0], _names())):
            return _spec(found)
        stem = plain(untuned(released_name(os.path.splitext(os.fsdecode(path))[0] if not hub_id else hub_id[0])))
        near = [_names()[found] for found in get_close_matches(stem, _names(), n=3, cutoff=0.6)]
        ready = f", or a ready model: {' or '.join(map(repr, near))}" if near else ""
        raise SpecError(f"no such file: {shown_path(path)}: give the path of a YAML or JSON file{ready}")
    model = read(path)
    vars(model)["file"] = shown_path(path)
    return model


OTHER_NAMES: Final = {
    "gpt2": "gpt2-small",
    "bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large",
    "distilbert-base-uncased": "distilbert-base",
    "bloom": "bloom-176b",
    "c4ai-command-r-v01": "command-r-35b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "mistral-nemo-base-2407": "mistral-nemo-12b",
    "mistral-nemo-instruct-2407": "mistral-nemo-12b",
    "mistral-large-instruct-2407": "mistral-large-123b",
    "mistral-small-instruct-2409": "mistral-small-22b",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    "phi-3-medium-4k-instruct": "phi-3-medium",
    "phi-3-small-8k-instruct": "phi-3-small",
    "tinyllama-1.1b-chat-v1.0": "tinyllama-1.1b",
    "olmo-2-0425-1b": "olmo-2-1b",
    "olmo-2-1124-7b": "olmo-2-7b",
    "olmo-2-1124-13b": "olmo-2-13b",
    "olmo-2-0325-32b": "olmo-2-32b",
    "falcon-180b-chat": "falcon-180b",
    "vit-base-patch16-224": "vit-b-16",
    "vit-base-patch32-224": "vit-b-32",
    "vit-large-patch16-224": "vit-l-16",
    "vit-large-patch32-224": "vit-l-32",
    "vit-huge-patch14-224": "vit-h-14",
    "vit-small-patch16-224": "vit-s-16",
    "vit-small-patch32-224": "vit-s-32",
    "vit-tiny-patch16-224": "vit-ti-16",
    "deit-tiny-patch16-224": "deit-tiny",
    "deit-small-patch16-224": "deit-small",
    "deit-base-patch16-224": "deit-base",
    "deit-tiny-distilled-patch16-224": "deit-tiny-distilled",
    "deit-small-distilled-patch16-224": "deit-small-distilled",
    "deit-base-distilled-patch16-224": "deit-base-distilled",
    "mobilenetv1-100": "mobilenet_v1",
    "mobilenetv2-100": "mobilenet_v2",
    "mobilenetv3-large-100": "mobilenet_v3_large",
    "mobilenetv3-small-100": "mobilenet_v3_small",
    "lenet": "lenet-5",
    "lenet5": "lenet-5",
}
"""What repositories and other libraries call a ready model, where no rule leads from that name to ours."""

# Words that tell a tuned or repackaged release from the model it was made of; none of them changes an architecture.
TUNED = r"-(hf|base|instruct|chat|it|sft|dpo|pt|deduped|bf16|fp16|unsloth|\d{4}|in1k|224)(?=-|$)"
_SPACING = str.maketrans("", "", "-_ ")


def plain(name: str) -> str:
    """A name without what people write in several ways: case, "-", "_" and spaces."""
    return name.lower().translate(_SPACING)


def ready_name(name: str, ready: Mapping[str, str]) -> str | None:
    """The ready model that a name means, or None. `ready` gives the ready models' names by their plain form.

    A hub's id (``owner/name``) means what its last part means. ``meta-llama/Llama-3.1-8B-Instruct`` is llama-3.1-8b.
    """
    own = released_name(name)
    other = {plain(given): of for given, of in OTHER_NAMES.items()}
    forms = [own, untuned(own)]
    # Underscores for dots: phi-1_5 is phi-1.5, and stablelm-2-1_6b is stablelm-2-1.6b.
    forms += [re.sub(r"(?<=\d)-(?=\d)", ".", own), re.sub(r"(?<=\d)-(?=\d+[a-z]*$)", ".", own)]
    found = (ready.get(plain(form)) or other.get(plain(form)) for form in forms)
    return next(filter(None, found), None)


def released_name(name: str) -> str:
    """The last part of a hub's id, in lower case."""
    return name.rstrip("/").rpartition("/")[2].lower().replace("_", "-").removeprefix("meta-")


def untuned(name: str) -> str:
    """A released name without the words of tuned releases; without the recipe too, as in ``resnet50.a1-in1k``."""
    return re.sub(TUNED, "", re.sub(r"\.[a-z]\w*-in1k$", "", name))


if __name__ == "__main__":
    write_ready()
