"""Functions with a backward pass of their own, as ``torch.autograd.Function`` has it."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.graph.call import Call, Gradient, LayerFlops, Workspace
from costmodel.graph.kernel import Kernel
from costmodel.graph.tensor import Storage, Tensor
from costmodel.layers.base import Movement, Weightless, layer
from costmodel.layers.kernels import stream
from costmodel.symbolic.sizes import branch_value
from costmodel.training.fields import Count


@layer
class CustomFunction(Weightless):
    """What a function makes, y, by its own backward pass; the layers before it are its forward pass.

    Its inputs are those of the function, `operands` of them, what it saves, what its context holds otherwise (the last
    `attributes` before y), and y as the forward pass has made it.

    work, counted, pointwise: FLOPs of backward: contractions, those that PyTorch counts, and all others.
    moved: bytes that its kernels read and write. launches: how many these are. scratch: bytes beside the gradients.
    results: bytes of the gradients of all results.
    graded: operands, by number, that get a gradient. passed: those of them whose gradient is the incoming one.
    """

    source = "torch.autograd.Function; its own backward, run on paper"
    in_lists = False
    arity = None

    operands: Count
    work: Count
    counted: Count
    pointwise: Count
    moved: Count
    launches: Count
    scratch: Count
    results: Count
    graded: tuple[int, ...]
    passed: tuple[int, ...] = ()
    attributes: Count = 0

    def output(self, call: Call) -> Tensor:
        y = call.inputs[-1]
        return y.as_strided(y.shape, y.strides)

    def forward(self, call: Call) -> LayerFlops:
        return LayerFlops(0, 0)

    def backward(self, call: Call) -> Iterable[Gradient]:
        """All of the work is that of the first gradient which is asked for."""
        work = LayerFlops(self.work, self.pointwise, self.counted)
        for number in self.graded:
            yield Gradient(call.inputs[number], work, shared=number in self.passed)
            if call.inputs[number].requires_grad:
                work = LayerFlops(0, 0)

    def saved(self, call: Call) -> Iterable[Tensor | Storage]:
        return call.inputs[self.operands : -1 - self.attributes]

    def held(self, call: Call) -> Iterable[Tensor]:
        return call.inputs[-1 - self.attributes : -1]

    def workspace(self, call: Call) -> Workspace:
        return Workspace(0, 0, self.scratch)

    def results_bytes(self, call: Call) -> int:
        return self.results

    def forward_kernels(self, call: Call) -> Iterable[Kernel]:
        return ()

    def backward_kernels(self, call: Call) -> Iterable[Kernel]:
        """All of them as one."""
        if call.gradients() and branch_value(self.launches):
            sort = "product" if branch_value(self.work) else "pointwise"
            written = sum(g.operand.bytes for g in call.gradients() if not g.shared)
            flops = self.work + self.pointwise
            yield stream(call, "backward", sort, flops, self.moved - written, written, self.launches)


@layer
class GradientLeaf(Movement):
    """A tensor that is told to need a gradient, which then stays, and so does the tensor, until backward is done."""

    source = "torch.Tensor.requires_grad_; AccumulateGrad (torch.autograd)"
    in_lists = False
    collects = True

    def output(self, call: Call) -> Tensor:
        return call.x.as_strided(call.x.shape, call.x.strides)

    def backward(self, call: Call) -> Iterable[Gradient]:
        return ()

    def held(self, call: Call) -> Iterable[Tensor]:
        return call.inputs


@layer
class FurtherResult(Movement):
    """Another result of a function, the second input; the first is the result whose backward pass is that of both."""

    source = "torch.autograd.Function of several results"
    in_lists = False
    arity = 2
    shared = True

    def output(self, call: Call) -> Tensor:
        y = call.inputs[1]
        return y.as_strided(y.shape, y.strides)

    def backward(self, call: Call) -> Iterable[Gradient]:
        yield Gradient(call.x, LayerFlops(0, 0), shared=True)
