"""Which machine: every ready one, and several of it: whether a question fits, how fast it is and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Unpack, get_args

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.base import Architecture
from costmodel.cost.driver import DriverMemory
from costmodel.cost.question import timed_question
from costmodel.cost.remedies import in_words, lighter
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, printable
from costmodel.display.units import read_count, read_reserve, show_bytes, show_few, show_seconds
from costmodel.documents.arguments import Reserve, typed
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.hardware.catalogue import load_machine, machine_name
from costmodel.hardware.catalogue import machines as ready_machines
from costmodel.hardware.cluster import Cluster, load_cluster
from costmodel.hardware.machine import Machine
from costmodel.importers.zoo import load
from costmodel.performance.time import Time
from costmodel.training.keywords import GivenSettings
from costmodel.training.settings import LAYOUT_NAMES, SETTINGS
from costmodel.training.signatures import takes_settings

OfferOrder = Literal["rate", "seconds", "headroom", "joules", "money", "memory", "name"]
"""What machines are sorted by: the best first."""
FitGroup = Literal["room", "tight", "no"]
TIGHT = 0.1
"""Share of a device's memory: with less than this to spare a question fits tightly."""
COUNTS = (1, 2, 4, 8)
MOST_DEVICES = 4096
MOST_SHOWN = 12
"""Rows of each group in the table; `Gpus` has all."""
WAYS = {True: (("fsdp", "dp"), ("tp",)), False: (("tp", "pp"), ("dp",))}
"""Axes over which several devices are laid out unless degrees are given, by whether they train: the best legal split
over the first that have any. Copies that serve are last, since they answer other requests, not the same sooner."""
_OF_LAYOUT = (*LAYOUT_NAMES, "runtime", "offload")
_HEADINGS: dict[FitGroup, str] = {"room": "fits with room", "tight": "fits tightly", "no": "does not fit"}


class Offer(NamedTuple):
    """A number of one machine, and what a question takes there.

    layout: over which degrees the devices are laid out; "" of one. prediction: of the question there. reserve: what is
    left for what is not modelled [bytes]. time: of a step; None where it does not fit. money: of the job; None without
    a price.
    """

    machine: Machine
    devices: int
    layout: str
    prediction: Prediction
    reserve: int
    time: Time | None
    money: float | None

    @property
    def name(self) -> str:
        """The machine, and how many."""
        return f"{self.devices} × {self.machine.name}" if self.devices > 1 else self.machine.name

    @property
    def place(self) -> Machine | Cluster:
        """What the question runs on."""
        return load_cluster(self.machine) if self.devices > 1 else self.machine

    @property
    def peak(self) -> int:
        """The most memory alive at once on the heaviest rank [bytes]."""
        return int(self.prediction.memory.peak)

    @property
    def headroom(self) -> int:
        """Bytes to spare on the fullest device; negative where it does not fit."""
        return self.machine.memory - self.reserve - self.peak

    @property
    def group(self) -> FitGroup:
        """Whether it fits with room, tightly, or not."""
        return "no" if self.headroom < 0 else "tight" if self.headroom < TIGHT * self.machine.memory else "room"

    @property
    def rate(self) -> float | None:
        """Tokens a second of all devices, or samples of a model without tokens."""
        return None if self.time is None else self.time.tokens_per_second or self.time.samples_per_second

    @property
    def joules(self) -> float | None:
        """Of all devices for a token, or a sample of a model without tokens; None where watts are not known."""
        if self.time is None or self.rate is None:
            return None
        try:
            return self.time.energy(pue=1).joules / (self.rate * self.time.seconds)
        except SettingError:  # a machine whose board power is not known
            return None

    def __repr__(self) -> str:
        return repr(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes, s, 1/s, J]."""
        return {
            "machine": self.machine.name,
            "devices": self.devices,
            "layout": self.layout,
            "fits": self.group,
            "memory": self.machine.memory,
            "peak": self.peak,
            "reserve": self.reserve,
            "headroom": self.headroom,
            "seconds": None if self.time is None else self.time.seconds,
            "low": None if self.time is None else self.time.low,
            "high": None if self.time is None else self.time.high,
            "bound": None if self.time is None else self.time.bound,
            "rate": self.rate,
            "joules": self.joules,
            "money": self.money,
        }


_BEST: dict[OfferOrder, Callable[[Offer], Any]] = {
    "rate": lambda offer: -(offer.rate or 0.0),
    "seconds": lambda offer: offer.time.seconds if offer.time is not None else float("inf"),
    "headroom": lambda offer: -offer.headroom,
    "joules": lambda offer: float("inf") if offer.joules is None else offer.joules,
    "money": lambda offer: float("inf") if offer.money is None else offer.money,
    "memory": lambda offer: offer.machine.memory,
    "name": lambda offer: offer.machine.name,
}


@dataclass(frozen=True, repr=False)
class Gpus(Answer):
    """Machines in three groups: on which a question fits with room, tightly, and not; each sorted by what was asked.

    question: without machine and layout. unit: what `rate` and `joules` are of, "tokens" or "samples". job: what money
    is of, in words. by: what they are sorted by. offers: all of them. refused: why some are left out, with how many.

    Example:
        >>> import costmodel as cm
        >>> offers = cm.gpus("llama-3.1-8b", mode="decode", machines=["t4", "l4", "h100-sxm"], counts=1)
        >>> [(offer.name, offer.group) for offer in offers]
        [('h100-sxm', 'room'), ('l4', 'room'), ('t4', 'no')]

    """

    question: str
    unit: str
    job: str
    by: OfferOrder
    offers: tuple[Offer, ...]
    refused: Mapping[str, int]

    def __iter__(self) -> Iterator[Offer]:
        return iter(self.offers)

    def __len__(self) -> int:
        return len(self.offers)

    def __getitem__(self, place: int) -> Offer:
        return self.offers[place]

    def __bool__(self) -> bool:
        return any(offer.group != "no" for offer in self.offers)

    @cached_property
    def groups(self) -> dict[FitGroup, tuple[Offer, ...]]:
        """The offers of each group, the best first."""
        return {group: tuple(o for o in self.offers if o.group == group) for group in get_args(FitGroup)}

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the question, then a row for each machine and number of it."""
        return {"question": self.question, "unit": self.unit, "job": self.job, "by": self.by, "offers": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each machine and number of it."""
        return [offer.to_dict() for offer in self.offers]

    def sheet(self) -> Sheet:
        """The first of each group."""
        room, tight, no = (f"{len(offers):,}" for offers in self.groups.values())
        head = [self.question, f"{room} fit with room, {tight} tightly, {no} do not; by {self.by}"]
        notes = [
            f"{_HEADINGS[group]}: {len(offers) - MOST_SHOWN:,} more (--json, --out FILE.csv)"
            for group, offers in self.groups.items()
            if len(offers) > MOST_SHOWN
        ]
        notes.append(
            f"spare: of a device's memory, less the peak and a reserve for the driver; tightly: below {TIGHT:.0%} of it"
        )
        notes.append(
            f"range: of {self.unit}/s, holds about four of five measured runs; J: of all boards for one of the "
            f"{self.unit}"
        )
        if any(offer.money is not None for offer in self.offers):
            notes.append(f"money: of {self.job}")
        notes += [*self._waiting(), *self._lighter()]
        notes += [f"{count:,} left out: {reason}" for reason, count in self.refused.items()]
        return Sheet(head, [self._table(group) for group, offers in self.groups.items() if offers], notes=notes)

    def _waiting(self) -> Iterator[str]:
        """What else makes those faster that wait for the host, where the table has any."""
        rows = [offer for group in self.groups.values() for offer in group[:MOST_SHOWN] if offer.time is not None]
        waiting = [offer for offer in rows if offer.time is not None and offer.time.bound == "host"]
        if not waiting:
            return
        first, faster = waiting[0], ""
        with suppress(CostModelError):  # of a model that is not compiled there
            seconds = first.prediction.on(first.place, stack="compiled").seconds
            faster = f": with stack compiled {first.name} takes {show_seconds(seconds)}"
        wait = "waits" if len(waiting) == 1 else "wait"
        yield f"{len(waiting)} of the {len(rows)} shown {wait} for the host, which starts kernels one by one{faster}"

    def _lighter(self) -> Iterator[str]:
        """What less plain settings need, where nothing fits."""
        if self or not self.offers:
            return
        nearest = self.groups["no"][0]
        if less := lighter(nearest.prediction):
            spared = [(words, peak + nearest.reserve) for words, peak in less]
            yield f"on {nearest.name}, {show_bytes(nearest.machine.memory)} with the reserve, {in_words(spared)}"

    def _table(self, group: FitGroup) -> Table:
        offers = self.groups[group][:MOST_SHOWN]
        layout = ("layout",) if any(offer.layout for offer in self.offers) else ()
        money = ("money",) if any(offer.money is not None for offer in self.offers) else ()
        if group == "no":
            rows = [
                (o.name, *([o.layout] if layout else []), show_bytes(o.peak), show_bytes(-o.headroom)) for o in offers
            ]
            return Table((_HEADINGS[group], *layout, "needs", "too much"), rows, words=frozenset({0, len(layout)}))
        rows = [
            (
                o.name,
                *([o.layout] if layout else []),
                show_bytes(o.headroom),
                show_few(o.rate or 0.0),
                self._range(o),
                "-" if o.joules is None else show_few(o.joules),
                show_seconds(o.time.seconds) if o.time is not None else "-",
                *((("-" if o.money is None else f"{o.money:,.4g}"),) if money else ()),
            )
            for o in offers
        ]
        header = (_HEADINGS[group], *layout, "spare", f"{self.unit}/s", "range", "J", "time", *money)
        worth = (f"{self.unit}/s", *money, "spare", *layout, "range", "J", "time")
        return Table(header, rows, words=frozenset({0, len(layout)}), worth=worth)

    def _range(self, offer: Offer) -> str:
        if offer.time is None or offer.rate is None:
            return "-"
        done = offer.rate * offer.time.seconds
        return f"{show_few(done / offer.time.high)} to {show_few(done / offer.time.low)}"


@takes_settings(without="on", precision="16 bits", attention="fused")
@typed
def gpus(
    model: Architecture | str,
    *,
    machines: Iterable[str | Machine] | str | None = None,
    counts: int | Sequence[int] | None = None,
    by: OfferOrder | None = None,
    prices: Mapping[str, float] | None = None,
    tokens: float | str | None = None,
    samples: float | str | None = None,
    reserve: Reserve = None,
    progress: Callable[[int, int], None] = lambda done, count: None,
    **settings: Unpack[GivenSettings],  # type: ignore[misc]
) -> Gpus:
    """Every ready machine, and several of each, in three groups: what fits with room, tightly, and not.

    Unless they are given, types have 16 bits (bf16; of training autocast), and attention is fused, as serving has them.
    Several devices are laid out over the best split over fsdp and dp in training, else over tp and pp, on each machine
    by what is sorted by; over tp, or dp, where a model has neither. The row names it. Degrees that are given stay, and
    others make up the number. Only machines whose nodes have so many are laid out so; a number that none of them has is
    left out in a note.

    Args:
        model: as `predict` takes it.
        machines: names of some, or words that all of them have as `cm.machines` takes them, such as "nvidia hopper"
            (default: all but processors).
        counts: how many of a machine, one number or several (default: 1, 2, 4 and 8, with degrees their product, and
            with the setting `devices` that many).
        by: what each group is sorted by (default: money if there are prices of these machines, else rate).
        prices: of a device for an hour, by machine.
        tokens: of the job that money is of (default: one million), of a model that has tokens.
        samples: the same in samples.
        reserve: memory to leave for what is not modelled (default: what the machine's driver takes at most).
        progress: told how many machines are done, and of how many.
        **settings: how it is run, as `predict` takes it.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> offers = cm.gpus("gpt2-small", machines=["l4", "h100-sxm"], counts=1, prices={"l4": 0.7, "h100-sxm": 3})
        >>> [offer.name for offer in offers]
        ['h100-sxm', 'l4']

    """
    if tokens is not None and samples is not None:
        raise SettingError("tokens and samples each say how long a job is: give one of them")
    asked: dict[str, Any] = dict(settings)
    if asked.get("on") is not None:
        raise SettingError(f"on={shown(asked['on'])} is what is to be found: name some with machines, or leave it out")
    architecture = load(model, over=asked.pop("over", None))
    chosen = _machines(machines)
    paid = _prices(prices or {})
    priced = any(machine.name in paid or machine.price is not None for machine in chosen)
    if by == "money" and not priced:
        raise SettingError("by='money': no price of these machines is known: give prices, such as {'h100-sxm': 2.5}")
    first = _plainest(architecture, asked)
    questions = _questions(first, asked, counts)
    unit = "samples" if first.batch_shape.seq is None else "tokens"
    if tokens is not None and unit == "samples":
        raise SettingError(f"tokens={shown(tokens)}: {architecture.title} has none: give samples")
    counted = tokens if tokens is not None else samples if samples is not None else 1e6
    size = read_count(counted) if isinstance(counted, str) else counted
    if size is None or not 0 < size < 1e30:
        raise SettingError(
            f"{'samples' if tokens is None else 'tokens'}={shown(counted)} is no length of a job: use 1e9"
        )
    what = unit if samples is None else "samples"
    refused: dict[str, int] = {}
    order: OfferOrder = by or ("money" if priced else "rate")

    def rank(offer: Offer) -> Any:
        return get_args(FitGroup).index(offer.group), _BEST[order](offer) if offer.group != "no" else -offer.headroom

    offers: list[Offer] = []
    times: dict[int, Time] = {}
    for done, machine in enumerate(chosen, 1):
        for count, ways in questions.items():
            if count > 1 and load_cluster(machine).size < count:
                continue
            answers = [_offer(machine, count, words, p, reserve, times) for words, p in ways.items()]
            if found := [_priced(each, paid, {what: float(size)}) for each in answers if isinstance(each, Offer)]:
                offers.append(min(found, key=rank))
            elif isinstance(reason := answers[0], str):
                refused[reason] = refused.get(reason, 0) + 1
        progress(done, len(chosen))
    for count in questions:
        if count > 1 and all(load_cluster(machine).size < count for machine in chosen):
            refused[f"nodes of these machines have fewer than {count:,} devices"] = len(chosen)
    offers.sort(key=rank)
    title = timed_question(first.model, first.settings)
    return Gpus(title, unit, f"{show_few(float(size))} {what}", order, tuple(offers), refused)


def _prices(prices: Mapping[str, float]) -> dict[str, float]:
    """Prices of a device for an hour, by the machines' own names. Raises SettingError."""
    paid: dict[str, float] = {}
    for name, price in prices.items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 < price < 1e9:
            raise SettingError(f"prices: {shown(price)} of {name} is not money for an hour, such as 2.5")
        if paid.setdefault(machine_name(name), price) != price:
            raise SettingError(f"prices: {name} has two, {paid[machine_name(name)]} and {price}: keep one")
    return paid


def _machines(machines: Any) -> list[Machine]:
    """Those asked for; of none all but processors of hosts."""
    if machines is None:
        return [machine for machine in ready_machines() if machine.category != "cpu"]
    if isinstance(machines, str):
        try:
            return [load_machine(machines)]
        except CostModelError:
            return list(ready_machines(machines))
    chosen: list[Machine] = []
    for machine in map(load_machine, machines):
        if machine not in chosen:
            chosen.append(machine)
    if not chosen:
        raise SettingError("machines is empty: name some, such as ['l4', 'h100-sxm'], or leave it out")
    return chosen


def _plainest(model: Architecture, settings: Mapping[str, Any]) -> Prediction:
    """The question on one device, in 16 bits and with fused attention unless these are given."""
    alone: dict[str, Any] = {name: value for name, value in settings.items() if name not in _OF_LAYOUT}
    training = alone.get("mode", "train") == "train"
    alone = {"precision": "bf16-autocast" if training else "bf16", **alone}
    kernels = ("flash", "efficient", "eager") if model.HAS_ATTENTION and "attention" not in alone else (None,)
    error: CostModelError | None = None
    for kernel in kernels:
        try:
            return predict(model, **alone, **({} if kernel is None else {"attention": kernel}))
        except CostModelError as refusal:
            error = error or refusal
    assert error is not None
    raise error


def _questions(first: Prediction, settings: Mapping[str, Any], counts: Any) -> dict[int, dict[str, Prediction]]:
    """The question over each number of devices, by the layouts in words that it can have."""
    fixed: dict[str, Any] = {name: settings[name] for name in _OF_LAYOUT if settings.get(name) is not None}
    own: dict[str, Any] = {
        name: getattr(first.settings, name)
        for name in SETTINGS
        if getattr(first.settings, name) != SETTINGS[name].default
    }
    if "devices" in fixed and counts is not None:
        raise SettingError(
            f"devices={shown(fixed['devices'])} and counts={shown(counts)} say the same: give one of them"
        )
    if set(fixed) == {"devices"}:
        counts = fixed.pop("devices")
    if counts is None and fixed:
        p = predict(first.model, **{**own, **fixed})
        return {p.settings.layout.devices: {_words(fixed): p}}
    each = COUNTS if counts is None else [counts] if isinstance(counts, int) else counts
    if not each or max(each) > MOST_DEVICES:
        raise SettingError(f"counts={shown(counts)} is no number of devices: use such as (1, 2, 4, 8)")
    alone = predict(first.model, **{**own, **fixed}) if fixed else first
    least = alone.settings.layout.devices
    questions: dict[int, dict[str, Prediction]] = {}
    reason: CostModelError | None = None
    for count in sorted(set(each)):
        if count == least:
            questions[count] = {_words(fixed): alone}
        for axes in WAYS[first.settings.training] if count > least and count % least == 0 else ():
            ways: dict[str, Prediction] = {}
            for split in _splits(count // least, axes) if count not in questions else ():
                degrees = {**fixed, **{axis: degree * fixed.get(axis, 1) for axis, degree in split.items()}}
                try:
                    p = predict(first.model, **{**own, **degrees})
                except CostModelError as refusal:
                    reason = reason or refusal
                    continue
                if p.settings.layout.devices == count:
                    ways[_words(degrees)] = p
            if ways:
                questions.setdefault(count, ways)
    if not questions:
        why = f": {reason}" if reason is not None else f", with {_words(fixed)} a multiple of {least:,}"
        raise SettingError(f"{first.model.title} is laid out over none of counts={shown(counts)}{why}")
    return questions


def _splits(count: int, axes: Sequence[str]) -> Iterator[dict[str, int]]:
    """Each way to make up a number of devices by degrees of one or two axes, those of one first."""
    first, *others = axes
    yield {first: count}
    for other in others:
        yield from ({first: n, other: count // n} for n in range(count // 2, 1, -1) if count % n == 0)
        yield {other: count}


def _words(degrees: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {value}" for name, value in degrees.items())


def _offer(
    machine: Machine, count: int, layout: str, p: Prediction, reserve: Any, times: dict[int, Time]
) -> Offer | str:
    """What a machine, or so many of it, makes of a question; why it makes nothing. times: of it on other machines."""
    driver = DriverMemory.of(p.driver.groups if count > 1 else 0).high if machine.category == "gpu" else 0
    offer = Offer(machine, count, layout, p, driver if reserve is None else read_reserve(reserve), None, None)
    if offer.group == "no":
        return offer
    try:
        other = times.get(id(p))
        time = p.on(offer.place, stack=p.settings.stack) if other is None else other.elsewhere(offer.place)
        _ = time.seconds
    except CostModelError as error:
        return printable(str(error))
    times[id(p)] = time
    return offer._replace(time=time)


def _priced(offer: Offer, prices: Mapping[str, float], job: dict[str, float]) -> Offer:
    """With the money of a job, where the machine has a price."""
    price = prices.get(offer.machine.name, offer.machine.price)
    if offer.time is None or price is None:
        return offer
    run: dict[str, Any] = job
    return offer._replace(money=float(offer.time.run(**run).money(price=price).amount))
