"""Paper tensors: shapes, memory order and the memory behind them, without any data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from costmodel.errors import ShapeError
from costmodel.symbolic.sizes import SymInt, alike, always_one, branch_value, product
from costmodel.training.dtypes import REAL, Dtype, Role, Shape, size_bytes

if TYPE_CHECKING:
    from costmodel.graph.call import Block, Call
    from costmodel.graph.tape import Tape


Origin = Literal["weight", "buffer", "input", "cast", "computed", "cache"]
"""Where a tensor comes from: only what was computed is an activation; a weight cast to another type is neither, nor is
what decoding keeps of tokens."""


class Storage:
    """The memory behind tensors. Identity is what counts: two views of one storage are charged once.

    There is one of it for every time that `block` happens. A storage that stands for others, such as the input of a
    repeated block, lists them in `parts` and holds nothing itself. It may come with fp32 `scales`, as 8-bit floats do.
    elsewhere: whether its numbers were written into the memory of its part, so that it takes none.
    graded: elements of the gradient of a weight, more than its own where a rank makes that of all ranks.
    partial: whether a rank's gradient of a weight is of its tokens or heads alone, to be summed over all ranks.
    tied: whether a weight is used at several places.
    copied: whether another stage of a pipeline has a copy of a weight, whose gradient is to be summed with its own.
    peers: of ranks that weights are split over, those that have weights of other experts in its place.
    """

    __slots__ = (
        "block",
        "copied",
        "dtype",
        "elements",
        "elsewhere",
        "graded",
        "name",
        "origin",
        "partial",
        "parts",
        "peers",
        "role",
        "scales",
        "tied",
    )

    def __init__(
        self, elements: int, role: Role, origin: Origin, block: Block, name: str = "", dtype: Dtype = "fp32"
    ) -> None:
        self.elements = self.graded = elements
        self.role: Role = role
        self.origin: Origin = origin
        self.block = block
        self.name = name
        self.dtype: Dtype = dtype
        self.scales = 0
        self.elsewhere = False
        self.partial = self.tied = self.copied = False
        self.peers = 1
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

    def __repr__(self) -> str:
        return f"<Storage {self.name}: {self.elements} of {self.dtype}>"


class RoundLayout(NamedTuple):
    """What must agree for one block to be repeated on the output of another."""

    shape: Shape
    strides: Shape | None
    role: Role
    dtype: Dtype
    origin: Origin
    requires_grad: bool


class Tensor:
    """A shape and strides (None: contiguous) over a storage; `requires_grad` as in PyTorch's autograd.

    size: number of elements. maker: the call that made it, or made what it is a view of; None for weights, buffers and
    inputs.
    """

    __slots__ = ("maker", "requires_grad", "shape", "size", "storage", "strides", "tape")

    def __init__(
        self,
        tape: Tape,
        shape: Shape,
        storage: Storage,
        requires_grad: bool,
        strides: Shape | None = None,
        maker: Call | None = None,
    ) -> None:
        self.tape = tape
        self.shape = shape
        self.size = product(shape)
        self.storage = storage
        self.requires_grad = requires_grad
        self.strides = strides
        self.maker = maker

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

    @property
    def reals(self) -> int:
        """Real numbers in it: two for each that is complex."""
        return 2 * self.size if self.storage.dtype in REAL else self.size

    def has(self, shape: Shape) -> bool:
        """Whether it is of this shape; sizes are looked at only if there are as many."""
        return len(self.shape) == len(shape) and self.shape == shape

    @property
    def layout(self) -> RoundLayout:
        """All that a repeated block can see of its input."""
        return RoundLayout(
            self.shape, self.strides, self.storage.role, self.dtype, self.storage.origin, self.requires_grad
        )

    def as_strided(self, shape: Shape, strides: Shape | None) -> Tensor:
        """The same storage seen with another shape: for the output of a layer, whose call is on the tape."""
        return Tensor(self.tape, shape, self.storage, self.requires_grad, strides, self.maker)

    def view(self, shape: Shape, strides: Shape | None = None, dtype: Dtype | None = None) -> Tensor:
        """The same storage seen with another shape, on the tape as an `Alias`: free, and no layer.

        dtype: as which the same bytes are read, such as complex numbers for pairs of real ones.
        """
        view = self.as_strided(shape, strides)
        if dtype is not None:
            whole = self.storage
            view.storage = self.tape.storage(view.size, whole.role, whole.origin, whole.name, dtype)
            view.storage.parts = (whole,)
        self.tape.block.entries.append(Alias(view, self))
        return view

    def permute(self, axes: Sequence[int]) -> Tensor:
        """A view with the axes in another order."""
        view = permuted(self, axes)
        return self.view(view.shape, view.strides)

    def transpose(self, first: int, second: int) -> Tensor:
        """A view with two axes exchanged."""
        view = transposed(self, first, second)
        return self.view(view.shape, view.strides)

    def unsqueeze(self, axis: int) -> Tensor:
        """A view with an axis of one more, before the one of this number; -1: at the end."""
        shape, strides = list(self.shape), list(strides_of(self))
        axis %= len(shape) + 1
        strides.insert(axis, shape[axis] * strides[axis] if axis < len(shape) else 1)
        shape.insert(axis, 1)
        return self.view(tuple(shape), tuple(strides))

    def squeeze(self, axis: int) -> Tensor:
        """A view without an axis of one."""
        strides = strides_of(self)
        return self.view(self.shape[:axis] + self.shape[axis + 1 :], strides[:axis] + strides[axis + 1 :])

    def __repr__(self) -> str:
        return f"Tensor({show_shape(self.shape)}, {self.storage.role})"


class Alias(NamedTuple):
    """A tensor `y` that is `x` seen with another shape or other strides: free, no layer, and on no report."""

    y: Tensor
    x: Tensor


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


def strides_of(x: Tensor) -> Shape:
    """Strides, written out [elements]."""
    return contiguous_strides(x.shape) if x.strides is None else x.strides


def is_contiguous(shape: Shape, strides: Shape | None) -> bool:
    """Whether row-major, by PyTorch's rule: the stride of an axis of size 1 does not matter."""
    if strides is None:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step and size != 1:
            return False
        step = step * branch_value(size)
    return True


def dense_strides(shape: Shape, *layouts: Shape | None) -> Shape | None:
    """Layout of an elementwise result: dense, with the axes in memory in the order of its operands'.

    layouts: strides of each operand along the result's axes, 0 along those it is broadcast to; None: contiguous. Of two
    axes the nearer one in memory is that of the smaller stride in the first operand that has both, or, of equal ones,
    the shorter (``TensorIteratorBase::reorder_dimensions``).
    """
    if not layouts or layouts[0] is None or is_contiguous(shape, layouts[0]):
        return None
    steps = [tuple(map(branch_value, contiguous_strides(shape) if one is None else one)) for one in layouts]

    def nearer(first: int, second: int) -> bool | None:
        """Whether the first axis is the nearer one; None: no operand tells."""
        for strides in steps:
            a, b = strides[first], strides[second]
            if a and b and (a != b or branch_value(shape[first]) > branch_value(shape[second])):
                return a < b
        return None

    order = list(reversed(range(len(shape))))
    for last in range(1, len(order)):
        place = last
        for before in reversed(range(last)):
            ordered = nearer(order[before], order[place])
            if ordered:
                break
            if ordered is False:
                order[before], order[place] = order[place], order[before]
                place = before
    result: list[int] = [1] * len(shape)
    step = 1
    for axis in order:
        result[axis] = step
        step = step * shape[axis]
    return None if is_contiguous(shape, tuple(result)) else tuple(result)


def elementwise_strides(shape: Shape, operands: Sequence[Tensor]) -> Shape | None:
    """As `dense_strides`, of tensors that broadcast to a shape."""
    if all(x.strides is None for x in operands):
        return None
    return dense_strides(shape, *(_broadcast_strides(x, shape) for x in operands))


def _broadcast_strides(x: Tensor, shape: Shape) -> Shape | None:
    """Strides of a tensor along the axes of a shape that it broadcasts to; None: contiguous, and of that shape."""
    if x.has(shape):
        return x.strides
    lacking = len(shape) - len(x.shape)
    own = zip(x.shape, strides_of(x), shape[lacking:], strict=True)
    return (0,) * lacking + tuple(0 if size == 1 and whole != 1 else stride for size, stride, whole in own)


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
        ends = old == 0 or (strides[old - 1] != run_size * run_stride and shape[old - 1] != 1)
        if not ends:
            continue
        covered = 1
        while axis >= 0 and (alike((covered * new_shape[axis],), (run_size,)) or covered < run_size):
            result.append(covered * run_stride)
            covered = covered * new_shape[axis]
            axis -= 1
        if covered != run_size:
            return False
        while axis >= 0 and new_shape[axis] == 1:
            result.append(covered * run_stride)
            axis -= 1
        if old > 0:
            run_size, run_stride = 1, strides[old - 1]
    new_strides = tuple(reversed(result))
    return None if is_contiguous(new_shape, new_strides) else new_strides


def broadcast(a: Shape, b: Shape, what: str) -> Shape:
    """Shape of an elementwise operation on two tensors; ShapeError if they do not meet."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    pairs = [(m, n) for m, n in zip(left, right, strict=True) if not (always_one(m) or always_one(n))]
    if any(m != n and m != 1 and n != 1 for m, n in pairs):
        raise ShapeError(f"{what}: shapes {show_shape(a)} and {show_shape(b)} do not meet; they must be equal")
    return tuple(_joint(m, n) for m, n in zip(left, right, strict=True))


def _joint(m: int, n: int) -> int:
    """The size of an axis that is `m` and `n`, one of which may be broadcast; a letter says more than its value."""
    if always_one(m) or always_one(n):
        return n if always_one(m) else m
    if m == n:
        return m if isinstance(m, SymInt) else n
    return n if m == 1 else m


def permuted(x: Tensor, axes: Sequence[int]) -> Tensor:
    """`x` with its axes in another order, for the output of a layer."""
    strides = strides_of(x)
    return x.as_strided(tuple(x.shape[a] for a in axes), tuple(strides[a] for a in axes))


def transposed(x: Tensor, first: int, second: int) -> Tensor:
    """`x` with two axes exchanged, for the output of a layer."""
    axes = list(range(len(x.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return permuted(x, axes)
