"""A kernel for every layer kind and every optimizer, in plain NumPy calls."""

from __future__ import annotations

from costmodel.errors import CostModelError
from costmodel.roofline.kernels.kernel import KERNELS, Kernel


def load_all() -> dict[str, Kernel]:
    """Import every file of this package and return the kernels of all layer kinds by name."""
    from importlib import import_module
    from pkgutil import iter_modules

    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return KERNELS


def kernel_of(kind: str) -> Kernel:
    """The kernel of a layer kind. Raises CostModelError if there is none."""
    known = KERNELS if kind in KERNELS else load_all()
    if kind not in known:
        raise CostModelError(f"layer kind {kind} has no NumPy kernel: define one in costmodel.roofline.kernels")
    return known[kind]
