"""A kernel for every layer kind and every optimizer, in plain NumPy calls.

A kernel is the forward pass of one layer kind as calls on a tape, and the gradients of its operands. The tape has
NumPy's interface, and records calls instead of making them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from costmodel.errors import CostModelError
from costmodel.graph.tensor import broadcast, dense_strides
from costmodel.roofline.memory import ITEM_BYTES, Buffer, BufferRole, Ref, Shape
from costmodel.roofline.program import NumpyCall, PassName

COMPARISONS = frozenset(
    ["greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_not"]
)
"""Functions whose result is bool."""


class ArrayTape:
    """Records calls. ``t.exp(x)`` makes new memory, ``t.exp(x, out=x)`` writes where it is told.

    Every elementwise ufunc, ``matmul`` and ``copyto`` has its NumPy name; ufunc methods are `reduce` and `at`.
    dtype: the type of floating numbers, "float32" or "float64".
    """

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = dtype
        self.ops: list[NumpyCall] = []
        self.tables: dict[str, Ref] = {}
        self.layer = ""
        self.phase: PassName = "forward"

    def array(self, shape: Sequence[int], role: BufferRole, name: str = "", dtype: str | None = None) -> Ref:
        """An array allocated before the program runs."""
        return self.empty(*shape, dtype=dtype, role=role, name=name)

    def constant(self, shape: Sequence[int], value: Callable[[], Any], dtype: str | None = None) -> Ref:
        """An array whose numbers do not depend on the input; `value` makes them when the program is run."""
        shape = tuple(map(int, shape))
        return Ref(shape, Buffer(prod(shape), dtype or self.dtype, "constant", "constant", value))

    def shared(self, key: str, shape: Sequence[int], value: Callable[[], Any]) -> Ref:
        """A constant that all who ask for it by one name share."""
        if key not in self.tables:
            self.tables[key] = self.constant(shape, value)
        return self.tables[key]

    def empty(
        self,
        *shape: int,
        dtype: str | None = None,
        role: BufferRole = "temporary",
        name: str = "",
        like: Ref | None = None,
    ) -> Ref:
        """New memory, contiguous or in the order of `like`; ``np.empty``."""
        shape = tuple(map(int, shape))
        strides = None if like is None else dense_strides(shape, like.strides)
        return Ref(shape, Buffer(prod(shape), dtype or self.dtype, role, name or self.layer), strides)

    def full(self, shape: Sequence[int], value: float, dtype: str | None = None) -> Ref:
        """New memory of one number; ``np.full``."""
        return self.copyto(self.empty(*shape, dtype=dtype), value)

    def record(self, name: str, inputs: Sequence[Ref | float], out: Ref, **params: Any) -> Ref:
        """Any call; returns `out`."""
        self.ops.append(NumpyCall(name, tuple(inputs), out, params, self.layer, self.phase))
        return out

    def chain(self, out: Ref, *steps: str | tuple[Any, Any]) -> Ref:
        """Functions in place, one by one: "exp"; ("subtract", 1.0) for out − 1; (1.0, "subtract") for 1 − out."""
        for step in steps:
            if isinstance(step, str):
                self.record(step, [out], out)
            elif isinstance(step[0], str):
                self.record(step[0], [out, step[1]], out)
            else:
                self.record(step[1], [step[0], out], out)
        return out

    def copyto(self, out: Ref, values: Ref | float, where: Ref | None = None) -> Ref:
        """Write `values` into `out`, all or where a mask allows."""
        return self.record("copyto", [values] if where is None else [values, where], out)

    def copy(self, x: Ref) -> Ref:
        """A contiguous copy; ``np.ascontiguousarray`` of what is not."""
        return self.copyto(self.empty(*x.shape, dtype=x.dtype), x)

    def reshape(self, x: Ref, *shape: int) -> Ref:
        """A view where memory order allows it, else a copy; ``np.reshape``."""
        view = x.seen_as(*shape)
        return self.copy(x).reshape(*shape) if view is None else view

    def matmul(self, a: Ref, b: Ref, out: Ref | None = None) -> Ref:
        """Products of the last two axes; the leading ones broadcast."""
        if out is None:
            batch = broadcast(a.shape[:-2], b.shape[:-2], "matmul")
            out = self.empty(*batch, a.shape[-2], b.shape[-1])
        return self.record("matmul", [a, b], out)

    def reduce(
        self,
        name: str,
        x: Ref,
        axis: int | Sequence[int],
        *,
        keepdims: bool = True,
        out: Ref | None = None,
        initial: float | None = None,
    ) -> Ref:
        """``np.<name>.reduce``; a gradient that is summed starts from `initial` 0."""
        axes = sorted(a % len(x.shape) for a in ((axis,) if isinstance(axis, int) else axis))
        if out is None:
            kept = (1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes)
            out = self.empty(*kept)
        params: dict[str, Any] = {"axis": tuple(axes), "keepdims": keepdims}
        if initial is not None:
            params["initial"] = initial
        return self.record(f"{name}.reduce", [x], out, **params)

    def sum(self, x: Ref, axis: int | Sequence[int], **how: Any) -> Ref:
        """``np.add.reduce``."""
        return self.reduce("add", x, axis, **how)

    def mean(self, x: Ref, axis: int | Sequence[int]) -> Ref:
        """The sum over its number of terms, axes kept."""
        total = self.sum(x, axis)
        return self.divide(total, x.size // total.size, out=total)

    def accumulate(self, terms: Ref, shape: Shape) -> Ref:
        """A gradient of `shape`: `terms` summed from zero over the axes that were broadcast."""
        widened = (1,) * (len(terms.shape) - len(shape)) + shape
        axes = [axis for axis, n in enumerate(widened) if n == 1]
        return self.reduce("add", terms, axes, initial=0.0).reshape(*shape)

    def at(self, name: str, out: Ref, index: Ref, values: Ref, **params: Any) -> Ref:
        """``np.<name>.at``: for each index in turn, out of `out`'s first axis, or its last with ``axis=-1``."""
        return self.record(f"{name}.at", [index, values], out, **params)

    def take(self, table: Ref, index: Ref, axis: int = 0) -> Ref:
        """Rows of a table; ``mode="clip"`` writes them straight to where they belong."""
        shape = (*table.shape[:axis], *index.shape, *table.shape[axis + 1 :])
        return self.record("take", [table, index], self.empty(*shape, dtype=table.dtype), axis=axis, mode="clip")

    def random(self, *shape: int) -> Ref:
        """Uniform random numbers; ``Generator.random``."""
        return self.record("random", [], self.empty(*shape))

    def __getattr__(self, name: str) -> Callable[..., Ref]:
        """An elementwise function by its NumPy name."""
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*inputs: Ref | float, out: Ref | None = None) -> Ref:
            return self.record(name, inputs, self._result(name, inputs) if out is None else out)

        return call

    def _result(self, name: str, inputs: Sequence[Ref | float]) -> Ref:
        """New memory for an elementwise result, in the order of the first operand that has its shape."""
        refs = [x for x in inputs if isinstance(x, Ref)]
        shape: Shape = ()
        for x in refs:
            shape = broadcast(shape, x.shape, name)
        whole = next((x for x in refs if x.shape == shape and x.bytes == x.size * ITEM_BYTES[x.dtype]), None)
        floats = [x.dtype for x in refs if x.dtype.startswith("float")]
        dtype = "bool" if name in COMPARISONS else (floats or [x.dtype for x in refs])[0]
        return self.empty(*shape, dtype=dtype, like=whole)


@dataclass(eq=False)
class KernelCall:
    """One layer at work: its kind, its operands, what it made, and what its forward pass leaves for backward.

    wanted: the operands whose gradients are asked for.
    """

    kind: Any
    inputs: list[Ref]
    weights: dict[str, Ref]
    buffers: dict[str, Ref]
    training: bool
    wanted: list[Ref]
    saved: dict[str, Ref] = field(default_factory=dict)
    y: Any = None

    @property
    def x(self) -> Ref:
        """The first input."""
        return self.inputs[0]

    def wants(self, operand: Ref) -> bool:
        """Whether the gradient of `operand` is asked for."""
        return any(operand is wanted for wanted in self.wanted)

    @property
    def names(self) -> list[str]:
        """Weights whose gradients are asked for."""
        return [name for name, weight in self.weights.items() if self.wants(weight)]


Gradients = Iterator[tuple[Ref, Ref]]
Forward = Callable[[ArrayTape, KernelCall], Ref]
Backward = Callable[[ArrayTape, KernelCall, Ref], Gradients]
GradientRule = Callable[[ArrayTape, KernelCall, Ref], Ref]


@dataclass(frozen=True)
class NumpyKernel:
    """forward(tape, site) → y; backward(tape, site, g) yields (operand, gradient), one after another.

    extra: why NumPy does other pointwise arithmetic than the plain definition that the kind's formulas count, by pass;
    where nothing is said the counts are equal.
    """

    forward: Forward
    backward: Backward
    extra: dict[str, str] = field(default_factory=dict)


KERNELS: dict[str, NumpyKernel] = {}
"""Every kernel defined so far, by the name of its kind."""


def kernel(kind: str, forward: Forward, backward: Backward, extra: dict[str, str] | None = None) -> None:
    """Make two functions the kernel of a layer kind."""

    def remembering(t: ArrayTape, s: KernelCall) -> Ref:
        s.y = forward(t, s)
        return s.y

    KERNELS[kind] = NumpyKernel(remembering, backward, extra or {})


def unary(kind: str, forward: Forward, gradient: GradientRule, extra: dict[str, str] | None = None) -> None:
    """The kernel of a kind that has only the gradient of its first input, which `gradient` returns."""

    def backward(t: ArrayTape, s: KernelCall, g: Ref) -> Gradients:
        yield s.x, gradient(t, s, g)

    kernel(kind, forward, backward, extra)


def load_all() -> dict[str, NumpyKernel]:
    """Import every file of this package and return the kernels of all layer kinds by name."""
    from importlib import import_module
    from pkgutil import iter_modules

    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return KERNELS


def kernel_of(kind: str) -> NumpyKernel:
    """The kernel of a layer kind. Raises CostModelError if there is none."""
    known = KERNELS if kind in KERNELS else load_all()
    if kind not in known:
        raise CostModelError(f"layer kind {kind} has no NumPy kernel: define one in costmodel.roofline.kernels")
    return known[kind]


def rows(t: ArrayTape, x: Ref) -> Ref:
    """x as a matrix of rows."""
    return t.reshape(x, -1, x.shape[-1]) if len(x.shape) != 2 else x


def spread(weight: Ref, shape: Shape, axis: int = 1) -> Ref:
    """A vector, shaped to broadcast along `axis` of an array of `shape`."""
    after = len(shape) - 1 - axis % len(shape)
    return weight.reshape(-1, *(1 for _ in range(after)))
