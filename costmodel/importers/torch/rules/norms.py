"""Rules of norms."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor, dense_strides
from costmodel.importers.torch.site import Site, rule, tied
from costmodel.layers.norm import Batchnorm, BatchnormFixed, BatchnormUntracked, Groupnorm, Layernorm, Rmsnorm
from costmodel.layers.shape import Copied
from costmodel.symbolic.sizes import product


@rule("batch_norm")
def batch_norm(site: Site) -> Tensor:
    """By the batch's statistics, or by running ones."""
    if not site.has("running_mean"):
        return site.layer(BatchnormUntracked(site.has("weight")), site.tensor("input"), tied=tied(site))
    for name in ("running_mean", "running_var"):
        site.replay.taken(site.step.args[name]["tensor"])
    weights = tied(site)
    fixed = site.run.training and not site.value("training", True)
    kind = BatchnormFixed(bool(weights)) if fixed else Batchnorm(bool(weights))
    return site.layer(kind, site.tensor("input"), tied=weights)


@rule("layer_norm")
def layer_norm(site: Site) -> Tensor:
    """Over the last axes, which are seen as one."""
    x, weights = _rows(site)
    return site.layer(Layernorm("weight" in weights, "bias" in weights), x, tied=weights).view(site.shape, None)


def _rows(site: Site) -> tuple[Tensor, dict[str, Tensor]]:
    """The input with the axes that are normalised as its last, and weights of one axis."""
    x, weights = site.tensor("input"), tied(site)
    axes = len(site.value("normalized_shape"))
    if axes == 1:
        return x, weights
    size = product(x.shape[len(x.shape) - axes :])
    x = site.reshaped(x, (*x.shape[: len(x.shape) - axes], size))
    return x, {name: weight.view((size,), None) for name, weight in weights.items()}


@rule("rms_norm")
def rms_norm(site: Site) -> Tensor:
    """Over the last axes, which are seen as one."""
    x, weights = _rows(site)
    composed = site.run.device == "cpu" and x.has(site.shape)
    y = site.layer(Rmsnorm("weight" in weights), x, tied=weights)
    return y.view(site.shape, dense_strides(x.shape, x.strides) if composed else None)


@rule("group_norm")
def group_norm(site: Site) -> Tensor:
    """Over groups of channels."""
    weights = tied(site)
    return site.layer(Groupnorm(site.value("num_groups"), bool(weights)), site.tensor("input"), tied=weights)


@rule("instance_norm")
def instance_norm(site: Site) -> Tensor:
    """Batch norm of a batch of one, whose channels are those of all samples; weights are repeated for each."""
    if site.has("running_mean"):
        raise site.fail("with running statistics has no rule")
    x = site.tensor("input")
    b, c, *rest = x.shape
    x = site.reshaped(x, (1, b * c, *rest))
    name = site.step.name
    weights = {
        part: site.layer(Copied((b * c,)), site.tensor(part), name=f"{name}.{part}_of_each")
        for part in ("weight", "bias")
        if site.has(part)
    }
    y = site.layer(BatchnormUntracked(bool(weights)), x, tied=weights)
    return y.view((b, c, *rest), None)
