"""An array that counts its own arithmetic, by the conventions of ``costmodel.layers.base``.

Moving, indexing, reshaping and converting numbers is free, as are arithmetic on whole numbers, and what happens between
constants before they meet an array. An operation without a rule here is an error, never a zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

POINTWISE = {
    *(np.add, np.subtract, np.multiply, np.divide, np.negative, np.reciprocal),
    *(np.maximum, np.minimum, np.greater, np.greater_equal, np.less, np.less_equal),
    *(np.equal, np.not_equal, np.isfinite, np.absolute, np.sign, np.floor, np.ceil, np.rint, np.square, np.copysign),
    *(np.exp, np.exp2, np.log, np.log2, np.log10, np.power, np.tanh, np.sqrt),
    *(np.sin, np.cos, np.tan, np.arcsin, np.arctan, np.arctan2, np.sinh, np.cosh),
    *(special.digamma, special.erfcx, special.erfinv, special.gammaln, special.log_ndtr, special.ndtri),
    *(special.i0, special.i0e, special.i1, special.i1e),
    *(np.arccos, np.arccosh, np.arcsinh, np.arctanh, np.trunc, np.fmax, np.fmin),
}
COMPLEX: dict[Any, dict[tuple[bool, ...], int]] = {
    np.add: {(True, True): 2, (True, False): 1, (False, True): 1},
    np.subtract: {(True, True): 2, (True, False): 1, (False, True): 2},
    np.multiply: {(True, True): 6, (True, False): 2, (False, True): 2},
    np.divide: {(True, True): 11, (True, False): 2, (False, True): 7},
    np.negative: {(True,): 2},
    np.absolute: {(True,): 4},
}
"""Operations on real numbers that one on complex ones takes, by which of the operands are complex."""
LOGIC = {np.logical_and, np.logical_or, np.logical_not}
REDUCED = {np.add, np.maximum, np.minimum, np.multiply}
MOVING = {
    *(np.reshape, np.swapaxes, np.moveaxis, np.transpose, np.broadcast_to, np.expand_dims, np.squeeze),
    *(np.concatenate, np.stack, np.pad, np.repeat, np.take, np.take_along_axis),
}


@dataclass
class Tally:
    """Operations so far."""

    contractions: int = 0
    pointwise: int = 0


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """Numbers that note in `tally` what is done with them."""

    def __init__(self, values: Any, tally: Tally) -> None:
        self.values = np.asarray(values)
        self.tally = tally

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def size(self) -> int:
        return self.values.size

    def __getitem__(self, where: Any) -> Array:
        return Array(self.values[_plain(where)], self.tally)

    def __setitem__(self, where: Any, values: Any) -> None:
        self.values[_plain(where)] = _plain(values)

    @property
    def real(self) -> Array:
        return Array(self.values.real, self.tally)

    @property
    def imag(self) -> Array:
        return Array(self.values.imag, self.tally)

    @property
    def conj(self) -> Array:
        """Free: its sign is that of a term elsewhere."""
        return Array(np.conj(self.values), self.tally)

    def reshape(self, *shape: int) -> Array:
        return Array(self.values.reshape(shape), self.tally)

    def astype(self, dtype: Any) -> Array:
        return Array(self.values.astype(dtype), self.tally)

    def sum(self, axis: Any, keepdims: bool = True) -> Array:
        return np.add.reduce(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any, keepdims: bool = True) -> Array:
        return np.maximum.reduce(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any, keepdims: bool = True) -> Array:
        total = self.sum(axis, keepdims)
        return total / (self.size // total.size)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        made = getattr(ufunc, method)(*(_plain(x) for x in inputs), **options)
        if method == "__call__" and any(is_complex := [np.iscomplexobj(_plain(x)) for x in inputs]):
            self.tally.pointwise += COMPLEX[ufunc][tuple(is_complex)] * made.size
            return Array(made, self.tally)
        if method == "at" and ufunc in (np.add, np.subtract):
            target, where = (_plain(x) for x in inputs[:2])
            self.tally.pointwise += target[where].size
            return None
        if method == "reduce" and ufunc in REDUCED:
            self.tally.pointwise += inputs[0].size - ("initial" not in options) * np.size(made)
        elif method == "__call__" and ufunc is np.matmul:
            self.tally.contractions += 2 * made.size * inputs[0].shape[-1]
        elif method == "__call__" and ufunc in POINTWISE:
            self.tally.pointwise += 0 if made.dtype == np.int64 else made.size
        elif ufunc not in LOGIC:
            raise TypeError(f"no rule for counting {ufunc.__name__}.{method}")
        return Array(made, self.tally)

    def __array_function__(self, function: Any, _: Any, inputs: Any, options: Any) -> Array | None:
        made = function(*_plain(inputs), **_plain(options))
        if function is np.copyto:
            self.tally.pointwise += inputs[0].size if "where" in options else 0
            return None
        if function is np.where:
            self.tally.pointwise += made.size
        elif function not in MOVING:
            raise TypeError(f"no rule for counting {function.__name__}")
        return Array(made, self.tally)


def _plain(value: Any) -> Any:
    if isinstance(value, Array):
        return value.values
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value


def erf(x: Array) -> Array:
    """The error function, an elementary function that NumPy lacks."""
    x.tally.pointwise += x.size
    return Array(np.vectorize(math.erf, otypes=[float])(x.values), x.tally)


def joined(real: Array, imag: Array) -> Array:
    """Complex numbers from their parts."""
    return Array(real.values + 1j * imag.values, real.tally)


def zeros(shape: tuple[int, ...], tally: Tally) -> Array:
    """Memory to accumulate in."""
    return Array(np.zeros(shape), tally)


def add_product(target: Array, a: Array, b: Array) -> None:
    """target += a b, in place and in the target's shape: every product is added to its place, one multiply-add each."""
    target.values += (a @ b).values.reshape(target.shape)


def accumulated(terms: Array, shape: tuple[int, ...]) -> Array:
    """A gradient of `shape` from zero: each of `terms` is added to its place, over axes that were broadcast."""
    rank = len(terms.shape)
    widened = (1,) * (rank - len(shape)) + shape
    axes = tuple(axis for axis in range(rank) if widened[axis] == 1)
    if np.iscomplexobj(terms.values):
        return joined(accumulated(terms.real, shape), accumulated(terms.imag, shape))
    total = zeros(widened, terms.tally) + terms.sum(axes)
    return total.reshape(*shape)
