"""What to recompute so that a training step fits: every way that a model allows, priced, and the cheapest that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.search import with_settings
from costmodel.analysis.sweep.axes import label_of
from costmodel.cost.budget import room_for
from costmodel.cost.question import question as first_line
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import Budget, show_bytes, show_flops
from costmodel.documents.arguments import typed
from costmodel.errors import SettingError, shown
from costmodel.training.keywords import GivenSettings
from costmodel.training.signatures import takes_settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture

Checkpoint = str | int | tuple[str, ...]
PARTS: tuple[Checkpoint, ...] = ("selective", ("mlp",), ("attention",), ("attention", "mlp"))
MOST_GROUPS = 16
"""Groups of more blocks are tried only as "sqrt": no network is so deep that they would be better."""


@dataclass(frozen=True)
class Candidate:
    """One value of the setting `checkpoint`: its peak [bytes], and the contraction FLOPs that it recomputes."""

    checkpoint: Checkpoint
    peak: int
    recomputed_flops: int


@dataclass(frozen=True, repr=False)
class CheckpointChoice(Answer):
    """Candidates, the cheapest first and of equal ones the smallest; true if one of them fits.

    question: what is chosen for. budget: what there is [bytes]. reserve: what is left of it for what is not modelled
    [bytes]. candidates: every value that the model can take, the one that recomputes least first.

    Example:
        >>> import costmodel as cm
        >>> found = cm.cheapest_checkpoint("gpt2-small", "16 GiB", batch=32, seq=512)
        >>> bool(found), found.chosen.checkpoint
        (True, 'sqrt')

    """

    question: str
    budget: Budget
    reserve: int
    candidates: tuple[Candidate, ...]

    @typed
    def margin(self, candidate: Candidate) -> int:
        """Bytes that a candidate leaves; negative if there are too few."""
        return self.budget.bytes - self.reserve - candidate.peak

    @property
    def chosen(self) -> Candidate | None:
        """The first candidate that fits."""
        return next((candidate for candidate in self.candidates if self.margin(candidate) >= 0), None)

    @property
    def smallest(self) -> Candidate:
        """The candidate of the least peak."""
        return min(self.candidates, key=lambda candidate: candidate.peak)

    def __bool__(self) -> bool:
        return self.chosen is not None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each candidate."""
        return self.to_dict()["candidates"]

    def sheet(self) -> Sheet:
        """All candidates, and the cheapest that fits."""
        rows = [
            (
                label_of(candidate.checkpoint),
                show_bytes(candidate.peak),
                show_flops(candidate.recomputed_flops),
                "chosen" if candidate is self.chosen else "yes" if self.margin(candidate) >= 0 else "no",
            )
            for candidate in self.candidates
        ]
        table = Table(("checkpoint", "peak", "recomputed", "fits"), rows, words=frozenset({0, 3}))
        return Sheet([self.question], [table], notes=[self._verdict()])

    def _verdict(self) -> str:
        best = self.chosen or self.smallest
        name, margin = label_of(best.checkpoint), show_bytes(abs(self.margin(best)))
        reserve = f", reserve {show_bytes(self.reserve)}" if self.reserve else ""
        budget = f"budget {show_bytes(self.budget.bytes)} ({self.budget.reading}){reserve}"
        if self:
            return f"checkpoint {name} is the cheapest that fits: {budget}, {margin} to spare"
        return f"none fits: {budget}; the smallest, checkpoint {name}, takes {margin} too much"

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes, FLOPs]."""
        return {
            "question": self.question,
            "fits": bool(self),
            "checkpoint": self.chosen.checkpoint if self.chosen else None,
            "budget": self.budget.bytes,
            "reserve": self.reserve,
            "margin": self.margin(self.chosen or self.smallest),
            "candidates": [{**vars(each), "fits": self.margin(each) >= 0} for each in self.candidates],
        }


@takes_settings(without="checkpoint")
def cheapest_checkpoint(
    model: Architecture | str,
    memory: str | int | None = None,
    *,
    reserve: str | int | None = None,
    **settings: Unpack[GivenSettings],
) -> CheckpointChoice:
    """The value of `checkpoint` that recomputes least among those with which a training step fits `memory`.

    Args:
        model: as `predict` takes it.
        memory: such as "24 GiB", or a machine such as "t4" (default: that of the setting `on`).
        reserve: memory to leave for what is not modelled (default: of a machine what its driver takes at most).
        **settings: all that `predict` takes but checkpoint.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> cm.cheapest_checkpoint("gpt2-small", "16 GiB", batch=32, seq=512, attention="flash").chosen.checkpoint
        ('mlp',)

    """
    prediction = predict(model, **settings)
    if (checkpoint := prediction.settings.checkpoint) != "none":
        raise SettingError(f"checkpoint={shown(checkpoint)} is what is to be chosen: leave it out")
    if not prediction.settings.training:
        raise SettingError(f"mode={prediction.settings.mode!r} recomputes nothing: choose a checkpoint in mode 'train'")
    budget, spared = room_for(memory, reserve, on=prediction.settings.on)
    candidates = sorted(_candidates(prediction), key=lambda candidate: (candidate.recomputed_flops, candidate.peak))
    question = first_line(prediction.model, prediction.settings, ("checkpoint",))
    return CheckpointChoice(question, budget, spared, tuple(candidates))


def _candidates(first: Prediction) -> Iterator[Candidate]:
    """Every way that the model has, none first."""
    by_block = with_settings(first, checkpoint="block")
    blocks = 0 if by_block is None else by_block.tape.recomputation.depth
    root = isqrt(blocks - 1) + 1 if blocks else 0
    groups = [*range(2, min(root - 1, MOST_GROUPS) + 1), *(["sqrt"] if root > 1 else [])]
    traced = {"none": first, "block": by_block}
    for checkpoint in ("none", *PARTS, "block", *groups):
        p = traced[checkpoint] if checkpoint in traced else with_settings(first, checkpoint=checkpoint)
        if p is not None:
            yield Candidate(checkpoint, p.memory.peak, p.flops.recomputed)
