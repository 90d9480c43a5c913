"""Kernels over complex numbers: from real ones, arithmetic, functions, and transforms by halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, Tally, accumulated, joined, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

FACTOR = 0.3 - 0.7j


def back(g: Array, x: Array) -> Array:
    """The gradient of an operand: summed where it was broadcast, its real part if it is real."""
    if not np.iscomplexobj(x.values):
        g = g.real if np.iscomplexobj(g.values) else g
    return g if g.shape == x.shape else accumulated(g, x.shape)


def real_product(a: Array, b: Array) -> Array:
    """Re(a b̄)."""
    return a.real * b.real + a.imag * b.imag


class Assembled(Kernel):
    table = ("complex", "polar", "real", "scaled")

    def case(self, draw: Draw) -> Case:
        shape = draw(st.tuples(sizes, sizes))
        operands = [Operand(shape, within=(0.2, 3)), Operand(shape[pick(draw) :], within=(0.2, 3))]
        return Case(self.layer(function=self.row), operands[: 2 if self.row in ("complex", "polar") else 1])

    def forward(self, p: Pass) -> Array:
        if self.row == "real":
            return Array(p.x.values + 0j, p.tally)
        if self.row == "scaled":
            return p.x * FACTOR
        a, b = (np.broadcast_to(x, p.x.shape) for x in p.inputs)
        return joined(a, b) if self.row == "complex" else joined(a * np.cos(b), a * np.sin(b))

    def backward(self, p: Pass, g: Array) -> Gradients:
        if self.row == "scaled":
            yield p.x, g.real * FACTOR.real + g.imag * FACTOR.imag
        elif self.row == "polar":
            yield p.x, real_product(g, p.y) / np.absolute(p.y)
            yield p.inputs[1], back(g.imag * p.y.real - g.real * p.y.imag, p.inputs[1])
        else:
            yield p.x, g.real
            for x in p.inputs[1:]:
                yield x, back(g.imag, x)

    def reference(self, p: Pass, x: np.ndarray, *others: np.ndarray) -> np.ndarray:
        if self.row == "polar":
            return x * np.exp(1j * others[0])
        return x * FACTOR if self.row == "scaled" else x + 1j * (others[0] if others else 0)


def pick(draw: Draw) -> int:
    return draw(st.integers(0, 1))


class ComplexArithmetic(Kernel):
    operations: ClassVar[dict[str, Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    table = tuple(operations)

    def case(self, draw: Draw) -> Case:
        shape = draw(st.tuples(sizes, sizes))
        roles = draw(st.sampled_from([("complex", "complex"), ("complex", "activation"), ("activation", "complex")]))
        constant = draw(st.sampled_from([None, 0, 1]))
        operands = [
            Operand(shape[pick(draw) * at :], role, constant=constant == at, within=(0.2, 3))
            for at, role in enumerate(roles)
        ]
        return Case(self.layer(function=self.row), operands)

    def wide(self, p: Pass) -> list[Any]:
        shape = np.broadcast_shapes(*(x.shape for x in p.inputs))
        return [np.broadcast_to(x, shape) for x in p.inputs]

    def forward(self, p: Pass) -> Array:
        return self.operations[self.row](*self.wide(p))

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b = self.wide(p)
        (first, second), shared = p.inputs, g / b.conj if self.row == "div" else g
        if self.row in ("add", "sub"):
            gradients = [lambda: back(g, first), lambda: self._signed(g, second)]
        elif self.row == "mul":
            gradients = [lambda: back(_times(g, b, a), first), lambda: back(_times(g, a, b), second)]
        else:
            gradients = [lambda: back(shared, first), lambda: back(self._of_divisor(shared, p.y, b), second)]
        for x, gradient in zip(p.inputs, gradients, strict=True):
            if p.needs(x):
                yield x, gradient()

    def _signed(self, g: Array, x: Array) -> Array:
        g = g if np.iscomplexobj(x.values) else g.real
        return back(-g if self.row == "sub" else g, x)

    def _of_divisor(self, shared: Array, y: Array, b: Array) -> Array:
        return -(shared * y.conj) if np.iscomplexobj(b.values) else -real_product(shared, y)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """By angles, or by parts."""
        if self.row in ("add", "sub"):
            sign = 1 if self.row == "add" else -1
            return a.real + sign * b.real + 1j * (a.imag + sign * b.imag)
        sign = 1 if self.row == "mul" else -1
        return abs(a) * abs(b) ** sign * np.exp(1j * (np.angle(a) + sign * np.angle(b)))


def _times(g: Array, other: Array, own: Array) -> Array:
    """g times the conjugate of the other factor, of which a real operand takes the real part."""
    complex_too = np.iscomplexobj(other.values)
    return real_product(g, other) if complex_too and not np.iscomplexobj(own.values) else g * other.conj


class Function(NamedTuple):
    y: Callable[[Array], Array]
    dx: Callable[[Array, Any, Any], Array]
    expected: Callable[[np.ndarray], np.ndarray]


def _exponential(x: Array) -> Array:
    size = np.exp(x.real)
    return joined(size * np.cos(x.imag), size * np.sin(x.imag))


def _turned_by(g: Array, x: Array) -> Array:
    """g·(−b, a)/|x|² of the angle of (a, b)."""
    share = g / real_product(x, x)
    return joined(share * -x.imag, share * x.real)


class ComplexFunction(Kernel):
    functions: ClassVar[dict[str, Function]] = {
        "abs": Function(np.absolute, lambda g, x, y: g * (x / np.absolute(x)), lambda x: np.hypot(x.real, x.imag)),
        "angle": Function(lambda x: np.arctan2(x.imag, x.real), lambda g, x, y: _turned_by(g, x), np.angle),
        "conj": Function(lambda x: joined(x.real, -x.imag), lambda g, x, y: joined(g.real, -g.imag), np.conj),
        "exp": Function(_exponential, lambda g, x, y: g * y.conj, np.exp),
        "move": Function(lambda x: x + FACTOR, lambda g, x, y: g, lambda x: x + FACTOR),
        "neg": Function(np.negative, lambda g, x, y: -g, lambda x: 0 - x),
        "reciprocal": Function(
            lambda x: x.conj / real_product(x, x), lambda g, x, y: -(g * (y * y).conj), lambda x: x**-1
        ),
        "scale": Function(lambda x: x * 1.5, lambda g, x, y: g * 1.5, lambda x: 3 * x / 2),
        "shift": Function(lambda x: x + 1.5, lambda g, x, y: g, lambda x: x + 1.5),
        "turn": Function(lambda x: x * FACTOR, lambda g, x, y: g * np.conj(FACTOR), lambda x: x * FACTOR),
    }
    table = tuple(functions)

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(function=self.row), [Operand((draw(sizes), draw(sizes)), "complex", within=(0.2, 2))])

    def forward(self, p: Pass) -> Array:
        return self.functions[self.row].y(p.x)

    def backward(self, p: Pass, g: Array) -> Gradients:
        yield p.x, self.functions[self.row].dx(g, p.x, p.y)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return self.functions[self.row].expected(x)


def transformed(x: Array, axis: int, sign: int) -> Array:
    """By halves, of a power of two: each round takes a product, a sum and a difference for every two numbers."""
    x = np.moveaxis(x, axis, 0)
    n = x.shape[0]
    if n > 1:
        even, odd = (np.moveaxis(transformed(x[start::2], 0, sign), 0, 0) for start in (0, 1))
        turns = np.exp(sign * 2j * np.pi * np.arange(n // 2) / n).reshape(-1, *(1 for _ in x.shape[1:]))
        odd = odd * turns
        x = np.concatenate([even + odd, even - odd])
    return np.moveaxis(Array(x.values + 0j, x.tally), 0, axis)


def halved(x: Array, axis: int, sign: int) -> Array:
    """A transform from or to real numbers, of which one half of the work mirrors the other."""
    tally = Tally()
    y = transformed(Array(x.values, tally), axis, sign)
    x.tally.pointwise += -(-tally.pointwise // 2)
    return Array(y.values, x.tally)


class FourierTransform(Kernel):
    """Of powers of two, by which the others are rounded up."""

    table = ("complex", "from real", "to real")

    def case(self, draw: Draw) -> Case:
        powers = st.sampled_from([1, 2, 4])
        shape = draw(st.tuples(powers, powers, powers))
        axes = tuple(draw(st.permutations(range(3)))[: draw(st.integers(1, 3))])
        whole = self.row == "from real" and draw(st.booleans())
        half = tuple(n // 2 + 1 if axis == axes[-1] else n for axis, n in enumerate(shape))
        start, end = {"complex": (shape, shape), "from real": (shape, shape if whole else half)}.get(
            self.row, (half, shape)
        )
        layer = self.layer(shape=end, axes=axes, how=self.row, whole=whole, scaled=draw(st.booleans()))
        return Case(layer, [Operand(start, "activation" if self.row == "from real" else "complex")])

    def forward(self, p: Pass) -> Array:
        x, sign = p.x, 1 if self.row == "to real" else -1
        *others, last = p.kind.axes
        if self.row == "from real":
            y = _first(halved(x, last, sign), last, x.shape[last] // 2 + 1)
            for axis in others:
                y = transformed(y, axis, sign)
            y = self._scaled(p, y)
            return _mirrored(y, p.kind.axes, p.kind.shape[last]) if p.kind.whole else y
        for axis in others:
            x = transformed(x, axis, sign)
        if self.row == "complex":
            return self._scaled(p, transformed(x, last, sign))
        whole = _mirrored(_hermitian(x, last, p.kind.shape[last]), [last], p.kind.shape[last])
        return self._scaled(p, halved(whole, last, sign).real)

    def _scaled(self, p: Pass, x: Array) -> Array:
        return x * 0.5 if p.kind.scaled else x

    def backward(self, p: Pass, g: Array) -> Gradients:
        *others, last = p.kind.axes
        if self.row == "to real":
            n, kept = g.shape[last], p.x.shape[last]
            x = _first(halved(g, last, -1), last, kept)
            for axis in others:
                x = transformed(x, axis, -1)
            x = np.moveaxis(self._scaled(p, x), last, 0)
            twice = x[1 : 1 + n - kept] * 2.0
            yield p.x, np.moveaxis(np.concatenate([x[:1], twice, x[1 + n - kept :]]), 0, last)
            return
        x = zeros(p.x.shape, p.tally)
        x.values = np.zeros(p.x.shape, complex)
        x[tuple(slice(0, n) for n in g.shape)] = g
        for axis in p.kind.axes:
            x = transformed(x, axis, 1)
        x = self._scaled(p, x)
        yield p.x, x.real if self.row == "from real" else x

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        axes, scale = p.kind.axes, 0.5 if p.kind.scaled else 1
        if self.row == "to real":
            return (
                scale
                * np.fft.irfftn(x, [p.kind.shape[axis] for axis in axes], axes)
                * np.prod([p.kind.shape[axis] for axis in axes])
            )
        y = np.fft.fftn(x, axes=axes) if self.row == "complex" or p.kind.whole else np.fft.rfftn(x, axes=axes)
        return scale * y


def _first(x: Array, axis: int, count: int) -> Array:
    return np.moveaxis(np.moveaxis(x, axis, 0)[:count], 0, axis)


def _hermitian(x: Array, axis: int, n: int) -> Array:
    """What stands for itself is real."""
    values = np.moveaxis(x.values.copy(), axis, 0)
    values[0] = values[0].real
    if n > 1:
        values[n // 2] = values[n // 2].real
    return Array(np.moveaxis(values, 0, axis), x.tally)


def _mirrored(x: Array, axes: Any, n: int) -> Array:
    """The other half, which are conjugates at the places that are mirrored along all axes."""
    values = x.values
    other = np.conj(values)
    for axis in axes:
        others = list(axes)[:-1]
        if axis in others:
            other = np.roll(np.flip(other, axis), 1, axis)
    last = axes[-1]
    rest = np.moveaxis(np.moveaxis(other, last, 0)[1 : n - values.shape[last] + 1][::-1], 0, last)
    return Array(np.concatenate([values, rest], last), x.tally)
