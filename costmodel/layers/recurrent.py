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
from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import Buffers, Gradient, Layer, LayerFlops, Weights, Workspace, layer
from costmodel.layers.kernels import kept_bytes, made_beside, stream
from costmodel.training.dtypes import size_bytes


class Recurrent(Layer):
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
        """x and the states before."""
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
        """For the input and for the state, their gates one after another; a bias for each."""
        rows = self.gates * self.hidden
        weights = {"weight_ih": (rows, call.x.shape[2]), "weight_hh": (rows, self.handed)}
        return weights | ({"bias_ih": (rows,), "bias_hh": (rows,)} if self.bias else {})

    def buffers(self, call: Call) -> Buffers:
        """None."""
        return {}

    def output(self, call: Call) -> Shape:
        """(T, B, R)."""
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
        """A product of all steps' inputs; for each step one of the state before, and one kernel for the gates."""
        steps, batch, features = call.x.shape
        rows = self.gates * self.hidden
        yield _product(call, "input", Product(1, steps * batch, rows, features), 1)
        yield _product(call, "state", Product(1, batch, rows, self.handed), steps)
        yield from self._projected_kernels(call)
        gates = size_bytes(2 * self._rows(call) * rows, call.x.dtype)
        written = call.y.bytes + made_beside(call)
        yield stream(call, "gates", "pointwise", self.forward(call).pointwise, gates, written, steps)

    def _projected_kernels(self, call: Call) -> Iterator[Kernel]:
        """Of the state's projection in the forward pass."""
        return iter(())

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """For each step one kernel for the gates and a product that goes to the step before; one for each weight."""
        gradients = list(call.gradients())
        if not gradients:
            return
        steps, batch, features = call.x.shape
        rows = self.gates * self.hidden
        before = Product(1, batch, self.handed, rows)
        if steps != 1:
            yield _product(call, "backward state", before, steps - 1)
        names = {id(weight): name for name, weight in call.weights.items()}
        sizes = {
            id(call.x): Product(1, steps * batch, features, rows),
            id(call.inputs[1]): before,
            **{id(w): self._of_weight(call, names[id(w)]) for w in call.weights.values()},
        }
        work, written = 0, 0
        for g in gradients:
            work, written = work + g.work.pointwise, written + g.operand.bytes
            if size := sizes.get(id(g.operand)):
                yield _product(call, f"backward {names.get(id(g.operand), 'input')}", size, 1)
        yield from self._backward_projected_kernels(call)
        read = call.y.bytes + kept_bytes(call)
        gates = size_bytes(self._rows(call) * rows, call.x.dtype)
        yield stream(call, "backward gates", "pointwise", work, read, gates + written, steps)

    def _backward_projected_kernels(self, call: Call) -> Iterator[Kernel]:
        """Of the state's projection in the backward pass, but for its weight."""
        return iter(())

    def _of_weight(self, call: Call, name: str) -> Product | None:
        """The product that makes a weight's gradient; None for a bias, whose gradient is summed with the gates."""
        steps, batch, features = call.x.shape
        rows = self.gates * self.hidden
        made = {"weight_ih": (rows, features), "weight_hh": (rows, self.handed)}
        made["weight_hr"] = (self.handed, self.hidden)
        return Product(1, *made[name], steps * batch) if name in made else None

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


def _product(call: Call, what: str, sizes: Product, launches: int) -> Kernel:
    """A product that is done `launches` times."""
    batch, m, n, k = sizes
    read, written = (launches * size_bytes(batch * of, call.x.dtype) for of in (m * k + k * n, m * n))
    flops, name = launches * sizes.flops, f"{call.kind.kind} {what}"
    return Kernel(name, "product", flops, read, written, call.x.dtype, launches, sizes)


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
        """R."""
        return self.projected or self.hidden

    def weights(self, call: Call) -> Weights:
        """The gates', and the projection."""
        weights = super().weights(call)
        return weights | ({"weight_hr": (self.projected, self.hidden)} if self.projected else {})

    def _step_ops(self) -> tuple[int, int]:
        """Sums of four, three σ of four operations, two tanh, three products and a sum; see `_through` for back.

        Back: products with o and tanh c', three for tanh c', products with g, i, c, nine for three σ, three for tanh g.
        """
        return 4 + 3 * 4 + 2 + 4, 2 + 3 + 3 + 9 + 3

    def forward(self, call: Call) -> LayerFlops:
        """Two products for each step, or three."""
        contractions, pointwise, _ = super().forward(call)
        return LayerFlops(contractions + self._projection(call), pointwise)

    def _projection(self, call: Call) -> int:
        return 2 * self._rows(call) * self.hidden * self.projected

    def _projected_kernels(self, call: Call) -> Iterator[Kernel]:
        """A product for each step."""
        steps, batch, _ = call.x.shape
        if self.projected:
            yield _product(call, "projection", Product(1, batch, self.projected, self.hidden), steps)

    def _backward_projected_kernels(self, call: Call) -> Iterator[Kernel]:
        """A product for each step."""
        steps, batch, _ = call.x.shape
        if self.projected:
            yield _product(call, "backward projection", Product(1, batch, self.hidden, self.projected), steps)

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
        """The cell before each step, too."""
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
