"""The search for layouts: every way to run a step over devices, with its peak and seconds, or why it is none."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from costmodel.analysis.candidates import AXES, CHECKPOINTS, Mesh, Meshes
from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.base import Architecture, divisors
from costmodel.architectures.trace import batch_shape, check_applies
from costmodel.cost.costs import Costs
from costmodel.cost.peaks import RankPeaks
from costmodel.display.units import show_bytes, show_seconds
from costmodel.errors import CostModelError, SettingError
from costmodel.hardware.cluster import LinkLike
from costmodel.performance.layout_steps import LayoutStep, LayoutSteps
from costmodel.performance.time import time_on
from costmodel.training.schedules import SCHEDULES
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS, Settings

CHOSEN = (*AXES, "batch", "checkpoint")
"""Settings that are chosen unless they are given."""
NAMED = ("runtime", "schedule", "cp_kind")
"""Of these those whose values say by themselves what they are."""
MOST_MESHES = 1_000_000
"""Ways to lay out devices that are gone through."""


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
        own = {name: value for name, value in self.settings.items() if name in CHOSEN}
        numbers = [value for name, value in own.items() if type(value) is int and name in LAYOUT_NAMES]
        return len(own), sum(numbers), sorted(map(str, own.items()))

    def text(self, *names: str) -> str:
        """Its layout in words: those of these settings that are not at their defaults."""
        settings = Settings(**self.settings)
        layout = settings.layout  # which says what follows from other settings
        values = {name: getattr(layout if name in ("dp", "vpp") else settings, name) for name in names}
        usual = {name: SETTINGS[name].default for name in names}
        usual |= {"dp": 1, "vpp": SCHEDULES[settings.schedule].usual_stages}
        different = {name: value for name, value in values.items() if value != usual[name]}
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
            return f"computing, which recomputes {own}"
        if self.settings["batch"] < best.settings["batch"]:
            return f"computing, in micro-batches of {self.settings['batch']}"
        return "computing"


class Reason(NamedTuple):
    """Why some candidates are not among the answers, as the first of them says it, and how many they are.

    change: the one change that helps most of those that do not fit; "" if none does.
    """

    text: str
    candidates: int
    change: str = ""


class Remedies:
    """Which one change lets most of those fit that do not: each with settings of its own in place of others.

    changes: by its words what a change makes of settings; None: it is none of these.
    """

    def __init__(self, changes: Mapping[str, Callable[[Mesh], Mesh | None]]) -> None:
        self.changes = changes
        self.fit: set[frozenset[tuple[str, Any]]] = set()
        self.unfit: list[Mesh] = []

    def add(self, settings: Mesh, *, fits: bool) -> None:
        """Settings that fit, or do not."""
        if fits:
            self.fit.add(frozenset(settings.items()))
        else:
            self.unfit.append(settings)

    @property
    def best(self) -> str:
        """The change that helps most of them, in words; "" if none helps any."""
        helped = {
            words: sum(
                (other := change(each)) is not None and frozenset(other.items()) in self.fit for each in self.unfit
            )
            for words, change in self.changes.items()
        }
        words, count = max(helped.items(), key=lambda item: item[1])
        return f"{words}, with which {count / len(self.unfit):.0%} of them fit" if count else ""


def _moved(mesh: Mesh, **degrees: int) -> Mesh | None:
    """A mesh with some degrees so many times as large, and fewer copies or shards for it; None: there are too few."""
    factor = prod(degrees.values())
    name = "dp" if mesh["dp"] % factor == 0 else "fsdp"
    if mesh[name] % factor:
        return None
    return {**mesh, name: mesh[name] // factor, **{degree: mesh[degree] * times for degree, times in degrees.items()}}


def _sharded(mesh: Mesh) -> Mesh | None:
    """A mesh whose copies split weights between them."""
    if mesh["runtime"] != "torch" or mesh["dp"] == 1:
        return None
    return {
        **{k: v for k, v in mesh.items() if k != "zero"},
        "fsdp": mesh["fsdp"] * mesh["dp"],
        "dp": 1,
        "reshard": True,
    }


CHANGES_HELD: dict[str, Callable[[Mesh], Mesh | None]] = {
    "split states over copies (zero=1)": lambda mesh: {**mesh, "zero": 1} if mesh.get("zero") == 0 else None,
    "split weights over copies (fsdp in place of dp)": _sharded,
    "twice the tp": lambda mesh: _moved(mesh, tp=2),
    "twice the pp": lambda mesh: _moved(mesh, pp=2),
    "twice the tp, four times the pp": lambda mesh: _moved(mesh, tp=2, pp=4),
}
CHANGES_BESIDE: dict[str, Callable[[Mesh], Mesh | None]] = {
    "recompute blocks (checkpoint='block')": lambda way: {**way, "checkpoint": "block"},
    "recompute attention (checkpoint='selective')": lambda way: {**way, "checkpoint": "selective"},
    "micro-batches of 1 (batch=1)": lambda way: {**way, "batch": 1},
    "split what lies between layers (sp=True)": lambda way: {**way, "sp": True} if way["tp"] > 1 else None,
    "twice the tp": lambda way: _moved(way, tp=2),
}
"""What is tried for those whose weights are too much, and for all others."""


class Tally:
    """Candidates counted by reason; reasons that differ in numbers alone are one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def add(self, text: str, count: int) -> None:
        """So many more."""
        kind = re.sub("[0-9][0-9,]*", "#", text)
        self._texts.setdefault(kind, text)
        self._counts[kind] = self._counts.get(kind, 0) + count

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The most frequent first."""
        counts = sorted(self._counts.items(), key=lambda item: -item[1])
        return tuple(Reason(self._texts[kind], count) for kind, count in counts if count)


def steps_like(model: Architecture, settings: Settings, peaks: RankPeaks, network: LinkLike) -> LayoutSteps:
    """Steps of layouts on the machine that settings name."""
    on: Any = settings.on
    return LayoutSteps(peaks, time_on(Costs(model, settings), on, stack=settings.stack, network=network))


TOO_MUCH_HELD = "weights, gradients and states alone take too much"
TOO_MUCH_BESIDE = "weights, gradients and states would, but not with what passes keep and make"


class LayoutSearch:
    """All candidates of a question, each counted once. room: of each device [bytes]; None: as much as it takes."""

    def __init__(
        self,
        model: Architecture,
        fixed: dict[str, Any],
        options: Mapping[str, Sequence[Any]],
        room: int | None,
        network: LinkLike,
    ) -> None:
        self.model = model
        self.fixed = {name: value for name, value in fixed.items() if name not in ("devices", "global_batch")}
        self.devices: int = fixed["devices"]
        self.samples: int = fixed["global_batch"]
        self.options = options
        self.checkpoints = options.get("checkpoint", CHECKPOINTS)
        self.room = room
        self.peaks = RankPeaks(model)
        self.network = network
        self._steps: LayoutSteps | None = None
        self.entries: list[RankedLayout] = []
        self.unfit, self.refused = Tally(), Tally()
        self.remedies = {TOO_MUCH_HELD: Remedies(CHANGES_HELD), TOO_MUCH_BESIDE: Remedies(CHANGES_BESIDE)}
        self._local: dict[Any, str] = {}

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Go through them."""
        meshes = Meshes(self.model, self.devices, self.options)
        count = sum(1 for _ in itertools.islice(meshes, MOST_MESHES + 1))
        if count > MOST_MESHES:
            raise SettingError(f"more than {MOST_MESHES:,} layouts: give some of the degrees, such as pp=1")
        for done, mesh in enumerate(meshes, 1):
            self._add(mesh)
            if progress and (done % 100 == 0 or done == count):
                progress(done, count)

    def _add(self, mesh: Mesh) -> None:
        batches = self._batches(mesh)
        all_ways = len(batches) * len(self.checkpoints)
        if not batches:
            text = f"global_batch={self.samples} is no multiple of what {mesh['fsdp'] * mesh['dp']} ranks take at once"
            self.refused.add(text, len(self.checkpoints))
            return
        try:
            stages = mesh["pp"] * mesh.get("vpp", 1)
            first = Settings(**self.fixed, **mesh, batch=batches[0], accumulate=2 * stages)
            self._check_model(first)
            if first.layout.pp > 1 and first.layout.shards > 1:
                raise SettingError("pipelines of sharded weights are not gone through: ask predict for one")
            held = self.room is None or self.peaks.least(first) <= self.room
            self.remedies[TOO_MUCH_HELD].add(mesh, fits=held)
            if not held:
                self.unfit.add(TOO_MUCH_HELD, all_ways)
                return
        except CostModelError as error:
            self.refused.add(str(error), all_ways)
            return
        for checkpoint in self.checkpoints:
            for place, batch in enumerate(batches):
                if not self._add_way(mesh, batch, checkpoint):
                    for larger in batches[place:]:
                        self._add_unfit({**mesh, "batch": larger, "checkpoint": checkpoint})
                    break

    def _add_way(self, mesh: Mesh, batch: int, checkpoint: Any) -> bool:
        """Whether larger micro-batches may fit if this one does not, which then counts with them."""
        micro_batches = self.samples // (mesh["fsdp"] * mesh["dp"] * batch)
        try:
            settings = Settings(**self.fixed, **mesh, batch=batch, accumulate=micro_batches, checkpoint=checkpoint)
            peak = self.peaks.peak(settings, self.room)
            step = self._step(settings) if self.room is None or peak <= self.room else None
        except CostModelError as error:
            self.refused.add(str(error), 1)
            return True
        if self.room is not None and peak > self.room:
            if self.peaks.floor(settings) > self.room:
                return False
            self._add_unfit({**mesh, "batch": batch, "checkpoint": checkpoint})
            return True
        self.remedies[TOO_MUCH_BESIDE].add({**mesh, "batch": batch, "checkpoint": checkpoint}, fits=True)
        own = {name: value for name, value in mesh.items() if value != SETTINGS[name].default and name != "dp"}
        own |= {"batch": batch} | ({"checkpoint": checkpoint} if checkpoint != "none" else {})
        whole = {"devices": self.devices, "global_batch": self.samples}
        seq = batch_shape(self.model, settings).seq
        tokens = None if seq is None else self.samples * int(seq)
        self.entries.append(RankedLayout(self.model, {**self.fixed, **whole, **own}, peak, step, tokens))
        return True

    def _add_unfit(self, way: Mesh) -> None:
        self.unfit.add(TOO_MUCH_BESIDE, 1)
        self.remedies[TOO_MUCH_BESIDE].add(way, fits=False)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why candidates do not fit, each with the one change that helps most of them."""
        every = self.unfit.reasons
        return tuple(reason._replace(change=self.remedies[reason.text].best) for reason in every)

    def _step(self, settings: Settings) -> LayoutStep | None:
        """Its seconds on the machine, if one is named."""
        if settings.on is None:
            return None
        if self._steps is None:
            self._steps = steps_like(self.model, settings, self.peaks, self.network)
        return self._steps.step(settings)

    def _batches(self, mesh: Mesh) -> list[int]:
        """Micro-batches of a rank."""
        each, rest = divmod(self.samples, mesh["fsdp"] * mesh["dp"])
        allowed = self.options.get("batch")
        return [] if rest else [n for n in divisors(each) if allowed is None or n in allowed]

    def _check_model(self, settings: Settings) -> None:
        """Raise SettingError if the model is not laid out so, or takes no such settings."""
        check_applies(self.model, settings)
        layout = settings.layout._replace(dp=1, schedule="1f1b", reshard=True)
        if layout not in self._local:
            try:
                _ = self.model.local(layout)
                self._local[layout] = ""
            except CostModelError as error:
                self._local[layout] = str(error)
        if self._local[layout]:
            raise SettingError(self._local[layout])
