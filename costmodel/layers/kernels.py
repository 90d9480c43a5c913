"""Kernels of layers, made from what a call reads, makes and keeps.

They are those of PyTorch on a GPU: one for each operator, but where its library joins several (a bias that a product
adds, a normalisation) or splits one. Every layer kind states its own; families of kinds state theirs once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from costmodel.graph.call import Call, Gradient
from costmodel.graph.kernel import Kernel, Product, Sort
from costmodel.graph.tensor import Tensor, viewed_strides
from costmodel.symbolic.sizes import product
from costmodel.training.dtypes import FLOATS, REAL, Dtype, size_bytes


def distinct_bytes(x: Tensor) -> int:
    """Bytes of the different elements of a tensor: those that it shows several times (stride 0) are read once."""
    if x.strides is None:
        return x.bytes
    shape = [n for n, stride in zip(x.shape, x.strides, strict=True) if type(stride) is not int or stride]
    return size_bytes(product(shape), x.dtype)


def distinct_bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of reading these tensors, each once."""
    total = 0
    seen: list[Tensor] = []
    for x in tensors:
        if not any(x is other for other in seen):
            seen.append(x)
            total = total + distinct_bytes(x)
    return total


def stream(
    call: Call,
    what: str,
    sort: Sort,
    flops: int,
    read: int,
    written: int,
    launches: int = 1,
) -> Kernel:
    """A kernel of a call that moves bytes, and multiplies no matrices; `what`: of the call's work, "" for all."""
    dtype = call.y.dtype if call.y.dtype in FLOATS or not call.inputs else call.x.dtype
    return Kernel(f"{call.layer.kind} {what}".strip(), sort, flops, read, written, REAL.get(dtype, dtype), launches)


def multiply(
    call: Call, what: str, sizes: Product, read: int, written: int, added: int = 0, launches: int = 1
) -> Kernel:
    """A matrix product of a call, or several one after another; `added`: pointwise operations on the result."""
    name, flops = f"{call.layer.kind} {what}".strip(), launches * sizes.flops + added
    dtype, few, multiplied = REAL.get(call.x.dtype, call.x.dtype), _few(call), call.tape.precision.multiplied
    if few and multiplied:
        dtype = multiplied
    return Kernel(name, "product", flops, read, written, dtype, launches, sizes, None if few == dtype else few)


def _few(call: Call) -> Dtype | None:
    """The type that weights are stored in, where a policy stores those of this call in few bits."""
    few = call.tape.precision.quantised
    return few if few and any(w.dtype == few for w in call.stored.values()) else None


def copy_kernel(call: Call, x: Tensor) -> Kernel:
    """The copy of an operand that a product makes, where memory order is not what it can read."""
    return stream(call, "copy", "pointwise", 0, distinct_bytes(x), x.bytes)


def is_matrix(x: Tensor) -> bool:
    """Whether the rows of a tensor are one matrix in memory, so that a product reads them as they are."""
    return viewed_strides(x.shape, x.strides, (x.rows, x.shape[-1])) is not False


def is_view(call: Call) -> bool:
    """Whether the output is memory of an operand, so that nothing runs."""
    return any(x.storage is call.y.storage for x in call.operands())


def extra_bytes(call: Call) -> int:
    """Bytes that the forward pass writes for backward beside its output: masks, statistics, places."""
    known = [x.storage for x in (*call.operands(), *call.buffers.values(), call.y)]
    return sum(s.bytes for s in dict.fromkeys(call.saved) if not any(s is other for other in known))


def saved_bytes(call: Call) -> int:
    """Bytes that the backward pass reads of what the call has kept."""
    tensors = (*call.operands(), *call.buffers.values(), call.y)
    total = 0
    for storage in dict.fromkeys(call.saved):
        seen = next((x for x in tensors if x.storage is storage), None)
        total = total + (storage.bytes if seen is None else distinct_bytes(seen))
    return total


def new_gradients(call: Call) -> list[Gradient]:
    """Gradients that take a kernel: not the incoming one itself, unless its type changes."""
    return [g for g in call.gradients() if not g.shared or g.operand.dtype != call.y.dtype]


def forward_pass(call: Call, sort: Sort = "pointwise", launches: int = 1, passes: int = 1) -> Iterator[Kernel]:
    """One kernel that reads all operands and writes all that is new; none for a view.

    passes: how often it reads its first input.
    """
    if is_view(call):
        return
    read = distinct_bytes_of((*call.operands(), *call.buffers.values()))
    if passes > 1:
        read = read + (passes - 1) * distinct_bytes(call.x)
    flops = call.layer.forward(call).pointwise
    yield stream(call, "", sort, flops, read, call.y.bytes + extra_bytes(call), launches)


def backward_pass(
    call: Call, sort: Sort = "pointwise", launches: int = 1, *, kept: int | None = None
) -> Iterator[Kernel]:
    """One kernel that reads the incoming gradient and what was kept, and writes every gradient that is new.

    kept: bytes that it reads of what was kept, all unless given.
    """
    gradients = new_gradients(call)
    if not gradients:
        return
    read = call.y.bytes + (saved_bytes(call) if kept is None else kept)
    flops, written = 0, 0
    for g in gradients:
        flops, written = flops + g.work.pointwise, written + g.operand.bytes
    yield stream(call, "backward", sort, flops, read, written, launches)


def backward_each(call: Call) -> Iterator[Kernel]:
    """A kernel for each operand's gradient, and a sum where the operand was broadcast."""
    for x, work, _ in new_gradients(call):
        whole = x.has(call.y.shape)
        summed = 0 if whole else call.y.size
        if whole or work.pointwise != summed:
            flops = work.pointwise - summed
            read = call.y.bytes + saved_bytes(call)
            yield stream(call, "backward", "pointwise", flops, read, call.y.bytes)
        if not whole:
            yield stream(call, "backward sum", "reduction", summed, call.y.bytes, x.bytes)


def scale_bytes(call: Call) -> int:
    """Bytes of the scales of weights that are stored in few bits, which are read with them."""
    policy = call.tape.precision
    stored = [w for w in call.stored.values() if policy.quantised and w.dtype == policy.quantised]
    return sum(policy.scale_bytes(w.shape) for w in stored)


def unpacks_separately(call: Call, rows: int) -> bool:
    """Whether a linear layer's weight is unpacked by a kernel of its own before it is multiplied.

    A single row of what is not trained is multiplied by a kernel that unpacks as it reads (bitsandbytes, gemv_4bit).
    """
    if not call.tape.precision.apart or _few(call) is None:
        return False
    return call.tape.training or rows > 1


def unpacking_kernel(call: Call, what: str = "") -> Kernel:
    """The kernel that unpacks a weight: it reads few bits and the scales, multiplies each by its own, and writes it."""
    weight = call.weights["weight"]
    read, written = distinct_bytes(weight) + scale_bytes(call), size_bytes(weight.size, call.x.dtype)
    return stream(call, f"{what} unpack".strip(), "pointwise", weight.size, read, written)
