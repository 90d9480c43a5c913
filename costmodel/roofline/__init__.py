"""The paper against the clock: what each layer's NumPy kernel does, executed, walked and counted from one description.

It reads predictions; nothing in the cost model reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.roofline.calibration import Calibration
    from costmodel.roofline.checking import check, plot
    from costmodel.roofline.classification import Verdict, classify
    from costmodel.roofline.execution import Execution, execute
    from costmodel.roofline.findings import Check, Finding
    from costmodel.roofline.host import Host, this_machine
    from costmodel.roofline.hosttime import HostTime, predict_seconds
    from costmodel.roofline.kept import calibrate, calibrated, machine
    from costmodel.roofline.profiling import Comparison, Profile, compare, profile
    from costmodel.roofline.program import Program
    from costmodel.roofline.recorder import Passes, backward_program, forward_program, layer_programs, passes
    from costmodel.roofline.timing import Protocol, Timing, measure
    from costmodel.roofline.validation import Validation, validate

_HOMES = {
    "Calibration": "calibration",
    **dict.fromkeys(("calibrate", "calibrated", "machine"), "kept"),
    **dict.fromkeys(("check", "plot"), "checking"),
    **dict.fromkeys(("Check", "Finding"), "findings"),
    **dict.fromkeys(("Verdict", "classify"), "classification"),
    **dict.fromkeys(("Execution", "execute"), "execution"),
    **dict.fromkeys(("HostTime", "predict_seconds"), "hosttime"),
    **dict.fromkeys(("Host", "this_machine"), "host"),
    **dict.fromkeys(("Comparison", "Profile", "compare", "profile"), "profiling"),
    "Program": "program",
    **dict.fromkeys(("Passes", "backward_program", "forward_program", "layer_programs", "passes"), "recorder"),
    **dict.fromkeys(("Protocol", "Timing", "measure"), "timing"),
    **dict.fromkeys(("Validation", "validate"), "validation"),
}
"""The module of each public name."""

__all__ = [
    "Calibration",
    "Check",
    "Comparison",
    "Execution",
    "Finding",
    "Host",
    "HostTime",
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
    "machine",
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
        from costmodel.errors import no_member

        raise no_member(__name__, name, () if name.startswith("_") else __all__)
    value = globals()[name] = getattr(import_module(f"costmodel.roofline.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
