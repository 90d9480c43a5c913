"""Rules of operators that put numbers at places, or find places."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor, dense_strides
from costmodel.importers.torch.op_call import OpCall, rule
from costmodel.importers.torch.rules.shapes import expanded
from costmodel.importers.torch.trees import shape_of
from costmodel.layers.indexing import Accumulated, Chosen, Combined, Made, Placed
from costmodel.layers.reduction import Reduce
from costmodel.layers.shape import Copied


@rule("topk", "sort", "kthvalue", "median", "mode", "cummax", "cummin")
def ranked(op: OpCall) -> list[Tensor] | Tensor:
    """Numbers by rank, and where they were."""
    x = op.tensor("self")
    if len(op.step.makes) == 1:
        raise op.fail("of a whole tensor has no rule")
    places = op.layer(Made(op.replay.shape(op.step.makes[1].shape), "index", 1), x, name=f"{op.step.name}.places")
    values = op.layer(Chosen(op.shape, op.step.op in ("cummax", "cummin")), x, places)
    strides = dense_strides(x.shape, x.strides) if op.step.op == "sort" else None
    return [values.view(values.shape, strides), places]


@rule("index_put", "index_copy", "index_fill", "scatter")
def placed(op: OpCall) -> Tensor:
    """A copy with other numbers at some places."""
    values = next((name for name in ("values", "source", "src", "value") if op.is_tensor(name)), None)
    names = "indices" if op.has("indices") else "index"
    places = [op.tensor(names)] if op.is_tensor(names) else op.tensors(names)
    kind = Placed(values is not None, op.step.op == "index_copy")
    y = op.layer(kind, op.tensor("self"), *([op.tensor(values)] if values else []), *places)
    return y.view(y.shape, None) if op.step.op in ("scatter", "index_copy") else y


@rule("index_add", "scatter_add")
def accumulated(op: OpCall) -> Tensor:
    """A copy to which numbers are added at some places."""
    source = "source" if op.step.op == "index_add" else "src"
    kind = Accumulated(whole=op.step.op == "index_add")
    return op.layer(kind, op.tensor("self"), op.tensor(source), op.tensor("index"))


@rule("scatter_reduce")
def scatter_reduce(op: OpCall) -> Tensor:
    """A copy in which numbers are combined with others at some places."""
    kind = Combined(op.value("reduce"), op.value("include_self", True))
    return op.layer(kind, op.tensor("self"), op.tensor("src"), op.tensor("index"))


@rule("copy")
def copy(op: OpCall) -> Tensor:
    """The numbers of another tensor, in this one's order of memory."""
    x = op.tensor("self")
    y = op.layer(Copied(op.shape), expanded(op, op.tensor("src"), op.shape))
    return y.view(op.shape, dense_strides(x.shape, x.strides))


@rule("atleast_1d", "atleast_2d")
def atleast(op: OpCall) -> Tensor | list[Tensor]:
    """Axes of one in front; of several tensors each by itself."""
    if op.has("self"):
        return op.reshaped(op.tensor("self"), op.shape)
    shapes = (op.replay.shape(told.shape) for told in op.step.makes)
    return [op.reshaped(x, shape) for x, shape in zip(op.tensors("tensors"), shapes, strict=True)]


@rule("broadcast_tensors", "meshgrid")
def broadcast(op: OpCall) -> list[Tensor]:
    """Tensors of one shape: each seen as often as it takes."""
    tensors, shapes = op.tensors("tensors"), [shape_of(told.shape, op.sizes) for told in op.step.makes]
    places = list(range(len(tensors)))
    if op.step.op == "meshgrid" and op.value("indexing", "ij") == "xy" and len(tensors) > 1:
        places[:2] = 1, 0  # as PyTorch does it: first those two change places, then all are expanded
    found: dict[int, Tensor] = {}
    for place in places:
        x, shape = tensors[place], shapes[place]
        if op.step.op == "meshgrid":
            x = op.reshaped(x, tuple(x.shape[0] if n == places[place] else 1 for n in range(len(shape))))
        found[place] = expanded(op, x, shape)
    return [found[place] for place in range(len(tensors))]


@rule("var_mean", "std_mean")
def moments(op: OpCall) -> list[Tensor]:
    """Two reductions at once."""
    x = op.tensor("self")
    shapes = [op.replay.shape(made.shape) for made in op.step.makes]
    spread = op.layer(Reduce(op.step.op.removesuffix("_mean"), shapes[0]), x)
    return [spread, op.layer(Reduce("mean", shapes[1]), x, name=f"{op.step.name}.mean")]
