"""What a compiler makes one kernel of: chains of pointwise kernels, and a reduction that they lead to or come from.

Products stay kernels of a library, as in torch.compile (Ansel et al. 2024, PyTorch 2, §4.4): what is between them is
read once and written once. Numbers that only backward needs are worked out again there, as its partitioner chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from costmodel.graph.kernel import Kernel
from costmodel.graph.replay import replay
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Block, Call, Storage, Tensor
from costmodel.layers.kernels import distinct_bytes, is_view, saved_bytes
from costmodel.symbolic.sizes import branch_value

STREAMS = ("pointwise", "reduction")


class Fusion(NamedTuple):
    """A chain that becomes one kernel: its layers, how often it is there, launches and bytes that a step saves."""

    layers: tuple[str, ...]
    times: int
    launches: int
    bytes: int


@dataclass(eq=False)
class FusionGroup:
    """Calls that run as one. outside: results that something else reads too."""

    calls: list[Call] = field(default_factory=list)
    outside: set[Storage] = field(default_factory=set)

    def takes(self, storage: Storage) -> bool:
        """Whether a tensor is made within."""
        return any(call.y.storage is storage for call in self.calls)

    @cached_property
    def _inputs(self) -> list[Tensor]:
        """What is read from outside, each tensor once."""
        inputs: list[Tensor] = []
        for call in self.calls:
            for x in (*call.operands(), *call.buffers.values()):
                if not self.takes(x.storage) and not any(x.storage is other.storage for other in inputs):
                    inputs.append(x)
        return inputs

    @cached_property
    def _outputs(self) -> list[Tensor]:
        """What is written."""
        results = {call.y.storage: call.y for call in self.calls if not is_view(call)}
        return [y for storage, y in results.items() if storage in self.outside]

    @cached_property
    def forward(self) -> list[Kernel]:
        """One kernel; statistics of the batch, which come first, are of a kernel of their own."""
        kernels = [kernel for call in self.calls for kernel in call.layer.forward_kernels(call)]
        if _launches(kernels) < 2:
            return kernels
        whole = [call for call in self.calls if call.layer.over_batch(call)]
        read = sum(distinct_bytes(x) for x in self._inputs) + sum(distinct_bytes(call.x) for call in whole)
        written = sum(y.bytes for y in self._outputs)
        return [self._kernel(kernels, "", read, written, 1 + len(whole))]

    @cached_property
    def backward(self) -> list[Kernel]:
        """One kernel, and one more for the gradients of weights, which sum over rows."""
        calls = [call for call in self.calls if call.differentiated]
        kernels = [kernel for call in calls for kernel in call.layer.backward_kernels(call)]
        if _launches(kernels) < 2:
            return kernels
        gradients = [g for call in calls for g in call.gradients()]
        summing = [call for call in calls if any(g.operand.storage.origin == "weight" for g in call.gradients())]
        read = sum(y.bytes for y in self._outputs if y.requires_grad) + self._kept(calls)
        read = read + sum(call.y.bytes + saved_bytes(call) for call in summing)
        # Operands that get the incoming gradient itself share one.
        own = {id(g.operand): g.operand for g in gradients if not g.shared and not self.takes(g.operand.storage)}
        shared = [g.operand for g in gradients if g.shared and not self.takes(g.operand.storage)]
        written = sum(x.bytes for x in own.values())
        if shared and not any(x.storage.origin != "weight" for x in own.values()):
            written = written + shared[0].bytes
        return [self._kernel(kernels, "backward", read, written, 1 + len(summing))]

    def _kept(self, calls: list[Call]) -> int:
        """Bytes read of saved tensors: of what was not written all that it is worked out from."""
        saved = {storage for call in calls for storage in call.saved if storage.origin in ("computed", "input")}
        again = any(self.takes(storage) and storage not in self.outside for storage in saved)
        tensors = [x for x in self._inputs if x.storage.origin != "weight" and (again or x.storage in saved)]
        tensors += [y for y in self._outputs if y.storage in saved]
        return sum(distinct_bytes(x) for x in tensors)

    def _kernel(self, kernels: list[Kernel], what: str, read: int, written: int, launches: int) -> Kernel:
        reduces = any(kernel.sort == "reduction" for kernel in kernels)
        flops = sum(kernel.flops for kernel in kernels)
        name = f"fused {'softmax ' if any('softmax' in k.name for k in kernels) else ''}{what}".strip()
        dtype = self.calls[-1].y.dtype
        return Kernel(name, "reduction" if reduces else "pointwise", flops, read, written, dtype, launches)

    @cached_property
    def _saved(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Launches and bytes saved forward, and backward."""
        forward = [kernel for call in self.calls for kernel in call.layer.forward_kernels(call)]
        trained = [call for call in self.calls if call.differentiated]
        backward = [kernel for call in trained for kernel in call.layer.backward_kernels(call)]
        return _less(forward, self.forward), _less(backward, self.backward)

    @cached_property
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
    groups = {call: group for call, group in joining.groups.items() if _kernels(group) > 1}
    read: dict[Storage, list[Call]] = {}
    for call in tape.root.calls():
        for x in call.operands():
            read.setdefault(x.storage, []).append(call)
    handed = {block.exit.storage for block in tape.root.blocks() if block.exit is not None}
    handed |= {x.storage for x in tape.outputs}
    for group in dict.fromkeys(groups.values()):
        for call in group.calls:
            storage = call.y.storage
            readers = read.get(storage, [])
            if storage in handed or not readers or any(groups.get(reader) is not group for reader in readers):
                group.outside.add(storage)
    return {call: group for call, group in groups.items() if group.pays}


def _kernels(group: FusionGroup) -> int:
    """Launches of all its calls apart: one that is composed of several becomes one kernel by itself."""
    return sum(_launches(list(call.layer.forward_kernels(call))) for call in group.calls)


def _launches(kernels: list[Kernel]) -> int:
    return sum(branch_value(kernel.launches) for kernel in kernels)


class Maker(NamedTuple):
    """The call that made a tensor, and its number in the order of the forward pass."""

    number: int
    call: Call


class _Joining:
    """Joins each call to the group that made what it reads in its block, unless something between needs that group."""

    def __init__(self, makers: dict[Storage, Maker]) -> None:
        self.groups: dict[Call, FusionGroup] = {}
        self._makers = makers
        self._here: dict[Storage, FusionGroup] = {}

    def call(self, call: Call) -> None:
        """A call joins a group that it fits, or begins one; a view goes with its group."""
        group = self._here.get(call.y.storage) if is_view(call) else self._joined(call)
        if group is not None:
            self.groups[call] = group
            group.calls.append(call)

    def bind(self, target: Tensor, source: Tensor) -> None:
        """Groups are known by memory, which a view shares; none goes beyond its block."""

    def rounds(self, block: Block) -> Iterator[int]:
        """Each block once, for all its rounds."""
        around, self._here = self._here, {}
        yield 1
        self._here = around

    def _joined(self, call: Call) -> FusionGroup | None:
        if not _streams(call):
            return None
        near = dict.fromkeys(self._here[x.storage] for x in call.inputs if x.storage in self._here)
        fitting = (g for g in near if _fits(call, g) and not _between(call, g, self.groups, self._makers))
        group = self._here[call.y.storage] = next(fitting, None) or FusionGroup()
        return group


def _streams(call: Call) -> bool:
    """Whether a compiler writes all its kernels itself; not casts of weights, done once, nor windows that overlap."""
    kernels = list(call.layer.forward_kernels(call))
    alone = call.layer.overlaps or call.y.storage.origin == "cast"
    return not alone and bool(kernels) and all(k.sort in STREAMS for k in kernels)


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
