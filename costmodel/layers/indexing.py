"""What stands at the leaves of an imported graph, and numbers read from or put at places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from costmodel.graph.call import Call, Gradient, LayerFlops, Weights, Workspace
from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Role, Shape, Storage, Tensor
from costmodel.layers.base import KeepsInputsAndOutput, KeepsNothing, OneKernel, Unbuffered, layer
from costmodel.layers.shape import Moving, joint_role
from costmodel.symbolic.sizes import maximum
from costmodel.training.dtypes import Dtype, size_bytes


@layer
class Parameter(KeepsNothing, OneKernel, Unbuffered):
    """A weight by itself, that something other than a layer of its own reads."""

    source = "torch.nn.Parameter"
    arity = 0

    shape: tuple[int, ...]

    def weights(self, call: Call) -> Weights:
        return {"weight": self.shape}

    def output(self, call: Call) -> Tensor:
        return call.weights["weight"].as_strided(self.shape, None)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        return ()

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return ()

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return ()


@layer
class Computed(Moving):
    """Numbers that no gradient goes to: a range, a mask, indices worked out from others. `work`: per element."""

    source = "torch.arange, full, comparisons, logic, arithmetic on integers"

    shape: tuple[int, ...]
    role: str = "activation"
    work: float = 0

    def output(self, call: Call) -> Tensor:
        role: Role = self.role  # type: ignore[assignment]
        return call.tape.tensor(self.shape, role)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.y.size * int(self.work))

    def backward(self, call: Call) -> Iterable[Gradient]:
        return ()


@layer
class Unknown(Moving):
    """An operator that has no rule: its output exists, its arithmetic and what it keeps are left out."""

    source = "no rule: a lower bound"

    operator: str
    shape: tuple[int, ...]
    role: str = "activation"
    dtype: Dtype | None = None

    def output(self, call: Call) -> Tensor:
        role: Role = self.role  # type: ignore[assignment]
        return call.tape.tensor(self.shape, role, dtype=self.dtype)


@layer
class Gather(Moving):
    """Elements by index: y = x[i], the index being all inputs but the first. `whole`: x is kept too."""

    source = "torch.Tensor.__getitem__ by index, index_select, gather; dx[i] += g"
    sorts, launches = ("gather", "gather"), (1, 2)

    shape: tuple[int, ...]
    whole: bool = False

    def output(self, call: Call) -> Tensor:
        return call.tape.tensor(self.shape, joint_role(call.inputs[:1]))

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, call.y.reals))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs[0 if self.whole else 1 :]


@layer
class Scatter(Moving):
    """A copy of x with other numbers at some places.

    valued: the second input has them. whole: they are kept too, if they need a gradient.
    """

    source = "torch.Tensor.index_put, index_copy, scatter; dx = g without those places, those of the numbers are g[i]"
    sorts, launches = ("gather", "gather"), (2, 2)

    valued: bool
    whole: bool = False

    def output(self, call: Call) -> Tensor:
        return call.like(call.x, joint_role(call.inputs[:1]))

    def backward(self, call: Call) -> Iterable[Gradient]:
        for x in call.inputs[: 1 + self.valued]:
            yield Gradient(x, LayerFlops(0, 0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from call.inputs[1 + self.valued :]
        if self.valued and self.whole and call.inputs[1].requires_grad:
            yield call.inputs[1]


@layer
class ScatterAdd(Moving):
    """A copy of x to which numbers s are added at places i. `whole`: s is kept, for its shape."""

    source = "torch.Tensor.index_add, scatter_add; dx = g, ds = g[i]"
    sorts, launches = ("gather", "gather"), (2, 1)

    whole: bool

    def output(self, call: Call) -> Shape:
        return call.x.shape

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.inputs[1].size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The incoming gradient itself, and its elements at the places."""
        yield Gradient(call.x, LayerFlops(0, 0), shared=True)
        yield Gradient(call.inputs[1], LayerFlops(0, 0))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The places, for the gradient of the numbers."""
        _, numbers, places = call.inputs
        if numbers.requires_grad:
            yield places
            if self.whole:
                yield numbers


@layer
class MaskedScatter(Moving):
    """A copy of x with the numbers of the second input, in their order, wherever a mask, the third, holds."""

    source = "torch.Tensor.masked_scatter; dx = g with zeros there, the other's those numbers of g"
    sorts, launches = ("gather", "gather"), (2, 2)
    arity = 3

    def output(self, call: Call) -> Shape:
        return call.x.shape

    def backward(self, call: Call) -> Iterable[Gradient]:
        """A choice per element of x."""
        yield Gradient(call.x, LayerFlops(0, call.x.size))
        yield Gradient(call.inputs[1], LayerFlops(0, 0))

    def workspace(self, call: Call) -> Workspace:
        """The numbers that were read, and zeros for the others, before they are put one after another."""
        numbers = call.inputs[1]
        return Workspace(0, numbers.size if numbers.requires_grad else 0)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield call.inputs[2]


@layer
class ScatterReduce(KeepsInputsAndOutput, Moving):
    """A copy of x in which numbers s are combined at places i: by a sum, a product, a mean, the largest or smallest.

    included: x's own number is one of those that are combined.
    """

    source = "torch.Tensor.scatter_reduce; of a product dx = g·y/x, ds = (g·y)[i]/s"
    sorts, launches = ("gather", "gather"), (2, 2)

    how: Literal["sum", "prod", "mean", "amax", "amin"] = "prod"
    included: bool = True

    def output(self, call: Call) -> Shape:
        return call.x.shape

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, call.inputs[1].size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Of a product: g·y, and a quotient for each element of x and of s. Of a sum g itself, and g[i]."""
        x, numbers, _ = call.inputs
        if self.how == "sum":
            yield Gradient(x, LayerFlops(0, 0), shared=self.included)
            yield Gradient(numbers, LayerFlops(0, 0))
            return
        yield Gradient(x, LayerFlops(0, 2 * x.size))
        yield Gradient(numbers, LayerFlops(0, numbers.size + (0 if x.requires_grad else x.size)))

    def workspace(self, call: Call) -> Workspace:
        """Both gradients are made, whichever is needed, and what is on the way to them (``scatter_reduce_backward``).

        Of a sum nothing else. Of a mean how many numbers there are, g divided by that, and both read at the places. Of
        an extreme, y at the places, where x and where s is it, how many those are, g divided by that, also read at the
        places, and a mask for x's gradient, then one for s's, which a CPU casts. Of a product x and s without zeros,
        the products of x and of s with those that are left, g·y twice, how many zeros there are, what is read at the
        places, and where s is 0, and where it alone is.
        """
        x, numbers, places = call.inputs
        n, k = (size_bytes(of.size, call.y.dtype) for of in (x, places))
        shared = self.how == "sum" and self.included
        if self.how == "sum":
            steps = k if shared else n + k
        elif self.how == "mean":
            steps = 2 * n + 3 * k
        elif self.how == "prod":
            steps = 6 * n + 7 * k + 2 * places.size
        else:
            casts = call.tape.device == "cpu"
            steps = 4 * n + 2 * k + maximum((2 + casts) * k + places.size, casts * n + x.size)
        gradients = [of for of in (x, numbers) if of.requires_grad and not (of is x and shared)]
        return Workspace(0, 0, steps - sum(of.bytes for of in gradients))
