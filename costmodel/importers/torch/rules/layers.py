"""Rules of operators that are layers: products with weights, tables, softmax, reductions."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor
from costmodel.importers.torch.rules.elementwise import extreme, made
from costmodel.importers.torch.site import Site, rule, tied
from costmodel.layers.attention import Softmax, SoftmaxAlong
from costmodel.layers.embedding import Embedding
from costmodel.layers.indexing import Chosen
from costmodel.layers.leaf import Made
from costmodel.layers.linear import Linear
from costmodel.layers.reduction import REDUCTIONS, Cumprod, Cumulate, Reduce


@rule("linear")
def linear(site: Site) -> Tensor:
    """A linear layer."""
    weights = tied(site)
    return site.layer(Linear(weights["weight"].shape[0], site.has("bias")), site.tensor("input"), tied=weights)


@rule("embedding")
def embedding(site: Site) -> Tensor:
    """Rows of a table."""
    table = site.weight("weight")
    return site.layer(Embedding(*table.shape), site.tensor("indices"), tied={"weight": table})


@rule("softmax", "log_softmax", "special_softmax")
def softmax(site: Site) -> Tensor:
    """Along any axis."""
    x = site.tensor("self")
    axis = site.axis(x)
    if site.step.op == "softmax" and axis == len(x.shape) - 1:
        return site.layer(Softmax(), x)
    return site.layer(SoftmaxAlong(x.shape[axis], site.step.op == "log_softmax"), x)


@rule("cumsum", "cumprod")
def cumulate(site: Site) -> Tensor:
    """Running sums, or products."""
    x = site.tensor("self")
    kind = Cumulate() if site.step.op == "cumsum" else Cumprod()
    return site.layer(kind, x) if site.role == "activation" else made(site, x)


@rule(*REDUCTIONS, "max", "min")
def reduce(site: Site) -> Tensor | list[Tensor]:
    """Over some axes, or all; largest and smallest along one come with their places."""
    x = site.tensor("self")
    if site.is_tensor("other"):
        return extreme(site)
    op = f"a{site.step.op}" if site.step.op in ("max", "min") and not site.has("dim") else site.step.op
    if len(site.step.makes) == 2:
        shape = site.replay.shape(site.step.makes[1].shape)
        places = site.layer(Made(shape, "index", 1), x, name=f"{site.step.name}.places")
        return [site.layer(Chosen(site.shape), x, places), places]
    return made(site, x) if site.role != "activation" else site.layer(Reduce(op, site.shape), x)
