"""Feed-forward sublayers and the norms and dropout around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from costmodel.architectures.activations import activation
from costmodel.architectures.ranks import columns, of_own_tokens, prepared, rows
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor
from costmodel.layers.activation import GatedActivation, Relu, Tanh
from costmodel.layers.arithmetic import Add, Clamp, Dropout, Multiply, Scale, Shift, Subtract
from costmodel.layers.norm import Layernorm, Rmsnorm
from costmodel.layers.shape import Slice
from costmodel.symbolic.sizes import exact_div


def normed(
    model: TransformerSpec,
    x: Tensor,
    name: str,
    heads: int | None = None,
    tied: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """`x` through a norm of the model's kind, over its last axis; or through a layer norm for each of so many heads.

    tied: weights that another norm has.
    """
    if heads is not None:
        return Layernorm(model.norm_affine, bias=False, heads=heads)(x, name=name)
    written = model.written
    if written is not None and written.norm != "kernel" and model.norm == "rmsnorm" and tied is None:
        from costmodel.architectures.composition import rms_norm  # only what asks for the package's own needs it

        return rms_norm(x, name, affine=model.norm_affine, written=written.norm)
    kind = Layernorm(model.norm_affine, model.norm_bias) if model.norm == "layernorm" else Rmsnorm(model.norm_affine)
    return of_own_tokens(kind(x, name=name, tied=tied))


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
    return x if bound is None else Clamp(-bound, bound)(x, name=name)


CLAMP, SHARPNESS, OFFSET = 7.0, 1.702, 1.0
"""Of a clamped MLP: the bound, the factor α of what the activation sees, what is added to x W_u (OpenAI 2025, gpt-oss:
``swiglu`` of its model code)."""


def feed_forward(model: TransformerSpec, x: Tensor, *, hidden: int | None = None, sparse: bool = False) -> Tensor:
    """(batch, T, width) → (batch, T, width): the MLP, as `mlp` has it, of the model's hidden features unless given."""
    return mlp(model, x, model.hidden if hidden is None else hidden, "mlp", sparse=sparse)


def mlp(model: TransformerSpec, x: Tensor, hidden: int, name: str, *, sparse: bool = False) -> Tensor:
    """The MLP, of so many hidden features; sparse: of its gate the largest are kept."""
    own = model.mlp_bias if model.mlp_output_bias is None else model.mlp_output_bias
    with x.tape.scope(name):
        x = prepared(x, "input")
        inner = partial(columns, features=hidden, bias=model.mlp_bias)
        joint = x.tape.layout.megatron and model.mlp == "gated" and not sparse
        y = (
            of_joint(model, inner(x, features=2 * hidden, name="gate_up"))
            if joint
            else activated(model, x, inner, sparse=sparse)
        )
        y = normed(model, y, "inner_norm") if model.inner_norm else y
        return rows(dropped(y, model.mlp_dropout, "dropout"), model.width, "down", bias=own)


def activated(model: TransformerSpec, x: Tensor, inner: Callable[..., Tensor], *, sparse: bool = False) -> Tensor:
    """The hidden features that an MLP makes with the linear layers given."""
    act = activation(model.mlp_activation)
    if model.mlp == "clamped":
        gate = Clamp(None, CLAMP)(inner(x, name="gate"), name="clamp_gate")
        up = Clamp(-CLAMP, CLAMP)(inner(x, name="up"), name="clamp_up")
        gated = Multiply()(gate, act(Scale(SHARPNESS)(gate, name="scale_gate")), name="gated")
        return Multiply()(Shift(OFFSET)(up), gated)
    if model.mlp == "gated":
        gate = inner(x, name="gate")
        gate = act(_largest(gate) if sparse else gate)
        return Multiply()(gate, inner(x, name="up"))
    return act(inner(x, name="up"))


def of_joint(model: TransformerSpec, x: Tensor) -> Tensor:
    """act(x W_g) ⊙ x W_u of both in one tensor, in one kernel where Megatron has one (``fused_bias_swiglu``)."""
    if model.mlp_activation in ("silu", "gelu_tanh"):
        return GatedActivation(model.mlp_activation)(x, name="gated")
    hidden = exact_div(x.shape[-1], 2)
    gate = activation(model.mlp_activation)(Slice(hidden, 0)(x, name="gate"))
    return Multiply()(gate, Slice(hidden, hidden)(x, name="up"))


def _largest(x: Tensor) -> Tensor:
    """relu(x − mean − c·deviation) of each row (``Gemma3nTextMLP._gaussian_topk``), whatever number c is."""
    from costmodel.layers.reduction import Reduce  # few models need it

    shape = (*x.shape[:-1], 1)
    mean = Reduce("mean", shape)(x, name="gate_mean")
    deviation = Scale(1.0)(Reduce("std", shape)(x, name="gate_deviation"), name="deviations")
    return Relu()(Subtract()(x, Add()(mean, deviation, name="cutoff"), name="above_cutoff"), name="largest")
