"""One forward pass on paper: the tape on which layers record themselves as they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from costmodel.errors import ShapeError, SpecError
from costmodel.graph.recomputation import Recomputation
from costmodel.graph.tensor import (
    AbstractLayer,
    Block,
    Call,
    Device,
    Origin,
    Recorded,
    Role,
    Shape,
    Storage,
    Tensor,
    show_shape,
)
from costmodel.symbolic.sizes import LARGEST_SIZE, product
from costmodel.training.dtypes import FLOATS, Dtype
from costmodel.training.precision import FP32, Precision

MOST_CALLS = 5_000
"""A graph with more layer calls, repeats folded, is refused: no network has them, and a runaway file does."""


class Adaptation(Protocol):
    """Which weights are trained, and what is added to a layer's output for it."""

    def trains(self, path: list[str]) -> bool:
        """Whether the weights of the layer at this path are trained."""
        ...

    def adapt(self, call: Call, x: Tensor, path: list[str]) -> Tensor:
        """The output of a call on `x`, with an adapter's added if the call is a target."""
        ...

    def check(self) -> None:
        """Raise an error if a part that was named is nowhere in the model."""
        ...


class Cached(NamedTuple):
    """What decoding keeps after a pass, and how many elements of it a further token of one sample adds."""

    storage: Storage
    token: int


class Run:
    """One forward pass on paper. Layers record themselves here as they are called.

    training: whether tensors are kept for backward.
    device: whose kernels decide what is kept, "gpu" or "cpu".
    precision: which data types roles have, and what is cast; under autocast by the kind that `cast` makes.
    recomputation: what is run again in backward instead of kept. adaptation: which weights are trained (None: all).
    outputs: what the user is handed, if it is several results. phase: that of what is recorded from here on.
    caches: what decoding has kept of earlier tokens, or has room for. cached: what it keeps after this pass.
    """

    def __init__(
        self,
        *,
        training: bool,
        device: Device,
        precision: Precision = FP32,
        cast: Callable[[Dtype], Callable[..., Tensor]] | None = None,
        recomputation: Recomputation | None = None,
        adaptation: Adaptation | None = None,
    ) -> None:
        self.training = training
        self.device: Device = device
        self.precision = precision
        self.cast = cast
        self.recomputation = recomputation or Recomputation()
        self.adaptation = adaptation
        self.root = self.block = Block("", 1, None)
        self.weights: dict[Storage, Shape] = {}
        self.trained: dict[Storage, Shape] = {}
        self.buffers: dict[Storage, None] = {}
        self.inputs: dict[Storage, None] = {}
        self.outputs: tuple[Tensor, ...] = ()
        self.phase: Recorded = "forward"
        self.caches: dict[Storage, None] = {}
        self.cached: list[Cached] = []
        self._calls = 0
        self._path: list[str] = []
        self._scopes = ""
        self._casts: dict[tuple[Storage, Dtype], Tensor] = {}
        self._compute: Dtype = precision.weight

    def storage(self, elements: int, role: Role, origin: Origin, name: str, dtype: Dtype | None = None) -> Storage:
        """Memory, of the data type that its role has here and now unless another is given."""
        return Storage(elements, role, origin, self.block, name, dtype or self.precision.dtype_of(role, self._compute))

    def tensor(
        self,
        shape: Shape,
        role: Role = "activation",
        *,
        origin: Origin = "computed",
        requires_grad: bool = False,
        strides: Shape | None = None,
        name: str = "",
        dtype: Dtype | None = None,
    ) -> Tensor:
        """A tensor in memory of its own, of the type that its role has here unless another is given."""
        storage = self.storage(product(shape), role, origin, name, dtype)
        if storage.elements > LARGEST_SIZE**2:
            raise ShapeError(f"a tensor of {show_shape(shape)} is larger than any machine could hold")
        return Tensor(self, shape, storage, requires_grad, strides)

    def input(self, shape: Shape, role: Role = "activation", name: str = "input") -> Tensor:
        """A tensor that the user feeds in: on the line `memory.inputs`, never an activation."""
        dtype = self.precision.dtype_of(role, self.precision.weight)
        tensor = self.tensor(shape, role, origin="input", name=name, dtype=dtype)
        self.inputs[tensor.storage] = None
        return tensor

    def weight(self, shape: Shape, name: str, dtype: Dtype | None = None, *, frozen: bool = False) -> Tensor:
        """A weight, trained unless it is frozen; pass the tensor to another layer to tie the two.

        dtype: the type that it is stored in; one that is trained is of the policy's.
        """
        trains = (self.training and not frozen) and (
            self.adaptation is None or self.adaptation.trains([*self._path, name.split(".")[-2]])
        )
        stored = self.precision.weight if trains else dtype
        tensor = self.tensor(shape, "weight", origin="weight", requires_grad=trains, name=name, dtype=stored)
        self.weights[tensor.storage] = shape
        if trains:
            self.trained[tensor.storage] = shape
        return tensor

    def buffer(self, shape: Shape, role: Role, name: str) -> Tensor:
        """A constant that lives beside the weights, such as a mask or a running mean."""
        dtype = self.precision.dtype_of(role, self.precision.weight)
        tensor = self.tensor(shape, role, origin="buffer", name=name, dtype=dtype)
        self.buffers[tensor.storage] = None
        return tensor

    def cache(self, shape: Shape, dtype: Dtype, name: str, scales: int = 0) -> Tensor:
        """Memory that decoding has for keys or values, (..., tokens, features), before this pass starts.

        scales: fp32 ones that come with it, as with 8-bit floats.
        """
        tensor = self.tensor(shape, origin="cache", name=name, dtype=dtype)
        tensor.storage.scales = scales
        self.caches[tensor.storage] = None
        return tensor

    def keep(self, storage: Storage, token: int) -> None:
        """Note what decoding keeps after this pass, of which a token of one sample takes so many elements."""
        self.cached.append(Cached(storage, token))

    def record(
        self, kind: AbstractLayer, inputs: tuple[Tensor, ...], name: str | None, tied: Mapping[str, Tensor] | None
    ) -> Tensor:
        """Apply `kind` to `inputs` and note what that took; called by ``Layer.__call__``."""
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise SpecError(f"the model has more than {MOST_CALLS:,} layers even with its repeats folded: use fewer")
        name = name or kind.kind
        call = Call(self, kind, inputs, ".".join([*self._path, name]))
        kind.check(call)
        self._take_weights(call, tied or {})
        for buffer, (shape, role) in kind.buffers(call).items():
            call.buffers[buffer] = self.buffer(shape, role, f"{call.name}.{buffer}")
        self._take_types(call, name)
        made = kind.output(call)
        call.y = made if isinstance(made, Tensor) else self.tensor(made)
        call.y.storage.name = call.y.storage.name or call.name
        call.y.requires_grad = self.training and any(operand.requires_grad for operand in call.operands())
        if call.y.requires_grad:
            call.saved = tuple(k.storage if isinstance(k, Tensor) else k for k in kind.saved(call))
        self.block.entries.append(call)
        return call.y if self.adaptation is None else self.adaptation.adapt(call, inputs[0], [*self._path, name])

    def _take_weights(self, call: Call, tied: Mapping[str, Tensor]) -> None:
        kind = call.kind
        for weight, shape in kind.weights(call).items():
            given = tied.get(weight)
            if given is None:
                stored = self.precision.stored(kind.kind, shape)
                given = self.weight(shape, f"{call.name}.{weight}", stored, frozen=kind.fixed)
            elif given.shape != shape:
                raise call.fail(f"a tied {weight} of {show_shape(given.shape)} is not {show_shape(shape)}")
            call.weights[weight] = given

    def _take_types(self, call: Call, name: str) -> None:
        """Cast what autocast casts, and settle what the call computes in."""
        kind, precision = call.kind.kind, self.precision
        target = precision.cast_to(kind, self.device)
        if target is None:
            self._compute = precision.result(kind, _types(call.inputs), _types(call.weights.values()))
            return
        call.inputs = tuple(self._cast(x, target, name) for x in call.inputs)
        call.weights = {weight: self._cast(w, target, f"{name}.{weight}") for weight, w in call.weights.items()}
        self._compute = precision.made_in(target)

    def _cast(self, x: Tensor, dtype: Dtype, name: str) -> Tensor:
        """`x` in another type: made once for a weight, each time for an activation, as torch.autocast does."""
        if x.dtype == dtype or x.dtype not in FLOATS:
            return x
        key = (x.storage, dtype)
        if key in self._casts:
            return self._casts[key]
        if self.cast is None:
            raise AssertionError(f"a run under {self.precision.name} must know how to cast")
        cast = self.cast(dtype)(x, name=f"{name}.cast")
        cast.storage.scales = self.precision.scales(dtype)
        if x.storage.origin == "weight":
            self._casts[key] = cast
        return cast

    @contextmanager
    def scope(self, name: str, *, listed: bool = False) -> Iterator[None]:
        """A part of the model: prefix `name` to the names of the layers called within.

        listed: it is a list of parts, such as the blocks, each of which is called by itself.
        """
        outer = self._scopes
        self._path.append(name)
        self._scopes = f"{outer}{name}{'.' if listed else '/'}"
        try:
            if self.recomputation.picks(self._path):
                with self.recomputation.stretch(self.block):
                    yield
            else:
                yield
        finally:
            self._path.pop()
            self._scopes = outer

    @property
    def caller(self) -> str:
        """The innermost part that is open, by a path whose parts each end in "/"."""
        return self._scopes[: self._scopes.rfind("/") + 1]

    def within(self, name: str) -> str:
        """`name`, with those of the parts of the model that are open."""
        return ".".join([*self._path, name])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the model that can be recomputed by `name`, which its layers do not carry."""
        if self.recomputation.picks([*self._path, name]):
            with self.recomputation.stretch(self.block):
                yield
        else:
            yield

    def repeat(
        self,
        times: int,
        body: Callable[[Tensor], Tensor],
        x: Tensor,
        name: str,
        *,
        grouped: bool = True,
        listed: bool = False,
    ) -> Tensor:
        """Apply `body` to `x`, then to its own result, `times` times in all, and trace it once.

        grouped: the rounds are the equal blocks that checkpointing groups. listed: see `scope`.

        The first rounds are traced on their own until a round hands on exactly the layout that it was given; all that
        remain are then alike. The answer is that of unrolling, whatever is kept across rounds.
        """
        if self.recomputation.every is None or self.recomputation.open or not grouped:
            return self._repeat(times, body, x, name, listed=listed)
        size = self.recomputation.group(times)
        if size == 1:
            return self._repeat(times, lambda x: self.again(body, x), x, name)

        def group(x: Tensor, size: int = size) -> Tensor:
            return self.again(lambda x: self._repeat(size, body, x, name), x)

        x = self._repeat(times // size, group, x, "group")
        return group(x, times - times // size * size)

    def again(self, body: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply `body` to `x`, to be run again in backward."""
        with self.recomputation.stretch(self.block):
            return body(x)

    def _repeat(
        self, times: int, body: Callable[[Tensor], Tensor], x: Tensor, name: str, *, listed: bool = False
    ) -> Tensor:
        left = times
        while left > 0:
            entry = x.view(x.shape, x.strides)
            entry.storage = Storage(0, x.storage.role, x.storage.origin, self.block, dtype=x.dtype)
            label = name if left is times else f"{name}.{times - left + 1}"
            block = Block(label, left, self.block)
            self.block.entries.append(block)
            self.block = block
            with self.scope(label, listed=listed):
                y = body(entry)
            self.block = outer = _parent(block)
            stable = y.layout == entry.layout
            if not stable:
                block.count = 1
            left = left - block.count
            block.entry, block.exit = entry, y
            x = _hand_on(block, outer, x, entry, y)
        return x


def _types(tensors: Iterable[Tensor]) -> list[Dtype]:
    """Data types of those that hold floating numbers."""
    return [x.dtype for x in tensors if x.storage.dtype in FLOATS]


def _parent(block: Block) -> Block:
    if block.parent is None:
        raise AssertionError("the root block repeats nothing")
    return block.parent


def _hand_on(block: Block, outer: Block, x: Tensor, entry: Tensor, y: Tensor) -> Tensor:
    """The last round's output; `entry` comes to stand for every round's input: `x`, and all outputs but the last."""
    if y.storage is entry.storage:
        entry.storage.parts = (x.storage,)
        return Tensor(y.run, y.shape, x.storage, y.requires_grad, y.strides)
    made = y.storage
    if made.block is not block:  # made outside, the same in every round
        entry.storage.parts = (x.storage, made)
        return y
    rounds = Block(block.name, block.count - 1, outer)
    rest, last = (
        Storage(made.elements, made.role, made.origin, where, made.name, made.dtype) for where in (rounds, outer)
    )
    made.parts = (rest, last)
    entry.storage.parts = (x.storage, rest)
    return Tensor(y.run, y.shape, last, y.requires_grad, y.strides)
