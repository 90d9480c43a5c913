"""Kernels of Megatron-Core with Transformer Engine, where these are not PyTorch's, and what its host starts in loops.

Source: ``megatron/core/fusions``, ``megatron/core/transformer/dot_product_attention.py``,
``megatron/core/transformer/moe``; ``transformer_engine/pytorch/permutation.py``
(``moe_permute``, ``moe_unpermute``), ``module/grouped_linear.py``, ``csrc/extensions/gemm.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.graph.call import Call
from costmodel.graph.kernel import Kernel
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Storage
from costmodel.layers.kernels import distinct_bytes, extra_bytes
from costmodel.performance.laws import ADDED
from costmodel.symbolic.sizes import branch_value, ceil_div, product
from costmodel.training.dtypes import size_bytes
from costmodel.training.precision import ROUTING

WITH_ROWS = frozenset({"dispatch_weights", "sort_weights"})
"""Weights of chosen experts, which the kernels that move their rows move too."""
ROUTING_LAUNCHES = 27
"""Kernels of a router and of what is worked out before tokens are sent, beside its product, choice and softmax: 31 in
all with fused routers, 72 without (Megatron-LM, docs/discussions/deepseek-v3-gb200-optimization)."""
MOST_KEYS = 4096
"""Of a row that one kernel scales, masks and normalises (2,048 until 2023)."""
WARPS = 4
"""Rows of a block of its threads, which heads of all samples are a multiple of."""
WITH_SUM = {"attention_dropout": "add_attention", "mlp_dropout": "add_mlp"}
"""Dropouts that one kernel applies and adds what they are of to the residual (``bias_dropout_fusion``)."""


def forward_kernels(call: Call) -> Iterator[Kernel]:
    """Of one call."""
    kind, name = call.layer.kind, _name(call)
    if kind == "pick" and (name in WITH_ROWS or name == "collect"):
        return  # the sum over a token's experts reads their rows where they are
    if kind == "rotary":
        yield _in_one(call, "rotary", [*call.layer.forward_kernels(call)])
        return
    if _is_in_softmax(call) or (kind == "dropout" and name in WITH_SUM):
        return
    if kind == name == "softmax":
        yield from _softmax(call)
        return
    dropout = _dropout_of(call)
    for kernel in call.layer.forward_kernels(call):
        if dropout is not None:
            yield kernel._replace(written=kernel.written + extra_bytes(dropout))
        elif not (kind == "matmul" and kernel.name.endswith("copy")):  # ``baddbmm`` takes heads of one tensor as views
            yield kernel
    if kind in ("top_k", "grouped_top_k"):
        moved = ROUTING_LAUNCHES * size_bytes(call.y.size, "fp32")
        yield Kernel("routing", "pointwise", 0, moved, moved, "fp32", ROUTING_LAUNCHES)


def backward_kernels(call: Call) -> Iterator[Kernel]:
    """Of one call's backward."""
    kind, name = call.layer.kind, _name(call)
    kernels = call.layer.backward_kernels(call)
    if kind == "rotary":
        yield _in_one(call, "rotary backward", [*kernels])
    elif (kind == "pick" and name in WITH_ROWS) or _is_in_softmax(call):
        return
    elif kind == name == "softmax":
        yield from _softmax(call, "backward")
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


def _is_in_softmax(call: Call) -> bool:
    """Whether a call is of attention's scores, and the product before or the softmax after does it as well."""
    kind, name = call.layer.kind, _name(call)
    return kind == name and kind in ("scale", "mask")


def _dropout_of(call: Call) -> Call | None:
    """The dropout that the kernel of a sum applies too."""
    names = {added: dropout for dropout, added in WITH_SUM.items()}
    makers = (x.maker for x in call.inputs)
    wanted = names.get(_name(call))
    return next((maker for maker in makers if maker is not None and _name(maker) == wanted), None)


def _softmax(call: Call, phase: str = "") -> Iterator[Kernel]:
    """Scores are masked and normalised in one kernel, which reads of a causal row what it sees.

    Heads of all samples must be a multiple of `WARPS` for it. Others are cast to fp32, scaled, masked and cast back,
    each by a kernel of its own (``FusedScaleMaskSoftmax``).
    """
    x, size = call.x, call.x.size
    *outer, queries, keys = (branch_value(n) for n in x.shape)
    name, back = f"softmax {phase}".strip(), bool(phase)
    half = size_bytes(1, x.dtype) == 2
    if half and 16 < keys <= MOST_KEYS and queries % WARPS == 0 and product(outer) % WARPS == 0:
        masked = x.maker is not None and _name(x.maker) == "mask"
        read = (2 if back else 1) * (ceil_div(x.bytes, 2) if masked else x.bytes)
        yield Kernel(name, "reduction", (4 if back else 5) * size, read, x.bytes, x.dtype)
        return
    wide = size_bytes(size, "fp32")
    if half:
        yield Kernel(f"cast {phase}".strip(), "pointwise", 0, x.bytes, wide, "fp32")
    for step in ("scale", "mask"):
        yield Kernel(f"{step} {phase}".strip(), "pointwise", size, wide, wide, "fp32")
    yield Kernel(name, "reduction", (4 if back else 5) * size, (2 if back else 1) * wide, wide, "fp32")
    if half:
        yield Kernel(f"cast {phase}".strip(), "pointwise", 0, wide, x.bytes, "fp32")


def _in_one(call: Call, name: str, kernels: list[Kernel]) -> Kernel:
    """Kernels of an operation that is one (``apply_rope_fusion``)."""
    flops = sum(kernel.flops for kernel in kernels)
    return Kernel(name, "pointwise", flops, distinct_bytes(call.x), call.y.bytes, call.y.dtype)


def _accumulates(call: Call) -> bool:
    linear = call.layer.kind in ("linear", "gathered_linear", "expert_linear") and _name(call) not in ROUTING
    fused = linear and call.tape.layout.runtime == "megatron"
    return fused and call.differentiated and "weight" in call.weights


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
