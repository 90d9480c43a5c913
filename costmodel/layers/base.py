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
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

from costmodel.graph.call import AbstractLayer, Buffers, Call, Gradient, GradientOrder, LayerFlops, Weights, Workspace
from costmodel.graph.kernel import Kernel, Product, Sort
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.kernels import (
    backward_pass,
    copy_kernel,
    distinct_bytes,
    distinct_bytes_of,
    forward_pass,
    multiply,
    scale_bytes,
    stream,
    unpacking_kernel,
    unpacks_separately,
)
from costmodel.symbolic.sizes import LARGEST_SIZE
from costmodel.training.dtypes import REAL
from costmodel.training.fields import check_fields, plainly_right
from costmodel.training.frozen import Frozen, frozen

NO_WORKSPACE = Workspace(0, 0)


class Layer(Frozen, AbstractLayer):
    """Abstract base of all layer kinds; `x` and `y` in the docstrings are the first input and the output."""

    largest: ClassVar[int] = LARGEST_SIZE**2
    """The largest whole number in a field: a model's own layers may be of products of its sizes."""
    in_lists: ClassVar[bool] = True
    """Whether a kind of one input can stand in a list of blocks: it needs nothing but a description to go by."""
    arity: ClassVar[int | tuple[int, int] | None] = 1
    """How many inputs it takes, or the least and the most; None: any, as a framework has checked them."""
    input_axes: ClassVar[str] = ""
    """Names of the axes of its first input, "..." for any others; "" where their number does not matter."""

    def __post_init__(self) -> None:
        """Values are of their fields' types and in range. Raises SpecError or UnknownNameError."""
        fields = self.__dataclass_fields__
        for name, value in self.__dict__.items():
            if not plainly_right(fields[name], value):
                check_fields(self, self.kind, self.largest)
                break

    def check(self, call: Call) -> None:
        """Inputs are as many as the kind takes, and the first has the axes that it names; kinds add what else holds."""
        if self.arity is not None:
            least, most = self.arity if isinstance(self.arity, tuple) else (self.arity, self.arity)
            if not least <= len(call.inputs) <= most:
                inputs = f"{least} input{'s' * (least > 1)}" if least == most else f"{least} to {most} inputs"
                raise call.fail(f"{self.kind} takes {inputs}, not {len(call.inputs)}")
        if self.input_axes:
            _check_axes(call, self.input_axes)

    def __call__(self, *inputs: Tensor, name: str | None = None, tied: Mapping[str, Tensor] | None = None) -> Tensor:
        """Apply to paper tensors. `tied` gives weights that another layer already has.

        Raises ShapeError if the shapes do not fit.
        """
        return inputs[0].tape.record(self, inputs, name, tied)


def _check_axes(call: Call, axes: str) -> None:
    """Raise ShapeError unless the first input has an axis for each name, and others only where "..." is."""
    rank, names = len(call.x.shape), axes.split(", ")
    if "..." not in names and rank != len(names):
        raise call.fail(f"{call.layer.kind} takes an input of {len(names)} axes ({axes}), not {rank}")
    if rank < len(names) - 1:
        least = {1: "one axis", 2: "two axes"}[len(names) - 1]
        raise call.fail(f"{call.layer.kind} takes an input of at least {least} ({axes})")


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
    cls.in_lists = cls.in_lists and cls.arity == 1
    cls.__init_subclass__ = classmethod(_refuse_subclass)  # type: ignore[assignment]
    kind = frozen()(cls)
    if cls.kind in KINDS:
        raise TypeError(f"two layer kinds are called {cls.kind}")
    KINDS[cls.kind] = kind
    return kind


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
    passes: ClassVar[int] = 1
    """How often the forward kernel reads its first input."""

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return forward_pass(call, self.sorts[0], self.launches[0], self.passes)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return backward_pass(call, self.sorts[1], self.launches[1])

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE


class KeepsNothing(Layer):
    """Abstract: backward needs the incoming gradient alone."""

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return ()


class KeepsInputs(Layer):
    """Abstract: backward needs all that the layer read."""

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return call.inputs


class KeepsInputsAndOutput(Layer):
    """Abstract: backward needs all that the layer read, and what it made."""

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return (*call.inputs, call.y)


class Unary(OneKernel, Weightless):
    """Abstract: one input of any shape, a result of that shape, computed element by element."""

    def output(self, call: Call) -> Tensor:
        return call.like(call.x)

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        return "incoming"


class Function(NamedTuple):
    """What a function costs per element: operations forward and backward, and what its derivative is a function of.

    backward: with the product by the incoming gradient. steps: numbers per element that backward makes on the way to
    the gradient, and still has when that is there. shared: whether the gradient is the incoming one, in its memory.
    """

    forward: int
    backward: int
    keeps: Literal["input", "output", "both", "nothing"]
    steps: int = 0
    shared: bool = False


class PerElement(Unary):
    """Abstract: a function of each element."""

    costs: Function

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, self.costs.forward * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, self.costs.backward * call.x.size), shared=self.costs.shared)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        if self.costs.keeps in ("input", "both"):
            yield call.x
        if self.costs.keeps in ("output", "both"):
            yield call.y

    def workspace(self, call: Call) -> Workspace:
        """The steps of a gradient that PyTorch composes, such as xᶜ⁻¹ and c·xᶜ⁻¹ of a power xᶜ."""
        return Workspace(0, self.costs.steps * call.x.size)


class Shaped(Layer):
    """Abstract: new memory of a shape that is given."""

    shape: tuple[int, ...]

    def output(self, call: Call) -> Shape | Tensor:
        return self.shape


class Movement(KeepsNothing, OneKernel, Weightless):
    """Abstract: numbers are moved, or seen otherwise: no arithmetic, and nothing to keep.

    shared: whether the gradients are the incoming one, or parts of it.
    """

    shared: ClassVar[bool] = False

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        for x in call.inputs:
            yield Gradient(x, LayerFlops(0, 0), shared=self.shared)


class View(Movement):
    """Abstract: a new shape for the same numbers. Moves nothing unless memory order forces a copy; keeps nothing."""

    sorts = "pointwise", "reduction"  # backward has to sum what was seen several times
    shared = True


class Contraction(Unbuffered):
    """Abstract: products of two factors, y = a b, a batch of them or one, with a bias that they add if there is one.

    Their arithmetic is said once, by the sizes of the product that makes y: as many multiply-adds make da = g bᵀ, and
    db = aᵀ g. Each factor is kept for the other's gradient.
    """

    sort: ClassVar[Sort] = "product"
    gradient_names: ClassVar[tuple[str, str]] = ("backward", "backward")
    """Names of the kernels that make the gradients of the factors."""

    @abstractmethod
    def factors(self, call: Call) -> tuple[Tensor, Tensor]:
        """a and b."""

    @abstractmethod
    def sizes(self, call: Call) -> Product:
        """Sizes of the product."""

    def products(self, call: Call) -> tuple[Product, Product, Product]:
        """Sizes of what a device makes y, da and db with: m × k by k × n, m × n by n × k, and k × m by m × n."""
        batch, m, n, k = self.sizes(call)
        return Product(batch, m, n, k), Product(batch, m, k, n), Product(batch, k, n, m)

    def operand(self, call: Call, x: Tensor) -> Storage:
        """What the product holds of a factor: its own memory, or that of a copy where memory order cannot be read."""
        return x.storage

    def read_bytes(self, call: Call) -> int:
        """Bytes that the forward product reads."""
        return distinct_bytes_of(call.operands()) + scale_bytes(call)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(self.sizes(call).flops, call.y.size if "bias" in call.weights else 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Two contractions of the forward one's size; the bias sums the rows."""
        work = self.forward(call)._replace(pointwise=0)
        for factor in self.factors(call):
            yield Gradient(factor, work)
        if "bias" in call.weights:
            yield Gradient(call.weights["bias"], LayerFlops(0, call.y.size))

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product that adds the bias to its result, after copies of factors that it cannot read as they are."""
        for x in self.factors(call):
            if self.operand(call, x) is not x.storage:
                yield copy_kernel(call, x)
        added = self.forward(call).pointwise
        yield multiply(call, "", self.products(call)[0], self.read_bytes(call), call.y.bytes, added)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product for the gradient of each factor; the bias sums what comes in."""
        factors = self.factors(call)
        products = [*zip(factors, reversed(factors), self.products(call)[1:], self.gradient_names, strict=True)]
        for x, work, _ in call.gradients():
            terms = next((terms for terms in products if terms[0] is x), None)
            if terms is not None:
                products.remove(terms)
                yield from self._gradient_kernels(call, *terms)
            elif x is call.weights.get("bias"):
                yield stream(call, "backward bias", "reduction", work.pointwise, call.y.bytes, x.bytes)

    def _gradient_kernels(self, call: Call, x: Tensor, other: Tensor, sizes: Product, what: str) -> Iterable[Kernel]:
        """The product of a gradient, after the other factor is unpacked if a kernel of its own does that."""
        read = call.y.bytes + distinct_bytes(other)
        if x is call.x and unpacks_separately(call, sizes.m):
            yield (weight := unpacking_kernel(call, "backward"))
            read = call.y.bytes + weight.written
        dtype = REAL.get(call.x.dtype, call.x.dtype)
        yield Kernel(f"{self.kind} {what}", self.sort, sizes.flops, read, x.bytes, dtype, 1, sizes)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        a, b = self.factors(call)
        if b.requires_grad:
            yield self.operand(call, a)
        if a.requires_grad:
            yield self.operand(call, b)

    def views_gradient(self, call: Call, x: Tensor) -> bool:
        """Products are of matrices, or of batches of them: all else is seen as such, and so is a transposed weight."""
        return True

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        """A transposed matrix has a transposed gradient (``mm_mat2_backward``)."""
        return "operand" if len(x.shape) == 2 else "rows"

    def gradient_axes(self, call: Call) -> int | None:
        return 2

    def workspace(self, call: Call) -> Workspace:
        return NO_WORKSPACE


class WeightProduct(Contraction):
    """Abstract: x times a trained weight."""

    gradient_names = "backward input", "backward weight"

    def factors(self, call: Call) -> tuple[Tensor, Tensor]:
        return call.x, call.weights["weight"]
