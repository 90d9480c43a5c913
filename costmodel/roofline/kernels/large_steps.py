"""Steps made for large models: less state, directions of one length, whole matrices at once."""

from __future__ import annotations

import math

from costmodel.roofline.kernels.steps import Update, adamw, descend, follow, moments, root_of
from costmodel.roofline.reference import Ref
from costmodel.roofline.tape import Tape


def _mean_square(t: Tape, x: Ref, axes: tuple[int, ...]) -> Ref:
    return t.mean(t.multiply(x, x), axes)


def _rms(t: Tape, x: Ref) -> Ref:
    """√mean(x²) of all, one number."""
    mean = _mean_square(t, x, tuple(range(len(x.shape))))
    return t.sqrt(mean, out=mean)


def adafactor(t: Tape, u: Update) -> None:
    """g over the root of a rank-one estimate of its squares, clipped, at a rate that grows with the weight."""
    share, g, least = u.step**-0.8, u.gradient, 2.0**-52 if t.dtype == "float64" else 2.0**-23
    if len(g.shape) > 1:
        rows = u.states["row_var"].reshape(*g.shape[:-1], 1)
        columns = u.states["col_var"].reshape(*g.shape[:-2], 1, g.shape[-1])
        follow(t, rows, _mean_square(t, g, (len(g.shape) - 1,)), share)
        follow(t, columns, _mean_square(t, g, (len(g.shape) - 2,)), share)
        update = t.matmul(rows, columns)
        mean = t.mean(rows, -2)
        t.divide(update, t.maximum(mean, least, out=mean), out=update)
    else:
        follow(t, u.states["variance"], t.multiply(g, g), share)
        update = t.copy(u.states["variance"])
    t.maximum(update, least * least, out=update)
    t.sqrt(update, out=update)
    t.divide(g, update, out=update)
    rate = _rms(t, u.weight)
    t.maximum(rate, 1e-3, out=rate)
    t.multiply(rate, min(1e-2, 1 / math.sqrt(u.step)), out=rate)
    clip = _rms(t, update)
    t.divide(rate, t.maximum(clip, 1.0, out=clip), out=rate)
    t.multiply(update, rate, out=update)
    t.subtract(u.weight, update, out=u.weight)


def lion(t: Tape, u: Update) -> None:
    """w ← w − η(sign(0.9 m + 0.1 g) + λw); m ← 0.99 m + 0.01 g."""
    mean = u.states["exp_avg"]
    direction = t.multiply(mean, 0.9)
    t.add(direction, t.multiply(u.gradient, 0.1), out=direction)
    t.sign(direction, out=direction)
    t.add(direction, t.multiply(u.weight, 1e-2), out=direction)
    descend(t, u.weight, direction, 1e-4)
    follow(t, mean, u.gradient, 0.01)


def lamb(t: Tape, u: Update) -> None:
    """Adam's direction with decay, as long as the weight: w ← w − η·(‖w‖/‖u‖)·u; 1 where the weight is 0."""
    mean, squares = moments(t, u)
    root = root_of(t, squares, 1 - 0.999**u.step, 1e-6)
    direction = t.divide(mean, root, out=root)
    t.divide(direction, 1 - 0.9**u.step, out=direction)
    t.add(direction, t.multiply(u.weight, 1e-2), out=direction)
    own, other = _rms(t, u.weight), _rms(t, direction)
    ratio = t.divide(own, other, out=other)
    t.copyto(ratio, 1.0, where=t.equal(own, 0.0))
    t.multiply(direction, ratio, out=direction)
    descend(t, u.weight, direction, 1e-3)


def muon(t: Tape, u: Update) -> None:
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


def _orthogonal(t: Tape, x: Ref) -> Ref:
    """X ← aX + (bA + cA²)X with A = XXᵀ, from X of length 1."""
    length = t.sum(t.multiply(x, x), (0, 1))
    t.sqrt(length, out=length)
    x = t.divide(x, t.maximum(length, 1e-7, out=length))
    for _ in range(5):
        gram = t.matmul(x, x.swapaxes(0, 1))
        mixed = t.multiply(t.matmul(gram, gram), 2.0315)
        t.add(mixed, t.multiply(gram, -4.775), out=mixed)
        turned = t.matmul(mixed, x)
        t.add(turned, t.multiply(x, 3.4445), out=turned)
        x = turned
    return x


def shampoo(t: Tape, u: Update) -> None:
    """L ← L + g gᵀ for each axis; w ← w − η·g between the inverse roots, which are renewed apart, now and then."""
    direction, start = u.gradient, 0
    for axis, n in enumerate(u.weight.shape):
        apart = t.reshape(u.gradient.swapaxes(0, axis), n, -1)
        square = slice(start, start + n * n)
        gram = u.states["preconditioners"][square].reshape(n, n)
        t.add(gram, t.matmul(apart, apart.swapaxes(0, 1)), out=gram)
        root = u.states["inverse_roots"][square].reshape(n, n)
        turned = direction.swapaxes(0, axis)
        direction = t.matmul(root, t.reshape(turned, n, -1)).reshape(*turned.shape).swapaxes(0, axis)
        start += n * n
    descend(t, u.weight, direction, 1e-1)
