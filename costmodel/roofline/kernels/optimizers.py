"""Programs of the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from costmodel.errors import CostModelError
from costmodel.roofline.kernels import ArrayTape
from costmodel.roofline.memory import Ref
from costmodel.training.optimizers import QUANTISED, Optimizer


class Update(NamedTuple):
    """One weight, its gradient and states, and which step this is."""

    weight: Ref
    gradient: Ref
    states: dict[str, Ref]
    step: int


def follow(t: ArrayTape, average: Ref, values: Ref, share: float) -> None:
    """average ← (1 − share)·average + share·values."""
    t.multiply(average, 1 - share, out=average)
    t.add(average, t.multiply(values, share), out=average)


def follow_squares(t: ArrayTape, average: Ref, g: Ref, share: float) -> None:
    """The same of g²."""
    squares = t.chain(t.multiply(g, g), ("multiply", share))
    t.chain(average, ("multiply", 1 - share), ("add", squares))


def descend(t: ArrayTape, weight: Ref, direction: Ref, rate: float) -> None:
    """w ← w − η·direction."""
    t.subtract(weight, t.multiply(direction, rate), out=weight)


def root_of(t: ArrayTape, squares: Ref, correction: float, least: float) -> Ref:
    """√(v/correction) + ε, in new memory."""
    return t.chain(t.divide(squares, correction) if correction != 1 else t.copy(squares), "sqrt", ("add", least))


def momentum(t: ArrayTape, u: Update) -> Ref:
    """v ← 0.9 v + g."""
    return t.chain(u.states["momentum_buffer"], ("multiply", 0.9), ("add", u.gradient))


def nesterov(t: ArrayTape, u: Update) -> None:
    """v ← 0.9 v + g; w ← w − η(g + 0.9 v)."""
    descend(t, u.weight, t.chain(t.multiply(momentum(t, u), 0.9), ("add", u.gradient)), 1e-3)


def adagrad(t: ArrayTape, u: Update) -> None:
    """s ← s + g²; w ← w − ηg/(√s + ε)."""
    total = u.states["sum"]
    t.add(total, t.multiply(u.gradient, u.gradient), out=total)
    root = root_of(t, total, 1, 1e-10)
    descend(t, u.weight, t.divide(u.gradient, root, out=root), 1e-2)


def rmsprop(t: ArrayTape, u: Update) -> None:
    """v ← 0.99 v + 0.01 g²; w ← w − ηg/(√v + ε); v less the square of a mean, and momentum, where there is a state."""
    squares, mean, velocity = (u.states.get(name) for name in ("square_avg", "grad_avg", "momentum_buffer"))
    assert squares is not None
    follow_squares(t, squares, u.gradient, 0.01)
    if mean is not None:
        follow(t, mean, u.gradient, 0.01)
        variance = t.multiply(mean, mean)
        squares = t.subtract(squares, variance, out=variance)
    root = root_of(t, squares, 1, 1e-8)
    direction = t.divide(u.gradient, root, out=root)
    if velocity is not None:
        direction = t.chain(velocity, ("multiply", 0.9), ("add", direction))
    descend(t, u.weight, direction, 1e-2)


def moments(t: ArrayTape, u: Update) -> tuple[Ref, Ref]:
    """Running mean of g and of g²."""
    mean, squares = u.states["exp_avg"], u.states["exp_avg_sq"]
    follow(t, mean, u.gradient, 0.1)
    follow_squares(t, squares, u.gradient, 0.001)
    return mean, squares


def adam(t: ArrayTape, u: Update) -> None:
    """w ← w − η·m̂/(√v̂ + ε), v being the largest so far where there is a state of that."""
    mean, squares = moments(t, u)
    if "max_exp_avg_sq" in u.states:
        squares = t.chain(u.states["max_exp_avg_sq"], ("maximum", squares))
    root = root_of(t, squares, 1 - 0.999**u.step, 1e-8)
    descend(t, u.weight, t.divide(mean, root, out=root), 1e-3 / (1 - 0.9**u.step))


def adamw(t: ArrayTape, u: Update) -> None:
    """Adam, the weight decayed first."""
    t.multiply(u.weight, 1 - 1e-3 * 1e-2, out=u.weight)
    adam(t, u)


FRACTIONS = 7
"""Powers of ten that a code of dynamic quantisation may have (Dettmers et al. 2022, §2)."""
LEAST_SCALE = 1e-30
"""Of a block of zeros, which is divided by its scale too."""


def codebook(signed: bool) -> list[float]:
    """The 256 numbers that a byte stands for, sorted, the largest 1: the longer the fraction the larger the power of
    ten (Dettmers et al. 2022, §2 and §B). Without a sign the fraction has one bit more."""
    values = [0.0, 1.0]
    for power in range(FRACTIONS):
        parts = 2 ** (FRACTIONS - 1 - power + (not signed))
        middles = [(0.1 + 0.9 * (part + 0.5) / parts) * 10.0**-power for part in range(parts)]
        values += [*middles, *(-middle for middle in middles if signed)]
    return sorted(values)


class Quantised(NamedTuple):
    """A state of a byte an element, and the scales of blocks of it; book, ends: of its codes."""

    codes: Ref
    scales: Ref
    book: Ref
    ends: Ref

    def values(self, t: ArrayTape) -> Ref:
        """In full precision, in new memory."""
        index = t.copyto(t.empty(*self.codes.shape, dtype="int64"), self.codes)
        values = t.take(self.book, index)
        return t.multiply(values, self.scales, out=values)

    def store(self, t: ArrayTape, values: Ref) -> None:
        """Make the largest of each block its scale, and each number the nearest code."""
        sizes = t.absolute(values)
        t.reduce("maximum", sizes, -1, out=self.scales)
        t.maximum(self.scales, LEAST_SCALE, out=self.scales)
        t.record("searchsorted", [self.ends, t.divide(values, self.scales, out=sizes)], self.codes)


def adam_8bit(t: ArrayTape, u: Update) -> None:
    """Adam on states of a byte an element with a scale a block; in full precision where the weight is small."""
    mean, squares = u.states["exp_avg"], u.states["exp_avg_sq"]
    if "exp_avg_scale" not in u.states:
        adam(t, u)
        return
    n, block = u.weight.size, QUANTISED[0].block or 1
    flat = [u.weight.reshape(n), t.reshape(u.gradient, n), mean.reshape(n), squares.reshape(n)]
    whole = n // block * block
    for start, end in ((0, whole), (whole, n)):
        if start == end:
            continue
        weight, gradient, *codes = (ref[start:end].reshape(-1, min(block, end - start)) for ref in flat)
        held = []
        for name, code in zip(("exp_avg", "exp_avg_sq"), codes, strict=True):
            scales = u.states[f"{name}_scale"][start // block : -(-end // block)].reshape(-1, 1)
            held.append(Quantised(code, scales, *_books(t, signed=name == "exp_avg")))
        full = {"exp_avg": held[0].values(t), "exp_avg_sq": held[1].values(t)}
        adam(t, Update(weight, gradient, full, u.step))
        for state, values in zip(held, full.values(), strict=True):
            state.store(t, values)


def _books(t: ArrayTape, signed: bool) -> tuple[Ref, Ref]:
    """The numbers that codes stand for, and up to where each but the last is the nearest."""
    name, numbers = "signed" if signed else "unsigned", codebook(signed)
    ends = [(low + high) / 2 for low, high in pairwise(numbers)]
    book = t.shared(f"{name} codes", (len(numbers),), lambda: numbers)
    return book, t.shared(f"{name} ends", (len(ends),), lambda: ends)


def nadam(t: ArrayTape, u: Update) -> None:
    """Adam looking ahead: shares μ of gradient and mean that grow with the steps."""
    mean, squares = moments(t, u)
    shares = [0.9 * (1 - 0.5 * 0.96 ** (0.004 * step)) for step in range(1, u.step + 2)]
    product = math.prod(shares[:-1])
    root = root_of(t, squares, 1 - 0.999**u.step, 1e-8)
    descend(t, u.weight, t.divide(u.gradient, root), 2e-3 * (1 - shares[-2]) / (1 - product))
    descend(t, u.weight, t.divide(mean, root, out=root), 2e-3 * shares[-1] / (1 - product * shares[-1]))


def adamax(t: ArrayTape, u: Update) -> None:
    """w ← w − η·m̂/u with u ← max(0.999 u, |g| + ε)."""
    mean, largest = u.states["exp_avg"], u.states["exp_inf"]
    follow(t, mean, u.gradient, 0.1)
    t.multiply(largest, 0.999, out=largest)
    size = t.chain(t.absolute(u.gradient), ("add", 1e-8))
    t.maximum(largest, size, out=largest)
    descend(t, u.weight, t.divide(mean, largest, out=size), 2e-3 / (1 - 0.9**u.step))


def radam(t: ArrayTape, u: Update) -> None:
    """Adam with its rate rectified by r, once ρ, how many squares its mean stands for, is beyond 5; before that m̂."""
    mean, squares = moments(t, u)
    correction, most = 1 - 0.999**u.step, 2 / (1 - 0.999) - 1
    length, rate = most - 2 * u.step * 0.999**u.step / correction, 1e-3 / (1 - 0.9**u.step)
    if length <= 5:
        descend(t, u.weight, mean, rate)
        return
    share = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
    root = root_of(t, squares, 1, 1e-8)
    descend(t, u.weight, t.divide(mean, root, out=root), rate * math.sqrt(share * correction))


def adadelta(t: ArrayTape, u: Update) -> None:
    """w ← w − Δ, Δ = √(d + ε)/√(v + ε)·g; v and d: running means of g² and of Δ²."""
    squares, moved = u.states["square_avg"], u.states["acc_delta"]
    follow_squares(t, squares, u.gradient, 0.1)
    root, step = t.add(squares, 1e-6), t.add(moved, 1e-6)
    t.sqrt(root, out=root)
    t.chain(step, "sqrt", ("divide", root), ("multiply", u.gradient))
    follow_squares(t, moved, step, 0.1)
    t.subtract(u.weight, step, out=u.weight)


def rprop(t: ArrayTape, u: Update) -> None:
    """w ← w − s·sign g, s growing where g keeps its sign; where that turns, s shrinks and w stays."""
    before, size = u.states["prev"], u.states["step_size"]
    agreed = t.multiply(u.gradient, before)
    turned, kept = t.less(agreed, 0.0), t.greater(agreed, 0.0)
    factor = t.full(size.shape, 1.0)
    t.copyto(factor, 1.2, where=kept)
    t.copyto(factor, 0.5, where=turned)
    t.chain(size, ("multiply", factor), ("maximum", 1e-6), ("minimum", 50.0))
    t.copyto(before, u.gradient)
    t.copyto(before, 0.0, where=turned)
    direction = t.chain(t.sign(before, out=factor), ("multiply", size))
    t.subtract(u.weight, direction, out=u.weight)


def asgd(t: ArrayTape, u: Update) -> None:
    """w ← (1 − λη)·w − ηg at a falling rate η; a mean of w, which begins after a million steps and is w until then."""
    rate, average = 1e-2 / (1 + 1e-4 * 1e-2 * (u.step - 1)) ** 0.75, u.states["ax"]
    t.multiply(u.weight, 1 - 1e-4 * rate, out=u.weight)
    descend(t, u.weight, u.gradient, rate)
    share = 1 / max(1, u.step - 1 - 1e6)
    if share == 1:
        t.copyto(average, u.weight)
    else:
        follow(t, average, u.weight, share)


def _rms(t: ArrayTape, x: Ref) -> Ref:
    """√mean(x²) of all, one number."""
    return t.chain(t.mean(t.multiply(x, x), range(len(x.shape))), "sqrt")


def adafactor(t: ArrayTape, u: Update) -> None:
    """g over the root of a rank-one estimate of its squares, clipped, at a rate that grows with the weight."""
    share, g, least = u.step**-0.8, u.gradient, 2.0**-52 if t.dtype == "float64" else 2.0**-23
    if len(g.shape) > 1:
        rows = u.states["row_var"].reshape(*g.shape[:-1], 1)
        columns = u.states["col_var"].reshape(*g.shape[:-2], 1, g.shape[-1])
        follow(t, rows, t.mean(t.multiply(g, g), -1), share)
        follow(t, columns, t.mean(t.multiply(g, g), -2), share)
        update = t.matmul(rows, columns)
        mean = t.mean(rows, -2)
        t.divide(update, t.maximum(mean, least, out=mean), out=update)
    else:
        follow(t, u.states["variance"], t.multiply(g, g), share)
        update = t.copy(u.states["variance"])
    t.chain(update, ("maximum", least * least), "sqrt", (g, "divide"))
    rate = t.chain(_rms(t, u.weight), ("maximum", 1e-3), ("multiply", min(1e-2, 1 / math.sqrt(u.step))))
    clip = _rms(t, update)
    t.divide(rate, t.maximum(clip, 1.0, out=clip), out=rate)
    t.multiply(update, rate, out=update)
    t.subtract(u.weight, update, out=u.weight)


def lion(t: ArrayTape, u: Update) -> None:
    """w ← w − η(sign(0.9 m + 0.1 g) + λw); m ← 0.99 m + 0.01 g."""
    mean = u.states["exp_avg"]
    direction = t.multiply(mean, 0.9)
    t.chain(direction, ("add", t.multiply(u.gradient, 0.1)), "sign")
    t.add(direction, t.multiply(u.weight, 1e-2), out=direction)
    descend(t, u.weight, direction, 1e-4)
    follow(t, mean, u.gradient, 0.01)


def lamb(t: ArrayTape, u: Update) -> None:
    """Adam's direction with decay, as long as the weight: w ← w − η·(‖w‖/‖u‖)·u; 1 where the weight is 0."""
    mean, squares = moments(t, u)
    root = root_of(t, squares, 1 - 0.999**u.step, 1e-6)
    direction = t.chain(t.divide(mean, root, out=root), ("divide", 1 - 0.9**u.step))
    t.add(direction, t.multiply(u.weight, 1e-2), out=direction)
    own, other = _rms(t, u.weight), _rms(t, direction)
    ratio = t.divide(own, other, out=other)
    t.copyto(ratio, 1.0, where=t.equal(own, 0.0))
    t.multiply(direction, ratio, out=direction)
    descend(t, u.weight, direction, 1e-3)


def muon(t: ArrayTape, u: Update) -> None:
    """A matrix's momentum made orthogonal by five Newton-Schulz steps; AdamW for what is no matrix."""
    if len(u.weight.shape) != 2:
        adamw(t, u)
        return
    follow(t, u.states["momentum_buffer"], u.gradient, 0.05)
    ahead = t.multiply(u.gradient, 0.05)
    t.add(ahead, t.multiply(u.states["momentum_buffer"], 0.95), out=ahead)
    rows, columns = u.weight.shape
    x = _orthogonal(t, ahead.swapaxes(0, 1) if rows > columns else ahead)
    t.multiply(u.weight, 1 - 1e-3 * 0.1, out=u.weight)
    x = x.swapaxes(0, 1) if rows > columns else x
    descend(t, u.weight, x, 1e-3 * math.sqrt(max(1, rows / columns)))


def _orthogonal(t: ArrayTape, x: Ref) -> Ref:
    """X ← aX + (bA + cA²)X with A = XXᵀ, from X of length 1."""
    x = t.divide(x, t.chain(t.sum(t.multiply(x, x), (0, 1)), "sqrt", ("maximum", 1e-7)))
    for _ in range(5):
        gram = t.matmul(x, x.swapaxes(0, 1))
        mixed = t.multiply(t.matmul(gram, gram), 2.0315)
        t.add(mixed, t.multiply(gram, -4.775), out=mixed)
        turned = t.matmul(mixed, x)
        t.add(turned, t.multiply(x, 3.4445), out=turned)
        x = turned
    return x


def shampoo(t: ArrayTape, u: Update) -> None:
    """L ← L + g gᵀ for each axis; w ← w − η·g between the inverse roots, which are renewed apart, now and then."""
    direction, start = u.gradient, 0
    for axis, n in enumerate(u.weight.shape):
        matrix = t.reshape(u.gradient.swapaxes(0, axis), n, -1)
        square = slice(start, start + n * n)
        gram = u.states["preconditioners"][square].reshape(n, n)
        t.add(gram, t.matmul(matrix, matrix.swapaxes(0, 1)), out=gram)
        root = u.states["inverse_roots"][square].reshape(n, n)
        turned = direction.swapaxes(0, axis)
        direction = t.matmul(root, t.reshape(turned, n, -1)).reshape(*turned.shape).swapaxes(0, axis)
        start += n * n
    descend(t, u.weight, direction, 1e-1)


OptimizerStep = Callable[[ArrayTape, Update], None]

STEPS: dict[str, OptimizerStep] = {
    "sgd": lambda t, u: descend(t, u.weight, u.gradient, 1e-3),
    "momentum": lambda t, u: descend(t, u.weight, momentum(t, u), 1e-3),
    "nesterov": nesterov,
    "adagrad": adagrad,
    **dict.fromkeys(("rmsprop", "rmsprop-momentum", "rmsprop-centered"), rmsprop),
    "adam": adam,
    **dict.fromkeys(("adamw", "amsgrad"), adamw),
    "adam-8bit": adam_8bit,
    "nadam": nadam,
    "adamax": adamax,
    "radam": radam,
    "adadelta": adadelta,
    "rprop": rprop,
    "asgd": asgd,
    "rmsprop-centered-plain": rmsprop,
    "adafactor": adafactor,
    "lion": lion,
    "lamb": lamb,
    "muon": muon,
    "shampoo": shampoo,
}
"""The step of each optimizer, by name."""


STARTS = {"inverse_roots": 1.0, "step_size": 1e-2}
"""What every number of a state starts from, where that is not zero."""


def states_of(t: ArrayTape, optimizer: Optimizer, weight: Ref) -> dict[str, Ref]:
    """The states of one weight, there before the step; step counters are no arrays here."""
    values: dict[str, Ref] = {}
    for state in optimizer.states_of(weight.shape):
        if state.extent == "scalar":
            continue
        name = f"{weight.buffer.name}.{state.name}"
        if state.block and weight.size >= state.least:
            values[state.name] = t.array(weight.shape, "state", name, "uint8")
            values[f"{state.name}_scale"] = t.array((-(-weight.size // state.block),), "state", f"{name}_scale")
            continue
        shape = weight.shape if state.extent == "weight" else (state.size_bytes(weight.shape, 4) // 4,)
        values[state.name] = t.array(shape, "state", name)
    return values


def step_of(optimizer: Optimizer) -> OptimizerStep:
    """The step of an optimizer. Raises CostModelError for one that has no NumPy kernel."""
    if optimizer.name not in STEPS:
        raise CostModelError(f"optimizer {optimizer.name!r} has no NumPy kernel: use one of {', '.join(STEPS)}")
    return STEPS[optimizer.name]
