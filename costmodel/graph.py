"""What one forward pass on paper recorded: calls of layers in order, with blocks that repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from costmodel.errors import ShapeError, SpecError
from costmodel.sizes import LARGEST_SIZE, product
from costmodel.tensor import (
    Origin,
    Role,
    Shape,
    Storage,
    Tensor,
    contiguous_strides,
    dense_strides,
    show_shape,
    viewed_strides,
)

if TYPE_CHECKING:
    from costmodel.layers.base import Kind

Device = Literal["gpu", "cpu"]

MOST_CALLS = 20_000
"""A graph with more layer calls, repeats folded, is refused: no network has them, and a runaway file does."""


class Block:
    """A stretch of the graph that happens `count` times for each time that its parent does."""

    __slots__ = ("count", "entries", "entry", "exit", "name", "parent")

    def __init__(self, name: str, count: int, parent: Block | None) -> None:
        self.name = name
        self.count = count
        self.parent = parent
        self.entries: list[Call | Block] = []
        self.entry: Tensor | None = None
        self.exit: Tensor | None = None

    @property
    def times(self) -> int:
        """How often this stretch happens in all."""
        return self.count if self.parent is None else self.count * self.parent.times

    def calls(self) -> Iterator[Call]:
        """Every call within, in order, each repeated block once."""
        for entry in self.entries:
            if isinstance(entry, Block):
                yield from entry.calls()
            else:
                yield entry


class Call:
    """One layer applied to its inputs: what it reads, makes and keeps.

    Kinds are asked about a call and answer from its tensors: `x` is the first input, `y` the output.
    """

    __slots__ = ("block", "buffers", "inputs", "kept", "kind", "name", "run", "weights", "y")

    def __init__(self, run: Run, kind: Kind, inputs: tuple[Tensor, ...], name: str) -> None:
        self.run = run
        self.kind = kind
        self.inputs = inputs
        self.name = name
        self.block = run.block
        self.weights: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.kept: tuple[Storage, ...] = ()
        self.y: Tensor

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.inputs[0]

    @property
    def times(self) -> int:
        """How often this call happens."""
        return self.block.times

    def operands(self) -> Iterator[Tensor]:
        """Inputs and weights: everything a gradient may be asked for."""
        yield from self.inputs
        yield from self.weights.values()

    def like(self, x: Tensor, role: Role = "activation") -> Tensor:
        """A new tensor of the shape and memory order of `x`, as an elementwise operation makes it."""
        return self.run.tensor(x.shape, role, strides=dense_strides(x.shape, x.strides))

    def fresh(self, role: Role, *shape: int) -> Storage:
        """Memory that this call makes beside its output, such as a statistic, a mask or a contiguous copy."""
        return Storage(product(shape), role, "computed", self.run.block, self.name)

    def as_batch(self, x: Tensor) -> Storage:
        """What a batched product holds of an operand: itself if (batch, rows, columns) is a view, else a copy."""
        *batch, rows, columns = x.shape
        viewable = viewed_strides(x.shape, x.strides, (product(batch), rows, columns)) is not False
        return x.storage if viewable else self.fresh(x.storage.role, *x.shape)

    def fail(self, message: str) -> ShapeError:
        """Error that names this layer and the shapes it met."""
        shapes = " and ".join(show_shape(x.shape) for x in self.inputs)
        return ShapeError(f"{self.name}: {message} (input {shapes})")


class Run:
    """One forward pass on paper. Layers record themselves here as they are called.

    training: whether tensors are kept for backward.
    device: whose kernels decide what is kept, "gpu" or "cpu".
    """

    def __init__(self, *, training: bool, device: Device) -> None:
        self.training = training
        self.device: Device = device
        self.root = self.block = Block("", 1, None)
        self.weights: dict[Storage, None] = {}
        self.buffers: dict[Storage, None] = {}
        self.inputs: dict[Storage, None] = {}
        self._calls = 0
        self._path: list[str] = []

    def tensor(
        self,
        shape: Shape,
        role: Role = "activation",
        *,
        origin: Origin = "computed",
        requires_grad: bool = False,
        strides: Shape | None = None,
        name: str = "",
    ) -> Tensor:
        """A tensor in memory of its own."""
        storage = Storage(product(shape), role, origin, self.block, name)
        if storage.elements > LARGEST_SIZE**2:
            raise ShapeError(f"a tensor of {show_shape(shape)} is larger than any machine could hold")
        return Tensor(self, shape, storage, requires_grad, strides)

    def input(self, shape: Shape, role: Role = "activation", name: str = "input") -> Tensor:
        """A tensor that the user feeds in: on the line `memory.inputs`, never an activation."""
        tensor = self.tensor(shape, role, origin="input", name=name)
        self.inputs[tensor.storage] = None
        return tensor

    def weight(self, shape: Shape, name: str) -> Tensor:
        """A trained weight; pass the tensor to another layer to tie the two."""
        tensor = self.tensor(shape, "weight", origin="weight", requires_grad=self.training, name=name)
        self.weights[tensor.storage] = None
        return tensor

    def buffer(self, shape: Shape, role: Role, name: str) -> Tensor:
        """A constant that lives beside the weights, such as a mask or a running mean."""
        tensor = self.tensor(shape, role, origin="buffer", name=name)
        self.buffers[tensor.storage] = None
        return tensor

    def record(
        self, kind: Kind, inputs: tuple[Tensor, ...], name: str | None, tied: Mapping[str, Tensor] | None
    ) -> Tensor:
        """Apply `kind` to `inputs` and note what that took; called by ``Kind.__call__``."""
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise SpecError(f"the model has more than {MOST_CALLS:,} layers even with its repeats folded")
        call = Call(self, kind, inputs, ".".join([*self._path, name or kind.kind]))
        kind.check(call)
        for weight, shape in kind.weights(call).items():
            given = tied.get(weight) if tied else None
            call.weights[weight] = given or self.weight(shape, f"{call.name}.{weight}")
            if call.weights[weight].shape != shape:
                raise call.fail(
                    f"a tied {weight} of {show_shape(call.weights[weight].shape)} is not {show_shape(shape)}"
                )
        for buffer, (shape, role) in kind.buffers(call).items():
            call.buffers[buffer] = self.buffer(shape, role, f"{call.name}.{buffer}")
        made = kind.output(call)
        call.y = made if isinstance(made, Tensor) else self.tensor(made)
        call.y.storage.name = call.y.storage.name or call.name
        call.y.requires_grad = self.training and any(operand.requires_grad for operand in call.operands())
        if call.y.requires_grad:
            call.kept = tuple(k.storage if isinstance(k, Tensor) else k for k in kind.kept(call))
        self.block.entries.append(call)
        return call.y

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix `name` to the names of the layers called within."""
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()

    def repeat(self, times: int, body: Callable[[Tensor], Tensor], x: Tensor, name: str) -> Tensor:
        """Apply `body` to `x`, then to its own result, `times` times in all, and trace it once.

        The first rounds are traced on their own until a round hands on exactly the layout that it was given; all that
        remain are then alike. The answer is that of unrolling, whatever is kept across rounds.
        """
        left = times
        while int(left) > 0:
            entry = x.view(x.shape, x.strides)
            entry.storage = Storage(0, x.storage.role, x.storage.origin, self.block)
            label = name if left is times else f"{name}.{times - left + 1}"
            block = Block(label, left, self.block)
            self.block.entries.append(block)
            self.block = block
            with self.scope(label):
                y = body(entry)
            self.block = outer = _parent(block)
            stable = y.layout == entry.layout
            if not stable:
                block.count = 1
            left = left - block.count
            block.entry, block.exit = entry, y
            x = _hand_on(block, outer, x, entry, y)
        return x


def _parent(block: Block) -> Block:
    if block.parent is None:
        raise AssertionError("the root block repeats nothing")
    return block.parent


def _hand_on(block: Block, outer: Block, x: Tensor, entry: Tensor, y: Tensor) -> Tensor:
    """The last round's output; `entry` comes to stand for every round's input: `x`, and all outputs but the last."""
    if y.storage is entry.storage:
        entry.storage.parts = (x.storage,)
        return Tensor(y.run, y.shape, x.storage, y.requires_grad, y.strides)
    made = y.storage
    if made.block is not block:  # made outside, the same in every round
        entry.storage.parts = (x.storage, made)
        return y
    rest = Storage(made.elements, made.role, made.origin, Block(block.name, block.count - 1, outer), made.name)
    last = Storage(made.elements, made.role, made.origin, outer, made.name)
    made.parts = (rest, last)
    entry.storage.parts = (x.storage, rest)
    return Tensor(y.run, y.shape, last, y.requires_grad, y.strides)


def transposed(x: Tensor, first: int, second: int) -> Tensor:
    """View with two axes exchanged."""
    strides = list(contiguous_strides(x.shape) if x.strides is None else x.strides)
    shape = list(x.shape)
    shape[first], shape[second] = shape[second], shape[first]
    strides[first], strides[second] = strides[second], strides[first]
    return x.view(tuple(shape), tuple(strides))
