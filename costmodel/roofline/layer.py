"""One layer of a prediction as programs: its forward pass, and its gradients."""

from __future__ import annotations

from costmodel.errors import CostModelError
from costmodel.graph.tensor import Call, Tensor
from costmodel.roofline.kernels import kernel_of
from costmodel.roofline.kernels.kernel import Site
from costmodel.roofline.program import Program, program_of
from costmodel.roofline.reference import Buffer, BufferRole, Ref
from costmodel.roofline.tape import Tape

NUMBERS = {"index": "int64", "mask": "bool"}
"""NumPy's types of what is no floating number, by role; all floating numbers have the tape's type."""


class Desk:
    """Paper tensors of calls as arrays on one tape, each with memory of its own: of what shares a storage, such as
    queries and keys made by one product, every part is elsewhere."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.buffers: dict[Tensor, Buffer] = {}

    def ref(self, x: Tensor, role: BufferRole) -> Ref:
        """The array of a paper tensor, in the same layout."""
        shape = tuple(map(int, x.shape))
        strides = None if x.strides is None else tuple(map(int, x.strides))
        if x not in self.buffers:
            reach = [(n - 1) * step for n, step in zip(shape, strides or (), strict=strides is not None)]
            elements = max(int(x.storage.elements), int(x.size) if strides is None else 1 + sum(reach))
            dtype = NUMBERS.get(x.storage.role, self.tape.dtype)
            self.buffers[x] = Buffer(elements, dtype, role, x.storage.name)
        return Ref(shape, self.buffers[x], strides)

    def site(self, call: Call) -> Site:
        """A layer, ready to be computed."""
        inputs = [self.ref(x, "input") for x in call.inputs]
        weights = {name: self.ref(w, "weight") for name, w in call.weights.items()}
        buffers = {name: self.ref(b, "state") for name, b in call.buffers.items()}
        operands = zip((*call.inputs, *call.weights.values()), (*inputs, *weights.values()), strict=True)
        wanted = [ref for x, ref in operands if x.requires_grad]
        return Site(call.kind, inputs, weights, buffers, call.run.training, wanted)


def forward_program(call: Call, dtype: str = "float32") -> Program:
    """The forward pass of one layer; `kept` is what its backward pass reads of what it makes."""
    return layer_programs(call, dtype)[0]


def backward_program(call: Call, dtype: str = "float32") -> Program:
    """The gradients of one layer, in the order of its operands. Raises CostModelError if nothing is trained."""
    backward = layer_programs(call, dtype)[1]
    if backward is None:
        raise CostModelError(f"{call.name} has no gradients: predict with mode='train'")
    return backward


def layer_programs(call: Call, dtype: str = "float32") -> tuple[Program, Program | None]:
    """Both passes of one layer, to be run one after the other on the same memory; None if nothing is trained.

    The first input of the backward pass is the gradient of the output.
    """
    tape = Tape(dtype)
    tape.layer = call.name
    site, kernel = Desk(tape).site(call), kernel_of(call.kind.kind)
    y = kernel.forward(tape, site)
    forward, tape.phase = list(tape.ops), "backward"
    g = tape.array(y.shape, "input", "gradient")
    gradients = [gradient for _, gradient in kernel.backward(tape, site, g)] if call.y.requires_grad else []
    backward = tape.ops[len(forward) :]
    made = {op.output.buffer for op in forward} - {y.buffer}
    kept = {ref.buffer: ref for op in backward for ref in op.operands if ref.buffer in made}.values()
    given = (*site.inputs, *site.weights.values(), *site.buffers.values())
    before = program_of(forward, [y], kept, call.name, given)
    if not gradients:
        return before, None
    read = {ref.buffer for op in backward for ref in op.operands} | {g.buffer}
    left = [ref for ref in (g, *given, y, *kept) if ref.buffer in read]
    return before, program_of(backward, gradients, (), call.name, left)
