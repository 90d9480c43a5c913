"""A machine: peaks by data type, memory and its levels, clocks, power and links, every figure with its source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, printable
from costmodel.display.units import read_amount, read_budget, show_amount, show_bytes
from costmodel.documents.arguments import typed
from costmodel.documents.description import ABSENT, ALL, Description, Listed, Reads
from costmodel.documents.files import read_fields
from costmodel.errors import SettingError, shown, unknown

Item = TypeVar("Item")
Category = Literal["gpu", "tpu", "accelerator", "apple", "cpu"]


class _Bound(NamedTuple):
    """What no machine is beyond, and which of two units is likely meant then, from `turn` on the second."""

    bound: float
    turn: float
    units: tuple[str, str]
    powers: tuple[str, str]


_BOUNDS = {
    "FLOP/s": _Bound(1e5, 5000, ("TFLOP/s", "GFLOP/s"), ("e12", "e9")),
    "B/s": _Bound(1e5, 20, ("TB/s", "GB/s"), ("e12", "e9")),
    "Hz": _Bound(1e4, 20, ("GHz", "MHz"), ("e9", "e6")),
    "s": _Bound(1.0, 1000, ("µs", "ns"), ("e-6", "e-9")),
    "bytes": _Bound(1024, 1024, ("GiB", "GiB"), (" * 2**30", " * 2**30")),
    "bytes of a cache": _Bound(1024, 1024, ("MiB", "MiB"), (" * 2**20", " * 2**20")),
}
"""Microcontrollers without floating-point units do 100 kFLOP/s, read 1 MB/s and have some KiB; no call takes a second.

What is beyond is a number whose unit was forgotten.
"""

_WRITTEN = 1e-3, 1e6
"""Numbers that people write before a unit; of these, what was likely meant is itself no more beyond what there is."""


def _plausible(number: float, value: Any, what: str, unit: str) -> None:
    """Raise SettingError if an amount is beyond what any machine has."""
    if unit not in _BOUNDS:
        return
    bound, turn, units, powers = _BOUNDS[unit]
    beyond = number >= bound if unit == "s" else number < bound
    if not beyond:
        return
    of, second = unit.partition(" ")[0], number >= turn
    fault, remedy = "less than any machine has", f"give at least {bound:g} {of}"
    if unit == "s":
        fault, remedy = "more than any machine takes", f"give less than {bound:g} {of}"
    if _WRITTEN[0] <= number <= _WRITTEN[1]:
        remedy = f"use '{number:g} {units[second]}' or {number:g}{powers[second]}"
    raise SettingError(f"{what}={shown(value)} is {number:g} {of}, {fault}: {remedy}")


def _amount(value: Any, what: str, unit: str, *, zero: bool = False, example: str = "", bits: bool = False) -> float:
    number = read_amount(value, what, unit, zero=zero, example=example, bits=bits)
    if number == inf and unit in ("Hz", "W"):  # rates and bandwidths without end are how a limit is left out
        raise SettingError(f"{what}={shown(value)} is no clock or power that a machine has: leave it out")
    _plausible(number, value, what, unit)
    return number


def _reads(unit: str, *, zero: bool = False, none: bool = True) -> BeforeValidator:
    """A validator that reads an amount of a unit; none: whether the field may be None."""

    def read(value: Any, info: ValidationInfo) -> float | None:
        return None if none and value is None else _amount(value, str(info.field_name), unit, zero=zero)

    return BeforeValidator(read)


def _reads_bytes(unit: str) -> BeforeValidator:
    def read(value: Any, info: ValidationInfo) -> int:
        size = read_budget(value, str(info.field_name)).bytes
        _plausible(size, value, str(info.field_name), unit)
        return size

    return BeforeValidator(read)


Magnitude = float | int | str
"""A plain number of the SI unit, or text with a unit."""


def read_link_speed(value: Any, what: str) -> float:
    """Bandwidth of a link [B/s]; "400 Gb/s" and "400 Gbps" are bits, as networks are sold by. Raises SettingError."""
    number = _amount(value, what, "B/s", example=(right := "400 Gb/s"), bits=True)
    if number == inf:
        raise SettingError(f"{what}={shown(value)} is no bandwidth that a link has: use one such as '{right}'")
    return number


def show_link_speed(bandwidth: float) -> str:
    """Bandwidth of a link [B/s] in bits, as networks are sold by."""
    return f"{8e-9 * bandwidth:g} Gb/s"


Bandwidth = Annotated[Reads[float, Magnitude], _reads("B/s", none=False)]
Bytes = Annotated[Reads[int, int | str], _reads_bytes("bytes")]
CacheBytes = Annotated[Reads[int, int | str], _reads_bytes("bytes of a cache")]
MaybeRate = Annotated[Reads[float | None, Magnitude | None], _reads("FLOP/s")]
MaybeBandwidth = Annotated[Reads[float | None, Magnitude | None], _reads("B/s")]
MaybeFrequency = Annotated[Reads[float | None, Magnitude | None], _reads("Hz")]
MaybePower = Annotated[Reads[float | None, Magnitude | None], _reads("W", zero=True)]
MaybeTime = Annotated[Reads[float | None, Magnitude | None], _reads("s", zero=True)]
Text = Annotated[str, Field(max_length=1000)]
Items = Annotated[Listed[Item], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]


class Peaks(Description):
    """Arithmetic at most [FLOP/s], a multiply-add being two; dense, never "with sparsity". None: no such units.

    Products accumulate in fp32 (integers in int32) unless the name says otherwise: consumer cards halve the rate of
    fp16 and fp8 then, and a framework accumulates so.
    """

    fp64: MaybeRate = Field(default=ABSENT, description="vector units, double precision")
    fp32: MaybeRate = Field(default=ABSENT, description="vector units, single precision")
    fp16_vector: MaybeRate = Field(default=ABSENT, description="vector units, half precision")
    bf16_vector: MaybeRate = Field(default=ABSENT, description="vector units, bfloat16")
    fp64_tensor: MaybeRate = Field(default=ABSENT, description="matrix units, double precision")
    fp32_tensor: MaybeRate = Field(default=ABSENT, description="matrix units, full single precision")
    tf32: MaybeRate = Field(default=ABSENT, description="matrix units, fp32 rounded to 10 bits of mantissa")
    bf16: MaybeRate = Field(default=ABSENT, description="matrix units, bfloat16")
    fp16: MaybeRate = Field(default=ABSENT, description="matrix units, half precision accumulated in fp32")
    fp16_acc16: MaybeRate = Field(default=ABSENT, description="matrix units, half precision accumulated in fp16")
    fp8: MaybeRate = Field(default=ABSENT, description="matrix units, 8-bit floats accumulated in fp32")
    fp8_acc16: MaybeRate = Field(default=ABSENT, description="matrix units, 8-bit floats accumulated in fp16")
    fp6: MaybeRate = Field(default=ABSENT, description="matrix units, 6-bit floats")
    fp4: MaybeRate = Field(default=ABSENT, description="matrix units, 4-bit floats")
    int8: MaybeRate = Field(default=ABSENT, description="matrix units, 8-bit integers")
    int4: MaybeRate = Field(default=ABSENT, description="matrix units, 4-bit integers")

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        yield from self.rates.items()

    @cached_property
    def rates(self) -> dict[str, float]:
        """The types that there are units for, with their peaks [FLOP/s]."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if value is not None}


def _peaks(value: Any) -> Peaks:
    """Peaks from a mapping; here, where errors can say which."""
    if isinstance(value, Peaks):
        return value
    example = "give one such as {'bf16': '400 TFLOP/s'}"
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise SettingError(f"peak: {shown(value)} is not a mapping of data types: {example}")
    for name in value:
        if name not in Peaks.model_fields:
            raise unknown("data type of peak", name, Peaks.model_fields)
    values = {name: peak for name, peak in value.items() if peak is not None}
    if not values:
        raise SettingError(f"peak names no data type: {example}")
    return Peaks(**{name: _amount(peak, f"peak.{name}", "FLOP/s") for name, peak in values.items()})


class Level(Description):
    """A memory between the processors and the device's own, which all processors share."""

    name: Text = Field(description="such as L2, Infinity Cache or SLC")
    size: CacheBytes = Field(description="bytes")
    bandwidth: MaybeBandwidth = Field(default=ABSENT, description="of reading [B/s]; None: not published")


class Link(Description):
    """What joins a device to others: all its lanes together."""

    name: Text = Field(description="such as NVLink 4, PCIe 5 x16, Infinity Fabric or ICI")
    bandwidth: Bandwidth = Field(description="each way, of all lanes of one device together [B/s]")
    latency: MaybeTime = Field(default=ABSENT, description="of one message [s]; None: not published")


class Source(Description):
    """Where figures are from. confirmed: whether the sheet was at hand when they were written down."""

    title: Text = Field(min_length=1, description="of the sheet")
    url: Text = Field(default="", description="its address")
    date: Text = Field(default="", description="when it was read, such as 2026-11-22")
    confirmed: bool = Field(default=False, description="whether the sheet was at hand")
    figures: Items[Text] = Field(default=ALL, description="what it is the source of, such as peak.bf16; none: all")

    @model_validator(mode="after")
    def _is_dated(self) -> Self:
        if self.date:
            try:
                date.fromisoformat(self.date)
            except ValueError:
                raise ValueError(f"date: {shown(self.date)} is not a date: use one such as 2026-11-22") from None
        return self


def table_of(sources: Sequence[Source]) -> Table:
    """A row for each source, with the number that it is cited by."""
    rows = [(f"{n} {printable(of.title)}", of.date, "yes" if of.confirmed else "no") for n, of in enumerate(sources, 1)]
    return Table(("source", "date", "confirmed"), rows, words=frozenset({0, 1, 2}))


class Machine(Answer, Description):
    """A device that models run on. Fields hold SI units; text with a unit is taken for each, such as "2 TB/s".

    Only name, peak, bandwidth and memory need be given. What is None is not known, and whoever needs it says what it
    takes instead, as `vector_peak` does here.

    Example:
        >>> import costmodel as cm
        >>> own = cm.Machine(name="own", peak={"fp32": "10 TFLOP/s"}, bandwidth="500 GB/s", memory="16 GiB")
        >>> own.bandwidth, own.memory  # B/s, bytes
        (500000000000.0, 17179869184)

    """

    READY: ClassVar[str] = "a ready machine is cm.load_machine('h100-sxm')"

    name: Text = Field(min_length=1, description="such as h100-sxm")
    aliases: Items[Text] = Field(default=ALL, description="other ways to write the name")
    vendor: Text = Field(default="", description="who makes it")
    category: Category = Field(default="accelerator", description="what it is")
    architecture: Text = Field(default="", description="family in lower case, such as ampere, ada, cdna3")
    chip: Text = Field(default="", description="the chip's own name, such as GA100")
    year: int | None = Field(default=None, ge=1970, le=2100, description="of release")
    peak: Annotated[Reads[Peaks, Peaks | Mapping[str, Magnitude | None]], BeforeValidator(_peaks)] = Field(
        description="arithmetic at most, by data type [FLOP/s]"
    )
    bandwidth: Bandwidth = Field(description="of the device's memory [B/s]")
    memory: Bytes = Field(description="of the device [bytes]")
    levels: Items[Level] = Field(default=ALL, description="caches that all processors share, the nearest first")
    processors: int | None = Field(
        default=None, ge=1, le=10_000_000, description="streaming multiprocessors, compute units or cores"
    )
    base_clock: MaybeFrequency = Field(default=ABSENT, description="guaranteed under load [Hz]")
    boost_clock: MaybeFrequency = Field(default=ABSENT, description="at most; peaks are at this [Hz]")
    tdp: MaybePower = Field(default=ABSENT, description="board power at most [W]")
    power_limit: MaybePower = Field(default=ABSENT, description="what the board is let draw, where less than that [W]")
    idle: MaybePower = Field(default=ABSENT, description="board power at rest [W]")
    links: Items[Link] = Field(default=ALL, description="to other devices, the fastest first")
    node_size: int = Field(default=1, ge=1, le=1_000_000, description="devices that the fastest link joins")
    price: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="of a device for an hour")
    call_overhead: MaybeTime = Field(default=ABSENT, description="of one call or launch, where it was measured [s]")
    measured: bool = Field(default=False, description="figures were attained in measurement, not published as peaks")
    notes: Text = Field(default="", description="what else there is to know")
    sources: Items[Source] = Field(default=ALL, description="where the figures are from")

    @model_validator(mode="after")
    def _clocks_are_in_order(self) -> Self:
        if self.base_clock is not None and self.boost_clock is not None and self.base_clock > self.boost_clock:
            base, boost = (show_amount(clock, "Hz") for clock in (self.base_clock, self.boost_clock))
            raise ValueError(f"base_clock {base} is above boost_clock {boost}: exchange them")
        return self

    @model_validator(mode="after")
    def _limit_is_below_the_most(self) -> Self:
        if self.power_limit is not None and (self.tdp is None or self.power_limit > self.tdp):
            limit = show_amount(self.power_limit, "W")
            most = "not given" if self.tdp is None else show_amount(self.tdp, "W")
            raise ValueError(f"power_limit {limit} is of a board whose tdp is {most}: give the tdp that it is below")
        return self

    @property
    def most_watts(self) -> float | None:
        """What the board draws at most: its limit, else its TDP [W]. None: neither is known."""
        return self.tdp if self.power_limit is None else self.power_limit

    @typed
    def product_peak(self, dtype: str, allow_tf32: bool = False) -> float:
        """Of matrix products of operands of a type, accumulated as frameworks do [FLOP/s].

        allow_tf32: whether products of fp32 may run in tf32. On matrix units where there are any for the type, else on
        vector units. Raises SettingError for a type without either, which says what it would run in.
        """
        for name in PRODUCT_PEAKS["tf32" if dtype == "fp32" and allow_tf32 else self._known(dtype)]:
            if (peak := self.peak.rates.get(name)) is not None:
                return peak
        raise SettingError(self._without(dtype))

    @typed
    def vector_peak(self, dtype: str = "fp32") -> float:
        """Of arithmetic that is no product, on vector units [FLOP/s]; narrow types run in fp32 where they have none.

        Of a machine whose vector peak is not given it is 1/16 of its fastest product of 16 bits or more, as an A100's
        is. Raises SettingError for fp64 where there is none.
        """
        wanted = ("fp64",) if self._known(dtype) == "fp64" else (f"{dtype}_vector", "fp32")
        for name in wanted:
            if (peak := self.peak.rates.get(name)) is not None:
                return peak
        wide = [self.peak.rates[name] for name in _WIDE if name in self.peak.rates]
        if dtype == "fp64" or not wide:
            raise SettingError(self._without(dtype))
        return max(wide) / VECTOR_SHARE

    @typed
    def runs_in(self, dtype: str) -> str | None:
        """The type that products of a type run in: itself, the nearest that holds its values, or one that rounds them.

        None: there is none. Products of fp32 are rounded to bf16 where there is nothing wider, as on a TPU.
        """
        candidates = (self._known(dtype), *_WIDER[dtype], *_NARROWER.get(dtype, ()))
        return next((t for t in candidates if any(name in self.peak.rates for name in PRODUCT_PEAKS[t])), None)

    @typed
    def without_units(self, dtypes: Sequence[str]) -> list[str]:
        """Of each of these types that products have no units for what they run in, in words."""
        units = {dtype: self.runs_in(dtype) for dtype in dtypes}
        halves = ": it has those for fp16" if self.runs_in("fp16") == "fp16" else ""
        return [
            f"{self.name} has no units for {dtype}, which runs in {other}{halves if dtype == 'bf16' else ''}"
            for dtype, other in units.items()
            if other not in (None, dtype)
        ]

    @typed
    def ridge(self, dtype: str, allow_tf32: bool = False) -> float:
        """Intensity above which products are bound by arithmetic [FLOP/B]."""
        return self.product_peak(dtype, allow_tf32) / self.bandwidth

    @property
    def fastest_link(self) -> Link | None:
        """To other devices; None: not given."""
        return max(self.links, key=lambda link: link.bandwidth, default=None)

    @typed
    def source_of(self, figure: str) -> Source | None:
        """Where a figure is from, such as "bandwidth" or "peak.bf16": the source that names it most exactly."""
        whole, _, _ = figure.partition(".")
        for names in ((figure,), (whole,), ()):
            for source in self.sources:
                if source.figures == names or (names and names[0] in source.figures):
                    return source
        return None

    @typed
    def confirmed(self, *figures: str) -> bool:
        """Whether the sheet was at hand that each of these figures is from, such as "bandwidth" or "peak.bf16"."""
        sources = [self.source_of(figure) for figure in figures]
        return all(source is not None and source.confirmed for source in sources)

    def to_dict(self) -> dict[str, Any]:
        """Every field that is given, in SI units; of it `Machine` makes an equal machine."""
        fields = self.model_dump(exclude_none=True)
        return {name: _listed(value) for name, value in fields.items() if value not in ("", ())}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each figure: its name, its value in SI units, and where it is from."""
        values: dict[str, Any] = {f"peak.{name}": peak for name, peak in self.peak.rates.items()}
        values |= {name: getattr(self, name) for name in _SINGLE if getattr(self, name) is not None}
        sources = {figure: self.source_of(figure) for figure in values}
        return [
            {
                "figure": figure,
                "value": value,
                "source": source.title if (source := sources[figure]) else None,
                "date": source.date if source else None,
                "confirmed": self.confirmed(figure),
            }
            for figure, value in values.items()
        ]

    def sheet(self) -> Sheet:
        """Peaks, then all else, each with its source, then the sources."""
        kind = " ".join(filter(None, (self.vendor, self.category)))
        chip = " ".join(filter(None, (self.architecture, self.chip)))
        head = ", ".join(filter(None, (f"{self.name}: {kind}", chip, str(self.year or ""))))
        tables = [
            Table(("peak", "", "FLOP/B", *self._cited_header), [self._peak_row(name) for name in self.peak.rates]),
            Table(("machine", "", *self._cited_header), list(self._figure_rows())),
        ]
        notes = ["FLOP/B: intensity above which arithmetic, not memory, bounds a product"]
        if self.sources:
            tables.append(table_of(self.sources))
            notes.append("confirmed: the sheet was at hand when its figures were written down")
        else:
            notes.append("the figures are as given: no source is named")
        return Sheet([printable(head)], tables, notes=[*([printable(self.notes)] if self.notes else []), *notes])

    @property
    def _cited_header(self) -> tuple[str, ...]:
        return ("source", "confirmed") if self.sources else ()

    def _cited(self, figure: str) -> tuple[str, ...]:
        """Where a figure is from, as cells of a table."""
        if not self.sources:
            return ()
        source = self.source_of(figure)
        return (str(self.sources.index(source) + 1) if source else "-", "yes" if self.confirmed(figure) else "no")

    def _peak_row(self, name: str) -> tuple[str, ...]:
        peak = self.peak.rates[name]
        shown_peak = show_amount(peak, "OP/s" if name.startswith("int") else "FLOP/s")
        return (name, shown_peak, f"{peak / self.bandwidth:,.1f}", *self._cited(f"peak.{name}"))

    def _figure_rows(self) -> Iterator[tuple[str, ...]]:
        """Name, amount and source of what there is beside peaks."""

        def row(name: str, amount: str, figure: str) -> tuple[str, ...]:
            return (printable(name), amount, *self._cited(figure))

        yield row("memory", show_bytes(self.memory), "memory")
        yield row("bandwidth", show_amount(self.bandwidth, "B/s"), "bandwidth")
        for level in self.levels:
            yield row(level.name, show_bytes(level.size), "levels")
            if level.bandwidth is not None:
                yield row(f"{level.name} bandwidth", show_amount(level.bandwidth, "B/s"), "levels")
        if self.processors is not None:
            yield row("processors", str(self.processors), "processors")
        for name, unit in _UNITS.items():
            if (value := getattr(self, name)) is not None:
                yield row(_WORDS.get(name, name.replace("_", " ")), show_amount(value, unit), name)
        for link in self.links:
            yield row(f"{link.name}, each way", show_amount(link.bandwidth, "B/s"), "links")
            if link.latency is not None:
                yield row(f"{link.name}, latency", show_amount(link.latency, "s"), "links")
        if self.node_size > 1:
            yield row("devices in a node", str(self.node_size), "node_size")
        if self.price is not None:
            yield row("price for an hour", f"{self.price:,g}", "price")

    @classmethod
    @typed
    def load(cls, path: str | os.PathLike[str]) -> Machine:
        """The machine that a YAML or JSON file describes. Raises SpecError, with the line."""
        return read_fields(path, "machine", lambda data: cls(**data), "name: lab")

    def _known(self, dtype: Any) -> str:
        if not isinstance(dtype, str) or dtype not in PRODUCT_PEAKS:
            raise unknown("data type", dtype, PRODUCT_PEAKS)
        return dtype

    def _without(self, dtype: str) -> str:
        instead = self.runs_in(dtype)
        would = f"it would run in {instead}" if instead else "nothing that it has would hold its values"
        rounds = ", which rounds its values" if instead in _NARROWER.get(dtype, ()) else ""
        return f"{self.name} has no peak for {dtype}: {would}{rounds} (its peaks are {', '.join(self.peak.rates)})"


def _listed(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


_UNITS = {"base_clock": "Hz", "boost_clock": "Hz", "tdp": "W", "power_limit": "W", "idle": "W", "call_overhead": "s"}
"""Units of figures beside peaks, memory and links."""
_WORDS = {"tdp": "TDP", "idle": "power at rest", "call_overhead": "overhead of a call"}
_SINGLE = ("memory", "bandwidth", "processors", *_UNITS, "node_size", "price")
VECTOR_SHARE = 16
"""Product peak over vector peak of a machine whose vector peak is not given: 312/19.5 of an A100."""
_WIDE = ("fp64_tensor", "fp32_tensor", "tf32", "bf16", "fp16")
PRODUCT_PEAKS: dict[str, tuple[str, ...]] = {
    "fp64": ("fp64_tensor", "fp64"),
    "fp32": ("fp32_tensor", "fp32"),
    "tf32": ("tf32", "fp32_tensor", "fp32"),
    "bf16": ("bf16", "bf16_vector"),
    "fp16": ("fp16", "fp16_vector"),
    "fp8": ("fp8",),
    "fp6": ("fp6", "fp8"),
    "fp4": ("fp4",),
    "int8": ("int8",),
    "int4": ("int4",),
}
"""The peaks that products of each type of operand reach, the first that there is."""
_WIDER: dict[str, tuple[str, ...]] = {
    "fp64": (),
    "fp32": ("fp64",),
    "tf32": ("fp32", "fp64"),
    "bf16": ("fp32",),
    "fp16": ("fp32",),
    "fp8": ("bf16", "fp16", "fp32"),
    "fp6": ("bf16", "fp16", "fp32"),
    "fp4": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("fp16", "bf16", "fp32"),
    "int4": ("int8", "fp16", "bf16", "fp32"),
}
"""What a kernel for each type computes in where the machine has no units for it, the first that there are units for."""
_NARROWER = {"fp32": ("bf16",), "tf32": ("bf16",), "fp16": ("bf16",)}
"""What kernels round operands to where nothing wider has units (XLA on TPU, matrix products at default precision)."""
