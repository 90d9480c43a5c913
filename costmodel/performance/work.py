"""All that one step asks of a device, in order: kernels of the forward pass, of backward and of the update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from costmodel.cost.runtimes import rank_of
from costmodel.cost.sharding import share_of
from costmodel.graph.call import Block, Call
from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.replay import retrace
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage, Tensor
from costmodel.layers.experts import ExpertLinear
from costmodel.layers.kernels import distinct_bytes
from costmodel.performance import megatron
from costmodel.performance.fusion import Fusion, FusionGroup, groups_of
from costmodel.performance.laws import TURNED
from costmodel.symbolic.sizes import branch_value, ceil_div, minimum, product
from costmodel.training.dtypes import Dtype, Shape, size_bytes
from costmodel.training.precision import Precision
from costmodel.training.settings import Settings, UpdateName

StepPhase = Literal["forward", "backward", "update"]
PHASES: tuple[StepPhase, ...] = ("forward", "backward", "update")
"""The loss is part of forward; what is run again in backward is part of that."""


class Task(NamedTuple):
    """A kernel of a layer, which happens `times` times in a step. again: whether it is run again for backward.

    looped: launches of the host beyond the kernel's, one for each further expert.
    """

    layer: str
    kind: str
    phase: StepPhase
    times: int
    kernel: Kernel
    again: bool = False
    looped: int = 0

    def starts(self, recorded: Sequence[str] = ()) -> tuple[int, int, int]:
        """Launches of the host: by themselves, in loops, and in graphs, where these have layers `recorded`.

        Products of experts are asked for one by one: of 8, each of 128 rows, cuBLAS on several streams takes 33 µs each
        on Blackwell (NVIDIA/TransformerEngine pull request 3134), as long as others; casts go around a loop.
        """
        launches = self.kernel.launches
        if any(part in name for name in self.layer.split(".") for part in recorded):
            return 0, 0, launches + self.looped
        return (launches + self.looped, 0, 0) if self.kernel.sizes else (launches, self.looped, 0)

    @property
    def contractions(self) -> int:
        """FLOPs of products that are really done: grouped weight gradients once, fused attention's visible pairs."""
        kernel = self.kernel
        if kernel.sizes is None:
            return 0
        return self.times * (kernel.flops if kernel.sort == "attention" else kernel.launches * kernel.sizes.flops)


@dataclass
class StepWork:
    """The tasks of one step, and what was fused."""

    tasks: list[Task] = field(default_factory=list)
    fusions: list[Fusion] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<StepWork: {len(self.tasks)} tasks, {len(self.fusions)} fusions>"


def work_of(tape: Tape, settings: Settings, *, fuse: bool = False) -> StepWork:
    """What one step of a tape asks, all its micro-batches together; fuse: whether chains of kernels become one."""
    work = passes_of(tape, settings, fuse=fuse)
    if tape.training:
        work.tasks += update_tasks(tape, settings)
    return work


def passes_of(
    tape: Tape, settings: Settings, *, fuse: bool = False, chosen: Callable[[Call], bool] | None = None
) -> StepWork:
    """The same without the optimizer's step. chosen: calls that are asked for alone, without sums of gradients."""
    return _Kernels(tape, settings, fuse, chosen).work


def update_tasks(tape: Tape, settings: Settings) -> list[Task]:
    """What the optimizer's step asks."""
    kernels = update_kernels(tape, settings, default_update(settings))
    return [Task("optimizer", settings.states.name, "update", 1, kernel) for kernel in kernels]


class _Kernels:
    """Replays a tape from its end to its start for what backward asks."""

    def __init__(
        self, tape: Tape, settings: Settings, fuse: bool, chosen: Callable[[Call], bool] | None = None
    ) -> None:
        self.tape = tape
        self.chosen = chosen
        self.work = StepWork()
        self.micro_batches = settings.micro_batches
        self.groups: dict[Call, FusionGroup] = groups_of(tape) if fuse else {}
        self.halves = {
            call: cast for call, cast in _halves(tape).items() if call not in self.groups and cast not in self.groups
        }
        self.left_out = set(self.halves.values())
        self.is_megatron = tape.layout.runtime == "megatron"
        self.own: Any = megatron if tape.layout.megatron else _Layers
        self.accumulated = megatron.accumulated(tape) if self.is_megatron else set[Storage]()
        self.of_experts = _experts_of(tape) if self.is_megatron else {}
        for call in tape.root.calls():
            self._forward(call, "forward")
        if tape.training:
            retrace(tape.root, self)
        if tape.training and chosen is None:
            self._sums()
        for group in dict.fromkeys(self.groups.values()):
            if len(group.calls) > 1:
                self.work.fusions.append(group.fusion)

    def call(self, call: Call) -> None:
        """Kernels of a call's backward."""
        if call.differentiated:
            self._add(call, "backward", self._backward_kernels(call))

    def rounds(self, block: Block) -> Iterator[int]:
        """Each block once, for all its rounds; a stretch that is recomputed runs again before its backward."""
        if block.recomputed:
            for call in block.calls():
                if call.computed_again:
                    self._forward(call, "backward", again=True)
        yield 1

    def _add(self, call: Call, phase: StepPhase, kernels: Iterable[Kernel], *, again: bool = False) -> None:
        if self.chosen is not None and not self.chosen(call):
            return
        times = call.times * (1 if is_once_a_step(call) else self.micro_batches)
        name, kind, loops = call.name, call.layer.kind, self.of_experts.get(call, 1) - 1
        self.work.tasks += [
            Task(name, kind, phase, times, kernel, again, loops * kernel.launches) for kernel in kernels
        ]

    def _forward(self, call: Call, phase: StepPhase, *, again: bool = False) -> None:
        self._add(call, phase, self._forward_kernels(call), again=again)

    def _forward_kernels(self, call: Call) -> Iterator[Kernel]:
        group = self.groups.get(call)
        if _quantises(call):
            yield from _quantising(call, call.x)
        elif call in self.halves:
            less = distinct_bytes(call.x) - distinct_bytes(self.halves[call].x)
            yield from (kernel._replace(read=kernel.read - less) for kernel in self.own.forward_kernels(call))
        elif group is None and call not in self.left_out:
            yield from self.own.forward_kernels(call)
        elif group is not None:
            yield from group.parts[call].library if call in group.parts else ()
            if call is group.calls[-1]:
                yield from group.forward

    def _backward_kernels(self, call: Call) -> Iterator[Kernel]:
        group = self.groups.get(call)
        if _quantises(call):  # products write gradients in the type that the operand had
            return
        if call.tape.precision.linear_alone and any(x.dtype == call.tape.precision.autocast for x in call.inputs):
            yield from _quantising(call, call.y)
        if call in self.halves:
            less = call.x.bytes - self.halves[call].x.bytes
            yield from (kernel._replace(written=kernel.written - less) for kernel in self.own.backward_kernels(call))
        elif group is None and call not in self.left_out:
            yield from self.own.backward_kernels(call)
        elif group is not None:
            if call is group.calls[-1]:
                yield from group.backward
            if group.apart(call):
                yield from call.layer.backward_kernels(call)

    def _sums(self) -> None:
        """Adding up the gradients of a tensor that several layers read, and joining those of its slices.

        A compiler adds them in the kernel that makes one of them, which reads the other.
        """
        for storage, (whole, parts, fused) in _contributions(self.tape, self.groups).items():
            weight = storage.origin == "weight"
            dtype: Dtype = self.tape.precision.gradient_dtype if weight else storage.dtype
            size = size_bytes(storage.elements, dtype)
            times = storage.times
            if parts:
                self._sum("join", storage, times * self.micro_batches, dtype, size, size)
            if (sums := whole + bool(parts) - 1) > 0:
                moved = (size, 0, 0) if fused and not weight else (2 * size, size, 1)
                self._sum("sum", storage, sums * times * self.micro_batches, dtype, *moved)
            first = 0 if self.is_megatron else 1  # whose buffer of all micro-batches also has the first added
            if weight and self.micro_batches > first and storage not in self.accumulated:
                own = share_of(self.tape, storage).gradient_bytes if self.tape.layout.shards > 1 else size
                self._sum("sum", storage, (self.micro_batches - first) * times, dtype, 2 * own, own)

    def _sum(
        self, what: str, storage: Storage, times: int, dtype: Dtype, read: int, written: int, launches: int = 1
    ) -> None:
        flops = storage.elements if what == "sum" else 0
        kernel = Kernel(f"gradient {what}", "pointwise", flops, read, written, dtype, launches)
        name = storage.name or "gradient"
        self.work.tasks.append(Task(name, f"gradient {what}", "backward", times, kernel))


class _Layers:
    """Kernels that layers state themselves, as PyTorch has them."""

    @staticmethod
    def forward_kernels(call: Call) -> Iterable[Kernel]:
        """Of one call."""
        return call.layer.forward_kernels(call)

    @staticmethod
    def backward_kernels(call: Call) -> Iterable[Kernel]:
        """Of one call's backward."""
        return call.layer.backward_kernels(call)


def _experts_of(tape: Tape) -> dict[Call, int]:
    """How many experts the products of a call are of, or those of the operand that it casts."""
    counts: dict[Call, int] = {}
    for call in tape.root.calls():
        if isinstance(call.layer, ExpertLinear):
            busy = call.layer.products(call)[0].batch
            casts = (x.maker for x in (*call.inputs, *call.weights.values()))
            counts |= {cast: busy for cast in casts if cast is not None and _quantises(cast)} | {call: busy}
    return counts


def is_once_a_step(call: Call) -> bool:
    """Whether all micro-batches share what a call makes: a weight that is cast for products."""
    return _quantises(call) and call.x.storage.origin == "weight"


def _quantises(call: Call) -> bool:
    """Whether a call casts an operand of a product, see `Precision.linear_alone`."""
    policy = call.tape.precision
    return policy.linear_alone and call.layer.converts and call.y.dtype == policy.autocast


def _quantising(call: Call, x: Tensor) -> Iterator[Kernel]:
    """Kernels that cast a tensor for products: of its largest number, and of its copies by rows and by columns.

    Source: NVIDIA Transformer Engine, ``nvte_compute_amax`` and ``nvte_quantize`` (cast_transpose).
    """
    policy = call.tape.precision
    copies = (2 if call.tape.training else 1) * size_bytes(x.size, policy.autocast or x.dtype)
    if policy.scaled_whole:
        yield Kernel("largest", "reduction", x.size, x.bytes, 0, x.dtype)
    name = f"cast {TURNED}" if call.tape.training and policy.block is None else "cast"
    yield Kernel(name, "pointwise", x.size, x.bytes, copies, x.dtype)


def _halves(tape: Tape) -> dict[Call, Call]:
    """Of each softmax that autocast raises from fp16 to fp32 on a GPU the cast that no kernel of its own makes.

    It is asked for a result in fp32 instead, and PyTorch has a kernel that reads fp16 and writes that, and one that
    writes the gradient in fp16 (at::_softmax with half_to_float); from bf16 there is none.
    """
    if tape.precision.autocast != "fp16" or tape.device != "gpu":
        return {}
    casts = {call.y.storage: call for call in tape.root.calls() if call.layer.converts and call.x.dtype == "fp16"}
    raising = (call for call in tape.root.calls() if call.layer.raises_half)
    return {call: casts[call.x.storage] for call in raising if call.x.storage in casts}


def _contributions(tape: Tape, groups: dict[Call, FusionGroup]) -> dict[Storage, tuple[int, int, bool]]:
    """How many gradients come to each tensor, as a whole and of slices, and whether a fused kernel makes one of them.

    Views hand on what comes to them. What is fused makes one, and none of what is made within.
    """
    contributions: dict[Storage, tuple[int, int, bool]] = {}
    counted: set[tuple[int, int]] = set()
    for call in tape.root.calls():
        if not call.differentiated or any(x.storage is call.y.storage for x in call.inputs):
            continue
        if (group := groups.get(call)) is not None and group.apart(call):
            group = None
        for x in {id(g.operand): g.operand for g in call.gradients()}.values():
            storage = x.storage
            if storage.origin not in ("computed", "weight"):
                continue
            if group is not None:
                if group.differentiates(storage) or (id(group), id(storage)) in counted:
                    continue
                counted.add((id(group), id(storage)))
            for leaf in storage.leaves():  # the input of a repeated block stands for those of all its rounds
                whole, parts, fused = contributions.get(leaf, (0, 0, False))
                part = branch_value(x.size) < branch_value(leaf.elements)
                contributions[leaf] = (whole + (not part), parts + part, fused or group is not None)
    return contributions


TENSORS_AT_ONCE = 36
ELEMENTS_AT_ONCE = 320 * 65536
"""Of a launch that updates several weights (PyTorch, MultiTensorApply.cuh: 36 tensors of four lists, 320 chunks)."""
NEWTON_SCHULZ_STEPS = 5
"""Jordan et al. 2024; torch.optim.Muon's ns_steps."""


def default_update(settings: Settings) -> UpdateName:
    """How weights are updated: as asked, but all at once where PyTorch does so by itself on a GPU (``foreach``)."""
    optimizer = settings.states
    by_itself = settings.device == "gpu" and optimizer.together is not None and optimizer.by_itself
    return "foreach" if by_itself and settings.update == "loop" else settings.update


def _updated(tape: Tape, settings: Settings) -> Iterator[tuple[Shape, int, int]]:
    """What a rank updates of each trained weight: its shape, its elements, and how many there are.

    Runtimes that split states have a rank's share of all weights in a row, which one kernel updates.
    """
    if (runtime := rank_of(tape, settings)) is not None:
        yield (runtime.share,), runtime.share, 1
        return
    for storage, shape in tape.trained.items():
        if tape.layout.shards == 1:
            yield shape, storage.elements, storage.times
        else:
            shape = share_of(tape, storage).shape
            yield shape, product(shape), storage.times


def update_kernels(tape: Tape, settings: Settings, mode: UpdateName) -> Iterator[Kernel]:
    """Kernels of one step over all trained weights, those alike as one with so many launches.

    A loop runs each kernel for every weight, foreach for as many as a launch takes, fused one kernel in all. Of weights
    that are split over ranks it is the rank's share that is updated.
    """
    policy, optimizer = settings.policy, settings.states
    dtype = policy.state_dtype
    alike: dict[tuple[int, int, int], list[int]] = {}
    tensors = elements = states = 0
    for shape, size, times in _updated(tape, settings):
        tensors, elements = tensors + times, elements + size * times
        state_bytes = sum(optimizer.state_sizes(shape, size_bytes(1, dtype)))
        states = states + state_bytes * times
        sums = alike.setdefault(optimizer.passes_of(shape), [0, 0])
        sums[0], sums[1] = sums[0] + times, sums[1] + size * times
        for sizes in _products(optimizer.multiplies, shape):
            factors = sizes.m * sizes.k + sizes.k * sizes.n
            written = size_bytes(sizes.m * sizes.n, policy.weight)
            flops = times * sizes.flops
            name, read = f"update {optimizer.multiplies}", size_bytes(factors, policy.weight)
            yield Kernel(name, "product", flops, times * read, times * written, policy.weight, times, sizes)
    if not tape.trained:
        return
    weights, gradients = size_bytes(elements, dtype), size_bytes(elements, policy.gradient_dtype)
    if tape.layout.runtime != "torch" and policy.master:
        yield from _clipped(policy, elements, _launches(tensors, elements))
        gradients = weights
    in_one = mode == "fused" or tape.layout.runtime != "torch" or any(state.block for state in optimizer.states)
    if in_one:
        launches = tensors if mode == "loop" else _launches(tensors, elements)
        yield Kernel(
            "update", "pointwise", 12 * elements, weights + gradients + states, weights + states, "fp32", launches
        )
    else:
        for (kernels, read, written), (many, size) in alike.items():
            launches = kernels * (1 if optimizer.flat else many if mode == "loop" else _launches(many, size))
            reads, writes = size_bytes(read * size, dtype), size_bytes(written * size, dtype)
            yield Kernel("update", "pointwise", 2 * kernels * size, reads, writes, "fp32", launches)
    if policy.master:
        low = size_bytes(elements, policy.weight)
        launches = tensors if mode == "loop" else _launches(tensors, elements)
        yield Kernel("update weights", "pointwise", 0, weights, low, "fp32", launches)


def _clipped(policy: Precision, elements: int, launches: int) -> Iterator[Kernel]:
    """Gradients of masters, as they are got ready for an update.

    Those of 16 bits are copied to fp32, and of fp16 divided by the loss's scale and looked through for infinities; then
    comes their norm, and all are scaled by what it is over (Megatron-Core's ``MixedPrecisionOptimizer.step``).
    """
    own, wide = size_bytes(elements, policy.gradient_dtype), size_bytes(elements, policy.state_dtype)
    if policy.gradient_dtype != policy.state_dtype:
        yield Kernel("gradients of masters", "pointwise", 0, own, wide, "fp32", launches)
    if policy.gradient_dtype == "fp16":
        yield Kernel("unscale gradients", "pointwise", 2 * elements, wide, wide, "fp32", launches)
    yield Kernel("norm of gradients", "reduction", 2 * elements, wide, 0, "fp32", launches)
    yield Kernel("clip gradients", "pointwise", elements, wide, wide, "fp32", launches)


def _launches(tensors: int, elements: int) -> int:
    return ceil_div(tensors, TENSORS_AT_ONCE) + elements // ELEMENTS_AT_ONCE


def _products(multiplies: str, shape: Shape) -> Iterator[Product]:
    """Matrix products of an update of one weight of two axes."""
    if multiplies == "nothing" or len(shape) != 2:
        return
    if multiplies == "newton-schulz":  # A = XXᵀ, A², (bA + cA²)X, along the smaller side
        small = minimum(*shape)
        large = shape[0] + shape[1] - small
        for _ in range(NEWTON_SCHULZ_STEPS):
            yield Product(1, small, small, large)
            yield Product(1, small, small, small)
            yield Product(1, small, large, small)
        return
    m, n = shape  # Shampoo: GGᵀ, GᵀG, LG, (LG)R; inverse roots are not taken at every step
    yield from (Product(1, m, m, n), Product(1, n, n, m), Product(1, m, n, m), Product(1, m, n, n))
