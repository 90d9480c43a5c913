"""What others bring into a cache that cores share, told from arrays that a calibration left alone for a while.

Of what streams through them, caches keep a share, so that it does not evict what is used again and again: they evict
the rest of it soon (adaptive insertion, Qureshi et al. 2007). So of an array that came from memory when it was last
used, a share is lost, the more of it the more came since, and what is left stays as long as an array that was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import exp, log
from typing import TYPE_CHECKING

from costmodel.roofline.curves import LogTable, joined
from costmodel.roofline.footprint import Reuse, Sharing, reuse_distances, reuses, touched_by
from costmodel.roofline.placed import AGED, AGED_NAME, KEPT_NAME, in_place, left_alone
from costmodel.roofline.program import NumpyCall, Program

if TYPE_CHECKING:
    from costmodel.roofline.rates import Rates

TRAFFICS = (0.0, *(10 ** (7.5 + step / 20) for step in range(91)))
"""What others, of which there may be dozens, may bring into a shared cache [bytes/s]; the one is chosen that fits."""
LOST = tuple(step / 20 for step in range(19))
"""Shares of an array that may be lost so; the one is chosen that fits."""
REPEATED = 0.05
"""How well a probe in place is repeated, a logarithm."""
TOLD = 0.01
"""How much better each of them is fitted at least if some of it is lost, a logarithm."""

LEFT_ALONE = (AGED_NAME, KEPT_NAME)

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
        """What others bring into the caches that cores share [bytes/s], by arrays that were left alone while products
        ran; 0 on a host that nobody else uses.

        The middle of those that fit; the least where any more fits as well, since then all was evicted.
        """
        return self._told[0]

    @property
    def lost(self) -> float:
        """The share of an array that is evicted soon if it came from memory when it was last used."""
        return self._told[1]

    def traffic_at(self, seconds: Mapping[str, float]) -> float:
        """`traffic` at another moment: of those that fit what the calls of `left_alone` took then [s], by their layers,
        the one closest to it [bytes/s]."""
        program = left_alone()
        uses = reuses(touched_by(program))
        misfits = self._misfits(program, uses, seconds, lambda _: self.traffic)
        lost = LOST.index(self.lost)
        fitting = _fitting({traffic: each[lost] for traffic, each in misfits.items()}, _left_alone(program))
        return min(max(self.traffic, min(fitting)), max(fitting))

    def placed(self) -> dict[str, Placed]:
        """Calls that were measured in place, by name."""
        within, *beyond = in_place(self.rates.sets.beyond)
        sharing, seconds = self.sharing(self.traffic), self.rates.seconds
        found = _placed(within, reuses(touched_by(within)), seconds, None)
        for program in beyond:
            found |= _placed(program, reuses(touched_by(program)), seconds, sharing)
        return found

    def sharing(self, traffic: float) -> Sharing | None:
        """What becomes of arrays in the last cache if others bring so much into it [bytes/s]; None where they never
        do."""
        if not traffic and not self.traffic:
            return None
        return Sharing(self.brought(traffic, self.traffic), self.thinned, self.rates.private, self._shared)

    def brought(self, traffic: float, usual: float) -> Callable[[float, float], float]:
        """How far an array is, if others bring so much into the caches [bytes/s], by what was touched since and how
        long ago that was [bytes, s].

        They went on while the curves of memory were measured too: after a working set of a size came what they brought
        while it was gone through. usual: that is what they brought then [bytes/s].
        """
        if not usual:
            return lambda distance, passed: distance + traffic * passed
        sizes = self.rates.sets.curve
        table = LogTable([size + usual * size * self.rates.taken(size) for size in sizes], sizes, growing=True)
        return lambda distance, passed: max(table(distance + traffic * passed), min(traffic / usual, 1.0) * distance)

    def thinned(self, distance: float) -> float:
        """How far an array is of which a share was lost, since it came from memory when it was last used: as far as
        what costs as much."""
        if not (share := self.lost * self._beyond_core(distance)):
            return distance
        near, memory = (self.rates.far(each, "in place") for each in (distance, self.rates.sets.curve[-1]))
        return max(distance, self._distance_of(near + share * (memory - near)))

    def _beyond_core(self, distance: float) -> float:
        """How far on the way from a core's own caches, where all stays, to what fills the shared one, as ratios go."""
        private = self.rates.private
        if distance <= private or self._shared <= private:
            return 0.0
        return min(log(distance / private) / log(self._shared / private), 1.0)

    @cached_property
    def _shared(self) -> int:
        return self.rates.shared_bytes(self.rates.private)

    @cached_property
    def _distance_of(self) -> LogTable:
        """The reuse distance [bytes] from which a byte there and back costs so much beyond cache [s/B]."""
        curve = self.rates.sets.curve
        return LogTable([self.rates.far(size, "in place") for size in curve], curve)

    @cached_property
    def _reuses(self) -> list[list[Reuse]]:
        return reuses(touched_by(self.program))

    @cached_property
    def _told(self) -> tuple[float, float]:
        """`traffic` and `lost`, which is nothing where that fits as well."""
        misfits = self._misfits(self.program, self._reuses, self.rates.seconds, lambda traffic: traffic)
        probes = _left_alone(self.program)
        plain = {traffic: each[0] for traffic, each in misfits.items()}
        least = {traffic: min(each) for traffic, each in misfits.items()}
        if min(plain.values()) <= min(least.values()) + TOLD * probes:
            return _middle(plain, probes), LOST[0]
        traffic = _middle(least, probes)
        nearest = min(TRAFFICS, key=lambda each: abs(each - traffic))
        return traffic, LOST[misfits[nearest].index(least[nearest])]

    def _misfits(
        self,
        program: Program,
        uses: Sequence[Sequence[Reuse]],
        seconds: Mapping[str, float],
        usual: Callable[[float], float],
    ) -> dict[float, list[float]]:
        """How far arrays that were left alone in a program are predicted off in all, logarithms, by what others bring
        and each share of `LOST`. seconds: what its calls took; usual: see `brought`, by the traffic."""
        misfits = {}
        for traffic in TRAFFICS:
            sharing = Sharing(self.brought(traffic, usual(traffic)), lambda far: far, self.rates.private, 0.0)
            calls = _placed(program, uses, seconds, sharing)
            each = [self._misfit(call, seconds) for name, call in calls.items() if name.startswith(LEFT_ALONE)]
            misfits[traffic] = [sum(column) for column in zip(*each, strict=True)]
        return misfits

    def _misfit(self, call: Placed, seconds: Mapping[str, float]) -> list[float]:
        """How far one of them is predicted off, a logarithm, by each share of `LOST`."""
        op, distances = call
        rates, access = self.rates, op.layer[len(AGED_NAME) :].rpartition(" ")[0]
        name, scalar = AGED[access], access == "in place"
        compute = rates.slower * op.output.size * rates.rate(name, "float32", scalar, scalar)
        operands = {*zip(op.accesses, distances, strict=False)}

        def moved(least: float) -> float:
            return sum(
                ref.bytes * rates.far(max(far, least), access, written=ref is op.output) for ref, far in operands
            )

        beside = rates.slower * rates.call(name, "float32", int(scalar))
        power, found, memory = rates.power(max(distances[:-3])), moved(0.0), moved(rates.sets.curve[-1])
        share = self._beyond_core(max(distances[:-3])) if op.layer.startswith(AGED_NAME) else 0.0
        times = (beside + joined(compute, found + lost * share * (memory - found), power) for lost in LOST)
        return [abs(log(time / seconds[op.layer])) for time in times]


def _placed(
    program: Program, uses: Sequence[Sequence[Reuse]], seconds: Mapping[str, float], sharing: Sharing | None
) -> dict[str, Placed]:
    """The calls of a program by their layers."""
    distances = reuse_distances(uses, [seconds[op.layer] for op in program], sharing)
    return {op.layer: (op, far) for op, far in zip(program, distances, strict=True)}


def _left_alone(program: Program) -> int:
    """How many arrays of a program are measured after they were left alone."""
    return sum(op.layer.startswith(LEFT_ALONE) for op in program)


def _fitting(misfits: Misfits, probes: int) -> Misfits:
    """Those that fit so many probes as well as these are repeated, rising; by how much better than just so."""
    well = min(misfits.values()) + REPEATED * probes
    return {traffic: well - misfit for traffic, misfit in misfits.items() if misfit <= well}


def _middle(misfits: Misfits, probes: int) -> float:
    """The middle of those that fit, as ratios go, the more of each the better it fits; the least where any more fits as
    well, and nothing where that fits about as well as the best."""
    fitting = _fitting(misfits, probes)
    if max(fitting.values()) - fitting.pop(0.0, float("-inf")) <= TOLD * probes:
        return 0.0
    if max(fitting) == TRAFFICS[-1]:
        return min(fitting)
    return exp(sum(better * log(traffic) for traffic, better in fitting.items()) / sum(fitting.values()))
