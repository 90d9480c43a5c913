"""Rules of operators that change shapes, or put numbers at places: views, parts, copies, joints, indices, ranks."""

from __future__ import annotations

from costmodel.graph.tensor import Shape, Tensor, dense_strides, is_contiguous, strides_of
from costmodel.importers.torch.op_call import EXACT, OpCall, layer_rules, rule
from costmodel.layers.indexing import Computed, Gather, Scatter, ScatterAdd, ScatterReduce
from costmodel.layers.reduction import Reduce
from costmodel.layers.shape import AsStrided, Cat, Copy, Replace
from costmodel.layers.spatial import channels_last as is_channels_last
from costmodel.symbolic.sizes import ceil_div, product


@rule("view", "reshape", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten")
def reshape(op: OpCall) -> Tensor:
    """A view, or a copy where memory order forces one."""
    return op.reshaped(op.tensor("self"), op.shape)


@rule("permute")
def permute(op: OpCall) -> Tensor:
    """Axes in another order."""
    x = op.tensor("self")
    return x.permute(op.axes(x, "dims"))


@rule("transpose", "swapaxes", "swapdims")
def transpose(op: OpCall) -> Tensor:
    """Two axes exchanged."""
    x = op.tensor("self")
    first, second = ("dim0", "dim1") if op.has("dim0") else ("axis0", "axis1")
    return x.transpose(op.axis(x, first), op.axis(x, second)) if x.shape else x


@rule("t", "numpy_T", "mT", "adjoint", "matrix_H")
def turn(op: OpCall) -> Tensor:
    """The last two axes exchanged."""
    x = op.tensor("self")
    return x if len(x.shape) < 2 else x.transpose(len(x.shape) - 2, len(x.shape) - 1)


@rule("movedim")
def movedim(op: OpCall) -> Tensor:
    """Axes taken to other places."""
    x = op.tensor("self")
    source, target = op.axes(x, "source"), op.axes(x, "destination")
    rest = iter([axis for axis in range(len(x.shape)) if axis not in source])
    axes = [source[target.index(n)] if n in target else next(rest) for n in range(len(x.shape))]
    return x.permute(axes)


@rule("unsqueeze")
def unsqueeze(op: OpCall) -> Tensor:
    """An axis of one more."""
    x = op.tensor("self")
    axis = op.value("dim") % (len(x.shape) + 1)
    strides = strides_of(x)
    step = x.shape[axis] * strides[axis] if axis < len(x.shape) else 1
    return _seen(x, (*x.shape[:axis], 1, *x.shape[axis:]), (*strides[:axis], step, *strides[axis:]))


@rule("squeeze")
def squeeze(op: OpCall) -> Tensor:
    """Axes of one taken away."""
    x = op.tensor("self")
    gone = set(op.axes(x)) if "dim" in op.step.args else set(range(len(x.shape)))
    left = [axis for axis, size in enumerate(x.shape) if axis not in gone or size != 1]
    strides = strides_of(x)
    return _seen(x, tuple(x.shape[a] for a in left), tuple(strides[a] for a in left))


@rule("alias", "detach", "positive")
def alias(op: OpCall) -> Tensor:
    """The tensor itself; detached, without gradient."""
    x = op.tensor("self")
    y = x.view(x.shape, x.strides)
    if op.step.op == "detach":
        y.requires_grad = False
    return y


@rule("expand", "expand_as", "broadcast_to")
def expand(op: OpCall) -> Tensor:
    """The same memory seen several times."""
    return expanded(op, op.tensor("self"), op.shape)


def expanded(op: OpCall, x: Tensor, shape: Shape) -> Tensor:
    """`x` broadcast to a shape: a stride of 0 wherever it has one element and the shape more."""
    new = len(shape) - len(x.shape)
    strides = strides_of(x)
    stepped = [0 if n != 1 and m == 1 else s for m, n, s in zip(x.shape, shape[new:], strides, strict=True)]
    if len(shape) == len(x.shape) and x.shape == shape:
        return x
    widened = (*(0 for _ in range(new)), *stepped)
    if product(shape) == x.size:
        return _seen(x, shape, widened)
    return op.part(x, shape, widened)


@rule("slice", "narrow")
def slice_(op: OpCall) -> Tensor:
    """Some of an axis, every `step`-th."""
    x = op.tensor("self")
    axis, step = op.axis(x), op.value("step", 1)
    strides = strides_of(x)
    shape = op.shape
    if shape == x.shape:
        return x
    stepped = tuple(s * step if n == axis else s for n, s in enumerate(strides))
    return op.part(x, shape, stepped)


@rule("select")
def select(op: OpCall) -> Tensor:
    """One place of an axis, which goes."""
    x = op.tensor("self")
    axis = op.axis(x)
    strides = strides_of(x)
    return op.part(x, (*x.shape[:axis], *x.shape[axis + 1 :]), (*strides[:axis], *strides[axis + 1 :]))


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unbind", "unsafe_split", "unsafe_chunk", "hsplit")
def split(op: OpCall) -> list[Tensor]:
    """An axis in pieces, each a part of the whole: of one operator, or so many slices."""
    x = op.tensor("self")
    axis = op.axis(x)
    strides = strides_of(x)
    if op.step.op == "unbind":
        strides = (*strides[:axis], *strides[axis + 1 :])
    piece = op.step.op not in ("tensor_split", "hsplit")
    return [op.part(x, shape, strides, piece=piece) for shape in op.shapes]


@rule("contiguous")
def contiguous(op: OpCall) -> Tensor:
    """Itself if memory runs in order, else a copy."""
    x = op.tensor("self")
    if op.value("memory_format") == "channels_last":
        return x if is_channels_last(x) else channels_last(op, x)
    return x if is_contiguous(x.shape, x.strides) else op.layer(Copy(x.shape), x)


@rule("clone", "flip")
def clone(op: OpCall) -> Tensor:
    """A copy, in the same order of memory unless another is asked for."""
    x = op.tensor("self")
    memory_format = op.value("memory_format", "preserve_format")
    if memory_format == "channels_last":
        return channels_last(op, x)
    return op.layer(Copy(x.shape, ordered=memory_format == "preserve_format", moved=op.step.op == "flip"), x)


def channels_last(op: OpCall, x: Tensor) -> Tensor:
    """A copy with its channels last in memory."""
    _, c, h, w = x.shape
    return op.layer(Copy(x.shape), x).view(x.shape, (h * w * c, 1, w * c, c))


@rule("roll", "lift_fresh_copy")
def copy(op: OpCall) -> Tensor:
    """A copy in row-major order."""
    x = op.tensor("self")
    return op.layer(Copy(x.shape, moved=op.step.op == "roll"), x)


layer_rules(
    dict.fromkeys(("repeat", "tile"), (lambda op: Copy(op.shape), "self"))
    | dict.fromkeys(
        ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),  # a view of more axes, permuted, and copied into place
        (lambda op: Copy(op.shape, moved=True), "self"),
    )
    | {
        "index_add": (lambda op: ScatterAdd(whole=True), "self source index"),
        "scatter_add": (lambda op: ScatterAdd(whole=False), "self src index"),
        "scatter_reduce": (
            lambda op: ScatterReduce(op.value("reduce"), op.value("include_self", True)),
            "self src index",
        ),
    }
)


@rule("repeat_interleave")
def repeated(op: OpCall) -> Tensor:
    """Each element so many times; by counts that are a tensor it is read by index."""
    if not op.is_tensor("repeats"):
        return op.layer(Copy(op.shape), op.tensor("self"))
    counts = op.tensor("repeats")
    if not op.has("self"):
        return op.layer(Computed(op.shape, "index"), counts)
    x = op.tensor("self")
    count = op.shape[op.axis(x)] if op.has("dim") else product(op.shape)
    places = op.layer(Computed((count,), "index"), counts, name=f"{op.step.name}.places")
    return op.layer(Gather(op.shape), x, places)


@rule("to", "type_as", "_to_copy")
def convert(op: OpCall) -> Tensor:
    """Itself, or a copy: floating types are the precision's. Whole numbers and truth values become numbers anew."""
    x = op.tensor("self")
    same = x.storage.role == op.role and (op.role != "index" or EXACT[op.makes.dtype] == x.storage.dtype)
    if same or (x.storage.role not in ("index", "mask") and op.role == "activation"):
        copied = op.step.op == "_to_copy" or op.value("copy", False)
        return op.layer(Copy(x.shape, ordered=True), x) if copied else x
    return op.layer(Computed(x.shape, op.role), x)


@rule("cat", "concat", "concatenate", "stack", "hstack", "vstack")
def cat(op: OpCall) -> Tensor:
    """One after another."""
    tensors = op.tensors("tensors")
    if len(tensors) == 1 and op.step.op != "stack":
        return op.layer(Copy(op.shape), tensors[0])
    fixed_axes = {"hstack": min(1, len(op.shape) - 1), "vstack": 0}
    axis = fixed_axes[op.step.op] if op.step.op in fixed_axes else op.value("dim", 0) % len(op.shape)
    return op.layer(Cat(op.shape, axis), *tensors)


@rule("index", "index_select", "gather", "take_along_dim")
def index(op: OpCall) -> Tensor:
    """Elements by index."""
    x = op.tensor("self")
    name = "indices" if op.has("indices") else "index"
    places = [op.tensor(name)] if op.is_tensor(name) else op.tensors(name)
    return op.layer(Gather(op.shape, op.step.op in ("gather", "take_along_dim")), x, *places)


@rule("as_strided")
def strided(op: OpCall) -> Tensor:
    """The same memory by other steps, which may meet."""
    return op.layer(AsStrided(op.shape, tuple(op.value("stride")), by_memory=True), op.tensor("self"))


@rule("unfold")
def unfold(op: OpCall) -> Tensor:
    """Windows of an axis, as a last axis."""
    x = op.tensor("self")
    axis = op.value("dimension") % len(x.shape)
    strides = strides_of(x)
    window_strides = (*strides[:axis], strides[axis] * op.value("step"), *strides[axis + 1 :], strides[axis])
    windows = ceil_div(x.shape[axis] - op.value("size") + 1, op.value("step"))
    return op.part(x, (*x.shape[:axis], windows, *x.shape[axis + 1 :], op.value("size")), window_strides)


def _seen(x: Tensor, shape: Shape, strides: Shape) -> Tensor:
    """The same elements with other axes of one."""
    return x.view(shape, None if is_contiguous(shape, strides) else strides)


@rule("topk", "sort", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin")
def ranked(op: OpCall) -> list[Tensor] | Tensor:
    """Numbers by rank, and where they were."""
    x = op.tensor("self")
    if len(op.step.makes) == 1:
        return op.layer(Reduce("max", op.shape), x)  # as many comparisons, and as much is kept
    places = op.layer(Computed(op.shapes[1], "index", 1), x, name=f"{op.step.name}.places")
    values = op.layer(Gather(op.shape, op.step.op in ("cummax", "cummin")), x, places)
    strides = dense_strides(x.shape, x.strides) if op.step.op == "sort" else None
    return [values.view(values.shape, strides), places]


@rule("index_put", "index_copy", "index_fill", "scatter")
def placed(op: OpCall) -> Tensor:
    """A copy with other numbers at some places."""
    values = next((name for name in ("values", "source", "src", "value") if op.is_tensor(name)), None)
    names = "indices" if op.has("indices") else "index"
    places = [op.tensor(names)] if op.is_tensor(names) else op.tensors(names)
    kind = Scatter(values is not None, op.step.op == "index_copy")
    y = op.layer(kind, op.tensor("self"), *([op.tensor(values)] if values else []), *places)
    return y.view(y.shape) if op.step.op in ("scatter", "index_copy") else y


@rule("copy")
def copied(op: OpCall) -> Tensor:
    """The numbers of another tensor, in this one's order of memory."""
    x = op.tensor("self")
    y = op.layer(Copy(op.shape), expanded(op, op.tensor("src"), op.shape))
    y = y.view(op.shape, dense_strides(x.shape, x.strides))
    return op.layer(Replace(), x, y, name=f"{op.step.name}.copied") if x.requires_grad else y


@rule("atleast_1d", "atleast_2d")
def atleast(op: OpCall) -> Tensor | list[Tensor]:
    """Axes of one in front; of several tensors each by itself."""
    if op.has("self"):
        return op.reshaped(op.tensor("self"), op.shape)
    return [op.reshaped(x, shape) for x, shape in zip(op.tensors("tensors"), op.shapes, strict=True)]


@rule("broadcast_tensors", "meshgrid")
def broadcast(op: OpCall) -> list[Tensor]:
    """Tensors of one shape: each seen as often as it takes."""
    tensors, shapes = op.tensors("tensors"), op.shapes
    places = list(range(len(tensors)))
    if op.step.op == "meshgrid" and op.value("indexing", "ij") == "xy" and len(tensors) > 1:
        places[:2] = 1, 0  # as PyTorch does it: first those two change places, then all are expanded
    outputs: dict[int, Tensor] = {}
    for place in places:
        x, shape = tensors[place], shapes[place]
        if op.step.op == "meshgrid":
            x = op.reshaped(x, tuple(x.shape[0] if n == places[place] else 1 for n in range(len(shape))))
        outputs[place] = expanded(op, x, shape)
    return [outputs[place] for place in range(len(tensors))]


@rule("var_mean", "std_mean")
def moments(op: OpCall) -> list[Tensor]:
    """Two reductions at once."""
    x = op.tensor("self")
    spread = op.layer(Reduce(op.step.op.removesuffix("_mean"), op.shapes[0]), x)
    return [spread, op.layer(Reduce("mean", op.shapes[1]), x, name=f"{op.step.name}.mean")]
