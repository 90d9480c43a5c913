"""What a compiler makes one kernel of: chains of pointwise kernels, and a reduction that they lead to or come from.

Products stay kernels of a library, as in torch.compile (Ansel et al. 2024, PyTorch 2, §4.4): what is between them is
read once and written once. Numbers that only backward needs are worked out again there, as its partitioner chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from costmodel.graph.call import Block, Call
from costmodel.graph.kernel import Kernel
from costmodel.graph.replay import replay
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage, Tensor
from costmodel.layers.kernels import distinct_bytes, is_view, saved_bytes
from costmodel.symbolic.sizes import branch_value

STREAMS = ("pointwise", "reduction")


class Fusion(NamedTuple):
    """A chain that becomes one kernel: its layers, how often it is there, launches and bytes that a step saves."""

    layers: tuple[str, ...]
    times: int
    launches: int
    bytes: int


class FusedCall(NamedTuple):
    """What a compiler makes of a call.

    kernels: forward, that it writes itself; library: those before them that it does not, such as a convolution without
    its bias. gathers: whether the call only looks elements up, as an embedding does.
    """

    kernels: list[Kernel]
    library: list[Kernel]
    gathers: bool

    @property
    def apart(self) -> bool:
        """Whether its backward kernels stay as they are."""
        return self.gathers or bool(self.library)


def _fused_call(call: Call) -> FusedCall | None:
    """None of what stays a kernel of a library, or is none of its own.

    Casts of weights are done once; what windows are read from is written first (``realize_hint``).
    """
    if call.layer.overlaps or call.y.storage.origin == "cast":
        return None
    kernels = list(call.layer.forward_kernels(call))
    sorts = [k.sort for k in kernels]
    if sorts == ["convolution", "pointwise"] and "bias" in call.weights:
        return FusedCall(kernels[1:], kernels[:1], gathers=False)
    if not sorts or not all(sort in (*STREAMS, "gather") for sort in sorts):
        return None
    return FusedCall(kernels, [], gathers=not any(sort in STREAMS for sort in sorts))


@dataclass(eq=False)
class FusionGroup:
    """Calls that run as one. parts: what is made of each that is no view. outside: results that something else reads.

    goes_on: what it reads that the last kernel of the round before made, whose kernel it then is part of. handed_on:
    the result that such a group reads.
    """

    calls: list[Call] = field(default_factory=list)
    parts: dict[Call, FusedCall] = field(default_factory=dict)
    outside: set[Storage] = field(default_factory=set)
    goes_on: Tensor | None = None
    handed_on: Tensor | None = None

    def takes(self, storage: Storage) -> bool:
        """Whether a tensor is made within."""
        return any(call.y.storage is storage for call in self.calls)

    def differentiates(self, storage: Storage) -> bool:
        """Whether a tensor is made within, and its gradient asked for there."""
        return any(call.y.storage is storage for call in self.calls if not self.apart(call))

    def apart(self, call: Call) -> bool:
        """Whether the backward kernels of a call stay as they are."""
        return call in self.parts and self.parts[call].apart

    @cached_property
    def _inputs(self) -> list[Tensor]:
        """What is read from outside, each tensor once; of a call that ends a library's kernel also what that writes."""
        inputs: list[Tensor] = []
        for call in self.calls:
            part = self.parts.get(call)
            if part is not None and part.library:
                inputs += [call.y, call.weights["bias"]]
                continue
            for x in () if part is not None and part.gathers else (*call.operands(), *call.buffers.values()):
                if not self.takes(x.storage) and not any(x.storage is other.storage for other in inputs):
                    inputs.append(x)
        return inputs

    @cached_property
    def _outputs(self) -> list[Tensor]:
        """What is written."""
        results = {call.y.storage: call.y for call in self.calls if not is_view(call)}
        return [y for storage, y in results.items() if storage in self.outside]

    @property
    def forward(self) -> list[Kernel]:
        """One kernel, none if it goes on in another; statistics of the batch, which come first, are of their own."""
        return self._forward if self.goes_on is None else _within_another(self._forward, self.goes_on)

    @cached_property
    def _forward(self) -> list[Kernel]:
        kernels = self._forward_apart
        if _launches(kernels) < 2:
            return kernels
        whole = [call for call in self.calls if call.layer.over_batch(call)]
        read = sum(distinct_bytes(x) for x in self._inputs) + sum(distinct_bytes(call.x) for call in whole)
        read = read + sum(k.read for part in self.parts.values() if part.gathers for k in part.kernels)
        written = sum(y.bytes for y in self._outputs)
        return [self._kernel(kernels, "", read, written, 1 + len(whole))]

    @cached_property
    def _forward_apart(self) -> list[Kernel]:
        """What its calls would run by themselves, without kernels of libraries."""
        return [kernel for part in self.parts.values() for kernel in part.kernels]

    @cached_property
    def _backward_apart(self) -> list[Kernel]:
        """The same of backward."""
        return [k for call in self._differentiated for k in call.layer.backward_kernels(call)]

    @cached_property
    def _differentiated(self) -> list[Call]:
        return [call for call in self.calls if call.differentiated and not self.apart(call)]

    @property
    def backward(self) -> list[Kernel]:
        """One kernel, and one more for the gradients of weights, which sum over rows; less if another goes on in it."""
        return self._backward if self.handed_on is None else _within_another(self._backward, self.handed_on)

    @cached_property
    def _backward(self) -> list[Kernel]:
        calls, kernels = self._differentiated, self._backward_apart
        if _launches(kernels) < 2:
            return kernels
        gradients = [g for call in calls for g in call.gradients()]
        summing = [call for call in calls if any(g.operand.storage.origin == "weight" for g in call.gradients())]
        read = sum(y.bytes for y in self._outputs if y.requires_grad) + self._kept(calls)
        read = read + sum(call.y.bytes + saved_bytes(call) for call in summing)
        # Operands that get the incoming gradient itself share one.
        outer = [g for g in gradients if not self.differentiates(g.operand.storage)]
        own = {id(g.operand): g.operand for g in outer if not g.shared}
        shared = [g.operand for g in outer if g.shared]
        written = sum(x.bytes for x in own.values())
        if shared and not any(x.storage.origin != "weight" for x in own.values()):
            written = written + shared[0].bytes
        return [self._kernel(kernels, "backward", read, written, 1 + len(summing))]

    def _kept(self, calls: list[Call]) -> int:
        """Bytes read of saved tensors: of what was not written all that it is worked out from."""
        saved = {storage for call in calls for storage in call.saved if storage.origin in ("computed", "input")}
        own = {x.storage for x in self._inputs}
        again = any(
            storage not in self.outside and storage not in own
            for storage in saved
            if self.takes(storage) or storage.role == "logits"
        )
        tensors = [x for x in self._inputs if x.storage.origin != "weight" and (again or x.storage in saved)]
        tensors += [y for y in self._outputs if y.storage in saved and y.storage not in own]
        return sum(distinct_bytes(x) for x in tensors)

    def _kernel(self, kernels: list[Kernel], what: str, read: int, written: int, launches: int) -> Kernel:
        reduces = any(kernel.sort == "reduction" for kernel in kernels)
        flops = sum(kernel.flops for kernel in kernels)
        name = f"fused {what}".strip()
        dtype = self.calls[-1].y.dtype
        return Kernel(name, "reduction" if reduces else "pointwise", flops, read, written, dtype, launches)

    @property
    def _saved(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Launches and bytes saved forward, and backward."""
        return _less(self._forward_apart, self.forward), _less(self._backward_apart, self.backward)

    @property
    def pays(self) -> bool:
        """Whether the joint kernels move no more, and are no more."""
        return all(branch_value(launches) >= 0 and branch_value(moves) >= 0 for launches, moves in self._saved)

    @property
    def fusion(self) -> Fusion:
        """What it saves."""
        names = tuple(call.name for call in self.calls if not is_view(call))
        times = self.calls[0].times
        launches, moves = (forward + backward for forward, backward in zip(*self._saved, strict=True))
        return Fusion(names, times, times * launches, times * moves)


def _within_another(kernels: list[Kernel], x: Tensor) -> list[Kernel]:
    """Kernels the first of which is part of one that has a tensor at hand already."""
    if not kernels or branch_value(kernels[0].read) < branch_value(distinct_bytes(x)):
        return kernels
    first = kernels[0]._replace(read=kernels[0].read - distinct_bytes(x), launches=kernels[0].launches - 1)
    return [first, *kernels[1:]]


def _less(apart: list[Kernel], joint: list[Kernel]) -> tuple[int, int]:
    launches = sum(k.launches for k in apart) - sum(k.launches for k in joint)
    return launches, sum(k.read + k.written for k in apart) - sum(k.read + k.written for k in joint)


def groups_of(tape: Tape) -> dict[Call, FusionGroup]:
    """The group of each call that is fused with others."""
    makers: dict[Storage, Maker] = {}
    for number, call in enumerate(tape.root.calls()):
        if not is_view(call):
            makers[call.y.storage] = Maker(number, call)
    joining = _Joining(makers)
    replay(tape.root, joining)
    read: dict[Storage, list[Call]] = {}
    for call in tape.root.calls():
        for x in call.operands():
            read.setdefault(x.storage, []).append(call)
    groups = {call: group for call, group in joining.groups.items() if _launches(group._forward_apart) > 1}
    handed = {block.exit.storage for block in tape.root.blocks() if block.exit is not None}
    handed |= {x.storage for x in tape.outputs}
    for group in dict.fromkeys(joining.groups.values()):
        for call in group.calls:
            storage = call.y.storage
            readers = read.get(storage, [])
            if storage in handed or not readers or any(groups.get(reader) is not group for reader in readers):
                group.outside.add(storage)
    kept = {call: group for call, group in joining.groups.items() if call not in groups or group.pays}
    _hand_on(tape, kept)
    return {c: g for c, g in kept.items() if c in groups or g.goes_on is not None or g.handed_on is not None}


def _hand_on(tape: Tape, groups: dict[Call, FusionGroup]) -> None:
    """Let what reads the result of a round as it begins, or after the last, go on where the round's last kernel was."""
    results = {call.y.storage: (group, call.y) for call, group in groups.items() if not is_view(call)}
    sources = _sources(tape)
    readers: dict[Storage, list[tuple[FusionGroup, Tensor]]] = {}
    for group in dict.fromkeys(groups.values()):
        outer = [x for x in group._inputs if x.storage.origin not in ("weight", "buffer")]
        if len(outer) == 1 and not any(call.layer.over_batch(call) for call in group.calls):
            readers.setdefault(_source(outer[0].storage, sources), []).append((group, outer[0]))
    for block in tape.root.blocks():
        if block.exit is None or block.recomputed:
            continue
        made = _source(block.exit.storage, sources)
        if made not in results:
            continue
        last, y = results[made]
        ends = dict.fromkeys((*(x.storage for x in (block.entry,) if x is not None), made))
        for group, x in (reader for storage in ends for reader in readers.get(storage, [])):
            if group is not last and _fits(group.calls[0], last):
                group.goes_on, last.handed_on = x, y


def _sources(tape: Tape) -> dict[Storage, Storage]:
    """What results of blocks, and entries of blocks that happen once, stand for."""
    sources: dict[Storage, Storage] = {}
    for block in tape.root.blocks():
        if block.result is not None and block.exit is not None:
            sources[block.result.storage] = block.exit.storage
        if block.entry is not None and block.source is not None and _once(block):
            sources[block.entry.storage] = block.source.storage
    return sources


def _source(storage: Storage, sources: dict[Storage, Storage]) -> Storage:
    while storage in sources:
        storage = sources[storage]
    return storage


def _once(block: Block) -> bool:
    """Whether a block happens as often as what is around it."""
    return type(block.count) is int and block.count == 1 and not block.recomputed


def _launches(kernels: list[Kernel]) -> int:
    return sum(branch_value(kernel.launches) for kernel in kernels)


class Maker(NamedTuple):
    """The call that made a tensor, and its number in the order of the forward pass."""

    number: int
    call: Call


class _Joining:
    """Joins each call to the groups that made what it reads, unless something between needs these before."""

    def __init__(self, makers: dict[Storage, Maker]) -> None:
        self.groups: dict[Call, FusionGroup] = {}
        self._makers = makers
        self._here: dict[Storage, FusionGroup] = {}

    def call(self, call: Call) -> None:
        """A call joins a group that it fits, or begins one; a view goes with its group."""
        part = None if is_view(call) else _fused_call(call)
        if part is not None:
            group = self._joined(call, part)
            group.parts[call] = part
        elif is_view(call) and call.y.storage in self._here:
            group = self._here[call.y.storage]
        else:
            return
        self.groups[call] = group
        group.calls.append(call)

    def bind(self, target: Tensor, source: Tensor) -> None:
        """Groups are known by memory, which a view shares."""

    def rounds(self, block: Block) -> Iterator[int]:
        """Each block once, for all its rounds; those that happen as often as what is around them hide nothing."""
        around = self._here
        if not _once(block):
            self._here = {}
        yield 1
        if not _once(block):
            self._here = around

    def _joined(self, call: Call, part: FusedCall) -> FusionGroup:
        written = () if part.library or _sums_places(call) else call.inputs
        near = dict.fromkeys(self._here[x.storage] for x in written if x.storage in self._here)
        fitting = [g for g in near if _fits(call, g) and not _between(call, g, self.groups, self._makers)]
        group = fitting[0] if fitting else FusionGroup()
        self._here[call.y.storage] = group
        for other in fitting[1:]:
            self._merge(group, other)
        return group

    def _merge(self, group: FusionGroup, other: FusionGroup) -> None:
        """Join two groups that a call reads results of, unless one needs the other's results before."""
        for one, another in ((group, other), (other, group)):
            if any(_between(call, another, self.groups, self._makers) for call in one.calls):
                return
        number = {call: self._makers[call.y.storage].number for call in (*group.calls, *other.calls)}
        group.calls = sorted(number, key=number.__getitem__)
        group.parts |= other.parts
        for call in other.calls:
            self.groups[call] = self._here[call.y.storage] = group


def _sums_places(call: Call) -> bool:
    """Whether a call sums over the places of images, which are not in the order that what made them goes through."""
    return len(call.x.shape) == 4 and branch_value(call.y.size) < branch_value(call.x.size)


def _fits(call: Call, group: FusionGroup) -> bool:
    """Whether it goes over as many elements as the group, which has not been reduced to fewer."""
    largest = max(branch_value(c.y.size) for c in group.calls)
    size = max([branch_value(call.y.size), *(branch_value(x.size) for x in call.inputs)])
    return size == largest == branch_value(group.calls[-1].y.size)


def _between(call: Call, group: FusionGroup, groups: dict[Call, FusionGroup], makers: dict[Storage, Maker]) -> bool:
    """Whether something else that a call reads is made from results of a group, which then must be done before."""
    first = min(makers[c.y.storage].number for c in group.calls if c.y.storage in makers)
    ahead = [x.storage for x in call.inputs if not group.takes(x.storage)]
    seen: set[Storage] = set()
    while ahead:
        storage = ahead.pop()
        maker = makers.get(storage)
        if storage in seen or maker is None:
            continue
        seen.add(storage)
        if group.takes(storage):
            return True
        joined = groups.get(maker.call)
        if maker.number < first and joined is None:
            continue  # made before the group began
        for source in (maker.call,) if joined is None else joined.calls:
            ahead += [x.storage for x in source.inputs]
    return False
