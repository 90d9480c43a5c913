"""Recurrent layers over a sequence: LSTM, GRU, and the plain one of Elman, one direction of one layer each.

They are composed of one product with the input and one with the state for each step, as PyTorch composes them wherever
no vendor's kernel does it (the meta device; ``at::native::RNN.cpp``). A kernel of cuDNN's does the same arithmetic;
what it keeps is a reserve of its own, of about this size, and PyTorch's FlopCounterMode counts it as none.

T: steps, B: batch, I: features of the input, H: of the state, R: of what is handed on (H, or those of a projection).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

from costmodel.graph.call import Call, Gradient, LayerFlops, Weights, Workspace
from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Shape, Storage, Tensor
from costmodel.layers.base import Unbuffered, layer
from costmodel.layers.kernels import extra_bytes, saved_bytes, stream
from costmodel.training.dtypes import size_bytes


class Recurrent(Unbuffered):
    """Abstract: x: (T, B, I), state before the first step: (B, R) for each that it has, y: (T, B, R)."""

    in_lists = False
    gates: ClassVar[int]
    """How many vectors of H features each step works out of input and state."""
    states: ClassVar[int] = 1
    """How many states are handed from step to step."""

    hidden: int
    bias: bool

    @abstractmethod
    def _step_ops(self) -> tuple[int, int]:
        """Operations per element of the state in a step's forward and backward pass, biases and sums left out."""

    @abstractmethod
    def _kept(self, call: Call) -> Iterator[int]:
        """How many vectors of H features each step keeps."""

    def check(self, call: Call) -> None:
        if len(call.inputs) != 1 + self.states or len(call.x.shape) != 3:
            raise call.fail(f"{self.kind} takes an input of three axes and {self.states} of its state")
        for number, state in enumerate(call.inputs[1:]):
            shape = (call.x.shape[1], self.handed if number == 0 else self.hidden)
            if not state.has(shape):
                raise call.fail(f"{self.kind} takes a state of {shape[0]} × {shape[1]}")

    @property
    def handed(self) -> int:
        """R."""
        return self.hidden

    def weights(self, call: Call) -> Weights:
        rows = self.gates * self.hidden
        weights = {"weight_ih": (rows, call.x.shape[2]), "weight_hh": (rows, self.handed)}
        return weights | ({"bias_ih": (rows,), "bias_hh": (rows,)} if self.bias else {})

    def output(self, call: Call) -> Shape:
        return (*call.x.shape[:2], self.handed)

    def _rows(self, call: Call) -> int:
        """Rows of all steps."""
        return call.x.shape[0] * call.x.shape[1]

    def _forward_products(self, call: Call) -> list[tuple[Product, int]]:
        """Of all steps' inputs, and of the state before each step: sizes, and how many there are."""
        (steps, batch, features), gates = call.x.shape, self.gates * self.hidden
        return [(Product(1, steps * batch, gates, features), 1), (Product(1, batch, gates, self.handed), steps)]

    def _returning_products(self, call: Call) -> list[tuple[Product, int]]:
        """From the gradients of each step's gates to those of the state before it."""
        steps, batch, _ = call.x.shape
        return [(Product(1, batch, self.handed, self.gates * self.hidden), steps - 1)]

    def _own_work(self, call: Call) -> list[tuple[Tensor, Product | None, int]]:
        """What each operand's gradient takes alone: the product that makes it, and pointwise FLOPs."""
        (steps, batch, features), gates, weights = call.x.shape, self.gates * self.hidden, call.weights
        rows = steps * batch
        return [
            (call.x, Product(1, rows, features, gates), 0),
            (call.inputs[1], Product(1, batch, self.handed, gates), self._first(call)),
            (weights["weight_ih"], Product(1, gates, features, rows), 0),
            (weights["weight_hh"], Product(1, gates, self.handed, rows), 0),
            *((weights[name], None, rows * gates) for name in ("bias_ih", "bias_hh") if self.bias),
        ]

    def forward(self, call: Call) -> LayerFlops:
        elements = self._rows(call) * self.hidden
        added = self.gates * (2 * self.bias)
        return LayerFlops(_flops(self._forward_products(call)), elements * (self._step_ops()[0] + added))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Back through all steps with the first gradient that is needed, and what each operand takes by itself."""
        contractions, pointwise = _flops(self._returning_products(call)), self._returning_work(call)
        for operand, product, own in self._own_work(call):
            if operand.requires_grad:
                flops = 0 if product is None else product.flops
                yield Gradient(operand, LayerFlops(contractions + flops, pointwise + own))
                contractions = pointwise = 0

    def _returning_work(self, call: Call) -> int:
        """Pointwise FLOPs from the last step to the first: the gates', and sums of gradients of the state before."""
        handed = (call.x.shape[0] - 1) * call.x.shape[1]
        return self._rows(call) * self.hidden * self._step_ops()[1] + handed * self._summed()

    def _summed(self) -> int:
        """Additions of gradients of the state, which come from the step after and from the result, per row."""
        return self.hidden

    def _first(self, call: Call) -> int:
        """Pointwise FLOPs of the gradient of the state before the first step alone."""
        return 0

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product of all steps' inputs; then for each step those with the state, and what makes the next of it."""
        steps = call.x.shape[0]
        of_input, of_state, *others = [
            self._product_kernel(call, "", *product) for product in self._forward_products(call)
        ]
        gate_bytes, written = self._gate_bytes(call), call.y.bytes + extra_bytes(call)
        gates = stream(call, "", "pointwise", self.forward(call).pointwise, 2 * gate_bytes, written, steps)
        return [of_input, of_state, gates, *others]

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """Steps from the last to the first, each with a product; then a product for each gradient of all steps."""
        gradients = call.gradients()
        if not gradients:
            return
        steps, gate_bytes = call.x.shape[0], self._gate_bytes(call)
        flops = sum(g.work.pointwise for g in gradients)
        yield stream(call, "backward", "pointwise", flops, call.y.bytes + saved_bytes(call), gate_bytes, steps)
        own = [(x, product) for x, product, _ in self._own_work(call) if x.requires_grad]
        for product, launches in (*self._returning_products(call), *((product, 1) for _, product in own if product)):
            if launches > 0:
                yield self._product_kernel(call, "backward", product, launches)
        if written := sum(x.bytes for x, product in own if product is None and x in call.weights.values()):
            yield stream(call, "backward sum", "reduction", 0, gate_bytes, written)  # its additions are counted above

    def _gate_bytes(self, call: Call) -> int:
        """What all gates of all steps take [bytes]."""
        return size_bytes(self._rows(call) * self.gates * self.hidden, call.y.dtype)

    def _product_kernel(self, call: Call, what: str, sizes: Product, launches: int) -> Kernel:
        """A product of each of so many steps."""
        each = size_bytes(sizes.m * sizes.k + sizes.k * sizes.n, call.x.dtype)
        written = size_bytes(sizes.m * sizes.n, call.x.dtype)
        name, dtype = f"{self.kind} product {what}".strip(), call.x.dtype
        return Kernel(
            name, "product", launches * sizes.flops, launches * each, launches * written, dtype, launches, sizes
        )

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """The input and the state before each step for their weights, and what each step's gates are worked out to."""
        if call.weights["weight_ih"].requires_grad:
            yield call.x
        if call.weights["weight_hh"].requires_grad:
            yield call.inputs[1]
            if self.gates > 1:
                yield call.fresh("activation", call.x.shape[0] - 1, call.x.shape[1], self.handed)
        for vectors in self._kept(call):
            yield call.fresh("activation", *call.x.shape[:2], vectors, self.hidden)
        yield from call.weights.values()

    def workspace(self, call: Call) -> Workspace:
        """The state after each step, until they are stacked; backward: gradients of two steps' gates."""
        listed = call.y.size if not call.y.requires_grad else 0
        return Workspace(listed, 2 * call.x.shape[1] * self.gates * self.hidden)


def _flops(products: Iterable[tuple[Product, int]]) -> int:
    """FLOPs of so many products of each size."""
    return sum(count * product.flops for product, count in products)


@layer
class Lstm(Recurrent):
    """c' = σ(f)·c + σ(i)·tanh(g), h' = σ(o)·tanh(c'), with i, f, g, o = W x + U h + b; h' = P h' if `projected`.

    A third input is the cell before the first step, (B, H).
    """

    source = "Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000 (torch.nn.LSTM)"
    gates = 4
    states = 2

    hidden: int
    bias: bool = True
    projected: int = 0

    @property
    def handed(self) -> int:
        return self.projected or self.hidden

    def weights(self, call: Call) -> Weights:
        weights = super().weights(call)
        return weights | ({"weight_hr": (self.projected, self.hidden)} if self.projected else {})

    def _step_ops(self) -> tuple[int, int]:
        """Sums of four, three σ of four operations, two tanh, three products and a sum; see `_through` for back.

        Back: products with o and tanh c', three for tanh c', products with g, i, c, nine for three σ, three for tanh g.
        """
        return 4 + 3 * 4 + 2 + 4, 2 + 3 + 3 + 9 + 3

    def _forward_products(self, call: Call) -> list[tuple[Product, int]]:
        """And what projects each step's state."""
        steps, batch, _ = call.x.shape
        projection = (Product(1, batch, self.projected, self.hidden), steps)
        return super()._forward_products(call) + ([projection] if self.projected else [])

    def _returning_products(self, call: Call) -> list[tuple[Product, int]]:
        """And back through the projection."""
        steps, batch, _ = call.x.shape
        projection = (Product(1, batch, self.hidden, self.projected), steps)
        return super()._returning_products(call) + ([projection] if self.projected else [])

    def _returning_work(self, call: Call) -> int:
        """The cell's gradient is scaled by f and added for each step but the first."""
        cells = (call.x.shape[0] - 1) * call.x.shape[1] * self.hidden
        return super()._returning_work(call) + 2 * cells

    def _summed(self) -> int:
        """Of what is handed on."""
        return self.handed

    def _own_work(self, call: Call) -> list[tuple[Tensor, Product | None, int]]:
        """And the cell before the first step, and the projection."""
        own = [*super()._own_work(call), (call.inputs[2], None, call.x.shape[1] * self.hidden)]
        if self.projected:
            own.append((call.weights["weight_hr"], Product(1, self.projected, self.hidden, self._rows(call)), 0))
        return own

    def _kept(self, call: Call) -> Iterator[int]:
        """All gates in one memory and tanh c'; the state for the projection."""
        yield 4
        yield 1
        if self.projected and call.weights["weight_hr"].requires_grad:
            yield 1

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        yield from super().saved(call)
        yield call.inputs[2]
        yield call.fresh("activation", call.x.shape[0] - 1, call.x.shape[1], self.hidden)


@layer
class Gru(Recurrent):
    """h' = n + σ(z)·(h − n), n = tanh(W x + b + σ(r)·(U h + b)), with r, z = W x + U h + b."""

    source = "Cho et al. 2014, eq. 5–8, with the reset after the product (torch.nn.GRU)"
    gates = 3

    hidden: int
    bias: bool = True

    def _step_ops(self) -> tuple[int, int]:
        """Two sums, two σ of four, a product, a sum, a tanh, a difference, a product, a sum.

        Back: products with h − n and z, a difference, three for tanh, products with U h and r, three for each σ.
        """
        return 2 + 8 + 3 + 3, 3 + 3 + 2 + 6

    def _summed(self) -> int:
        """Three come together: from the result, through the gates, and by z."""
        return 2 * self.hidden

    def _first(self, call: Call) -> int:
        """The two of them that there are."""
        return call.x.shape[1] * self.hidden

    def _kept(self, call: Call) -> Iterator[int]:
        """The gates of the state in one memory, in which σ of two is; U h of the third; n; h − n."""
        yield 3
        yield from (1, 1, 1)


@layer
class Elman(Recurrent):
    """h' = f(W x + U h + b), f: tanh or the rectifier."""

    source = "Elman 1990 (torch.nn.RNN)"
    gates = 1

    hidden: int
    bias: bool = True
    function: Literal["tanh", "relu"] = "tanh"

    def _step_ops(self) -> tuple[int, int]:
        """A sum and the function; its derivative."""
        return 2, 3 if self.function == "tanh" else 2

    def _kept(self, call: Call) -> Iterator[int]:
        """The state after each step."""
        yield 1
