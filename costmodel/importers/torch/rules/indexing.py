"""Rules of operators that put numbers at places, or find places."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor
from costmodel.importers.torch.rules.shapes import expanded
from costmodel.importers.torch.site import Site, rule
from costmodel.importers.torch.trees import shape_of
from costmodel.layers.indexing import Chosen, Placed
from costmodel.layers.leaf import Made
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
    return [site.layer(Chosen(site.shape), x, places), places]


@rule("index_put", "index_add", "index_copy", "index_fill", "scatter", "scatter_add", "scatter_reduce")
def placed(site: Site) -> Tensor:
    """A copy with other numbers at some places."""
    x = site.tensor("self")
    values = next((name for name in ("values", "source", "src", "value") if site.is_tensor(name)), None)
    names = "indices" if site.has("indices") else "index"
    places = [site.tensor(names)] if site.is_tensor(names) else site.tensors(names)
    return site.layer(Placed(values is not None), x, *([site.tensor(values)] if values else []), *places)


@rule("copy")
def copy(site: Site) -> Tensor:
    """The numbers of another tensor."""
    return site.layer(Copied(site.shape), expanded(site, site.tensor("src"), site.shape))


@rule("broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d")
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
