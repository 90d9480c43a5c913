"""Steps of gradient descent, with momentum, and of the family of Adam; rates are PyTorch's defaults."""

from __future__ import annotations

import math
from typing import NamedTuple

from costmodel.roofline.reference import Ref
from costmodel.roofline.tape import Tape


class Update(NamedTuple):
    """One weight, its gradient and states, and which step this is."""

    weight: Ref
    gradient: Ref
    states: dict[str, Ref]
    step: int


def follow(t: Tape, average: Ref, values: Ref, share: float) -> None:
    """average ← (1 − share)·average + share·values."""
    t.multiply(average, 1 - share, out=average)
    t.add(average, t.multiply(values, share), out=average)


def follow_squares(t: Tape, average: Ref, g: Ref, share: float) -> None:
    """The same of g²."""
    squares = t.multiply(g, g)
    t.multiply(squares, share, out=squares)
    t.multiply(average, 1 - share, out=average)
    t.add(average, squares, out=average)


def descend(t: Tape, weight: Ref, direction: Ref, rate: float) -> None:
    """w ← w − η·direction."""
    t.subtract(weight, t.multiply(direction, rate), out=weight)


def root_of(t: Tape, squares: Ref, correction: float, least: float) -> Ref:
    """√(v/correction) + ε, in new memory."""
    root = t.divide(squares, correction) if correction != 1 else t.copy(squares)
    t.sqrt(root, out=root)
    return t.add(root, least, out=root)


def sgd(t: Tape, u: Update) -> None:
    """w ← w − ηg."""
    descend(t, u.weight, u.gradient, 1e-3)


def momentum(t: Tape, u: Update) -> None:
    """v ← 0.9 v + g; w ← w − ηv."""
    velocity = u.states["momentum_buffer"]
    t.multiply(velocity, 0.9, out=velocity)
    t.add(velocity, u.gradient, out=velocity)
    descend(t, u.weight, velocity, 1e-3)


def nesterov(t: Tape, u: Update) -> None:
    """v ← 0.9 v + g; w ← w − η(g + 0.9 v)."""
    velocity = u.states["momentum_buffer"]
    t.multiply(velocity, 0.9, out=velocity)
    t.add(velocity, u.gradient, out=velocity)
    ahead = t.multiply(velocity, 0.9)
    descend(t, u.weight, t.add(ahead, u.gradient, out=ahead), 1e-3)


def adagrad(t: Tape, u: Update) -> None:
    """s ← s + g²; w ← w − ηg/(√s + ε)."""
    total = u.states["sum"]
    t.add(total, t.multiply(u.gradient, u.gradient), out=total)
    root = root_of(t, total, 1, 1e-10)
    descend(t, u.weight, t.divide(u.gradient, root, out=root), 1e-2)


def rmsprop(t: Tape, u: Update) -> None:
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
        t.multiply(velocity, 0.9, out=velocity)
        direction = t.add(velocity, direction, out=velocity)
    descend(t, u.weight, direction, 1e-2)


def moments(t: Tape, u: Update, fast: float = 0.1, slow: float = 0.001) -> tuple[Ref, Ref]:
    """Running mean of g and of g²."""
    mean, squares = u.states["exp_avg"], u.states["exp_avg_sq"]
    follow(t, mean, u.gradient, fast)
    follow_squares(t, squares, u.gradient, slow)
    return mean, squares


def adam(t: Tape, u: Update) -> None:
    """w ← w − η·m̂/(√v̂ + ε)."""
    mean, squares = moments(t, u)
    root = root_of(t, squares, 1 - 0.999**u.step, 1e-8)
    descend(t, u.weight, t.divide(mean, root, out=root), 1e-3 / (1 - 0.9**u.step))


def adamw(t: Tape, u: Update) -> None:
    """Adam, the weight decayed first."""
    t.multiply(u.weight, 1 - 1e-3 * 1e-2, out=u.weight)
    adam(t, u)


def amsgrad(t: Tape, u: Update) -> None:
    """AdamW with the largest v so far."""
    t.multiply(u.weight, 1 - 1e-3 * 1e-2, out=u.weight)
    mean, squares = moments(t, u)
    largest = u.states["max_exp_avg_sq"]
    t.maximum(largest, squares, out=largest)
    root = root_of(t, largest, 1 - 0.999**u.step, 1e-8)
    descend(t, u.weight, t.divide(mean, root, out=root), 1e-3 / (1 - 0.9**u.step))


def nadam(t: Tape, u: Update) -> None:
    """Adam looking ahead: shares μ of gradient and mean that grow with the steps."""
    mean, squares = moments(t, u)
    shares = [0.9 * (1 - 0.5 * 0.96 ** (0.004 * step)) for step in range(1, u.step + 2)]
    product = math.prod(shares[:-1])
    root = root_of(t, squares, 1 - 0.999**u.step, 1e-8)
    descend(t, u.weight, t.divide(u.gradient, root), 2e-3 * (1 - shares[-2]) / (1 - product))
    descend(t, u.weight, t.divide(mean, root, out=root), 2e-3 * shares[-1] / (1 - product * shares[-1]))
