"""The paper against the clock: what each layer's NumPy kernel does, executed, walked and counted from one description.

It reads predictions; nothing in the cost model reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.roofline.layer import backward_program, forward_program
    from costmodel.roofline.program import Program

_HOMES = {
    "Program": "costmodel.roofline.program",
    "backward_program": "costmodel.roofline.layer",
    "forward_program": "costmodel.roofline.layer",
}

__all__ = ["Program", "backward_program", "forward_program"]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'costmodel.roofline' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
