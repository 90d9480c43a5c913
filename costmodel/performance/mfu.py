"""MFU of steps that were measured, phase by phase, beside what is predicted of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import read_amount, show_rate, show_seconds, show_share
from costmodel.errors import SettingError, unknown

if TYPE_CHECKING:
    from costmodel.performance.time import Time


class MfuRow(NamedTuple):
    """One phase, or the step: predicted and measured seconds, and what of the peak each is; None where not measured."""

    phase: str
    predicted: float
    mfu: float
    measured: float | None
    measured_mfu: float | None


@dataclass(frozen=True, repr=False)
class MeasuredMfu(Answer):
    """MFU of seconds that were measured, beside the prediction.

    question: what runs where. rows: of each phase, and last of the step. peak: what MFU is a share of [FLOP/s]. range:
    of the predicted seconds. slower: where the step is beyond it, what else may run instead, and the seconds then.
    """

    question: str
    rows_by_phase: tuple[MfuRow, ...]
    peak: float
    range: tuple[float, float]
    slower: tuple[tuple[str, float], ...] = ()

    def __float__(self) -> float:
        return self.rows_by_phase[-1].measured_mfu or 0.0

    def rows(self) -> list[dict[str, Any]]:
        """A row for each phase, and the step last [s]."""
        return [row._asdict() for row in self.rows_by_phase]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "question": self.question,
            "peak": self.peak,
            "rows": self.rows(),
            "range": list(self.range),
            "slower": [{"settings": words, "seconds": seconds} for words, seconds in self.slower],
        }

    def sheet(self) -> Sheet:
        """Both, by phase, and how many times longer the measured one took."""
        step = self.rows_by_phase[-1]
        assert step.measured is not None
        head = [
            self.question,
            f"MFU {step.measured_mfu:.1%} of {show_rate(self.peak)}FLOP/s, predicted {step.mfu:.1%}: measured "
            f"{show_seconds(step.measured)}, {step.measured / step.predicted:.2f} times the predicted "
            f"{show_seconds(step.predicted)}",
        ]
        rows = [
            (
                row.phase,
                show_seconds(row.predicted),
                show_share(row.mfu, 1.0),
                "-" if row.measured is None else show_seconds(row.measured),
                "-" if row.measured_mfu is None else show_share(row.measured_mfu, 1.0),
            )
            for row in self.rows_by_phase
        ]
        table = Table(("Phase", "predicted", "MFU", "measured", "MFU"), rows, total=True)
        above = ["above the peak: what ran is not what was asked, such as tf32 or bf16 in place of fp32"]
        return Sheet(head, [table], above if (step.measured_mfu or 0) > 1 else [], self._notes(step.measured))

    def _notes(self, measured: float) -> list[str]:
        """Where the measured step lies in the range, and what may make it slow."""
        low, high = self.range
        place = "within" if low <= measured <= high else "beyond" if measured > high else "below"
        notes = [f"{place} the range of the prediction, {show_seconds(low)} to {show_seconds(high)}"]
        if place == "beyond":
            ways = ", ".join(f"{words} {show_seconds(seconds)}" for words, seconds in self.slower)
            notes += [f"with other settings it would take: {ways}"] if ways else []
            notes.append(
                "what else makes a step slow: waiting for data, others on the device, a clock that heat or power lowers"
            )
        if place == "below":
            notes.append("what is faster than any prediction runs less than was asked for, or a phase was left out")
        return notes


def measured_mfu(time: Time, measured: float | str | Mapping[str, float | str]) -> MeasuredMfu:
    """See `Time.mfu_of`."""
    phases = [phase for phase in time.phases if phase.launches]
    names = [phase.phase for phase in phases]
    apart: dict[str, float] = {}
    if isinstance(measured, Mapping):
        for name in measured:
            if name not in names:
                raise unknown("phase", name, names)
        if missing := [name for name in names if name not in measured]:
            raise SettingError(f"measured lacks {', '.join(missing)}: give all of {', '.join(names)}, or one number")
        apart = {name: read_amount(value, "measured", "s") for name, value in measured.items()}
    whole = sum(apart.values()) if apart else read_amount(measured, "measured", "s")
    flops: dict[str, float] = dict.fromkeys(names, 0.0)
    for task in time.model_tasks:
        if not task.again and task.phase in flops:
            flops[task.phase] += time.prediction.settings.layout.share * task.contractions

    def row(phase: str, seconds: float) -> MfuRow:
        own = apart.get(phase)
        share = flops[phase] / time.peak
        return MfuRow(phase, seconds, share / seconds, own, None if own is None else share / own)

    rows = [row(phase.phase, phase.seconds) for phase in phases if phase.seconds]
    rows.append(MfuRow("step", time.seconds, time.mfu, whole, time.mfu * time.seconds / whole))
    slower = time.slower if whole > time.high else ()
    return MeasuredMfu(time.question, tuple(rows), time.peak, (time.low, time.high), tuple(slower))
