"""Kernels of shape-only kinds: the same numbers elsewhere, and not one operation."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, accumulated, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


class Move(Kernel, abstract=True):
    """One input, moved."""

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        """Where in the input the output's element `at` comes from."""
        raise NotImplementedError

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        y = np.empty(p.y.shape)
        for at in np.ndindex(*y.shape):
            y[at] = x[self.place(p.kind, x.shape, at)]
        return y


class Relabel(Move, abstract=True):
    """The same order in another shape."""

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.array(list(x.flat)).reshape(p.y.shape)


class Reshape(Relabel):
    def case(self, draw: Draw) -> Case:
        b, m, n, k = (draw(sizes) for _ in range(4))
        return Case(self.layer(shape=(n * k, m)), [Operand((b, m, n, k))])


class Flatten(Relabel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(tuple(draw(st.lists(sizes, min_size=2, max_size=4))))])


class Permute(Move):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=4)))
        axes = draw(st.permutations(range(len(shape))))
        return Case(self.layer(axes=tuple(axes)), [Operand(shape)])

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(at[kind.axes.index(axis)] for axis in range(len(at)))


class Slice(Move):
    def case(self, draw: Draw) -> Case:
        before, length, after = draw(sizes) - 1, draw(sizes), draw(sizes) - 1
        axis = draw(st.sampled_from([None, 1, 2]))
        shape = [draw(sizes), draw(sizes), draw(sizes)]
        shape[2 if axis is None else axis] = before + length + after
        return Case(self.layer(length=length, start=before, axis=axis), [Operand(tuple(shape))])

    def within(self, kind: Any) -> Any:
        return (*[slice(None)] * (2 if kind.axis is None else kind.axis), slice(kind.start, kind.start + kind.length))

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n + kind.start * (axis == (2 if kind.axis is None else kind.axis)) for axis, n in enumerate(at))


class SplitHeads(Move):
    def case(self, draw: Draw) -> Case:
        heads = draw(sizes)
        return Case(self.layer(heads=heads), [Operand((draw(sizes), draw(sizes), heads * draw(sizes)))])

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        b, head, t, feature = at
        return b, t, head * (shape[2] // kind.heads) + feature


class MergeHeads(Move):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(draw(st.tuples(*[sizes] * 4)))])

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        b, t, feature = at
        return b, feature // shape[3], t, feature % shape[3]


class TransposeLast(Move):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(tuple(draw(st.lists(sizes, min_size=2, max_size=4))))])

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        return (*at[:-2], at[-1], at[-2])


class RepeatHeads(Move):
    """Moves forward; backward is a sum."""

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(times=draw(sizes)), [Operand(draw(st.tuples(*[sizes] * 4)))])

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        return at[0], at[1] // kind.times, *at[2:]


class Cast(Move):
    """To a type wider than float64, whatever the name, so that nothing is rounded and differences still tell."""

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(dtype="fp32"), [Operand(tuple(draw(st.lists(sizes, min_size=1, max_size=4))))])

    def place(self, kind: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
        return at


class Join(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = draw(st.lists(sizes, min_size=1, max_size=3))
        return Case(self.layer(), [Operand((*shape, n)) for n in draw(st.lists(sizes, min_size=1, max_size=3))])

    def reference(self, p: Pass, *inputs: np.ndarray) -> np.ndarray:
        return np.stack([x[..., n] for x in inputs for n in range(x.shape[-1])], axis=-1)


class Concat(Kernel):
    def case(self, draw: Draw) -> Case:
        batch, *rest = draw(st.lists(sizes, min_size=1, max_size=3))
        channels = draw(st.lists(sizes, min_size=1, max_size=3))
        return Case(self.layer(), [Operand((batch, c, *rest)) for c in channels])

    def reference(self, p: Pass, *inputs: np.ndarray) -> np.ndarray:
        channels = [x[:, c] for x in inputs for c in range(x.shape[1])]
        return np.stack(channels, axis=1)


class AsStrided(Kernel):
    """A slice, an expansion of an axis, or windows of the last axis that may overlap."""

    def case(self, draw: Draw) -> Case:
        rows, n = draw(sizes), draw(st.integers(1, 8))
        size, step, times = draw(st.integers(1, n)), draw(sizes), draw(sizes)
        shape, strides = draw(
            st.sampled_from(
                [
                    ((rows, size), (n, 1)),
                    ((rows, -(-n // step)), (n, step)),
                    ((times, rows, n), (0, n, 1)),
                    ((rows, (n - size) // step + 1, size), (n, step, 1)),
                ]
            )
        )
        return Case(self.layer(shape=shape, strides=strides), [Operand((rows, n))])

    def places(self, p: Pass) -> np.ndarray:
        """Where in the input each element lies."""
        return sum(index * step for index, step in zip(np.indices(p.kind.shape), p.kind.strides, strict=True))

    def forward(self, p: Pass) -> Array:
        return p.x.reshape(-1)[self.places(p)]

    def backward(self, p: Pass, g: Array) -> Gradients:
        places, total = self.places(p), zeros((p.x.size,), p.tally)
        if len(np.unique(places)) < places.size:
            np.add.at(total, places, g)
        else:
            total[places] = g
        yield p.x, total.reshape(*p.x.shape)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        strides = [step * x.itemsize for step in p.kind.strides]
        return np.lib.stride_tricks.as_strided(x, p.kind.shape, strides)


class Overwrite(Kernel):
    """The first columns are written to; the kind does not hold which part it is."""

    def case(self, draw: Draw) -> Case:
        rows, n = draw(sizes), draw(sizes)
        return Case(self.layer(), [Operand((rows, n)), Operand((rows, draw(st.integers(1, n))))])

    def forward(self, p: Pass) -> Array:
        y = Array(p.x.values.copy(), p.tally)
        y[:, : p.inputs[1].shape[1]] = p.inputs[1]
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        columns = p.inputs[1].shape[1]
        rest = Array(g.values.copy(), p.tally)
        rest[:, :columns] = 0
        yield p.x, rest
        yield p.inputs[1], g[:, :columns]

    def reference(self, p: Pass, x: np.ndarray, part: np.ndarray) -> np.ndarray:
        return np.concatenate([part, x[:, part.shape[1] :]], axis=1)


class Copy(Kernel):
    """As it is, rolled, or repeated."""

    def case(self, draw: Draw) -> Case:
        shape = draw(st.tuples(sizes, sizes))
        times = draw(sizes)
        layer = self.layer(shape=shape, ordered=True) if times == 1 else self.layer(shape=(times * shape[0], shape[1]))
        return Case(layer, [Operand(shape)])

    def forward(self, p: Pass) -> Array:
        index = np.arange(p.kind.shape[0]) % p.x.shape[0]
        return p.x[np.roll(index, 1)]

    def backward(self, p: Pass, g: Array) -> Gradients:
        rolled = g[np.roll(np.arange(g.shape[0]), -1)]
        if g.shape == p.x.shape:
            yield p.x, rolled
        else:
            yield p.x, accumulated(rolled.reshape(-1, *p.x.shape), p.x.shape)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.roll(np.tile(x, (p.kind.shape[0] // x.shape[0], 1)), 1, axis=0)


class Cat(Kernel):
    """Along the second axis."""

    def case(self, draw: Draw) -> Case:
        batch, *rest = draw(st.lists(sizes, min_size=1, max_size=3))
        channels = draw(st.lists(sizes, min_size=1, max_size=3))
        return Case(
            self.layer(shape=(batch, sum(channels), *rest), axis=1), [Operand((batch, c, *rest)) for c in channels]
        )

    def forward(self, p: Pass) -> Array:
        return np.concatenate(p.inputs, axis=1)

    def backward(self, p: Pass, g: Array) -> Gradients:
        start = 0
        for x in p.inputs:
            yield x, g[:, start : start + x.shape[1]]
            start += x.shape[1]

    def reference(self, p: Pass, *inputs: np.ndarray) -> np.ndarray:
        return np.stack([x[:, c] for x in inputs for c in range(x.shape[1])], axis=1)


class WrittenPart(Kernel):
    """A part that is written to; what is written has the gradients."""

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand((draw(sizes),))])

    def forward(self, p: Pass) -> Array:
        return p.x

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield from ()

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x


class Replace(Kernel):
    """Other numbers in the place of all."""

    def case(self, draw: Draw) -> Case:
        shape = (draw(sizes), draw(sizes))
        return Case(self.layer(), [Operand(shape), Operand(shape)])

    def forward(self, p: Pass) -> Array:
        return p.inputs[1]

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, zeros(g.shape, p.tally)
        yield p.inputs[1], g

    def reference(self, p: Pass, x: np.ndarray, other: np.ndarray) -> np.ndarray:
        return other


class CustomFunction(Kernel):
    """y = x by a backward of its own, which multiplies by one; the forward pass was the layers before it."""

    def case(self, draw: Draw) -> Case:
        n = draw(sizes)
        fields = {"work": 0, "counted": 0, "moved": 8 * n, "launches": 1, "scratch": 0, "results": 4 * n}
        kind = self.layer(operands=1, pointwise=n, graded=(0,), **fields)
        return Case(kind, [Operand((n,)), Operand((n,), constant=True)])

    def forward(self, p: Pass) -> Array:
        return p.x

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g * 1

    def reference(self, p: Pass, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x


class GradientLeaf(WrittenPart):
    """Its gradient goes no further."""


class FurtherResult(Kernel):
    """Another result; its gradient is handed to the function that made both."""

    def case(self, draw: Draw) -> Case:
        n = draw(sizes)
        return Case(self.layer(), [Operand((n,)), Operand((n,), constant=True)])

    def forward(self, p: Pass) -> Array:
        return p.x

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g

    def reference(self, p: Pass, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x


class PartSet(Kernel):
    """The first place of the last axis."""

    def case(self, draw: Draw) -> Case:
        rows, columns = draw(sizes), draw(sizes)
        return Case(self.layer(), [Operand((rows, columns)), Operand((rows,))])

    def forward(self, p: Pass) -> Array:
        y = Array(p.x.values.copy(), p.tally)
        y[:, 0] = p.inputs[1]
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        dx = Array(g.values.copy(), p.tally)
        dx[:, 0] = 0
        yield p.x, dx
        yield p.inputs[1], g[:, 0]

    def reference(self, p: Pass, x: np.ndarray, part: np.ndarray) -> np.ndarray:
        return np.concatenate([part[:, None], x[:, 1:]], 1)


class MaskedScatter(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = (draw(sizes), draw(sizes))
        return Case(self.layer(), [Operand(shape), Operand(shape), Operand(shape, "mask")])

    def forward(self, p: Pass) -> Array:
        mask = p.inputs[2].values
        y = Array(p.x.values.copy(), p.tally)
        y[mask] = p.inputs[1].reshape(-1)[: mask.sum()]
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        mask, numbers = p.inputs[2].values, zeros((p.x.size,), p.tally)
        numbers[: mask.sum()] = g[mask]
        yield p.x, np.where(mask, 0, g)
        yield p.inputs[1], numbers.reshape(*p.inputs[1].shape)

    def reference(self, p: Pass, x: np.ndarray, numbers: np.ndarray, mask: np.ndarray) -> np.ndarray:
        left = iter(numbers.ravel())
        return np.array([[next(left) if mask[at] else x[at] for at in np.ndindex(*x.shape)]]).reshape(x.shape)
