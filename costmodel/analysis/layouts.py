"""Which layout over devices: all that are worked out and fit, ranked, and why the others do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.analysis.layout_search import CHOSEN, LayoutSearch, RankedLayout, Reason, steps_like
from costmodel.analysis.predict import predict
from costmodel.analysis.recommend import budget_of
from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.base import Architecture, divisors
from costmodel.cost.peaks import RankPeaks
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, printable
from costmodel.display.units import Budget, read_reserve, show_bytes, show_exact, show_few, show_seconds
from costmodel.documents.arguments import typed
from costmodel.errors import CostModelError, SettingError, not_installed, shown
from costmodel.hardware.cluster import LinkLike, load_cluster, machine_of
from costmodel.importers.files import read_setting
from costmodel.importers.zoo import load
from costmodel.performance.layout_steps import LayoutStep, LayoutSteps
from costmodel.training.fields import Probability
from costmodel.training.keywords import SeveralSettings
from costmodel.training.setting import plain
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS, Settings, takes_settings

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

DEFAULTS: dict[str, Any] = {"precision": "bf16-master-fp32-gradients", "attention": "flash"}
SHOWN = ("runtime", *(name for name in LAYOUT_NAMES if name not in ("devices", "global_batch", "runtime")))
"""Settings that tell layouts apart, in words."""
MOST_SHOWN = 10
"""Rows of the table; `Layouts` has all."""


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
                steps = steps_like(model, settings, self.peaks or RankPeaks(model), network)
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
            raise not_installed("a picture of layouts needs pandas", "frame") from None
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
        if (value := settings.get(name)) is None:
            raise SettingError(f"{name} is not given: give {SETTINGS[name].example!r}, say, for {name}")
        SETTINGS[name].reader(name, value)
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
    search = LayoutSearch(architecture, fixed, options, room, network)
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
