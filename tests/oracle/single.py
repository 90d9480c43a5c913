"""One layer at a time: the same call on paper and in PyTorch, held against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from costmodel.cost.rows import rows_of
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Role, contiguous_strides
from costmodel.layers.base import Layer
from costmodel.training.settings import Device

from .measure import Cost, measure

DTYPES: dict[Role, torch.dtype] = {"activation": torch.float32, "index": torch.int64, "mask": torch.bool}


class Given(NamedTuple):
    """An input: its shape, the order of its axes in memory, what it holds, and whether it needs a gradient."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    role: Role = "activation"
    requires_grad: bool = False

    def strides(self) -> tuple[int, ...]:
        """Dense strides with the axes in `order`, outermost first [elements]."""
        inner = contiguous_strides(tuple(self.shape[axis] for axis in self.order))
        return tuple(inner[self.order.index(axis)] for axis in range(len(self.shape)))

    def on_paper(self, tape: Tape) -> object:
        return tape.tensor(
            self.shape, self.role, requires_grad=self.requires_grad and tape.training, strides=self.strides()
        )

    def in_pytorch(self) -> Tensor:
        tensor = torch.empty_strided(self.shape, self.strides(), dtype=DTYPES[self.role], device="meta")
        return tensor.requires_grad_(self.requires_grad and torch.is_grad_enabled())


class Case(NamedTuple):
    """A layer, its inputs, and the PyTorch call that it stands for."""

    kind: Layer
    inputs: tuple[Given, ...]
    call: Callable[..., Tensor]
    flops_of: Callable[..., Tensor] | None = None
    """Another call to count FLOPs of, where PyTorch counts those of `call` as none."""


class Found(NamedTuple):
    """What is compared: cost, the output's shape and its strides where they mean something, and the buffers' bytes."""

    cost: Cost
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    buffer_bytes: int


def on_paper(case: Case, device: Device, *, training: bool, then: Layer | None = None) -> Found:
    """By the library's rules."""
    tape = Tape(training=training, device=device)
    y = case.kind(*(given.on_paper(tape) for given in case.inputs))  # type: ignore[arg-type]
    y = then(y) if then else y
    rows = rows_of(tape, "pytorch")
    forward, backward = sum(row.forward_flops for row in rows), sum(row.backward_flops for row in rows)
    kept = sum(row.activation_bytes for row in rows)
    cost = Cost(sum(row.params for row in rows), forward, forward + backward, kept, kept)
    buffers = sum(storage.bytes for storage in tape.buffers)
    return Found(cost, y.shape, told(y.shape, y.strides or contiguous_strides(y.shape)), buffers)


def in_pytorch(case: Case, *, training: bool, then: nn.Module | None = None) -> Found:
    """By the framework's. Inputs count as kept where they are: another layer would have made them."""
    modules = [m.train(training) for m in (case.call, then) if isinstance(m, nn.Module)]
    made: list[Tensor] = []

    def call(*inputs: Tensor) -> Tensor:
        y = case.call(*inputs)
        made.append(then(y) if then else y)
        return made[0]

    with torch.set_grad_enabled(training):
        weights = tuple(weight for module in modules for weight in module.parameters())
        buffers = tuple(buffer for module in modules for buffer in module.buffers())
        inputs = [given.in_pytorch() for given in case.inputs]
        cost = measure(call, *inputs, given=weights + buffers, count_inputs=True)
        cost = cost._replace(params=sum(weight.numel() for weight in weights))
        if case.flops_of:
            counted = measure(case.flops_of, *inputs)
            cost = cost._replace(forward_flops=counted.forward_flops, total_flops=counted.total_flops)
    shape = tuple(made[0].shape)
    return Found(cost, shape, told(shape, made[0].stride()), sum(b.nbytes for b in buffers))


def told(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, without those of axes of one element: nothing ever steps along them."""
    return tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))


def sizes(axes: int, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of so many axes."""
    return st.tuples(*(st.integers(1, most) for _ in range(axes)))


def any_shape(least: int = 1, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of `least` to `most` axes."""
    return st.integers(least, most).flatmap(sizes)


@st.composite
def given(draw: st.DrawFn, shape: tuple[int, ...], role: Role = "activation", *, contiguous: bool = False) -> Given:
    """An input of this shape, in any memory order, that may need a gradient."""
    axes = tuple(range(len(shape)))
    order = axes if contiguous or role != "activation" else tuple(draw(st.permutations(axes)))
    return Given(shape, order, role, role == "activation" and draw(st.booleans()))
