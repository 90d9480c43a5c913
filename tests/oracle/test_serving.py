"""Prefills and decode steps cost what PyTorch takes with a cache: arithmetic, bytes moved, memory and its peak."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import costmodel as cm
from costmodel.architectures.transformer import Transformer

from . import caching
from .measure import meta, storage_of
from .settings import differential
from .test_transformer import EAGER, latents, mixed, streaming, transformers
from .tracker import Tracker

pytestmark = pytest.mark.oracle


class Served(NamedTuple):
    """What library and framework must agree on, to the last unit; memory in bytes."""

    params: int
    flops: int
    cache: int
    weights_read: int
    cache_read: int
    cache_written: int


def in_pytorch(
    spec: Any, batch: int, seq: int, past: int, kernel: str, *, absorbed: bool, last: bool
) -> tuple[Served, int]:
    """The same in PyTorch, and the most alive at once beside weights and buffers."""
    found: list[Any] = []
    for mode in (FlopCounterMode(display=False), None, Tracker):
        model = caching.transformer(spec, batch, seq, past, kernel, absorbed=absorbed, last=last)
        tokens = meta(batch, seq, dtype=torch.int64)
        standing = [*model.parameters(), *model.buffers()]
        opened = mode or caching.Traffic(model)
        if mode is Tracker:
            opened = Tracker([tokens, *standing, *caching.caches(model)])
        with torch.no_grad(), opened:
            model(tokens)
        found.append((model, opened))
    (model, counter), (_, traffic), (_, tracker) = found
    kept = {storage_of(x): x.untyped_storage().nbytes() for x in caching.caches(model)}
    served = Served(
        sum(weight.numel() for weight in model.parameters()),
        counter.get_total_flops(),
        sum(kept.values()),
        traffic.weights,
        traffic.kept(written=False),
        traffic.kept(written=True),
    )
    own = {storage_of(x): x.untyped_storage().nbytes() for x in (*found[2][0].parameters(), *found[2][0].buffers())}
    return served, tracker.most["forward"].alive - sum(own.values())


def stated(p: cm.Prediction) -> Served:
    return Served(p.params, p.flops.forward, p.memory.cache, *list(vars(p.traffic).values())[1:])


def on_paper(spec: Any, **settings: Any) -> tuple[Served, int]:
    p = cm.predict(spec, **settings)
    return stated(p), p.memory.peak - p.memory.weights - p.memory.buffers


KERNELS = {
    "gpt2-small": ("eager", "flash", "efficient"),
    "llama-3.2-1b": ("eager", "flash"),
    "gemma-3-1b": ("eager", "flash"),
    "qwen1.5-moe-a2.7b": ("eager", "flash"),
    "deepseek-v2-lite": ("eager", "efficient"),
    "gpt-oss-20b": ("eager",),
}
CASES = [(name, kernel) for name, kernels in KERNELS.items() for kernel in kernels]
RANDOM = {"eager": 0, "flash": 0, "efficient": 16}
"""Bytes of random state that PyTorch's kernel returns without dropout too, in the operation that is the peak."""


def shallow(name: str) -> Any:
    """The model with as many blocks as show each kind of them at the start, in between and at the end."""
    return cm.load(name).with_fields({"layers": 7})


def agree(spec: Any, mode: str, batch: int, seq: int, past: int, kernel: str, *, absorbed: bool = False) -> None:
    """All of it to the last unit."""
    sizes = {"past": past or None, **({"seq": seq} if mode == "prefill" else {"speculative": seq - 1 or None})}
    latent = {"latent_attention": "absorbed" if absorbed else "expanded"}
    found, alive = in_pytorch(spec, batch, seq, past, kernel, absorbed=absorbed, last=mode == "prefill")
    paper, peak = on_paper(spec, mode=mode, batch=batch, attention=kernel, **sizes, **latent)
    assert paper == found
    if mode == "prefill" and spec.experts is not None:
        # A loop over experts holds the parts of all until they are joined; on paper they are one product.
        assert peak <= alive
        return
    assert alive - peak in (0, RANDOM[kernel])


@pytest.mark.parametrize("past", [5, 511, 512, 700])
@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_a_decode_step(name: str, kernel: str, past: int) -> None:
    agree(shallow(name), "decode", 2, 1, past, kernel)


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_drafts_that_a_step_verifies(name: str, kernel: str) -> None:
    agree(shallow(name), "decode", 2, 5, 300, kernel)


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_a_prefill(name: str, kernel: str) -> None:
    agree(shallow(name), "prefill", 2, 600, 0, kernel)


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_a_prefill_that_goes_on(name: str, kernel: str) -> None:
    agree(shallow(name), "prefill", 1, 100, 600, kernel)


@pytest.mark.parametrize("kernel", ["eager", "efficient"])
def test_attention_over_latents(kernel: str) -> None:
    agree(shallow("deepseek-v2-lite"), "decode", 2, 1, 700, kernel, absorbed=True)
    agree(shallow("deepseek-v2-lite"), "decode", 2, 5, 700, kernel, absorbed=True)


STEPS = st.sampled_from([("decode", 1), ("decode", 3), ("prefill", 1), ("prefill", 4), ("prefill", 33)])


GATED = Transformer(vocab=9, context=35, layers=2, width=4, heads=2, fused_qkv=False, attention_gate=True)
FACTORED = Transformer(
    vocab=2, context=33, layers=2, width=6, heads=1, embedding_width=1, embedding_factored=True, embedding_norm=True
)


@differential
@given(transformers(), st.integers(1, 3), STEPS, st.integers(0, 20), EAGER)
@example(GATED, 1, ("prefill", 33), 3, {})
@example(FACTORED, 3, ("prefill", 4), 0, {})
@example(GATED.with_fields({"positions": "rotary", "query_key_norm": "unit"}), 2, ("decode", 1), 4, {})
def test_drawn_decoders(spec: Transformer, batch: int, step: Any, past: int, composed: dict[str, Any]) -> None:
    mode, seq = step
    spec = Transformer.of({**spec.model_dump(), "causal": True, "context": 60, "position_rows": None})
    spec = spec.model_copy(update=composed)
    served(spec, mode, batch, seq, max(past, int(mode == "decode")), "eager")


@differential
@given(latents(), st.integers(1, 3), STEPS, st.integers(0, 20), st.booleans())
def test_drawn_latents(spec: Transformer, batch: int, step: Any, past: int, absorbed: bool) -> None:
    mode, seq = step
    spec = Transformer.of({**spec.model_dump(), "causal": True, "context": 60})
    served(spec, mode, batch, seq, max(past, int(mode == "decode")), "eager", absorbed=absorbed)


@differential
@given(mixed(), st.integers(1, 3), STEPS, st.integers(0, 20))
def test_drawn_mixers(spec: Transformer, batch: int, step: Any, past: int) -> None:
    mode, seq = step
    assume(spec.mixer is not None and (mode == "prefill" or seq == 1))
    fields = {"context": 60, "position_rows": None, "embedding_factored": False}  # of encoders alone
    spec = Transformer.of({**spec.model_dump(), **fields})
    served(spec, mode, batch, seq, max(past, int(mode == "decode")), "eager")


@differential
@given(streaming(), st.integers(1, 3), STEPS, st.integers(0, 20))
def test_drawn_streams(spec: Transformer, batch: int, step: Any, past: int) -> None:
    mode, seq = step
    fields = {"causal": True, "context": 60, "position_rows": None, "segments": None, "classes": None, "pooler": None}
    spec = Transformer.of({**spec.model_dump(), **fields})
    assume(spec.head is None or (spec.head.transform is None and not spec.head.spare_bias))  # of encoders alone
    served(spec, mode, batch, seq, max(past, int(mode == "decode")), "eager")


def served(spec: Any, mode: str, batch: int, seq: int, past: int, kernel: str, *, absorbed: bool = False) -> None:
    """As `agree`; where one operation on paper is several in PyTorch the peak may be lower."""
    sizes = {"past": past or None, **({"seq": seq} if mode == "prefill" else {"speculative": seq - 1 or None})}
    latent = {"latent_attention": "absorbed" if absorbed else "expanded"}
    found, alive = in_pytorch(spec, batch, seq, past, kernel, absorbed=absorbed, last=mode == "prefill")
    paper, peak = on_paper(spec, mode=mode, batch=batch, attention=kernel, **sizes, **latent)
    capped = spec.experts is not None and spec.experts.capacity_factor is not None
    several = "xielu" in (
        spec.activation,
        getattr(spec.mixer, "activation", ""),
    )  # whose numbers several operations in PyTorch read
    if capped or several:  # rows that experts have room for are not those that a loop over them gives each
        paper, found = paper._replace(weights_read=0), found._replace(weights_read=0)
    scans = spec.gated_delta is not None or (spec.state_space is not None and spec.state_space.kind == "mamba")
    if scans and past and seq > 1:  # the package's read a first state thrice, or start anew
        paper, found = paper._replace(cache_read=0), found._replace(cache_read=0)
    assert paper == found
    numbers = {"layernorm": 2, "rmsnorm": 1}.get(spec.norm, 0)  # of each row, made and dropped in inference too
    statistics = 4 * numbers * batch * seq * spec.heads
    # On paper turning a part of a head's features takes both products until the parts are joined, in PyTorch the sum.
    turned = 4 * batch * seq * spec.heads * spec.rotated if spec.rotated < spec.head_features else 0
    assert peak <= alive + turned if joined(spec) else 0 <= alive - peak <= statistics


def joined(spec: Any) -> bool:
    """Whether one operation on paper is several in PyTorch, between which more may be alive."""
    parts = spec.value("rotary.size") not in (None, spec.head_features)
    kinds = spec.latent is not None or spec.experts is not None or spec.value("head.logit_cap") is not None
    # Functions that scan, or square what is above 0, have names for more than what is used again, until they return.
    kinds = kinds or spec.activation == "relu_squared" or spec.mixer is not None
    kinds = kinds or spec.altup is not None or spec.shared_kv_layers is not None
    return parts or kinds or spec.query_key_norm == "heads" or spec.mlp == "clamped"
