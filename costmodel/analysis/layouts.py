"""Which layout over devices: all that are worked out and fit, ranked, and why the others do not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from costmodel.analysis.candidates import AXES, CHECKPOINTS, Mesh, Meshes
from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.recommend import budget_of
from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.base import Architecture, divisors
from costmodel.architectures.trace import batch_shape, check_applies
from costmodel.cost.costs import Costs
from costmodel.cost.peaks import RankPeaks
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, printable
from costmodel.display.units import Budget, read_reserve, show_bytes, show_exact, show_few, show_seconds
from costmodel.documents.arguments import typed
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.hardware.cluster import LinkLike, load_cluster, machine_of
from costmodel.importers.files import read_setting
from costmodel.importers.zoo import load
from costmodel.performance.layout_steps import LayoutStep, LayoutSteps
from costmodel.performance.time import time_on
from costmodel.training.fields import Probability
from costmodel.training.keywords import SeveralSettings
from costmodel.training.schedules import SCHEDULES
from costmodel.training.setting import plain
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS, Settings, takes_settings

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

CHOSEN = (*AXES, "batch", "checkpoint")
"""Settings that are chosen unless they are given."""
DEFAULTS: dict[str, Any] = {"precision": "bf16-master-fp32-gradients", "attention": "flash"}
SHOWN = ("runtime", *(name for name in LAYOUT_NAMES if name not in ("devices", "global_batch", "runtime")))
"""Settings that tell layouts apart, in words."""
NAMED = ("runtime", "schedule", "cp_kind")
"""Of these those whose values say by themselves what they are."""
MOST_SHOWN = 10
"""Rows of the table; `Layouts` has all."""
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


@dataclass(frozen=True, repr=False)
class Layouts(Answer):
    """The layouts that fit, ranked; true if any does.

    title: the model's. devices: in all. budget: what each has [bytes]; None: as much as they need. reserve: what is
    left of it for what is not modelled [bytes]. entries: what fits, ranked. unfit: what does not, by reason. refused:
    what is not worked out, or cannot be, by reason. machine: whose seconds rank them; None: memory does. within: of
    those at most such a share slower than the best the simplest is named. inside: devices of a node,
    over which alone tp was tried; None: tp is as it was given, or of all degrees.
    peaks: what is known of their ranks.

    Example:
        >>> import costmodel as cm
        >>> found = cm.layouts("gpt2-small", devices=2, seq=512, global_batch=4, memory="8 GiB", runtime="megatron")
        >>> found.best.settings["runtime"], found.best.peak == found.best.prediction.memory.peak
        ('megatron', True)

    """

    title: str
    devices: int
    budget: Budget | None
    reserve: int
    entries: tuple[RankedLayout, ...]
    unfit: tuple[Reason, ...]
    refused: tuple[Reason, ...]
    machine: str | None = None
    within: float = 0.05
    inside: int | None = None
    peaks: RankPeaks | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[RankedLayout]:
        return iter(self.entries)

    def __getitem__(self, rank: int) -> RankedLayout:
        return self.entries[rank]

    @property
    def best(self) -> RankedLayout:
        """The first. Raises SettingError if nothing fits."""
        if not self:
            raise SettingError(self._head())
        return self.entries[0]

    @typed
    def at(self, network: LinkLike) -> Layouts:
        """The same layouts on another network between nodes, such as "200 Gb/s", ranked anew.

        Raises CostModelError where no machine is named, or nothing fits.
        """
        _ = self.best.seconds
        model = self.best.model
        steps: LayoutSteps | None = None
        entries: list[RankedLayout] = []
        for entry in self.entries:
            settings = Settings(**entry.settings)
            if steps is None:
                steps = _steps_like(model, settings, self.peaks or RankPeaks(model), network)
            entries.append(replace(entry, step=steps.step(settings)))
        return replace(self, entries=tuple(sorted(entries, key=lambda entry: entry.rank)))

    @typed
    def simplest(self, within: Probability = 0.05) -> RankedLayout:
        """Of those at most so much slower than the best, or larger without a machine, the one simplest to set up.

        Raises SettingError if nothing fits.
        """
        most = self.best.rank[0] * (1 + within)
        near = itertools.takewhile(lambda entry: entry.rank[0] <= most, self.entries)
        return min(near, key=lambda entry: entry.plainness)

    @property
    def candidates(self) -> int:
        """All ways to lay the devices out and to run a step that were gone through."""
        return len(self) + sum(reason.candidates for reason in (*self.unfit, *self.refused))

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes]."""
        return {
            "fits": bool(self),
            "devices": self.devices,
            "budget": self.budget.bytes if self.budget else None,
            "reserve": self.reserve,
            "candidates": self.candidates,
            "machine": self.machine,
            "layouts": [
                {
                    "rank": n,
                    "settings": {name: plain(value) for name, value in entry.settings.items()},
                    "memory.peak": entry.peak,
                    **({} if entry.step is None else {**entry.step._asdict(), "tokens_per_second": entry.rate}),
                    "reason": entry.reason(self.best),
                }
                for n, entry in enumerate(self.entries, 1)
            ],
            "unfit": [reason._asdict() for reason in self.unfit],
            "refused": [reason._asdict() for reason in self.refused],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layout that fits."""
        return [{**entry, **entry.pop("settings")} for entry in self.to_dict()["layouts"]]

    def table(self) -> Table:
        """The first of them."""
        rows = [
            (
                str(rank),
                entry.text(*SHOWN),
                str(entry.settings["batch"]),
                label_of(entry.settings.get("checkpoint", "none")),
                show_bytes(entry.peak),
                *([] if entry.step is None else self._timed(entry, entry.step)),
            )
            for rank, entry in enumerate(self.entries[:MOST_SHOWN], 1)
        ]
        timed = () if self.machine is None else ("step", "tokens/s", "exposed", "bubble")
        header = ("", "layout", "batch", "recomputed", "peak", *timed)
        return Table(header, rows, words=frozenset({1, 3}), spare=(8, 7, 5) if timed else ())

    def _timed(self, entry: RankedLayout, step: LayoutStep) -> list[str]:
        shares = (f"{part / step.seconds:.1%}" for part in (step.exposed, step.bubble))
        return [show_seconds(step.seconds), show_few(entry.rate or 0.0), *shares]

    @typed
    def plot(self, path: str | PathLike[str] | None = None, *, dark: bool = False) -> Figure:
        """A picture of all that fit: seconds of a step against memory, and those that no other beats in both.

        Args:
            path: where to write it too, such as "layouts.png".
            dark: on black instead of white.

        Raises:
            CostModelError: no machine is named, nothing fits, no matplotlib or pandas (extras `plot`, `frame`), or
                `path` cannot be written.

        """
        from costmodel.analysis.pareto import pareto
        from costmodel.display.figures import DARK, LIGHT, save
        from costmodel.display.scatter import picture

        self.best.seconds  # noqa: B018  (there are none without a machine)
        try:
            import pandas
        except ImportError:
            raise CostModelError("a picture of layouts needs pandas: pip install 'costmodel[frame]'") from None
        layouts = [Settings(**entry.settings).layout for entry in self.entries]
        degrees = {name: [getattr(layout, name) for layout in layouts] for name in ("tp", "pp", "fsdp", "ep")}
        degrees = {name: values for name, values in degrees.items() if len(set(values)) > 1}
        seconds, peaks = [entry.seconds for entry in self.entries], [entry.peak for entry in self.entries]
        frame = pandas.DataFrame({**degrees, "seconds": seconds, "memory.peak": peaks})
        names = ["seconds", "memory.peak"]
        title = f"{self.title} on {self.devices:,} × {self.machine}"
        theme = DARK if dark else LIGHT
        return save(picture(frame, pareto(frame, *names), [*degrees], names, (), title, theme), path)

    def _head(self) -> str:
        unfit = sum(reason.candidates for reason in self.unfit)
        room = f" {show_bytes(self.budget.bytes)} ({self.budget.reading})" if self.budget else ""
        reserve = f" less a reserve of {show_bytes(self.reserve)}" if self.reserve else ""
        fit = f"{show_exact(len(self))} of {show_exact(len(self) + unfit)} ways to run it on {self.devices:,} devices"
        return f"{self.title}: {fit} fit{room}{reserve}" if self.budget else f"{self.title}: {fit}"

    def sheet(self) -> Sheet:
        """The first of them; what does not fit by reason."""
        ranked = "the heaviest rank's memory alone" if self.machine is None else f"seconds of a step on {self.machine}"
        head = [printable(self._head()), f"ranked by {ranked}"]
        notes = [f"{n}, {e.text(*SHOWN)}: {e.reason(self.best)}" for n, e in enumerate(self.entries[1:MOST_SHOWN], 2)]
        if self and (simplest := self.simplest(self.within)) is not self.best:
            run = f"batch {simplest.settings['batch']}, recomputing {simplest.settings.get('checkpoint', 'none')}"
            notes.append(f"the simplest within {self.within:.0%} of the best: {simplest.text(*SHOWN)}, {run}")
        if self.inside is not None and self.devices > self.inside:
            notes.append(
                f"tp within nodes of {self.inside:,} devices: give tp, such as tp={2 * self.inside}, for others"
            )
        for reason in self.unfit:
            helps = f"; what helps most: {reason.change}" if reason.change else ""
            notes.append(f"{reason.candidates:,} do not fit: {reason.text}{helps}")
        if refused := sum(reason.candidates for reason in self.refused):
            notes.append(f"{refused:,} more are not worked out, most of them since: {self.refused[0].text}")
        return Sheet(head, [self.table()] if self else [], notes=[printable(note) for note in notes])


@typed
@takes_settings(
    several=True, batch=..., checkpoint=..., precision=DEFAULTS["precision"], attention=DEFAULTS["attention"]
)
def layouts(
    model: Architecture | str,
    *,
    memory: str | float | None = None,
    reserve: str | int | None = 0,
    network: LinkLike = None,
    within: Probability = 0.05,
    progress: Callable[[int, int], None] | None = None,
    **settings: Unpack[SeveralSettings],
) -> Layouts:
    """Every layout of a training step over `devices` that fits, with every micro-batch and recomputation, ranked.

    All legal degrees of tensor, sequence, context, pipeline, expert, sharded and data parallel are gone through, in
    every runtime and under every schedule, each with what is recomputed and with every micro-batch that `global_batch`
    allows. What is given stays; of a list one is chosen. On a machine (`on`) they are ranked by tokens a second, and
    tp stays within a node unless it is given; without one they are ranked by memory alone.

    Args:
        model: as `predict` takes it.
        memory: of a device, such as "80 GB" (default: that of the machine; without one nothing is left out).
        reserve: memory to leave for what is not modelled.
        network: of one adapter between nodes, such as "400 Gb/s" (default: that of the machine's ready cluster).
        within: the simplest is named of those at most so much slower than the best, such as 0.05.
        progress: told how many ways to lay the devices out are done, and of how many.
        **settings: all that `predict` takes; `devices` and `global_batch` are needed.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.layouts("gpt2-small", devices=4, seq=512, global_batch=8, runtime="torch", checkpoint="none")
        >>> bool(found), found.best.settings["devices"]
        (True, 4)

    """
    for name in ("devices", "global_batch"):
        if settings.get(name) is None:
            raise SettingError(f"{name} is not given: give {SETTINGS[name].example!r}, say, for {name}")
        SETTINGS[name].reader(name, settings[name])
    if settings.get("accumulate") is not None:
        raise SettingError(
            f"accumulate={shown(settings.get('accumulate'))} follows from global_batch and batch: leave it out"
        )
    architecture = model if isinstance(model, Architecture) else load(model)
    options = {name: _values(name, value) for name, value in {**_defaults(architecture), **settings}.items()}
    fixed = {name: value[0] for name, value in options.items() if name not in CHOSEN}
    on = fixed.get("on")
    if on is None and network is not None:
        raise SettingError(f"network={shown(network)} is of seconds on a machine: give on='h100-sxm', say, too")
    inside = None if on is None or "tp" in options else load_cluster(on, network).size
    if inside is not None:
        options["tp"] = [degree for degree in divisors(fixed["devices"]) if degree <= inside]
    budget = None if memory is None and on is None else budget_of(memory, None if on is None else machine_of(on))
    room = None if budget is None else budget.bytes - read_reserve(reserve)
    search = _Candidates(architecture, fixed, options, room, network)
    search.run(progress)
    if not (search.entries or search.unfit.reasons):
        reason = search.refused.reasons[0].text if search.refused.reasons else "no degrees make up the devices"
        raise SettingError(f"no layout of {architecture.title} over devices={fixed['devices']} is worked out: {reason}")
    entries = tuple(sorted(search.entries, key=lambda entry: entry.rank))
    return Layouts(
        architecture.title,
        fixed["devices"],
        budget,
        read_reserve(reserve),
        entries,
        search.reasons,
        search.refused.reasons,
        None if on is None else machine_of(on).name,
        within,
        inside,
        search.peaks,
    )


def _defaults(model: Architecture) -> dict[str, Any]:
    """Of `DEFAULTS` what the model takes."""
    try:
        _ = predict(model, **DEFAULTS) if model.HAS_ATTENTION else None
    except CostModelError:  # of scores that are changed before their softmax
        return {"precision": DEFAULTS["precision"]}
    return {name: value for name, value in DEFAULTS.items() if name != "attention" or model.HAS_ATTENTION}


def _values(name: str, value: Any) -> Sequence[Any]:
    """What is chosen between. Raises SettingError."""
    listed = isinstance(value, list | range)
    if listed and name not in CHOSEN:
        raise SettingError(f"{name}={shown(value)} is a list: give one value")
    if listed and not len(value):
        raise SettingError(f"{name}={shown(value)} is empty: give at least one value")
    return [read_setting(name, each) for each in (value if listed else [value])]


def _steps_like(model: Architecture, settings: Settings, peaks: RankPeaks, network: LinkLike) -> LayoutSteps:
    """Steps of layouts on the machine that settings name."""
    on: Any = settings.on
    return LayoutSteps(peaks, time_on(Costs(model, settings), on, stack=settings.stack, network=network))


TOO_MUCH_HELD = "weights, gradients and states alone take too much"
TOO_MUCH_BESIDE = "weights, gradients and states would, but not with what passes keep and make"


class _Candidates:
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
            self._steps = _steps_like(self.model, settings, self.peaks, self.network)
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
