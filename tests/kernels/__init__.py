"""Plain kernels of every layer kind, on an array that counts its own arithmetic."""

from importlib import import_module
from pkgutil import iter_modules

from tests.kernels.kernel import KERNELS as KERNELS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
