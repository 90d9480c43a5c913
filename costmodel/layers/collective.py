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

from costmodel.graph.kernel import Kernel, MeshAxis, Message, Operation
from costmodel.graph.tensor import Call, Shape, Tensor, Workspace
from costmodel.layers.base import Movement, layer
from costmodel.symbolic.sizes import exact_div, product


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


def _scratch(shape: Shape, axis: int) -> int:
    """What puts the whole in order takes beside it: ranks are joined along the first axis, then along the right one.

    Nothing where only axes of one are before it (``_maybe_view_chunk_cat``).
    """
    return 0 if product(shape[:axis]) == 1 else product(shape)


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
    """y = the shares of all ranks joined along `dim`; backward sums over ranks and scatters (``summed``), or cuts."""

    source = "all-gather forward; reduce-scatter backward (Korthikanti et al. 2022, §4.2.2), or a rank's own share"

    axis: MeshAxis
    devices: int
    dim: int
    summed: bool = True

    def output(self, call: Call) -> Shape:
        return _whole(call.x.shape, self.dim, self.devices)

    def sent(self, call: Call) -> tuple[Message, ...]:
        return self.message("all_gather", call.y)

    def returned(self, call: Call) -> tuple[Message, ...]:
        return self.message("reduce_scatter", call.y) if self.summed else ()

    def workspace(self, call: Call) -> Workspace:
        scratch = _scratch(call.y.shape, self.dim)
        return Workspace(scratch, scratch if self.summed else 0)


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
        scratch = _scratch(call.x.shape, self.dim)
        return Workspace(scratch, scratch)
