"""Kinds that move numbers without computing on them: views, copies, joints, look-ups; and what stands at the start."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Role, Shape, Storage, Tensor
from costmodel.layers.base import (
    NO_SCRATCH,
    Buffers,
    Gradient,
    Kind,
    Scratch,
    View,
    Weightless,
    Weights,
    Work,
    unlisted,
)
from costmodel.layers.spatial import arranged, channels_last


class Moving(Weightless):
    """Abstract: inputs of any number and shape; no arithmetic."""

    in_lists = False

    def check(self, call: Call) -> None:
        """The operator that it stands for has checked."""

    def forward(self, call: Call) -> Work:
        """No arithmetic."""
        return Work(0, 0)

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Nothing."""
        return ()

    def scratch(self, call: Call) -> Scratch:
        """None."""
        return NO_SCRATCH


@unlisted
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


@unlisted
class Part(View):
    """A part of a tensor along one axis, or one seen several times: other sizes over the same memory."""

    source = "torch.Tensor.as_strided, as slices, selections and expansions are; backward of an expansion sums"
    in_lists = False

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def output(self, call: Call) -> Tensor:
        """The same memory."""
        return call.x.view(self.shape, self.strides)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A place in the whole's gradient; what is seen several times is summed."""
        larger = call.y.size > call.x.size
        yield Gradient(call.x, Work(0, call.y.size if larger else 0), shared=not larger)


@unlisted
class Copied(Moving):
    """The same numbers in memory of their own, contiguous or in the input's order."""

    source = "torch.clone, contiguous, repeat and roll; backward copies, or sums what was repeated"

    shape: tuple[int, ...]
    ordered: bool = False

    def output(self, call: Call) -> Shape | Tensor:
        """New memory."""
        role = call.x.storage.role
        role = "activation" if role == "weight" else role
        return call.like(call.x, role) if self.ordered else call.run.tensor(self.shape, role, dtype=call.x.dtype)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The incoming gradient, summed where numbers were repeated."""
        more = call.y.size > call.x.size
        yield Gradient(call.x, Work(0, call.y.size if more else 0), shared=not more)


@unlisted
class Joined(Moving):
    """Tensors one after another along an axis."""

    source = "torch.cat, torch.stack; each gradient is a slice of the incoming one"

    shape: tuple[int, ...]

    def output(self, call: Call) -> Shape | Tensor:
        """New memory; channels are last in it if they are so in all."""
        last = all(channels_last(x) for x in call.inputs)
        if last and len(self.shape) == 4:
            return arranged(call, self.shape)
        return call.run.tensor(self.shape, _joint_role(call.inputs))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Slices."""
        for x in call.inputs:
            yield Gradient(x, Work(0, 0), shared=True)


@unlisted
class Chosen(Moving):
    """Elements by index: y = x[i], the index being all inputs but the first. `whole`: x is kept too."""

    source = "torch.Tensor.__getitem__ by index, index_select, gather; dx[i] += g"

    shape: tuple[int, ...]
    whole: bool = False

    def output(self, call: Call) -> Tensor:
        """New memory."""
        return call.run.tensor(self.shape, _joint_role(call.inputs[:1]))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """An addition for each element."""
        yield Gradient(call.x, Work(0, call.y.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The index, and x if so."""
        yield from call.inputs[0 if self.whole else 1 :]


@unlisted
class Placed(Moving):
    """A copy of x with other numbers at some places.

    valued: the second input has them. whole: they are kept too, if they need a gradient.
    """

    source = "torch.Tensor.index_put, index_copy, scatter; dx = g without those places, those of the numbers are g[i]"

    valued: bool
    whole: bool = False

    def output(self, call: Call) -> Tensor:
        """New memory, in the input's order unless numbers are kept."""
        role = _joint_role(call.inputs[:1])
        return call.run.tensor(call.x.shape, role) if self.whole else call.like(call.x, role)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """No arithmetic: numbers are moved."""
        for x in call.inputs[: 1 + self.valued]:
            yield Gradient(x, Work(0, 0))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The places, and the numbers if so."""
        yield from call.inputs[1 + self.valued :]
        if self.valued and self.whole and call.inputs[1].requires_grad:
            yield call.inputs[1]


@unlisted
class Accumulated(Moving):
    """A copy of x to which numbers s are added at places i. `whole`: s is kept, for its shape."""

    source = "torch.Tensor.index_add, scatter_add; dx = g, ds = g[i]"

    whole: bool

    def output(self, call: Call) -> Shape:
        """New memory."""
        return call.x.shape

    def forward(self, call: Call) -> Work:
        """An addition for each number."""
        return Work(0, call.inputs[1].size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The incoming gradient itself, and its elements at the places."""
        yield Gradient(call.x, Work(0, 0), shared=True)
        yield Gradient(call.inputs[1], Work(0, 0))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The places, for the gradient of the numbers."""
        _, numbers, places = call.inputs
        if numbers.requires_grad:
            yield places
            if self.whole:
                yield numbers


@unlisted
class Combined(Moving):
    """A copy of x in which numbers s are combined at places i: by a sum, a product, a mean, the largest or smallest."""

    source = "torch.Tensor.scatter_reduce; of a product dx = g·y/x, ds = (g·y)[i]/s"

    def output(self, call: Call) -> Shape:
        """New memory."""
        return call.x.shape

    def forward(self, call: Call) -> Work:
        """An operation for each number."""
        return Work(0, call.inputs[1].size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two operations for each element."""
        for x in call.inputs[:2]:
            yield Gradient(x, Work(0, 2 * x.size))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Everything, whichever way numbers are combined."""
        yield from call.inputs
        yield call.y


@unlisted
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


@unlisted
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


def _joint_role(inputs: Iterable[Tensor]) -> Role:
    """What a joint of these holds: activations where weights are among them."""
    roles: list[Role] = [x.storage.role for x in inputs]
    return "activation" if not roles or "weight" in roles or "activation" in roles else roles[0]
