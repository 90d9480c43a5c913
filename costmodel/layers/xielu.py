"""xIELU, an activation with two trained numbers of its own."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Gradient, LayerFlops, Storage, Tensor, Weights
from costmodel.layers.base import Unary, layer

SOFTPLUS = 3
"""log(1 + eᵃ) of a number."""


@layer
class Xielu(Unary):
    """y = (x > 0 ? α₊·x² : α₋·(e^min(x, ε) − 1 − x)) + β·x, α₊ = log(1 + eᵃ), α₋ = β + log(1 + eᵇ), a and b trained.

    Backward takes the derivative for x > 0 and for x ≤ 0: dx = g·((x > 0 ? 2α₊·x : α₋·(e^min(x, ε) − 1)) + β).
    """

    source = "xIELU (Huang & Schlag 2024, arXiv:2411.13010, eq. 3 and 4), one kernel each way"
    in_lists = False

    def weights(self, call: Call) -> Weights:
        return {"positive": (1,), "negative": (1,)}

    def forward(self, call: Call) -> LayerFlops:
        """Per element α₊·x·x 2, min 1, e and − 1 2, − x 1, ·α₋ 1, comparison, choice, β·x and the sum 4."""
        return LayerFlops(0, 11 * call.x.size + 2 * SOFTPLUS + 1)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """dx; da = σ(a)·Σ g·x² where x > 0, db = σ(b)·Σ g·(e^min(x, ε) − 1 − x) elsewhere."""
        size = call.x.size
        yield Gradient(call.x, LayerFlops(0, 9 * size + 2 * SOFTPLUS + 2))
        yield Gradient(call.weights["positive"], LayerFlops(0, 5 * size + 5))
        yield Gradient(call.weights["negative"], LayerFlops(0, 8 * size + 5))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.x
        yield from call.weights.values()
