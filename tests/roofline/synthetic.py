"""A machine that takes exactly as long as it is told: hand-made constants, and clocks that only these move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from costmodel.roofline import clock, timing
from costmodel.roofline.calibration import Calibration
from costmodel.roofline.clock import Clock, Elapsed, Gears, Sentinel, Work
from costmodel.roofline.host import Host
from costmodel.roofline.placed import in_place
from costmodel.roofline.probes import EMPTY, FIRST_BYTES, WorkingSets, probes
from costmodel.roofline.program import NumpyCall, Program, Thunk
from costmodel.roofline.signature import ProductSignature, signature_of

CALL = 1e-6
ELEMENT = 1e-9
FLOP = 1e-11
STEP = 1e-7
ALONE = STEP + CALL
"""Overhead of a program of one call [s]."""

SETS = WorkingSets(tuple(FIRST_BYTES << step for step in range(15)), FIRST_BYTES << 13)
"""From 17 kB to 279 MB, of which the last two are beyond all caches."""
MACHINE = Host("Abacus", 1, (("L1", 32_768), ("L2", 2**20)), "2.0", "openblas", "0.3", "Bead")


def took(op: NumpyCall) -> float:
    """A microsecond a call, a nanosecond an element, ten picoseconds a FLOP, wherever the operands are [s]."""
    signature = signature_of(op)
    if isinstance(signature, ProductSignature):
        return CALL + signature.flops * FLOP
    looped = max([op.output.size, *(x.size for x in op.operands if op.name.endswith(".reduce"))])
    return CALL + looped * ELEMENT


@cache
def _seconds() -> dict[str, float]:
    seconds = {name: STEP + took(op) for name, op in probes(SETS)}
    return seconds | {op.layer: took(op) for program in in_place(SETS.beyond) for op in program} | {EMPTY: STEP}


@cache
def _plain() -> Calibration:
    return _with()


def calibration(**changes: Any) -> Calibration:
    """Of the abacus; without changes the same one again, with the rates that were fitted to it."""
    return _with(**changes) if changes else _plain()


def _with(**changes: Any) -> Calibration:
    fields = {
        "machine": MACHINE,
        "sets": SETS,
        "created": "2026-01-02T03:04:05+00:00",
        "thorough": False,
        "took_seconds": 1.0,
        "unresolved": 0.0,
        "doubt": 0.0,
        "load": 0.0,
        "steal": 0.0,
        "clock": Gears(12_000.0, 12_000.0),
        "seconds": _seconds(),
    }
    return Calibration(**(fields | changes))


class Clockwork(Clock):
    """A stand-in for the clock and for NumPy: calls take as long as they are told, and nothing else takes any time.

    seconds: that a call takes. passed: since it was made [ns]; slower: by what all takes longer now.
    """

    def __init__(self, seconds: Callable[[NumpyCall], float] = took, host: Host = MACHINE) -> None:
        self.passed, self.slower = 0.0, 1.0
        self.seconds, self.host = seconds, host

    @classmethod
    def put(cls, put: Callable[[Any, str, Any], None], seconds: Callable[[NumpyCall], float] = took) -> Clockwork:
        """One in place of every clock that is made. put: how an attribute is replaced, `setattr` or a monkeypatch's."""
        stand_in = cls(seconds)
        for module in (clock, timing):
            put(module, "Clock", lambda: stand_in)
        return stand_in

    def machine(self, threads: int) -> Host:
        return replace(self.host, threads=threads)

    def free_bytes(self) -> int:
        return 1 << 40

    def now(self) -> int:
        return round(self.passed)

    def run(self, work: Work, times: int = 1) -> Elapsed:
        began = self.now()
        for _ in range(times):
            work()
        return Elapsed(self.now() - began, self.now() - began)

    def make(self, thunk: Thunk) -> Elapsed:
        return self.run(lambda: thunk[0](*thunk[1]))

    def reading(self) -> int:
        return 0

    def bind(self, program: Program, copies: int = 1) -> list[Thunk]:
        return [self.bound(self.seconds(op)) for op in program] * copies

    def bind_each(self, calls: Sequence[NumpyCall], rows: int) -> list[Thunk]:
        return [self.bound(self.seconds(op)) for op in calls]

    def bound(self, seconds: float) -> Thunk:
        return self.take, (1e9 * seconds,), {}

    def take(self, nanoseconds: float) -> None:
        self.passed += nanoseconds * self.slower

    def sentinel(self) -> None:
        self.take(12_000)

    def steady_work(self) -> Work:
        return lambda: self.sentinel()


class Neighbour(Clock):
    """A core whose other half a neighbour uses nine moments of ten, each of 10 to 60 ms: all takes 1.7 times as long.

    Work takes 0 to 2 % longer than at its best by itself. always: the neighbour never rests. lies: every so manieth
    reading of the CPU clock is of the time before.
    """

    def __init__(self) -> None:
        self.passed = 0.0
        self.random = Random(0)
        self.always = False
        self.lies = 0
        self._busy, self._until = True, 0.0
        self._asked, self._last = 0, 0
        self._slept = 0.0

    def now(self) -> int:
        return round(self.passed)

    def run(self, work: Work, times: int = 1) -> Elapsed:
        wall, cpu = self.now(), self.cpu()
        for _ in range(times):
            work()
        return Elapsed(self.now() - wall, self.cpu() - cpu)

    def steady_work(self) -> Work:
        return self.work(12_000)

    def cpu(self) -> int:
        """CPU time, but for lies [ns]."""
        self._asked += 1
        if not (self.lies and self._asked % self.lies == 0):
            self._last = round(self.passed - self._slept)
        return self._last

    def take(self, nanoseconds: float) -> None:
        """Work that takes so long when undisturbed."""
        left = nanoseconds * (1 + 0.02 * self.random.random())
        while left > 0:
            if self.passed >= self._until:
                self._busy = self.random.random() < 0.9
                self._until = self.passed + self.random.uniform(10e6, 60e6)
            slower = 1.7 if self._busy or self.always else 1.0
            done = min(left, (self._until - self.passed) / slower)
            self.passed += max(done * slower, 1e-3)
            left -= max(done, 1e-3)

    def sleep(self, nanoseconds: float) -> None:
        """So long another process has the core."""
        self.passed += nanoseconds
        self._slept += nanoseconds

    def leave(self) -> None:
        """Be at rest from now on."""
        self.always, self._busy, self._until = False, False, float("inf")

    def work(self, nanoseconds: float) -> Callable[[], None]:
        """A call that takes so long."""
        return lambda: self.take(nanoseconds)

    def sentinel(self, usual: Gears | None = None) -> Sentinel:
        """A sentinel that feels the neighbour, with what is known after three seconds, and what is usual if it is."""
        sentinel = Sentinel(self, usual)
        end = self.passed + 3e9
        while self.passed < end:
            sentinel.read()
        return sentinel
