"""Collectives: what the ranks of one axis of a layout hand to each other, and its transpose in backward.

No kind computes anything that counts as arithmetic of the model: the sums of a reduction are the network's. The whole
is the tensor over all ranks of the axis, a share what one rank has of it.

Source: ``torch/distributed/_functional_collectives.py``, whose collectives make new memory, and the placements of
``torch.distributed.tensor``; Megatron-LM (Shoeybi et al. 2019, §3; Korthikanti et al. 2022, §4.2), whose f and g these
pairs are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from costmodel.graph.call import Call, Weights, Workspace
from costmodel.graph.kernel import Kernel, MeshAxis, Message, Operation, Product
from costmodel.graph.tensor import Shape, Tensor
from costmodel.layers.base import Movement, WeightProduct, layer
from costmodel.symbolic.sizes import exact_div, product
from costmodel.training.dtypes import Dtype


class Collective(Movement):
    """Abstract: one collective each way, or in one direction alone."""

    in_lists = False

    axis: MeshAxis
    devices: int

    @abstractmethod
    def sent(self, call: Call) -> tuple[Message, ...]: ...

    @abstractmethod
    def returned(self, call: Call) -> tuple[Message, ...]: ...

    def message(self, operation: Operation, whole: Tensor) -> tuple[Message]:
        """The one collective of a pass, of which `whole` is the tensor over all ranks."""
        return (Message(operation, self.axis, self.devices, whole.size, whole.dtype),)

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        """No kernel of the device's own; what a collective takes is time on a link."""
        return ()

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        return ()


def _share(shape: Shape, axis: int, devices: int) -> Shape:
    return (*shape[:axis], exact_div(shape[axis], devices), *shape[axis + 1 :])


def _whole(shape: Shape, axis: int, devices: int) -> Shape:
    return (*shape[:axis], shape[axis] * devices, *shape[axis + 1 :])


def _scratch(whole: Tensor, axis: int) -> int:
    """What puts the whole in order takes beside it: ranks are joined along the first axis, then along the right one.

    Nothing where only axes of one are before it (``_maybe_view_chunk_cat``), as where tokens come before samples.
    """
    first = whole.tape.layout.megatron and axis == 1
    return 0 if first or product(whole.shape[:axis]) == 1 else whole.size


@layer
class CopyToRanks(Collective):
    """y = x, the same on every rank; backward sums the gradients of all ranks."""

    source = "f of Shoeybi et al. 2019, §3: identity forward, all-reduce backward (DTensor: Partial to Replicate)"

    axis: MeshAxis
    devices: int

    def output(self, call: Call) -> Tensor:
        return call.x.as_strided(call.x.shape, call.x.strides)

    def sent(self, call: Call) -> tuple[Message, ...]:
        return ()

    def returned(self, call: Call) -> tuple[Message, ...]:
        return self.message("all_reduce", call.x)


@layer
class ReduceFromRanks(Collective):
    """y = the sum of x over all ranks; the gradient of each is the incoming one."""

    source = "g of Shoeybi et al. 2019, §3: all-reduce forward, identity backward"
    shared = True

    axis: MeshAxis
    devices: int

    def output(self, call: Call) -> Shape:
        return call.x.shape

    def sent(self, call: Call) -> tuple[Message, ...]:
        return self.message("all_reduce", call.x)

    def returned(self, call: Call) -> tuple[Message, ...]:
        return ()


@layer
class GatherFromRanks(Collective):
    """y = the shares of all ranks joined along `dim`; backward sums over ranks and scatters (``summed``), or cuts.

    whole: of the joined axis, where that is less than the shares, this rank's being the largest: what fills up the
    others is cut off in a copy.
    """

    source = "all-gather forward; reduce-scatter backward (Korthikanti et al. 2022, §4.2.2), or a rank's own share"

    axis: MeshAxis
    devices: int
    dim: int
    summed: bool = True
    whole: int | None = None

    def output(self, call: Call) -> Shape:
        filled = _whole(call.x.shape, self.dim, self.devices)
        return filled if self.whole is None else (*filled[: self.dim], self.whole, *filled[self.dim + 1 :])

    def sent(self, call: Call) -> tuple[Message, ...]:
        return (Message("all_gather", self.axis, self.devices, self.devices * call.x.size, call.x.dtype),)

    def returned(self, call: Call) -> tuple[Message, ...]:
        return self.message("reduce_scatter", call.y) if self.summed else ()

    def workspace(self, call: Call) -> Workspace:
        scratch, filled = _scratch(call.y, self.dim), self.devices * call.x.size
        if filled == call.y.size:
            return Workspace(scratch, scratch if self.summed else 0)
        return Workspace(2 * filled - call.y.size if scratch else filled, 0)


@layer
class ScatterToRanks(Collective):
    """y = a rank's share, along `dim`, of the sum of x over all ranks; backward gathers the gradients."""

    source = "reduce-scatter forward, all-gather backward (Korthikanti et al. 2022, §4.2.2)"

    axis: MeshAxis
    devices: int
    dim: int

    def output(self, call: Call) -> Shape:
        return _share(call.x.shape, self.dim, self.devices)

    def sent(self, call: Call) -> tuple[Message, ...]:
        return self.message("reduce_scatter", call.x)

    def returned(self, call: Call) -> tuple[Message, ...]:
        return self.message("all_gather", call.x)

    def workspace(self, call: Call) -> Workspace:
        scratch = _scratch(call.x, self.dim)
        return Workspace(scratch, scratch)


@layer
class TakeShare(Collective):
    """y = a rank's share of x along `dim`, x being the same on every rank; backward gathers the gradients."""

    source = "megatron.core.tensor_parallel.scatter_to_sequence_parallel_region, whose output is cloned"

    axis: MeshAxis
    devices: int
    dim: int

    def output(self, call: Call) -> Shape:
        return _share(call.x.shape, self.dim, self.devices)

    def sent(self, call: Call) -> tuple[Message, ...]:
        return ()

    def returned(self, call: Call) -> tuple[Message, ...]:
        return self.message("all_gather", call.x)

    def workspace(self, call: Call) -> Workspace:
        return Workspace(0, _scratch(call.x, self.dim))


@layer
class GatheredLinear(WeightProduct):
    """y = x Wᵀ + b of the tokens of all ranks, which are gathered anew in backward; x: (batch, T, n_in), a rank's own.

    y: (batch, devices · T, features), W: (features, n_in), b: (features), a rank's own outputs. What is kept of x is
    the rank's share. Backward gathers x, sums its gradient over ranks and scatters that.
    """

    source = "Korthikanti et al. 2022, §4.2.2 (megatron.core.tensor_parallel.layers.ColumnParallelLinear)"
    input_axes = "batch, tokens, features"
    in_lists = False

    axis: MeshAxis
    devices: int
    features: int
    bias: bool = True

    def weights(self, call: Call) -> Weights:
        weights = {"weight": (self.features, call.x.shape[-1])}
        return weights | {"bias": (self.features,)} if self.bias else weights

    def output(self, call: Call) -> Shape:
        return (*_whole(call.x.shape, 1, self.devices)[:-1], self.features)

    def sizes(self, call: Call) -> Product:
        return Product(1, call.x.rows * self.devices, self.features, call.x.shape[-1])

    def _message(self, call: Call, operation: Operation, dtype: Dtype) -> Message:
        return Message(operation, self.axis, self.devices, call.x.size * self.devices, dtype)

    def sent(self, call: Call) -> tuple[Message, ...]:
        return (self._message(call, "all_gather", call.x.dtype),)

    def returned(self, call: Call) -> tuple[Message, ...]:
        """Of tokens that are cast for products the copies; gradients in the type of what they are of."""
        gathered = self.sent(call) if call.weights["weight"].requires_grad else ()
        return (*gathered, self._message(call, "reduce_scatter", call.y.dtype)) if call.x.requires_grad else gathered

    def workspace(self, call: Call) -> Workspace:
        """All tokens; in backward those and their gradient."""
        whole = call.x.size * self.devices
        return Workspace(whole, 2 * whole)


class AllToAll(Collective):
    """Abstract: each rank hands each other one as much; the gradient goes the same way back."""

    input_axes = "batch, heads, tokens, features"

    def sent(self, call: Call) -> tuple[Message, ...]:
        """What one rank hands to all, its own part among them."""
        return self.message("all_to_all", call.x)

    def returned(self, call: Call) -> tuple[Message, ...]:
        return self.message("all_to_all", call.x)


@layer
class TokensToHeads(AllToAll):
    """(b, h, t, d), some tokens of all heads, → (b, h/n, n·t, d), all tokens of some heads, tokens first in memory."""

    source = "all-to-all before attention (Jacobs et al. 2023, DeepSpeed-Ulysses, §3.1: DistributedAttention)"

    axis: MeshAxis
    devices: int

    def output(self, call: Call) -> Tensor:
        b, h, t, d = call.x.shape
        shape = (b, exact_div(h, self.devices), t * self.devices, d)
        return call.tape.tensor(shape, strides=_tokens_first(shape))

    def workspace(self, call: Call) -> Workspace:
        """By rank, what is sent and, unless it is one sample's, what comes; in backward what is sent back."""
        size = call.x.size
        return Workspace(size if call.x.shape[0] == 1 else 2 * size, size)


@layer
class HeadsToTokens(AllToAll):
    """(b, h, n·t, d), all tokens of some heads, → (b, n·h, t, d), some tokens of all heads, tokens first in memory."""

    source = "all-to-all after attention (Jacobs et al. 2023, DeepSpeed-Ulysses, §3.1: DistributedAttention)"

    axis: MeshAxis
    devices: int

    def output(self, call: Call) -> Tensor:
        b, h, t, d = call.x.shape
        shape = (b, h * self.devices, exact_div(t, self.devices), d)
        return call.tape.tensor(shape, strides=_tokens_first(shape))

    def workspace(self, call: Call) -> Workspace:
        """By rank, what is sent and what comes; in backward what is sent back, and what comes of several samples."""
        size = call.x.size
        return Workspace(2 * size, size)


def _tokens_first(shape: Shape) -> Shape:
    """Strides of (b, h, t, d) that is (b, t, h, d) in memory."""
    _, h, t, d = shape
    return (h * t * d, d, h * d, 1)


@layer
class GatherCounts(Collective):
    """y = x, rows; all ranks tell each other before how many of theirs each of `counts` experts gets."""

    source = "megatron.core.transformer.moe.token_dispatcher.MoEAlltoAllTokenDispatcher.preprocess"

    axis: MeshAxis
    devices: int
    counts: int

    def output(self, call: Call) -> Tensor:
        return call.x.as_strided(call.x.shape, call.x.strides)

    def sent(self, call: Call) -> tuple[Message, ...]:
        return (Message("all_gather", self.axis, self.devices, self.devices * self.counts, "int64"),)

    def returned(self, call: Call) -> tuple[Message, ...]:
        return ()


@layer
class ExchangeRows(AllToAll):
    """Rows, (n, d), each handed to the rank that has its expert, or back to that of its token; as many come, or `rows`.

    counts: numbers that all ranks hand each other before, of how many rows each expert gets; 0: they are known.
    """

    source = "torch.distributed._functional_collectives.all_to_all_single (Lepikhin et al. 2021, GShard, §3.2)"
    input_axes = "rows, features"

    axis: MeshAxis
    devices: int
    counts: int = 0
    rows: int | None = None

    def output(self, call: Call) -> Shape:
        return call.x.shape if self.rows is None else (self.rows, call.x.shape[1])

    def returned(self, call: Call) -> tuple[Message, ...]:
        return self.message("all_to_all", call.y)

    def sent(self, call: Call) -> tuple[Message, ...]:
        rows = super().sent(call)
        return (
            rows if not self.counts else (Message("all_to_all", self.axis, self.devices, self.counts, "int64"), *rows)
        )
