"""Tables looked up by index: tokens and learned positions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import NO_SCRATCH, Buffers, Gradient, Kind, Scratch, Weights, Work, layer, takes


class Table(Kind):
    """Abstract: rows of a trained table; backward adds each row's gradient into a gradient of the table's size."""

    in_lists = False

    features: int

    @abstractmethod
    def entries_of(self, call: Call) -> int:
        """Rows in the table."""

    def weights(self, call: Call) -> Weights:
        """The table."""
        return {"weight": (self.entries_of(call), self.features)}

    def buffers(self, call: Call) -> Buffers:
        """None."""
        return {}

    def forward(self, call: Call) -> Work:
        """A lookup, no arithmetic."""
        return Work(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """One addition per looked-up element."""
        yield Gradient(call.weights["weight"], Work(0, call.y.size))

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@layer
class Embedding(Table):
    """y = W[x]; x: integer indices of any shape, y: (*x, features), W: (entries, features)."""

    source = "y = W[x] (torch.nn.Embedding); dW[x] += g (Bengio et al. 2003, §2)"

    entries: int
    features: int

    def entries_of(self, call: Call) -> int:
        """As declared."""
        return self.entries

    def check(self, call: Call) -> None:
        """Takes indices."""
        takes(call, 1)
        if call.x.storage.role != "index":
            raise call.fail("embedding takes integer indices, not activations")

    def output(self, call: Call) -> Shape:
        """(*x, features)."""
        return (*call.x.shape, self.features)

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The indices."""
        yield call.x


@layer
class LearnedPositions(Table):
    """A trained vector for each position: y = W[0 … T − 1].

    x: tokens (batch, T), y: (T, features), W: (context, features).
    """

    source = "y = W[0 … T − 1] (torch.nn.Embedding of arange; Gehring et al. 2017, §3.1; Radford et al. 2019)"

    context: int
    features: int

    def entries_of(self, call: Call) -> int:
        """The context."""
        return self.context

    def check(self, call: Call) -> None:
        """T is within the table."""
        takes(call, 1)
        if call.x.shape[1] > self.context:
            raise call.fail(f"seq {call.x.shape[1]} is beyond the learned position table; use at most {self.context}")

    def output(self, call: Call) -> Shape:
        """(T, features)."""
        return (call.x.shape[1], self.features)

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The int64 positions."""
        yield call.fresh("index", call.x.shape[1])
