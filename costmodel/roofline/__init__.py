"""The paper against the clock: what each layer's NumPy kernel does, executed, walked and counted from one description.

It reads predictions; nothing in the cost model reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.roofline.calibration import Calibration, calibrate, calibrated
    from costmodel.roofline.checking import Check, Finding, check
    from costmodel.roofline.classification import Verdict, classify
    from costmodel.roofline.comparison import Comparison, compare
    from costmodel.roofline.execution import Execution, execute
    from costmodel.roofline.hosttime import HostTime, predict_seconds
    from costmodel.roofline.machine import Machine, this_machine
    from costmodel.roofline.pictures import plot
    from costmodel.roofline.profiling import Profile, profile
    from costmodel.roofline.program import Program
    from costmodel.roofline.recorder import backward_program, forward_program, layer_programs
    from costmodel.roofline.timing import Protocol, Timing, measure
    from costmodel.roofline.traffic import Passes, passes
    from costmodel.roofline.validation import Validation, validate

_HOMES = {
    "Check": "costmodel.roofline.checking",
    "Comparison": "costmodel.roofline.comparison",
    "Finding": "costmodel.roofline.checking",
    "Profile": "costmodel.roofline.profiling",
    "check": "costmodel.roofline.checking",
    "compare": "costmodel.roofline.comparison",
    "plot": "costmodel.roofline.pictures",
    "profile": "costmodel.roofline.profiling",
    "Validation": "costmodel.roofline.validation",
    "Verdict": "costmodel.roofline.classification",
    "classify": "costmodel.roofline.classification",
    "validate": "costmodel.roofline.validation",
    "Calibration": "costmodel.roofline.calibration",
    "HostTime": "costmodel.roofline.hosttime",
    "Machine": "costmodel.roofline.machine",
    "Protocol": "costmodel.roofline.timing",
    "Timing": "costmodel.roofline.timing",
    "calibrate": "costmodel.roofline.calibration",
    "calibrated": "costmodel.roofline.calibration",
    "layer_programs": "costmodel.roofline.recorder",
    "measure": "costmodel.roofline.timing",
    "passes": "costmodel.roofline.traffic",
    "predict_seconds": "costmodel.roofline.hosttime",
    "this_machine": "costmodel.roofline.machine",
    "Execution": "costmodel.roofline.execution",
    "Passes": "costmodel.roofline.traffic",
    "Program": "costmodel.roofline.program",
    "backward_program": "costmodel.roofline.recorder",
    "execute": "costmodel.roofline.execution",
    "forward_program": "costmodel.roofline.recorder",
}

__all__ = [
    "Calibration",
    "Check",
    "Comparison",
    "Execution",
    "Finding",
    "HostTime",
    "Machine",
    "Passes",
    "Profile",
    "Program",
    "Protocol",
    "Timing",
    "Validation",
    "Verdict",
    "backward_program",
    "calibrate",
    "calibrated",
    "check",
    "classify",
    "compare",
    "execute",
    "forward_program",
    "layer_programs",
    "measure",
    "passes",
    "plot",
    "predict_seconds",
    "profile",
    "this_machine",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'costmodel.roofline' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
