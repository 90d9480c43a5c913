"""Cases of what decoding keeps, and of products with the matrix of a latent by head."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.kernel import Case, Draw, Kernel, Operand, Pass, sizes


class Append(Kernel):
    def case(self, draw: Draw) -> Case:
        *rest, features = draw(st.lists(sizes, min_size=2, max_size=3))
        return Case(
            self.layer(), [Operand((*rest, n, features)) for n in draw(st.lists(sizes, min_size=1, max_size=2))]
        )

    def reference(self, p: Pass, *inputs: np.ndarray) -> np.ndarray:
        return np.stack([x[..., n, :] for x in inputs for n in range(x.shape[-2])], axis=-2)


class Insert(Kernel):
    def case(self, draw: Draw) -> Case:
        *rest, features = draw(st.lists(sizes, min_size=2, max_size=3))
        new, seen, room = sorted(draw(st.tuples(sizes, sizes, sizes)))
        operands = [Operand((*rest, room, features), constant=True), Operand((*rest, new, features))]
        return Case(self.layer(tokens=seen), operands)

    def reference(self, p: Pass, cache: np.ndarray, x: np.ndarray) -> np.ndarray:
        whole = [cache[..., n, :] for n in range(cache.shape[-2] - x.shape[-2])]
        whole += [x[..., n, :] for n in range(x.shape[-2])]
        return np.stack(whole[-p.kind.tokens :], axis=-2)


class AbsorbKey(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(rank=draw(sizes), value=draw(sizes)), [Operand(draw(st.tuples(*[sizes] * 4)))])

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        each = np.split(weight, x.shape[1])
        return np.stack([x[:, n] @ part[: x.shape[3]] for n, part in enumerate(each)], axis=1)


class ExpandValue(Kernel):
    def case(self, draw: Draw) -> Case:
        return Case(self.layer(key=draw(sizes), value=draw(sizes)), [Operand(draw(st.tuples(*[sizes] * 4)))])

    def reference(self, p: Pass, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        each = np.split(weight, x.shape[1])
        return np.stack([x[:, n] @ part[p.kind.key :].T for n, part in enumerate(each)], axis=1)
