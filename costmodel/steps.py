"""Sizes of an optimizer step to choose from: batches, and how many of them are accumulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

from costmodel.errors import SettingError, shown
from costmodel.sizes import LARGEST_SIZE
from costmodel.training import Settings

MOST_SAMPLES = 10**12


@dataclass(frozen=True)
class Steps:
    """Batches in order. samples: of a step, where passes are as many as that takes; else they are `accumulate`."""

    batches: Sequence[int]
    samples: int | None
    accumulate: int

    def at(self, settings: Settings, place: int) -> Settings:
        """The settings with the batch at a place."""
        batch = self.batches[place]
        passes = self.accumulate if self.samples is None else self.samples // batch
        return replace(settings, batch=batch, accumulate=passes)


def steps_of(first: Settings, samples: int | None, given: Mapping[str, Any]) -> Steps:
    """The steps that a question leaves: its batch, one of a list, or any. Raises SettingError if there is none."""
    batch, accumulate = given.get("batch"), first.accumulate
    if samples is None:
        return Steps(_batches(first, batch), None, accumulate)
    if not first.training:
        raise SettingError(f"samples={shown(samples)} is of an optimizer step: leave it out of inference")
    if isinstance(samples, bool) or not isinstance(samples, int) or not 1 <= samples <= MOST_SAMPLES:
        raise SettingError(f"samples={shown(samples)} is not a whole number of samples: use an int such as samples=512")
    parts = [n for n in _divisors(samples) if n in _batches(first, batch)]
    if "accumulate" in given:
        parts = [n for n in parts if n * accumulate == samples]
    if not parts:
        asked = " and ".join(f"{name}={shown(given[name])}" for name in ("batch", "accumulate") if name in given)
        raise SettingError(f"samples={samples} is no step with {asked}: use what batch times accumulate can be")
    return Steps(parts, samples, accumulate)


def _batches(first: Settings, batch: Any) -> Sequence[int]:
    if batch is None:
        return range(1, LARGEST_SIZE + 1)
    if batch == []:
        raise SettingError("batch=[] is empty: give at least one value")
    return sorted({replace(first, batch=each).batch for each in (batch if isinstance(batch, list) else [batch])})


def _divisors(whole: int) -> list[int]:
    small = [n for n in range(1, isqrt(whole) + 1) if not whole % n]
    return sorted({*small, *(whole // n for n in small)})
