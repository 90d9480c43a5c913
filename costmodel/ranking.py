"""Settings that fit a budget of memory, ranked by how much of a step is work on its samples, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.budget import Budget
from costmodel.choice import show_checkpoint
from costmodel.errors import CostModelError, SettingError
from costmodel.prediction import Prediction
from costmodel.report import WIDTH, printable
from costmodel.table import Table
from costmodel.training import Settings
from costmodel.units import show_bytes

if TYPE_CHECKING:
    import pandas

RUN = ("batch", "accumulate")
MOST_SHOWN = 10
"""Rows of the table; `Recommendations` has all."""


@dataclass(frozen=True)
class Recommendation:
    """One way to run a step: its prediction, and how much of the step is work on its samples.

    settings: what to give `predict` for it. flops_per_byte: FLOPs that the device could do while it moves a byte.
    """

    settings: dict[str, Any]
    prediction: Prediction
    flops_per_byte: float

    @property
    def batch(self) -> int:
        """Samples of a pass."""
        return self.prediction.settings.batch

    @property
    def accumulate(self) -> int:
        """Passes to a step."""
        return self.prediction.settings.accumulate

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return self.batch * self.accumulate

    @cached_property
    def peak(self) -> int:
        """The most memory alive at once [bytes]."""
        return int(self.prediction.timeline.peak)

    @cached_property
    def moved(self) -> int:
        """Bytes of weights, gradients and states that a step goes over, whatever its samples.

        Each pass reads weights forward and backward, and reads and writes gradients; the update reads gradients, and
        reads and writes weights, masters and states. Inference reads weights.
        """
        m = self.prediction.memory
        if not self.prediction.settings.training:
            return m.weights
        standing = m.weights + m.masters + m.optimizer
        return self.accumulate * (2 * m.weights + 2 * m.gradients) + m.gradients + 2 * standing

    @cached_property
    def _spent(self) -> float:
        """A step's FLOPs, and those that could be done while `moved` is moved."""
        return self.prediction.flops.hardware + self.flops_per_byte * self.moved

    @property
    def useful(self) -> float:
        """The share of a step that is model FLOPs, the rest being recomputed or spent on moving weights and states."""
        return self.prediction.flops.total / self._spent

    @property
    def recomputed(self) -> float:
        """The share of a step that is recomputed FLOPs."""
        return self.prediction.flops.recomputed / self._spent

    @property
    def moving(self) -> float:
        """The share of a step that goes over weights, gradients and states."""
        return self.flops_per_byte * self.moved / self._spent

    def beaten_by(self, other: Recommendation) -> bool:
        """Whether another that recomputes something else, and differs in nothing more, does it for as much or less."""
        if self._apart != other._apart:
            return False
        mine, its = (Fraction(e.prediction.flops.recomputed, e.samples) for e in (self, other))
        better = (other.batch, -its, -other.peak) > (self.batch, -mine, -self.peak)
        return other.batch >= self.batch and its <= mine and better

    @cached_property
    def _apart(self) -> Settings:
        """The settings, but for what is recomputed and the samples that this has room for."""
        return replace(self.prediction.settings, batch=1, accumulate=1, checkpoint="none")

    def reason(self, first: Recommendation) -> str:
        """Why it ranks where it does: what a step is spent on, and how that differs from the first."""
        over = "weights, gradients and states" if self.prediction.settings.training else "weights"
        again = f"{self.recomputed:.1%} recomputed" if self.recomputed else "nothing recomputed"
        facts = f"{self.useful:.1%} of the step is work on its samples, {again}, {self.moving:.1%} moves {over}"
        said = [] if self is first else list(self._beside(first))
        return f"{facts}; {', '.join(said)}" if said else facts

    def _beside(self, first: Recommendation) -> Iterator[str]:
        """What tells it from the first."""
        if self.batch != first.batch:
            yield f"batch {self.batch:,}, where the first has {first.batch:,}"
        extra = self._held - first._held
        if extra > 0:
            yield f"weights, gradients and states take {show_bytes(extra)} more"
        if self.recomputed and not first.recomputed:
            yield "the first recomputes nothing"

    @property
    def _held(self) -> int:
        m = self.prediction.memory
        return int(m.weights + m.masters + m.gradients + m.optimizer)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes, FLOPs, shares]."""
        flops = self.prediction.flops
        return {
            "settings": {name: _shown(value) for name, value in self.settings.items()},
            "samples": self.samples,
            "peak": self.peak,
            "flops": flops.total,
            "recomputed_flops": flops.recomputed,
            "moved_bytes": self.moved,
            "useful": self.useful,
            "recomputed": self.recomputed,
            "moving": self.moving,
        }


def _shown(value: Any) -> Any:
    """A setting as plain data."""
    if isinstance(value, tuple | list):
        return [_shown(v) for v in value]
    return value if value is None or isinstance(value, str | int | dict) else getattr(value, "name", str(value))


class Counts(NamedTuple):
    """How many ways were tried, and how many of them fit."""

    tried: int
    fit: int


@dataclass(frozen=True)
class Recommendations:
    """What fits, the most useful first; true if anything does.

    chosen: settings that were chosen. smallest: what takes the least of all that was tried. tips: what would make it
    fit, where nothing does. Ways that recompute more than another and have no larger batch for it are left out.
    """

    title: str
    budget: Budget
    reserve: int
    chosen: tuple[str, ...]
    counts: Counts
    entries: tuple[Recommendation, ...]
    smallest: Recommendation
    tips: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Recommendation]:
        return iter(self.entries)

    def __getitem__(self, rank: int) -> Recommendation:
        return self.entries[rank]

    @property
    def best(self) -> Recommendation:
        """The first. Raises SettingError if nothing fits."""
        if not self:
            raise SettingError(self._head())
        return self.entries[0]

    def margin(self, entry: Recommendation) -> int:
        """Bytes that one leaves; negative if there are too few."""
        return self.budget.bytes - self.reserve - entry.peak

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes, FLOPs, shares]."""
        return {
            "fits": bool(self),
            "budget": self.budget.bytes,
            "reserve": self.reserve,
            "chosen": list(self.chosen),
            "tried": self.counts.tried,
            "fit": self.counts.fit,
            "recommendations": [
                {"rank": n, **entry.to_dict(), "margin": self.margin(entry), "reason": entry.reason(self.best)}
                for n, entry in enumerate(self.entries, 1)
            ],
            "smallest": {**self.smallest.to_dict(), "margin": self.margin(self.smallest)},
            "tips": list(self.tips),
        }

    def to_dataframe(self) -> pandas.DataFrame:
        """A row for each (needs pandas, extra `frame`)."""
        try:
            import pandas
        except ImportError:
            raise CostModelError("to_dataframe needs pandas: pip install 'costmodel[frame]'") from None
        rows = [{**entry, **entry.pop("settings")} for entry in self.to_dict()["recommendations"]]
        return pandas.DataFrame(rows)

    def table(self) -> Table:
        """The first of them."""
        names = [*(name for name in self.chosen if name not in RUN), "batch"]
        names += ["accumulate"] if any(entry.accumulate > 1 for entry in self.entries) else []
        rows = [
            (
                str(rank),
                *(_cell(getattr(entry.prediction.settings, name)) for name in names),
                show_bytes(entry.peak),
                f"{entry.recomputed:.1%}" if entry.recomputed else "-",
                f"{entry.useful:.1%}",
            )
            for rank, entry in enumerate(self.entries[:MOST_SHOWN], 1)
        ]
        words = frozenset(range(1, 1 + sum(name not in RUN for name in names)))
        return Table(("", *names, "peak", "recomputed", "useful"), rows, words=words)

    def _head(self) -> str:
        reserve = f" less a reserve of {show_bytes(self.reserve)}" if self.reserve else ""
        budget = f"{show_bytes(self.budget.bytes)} ({self.budget.reading}){reserve}"
        if not self:
            return (
                f"{self.title}: none of {self.counts.tried} ways to run it fits {budget}: the smallest takes "
                f"{show_bytes(self.smallest.peak)}, {show_bytes(-self.margin(self.smallest))} too much"
            )
        beaten = self.counts.fit - len(self)
        less = f", of which {beaten} recompute for nothing and are left out" if beaten else ""
        return f"{self.title}: {self.counts.fit} of {self.counts.tried} ways to run it fit {budget}{less}"

    def _notes(self) -> list[str]:
        if not self:
            asked = self.smallest.prediction.settings
            return [f"the smallest: {', '.join(f'{k} {_cell(getattr(asked, k))}' for k in self.chosen)}", *self.tips]
        reasons = [f"{n}: {entry.reason(self.best)}" for n, entry in enumerate(self.entries[:MOST_SHOWN], 1)]
        more = [f"{len(self) - MOST_SHOWN} more fit"] if len(self) > MOST_SHOWN else []
        rate = f"{self.best.flops_per_byte:g} FLOPs"
        return [*reasons, *more, f"useful: the share of a step that is model FLOPs, a byte moved counting as {rate}"]

    def __str__(self) -> str:
        notes = "\n".join(fill(printable(note), WIDTH, subsequent_indent="   ") for note in self._notes())
        return "\n\n".join([fill(printable(self._head()), WIDTH), *([self.table().text()] if self else []), notes])

    def _repr_html_(self) -> str:
        table = self.table().html() if self else ""
        notes = "<br>".join(map(escape, self._notes()))
        return f'<div style="overflow-x:auto"><p>{escape(self._head())}</p>{table}<p>{notes}</p></div>'


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return show_checkpoint(value if isinstance(value, str | tuple) else str(getattr(value, "name", value)))
