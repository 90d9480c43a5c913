"""Rules of losses that a module itself takes."""

from __future__ import annotations

from costmodel.graph.tensor import Tensor
from costmodel.importers.torch.site import Site, rule
from costmodel.layers.arithmetic import Subtract
from costmodel.layers.attention import SoftmaxAlong
from costmodel.layers.function import Pointwise
from costmodel.layers.loss import LOSSES, Compared, CrossEntropy, MeanSquaredError, Picked
from costmodel.layers.reduction import Reduce

REDUCED = ("none", "mean", "sum")
"""PyTorch's numbers of reductions."""


@rule("cross_entropy_loss")
def cross_entropy(site: Site) -> Tensor:
    """The mean over rows, of class indices; with weights of classes, or for each row, as its two parts."""
    x, target = site.tensor("self"), site.tensor("target")
    if len(x.shape) < 2 or target.storage.role != "index":
        raise site.fail("of one row, or with probabilities as targets, has no rule")
    if site.value("label_smoothing", 0.0):
        raise site.fail("with label smoothing has no rule")
    if not site.has("weight") and site.value("reduction", 1) == 1:
        return site.layer(CrossEntropy(), x, target)
    logarithms = site.layer(SoftmaxAlong(x.shape[1], logarithm=True), x, name=f"{site.step.name}.log_softmax")
    return site.layer(Picked(site.shape), logarithms, target, *weights(site, "weight"))


@rule("l1_loss")
def l1_loss(site: Site) -> Tensor:
    """The mean of absolute differences, as its parts."""
    name = site.step.name
    y = site.layer(Subtract(), site.tensor("self"), site.tensor("target"), name=f"{name}.difference")
    y = site.layer(Pointwise("abs"), y, name=f"{name}.abs")
    reduction = REDUCED[site.value("reduction", 1)]
    return y if reduction == "none" else site.layer(Reduce(reduction, ()), y)


@rule("mse_loss")
def mse_loss(site: Site) -> Tensor | list[Tensor]:
    """The mean over elements."""
    if site.value("reduction", 1) != 1 or site.tensor("target").requires_grad:
        return compared(site)
    return site.layer(MeanSquaredError(), site.tensor("self"), site.tensor("target"))


@rule(*(name for name in LOSSES if name != "mse_loss"))
def compared(site: Site) -> Tensor:
    """A loss between two tensors of one shape."""
    if site.value("log_target", False):
        raise site.fail("of a target of logarithms has no rule")
    kind = Compared(site.step.op, REDUCED[site.value("reduction", 1)])
    return site.layer(kind, site.tensor("self"), site.tensor("target"), *weights(site, "weight", "pos_weight"))


def weights(site: Site, *names: str) -> list[Tensor]:
    """Those of these tensors that are given."""
    return [site.tensor(name) for name in names if site.has(name)]


@rule("nll_loss_nd", "nll_loss", "nll_loss2d")
def nll_loss(site: Site) -> Tensor:
    """The logarithm at the class of each row."""
    return site.layer(Picked(site.shape), site.tensor("self"), site.tensor("target"), *weights(site, "weight"))
