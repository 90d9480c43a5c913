"""Which layout over devices: all that are worked out and fit, ranked, and why the others do not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, get_args

from costmodel.analysis.candidates import Meshes
from costmodel.analysis.layout_reasons import Reason
from costmodel.analysis.layout_search import LayoutSearch
from costmodel.analysis.predict import predict
from costmodel.analysis.ranked_layout import CHOSEN, RankedLayout
from costmodel.architectures.base import Architecture
from costmodel.architectures.stages import stages_of_split
from costmodel.cost.budget import check_meant, room_for
from costmodel.cost.question import question
from costmodel.display.answer import Ranking, Sheet
from costmodel.display.table import Table, printable
from costmodel.display.units import Budget, show_bytes, show_exact, show_few, show_seconds, show_share
from costmodel.documents.arguments import Reserve, typed
from costmodel.errors import CostModelError, SettingError, UnknownNameError, listed, not_installed, shown
from costmodel.hardware.cluster import LinkLike, load_cluster, machine_of
from costmodel.hardware.machine import show_link_speed
from costmodel.importers.files import read_setting, settings_of
from costmodel.importers.zoo import load
from costmodel.performance.layout_steps import LayoutStep
from costmodel.symbolic.sizes import divisors
from costmodel.training.fields import Probability
from costmodel.training.keywords import SeveralSettings
from costmodel.training.setting import plain
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS, Settings, check_names
from costmodel.training.signatures import takes_settings
from costmodel.training.stacks import Stack
from costmodel.training.values import CheckpointName, split_text

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

DEFAULTS: dict[str, Any] = {"precision": "bf16-master-fp32-gradients", "attention": "flash"}
SHOWN = (
    "runtime",
    *(name for name in LAYOUT_NAMES if name not in ("devices", "global_batch", "runtime")),
    "batch",
    "checkpoint",
)
"""Settings that tell layouts apart, in words."""
MOST_SHOWN = 10
"""Rows of the table; `Layouts` has all."""
MOST_REASONS = 3
"""Why layouts are not worked out, in words; `Layouts.refused` has all."""
HELPLESS = "no one change makes room: give more devices, or devices with more memory"
"""Where nothing helps those that would be fastest."""
SPEEDS = (0.5, 1.0, 2.0)
"""Shares of the bandwidth between nodes, with each of which the first layouts are timed."""


class NetworkSpeed(NamedTuple):
    """A bandwidth of each device between nodes [B/s], and seconds of a step of the first layouts with it."""

    bandwidth: float
    seconds: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Layouts(Ranking[RankedLayout]):
    """The layouts that fit, ranked; true if any does.

    title: the model's. question: without what is chosen. devices: in all. budget: what each has [bytes]; None: as much
    as they need. reserve: what is left of it for what is not modelled [bytes]. entries: what fits, ranked. unfit: what
    does not, by reason. refused: what is not worked out, or cannot be, by reason. machine: whose seconds rank them;
    None: memory does. within: of those at most such a share slower than the best the simplest is named. inside: devices
    of a node, over which alone tp was tried; None: tp is as it was given, or of all degrees. slower: how many others
    bounds on their seconds show to be slower, whether they fit or not. search: what was gone through.

    Example:
        >>> import costmodel as cm
        >>> found = cm.layouts("gpt2-small", devices=2, seq=512, global_batch=4, memory="8 GiB", runtime="megatron")
        >>> found.best.settings["runtime"], found.best.peak == found.best.prediction.memory.peak
        ('megatron', True)

    """

    title: str
    question: str
    devices: int
    budget: Budget | None
    reserve: int
    entries: tuple[RankedLayout, ...]
    unfit: tuple[Reason, ...]
    refused: tuple[Reason, ...]
    machine: str | None = None
    within: float = 0.05
    inside: int | None = None
    slower: int = 0
    search: LayoutSearch | None = field(default=None, compare=False)

    def _reason(self) -> str:
        return f"{self.title}: {self._head()}"

    @typed
    def at(self, network: LinkLike) -> Layouts:
        """The same layouts on another network between nodes, such as "200 Gb/s", ranked anew.

        Raises CostModelError where no machine is named, or nothing fits.
        """
        _ = self.best.seconds
        if self.search is None:
            raise SettingError("layouts that were not searched for have no other network: ask layouts for them")
        return replace(self, **_results(self.search.again(network)))

    @cached_property
    def networks(self) -> tuple[NetworkSpeed, ...]:
        """How much the first of them depend on the network: their seconds at half its speed and at twice.

        Empty without a machine, or within a node.
        """
        steps = None if self.search is None or not self else self.search.steps
        cluster = None if steps is None else steps.links.cluster
        if self.search is None or cluster is None or cluster.network is None or self.devices <= cluster.size:
            return ()
        settings = [Settings(**entry.settings) for entry in self.entries[:MOST_SHOWN]]
        every: list[NetworkSpeed] = []
        for speed in SPEEDS:
            bandwidth = speed * cluster.network_bandwidth
            link = cluster.network.model_copy(update={"bandwidth": bandwidth * cluster.oversubscription})
            seconds = [entry.seconds for entry in self.entries[:MOST_SHOWN]]
            if speed != 1 and (other := self.search.steps_on(link)) is not None:
                seconds = [other.step(each).seconds for each in settings]
            every.append(NetworkSpeed(bandwidth, tuple(seconds)))
        return tuple(every)

    def _network_table(self) -> Table:
        """Seconds of the first of them by the speed of the network."""
        header = ("step, by network", *(show_link_speed(speed.bandwidth) for speed in self.networks))
        rows = zip(*(map(show_seconds, speed.seconds) for speed in self.networks), strict=True)
        return Table(header, [(str(rank), *row) for rank, row in enumerate(rows, 1)])

    @typed
    def simplest(self, within: Probability = 0.05) -> RankedLayout:
        """Of those at most so much slower than the best, or larger without a machine, the one simplest to set up.

        Raises SettingError if nothing fits.
        """
        most = self.best.rank[0] * (1 + within)
        entries = self.entries
        if self.slower and within > self.within and self.search is not None:
            entries = sorted(self.search.again(within=within).entries, key=lambda entry: entry.rank)
        near = itertools.takewhile(lambda entry: entry.rank[0] <= most, entries)
        return min(near, key=lambda entry: entry.plainness)

    @property
    def candidates(self) -> int:
        """All ways to lay the devices out and to run a step that were gone through."""
        return len(self) + self.slower + sum(reason.candidates for reason in (*self.unfit, *self.refused))

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes]."""
        return {
            "question": self.question,
            "fits": bool(self),
            "devices": self.devices,
            "budget": self.budget.bytes if self.budget else None,
            "reserve": self.reserve,
            "candidates": self.candidates,
            "slower": self.slower,
            "machine": self.machine,
            "layouts": self._ranked(),
            "networks": [speed._asdict() for speed in self.networks],
            "unfit": [reason._asdict() for reason in self.unfit],
            "refused": [reason._asdict() for reason in self.refused],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layout that fits."""
        return [{**entry, **entry.pop("settings")} for entry in self._ranked()]

    def _ranked(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": n,
                "settings": {name: plain(value) for name, value in entry.settings.items()},
                "memory.peak": entry.peak,
                **({} if entry.step is None else {**entry.step._asdict(), "tokens_per_second": entry.rate}),
                "reason": entry.reason(self.best),
            }
            for n, entry in enumerate(self.entries, 1)
        ]

    @cached_property
    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of settings in which the first of them differ, and of those that they have in common."""
        return _names(self.entries[:MOST_SHOWN])

    def table(self) -> Table:
        """The first of them."""
        timed = self.machine is not None
        rows = [
            (
                str(rank),
                entry.text(*self._names[0]) or "-",
                *([] if entry.step is None else [show_few(entry.rate or 0.0), show_seconds(entry.step.seconds)]),
                show_bytes(entry.peak),
                *([] if entry.step is None else self._shares(entry.step)),
            )
            for rank, entry in enumerate(self.entries[:MOST_SHOWN], 1)
        ]
        rate = "tokens/s" if self and self.best.tokens else "samples/s"
        header = ("", "layout", *((rate, "step") if timed else ()), "peak", *(("exposed", "bubble") if timed else ()))
        return Table(header, rows, words=frozenset({1}))

    def _shares(self, step: LayoutStep) -> list[str]:
        return [show_share(part, step.seconds) for part in (step.exposed, step.bubble)]

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
            raise not_installed("a picture of layouts needs pandas", "frame") from None
        columns = {
            "place": list(range(len(self))),
            "seconds": [entry.seconds for entry in self.entries],
            "memory.peak": [entry.peak for entry in self.entries],
        }
        frame, quantities = pandas.DataFrame(columns), ["seconds", "memory.peak"]
        front = pareto(frame, *quantities)
        different, common = _names([self.entries[place] for place in front["place"].tolist()])
        texts = [self.entries[place].text(*different) or "plain" for place in front["place"].tolist()]
        alike = self.entries[front["place"].tolist()[0]].text(*common) if len(front) > 1 else ""
        stack = Stack.of(self.best.settings.get("stack", "eager")).name
        theme = DARK if dark else LIGHT
        words = {"cells": "layouts", "seconds": "time of a step", "memory.peak": "memory of the heaviest rank"}
        title = f"{self.question}, stack {stack}"
        return save(picture(frame, front, (), quantities, (), title, theme, words, texts, alike), path)

    def _head(self) -> str:
        unfit = sum(reason.candidates for reason in self.unfit)
        room = f" {show_bytes(self.budget.bytes)} ({self.budget.reading})" if self.budget else ""
        reserve = f" less a reserve of {show_bytes(self.reserve)}" if self.reserve else ""
        whole = f"ways to run it on {_devices(self.devices)}"
        if self.slower:
            return f"the {len(self):,} fastest of {self.candidates:,} {whole} that fit{room}{reserve}"
        fit = f"{show_exact(len(self))} of {show_exact(len(self) + unfit)} {whole}"
        return f"{fit} fit{room}{reserve}" if self.budget else fit

    def sheet(self) -> Sheet:
        """The first of them; what does not fit by reason."""
        ranked = "the heaviest rank's memory alone" if self.machine is None else f"seconds of a step on {self.machine}"
        alike = self.best.text(*self._names[1]) if self else ""
        head = [
            self.question,
            printable(self._head()),
            f"ranked by {ranked}",
            *([f"all of these: {alike}"] if alike else []),
        ]
        others = enumerate(self.entries[1:MOST_SHOWN], 2) if self.machine is not None else ()
        notes = [f"{n}: {entry.reason(self.best)}" for n, entry in others]
        notes = ["what the others take more than 1:", *notes] if notes else []
        if self and (simplest := self.simplest(self.within)) is not self.best:
            notes.append(f"the simplest within {self.within:.0%} of the best: {simplest.text(*SHOWN)}")
        if self and self.search is not None and self.search.steps is not None:
            notes.append(f"cluster: {self.search.steps.links.cluster.joins(self.devices)}")
        if self.inside is not None and self.devices > self.inside:
            notes.append(
                f"tp within nodes of {self.inside:,} devices: give tp, such as tp={2 * self.inside}, for others"
            )
        if self.slower:
            notes.append(f"{self.slower:,} are slower, as bounds on their seconds show, fitting or not")
        for reason in self.unfit:
            helps = f"what helps most: {reason.change}" if reason.change else HELPLESS
            notes.append(f"{reason.candidates:,} do not fit: {reason.text}; {helps}")
        notes += self._refused_notes()
        tables = [*([self.table()] if self else []), *([self._network_table()] if self.networks else [])]
        return Sheet(head, tables, self._warnings(), notes=[printable(note) for note in notes])

    def _refused_notes(self) -> list[str]:
        """How many are not worked out, and how many of them for each of the most frequent reasons."""
        if not (refused := sum(reason.candidates for reason in self.refused)):
            return []
        named, others = self.refused[:MOST_REASONS], self.refused[MOST_REASONS:]
        notes = [f"{refused:,} more are not worked out:", *(f"{each.candidates:,}: {each.text}" for each in named)]
        if others:
            count = sum(reason.candidates for reason in others)
            notes.append(f"{count:,}: {len(others):,} other reasons, which --json and .refused have")
        return notes

    def _warnings(self) -> list[str]:
        """That the machine has no units for the type that products run in, if it has none."""
        if not self or self.machine is None:
            return []
        settings = Settings(**self.best.settings)
        return machine_of(settings.on).without_units([settings.policy.operands])  # type: ignore[arg-type]


def _names(entries: Sequence[RankedLayout]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of settings in which layouts differ, and of those that they have in common."""
    texts = {name: {entry.text(name) for entry in entries} for name in SHOWN}
    different = tuple(name for name in SHOWN if len(texts[name]) > 1) or SHOWN
    return different, tuple(name for name in SHOWN if name not in different and texts[name] != {""})


@takes_settings(
    several=True, batch=..., checkpoint=..., precision=DEFAULTS["precision"], attention=DEFAULTS["attention"]
)
@typed
def layouts(
    model: Architecture | str,
    *,
    memory: str | float | None = None,
    reserve: Reserve = None,
    network: LinkLike = None,
    within: Probability = 0.05,
    every: bool = False,
    progress: Callable[[int, int], None] = lambda done, count: None,
    **settings: Unpack[SeveralSettings],
) -> Layouts:
    """Every layout of a training step over `devices` that fits, with every micro-batch and recomputation, ranked.

    All legal degrees of tensor, sequence, context, pipeline, expert, sharded and data parallel are gone through, in
    every runtime and under every schedule, each with what is recomputed and with every micro-batch that `global_batch`
    allows; Megatron's ranks split experts as those of tp, or over others (etp) where no whole ones are left to be dealt
    out (ep). What is given stays; of a list one is chosen. On a machine (`on`) they are ranked by tokens a second, and
    tp stays within a node unless it is given; without one they are ranked by memory alone. The ten fastest are tried
    with blocks dealt out over a pipeline's ranks by what embedding and head take too, and are there with that
    `pp_split` as well where it is faster; `pp_split=()` leaves it out.

    Args:
        model: as `predict` takes it.
        memory: of a device, such as "80 GB" (default: that of the machine; without one nothing is left out).
        reserve: memory to leave for what is not modelled (default: of a machine what its driver takes at most).
        network: of one adapter between nodes, such as "400 Gb/s" (default: that of the machine's ready cluster).
        within: those are worked out that are at most so much slower than the best, such as 0.05, of which the simplest
            is named; and the ten fastest.
        every: whether all others that fit are worked out too, instead of being counted as slower.
        progress: told how much of the way is done, and of how much.
        **settings: all that `predict` takes; `devices` and `global_batch` are needed.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.layouts("gpt2-small", devices=4, seq=512, global_batch=8, runtime="torch", checkpoint="none")
        >>> bool(found), found.best.settings["devices"]
        (True, 4)

    """
    check_names(name for name in settings if name != "over")
    for name in ("devices", "global_batch"):
        if (value := settings.get(name)) is None:
            raise SettingError(f"layouts needs {name}: give one such as {name}={SETTINGS[name].example!r}")
        SETTINGS[name].reader(name, value)
    if settings.get("accumulate") is not None:
        raise SettingError(
            f"accumulate={shown(settings.get('accumulate'))} follows from global_batch and batch: leave it out"
        )
    architecture = load(model, over=settings.pop("over", None))
    whole = {name: 1 for name in ("tp", "cp") if name not in architecture.SPLIT_BY}
    options = {name: _values(name, value) for name, value in {**_defaults(architecture), **whole, **settings}.items()}
    architecture.check_degrees({name: min(options[name]) for name in ("tp", "cp", "ep") if name in options})
    fixed = {name: value[0] for name, value in options.items() if name not in CHOSEN}
    if (mode := fixed.get("mode", "train")) != "train":
        raise SettingError(
            f"mode={shown(mode)} is no training step, as layouts are of: leave it out, or ask deployments"
        )
    _check_parts(architecture, fixed, options.get("checkpoint", ()))
    on = fixed.get("on")
    if on is None and network is not None:
        raise SettingError(f"network={shown(network)} is of seconds on a machine: give on='h100-sxm', say, too")
    inside = None if on is None or "tp" in options else load_cluster(on, network).size
    if inside is not None:
        options["tp"] = [degree for degree in divisors(fixed["devices"]) if degree <= inside]
    if memory is None and on is None and reserve is not None:
        raise SettingError(
            f"reserve={shown(reserve)} is left of a memory: give memory='80 GiB' or on='h100-sxm', say, too"
        )
    check_meant(memory)
    budget, spared = (None, 0) if memory is None and on is None else room_for(memory, reserve, on=on, groups=1)
    room = None if budget is None else budget.bytes - spared
    search = LayoutSearch(architecture, fixed, options, room, network, None if every else within)
    search.run(progress)
    if not search.meshes:
        raise SettingError(_why_none(architecture, fixed, options))
    if not (search.entries or search.unfit.reasons):
        reason = blamed([reason.text for reason in search.refused.reasons], settings)
        raise SettingError(f"no layout of {architecture.title} over devices={fixed['devices']} is worked out: {reason}")
    return Layouts(
        architecture.title,
        _question(architecture, options),
        fixed["devices"],
        budget,
        spared,
        machine=None if on is None else machine_of(on).name,
        within=within,
        inside=inside,
        **_results(search),
    )


def blamed(reasons: Sequence[str], given: Collection[str]) -> str:
    """The first of the reasons that names a setting that is given; the first of all, where none does."""
    return next((text for text in reasons if any(re.search(rf"\b{name}=", text) for name in given)), reasons[0])


def _why_none(model: Architecture, fixed: Mapping[str, Any], options: Mapping[str, Sequence[Any]]) -> str:
    """Why there is no way to lay devices out as is given: what `predict` refuses, or of how many stages a split is."""
    devices, split = fixed["devices"], fixed.get("pp_split")
    without = Meshes(model, devices, {name: each for name, each in options.items() if name != "pp_split"})
    if split and (drawn := {mesh["pp"] * mesh.get("vpp", 1) for mesh in without}):
        stages = " or ".join(map(str, stages_of_split(split, model)))
        others = [f"{count:,}" for count in sorted(drawn - {1})]
        right = f"cut {listed(others)} stages" if others else "leave it out"
        return f"pp_split={split_text(split)} is of {stages} stages, as no layout over devices={devices} has: {right}"
    try:
        Settings(**{name: values[0] for name, values in options.items()})
    except CostModelError as error:
        return str(error)
    return f"what is given makes up no layout over devices={devices}: leave some degrees out"


def _check_parts(model: Architecture, fixed: Mapping[str, Any], checkpoints: Sequence[Any]) -> None:
    """Raise UnknownNameError for a part to recompute that there is not, as `predict` does."""
    single = {name: value for name, value in fixed.items() if name not in ("devices", "global_batch", "on")}
    for parts in checkpoints:
        if parts not in get_args(CheckpointName):
            try:
                predict(model, **single, checkpoint=parts)
            except UnknownNameError:
                raise
            except CostModelError:  # of one device; layouts say by themselves what they refuse
                pass


def _question(model: Architecture, options: Mapping[str, Sequence[Any]]) -> str:
    """The question in one line, without layouts and what else is chosen."""
    left_out = {"on", "batch", "checkpoint", *LAYOUT_NAMES} | {name for name, each in options.items() if len(each) > 1}
    single = {name: each[0] for name, each in options.items() if name not in left_out}
    on, devices = options.get("on"), options["devices"][0]
    where = _devices(devices) if on is None else f"{devices:,} × {machine_of(on[0]).name}"
    checkpoint = options.get("checkpoint", ())
    words = [f"global_batch {options['global_batch'][0]:,}"]
    words += [f"checkpoint {shown(each)}" for each in checkpoint if len(checkpoint) == 1]
    return f"{question(model, settings_of(single), left_out, where)}, {', '.join(words)}"


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number:,} devices"


def _results(search: LayoutSearch) -> dict[str, Any]:
    """What a search went through, as `Layouts` has it."""
    return {
        "entries": tuple(sorted(search.entries, key=lambda entry: entry.rank)),
        "unfit": search.reasons,
        "refused": search.refused.reasons,
        "slower": search.slower,
        "search": search,
    }


def _defaults(model: Architecture) -> dict[str, Any]:
    """Of `DEFAULTS` what the model takes; of fused attention the kernel that it has, such as for values of a size of
    their own."""
    precision = {"precision": DEFAULTS["precision"]}
    for attention in (DEFAULTS["attention"], "efficient") if model.HAS_ATTENTION else ():
        with suppress(CostModelError):  # of scores that are changed before their softmax no kernel is fused
            predict(model, **precision, attention=attention)
            return {**precision, "attention": attention}
    return precision


def _values(name: str, value: Any) -> Sequence[Any]:
    """What is chosen between. Raises SettingError."""
    if name == "pp_split":  # one value of which is a list
        return [SETTINGS[name].reader(name, value)]
    listed = isinstance(value, list | range)
    if listed and name not in CHOSEN:
        raise SettingError(f"{name}={shown(value)} is a list: give one value")
    if listed and not len(value):
        raise SettingError(f"{name}={shown(value)} is empty: give at least one value")
    values: list[Any] = []
    for each in (read_setting(name, each) for each in (value if listed else [value])):
        if name in CHOSEN:
            SETTINGS[name].reader(name, each)
        if each not in values:
            values.append(each)
    return values
