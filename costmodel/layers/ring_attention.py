"""Attention over a sequence of which each rank has a part: keys and values of all come by in turn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.kernel import Kernel, Message, Product
from costmodel.graph.tensor import Storage, Tensor, is_contiguous
from costmodel.layers.base import Weightless, layer
from costmodel.layers.kernels import stream
from costmodel.symbolic.sizes import branch_value, exact_div, largest, maximum, minimum
from costmodel.training.dtypes import size_bytes

Rotation = Literal["all-gather", "ring"]

SUM_DTYPE = "fp32"
"""What results of several parts, and gradients of keys and values, are summed in."""
RANDOM_BYTES = 24
"""Of the random state of one kernel: seed and offset."""


class RingPart(NamedTuple):
    """One kernel's share of a rank's queries and of another's keys, as parts of a rank's tokens, and pairs it sees."""

    queries: int
    keys: int
    seen: int


class PartedAttention(Weightless):
    """Abstract: softmax(q kᵀ/√d_h) v of a rank's queries with the keys and values of all `devices`, by fused kernels.

    q: (batch, h, t, d_h); k: (batch, h_kv, t, d_h), v: (batch, h_kv, t, d_v), a rank's own tokens; y: (batch, h, t,
    d_v). Results of the parts are joined by their log-sum-exp. visible: pairs that masks leave are counted, not those
    of whole kernels.
    """

    in_lists = False
    arity = 3

    devices: int
    causal: bool
    dropout: float
    visible: bool

    def check(self, call: Call) -> None:
        """Query, key and value agree."""
        super().check(call)
        q, k, v = (x.shape for x in call.inputs)
        if len(q) != 4 or k[:-1] != v[:-1] or (q[0], *q[2:]) != (k[0], *k[2:]) or q[1] % k[1]:
            raise call.fail("it takes q (batch, h, t, d_h) and k, v (batch, h_kv, t, d) with h_kv dividing h")

    @property
    @abstractmethod
    def halved(self) -> bool:
        """Whether later parts are of half of the queries, or of half of the keys."""

    def parts(self, call: Call) -> tuple[RingPart, RingPart]:
        """What the kernel of this rank's own keys does, and each of those of another rank's."""
        t = call.x.shape[2]
        queries = exact_div(t, 2) if self.halved else t
        return RingPart(t, t, exact_div(t * (t + 1), 2) if self.causal else t * t), RingPart(queries, t, queries * t)

    def _scores(self, call: Call) -> int:
        b, h, *_ = call.x.shape
        own, other = (part.seen if self.visible else part.queries * part.keys for part in self.parts(call))
        return b * h * (own + other * (self.devices - 1))

    def _later(self, call: Call) -> int:
        """Rows of queries of the parts after the first, which are joined with those before."""
        b, h, *_ = call.x.shape
        return b * h * self.parts(call)[1].queries * (self.devices - 1)

    def forward(self, call: Call) -> LayerFlops:
        """Two products, and a score's scale and softmax, with its dropout; joining, of each later part's results.

        That is y − σ(l' − l)·(y − y') and l − log σ(l − l').
        """
        scores, d, rows = self._scores(call), call.x.shape[3] + call.y.shape[3], self._later(call)
        return LayerFlops(2 * scores * d, (9 if self.dropout else 6) * scores + rows * (3 * call.y.shape[3] + 5))

    def backward(self, call: Call) -> Iterable[Gradient]:
        """Five products, and the gradients of all parts added up; charged to the first operand in need of one."""
        scores, d, d_v, rows = self._scores(call), call.x.shape[3], call.y.shape[3], self._later(call)
        own = call.x.size + (call.inputs[1].size + call.inputs[2].size) * self.devices
        done = call.x.rows + rows
        pointwise = (10 if self.dropout else 6) * scores + done * (2 * d_v - 1) + own + rows * d
        work = LayerFlops(2 * scores * (3 * d + 2 * d_v), pointwise)
        for x in sorted(call.inputs, key=lambda x: not x.requires_grad):
            yield Gradient(x, work)
            work = LayerFlops(0, 0)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A fused kernel for each part, and what joins them."""
        q, k, v = call.inputs
        both = 2 * (q.shape[3] + call.y.shape[3])
        for kernel, _ in self._kernels(call, "", both, q.bytes + k.bytes + v.bytes, call.y.bytes):
            yield kernel
        rows = size_bytes(self._later(call) * call.y.shape[3], SUM_DTYPE)
        yield stream(call, "join", "pointwise", self._later(call) * (3 * call.y.shape[3] + 5), 4 * rows, 3 * rows)

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """A fused kernel for each part, and the sums of their gradients."""
        if not call.gradients():
            return
        moved = sum(x.bytes for x in call.inputs)
        products = 2 * (3 * call.x.shape[3] + 2 * call.y.shape[3])
        for kernel, share in self._kernels(call, "backward", products, moved + 2 * call.y.bytes, moved):
            yield kernel
            summed = size_bytes(share, SUM_DTYPE)
            yield stream(call, "backward sums", "pointwise", share, 2 * summed, summed)

    def _kernels(self, call: Call, what: str, products: int, read: int, written: int) -> Iterator[tuple[Kernel, int]]:
        """A kernel for each part, and the elements of its results that are summed.

        products: FLOPs of matrix products for each score.
        """
        b, h, _, d = call.x.shape
        name = f"{self.kind} {what}".strip()
        for part, several in zip(self.parts(call), (1, int(self.devices) - 1), strict=True):
            flops = b * h * part.seen * (products + (9 if self.dropout else 6))
            sizes = Product(b * h, part.queries, part.keys, d)
            kernel = Kernel(name, "attention", flops, read, written, call.x.dtype, 1, sizes)
            summed = b * h * part.queries * d + call.inputs[1].size + call.inputs[2].size
            yield from ((kernel, summed),) * several


@layer
class RingAttention(PartedAttention):
    """Attention over ranks of a sequence as PyTorch has it, each part by one flash kernel.

    all-gather: keys and values of all ranks are there at once; ring: they are handed on from rank to rank. balanced:
    each rank's tokens are as far from the end as from the start, and half of each other rank's are masked; else it is
    the last rank, which masks leave the most.
    """

    source = (
        "torch.distributed.tensor.experimental._context_parallel: _templated_ring_attention and its backward (Liu et "
        "al. 2023, Ring Attention; FlashAttention's products: 2 forward, 5 backward)"
    )

    devices: int
    rotation: Rotation
    balanced: bool
    causal: bool
    dropout: float = 0.0
    visible: bool = False

    def check(self, call: Call) -> None:
        """Keys and values are of one size."""
        super().check(call)
        if call.inputs[1].shape != call.inputs[2].shape:
            raise call.fail("it takes keys and values of one size")

    def output(self, call: Call) -> Tensor:
        """In the query's memory order; contiguous where the second half has been put back into the whole."""
        return call.tape.tensor(call.x.shape) if self.halved else call.like(call.x)

    @property
    def halved(self) -> bool:
        """Of the queries, as on all ranks but the last if balanced."""
        return self.balanced and self.causal

    def sent(self, call: Call) -> tuple[Message, ...]:
        """Keys and values in one message: of all ranks once, or on to the next rank until all have come by."""
        own = call.inputs[1].size + call.inputs[2].size
        dtype = call.inputs[1].dtype
        if self.rotation == "all-gather":
            return (Message("all_gather", "cp", self.devices, own * self.devices, dtype),)
        return (Message("all_to_all", "cp", self.devices, own, dtype),) * (int(self.devices) - 1)

    def returned(self, call: Call) -> tuple[Message, ...]:
        """Keys and values again, and after each part their gradients, on to the next rank until they are home."""
        forth = self.sent(call)
        own = call.inputs[1].size + call.inputs[2].size
        back = Message("all_to_all", "cp", self.devices, own, SUM_DTYPE)
        return tuple(message for i in range(int(self.devices)) for message in (*forth[i : i + 1], back))

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Query, key, value, output, the fp32 log-sum-exp of each row, and the random state of the last kernel."""
        yield from call.inputs
        yield call.y
        yield call.fresh("statistic", *call.x.shape[:3])
        yield call.fresh("random", 3)

    def workspace(self, call: Call) -> Workspace:
        """What is there at the highest moment beside operands, results and gradients."""
        held = RingHoldings.of(call, self)
        forward = maximum(0, largest([*held.forward()]) - held.y - held.rows - RANDOM_BYTES)
        backward = maximum(0, largest([*held.backward()]) - held.y - held.kv)
        return Workspace(exact_div(forward, size_bytes(1, call.y.dtype)), 0, backward)


class EngineAttention(PartedAttention):
    """Abstract: attention over ranks of a sequence as Transformer Engine has it; each rank has tokens of both ends."""

    @property
    def halved(self) -> bool:
        """Where masks leave half of the pairs of other ranks' parts."""
        return self.causal

    def output(self, call: Call) -> Tensor:
        return call.tape.tensor((*call.x.shape[:3], call.inputs[2].shape[3]))


@layer
class EngineRingAttention(EngineAttention):
    """Keys and values are handed on from rank to rank, in Transformer Engine.

    The last rank has most: each of its parts is of all its queries, and of half of the keys before its own.
    """

    source = "transformer_engine.pytorch: AttnFuncWithCPAndKVP2P (Liu et al. 2023, Ring Attention)"

    devices: int
    causal: bool
    dropout: float = 0.0
    visible: bool = False

    def parts(self, call: Call) -> tuple[RingPart, RingPart]:
        """With masks those of another rank's keys are of all queries with half of the keys."""
        own, other = super().parts(call)
        return own, RingPart(own.queries, exact_div(own.keys, 2), other.seen) if self.causal else other

    def _passed(self, call: Call, times: int) -> tuple[Message, Message]:
        """So many times keys and values, to the next rank and from the one before."""
        own, dtype = call.inputs[1].size + call.inputs[2].size, call.inputs[1].dtype
        return (
            Message("send", "cp", self.devices, times * own, dtype),
            Message("receive", "cp", self.devices, times * own, dtype),
        )

    def sent(self, call: Call) -> tuple[Message, ...]:
        """Until those of all ranks have come by."""
        return self._passed(call, 1) * (int(self.devices) - 1)

    def returned(self, call: Call) -> tuple[Message, ...]:
        """Keys and values, then these with their gradients so far, and in the end gradients alone, all in one type."""
        return self._passed(call, 1) + self._passed(call, 2) * (int(self.devices) - 2) + self._passed(call, 1)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Query, the last keys and values that came, output, the log-sum-exp of each row, a random state a part."""
        yield call.x
        yield call.fresh("activation", call.inputs[1].size + call.inputs[2].size)
        yield call.y
        yield call.fresh("statistic", *call.x.shape[:3])
        yield call.fresh("random", 2 * self.devices)

    def workspace(self, call: Call) -> Workspace:
        """Forward keeps to its end all keys and values that came, each part's result, and their sum in fp32.

        Backward has two pairs of keys and values and of their gradients, and the gradients of one part.
        """
        key, value = call.inputs[1:]
        kv, y, rows = key.bytes + value.bytes, call.y.bytes, size_bytes(call.x.rows, SUM_DTYPE)
        summed = size_bytes(call.y.size, SUM_DTYPE)
        n, joined = self.devices, summed if branch_value(summed) != branch_value(y) else 0
        forward = (n - 1) * kv + n * (y + rows) + joined
        return Workspace(exact_div(forward, size_bytes(1, call.y.dtype)), 0, 4 * kv + call.x.bytes)


@layer
class EngineGatherAttention(EngineAttention):
    """Keys and values of all ranks are there at once, in Transformer Engine.

    A rank's tokens of either end are a part by themselves, whose queries see what is before its end.
    """

    source = "transformer_engine.pytorch: AttnFuncWithCPAndKVAllGather (Dubey et al. 2024, Llama 3, §3.3.2)"

    devices: int
    causal: bool
    dropout: float = 0.0
    visible: bool = False

    def parts(self, call: Call) -> tuple[RingPart, RingPart]:
        """As if a rank's own tokens were a part, as in a ring: together the pairs are the same, but for the kernels'.

        With masks kernels are of half the queries with the keys of (n + ½) ranks in all.
        """
        own, other = super().parts(call)
        t = call.x.shape[2]
        return RingPart(exact_div(t, 2), own.keys + exact_div(t, 2), own.seen) if self.causal else own, other

    def _later(self, call: Call) -> int:
        """None: each query is of one part."""
        return 0

    def sent(self, call: Call) -> tuple[Message, ...]:
        """Keys, then values."""
        return tuple(Message("all_gather", "cp", self.devices, self.devices * x.size, x.dtype) for x in call.inputs[1:])

    def returned(self, call: Call) -> tuple[Message, ...]:
        """Keys and values again, and their gradients, summed."""
        gathered = self.sent(call)
        return gathered + tuple(message._replace(operation="reduce_scatter") for message in gathered)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        """Query, a rank's own key and value, the results of both parts, their log-sum-exp and random states."""
        yield from call.inputs
        yield call.fresh("activation", call.y.size)
        yield call.fresh("statistic", *call.x.shape[:3])
        yield call.fresh("random", 4)

    def workspace(self, call: Call) -> Workspace:
        """Keys and values of all ranks, in order; forward the larger ones in another order beside, or the queries.

        Backward has gradients of all, those of each part, and copies of the queries and of the incoming gradient.
        """
        query, key, value = call.inputs
        n, kv = self.devices, key.bytes + value.bytes
        most = maximum(key.bytes, value.bytes)
        first = n * (kv + most) - 2 * call.y.bytes - size_bytes(call.x.rows, SUM_DTYPE)
        forward = maximum(first, n * kv + query.bytes)
        seen = exact_div((2 * n + 1) * kv, 2) if self.causal else 2 * n * kv
        backward = (2 * n - 1) * kv + seen + 2 * query.bytes + call.y.bytes
        return Workspace(exact_div(forward, size_bytes(1, call.y.dtype)), 0, backward)


class RingHoldings(NamedTuple):
    """Bytes of what the rounds of a ring hold, the results and gradients of the last among it.

    kv: keys and values of one rank, kv_sum: their gradients while they are summed. copies: of its own keys and values,
    where those are not contiguous. y: results of all queries, y_sum: while they are summed; rows: their log-sum-exp.
    later_y, later_sum, later_rows: those of a part after the first. devices: ranks. gathers: whether the keys and
    values of all are there at once.
    """

    kv: int
    kv_sum: int
    copies: int
    y: int
    y_sum: int
    rows: int
    later_y: int
    later_sum: int
    later_rows: int
    devices: int
    gathers: bool
    halved: bool

    @classmethod
    def of(cls, call: Call, kind: RingAttention) -> RingHoldings:
        """Those of one call."""
        q, k, v = call.inputs
        y, y_sum, rows = call.y.bytes, size_bytes(q.size, SUM_DTYPE), size_bytes(q.rows, SUM_DTYPE)
        parts = 2 if kind.halved else 1
        return cls(
            kv=k.bytes + v.bytes,
            kv_sum=size_bytes(k.size + v.size, SUM_DTYPE),
            copies=sum(x.bytes for x in (k, v) if not is_contiguous(x.shape, x.strides)),
            y=y,
            y_sum=y_sum,
            rows=rows,
            later_y=exact_div(y, parts),
            later_sum=exact_div(y_sum, parts),
            later_rows=exact_div(rows, parts),
            devices=kind.devices,
            gathers=kind.rotation == "all-gather",
            halved=kind.halved,
        )

    @property
    def _cast(self) -> int:
        """A later part's results, which are there beside the same in the type of sums, if that is another."""
        return 0 if self.y is self.y_sum or branch_value(self.y) == branch_value(self.y_sum) else self.later_y

    def forward(self) -> Iterator[int]:
        """The first part's message and kernel; of later ones the message, the joining, and the whole put together."""
        n, kv = self.devices, self.kv
        arrived = n * kv if self.gathers else kv
        yield self.copies + kv + arrived
        joined = self.y_sum + self.rows + RANDOM_BYTES
        yield self.copies + arrived + joined + self._cast
        if n > 2:
            yield (n + 1 if self.gathers else 3) * kv + joined + self.copies
        if n > 3:
            yield (n + 1 if self.gathers else 4) * kv + joined + self.later_y + self.later_rows
        held = joined + (n if self.gathers else minimum(n - 1, 2)) * kv
        part = self.later_sum + self.later_rows + self._cast
        yield held + part + 2 * self.later_sum + self.later_rows
        if self.halved:
            yield held + part + self.later_sum + self.later_rows + self.y_sum

    def backward(self) -> Iterator[int]:
        """The first part's messages; of later ones the kernel, which has the gradients of the one before beside its
        own, and the queries' gradient put together.
        """
        n, kv, summed = self.devices, self.kv, self.kv_sum
        arrived = n * kv if self.gathers else kv
        yield self.y_sum + 3 * summed + self.copies + 2 * kv + arrived + self.y
        rows = self.later_rows if self.halved else 0
        last = (n + 1 if self.gathers else 2) * kv
        between = (n + 1 if self.gathers else 3) * kv
        held = self.y_sum + 3 * summed + rows + self.later_y + kv
        yield held + (last if n == 2 else between) + self.y + kv
        if n > 2:
            yield held - rows - self.later_y + self.y + self.copies + (n + 2 if self.gathers else 3) * kv
            yield held + last + self.later_y + kv
        if n > 3:
            yield held + between + self.later_y + kv
        if self.halved:
            yield held + (last if n == 2 else between) + self.y_sum
