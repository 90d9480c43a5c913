"""Activation functions by the names that model descriptions use."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from costmodel.errors import unknown
from costmodel.layers.activation import Activation
from costmodel.layers.base import KINDS, Kind

NAMES = sorted(name for name, kind in KINDS.items() if issubclass(kind, Activation))


def activation(name: str) -> Kind:
    """The kind called `name`, with its defaults."""
    return KINDS[name]()


def _known(name: str) -> str:
    if name not in NAMES:
        raise unknown("activation", name, NAMES)
    return name


ActivationName = Annotated[str, AfterValidator(_known)]
