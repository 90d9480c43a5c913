"""What memory one call takes, keeps and lets go of, forward and backward: what all its rounds have in common."""

from __future__ import annotations

from typing import NamedTuple

from costmodel.cost.liveness import ACTIVATIONS, CACHE, CASTS, MomentPhase
from costmodel.graph.call import Call, Gradient
from costmodel.graph.kernel import Message
from costmodel.graph.tensor import Origin, Shape, Storage, Tensor, dense_strides, is_contiguous
from costmodel.symbolic.sizes import alike, branch_value
from costmodel.training.dtypes import size_bytes

_KEPT: dict[Origin, int] = {"computed": ACTIVATIONS, "cast": CASTS, "cache": CACHE}
"""Origins of memory that comes and goes, and its line where it is kept; all other is there throughout."""

GradientView = Tensor | Call | None
"""A tensor that is another one seen otherwise, a call that sees an operand otherwise, or neither."""


class OperandGradient(NamedTuple):
    """The gradient that a call gives an operand: whether it is the incoming one, through what view it comes, and how
    large its memory is [bytes], unless it is of the operand's size. cut: whether of all ranks' gradient this rank's
    share is copied, and added to another use's.

    follows: whether it lies in memory as the incoming one does. alike: whether it lies as what made the operand left
    that; if it follows, where the incoming one does.
    """

    operand: Tensor
    shared: bool
    view: GradientView
    size: int | None
    cut: bool
    follows: bool
    alike: bool


class LastStep(NamedTuple):
    """Of a backward of several steps, when all has been let go of that came in or was kept, but for the `persistent`.

    size: of what is there beside gradients [bytes]. persistent: the input's memory. whole: whether all of the input's
    gradient is made only then.
    """

    size: int
    persistent: Storage
    whole: bool


class CallMemory(NamedTuple):
    """What all rounds of a call have in common; sizes in bytes.

    part: the part of the model that the call is in. reads: the memory of its inputs. makes: the memory it takes for
    itself, its output first if that is new. saved: what it keeps, and on which line. held: see `AbstractLayer.held`.
    trained: if several weights get a gradient, these, those that it is given before its own. gradients: in the
    order in which they come. output: size. reshapes: whether products see the incoming gradient with fewer axes; None:
    kernels take it as it is. results: see `AbstractLayer.results_bytes`. saves: whether it keeps anything, be it
    weights. last_step: of a backward of several. passes: whether the gradient only passes through, to an input that is
    as large (same) or larger (a slice). keeps_axes: whether that slice has as many axes as its input. cached: whether
    autocast holds what it makes until forward and loss are done: copies of weights that ask for gradients
    (torch.autocast's ``cache_enabled``). replaces: bytes kept
    of earlier tokens that its output, kept too, takes the place of. writes: whether it writes into memory that is
    there. lends, collects, gradient_copy: see `AbstractLayer`. scattered: whether gradients are slices of the incoming
    one none of which lies in one piece.
    """

    part: str
    phase: MomentPhase
    reads: list[Storage]
    makes: list[tuple[Storage, int]]
    saved: list[tuple[Storage, int]]
    held: list[Storage]
    trained: list[Tensor]
    gradients: list[OperandGradient]
    output: int
    reshapes: bool | None
    results: int
    saves: bool
    forward_scratch: int
    backward_scratch: int
    last_step: LastStep | None
    passes: bool
    same: bool
    keeps_axes: bool
    cached: bool
    replaces: int
    writes: bool
    lends: bool
    collects: bool
    scattered: bool
    gradient_copy: int
    sent: tuple[Message, ...]
    returned: tuple[Message, ...]


def _is_view(x: Tensor) -> bool:
    """Whether a tensor is another one seen otherwise, so that its gradient comes to that as a view."""
    if x.maker is None:
        return False
    y = x.maker.y
    passes = any(gradient.shared and gradient.operand.storage is y.storage for gradient in x.maker.gradients())
    return not x.has(y.shape) or x.strides != y.strides or passes


def _operand_gradient(call: Call, gradient: Gradient) -> OperandGradient:
    x, y = gradient.operand, call.y
    view = call if call.layer.views_gradient(call, x) else x if _is_view(x) else None
    elements = call.layer.gradient_elements(call, x)
    size = None if elements is x.size else size_bytes(elements, x.dtype)
    cut = call.layer.whole_gradients and size is not None and x.storage.graded is x.storage.elements
    shared = gradient.shared and x.dtype == y.dtype
    return OperandGradient(x, shared, view, size, cut, *_gradient_order(call, gradient))


def _gradient_order(call: Call, gradient: Gradient) -> tuple[bool, bool]:
    """`follows` and `alike` of an `OperandGradient`."""
    x, y, order = gradient.operand, call.y, call.layer.gradient_order(call, gradient.operand)
    if order == "operand":
        return False, kept_order(x)
    if order == "incoming" and x.has(y.shape):
        return True, _same_order(x, y) and kept_order(x)
    return gradient.shared, _axes_in_memory(x) is None and kept_order(x)


def _axes_in_memory(x: Tensor) -> Shape | None:
    """The order of a tensor's axes in memory, by the strides that it would have without gaps; None: row by row."""
    return None if is_contiguous(x.shape, x.strides) else dense_strides(x.shape, x.strides)


def _same_order(x: Tensor, y: Tensor) -> bool:
    """Whether axes of two tensors have the same order in memory.

    The stride of an axis of size 1 does not matter (``obeys_layout_contract``).
    """
    first, second = _axes_in_memory(x), _axes_in_memory(y)
    if first is None or second is None or len(first) != len(second):
        return first is second
    return all(
        alike((m, s), (n, t)) or (0 if m == 1 else s) == (0 if n == 1 else t)
        for m, s, n, t in zip(x.shape, first, y.shape, second, strict=True)
    )


def kept_order(x: Tensor) -> bool:
    """Whether a gradient that lies as `x` does lies as what the gradient comes to: copies in another order hand it on
    as it is.
    """
    while (maker := x.maker) is not None and len(maker.inputs) == 1:
        if maker.y.storage is not maker.x.storage:
            other = _axes_in_memory(maker.x) is not None and not _same_order(maker.y, maker.x)
            return not (other and memory_of(maker).same)
        x = maker.x
    return True


def memory_of(call: Call) -> CallMemory:
    """What all rounds of `call` have in common."""
    y, layer, tape = call.y, call.layer, call.tape
    operands = call.operands()
    inputs = call.inputs if call.raw_inputs is call.inputs else (*call.raw_inputs, *call.inputs)
    known = [x.storage for x in (*operands, *call.buffers.values())]
    gradients = [_operand_gradient(call, gradient) for gradient in call.gradients()]
    trained = [gradient.operand for gradient in gradients if gradient.operand.storage.origin == "weight"]
    new = [s for s in dict.fromkeys((y.storage, *call.saved, *call.detached)) if s not in known]
    makes = [(s, s.bytes) for s in new if not s.elsewhere]
    workspace = layer.workspace(call)
    passes = len(operands) == 1 == len(call.inputs) and [gradient.shared for gradient in gradients] == [True]
    same = passes and branch_value(y.size) == branch_value(call.x.size)
    kept = y.storage.origin == "cache" and y.storage not in known
    return CallMemory(
        part=call.part,
        phase=call.phase,
        reads=list(dict.fromkeys([x.storage for x in inputs if x.storage.origin in _KEPT])),
        makes=makes,
        saved=[(s, _KEPT[s.origin]) for s in call.saved if s.origin in _KEPT],
        held=[x.storage for x in layer.held(call)],
        trained=[x for x in operands if x in trained] if len(trained) > 1 else [],
        gradients=gradients,
        output=y.bytes,
        reshapes=None if (axes := layer.gradient_axes(call)) is None else len(y.shape) > axes,
        results=layer.results_bytes(call),
        saves=len(call.saved) > 0,
        forward_scratch=size_bytes(workspace.forward, y.dtype) if workspace.forward else 0,
        backward_scratch=(size_bytes(workspace.backward, y.dtype) if workspace.backward else 0)
        + workspace.backward_bytes,
        last_step=None
        if workspace.later is None
        else LastStep(size_bytes(workspace.later, y.dtype), call.x.storage, workspace.whole),
        passes=passes and (same or y.storage is call.x.storage),
        same=same,
        keeps_axes=passes and len(y.shape) == len(call.x.shape),
        cached=y.storage.origin == "cast" and (y.requires_grad or not tape.training),
        replaces=sum([x.storage.bytes for x in call.inputs if x.storage.origin == "cache"]) if kept else 0,
        writes=layer.overwrites,
        collects=layer.collects,
        lends=layer.lends and _lends(gradients, call.inputs[-1]),
        scattered=layer.scattered(call),
        gradient_copy=size_bytes(layer.gradient_copy(call), y.dtype),
        sent=layer.sent(call),
        returned=layer.returned(call),
    )


def _lends(gradients: list[OperandGradient], last: Tensor) -> bool:
    """Whether what made the last input has a backward of its own, so that there is something to lend to."""
    maker = last.maker
    return len(gradients) > 0 and gradients[-1].operand is last and maker is not None and not memory_of(maker).same
