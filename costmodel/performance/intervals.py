"""The interval of a time that is worked out from constants and measured steps, and what makes it wide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, hypot, log, log1p, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from costmodel.performance.constants import ConstantRange, Constants, constants_of, typical

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine
    from costmodel.performance.accounting import SharedStep
    from costmodel.performance.breakdown import KernelTime
    from costmodel.training.settings import Settings

RERUN = 0.05
"""By how much a step that is measured again differs: the same recipe on the same system by 6 % (median) between
quarterly containers (MLPerf Training, results of successive rounds), as half of a range that holds four of five."""
OTHER_LAW = 0.1
"""By how much the errors of two laws differ where constants are not fitted to either: products by such a law are off by
7-12 % on several devices (LLMCompass, measured operators)."""
MOST_HIDDEN = 0.9
"""Share of a step, at most, that may be sent beside kernels where that is not told."""


class Effect(NamedTuple):
    """What one constant does: seconds at the end of its range that is faster, and at the slower one."""

    name: str
    constant: ConstantRange
    low: float
    high: float

    @property
    def width(self) -> float:
        """Slower over faster, as a logarithm: additive where effects multiply."""
        return log(self.high / self.low) if self.low > 0 else 0.0


class Interval(NamedTuple):
    """Seconds: a range that about four of five measured runs fall into, and what makes it wide, the most first."""

    low: float
    typical: float
    high: float
    effects: tuple[Effect, ...] = ()

    @property
    def widest(self) -> tuple[Effect, ...]:
        """The three that make it widest."""
        return self.effects[:3]

    def __repr__(self) -> str:
        """What can be typed, without what makes it wide."""
        return f"Interval(low={self.low!r}, typical={self.typical!r}, high={self.high!r})"


def uncertain_constants(machine: Machine, known: Iterable[str]) -> dict[str, ConstantRange]:
    """The constants of a machine that have a range, all but those that are known."""
    without = frozenset(known)
    return {name: of for name, of in constants_of(machine).items() if name not in without}


def interval(
    time: Callable[[Constants], Any],
    machine: Machine,
    *,
    least: float = 0.0,
    known: Iterable[str] = (),
    at: Constants | None = None,
) -> Interval:
    """The interval of a time that is worked out from constants, such as the sum over all kernels of a step.

    One constant moves every kernel that it is in, so their errors do not average out; different constants are taken as
    independent, and the logarithms of their effects add up in squares. Of a time over another, measured one, constants
    that move both alike cancel.

    time: takes constants that are arrays too, and is asked once for both ends of all ranges. least: a bound that no
    constant can break, such as the datasheet's. known: constants without a range, since they were measured. at: the
    constants in the middle, typical ones unless given.
    """
    middle = at or typical(machine)
    seconds = float(time(middle))
    if not seconds > 0:
        return Interval(seconds, seconds, seconds, ())
    uncertain = uncertain_constants(machine, known)
    *ends, same = np.broadcast_to(time(middle.with_ends(uncertain)), 2 * len(uncertain) + 1).tolist()
    effects = [
        Effect(name, of, min(*pair, seconds), max(*pair, seconds))
        for (name, of), pair in zip(uncertain.items(), zip(ends[::2], ends[1::2], strict=True), strict=True)
        if pair != (same, same)
    ]
    faster = sqrt(sum(log(seconds / effect.low) ** 2 for effect in effects))
    slower = sqrt(sum(log(effect.high / seconds) ** 2 for effect in effects))
    widest = tuple(sorted(effects, key=lambda effect: (-effect.width, effect.name)))
    return Interval(max(least, seconds * exp(-faster)), seconds, seconds * exp(slower), widest)


def law_shares(kernels: Iterable[KernelTime]) -> dict[str, float]:
    """Share of the device's time by sort of kernel; kernels that wait for bytes are of a law of their own."""
    shares: dict[str, float] = {}
    for row in kernels:
        law = f"{row.sort} {row.bound}"
        shares[law] = shares.get(law, 0.0) + row.seconds
    whole = sum(shares.values()) or 1.0
    return {law: seconds / whole for law, seconds in shares.items()}


def unlike_share(shares: Mapping[str, float], measured: Sequence[Mapping[str, float]]) -> float:
    """Share of a time that is of other laws than in measured steps, from 0 to 1; see `law_shares`."""
    usual = {law: sum(laws.get(law, 0.0) for laws in measured) / len(measured) for law in shares}
    return sum(max(0.0, share - usual[law]) for law, share in shares.items())


def anchored_interval(
    time: Callable[[Constants], Any],
    shares: Mapping[str, float],
    measured: Sequence[tuple[Callable[[Constants], Any], float, Mapping[str, float]]],
    machine: Machine,
    known: Iterable[str],
    at: Constants,
) -> Interval:
    """The interval of a time where steps were measured on the machine: of how much longer it takes than they.

    It is as wide as what differs from them: a run again, and a share of laws that they do not have.

    shares: of the time, see `law_shares`. measured: of each step what works it out, its seconds, and its own shares.
    """

    def anchored(constants: Constants) -> Any:
        off = [np.log(seconds / step(constants)) for step, seconds, _ in measured]
        return time(constants) * np.exp(sum(off) / len(off))

    own = interval(anchored, machine, known=("conditions", *known), at=at)
    other = OTHER_LAW * unlike_share(shares, [laws for _, _, laws in measured])
    faster, slower = (hypot(log(end / own.typical), RERUN, other) for end in (own.low, own.high))
    return own._replace(low=own.typical * exp(-faster), high=own.typical * exp(slower))


def slower_end(own: Interval, shared: SharedStep) -> float:
    """The slower end of a range where it is not told whether a runtime sends beside kernels."""
    return own.typical * exp(hypot(log(own.high / own.typical), log1p(float(shared.optional) / own.typical)))


def faster_end(own: Interval, shared: SharedStep, settings: Settings) -> float:
    """The faster end of a range where it is not told whether Megatron sends parts of a product beside others.

    Sources: ``tp_comm_overlap`` (Transformer Engine's user buffers: of `tp` parts of a product the first waits) and
    ``overlap_moe_expert_parallel_comm`` (tokens are sent beside another micro-batch), which some recipes switch on.
    """
    layout = settings.layout
    if not (layout.megatron and settings.training):
        return own.low
    beside = {"tp": (layout.tp - 1) / layout.tp * layout.sp, "ep": 1.0}
    waited = sum(float(of.exposed) * beside.get(of.message.axis, 0.0) for of in shared.collectives)
    share = min(waited / own.typical, MOST_HIDDEN)
    return own.typical * exp(-hypot(log(own.typical / own.low), log1p(-share)))
