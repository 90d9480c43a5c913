"""What checkpointed models keep, against torch.utils.checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from costmodel.analysis.predict import predict
from costmodel.architectures.transformer import Transformer
from costmodel.errors import SettingError

from . import models, streams
from .measure import Saved, meta, results_by_operator, storage_of
from .settings import differential
from .test_transformer import streaming, transformers

pytestmark = pytest.mark.oracle


def again(function: Any, *inputs: Any) -> Any:
    """Keeps the inputs alone; the whole function is run again."""
    return checkpoint(function, *inputs, use_reentrant=True)


class Grouped(torch.nn.Module):
    """A model whose blocks are checkpointed in groups of `size`."""

    def __init__(self, model: models.Transformer, size: int) -> None:
        super().__init__()
        self.model = model
        self.owned = model.blocks
        blocks = list(model.blocks)
        groups = [torch.nn.Sequential(*blocks[start : start + size]) for start in range(0, len(blocks), size)]
        self.groups = [lambda x, *_, group=group: again(lambda x: self.run(group, x), x) for group in groups]

    def run(self, group: Any, x: Any) -> Any:
        """With gradients only when run again, in backward."""
        rerun = torch.is_grad_enabled()
        if rerun:
            self.starts()
        y = group(x)
        if rerun:
            self.ends()
        return y

    def starts(self) -> None:
        """Running again starts."""

    def ends(self) -> None:
        """Running again is done."""

    def forward(self, tokens: Any) -> Any:
        with patch.object(models.Transformer, "blocks", self.groups, create=True):
            self.model._modules.pop("blocks", None)
            return self.model(tokens)


class ByOperator(Grouped):
    """Each block by itself, of which results of operators are kept as torchtitan's "selective op" does."""

    def __init__(self, model: models.Transformer) -> None:
        super().__init__(model, 1)
        self.groups = [partial(self.checkpointed, block) for block in self.owned]

    def checkpointed(self, block: Any, x: Any, *_: Any) -> Any:
        """One run of a block, and in backward another."""
        runs: list[None] = []

        def run(x: Any) -> Any:
            runs.append(None)
            if len(runs) == 1:
                return block(x)
            self.starts()
            try:
                return block(x)
            finally:
                self.ends()

        return checkpoint(run, x, use_reentrant=False, context_fn=partial(self.contexts, x))

    def contexts(self, x: Any) -> Any:
        """Those of one run."""
        caching, cached = results_by_operator()
        self.kept(x, caching.storage)
        return caching, cached

    def kept(self, x: Any, results: Any) -> None:
        """What stays of a block: what it reads, and results by operator and number."""


class Noted(ByOperator):
    """One that notes what stays."""

    def __init__(self, model: models.Transformer) -> None:
        super().__init__(model)
        self.inputs: list[Any] = []
        self.results: list[Any] = []

    def kept(self, x: Any, results: Any) -> None:
        self.inputs.append(x)
        self.results.append(results)

    @property
    def tensors(self) -> list[Any]:
        """All that stays."""
        runs = [run for results in self.results for numbered in results.values() for run in numbered.values()]
        return [*self.inputs, *(value for run in runs for value in leaves(run))]


def leaves(results: Any) -> list[Any]:
    """Tensors of the results of an operator."""
    values = torch.utils._pytree.tree_leaves(results)
    return [value for each in values if isinstance(value := getattr(each, "val", each), torch.Tensor)]


def kept(model: Any, owner: Any, tokens: Any, target: Any) -> int:
    with Saved([*owner.parameters(), *owner.buffers(), tokens, target]) as saved:
        F.cross_entropy(model(tokens), target)
    return saved.bytes


def built(
    spec: Transformer, batch: int, seq: int, kernel: Any = "eager"
) -> tuple[models.Transformer, list[Any], Any, Any]:
    with torch.device("meta"):
        model = models.Transformer(spec, seq, kernel, "gpu")
    outside = [*model.parameters(), *model.buffers()]
    classes = models.features_of(spec)
    assert classes
    return model, outside, meta(batch, seq, dtype=torch.int64), meta(batch * seq, dtype=torch.int64)


class Owner:
    """What a model owned before its blocks were taken out of it."""

    def __init__(self, outside: list[Any]) -> None:
        self.outside = outside

    def parameters(self) -> list[Any]:
        return self.outside

    def buffers(self) -> list[Any]:
        return []


@differential
@given(transformers(), st.integers(1, 3), st.integers(1, 5), st.integers(1, 3))
def test_groups_of_blocks(spec: Transformer, batch: int, seq: int, size: int) -> None:
    size = min(size, spec.layers)
    model, outside, tokens, target = built(spec, batch, seq)
    found = kept(Grouped(model, size), Owner(outside), tokens, target)
    paper = predict(spec, batch=batch, seq=seq, checkpoint=size, loss="cross_entropy")
    assert paper.memory.activations == found
    if size == 1:
        assert predict(spec, batch=batch, seq=seq, checkpoint="block", loss="cross_entropy").layers == paper.layers


@differential
@given(transformers(), st.integers(1, 3), st.integers(1, 5))
def test_selective_recomputation(spec: Transformer, batch: int, seq: int) -> None:
    model, outside, tokens, target = built(spec, batch, seq)
    composed = models.Attention.composed
    with patch.object(models.Attention, "composed", lambda self, *qkv: again(lambda *a: composed(self, *a), *qkv)):
        found = kept(model, Owner(outside), tokens, target)
    paper = predict(spec, batch=batch, seq=seq, checkpoint="selective", loss="cross_entropy")
    assert paper.memory.activations == found


@differential
@given(transformers(), st.integers(1, 3), st.integers(1, 5), st.sampled_from(["eager", "flash"]))
def test_results_of_operators_that_are_kept(spec: Transformer, batch: int, seq: int, kernel: Any) -> None:
    assume(spec.experts is None)
    assume(kernel == "eager" or not (spec.score_cap or spec.sinks or spec.positions == "alibi" or spec.window))
    model, outside, tokens, target = built(spec, batch, seq, kernel)
    owned = Noted(model)
    with Saved([*outside, tokens, target]) as saved:
        F.cross_entropy(owned(tokens), target)
    paper = predict(spec, batch=batch, seq=seq, checkpoint="operators", attention=kernel, loss="cross_entropy")
    known = {storage_of(x) for x in outside}
    also = {storage_of(x): x for x in owned.tensors if storage_of(x) not in known}
    found = saved.bytes + sum(x.untyped_storage().nbytes() for key, x in also.items() if key not in saved.found)
    assert paper.memory.activations == found


@differential
@given(streaming(), st.integers(1, 3), st.integers(1, 5))
def test_blocks_of_streams(spec: Transformer, batch: int, seq: int) -> None:
    assume(spec.altup is not None and spec.classes is None and spec.pooler is None and spec.segments is None)
    spec = spec.with_fields({"shared_kv_layers": None})
    model, outside, tokens, target = built(spec, batch, seq)
    forward = streams.Block.forward
    with patch.object(streams.Block, "forward", lambda self, *given: again(lambda *x: forward(self, *x), *given)):
        found = kept(model, Owner(outside), tokens, target)
    paper = predict(spec, batch=batch, seq=seq, checkpoint="block", loss="cross_entropy")
    assert paper.memory.activations == found


@pytest.mark.parametrize("asked", ["block", 1, ("attention",)])
def test_what_is_run_again_hands_no_keys_on(asked: Any) -> None:
    spec = Transformer(vocab=7, context=8, layers=3, width=8, heads=2, fused_qkv=False, shared_kv_layers=1)
    with pytest.raises(SettingError, match="hand keys and values to blocks after them"):
        predict(spec, checkpoint=asked)
    assert predict(spec, checkpoint="selective").memory.activations < predict(spec).memory.activations


def test_recomputed_flops_are_those_pytorch_does_more() -> None:
    spec = Transformer(vocab=7, context=8, layers=3, width=8, heads=2)
    totals = []
    for size in (None, 1):
        model, _, tokens, target = built(spec, 2, 8)
        with FlopCounterMode(display=False) as counter:
            F.cross_entropy((Grouped(model, size) if size else model)(tokens), target).backward()
        totals.append(counter.get_total_flops())
    paper = predict(spec, batch=2, seq=8, checkpoint="block")
    assert paper.flops.total == totals[0]
    assert paper.flops.hardware == totals[1]


@pytest.mark.parametrize("fields", [{}, {"mlp": "gated"}, {"mlp": "gated", "qkv_bias": False, "mlp_bias": False}])
def test_operators_are_run_again_as_far_as_pytorch_needs_them(fields: dict[str, Any]) -> None:
    """Without ``use_reentrant`` running again stops early; reentrant, as "block" has it, all of a block is run."""
    spec = Transformer(vocab=7, context=8, layers=3, width=8, heads=2, **fields)
    done = {}
    for asked in ("block", "operators"):
        model, _, tokens, target = built(spec, 2, 8)
        kept = {"use_reentrant": False, "context_fn": results_by_operator} if asked == "operators" else {}
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, **({"use_reentrant": True} | kept))
        with FlopCounterMode(display=False) as counter:
            F.cross_entropy(model(tokens), target).backward()
        done[asked] = counter.get_total_flops()
        assert predict(spec, batch=2, seq=8, checkpoint=asked).flops.hardware == done[asked]
    assert done["operators"] < done["block"]
