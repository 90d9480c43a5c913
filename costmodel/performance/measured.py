"""Steps that were measured, from a line of text for each."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from costmodel.cost.prediction import Prediction, predict
from costmodel.display.units import NUMBER, read_amount
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.performance.stacks import Stack, stack_named


class MeasuredStep(NamedTuple):
    """A step as it was measured. row: the text that says so. allow_tf32, channels_last: see `Prediction.on`."""

    row: str
    prediction: Prediction
    stack: Stack
    seconds: float
    allow_tf32: bool | None = None
    channels_last: bool = False


def measured_step(row: str) -> MeasuredStep:
    """A step from text such as "gpt2-small batch=32 seq=512 stack=compiled: 0.213 s", or "...: 1,210 samples/s".

    Settings are those of `predict`, and stack, allow_tf32 and channels_last of `Prediction.on`. Raises CostModelError.
    """
    question, colon, result = row.rpartition(":")
    words = question.split()
    if not colon or not words:
        raise SettingError(f"{shown(row)} is no measured step: use text such as 'gpt2-small batch=32 seq=512: 0.213 s'")
    settings: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise SettingError(f"measured {shown(row)}: {shown(word)} is no setting: use one such as batch=32")
        settings[name] = _value(value)
    stack = stack_named(str(settings.pop("stack", "eager")))
    how = {name: _truth(name, settings.pop(name), row) for name in ("allow_tf32", "channels_last") if name in settings}
    try:
        prediction = predict(words[0], **settings)
    except CostModelError as error:
        raise SettingError(f"measured {shown(row)}: {error}") from None
    return MeasuredStep(row, prediction, stack, _seconds(result, prediction, row), **how)


def _value(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    if found := re.fullmatch(r"(\d+)x(\d+)", text):
        return int(found[1]), int(found[2])
    return tuple(text.split(",")) if "," in text else text


def _truth(name: str, value: Any, row: str) -> bool:
    if value not in ("true", "false"):
        raise SettingError(f"measured {shown(row)}: {name}={value} is neither true nor false")
    return value == "true"


def _seconds(text: str, prediction: Prediction, row: str) -> float:
    """Seconds of a step from a time, or from samples or tokens a second."""
    rate = re.fullmatch(rf"({NUMBER})(samples|images|tokens)/s", text.replace(",", "").replace(" ", ""))
    if rate is None:
        return read_amount(text.strip(), f"measured {shown(row)}: time", "s")
    samples = prediction.batch_shape.batch * prediction.settings.accumulate
    if rate[2] == "tokens":
        samples *= prediction.batch_shape.seq or 1
    if not float(rate[1]):
        raise SettingError(f"measured {shown(row)}: {shown(text)} is no rate above 0")
    return samples / float(rate[1])
