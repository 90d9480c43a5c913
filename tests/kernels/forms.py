"""Kernels of functions of two tensors, bounds, bags, forms, distances, and images read between their pixels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, accumulated, add_product, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes


def back(g: Array, x: Array) -> Array:
    """A gradient of the joint shape, summed over the axes along which x was broadcast."""
    return g if g.shape == x.shape else accumulated(g, x.shape)


def joint(draw: Draw, count: int, within: tuple[float, float]) -> list[Operand]:
    shape = draw(st.tuples(sizes, sizes))
    return [Operand(tuple(draw(st.sampled_from([n, n, 1])) for n in shape), within=within) for _ in range(count)]


class Function(NamedTuple):
    y: Callable[[Any, Any], Any]
    both: Callable[[Array, Array, Array], Any]
    first: Callable[[Array, Any, Array, Array, Array], Array]
    second: Callable[[Array, Any, Array, Array, Array], Array]
    expected: Callable[[np.ndarray, np.ndarray], np.ndarray]


def nothing(g: Array, a: Array, b: Array) -> None:
    return None


class Paired(Kernel):
    functions: ClassVar[dict[str, Function]] = {
        "atan2": Function(
            np.arctan2,
            lambda g, a, b: g / (a * a + b * b),
            lambda g, s, a, b, y: s * b,
            lambda g, s, a, b, y: -(s * a),
            lambda a, b: np.angle(b + 1j * a),
        ),
        "fmax": Function(
            np.fmax,
            lambda g, a, b: np.logical_or(a >= b, b != b),
            lambda g, s, a, b, y: np.where(s, g, 0),
            lambda g, s, a, b, y: np.where(np.logical_not(s), g, 0),
            lambda a, b: (a + b + abs(a - b)) / 2,
        ),
        "fmin": Function(
            np.fmin,
            lambda g, a, b: np.logical_or(a <= b, b != b),
            lambda g, s, a, b, y: np.where(s, g, 0),
            lambda g, s, a, b, y: np.where(np.logical_not(s), g, 0),
            lambda a, b: (a + b - abs(a - b)) / 2,
        ),
        "hypot": Function(
            lambda a, b: np.sqrt(a * a + b * b),
            nothing,
            lambda g, s, a, b, y: g * a / y,
            lambda g, s, a, b, y: g * b / y,
            np.hypot,
        ),
        "logaddexp": Function(
            lambda a, b: np.log(np.exp(a) + np.exp(b)),
            nothing,
            lambda g, s, a, b, y: g / (1 + np.exp(b - a)),
            lambda g, s, a, b, y: g / (1 + np.exp(a - b)),
            np.logaddexp,
        ),
        "logaddexp2": Function(
            lambda a, b: np.log2(np.exp2(a) + np.exp2(b)),
            nothing,
            lambda g, s, a, b, y: g / (1 + np.exp2(b - a)),
            lambda g, s, a, b, y: g / (1 + np.exp2(a - b)),
            np.logaddexp2,
        ),
        "xlogy": Function(
            lambda a, b: np.where(a == 0, 0, a * np.log(b)),
            nothing,
            lambda g, s, a, b, y: np.where(a == 0, 0, g * np.log(b)),
            lambda g, s, a, b, y: g * (a / b),
            lambda a, b: a * np.log(b),
        ),
    }
    table = tuple(functions)

    def case(self, draw: Draw) -> Case:
        a, b = joint(draw, 2, (0.2, 3))
        return Case(self.layer(function=self.row), [a, b._replace(within=(0.21, 3.03))])  # no two are alike

    def forward(self, p: Pass) -> Array:
        return self.functions[self.row].y(*self.wide(p))

    def wide(self, p: Pass) -> list[Any]:
        """Both of the joint shape: what a function does is done for each pair."""
        shape = np.broadcast_shapes(*(x.shape for x in p.inputs))
        return [np.broadcast_to(x, shape) for x in p.inputs]

    def backward(self, p: Pass, g: Array) -> Gradients:
        (a, b), row = self.wide(p), self.functions[self.row]
        shared = row.both(g, a, b)
        yield p.inputs[0], back(row.first(g, shared, a, b, p.y), p.inputs[0])
        yield p.inputs[1], back(row.second(g, shared, a, b, p.y), p.inputs[1])

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.functions[self.row].expected(a, b)


class Bounded(Kernel):
    """From below."""

    def case(self, draw: Draw) -> Case:
        x, low = joint(draw, 2, (0, 4))
        return Case(self.layer(), [x, low._replace(within=(0.01, 4.04))])

    def forward(self, p: Pass) -> Array:
        return np.maximum(*p.inputs)

    def backward(self, p: Pass, g: Array) -> Gradients:
        x, low = (np.broadcast_to(operand, g.shape) for operand in p.inputs)
        yield p.inputs[0], back(np.where(x >= low, g, 0), p.inputs[0])
        yield p.inputs[1], back(np.where(x < low, g, 0), p.inputs[1])

    def reference(self, p: Pass, x: np.ndarray, low: np.ndarray) -> np.ndarray:
        return np.clip(x, low, None)


class Within(Kernel):
    def case(self, draw: Draw) -> Case:
        x, low, high = joint(draw, 3, (0, 4))
        return Case(self.layer(), [x, low._replace(within=(0.01, 1.02)), high._replace(within=(3.03, 4.04))])

    def forward(self, p: Pass) -> Array:
        x, low, high = p.inputs
        shape = np.broadcast_shapes(x.shape, low.shape, high.shape)
        return np.minimum(np.maximum(np.broadcast_to(x, shape), low), high)

    def backward(self, p: Pass, g: Array) -> Gradients:
        x, low, high = p.inputs
        shape = g.shape
        wide = np.broadcast_to(x, shape), np.broadcast_to(low, shape), np.broadcast_to(high, shape)
        inside = np.logical_and(wide[0] >= wide[1], wide[0] <= wide[2])
        yield x, back(np.where(inside, g, 0), x)
        yield low, back(np.where(wide[0] < wide[1], g, 0), low)
        yield high, back(np.where(wide[0] > wide[2], g, 0), high)

    def reference(self, p: Pass, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.clip(x, low, high)


class Lerp(Kernel):
    """By a third operand, or by a number."""

    def case(self, draw: Draw) -> Case:
        share = draw(st.none() | st.sampled_from([0.3, 1.5]))
        return Case(self.layer(share=share), joint(draw, 3 if share is None else 2, (-2, 2)))

    def wide(self, p: Pass) -> list[Any]:
        shape = np.broadcast_shapes(*(x.shape for x in p.inputs))
        given = [np.broadcast_to(x, shape) for x in p.inputs]
        return given if len(given) == 3 else [*given, p.kind.share]

    def forward(self, p: Pass) -> Array:
        a, b, w = self.wide(p)
        return a + w * (b - a)

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b, w = self.wide(p)
        yield p.inputs[0], back(g * (1 - w), p.inputs[0])
        yield p.inputs[1], back(g * w, p.inputs[1])
        if len(p.inputs) == 3:
            yield p.inputs[2], back(g * (b - a), p.inputs[2])

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray, w: Any = None) -> np.ndarray:
        w = p.kind.share if w is None else w
        return (1 - w) * a + w * b


class LogCumsumExp(Kernel):
    """Along the middle one of three axes."""

    def case(self, draw: Draw) -> Case:
        return Case(self.layer(), [Operand(draw(st.tuples(sizes, sizes, sizes)), within=(-2, 2))])

    def forward(self, p: Pass) -> Array:
        total, found = Array(np.zeros((p.x.shape[0], p.x.shape[2])), p.tally), []
        powers = np.exp(p.x)
        for place in range(p.x.shape[1]):
            total = total + powers[:, place]
            found.append(np.log(total))
        return np.stack(found, axis=1)

    def backward(self, p: Pass, g: Array) -> Gradients:
        weighted, total = g * np.exp(-p.y), Array(np.zeros((p.x.shape[0], p.x.shape[2])), p.tally)
        found: dict[int, Array] = {}
        for place in reversed(range(p.x.shape[1])):
            total = found[place] = total + weighted[:, place]
        yield p.x, np.stack([found[place] for place in range(p.x.shape[1])], axis=1) * np.exp(p.x)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.logaddexp.accumulate(x, axis=1)


class WindowMean(Kernel):
    """Windows of two of a last axis, without overlap."""

    def case(self, draw: Draw) -> Case:
        b, n = draw(sizes), draw(sizes)
        return Case(self.layer(shape=(b, n), terms=b * n * 2), [Operand((b, 2 * n))])

    def forward(self, p: Pass) -> Array:
        return (p.x[:, ::2] + p.x[:, 1::2]) / 2

    def backward(self, p: Pass, g: Array) -> Gradients:
        total, share = zeros(p.x.shape, p.tally), g / 2
        places = np.arange(p.x.shape[1])
        for first in (0, 1):
            np.add.at(total, (slice(None), places[first::2]), share)
        yield p.x, total

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1, 2).mean(2)


class WeightNorm(Kernel):
    def case(self, draw: Draw) -> Case:
        rows, columns = draw(sizes), draw(sizes)
        return Case(self.layer(), [Operand((rows, columns), within=(0.5, 3)), Operand((rows, 1), within=(0.5, 3))])

    def forward(self, p: Pass) -> Array:
        v, lengths = p.inputs
        p.saved["norm"] = np.sqrt((v * v).sum(1))
        return v * (lengths / p.saved["norm"])

    def backward(self, p: Pass, g: Array) -> Gradients:
        v, lengths = p.inputs
        norm = p.saved["norm"]
        total = accumulated(g * v, lengths.shape)
        yield v, (lengths / norm) * (g - v * (total / (norm * norm)))
        yield lengths, total / norm

    def reference(self, p: Pass, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return v * lengths / np.linalg.norm(v, axis=1, keepdims=True)


class EmbeddingBag(Kernel):
    """Bags of one size."""

    def case(self, draw: Draw) -> Case:
        entries, features, bags, each = (draw(sizes) for _ in range(4))
        mode = draw(st.sampled_from(["sum", "mean", "max"]))
        weights = [Operand((bags * each,))] if mode == "sum" and draw(st.booleans()) else []
        places = [Operand((bags * each,), "index", below=entries), Operand((bags,), "index", below=1)]
        return Case(self.layer(entries=entries, features=features, bags=bags, mode=mode), [*places, *weights])

    def rows(self, p: Pass) -> Array:
        rows = p.weights["weight"][p.x.values]
        return rows * p.inputs[2].reshape(-1, 1) if len(p.inputs) == 3 else rows

    def forward(self, p: Pass) -> Array:
        rows, bags = self.rows(p), p.kind.bags
        each = p.x.size // bags
        if p.kind.mode == "max":
            best = Array(np.full((bags, p.kind.features), -np.inf), p.tally)
            for n in range(each):
                best = np.maximum(best, rows[n::each])
            return best
        total = zeros((bags, p.kind.features), p.tally)
        np.add.at(total, np.arange(bags).repeat(each), rows)
        return total / each if p.kind.mode == "mean" else total

    def backward(self, p: Pass, g: Array) -> Gradients:
        table, bags = p.weights["weight"], p.kind.bags
        each = p.x.size // bags
        total = zeros(table.shape, p.tally)
        if p.kind.mode == "max":
            rows = table.values[p.x.values].reshape(bags, each, -1)
            places = np.take_along_axis(p.x.values.reshape(bags, each, 1), rows.argmax(1)[:, None], 1)[:, 0]
            np.add.at(total, (places, np.arange(p.kind.features)[None]), g)
            yield table, total
            return
        share = (g / each if p.kind.mode == "mean" else g)[np.arange(bags).repeat(each)]
        weighed = share * p.inputs[2].reshape(-1, 1) if len(p.inputs) == 3 else share
        np.add.at(total, p.x.values, weighed)
        yield table, total
        if len(p.inputs) == 3 and p.needs(p.inputs[2]):
            yield p.inputs[2], accumulated(share * table[p.x.values], (p.x.size, 1)).reshape(-1)

    def reference(self, p: Pass, places: np.ndarray, _: np.ndarray, *rest: np.ndarray, weight: np.ndarray) -> Any:
        rows = (weight[places].T * (rest[0] if rest else 1)).T.reshape(p.kind.bags, -1, p.kind.features)
        return getattr(rows, p.kind.mode)(1)


class GroupedMatmul(Kernel):
    """The first row is of the first group, all others of the last."""

    def case(self, draw: Draw) -> Case:
        rows, k, n, groups = (draw(sizes) for _ in range(4))
        return Case(self.layer(), [Operand((rows, k)), Operand((groups, k, n)), Operand((groups,), "index")])

    def parts(self, p: Pass) -> list[tuple[slice, int]]:
        return [(slice(0, 1), 0), (slice(1, None), p.inputs[1].shape[0] - 1)]

    def forward(self, p: Pass) -> Array:
        y = zeros((p.x.shape[0], p.inputs[1].shape[2]), p.tally)
        for rows, group in self.parts(p):
            add_product(y[rows], p.x[rows], p.inputs[1][group])
        return y

    def backward(self, p: Pass, g: Array) -> Gradients:
        x, w, _ = p.inputs
        dx, dw = zeros(x.shape, p.tally), zeros(w.shape, p.tally)
        for rows, group in self.parts(p):
            add_product(dx[rows], g[rows], np.swapaxes(w[group], -1, -2))
        yield x, dx
        for rows, group in self.parts(p):
            add_product(dw[group], np.swapaxes(x[rows], -1, -2), g[rows])
        yield w, dw

    def reference(self, p: Pass, x: np.ndarray, w: np.ndarray, _: np.ndarray) -> np.ndarray:
        return np.concatenate([x[:1] @ w[0], x[1:] @ w[-1]])


class Bilinear(Kernel):
    def case(self, draw: Draw) -> Case:
        n, i, j, o = (draw(sizes) for _ in range(4))
        return Case(self.layer(), [Operand((n, i)), Operand((n, j)), Operand((o, i, j))])

    def pairs(self, p: Pass) -> Array:
        a, b, _ = p.inputs
        return (a[:, :, None] * b[:, None]).reshape(a.shape[0], -1)

    def forward(self, p: Pass) -> Array:
        p.saved["pairs"] = self.pairs(p)
        w = p.inputs[2]
        return p.saved["pairs"] @ np.swapaxes(w.reshape(w.shape[0], -1), 0, 1)

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b, w = p.inputs
        shared = (g @ w.reshape(w.shape[0], -1)).reshape(a.shape[0], *w.shape[1:])
        yield a, (shared @ b[:, :, None])[:, :, 0]
        yield b, (a[:, None] @ shared)[:, 0]
        yield w, (np.swapaxes(g, 0, 1) @ p.saved["pairs"]).reshape(*w.shape)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.einsum("ni,oij,nj->no", a, w, b)


class Distances(Kernel):
    def case(self, draw: Draw) -> Case:
        n, p, r, m = (draw(sizes) for _ in range(4))
        squares = draw(st.booleans())
        by_product = squares and draw(st.booleans())
        inputs = [Operand((n, p, m), within=(0, 2)), Operand((n, r, m), within=(3, 5))]
        return Case(self.layer(squares=squares, by_product=by_product), inputs)

    def forward(self, p: Pass) -> Array:
        a, b = p.inputs
        if p.kind.by_product:
            squares = [(x * x).sum(2) for x in (a, b)]
            joint = a @ np.swapaxes(b, 1, 2)
            return np.sqrt(np.maximum(squares[0] + np.swapaxes(squares[1], 1, 2) - joint * 2, 0))
        apart = a[:, :, None] - b[:, None]
        if p.kind.squares:
            return np.sqrt((apart * apart).sum(3)[..., 0])
        return np.absolute(apart).sum(3)[..., 0]

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b = p.inputs
        if p.kind.by_product:
            share = g / p.y
            yield a, a * accumulated(share, (*a.shape[:2], 1)) - share @ b
            turned = np.swapaxes(share, 1, 2)
            yield b, b * accumulated(turned, (*b.shape[:2], 1)) - turned @ a
            return
        apart = a[:, :, None] - b[:, None]
        weighed = apart * (g / p.y)[..., None] if p.kind.squares else np.sign(apart) * g[..., None]
        yield a, accumulated(weighed, (a.shape[0], a.shape[1], 1, a.shape[2])).reshape(*a.shape)
        yield b, accumulated(-weighed, (b.shape[0], 1, b.shape[1], b.shape[2])).reshape(*b.shape)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.linalg.norm(a[:, :, None] - b[:, None], 2 if p.kind.squares else 1, axis=-1)


class AffineGrid(Kernel):
    def case(self, draw: Draw) -> Case:
        n, h, w = (draw(sizes) for _ in range(3))
        return Case(self.layer(shape=(n, h, w, 2), aligned=True), [Operand((n, 2, 3))])

    def plain(self, p: Pass) -> np.ndarray:
        _, h, w, _ = p.kind.shape
        rows, columns = np.meshgrid(np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij")
        return np.stack([columns, rows, np.ones((h, w))], -1).reshape(1, h * w, 3).repeat(p.x.shape[0], 0)

    def forward(self, p: Pass) -> Array:
        return (Array(self.plain(p), p.tally) @ np.swapaxes(p.x, 1, 2)).reshape(*p.kind.shape)

    def backward(self, p: Pass, g: Array) -> Gradients:
        flat = g.reshape(p.x.shape[0], -1, 2)
        yield p.x, np.swapaxes(flat, 1, 2) @ Array(self.plain(p), p.tally)

    def reference(self, p: Pass, x: np.ndarray) -> np.ndarray:
        return np.einsum("npk,nik->npi", self.plain(p), x).reshape(p.kind.shape)


class GridSample(Kernel):
    """Places are all between pixels of the image."""

    def case(self, draw: Draw) -> Case:
        axes = draw(st.sampled_from([2, 3]))
        n, c, *to = (draw(st.integers(1, 2)) for _ in range(2 + axes))
        image = Operand((n, c, *(3 for _ in range(axes))))
        return Case(
            self.layer(shape=(n, c, *to), nearest=draw(st.booleans())),
            [image, Operand((n, *to, axes), within=(-0.9, 0.9))],
        )

    def corners(self, p: Pass) -> list[tuple[Any, Array, list[Array], tuple[int, ...]]]:
        """For each neighbour: where it is, its weight, those along each axis, and which side of each axis."""
        axes = len(p.kind.shape) - 2
        lower, apart = [], []
        for axis in range(axes):
            place = p.inputs[1][..., axis] * 1.0 + 1.0
            floor = np.floor(place)
            over = place - floor
            lower.append(floor.values.astype(int))
            apart.append((1 - over, over))
        weights: dict[tuple[int, ...], Array] = {(side,): apart[0][side] for side in (0, 1)}
        for axis in range(1, axes):
            weights = {(*s, side): w * apart[axis][side] for s, w in weights.items() for side in (0, 1)}
        batch = np.arange(p.x.shape[0]).reshape(-1, *(1 for _ in range(axes)))
        found = []
        for sides in product((0, 1), repeat=axes):
            where = tuple(np.minimum(low + side, 2) for low, side in zip(lower, sides, strict=True))
            along = [apart[axis][side] for axis, side in enumerate(sides)]
            found.append(((batch, slice(None), *where), weights[sides], along, sides))
        return found

    def nearest(self, p: Pass) -> Any:
        axes = len(p.kind.shape) - 2
        places = [np.rint(p.inputs[1][..., axis] * 1.0 + 1.0).values.astype(int) for axis in range(axes)]
        return (np.arange(p.x.shape[0]).reshape(-1, *(1 for _ in range(axes))), slice(None), *places)

    def forward(self, p: Pass) -> Array:
        if p.kind.nearest:
            p.saved["where"] = self.nearest(p)
            return np.moveaxis(p.x[p.saved["where"]], -1, 1)
        p.saved["corners"] = self.corners(p)
        total = None
        for where, weight, *_ in p.saved["corners"]:
            part = np.moveaxis(p.x[where], -1, 1) * weight[:, None]
            total = part if total is None else total + part
        assert total is not None
        return total

    def backward(self, p: Pass, g: Array) -> Gradients:
        dx = zeros(p.x.shape, p.tally)
        last = np.moveaxis(g, 1, -1)
        if p.kind.nearest:
            np.add.at(dx, p.saved["where"], last)
            yield p.x, dx
            yield p.inputs[1], zeros(p.inputs[1].shape, p.tally)
            return
        for where, weight, *_ in p.saved["corners"]:
            np.add.at(dx, where, last * weight[..., None])
        yield p.x, dx
        axes = len(p.kind.shape) - 2
        totals = [zeros(g[:, 0].shape, p.tally) for _ in range(axes)]
        for where, _, along, sides in p.saved["corners"]:
            seen = accumulated(last * p.x[where], (*last.shape[:-1], 1))[..., 0]
            for axis in range(axes):
                part = seen
                for other in range(axes):
                    part = part * along[other] if other != axis else part
                totals[axis] = totals[axis] + part if sides[axis] else totals[axis] - part
        yield p.inputs[1], np.stack([total * 1.0 for total in totals], axis=-1)

    def reference(self, p: Pass, x: np.ndarray, places: np.ndarray) -> np.ndarray:
        found = np.zeros(p.kind.shape)
        for place in np.ndindex(places.shape[:-1]):
            n, *to = place
            at = places[place] + 1
            for corner in np.ndindex(*x.shape[2:]):
                near = np.maximum(0, 1 - np.abs(at - corner))
                share = float(np.all(np.rint(at) == corner)) if p.kind.nearest else near.prod()
                found[(n, slice(None), *to)] += share * x[(n, slice(None), *corner)]
        return found
