"""How tokens choose experts where that is more than the largest scores: within groups, and with constants added."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.tensor import Call, Shape, Storage, Tensor
from costmodel.layers.base import Buffers, Gradient, Scratch, Unary, Weightless, Work, layer, takes
from costmodel.symbolic.sizes import exact_div


@layer
class GroupedTopK(Weightless):
    """Scores of the `chosen` experts, x: (..., n), y: (..., chosen), all from the `kept_groups` best of `groups`.

    A group is as good as its `best` largest scores together. `biased`: choices, but not what is returned, are by the
    scores and a constant of each expert.
    """

    source = (
        "x.gather(−1, i), i = top-k of the experts in the best groups (DeepSeek-AI 2024, V2, §2.2.2; V3, §2.1.2); "
        "choosing has no gradient; dx has g at the places chosen"
    )
    in_lists = False

    chosen: int
    groups: int = 1
    kept_groups: int = 1
    best: int = 1
    biased: bool = False

    def check(self, call: Call) -> None:
        """Groups are equal, and large enough."""
        takes(call, 1)
        n = call.x.shape[-1] if call.x.shape else 0
        if not n or n % self.groups:
            raise call.fail(f"groups {self.groups} does not divide {n} experts")
        each = n // self.groups
        if self.kept_groups > self.groups or self.best > each or self.chosen > self.kept_groups * each:
            raise call.fail(f"cannot choose {self.chosen} of {self.kept_groups} of {self.groups} groups")

    def buffers(self, call: Call) -> Buffers:
        """The constants."""
        return {"bias": ((call.x.shape[-1],), "statistic")} if self.biased else {}

    def output(self, call: Call) -> Shape:
        """(..., chosen)."""
        return (*call.x.shape[:-1], self.chosen)

    def forward(self, call: Call) -> Work:
        """Of each row: add constants, judge groups, choose groups, leave the others out, choose experts."""
        n, g, j, k, s = call.x.shape[-1], self.groups, self.best, self.kept_groups, self.chosen
        judging = g * (_largest(exact_div(n, g), j) + j - 1) + _largest(g, k) + n
        return Work(0, call.x.rows * (n * self.biased + judging + _largest(n, s)))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """No arithmetic: numbers are put where they came from."""
        yield Gradient(call.x, Work(0, 0))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """The scores, and the int64 places."""
        yield call.x
        yield call.fresh("index", *call.y.shape)

    def scratch(self, call: Call) -> Scratch:
        """The scores that choices are by, and the places, where they are not kept."""
        return Scratch(call.x.size + (0 if call.y.requires_grad else call.y.size), 0)


def _largest(n: int, k: int) -> int:
    """Comparisons that find the k largest of n, one after another."""
    return k * n - exact_div(k * (k + 1), 2)


@layer
class Shares(Unary):
    """y = x/(Σ x + ε) over the last axis, for x > 0: a sum, ε, and a division of each element."""

    source = "x/(Σ x + ε) (DeepSeek-AI 2024, V3, eq. 13); dx = g/s − Σ(g·x)/s² with s = Σ x + ε"

    def forward(self, call: Call) -> Work:
        """2n a row."""
        return Work(0, 2 * call.x.size)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """g·x and its sum, s² and a division by it, g/s, and the difference: 4n + 1 a row."""
        yield Gradient(call.x, Work(0, 4 * call.x.size + call.x.rows))

    def kept(self, call: Call) -> Iterable[Tensor | Storage]:
        """Input and sums."""
        yield call.x
        yield call.fresh("activation", call.x.rows)

    def scratch(self, call: Call) -> Scratch:
        """The sums, where they are not kept; in backward g·x."""
        return Scratch(0 if call.y.requires_grad else call.x.rows, call.x.size)
