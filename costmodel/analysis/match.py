"""A model made wider or deeper until it costs what another does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.search import VariedSize, size_of
from costmodel.analysis.solve import solve_for
from costmodel.cost.quantities import plain
from costmodel.cost.report import headline
from costmodel.display.answer import Answer, Sheet
from costmodel.display.units import show_change, shower
from costmodel.errors import CostModelError
from costmodel.training.keywords import GivenSettings
from costmodel.training.signatures import takes_settings

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture


@dataclass(frozen=True, repr=False)
class Match(Answer):
    """The model of a family whose quantity is nearest to a target; of two as near, the smaller.

    prediction: of that model. quantity: what is to be near `target`. varied: the size, with its values.

    Example:
        >>> import costmodel as cm
        >>> cm.match("gpt2-small", "params", "350M", by="layers").off < 0.01
        True

    """

    prediction: Prediction
    quantity: str
    target: Any
    varied: VariedSize

    @property
    def model(self) -> Architecture:
        """The model whose quantity is nearest."""
        return self.prediction.model

    @property
    def size(self) -> int:
        """The size that the model has now."""
        return size_of(self.prediction, self.varied.name)

    @property
    def value(self) -> Any:
        """The quantity of the model."""
        return plain(self.prediction.value(self.quantity))

    @property
    def off(self) -> float:
        """By which part of the target the quantity is above it; negative below."""
        return (self.value - self.target) / self.target

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        from costmodel.importers.files import describe

        return {
            "model": describe(self.model),
            "quantity": self.quantity,
            "target": self.target,
            "value": self.value,
            "off": self.off,
            "by": self.varied.name,
            "size": self.size,
            "was": self.varied.own,
            "note": self.varied.note,
        }

    def sheet(self) -> Sheet:
        """The question, the size, and how near to the target it comes."""
        show = shower(self.quantity)
        note = f"; {self.varied.note}" if self.varied.note else ""
        sized = f"{self.model.title}: {self.varied.name} {self.size:,} (was {self.varied.own:,})"
        nearness = f"{self.quantity} {show(self.value)}, {self._nearness()} {show(self.target)}"
        return Sheet([headline(self.prediction), f"{sized}: {nearness}{note}"], [])

    def _nearness(self) -> str:
        if not self.off:
            return "exactly"
        return f"{show_change(self.off, 2)} of" if abs(self.off) >= 1e-4 else "within 0.01% of"


@takes_settings()
def match(
    model: Architecture | str,
    quantity: str,
    target: str | float,
    *,
    by: str = "width",
    **settings: Unpack[GivenSettings],
) -> Match:
    """The model of the same family whose quantity comes nearest to `target`, with how near that is.

    Args:
        model: as `predict` takes it.
        quantity: such as "params" or "flops.forward".
        target: bytes such as "24 GiB" for memory, else a number or text such as "124M" or "2.5 TFLOP".
        by: the size to vary: "width" (hidden layers keep their proportions), "layers", or another size of the model.
        **settings: all that `predict` takes.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.match("gpt2-small", "params", "350M", by="layers")
        >>> found.size, found.value
        (44, 351251712)

    """
    return nearest(predict(model, **settings), quantity, target, by)


def nearest(question: Prediction, quantity: str, target: Any, by: str) -> Match:
    """`match` for the question of a prediction."""
    solution = solve_for(question, quantity, target, by)
    candidates = [solution.prediction]
    if solution.past is not None:
        with suppress(CostModelError):
            candidates.append(solution.varied.at(solution.past))
    matches = [Match(p, quantity, solution.target.bytes, solution.varied) for p in candidates]
    return min(matches, key=lambda match: (abs(match.value - match.target), match.value))
