"""A transformer's blocks: attention and MLP, with norms around them, added up one after the other or at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from costmodel.architectures.attention import AttentionSetting, Mixer, Tables
from costmodel.architectures.feedforward import feed_forward
from costmodel.architectures.mixture import routed
from costmodel.architectures.normalisation import dropped, normed, scaled
from costmodel.architectures.stack import Stack, Variant
from costmodel.graph.run import Run
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Add

if TYPE_CHECKING:
    from costmodel.architectures.transformer import Transformer

Sublayers = dict[str, Callable[[Tensor], Tensor]]


def body(model: Transformer, run: Run, x: Tensor, setting: AttentionSetting, memory: Tensor | None = None) -> Tensor:
    """(batch, T, width) → (batch, T, width): all blocks, and the norm and dropout after them.

    memory: (batch, T', width), what an encoder made, to which every block then attends too.
    """
    x = _blocks(model, run, x, setting, memory)
    if model.norm_placement != "post" if model.final_norm is None else model.final_norm:
        x = normed(model, x, "final_norm")
    return dropped(x, model.final_dropout, "final_dropout")


def _blocks(model: Transformer, run: Run, x: Tensor, setting: AttentionSetting, memory: Tensor | None) -> Tensor:
    tables = Tables(model, run, x.shape[1], setting)
    mixers = {variant: Mixer(model, tables, variant) for variant in dict.fromkeys(model.pattern)}
    crossing = {} if memory is None else {"cross_attention": Mixer(model, tables, memory=memory)}

    def block(variant: Variant, x: Tensor) -> Tensor:
        mlp = partial(routed if variant.routed else feed_forward, model)
        sublayers: Sublayers = {"attention": mixers[variant], **crossing, "mlp": mlp}
        return _parallel(model, x, sublayers) if model.parallel else _sequential(model, x, sublayers)

    return Stack(model.pattern, model.layers, block)(run, x)


def _parallel(model: Transformer, x: Tensor, sublayers: Sublayers) -> Tensor:
    inner = normed(model, x, "norm")
    mixed = _output(model, sublayers["attention"](inner), "attention")
    fed = _output(model, sublayers["mlp"](inner if model.shared_norm else normed(model, x, "mlp_norm")), "mlp")
    return Add()(Add()(x, mixed, name="add_attention"), fed, name="add_mlp")


def _sequential(model: Transformer, x: Tensor, sublayers: Sublayers) -> Tensor:
    place = model.norm_placement
    for name, sublayer in sublayers.items():
        inner = normed(model, x, f"{name}_norm") if place in ("pre", "both") else x
        y = sublayer(inner)
        if place in ("output", "both"):
            y = normed(model, y, f"{name}_output_norm")
        x = Add()(x, _output(model, y, name), name=f"add_{name}")
        if place == "post":
            x = normed(model, x, f"{name}_norm")
    return x


def _output(model: Transformer, x: Tensor, sublayer: str) -> Tensor:
    own = model.mixed_dropout if sublayer == "attention" else None
    dropout = model.residual_dropout if own is None else own
    return scaled(dropped(x, dropout, f"{sublayer}_dropout"), model.residual_scale, f"{sublayer}_scale")
