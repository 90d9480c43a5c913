"""The search for layouts: every way to run a step over devices, with its peak and seconds, or why it is none."""

from __future__ import annotations

import gc
import itertools
from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

import numpy as np

from costmodel.analysis.candidates import CHECKPOINTS, Mesh, Meshes
from costmodel.analysis.layout_reasons import (
    CHANGES_BESIDE,
    CHANGES_HELD,
    TOO_MUCH_BESIDE,
    TOO_MUCH_HELD,
    Reason,
    Remedies,
    Tally,
)
from costmodel.analysis.ranked_layout import RankedLayout
from costmodel.architectures.base import Architecture
from costmodel.architectures.trace import batch_shape, check_applies
from costmodel.cost.costs import Costs
from costmodel.cost.peaks import Held, RankPeaks
from costmodel.errors import CostModelError, SettingError, listed
from costmodel.hardware.cluster import LinkLike
from costmodel.performance.laws import Numbers
from costmodel.performance.layout_steps import LayoutStep, LayoutSteps, PassWork, PipelineShapes, blocks_of
from costmodel.performance.time import Time, time_on
from costmodel.symbolic.sizes import divisors
from costmodel.training.frozen import varied
from costmodel.training.layout import Layout
from costmodel.training.settings import SETTINGS, Settings

MOST_MESHES = 1_000_000
"""Ways to lay out devices that are gone through."""


APART = ("pp", "vpp", "schedule", "fsdp", "dp", "zero", "reshard")
"""Settings of a mesh on which the work of a micro-batch does not depend."""
DEGREES_OF_KINDS = ("tp", "cp", "pp", "fsdp", "dp")
"""Degrees whose size decides about a model, and about settings alone only whether it is more than 1."""
REPORTED = 1_000
"""Ways after each so many of which a search says how far it is."""
YOUNG_OBJECTS = 500_000
"""New objects after which Python looks for unreachable cycles among them during a search."""
MOST_RANKED = 10
"""Of those that fit so many are ranked at least, however much slower than the best."""


class LegalLayout(NamedTuple):
    """A legal way to run a step.

    settings: of its mesh and checkpoint. work: what a micro-batch of it asks for; None where all are worked out.
    """

    mesh: Mesh
    settings: Settings
    batch: int
    micro_batches: int
    work: PassWork | None

    @property
    def kept_bytes(self) -> int:
        """What its first rank keeps for backward, at least."""
        return 0 if self.work is None else self.work.kept_bytes(self.settings.layout, self.micro_batches)

    @property
    def way(self) -> Mesh:
        """What tells it from others."""
        return {**self.mesh, "batch": self.batch, "checkpoint": self.settings.checkpoint}


@dataclass
class AlikeWays:
    """Ways to run a step whose micro-batches ask for the same work, but for what is recomputed.

    batches: of all ways that differ in the size of these alone. numbers: of their meshes. micro_batches, shapes: of
    each, as arrays. different: of meshes the first of each kind, of which another may be legal. works, bounds: by what
    is recomputed that work, None where all ways are worked out, and a bound on the seconds of each way.
    """

    batch: int
    batches: Sequence[int]
    numbers: Numbers
    different: Sequence[int]
    micro_batches: Numbers
    shapes: PipelineShapes
    works: dict[Any, PassWork | None] = field(default_factory=dict)
    bounds: dict[Any, Numbers] = field(default_factory=dict)


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
        self.meshes: list[Mesh] = []
        self.steps: LayoutSteps | None = None
        self._known: dict[tuple[int, Any], Settings | str] = {}
        self._kinds: dict[Hashable, Settings | str] = {}
        self._orders: dict[tuple[Any, ...], str] = {}
        self._local: dict[Any, str] = {}
        self._begin()

    def _begin(self) -> None:
        vars(self).pop("reasons", None)  # of what was worked out before
        self.entries: list[RankedLayout] = []
        self.slower = 0
        self.unfit, self.refused = Tally(), Tally()
        holds, fits = (None, None) if self.within is None else (self._holds, self._fits)
        self.remedies = {
            TOO_MUCH_HELD: Remedies(CHANGES_HELD, holds),
            TOO_MUCH_BESIDE: Remedies(CHANGES_BESIDE, fits),
        }
        self._held: dict[int, Held] = {}
        self._limits: dict[tuple[int, Any], int] = {}

    def run(self, progress: Callable[[int, int], None] = lambda done, count: None) -> None:
        """Go through them. progress: is told how much of the way is done, and of how much."""
        self.meshes = [*itertools.islice(Meshes(self.model, self.devices, self.options), MOST_MESHES + 1)]
        if len(self.meshes) > MOST_MESHES:
            raise SettingError(f"more than {MOST_MESHES:,} layouts: give some of the degrees, such as pp=1")
        self._search(progress)

    def again(self, network: LinkLike = None, within: float | None = None) -> LayoutSearch:
        """The same candidates on another network, or with those worked out that are so much slower than the best.

        Raises CostModelError.
        """
        other = copy(self)
        other.network = network or self.network
        if self.within is not None and within is not None:
            other.within = within
        if network is not None:
            other.steps = self.steps_on(network)
        if other.within is not None:
            other._begin()
            other._search(lambda done, count: None)
        else:
            usual = [entry for entry in self.entries if self._given_split or "pp_split" not in entry.settings]
            other.entries = [replace(entry, step=other._step(Settings(**entry.settings))) for entry in usual]
            other._balance()
        return other

    def steps_on(self, network: LinkLike) -> LayoutSteps | None:
        """Steps on another network. Raises CostModelError."""
        if self.steps is None:
            return None
        return self.steps.on(_timed(self.model, Settings(**self.entries[0].settings), network))

    def _search(self, progress: Callable[[int, int], None]) -> None:
        """Work ways out, those first that may be fastest, until all others are slower."""
        with _rare_collection():
            self._branch(progress)
            self._balance()

    def _branch(self, progress: Callable[[int, int], None]) -> None:
        every = [*self._alike(progress)]
        order, ascending, find = _ascending(every)
        later: list[tuple[float, int, int, int]] = []
        fastest: list[float] = []
        most, at, left = inf, 0, len(order) * len(self.checkpoints)
        while at < len(order) or later:
            if not later or (at < len(order) and ascending[at] < later[0][0]):
                if ascending[at] > most:
                    break
                place, member = find(at)
                at += 1
                self._report(progress, at, ascending, most)
                bounds = self._later(every[place], member)
                left -= len(self.checkpoints) - len(bounds)
                for which, bound in bounds:
                    heappush(later, (bound, place, member, which))
                continue
            if later[0][0] > most:
                break
            _, place, member, which = heappop(later)
            left -= 1
            candidate = self._candidate(every[place], member, self.checkpoints[which])
            entry = None if candidate is None else self._work_out(candidate)
            if entry is not None and self.within is not None:
                insort(fastest, entry.seconds)
                if len(fastest) >= MOST_RANKED:
                    most = max(fastest[MOST_RANKED - 1], fastest[0] * (1 + self.within))
        progress(2 * len(self.meshes), 2 * len(self.meshes))
        worked_out = self.entries
        self.entries = [entry for entry in worked_out if self.within is None or entry.seconds <= most]
        self.slower = left + len(worked_out) - len(self.entries)

    @property
    def _given_split(self) -> bool:
        return "pp_split" in self.fixed

    def _balance(self) -> None:
        """Add to the fastest those that are faster with blocks dealt out by what stages take, see `balanced_splits`."""
        if self.steps is None or self.fixed.get("on") is None or self._given_split:
            return
        for entry in sorted(self.entries, key=lambda entry: entry.rank)[:MOST_RANKED]:
            with suppress(CostModelError):  # of stages that others than the usual ones are not worked out for
                settings = Settings(**entry.settings)
                every = [self._split(entry, settings, split) for split in self.steps.balanced_splits(settings)]
                faster = [other for other in every if other is not None and other.seconds < entry.seconds]
                self.entries += [min(faster, key=lambda other: other.rank)] if faster else []

    def _split(self, entry: RankedLayout, settings: Settings, split: tuple[int, ...]) -> RankedLayout | None:
        """A layout with another split, if it fits. Raises CostModelError."""
        settings = replace(settings, pp_split=split)
        peak = self.peaks.peak(settings, self.room)
        if self.room is not None and peak > self.room:
            return None
        return replace(
            entry, settings={**entry.settings, "pp_split": split}, peak=peak, step=self._steps(settings).step(settings)
        )

    def _report(self, progress: Callable[[int, int], None], at: int, ascending: Numbers, most: float) -> None:
        """How far through those ways a search is whose bounds are no higher than the seconds that still count."""
        if at % REPORTED == 0:
            of = int(np.searchsorted(ascending, most, side="right"))
            progress(len(self.meshes) + len(self.meshes) * at // max(at, of), 2 * len(self.meshes))

    def _alike(self, progress: Callable[[int, int], None]) -> Iterator[AlikeWays]:
        """All ways, by the work of their micro-batches; those that are refused already are counted."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        first = self.checkpoints[0]
        for number, mesh in enumerate(self.meshes):
            batches = len(self._batches(mesh))
            if not batches:
                copies, given = mesh["fsdp"] * mesh["dp"], [f"{batch:,}" for batch in self.options.get("batch", ())]
                of = [f"batch={listed(given)}"] if given else []
                of += [f"the {copies:,} ranks that have samples of their own"] if copies > 1 else []
                text = f"global_batch={self.samples} is no multiple of {' on '.join(of)}"
                self.refused.add(text, len(self.checkpoints))
                continue
            if first == "none" and isinstance(text := self._checked(number, first), str):
                self._refuse(number, first, text, batches * len(self.checkpoints))
                continue
            alike = tuple(item for item in mesh.items() if item[0] not in APART)
            groups.setdefault(alike, []).append(number)
        done = 0
        for numbers in groups.values():
            done += len(numbers)
            yield from self._alike_batches(numbers)
            progress(done, 2 * len(self.meshes))

    def _alike_batches(self, numbers: list[int]) -> Iterator[AlikeWays]:
        """Those of meshes whose micro-batches compute alike where they are as large."""
        meshes = [self.meshes[number] for number in numbers]
        each = np.array([self.samples // (mesh["fsdp"] * mesh["dp"]) for mesh in meshes], dtype=np.int64)
        shapes = PipelineShapes.of(map(self._pipeline, meshes), blocks_of(self.model))
        members = {batch: np.flatnonzero(each % batch == 0) for batch in self._divisors}
        batches = [batch for batch, which in members.items() if len(which)]
        kinds: dict[tuple[Any, ...], int] = {}
        kind_of = np.array([kinds.setdefault(_kind_of_copies(mesh), len(kinds)) for mesh in meshes])
        for batch in batches:
            which = members[batch]
            own = np.array(numbers)[which]
            different = own[np.sort(np.unique(kind_of[which], return_index=True)[1])].tolist()
            ways = AlikeWays(batch, batches, own, different, each[which] // batch, shapes.chosen(which))
            self._bounds(ways, "none")
            yield ways

    def _pipeline(self, mesh: Mesh) -> Layout:
        """Of a layout what its pipeline is."""
        split = tuple(self.fixed.get("pp_split") or ())
        own = {name: mesh[name] for name in ("runtime", "pp", "vpp", "schedule") if name in mesh}
        return Layout(split=split, **own)

    def _bounds(self, ways: AlikeWays, checkpoint: Any) -> Numbers:
        """A bound on the seconds of each of the ways, from any of them that is legal; zeros if there is none."""
        if checkpoint not in ways.bounds:
            ways.works[checkpoint], ways.bounds[checkpoint] = None, np.zeros(len(ways.numbers))
            for number in ways.different if self.within is not None else ():
                settings = self._checked(number, checkpoint)
                if isinstance(settings, str):
                    continue
                settings = replace(settings, batch=ways.batch)
                with suppress(CostModelError):  # another may be legal
                    work = self._steps(settings).work(settings, ways.batches)
                    least = self._steps(settings).least_seconds(work, settings.layout, ways.shapes, ways.micro_batches)
                    ways.works[checkpoint], ways.bounds[checkpoint] = work, least
                    break
        return ways.bounds[checkpoint]

    def _later(self, ways: AlikeWays, member: int) -> list[tuple[int, float]]:
        """Of a way what may be recomputed, by number, each with a bound on its seconds; the others are counted."""
        number, micro_batches = int(ways.numbers[member]), int(ways.micro_batches[member])
        first = self._checked(number, self.checkpoints[0])
        if isinstance(first, Settings):
            if text := self._refusal(first.layout, micro_batches):
                self.refused.add(text, len(self.checkpoints))
                return []
            if self._holds_too_much(LegalLayout(self.meshes[number], first, ways.batch, micro_batches, None)):
                legal = [self._candidate(ways, member, checkpoint) is not None for checkpoint in self.checkpoints]
                self.unfit.add(TOO_MUCH_HELD, sum(legal))
                return []
        return [(which, float(self._bounds(ways, each)[member])) for which, each in enumerate(self.checkpoints)]

    def _holds_too_much(self, candidate: LegalLayout) -> bool:
        """Whether there is no room for what a candidate's ranks hold, which is as much whatever is recomputed."""
        with suppress(CostModelError):  # which each candidate is refused for
            return self._left(candidate) < 0
        return False

    def _candidate(self, ways: AlikeWays, member: int, checkpoint: Any) -> LegalLayout | None:
        """A way if it is legal; else why not is counted."""
        number = int(ways.numbers[member])
        settings = self._checked(number, checkpoint)
        if isinstance(settings, str):
            self._refuse(number, checkpoint, settings, 1)
            return None
        work = ways.works.get(checkpoint)
        return LegalLayout(self.meshes[number], settings, ways.batch, int(ways.micro_batches[member]), work)

    def _checked(self, number: int, checkpoint: Any) -> Settings | str:
        """Settings of a mesh with its smallest micro-batch; why they are refused if they are."""
        if (number, checkpoint) not in self._known:
            mesh = self.meshes[number]
            like = self._kinds.get((self._kind(mesh), checkpoint))
            self._known[number, checkpoint] = like if isinstance(like, str) else self._judged(mesh, checkpoint, like)
        return self._known[number, checkpoint]

    def _judged(self, mesh: Mesh, checkpoint: Any, like: Settings | None = None) -> Settings | str:
        """Settings of a mesh; why they are refused, with all of its kind, if they are. like: others of its kind."""
        sizes = {"batch": self._batches(mesh)[0], "accumulate": 2 * mesh["pp"] * mesh.get("vpp", 1)}
        if like is not None:
            settings = varied(like, **sizes, **{name: mesh[name] for name in DEGREES_OF_KINDS})
        else:
            try:
                settings = Settings(**self.fixed, **mesh, **sizes, checkpoint=checkpoint)
            except CostModelError as error:
                self._kinds[self._kind(mesh), checkpoint] = str(error)
                return str(error)
            self._kinds[self._kind(mesh), checkpoint] = settings
        try:
            self._check_once(mesh, settings)
            self._check_model(settings)
        except CostModelError as error:
            return str(error)
        return settings

    def _refuse(self, number: int, checkpoint: Any, text: str, count: int) -> None:
        """Count so many as refused; the first of each reason says it in its own numbers."""
        if text not in self.refused and isinstance(self._checked(number, checkpoint), str):
            text = str(self._judged(self.meshes[number], checkpoint))
        self.refused.add(text, count)

    def _kind(self, mesh: Mesh) -> Hashable:
        """What decides whether settings of a mesh go together, whatever the model: of most degrees that they split."""
        ranks, experts = mesh["fsdp"] * mesh["cp"] if mesh["runtime"] == "torch" else mesh["dp"], mesh.get("ep", 1)
        if mesh["runtime"] == "megatron":
            ranks, experts = mesh["tp"] * mesh["cp"] * mesh["dp"], experts * (mesh.get("etp") or mesh["tp"])
        plain = ranks % experts == 0  # of which those of experts are a part
        degrees = [mesh[name] > 1 if plain else mesh[name] for name in DEGREES_OF_KINDS]
        return *degrees, *(item for item in mesh.items() if item[0] not in DEGREES_OF_KINDS)

    def _refusal(self, layout: Layout, micro_batches: int) -> str:
        """Why a runtime's schedule takes no such pipeline; "" if it does."""
        key = layout.runtime, layout.schedule, layout.pp, layout.vpp, micro_batches
        if layout.pp > 1 and key not in self._orders:
            try:
                layout.pipeline(micro_batches)
                self._orders[key] = ""
            except SettingError as error:
                self._orders[key] = str(error)
        return self._orders.get(key, "")

    def _settings(self, mesh: Mesh, batch: int, micro_batches: int, checkpoint: Any) -> Settings:
        return Settings(**self.fixed, **mesh, batch=batch, accumulate=micro_batches, checkpoint=checkpoint)

    def _steps(self, settings: Settings) -> LayoutSteps:
        if self.steps is None:
            self.steps = LayoutSteps(self.peaks, _timed(self.model, settings, self.network))
        return self.steps

    def _work_out(self, candidate: LegalLayout) -> RankedLayout | None:
        """A candidate's layout if it fits; else why not is counted."""
        mesh, limit = candidate.mesh, (id(candidate.mesh), candidate.settings.checkpoint)
        try:
            if (room := self._left(candidate)) < 0:
                self.unfit.add(TOO_MUCH_HELD, 1)
                return None
            if candidate.batch >= self._limits.get(limit, inf) or candidate.kept_bytes > room:
                self._add_unfit(candidate.way)
                return None
            settings = self._settings(mesh, candidate.batch, candidate.micro_batches, candidate.settings.checkpoint)
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

    def _left(self, candidate: LegalLayout) -> float:
        """Room beside weights and states of a mesh's heaviest rank; below 0 if there is none, or not for gradients."""
        if self.room is None:
            return inf
        mesh = candidate.mesh
        if id(mesh) not in self._held:
            settings = candidate.settings
            if mesh["pp"] == 1:  # stages of few batches are traced once
                settings = self._settings(mesh, candidate.batch, candidate.micro_batches, settings.checkpoint)
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
        return None if settings.on is None else self._steps(settings).step(settings)

    def _batches(self, mesh: Mesh) -> list[int]:
        """Micro-batches of a rank."""
        each, rest = divmod(self.samples, mesh["fsdp"] * mesh["dp"])
        return [] if rest else [n for n in self._divisors if each % n == 0]

    @cached_property
    def _divisors(self) -> list[int]:
        """Micro-batches that some rank may have."""
        allowed = self.options.get("batch")
        return [n for n in divisors(self.samples) if allowed is None or n in allowed]

    def _check_once(self, mesh: Mesh, settings: Settings) -> None:
        """Raise SettingError for a mesh that is run as another of the same search."""
        for name, value in settings.forced.items():
            if name in mesh and mesh[name] != value and value in self.options.get(name, (value,)):
                raise SettingError(f"{name}={mesh[name]} is run as {name}={value} by {settings.runtime}")

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

    def __repr__(self) -> str:
        return f"<LayoutSearch of {self.model.title} over {self.devices} devices>"


def _kind_of_copies(mesh: Mesh) -> tuple[Any, ...]:
    """What decides, of meshes whose micro-batches compute alike, whether one is legal, but for the size of degrees."""
    return *(mesh[name] > 1 for name in ("pp", "fsdp", "dp")), *map(mesh.get, ("schedule", "zero"))


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Python's search for unreachable cycles at longer intervals: each goes through what a search keeps."""
    usual = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _ascending(every: Sequence[AlikeWays]) -> tuple[Numbers, Numbers, Callable[[int], tuple[int, int]]]:
    """Numbers of ways, the lowest bound first, and these bounds; and the place and member of the nth of them."""
    sizes = [len(ways.numbers) for ways in every]
    places, starts = np.repeat(np.arange(len(every)), sizes), np.cumsum([0, *sizes])
    bounds = np.concatenate([np.zeros(0), *(ways.bounds["none"] for ways in every)])
    order = np.argsort(bounds, kind="stable")

    def find(n: int) -> tuple[int, int]:
        place = int(places[order[n]])
        return place, int(order[n] - starts[place])

    return order, bounds[order], find


def _timed(model: Architecture, settings: Settings, network: LinkLike) -> Time:
    """Seconds on the machine that settings name."""
    on: Any = settings.on
    return time_on(Costs(model, settings), on, stack=settings.stack, network=network)
