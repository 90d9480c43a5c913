"""Paper tensors: a shape, a layout and the identity of the memory behind them, without any data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from costmodel.dtypes import Dtype, size_bytes
from costmodel.errors import ShapeError
from costmodel.sizes import Letter, decided, product

if TYPE_CHECKING:
    from costmodel.graph import Block
    from costmodel.run import Run

Shape = tuple[int, ...]
Role = Literal["weight", "activation", "logits", "statistic", "mask", "index", "random"]
"""What a tensor holds; the precision policy turns it into bytes an element."""

Origin = Literal["weight", "buffer", "input", "cast", "computed"]
"""Where a tensor comes from: only what was computed is an activation; a weight cast to another type is neither."""


class Storage:
    """The memory behind tensors. Identity is what counts: two views of one storage are charged once.

    There is one of it for every time that `block` happens. A storage that stands for others, such as the input of a
    repeated block, lists them in `parts` and holds nothing itself. It may come with fp32 `scales`, as 8-bit floats do.
    """

    __slots__ = ("block", "dtype", "elements", "name", "origin", "parts", "role", "scales")

    def __init__(
        self, elements: int, role: Role, origin: Origin, block: Block, name: str = "", dtype: Dtype = "fp32"
    ) -> None:
        self.elements = elements
        self.role: Role = role
        self.origin: Origin = origin
        self.block = block
        self.name = name
        self.dtype: Dtype = dtype
        self.scales = 0
        self.parts: tuple[Storage, ...] | None = None

    @property
    def times(self) -> int:
        """How many of it exist."""
        return self.block.times

    @property
    def bytes(self) -> int:
        """Size of one of it with its scales [bytes]."""
        size = size_bytes(self.elements, self.dtype)
        return size + size_bytes(self.scales, "fp32") if self.scales else size

    def leaves(self) -> list[Storage]:
        """The storages that really hold memory behind this one."""
        if self.parts is None:
            return [self]
        return [leaf for part in self.parts for leaf in part.leaves()]


class Layout(NamedTuple):
    """What must agree for one block to be repeated on the output of another."""

    shape: Shape
    strides: Shape | None
    role: Role
    dtype: Dtype
    origin: Origin
    requires_grad: bool


class Tensor:
    """A shape and strides (None: contiguous) over a storage; `requires_grad` as in PyTorch's autograd."""

    __slots__ = ("requires_grad", "run", "shape", "storage", "strides")

    def __init__(
        self, run: Run, shape: Shape, storage: Storage, requires_grad: bool, strides: Shape | None = None
    ) -> None:
        self.run = run
        self.shape = shape
        self.storage = storage
        self.requires_grad = requires_grad
        self.strides = strides

    @property
    def size(self) -> int:
        """Number of elements."""
        return product(self.shape)

    @property
    def rows(self) -> int:
        """Number of rows: elements over all axes but the last."""
        return product(self.shape[:-1])

    @property
    def dtype(self) -> Dtype:
        """Data type of its elements."""
        return self.storage.dtype

    @property
    def bytes(self) -> int:
        """Bytes that reading it all moves."""
        return size_bytes(self.size, self.storage.dtype)

    def has(self, shape: Shape) -> bool:
        """Whether it is of this shape; sizes are looked at only if there are as many."""
        return len(self.shape) == len(shape) and self.shape == shape

    @property
    def layout(self) -> Layout:
        """All that a repeated block can see of its input."""
        return Layout(self.shape, self.strides, self.storage.role, self.dtype, self.storage.origin, self.requires_grad)

    def view(self, shape: Shape, strides: Shape | None) -> Tensor:
        """The same storage, seen with another shape."""
        return Tensor(self.run, shape, self.storage, self.requires_grad, strides)

    def __repr__(self) -> str:
        return f"Tensor({show_shape(self.shape)}, {self.storage.role})"


def show_shape(shape: Shape) -> str:
    """A shape as it reads in an error: ``32 × 512 × 768``."""
    return " × ".join(str(int(size)) for size in shape) or "scalar"


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides [elements]."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Shape | None) -> bool:
    """Whether row-major, by PyTorch's rule: the stride of an axis of size 1 does not matter."""
    if strides is None:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step = step * decided(size)
    return True


def dense_strides(shape: Shape, strides: Shape | None) -> Shape | None:
    """Layout of an elementwise result: dense, with the axes in memory in its input's order (as TensorIterator does)."""
    if strides is None or is_contiguous(shape, strides):
        return None
    order = sorted(range(len(shape)), key=lambda axis: (decided(strides[axis]), -axis))
    result: list[int] = [1] * len(shape)
    step = 1
    for axis in order:
        result[axis] = step
        step = step * shape[axis]
    return None if is_contiguous(shape, tuple(result)) else tuple(result)


def viewed_strides(shape: Shape, strides: Shape | None, new_shape: Shape) -> Shape | Literal[False] | None:
    """Strides of `new_shape` over the same memory, None if contiguous, False if only a copy can have that shape.

    The rule is that of ``Tensor.view``: every group of new axes must lie within one run of old axes that is
    contiguous in itself.
    """
    if strides is None or is_contiguous(shape, strides):
        return None
    result: list[int] = []
    axis = len(new_shape) - 1
    run_size, run_stride = 1, strides[-1]
    for old in range(len(shape) - 1, -1, -1):
        run_size = run_size * shape[old]
        ends = old == 0 or (shape[old - 1] != 1 and strides[old - 1] != run_size * run_stride)
        if not ends:
            continue
        covered = 1
        while axis >= 0 and (covered < run_size or new_shape[axis] == 1):
            result.append(covered * run_stride)
            covered = covered * new_shape[axis]
            axis -= 1
        if covered != run_size:
            return False
        if old > 0:
            run_size, run_stride = 1, strides[old - 1]
    found = tuple(reversed(result))
    return None if is_contiguous(new_shape, found) else found


def broadcast(a: Shape, b: Shape, what: str) -> Shape:
    """Shape of an elementwise operation on two tensors; ShapeError if they do not meet."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(m != n and m != 1 and n != 1 for m, n in zip(left, right, strict=True)):
        raise ShapeError(f"{what}: shapes {show_shape(a)} and {show_shape(b)} do not meet; they must be equal")
    return tuple(_joint(m, n) for m, n in zip(left, right, strict=True))


def _joint(m: int, n: int) -> int:
    """The size of an axis that is `m` and `n`, one of which may be broadcast; a letter says more than its value."""
    if m == n:
        return m if isinstance(m, Letter) else n
    return n if m == 1 else m
