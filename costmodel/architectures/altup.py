"""Several residual streams, of which a block computes one and predicts the others (Baykal et al. 2023, AltUp).

Composed of operators as Gemma 3n's model in `transformers` is. With the streams come a low-rank sum beside attention
(Menghani et al. 2024, LAuReL), a vector of each token for each block, and MLPs that keep only the largest of their
gate. In training the weights of the prediction are clamped in place where those of the correction are, which is left
out: two comparisons for each of streams³ weights a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from costmodel.architectures.feedforward import normed
from costmodel.architectures.layer_inputs import gated_vector, vectors_for_blocks
from costmodel.architectures.spec import TransformerSpec
from costmodel.graph.tensor import Tensor, contiguous_strides, is_contiguous
from costmodel.layers.activation import Tanh
from costmodel.layers.arithmetic import Add, Clamp, Divide, LayerScale, Multiply, Scale, Shift, Subtract, Unread
from costmodel.layers.function import Pointwise
from costmodel.layers.indexing import Computed, Parameter
from costmodel.layers.linear import Linear, Matmul
from costmodel.layers.reduction import Reduce
from costmodel.layers.shape import AsStrided, Cat, Copy, Permute
from costmodel.symbolic.sizes import peek

Sublayer = Callable[[Tensor], Tensor]

BOUND = 120.0
"""Largest weight of the correction in training (``altup_coef_clip``)."""
SMALLEST = 1e-5
"""Least mean square of a row that is divided by its root."""


class Streams:
    """The streams of one model's blocks, (streams, batch, T, width), and what each token adds to them in each block.

    tokens: (batch, T), of which x, (batch, T, width), was made. layers: how many blocks there are.
    """

    def __init__(self, model: TransformerSpec, tokens: Tensor, x: Tensor, layers: int) -> None:
        assert model.altup is not None
        self.model, self.altup = model, model.altup
        self.streams = int(model.altup.streams)  # one by one they have no formula in their number, so nothing has one
        # Tokens beyond the table have its first row: two comparisons and a choice.
        rows = Computed(tokens.shape, "index", 3)(tokens, name="layer_tokens")
        vocab = model.vocab if self.altup.layer_vocab is None else self.altup.layer_vocab
        self.tokens = vectors_for_blocks(model, rows, x, layers, self.altup.layer_width, vocab)

    def spread(self, x: Tensor) -> Tensor:
        """(batch, T, width) → (streams, batch, T, width): x and projections of it.

        Their rows have the root mean square of its own.
        """
        n, shape = self.streams, x.shape
        size = _size(x)
        others = [_as_large(Linear(shape[-1], bias=False)(x, name=f"stream{i}"), size) for i in range(1, n)]
        parts = [y.view((1, *shape)) for y in (x, *others)]
        return Cat((n, *shape))(*parts, name="streams")

    def merged(self, x: Tensor) -> Tensor:
        """(streams, batch, T, width) → (batch, T, width): the mean of the first and of projections of the others.

        Their rows have the first one's root mean square.
        """
        first = _stream(x, 0)
        size, features = _size(first), x.shape[-1]
        others = [
            _as_large(Linear(features, bias=False)(_stream(x, i), name=f"from_stream{i}"), size)
            for i in range(1, self.streams)
        ]
        parts = [y.view((1, *y.shape)) for y in (first, *others)]
        return Reduce("mean", first.shape)(Cat(x.shape)(*parts, name="joined_streams"), name="mean_of_streams")

    def block(self, x: Tensor, attention: Sublayer, mlp: Sublayer) -> Tensor:
        """One block, (streams, batch, T, width) → the same."""
        model = self.model
        x, router = self._predicted(x)
        first = _stream(x, 0)
        inner = normed(model, first, "attention_norm")
        laurel = self._laurel(inner)
        mixed = Add()(first, normed(model, attention(inner), "attention_output_norm"), name="add_attention")
        mixed = Scale(1 / math.sqrt(2))(Add()(mixed, laurel, name="add_laurel"), name="scale_sum")
        fed = normed(model, mlp(normed(model, mixed, "mlp_norm")), "mlp_output_norm")
        x = self._corrected(x, Add()(mixed, fed, name="add_mlp"), router)
        return self._with_token(x)

    def _modalities(self, x: Tensor, tied: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """(batch, T, width) → (batch, T, streams): what the router weighs each stream by, −1 to 1."""
        x = normed(self.model, x, "router_norm", tied=tied.get("router_norm"))
        x = Scale(1 / peek(self.model.width))(x, name="scale_router")
        y = Linear(self.streams, bias=False)(x, name="router", tied=tied.get("router"))
        return Tanh()(y, name="modalities")

    def _predicted(self, x: Tensor) -> tuple[Tensor, Mapping[str, Mapping[str, Tensor]]]:
        """Each stream plus a sum of all, by coefficients that the first makes, (streams, batch, T, width).

        With the stored weights of the router and its norm, which the correction reads too.
        """
        n, b, t, _ = x.shape
        with x.tape.scope("predict"):
            modalities = self._modalities(_stream(x, 0), {})
            router = {name: x.tape.weights_of(name) for name in ("router_norm", "router")}
            of = Linear(n * n, bias=False)(modalities, name="coefficients").view((b, t, n, n))
            of = Permute((0, 1, 3, 2))(of, name="turned_coefficients")
            turned = Permute((1, 2, 3, 0))(x, name="by_token")
            y = Permute((3, 0, 1, 2))(Matmul()(turned, of, name="predictions"), name="by_stream")
            y = Add()(y, x, name="add_streams")
            in_order = is_contiguous(y.shape, y.strides)
            return (y if in_order else Copy(y.shape)(y, name="in_order")), router

    def _laurel(self, x: Tensor) -> Tensor:
        with x.tape.scope("laurel"):
            y = Linear(self.altup.laurel_rank, bias=False)(x, name="down")
            y = normed(self.model, Linear(x.shape[-1], bias=False)(y, name="up"), "norm")
            return Add()(x, y, name="add")

    def _corrected(self, x: Tensor, output: Tensor, router: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """Each predicted stream plus its share of what the first's prediction missed, (streams, batch, T, width).

        output: (batch, T, width), what the block computed. router: weights of the router and its norm.
        """
        n, b, t, d = x.shape
        with x.tape.scope("correct"):
            modalities = self._modalities(output, router)
            innovation = Subtract()(output, _stream(x, 0), name="innovation")
            innovation = Copy((n, b, t, d))(innovation.view((1, b, t, d)), name="repeat_innovation")
            weight = None
            if self.altup.clipped and x.tape.training:
                bounded = Parameter((n, n))
                weight = {
                    "weight": Clamp(-BOUND, BOUND)(x.tape.record(bounded, (), "coefficients", None), name="clamp")
                }
            of = Shift(1.0)(Linear(n, bias=False)(modalities, name="coefficients", tied=weight), name="shares")
            of = Permute((2, 0, 1))(of, name="shares_by_stream")
            of = of.unsqueeze(-1)
            return Add()(Multiply()(innovation, of, name="corrections"), x, name="add_predictions")

    def _with_token(self, x: Tensor) -> Tensor:
        """All streams but the first plus what the token adds in this block, by a gate that the first makes."""
        n, b, t, d = x.shape
        p = self.altup.layer_width
        with x.tape.scope("token"):
            head, rest = (AsStrided((m, b, t, d), contiguous_strides(x.shape))(x) for m in (1, n - 1))
            gate = Copy((b, t, d))(head.view((b, t, d)), name="copy")
            if self.altup.output_scale:
                rows = gate.view((b * t, d))
                gate = LayerScale()(rows, name="scale").view((b, t, d))
            else:
                gate = Unread(d)(gate, name="scale")
            others = Add()(rest, gated_vector(self.model, gate, self.tokens, p), name="add")
            return Cat(x.shape)(head, others, name="streams")


def _stream(x: Tensor, number: int) -> Tensor:
    """One stream of (streams, batch, T, width), seen where it is."""
    shape = x.shape[1:]
    return AsStrided(shape, contiguous_strides(shape))(x, name=f"stream_{number}")


def _mean_square(x: Tensor) -> Tensor:
    return Reduce("mean", (*x.shape[:-1], 1))(Pointwise("pow", exponent=2)(x, name="square"), name="mean_square")


def _size(x: Tensor) -> Tensor:
    """(..., features) → (..., 1): the root of each row's mean square."""
    return Pointwise("pow")(_mean_square(x), name="size")


def _as_large(x: Tensor, size: Tensor) -> Tensor:
    """`x` with rows of the root mean square `size`, (..., 1)."""
    own = Pointwise("sqrt")(Clamp(SMALLEST, None)(_mean_square(x), name="not_zero"), name="own_size")
    return Divide()(Multiply()(x, size, name="sized"), own, name="as_large")
