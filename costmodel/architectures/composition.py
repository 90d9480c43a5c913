"""Parts of a transformer as the package `transformers` writes them: an operator for each operation."""

from __future__ import annotations

from typing import cast

from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor, strides_of
from costmodel.layers.arithmetic import Add, Cast, Multiply, Shift
from costmodel.layers.attention import Softmax
from costmodel.layers.function import Pointwise
from costmodel.layers.indexing import Computed, Parameter
from costmodel.layers.reduction import Reduce
from costmodel.layers.shape import AsStrided, Cat
from costmodel.symbolic.sizes import exact_div
from costmodel.training.dtypes import Dtype, RealType


def typed(x: Tensor, dtype: Dtype, name: str) -> Tensor:
    """`x` in a type, which is not complex: itself, if it is so already."""
    return x if x.dtype == dtype else Cast(cast("RealType", dtype))(x, name=name)


def rms_norm(x: Tensor, name: str, *, affine: bool, written: str) -> Tensor:
    """x/√(mean(x²) + ε) in fp32, then in the type of x times w (``LlamaRMSNorm``), or times 1 + w before that.

    The latter is what "shifted" is (``GemmaRMSNorm``); "mixed" has x itself times the root (``T5LayerNorm``).
    """
    with x.tape.scope(name):
        wide = typed(x, "fp32", "to_fp32")
        means = Reduce("mean", (*x.shape[:-1], 1))(Pointwise("pow", exponent=2)(wide, name="square"), name="mean")
        normed = Multiply()(
            x if written == "mixed" else wide, Pointwise("rsqrt")(Shift(1e-6)(means), name="rsqrt"), name="normed"
        )
        if not affine:
            return typed(normed, x.dtype, "to_type")
        weight = x.tape.record(Parameter(x.shape[-1:]), (), "weight", None)
        if written == "shifted":
            weight = Shift(1.0)(typed(weight, "fp32", "weight_to_fp32"), name="weight_plus_1")
            return typed(Multiply()(normed, weight, name="scaled"), x.dtype, "to_type")
        return Multiply()(weight, typed(normed, x.dtype, "to_type"), name="scaled")


def angles(tape: Tape, tokens: int, features: int, name: str) -> list[Tensor]:
    """cos and sin of every position's angles, (T, features), worked out in fp32."""
    half = exact_div(features, 2)
    for buffer in ("inv_freq", "original_inv_freq"):
        tape.buffer((half,), "statistic", f"{name}.{buffer}", "fp32")
    with tape.scope(name):
        phases = tape.record(Computed((tokens, half), work=1), (), "angles", None)
        phases = Computed((tokens, features))(phases, name="both_halves")
        tables = {name: Computed((tokens, features), work=1)(phases, name=name) for name in ("cos", "sin")}
        return [Computed((tokens, features), work=1)(x, name=f"scale_{name}") for name, x in tables.items()]


def mask(tape: Tape, batch: int, tokens: int, keys: int, name: str) -> Tensor:
    """0 where a token sees a key and the least number where it does not, (batch, 1, T, keys), worked out in a pass."""
    return tape.record(Computed((batch, 1, tokens, keys), work=1), (), name, None)


def turned(x: Tensor, cos: Tensor, sin: Tensor, size: int, name: str, *, joined: bool) -> Tensor:
    """x·cos + (−x₂, x₁)·sin over the first `size` features of x, (batch, h, T, d_h) (``apply_rotary_pos_emb``).

    joined: what is turned is joined to the rest even where there is none.
    """
    *outer, features = x.shape

    def part(of: Tensor, length: int, name: str) -> Tensor:
        return AsStrided((*outer, length), strides_of(of))(of, name=name)

    with x.tape.scope(name):
        whole = size == features
        first = x if whole else part(x, size, "turned")
        half = exact_div(size, 2)
        product = Multiply()(first, cos, name="times_cos")
        low, high = part(first, half, "low"), part(first, half, "high")
        other = Cat((*outer, size), len(outer))(Pointwise("neg")(high, name="negative"), low, name="rotated_half")
        y = Add()(product, Multiply()(other, sin, name="times_sin"))
        if whole:
            return Cat(x.shape, len(outer))(y, name="joined") if joined else y
        return Cat(x.shape, len(outer))(y, part(x, features - size, "unturned"), name="joined")


def weights_in_fp32(scores: Tensor) -> Tensor:
    """The softmax of the scores, worked out in fp32 and then of their type (``eager_attention_forward``)."""
    return typed(Softmax()(typed(scores, "fp32", "scores_to_fp32")), scores.dtype, "weights_to_type")
