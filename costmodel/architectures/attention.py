"""The attention sublayer of a transformer, materialised or fused."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from costmodel.architectures.feedforward import capped, clipped, normed
from costmodel.architectures.kv_cache import Cache
from costmodel.architectures.mla import absorbed, projected
from costmodel.architectures.ranks import (
    all_tokens,
    attended_tokens,
    columns,
    of_own_heads,
    prepared,
    rows,
    to_heads,
    to_tokens,
)
from costmodel.architectures.spec import TransformerSpec
from costmodel.architectures.variants import Variant
from costmodel.errors import SettingError
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Role, Shape, Tensor, strides_of
from costmodel.layers.activation import Sigmoid
from costmodel.layers.arithmetic import Add, Dropout, Multiply, Scale
from costmodel.layers.attention import FusedAttention, Mask, Rotary, Sink, Softmax, visible_pairs
from costmodel.layers.collective import GatherFromRanks
from costmodel.layers.embedding import Embedding
from costmodel.layers.indexing import Computed
from costmodel.layers.linear import ExpandValue, Matmul
from costmodel.layers.norm import Rmsnorm
from costmodel.layers.ring_attention import EngineGatherAttention, EngineRingAttention, RingAttention
from costmodel.layers.shape import (
    Cat,
    Copy,
    MergeHeads,
    Permute,
    RepeatHeads,
    Reshape,
    Slice,
    SplitHeads,
    TransposeLast,
)
from costmodel.symbolic.sizes import branch_value, exact_div, minimum, product
from costmodel.training.settings import AttentionName


class AttentionSetting(NamedTuple):
    """How attention is computed, and whether its FLOPs are those of the full square or of visible pairs only.

    absorbed: whether latent attention is over the latent itself. cache: what is kept of tokens; None: nothing is.
    gathered_keys: see `Architecture.gathered_keys`.
    """

    kernel: AttentionName = "eager"
    pairs: Literal["full", "visible"] = "full"
    absorbed: bool = False
    cache: Cache | None = None
    gathered_keys: int | None = None


def composition() -> Any:
    """Parts as the package transformers writes them, which only what asks for those loads."""
    from costmodel.architectures import composition

    return composition


class AttentionContext:
    """The constants of one model's attention that its blocks share: masks, position tables and slopes."""

    def __init__(self, model: TransformerSpec, tape: Tape, x: Tensor, setting: AttentionSetting) -> None:
        self.model = model
        self.tape = tape
        self.batch, self.seq, self.own = x.shape[0], attended_tokens(x), all_tokens(x)
        seq = self.seq
        self.setting = setting
        # The CPU's fused kernel has no dropout, nor trained biases, nor values of another size: PyTorch then composes
        # it, scaling query and key beforehand.
        self.cache = setting.cache
        self.past = 0 if setting.cache is None else setting.cache.past
        self.absorbed = setting.absorbed and model.latent is not None
        unequal = self.absorbed or model.value_features != model.head_features
        relative = model.by_distance
        lacks = unequal or relative or (tape.training and model.attention_dropout > 0)
        self.fallback = setting.kernel != "eager" and tape.device == "cpu" and lacks
        self.composed = setting.kernel == "eager" or self.fallback
        lacking = {"soft cap of the scores": model.score_cap is not None, "sinks": model.sinks}
        lacking["disentangled scores"] = model.disentangled is not None
        lacking["choice of keys"] = model.indexer is not None
        for name in (name for name, needed in lacking.items() if needed and setting.kernel != "eager"):
            raise SettingError(f"attention={setting.kernel!r} has no {name}, as {model.title} needs: use 'eager'")
        if unequal and setting.kernel == "flash" and tape.device == "gpu":
            raise SettingError(
                f"attention='flash' has no values of another size than keys, as {model.title} needs: use 'efficient' "
                "or 'eager'"
            )
        if relative and setting.kernel == "flash":
            raise SettingError(
                f"attention='flash' takes no biases of the scores, as {model.title} has: use 'efficient' or 'eager'"
            )
        if model.written is not None and setting.kernel != "eager":
            self._check_written(model)
        ahead = (model.heads, 1, self.keys(None))
        self.slopes = self._constant(ahead, "activation", "alibi", within=False) if model.positions == "alibi" else None
        self._angles: dict[bool, list[Tensor]] = {}
        if model.positions == "rotary" and model.written is None:
            for windowed in (True, False):
                self.angles(windowed=windowed)
        shape = (self.seq, self.keys(None))
        self.buckets = self._constant(shape, "index", "relative_buckets") if relative else None
        self.bias = self.relative() if relative and model.relative_shared else None
        self._masks: dict[bool, Tensor] = {}
        self.lent: dict[tuple[bool, bool], list[Tensor]] = {}
        self.distances: Any = None
        if model.disentangled is not None:
            from costmodel.architectures.disentangled import RelativeDistances

            self.distances = RelativeDistances(model, tape, seq)

    def _check_written(self, model: TransformerSpec) -> None:
        """Raise SettingError where the package has no fused attention, or hands its kernel a mask."""
        window = None if model.window is None else model.window.size
        masked = window is not None and branch_value(self.seq) >= branch_value(window)
        if masked or model.positions in ("alibi", "relative"):
            of = "its window" if masked else "its biases"
            raise SettingError(
                f"attention={self.setting.kernel!r}: for {of} transformers hands {model.title} a mask, or has no fused "
                "attention, which is not modelled: use 'eager'"
            )

    def _constant(self, shape: Shape, role: Role, name: str, *, within: bool = True) -> Tensor:
        """What depends on positions alone: a buffer, or worked out in each pass as the package does."""
        if self.model.written is None:
            return self.tape.buffer(shape, role, self.tape.within(name) if within else name)
        return self.tape.record(Computed(shape, role, 1), (), name, None)

    def angles(self, *, windowed: bool) -> list[Tensor]:
        """cos and sin of the angles of every position here, (T, features that turn): constants, or made in the pass.

        Blocks without a window may have angles of their own.
        """
        model, size = self.model, self.model.of_all_keys.rotated
        own = model.written is not None and model.written.own_angles and model.window is not None
        apart = not windowed and (own or size != model.rotated)
        name = "global_rotary" if apart else "rotary"
        if apart not in self._angles:
            shape = (self.own, size if apart else model.rotated)
            self._angles[apart] = (
                [self.tape.buffer(shape, "activation", f"{name}.{part}") for part in ("cos", "sin")]
                if model.written is None
                else composition().angles(self.tape, *shape, name)
            )
        return self._angles[apart]

    def keys(self, window: int | None) -> int:
        """Keys that scores are computed of."""
        return self.seq if self.cache is None else self.cache.seen(self.seq, window)

    def seen(self, biases: Tensor, window: int | None) -> Tensor:
        """Of biases (h, queries or 1, keys) those of the keys that a window leaves, the last ones: a view."""
        keys = self.keys(window)
        strides = strides_of(biases)
        return biases if window is None else biases.view((*biases.shape[:2], keys), strides)

    @property
    def sees_all(self) -> bool:
        """Whether all keys are kept for a token, so that nothing is masked: of one that is alone and the last."""
        return self.cache is not None and self.seq == 1

    def relative(self) -> Tensor | None:
        """A trained bias for each head and bucket of distances, (h, T, keys) (Raffel et al. 2020, §2.1), if any."""
        if self.buckets is None:
            return None
        biases = Embedding(self.model.buckets, self.model.heads)(self.buckets, name="relative_bias")
        return Permute((2, 0, 1))(biases, name="relative_bias_by_head")

    def mask(self, window: int | None) -> Tensor | None:
        """Which keys a token does not see, (T, keys); none where it sees all, or where the kernel knows itself."""
        if not self.composed or not (self.model.causal or window is not None) or self.sees_all:
            return None
        windowed = window is not None
        if windowed not in self._masks:
            name = "attention_mask" if windowed or self.model.window is None else "global_attention_mask"
            shape = (self.seq, self.keys(window))
            if self.model.written is not None:
                self._masks[windowed] = composition().mask(self.tape, self.batch, *shape, name)
            else:
                self._masks[windowed] = self.tape.buffer(shape, "mask", self.tape.within(name))
        return self._masks[windowed]


class Attention:
    """Multi-head attention of one model's blocks of one variant; to the tokens of `memory`, all of them, if given."""

    def __init__(
        self,
        model: TransformerSpec,
        context: AttentionContext,
        variant: Variant = Variant(),  # noqa: B008
        memory: Tensor | None = None,
    ) -> None:
        self.model = model if variant.windowed else model.of_all_keys
        self.context = context
        self.memory = memory
        self.variant = variant
        self.rotated = variant.rotated and memory is None and model.positions == "rotary"
        own = None if model.window is None else model.window.size
        self.window = window = own if variant.windowed and memory is None else None
        seq = context.seq
        masked = memory is None and (model.causal or window is not None)
        self.every = seq * (context.keys(window) if memory is None else memory.shape[1])
        past = context.past
        nearest = window if model.indexer is None else model.indexer.chosen  # as many as chosen ones
        self.pairs = visible_pairs(seq, causal=model.causal, window=nearest, past=past) if masked else self.every
        self.mask = context.mask(window) if memory is None else None
        self.angles = context.angles(windowed=variant.windowed) if self.rotated else []
        self.stored: dict[str, Any] = {}
        self.queries: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, T, width) → (batch, T, width)."""
        model = self.model
        with x.tape.scope("attention" if self.memory is None else "cross_attention"):
            x = x if model.latent is not None and x.tape.layout.megatron else prepared(x, "input")
            query, key, value, *others = self._projected(x, self.angles)
            if model.indexer is not None:
                self.mask = others.pop(0)
            gate, matrix = (others, []) if model.attention_gate else ([], others)
            bias = None if self.memory is not None else self.context.bias or self.context.relative()
            if bias is not None and self.context.cache is not None:
                bias = self.context.seen(bias, self.window)
            query, key, value = (to_heads(y, n) for y, n in ((query, "query"), (key, "key"), (value, "value")))
            with x.tape.part("core"):
                mixed = (self._composed if self.context.composed else self._fused)(query, key, value, bias)
            mixed = to_tokens(mixed, "mixed")
            if matrix:
                expand = ExpandValue(model.head_features - model.rotated, model.value_features)
                mixed = expand(mixed, name="value_up", tied={"weight": matrix[0]})
            merged = MergeHeads()(mixed)
            if gate:
                merged = Multiply()(merged, Sigmoid()(gate[0], name="gate_sigmoid"), name="gated")
            if model.span_convolution is not None and self.memory is None:
                from costmodel.architectures.span_convolution import span_convolved

                spans = span_convolved(x, self.queries, model.heads, model.span_convolution)
                shape = (*merged.shape[:2], merged.shape[2] + spans.shape[2])
                merged = Cat(shape, 2)(merged, spans, name="join_spans")
            merged = normed(model, merged, "inner_norm") if model.inner_norm else merged
            return rows(merged, model.width, "output", bias=model.attention_bias)

    def _kept(self, x: Tensor, name: str) -> Tensor:
        """What tokens attend to of their own x, (..., T, d), and of those kept of earlier tokens, (..., keys, d).

        Without a cache that is x, of which decoding would keep so much: the memory is noted, beside the pass.
        """
        if not self.model.causal or x.tape.training:
            return x
        if self.context.cache is not None:
            return self.context.cache.extended(x, f"cache_{name}", self.window)
        *rest, length, features = x.shape
        seen = length if self.window is None else minimum(self.window, length)
        storage = x.tape.storage(product((*rest, seen, features)), x.storage.role, "cache", "cache", x.dtype)
        x.tape.keep(storage, product((*rest[1:], features)))
        return x

    def _projected(self, x: Tensor, angles: list[Tensor]) -> list[Tensor]:
        if self.context.absorbed:
            return absorbed(self.model, x, angles, self._kept)
        if self.model.latent is not None:
            return projected(self.model, x, angles, self._kept)
        query, *own = self._project(x)
        if angles:
            query = self._turned(query, angles, "rotate_query")
        if self.variant.borrows:
            return [query, *self.context.lent[self.variant.keys], *own]
        key, value, *gate = own
        if angles:
            key = self._turned(key, angles, "rotate_key")
        kept = [self._kept(key, "key"), self._kept(value, "value")]
        if self.variant.lends:
            if x.tape.recomputation.open:
                raise SettingError(
                    f"checkpoint: blocks of {self.model.title} hand keys and values to blocks after them "
                    "(shared_kv_layers), which what is run again cannot: recompute parts that make none, such as 'mlp'"
                )
            self.context.lent[self.variant.keys] = kept
        return [query, *kept, *gate]

    def _turned(self, x: Tensor, angles: list[Tensor], name: str) -> Tensor:
        """x, (batch, h, T, d_h), with the features turned that are."""
        if self.model.written is None:
            return Rotary(self.model.rotated)(x, *angles, name=name)
        return composition().turned(x, *angles, self.model.rotated, name, joined=self.model.written.joined)

    def _project(self, x: Tensor) -> list[Tensor]:
        model, size = self.model, self.model.head_features
        heads = {"query": model.heads, "key": model.key_heads, "value": model.key_heads}
        if self.variant.borrows:
            heads = {"query": model.heads}
        if not model.fused_qkv or self.memory is not None:
            biases = {"query": model.qkv_bias, "key": model.qkv_bias and model.key_bias, "value": model.qkv_bias}
            source = x if self.memory is None else self.memory
            widths = {name: n * (1 + (name == "query" and model.attention_gate)) for name, n in heads.items()}
            same = model.window is not None and model.window.global_shared_values and not self.variant.windowed
            parts = {
                name: columns(x if name == "query" else source, n * size, name, bias=biases[name])
                for name, n in widths.items()
                if not (same and name == "value")
            }
            if same and "key" in parts:
                parts["value"] = parts["key"]
            if model.disentangled is not None and self.memory is None:
                self.stored = {name: x.tape.weights_of(name) for name in ("query", "key")}
            self.queries = parts["query"]
            gate = [self._gate(parts)] if model.attention_gate else []
            parts = {name: clipped(part, model.qkv_clip, f"clip_{name}") for name, part in parts.items()}
            return [self._split(parts[name], name, n) for name, n in heads.items()] + gate
        if (gathered := self.context.setting.gathered_keys) is not None:
            return self._of_gathered(x, gathered)
        joint = columns(x, sum(n * size for n in heads.values()), "qkv", bias=model.qkv_bias)
        joint = clipped(joint, model.qkv_clip, "clip_qkv")
        split: list[Tensor] = []
        start = 0
        for name, n in heads.items():
            split.append(self._split(Slice(n * size, start)(joint, name=name), name, n))
            start = start + n * size
        return split

    def _of_gathered(self, x: Tensor, key_heads: int) -> list[Tensor]:
        """Query heads of this rank, and their one key head, out of all rows that ranks make evenly.

        Source: ``SelfAttention.get_query_key_value_tensors`` of ``megatron/core/transformer/attention.py``.
        """
        model, degree = self.model, x.tape.layout.tp
        size, every = model.head_features, model.heads * degree
        own = columns(x, exact_div((every + 2 * key_heads) * size, degree), "qkv", bias=model.qkv_bias)
        joint = GatherFromRanks("tp", degree, 2)(own, name="qkv.gather")
        queries = exact_div(every, key_heads) * size
        starts = {"query": 0, "key": queries, "value": queries + size}
        heads = {"query": model.heads, "key": 1, "value": 1}
        return [self._split(Slice(n * size, starts[name])(joint, name=name), name, n) for name, n in heads.items()]

    def _gate(self, parts: dict[str, Tensor]) -> Tensor:
        """(batch, T, heads·d_h), of the second half of what is made for each head beside the query, which is left."""
        query, n = parts["query"], self.model.head_features
        b, t, wide = query.shape
        joint = query.view((b, t, self.model.heads, 2 * n))
        parts["query"] = Slice(n)(joint, name="query_of_joint")
        return Reshape((t, exact_div(wide, 2)))(Slice(n, n)(joint, name="gate"), name="join_gate")

    def _split(self, x: Tensor, name: str, heads: int) -> Tensor:
        """(batch, T, heads·d_h) → (batch, heads, T, d_h), with query and key normalised if the model does so."""
        unit = "value" if self.model.value_norm else None  # as "unit", whatever is rotated
        norm = self.model.query_key_norm if name != "value" else unit
        apart = len(x.shape) == 4  # by heads already
        if norm == "width":
            x = normed(self.model, x, f"{name}_norm")
        if norm in ("head", "heads", "value") or (norm == "unit" and self.rotated):
            x = x if apart else Reshape((x.shape[1], heads, self.model.head_features))(x, name=f"heads_of_{name}")
            own = heads if norm == "heads" else None
            plain = Rmsnorm(affine=False)(x, name=f"{name}_norm") if norm in ("unit", "value") else None
            x = of_own_heads(normed(self.model, x, f"{name}_norm", own)) if plain is None else plain
            return Permute((0, 2, 1, 3))(x, name=f"split_{name}")
        split = Permute((0, 2, 1, 3)) if apart else SplitHeads(heads)
        return split(x, name=f"split_{name}")

    def _composed(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        model, context = self.model, self.context
        heads, length = query.shape[1:3]
        if context.absorbed:  # all heads have the same keys: their queries are rows of one product
            query = Reshape((1, heads * length, query.shape[3]))(query, name="join_queries")
        elif model.kv_heads is not None and model.kv_heads != model.heads:
            times = exact_div(model.heads, model.kv_heads)
            key = RepeatHeads(times)(key, name="repeat_key")
            value = RepeatHeads(times)(value, name="repeat_value")
        visible = (self.pairs, self.every) if context.setting.pairs == "visible" else None
        content = key
        key = TransposeLast()(key)
        if context.fallback:
            root = Scale(math.sqrt(model.score_factor))
            query, key = root(query, name="scale_query"), root(key, name="scale_key")
        scores = Matmul(visible)(query, key, name="scores")
        if context.absorbed:
            scores = Reshape((heads, length, scores.shape[3]))(scores, name="split_scores")
        if model.score_scale != 1 and not context.fallback:
            scores = Scale(model.score_factor)(scores)
        scores = capped(scores, model.score_cap, "cap")
        if context.slopes is not None:
            slopes = context.slopes if context.cache is None else context.seen(context.slopes, self.window)
            scores = Add()(scores, slopes, name="add_alibi")
        if bias is not None:
            scores = Add()(scores, bias, name="add_relative")
        if context.distances is not None and self.memory is None:
            from costmodel.architectures.disentangled import biases

            distances = biases(model, context.distances, query, content, self.stored)
            scores = Add()(scores, distances, name="add_disentangled")
        if self.mask is not None:
            added = model.written is not None
            scores = Add()(scores, self.mask, name="add_mask") if added else Mask()(scores, self.mask)
        keys = scores.shape[-1]
        scores = Sink()(scores) if model.sinks else scores
        in_fp32 = model.written is not None and model.written.weights == "fp32"
        weights = composition().weights_in_fp32(scores) if in_fp32 else Softmax()(scores)
        if model.sinks:
            weights = Slice(keys)(weights, name="drop_sink")
        if model.attention_dropout:
            weights = Dropout(model.attention_dropout)(weights)
        if not context.absorbed:
            return Matmul(visible)(weights, value, name="mix")
        weights = Reshape((1, heads * length, weights.shape[3]))(weights, name="join_weights")
        mixed = Matmul(visible)(weights, value, name="mix")
        return Reshape((heads, length, value.shape[3]))(mixed, name="split_mixed")

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        kernel = "cpu" if query.tape.device == "cpu" else self.context.setting.kernel
        assert kernel != "eager"
        layout, visible = query.tape.layout, self.context.setting.pairs == "visible"
        if layout.cp > 1 and layout.cp_kind != "ulysses":
            options = (self.model.causal, self.model.attention_dropout, visible)
            if layout.megatron:
                kind = EngineRingAttention if layout.cp_kind == "ring" else EngineGatherAttention
                return kind(layout.cp, *options)(query, key, value, name="fused")
            ring = RingAttention(layout.cp, layout.cp_kind, layout.cp_balanced, *options)
            return ring(query, key, value, name="fused")
        pairs = self.pairs if self.context.setting.pairs == "visible" else None
        scale = self.model.score_factor if self.context.absorbed else self.model.score_scale
        if self.rotated and query.tape.layout.megatron:  # which takes views of one tensor, or of none
            value = Copy(value.shape)(value, name="copy_value")
        return FusedAttention(kernel, self.model.attention_dropout, pairs, scale, self.pairs)(
            query, key, value, *(() if bias is None else (bias,)), name="fused"
        )
