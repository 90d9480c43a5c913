"""Does it fit: a prediction's peak against a budget of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodel.cost.timeline import TimelineStep
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Marked
from costmodel.display.units import Budget, read_budget, read_reserve, show_bytes


@dataclass(frozen=True, repr=False)
class Fit(Answer):
    """Whether a prediction's peak, with a reserve for what is not modelled, fits a budget; true if it does.

    margin: bytes to spare, negative if it does not fit. binds: what takes most at the peak, and where that is.

    Example:
        >>> import costmodel as cm
        >>> answer = cm.predict("gpt2-small", batch=32, seq=512).fits("24 GiB", reserve="1 GiB")
        >>> bool(answer), answer.margin  # bytes
        (False, -7632497676)

    """

    budget: Budget
    peak: int
    reserve: int
    binds: str

    @property
    def margin(self) -> int:
        """Bytes to spare; negative if there are too few."""
        return self.budget.bytes - self.reserve - self.peak

    def __bool__(self) -> bool:
        return self.margin >= 0

    def sheet(self) -> Sheet:
        """The verdict, in one line."""
        verdict = "fits" if self else "does not fit"
        spare = f"{show_bytes(abs(self.margin))} {'to spare' if self else 'too much'}"
        reserve = f", reserve {show_bytes(self.reserve)}" if self.reserve else ""
        sentence = (
            f"{verdict}: peak {show_bytes(self.peak)}{reserve}, budget {show_bytes(self.budget.bytes)} "
            f"({self.budget.reading}), {spare}; {self.binds}"
        )
        return Sheet([sentence if self else Marked(sentence, "alarm")], [])

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes]."""
        return {
            "fits": bool(self),
            "budget": self.budget.bytes,
            "peak": self.peak,
            "reserve": self.reserve,
            "margin": self.margin,
            "binds": self.binds,
        }


def fit(peak: int, step: TimelineStep, memory: Any, reserve: Any = 0) -> Fit:
    """Whether `peak` [bytes], which falls at `step`, fits; see `Prediction.fits`."""
    line, size = max(step.alive._asdict().items(), key=lambda item: item[1])
    where = f"{step.phase} of {step.layer}" + (f", round {step.rounds}" if step.rounds else "")
    binds = f"most of the peak is {line} ({show_bytes(size)}), in {where}"
    return Fit(read_budget(memory), peak, read_reserve(reserve), binds)
