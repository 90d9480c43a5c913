"""A question in one line: the model and how it is run."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import fields

from costmodel.architectures.base import Architecture
from costmodel.architectures.trace import batch_shape
from costmodel.display.table import printable
from costmodel.training.settings import Mode, Settings

_WHAT: dict[Mode, str] = {
    "train": "one training step",
    "inference": "one forward pass (inference)",
    "prefill": "prefill, logits of the last token",
    "decode": "one decode step",
}


def question(model: Architecture, settings: Settings) -> str:
    """The model, and how it is run."""
    return printable(f"{model.title}: {', '.join(_parts(model, settings).values())}")


def heading(model: Architecture, settings: Settings, varied: Container[str] = ()) -> str:
    """The title of a picture: the question without what varies in it, and with all that is not at its default."""
    said = _parts(model, settings)
    for f in fields(settings):
        value = getattr(settings, f.name)
        if f.name not in _SAID and value != f.default and not (f.name == "loss" and value == "default"):
            value = "+".join(map(str, value)) if isinstance(value, tuple) else getattr(value, "name", value)
            said[f.name] = f"{f.name} {value}"
    return printable(f"{model.title}: {', '.join(part for name, part in said.items() if name not in varied)}")


_SAID = ("batch", "seq", "target_seq", "image", "mode", "past", "accumulate", "precision", "optimizer", "on")
"""Settings that `_parts` names, and the machine, which a picture of a time names."""


def _parts(model: Architecture, settings: Settings) -> dict[str, str]:
    """How a model is run, in words, by setting."""
    extent = batch_shape(model, settings)
    said = {"mode": _WHAT[settings.mode], "batch": f"batch {int(extent.batch)}"}
    if settings.accumulate > 1:
        said["batch"] = f"{settings.accumulate} micro-batches of {int(extent.batch)}"
    if extent.seq is not None:
        said["seq"] = f"seq {int(extent.seq)}"
    if settings.past is not None:
        said["past"] = f"past {settings.past}"
    if extent.target not in (None, extent.seq):
        said["target_seq"] = f"target_seq {int(extent.target)}"
    if extent.image is not None:
        said["image"] = "image {}×{}".format(*map(int, extent.image))
    said["precision"] = settings.policy.name
    if settings.training:
        said["optimizer"] = settings.states.name
    return said
