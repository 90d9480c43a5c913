"""A question in one line: the model and how it is run."""

from __future__ import annotations

from collections.abc import Collection, Container
from contextlib import suppress
from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.architectures.trace import batch_shape
from costmodel.display.table import printable
from costmodel.errors import CostModelError
from costmodel.hardware.cluster import machine_or_cluster
from costmodel.training.layout import OF_DEVICES
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS, Mode, Settings
from costmodel.training.stacks import Stack
from costmodel.training.values import split_text

_WHAT: dict[Mode, str] = {
    "train": "one training step",
    "inference": "one forward pass (inference)",
    "prefill": "prefill, logits of the last token",
    "decode": "one decode step",
}


def question(model: Architecture, settings: Settings, varied: Container[str] = (), on: Any = None) -> str:
    """The first line of an answer: the question without what varies in it, and how scores of attention are kept.

    on: the machine, if it is another than the settings name, which may be several of one.
    """
    if on is None and settings.on is not None and "on" not in varied:
        on = _machine_name(settings.on)
    return _line(model, settings, varied, on, always=("attention",) if model.HAS_ATTENTION else ())


def _machine_name(on: Any) -> str:
    """A machine's own name, by whatever name it was asked for; of what is none the text."""
    with suppress(CostModelError):
        return machine_or_cluster(on).name
    return str(on)


def timed_question(
    model: Architecture, settings: Settings, varied: Collection[str] = (), on: Any = None, stack: Stack | None = None
) -> str:
    """The first line of an answer in seconds: the question, and how kernels are started; stack: if another than asked.

    on: see `question`.
    """
    line = question(model, settings, {*varied, "stack"}, on)
    name = Stack.of(settings.stack).name if stack is None else stack.name
    return line if "stack" in varied else printable(f"{line}, stack {name}")


def heading(model: Architecture, settings: Settings, varied: Container[str] = ()) -> str:
    """The title of a picture: the question without what varies in it, and with all that is not at its default."""
    return _line(model, settings, varied)


def _line(
    model: Architecture, settings: Settings, varied: Container[str], on: Any = None, always: Container[str] = ()
) -> str:
    how = ", ".join(words for name, words in run_of(model, settings, varied, always).items() if name not in varied)
    return printable(f"{model.title}{'' if on is None else f' on {on}'}: {how}")


def run_of(
    model: Architecture, settings: Settings, varied: Container[str] = (), always: Container[str] = ()
) -> dict[str, str]:
    """How a model is run, in words by setting: sizes as they came out, and all that is not at its default."""
    parts, layout = _parts(model, settings), _layout(settings)
    if any(name in varied for name in OF_DEVICES):
        layout.pop("devices", None)
    for name, setting in SETTINGS.items():
        value = getattr(settings, name)
        if setting.titled and name not in {*parts, *LAYOUT_NAMES} and (value != setting.default or name in always):
            value = "+".join(map(str, value)) if isinstance(value, tuple) else getattr(value, "name", value)
            parts[name] = f"{name} {value}"
    return parts | layout


def _parts(model: Architecture, settings: Settings) -> dict[str, str]:
    """How a model is run, in words, by the setting that each is about; a machine is named with its times."""
    extent = batch_shape(model, settings)
    parts = {"mode": _WHAT[settings.mode], "batch": f"batch {int(extent.batch)}"}
    if settings.micro_batches > 1:
        parts["batch"] = f"{settings.micro_batches} micro-batches of {int(extent.batch)}"
    if extent.seq is not None:
        parts["seq"] = f"seq {int(extent.seq)}"
    if extent.past:
        parts["past"] = f"past {int(extent.past)}"
    if extent.target not in (None, extent.seq):
        parts["target_seq"] = f"target_seq {int(extent.target)}"
    if extent.image is not None:
        parts["image"] = "image {}×{}".format(*map(int, extent.image))
    parts["precision"] = settings.policy.name
    if settings.training:
        parts["optimizer"] = settings.states.name
    return parts


def _layout(settings: Settings) -> dict[str, str]:
    """Devices in all, and every setting of their layout that is not at its default."""
    devices = settings.layout.devices
    if devices == 1:
        return {}
    parts = {"devices": f"{int(devices):,} devices"}
    for name in LAYOUT_NAMES:
        value = getattr(settings, name)
        if name not in ("devices", "global_batch", "plan") and value != SETTINGS[name].default:
            text = split_text(value) if name == "pp_split" else value
            parts[name] = name if value is True else f"{name} {text}"
    if settings.plan:
        parts["plan"] = f"a plan of {len(settings.plan)} names"
    if settings.dp is None and settings.layout.dp > 1:
        parts["dp"] = f"dp {settings.layout.dp}"
    return parts
