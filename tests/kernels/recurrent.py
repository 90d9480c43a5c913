"""Kernels of recurrent layers: step by step, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from tests.kernels.counting import Array, add_product, zeros
from tests.kernels.kernel import Case, Draw, Gradients, Kernel, Operand, Pass, sizes

SMALL = (-1.0, 1.0)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def slope(g: Array, y: Array) -> Array:
    """Back through σ from its result."""
    return g * y * (1 - y)


def turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


class Recurrent(Kernel, abstract=True):
    """Forward keeps what each step worked out; backward runs them in reverse, then takes what is asked for."""

    states = 1
    fields: ClassVar[dict[str, Callable[[Draw], Any]]] = {}

    def case(self, draw: Draw) -> Case:
        steps, batch, features, hidden = (draw(sizes) for _ in range(4))
        layer = self.layer(
            hidden=hidden, bias=draw(st.booleans()), **{name: make(draw) for name, make in self.fields.items()}
        )
        widths = (layer.handed, hidden)[: self.states]
        constant = draw(st.booleans())
        states = [Operand((batch, width), constant=constant, within=SMALL) for width in widths]
        return Case(layer, [Operand((steps, batch, features), within=SMALL), *states])

    def products(self, p: Pass, x: Array, h: Array) -> tuple[Array, Array]:
        """What one step's gates get from the input and from the state."""
        of_input, of_state = x @ turned(p.weights["weight_ih"]), h @ turned(p.weights["weight_hh"])
        if p.kind.bias:
            of_input, of_state = of_input + p.weights["bias_ih"], of_state + p.weights["bias_hh"]
        return of_input, of_state

    def parts(self, x: Array, hidden: int) -> list[Array]:
        return [x[:, start : start + hidden] for start in range(0, x.shape[1], hidden)]

    def forward(self, p: Pass) -> Array:
        states = list(p.inputs[1:])
        p.saved["steps"] = steps = []
        results = []
        for t in range(p.x.shape[0]):
            before = states
            states, made = self.step(p, p.x[t], states)
            steps.append((before, states, made))
            results.append(states[0])
        return np.stack(results)

    def step(self, p: Pass, x: Array, states: list[Array]) -> tuple[list[Array], Any]:
        """One step: states after it, and what backward needs."""
        raise NotImplementedError

    def back(self, p: Pass, g: list[Array | None], before: list[Array], after: list[Array], made: Any) -> Any:
        """Gradients of what the gates got from input and from state, and of each state by another way, or None."""
        raise NotImplementedError

    def backward(self, p: Pass, g: Array) -> Gradients:
        kept, carried = p.saved["steps"], [None] * self.states
        of_gates: list[tuple[Array, Array]] = []
        for t in reversed(range(len(kept))):
            arriving = [g[t] if carried[0] is None else g[t] + carried[0], *carried[1:]]
            di, dh, *carried = self.back(p, arriving, *kept[t])
            of_gates.insert(0, (di, dh))
            if t:
                product = dh @ p.weights["weight_hh"]
                carried[0] = product if carried[0] is None else carried[0] + product
                carried[1:] = [scale() for scale in carried[1:]]
        yield from self.asked(p, of_gates, carried)

    def asked(self, p: Pass, of_gates: list[tuple[Array, Array]], carried: list[Any]) -> Gradients:
        weights = p.weights
        if p.needs(p.x):
            yield p.x, np.stack([di @ weights["weight_ih"] for di, _ in of_gates])
        if p.needs(p.inputs[1]):
            product = of_gates[0][1] @ weights["weight_hh"]
            yield p.inputs[1], product if carried[0] is None else carried[0] + product
        for name, place in (("weight_ih", 0), ("weight_hh", 1)):
            total = zeros(weights[name].shape, p.tally)
            for t, pair in enumerate(of_gates):
                add_product(total, turned(pair[place]), p.x[t] if place == 0 else p.saved["steps"][t][0][0])
            yield weights[name], total
        for name, place in (("bias_ih", 0), ("bias_hh", 1)) if p.kind.bias else ():
            total = zeros(weights[name].shape, p.tally)
            for pair in of_gates:
                np.add.at(total, np.arange(total.size)[None].repeat(p.x.shape[1], 0), pair[place])
            yield weights[name], total
        if self.states == 2 and p.needs(p.inputs[2]):
            yield p.inputs[2], carried[1]()

    def reference(self, p: Pass, x: np.ndarray, *states: np.ndarray, **w: np.ndarray) -> np.ndarray:
        results, bias = [], {"bias_ih": 0.0, "bias_hh": 0.0} | w
        for row in x:
            of_input = np.einsum("bi,oi->bo", row, w["weight_ih"]) + bias["bias_ih"]
            of_state = np.einsum("bi,oi->bo", states[0], w["weight_hh"]) + bias["bias_hh"]
            states = self.plainly(p, of_input, of_state, states, w)
            results.append(states[0])
        return np.array(results)

    def plainly(
        self, p: Pass, i: np.ndarray, h: np.ndarray, states: tuple[np.ndarray, ...], w: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        raise NotImplementedError


def logistic(x: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(x / 2)) / 2


class Lstm(Recurrent):
    states = 2
    fields: ClassVar = {"projected": lambda draw: draw(st.integers(0, 3))}

    def step(self, p: Pass, x: Array, states: list[Array]) -> tuple[list[Array], Any]:
        of_input, of_state = self.products(p, x, states[0])
        i, f, g, o = self.parts(of_input + of_state, p.kind.hidden)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        cell = f * states[1] + i * g
        reached = np.tanh(cell)
        h = o * reached
        handed = h @ turned(p.weights["weight_hr"]) if p.kind.projected else h
        return [handed, cell], (i, f, g, o, reached, h)

    def back(self, p: Pass, g: list[Array | None], before: list[Array], after: list[Array], made: Any) -> Any:
        i, f, c, o, reached, h = made
        dh, cell = g
        p.saved.setdefault("results", []).append((dh, h))
        if p.kind.projected:
            dh = dh @ p.weights["weight_hr"]
        dcell = dh * o * (1 - reached * reached)
        dcell = dcell if cell is None else dcell + cell
        gates = [slope(dcell * c, i), slope(dcell * before[1], f), dcell * i * (1 - c * c), slope(dh * reached, o)]
        gates = np.concatenate(gates, 1)
        return gates, gates, None, lambda: dcell * f

    def asked(self, p: Pass, of_gates: list[tuple[Array, Array]], carried: list[Any]) -> Gradients:
        yield from super().asked(p, of_gates, carried)
        if p.kind.projected:
            total = zeros(p.weights["weight_hr"].shape, p.tally)
            for dh, h in p.saved["results"]:
                add_product(total, turned(dh), h)
            yield p.weights["weight_hr"], total

    def plainly(
        self, p: Pass, i: np.ndarray, h: np.ndarray, states: tuple[np.ndarray, ...], w: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        enter, forget, new, leave = np.split(i + h, 4, axis=1)
        cell = logistic(forget) * states[1] + logistic(enter) * np.tanh(new)
        made = logistic(leave) * np.tanh(cell)
        return (np.einsum("bh,ph->bp", made, w["weight_hr"]) if p.kind.projected else made), cell


class Gru(Recurrent):
    def step(self, p: Pass, x: Array, states: list[Array]) -> tuple[list[Array], Any]:
        of_input, of_state = (self.parts(y, p.kind.hidden) for y in self.products(p, x, states[0]))
        r, z = sigmoid(of_input[0] + of_state[0]), sigmoid(of_input[1] + of_state[1])
        n = np.tanh(of_input[2] + r * of_state[2])
        away = states[0] - n
        return [n + z * away], (r, z, n, away, of_state[2])

    def back(self, p: Pass, g: list[Array | None], before: list[Array], after: list[Array], made: Any) -> Any:
        r, z, n, away, third = made
        dh = g[0]
        dz, by_z = dh * away, dh * z
        dn = (dh - by_z) * (1 - n * n)
        reset, update = slope(dn * third, r), slope(dz, z)
        return np.concatenate([reset, update, dn], 1), np.concatenate([reset, update, dn * r], 1), by_z

    def plainly(
        self, p: Pass, i: np.ndarray, h: np.ndarray, states: tuple[np.ndarray, ...], w: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        (ri, zi, ni), (rh, zh, nh) = np.split(i, 3, axis=1), np.split(h, 3, axis=1)
        z = logistic(zi + zh)
        return ((1 - z) * np.tanh(ni + logistic(ri + rh) * nh) + z * states[0],)


class Elman(Recurrent):
    fields: ClassVar = {"function": lambda draw: draw(st.sampled_from(["tanh", "relu"]))}

    def step(self, p: Pass, x: Array, states: list[Array]) -> tuple[list[Array], Any]:
        of_input, of_state = self.products(p, x, states[0])
        total = of_input + of_state
        return [np.tanh(total) if p.kind.function == "tanh" else np.maximum(total, 0)], None

    def back(self, p: Pass, g: list[Array | None], before: list[Array], after: list[Array], made: Any) -> Any:
        y = after[0]
        dy = g[0] * (1 - y * y) if p.kind.function == "tanh" else np.where(y > 0, g[0], 0.0)
        return dy, dy, None

    def plainly(
        self, p: Pass, i: np.ndarray, h: np.ndarray, states: tuple[np.ndarray, ...], w: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        return (np.tanh(i + h) if p.kind.function == "tanh" else (abs(i + h) + i + h) / 2,)
