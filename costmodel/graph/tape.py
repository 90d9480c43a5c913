"""One forward pass on paper: the tape on which layers record themselves as they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

from costmodel.errors import ShapeError, SpecError
from costmodel.graph.call import AbstractLayer, Block, Call, RecordedPhase
from costmodel.graph.recomputation import GROUP, PartNames, Recomputation
from costmodel.graph.tensor import Alias, Origin, Role, RoundLayout, Shape, Storage, Tensor, show_shape
from costmodel.symbolic.sizes import LARGEST_SIZE, peek, product
from costmodel.training.dtypes import FLOATS, REAL, Dtype, RealType, size_bytes
from costmodel.training.layout import Layout
from costmodel.training.precision import FP32, ROUTING, Precision
from costmodel.training.settings import Device

BLOCK, ROOT = "block", "root"
"""What `wrap` calls each block, and all that is in no other part."""
MOST_CALLS = 5_000
"""A graph with more layer calls, repeats folded, is refused: no network has them, and a runaway file does."""


class WeightAdaptation(Protocol):
    """Which weights are trained, and what is added to a layer's output for it."""

    @property
    def names(self) -> frozenset[str]:
        """Names of parts that it is told by."""
        ...

    def trains(self, path: list[str]) -> bool:
        """Whether the weights of the layer at this path are trained."""
        ...

    def adapt(self, call: Call, x: Tensor, path: list[str]) -> Tensor:
        """The output of a call on `x`, with an adapter's added if the call is a target."""
        ...

    def check(self) -> None:
        """Raise an error if a part that was named is nowhere in the model."""
        ...


class Shared:
    """Weights that every round of a part has: by their names in it, and the block that holds them."""

    def __init__(self, tape: Tape) -> None:
        self.block = tape.block
        self.weights: dict[str, Tensor] = {}
        self.depth = 0


class Cached(NamedTuple):
    """What decoding keeps after a pass, and how many elements of it a further token of one sample adds.

    used: elements that later tokens attend to, if not all.
    """

    storage: Storage
    token: int
    used: int | None = None

    @property
    def used_bytes(self) -> int:
        """Of one storage, what later tokens attend to."""
        s = self.storage
        return s.bytes if self.used is None or self.used == s.elements else size_bytes(self.used, s.dtype)


class Tape:
    """One forward pass on paper. Layers record themselves here as they are called.

    training: whether tensors are kept for backward.
    device: whose kernels decide what is kept, "gpu" or "cpu".
    precision: which data types roles have, and what is cast; under autocast by the kind that `cast` makes.
    recomputation: what is run again in backward instead of kept. adaptation: which weights are trained (None: all).
    wrapping: parts by name whose weights are gathered together, where ranks have shares of weights.
    trained: weights that ask for a gradient. updated: those that get one.
    layout: over devices. arrival: what the stage before this one hands on, and as tensors here: arrived.
    result: what the model makes.
    outputs: what the user is handed, if it is several results. phase: that of what is recorded from here on.
    grad: whether gradients are recorded of it, as ``torch.no_grad`` has it.
    inputs, buffers, caches: tensors that are there before the pass, by their memory; caches are what decoding has kept
    of earlier tokens, or has room for. cached: what it keeps after this pass.
    owner: what is kept for as long as this tape, or a copy of it, is.
    """

    def __init__(
        self,
        *,
        training: bool,
        device: Device,
        precision: Precision = FP32,
        cast: Callable[[RealType], Callable[..., Tensor]] | None = None,
        recomputation: Recomputation | None = None,
        adaptation: WeightAdaptation | None = None,
        layout: Layout = Layout(),  # noqa: B008
        arrival: tuple[RoundLayout, ...] = (),
    ) -> None:
        self.layout = layout
        self.arrival = arrival
        self.training = training
        self.device: Device = device
        self.precision = precision
        self.cast = cast
        self.recomputation = recomputation or Recomputation()
        self.adaptation = adaptation
        self.wrapping = PartNames(frozenset(layout.wrap) - {BLOCK, ROOT} if layout.shards > 1 else frozenset())
        self.root = self.block = Block("", 1, None)
        self.weights: dict[Storage, Shape] = {}
        self.trained: dict[Storage, Shape] = {}
        self.updated = self.trained
        self.buffers: dict[Storage, Tensor] = {}
        self.inputs: dict[Storage, Tensor] = {}
        self.outputs: tuple[Tensor, ...] = ()
        self.result: tuple[Tensor, ...] = ()
        self.arrived: list[Tensor] = []
        self.phase: RecordedPhase = "forward"
        self.grad = True
        self.caches: dict[Storage, Tensor] = {}
        self.cached: list[Cached] = []
        self.owner: object = None
        self._calls = 0
        self._path: list[str] = []
        self._scopes = ""
        self._casts: dict[tuple[Storage, Dtype], Tensor] = {}
        self._shared: Shared | None = None
        self._compute: Dtype = precision.weight

    def forget(self) -> None:
        """Break the circles in which what is recorded refers to itself, so that it is freed with its last user.

        Python's own search for such circles goes through all that there is. Nothing of the tape can be read after it.
        """
        for call in self.root.calls():
            call.y.maker = None
        for block in (self.root, *self.root.blocks()):
            block.__init__(block.name, 1, None)
        vars(self).clear()

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
        elements = product(shape)
        if elements > LARGEST_SIZE**2:
            raise ShapeError(f"a tensor of {show_shape(shape)} is larger than any machine could hold")
        return Tensor(self, shape, self.storage(elements, role, origin, name, dtype), requires_grad, strides)

    def input(self, shape: Shape, role: Role = "activation", name: str = "input", dtype: Dtype | None = None) -> Tensor:
        """A tensor that the user feeds in: on the line `memory.inputs`, never an activation."""
        dtype = dtype or self.precision.dtype_of(role, self.precision.weight)
        tensor = self.tensor(shape, role, origin="input", name=name, dtype=dtype)
        self.inputs[tensor.storage] = tensor
        return tensor

    def received(self) -> Tensor:
        """What the stage before hands to this one, where it is one tensor, to which its gradient goes back."""
        (tensor,) = self.all_received()
        return tensor

    def all_received(self) -> list[Tensor]:
        """The tensors that the stage before hands to this one, to which gradients go back."""
        for each in self.arrival:
            tensor = self.input(each.shape, each.role, "received", each.dtype)
            tensor.strides, tensor.requires_grad = each.strides, each.requires_grad
            self.arrived.append(tensor)
        return self.arrived

    def weight(
        self, shape: Shape, name: str, dtype: Dtype | None = None, *, frozen: bool = False, part: str = ""
    ) -> Tensor:
        """A weight, trained unless it is frozen; pass the tensor to another layer to tie the two.

        dtype: the type that it is stored in; one that is trained is of the policy's. part: the layer that has it, in
        the parts that are open (default: as `name` says).
        """
        adapted = self.adaptation is None or self.adaptation.trains([*self._path, part or name.split(".")[-2]])
        trains = self.training and not frozen and adapted
        stored = self.precision.weight if trains else dtype
        tensor = self.tensor(shape, "weight", origin="weight", requires_grad=trains, name=name, dtype=stored)
        self.weights[tensor.storage] = shape
        if trains:
            self.trained[tensor.storage] = shape
        return tensor

    def reshape_weight(self, weight: Tensor, shape: Shape, peers: int) -> None:
        """Have a weight of another shape in its place, and other numbers of `Storage.peers`."""
        storage = weight.storage
        weight.shape, weight.size = shape, product(shape)
        storage.elements = storage.graded = weight.size
        storage.peers = peers
        for shapes in (self.weights, self.trained, self.updated):
            if storage in shapes:
                shapes[storage] = shape

    def buffer(self, shape: Shape, role: Role, name: str, dtype: Dtype | None = None) -> Tensor:
        """A constant that lives beside the weights, such as a mask or a running mean."""
        dtype = dtype or self.precision.dtype_of(role, self.precision.weight)
        tensor = self.tensor(shape, role, origin="buffer", name=name, dtype=dtype)
        self.buffers[tensor.storage] = tensor
        return tensor

    def cache(self, shape: Shape, dtype: Dtype, name: str, scales: int = 0) -> Tensor:
        """Memory that decoding has for keys or values, (..., tokens, features), before this pass starts.

        scales: fp32 ones that come with it, as with 8-bit floats.
        """
        tensor = self.tensor(shape, origin="cache", name=name, dtype=dtype)
        tensor.storage.scales = scales
        self.caches[tensor.storage] = tensor
        return tensor

    def keep(self, storage: Storage, token: int, used: int | None = None) -> None:
        """Note what decoding keeps after this pass, see `Cached`."""
        self.cached.append(Cached(storage, token, used))

    @property
    def handed_on(self) -> tuple[RoundLayout, ...]:
        """Layouts of its results, as they come to the next stage of a pipeline."""
        return tuple(y.layout for y in self.result)

    def record(
        self, layer: AbstractLayer, inputs: tuple[Tensor, ...], name: str | None, tied: Mapping[str, Tensor] | None
    ) -> Tensor:
        """Apply `layer` to `inputs` and note what that took; called by ``Layer.__call__``."""
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise SpecError(f"the model has more than {MOST_CALLS:,} layers even with its repeats folded: use fewer")
        name = name or layer.kind
        call = Call(self, layer, inputs, ".".join([*self._path, name]))
        layer.check(call)
        self._take_weights(call, name, tied or {})
        for buffer, (shape, role) in layer.buffers(call).items():
            call.buffers[buffer] = self.buffer(shape, role, f"{call.name}.{buffer}")
        self._take_types(call, name)
        output = layer.output(call)
        call.y = output if isinstance(output, Tensor) else self.tensor(output)
        call.y.storage.name = call.y.storage.name or call.name
        call.y.maker = call
        call.y.requires_grad = call.differentiated = (
            self.training and self.grad and True in [x.requires_grad for x in call.operands()]
        )
        if call.differentiated:
            call.saved = tuple([k.storage if isinstance(k, Tensor) else k for k in layer.saved(call)])
        if not self.wrapping.names:
            return self._append(call, inputs, name)
        with self._wrapped([*self._path, name]):
            return self._append(call, inputs, name)

    def _append(self, call: Call, inputs: Sequence[Tensor], name: str) -> Tensor:
        """The output of a call that is recorded now, with an adapter's added if there is one."""
        self.block.entries.append(call)
        if self.adaptation is None or not inputs:
            return call.y
        return self.adaptation.adapt(call, inputs[0], [*self._path, name])

    def weights_of(self, name: str) -> Mapping[str, Tensor]:
        """Weights, as they are stored, of the layer of this name in the part that is open."""
        path = self.within(name)
        for entry in reversed(self.block.entries):
            for call in entry.calls() if isinstance(entry, Block) and entry.unit else (entry,):
                if isinstance(call, Call) and call.name == path:
                    return call.stored
        raise AssertionError(f"no layer {path} has been recorded in this block")

    def last_call(self) -> Call | None:
        """The call that the root ends in; None where that is a block."""
        last = next((entry for entry in reversed(self.root.entries) if not isinstance(entry, Alias)), None)
        return last if isinstance(last, Call) else None

    def take_back(self, call: Call) -> None:
        """Take the last call off the tape again, and the views of what it made."""
        del self.root.entries[self.root.entries.index(call) :]

    def settle(self, ends: Iterable[Tensor]) -> None:
        """Once all is recorded: a gradient comes back only to calls that one of `ends` depends on.

        Weights to which none comes have no gradient, and so no state of an optimizer (``Parameter.grad`` is None).
        """
        open_calls = [y.maker for y in ends if y.requires_grad]
        stretches = {call: block for block in self.root.blocks() if block.results for call in block.calls()}
        reached: set[Call] = set()
        updated: set[Storage] = set()
        while open_calls:
            call = open_calls.pop()
            if call is None or call in reached:
                continue
            reached.add(call)
            for operand, *_ in call.gradients():
                updated.add(operand.storage)
                open_calls.append(operand.maker)
            if call in stretches:
                open_calls += [y.maker for y in stretches[call].results]
        for call in self.root.calls():
            if call.differentiated and call not in reached:
                call.differentiated = False
                call.detached, call.saved = () if call.recomputed else call.saved, ()
        for block in self.root.blocks():
            if block.recomputed:
                _settle_stretch(block)
        self.updated = {storage: shape for storage, shape in self.trained.items() if storage in updated}

    def _take_weights(self, call: Call, name: str, tied: Mapping[str, Tensor]) -> None:
        layer, shared = call.layer, self._shared
        for weight, shape in layer.weights(call).items():
            within = ".".join([*self._path[shared.depth :], name, weight]) if shared else ""
            tensor = tied.get(weight) or (shared.weights.get(within) if shared else None)
            if tensor is not None:
                tensor.storage.tied = True
                if not layer.whole_gradients:
                    tensor.storage.graded = tensor.storage.elements
            if tensor is None:
                stored = self.precision.stored(layer.kind, shape)
                inner, self.block = self.block, shared.block if shared else self.block
                tensor = self.weight(shape, f"{call.name}.{weight}", stored, frozen=layer.fixed)
                self.block = inner
                if layer.of_experts:
                    tensor.storage.peers = self.layout.ep
                if layer.whole_gradients and (self.layout.shards == 1 or self.layout.stage is not None):
                    tensor.storage.graded = layer.gradient_elements(call, tensor)
                if shared:
                    shared.weights[within] = tensor
            elif tensor.shape != shape:
                raise call.fail(f"a tied {weight} of {show_shape(tensor.shape)} is not {show_shape(shape)}")
            call.weights[weight] = tensor

    def _take_types(self, call: Call, name: str) -> None:
        """Cast what autocast casts, which no complex numbers are, and settle what the call computes in."""
        kind, precision = call.layer.kind, self.precision
        repeated = self.block.parent is not None and name not in ROUTING
        target = precision.cast_to(call.layer.cast_as, self.device, repeated=repeated)
        if target is not None and any(x.storage.dtype in REAL for x in call.inputs):
            target = None
        if target is None:
            self._compute = precision.result(kind, _types(call.inputs), _types(call.weights.values()))
            return
        call.inputs = tuple(self._cast(x, target, name) for x in call.inputs)
        call.weights = {weight: self._cast(w, target, f"{name}.{weight}") for weight, w in call.weights.items()}
        self._compute = precision.made_in(target)

    def _cast(self, x: Tensor, dtype: RealType, name: str) -> Tensor:
        """`x` in another type: made once for a weight that is trained, else each time, as torch.autocast does."""
        if x.dtype == dtype or x.dtype not in FLOATS:
            return x
        key = (x.storage, dtype)
        if key in self._casts:
            return self._casts[key]
        if self.cast is None:
            raise AssertionError(f"a tape under {self.precision.name} must know how to cast")
        once = x.storage.origin == "weight" and (x.requires_grad or not self.training)
        shared = self._shared if once else None
        cast = self._cast_once(shared, dtype, x, name) if shared else self.cast(dtype)(x, name=f"{name}.cast")
        cast.storage.scales = self.precision.scales(dtype, cast.storage.elements)
        if once:
            self._casts[key] = cast
        return cast

    def _cast_once(self, shared: Shared, dtype: RealType, x: Tensor, name: str) -> Tensor:
        """A cast that the first round makes for all: it is recorded before them."""
        assert self.cast is not None
        inner = child = self.block
        while child is not shared.block and _parent(child) is not shared.block:
            child = _parent(child)
        self.block = shared.block
        cast = self.cast(dtype)(x, name=f"{name}.cast")
        self.block = inner
        if inner is not shared.block:
            entries = shared.block.entries
            entries.insert(entries.index(child), entries.pop())
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
            with self._wrapped(self._path), self.recomputation.part(self._path, self.block):
                yield
        finally:
            self._path.pop()
            self._scopes = outer

    @contextmanager
    def sharing(self, shared: Shared) -> Iterator[None]:
        """A part whose weights are those of every other round of it."""
        outer, self._shared, shared.depth = self._shared, shared, len(self._path)
        try:
            yield
        finally:
            self._shared = outer

    @property
    def part_names(self) -> frozenset[str]:
        """Names of parts that are asked for: to be recomputed, frozen, adapted or wrapped."""
        return (
            self.wrapping.names | self.recomputation.names | (self.adaptation.names if self.adaptation else frozenset())
        )

    @property
    def caller(self) -> str:
        """The innermost part that is open, by a path whose parts each end in "/"."""
        return self._scopes[: self._scopes.rfind("/") + 1]

    def within(self, name: str) -> str:
        """`name`, with those of the parts of the model that are open."""
        return ".".join([*self._path, name])

    def part(self, name: str) -> AbstractContextManager[None]:
        """A part of the model that can be recomputed by `name`, which its layers do not carry."""
        return self.recomputation.part([*self._path, name], self.block)

    def _wrapped(self, path: list[str]) -> AbstractContextManager[None]:
        """What is called within is a `unit` if the part at this path was named."""
        return self.unit(name=path[-1]) if self.wrapping.picks(path) else nullcontext()

    @contextmanager
    def unit(self, part: str = "", name: str | None = None) -> Iterator[None]:
        """What is called within has its weights gathered together, where ranks have shares of weights.

        part: what it is called by itself, as which it holds what it reads to its end. name: of the unit, if another
        than that of the part that is open.
        """
        block, start, outer = self.block, len(self.block.entries), self._scopes
        self._scopes = f"{outer}{part}/" if part else outer
        yield
        self._scopes = outer
        if self.layout.shards == 1 or not any(not isinstance(entry, Alias) for entry in block.entries[start:]):
            return
        unit = Block(name or (self._path[-1] if self._path else ""), 1, block)
        unit.entries, unit.unit = block.entries[start:], True
        block.entries[start:] = [unit]

    def repeat(
        self,
        times: int,
        body: Callable[[Tensor], Tensor],
        x: Tensor,
        name: str,
        *,
        grouped: bool = True,
        units: bool = False,
        listed: bool = False,
        numbers: Callable[[int], str] | None = None,
    ) -> Tensor:
        """Apply `body` to `x`, then to its own result, `times` times in all, and trace it once.

        grouped: the rounds are the equal blocks that checkpointing groups. units: each is a `unit`. listed: see
        `scope`. numbers: how the rounds
        from the n-th on, from 0, are numbered where those before are traced on their own (None: n + 1).

        The first rounds are traced on their own until a round hands on exactly the layout that it was given; all that
        remain are then alike. The answer is that of unrolling, whatever is kept across rounds.
        """
        each = partial(self.in_unit, body) if units else body
        if self.recomputation.every is None or self.recomputation.open or not grouped:
            return self._repeat(times, each, x, name, listed=listed, numbers=numbers)
        size = self.recomputation.group(times)
        if size == 1:
            once = partial(self.again, body)
            return self._repeat(times, partial(self.in_unit, once) if units else once, x, name, numbers=numbers)

        def group(x: Tensor, size: int = size) -> Tensor:
            return self.again(lambda x: self._repeat(size, each, x, name), x)

        x = self._repeat(times // size, group, x, GROUP)
        return group(x, times - times // size * size)

    def in_unit(self, body: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply `body` to `x`, as a `unit` if blocks are some."""
        with self.unit() if BLOCK in self.layout.wrap else nullcontext():
            return body(x)

    def again(self, body: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply `body` to `x`, to be run again in backward."""
        with self.recomputation.stretch(self.block, "needed" if self.recomputation.by_operator else "whole"):
            return body(x)

    def _repeat(
        self,
        times: int,
        body: Callable[[Tensor], Tensor],
        x: Tensor,
        name: str,
        *,
        listed: bool = False,
        numbers: Callable[[int], str] | None = None,
    ) -> Tensor:
        left = times
        while left > 0:
            entry = x.as_strided(x.shape, x.strides)
            entry.storage = Storage(0, x.storage.role, x.storage.origin, self.block, dtype=x.dtype)
            done = times - left
            label = name if left is times else f"{name}.{numbers(done) if numbers else done + 1}"
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
            block.source, block.entry, block.exit = x, entry, y
            x = block.result = _hand_on(block, outer, x, entry, y)
        return x

    def __repr__(self) -> str:
        return repr(self.root)


def _settle_stretch(stretch: Block) -> None:
    """Which calls of a stretch are run again: none if no gradient comes back to it, else as far as it says.

    Running it again ends with the last tensor that is needed (``early_stop`` of ``torch.utils.checkpoint``): one that a
    call reads is there before the call itself runs.
    """
    calls = list(stretch.calls())
    if not any(call.differentiated for call in calls):
        stretch.saved = stretch.held = ()
        for call in calls:
            call.recomputed = call.rerun = False
            call.results = ()
    elif stretch.recomputed == "needed":
        for call in reversed(calls):
            call.rerun = any(_made_in(call, storage) for storage in call.saved)
            if call.saved:
                break


def _made_in(call: Call, storage: Storage) -> bool:
    """Whether a call has made a tensor before it is saved; a copy of a factor is made before the product is."""
    operands = call.operands()
    if any(storage is x.storage for x in operands):
        return False
    copies = any(storage.elements is x.size or peek(storage.elements) == peek(x.size) for x in operands)
    return storage is call.y.storage or not (copies and call.layer.forward(call).contractions)


def _types(tensors: Iterable[Tensor]) -> list[Dtype]:
    """Data types of those that hold floating numbers, or complex ones."""
    return [dtype for x in tensors if (dtype := x.storage.dtype) in FLOATS or dtype in REAL]


def _parent(block: Block) -> Block:
    if block.parent is None:
        raise AssertionError("the root block repeats nothing")
    return block.parent


def _hand_on(block: Block, outer: Block, x: Tensor, entry: Tensor, y: Tensor) -> Tensor:
    """The last round's output; `entry` comes to stand for every round's input: `x`, and all outputs but the last."""
    if y.storage is entry.storage:
        entry.storage.parts = (x.storage,)
        return Tensor(y.tape, y.shape, x.storage, y.requires_grad, y.strides, y.maker)
    once = y.storage
    if once.block is not block:  # made outside, the same in every round
        entry.storage.parts = (x.storage, once)
        return y
    rounds = Block(block.name, block.count - 1, outer)
    rest, last = (
        Storage(once.elements, once.role, once.origin, where, once.name, once.dtype) for where in (rounds, outer)
    )
    once.parts = (rest, last)
    entry.storage.parts = (x.storage, rest)
    return Tensor(y.tape, y.shape, last, y.requires_grad, y.strides, y.maker)
