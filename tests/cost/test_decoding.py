"""Prefills and decode steps: what is kept of tokens, by hand; and the laws that hold of every question."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.architectures.transformer import Transformer
from tests.profiles import examples
from tests.strategies import mixers, transformers


@st.composite
def questions(draw: st.DrawFn) -> tuple[Transformer, dict[str, Any]]:
    """A decoder, and a prefill or a step of it."""
    fields = {"causal": True, "context": 40, "position_rows": None, "pooler": None, "classes": None, "segments": None}
    model = Transformer.of({**draw(transformers()).model_dump(), **fields})
    if mixed := draw(st.integers(0, 2)) == 0:
        model = model.with_fields(draw(mixers()))
    settings: dict[str, Any] = {
        "batch": draw(st.integers(1, 3)),
        "precision": draw(st.sampled_from(["fp32", "bf16", "bf16-autocast", "int8"])),
        "attention": draw(st.sampled_from(["eager", "efficient"])),
        "attention_pairs": draw(st.sampled_from(["full", "visible"])),
        "latent_attention": draw(st.sampled_from(["expanded", "absorbed"])),
        "cache": draw(st.sampled_from(["dynamic", "static", "paged"])),
        "cache_precision": draw(st.sampled_from(["same", "fp8"])),
    }
    if settings["cache"] == "paged":
        settings["page_size"] = draw(st.integers(1, 9))
    past = draw(st.integers(1, 20))
    if draw(st.booleans()):
        drafts = None if mixed else draw(st.none() | st.integers(1, 4))
        return model, {**settings, "mode": "decode", "past": past, "speculative": drafts}
    seq = draw(st.integers(1, 20))
    return model, {**settings, "mode": "prefill", "seq": seq, "past": draw(st.none() | st.just(past))}


QUANTITIES = (
    "flops.forward",
    "memory.cache",
    "memory.peak",
    "traffic.kv_read",
    "traffic.weights",
    "kv_bytes_per_token",
)


@pytest.mark.slow
@examples(40)
@given(questions(), st.sampled_from(QUANTITIES))
def test_formulas_are_the_numbers(asked: tuple[Transformer, dict[str, Any]], quantity: str) -> None:
    p = cm.predict(asked[0], **asked[1])
    assert p.explain(quantity).value == p.value(quantity)


@pytest.mark.slow
@examples(60)
@given(questions())
def test_blocks_folded_are_as_every_block_by_itself(asked: tuple[Transformer, dict[str, Any]]) -> None:
    p = cm.predict(asked[0], **asked[1])
    steps = list(p.timeline.unrolled())
    assert max(step.alive.total for step in steps) == p.memory.peak
    assert steps[-1].alive.cache == p.memory.cache
    assert all(step.alive.cache >= 0 for step in steps)


@pytest.mark.slow
@examples(60)
@given(questions())
def test_a_cache_in_place_moves_no_more_and_peaks_no_higher(asked: tuple[Transformer, dict[str, Any]]) -> None:
    model, settings = asked
    own = {name: value for name, value in settings.items() if name not in ("cache", "page_size")}
    dynamic, static = (cm.predict(model, cache=cache, **own) for cache in ("dynamic", "static"))
    assert static.flops == dynamic.flops
    assert static.traffic.kv_written <= dynamic.traffic.kv_written
    assert static.memory.cache <= dynamic.memory.cache


def test_a_prefill_then_steps_is_one_forward_pass_but_for_the_head() -> None:
    """Of visible pairs; the head sees the last token of the prefill and each further one."""
    model, pairs = cm.load("llama-3.2-1b"), {"attention_pairs": "visible", "attention": "flash"}
    whole = cm.predict(model, mode="inference", seq=12, **pairs).flops.forward
    parts = cm.predict(model, mode="prefill", seq=9, **pairs).flops.forward
    parts += sum(cm.predict(model, mode="decode", past=past, **pairs).flops.forward for past in (9, 10, 11))
    assert whole - parts == 8 * 2 * model.width * model.vocab


def test_drafts_are_verified_as_a_prefill_that_has_logits_of_all() -> None:
    model = cm.load("llama-3.2-1b")
    verified = cm.predict(model, mode="decode", past=100, speculative=4)
    prefill = cm.predict(model, mode="prefill", past=100, seq=5)
    assert verified.flops.forward - prefill.flops.forward == 4 * 2 * model.width * model.vocab
    assert verified.memory.cache == prefill.memory.cache


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [({"cache": "static"}, 101), ({"cache": "paged"}, 112), ({"cache": "paged", "page_size": 64}, 128), ({}, 101)],
)
def test_what_is_kept_is_by_key_heads(settings: dict[str, Any], tokens: int) -> None:
    """Llama 3.2 1B: 16 layers, 8 key heads of 64."""
    p = cm.predict("llama-3.2-1b", mode="decode", past=100, batch=3, precision="bf16", **settings)
    assert p.kv_bytes_per_token == 2 * 16 * 8 * 64 * 2
    assert p.memory.cache == 3 * tokens * p.kv_bytes_per_token


def test_8_bit_floats_halve_it_and_have_two_scales_a_layer() -> None:
    p = cm.predict("llama-3.2-1b", mode="decode", past=100, precision="bf16", cache_precision="fp8", cache="static")
    assert p.kv_bytes_per_token == 16 * 8 * 64 * 2
    assert p.memory.cache == 101 * p.kv_bytes_per_token + 16 * 2 * 4


def test_a_window_keeps_what_it_sees() -> None:
    """Gemma 3 1B: of 26 blocks 22 see 512 tokens."""
    found = [cm.predict("gemma-3-1b", mode="decode", past=n, precision="bf16").memory.cache for n in (100, 511, 4000)]
    a_layer = 2 * 256 * 2
    assert found == [101 * 26 * a_layer, 512 * 26 * a_layer, (22 * 512 + 4 * 4001) * a_layer]


def test_latents_are_kept_once_for_all_heads() -> None:
    """DeepSeek V3: 61 layers, 512 and 64 features."""
    for latent in ("expanded", "absorbed"):
        p = cm.predict("deepseek-v3", mode="decode", past=99, precision="bf16", latent_attention=latent)
        assert p.kv_bytes_per_token == 61 * 576 * 2
        assert p.memory.cache == 100 * p.kv_bytes_per_token


def test_states_stay_as_large_as_they_are() -> None:
    """Codestral Mamba 7B: 64 layers of 8,192 features, 128 numbers each; convolutions over 4 tokens of 10,240."""
    fields = {"vocab": 32768, "context": 8192, "layers": 64, "width": 4096, "heads": 1, "positions": "none"}
    inner = {"state_space.width": 8192, "state_space.groups": 8, "mlp_pattern": (False,), "norm": "rmsnorm"}
    model = Transformer.of(fields | inner)
    asked: list[dict[str, Any]] = [{"mode": "decode", "past": past} for past in (1, 8000)]
    asked += [{"mode": "prefill", "seq": 3}, {"mode": "prefill", "seq": 64, "cache": "static"}, {"mode": "inference"}]
    for settings in asked:
        p = cm.predict(model, batch=2, precision="bf16", **settings)
        assert p.memory.cache == 2 * 64 * (8192 * 128 * 4 + 4 * 10240 * 2)
        assert p.kv_bytes_per_token == 0
    with pytest.raises(cm.CostModelError, match="refused drafts cannot be taken out of again"):
        cm.predict(model, mode="decode", past=5, speculative=2)


@pytest.mark.parametrize(("precision", "bits"), [("int8", 8), ("int4", 4)])
def test_quantised_weights_move_what_they_hold(precision: Any, bits: int) -> None:
    model = cm.load("llama-3.2-1b")
    p = cm.predict(model, mode="decode", past=100, precision=precision)
    linear = {row.name: row for row in p.layers if row.kind == "linear" and "head" not in row.name}
    down = linear["block.mlp.down"]
    scales = model.width * (-(-8192 // 128) if precision == "int4" else 1)
    assert down.weight_bytes == 16 * (model.width * 8192 * bits // 8 + 2 * scales)
    read = p.traffic.weights - cm.predict(model, mode="decode", past=100, precision="fp16").traffic.weights
    held = p.memory.weights - cm.predict(model, mode="decode", past=100, precision="fp16").memory.weights
    assert read == held


def test_a_sweep_over_past_is_as_many_predictions() -> None:
    grid = cm.sweep(
        "gemma-3-270m", mode="decode", past=range(500, 530), batch=[1, 3], precision="bf16", quantities=list(QUANTITIES)
    )
    for past in (500, 511, 512, 529):
        p = cm.predict("gemma-3-270m", mode="decode", past=past, batch=3, precision="bf16")
        cell = grid.sel(past=past, batch=3)
        assert {name: int(cell[name]) for name in QUANTITIES} == {name: p.value(name) for name in QUANTITIES}


def test_the_largest_past_that_fits() -> None:
    asked: dict[str, Any] = {"mode": "decode", "precision": "bf16", "cache": "paged"}
    found = cm.solve("llama-3.2-1b", "memory.peak", "4 GiB", for_="past", **asked)
    most = int(found)
    assert cm.predict("llama-3.2-1b", past=most, **asked).memory.peak <= 2**32
    assert cm.predict("llama-3.2-1b", past=most + 1, **asked).memory.peak > 2**32


@pytest.mark.parametrize(
    ("model", "settings", "past"),
    [
        ("gpt2-small", {}, 1023),
        ("llama-3.1-8b", {}, 2047),
        ("llama-3.1-8b", {"speculative": 3}, 2044),
        (cm.GPT(vocab=99, context=2049, layers=2, width=64, heads=4), {}, 2047),
        (cm.GPT(vocab=99, context=1500, layers=2, width=64, heads=4, positions="rotary"), {}, 1499),
    ],
)
def test_a_decode_step_fills_up_the_sequence_unless_past_is_given(
    model: Any, settings: dict[str, Any], past: int
) -> None:
    p, given = cm.predict(model, mode="decode", **settings), cm.predict(model, mode="decode", past=past, **settings)
    assert str(p) == str(given)
    assert f"past {past}" in str(p).partition("\n")[0]
    assert p.explain("flops.total").value == given.explain("flops.total").value == p.flops.total


@pytest.mark.parametrize(
    ("model", "longest"),
    [("gpt2-small", 1024), ("llama-3.1-8b", 2048), ("deepseek-v3", 2048), ("mistral-7b-v0.1", 2048), ("t5-small", 512)],
)
def test_a_sequence_has_the_context_up_to_2048_tokens_unless_seq_is_given(model: str, longest: int) -> None:
    p = cm.predict(model)
    assert (p.batch_shape.seq, p.memory.peak) == (longest, cm.predict(model, seq=longest).memory.peak)
    assert f"seq {longest}" in str(p).partition("\n")[0]


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("llama-3.2-1b", {"mode": "decode", "past": 131072}, "use at most past=131071"),
        ("gpt2-small", {"mode": "decode", "past": 1022, "speculative": 3}, "use at most past=1020"),
        ("llama-3.2-1b", {"mode": "prefill", "seq": 4096, "past": 130000}, "beyond the context 131072"),
        ("gpt2-small", {"mode": "prefill", "past": 17}, "use at most seq=1007"),
        ("llama-3.2-1b", {"mode": "decode", "past": 5, "seq": 4}, "speculative=3"),
        ("llama-3.2-1b", {"mode": "decode", "past": 0}, "past=0 is not between 1"),
        ("llama-3.2-1b", {"past": 5}, "past=5 does not apply to mode 'train'"),
        ("llama-3.2-1b", {"mode": "inference", "cache": "paged"}, "cache='paged' does not apply to mode 'inference'"),
        ("llama-3.2-1b", {"mode": "prefill", "speculative": 2}, "speculative=2 is for decoding"),
        ("llama-3.2-1b", {"mode": "prefill", "page_size": 8}, "use cache='paged'"),
        ("bert-base", {"mode": "decode", "past": 5}, "no decoder of tokens"),
        ("resnet50", {"mode": "decode", "past": 5}, "no decoder of tokens"),
        ("t5-small", {"mode": "prefill"}, "no decoder of tokens"),
        ("vit-b-16", {"mode": "prefill"}, "no decoder of tokens"),
        ("mlp-mnist", {"mode": "decode", "past": 5}, "no decoder of tokens"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(model: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(cm.CostModelError, match=said) as error:
        cm.predict(model, **settings)
    assert "\n" not in str(error.value)
