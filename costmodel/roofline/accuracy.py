"""How well predictions do: errors of predicted times, and agreement of predicted classes with measured ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import log
from typing import Any

from costmodel.roofline.classification import BOUNDS, Bound


@dataclass(frozen=True)
class Errors:
    """Relative errors of predicted times, as shares of the measured ones."""

    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def shares(self) -> list[float]:
        """Predicted over measured, less one."""
        return [p / m - 1 for p, m in zip(self.predicted, self.measured, strict=True)]

    def quantile(self, share: float) -> float:
        """Of the absolute errors; not a number if there are none."""
        import numpy as np

        if not self.predicted:
            return float("nan")
        return float(np.quantile(np.abs(self.shares), share))

    @property
    def median(self) -> float:
        """Of the absolute errors."""
        return self.quantile(0.5)

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return self.quantile(1.0)

    @property
    def r_squared(self) -> float:
        """Coefficient of determination of log time; 0 if all measured times are equal."""
        if not self.measured:
            return float("nan")
        logs = [log(m) for m in self.measured]
        mean = sum(logs) / len(logs)
        left = sum(log(p / m) ** 2 for p, m in zip(self.predicted, self.measured, strict=True))
        whole = sum((x - mean) ** 2 for x in logs)
        return 1 - left / whole if whole else 0.0

    def __str__(self) -> str:
        return f"median error {self.median:.1%}, nine of ten within {self.quantile(0.9):.1%}"

    def to_dict(self) -> dict[str, float | None]:
        """Plain data; None where nothing was measured."""
        values = {"median": self.median, "p90": self.quantile(0.9), "worst": self.worst, "r_squared": self.r_squared}
        return {name: value if self.predicted else None for name, value in values.items()}

    HEADER = ("median", "p90", "worst", "R² log")

    def cells(self) -> tuple[str, ...]:
        """For a table: median, 90 % quantile, worst, R² of log time."""
        if not self.predicted:
            return ("-",) * 4
        return (f"{self.median:.1%}", f"{self.quantile(0.9):.1%}", f"{self.worst:.1%}", f"{self.r_squared:.4f}")


@dataclass(frozen=True)
class Agreement:
    """Predicted classes against measured ones, pair by pair."""

    pairs: tuple[tuple[Bound, Bound], ...]

    @property
    def share(self) -> float:
        """Of pairs that agree."""
        return sum(a == b for a, b in self.pairs) / len(self.pairs) if self.pairs else 1.0

    @property
    def kappa(self) -> float:
        """Cohen's kappa (1960): agreement beyond what the two would have by chance; 1 if there is but one class."""
        if not self.pairs:
            return 1.0
        count = len(self.pairs)
        rows, columns = Counter(a for a, _ in self.pairs), Counter(b for _, b in self.pairs)
        chance = sum(number * columns[bound] for bound, number in rows.items()) / count**2
        return 1.0 if chance == 1 else (self.share - chance) / (1 - chance)

    @property
    def recalls(self) -> dict[Bound, float]:
        """Of each measured class: the share that is predicted."""
        measured: Counter[Bound] = Counter(b for _, b in self.pairs)
        met: Counter[Bound] = Counter(b for a, b in self.pairs if a == b)
        return {bound: met[bound] / number for bound, number in measured.items()}

    @property
    def confusion(self) -> dict[tuple[Bound, Bound], int]:
        """How many of each (predicted, measured)."""
        counted = Counter(self.pairs)
        return {(a, b): counted[a, b] for a in BOUNDS for b in BOUNDS}

    def to_dict(self) -> dict[str, Any]:
        """Plain data; confusion as ``"predicted measured"``."""
        confusion = {f"{a} {b}": count for (a, b), count in self.confusion.items()}
        values = {"layers": len(self.pairs), "share": self.share, "kappa": self.kappa, "recalls": self.recalls}
        return {**values, "confusion": confusion}

    HEADER = ("layers", "agree", "kappa", "lowest recall")

    def cells(self) -> tuple[str, ...]:
        """For a table: layers, share that agrees, kappa, and the class with the lowest recall."""
        if not self.pairs:
            return ("0", "-", "-", "-")
        bound, recall = min(self.recalls.items(), key=lambda item: item[1])
        return str(len(self.pairs)), f"{self.share:.0%}", f"{self.kappa:.2f}", f"{bound} {recall:.0%}"
