"""Kinds over complex numbers, each of which is two of the floating type in force: arithmetic, functions, transforms.

Operations are those on real numbers: a product of two complex numbers takes 6 (4 products, 2 sums), with a real one 2,
a sum 2. A conjugate is free, as its sign is that of a term elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.tensor import Storage, Tensor, dense_strides, strides_of
from costmodel.layers.arithmetic import Elementwise, elementwise_gradients, steps_or_sums
from costmodel.layers.base import NO_WORKSPACE, Function, OneKernel, PerElement, Shaped, Weightless, layer
from costmodel.symbolic.sizes import branch_value, ceil_div, ceil_log2, exact_div
from costmodel.training.dtypes import COMPLEX, REAL, Dtype


def complex_type(x: Tensor) -> Dtype:
    """The type of complex numbers with parts of a tensor's type."""
    return COMPLEX.get(x.dtype, x.dtype)


def real_type(x: Tensor) -> Dtype:
    """The type of the parts of complex numbers, or of real ones."""
    return REAL.get(x.dtype, x.dtype)


class Assembly(NamedTuple):
    """Operations per complex number that is made of real ones, and of the gradient of each of those."""

    forward: int
    gradients: tuple[int, ...]


ASSEMBLIES = {
    "complex": Assembly(0, (0, 0)),
    "polar": Assembly(4, (8, 3)),
    "real": Assembly(0, (0,)),
    "scaled": Assembly(2, (3,)),
}
"""Complex numbers by their parts, by r and θ, real ones as complex ones, and real ones times a complex number c.

Of r(cos θ + i sin θ) = y: dr = Re(g ȳ)/|y|, dθ = Im(g ȳ); of c·x it is Re(g c̄).
"""


@layer
class Assembled(Elementwise):
    """Complex numbers from real ones: see `ASSEMBLIES`."""

    source = "torch.complex, torch.polar; what backward needs is from its table of derivatives"
    in_lists = False
    arity = 1, 2

    function: str

    def output(self, call: Call) -> Tensor:
        y = super().output(call)
        return call.tape.tensor(y.shape, strides=y.strides, dtype=complex_type(call.x))

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, ASSEMBLIES[self.function].forward * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Parts of the incoming gradient; a broadcast operand sums."""
        return elementwise_gradients(call, ASSEMBLIES[self.function].gradients)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Of a polar form the result; of parts those that need a gradient, for their types."""
        if self.function == "polar":
            yield call.y
        elif self.function == "complex":
            yield from (x for x in call.inputs if x.requires_grad)

    def workspace(self, call: Call) -> Workspace:
        """Of a polar form ȳ·i, a copy of ḡ and both gradients before their real parts are read (``polar_backward``)."""
        if self.function != "polar":
            return NO_WORKSPACE
        return steps_or_sums(call, [4 * call.y.bytes])


class ComplexOperation(NamedTuple):
    """Operations per element of the result: with both complex, the first alone, the second alone.

    first, second: those of the gradients of a and of b; `after`: of b's where a's is there.
    """

    forward: tuple[int, int, int]
    first: tuple[int, int, int]
    second: tuple[int, int, int]
    after: tuple[int, int, int]


COMPLEX_OPERATIONS = {
    "add": ComplexOperation((2, 1, 1), (0, 0, 0), (0, 0, 0), (0, 0, 0)),
    "sub": ComplexOperation((2, 1, 2), (0, 0, 0), (2, 1, 2), (2, 1, 2)),
    "mul": ComplexOperation((6, 2, 2), (6, 2, 3), (6, 3, 2), (6, 3, 2)),
    "div": ComplexOperation((11, 2, 7), (11, 2, 11), (19, 6, 19), (8, 4, 8)),
}
"""Arithmetic by name. A quotient is a b̄/|b|²: 6 + 3 + 2, or 2 + 3 + 2 of a real a.

da = g b̄ of a product, of which a real a takes the real part; of a quotient da = g/b̄, and db = −da·ȳ: 11, 2 and 6. Of a
real b da takes 2, and the real part of −da·ȳ 4.
"""


@layer
class ComplexArithmetic(Elementwise):
    """y = a + b, a − b, a·b or a/b, where one of the two is complex, or both."""

    source = "torch.add, sub, mul and div of complex numbers; the gradient of a real operand is the real part"
    in_lists = False

    function: str

    def _case(self, call: Call) -> int:
        """Both complex, the first alone, the second alone."""
        a, b = (x.dtype in REAL for x in call.inputs)
        return 0 if a and b else 1 if a else 2

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, COMPLEX_OPERATIONS[self.function].forward[self._case(call)] * call.y.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """See `COMPLEX_OPERATIONS`; a broadcast operand sums."""
        case, costs = self._case(call), COMPLEX_OPERATIONS[self.function]
        second = costs.after if call.x.requires_grad else costs.second
        for x, work in zip(call.inputs, (costs.first[case], second[case]), strict=True):
            whole = x.has(call.y.shape)
            summed = 0 if whole else 2 if x.dtype in REAL else 1
            yield Gradient(x, LayerFlops(0, (work + summed) * call.y.size), shared=whole and not work)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Of a product the other factor, of a quotient b, and a for its gradient."""
        a, b = call.inputs
        if self.function in ("add", "sub"):
            return
        if b.requires_grad:
            yield a
        if a.requires_grad or self.function == "div":
            yield b

    def workspace(self, call: Call) -> Workspace:
        """The products of a gradient, of which a real operand has the real part, or a broadcast one the sum.

        Beside them is a copy of the conjugate that they are made with, or on a CPU of the real operand as complex ones;
        of a quotient for b's gradient, which is made first, −g, a/b, that over b, and a copy of its conjugate.
        """
        a, b = call.inputs
        n = call.y.bytes
        if self.function in ("add", "sub"):
            return NO_WORKSPACE
        if self.function == "mul":
            factors = [self._copied(call, other) for x, other in ((a, b), (b, a)) if x.requires_grad]
            steps = [number * n + factor for number, factor in enumerate(factors, 1)]
        else:
            steps = [5 * n] if b.requires_grad else []
            steps += [(len(steps) + 1) * n + self._copied(call, b)] if a.requires_grad else []
        return steps_or_sums(call, steps)

    def _copied(self, call: Call, factor: Tensor) -> int:
        """Bytes of a factor's conjugate."""
        if factor.dtype in REAL:
            return factor.bytes
        return 2 * factor.bytes if call.tape.device == "cpu" else 0


COMPLEX_FUNCTIONS = {
    "abs": Function(4, 8, "input", 1),
    "angle": Function(1, 7, "input", 4),
    "conj": Function(1, 1, "nothing"),
    "exp": Function(5, 6, "output", 1),
    "move": Function(2, 0, "nothing", shared=True),
    "neg": Function(2, 2, "nothing"),
    "reciprocal": Function(5, 14, "output", 3),
    "scale": Function(2, 2, "nothing"),
    "shift": Function(1, 0, "nothing", shared=True),
    "turn": Function(6, 6, "nothing"),
}
"""Functions of one complex number, by name, the first two of which are real.

√(a² + b²), of which dx = g·x/|x|; the angle of (a, b), of which dx = g·(−b, a)/|x|²; a conjugate that is written;
eᵃ(cos b + i sin b), with dx = g ȳ; −x; 1/x = x̄/|x|², of which dx = −g ȳ². A product with a real number and a sum
(`scale`, `shift`), and those with a complex one (`turn`, `move`).
"""


@layer
class ComplexFunction(PerElement):
    """y = f(x) of each complex number."""

    source = "torch's functions of complex numbers; what backward needs is from its table of derivatives"
    in_lists = False

    function: str

    @property
    def costs(self) -> Function:  # type: ignore[override]
        """See `COMPLEX_FUNCTIONS`."""
        return COMPLEX_FUNCTIONS[self.function]

    def output(self, call: Call) -> Tensor:
        x, real = call.x, self.function in ("abs", "angle")
        return call.tape.tensor(
            x.shape, strides=dense_strides(x.shape, x.strides), dtype=real_type(x) if real else x.dtype
        )

    def workspace(self, call: Call) -> Workspace:
        """Steps of the gradient, each of complex numbers; real results are the real parts of complex ones.

        Of an angle also a mask of where x is 0; of an absolute value, on a CPU, g as complex numbers.
        """
        steps, real = self.costs.steps * call.x.bytes, self.function in ("abs", "angle")
        if self.function == "abs" and call.tape.device == "cpu":
            steps += call.x.bytes
        mask = call.x.size if self.function == "angle" else 0
        return Workspace(2 * call.x.size if real else 0, 0, steps + mask)


Transformed = Literal["complex", "from real", "to real"]


@layer
class FourierTransform(Shaped, OneKernel, Weightless):
    """Discrete Fourier transforms along axes, of complex numbers, or from or to the half that says all of real ones.

    One of n complex numbers takes 5 n log₂ n operations, one from or to n real ones half of that, n rounded up to a
    power of two: the convention of FFTW's benchmarks, by which transforms are compared. FlopCounterMode counts none.

    axes: the one along which numbers are real comes last. whole: the other half of what comes from real numbers is
    written too. scaled: every number is multiplied by a constant besides.
    """

    source = "Cooley & Tukey 1965; Frigo & Johnson 2005, §VI (5 n log₂ n); the gradient is the transform back"
    in_lists = False

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    how: Transformed = "complex"
    whole: bool = False
    scaled: bool = False

    def output(self, call: Call) -> Tensor:
        """Memory with the axes innermost, by how they lie in the input's (``at::native::_exec_fft``)."""
        *others, last = self.axes
        steps = strides_of(call.x)
        if self.how == "complex":
            steps = _innermost(steps, [*others, last], [*others, last])
        elif self.how == "from real":
            steps = _innermost(steps, others, self.axes)
        else:
            steps = _innermost(_innermost(steps, others, others) if others else steps, [], [last])
        dtype = real_type(call.x) if self.how == "to real" else complex_type(call.x)
        return call.tape.tensor(self.shape, strides=dense_strides(self.shape, steps), dtype=dtype)

    def _lengths(self, call: Call) -> list[int]:
        shape = self.shape if self.how == "to real" else call.x.shape
        return [shape[axis] for axis in self.axes]

    def forward(self, call: Call) -> LayerFlops:
        """Along the axis of real numbers half of the work, along others that of complex ones."""
        lengths = self._lengths(call)
        if self.how == "complex":
            return LayerFlops(0, self._complex_work(call.x.size, lengths) + self._scaling(2 * call.x.size))
        real, n = call.x if self.how == "from real" else call.y, lengths.pop()
        half = exact_div(real.size, n) * ceil_div(n + 1, 2)
        work = ceil_div(5 * real.size * ceil_log2(n), 2) + self._complex_work(half, lengths)
        return LayerFlops(0, work + self._scaling(2 * half if self.how == "from real" else real.size))

    def _scaling(self, reals: int) -> int:
        return reals if self.scaled else 0

    def _complex_work(self, size: int, lengths: Iterable[int]) -> int:
        return 5 * size * sum(ceil_log2(n) for n in lengths)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """The transform back; to real numbers, that of complex ones, among which zeros are the other half.

        From real numbers (of what went to them) it is half of one, and what stands for two numbers is doubled.
        """
        x, y = call.x, call.y
        if self.how == "to real":
            *others, last = self._lengths(call)
            work = ceil_div(5 * y.size * ceil_log2(last), 2) + self._complex_work(x.size, others)
            twice = exact_div(2 * x.size, x.shape[self.axes[-1]]) * (last - x.shape[self.axes[-1]])
            yield Gradient(x, LayerFlops(0, work + self._scaling(x.reals) + twice))
            return
        work = self._complex_work(x.size, self._lengths(call))
        yield Gradient(x, LayerFlops(0, work + self._scaling(2 * x.size)))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Real numbers, for how many they are."""
        if self.how == "from real":
            yield call.x

    def workspace(self, call: Call) -> Workspace:
        """Of real numbers backward makes complex ones, and before it the incoming gradient with zeros behind it."""
        if self.how != "from real":
            return NO_WORKSPACE
        return Workspace(0, 0, (3 if call.x.size != call.y.size else 1) * call.x.bytes)


def _innermost(steps: Sequence[int], sort: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Steps that say the order of axes in memory: some innermost, of which the first are sorted, as the others are."""
    order = sorted((n for n in range(len(steps)) if n not in axes), key=lambda n: -branch_value(steps[n]))
    order += sorted(sort, key=lambda n: -branch_value(steps[n])) + [axis for axis in axes if axis not in sort]
    return tuple(len(order) - order.index(axis) for axis in range(len(order)))
