"""Rules of what `costmodel.importers.torch.autograd` writes into a program: stretches, and a module's own functions."""

from __future__ import annotations

from functools import reduce

from costmodel.graph.call import Call
from costmodel.graph.tensor import Storage, Tensor
from costmodel.importers.torch.op_call import OpCall, rule
from costmodel.importers.torch.program import TENSOR
from costmodel.layers.custom import CustomFunction, FurtherResult, GradientLeaf
from costmodel.symbolic.sizes import maximum, peek
from costmodel.training.dtypes import size_bytes


@rule("checkpoint")
def checkpoint(op: OpCall) -> list[Tensor]:
    """The start of a stretch that is recomputed."""
    op.replay.open_stretch(op.value("rerun"), op.tensors("inputs"))
    return []


@rule("checkpoint_end")
def checkpoint_end(op: OpCall) -> list[Tensor]:
    """Its end."""
    op.replay.close_stretch(op.tensors("results"))
    return []


@rule("leaf")
def leaf(op: OpCall) -> Tensor:
    """A tensor that needs a gradient from here on, whatever it was made from."""
    x = op.tensor("self")
    if not op.tape.training or not op.step.grad or x.requires_grad:
        return x.view(x.shape, x.strides)
    y = op.layer(GradientLeaf(), x)
    y.requires_grad = True
    if y.maker is not None:
        y.maker.differentiated = True
    return y


@rule("function_start")
def function_start(op: OpCall) -> list[Tensor]:
    """What it is called on: a weight is that of a layer before it."""
    op.tensors("inputs")
    return []


@rule("function_backward")
def function_backward(op: OpCall) -> list[Tensor]:
    """Its forward pass is done."""
    op.replay.open_backward()
    return []


@rule("function")
def function(op: OpCall) -> list[Tensor]:
    """Its results, whose gradients go back through its own backward pass."""
    incoming = op.tensors("incoming")
    gradients = [None if item is None else op.replay.tensor(item[TENSOR]) for item in op.step.args["gradients"]]
    calls = op.replay.close_backward()
    inputs, results, kept = op.tensors("inputs"), op.tensors("results"), op.tensors("kept")
    attributes = op.tensors("attributes")
    if len(gradients) != len(inputs):
        gradients = [*gradients, *[None] * (len(inputs) - len(gradients))]
    graded = {n: g for n, (x, g) in enumerate(zip(inputs, gradients, strict=True)) if g is not None}
    for n, g in graded.items():
        if g.size is not inputs[n].size and peek(g.size) != peek(inputs[n].size):
            raise op.fail(f"{op.value('title')}.backward makes a gradient of another shape than its input")
    own = {g.storage for g in incoming}
    passed = tuple(n for n, g in graded.items() if g.storage in own)
    works = [call.layer.forward(call) for call in calls]
    kernels = [kernel for call in calls for kernel in call.layer.forward_kernels(call)]
    kind = CustomFunction(
        operands=len(inputs),
        work=sum(work.contractions for work in works),
        counted=sum(work.contractions if work.counted is None else work.counted for work in works),
        pointwise=sum(work.pointwise for work in works),
        moved=sum(kernel.read + kernel.written for kernel in kernels),
        launches=sum(kernel.launches for kernel in kernels),
        scratch=_scratch(calls, own, {g.storage for g in graded.values()}),
        results=sum(g.bytes for g in incoming),
        graded=tuple(graded),
        passed=passed,
        attributes=len(attributes),
    )
    title = op.step.name.replace("function", op.value("title"), 1)
    y = op.layer(kind, *inputs, *kept, *attributes, results[0], name=title)
    further = (
        op.layer(FurtherResult(), y, result, name=f"{title}.{n}") for n, result in enumerate(results[1:], start=2)
    )
    return [y, *further]


def _scratch(calls: list[Call], incoming: set[Storage], gradients: set[Storage]) -> int:
    """The most bytes that calls need at once of what they make, beside gradients, which are there until the end."""
    made: dict[Storage, int] = {}
    last: dict[Storage, int] = {}
    for number, call in enumerate(calls):
        read = [x.storage for x in call.operands()]
        last.update(dict.fromkeys((*read, call.y.storage), number))
        if call.y.storage not in read and call.y.storage not in incoming:
            made[call.y.storage] = number
    last.update(dict.fromkeys(gradients, len(calls)))
    levels = [
        size_bytes(call.layer.workspace(call).forward, call.y.dtype)
        + sum(storage.bytes for storage, born in made.items() if born <= number <= last[storage])
        for number, call in enumerate(calls)
    ]
    return reduce(maximum, levels, 0) - sum(storage.bytes for storage in gradients if storage in made)
