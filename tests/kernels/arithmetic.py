"""Kernels of elementwise arithmetic, dropout and noise."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from costmodel.layers.base import Layer
from tests.kernels.counting import Array, accumulated
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


def _back(terms: Array, operand: Array) -> Array:
    """The gradient itself, or its sum over the axes that `operand` was broadcast over."""
    return terms if terms.shape == operand.shape else accumulated(terms, operand.shape)


class Elementwise(Kernel, abstract=True):
    def layer_of(self, draw: Draw) -> Layer:
        return self.layer()

    def case(self, draw: Draw) -> Case:
        shape = draw(st.tuples(sizes, sizes, sizes))
        some = [tuple(1 if draw(st.booleans()) else n for n in shape) for _ in range(2)]
        return Case(self.layer_of(draw), [Operand(some[0][draw(st.integers(0, 2)) :]), Operand(some[1])])


class Add(Elementwise):
    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a - (-b)


class Multiply(Elementwise):
    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return ((a + b) ** 2 - (a - b) ** 2) / 4


class Unary(Kernel, abstract=True):
    def layer_of(self, draw: Draw) -> Layer:
        return self.layer()

    def case(self, draw: Draw) -> Case:
        return Case(self.layer_of(draw), [Operand(tuple(draw(st.lists(sizes, min_size=2, max_size=4))))])


class Scale(Unary):
    def layer_of(self, draw: Draw) -> Layer:
        return self.layer(factor=draw(st.floats(-3, 3)))

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x - x * (1 - p.kind.factor)


class Shift(Unary):
    def layer_of(self, draw: Draw) -> Layer:
        return self.layer(constant=draw(st.floats(-3, 3)))

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x - (-p.kind.constant)


class Identity(Unary):
    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x


class Unread(Identity):
    def layer_of(self, draw: Draw) -> Layer:
        return self.layer(features=draw(sizes))

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.input_needs_gradient:
            yield p.x, g

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x


class Clamp(Unary):
    def case(self, draw: Draw) -> Case:
        shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
        low, high = draw(st.sampled_from([(-0.5, 0.5), (-0.3, 0.8), (None, 0.4), (0.0, None)]))
        return Case(self.layer(low=low, high=high), [Operand(shape)])

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x.clip(p.kind.low, p.kind.high)


class LayerScale(Unary):
    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.einsum("bc...,c->bc...", x, weight.ravel())


class Random(Kernel, abstract=True):
    def case(self, draw: Draw) -> Case:
        p = draw(st.sampled_from([0.0, 0.25, 0.5]))
        return Case(self.layer(p=p), [Operand(tuple(draw(st.lists(sizes, min_size=2, max_size=4))))])

    def mask_shape(self, p: Pass) -> tuple[int, ...]:
        return p.x.shape

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        if not p.training:
            return x
        drawn = p.random(self.mask_shape(p)).values
        return np.where(drawn >= p.kind.p, x / (1 - p.kind.p), 0)


class Dropout(Random):
    pass


class ChannelDropout(Random):
    def mask_shape(self, p: Pass) -> tuple[int, ...]:
        return (*p.x.shape[:2], *(1 for _ in p.x.shape[2:]))


class StochasticDepth(Random):
    def mask_shape(self, p: Pass) -> tuple[int, ...]:
        return (p.x.shape[0], *(1 for _ in p.x.shape[1:]))


class Subtract(Elementwise):
    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return -b + a


class Positive(Elementwise, abstract=True):
    """Of numbers that have a quotient and a logarithm; the first may be a constant."""

    def case(self, draw: Draw) -> Case:
        constant, operands = draw(st.booleans()), super().case(draw).inputs
        return Case(
            self.layer(), [x._replace(within=(0.5, 2)) for x in (operands[0]._replace(constant=constant), operands[1])]
        )


class Divide(Positive):
    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(np.log(a) - np.log(b))


class AddTerm(Positive, abstract=True):
    def case(self, draw: Draw) -> Case:
        case = super().case(draw)
        shape = np.broadcast_shapes(*(x.shape for x in case.inputs))
        return case._replace(inputs=[Operand(tuple(1 if draw(st.booleans()) else n for n in shape)), *case.inputs])


class AddProduct(AddTerm):
    def forward(self, p: Pass) -> Array:
        c, a, b = p.inputs
        return c + a * b

    def backward(self, p: Pass, g: Array) -> Gradients:
        c, a, b = p.inputs
        yield c, _back(g, c)
        if p.needs(a):
            yield a, _back(g * b, a)
        yield b, _back(g * a, b)

    def reference(self, p: Pass, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return c + np.exp(np.log(a) + np.log(b))


class Scaled(Elementwise, abstract=True):
    sign: int

    def layer_of(self, draw: Draw) -> Layer:
        return self.layer(factor=draw(st.floats(-3, 3)))

    def forward(self, p: Pass) -> Array:
        a, b = p.inputs
        return a + b * p.kind.factor if self.sign > 0 else a - b * p.kind.factor

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b = p.inputs
        yield a, _back(g, a)
        yield b, _back(g * (self.sign * p.kind.factor), b)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a - b * (-self.sign * p.kind.factor)


class AddScaled(Scaled):
    sign = 1


class SubtractScaled(Scaled):
    sign = -1


class AddQuotient(AddTerm):
    def forward(self, p: Pass) -> Array:
        c, a, b = p.inputs
        return c + a / b

    def backward(self, p: Pass, g: Array) -> Gradients:
        c, a, b = p.inputs
        yield c, _back(g, c)
        share = g / b
        if p.needs(a):
            yield a, _back(share, a)
        yield b, _back(-share * (a / b), b)

    def reference(self, p: Pass, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return c + np.exp(np.log(a) - np.log(b))


class Power(Positive):
    def forward(self, p: Pass) -> Array:
        return p.inputs[0] ** p.inputs[1]

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b = p.inputs
        if p.needs(a):
            yield a, _back(g * b * a ** (b - 1), a)
        yield b, _back(g * p.y * np.log(a), b)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(b * np.log(a))


class Extreme(Elementwise):
    """The larger one."""

    def case(self, draw: Draw) -> Case:
        """Numbers of which no two are equal."""
        a, b = super().case(draw).inputs
        return Case(self.layer(), [a._replace(within=(-8, 8)), b._replace(within=(-7.9, 8.3))])

    def forward(self, p: Pass) -> Array:
        return np.maximum(*p.inputs)

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b = p.inputs
        yield a, _back(g * (a > b), a)
        yield b, _back(g * (b > a), b)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a + b + abs(a - b)) / 2


class Choose(Elementwise):
    def case(self, draw: Draw) -> Case:
        case = super().case(draw)
        shape = np.broadcast_shapes(*(x.shape for x in case.inputs))
        condition = tuple(1 if draw(st.booleans()) else n for n in shape)
        return case._replace(inputs=[Operand(condition, "mask"), *case.inputs])

    def reference(self, p: Pass, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * condition + b * ~condition


class CrossProduct(Kernel):
    def case(self, draw: Draw) -> Case:
        rows = draw(sizes)
        shapes = draw(st.sampled_from([((rows, 3), (rows, 3)), ((rows, 3), (1, 3)), ((3,), (rows, 3))]))
        return Case(self.layer(), [Operand(shape) for shape in shapes])

    def forward(self, p: Pass) -> Array:
        return _crossed(*p.inputs)

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b = p.inputs
        for x, factors in ((a, (b, g)), (b, (g, a))):
            gradient = _crossed(*factors)
            yield x, gradient if x.shape == g.shape else accumulated(gradient, x.shape)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.cross(a, b)


def _crossed(a: Array, b: Array) -> Array:
    a, b = (np.broadcast_to(x, np.broadcast_shapes(a.shape, b.shape)) for x in (a, b))
    parts = [a[..., n - 2] * b[..., n - 1] - a[..., n - 1] * b[..., n - 2] for n in range(3)]
    return np.stack(parts, -1)


class Remainder(Kernel):
    def case(self, draw: Draw) -> Case:
        shape = (draw(sizes), draw(sizes))
        divisor = Operand(draw(st.sampled_from([shape, shape[1:]])), within=(1.3, 2.7), constant=draw(st.booleans()))
        return Case(self.layer(), [Operand(shape), divisor])

    def forward(self, p: Pass) -> Array:
        a, b = p.x, np.broadcast_to(p.inputs[1], p.x.shape)
        return a - b * np.floor(a / b)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, g
        b = p.inputs[1]
        if p.needs(b):
            gradient = -g * np.floor(p.x / b)
            yield b, gradient if b.shape == g.shape else accumulated(gradient, b.shape)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.mod(a, b)
