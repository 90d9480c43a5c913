"""A machine that takes exactly as long as it is told: hand-made constants, and clocks that only these move."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from costmodel.roofline import calibration as storage
from costmodel.roofline import classification, host, inplace, timing, validation
from costmodel.roofline.calibration import EMPTY, Calibration
from costmodel.roofline.host import Host, Sentinel
from costmodel.roofline.probes import Workbench, placed, probes
from costmodel.roofline.program import NumpyCall, Program, Thunk
from costmodel.roofline.signature import ProductSignature, signature_of

CALL = 1e-6
ELEMENT = 1e-9
FLOP = 1e-11
STEP = 1e-7

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
    seconds = {name: took(op) for name, op in probes()}
    return seconds | {op.layer: took(op) for op in placed()} | {EMPTY: STEP}


@cache
def _plain() -> Calibration:
    return _with()


def calibration(**changes: Any) -> Calibration:
    """Of the abacus; without changes the same one again, with the rates that were fitted to it."""
    return _with(**changes) if changes else _plain()


def _with(**changes: Any) -> Calibration:
    fields = {
        "machine": MACHINE,
        "created": "2026-01-02T03:04:05+00:00",
        "thorough": False,
        "took_seconds": 1.0,
        "unresolved": 0.0,
        "doubt": 0.0,
        "load": 0.0,
        "steal": 0.0,
        "seconds": _seconds(),
    }
    return Calibration(**(fields | changes))


class Clockwork:
    """A stand-in for the clock and for NumPy: calls take as long as they are told, and nothing else takes any time.

    It is the `time` of every module that measures. put: how an attribute is replaced, `setattr` or a monkeypatch's.
    seconds: that a call takes; slower: by what all takes longer now.
    """

    def __init__(self, put: Callable[[Any, str, Any], None], seconds: Callable[[NumpyCall], float] = took) -> None:
        self.now, self.slower = 0.0, 1.0
        self.seconds = seconds
        for module in (storage, classification, host, inplace, timing, validation):
            put(module, "time", self)
        put(Program, "bind", lambda program, arena=None: [*map(self.bound, program)])
        put(Workbench, "__init__", lambda *_: None)
        put(Workbench, "bind", lambda _, op: self.bound(op))
        put(timing, "aligned", bytes)
        put(host, "_exponentials", lambda: self.sentinel)

    def perf_counter_ns(self) -> int:
        return round(self.now)

    thread_time_ns = perf_counter_ns

    def perf_counter(self) -> float:
        return self.now * 1e-9

    def bound(self, op: NumpyCall) -> Thunk:
        return self.take, (1e9 * self.seconds(op),), {}

    def take(self, nanoseconds: float) -> None:
        self.now += nanoseconds * self.slower

    def sentinel(self) -> None:
        self.take(12_000)


class Neighbour:
    """A core whose other half a neighbour uses nine moments of ten, each of 10 to 60 ms: all takes 1.7 times as long.

    Work takes 0 to 2 % longer than at its best by itself. always: the neighbour never rests. lies: every so manieth
    reading of the CPU clock is of the time before.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.random = Random(0)
        self.always = False
        self.lies = 0
        self._busy, self._until = True, 0.0
        self._asked, self._last = 0, 0
        self._slept = 0.0

    def wall(self) -> int:
        """Now [ns]."""
        return round(self.now)

    def cpu(self) -> int:
        """The same, but for lies."""
        self._asked += 1
        if not (self.lies and self._asked % self.lies == 0):
            self._last = round(self.now - self._slept)
        return self._last

    def take(self, nanoseconds: float) -> None:
        """Work that takes so long when undisturbed."""
        left = nanoseconds * (1 + 0.02 * self.random.random())
        while left > 0:
            if self.now >= self._until:
                self._busy = self.random.random() < 0.9
                self._until = self.now + self.random.uniform(10e6, 60e6)
            slower = 1.7 if self._busy or self.always else 1.0
            done = min(left, (self._until - self.now) / slower)
            self.now += max(done * slower, 1e-3)
            left -= max(done, 1e-3)

    def sleep(self, nanoseconds: float) -> None:
        """So long another process has the core."""
        self.now += nanoseconds
        self._slept += nanoseconds

    def leave(self) -> None:
        """Be at rest from now on."""
        self.always, self._busy, self._until = False, False, float("inf")

    def work(self, nanoseconds: float) -> Callable[[], None]:
        """A call that takes so long."""
        return lambda: self.take(nanoseconds)

    def sentinel(self) -> Sentinel:
        """A sentinel that feels the neighbour, with what is known after three seconds."""
        found = Sentinel(self.work(12_000))
        end = self.now + 3e9
        while self.now < end:
            found.read()
        return found
