"""Seconds of many kernels at once: those of one law are worked out together, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodel.graph.kernel import Kernel, Product
from costmodel.hardware.machine import Machine
from costmodel.performance.constants import Constants
from costmodel.performance.laws import Device, Tier

Array = np.ndarray[Any, Any]


class Clock:
    """The device's time for each of these kernels on a machine.

    allow_tf32, channels_last: see `laws.seconds`.
    """

    def __init__(
        self, kernels: Sequence[Kernel], machine: Machine, allow_tf32: bool | None, channels_last: bool
    ) -> None:
        self.machine = machine
        self.allow_tf32 = allow_tf32
        self.channels_last = channels_last
        self.count = len(kernels)
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number, kernel in enumerate(kernels):
            alike.setdefault(law_of(kernel), []).append(number)
        self._groups = [(np.array(places), _stacked([kernels[n] for n in places])) for places in alike.values()]

    def seconds(self, tier: Tier, constants: Constants | None) -> Array:
        """Of each kernel, with all its launches [s]."""
        device, found = Device(self.machine, constants), np.empty(self.count)
        for places, kernel in self._groups:
            if tier == "ceiling":
                found[places] = device.ceiling(kernel, allow_tf32=self.allow_tf32)
            else:
                found[places] = device.seconds(kernel, allow_tf32=self.allow_tf32, channels_last=self.channels_last)
        return found

    def peaks(self) -> Array:
        """Peak of the units that each kernel's products run on [FLOP/s]; 0 of kernels that multiply nothing."""
        device, found = Device(self.machine), np.zeros(self.count)
        for places, kernel in self._groups:
            if kernel.sizes is not None:
                found[places] = device.units(kernel, self.allow_tf32).peak
        return found


_WORDS = ("backward", "weight", "softmax", "cross_entropy")
"""Words in names of kernels that laws tell apart."""


def law_of(kernel: Kernel) -> tuple[Any, ...]:
    """What decides the law of a kernel beside its numbers: kernels that agree in it can be worked out together."""
    return (kernel.sort, kernel.dtype, kernel.stored, *(word in kernel.name for word in _WORDS))


def _stacked(kernels: list[Kernel]) -> Kernel:
    """One kernel of arrays, with an element for each."""
    flops, read, written, launches = (
        np.array([float(getattr(kernel, name)) for kernel in kernels])
        for name in ("flops", "read", "written", "launches")
    )
    sizes = None
    if kernels[0].sizes is not None:
        columns = zip(*(kernel.sizes for kernel in kernels if kernel.sizes is not None), strict=True)
        sizes = Product(*(np.array(column, float) for column in columns))  # type: ignore[arg-type]
    return kernels[0]._replace(flops=flops, read=read, written=written, launches=launches, sizes=sizes)  # type: ignore[arg-type]
