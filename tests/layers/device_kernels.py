"""What holds of the kernels of every call."""

from __future__ import annotations

from costmodel.cost.rows import traffic
from costmodel.graph.call import Call
from costmodel.graph.kernel import Kernel
from costmodel.graph.tape import Tape

PRODUCTS = ("product", "convolution")


def check_kernels(tape: Tape) -> None:
    """Kernels do the arithmetic that the layer states, and move no fewer bytes than they must."""
    for call in tape.root.calls():
        forward = list(call.layer.forward_kernels(call))
        done = call.layer.forward(call)
        check_work(call, forward, done.contractions, done.pointwise)
        if not any(0 in (x.strides or ()) for x in call.inputs):  # what is seen several times is read once
            assert sum(k.read + k.written for k in forward) >= traffic(call), call.name
        assert bool(forward) or not traffic(call), call.name
        seen = any(x.storage is call.y.storage for x in call.operands())
        assert call.layer.overwrites == (seen and bool(forward)), call.name  # else a view, which moves nothing
        if not call.y.requires_grad:
            continue
        backward = list(call.layer.backward_kernels(call))
        work = [g.work for g in call.gradients()]
        check_work(call, backward, sum(w.contractions for w in work), sum(w.pointwise for w in work))
        made = sum(g.operand.bytes for g in call.gradients() if not g.shared)
        assert sum(k.written for k in backward) >= (0 if fused(call) else made), call.name


def fused(call: Call) -> bool:
    """Whether operands that are one tensor share a gradient, or a table's is summed over places."""
    return len({id(x) for x in call.inputs}) < len(call.inputs)


def check_work(call: Call, kernels: list[Kernel], contractions: int, pointwise: int) -> None:
    """Sizes of products give the contractions, and all FLOPs are there."""
    attention = any(k.sort == "attention" for k in kernels)
    done = sum(k.flops for k in kernels)
    if attention:  # the pairs that masks leave, whichever are counted
        assert 0 < done <= contractions + pointwise
        return
    # rows that do not fall into equal shares of experts, or chunks, are rounded up
    shares = call.layer.kind in ("expert_linear", "fused_linear_cross_entropy")
    products = sum(k.launches * k.sizes.flops for k in kernels if k.sizes is not None)
    assert all((k.sizes is not None) == (k.sort in PRODUCTS) for k in kernels), call.name
    assert products >= contractions if shares else products == contractions, call.name
    assert done == pointwise + products, call.name
    assert all(k.launches > 0 and min(k.flops, k.read, k.written) >= 0 for k in kernels), call.name
