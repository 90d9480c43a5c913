"""What bounds a layer: computing, memory (at which level), or overhead; predicted, measured, and by the textbook.

Measured by intervention, never by comparing the model with itself. Overhead: the same calls on smallest shapes take
more than half of the time. Memory: tiles that stay in cache, scaled up, are more than a third faster; the level is the
one from which tiles at that distance take most nearly as long. Else computing. Predicted by the same thresholds on the
model's own terms. Near a threshold it is too close to call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Literal

from costmodel.roofline.hosttime import Terms
from costmodel.roofline.intervention import alone, smallest, tile
from costmodel.roofline.machine import Machine
from costmodel.roofline.measurement import measure
from costmodel.roofline.operation import Op
from costmodel.roofline.program import Program
from costmodel.roofline.signature import Signature, signature_of
from costmodel.roofline.timing import Protocol

Bound = Literal["compute", "memory", "overhead"]
BOUNDS: tuple[Bound, ...] = ("compute", "memory", "overhead")

OVERHEAD_SHARE = 1 / 2
"""Of the time, from which a layer is bound by overhead."""
RESIDENT_SHARE = 2 / 3
"""Of the time that is left without memory beyond the cache, below which a layer is bound by memory."""
BAND = 0.1
"""How near to a threshold is too close to call."""

QUICK = Protocol(rounds=2, least_rounds=1, item_seconds=0.02, sample_seconds=1e-4)

FLEETING = Protocol(rounds=1, burst=2, warm_passes=2, sample_seconds=1e-5)
"""For rings of many copies, each run of which is long."""


@dataclass(frozen=True)
class Verdict:
    """What bounds a layer. level: where from, if memory. close: whether another answer is as good."""

    bound: Bound
    level: str = ""
    close: bool = False

    def __str__(self) -> str:
        named = f"{self.bound} ({self.level})" if self.level else self.bound
        return f"{named}?" if self.close else named


def verdict(seconds: float, overhead: float, resident: float, level: str = "") -> Verdict:
    """By the thresholds: all [s]; `resident` is without memory beyond the cache."""
    over, kept = overhead / seconds, resident / seconds
    close = abs(over - OVERHEAD_SHARE) < BAND or (over < OVERHEAD_SHARE and abs(kept - RESIDENT_SHARE) < BAND)
    if over > OVERHEAD_SHARE:
        return Verdict("overhead", close=close)
    if kept < RESIDENT_SHARE:
        return Verdict("memory", level, close)
    return Verdict("compute", close=close)


def predicted(terms: Terms, machine: Machine) -> Verdict:
    """From a prediction's terms."""
    return verdict(terms.seconds, terms.overhead, terms.seconds - terms.memory, machine.level_of(terms.reach))


def naive(flops: float, moved_bytes: float, peak: float, bandwidth: float) -> Verdict:
    """The textbook's: intensity (FLOPs a byte) against the ridge, peak [FLOP/s] over bandwidth [bytes/s]."""
    return Verdict("compute" if flops * bandwidth >= moved_bytes * peak else "memory")


def distances_of(machine: Machine) -> dict[str, int]:
    """How far away memory is put for each level: half of the first, a quarter of others, or beyond all [bytes]."""
    sizes = [size for name, size in machine.caches if name != "L1"] or [2**20, 2**25]
    names = [name for name, _ in machine.caches if name != "L1"] or ["cache", "last cache"]
    shares = [size // (2 if number == 0 else 4) for number, size in enumerate(sizes)]
    return {**dict(zip(names, shares, strict=True)), "memory": min(2 * sizes[-1], 2**27)}


def classify(programs: Sequence[Program], seconds: Sequence[float], machine: Machine) -> list[Verdict]:
    """What bounds each program, which takes so long [s], by intervention on its calls."""
    effects = _effects([op for program in programs for op in program])
    found = []
    for program, took in zip(programs, seconds, strict=True):
        calls = [effects[signature_of(op)] for op in program]
        overhead, resident = (sum(call[i] for call in calls) for i in (0, 1))
        found.append(verdict(took, overhead, resident))
    for i, program in enumerate(programs):
        if found[i].bound == "memory":
            slower = seconds[i] / sum(effects[signature_of(op)][1] for op in program)
            found[i] = Verdict(
                "memory", _level(max(program, key=lambda op: op.traffic_bytes), slower, machine), found[i].close
            )
    return found


def _effects(ops: Sequence[Op]) -> dict[Signature, tuple[float, float]]:
    """(on smallest shapes, without memory beyond the cache) of each distinct call [s]."""
    distinct = {signature_of(op): op for op in ops}
    tiles = {key: tile(op) for key, op in distinct.items()}
    least = measure([alone(smallest(op)) for op in distinct.values()], protocol=QUICK)
    parts = measure([alone(part) for part, _ in tiles.values()], protocol=QUICK)
    return {
        key: (small.minimum, small.minimum + max(part.minimum - small.minimum, 0.0) * tiles[key][1])
        for key, small, part in zip(distinct, least, parts, strict=True)
    }


def _level(op: Op, slower: float, machine: Machine) -> str:
    """The level from which a tile of a call is slowed most nearly as much as the program is, against the cache."""
    part, _ = tile(op)
    took = {
        level: measure([alone(part)], reuse_bytes=distance, protocol=FLEETING)[0].minimum
        for level, distance in {"cache": 0, **distances_of(machine)}.items()
    }
    near = took.pop("cache")
    return min(took, key=lambda level: abs(log(took[level] / near / slower)))


@dataclass(frozen=True)
class Agreement:
    """Predicted bounds against measured ones, pair by pair."""

    pairs: tuple[tuple[Bound, Bound], ...]

    @property
    def share(self) -> float:
        """Of pairs that agree."""
        return sum(a == b for a, b in self.pairs) / len(self.pairs) if self.pairs else 1.0

    @property
    def kappa(self) -> float:
        """Cohen's kappa: agreement beyond what the two would have by chance; 1 if there is but one bound."""
        if not self.pairs:
            return 1.0
        count = len(self.pairs)
        rows, columns = Counter(a for a, _ in self.pairs), Counter(b for _, b in self.pairs)
        chance = sum(rows[bound] * columns[bound] for bound in BOUNDS) / count**2
        return 1.0 if chance == 1 else (self.share - chance) / (1 - chance)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; confusion as ``"predicted measured"``."""
        confusion = {f"{a} {b}": count for (a, b), count in self.confusion.items()}
        return {"layers": len(self.pairs), "share": self.share, "kappa": self.kappa, "confusion": confusion}

    @property
    def confusion(self) -> dict[tuple[Bound, Bound], int]:
        """How many of each (predicted, measured)."""
        counted = Counter(self.pairs)
        return {(a, b): counted[a, b] for a in BOUNDS for b in BOUNDS}
