"""Ready models: the specs that ship with the package, by name."""

from __future__ import annotations

import os
import re
from functools import cache, cached_property
from math import inf
from textwrap import shorten
from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.documents.files import SPECS, is_path, shown_path
from costmodel.errors import SettingError, SpecError, shown, unknown
from costmodel.importers.files import read
from costmodel.importers.names import plain, ready_name, released_name, untuned
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

    @property
    def architecture(self) -> str:
        """CNN, MLP, Transformer, VisionTransformer or EncoderDecoder."""
        return type(self.model).__name__

    @property
    def notes(self) -> str:
        """Where the model's numbers come from."""
        return self.model.notes

    @cached_property
    def params(self) -> int:
        """Trained weights."""
        from costmodel.architectures.trace import trace

        run = trace(self.model, Settings(mode="inference"))
        return sum(weight.elements * weight.times for weight in run.weights)


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
        return Sheet([], [Table(("model", "architecture", "params", "source"), rows, words=frozenset({0, 1, 3}))])


def load(model: str | os.PathLike[str] | Architecture) -> Architecture:
    """A model by its name in the zoo, or from a YAML or JSON file.

    Args:
        model: a name, in any case and with "-", "_" or nothing between its parts, or what model hubs and other
            libraries call it, such as "gpt2" or "meta-llama/Llama-3.1-8B"; or a path, which is what has a directory
            separator or ends in .yaml, .yml or .json. A model is returned as it is.

    Raises:
        SpecError: the file cannot be read or describes no model.
        UnknownNameError: no ready model has that name; the nearest are listed.

    Example:
        >>> import costmodel as cm
        >>> cm.load("gpt2").layers
        12

    """
    if isinstance(model, Architecture):
        return model
    if isinstance(model, os.PathLike) or (isinstance(model, str) and is_path(model)):
        return _from_path(model)
    if not isinstance(model, str):
        raise SpecError(
            f"{shown(model)} is not a model: give a ready model's name such as 'gpt2-small', a file's path, or an "
            "MLP, CNN, Transformer, VisionTransformer or EncoderDecoder"
        )
    return _ready(model)


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


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _number(setting: str, given: float | str | None, default: float) -> float:
    if given is None:
        return default
    parts = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([KMBT]?)\s*", str(given), re.IGNORECASE)
    try:
        number = float(parts[1]) * _UNITS[parts[2].upper()] if parts else -1.0
    except ValueError:
        number = -1.0
    if isinstance(given, bool) or not 0 <= number < inf:
        raise SettingError(f"{setting}={shown(given)} is not a number of parameters: use one such as 8e9 or '8B'")
    return number


def _ready(name: str) -> Architecture:
    known = _names()
    if found := known.get(plain(name)) or ready_name(name, known):
        return _spec(found)
    if os.path.isdir(name):
        raise SpecError(f"{shown_path(name)} is a directory: name a model file in it")
    if os.path.lexists(name):
        raise SpecError(f"{shown(name)} is no ready model, but a file: use {shown_path(os.path.join('.', name))}")
    raise unknown("model", name, known.values())


@cache
def _spec(name: str) -> Architecture:
    return read(os.path.join(SPECS, f"{name}.yaml"))


@cache
def _names() -> dict[str, str]:
    """Names by their plain form."""
    names = sorted(name.removesuffix(".yaml") for name in os.listdir(SPECS) if name.endswith(".yaml"))
    return {plain(name): name for name in names}


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
