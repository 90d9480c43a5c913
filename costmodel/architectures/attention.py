"""The attention sublayer of a transformer, materialised or fused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from costmodel.layers.arithmetic import Add, Dropout, Scale
from costmodel.layers.attention import FusedAttention, Mask, Rotary, Softmax, visible_pairs
from costmodel.layers.linear import Linear, Matmul
from costmodel.layers.shape import MergeHeads, RepeatHeads, Slice, SplitHeads, TransposeLast
from costmodel.run import Run
from costmodel.sizes import exact_div
from costmodel.tensor import Tensor

if TYPE_CHECKING:
    from costmodel.architectures.transformer import Transformer

AttentionName = Literal["eager", "flash", "efficient"]


class AttentionSetting(NamedTuple):
    """How attention is computed, and whether its FLOPs are those of the full square or of visible pairs only."""

    kernel: AttentionName = "eager"
    pairs: Literal["full", "visible"] = "full"


class Mixer:
    """Multi-head attention of one model; masks and position tables are made once and shared by all its blocks."""

    def __init__(self, model: Transformer, run: Run, seq: int, setting: AttentionSetting) -> None:
        self.model = model
        self.setting = setting
        masked = model.causal or model.window is not None
        self.pairs = visible_pairs(seq, causal=model.causal, window=model.window) if masked else seq * seq
        # The CPU's fused kernel has no dropout: PyTorch then composes it, scaling query and key before their product.
        dropped = run.training and model.attention_dropout > 0
        self.fallback = setting.kernel != "eager" and run.device == "cpu" and dropped
        self.composed = setting.kernel == "eager" or self.fallback
        self.mask = run.buffer((seq, seq), "mask", "attention_mask") if masked and self.composed else None
        self.slopes = run.buffer((model.heads, 1, seq), "activation", "alibi") if model.positions == "alibi" else None
        self.angles = (
            [run.buffer((seq, model.rotated), "activation", f"rotary.{name}") for name in ("cos", "sin")]
            if model.positions == "rotary"
            else []
        )

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, T, width) → (batch, T, width)."""
        model = self.model
        with x.run.scope("attention"):
            query, key, value = self._project(x)
            if self.angles:
                query = Rotary(model.rotated)(query, *self.angles, name="rotate_query")
                key = Rotary(model.rotated)(key, *self.angles, name="rotate_key")
            with x.run.part("core"):
                mixed = (self._composed if self.composed else self._fused)(query, key, value)
            merged = MergeHeads()(mixed)
            return Linear(model.width, bias=model.attention_bias)(merged, name="output")

    def _project(self, x: Tensor) -> list[Tensor]:
        model, size = self.model, self.model.head_features
        heads = {"query": model.heads, "key": model.key_heads, "value": model.key_heads}
        if not model.fused_qkv:
            return [
                SplitHeads(n)(Linear(n * size, bias=model.qkv_bias)(x, name=name), name=f"split_{name}")
                for name, n in heads.items()
            ]
        joint = Linear(sum(n * size for n in heads.values()), bias=model.qkv_bias)(x, name="qkv")
        parts: list[Tensor] = []
        start = 0
        for name, n in heads.items():
            part = Slice(n * size, start)(joint, name=name)
            parts.append(SplitHeads(n)(part, name=f"split_{name}"))
            start = start + n * size
        return parts

    def _composed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        model = self.model
        if model.kv_heads is not None and model.kv_heads != model.heads:
            times = exact_div(model.heads, model.kv_heads)
            key = RepeatHeads(times)(key, name="repeat_key")
            value = RepeatHeads(times)(value, name="repeat_value")
        seq = query.shape[2]
        visible = (self.pairs, seq * seq) if self.setting.pairs == "visible" else None
        key = TransposeLast()(key)
        if self.fallback:
            query, key = Scale()(query, name="scale_query"), Scale()(key, name="scale_key")
        scores = Matmul(visible)(query, key, name="scores")
        if not self.fallback:
            scores = Scale()(scores)
        if self.slopes is not None:
            scores = Add()(scores, self.slopes, name="add_alibi")
        if self.mask is not None:
            scores = Mask()(scores, self.mask)
        weights = Softmax()(scores)
        if model.attention_dropout:
            weights = Dropout(model.attention_dropout)(weights)
        return Matmul(visible)(weights, value, name="mix")

    def _fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kernel = "cpu" if query.run.device == "cpu" else self.setting.kernel
        assert kernel != "eager"
        pairs = self.pairs if self.setting.pairs == "visible" else None
        return FusedAttention(kernel, self.model.attention_dropout, pairs)(query, key, value, name="fused")
