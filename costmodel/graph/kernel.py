"""What a layer asks of a device: its kernels, each with the work that it really does and the bytes that it moves."""

from __future__ import annotations

from typing import Literal, NamedTuple

from costmodel.symbolic.sizes import ceil_div
from costmodel.training.dtypes import Dtype, size_bytes

Sort = Literal["product", "convolution", "attention", "pointwise", "reduction", "gather"]
"""What decides the speed of a kernel.

product: matrix products; convolution: an implicit matrix product; attention: both products and the softmax in one
kernel. pointwise: each element by itself, copies and optimizer steps among them; reduction: rows or channels are
reduced (norms, softmax, losses, pooling, sums); gather: addresses come from data (embeddings, indexing).
"""


class Product(NamedTuple):
    """Sizes of `batch` products of (m × k) by (k × n).

    A convolution is an implicit one, with a batch of its groups: m = images · output pixels, n = output channels of a
    group, k = input channels of a group · window. Attention has a batch of images · heads, m queries, n keys and
    heads of size k.
    """

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Of all products, a multiply-add being 2."""
        return 2 * self.batch * self.m * self.n * self.k


class Kernel(NamedTuple):
    """One kernel, started `launches` times.

    flops: arithmetic really done in all launches, contractions and pointwise, a multiply-add being 2: unlike the
    headline FLOPs, which follow PyTorch's counter. read, written: bytes moved to and from memory in all launches if
    nothing stays in a cache. dtype: the type of the operands, which decides the peak. sizes: of products only, those of
    one launch.
    """

    name: str
    sort: Sort
    flops: int
    read: int
    written: int
    dtype: Dtype
    launches: int = 1
    sizes: Product | None = None
    stored: Dtype | None = None
    """Type of weights that a product unpacks to `dtype` as it reads them; None: they are of that type."""


Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "receive", "broadcast"]
"""Collectives, as ``torch.distributed`` names them."""
MeshAxis = Literal["tp", "dp", "fsdp", "cp", "ep", "pp"]
"""Axes of a mesh of devices."""
_TURNS: dict[Operation, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often every share of the whole but a rank's own passes it on a ring."""


def wire_bytes(operation: Operation, devices: int, size: int) -> int:
    """What one rank sends to others for a whole tensor of `size` bytes around a ring [bytes], rounded up.

    A sender and each link of a broadcast hand on the whole, a receiver nothing.

    Source: Patarasuk & Yuan 2009, Bandwidth optimal all-reduce algorithms, §3; NCCL tests, doc/PERFORMANCE.md.
    """
    if operation in _TURNS:
        return ceil_div(_TURNS[operation] * (devices - 1) * size, devices)
    return 0 if operation == "receive" else size


class Message(NamedTuple):
    """One collective: along which axis, among how many devices, and the size of the whole tensor [elements]."""

    operation: Operation
    axis: MeshAxis
    devices: int
    elements: int
    dtype: Dtype

    @property
    def bytes(self) -> int:
        """Size of the whole tensor [bytes]."""
        return size_bytes(self.elements, self.dtype)
