"""The search for layouts: every way to run a step over devices, with its peak and seconds, or why it is none."""

from __future__ import annotations

import itertools
import re
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import inf, prod
from typing import Any, NamedTuple

from costmodel.analysis.candidates import AXES, CHECKPOINTS, Mesh, Meshes
from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.base import Architecture, divisors
from costmodel.architectures.trace import batch_shape, check_applies
from costmodel.cost.costs import Costs
from costmodel.cost.peaks import Held, RankPeaks
from costmodel.display.units import show_bytes, show_seconds
from costmodel.errors import CostModelError, SettingError
from costmodel.hardware.cluster import LinkLike
from costmodel.performance.layout_steps import LayoutStep, LayoutSteps, PassWork
from costmodel.performance.time import Time, time_on
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
        usual |= {"dp": 1, "vpp": SCHEDULES[settings.schedule].usual_stages, "batch": None}
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

    changes: by its words what a change makes of settings; None: it is none of these. fits: whether settings fit; None:
    those alone do that were added as such, since all are gone through.
    """

    def __init__(
        self, changes: Mapping[str, Callable[[Mesh], Mesh | None]], fits: Callable[[Mesh], bool] | None = None
    ) -> None:
        self.changes = changes
        self.fits = fits
        self.fit: set[frozenset[tuple[str, Any]]] = set()
        self.unfit: list[Mesh] = []

    def add(self, settings: Mesh, *, fits: bool) -> None:
        """Settings that fit, or do not; of these the first ones are looked at if each takes time."""
        if fits:
            self.fit.add(frozenset(settings.items()))
        elif self.fits is None or len(self.unfit) < MOST_CHANGED:
            self.unfit.append(settings)

    def _helps(self, change: Callable[[Mesh], Mesh | None], settings: Mesh) -> bool:
        other = change(settings)
        if other is None or other == settings:
            return False
        return frozenset(other.items()) in self.fit or (self.fits is not None and self.fits(other))

    @property
    def best(self) -> str:
        """The change that helps most of them, in words; "" if none helps any."""
        helped = {
            words: sum(self._helps(change, each) for each in self.unfit) for words, change in self.changes.items()
        }
        words, count = max(helped.items(), key=lambda item: item[1])
        of = "of them fit" if self.fits is None else f"of the {len(self.unfit)} that would be fastest fit"
        return f"{words}, with which {count / len(self.unfit):.0%} {of}" if count else ""


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

    def copy(self) -> Tally:
        """The same, to be counted on from."""
        other = Tally()
        other._counts, other._texts = {**self._counts}, {**self._texts}
        return other

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The most frequent first."""
        counts = sorted(self._counts.items(), key=lambda item: -item[1])
        return tuple(Reason(self._texts[kind], count) for kind, count in counts if count)


TOO_MUCH_HELD = "weights, gradients and states alone take too much"
TOO_MUCH_BESIDE = "weights, gradients and states would, but not with what passes keep and make"
MOST_CHANGED = 16
"""Of the fastest that do not fit so many are tried with one change."""
MOST_RANKED = 10
"""Of those that fit so many are ranked at least, however much slower than the best."""


class LegalLayout(NamedTuple):
    """A legal way to run a step. bound: whether `work` is what a micro-batch of it asks for, or less.

    settings: of its mesh and checkpoint. work: None where all candidates are worked out.
    """

    mesh: Mesh
    settings: Settings
    batch: int
    micro_batches: int
    work: PassWork | None
    bound: bool

    @property
    def kept_bytes(self) -> int:
        """What its first rank keeps for backward, at least."""
        return 0 if self.work is None else self.work.kept_bytes(self.settings.layout, self.micro_batches)

    @property
    def run(self) -> tuple[Mesh, int, int, Any]:
        """Its mesh, micro-batch, number of them, and checkpoint."""
        return self.mesh, self.batch, self.micro_batches, self.settings.checkpoint

    @property
    def way(self) -> Mesh:
        """What tells it from others."""
        return {**self.mesh, "batch": self.batch, "checkpoint": self.settings.checkpoint}


class LayoutSearch:
    """All candidates of a question, each counted once.

    room: of each device [bytes]; None: as much as it takes. within: on a machine those are worked out that take at most
    such a share longer than the best, and the first `MOST_RANKED`; None: all are. slower: how many others there are,
    of which bounds on their seconds show that they are slower. steps: what is known of seconds.
    """

    def __init__(
        self,
        model: Architecture,
        fixed: dict[str, Any],
        options: Mapping[str, Sequence[Any]],
        room: int | None,
        network: LinkLike,
        within: float | None = None,
    ) -> None:
        self.model = model
        self.fixed = {name: value for name, value in fixed.items() if name not in ("devices", "global_batch")}
        self.devices: int = fixed["devices"]
        self.samples: int = fixed["global_batch"]
        self.options = options
        # "none" first: what it is refused for all are, and what it takes bounds what others do.
        self.checkpoints = sorted(options.get("checkpoint", CHECKPOINTS), key=lambda each: each != "none")
        self.room = room
        self.network = network
        self.within = within if self.fixed.get("on") is not None else None
        self.peaks = RankPeaks(model)
        self.refused = Tally()
        self.steps: LayoutSteps | None = None
        self._candidates: list[LegalLayout] = []
        self._local: dict[Any, str] = {}
        self._begin()

    def _begin(self) -> None:
        vars(self).pop("reasons", None)  # of what was worked out before
        self.entries: list[RankedLayout] = []
        self.slower = 0
        self.unfit = Tally()
        holds, fits = (None, None) if self.within is None else (self._holds, self._fits)
        self.remedies = {
            TOO_MUCH_HELD: Remedies(CHANGES_HELD, holds),
            TOO_MUCH_BESIDE: Remedies(CHANGES_BESIDE, fits),
        }
        self._held: dict[int, Held] = {}
        self._limits: dict[tuple[int, Any], int] = {}

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Go through them."""
        meshes = Meshes(self.model, self.devices, self.options)
        count = sum(1 for _ in itertools.islice(meshes, MOST_MESHES + 1))
        if count > MOST_MESHES:
            raise SettingError(f"more than {MOST_MESHES:,} layouts: give some of the degrees, such as pp=1")
        for done, mesh in enumerate(meshes, 1):
            for candidate in self._legal(mesh):
                if self.within is None:
                    self._work_out(candidate)
                else:
                    self._candidates.append(candidate)
            self._held.clear()
            self._limits.clear()
            if progress and (done % 100 == 0 or done == count):
                progress(done, count)
        if self.within is not None:
            self._rank(self.within)

    def again(self, network: LinkLike = None, within: float | None = None) -> LayoutSearch:
        """The same candidates on another network, or with those worked out that are so much slower than the best.

        Raises CostModelError.
        """
        other = copy(self)
        other.network, other.refused = network or self.network, self.refused.copy()
        if self.within is not None and within is not None:
            other.within = within
        other._begin()
        if network is not None:
            other.steps = self.steps_on(network)
        if other.within is not None:
            other._rank(other.within)
        else:
            other.unfit, other.remedies = self.unfit, self.remedies
            other.entries = [replace(entry, step=other._step(Settings(**entry.settings))) for entry in self.entries]
        return other

    def steps_on(self, network: LinkLike) -> LayoutSteps | None:
        """Steps on another network. Raises CostModelError."""
        if self.steps is None:
            return None
        like = self._candidates[0].settings if self.within is not None else Settings(**self.entries[0].settings)
        return self.steps.on(_timed(self.model, like, network))

    def _legal(self, mesh: Mesh) -> Iterator[LegalLayout]:
        """Candidates of a mesh that pass all checks."""
        batches = self._batches(mesh)
        if not batches:
            text = f"global_batch={self.samples} is no multiple of what {mesh['fsdp'] * mesh['dp']} ranks take at once"
            self.refused.add(text, len(self.checkpoints))
            return
        least: dict[int, PassWork] = {}
        for checkpoint in self.checkpoints:
            try:
                settings = self._settings(mesh, batches[0], 2 * mesh["pp"] * mesh.get("vpp", 1), checkpoint)
                self._check_model(settings)
            except CostModelError as error:
                if checkpoint == "none":  # of which nothing but the mesh can be refused
                    self.refused.add(str(error), len(batches) * len(self.checkpoints))
                    return
                self.refused.add(str(error), len(batches))
                continue
            for batch in batches:
                micro_batches = self.samples // (mesh["fsdp"] * mesh["dp"] * batch)
                work = None
                try:
                    if settings.layout.pp > 1:
                        settings.layout.pipeline(micro_batches)
                    if self.within is not None and (work := least.get(batch)) is None:
                        work = self._work(mesh, batch, micro_batches, checkpoint)
                except CostModelError as error:
                    self.refused.add(str(error), 1)
                    continue
                if checkpoint == "none" and work is not None:
                    least[batch] = work  # and with what is recomputed there is more
                yield LegalLayout(mesh, settings, batch, micro_batches, work, checkpoint != "none" and batch in least)

    def _settings(self, mesh: Mesh, batch: int, micro_batches: int, checkpoint: Any) -> Settings:
        return Settings(**self.fixed, **mesh, batch=batch, accumulate=micro_batches, checkpoint=checkpoint)

    def _work(self, mesh: Mesh, batch: int, micro_batches: int, checkpoint: Any) -> PassWork:
        settings = self._settings(mesh, batch, micro_batches, checkpoint)
        if self.steps is None:
            self.steps = LayoutSteps(self.peaks, _timed(self.model, settings, self.network))
        return self.steps.work(settings)

    def _least_seconds(self, candidate: LegalLayout) -> float:
        """A bound on its seconds."""
        if self.steps is None or candidate.work is None:
            return 0.0
        return self.steps.least_seconds(candidate.work, candidate.settings.layout, candidate.micro_batches)

    def _rank(self, within: float) -> None:
        """Work candidates out, those first that may be fastest, until all others are slower."""
        heap = [(self._least_seconds(candidate), n) for n, candidate in enumerate(self._candidates)]
        heapify(heap)
        fastest: list[float] = []
        most = inf
        while heap and heap[0][0] <= most:
            _, n = heappop(heap)
            candidate = self._candidates[n]
            if candidate.bound:
                try:
                    work = self._work(*candidate.run)
                except CostModelError as error:
                    self.refused.add(str(error), 1)
                    continue
                candidate = self._candidates[n] = candidate._replace(work=work, bound=False)
                heappush(heap, (self._least_seconds(candidate), n))
            elif (entry := self._work_out(candidate)) is not None:
                insort(fastest, entry.seconds)
                if len(fastest) >= MOST_RANKED:
                    most = max(fastest[MOST_RANKED - 1], fastest[0] * (1 + within))
        worked_out = self.entries
        self.entries = [entry for entry in worked_out if entry.seconds <= most]
        self.slower = len(heap) + len(worked_out) - len(self.entries)

    def _work_out(self, candidate: LegalLayout) -> RankedLayout | None:
        """A candidate's layout if it fits; else why not is counted."""
        mesh, limit = candidate.mesh, (id(candidate.mesh), candidate.settings.checkpoint)
        try:
            settings = self._settings(*candidate.run)
            alike = candidate.settings if settings.layout.pp > 1 else settings  # stages of few batches are traced once
            if (room := self._left(mesh, alike)) < 0:
                self.unfit.add(TOO_MUCH_HELD, 1)
                return None
            if candidate.batch >= self._limits.get(limit, inf) or candidate.kept_bytes > room:
                self._add_unfit(candidate.way)
                return None
            peak = self.peaks.peak(settings, self.room)
            step = self._step(settings) if self.room is None or peak <= self.room else None
        except CostModelError as error:
            self.refused.add(str(error), 1)
            return None
        if self.room is not None and peak > self.room:
            if self.peaks.floor(settings) > self.room:
                self._limits[limit] = candidate.batch
            self._add_unfit(candidate.way)
            return None
        self.remedies[TOO_MUCH_BESIDE].add(candidate.way, fits=True)
        entry = self._entry(candidate, settings, peak, step)
        self.entries.append(entry)
        return entry

    def _entry(self, candidate: LegalLayout, settings: Settings, peak: int, step: LayoutStep | None) -> RankedLayout:
        own = {name: value for name, value in candidate.mesh.items() if value != SETTINGS[name].default}
        own.pop("dp", None)
        own |= {"batch": candidate.batch, "checkpoint": candidate.settings.checkpoint}
        if own["checkpoint"] == "none":
            own.pop("checkpoint")
        whole = {"devices": self.devices, "global_batch": self.samples}
        seq = batch_shape(self.model, settings).seq
        tokens = None if seq is None else self.samples * int(seq)
        return RankedLayout(self.model, {**self.fixed, **whole, **own}, peak, step, tokens)

    def _left(self, mesh: Mesh, settings: Settings) -> float:
        """Room beside weights and states of a mesh's heaviest rank; below 0 if there is none, or not for gradients."""
        if self.room is None:
            return inf
        if id(mesh) not in self._held:
            self._held[id(mesh)] = held = self.peaks.held(settings)
            self.remedies[TOO_MUCH_HELD].add(mesh, fits=held.least <= self.room)
        held = self._held[id(mesh)]
        return -1 if held.least > self.room else self.room - held.throughout

    def _holds(self, mesh: Mesh) -> bool:
        """Whether another mesh is legal, and there is room for what its ranks have of weights, gradients and states."""
        batches = self._batches(mesh)
        try:
            settings = self._settings(mesh, batches[0], 2 * mesh["pp"] * mesh.get("vpp", 1), "none")
            return self.room is None or self.peaks.held(settings).least <= self.room
        except (CostModelError, IndexError):
            return False

    def _fits(self, way: Mesh) -> bool:
        """Whether another way to run a step is legal, and fits."""
        micro_batches, rest = divmod(self.samples, way["fsdp"] * way["dp"] * way["batch"])
        if rest:
            return False
        try:
            settings = Settings(**self.fixed, **way, accumulate=micro_batches)
            return self.room is None or self.peaks.peak(settings, self.room) <= self.room
        except CostModelError:
            return False

    def _add_unfit(self, way: Mesh) -> None:
        self.unfit.add(TOO_MUCH_BESIDE, 1)
        self.remedies[TOO_MUCH_BESIDE].add(way, fits=False)

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """Why candidates do not fit, each with the one change that helps most of them."""
        every = self.unfit.reasons
        return tuple(reason._replace(change=self.remedies[reason.text].best) for reason in every)

    def _step(self, settings: Settings) -> LayoutStep | None:
        """Its seconds on the machine, if one is named."""
        if settings.on is None:
            return None
        if self.steps is None:
            self.steps = LayoutSteps(self.peaks, _timed(self.model, settings, self.network))
        return self.steps.step(settings)

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


def _timed(model: Architecture, settings: Settings, network: LinkLike) -> Time:
    """Seconds on the machine that settings name."""
    on: Any = settings.on
    return time_on(Costs(model, settings), on, stack=settings.stack, network=network)
