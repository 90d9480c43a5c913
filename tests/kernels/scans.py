"""Kernels of recurrences over a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, accumulated, add_product
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

SMALL = (-1.0, 1.0)


def keeping(draw: Draw, layer: Any, shapes: list[tuple[int, ...]], state: tuple[int, ...]) -> Case:
    """A scan of operands of those shapes; or one that keeps its last state, where nothing is differentiated."""
    if not draw(st.booleans()):
        return Case(layer(), [Operand(shape, within=SMALL, constant=draw(st.booleans())) for shape in shapes])
    shapes += [state] * draw(st.booleans())
    return Case(layer(keeps=True), [Operand(shape, within=SMALL, constant=True) for shape in shapes])


def beside(y: Array, state: Array, axis: int) -> Array:
    """The last state behind the result."""
    return Array(np.concatenate([y.values, state.values], axis), y.tally)


class SelectiveScan(Kernel):
    """Forward keeps the state after each token; backward runs them in reverse."""

    def case(self, draw: Draw) -> Case:
        b, channels, t, n = (draw(sizes) for _ in range(4))
        shapes = [(b, channels, t, n), (b, channels, t, n), (b, t, n)]
        return keeping(draw, self.layer, shapes, (b, channels, n))

    def forward(self, p: Pass) -> Array:
        a, u, c, *first = p.inputs
        b, channels, t, n = a.shape
        state: Any = first[0] if first else Array(np.zeros((b, channels, n)), p.tally)
        p.saved["states"] = states = [state]
        made = []
        for i in range(t):
            state = a[:, :, i] * state + u[:, :, i]
            made.append((state @ c[:, i].reshape(b, n, 1)).reshape(b, channels))
            states.append(state)
        y = np.moveaxis(np.stack(made), 0, -1)
        return beside(y, state, -1) if p.kind.keeps else y

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.kind.keeps:
            return
        a, u, c = p.inputs
        b, channels, t, n = a.shape
        states = p.saved["states"]
        carried: list[Array] = []
        through = None
        if p.needs(a) or p.needs(u):
            for i in reversed(range(t)):
                own = g[:, :, i].reshape(b, channels, 1) @ c[:, i].reshape(b, 1, n)
                through = own if through is None else own + a[:, :, i + 1] * through
                carried.insert(0, through)
        if p.needs(a):
            yield a, np.moveaxis(np.stack([d * h for d, h in zip(carried, states, strict=False)]), 0, 2)
        if p.needs(u):
            yield u, np.moveaxis(np.stack(carried), 0, 2)
        if p.needs(c):
            sums = [np.swapaxes(states[i + 1], 1, 2) @ g[:, :, i].reshape(b, channels, 1) for i in range(t)]
            yield c, np.moveaxis(np.stack(sums).reshape(t, b, n), 0, 1)

    def reference(self, p: Pass, a: np.ndarray, u: np.ndarray, c: np.ndarray, *first: np.ndarray) -> np.ndarray:
        y = np.zeros(a.shape[:3])
        for i in range(a.shape[2]):
            state = first[0] * a[:, :, : i + 1].prod(2) if first else np.zeros(a[:, :, 0].shape)
            for j in range(i + 1):
                state = state + a[:, :, j + 1 : i + 1].prod(2) * u[:, :, j]
            y[:, :, i] = np.einsum("bdn,bn->bd", state, c[:, i])
        return np.concatenate([y, state], -1) if p.kind.keeps else y


class SolveTriangular(Kernel):
    """Forward substitution, row by row; backward from the last row."""

    def case(self, draw: Draw) -> Case:
        outer, n, columns = draw(sizes), draw(sizes), draw(sizes)
        return Case(self.layer(), [Operand((outer, n, n), within=SMALL), Operand((outer, n, columns), within=SMALL)])

    def forward(self, p: Pass) -> Array:
        return self.solved(p.x, p.inputs[1], upper=False)

    def solved(self, a: Array, b: Array, *, upper: bool) -> Array:
        """Each row less what those before it make, or those after it."""
        x, n = Array(b.values.copy(), b.tally), a.shape[-1]
        for i in reversed(range(n)) if upper else range(n):
            done = slice(i + 1, n) if upper else slice(0, i)
            row = Array(-a.values[:, i : i + 1, done], a.tally)
            add_product(x[:, i : i + 1], row, x[:, done])
        return x

    def backward(self, p: Pass, g: Array) -> Gradients:
        a, b = p.inputs
        turned = np.swapaxes(a, 1, 2)
        db = self.solved(turned, g, upper=True)
        if p.needs(b):
            yield b, db
        if p.needs(a):
            whole = -(db @ np.swapaxes(p.y, 1, 2))
            yield a, Array(np.tril(whole.values, -1), p.tally)

    def reference(self, p: Pass, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.linalg.solve(np.tril(a, -1) + np.eye(a.shape[-1]), b)


class DeltaScan(Kernel):
    """Chunk by chunk; backward from the last, to whose state nothing comes back."""

    def case(self, draw: Draw) -> Case:
        b, h, c, n, k, v = (draw(sizes) for _ in range(6))
        shapes = [(b, h, c, n, v), (b, h, c, n, k), (b, h, c, n, k), (b, h, c, n, n), (b, h, c, n, k), (b, h, c, 1, 1)]
        return keeping(draw, self.layer, shapes, (b, h, k, v))

    def forward(self, p: Pass) -> Array:
        u, w, q, m, key, a, *first = p.inputs
        b, h, c, n, v = u.shape
        state: Any = first[0] if first else Array(np.zeros((b, h, w.shape[-1], v)), p.tally)
        p.saved["chunks"] = chunks = []
        made = []
        for i in range(c):
            new = u[:, :, i] - w[:, :, i] @ state
            made.append(q[:, :, i] @ state + m[:, :, i] @ new)
            chunks.append((state, new))
            state = state * a[:, :, i] + np.swapaxes(key[:, :, i], 2, 3) @ new
        y = np.moveaxis(np.stack(made), 0, 2)
        return beside(y.reshape(b, h, c * n, v), state, 2) if p.kind.keeps else y

    def backward(self, p: Pass, g: Array) -> Gradients:
        if p.kind.keeps:
            return
        u, w, q, m, key, a = p.inputs
        chunks, through = p.saved["chunks"], []
        carried: Any = None
        if any(p.needs(x) for x in (u, w, key, a)):
            first = 0 if p.needs(u) or p.needs(w) else 1  # a state's gradient begins after the first chunk
            for i in reversed(range(first, u.shape[2])):
                dnew = np.swapaxes(m[:, :, i], 2, 3) @ g[:, :, i]
                dnew = dnew if carried is None else dnew + key[:, :, i] @ carried
                negated = -dnew if i or p.needs(w) else None
                through.insert(0, (dnew, negated, carried))
                if i:
                    before = np.swapaxes(q[:, :, i], 2, 3) @ g[:, :, i] + np.swapaxes(w[:, :, i], 2, 3) @ negated
                    carried = before if carried is None else before + carried * a[:, :, i]
            if first:
                through.insert(0, (None, None, carried))

        def stacked(parts: list[Any], like: Array) -> Array:
            made = [Array(np.zeros(like[:, :, 0].shape), p.tally) if part is None else part for part in parts]
            return np.moveaxis(np.stack(made), 0, 2)

        if p.needs(u):
            yield u, stacked([dnew for dnew, _, _ in through], u)
        if p.needs(w):
            found = [negated @ np.swapaxes(s, 2, 3) for (_, negated, _), (s, _) in zip(through, chunks, strict=True)]
            yield w, stacked(found, w)
        if p.needs(key):
            found = [d and new @ np.swapaxes(d, 2, 3) for (_, _, d), (_, new) in zip(through, chunks, strict=True)]
            yield key, stacked(found, key)
        if p.needs(a):
            one = (*a.shape[:2], 1, 1)
            found = [d and accumulated(d * s, one) for (_, _, d), (s, _) in zip(through, chunks, strict=True)]
            yield a, stacked(found, a)
        if p.needs(q):
            yield q, stacked([g[:, :, i] @ np.swapaxes(s, 2, 3) for i, (s, _) in enumerate(chunks)], q)
        if p.needs(m):
            yield m, stacked([g[:, :, i] @ np.swapaxes(new, 2, 3) for i, (_, new) in enumerate(chunks)], m)

    def reference(self, p: Pass, u: Any, w: Any, q: Any, m: Any, key: Any, a: Any, *first: Any) -> np.ndarray:
        y = np.zeros_like(u)
        state = first[0] if first else np.zeros((*u.shape[:2], w.shape[-1], u.shape[-1]))
        for i in range(u.shape[2]):
            new = u[:, :, i] - np.einsum("bhnk,bhkv->bhnv", w[:, :, i], state)
            y[:, :, i] = np.einsum("bhnk,bhkv->bhnv", q[:, :, i], state)
            y[:, :, i] += np.einsum("bhnm,bhmv->bhnv", m[:, :, i], new)
            state = a[:, :, i] * state + np.einsum("bhnk,bhnv->bhkv", key[:, :, i], new)
        return np.concatenate([y.reshape(*y.shape[:2], -1, y.shape[-1]), state], 2) if p.kind.keeps else y
