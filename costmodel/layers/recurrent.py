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

from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tensor import Call, Gradient, LayerFlops, Shape, Storage, Tensor, Weights, Workspace
from costmodel.layers.base import Unbuffered, layer
from costmodel.layers.kernels import kept_bytes, made_beside, stream
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
            wanted = (call.x.shape[1], self.handed if number == 0 else self.hidden)
            if not state.has(wanted):
                raise call.fail(f"{self.kind} takes a state of {wanted[0]} × {wanted[1]}")

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

    def _product(self, features: int) -> int:
        """FLOPs of the gates of one row from so many features."""
        return 2 * self.gates * self.hidden * features

    def forward(self, call: Call) -> LayerFlops:
        """Two products for each step."""
        elements = self._rows(call) * self.hidden
        added = self.gates * (2 * self.bias)
        pointwise = elements * (self._step_ops()[0] + added)
        return LayerFlops(self._rows(call) * (self._product(call.x.shape[2]) + self._product(self.handed)), pointwise)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Back through all steps with the first gradient that is needed, and what each operand takes by itself."""
        shared = self._through(call)
        for operand, own in self._own(call):
            if operand.requires_grad:
                yield Gradient(operand, LayerFlops(*(a + b for a, b in zip(own, shared, strict=True))))
                shared = (0, 0)

    def _through(self, call: Call) -> tuple[int, int]:
        """From the last step to the first: the gates', and the products that take them to the state before."""
        steps, batch, _ = call.x.shape
        handed = (steps - 1) * batch
        pointwise = self._rows(call) * self.hidden * self._step_ops()[1] + handed * self._summed()
        return handed * self._product(self.handed), pointwise

    def _summed(self) -> int:
        """Additions of gradients of the state, which come from the step after and from the result, per row."""
        return self.hidden

    def _own(self, call: Call) -> Iterator[tuple[Tensor, tuple[int, int]]]:
        """Contractions and pointwise FLOPs for each operand alone."""
        rows, weights = self._rows(call), call.weights
        of_input, of_state = rows * self._product(call.x.shape[2]), rows * self._product(self.handed)
        yield call.x, (of_input, 0)
        yield call.inputs[1], (call.x.shape[1] * self._product(self.handed), self._first(call))
        yield weights["weight_ih"], (of_input, 0)
        yield weights["weight_hh"], (of_state, 0)
        if self.bias:
            for name in ("bias_ih", "bias_hh"):
                yield weights[name], (0, rows * self.gates * self.hidden)

    def _first(self, call: Call) -> int:
        """Pointwise FLOPs of the gradient of the state before the first step alone."""
        return 0

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A product of all steps' inputs; then for each step those with the state, and what makes the next of it."""
        steps, batch, features = call.x.shape
        gates = self.gates * self.hidden
        yield self._product_of(call, "", Product(1, steps * batch, gates, features))
        yield self._product_of(call, "", Product(1, batch, gates, self.handed), steps)
        made = call.y.bytes + made_beside(call)
        worked = size_bytes(steps * batch * gates, call.y.dtype)
        yield stream(call, "", "pointwise", self.forward(call).pointwise, 2 * worked, made, steps)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """Steps from the last to the first, each with a product; then a product for each gradient of all steps."""
        asked = call.gradients()
        if not asked:
            return
        steps, batch, features = call.x.shape
        gates, weights = self.gates * self.hidden, call.weights
        work = sum(g.work.pointwise for g in asked)
        worked = size_bytes(steps * batch * gates, call.y.dtype)
        yield stream(call, "backward", "pointwise", work, call.y.bytes + kept_bytes(call), worked, steps)
        if steps > 1:
            yield self._product_of(call, "backward", Product(1, batch, self.handed, gates), steps - 1)
        sizes = {
            call.x: Product(1, steps * batch, features, gates),
            call.inputs[1]: Product(1, batch, self.handed, gates),
            weights["weight_ih"]: Product(1, gates, features, steps * batch),
            weights["weight_hh"]: Product(1, gates, self.handed, steps * batch),
        }
        for g in asked:
            if g.operand in sizes:
                yield self._product_of(call, "backward", sizes[g.operand])
        biases = [weights[name] for name in ("bias_ih", "bias_hh") if name in weights]
        if made := sum(g.operand.bytes for g in asked if g.operand in biases):
            yield stream(call, "backward sum", "reduction", 0, worked, made)  # its additions are counted above

    def _product_of(self, call: Call, what: str, sizes: Product, launches: int = 1) -> Kernel:
        """A product of each of so many steps."""
        each = size_bytes(sizes.m * sizes.k + sizes.k * sizes.n, call.x.dtype)
        made = size_bytes(sizes.m * sizes.n, call.x.dtype)
        name = f"{self.kind} product {what}".strip()
        return Kernel(
            name, "product", launches * sizes.flops, launches * each, launches * made, call.x.dtype, launches, sizes
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

    def forward(self, call: Call) -> LayerFlops:
        contractions, pointwise, _ = super().forward(call)
        return LayerFlops(contractions + self._projection(call), pointwise)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        yield from super().forward_kernels(call)
        if self.projected:
            steps, batch, _ = call.x.shape
            yield self._product_of(call, "", Product(1, batch, self.projected, self.hidden), steps)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """And back through the projection of each step, and its weight's gradient of all."""
        yield from super().backward_kernels(call)
        if self.projected and (asked := call.gradients()):
            steps, batch, _ = call.x.shape
            yield self._product_of(call, "backward", Product(1, batch, self.hidden, self.projected), steps)
            if any(g.operand is call.weights["weight_hr"] for g in asked):
                rows = steps * batch
                yield self._product_of(call, "backward", Product(1, self.projected, self.hidden, rows))

    def _projection(self, call: Call) -> int:
        return 2 * self._rows(call) * self.hidden * self.projected

    def _through(self, call: Call) -> tuple[int, int]:
        """Also through the projection; the cell's gradient is scaled by f and added for each step but the first."""
        contractions, pointwise = super()._through(call)
        cells = (call.x.shape[0] - 1) * call.x.shape[1] * self.hidden
        return contractions + self._projection(call), pointwise + 2 * cells

    def _summed(self) -> int:
        """Of what is handed on."""
        return self.handed

    def _own(self, call: Call) -> Iterator[tuple[Tensor, tuple[int, int]]]:
        """And the cell before the first step, and the projection."""
        yield from super()._own(call)
        yield call.inputs[2], (0, call.x.shape[1] * self.hidden)
        if self.projected:
            yield call.weights["weight_hr"], (self._projection(call), 0)

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
