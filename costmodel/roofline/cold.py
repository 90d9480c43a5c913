"""What a call takes longer if its code, or what it passes to it, was left alone meanwhile, from tiny calls that were
measured after large products."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from costmodel.roofline.curves import LogTable, rising
from costmodel.roofline.footprint import Code
from costmodel.roofline.placed import FEW_PRODUCTS, FIRST, LARGE_PRODUCTS, RECURRING, STALE, STALE_MANNERS
from costmodel.roofline.probes import FAR_WIDTHS

if TYPE_CHECKING:
    from costmodel.roofline.rates import Rates

NEAR_BYTES = 16 * 1024
"""What the first cache holds beside a call's own code and arrays [bytes]."""


class ColdCalls:
    """By the rates of a host, beside which tiny calls are held.

    where: what the layers of those begin with; after how many `products` they were measured.
    """

    def __init__(self, rates: Rates, where: str = "", products: int = len(LARGE_PRODUCTS)) -> None:
        self.rates, self.where, self.products = rates, where, range(products)

    @cached_property
    def recurring(self) -> ColdCalls:
        """The same in a program that caches hold."""
        return ColdCalls(self.rates, RECURRING, len(FEW_PRODUCTS))

    def missed(self, distance: float) -> float:
        """How long the first bytes of rows take that were last used so far ago, as a share of what they take from
        memory, where all is that a program uses once in a pass and no cache holds."""
        beyond = self.rates.sets.beyond
        way, memory = (self.rates.gathered_far(FAR_WIDTHS[0], far, far) for far in (distance, beyond))
        return min(way / memory, 1.0) if memory else float(distance >= beyond)

    def longer(self, manner: str, code: Code, missed: float) -> float:
        """What a call takes longer if so much came into the caches since its code was last run, in a program of which
        so much is missed, as its own arguments are, Python's own objects [s]."""
        found = self.recurring.of_code(manner, code)
        return found + missed * (self.of_code(manner, code) - found + self._left)

    def of_code(self, manner: str, code: Code) -> float:
        """What a call takes longer for its code in such a program [s]."""
        common = self._common(code.any) + self._own(code.own)
        return common + (self._manners[manner](code.manner) if manner in self._manners else 0.0)

    @cached_property
    def _left(self) -> float:
        """What a call takes longer whose arguments were last used a pass ago [s]."""
        kinds = [(name, number) for name in FIRST for number in self.products]
        return max(median(self._longer(name, "fresh", number) for name, number in kinds), 0.0)

    def _longer(self, name: str, place: str, number: int) -> float:
        """How much longer a tiny call took after a large product than over and over, at the clock that leaves [s]."""
        function, _, scalar = name.partition(" ")
        again = self.rates.slower * self.rates.call(function, "float32", int(bool(scalar)))
        return self.rates.seconds[f"{self.where}{place} {name} {number}"] - again

    def _since(self, name: str, number: int, place: str = "stale") -> Code:
        """What came into the caches since the code of such a call was last run."""
        return Code(*self.rates.placed[f"{self.where}{place} {name} {number}"][1][-3:])

    def _table(self, came: Callable[[int], float], longer: Callable[[int], float]) -> LogTable:
        """What is cold by what came into the caches, both after each large product: it never falls, and is nothing
        where all is near."""
        points = sorted([(float(NEAR_BYTES), 0.0), *((came(n), longer(n)) for n in self.products)])
        return LogTable([far for far, _ in points], rising([max(more, 0.0) for _, more in points]))

    @cached_property
    def _own(self) -> LogTable:
        """For a function's own code: the median, since one alone is measured too rarely to be told apart."""
        leading = [names[0] for names in STALE_MANNERS.values()]
        plain = [name for name in STALE if name not in leading]
        return self._table(
            lambda number: median(self._since(name, number).own for name in plain),
            lambda number: median(self._longer(name, "stale", number) for name in plain) - self._left,
        )

    @cached_property
    def _common(self) -> LogTable:
        """For the code of any call: what the first after a product takes longer than when others came before it."""
        return self._table(
            lambda number: median(self._since(name, number, "first").any for name in FIRST),
            lambda number: median(self._longer(name, "first", number) - self._extra(name, number) for name in FIRST),
        )

    def _extra(self, name: str, number: int) -> float:
        """What the code of a manner and a function adds to the first call after a product [s]."""
        leading = next((names[0] for names in STALE_MANNERS.values() if name in names), name)
        return self._longer(leading, "stale", number)

    @cached_property
    def _manners(self) -> dict[str, LogTable]:
        """For the code of a manner: what its first call takes longer than a function's own code accounts for."""
        return {manner: self._of_manner(names[0]) for manner, names in STALE_MANNERS.items()}

    def _of_manner(self, name: str) -> LogTable:
        return self._table(
            lambda number: self._since(name, number).manner,
            lambda number: self._longer(name, "stale", number) - self._left - self._own(self._since(name, number).own),
        )
