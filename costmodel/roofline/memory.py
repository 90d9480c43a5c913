"""Memory of a program that runs: a NumPy array behind each buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from costmodel.roofline.reference import ITEM_BYTES, Buffer, Ref

if TYPE_CHECKING:
    import numpy


class Memory:
    """Flat arrays by buffer. `allocate(elements, dtype)` makes one, ``np.empty`` unless given.

    seed: of the random numbers that the program draws.
    """

    def __init__(self, allocate: Callable[[int, str], Any] | None = None, seed: int = 0) -> None:
        import numpy

        self.arrays: dict[Buffer, Any] = {}
        self.seed = seed
        self._allocate = allocate or numpy.empty
        self._view = numpy.ndarray

    @cached_property
    def random(self) -> numpy.random.Generator:
        """Where random numbers come from."""
        import numpy

        return numpy.random.default_rng(self.seed)

    def hold(self, ref: Ref, values: Any) -> None:
        """Allocate the memory of `ref` and write `values` there."""
        self.make(ref.buffer)
        self.array(ref)[...] = values

    def make(self, buffer: Buffer) -> None:
        """Allocate, unless there is memory already; constants get their numbers."""
        if buffer in self.arrays:
            return
        array = self.arrays[buffer] = self._allocate(buffer.elements, buffer.dtype)
        if buffer.value is not None:
            array[...] = _flat(buffer.value(), buffer.dtype)

    def free(self, buffers: Iterable[Buffer]) -> None:
        """Give memory back."""
        for buffer in buffers:
            self.arrays.pop(buffer, None)

    def array(self, ref: Ref) -> numpy.ndarray:
        """The array, as a view of its buffer."""
        item = ITEM_BYTES[ref.dtype]
        strides = None if ref.strides is None else tuple(item * step for step in ref.strides)
        return self._view(ref.shape, ref.dtype, self.arrays[ref.buffer], item * ref.offset, strides)


def _flat(values: Any, dtype: str) -> Any:
    import numpy

    return numpy.asarray(values, dtype).reshape(-1)
