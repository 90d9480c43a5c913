"""What each operator of PyTorch is in layers: a rule for each, by subject."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from costmodel.importers.torch.op_call import COMPLEX_RULES, RULES, Rule


def load_rules() -> dict[str, Rule]:
    """Import every file of this package and return all rules by operator."""
    modules = {module.name: import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)}
    COMPLEX_RULES.update({operator: RULES[operator] for operator in modules["complex"].ALIKE})
    return RULES
