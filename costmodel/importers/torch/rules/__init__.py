"""What each operator of PyTorch is in layers: a rule for each, by subject."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from costmodel.importers.torch.op_call import RULES, Rule


def load_rules() -> dict[str, Rule]:
    """Import every file of this package and return all rules by operator."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return RULES
