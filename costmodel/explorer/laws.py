"""Laws of kernels on a machine, printed as JavaScript by running them on names instead of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.graph.kernel import Kernel, Product
from costmodel.hardware.machine import Machine
from costmodel.performance.constants import typical
from costmodel.performance.laws import Device, law_of
from costmodel.performance.stacks import Stack

ARGUMENTS = ("flops", "read", "written", "launches", "batch", "m", "n", "k")
"""What a law is a function of, in doubles: each is exact below 2^53."""


class Name:
    """A number that is known by name alone. Arithmetic on it is written down on a tape, a line for each result.

    NumPy hands its functions of such numbers to them, as it does with arrays of other libraries.
    """

    __slots__ = ("tape", "text")

    def __init__(self, text: str, tape: list[str]) -> None:
        self.text, self.tape = text, tape

    def _made(self, text: str) -> Name:
        if text not in self.tape:
            self.tape.append(text)
        return Name(f"t{self.tape.index(text)}", self.tape)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Any:
        """The smaller or the larger of two, or a number rounded up; no law asks for more."""
        functions = {"minimum": "Math.min", "maximum": "Math.max", "ceil": "Math.ceil"}
        if method != "__call__" or ufunc.__name__ not in functions:
            return NotImplemented
        return self._made(f"{functions[ufunc.__name__]}({','.join(map(_text, inputs))})")


def _text(number: Any) -> str:
    return number.text if isinstance(number, Name) else repr(float(number))


_OPERATIONS = {
    "add": "{}+{}",
    "sub": "{}-{}",
    "mul": "{}*{}",
    "truediv": "{}/{}",
    "pow": "({})**({})",
    "gt": "({}>{}?1:0)",
    "or": "({}|{})",
}


def _operation(form: str) -> tuple[Any, Any]:
    def forward(self: Name, other: Any) -> Name:
        return self._made(form.format(self.text, _text(other)))

    def reflected(self: Name, other: Any) -> Name:
        return self._made(form.format(_text(other), self.text))

    return forward, reflected


for _name, _form in _OPERATIONS.items():
    _forward, _reflected = _operation(_form)
    setattr(Name, f"__{_name}__", _forward)
    setattr(Name, f"__r{_name}__", _reflected)


def key_of(kernel: Kernel) -> str:
    """A text that kernels of the same law have in common: what decides their time beside numbers."""
    return "|".join(map(str, (*law_of(kernel), kernel.stored, kernel.sizes is not None)))


def numbers_of(kernel: Kernel) -> dict[str, int]:
    """A kernel's numbers by the names of `ARGUMENTS`, all its launches together; sizes of those that have some."""
    numbers = {name: getattr(kernel, name) for name in ARGUMENTS[:4]}
    return numbers | dict(zip(ARGUMENTS[4:], kernel.sizes or (), strict=False))


def without_numbers(kernel: Kernel) -> Kernel:
    """One of the same law."""
    return kernel._replace(flops=0, read=0, written=0, launches=1, sizes=kernel.sizes and Product(1, 1, 1, 1))


class Laws:
    """JavaScript of the laws of some machines, each distinct one once. stack: what starts the kernels."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, kernel: Kernel, device: Device) -> int:
        """The number of the law of a kernel: a function of `ARGUMENTS` to its seconds, and to the least possible."""
        tape: list[str] = []
        names = [Name(name, tape) for name in ARGUMENTS]
        sizes: Any = Product(*names[4:]) if kernel.sizes is not None else None  # type: ignore[arg-type]
        flops, read, written, launches = names[:4]
        unknown: Any = kernel._replace(flops=flops, read=read, written=written, launches=launches, sizes=sizes)  # type: ignore[arg-type]
        seconds, least = (
            _text(device.seconds(unknown, channels_last=self.stack.channels_last)),
            _text(device.ceiling(unknown)),
        )
        lines = ";".join(f"t{place}={line}" for place, line in enumerate(tape))
        text = f"({','.join(ARGUMENTS)})=>{{const {lines.replace(';', ',')};return[{seconds},{least}]}}"
        found = self._numbers.setdefault(text, len(self.texts))
        if found == len(self.texts):
            self.texts.append(text)
        return found

    def machine(self, machine: Machine, kernels: Mapping[str, Kernel]) -> dict[str, Any]:
        """What a page needs of a machine: for each law's key its function and its peak, and what all share."""
        device, constants = Device(machine), typical(machine)
        laws, peaks = {}, {}
        for key, kernel in kernels.items():
            laws[key] = self.number(kernel, device)
            if kernel.sizes is not None:
                peaks[key] = device.units(kernel).peak
        return {
            "name": machine.name,
            "memory": machine.memory,
            "bandwidth": machine.bandwidth,
            "vectorPeak": device.vector_peak,
            "launch": self.stack.launch_seconds(constants),
            "start": constants.kernel_seconds,
            "laws": laws,
            "peaks": peaks,
        }
