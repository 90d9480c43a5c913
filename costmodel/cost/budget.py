"""Does it fit: a prediction's peak against a budget of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from operator import index
from typing import TYPE_CHECKING, Any

from costmodel.display.units import show_bytes
from costmodel.errors import SettingError, shown

if TYPE_CHECKING:
    from costmodel.cost.prediction import Prediction

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_NUMBER = re.compile(r"\s*[0-9.,_]+(?:[eE]\+?[0-9]+)?\s*")
NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:[eE]\+?[0-9]{1,2})?"
"""What is read as a number, such as 24, 24.5 or 1.5e9."""
_SIZE = re.compile(rf"\s*({NUMBER})\s*(?:([kmgtp])(i?)b?|b|bytes?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """An amount of memory [bytes], and how it was read."""

    bytes: int
    reading: str


def read_budget(memory: Any, what: str = "memory") -> Budget:
    """Bytes from a whole number, or from text such as "24 GiB" (binary), "24 GB" (decimal) or "24 bytes"; "24G" is GB.

    Raises SettingError for anything else, and for what is not positive.
    """
    size = whole(memory)
    if size is not None:
        reading = f"{size:,} bytes"
    elif isinstance(memory, float):
        raise SettingError(f"{what}={memory} is not a whole number of bytes: round it, or use text such as '24 GiB'")
    else:
        found = _SIZE.fullmatch(memory) if isinstance(memory, str) else None
        if found is None and isinstance(memory, str) and _NUMBER.fullmatch(memory):
            raise SettingError(f"{what}={shown(memory)} has no unit: use text such as '24 GiB', '24 GB' or '24 bytes'")
        if found is None:
            raise SettingError(
                f"{what}={shown(memory)} is not an amount of memory: use text such as '24 GiB' or '24 GB'"
            )
        number, prefix, binary = found.groups(default="")
        size = int(Fraction(number) * (1024 if binary else 1000) ** _POWERS[prefix.lower()])
        letter = prefix.upper() if binary or prefix.lower() != "k" else "k"
        reading = f"{number} {letter}{'i' if binary else ''}B = {size:,} bytes"
    if not 0 < size < 2**63:
        raise SettingError(f"{what}={shown(memory)} is not a positive amount of memory: use text such as '24 GiB'")
    return Budget(size, reading)


def whole(number: Any) -> int | None:
    """The int that is the same number, as 1e9 is 1000000000; None for what is no whole number."""
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    return index(number) if hasattr(number, "__index__") and not isinstance(number, bool) else None


@dataclass(frozen=True)
class Fit:
    """Whether a prediction's peak, with a reserve for what is not modelled, fits a budget; true if it does.

    margin: bytes to spare, negative if it does not fit. binds: what takes most at the peak, and where that is.
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

    def __str__(self) -> str:
        verdict = "fits" if self else "does not fit"
        spare = f"{show_bytes(abs(self.margin))} {'to spare' if self else 'too much'}"
        reserve = f", reserve {show_bytes(self.reserve)}" if self.reserve else ""
        return (
            f"{verdict}: peak {show_bytes(self.peak)}{reserve}, budget {show_bytes(self.budget.bytes)} "
            f"({self.budget.reading}), {spare}; {self.binds}"
        )

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


def fit(prediction: Prediction, memory: Any, reserve: Any = 0) -> Fit:
    """See `Prediction.fits`."""
    step = prediction.timeline.peak_step
    line, size = max(step.alive._asdict().items(), key=lambda item: item[1])
    where = f"{step.phase} of {step.layer}" + (f", round {step.rounds}" if step.rounds else "")
    binds = f"most of the peak is {line} ({show_bytes(size)}), in {where}"
    spared = read_budget(reserve, "reserve").bytes if reserve else 0
    return Fit(read_budget(memory), prediction.memory.peak, spared, binds)
