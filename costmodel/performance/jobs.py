"""Jobs of many steps: how long so many samples take, whether loading them is the limit, energy, carbon and money."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from math import exp, expm1, inf, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from costmodel.architectures.base import BatchShape
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import NUMBER, read_amount, read_count, read_text, show_amount, show_bytes, show_few
from costmodel.documents.arguments import MOST_WHOLE, Positive, fits, typed
from costmodel.errors import SettingError, shown
from costmodel.performance.accounting import StepTime, charge, joules

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine

PowerRating = Literal["tdp", "typical"]
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, repr=False)
class Job(Answer):
    """So many steps on so many devices, each of which takes samples of its own in a step.

    title: of the model. question: what runs where, of one step. step: on one device, or on all of a layout's. seconds,
    low, high: of the job. epochs: equal parts that it is made of. needed_bytes: at the peak of memory of a device.
    loader: samples a second that are loaded for all devices; None: loading keeps up.
    """

    title: str
    question: str
    step: StepTime
    steps: float
    devices: int
    seconds: float
    low: float
    high: float
    epochs: float = 1
    loader: float | None = None
    needed_bytes: int = 0

    @property
    def machine(self) -> Machine:
        """Of which there are `devices`."""
        return self.step.model.machine

    @property
    def samples_per_second(self) -> float:
        """That all devices take."""
        return float(self.copies * self.step.samples_per_second)

    @property
    def copies(self) -> int:
        """Of the step, which run side by side."""
        return self.devices // self.step.devices

    @property
    def unfit(self) -> list[str]:
        """What stands before a job and its price whose step does not fit the memory of its machine."""
        needs, has = self.needed_bytes, self.machine.memory
        if needs <= has:
            return []
        return [f"cannot be: needs {show_bytes(needs)}, {self.machine.name} has {show_bytes(has)}"]

    @property
    def epoch_seconds(self) -> float:
        """Of one epoch."""
        return self.seconds / self.epochs

    @property
    def input_bound(self) -> bool:
        """Whether samples are loaded more slowly than the devices could take them."""
        return self.loader is not None and self.loader < self.samples_per_second

    @typed
    def energy(self, *, power: PowerRating | float | str = "typical", pue: float) -> Energy:
        """Energy of the job; see `Time.energy`."""
        working = float(self.steps * self.step.seconds / self.seconds) if self.seconds else 1.0
        watts, convention = watts_of(self.step, power, min(1.0, working))
        _check_pue(pue)
        return Energy(self, watts, convention, float(pue))

    @typed
    def carbon(self, *, intensity: float | str, power: PowerRating | float | str = "typical", pue: float) -> Carbon:
        """Carbon of the job [g]; intensity: grams of CO2 equivalents a kWh, or text such as "400 g/kWh"."""
        return self.energy(power=power, pue=pue).carbon(intensity)

    @typed
    def money(self, *, price: float | None = None) -> Money:
        """Money of the job; price: of a device for an hour, the machine's own if it has one."""
        price = self.machine.price if price is None else price
        if price is None:
            raise SettingError(
                f"{self.machine.name} has no price: give that of a device for an hour, such as price=2.5"
            )
        return Money(self, _positive("price", price, "2.5"))

    @typed
    def goodput(
        self, *, mtbf: float | str, checkpoint: float | str, restart: float | str, interval: float | str | None = None
    ) -> Goodput:
        """What of the job's time is kept where devices fail, and how long it then takes; see `Goodput`.

        mtbf: mean time between failures of one device; checkpoint: that writing one holds the job up; restart: from a
        failure until the job runs again; interval: between checkpoints, the best one unless given; each in seconds, or
        text such as "50000 h". Raises SettingError.
        """
        between = None if interval is None else read_duration("interval", interval, "2 h")
        writing, again = read_duration("checkpoint", checkpoint, "60 s"), read_duration("restart", restart, "10 min")
        return Goodput(self, read_duration("mtbf", mtbf, "50000 h"), writing, again, between)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s]."""
        return {
            "model": self.title,
            "question": self.question,
            "machine": self.machine.name,
            "steps": self.steps,
            "devices": self.devices,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "epochs": self.epochs,
            "epoch_seconds": self.epoch_seconds,
            "loader": self.loader,
            "input_bound": self.input_bound,
        }

    def sheet(self) -> Sheet:
        """The question, and how long it takes; between them that the job cannot be, if its step does not fit."""
        samples = self.step.samples * self.copies
        tokens = "" if self.step.tokens is None else f", {self.step.tokens * self.copies:,} tokens"
        head = [
            self.question,
            *self.unfit,
            f"{show_long(self.seconds)} ({show_long(self.low)} to {show_long(self.high)}) on {self.devices:,} × "
            f"{self.machine.name}",
            f"{show_few(self.steps)} step{'s' * (self.steps != 1)} of {samples:,} sample{'s' * (samples > 1)}{tokens}",
        ]
        if self.epochs != 1:
            head.append(f"{self.epochs:g} epochs of {show_long(self.epoch_seconds)}")
        if self.loader is not None:
            limit = "loading data is the limit" if self.input_bound else "loading keeps up"
            head.append(f"{limit}: {self.loader:,.0f} samples/s loaded, {self.samples_per_second:,.0f} wanted")
        notes = ["devices are taken to work side by side without waiting for each other"] if self.copies > 1 else []
        return Sheet(head, [], notes=notes)


@dataclass(frozen=True)
class DeviceHours(Answer):
    """Devices that run for so long, whatever they do [s]."""

    seconds: float
    devices: int
    epochs: ClassVar[float] = 1

    @property
    def question(self) -> str:
        """How long, and how many."""
        return f"{self.devices:,} device{'s' * (self.devices > 1)} for {show_long(self.seconds)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data [s]."""
        return {"seconds": self.seconds, "devices": self.devices}

    def sheet(self) -> Sheet:
        """One line."""
        return Sheet([self.question], [])


class Bill(Answer):
    """Abstract: an amount that a job takes. Its first field is what it is worked out from, the others are assumed."""

    AMOUNTS: ClassVar[tuple[str, ...]]
    """Properties: what comes out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with what was assumed."""
        basis, *assumed = (field.name for field in fields(self))  # type: ignore[arg-type]  (all kinds are dataclasses)
        own = {name: getattr(self, name) for name in (*assumed, *self.AMOUNTS)}
        endless = {name: None for name, value in own.items() if value == inf}  # which JSON has no number for
        return {**getattr(self, basis).to_dict(), **own, **endless}


@dataclass(frozen=True, repr=False)
class Energy(Bill):
    """Energy of a job, or of hours. watts: of a device; convention: what these are; pue: what a data centre draws
    beside, as a factor."""

    job: Job | DeviceHours
    watts: float
    convention: str
    pue: float

    AMOUNTS = ("joules", "kwh")

    @typed
    def carbon(self, intensity: float | str) -> Carbon:
        """Carbon of it [g]; intensity: grams of CO2 equivalents a kWh, or text such as "400 g/kWh"."""
        return Carbon(self, _intensity(intensity))

    @property
    def joules(self) -> float:
        """Of all devices, with what the data centre adds."""
        return joules(self.watts, self.job.seconds, self.job.devices, self.pue)

    @property
    def kwh(self) -> float:
        """The same in kilowatt-hours."""
        return self.joules / JOULES_PER_KWH

    def sheet(self) -> Sheet:
        """The energy, and what it is made of."""
        job = self.job
        rows = [
            ("time", show_long(job.seconds)),
            ("devices", f"{job.devices:,}"),
            ("power of one", f"{self.watts:,.4g} W ({self.convention})"),
            ("PUE", f"{self.pue:g}"),
        ]
        if job.epochs != 1:
            rows.append(("energy of an epoch", show_energy(self.joules / job.epochs)))
        head = f"{show_energy(self.joules)}: power × time × PUE"
        return Sheet([job.question, head], [Table(("of", "is"), rows, frozenset({0, 1}))])


@dataclass(frozen=True, repr=False)
class Carbon(Bill):
    """Carbon of an amount of energy. intensity: grams of CO2 equivalents a kWh where it is drawn."""

    energy: Energy
    intensity: float

    AMOUNTS = ("grams",)

    @property
    def grams(self) -> float:
        """CO2 equivalents [g]."""
        return self.energy.kwh * self.intensity

    def sheet(self) -> Sheet:
        """The carbon, and what it is made of."""
        (asked, line), tables, *_ = self.energy.sheet()
        epochs = self.energy.job.epochs
        each = "" if epochs == 1 else f", {_weight(self.grams / epochs)} an epoch"
        verdict = f"{_weight(self.grams)} CO2e at {self.intensity:g} g/kWh (location-based){each}"
        return Sheet([asked, verdict, line], tables)


@dataclass(frozen=True, repr=False)
class Money(Bill):
    """Money of a job. price: of a device for an hour, in whatever currency it was given."""

    job: Job
    price: float

    AMOUNTS = ("amount",)

    @property
    def amount(self) -> float:
        """Hours of all devices times the price."""
        return charge(self.price, self.job.seconds, self.job.devices)

    def sheet(self) -> Sheet:
        """The money, and what it is made of."""
        hours, epochs = charge(1, self.job.seconds, self.job.devices), self.job.epochs
        each = "" if epochs == 1 else f"; {_price(self.amount / epochs)} an epoch"
        verdict = f"costs {_price(self.amount)}: {_count(hours)} device hours at {self.price:g} an hour{each}"
        return Sheet([self.job.question, *self.job.unfit, verdict], [])


@dataclass(frozen=True, repr=False)
class Goodput(Bill):
    """What is kept of a job's time where devices fail at random, and all restart from the last checkpoint.

    mtbf: mean time between failures of one device. checkpoint: that writing one holds the job up. restart: from a
    failure until the job runs again [s]. interval: of work between checkpoints [s]; None: the best one.

    Source: Daly 2006, A higher order estimate of the optimum checkpoint interval for restart dumps, eq. 20 and 37.
    """

    job: Job
    mtbf: float
    checkpoint: float
    restart: float
    interval: float | None = None

    AMOUNTS = ("interval_seconds", "failures", "share", "total_seconds")

    @property
    def between_failures(self) -> float:
        """Mean time between failures of any device [s]."""
        return self.mtbf / self.job.devices

    @property
    def interval_seconds(self) -> float:
        """Of work between checkpoints: as given, or the one that loses least time."""
        if self.interval is not None:
            return self.interval
        between, write = self.between_failures, self.checkpoint
        if write >= 2 * between:
            return between
        share = write / (2 * between)
        return sqrt(2 * write * between) * (1 + sqrt(share) / 3 + share / 9) - write

    @property
    def share(self) -> float:
        """Of the time that goes into steps that are kept; 0 where hardly any interval ends before a failure."""
        between, interval = self.between_failures, self.interval_seconds
        try:
            return interval / (between * exp(self.restart / between) * expm1((interval + self.checkpoint) / between))
        except OverflowError:
            return 0.0

    @property
    def total_seconds(self) -> float:
        """Of the job, with checkpoints, restarts and what is run again."""
        return self.job.seconds / self.share if self.share else inf

    @property
    def whole(self) -> Job:
        """The job with all of that, which energy and money are of; as it is where failures never let it end."""
        share = self.share or 1.0
        return replace(self.job, **{name: getattr(self.job, name) / share for name in ("seconds", "low", "high")})

    @property
    def failures(self) -> float:
        """That are expected in that time."""
        return self.total_seconds / self.between_failures

    def sheet(self) -> Sheet:
        """The share, and what it is made of."""
        rows = [
            ("without failures", show_long(self.job.seconds)),
            ("failures", show_few(self.failures) if self.share else "without end"),
            ("one in", show_long(self.between_failures)),
            ("checkpoint every", show_long(self.interval_seconds)),
            ("writing one", show_long(self.checkpoint)),
            ("restart", show_long(self.restart)),
        ]
        took = f"{show_long(self.total_seconds)} with checkpoints, failures and restarts"
        took = took if self.share else "never done, as failures leave no interval between checkpoints whole"
        head = f"goodput {self.share:.1%}: {took}"
        return Sheet([self.job.question, head], [Table(("of", "is"), rows, frozenset({0, 1}))])


def read_duration(what: str, value: float | str, example: str) -> float:
    """A time in seconds, from a number, or text with a unit such as "50000 h". Raises SettingError."""
    parts = re.fullmatch(rf"\s*({NUMBER})\s*([a-z]+)\s*", value) if isinstance(value, str) else None
    scale = None if parts is None else LONG.get(parts[2].removesuffix("s"))
    if parts is None or scale is None:
        return read_amount(value, what, "s", example=example)
    if seconds := scale * float(parts[1].replace(",", "")):
        return seconds
    raise SettingError(f"{what}={shown(value)} is not a time above 0: use one such as {example!r}")


LONG = {"min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0, "year": 365.25 * 86400}
"""Units of durations that are no prefix of a second, without the "s" of several."""


def job_of(
    title: str,
    question: str,
    step: StepTime,
    interval: tuple[float, float],
    *,
    steps: float | str | None = None,
    samples: float | str | None = None,
    tokens: float | str | None = None,
    epochs: float = 1,
    devices: int = 1,
    loader: float | str | None = None,
    needed_bytes: int = 0,
    shape: BatchShape,
) -> Job:
    """A job of so many steps, or of what so many samples or tokens take.

    interval: of the seconds of one step. shape: of a batch; others: see `Time.run`. Raises
    SettingError.
    """
    lengths = {name: n for name, n in (("steps", steps), ("samples", samples), ("tokens", tokens)) if n is not None}
    if len(lengths) > 1:
        raise SettingError(f"{' and '.join(lengths)} each say how long a run is: give one of them")
    if not lengths and epochs != 1:
        raise SettingError(
            f"epochs={shown(epochs)} of nothing: give the samples, tokens or steps of one, such as 1.28e6"
        )
    ((what, length),) = lengths.items() if lengths else (("steps", 1),)
    length = _positive(what, length, "1.28e6") * _positive("epochs", epochs, "90")
    _check_devices(devices)
    if what == "tokens" and step.tokens is None:
        raise SettingError(f"{title} has no tokens: give samples")
    copies = devices // step.devices
    each = {"steps": 1, "samples": step.samples * copies, "tokens": (step.tokens or 1) * copies}[what]
    count = length / each
    rate = None if loader is None else read_rate(loader, "loader", title, shape)
    loading = 0.0 if rate is None else count * step.samples * copies / rate
    seconds, low, high = (max(count * one, loading) for one in (float(step.seconds), *interval))
    return Job(title, question, step, count, devices, seconds, low, high, float(epochs), rate, needed_bytes)


@overload
def energy(*, hours: float, watts: float | str, pue: float, devices: int = 1, intensity: None = None) -> Energy: ...
@overload
def energy(*, hours: float, watts: float | str, pue: float, devices: int = 1, intensity: float | str) -> Carbon: ...
@typed
def energy(
    *, hours: Positive, watts: float | str, pue: float, devices: int = 1, intensity: float | str | None = None
) -> Energy | Carbon:
    """Energy of devices that run for so many hours, without a question of what they run.

    Args:
        hours: that all of them run.
        watts: of one device, or text such as "330 W".
        pue: what the data centre draws over what its devices do.
        devices: that run side by side.
        intensity: grams of CO2 equivalents a kWh, or text such as "400 g/kWh": the answer is then the carbon.

    Raises:
        SettingError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> round(cm.energy(hours=14.8 * 24, watts=330, devices=10_000, pue=1.1).kwh / 1e3)  # GPT-3, MWh
        1289

    """
    _check_devices(devices)
    power = read_amount(watts, "watts", "W")
    _check_pue(pue)
    run = Energy(DeviceHours(3600 * _positive("hours", hours, "355"), devices), power, "as given", float(pue))
    return run if intensity is None else run.carbon(intensity)


def watts_of(step: StepTime, power: PowerRating | float | str, working: float) -> tuple[float, str]:
    """Power of a device [W] by a convention, or as given, and what that is. Raises SettingError.

    working: share of a job's time that steps take; for the rest devices wait for data.
    """
    machine = step.model.machine
    if power == "tdp":
        return _tdp(machine), "the board's limit, an upper convention"
    if power == "typical":
        tdp, waiting = _tdp(machine), float(step.model.waiting_watts)
        watts = waiting + working * (float(step.watts or 0.0) - waiting)
        return watts, f"{watts / tdp:.0%} of the board's limit: {waiting:.3g} W without work, arithmetic and bytes"
    if isinstance(power, str) and power.isalpha():
        raise SettingError(f"power={shown(power)} is no convention: use 'tdp', 'typical', or watts such as '330 W'")
    return read_amount(power, "power", "W"), "as given"


def _tdp(machine: Machine) -> float:
    if machine.most_watts is None:
        raise SettingError(f"{machine.name} has no board power: give power in watts, such as power='330 W'")
    return machine.most_watts


def _check_devices(devices: int) -> None:
    if not fits(devices, int, 1, MOST_WHOLE):
        raise SettingError(f"devices={shown(devices)} is not a whole number of at least 1: use one such as 8")


def _check_pue(pue: float) -> None:
    if not 1 <= pue < 10:
        raise SettingError(f"pue={shown(pue)} is not a ratio from 1 to below 10: use one such as 1.1")


def _count(number: float) -> str:
    """In full where that has many digits."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def _positive(what: str, value: Any, example: str) -> float:
    """A number above 0, or text such as "300B". Raises SettingError."""
    number = read_count(value) if isinstance(value, str) else None
    value = value if number is None else float(number)
    if not fits(value, Positive):
        raise SettingError(f"{what}={shown(value)} is not a number above 0: use one such as {example}")
    return float(value)


def read_rate(rate: float | str, what: str, title: str, shape: BatchShape) -> float:
    """Samples a second, from a number or text such as "2000 images/s", in what a sample of the model is or has.

    what: the rate, and title: the model, for errors. Raises SettingError.
    """
    if not isinstance(rate, str):
        return _positive(what, rate, "2000")
    amount, spelt = read_text(rate, what, "samples/s", f"2000 {shape.unit}/s")
    counted = f"{spelt.partition('/')[0].removesuffix('s')}s"
    if counted not in {"samples", shape.unit} and (shape.seq is None or counted == "images"):
        raise SettingError(f"{what}={shown(rate)}: a sample of {title} has no {counted}: use '2000 {shape.unit}/s'")
    samples = _positive(what, float(amount), "2000")
    return samples / shape.seq if counted == "tokens" and shape.seq else samples


def _intensity(intensity: float | str) -> float:
    return _positive("intensity", read_amount(intensity, "intensity", "g/kWh"), "400")


def _weight(grams: float) -> str:
    return f"{grams / 1e6:,.4g} t" if grams >= 1e6 else f"{grams / 1e3:,.4g} kg" if grams >= 1 else f"{grams:.4g} g"


def _price(amount: float) -> str:
    """In whatever currency: ``3.217 million``, ``12,345``, ``0.0123``."""
    return f"{amount / 1e6:,.4g} million" if amount >= 1e7 else f"{amount:,.0f}" if amount >= 1e3 else f"{amount:.4g}"


def show_long(seconds: float) -> str:
    """``14.8 days``, ``3.2 h``; three significant digits; below two minutes as `show_seconds`."""
    for unit, size in (("years", 365.25 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return show_amount(seconds, "s")


def show_energy(joules: float) -> str:
    """``1,289 MWh`` or ``12.3 kJ``; four significant digits."""
    if joules >= 1e3 * JOULES_PER_KWH:
        return f"{joules / JOULES_PER_KWH / 1e3:,.4g} MWh"
    return f"{joules / JOULES_PER_KWH:,.4g} kWh" if joules >= JOULES_PER_KWH else show_amount(joules, "J")
