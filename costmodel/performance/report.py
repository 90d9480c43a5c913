"""A time in words, the verdict first, and as a picture: kernels on the machine's roofline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.cost.report import forced
from costmodel.display.answer import Answer, Sheet
from costmodel.display.figures import DARK, LIGHT
from costmodel.display.lanes import MOST_LANES, Lane, LaneSpan, lanes
from costmodel.display.rooflines import Ceiling, Chart, Dot, picture
from costmodel.display.table import Table, TextRow, shortened
from costmodel.display.units import show_bytes, show_change, show_few, show_rate, show_seconds, show_share
from costmodel.hardware.machine import Machine
from costmodel.performance.breakdown import CollectivePart, KernelTime, LayerTime, PhaseTime, StepBottleneck
from costmodel.performance.constants import UNITS, Reference
from costmodel.performance.fusion import Fusion
from costmodel.performance.intervals import Effect, Interval
from costmodel.performance.laws import Tier
from costmodel.performance.queues import QueueEvent
from costmodel.training.settings import Settings
from costmodel.training.stacks import Stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LAYERS = 8
NAME = 34
_BOTTLENECKS: dict[StepBottleneck, str] = {
    "compute": "bound by arithmetic",
    "memory": "bound by memory bandwidth",
    "overhead": "bound by the start of kernels",
    "host": "bound by the host, which starts kernels more slowly than they run",
    "collectives": "bound by collectives that nothing runs beside",
    "stages": "bound by other stages of the pipeline, which ranks wait for",
}
_TIERS: dict[Tier, str] = {
    "ceiling": "ceiling: from the datasheet alone, a lower bound that no run reaches",
    "typical": "typical: constants of the machine's family, none fitted to models",
    "calibrated": "calibrated: with constants measured on the machine",
}


ATTENTION: dict[str, str] = {
    "flash-1": "FlashAttention, as the stack says",
    "flash-2": "FlashAttention-2: PyTorch's from Ampere on, on Hopper to PyTorch 2.10 (then cudnn: stack's attention)",
    "flash-3": "FlashAttention-3, as the stack says",
    "cudnn": "cuDNN's: PyTorch's from 2.11 on for Hopper and Blackwell, and Transformer Engine's there",
    "efficient": "memory-efficient, PyTorch's for older devices, fp32 and biases",
    "fused": "the vendor's fused kernel",
}
"""Kernels of attention in words, and when they run; see `laws.attention_kernel`."""


class TimeReport(NamedTuple):
    """What there is to say of a time, which is that of `question`.

    peak: see `Time.peak`. needed_bytes: at the peak of memory. runs_in: types without units, with those that they run
    in. attention: its kernels, see `Time.attention`. usual: see `Time.usual`. cluster: what joins devices, in words; ""
    for one. shown_rank: see `Time.shown_rank`.
    """

    question: str
    settings: Settings
    machine: Machine
    stack: Stack
    tier: Tier
    seconds: float
    interval: Interval
    samples_per_second: float
    tokens_per_second: float | None
    bound: StepBottleneck
    mfu: float
    hfu: float
    peak: float
    phases: list[PhaseTime]
    collectives: list[CollectivePart]
    bubble: float
    layers: list[LayerTime]
    fusions: list[Fusion]
    needed_bytes: int
    runs_in: dict[str, str]
    attention: str
    usual: tuple[str, float] | None
    cluster: str
    shown_rank: int | None


def sheet(t: TimeReport) -> Sheet:
    """What there is to read."""
    what = "step" if t.settings.training else "pass"
    spread = "" if t.tier == "ceiling" else f" ({show_seconds(t.interval.low)} to {show_seconds(t.interval.high)})"
    head = [
        t.question,
        f"{show_seconds(t.seconds)} a {what}{spread}",
        f"{_rates(t)}; {_BOTTLENECKS[t.bound]}",
        f"MFU {t.mfu:.1%}, HFU {t.hfu:.1%} of {show_rate(t.peak)}FLOP/s",
    ]
    return Sheet(head, _tables(t), _warnings(t), _notes(t))


def _rates(t: TimeReport) -> str:
    rates = f"{show_few(t.samples_per_second)} samples/s"
    return rates if t.tokens_per_second is None else f"{rates}, {show_few(t.tokens_per_second)} tokens/s"


def _tables(t: TimeReport) -> list[Table]:
    phases = [phase for phase in t.phases if phase.launches]
    rows: list[TextRow] = [
        (
            phase.phase,
            show_seconds(phase.seconds),
            show_share(phase.seconds, t.seconds, 0),
            show_seconds(phase.device_seconds),
            show_seconds(phase.host_seconds),
            f"{phase.launches:,}",
        )
        for phase in phases
    ]
    tables = [Table(("Phase", "time", "share", "device", "host", "launches"), rows)]
    if t.collectives:
        tables.append(_collectives(t))
    largest = sorted(t.layers, key=lambda row: -row.seconds)[:MOST_LAYERS]
    layers: list[TextRow] = [_layer(row) for row in largest]
    header, worth = ("Layer (the longest)", "kind", "time", "share", "bound"), ("time", "share", "bound")
    tables.append(Table(header, layers, words=frozenset({0, 1, 4}), worth=worth))
    if t.fusions:
        tables.append(_fusions(t))
    return tables


def _collectives(t: TimeReport) -> Table:
    """By axis, operation and link, with what the device waits for, other ranks of a pipeline among them."""
    groups: dict[tuple[str, str, str], list[CollectivePart]] = {}
    for part in t.collectives:
        groups.setdefault((f"{part.axis} {part.operation}", part.link, part.algorithm), []).append(part)
    longest = sorted(groups.items(), key=lambda group: -sum(part.exposed for part in group[1]))
    rows: list[TextRow] = [
        (*what, f"{sum(part.times for part in parts):,}", *_seconds(t, parts)) for what, parts in longest[:MOST_LAYERS]
    ]
    if t.bubble:
        rows.append(("other stages", "", "", "", "", show_seconds(t.bubble), show_share(t.bubble, t.seconds, 0)))
    times, (seconds, *_) = sum(part.times for part in t.collectives), _seconds(t, t.collectives)
    waited = sum(part.exposed for part in t.collectives) + t.bubble
    rows.append(("total", "", "", f"{times:,}", seconds, show_seconds(waited), show_share(waited, t.seconds, 0)))
    header = ("Collectives", "over", "by", "times", "time", "waited for", "share")
    worth = ("waited for", "share", "time", "over", "times")
    return Table(header, rows, words=frozenset({0, 1, 2}), total=True, worth=worth)


def _seconds(t: TimeReport, parts: list[CollectivePart]) -> tuple[str, str, str]:
    exposed = sum(part.exposed for part in parts)
    return show_seconds(sum(part.seconds for part in parts)), show_seconds(exposed), show_share(exposed, t.seconds, 0)


def _layer(row: LayerTime) -> TextRow:
    return (
        shortened(row.name, NAME),
        shortened(row.kind, 18),
        show_seconds(row.seconds),
        show_share(row.share, 1.0),
        row.bound,
    )


def _fusions(t: TimeReport) -> Table:
    largest = sorted(t.fusions, key=lambda fusion: -fusion.bytes)[:MOST_LAYERS]
    rows: list[TextRow] = [
        (
            shortened(f"{fusion.layers[0]} … {fusion.layers[-1].rpartition('.')[2]}", NAME + 6),
            str(len(fusion.layers)),
            f"{int(fusion.times)}",
            f"{int(fusion.launches):,}",
            show_bytes(int(fusion.bytes)),
        )
        for fusion in largest
    ]
    return Table(("Fused (saving most)", "layers", "times", "launches", "traffic"), rows, worth=("traffic",))


def _warnings(t: TimeReport) -> list[str]:
    warnings = t.machine.without_units([*t.runs_in])
    if t.needed_bytes <= t.machine.memory:
        return warnings
    return [f"needs {show_bytes(t.needed_bytes)}, and {t.machine.name} has {show_bytes(t.machine.memory)}", *warnings]


def _notes(t: TimeReport) -> list[str]:
    notes = [f"{_TIERS[t.tier]}; stack: {t.stack.source}", *([f"cluster: {t.cluster}"] if t.cluster else [])]
    if t.shown_rank is not None:
        notes.append(f"phases, collectives, layers: of pipeline rank {t.shown_rank}, whose kernels take longest")
    if t.usual is not None:
        settings, seconds = t.usual
        notes.append(f"plain settings: {settings} make it {show_seconds(seconds)}")
    if t.attention in ATTENTION:
        notes.append(f"attention: {ATTENTION[t.attention]}")
        if t.stack.attention not in (None, t.attention):
            notes.append(f"{t.machine.name} does not run {t.stack.attention} in this type, which the stack says")
    notes += forced(t.settings)
    if t.attention == "composed":
        notes.append("attention is eager: scores are stored; what frameworks run is attention='flash'")
    if t.tier != "ceiling":
        notes.append("range: holds about four of five measured runs; what makes it widest:")
        notes += [_effect(effect, t.seconds) for effect in t.interval.widest]
        notes.append("One measured step narrows it: costmodel machines fit.")
    return notes


def _effect(effect: Effect, seconds: float) -> str:
    faster, slower = effect.low / seconds - 1, effect.high / seconds - 1
    of = effect.constant
    return (
        f"- {UNITS[effect.name].partition(' [')[0]}: {_number(of.typical)} ({_number(of.low)} to {_number(of.high)}) "
        f"changes the time by {show_change(faster)} to {show_change(slower)} ({_sourced(of.source)})"
    )


def _sourced(source: Reference) -> str:
    return source.title if source.confirmed else f"{source.title}, unconfirmed"


def _number(value: float) -> str:
    return f"{value:.3g}"


def roofline(
    title: str, machine: Machine, peaks: Mapping[float, Iterable[str]], kernels: list[KernelTime], *, dark: bool = False
) -> Figure:
    """Every kernel that computes: its rate over its intensity, as large as its share of the device's time.

    peaks: of the units that kernels run on, what these do, in words [FLOP/s].
    """
    ceilings = [Ceiling(" and ".join(peaks[peak]), "compute", peak) for peak in sorted(peaks, reverse=True)]
    ceilings.append(Ceiling("memory", "memory", machine.bandwidth))
    drawn = [kernel for kernel in kernels if kernel.intensity and kernel.seconds]
    dots = sorted(map(_dot, drawn), key=lambda dot: -dot.share)
    still = sum(kernel.share for kernel in kernels if not kernel.intensity)
    left_out = f"kernels that only move take {show_share(still, 1.0, 0)} of the time" if still else ""
    return picture(Chart(title, tuple(ceilings), tuple(dots), "", left_out, measured=False), "roofline", dark)


def _dot(kernel: KernelTime) -> Dot:
    rate = kernel.flops / kernel.seconds
    label = f"{kernel.layer}, {kernel.kernel}"
    once = kernel.seconds
    return Dot(label, kernel.bound, kernel.share, kernel.intensity, rate, rate, once, once, once, once, 0.0, (label,))


@dataclass(frozen=True, repr=False)
class StepCollectives(Answer):
    """The collectives of a step, in the order in which they first run, with their seconds and what is waited for.

    question: what runs where. parts: a row for those that are alike. seconds: of the step. cluster: what joins devices,
    in words; "" for one.
    """

    question: str
    parts: tuple[CollectivePart, ...]
    seconds: float
    cluster: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data: seconds of the step, then every row [bytes, s]."""
        return {"seconds": self.seconds, "collectives": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """A row for collectives that are alike."""
        return [part._asdict() for part in self.parts]

    def sheet(self) -> Sheet:
        """A line for each, with one collective's bytes and time, and what the device waits for all of them."""
        rows: list[TextRow] = [
            (
                f"{part.axis} {part.operation}",
                part.phase,
                shortened(part.layer, NAME - 8),
                f"{part.times:,}",
                show_bytes(part.bytes),
                show_seconds(part.seconds / part.times),
                show_seconds(part.exposed),
            )
            for part in self.parts
        ]
        header = ("in order", "phase", "layer", "times", "bytes", "time", "exposed")
        worth = ("exposed", "time", "times", "layer", "bytes")
        notes = ["bytes, time: of one; exposed: what the device waits for all of them", f"cluster: {self.cluster}"]
        if not rows:
            return Sheet([self.question, "no collectives"], [])
        return Sheet([self.question], [Table(header, rows, words=frozenset({0, 1, 2}), worth=worth)], notes=notes)


def lanes_of(title: str, events: list[QueueEvent], *, dark: bool = False) -> Figure:
    """A lane for each queue of each rank; those of neighbours of a pipeline below each other."""
    several = len({event.rank for event in events}) > 1
    names = {(e.rank, e.queue): f"rank {e.rank}" if several else e.queue for e in events}
    order = sorted(names, key=lambda lane: (lane[0], lane[1] != "device", lane[1]))
    rows = [
        Lane(names[lane], [LaneSpan(e.start, e.end, e.phase) for e in events if (e.rank, e.queue) == lane])
        for lane in order[:MOST_LANES]
    ]
    left_out = f"{len(order) - MOST_LANES} more ranks" if len(order) > MOST_LANES else ""
    return lanes(title, rows, left_out, DARK if dark else LIGHT)
