"""What others bring into a cache that cores share, told from arrays that a calibration left alone for a while.

Caches evict first what was used once: an array that came from memory and was left alone goes sooner than one that was
used again and again, as those are that curves of memory are measured with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import log
from typing import TYPE_CHECKING

from costmodel.roofline.curves import LogTable, joined
from costmodel.roofline.footprint import Reuse, Sharing, reuse_distances, reuses, touched_by
from costmodel.roofline.placed import AGED, AGED_NAME, KEPT_NAME, left_alone
from costmodel.roofline.program import NumpyCall, Program

if TYPE_CHECKING:
    from costmodel.roofline.rates import Rates

TRAFFICS = (0.0, *(10 ** (7.5 + step / 20) for step in range(91)))
"""What others, of which there may be dozens, may bring into a shared cache [bytes/s]; the one is chosen that fits."""
REPEATED = 0.05
"""How well a probe in place is repeated, a logarithm."""
TOLD = 0.01
"""How much better each of them is fitted at least by a traffic of its own for arrays used once, a logarithm."""

Placed = tuple[NumpyCall, list[float]]
"""A call in a program, and the reuse distances of its operands and code [bytes]."""
Misfits = dict[float, float]
"""How far probes are predicted off in all, logarithms, by what others bring [bytes/s]."""


class Others:
    """What others bring, by the rates of a host; its calls in place are those of `program`."""

    def __init__(self, rates: Rates, program: Program) -> None:
        self.rates, self.program = rates, program

    @property
    def traffic(self) -> float:
        """What others bring into the caches that cores share [bytes/s], by arrays that came from beyond them and were
        left alone while products ran; 0 on a host that nobody else uses.

        The middle of those that fit; the least where any more fits as well, since then all was evicted.
        """
        return self._told[0]

    @property
    def among(self) -> float:
        """The same by arrays that were used again and again [bytes/s]; where one traffic fits both, that."""
        return self._told[1]

    def traffic_at(self, seconds: Mapping[str, float]) -> float:
        """`traffic` at another moment: of those that fit what the calls of `left_alone` took then [s], by their layers,
        the one closest to it [bytes/s]."""
        program = left_alone()
        misfits = self._misfits((AGED_NAME,), program, reuses(touched_by(program)), seconds, lambda _: self.among)
        fitting = _fitting(misfits, _left_alone(program, (AGED_NAME,)))
        return min(max(self.traffic, fitting[0]), fitting[-1])

    def placed(self) -> dict[str, Placed]:
        """Calls that were measured in place, by name."""
        return _placed(self.program, self._reuses, self.rates.seconds, self.sharing(self.traffic))

    def sharing(self, traffic: float) -> Sharing | None:
        """What becomes of arrays in the last cache if others bring so much into it [bytes/s]; None where they never
        do."""
        if not traffic and not self.among:
            return None
        share = self.among / self.traffic if self.traffic else 1.0
        once, again = (self.brought(each, self.among) for each in (traffic, share * traffic))
        return Sharing(once, again, self.rates.private, self._shared)

    def brought(self, traffic: float, usual: float) -> Callable[[float, float], float]:
        """How far an array is, if others bring so much into the caches [bytes/s], by what was touched since and how
        long ago it was [bytes, s].

        They went on while the curves of memory were measured too: after a working set of a size came what they brought
        while it was gone through. usual: that is what they brought then [bytes/s].
        """
        if not usual:
            return lambda distance, passed: distance + traffic * passed
        sizes, bandwidth = self.rates.sets.curve, self.rates.bandwidth
        table = LogTable([size + usual * size / bandwidth(size) for size in sizes], sizes, growing=True)
        return lambda distance, passed: max(table(distance + traffic * passed), min(traffic / usual, 1.0) * distance)

    @cached_property
    def _shared(self) -> int:
        return self.rates.shared_bytes(self.rates.private)

    @cached_property
    def _reuses(self) -> list[list[Reuse]]:
        return reuses(touched_by(self.program))

    @cached_property
    def _told(self) -> tuple[float, float]:
        """`traffic` and `among`: two where one does not fit as well."""
        kinds = (AGED_NAME,), (KEPT_NAME,)
        once, again = (_left_alone(self.program, kind) for kind in kinds)

        def misfits(kind: tuple[str, ...], usual: Callable[[float], float]) -> Misfits:
            return self._misfits(kind, self.program, self._reuses, self.rates.seconds, usual)

        used = misfits(kinds[1], lambda traffic: traffic)
        among = _middle(used, again)
        new, plain = misfits(kinds[0], lambda _: among), misfits(kinds[0], lambda traffic: traffic)
        both = {traffic: misfit + used[traffic] for traffic, misfit in plain.items()}
        apart, least = _middle(new, once), min(new.values()) + min(used.values())
        if apart <= among or min(both.values()) <= least + TOLD * (once + again):
            one = _middle(plain, once)  # which more of them tell
            return one, one
        return apart, among

    def _misfits(
        self,
        kinds: tuple[str, ...],
        program: Program,
        uses: Sequence[Sequence[Reuse]],
        seconds: Mapping[str, float],
        usual: Callable[[float], float],
    ) -> Misfits:
        """Of arrays of some kinds in a program, and what its calls took [s]; usual: see `brought`, by the traffic."""
        misfits = {}
        for traffic in TRAFFICS:
            brought = self.brought(traffic, usual(traffic))
            calls = _placed(program, uses, seconds, Sharing(brought, brought, self.rates.private, 0.0))
            aged = [call for name, call in calls.items() if name.startswith(kinds)]
            misfits[traffic] = sum(self._misfit(call, seconds) for call in aged)
        return misfits

    def _misfit(self, call: Placed, seconds: Mapping[str, float]) -> float:
        """How far an array that was left alone is predicted off, a logarithm."""
        op, distances = call
        rates, access = self.rates, op.layer[len(AGED_NAME) :].rpartition(" ")[0]
        name, scalar = AGED[access], access == "in place"
        compute = rates.slower * op.output.size * rates.rate(name, "float32", scalar, scalar)
        operands = {*zip(op.accesses, distances, strict=False)}
        moved = sum(ref.bytes * rates.far(far, access, written=ref is op.output) for ref, far in operands)
        beside = rates.slower * rates.call(name, "float32", int(scalar))
        return abs(log((beside + joined(compute, moved, rates.power(max(distances[:-3])))) / seconds[op.layer]))


def _placed(
    program: Program, uses: Sequence[Sequence[Reuse]], seconds: Mapping[str, float], sharing: Sharing | None
) -> dict[str, Placed]:
    """The calls of a program by their layers."""
    distances = reuse_distances(uses, [seconds[op.layer] for op in program], sharing)
    return {op.layer: (op, far) for op, far in zip(program, distances, strict=True)}


def _left_alone(program: Program, kinds: tuple[str, ...]) -> int:
    """How many arrays of some kinds a program has."""
    return sum(op.layer.startswith(kinds) for op in program)


def _fitting(misfits: Misfits, probes: int) -> list[float]:
    """Those that fit so many probes as well as these are repeated, rising."""
    well = min(misfits.values()) + REPEATED * probes
    return [traffic for traffic, misfit in misfits.items() if misfit <= well]


def _middle(misfits: Misfits, probes: int) -> float:
    """The middle of those that fit, as ratios go; the least where any more fits as well."""
    fitting = _fitting(misfits, probes)
    return fitting[0] if fitting[-1] == TRAFFICS[-1] else (fitting[0] * fitting[-1]) ** 0.5
