"""Layer kinds, one class each. A kind defined in any file here can be named in a model file at once."""

from __future__ import annotations

from typing import Any


def load_all() -> dict[str, Any]:
    """Import every file of this package and return all kinds by name."""
    from importlib import import_module
    from pkgutil import iter_modules

    from costmodel.layers.base import KINDS

    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return KINDS


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    for kind in load_all().values():
        if kind.__name__ == name:
            return kind
    raise AttributeError(f"module {__name__!r} has no layer kind {name!r}")
