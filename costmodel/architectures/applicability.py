"""Settings that would change nothing about the model or mode that they are given for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from costmodel.architectures.base import Architecture
from costmodel.errors import SettingError, shown
from costmodel.training.settings import SETTING_NAMES, Settings

OF_ATTENTION = ("attention", "attention_pairs")
OF_TRAINING = ("optimizer", "loss", "accumulate", "checkpoint")
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Settings)}


EXTENTS = ("seq", "target_seq", "image")


def applicable(model: Architecture) -> list[str]:
    """Settings that can matter to a model."""
    others = [name for name in EXTENTS if name not in model.BATCH_SIZES]
    others += () if model.HAS_ATTENTION else OF_ATTENTION
    return [name for name in SETTING_NAMES if name not in others]


def check_applies(model: Architecture, settings: Settings) -> None:
    """Raise SettingError for a setting that is not at its default and cannot matter; no loss is right in inference."""
    name = type(model).__name__
    for setting in () if model.HAS_ATTENTION else OF_ATTENTION:
        if (value := getattr(settings, setting)) != DEFAULTS[setting]:
            raise SettingError(
                f"{setting}={shown(value)} does not apply to {name} {model.title!r}, which has no attention: "
                "leave it out"
            )
    for setting in () if settings.training else OF_TRAINING:
        if (value := getattr(settings, setting)) != DEFAULTS[setting] and value is not None:
            raise SettingError(f"{setting}={shown(value)} does not apply to mode 'inference': leave it out, or train")
