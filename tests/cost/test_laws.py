"""Laws that hold for every model, whatever its numbers."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from costmodel.analysis.predict import Prediction, predict
from costmodel.architectures.attention import Attention, AttentionContext, AttentionSetting
from costmodel.architectures.mlp import MLP
from costmodel.architectures.trace import new_tape, trace
from costmodel.architectures.transformer import Transformer
from costmodel.cost.allocator import exactly
from costmodel.cost.persistent import persistent_bytes
from costmodel.cost.quantities import QUANTITIES, SUMMED
from costmodel.cost.rows import Row
from costmodel.graph.call import Block, Call, LayerFlops
from costmodel.graph.tape import Tape
from costmodel.symbolic.guards import expression, symint
from costmodel.symbolic.reading import readable
from costmodel.symbolic.sizes import ceil_div, exact_div, maximum, minimum
from costmodel.training.settings import Settings
from tests.cost.test_folding import Unrolled
from tests.profiles import examples
from tests.strategies import mlps, questions, transformers


@pytest.mark.slow
@given(questions())
@examples(12)
def test_letters_then_numbers_equals_numbers(question: tuple[Any, dict[str, Any]]) -> None:
    model, asked = question
    p = predict(model, **asked)
    for quantity in QUANTITIES:
        explained = p.explain(quantity)
        values = {d.symbol: d.value for d in explained.letters}
        assert {s.name for s in explained.formula.free_symbols} == set(values)
        put_in = {s: values[s.name] for s in explained.formula.free_symbols}
        assert explained.formula.subs(put_in) == p.value(quantity)


def costs(model: Any, asked: Settings, kind: type[Tape]) -> dict[str, int]:
    p = Prediction(model, asked, trace(model, asked, new_tape(asked, kind=kind)))
    return {quantity: p.value(quantity) for quantity in SUMMED} | {
        "standing": persistent_bytes([p.tape], asked, exactly),
        "gradients": p.memory.gradients,
        "traffic": sum(row.forward_bytes for row in p.layers),
    }


def sums_over_calls(tape: Tape, asked: Settings) -> dict[str, int]:
    """The quantities as sums over the calls of a graph without repeats, and over what they hold, by identity."""

    def contractions(work: LayerFlops) -> int:
        return work.contractions if work.counted is None or asked.flop_rule == "arithmetic" else work.counted

    def held(calls: list[Call], origin: str) -> int:
        kept = [storage for call in calls for storage in call.saved]
        kept += [storage for block in tape.root.blocks() if block.recomputed for storage in block.saved]
        leaves = {leaf for storage in kept for leaf in ((storage,) if storage.parts is None else storage.leaves())}
        return sum(storage.bytes for storage in leaves if storage.origin == origin)

    calls = [*tape.root.calls()]
    works = {
        "forward": [call.layer.forward(call) for call in calls],
        "backward": [
            gradient.work
            for call in calls
            for gradient in call.layer.backward(call)
            if call.y.requires_grad and gradient.operand.requires_grad
        ],
        "recomputed": [call.layer.forward(call) for call in calls if call.recomputed],
    }
    found = {f"flops.{part}": asked.accumulate * sum(map(contractions, of)) for part, of in works.items()}
    found |= {f"pointwise_flops.{part}": asked.accumulate * sum(w.pointwise for w in of) for part, of in works.items()}
    remembered = [call for call in calls if not call.recomputed]
    weights = {weight.storage for call in calls for weight in call.stored.values()}
    return found | {
        "params": sum(storage.elements for storage in weights if storage.origin == "weight"),
        "memory.activations": held(remembered, "computed"),
        "memory.casts": held(remembered, "cast"),
    }


@pytest.mark.slow
@given(questions())
def test_totals_are_sums_over_the_calls_of_the_unrolled_graph(question: tuple[Any, dict[str, Any]]) -> None:
    """Blocks are recomputed in groups, which nothing is in where nothing repeats; parts are by name."""
    model, asked = question
    if asked.get("checkpoint") not in ("selective", ("mlp",)):
        asked = asked | {"checkpoint": "none"}
    chosen, p = Settings(**asked), predict(model, **asked)
    tape = trace(model, chosen, new_tape(chosen, kind=Unrolled))
    for quantity, total in sums_over_calls(tape, chosen).items():
        assert p.value(quantity) == total, quantity


@pytest.mark.slow
@given(questions())
def test_repeating_equals_unrolling(question: tuple[Any, dict[str, Any]]) -> None:
    model, asked = question
    chosen = Settings(**asked | {"checkpoint": "none"})
    assert costs(model, chosen, Tape) == costs(model, chosen, Unrolled)


@pytest.mark.slow
@given(questions())
def test_unrolling_leaves_no_repeats(question: tuple[Any, dict[str, Any]]) -> None:
    model, _ = question
    tape = trace(model, Settings(), new_tape(Settings(), kind=Unrolled))
    assert not any(isinstance(entry, Block) for entry in tape.root.entries)


@pytest.mark.slow
@given(
    transformers(), st.integers(1, 3), st.sampled_from(["block", "sqrt", "selective", ("mlp",), ("attention", "mlp")])
)
def test_checkpointing_trades_memory_for_flops(model: Transformer, batch: int, checkpoint: Any) -> None:
    kept, again = (predict(model, batch=batch, seq=4, checkpoint=how) for how in ("none", checkpoint))
    assert again.traffic == kept.traffic  # of the first forward pass
    assert again.flops.total == kept.flops.total
    assert again.flops.recomputed > 0 == kept.flops.recomputed
    if checkpoint != ("mlp",):  # which may be a product alone
        assert again.pointwise_flops.recomputed > 0 == kept.pointwise_flops.recomputed
    for p in (kept, again):
        end = [step for step in p.timeline.steps if step.phase in ("forward", "loss")][-1]
        assert end.alive.activations == p.memory.activations


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 9, 10, 16, 17])
def test_checkpointing_by_the_root_takes_the_smallest_groups_that_are_no_fewer(layers: int) -> None:
    """Chen et al. 2016, §4.2: groups of k blocks, with the least k of which k groups are enough."""
    model = Transformer(vocab=11, context=8, layers=layers, width=6, heads=3)
    size = next(k for k in range(1, layers + 1) if k * k >= layers)
    root, by_size = (predict(model, batch=2, checkpoint=how) for how in ("sqrt", size))
    assert (root.memory, root.timeline.steps) == (by_size.memory, by_size.timeline.steps)
    others = [k for k in (size - 1, size + 1) if 1 <= k <= layers and -(-layers // k) != -(-layers // size)]
    assert all(predict(model, batch=2, checkpoint=k).timeline.steps != root.timeline.steps for k in others)


@pytest.mark.slow
@given(transformers(), st.integers(1, 9), st.integers(1, 16))
@examples(40)
def test_doubling_the_batch_doubles_work_and_activations(model: Transformer, batch: int, seq: int) -> None:
    """A capacity is rounded up, and is no whole number of times larger."""
    absent = dict.fromkeys(("position_rows", "rotary", "latent", "experts.capacity_factor"))
    model = model.with_fields({"positions": "none", "position_table": "trained", **absent})
    one, two = (predict(model, batch=n * batch + 1, seq=seq, loss=None) for n in (1, 2))
    base = predict(model, batch=1 + 3 * batch, seq=seq, loss=None)
    assert base.flops.total - two.flops.total == two.flops.total - one.flops.total > 0
    assert base.memory.activations - two.memory.activations == two.memory.activations - one.memory.activations > 0


def test_ten_thousand_repeats_are_one_trace() -> None:
    def graph(layers: int) -> Prediction:
        return predict(Transformer(vocab=11, context=8, layers=layers, width=8, heads=2))

    few, many = graph(12), graph(10_000)
    assert len(few.layers) == len(many.layers)
    per_layer = exact_div(many.params - few.params, 10_000 - 12)
    assert few.params - 12 * per_layer == many.params - 10_000 * per_layer


@given(mlps() | transformers())
def test_inference_keeps_nothing_and_has_no_backward(model: Any) -> None:
    p = predict(model, batch=3, mode="inference")
    assert p.memory.activations == p.memory.gradients == p.memory.optimizer == 0
    assert p.flops.backward == p.pointwise_flops.backward == 0
    assert p.flops.forward == predict(model, batch=3).flops.forward


BASE = {
    "vocab": 50,
    "context": 8,
    "layers": 3,
    "width": 16,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 6,
    "mlp_width": 24,
    "embedding_dropout": 0.1,
    "attention_dropout": 0.1,
    "residual_dropout": 0.1,
}
LATENT = {"kv_heads": None, "fused_qkv": False, "positions": "rotary", "rotary.size": 2, "latent.width": 5}
CHOICE = LATENT | {"latent.query_width": 5, "indexer.chosen": 2, "indexer.heads": 2, "indexer.head_size": 4}
GLOBAL = {"window": 3, "window.pattern": (True, False), "fused_qkv": False}
EACH = {"classes": 3, "classes.told_by": "each"}
INNER = {"state_space.width": 16, "state_space.head_size": 4, "state_space.state": 3}
DELTA = {"gated_delta.heads": 4, "gated_delta.key_size": 3, "gated_delta.value_size": 3, "gated_delta.chunk": 3}
APART = {"causal": False, "fused_qkv": False, "kv_heads": None}
WRITTEN = {"composition.used": True}
STREAMS = {"norm_placement": "both", "final_norm": True, "residual_dropout": 0.0, "mlp": "gated", "altup.streams": 2}
STREAMS |= {"altup.laurel_rank": 2, "altup.layer_width": 2}
DISTANCES = APART | {"disentangled.size": 3}
MAMBA = {"state_space.width": 16, "state_space.state": 3, "state_space.kind": "mamba"}
VARIATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"vocab": 51}),
    ({}, {"context": 9}),
    ({}, {"layers": 4}),
    ({}, {"width": 18}),
    ({}, {"heads": 6}),
    ({}, {"kv_heads": 4}),
    ({}, {"head_size": 8}),
    ({}, {"causal": False}),
    ({"causal": False}, {"window": 3}),
    *(({}, {"positions": positions}) for positions in ("rotary", "alibi", "none")),
    ({"positions": "rotary"}, {"rotary.size": 2}),
    ({}, {"qkv_bias": False}),
    ({}, {"attention_bias": False}),
    ({}, {"mlp": "gated"}),
    ({}, {"mlp_width": 25}),
    ({}, {"mlp_bias": False}),
    ({}, {"activation": "relu"}),
    ({}, {"norm": "rmsnorm"}),
    ({}, {"norm_bias": False}),
    ({}, {"norm_placement": "post", "final_norm": True}),
    ({}, {"parallel": True}),
    ({"parallel": True}, {"shared_norm": True}),
    ({}, {"embedding_norm": True}),
    ({}, {"final_norm": False}),
    ({}, {"embedding_dropout": 0.0}),
    ({}, {"attention_dropout": 0.0}),
    ({}, {"residual_dropout": 0.0}),
    ({}, {"head": False}),
    ({}, {"tied": False}),
    ({}, {"head.bias": True}),
    ({}, {"fused_qkv": False}),
    ({"window": 3, "causal": False}, {"window.pattern": (True, False)}),
    ({"positions": "rotary"}, {"rotary.pattern": (True, True, False)}),
    ({}, {"experts": 4}),
    ({"experts": 4}, {"experts.per_token": 3}),
    ({"experts": 4}, {"experts.width": 5}),
    ({"experts": 4}, {"experts.pattern": (True, False)}),
    ({"experts": 4}, {"experts.weights": "all"}),
    ({"experts": 4}, {"experts.shared_width": 7}),
    ({"experts": 4, "experts.shared_width": 7}, {"experts.shared_gate": True}),
    ({"experts": 4}, {"experts.router_bias": True}),
    ({"experts": 4}, {"experts.bias": False}),
    ({"experts": 4}, {"experts.dense_layers": 1}),
    ({"experts": 4}, {"experts.shares": True}),
    ({"experts": 4}, {"experts.scale": 2.5}),
    ({"experts": 4}, {"experts.groups": 2, "experts.chosen_groups": 1}),
    ({"experts": 4, "experts.groups": 4, "experts.chosen_groups": 2}, {"experts.chosen_groups": 3}),
    ({"experts": 4}, {"experts.choice_bias": True}),
    ({"experts": 4, "experts.choice_bias": True}, {"experts.choice_stored": True}),
    ({"experts": 4}, {"experts.capacity_factor": 1.25}),
    ({"experts": 4}, {"experts.imbalance": 2.0}),
    ({}, {"sinks": True}),
    ({"mlp": "gated"}, {"mlp": "clamped"}),
    (LATENT, {"latent.width": 6}),
    (LATENT, {"latent.query_width": 6}),
    (LATENT, {"latent.value_head_size": 5}),
    ({}, {"position_rows": 10}),
    ({}, {"position_table": "stored"}),
    ({}, {"qkv_clip": 8.0}),
    ({}, {"query_key_norm": "head"}),
    ({"query_key_norm": "head"}, {"query_key_norm": "width"}),
    ({"query_key_norm": "head"}, {"query_key_norm": "heads"}),
    ({}, {"score_scale": 1.0}),
    ({}, {"score_cap": 50.0}),
    ({}, {"norm_affine": False}),
    ({}, {"norm_placement": "output"}),
    ({"norm_placement": "output"}, {"norm_placement": "both"}),
    ({}, {"embedding_width": 12}),
    ({}, {"embedding_scale": 4.0}),
    ({}, {"residual_scale": 0.5}),
    ({}, {"head.logit_scale": 0.5}),
    ({}, {"head.logit_cap": 30.0}),
    ({}, {"segments": 2}),
    ({}, {"pooler": "tanh", "classes": 3}),
    ({"pooler": "tanh", "classes": 3}, {"pooler.dropout": 0.1}),
    ({"classes": 3}, {"classes.dropout": 0.1}),
    ({"pooler": "tanh", "classes": 3}, {"pooler.width": 5}),
    ({}, {"head.transform": "gelu"}),
    ({}, {"positions": "relative"}),
    ({"positions": "relative"}, {"relative_buckets": 8}),
    ({"fused_qkv": False}, {"key_bias": False}),
    ({}, {"final_dropout": 0.1}),
    ({}, {"head.input_scale": 0.5}),
    ({}, {"head.spare_bias": True}),
    ({}, {"mlp_dropout": 0.1}),
    ({}, {"mixed_dropout": 0.0}),
    ({}, {"first_norm": False}),
    ({"layers": 4}, {"shared_blocks": True}),
    ({"pooler": "tanh", "classes": 3}, {"pooler.bias": False}),
    ({"pooler": "tanh", "classes": 3}, {"pooler.norm": True}),
    ({"embedding_width": 12}, {"embedding_factored": True}),
    ({"positions": "relative"}, {"relative_shared": False}),
    ({"classes": 3}, {"classes.bias": False}),
    ({"classes": 3}, {"classes.told_by": "last"}),
    (EACH, {"classes.transform": "tanh"}),
    (EACH | {"classes.transform": "gelu"}, {"classes.transform_bias": False}),
    (EACH | {"classes.transform": "gelu"}, {"classes.transform_norm": True}),
    ({"head.transform": "gelu"}, {"head.transform_bias": False}),
    ({}, {"layer_scale": True}),
    ({}, {"attention_pattern": (True, False)}),
    ({}, {"mlp_pattern": (True, False)}),
    ({"fused_qkv": False}, {"attention_gate": True}),
    ({}, {"gated_delta": 4}),
    (DELTA, {"gated_delta.key_heads": 2}),
    (DELTA, {"gated_delta.key_size": 4}),
    (DELTA, {"gated_delta.value_size": 4}),
    (DELTA, {"gated_delta.chunk": 4}),
    (DELTA, {"gated_delta.convolution": 3}),
    (DELTA, {"gated_delta.activation": "relu"}),
    (DELTA, {"gated_delta.pattern": (True, False)}),
    ({}, {"short_convolution.size": 3}),
    ({"short_convolution": 3}, {"short_convolution.bias": True}),
    ({"short_convolution": 3}, {"short_convolution.pattern": (True, False)}),
    (INNER, {"state_space.width": 24}),
    (INNER, {"state_space.head_size": 2}),
    (INNER, {"state_space.state": 4}),
    (INNER, {"state_space.groups": 2}),
    (INNER, {"state_space.chunk": 3}),
    (INNER, {"state_space.convolution": 3}),
    (INNER, {"state_space.convolution_bias": False}),
    (INNER, {"state_space.activation": "relu"}),
    (INNER, {"state_space.bias": True}),
    (INNER, {"state_space.output_bias": True}),
    (INNER, {"state_space.norm": "none"}),
    (INNER, {"state_space.pattern": (True, False)}),
    ({"state_space.width": 64}, {"state_space.kind": "mamba"}),
    (MAMBA, {"state_space.rank": 2}),
    (MAMBA, {"state_space.norm": "inner"}),
    (APART, {"disentangled.size": 3}),
    (DISTANCES, {"disentangled.shared": False}),
    (DISTANCES, {"disentangled.norm": False}),
    (DISTANCES, {"disentangled.to_position": False}),
    (DISTANCES, {"disentangled.to_content": False}),
    (DISTANCES | {"disentangled.shared": False, "disentangled.size": 9}, {"disentangled.trimmed": True}),
    ({}, {"inner_norm": True}),
    ({}, {"layer_inputs.width": 3}),
    ({"layer_inputs": 3}, {"layer_inputs.vocab": 9}),
    ({}, {"block_scale": True}),
    ({"experts": 4, "norm_placement": "both"}, {"experts.beside": True}),
    ({"experts": 4}, {"experts.dropout": 0.1}),
    (GLOBAL, {"window.global_head_size": 8}),
    (GLOBAL, {"window.global_kv_heads": 4}),
    (GLOBAL, {"window.global_shared_values": True}),
    (CHOICE, {"indexer.chosen": 3}),
    (CHOICE, {"indexer.heads": 3}),
    (CHOICE, {"indexer.head_size": 5}),
    ({}, {"mlp_output_bias": False}),
    ({}, {"boxes": 9}),
    ({}, {"token_dropout": True}),
    ({}, {"contact_head": True}),
    (APART, {"span_convolution": 3}),
    ({}, {"spare_weights": 7}),
    ({"pooler": "tanh", "classes": 3}, {"pooler.over": "mean"}),
    ({"pooler": "tanh", "classes": 3}, {"pooler.spare": True}),
    ({}, {"value_norm": True}),
    ({"fused_qkv": False}, {"shared_kv_layers": 1}),
    ({"mlp_width": None}, {"mlp_widths": (24, 30)}),
    ({}, {"composition.used": True}),
    (WRITTEN | {"norm": "rmsnorm"}, {"composition.norm": "scaled"}),
    (WRITTEN, {"composition.activation": "gelu_composed"}),
    (WRITTEN, {"composition.positions": "tokens"}),
    (WRITTEN | GLOBAL | {"positions": "rotary"}, {"composition.own_angles": True}),
    (WRITTEN | {"positions": "rotary"}, {"composition.joined": True}),
    (WRITTEN, {"composition.scale_buffer": True}),
    (WRITTEN, {"composition.weights": "fp32"}),
    (STREAMS, {"altup.streams": 3}),
    (STREAMS, {"altup.laurel_rank": 3}),
    (STREAMS, {"altup.layer_width": 3}),
    (STREAMS, {"altup.layer_vocab": 9}),
    (STREAMS, {"altup.output_scale": False}),
    (STREAMS, {"altup.clipped": False}),
    (STREAMS, {"altup.sparse_pattern": (True, False)}),
]


def answer(model: Any, **asked: Any) -> tuple[list[Row], int, int]:
    p = predict(model, **asked)
    return p.layers, p.memory.buffers, p.memory.inputs


@pytest.mark.slow
@pytest.mark.parametrize(("given_fields", "change"), VARIATIONS, ids=lambda value: ",".join(value) or "base")
def test_no_field_is_inert(given_fields: dict[str, Any], change: dict[str, Any]) -> None:
    before, after = Transformer.of(BASE | given_fields), Transformer.of(BASE | given_fields | change)
    question = {"precision": "bf16" if "composition.weights" in change else "fp32"}  # which is wide already
    pairs = "visible" if "indexer.chosen" in change else "full"  # how many keys are chosen changes no shape
    question["attention_pairs"] = pairs
    assert answer(before, batch=2, **question) != answer(after, batch=2, **question)


def test_every_field_is_varied() -> None:
    varied = {name for _, change in VARIATIONS for name in change}
    leaves = set(Transformer.field_names()) - Transformer.parts().keys()
    assert {Transformer.spelt(name) for name in varied} == leaves - {"name", "notes"} | {"head"}


def test_a_window_masks_and_counts() -> None:
    """A window of a causal model changes no shape: what it changes is the pairs that are visible."""
    wide, narrow = (Transformer.of(BASE | {"window": window}) for window in (None, 3))
    seen = [predict(model, attention_pairs="visible").flops.forward for model in (wide, narrow)]
    assert seen[0] > seen[1]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))
def test_sizes_compute_as_their_expressions_do(a: int, b: int, m: int, n: int) -> None:
    x, y = symint("x", a), symint("y", b)
    for size in (
        (x + 3) // m // n,
        ceil_div(ceil_div(x, m) + 2, n),
        maximum(x * 2, y) - minimum(x, y),
        exact_div(x * y * m, m),
        7 - x + 2 * y,
    ):
        assert expression(size).value({"x": a, "y": b}) == int(size)
        symbols = sympy.symbols("x y", integer=True, positive=True)
        assert readable(expression(size)).sympy().subs(dict(zip(symbols, (a, b), strict=True))) == int(size)


def test_a_chain_of_roundings_is_one() -> None:
    assert readable(expression(ceil_div(ceil_div(symint("x", 9), 2) + 1, 2))).text({}) == "ceiling((x + 2)/4)"


@given(st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_visible_pairs_are_those_a_mask_leaves(t: int, window: int, causal: bool) -> None:
    tape = Tape(training=True, device="gpu")
    model = Transformer(vocab=5, context=8, layers=1, width=4, heads=2, window=window, causal=causal)
    seen = sum((j <= i if causal else True) and abs(i - j) < window for i in range(t) for j in range(t))
    assert Attention(model, AttentionContext(model, tape, tape.tensor((1, t, 4)), AttentionSetting())).pairs == seen


def test_layers_of_an_mlp_in_a_run_share_a_letter() -> None:
    explained = predict(MLP(sizes=[3, 5, 5, 5, 2])).explain("params")
    assert [(d.symbol, d.value) for d in explained.letters] == [("n_0", 3), ("n_1", 5), ("n_2", 2)]


@pytest.mark.slow
@given(transformers(), st.integers(1, 3), st.integers(1, 4), st.integers(2, 9), st.integers(2, 16))
@examples(40)
def test_a_formula_says_where_it_does_not_hold(
    model: Transformer, batch: int, seq: int, other_batch: int, other_seq: int
) -> None:
    """Derived at any size, even 1, a formula without a note holds at all larger ones."""
    p, other = predict(model, batch=batch, seq=seq), predict(model, batch=other_batch, seq=other_seq)
    for quantity in (name for name in SUMMED if not name.endswith(("total", "hardware"))):
        explained = p.explain(quantity)
        values = {d.symbol: d.value for d in explained.letters} | {"B": other_batch, "T": other_seq}
        put_in = {s: values[s.name] for s in explained.formula.free_symbols}
        assert explained.note or explained.formula.subs(put_in) == other.value(quantity)
