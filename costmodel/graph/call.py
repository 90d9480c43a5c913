"""Calls of layers and the blocks that they stand in, and what a call asks of its layer kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from costmodel.display.table import Table
from costmodel.errors import ShapeError
from costmodel.graph.kernel import Kernel, Message
from costmodel.graph.tensor import Alias, Storage, Tensor, dense_strides, show_shape, viewed_strides
from costmodel.symbolic.sizes import ceil_div, exact_div, product
from costmodel.training.dtypes import Role, Shape

if TYPE_CHECKING:
    from costmodel.graph.tape import Tape


RecordedPhase = Literal["forward", "loss"]
"""Phases of a training step whose calls are recorded; those of backward follow from them."""

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

    def __repr__(self) -> str:
        calls = list(self.calls())
        rows = [(call.name, call.layer.kind, show_shape(call.y.shape)) for call in calls[:MOST_SHOWN]]
        more = f"\nand {len(calls) - MOST_SHOWN:,} more" if len(calls) > MOST_SHOWN else ""
        return Table(("call", "kind", "output"), rows, words=frozenset({0, 1})).text() + more


MOST_SHOWN = 20
"""Calls that a block shows of itself."""
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

    def __repr__(self) -> str:
        return f"<Call {self.name} of {self.layer.kind}>"
