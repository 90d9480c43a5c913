"""Laws of kernels on a machine, printed as JavaScript by running them on names instead of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from costmodel.errors import SettingError
from costmodel.explorer.playing import cluster_data
from costmodel.graph.kernel import Kernel
from costmodel.hardware.machine import Machine
from costmodel.performance.constants import BETWEEN_DEVICES, typical
from costmodel.performance.intervals import uncertain_constants
from costmodel.performance.laws import KernelModel, law_of, with_numbers
from costmodel.training.layout import Layout, Runtime
from costmodel.training.stacks import Stack

ARGUMENTS = ("flops", "read", "written", "launches", "batch", "m", "n", "k")
"""What a law is a function of, in doubles: each is exact below 2^53."""


class Name(NDArrayOperatorsMixin):
    """A number that is known by name alone. Arithmetic on it is written down on a tape, a line for each result.

    NumPy hands all functions and operators of such numbers to them, as it does with arrays of other libraries.
    parameters: arrays that it meets, which are numbers that follow from constants with ranges.
    """

    __slots__ = ("parameters", "tape", "text")

    def __init__(self, text: str, tape: list[str], parameters: Parameters) -> None:
        self.text, self.tape, self.parameters = text, tape, parameters

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Any:
        if method != "__call__" or ufunc.__name__ not in _OPERATIONS:
            return NotImplemented
        text = _OPERATIONS[ufunc.__name__].format(*map(self.parameters.text, inputs))
        if text not in self.tape:
            self.tape.append(text)
        return Name(f"t{self.tape.index(text)}", self.tape, self.parameters)


class Parameters:
    """Numbers of a machine's laws that follow from its constants, each an array: at each end of a range, typical.

    A number alone is the same at all of these.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[float, ...], int] = {}

    def number(self, values: Any) -> int:
        """The place of one among all."""
        return self._numbers.setdefault(tuple(map(float, np.atleast_1d(values))), len(self._numbers))

    def text(self, number: Any) -> str:
        """A number, a name or one of these in JavaScript."""
        if isinstance(number, Name):
            return number.text
        return f"c[{self.number(number)}]" if np.ndim(number) else repr(float(number))

    def data(self) -> list[tuple[float, dict[int, float]]]:
        """Of each what it typically is, and by the number of an end what else it is there."""
        return [
            (typical, {end: value for end, value in enumerate(ends) if value != typical})
            for *ends, typical in self._numbers
        ]


_OPERATIONS = {
    "add": "{}+{}",
    "subtract": "{}-{}",
    "multiply": "{}*{}",
    "divide": "{}/{}",
    "power": "({})**({})",
    "greater": "({}>{}?1:0)",
    "bitwise_or": "({}|{})",
    "minimum": "Math.min({},{})",
    "maximum": "Math.max({},{})",
    "ceil": "Math.ceil({})",
}
"""What laws are made of, in JavaScript."""


def key_of(kernel: Kernel) -> str:
    """A text that kernels of the same law have in common: what decides their time beside numbers."""
    return "|".join(map(str, (*law_of(kernel), kernel.stored, kernel.sizes is not None)))


def numbers_of(kernel: Kernel) -> dict[str, int]:
    """A kernel's numbers by the names of `ARGUMENTS`, all its launches together; sizes of those that have some."""
    numbers = {name: getattr(kernel, name) for name in ARGUMENTS[:4]}
    return numbers | dict(zip(ARGUMENTS[4:], kernel.sizes or (), strict=False))


class Laws:
    """JavaScript of the laws of some machines, each distinct one once. stack: what starts the kernels."""

    def __init__(self, stack: Stack, runtime: Runtime | None = None) -> None:
        """runtime: of layouts of several devices, if they are offered; what is between these then is told too."""
        if stack.blocking and runtime == "deepspeed":
            raise SettingError(
                "a page of runtime='deepspeed' has no stack with blocking=True, of which tp decides what kernels take: "
                "ask predict for one layout"
            )
        self.stack = stack
        self.runtime: Runtime | None = runtime
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, kernel: Kernel, model: KernelModel, parameters: Parameters) -> int:
        """The number of the law of a kernel: a function of a machine's parameters and `ARGUMENTS`.

        It gives its seconds, and the least possible.
        """
        tape: list[str] = []
        names = iter(ARGUMENTS)
        named = with_numbers(kernel, lambda _: Name(next(names), tape, parameters))
        seconds, least = map(parameters.text, (model.kernel_time(named), model.ceiling_time(named)))
        lines = ",".join(f"t{place}={line}" for place, line in enumerate(tape))
        text = f"(c,{','.join(ARGUMENTS)})=>{{const {lines};return[{seconds},{least}]}}"
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def machine(self, machine: Machine, kernels: Mapping[str, Kernel]) -> dict[str, Any]:
        """What a page needs of a machine: for each law's key its function and its peak, and what all share.

        parameters: see `Parameters`, of which `launch` is one. starts: what the host takes to start kernels, see
        `KernelModel`, without tp and with it, as layers are then Megatron's under DeepSpeed too.
        """
        middle, parameters = typical(machine), Parameters()
        laid_out = self.runtime is not None
        runtime: Runtime = self.runtime or "torch"
        ends = middle.with_ends(uncertain_constants(machine, () if laid_out else BETWEEN_DEVICES))
        model, split = (
            KernelModel(machine, ends, stack=self.stack, layout=Layout(tp=tp, runtime=runtime)) for tp in (1, 2)
        )
        between = {name: parameters.number(getattr(ends, name)) for name in BETWEEN_DEVICES} if laid_out else {}
        shared = {"constants": between, "cluster": cluster_data(machine)} if laid_out else {}
        return {
            **shared,
            "name": machine.name,
            "memory": machine.memory,
            "bandwidth": machine.bandwidth,
            "vectorPeak": model.vector_peak,
            "launch": parameters.number(model.launch_seconds),
            "starts": [[*map(parameters.number, each.start_seconds)] for each in (model, split)],
            "start": middle.kernel_seconds,
            "laws": {key: self.number(kernel, model, parameters) for key, kernel in kernels.items()},
            "peaks": {key: model.peak(kernel) for key, kernel in kernels.items() if kernel.sizes is not None},
            "parameters": parameters.data(),
        }
