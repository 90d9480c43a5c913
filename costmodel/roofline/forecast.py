"""Predicting a program's time from a calibration: alone and warm, or in the context of a whole program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.roofline.calibration import Calibration
from costmodel.roofline.hosttime import HostTime, Terms, host_time
from costmodel.roofline.operation import Op
from costmodel.roofline.program import Program
from costmodel.roofline.rates import Rates
from costmodel.roofline.surrogates import PREFIX, surrogates

GROUPS = ("products", "products' memory", "loops", "rows", "overhead")
HOLD = 0.5
"""How hard each factor is held to 1: as if one more program said so, this much as loudly."""


@dataclass(frozen=True)
class Context:
    """By how much each kind of time is longer in a whole program than alone: a factor for each of `GROUPS`."""

    factors: tuple[float, ...]

    def applied(self, op: Op, terms: Terms) -> Terms:
        """The terms of a call in a whole program."""
        compute, memory = self.factors[:2] if op.name == "matmul" else (self.factors[2],) * 2
        return replace(
            terms,
            compute=terms.compute * compute,
            memory=terms.memory * memory,
            rows=terms.rows * self.factors[3],
            overhead=terms.overhead * self.factors[4],
        )


def predict_seconds(
    program: Program,
    calibration: Calibration,
    *,
    level: int = 6,
    in_context: bool = False,
    compulsory_bytes: int | None = None,
    between: int = 0,
) -> HostTime:
    """How long a program takes on the calibrated machine: each time when repeated alone, or once within a network.

    Args:
        program: what is run; a layer's, or a whole network's.
        calibration: of the machine.
        level: which model, 1 to 6; see `costmodel.roofline.hosttime`.
        in_context: for whole networks: with the factors that the calibration's own networks gave.
        compulsory_bytes: what level 1 moves; the program's inputs, weights and outputs once, unless given.
        between: bytes that others touch from one repetition to the next.

    Raises:
        SettingError: there is no such level.

    """
    host = host_time(
        program,
        calibration.rates,
        level=level,
        compulsory_bytes=compulsory_bytes,
        between=between,
    )
    if not in_context or level < 6:
        return host
    context = context_of(calibration)
    return host.changed(context.applied)


def context_of(calibration: Calibration) -> Context:
    """The factors that make the calibration's own networks take as long as they did, each near 1."""
    key = id(calibration.seconds)
    if key not in _KNOWN:
        _KNOWN[key] = (calibration, _fitted(calibration.rates, calibration.seconds))
    return _KNOWN[key][1]


_KNOWN: dict[int, tuple[Calibration, Context]] = {}
"""Factors found so far; the calibration is kept, so that its id stays its own."""


def _fitted(rates: Rates, seconds: Mapping[str, float]) -> Context:
    import numpy as np
    from scipy.optimize import nnls

    took = {name: value for name, value in seconds.items() if name.startswith(PREFIX)}
    programs = {name: program for name, program in surrogates().items() if name in took}
    if not programs:
        return Context((1.0,) * len(GROUPS))
    rows = np.array([_grouped(host_time(program, rates)) for program in programs.values()])
    rows /= np.array([took[name] for name in programs])[:, None]
    held = HOLD * np.eye(len(GROUPS))
    matrix, goal = np.vstack([rows, held]), np.concatenate([np.ones(len(rows)), np.full(len(GROUPS), HOLD)])
    return Context(tuple(map(float, nnls(matrix, goal)[0])))


def _grouped(host: HostTime) -> list[float]:
    """Predicted time by `GROUPS` [s]."""
    found = [0.0] * len(GROUPS)
    for op, terms in host.calls:
        groups = (0, 1, 3, 4) if op.name == "matmul" else (2, 2, 3, 4)
        parts = (terms.compute, terms.memory, terms.rows, terms.overhead)
        for group, value in zip(groups, parts, strict=True):
            found[group] += value
    return found
