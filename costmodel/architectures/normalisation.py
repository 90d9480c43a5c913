"""What keeps a transformer's numbers in range: norms, dropout, constant factors, bounds and soft caps."""

from __future__ import annotations

from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.activation import Tanh
from costmodel.layers.arithmetic import Clamp, Dropout, Scale
from costmodel.layers.norm import Layernorm, Rmsnorm


def normed(model: TransformerSpec, x: Tensor, name: str, heads: int | None = None) -> Tensor:
    """`x` through a norm of the model's kind, over its last axis; or through a layer norm for each of so many heads."""
    if heads is not None:
        return Layernorm(model.norm_affine, bias=False, heads=heads)(x, name=name)
    kind = Layernorm(model.norm_affine, model.norm_bias) if model.norm == "layernorm" else Rmsnorm(model.norm_affine)
    return kind(x, name=name)


def dropped(x: Tensor, p: float, name: str) -> Tensor:
    """`x` with dropout, if there is any."""
    return Dropout(p)(x, name=name) if p else x


def scaled(x: Tensor, factor: float | None, name: str) -> Tensor:
    """`factor`·x, or x itself without a factor or for 1."""
    return x if factor is None or factor == 1 else Scale(factor)(x, name=name)


def capped(x: Tensor, cap: float | None, name: str) -> Tensor:
    """cap·tanh(x/cap) (Bello et al. 2017, §4; Gemma Team 2024, Gemma 2, §2), or x itself without a cap."""
    if cap is None:
        return x
    return Scale(cap)(Tanh()(Scale(1 / cap)(x, name=f"{name}_in"), name=name), name=f"{name}_out")


def clipped(x: Tensor, bound: float | None, name: str) -> Tensor:
    """x held between −bound and bound (MosaicML 2023, MPT, clip_qkv), or x itself without a bound."""
    return x if bound is None else Clamp(bound)(x, name=name)
