"""Paper tensors and the calls that make them: what one forward pass on paper recorded, without any data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from costmodel.errors import ShapeError
from costmodel.graph.kernel import Kernel, Message
from costmodel.symbolic.sizes import SymInt, branch_value, ceil_div, exact_div, product
from costmodel.training.dtypes import REAL, Dtype, Role, Shape, size_bytes

if TYPE_CHECKING:
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
        if size != 1 and stride != step:
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
    new_strides = tuple(reversed(result))
    return None if is_contiguous(new_shape, new_strides) else new_strides


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
        return m if isinstance(m, SymInt) else n
    return n if m == 1 else m


RecordedPhase = Literal["forward", "loss"]
"""Phases of a training step whose calls are recorded; those of backward follow from them."""


class Alias(NamedTuple):
    """A tensor `y` that is `x` seen with another shape or other strides: free, no layer, and on no report."""

    y: Tensor
    x: Tensor


GradientOrder = Literal["rows", "incoming", "operand"]

KeptResults = Literal["none", "every second", "all"]
"""Of calls of one kind in a stretch: none, the first and then every second one, or all."""

Rerun = Literal["", "whole", "needed"]
"""How much of a stretch backward runs again: nothing; the whole of it, before it goes back over it by itself; or once a
tensor is needed that was not kept, up to the last such tensor (``use_reentrant`` of ``torch.utils.checkpoint``).
"""


class Block:
    """A stretch of the graph that happens `count` times for each time that its parent does.

    What repeats reads `entry`, which is `source` in the first round and in each later one the `exit` of the round
    before; `result` is the exit of the last round, as those after the block read it. A stretch that is only recomputed
    has none of the four.
    recomputed: where backward runs it forward again, nothing in it is kept but what it reads from outside, `saved`, or
    what is `held` as long without being autograd's.
    results: what it hands on, to all of which a gradient comes as soon as one comes to any (of zeros, if need be).
    unit: whether it is only marked, as what has its weights gathered together where ranks have shares of them.
    """

    __slots__ = (
        *("count", "entries", "entry", "exit", "held", "name", "parent", "recomputed", "result", "results", "saved"),
        *("source", "unit"),
    )

    def __init__(self, name: str, count: int, parent: Block | None) -> None:
        self.name = name
        self.count = count
        self.parent = parent
        self.entries: list[Call | Alias | Block] = []
        self.source: Tensor | None = None
        self.entry: Tensor | None = None
        self.exit: Tensor | None = None
        self.result: Tensor | None = None
        self.recomputed: Rerun = ""
        self.unit = False
        self.results: tuple[Tensor, ...] = ()
        self.held: tuple[Storage, ...] = ()
        self.saved: tuple[Storage, ...] = ()

    @property
    def times(self) -> int:
        """How often this stretch happens in all."""
        return self.count if self.parent is None else self.count * self.parent.times

    def calls(self) -> Iterator[Call]:
        """Every call within, in order, each repeated block once."""
        for entry in self.entries:
            if isinstance(entry, Block):
                yield from entry.calls()
            elif isinstance(entry, Call):
                yield entry

    def blocks(self) -> Iterator[Block]:
        """Every block within, at any depth."""
        for entry in self.entries:
            if isinstance(entry, Block):
                yield entry
                yield from entry.blocks()


Weights = dict[str, Shape]
Buffers = dict[str, tuple[Shape, Role]]


class LayerFlops(NamedTuple):
    """FLOPs of one pass. `counted` is what PyTorch's FlopCounterMode reports where that is not `contractions`."""

    contractions: int
    pointwise: int
    counted: int | None = None


class Gradient(NamedTuple):
    """The backward work for one operand; `shared` if its gradient is the incoming one, in the same memory."""

    operand: Tensor
    work: LayerFlops
    shared: bool = False


class Workspace(NamedTuple):
    """Elements of working memory that a call needs for itself, beside its operands, results and gradients.

    backward_bytes: more in backward, of what is not in the result's data type, such as masks and indices [bytes].
    later: of a backward of several steps, what is there beside gradients and input when the last gradient is made and
    the incoming one and all else that was kept has been let go of; None: one step. whole: whether that last gradient
    is all that the input gets, not the last part of it.
    """

    forward: int
    backward: int
    backward_bytes: int = 0
    later: int | None = None
    whole: bool = False


class Share(NamedTuple):
    """Some of so many equal parts of a tensor; or, rounded up, what falls to each of `ranks` of some of their parts."""

    some: int
    every: int
    ranks: int = 1

    def of(self, whole: int) -> int:
        """So much of a whole."""
        some = exact_div(whole, self.every) * self.some
        return some if self.ranks == 1 else ceil_div(some, self.ranks)


class AbstractLayer(ABC):
    """Abstract: what a call asks of its layer kind. `x` and `y` are the call's first input and its output."""

    kind: ClassVar[str]
    """Name in files, reports and errors: the class name in snake case."""
    source: ClassVar[str]
    """Where the formulas come from; printed to whoever asks for an explanation."""
    fixed: ClassVar[bool] = False
    """Whether its weights are never trained."""
    converts: ClassVar[bool] = False
    """Whether it has the numbers of its input in another data type."""
    raises_half: ClassVar[bool] = False
    """Whether a kernel of its own reads fp16 where autocast has raised it to fp32, as at::_softmax half_to_float."""
    lends: ClassVar[bool] = False
    """Whether the incoming gradient, and working memory, are there until what made the last input has had its own."""
    collects: ClassVar[bool] = False
    """Whether the gradient that comes to it stays until backward is done."""
    of_experts: ClassVar[bool] = False
    """Whether its weights are of experts, which ranks may have different ones of."""
    whole_gradients: ClassVar[bool] = False
    """Whether each rank makes the gradient of all ranks' shares of its weight."""
    overwrites: ClassVar[bool] = False
    """Whether it writes its second input into the memory of its first, which its output is a view of."""
    adaptable: ClassVar[bool] = False
    """Whether a low-rank adapter can stand beside it."""

    @property
    def cast_as(self) -> str:
        """The name by which a precision policy knows what autocast casts its operands to."""
        return self.kind

    @abstractmethod
    def check(self, call: Call) -> None:
        """Raise ``call.fail(...)`` if the inputs do not fit."""

    @abstractmethod
    def weights(self, call: Call) -> Weights:
        """Trained weights by name, with their shapes."""

    @abstractmethod
    def buffers(self, call: Call) -> Buffers:
        """Constants stored beside the weights, with their shapes and roles."""

    @abstractmethod
    def output(self, call: Call) -> Shape | Tensor:
        """The output: a shape (new memory), or a tensor (a view, or memory in a certain order)."""

    @abstractmethod
    def forward(self, call: Call) -> LayerFlops:
        """FLOPs of the forward pass."""

    @abstractmethod
    def backward(self, call: Call) -> Iterable[Gradient]:
        """Work for the gradient of each operand; what needs no gradient is left out by the caller."""

    @abstractmethod
    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """What the forward pass runs on a device, in order; nothing for a view."""

    @abstractmethod
    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """What backward runs for the operands that need a gradient (``call.gradients()``), in order."""

    def sent(self, call: Call) -> tuple[Message, ...]:
        """Collectives of the forward pass, in order."""
        return ()

    def returned(self, call: Call) -> tuple[Message, ...]:
        """Collectives of backward, in order."""
        return ()

    @abstractmethod
    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """What autograd saves for backward; weights and buffers may be named, they are charged elsewhere."""

    @abstractmethod
    def workspace(self, call: Call) -> Workspace:
        """Working memory."""

    @property
    def kept_results(self) -> KeptResults:
        """Which of its results recomputation by operators keeps."""
        return "none"

    @property
    def overlaps(self) -> bool:
        """Whether it goes over windows of its input that may share numbers."""
        return False

    @property
    def idle(self) -> Share | None:
        """The share of each weight that one token does not meet; None: it meets all."""
        return None

    def reads(self, call: Call, weight: Tensor) -> Share | None:
        """The share of a weight that it reads; None: all."""
        return None

    def results_bytes(self, call: Call) -> int:
        """Of a layer whose output is one of several results: bytes of the gradients of all, which it is handed at once.

        0: of its output alone.
        """
        return 0

    def held(self, call: Call) -> Iterable[Tensor]:
        """What it holds until all of backward is done without autograd having saved it."""
        return ()

    def scattered(self, call: Call) -> bool:
        """Whether gradients are slices of the incoming one none of which lies in one piece."""
        return False

    def gradient_copy(self, call: Call) -> int:
        """Elements that backward needs beside, if the incoming gradient is of fewer numbers, seen at several places.

        That is the gradient of a sum, which kernels that go by rows copy (``contiguous``), as they do one that does not
        lie row by row.
        """
        return 0

    def over_batch(self, call: Call) -> bool:
        """Whether it reads all of its input, for statistics of the batch, before it writes any output."""
        return False

    def gradient_elements(self, call: Call, x: Tensor) -> int:
        """Elements that the memory of an operand's gradient has room for."""
        return x.size

    def gradient_order(self, call: Call, x: Tensor) -> GradientOrder:
        """How the gradient of an operand lies in memory: row by row, as the incoming gradient, or as the operand."""
        return "rows"

    def gradient_axes(self, call: Call) -> int | None:
        """Axes of the matrices, or batches of them, that the incoming gradient is seen as by products.

        Where memory order allows no such view it is copied first (``reshape``). None: kernels take it as it is, or copy
        it themselves, as `gradient_copy` says.
        """
        return None

    def views_gradient(self, call: Call, x: Tensor) -> bool:
        """Whether PyTorch computes with another view of an operand, so that its gradient comes as a view."""
        return False


class Call:
    """One layer applied to its inputs: what it reads, makes and keeps.

    Layers are asked about a call and answer from its tensors: `x` is the first input, `y` the output. `weights` are
    what it computes with: those `stored`, or casts of them, as `inputs` are the `raw_inputs` or casts of them. What it
    keeps for backward is `saved`, until then or, if it is `recomputed`, only once it has been run again, as far as
    `rerun` says that it is: what comes after the last tensor that is needed may not be. `results` are what it makes and
    hands on that is kept all the same, so that running it again takes that. `part` and `phase` are the part of the
    model and the phase of the pass that it is in. `differentiated`: whether a gradient comes back to it; what a
    call keeps to which none does is `detached`, there as long as something that it led to.
    """

    __slots__ = (
        "_gradients",
        "_operands",
        "block",
        "buffers",
        "detached",
        "differentiated",
        "inputs",
        "layer",
        "name",
        "part",
        "phase",
        "raw_inputs",
        "recomputed",
        "rerun",
        "results",
        "saved",
        "stored",
        "tape",
        "weights",
        "y",
    )

    def __init__(self, tape: Tape, layer: AbstractLayer, inputs: tuple[Tensor, ...], name: str) -> None:
        self.tape = tape
        self.layer = layer
        self.inputs = self.raw_inputs = inputs
        self.name = name
        self.block = tape.block
        self.part = tape.caller
        self.phase: RecordedPhase = tape.phase
        self.weights: dict[str, Tensor] = {}
        self.stored = self.weights
        self.buffers: dict[str, Tensor] = {}
        self.saved: tuple[Storage, ...] = ()
        self.detached: tuple[Storage, ...] = ()
        self.recomputed = self.rerun = False
        self.results: tuple[Storage, ...] = ()
        self.differentiated = False
        self.y: Tensor
        self._gradients: tuple[Gradient, ...] | None = None
        self._operands: tuple[Tensor, ...] | None = None

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.inputs[0]

    @property
    def computed_again(self) -> bool:
        """Whether it is run again in backward, and has not what it makes already."""
        return self.rerun and not self.results

    @property
    def times(self) -> int:
        """How often this call happens."""
        return self.block.times

    def operands(self) -> tuple[Tensor, ...]:
        """Inputs and weights: everything a gradient may be asked for. They are asked for once both are settled."""
        if self._operands is None:
            self._operands = (*self.inputs, *self.weights.values())
        return self._operands

    def gradients(self) -> tuple[Gradient, ...]:
        """The backward work for each operand that needs a gradient; the layer is asked once, after the trace."""
        if self._gradients is None:
            self._gradients = tuple([g for g in self.layer.backward(self) if g.operand.requires_grad])
        return self._gradients

    def like(self, x: Tensor, role: Role = "activation") -> Tensor:
        """A new tensor of the shape and memory order of `x`, as an elementwise operation makes it."""
        return self.tape.tensor(x.shape, role, strides=dense_strides(x.shape, x.strides))

    def fresh(self, role: Role, *shape: int) -> Storage:
        """Memory that this call makes beside its output, such as a statistic, a mask or a contiguous copy."""
        return self.tape.storage(product(shape), role, "computed", self.name)

    def as_batch(self, x: Tensor) -> Storage:
        """What a batched product holds of an operand: itself if (batch, rows, columns) is a view, else a copy."""
        *batch, rows, columns = x.shape
        viewable = viewed_strides(x.shape, x.strides, (product(batch), rows, columns)) is not False
        return x.storage if viewable else self.copy_of(x)

    def copy_of(self, x: Tensor) -> Storage:
        """Memory for a contiguous copy of `x`."""
        return self.tape.storage(x.size, x.storage.role, "computed", self.name, x.dtype)

    def fail(self, message: str) -> ShapeError:
        """Error that names this layer and the shapes it met."""
        shapes = " and ".join(show_shape(x.shape) for x in self.inputs)
        return ShapeError(f"{self.name}: {message} (input {shapes})")


def permuted(x: Tensor, axes: Sequence[int]) -> Tensor:
    """`x` with its axes in another order, for the output of a layer."""
    strides = strides_of(x)
    return x.as_strided(tuple(x.shape[a] for a in axes), tuple(strides[a] for a in axes))


def transposed(x: Tensor, first: int, second: int) -> Tensor:
    """`x` with two axes exchanged, for the output of a layer."""
    axes = list(range(len(x.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return permuted(x, axes)
