"""Rules of operators that put numbers at places, or find places."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor, dense_strides
from costmodel.importers.torch.rules.shapes import expanded
from costmodel.importers.torch.site import Site, rule
from costmodel.importers.torch.trees import shape_of
from costmodel.layers.indexing import Accumulated, Chosen, Combined, Made, Placed
from costmodel.layers.reduction import Reduce
from costmodel.layers.shape import Copied


@rule("topk", "sort", "kthvalue", "median", "mode", "cummax", "cummin")
def ranked(site: Site) -> list[Tensor] | Tensor:
    """Numbers by rank, and where they were."""
    x = site.tensor("self")
    if len(site.step.makes) == 1:
        raise site.fail("of a whole tensor has no rule")
    places = site.layer(
        Made(site.replay.shape(site.step.makes[1].shape), "index", 1), x, name=f"{site.step.name}.places"
    )
    values = site.layer(Chosen(site.shape, site.step.op in ("cummax", "cummin")), x, places)
    strides = dense_strides(x.shape, x.strides) if site.step.op == "sort" else None
    return [values.view(values.shape, strides), places]


@rule("index_put", "index_copy", "index_fill", "scatter")
def placed(site: Site) -> Tensor:
    """A copy with other numbers at some places."""
    values = next((name for name in ("values", "source", "src", "value") if site.is_tensor(name)), None)
    names = "indices" if site.has("indices") else "index"
    places = [site.tensor(names)] if site.is_tensor(names) else site.tensors(names)
    kind = Placed(values is not None, site.step.op == "index_copy")
    y = site.layer(kind, site.tensor("self"), *([site.tensor(values)] if values else []), *places)
    return y.view(y.shape, None) if site.step.op in ("scatter", "index_copy") else y


@rule("index_add", "scatter_add")
def accumulated(site: Site) -> Tensor:
    """A copy to which numbers are added at some places."""
    source = "source" if site.step.op == "index_add" else "src"
    kind = Accumulated(whole=site.step.op == "index_add")
    return site.layer(kind, site.tensor("self"), site.tensor(source), site.tensor("index"))


@rule("scatter_reduce")
def scatter_reduce(site: Site) -> Tensor:
    """A copy in which numbers are combined with others at some places."""
    return site.layer(Combined(), site.tensor("self"), site.tensor("src"), site.tensor("index"))


@rule("copy")
def copy(site: Site) -> Tensor:
    """The numbers of another tensor, in this one's order of memory."""
    x = site.tensor("self")
    y = site.layer(Copied(site.shape), expanded(site, site.tensor("src"), site.shape))
    return y.view(site.shape, dense_strides(x.shape, x.strides))


@rule("atleast_1d", "atleast_2d")
def atleast(site: Site) -> Tensor | list[Tensor]:
    """Axes of one in front; of several tensors each by itself."""
    if site.has("self"):
        return site.reshaped(site.tensor("self"), site.shape)
    shapes = (site.replay.shape(told.shape) for told in site.step.makes)
    return [site.reshaped(x, shape) for x, shape in zip(site.tensors("tensors"), shapes, strict=True)]


@rule("broadcast_tensors", "meshgrid")
def broadcast(site: Site) -> list[Tensor]:
    """Tensors of one shape: each seen as often as it takes."""
    tensors, found = site.tensors("tensors"), []
    for number, (x, told) in enumerate(zip(tensors, site.step.makes, strict=True)):
        shape = shape_of(told.shape, site.sizes)
        if site.step.op == "meshgrid":
            swapped = site.value("indexing", "ij") == "xy" and number < 2
            axis = 1 - number if swapped else number
            x = site.reshaped(x, tuple(x.shape[0] if n == axis else 1 for n in range(len(shape))))
        found.append(expanded(site, x, shape))
    return found


@rule("var_mean", "std_mean")
def moments(site: Site) -> list[Tensor]:
    """Two reductions at once."""
    x = site.tensor("self")
    shapes = [site.replay.shape(made.shape) for made in site.step.makes]
    spread = site.layer(Reduce(site.step.op.removesuffix("_mean"), shapes[0]), x)
    return [spread, site.layer(Reduce("mean", shapes[1]), x, name=f"{site.step.name}.mean")]
