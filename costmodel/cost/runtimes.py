"""What Megatron-Core and DeepSpeed hold and send of weights, gradients and states, where PyTorch alone does otherwise.

A model's layers are run as its tape has them. These classes say what is there throughout, what one step makes beside,
and what is sent along dp.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from costmodel.cost.liveness import GRADIENTS, Allocation, Lifetimes
from costmodel.graph.kernel import Message, Operation
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Shape, Storage
from costmodel.symbolic.sizes import branch_value, ceil_div, minimum, product
from costmodel.training.dtypes import Dtype, size_bytes
from costmodel.training.settings import Settings


class RankTensor(NamedTuple):
    """Tensors of one size that a rank has throughout: on which line, bytes of one, and how many there are."""

    line: str
    size: int
    times: int = 1


def stood_for(tape: Tape) -> dict[Storage, Shape]:
    """Weights of blocks' linear layers, each expert's by itself, with their shapes.

    Megatron adds their gradients to the main ones as it multiplies, and gives autograd an empty tensor instead, of
    which a process has one of each shape, throughout, for all its stages.

    Source: ``get_dummy_wgrad`` of ``transformer_engine/pytorch/module/base.py``; ``gradient_accumulation_fusion``.
    """
    if tape.layout.runtime != "megatron":
        return {}
    apart = ("embedding.", "positions.", "head.")
    weights = {s: shape[-2:] for s, shape in tape.updated.items() if len(shape) > 1 and not s.name.startswith(apart)}
    return {s: shape for s, shape in weights.items() if not s.name.endswith(("router.weight", ".bias"))}


GRADIENTS_SUM, NORMS_SUM, TIED_SUM = "gradients", "gradients of norms", "gradients of tied weights"
"""What sums gradients over ranks."""


class RankRuntime(ABC):
    """Abstract: one rank of dp.

    drops: whether what autograd makes of a weight's gradient is dropped as soon as it is added to what is kept of it.
    once: what backward does after the last micro-batch alone. copies: ranks that have the same weights, of samples or
    parts of sequences of their own.
    """

    drops: bool = True
    once: tuple[str, ...] = (GRADIENTS_SUM, NORMS_SUM, TIED_SUM)

    def __init__(self, tape: Tape, settings: Settings) -> None:
        self.tape = tape
        self.settings = settings
        self.layout = tape.layout
        self.gradient: Dtype = tape.precision.gradient_dtype
        self.copies = tape.layout.dp * tape.layout.cp

    @abstractmethod
    def tensors(self) -> Iterable[RankTensor] | None:
        """Weights, masters and states; None: as PyTorch has them."""

    @abstractmethod
    def buffers(self) -> dict[Hashable, int]:
        """Buffers of its own [bytes], by what tells them apart: those alike of several stages are one, a process's."""

    def shares(self, buffer: Storage) -> bool:
        """Whether a buffer of the model is among `buffers`: none is, unless a runtime has it once for all stages."""
        return False

    @property
    @abstractmethod
    def gradient_bytes(self) -> int:
        """What is kept of gradients [bytes]."""

    @property
    @abstractmethod
    def lasting_bytes(self) -> int:
        """Of this what is there throughout [bytes]."""

    @abstractmethod
    def start_forward(self, lifetimes: Lifetimes) -> None:
        """What a step takes before its forward pass."""

    @abstractmethod
    def start_backward(self, lifetimes: Lifetimes) -> list[Allocation]:
        """What it takes before backward; returns what is there to the end of the step."""

    @abstractmethod
    def end_backward(self, lifetimes: Lifetimes) -> None:
        """Gradients are summed over ranks.

        That some buckets are sent while backward goes on is not told: they are listed in the order in which they fill.
        """

    @abstractmethod
    def update(self, lifetimes: Lifetimes) -> None:
        """The optimizer's step, in one kernel."""

    @property
    @abstractmethod
    def share(self) -> int:
        """Elements that a rank updates."""

    @cached_property
    def updated(self) -> int:
        """Elements of all weights that are trained."""
        return sum([weight.elements * weight.times for weight in self.tape.updated])

    def unrolled(self, weights: Iterable[Storage] | None = None) -> Iterator[int]:
        """Elements of every weight, or of some, from the last back to the first, every round of a block by itself."""
        updated = self.tape.updated if weights is None else weights
        runs = [(block, list(weights)) for block, weights in groupby(updated, key=lambda s: s.block)]
        for block, weights in reversed(runs):
            for _ in range(branch_value(block.times)):
                yield from (weight.elements for weight in reversed(weights))

    def messages(self, operation: Operation, sizes: Iterable[int], dtype: Dtype) -> list[Message]:
        """One along dp, and cp, for each of these sizes [elements]."""
        return [Message(operation, "dp", self.copies, size, dtype) for size in sizes]

    def states(self, share: int, master: Dtype | None) -> Iterator[RankTensor]:
        """Masters and states of so many elements in a row, a rank's."""
        optimizer, policy = self.settings.states, self.settings.policy
        if master:
            yield RankTensor("masters", size_bytes(share, master))
        for size in optimizer.state_sizes((share,), size_bytes(1, policy.state_dtype)):
            yield RankTensor("optimizer", size)
        if scalars := optimizer.scalar_bytes((share,)):
            yield RankTensor("counters", scalars)


LEAST_BUCKET, BUCKET_A_RANK = 40_000_000, 1_000_000
"""Elements of Megatron's bucket: at least so many, and so many for each of dp's ranks (``DistributedDataParallel``)."""
BUCKET_MULTIPLE, START_MULTIPLE = 128, 64
"""The distributed optimizer's buckets are multiples of the first and of dp; its weights start at those of the second
[elements]."""


class WeightBuffer(NamedTuple):
    """Weights whose gradients so many ranks sum: elements of each bucket, in the order in which backward fills them."""

    ranks: int
    buckets: list[int]


class MegatronRank(RankRuntime):
    """Gradients are added up in one buffer of all, the main gradients, which is there throughout.

    What autograd makes of one is in the weight's type. The distributed optimizer (`zero=1`) has the weights in a buffer
    too, and of each bucket of these an equal part's masters and states on each of dp's ranks.

    Source: ``megatron/core/distributed/param_and_grad_buffer.py``, ``megatron/core/optimizer/distrib_optimizer.py``,
    ``megatron/core/distributed/finalize_model_grads.py``; Narayanan et al. 2021.
    """

    @cached_property
    def sums(self) -> list[WeightBuffer]:
        """The buffer of all weights, or of experts another: their gradients are summed over other ranks (``edp``).

        Ranks of a sequence have all weights, and sum and split what dp's do (``with_context_parallel=True``).
        """
        layout = self.layout
        dp, of_experts = branch_value(self.copies), branch_value(layout.ep * layout.expert_tp)
        apart = layout.ep > 1 or layout.expert_tp != layout.tp
        experts = [s for s in self.tape.updated if apart and ".experts." in s.name]
        others = [s for s in self.tape.updated if s not in set(experts)]
        buffers = [self._buffer(others, dp)]
        return [*buffers, self._buffer(experts, dp * branch_value(layout.tp) // of_experts)] if experts else buffers

    def _buffer(self, weights: list[Storage], ranks: int) -> WeightBuffer:
        distributed, most = self.layout.zero > 0, max(LEAST_BUCKET, BUCKET_A_RANK * ranks)
        multiple = math.lcm(ranks, BUCKET_MULTIPLE)
        sizes: list[int] = []
        size = 0
        for elements in self.unrolled(weights):
            start = ceil_div(size, START_MULTIPLE) * START_MULTIPLE if distributed else size
            size = start + elements
            if branch_value(size) >= most:
                sizes.append(size)
                size = 0
        sizes += [size] if branch_value(size) else []
        filled = [ceil_div(size, multiple) * multiple for size in sizes] if distributed else sizes
        return WeightBuffer(ranks, filled)

    @property
    def elements(self) -> int:
        """Of weights, with what fills their buffers up."""
        return sum(sum(buffer.buckets) for buffer in self.sums)

    @property
    def share(self) -> int:
        """See `RankRuntime`: of which it has masters and states."""
        if not self.layout.zero:
            return self.elements
        return sum(ceil_div(sum(buffer.buckets), buffer.ranks) for buffer in self.sums)

    def _sent(self, operation: Operation, dtype: Dtype) -> list[Message]:
        """One for each bucket that is of several ranks."""
        return [
            Message(operation, "dp", buffer.ranks, size, dtype)
            for buffer in self.sums
            if buffer.ranks > 1
            for size in buffer.buckets
        ]

    def tensors(self) -> Iterable[RankTensor] | None:
        """See `RankRuntime`: of the distributed optimizer alone."""
        policy = self.settings.policy
        if not self.layout.zero:
            return None
        weights = RankTensor("weights", size_bytes(self.elements, policy.weight))
        return [weights, *self.states(self.share, policy.master)]

    def buffers(self) -> dict[Hashable, int]:
        """See `RankRuntime`: masks, and what stands for gradients, by shape, see `stood_for`."""
        dtype = self.tape.precision.weight
        masks = {("mask", *x.shape): s.bytes for s, x in self.tape.buffers.items() if self.shares(s)}
        return {**masks, **{shape: size_bytes(product(shape), dtype) for shape in stood_for(self.tape).values()}}

    def shares(self, buffer: Storage) -> bool:
        """See `RankRuntime`: a mask (``get_default_causal_mask`` of ``megatron/core/fusions/fused_softmax.py``)."""
        return buffer.role == "mask"

    @property
    def gradient_bytes(self) -> int:
        """See `RankRuntime`."""
        return size_bytes(self.elements, self.gradient)

    @property
    def lasting_bytes(self) -> int:
        """See `RankRuntime`: all."""
        return self.gradient_bytes

    def start_forward(self, lifetimes: Lifetimes) -> None:
        """See `RankRuntime`: nothing."""

    def start_backward(self, lifetimes: Lifetimes) -> list[Allocation]:
        """See `RankRuntime`: nothing."""
        return []

    def end_backward(self, lifetimes: Lifetimes) -> None:
        """See `RankRuntime`: bucket by bucket over dp, and gradients of norms at once over tp."""
        layout = self.layout
        operation = "reduce_scatter" if layout.zero else "all_reduce"
        if messages := self._sent(operation, self.gradient):  # of experts alone where these are all that have copies
            lifetimes.send(messages, lifetimes.moment("backward", GRADIENTS_SUM, ""))
        self._sum_tied(lifetimes)
        partial = sum([weight.elements * weight.times for weight in self.tape.updated if weight.partial])
        if branch_value(partial):
            now = lifetimes.moment("backward", NORMS_SUM, "")
            lifetimes.take(size_bytes(partial, self.gradient), now)  # all of them in a row
            lifetimes.send([Message("all_reduce", "tp", layout.tp, partial, self.gradient)], now)

    def _sum_tied(self, lifetimes: Lifetimes) -> None:
        """The table of tokens, of which first and last stage have a copy each if the head is tied to it."""
        layout = self.layout
        tables = [s for s in self.tape.updated if s.copied]
        if layout.pp > 1 and tables:
            now = lifetimes.moment("backward", TIED_SUM, "")
            sizes = [weight.elements for weight in tables]
            lifetimes.send([Message("all_reduce", "pp", 2, size, self.gradient) for size in sizes], now)

    def update(self, lifetimes: Lifetimes) -> None:
        """Main gradients of 16 bits are cast before, and weights gathered after it."""
        policy = self.settings.policy
        now = lifetimes.moment("optimizer", "every weight", "")
        if policy.master and self.gradient != policy.master:
            lifetimes.take(size_bytes(self.share, policy.master), now)
        if self.layout.zero:
            now = lifetimes.moment("optimizer", "weights", "")
            lifetimes.send(self._sent("all_gather", policy.weight), now)


REDUCE_BUCKET, PREFETCH_BUCKET = 500_000_000, 50_000_000
REUSE_DISTANCE, SUB_GROUP, PERSISTENT_WEIGHT = 1_000_000_000, 1_000_000_000, 100_000
"""DeepSpeed's defaults [elements]: ``reduce_bucket_size``; and of stage 3 ``prefetch_bucket_size``,
``max_reuse_distance``, ``sub_group_size`` and ``param_persistence_threshold``."""
ALIGNMENT = 2
"""Weights in a row are filled up to a multiple of this for each rank (``nccl_start_alignment_factor``)."""


class DeepSpeedRank(RankRuntime):
    """ZeRO 1 to 3 (Rajbhandari et al. 2020): weights lie in a row, of which each rank updates an equal part in fp32.

    Masters are copies, of fp32 weights too. Gradients of stage 1 are whole up to the step; in stages 2 and 3 a rank
    has the sums of its part. They are copied into a bucket, which is reduced when it is full. Stage 3 has a part of
    each weight, but for small ones, which are whole besides; weights are gathered before they are used, and dropped
    unless they are used again soon. What is offloaded lies on the host, on a line of its own. Stage 1 with fp32
    gradients of 16-bit weights is ``BF16_Optimizer``, which has them in a row throughout and needs no bucket.

    Source: ``deepspeed/runtime/bf16_optimizer.py``, ``zero/stage_1_and_2.py``, ``zero/stage3.py``,
    ``zero/partitioned_param_coordinator.py`` and ``zero/config.py``, whose defaults these are.
    """

    def __init__(self, tape: Tape, settings: Settings) -> None:
        super().__init__(tape, settings)
        self.stage = self.layout.zero
        self.drops = self.stage > 1 or self.gradient != tape.precision.weight
        self._bf16 = self.stage == 1 and self.drops  # BF16_Optimizer
        self.once = (GRADIENTS_SUM,) if self.stage == 1 else ()  # others split what they sum, so sum it each time
        self._buckets: list[Allocation] = []
        self._gathered: Allocation | None = None
        self.states_on_host, self.weights_on_host = (part in settings.offload for part in ("optimizer", "parameters"))

    @property
    def share(self) -> int:
        """See `RankRuntime`."""
        if self.stage == 3:
            return sum([ceil_div(weight.elements, self.copies) * weight.times for weight in self.tape.updated])
        return ceil_div(self.updated, ALIGNMENT * self.copies) * ALIGNMENT

    @cached_property
    def _small(self) -> int:
        """Elements of weights that stay gathered in stage 3."""
        small = [s for s in self.tape.weights if branch_value(s.elements) <= PERSISTENT_WEIGHT]
        return sum([s.elements * s.times for s in small])

    def tensors(self) -> Iterable[RankTensor]:
        """See `RankRuntime`."""
        yield from self._weights()
        states = [*self.states(self.share, "fp32")]
        if not self.states_on_host:
            yield from states
            return
        yield from (each for each in states if each.line == "counters")
        yield RankTensor("host", sum([each.size for each in states if each.line != "counters"]))
        yield RankTensor("host", size_bytes(self.share, "fp32"))  # its gradients
        if self.stage < 3:
            yield RankTensor("host", size_bytes(self.share, self.tape.precision.weight))  # what is copied back
            yield RankTensor("host", self._largest_bytes)
        else:
            yield RankTensor("host", size_bytes(self.share, self.gradient))

    def buffers(self) -> dict[Hashable, int]:
        """See `RankRuntime`: the bucket of stage 3, or of the others a gradient on its way to the host."""
        if self.stage == 3:
            return {"bucket": size_bytes(REDUCE_BUCKET, self.tape.precision.weight)}
        return {"gradient": self._largest_bytes} if self.states_on_host else {}

    @property
    def _largest_bytes(self) -> int:
        """Of the gradient of a weight [bytes]."""
        largest = max(branch_value(s.elements) for s in self.tape.updated)
        return size_bytes(largest, self.tape.precision.weight)

    def _weights(self) -> Iterator[RankTensor]:
        dtype = self.tape.precision.weight
        if self.stage == 3:
            line = "host" if self.weights_on_host else "weights"
            for s in self.tape.weights:
                yield RankTensor(line, size_bytes(ceil_div(s.elements, self.copies), s.dtype), s.times)
            yield RankTensor("weights", size_bytes(self._small, dtype))
            return
        yield RankTensor("weights", size_bytes(self.share * self.copies, dtype))
        for s in self.tape.weights:
            if s not in self.tape.updated:
                yield RankTensor("weights", s.bytes, s.times)

    @property
    def gradient_bytes(self) -> int:
        """See `RankRuntime`."""
        if self.stage == 1:
            return size_bytes(self.updated, self.gradient)
        return 0 if self.states_on_host else size_bytes(self.share, self.gradient)

    @property
    def lasting_bytes(self) -> int:
        """All of stage 3's, of fp32 gradients of 16-bit weights, and of earlier micro-batches."""
        several = self.settings.micro_batches > 1
        return self.gradient_bytes if several or self.stage == 3 or (self.stage == 1 and self.drops) else 0

    def start_forward(self, lifetimes: Lifetimes) -> None:
        """Stage 3 gathers weights; at most those are there together that are used again soon, and those ahead.

        The last ones of forward are used again in backward as much later as there are weights after them.
        """
        if self.stage < 3:
            return
        dtype, all_weights = self.tape.precision.weight, self._large
        largest = max(branch_value(s.elements) for s in self.tape.weights)
        live = minimum(all_weights, REUSE_DISTANCE // 2 + PREFETCH_BUCKET + largest)
        now = lifetimes.moment("forward", "weights", "")
        self._gathered = lifetimes.take(size_bytes(live, dtype), now)
        lifetimes.send(self.messages("all_gather", _pieces(all_weights, PREFETCH_BUCKET), dtype), now)

    @property
    def _large(self) -> int:
        """Elements of weights that stage 3 gathers."""
        return sum([s.elements * s.times for s in self.tape.weights]) - self._small

    def start_backward(self, lifetimes: Lifetimes) -> list[Allocation]:
        """See `RankRuntime`: the bucket, and what of it is sent; stage 3 gathers again what was dropped."""
        now = lifetimes.moment("backward", "bucket", "")
        dtype = self.tape.precision.weight
        self._take_buckets(lifetimes, now)
        if self.stage == 3:
            kept = minimum(self._large, REUSE_DISTANCE // 2)
            lifetimes.send(self.messages("all_gather", _pieces(self._large - kept, PREFETCH_BUCKET), dtype), now)
        if self.stage != 2 or self.lasting_bytes or not branch_value(self.gradient_bytes):
            return []
        return [lifetimes.take(self.gradient_bytes, now, GRADIENTS)]

    def _take_buckets(self, lifetimes: Lifetimes, now: int) -> None:
        """None of gradients that are in a row already."""
        dtype = self.tape.precision.weight
        sizes = [] if self._bf16 else [minimum(self.updated, REDUCE_BUCKET)]  # as it is sent
        sizes += [] if self._bf16 or self.stage == 3 else [REDUCE_BUCKET]
        self._buckets = [lifetimes.take(size_bytes(size, dtype), now) for size in sizes]

    def end_backward(self, lifetimes: Lifetimes) -> None:
        """See `RankRuntime`: stages 1 and 2 sum whole buckets on every rank (``use_multi_rank_bucket_allreduce``).

        A pipeline has buckets at its end alone.
        """
        now = lifetimes.moment("backward", GRADIENTS_SUM, "")
        if self.layout.pp > 1:
            self._take_buckets(lifetimes, now)
        operation = "reduce_scatter" if self.stage == 3 else "all_reduce"
        lifetimes.send(self.messages(operation, self._filled(), self.gradient), now)
        for allocation in self._buckets if self._gathered is None else (*self._buckets, self._gathered):
            allocation.died = now

    def _filled(self) -> list[int]:
        """Elements of buckets: each is sent when the next gradient has no room in it."""
        sizes = [0]
        for elements in self.unrolled():
            if branch_value(sizes[-1] + elements) > REDUCE_BUCKET and branch_value(sizes[-1]):
                sizes.append(0)
            sizes[-1] = sizes[-1] + elements
        return sizes

    def update(self, lifetimes: Lifetimes) -> None:
        """A rank's gradients in a row, and in fp32; weights are gathered after it."""
        dtype = self.tape.precision.weight
        now = lifetimes.moment("optimizer", "every weight", "")
        if not self.states_on_host and not self._bf16:
            part = minimum(self.share, SUB_GROUP) if self.stage == 3 else self.share
            row = lifetimes.take(size_bytes(part, self.gradient), now)
            if self.gradient != "fp32":
                in_fp32 = lifetimes.take(size_bytes(part, "fp32"), now)
                now = in_fp32.died = lifetimes.moment("optimizer", "states", "")
            else:
                now = row.died = lifetimes.moment("optimizer", "states", "")
        gathered = self._small if self.stage == 3 else self.share * self.copies
        if branch_value(gathered):
            now = lifetimes.moment("optimizer", "weights", "")
            lifetimes.send(self.messages("all_gather", [gathered], dtype), now)


def _pieces(elements: int, most: int) -> list[int]:
    """So many elements in pieces of at most `most`."""
    whole, rest = divmod(branch_value(elements), most)
    return [most] * whole + [elements - whole * most] * (rest > 0)


RUNTIMES: dict[str, type[RankRuntime]] = {"megatron": MegatronRank, "deepspeed": DeepSpeedRank}
"""Runtimes other than PyTorch's own."""


def rank_of(tape: Tape, settings: Settings) -> RankRuntime | None:
    """What another runtime than PyTorch's own does; None for that."""
    runtime = tape.layout.runtime
    return None if runtime == "torch" or not tape.training else RUNTIMES[runtime](tape, settings)


def autograd_dtype(tape: Tape) -> Dtype:
    """Data type of the gradient that autograd makes of a weight, be it that of a gathered copy of shares."""
    copied = tape.layout.runtime != "torch" or tape.layout.shards > 1
    return tape.precision.weight if copied else tape.precision.gradient_dtype
