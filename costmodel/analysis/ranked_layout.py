"""A layout that fits, with what a step on it takes, in words too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from costmodel.analysis.candidates import AXES
from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.base import Architecture
from costmodel.display.units import show_bytes, show_seconds
from costmodel.errors import SettingError
from costmodel.performance.layout_steps import LayoutStep
from costmodel.training.schedules import SCHEDULES
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS, Settings
from costmodel.training.values import split_text

CHOSEN = (*AXES, "batch", "checkpoint")
"""Settings that are chosen unless they are given."""
NAMED = ("runtime", "schedule", "cp_kind")
"""Of these those whose values say by themselves what they are."""


@dataclass(frozen=True)
class RankedLayout:
    """A layout that fits, with how a step is run on it.

    settings: what to give `predict` for it. peak: of the heaviest rank [bytes]. step: its seconds; None: no machine is
    named. tokens: of a step.
    """

    model: Architecture = field(repr=False)
    settings: Mapping[str, Any]
    peak: int
    step: LayoutStep | None = None
    tokens: int | None = None

    @cached_property
    def prediction(self) -> Prediction:
        """The same by itself."""
        return predict(self.model, **self.settings)

    @property
    def seconds(self) -> float:
        """Of a step. Raises SettingError where no machine is named."""
        if self.step is None:
            raise SettingError("seconds are of a machine: give on, such as on='h100-sxm'")
        return self.step.seconds

    @property
    def rate(self) -> float | None:
        """Tokens a second, of all devices; samples where these have no tokens; None without a machine."""
        samples = self.tokens or self.settings["global_batch"]
        return None if self.step is None else samples / self.step.seconds

    @property
    def rank(self) -> tuple[Any, ...]:
        """The best is the smallest: by seconds on a machine, else by memory; of those alike the simplest."""
        return (self.peak if self.step is None else self.step.seconds), self.plainness

    @cached_property
    def plainness(self) -> tuple[Any, ...]:
        """The simplest is the smallest: with the fewest settings that are not at their defaults, and lower degrees."""
        own = {name: value for name, value in self.settings.items() if name in (*CHOSEN, "pp_split")}
        numbers = [value for name, value in own.items() if type(value) is int and name in LAYOUT_NAMES]
        return len(own), sum(numbers), sorted(map(str, own.items()))

    def values(self, *names: str) -> dict[str, Any]:
        """Of these settings what each is."""
        settings = Settings(**self.settings)
        layout = settings.layout  # which says what follows from other settings
        return {name: getattr(layout if name in ("dp", "vpp") else settings, name) for name in names}

    def text(self, *names: str) -> str:
        """Its layout in words: those of these settings that are not at their defaults."""
        settings, values = Settings(**self.settings), self.values(*names)
        usual = {name: SETTINGS[name].default for name in names}
        usual |= {"dp": 1, "vpp": SCHEDULES[settings.schedule].usual_stages, "batch": None}
        different = {name: value for name, value in values.items() if value != usual[name]}
        if "pp_split" in different:
            different["pp_split"] = split_text(different["pp_split"])
        return " ".join(
            name if value is True else str(value) if name in NAMED else f"{name} {label_of(value)}"
            for name, value in different.items()
        )

    def reason(self, best: RankedLayout) -> str:
        """Why it is behind another: what of its step takes longer."""
        if self.step is None or best.step is None:
            return f"{show_bytes(self.peak - best.peak)} more"
        own, other = self.step, best.step
        more = {
            "waiting for collectives": own.exposed - other.exposed,
            "waiting for other stages": own.bubble - other.bubble,
            self._computes(best): own.computed - other.computed,
        }
        what, seconds = max(more.items(), key=lambda item: item[1])
        return f"{show_seconds(seconds)} more {what}" if seconds > 0 else "as fast"

    def _computes(self, best: RankedLayout) -> str:
        """What it computes for longer than another, in words."""
        own, other = (entry.settings.get("checkpoint", "none") for entry in (self, best))
        if own != other and own != "none":
            return f"computing, with checkpoint {own}"
        if self.settings["batch"] < best.settings["batch"]:
            return f"computing, in micro-batches of {self.settings['batch']}"
        return "computing"
