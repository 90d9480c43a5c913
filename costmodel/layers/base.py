"""What a layer kind is: one final, frozen class that states everything one layer costs.

A multiply-add counts as two FLOPs. Contractions (products summed over an axis: matrix products, convolutions,
attention) are counted apart from pointwise arithmetic, in which every operation of the plain definition counts as one:
addition, negation, multiplication, division, comparison, maximum, choice (``a if c else b``, beside the comparison
that made c) and elementary function (exp, erf, tanh, sqrt, log). Free are moving and converting numbers, drawing
random ones, logic between comparisons, and arithmetic on constants alone.

A sum of n terms within a formula is n - 1 additions, a mean n operations. A gradient that sums r terms (over rows,
broadcast axes, windows that overlap) accumulates them from zero, as a contraction does: r additions. What several
gradients of one layer share is counted with the first that is needed. Adding up the gradients of a tensor that
several layers read is no layer's, and is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

from costmodel.graph.kernel import Kernel, Sort
from costmodel.graph.tensor import (
    AbstractLayer,
    Buffers,
    Call,
    Gradient,
    LayerFlops,
    Shape,
    Storage,
    Tensor,
    Weights,
    Workspace,
)
from costmodel.layers.kernels import backward_pass, forward_pass
from costmodel.symbolic.sizes import LARGEST_SIZE
from costmodel.training.fields import check_fields, plainly_right
from costmodel.training.frozen import Frozen, frozen

NO_WORKSPACE = Workspace(0, 0)


class Layer(Frozen, AbstractLayer):
    """Abstract base of all layer kinds; `x` and `y` in the docstrings are the first input and the output."""

    largest: ClassVar[int] = LARGEST_SIZE**2
    """The largest whole number in a field: a model's own layers may be of products of its sizes."""
    in_lists: ClassVar[bool] = True
    """Whether it can stand in a list of blocks: one input of activations, and nothing but a description to go by."""

    def __post_init__(self) -> None:
        """Values are of their fields' types and in range. Raises SpecError or UnknownNameError."""
        fields = self.__dataclass_fields__
        for name, value in self.__dict__.items():
            if not plainly_right(fields[name], value):
                check_fields(self, self.kind, self.largest)
                break

    def __call__(self, *inputs: Tensor, name: str | None = None, tied: Mapping[str, Tensor] | None = None) -> Tensor:
        """Apply to paper tensors. `tied` gives weights that another layer already has.

        Raises ShapeError if the shapes do not fit.
        """
        return inputs[0].tape.record(self, inputs, name, tied)


KINDS: dict[str, type[Layer]] = {}
"""Every kind defined so far, by name."""

K = TypeVar("K", bound=type[Layer])


@dataclass_transform(frozen_default=True)
def layer(cls: K) -> K:
    """Make `cls` a layer kind: a frozen dataclass, final, named, listed in `KINDS`. Checked when it is defined."""
    if missing := getattr(cls, "__abstractmethods__", None):
        raise TypeError(f"layer kind {cls.__name__} does not say: {', '.join(sorted(missing))}")
    if not getattr(cls, "source", "").strip():
        raise TypeError(f"layer kind {cls.__name__} names no source for its formulas")
    cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    cls.__init_subclass__ = classmethod(_refuse_subclass)  # type: ignore[assignment]
    made = frozen()(cls)
    if cls.kind in KINDS:
        raise TypeError(f"two layer kinds are called {cls.kind}")
    KINDS[cls.kind] = made
    return made


def _refuse_subclass(cls: type, **_: Any) -> None:
    raise TypeError(f"{cls.__bases__[0].__name__} is final; derive {cls.__name__} from an abstract kind")


class Unbuffered(Layer):
    """Abstract: no buffers."""

    def buffers(self, call: Call) -> Buffers:
        return {}


class Weightless(Unbuffered):
    """Abstract: no weights, no buffers."""

    def weights(self, call: Call) -> Weights:
        return {}


class OneKernel(Layer):
    """Abstract: one kernel each way, or several alike, without working memory."""

    sorts: ClassVar[tuple[Sort, Sort]] = ("pointwise", "pointwise")
    """What the kernels of the forward pass are, and those of backward."""
    launches: ClassVar[tuple[int, int]] = (1, 1)
    """How many they are: to put numbers at places takes one that makes the rest, zeros or a copy, before it."""

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call, self.sorts[0], self.launches[0])

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return backward_pass(call, self.sorts[1], self.launches[1])

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE


class KeepsNothing(Layer):
    """Abstract: backward needs the incoming gradient alone."""

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return ()


class Unary(OneKernel, Weightless):
    """Abstract: one input of any shape, a result of that shape, computed element by element."""

    def check(self, call: Call) -> None:
        takes(call, 1)

    def output(self, call: Call) -> Tensor:
        return call.like(call.x)


class PerElement(Unary):
    """Abstract: `forward_ops` and `backward_ops` per element, the latter with the incoming gradient's product."""

    forward_ops: int
    backward_ops: int

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, self.forward_ops * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, self.backward_ops * call.x.size))


class Shaped(Layer):
    """Abstract: new memory of a shape that is given."""

    shape: tuple[int, ...]

    def output(self, call: Call) -> Shape | Tensor:
        return self.shape


class Movement(KeepsNothing, OneKernel, Weightless):
    """Abstract: numbers are moved, or seen otherwise: no arithmetic, and nothing to keep."""

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)


class View(Movement):
    """Abstract: a new shape for the same numbers. Moves nothing unless memory order forces a copy; keeps nothing."""

    sorts = "pointwise", "reduction"  # backward has to sum what was seen several times

    def check(self, call: Call) -> None:
        takes(call, 1)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0), shared=True)


def takes(call: Call, inputs: int) -> None:
    """Raise ShapeError unless the layer got this many inputs."""
    if len(call.inputs) != inputs:
        raise call.fail(f"{call.layer.kind} takes {inputs} input{'s' * (inputs > 1)}, not {len(call.inputs)}")


def takes_rank(call: Call, rank: int, axes: str) -> None:
    """Raise ShapeError unless the layer got one input with this many axes."""
    takes(call, 1)
    if len(call.x.shape) != rank:
        raise call.fail(f"{call.layer.kind} takes an input of {rank} axes ({axes}), not {len(call.x.shape)}")


def takes_channels(call: Call) -> None:
    """Raise ShapeError unless the layer got one input with a batch and a channel axis."""
    takes(call, 1)
    if len(call.x.shape) < 2:
        raise call.fail(f"{call.layer.kind} takes an input of at least two axes (batch, channels, ...)")
