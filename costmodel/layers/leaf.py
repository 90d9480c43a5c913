"""What no gradient passes through: weights by themselves, numbers made of sizes and indices, what has no rule."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Role, Storage, Tensor
from costmodel.layers.base import NO_SCRATCH, Buffers, Gradient, Kind, Scratch, Weights, Work, layer
from costmodel.layers.shape import Moving


@layer
class Parameter(Kind):
    """A weight by itself, that something other than a layer of its own reads."""

    source = "torch.nn.Parameter"
    in_lists = False

    shape: tuple[int, ...]

    def check(self, call: Call) -> None:
        """Takes nothing."""

    def weights(self, call: Call) -> Weights:
        """Itself."""
        return {"weight": self.shape}

    def buffers(self, call: Call) -> Buffers:
        """None."""
        return {}

    def output(self, call: Call) -> Tensor:
        """The weight, seen as it is."""
        return call.weights["weight"].view(self.shape, None)

    def forward(self, call: Call) -> Work:
        """No arithmetic."""
        return Work(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """None: whatever reads the weight adds to its gradient."""
        return ()

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Nothing."""
        return ()

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@layer
class Made(Moving):
    """Numbers that no gradient goes to: a range, a mask, indices worked out from others. `work`: per element."""

    source = "torch.arange, full, comparisons, logic, arithmetic on integers"

    shape: tuple[int, ...]
    role: str = "activation"
    work: float = 0

    def output(self, call: Call) -> Tensor:
        """New memory."""
        role: Role = self.role  # type: ignore[assignment]
        return call.run.tensor(self.shape, role)

    def forward(self, call: Call) -> Work:
        """See the class."""
        return Work(0, call.y.size * int(self.work))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """None."""
        return ()


@layer
class Unknown(Moving):
    """An operator that has no rule: its output exists, its arithmetic and what it keeps are left out."""

    source = "no rule: a lower bound"

    operator: str
    shape: tuple[int, ...]
    role: str = "activation"

    def output(self, call: Call) -> Tensor:
        """New memory."""
        role: Role = self.role  # type: ignore[assignment]
        return call.run.tensor(self.shape, role)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Unknown; gradients are passed on."""
        for x in call.inputs:
            yield Gradient(x, Work(0, 0))
