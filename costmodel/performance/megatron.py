"""Kernels of Megatron-Core with Transformer Engine, where these are not PyTorch's, and what its host starts in loops.

Source: ``megatron/core/fusions``, ``megatron/core/transformer/moe``; ``transformer_engine/pytorch/permutation.py``
(``moe_permute``, ``moe_unpermute``), ``module/grouped_linear.py``, ``csrc/extensions/gemm.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.graph.call import Call
from costmodel.graph.kernel import Kernel
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage
from costmodel.layers.kernels import distinct_bytes
from costmodel.performance.laws import ADDED
from costmodel.symbolic.sizes import ceil_div
from costmodel.training.dtypes import size_bytes
from costmodel.training.precision import ROUTING

WITH_ROWS = frozenset({"dispatch_weights", "sort_weights"})
"""Weights of chosen experts, which the kernels that move their rows move too."""
ROUTING_LAUNCHES = 27
"""Kernels of a router and of what is worked out before tokens are sent, beside its product, choice and softmax: 31 in
all with fused routers, 72 without (Megatron-LM, docs/discussions/deepseek-v3-gb200-optimization)."""


def forward_kernels(call: Call) -> Iterator[Kernel]:
    """Of one call."""
    kind, name = call.layer.kind, _name(call)
    if kind == "pick" and (name in WITH_ROWS or name == "collect"):
        return  # the sum over a token's experts reads their rows where they are
    if kind == "rotary":
        yield _in_one(call, "rotary", [*call.layer.forward_kernels(call)])
        return
    yield from call.layer.forward_kernels(call)
    if kind in ("top_k", "grouped_top_k"):
        moved = ROUTING_LAUNCHES * size_bytes(call.y.size, "fp32")
        yield Kernel("routing", "pointwise", 0, moved, moved, "fp32", ROUTING_LAUNCHES)


def backward_kernels(call: Call) -> Iterator[Kernel]:
    """Of one call's backward."""
    kind, name = call.layer.kind, _name(call)
    kernels = call.layer.backward_kernels(call)
    if kind == "rotary":
        yield _in_one(call, "rotary backward", [*kernels])
    elif kind == "pick" and name in WITH_ROWS:
        return
    elif kind == "pick":  # no zeros are written first; of a sum's gradient each row is read once and written often
        read = {"collect": ceil_div(call.x.bytes, _chosen(call))}
        for kernel in kernels:
            yield kernel._replace(launches=1, read=read.get(name, kernel.read))
    else:
        for kernel in kernels:
            yield _added_to(call, kernel) if kernel.name.endswith("backward weight") else kernel


def accumulated(tape: Tape) -> set[Storage]:
    """Weights whose products add to the gradients of all micro-batches (``gradient_accumulation_fusion``)."""
    return {_of_weight(call) for call in tape.root.calls() if _accumulates(call)}


def _name(call: Call) -> str:
    return call.name.rpartition(".")[2]


def _chosen(call: Call) -> int:
    """Experts of a token, of the sum after what collects their rows."""
    readers = (other for other in call.tape.root.calls() if other.layer.kind == "total")
    return next((other.x.shape[1] for other in readers if other.x.storage is call.y.storage), 1)


def _in_one(call: Call, name: str, kernels: list[Kernel]) -> Kernel:
    """Kernels of an operation that is one (``apply_rope_fusion``)."""
    flops = sum(kernel.flops for kernel in kernels)
    return Kernel(name, "pointwise", flops, distinct_bytes(call.x), call.y.bytes, call.y.dtype)


def _accumulates(call: Call) -> bool:
    linear = call.layer.kind in ("linear", "gathered_linear", "expert_linear") and _name(call) not in ROUTING
    return linear and call.differentiated and "weight" in call.weights


def _of_weight(call: Call) -> Storage:
    """The weight of a linear layer, where it is cast the one that the cast is of."""
    weight = call.weights["weight"]
    return weight.storage if weight.maker is None else weight.maker.x.storage


def _added_to(call: Call, kernel: Kernel) -> Kernel:
    """A product that adds to gradients, which it reads and writes."""
    if not _accumulates(call):
        return kernel
    assert kernel.sizes is not None
    sizes = kernel.sizes
    size = size_bytes(sizes.batch * sizes.m * sizes.n, call.tape.precision.gradient_dtype)
    return kernel._replace(name=f"{kernel.name} {ADDED}", read=kernel.read + size, written=size)
