"""Transformers drawn at random cost what the same model costs in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from costmodel.analysis.predict import predict
from costmodel.architectures.transformer import Transformer
from costmodel.errors import SpecError

from . import mixers, models, streams
from .measure import Cost, measure, meta, stated
from .settings import differential

pytestmark = pytest.mark.oracle

PROBABILITY = st.sampled_from([0.0, 0.1])


@st.composite
def transformers(draw: st.DrawFn, *, summed_up: bool = False) -> Transformer:
    """Small ones, of every family that the fields allow; `summed_up` in classes too, some of them."""
    heads = draw(st.integers(1, 4))
    head_size = draw(st.sampled_from([None, 2, 3, 4, 6]))
    width = draw(st.integers(1, 12)) if head_size else heads * draw(st.integers(1, 4)) * 2
    size = head_size or width // heads
    positions = draw(st.sampled_from(["learned", "alibi", "none"] + ["rotary"] * (size >= 2)))
    rotary = (
        draw(st.sampled_from([*range(2, size + 1, 2), *[None] * (size % 2 == 0)])) if positions == "rotary" else None
    )
    parallel = draw(st.booleans())
    window = draw(st.none() | st.integers(1, 6))
    context = draw(st.integers(33, 35))
    head = draw(st.booleans())
    routing = draw(st.just({}) | mixtures())
    ends = draw(st.just({}) | summaries(head)) if summed_up else {}
    flags = {name: draw(st.booleans()) for name in FLAGS}
    norm = draw(st.sampled_from(["layernorm", "rmsnorm"]))
    inner = [None, "head", "width", "unit", *["heads"] * (norm == "layernorm")]
    chances = {f"{place}_dropout": draw(PROBABILITY) for place in PLACES}
    narrow = draw(st.none() | st.integers(1, 9))
    within: dict[str, Any] = {"window.pattern": draw(PATTERN)} if window else {}
    if positions == "rotary":
        within |= {"rotary.size": rotary, "rotary.pattern": draw(PATTERN)}
    if head:
        within |= {f"head.{name}": draw(FACTOR) for name in ("input_scale", "logit_scale", "logit_cap")}
        within["head.bias"] = draw(st.booleans())
    fields = dict(
        vocab=draw(st.integers(1, 20)),
        context=context,
        layers=draw(st.integers(1, 6)),
        width=width,
        heads=heads,
        head_size=head_size,
        kv_heads=draw(st.sampled_from([None, *(n for n in range(1, heads + 1) if heads % n == 0)])),
        window=window,
        positions=positions,
        position_rows=draw(st.sampled_from([None, context + 2])) if positions == "learned" else None,
        position_table=draw(st.sampled_from(models.TABLES)) if positions == "learned" else "trained",
        mlp=draw(st.sampled_from(["plain", "gated", "clamped"])),
        mlp_width=draw(st.none() | st.integers(1, 9)),
        activation=draw(st.sampled_from(models.NAMES)),
        norm=norm,
        norm_placement="pre" if parallel else draw(st.sampled_from(["pre", "post", "output", "both"])),
        parallel=parallel,
        shared_norm=parallel and draw(st.booleans()),
        final_norm=draw(st.sampled_from([None, True, False])),
        head=head,
        mixed_dropout=draw(st.none() | PROBABILITY),
        query_key_norm=draw(st.sampled_from(inner)),
        layer_scale=draw(st.booleans()),
        embedding_width=narrow,
        shared_blocks=not routing and draw(st.booleans()),
        embedding_factored=narrow is not None and draw(st.booleans()),
        key_bias=draw(st.booleans()) if flags["qkv_bias"] and not flags["fused_qkv"] else True,
        **{name: draw(FACTOR) for name in ("qkv_clip", "score_scale", "embedding_scale", "residual_scale")},
        **flags,
        **routing,
        **ends,
        **chances,
    )
    if not (fields["fused_qkv"] or fields["qkv_clip"] or fields["query_key_norm"] == "width"):
        fields["attention_gate"] = draw(st.booleans())
    if fields["norm_placement"] == "pre" and not parallel and not fields["shared_blocks"]:
        fields["first_norm"] = draw(st.booleans())
    return Transformer.of(fields | within)


@st.composite
def summaries(draw: st.DrawFn, head: bool) -> dict[str, Any]:
    names = st.sampled_from([None, *models.NAMES])
    classes = draw(st.none() | st.integers(2, 5))
    told_by = draw(st.sampled_from(["first", "first", "last", "mean", "each", "spans"])) if classes else "first"
    pooler = draw(names) if (classes or not head) and told_by == "first" else None
    return {
        "segments": draw(st.none() | st.integers(1, 3)),
        "head.transform": draw(names) if head else None,
        "head.spare_bias": head and draw(st.booleans()),
        "pooler": pooler,
        "pooler.width": draw(st.none() | st.integers(1, 6)) if pooler else None,
        "classes": classes,
        "classes.told_by": told_by if classes else None,
        "classes.transform": draw(names) if classes and told_by != "first" else None,
        "classes.transform_bias": draw(st.booleans()) if classes else None,
        "classes.transform_norm": draw(st.booleans()) if classes else None,
        "pooler.bias": draw(st.booleans()) if pooler else None,
        "pooler.norm": draw(st.booleans()) if pooler else None,
        "pooler.over": draw(st.sampled_from(["first", "mean"])) if pooler else None,
        "head.transform_bias": draw(st.booleans()) if head else None,
        "classes.bias": draw(st.booleans()) if classes else None,
        "pooler.dropout": draw(PROBABILITY) if pooler else None,
        "classes.dropout": draw(PROBABILITY) if classes else None,
    }


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(1, 4))
    shared = draw(st.none() | st.integers(1, 9))
    return {
        "experts": experts,
        "experts.per_token": draw(st.integers(1, experts)),
        "experts.width": draw(st.none() | st.integers(1, 9)),
        "experts.pattern": draw(PATTERN),
        "experts.weights": draw(st.sampled_from(["chosen", "all", "sigmoid"])),
        "experts.shares": draw(st.booleans()),
        "experts.capacity_factor": draw(st.sampled_from([None, None, 0.5, 1.25, 2.0])),
        "experts.scale": draw(FACTOR),
        "experts.bias": draw(st.none() | st.booleans()),
        "experts.shared_width": shared,
        "experts.shared_gate": shared is not None and draw(st.booleans()),
        "experts.router_bias": draw(st.booleans()),
        **draw(st.just({}) | groups()),
    }


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """Experts among which some groups are chosen first; and first blocks without any."""
    number, biased = draw(st.integers(1, 3)), draw(st.booleans())
    each, kept = draw(st.integers(1 + biased, 3)), draw(st.integers(1, number))
    return {
        "experts": number * each,
        "experts.per_token": draw(st.integers(1, kept * each)),
        "experts.groups": number,
        "experts.chosen_groups": kept,
        "experts.choice_bias": biased,
        "experts.choice_stored": biased and draw(st.booleans()),
        "experts.pattern": (),
        "experts.dense_layers": draw(st.none() | st.integers(1, 7)),
    }


@st.composite
def latents(draw: st.DrawFn) -> Transformer:
    """With latent attention, and else as others."""
    turned = 2 * draw(st.integers(1, 2))
    fields = {
        "positions": "rotary",
        "position_rows": None,
        "position_table": "trained",
        "rotary.size": turned,
        "head_size": turned + draw(st.integers(1, 4)),
        "latent.value_head_size": draw(st.none() | st.integers(1, 6)),
        "latent.width": draw(st.integers(1, 5)),
        "latent.query_width": draw(st.none() | st.integers(1, 5)),
        "fused_qkv": False,
        "kv_heads": None,
        "query_key_norm": None,
        "qkv_clip": None,
        "attention_gate": False,
    }
    spec = draw(transformers())
    return Transformer.of(spec.model_dump() | fields)


@st.composite
def choosing(draw: st.DrawFn) -> Transformer:
    """With latent attention to keys that are chosen."""
    spec = draw(latents())
    fields = {"causal": True, "latent.query_width": draw(st.integers(1, 5)), "indexer": draw(st.integers(1, 4))}
    fields |= {"indexer.heads": draw(st.integers(1, 3)), "indexer.head_size": draw(st.integers(4, 6))}
    return Transformer.of(spec.model_dump() | fields)


@st.composite
def gemmas(draw: st.DrawFn) -> Transformer:
    """With heads of their own where all is seen, experts beside the MLP, vectors of tokens for each block."""
    spec = draw(transformers(summed_up=True))
    fields: dict[str, Any] = {"shared_blocks": False, "parallel": False, "shared_norm": False, "first_norm": True}
    fields |= {"norm_placement": draw(st.sampled_from(["both", "both", "pre"])), "block_scale": draw(st.booleans())}
    if draw(st.booleans()):
        fields |= {"layer_inputs": draw(st.integers(1, 4)), "layer_inputs.vocab": draw(st.none() | st.integers(1, 9))}
    if spec.experts is not None and spec.experts.shared_width is None and fields["norm_placement"] == "both":
        fields["experts.beside"] = draw(st.booleans())
    if spec.window is not None:
        fields |= {"fused_qkv": False, "attention_gate": False, "window.pattern": draw(PATTERN)}
        fields |= {"window.global_shared_values": draw(st.booleans()), "window.global_kv_heads": 1}
        fields["window.global_head_size"] = draw(st.none() | st.sampled_from([2, 4]))
        fields |= {"rotary": None, "query_key_norm": draw(st.sampled_from([None, "head"]))}
        fields["head_size"] = 2 * draw(st.integers(1, 3))
    return Transformer.of(spec.model_dump() | fields)


@st.composite
def mixed(draw: st.DrawFn) -> Transformer:
    """With other mixers than attention in some blocks, or beside it, and blocks without an MLP."""
    patterns = st.lists(st.booleans(), max_size=3).map(tuple)
    other = draw(st.just({}) | mixers.state_spaces() | mixers.gated_deltas() | mixers.SHORT)
    name = next(iter(other), "").partition(".")[0]
    fields = {"causal": True, "parallel": False, "shared_norm": False, "first_norm": True, **other}
    if name:
        fields[f"{name}.pattern"] = draw(patterns)
    fields |= {"attention_pattern": draw(patterns), "mlp_pattern": draw(patterns), "shared_blocks": False}
    spec = draw(transformers())
    try:
        return Transformer.of(spec.model_dump() | fields)
    except SpecError as error:
        assert "no attention, nothing else" in str(error)  # noqa: PT017
        return Transformer.of(spec.model_dump() | fields | {"attention_pattern": (), "mlp_pattern": ()})


@st.composite
def disentangled(draw: st.DrawFn) -> Transformer:
    """Encoders with scores of distances, and else as others."""
    scores = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    fields = {
        "disentangled.size": draw(st.integers(1, 5)),
        "disentangled.shared": draw(st.booleans()),
        "disentangled.to_position": scores[0],
        "disentangled.to_content": scores[1],
        "disentangled.norm": draw(st.booleans()),
        "disentangled.trimmed": draw(st.booleans()),
        "causal": False,
        "fused_qkv": False,
        "attention_gate": False,
        **dict.fromkeys(("kv_heads", "query_key_norm", "qkv_clip")),
    }
    return Transformer.of(draw(transformers(summed_up=True)).model_dump() | fields)


@st.composite
def embedded(draw: st.DrawFn) -> Transformer:
    """With boxes, masked tokens left out, inner norms, weights that nothing reads, and else as others."""
    spec = draw(transformers(summed_up=True))
    fields: dict[str, Any] = {
        "boxes": draw(st.none() | st.integers(1, 9)),
        "token_dropout": draw(st.booleans()),
        "contact_head": draw(st.booleans()),
        "spare_weights": draw(st.none() | st.integers(1, 9)),
    }
    if spec.experts is None:
        fields |= {"inner_norm": draw(st.booleans()), "mlp_output_bias": draw(st.none() | st.booleans())}
    if not spec.causal and draw(st.booleans()):
        none = dict.fromkeys(("kv_heads", "query_key_norm", "qkv_clip"))
        fields |= {"fused_qkv": False, "attention_gate": False, "span_convolution": draw(st.sampled_from([1, 3, 5]))}
        fields |= none
    if spec.pooler is None and (spec.head or spec.classes) and draw(st.booleans()):
        fields |= {"pooler": "tanh", "pooler.spare": True, "pooler.over": draw(st.sampled_from(["first", "mean"]))}
    return Transformer.of(spec.model_dump() | fields)


@st.composite
def streaming(draw: st.DrawFn) -> Transformer:
    """With several residual streams or MLPs of several widths, with keys and values of blocks before, or both."""
    spec = draw(transformers(summed_up=True))
    fields: dict[str, Any] = {"value_norm": draw(st.booleans()), "shared_blocks": False}
    if draw(st.booleans()):
        fields |= draw(streams.STREAMS) | streams.PLAIN
    elif spec.experts is None:
        fields |= {"mlp_width": None, "mlp_widths": draw(st.lists(st.integers(1, 6), max_size=3).map(tuple))}
    if spec.window is not None:
        fields["window.pattern"] = draw(st.sampled_from([(), (True, False), (True, True, False), (False, True)]))
    if draw(st.booleans()) and spec.layers > 1:
        fields |= {"fused_qkv": False, "rotary.pattern": () if spec.positions == "rotary" else None}
        for shared in range(draw(st.integers(1, spec.layers - 1)), 0, -1):
            try:
                return Transformer.of(spec.model_dump() | fields | {"shared_kv_layers": shared})
            except SpecError as error:
                assert "there is no block of the kind of block" in str(error)  # noqa: PT017
    return Transformer.of(spec.model_dump() | fields)


PLACES = ("embedding", "attention", "residual", "mlp", "final")
FACTOR = st.sampled_from([None, None, 1.0]) | st.floats(0.2, 3)
BY_DISTANCE: list[dict[str, Any]] = [
    {},
    {},
    {"positions": "relative"},
    {"positions": "relative", "relative_shared": False},
    {"positions": "learned", "relative_buckets": 4},
    {"positions": "learned", "relative_buckets": 5, "relative_shared": False},
]
EAGER = st.builds(
    lambda fields, positions: fields | positions,
    st.fixed_dictionaries({"score_cap": FACTOR, "sinks": st.booleans()}),
    st.sampled_from(BY_DISTANCE),
)
"""What no fused kernel has."""
PATTERN = st.lists(st.booleans(), max_size=4).map(tuple)
FLAGS = (
    "causal",
    "fused_qkv",
    "qkv_bias",
    "attention_bias",
    "mlp_bias",
    "norm_affine",
    "norm_bias",
    "embedding_norm",
    "tied",
)
SEQ = st.integers(1, 5) | st.sampled_from([32, 33])  # the efficient kernel pads to 32
DEVICE = st.sampled_from(["gpu", "cpu"])
LOSS = st.sampled_from(["cross_entropy", "mean_squared_error"])


def in_pytorch(
    spec: Transformer,
    batch: int,
    seq: int,
    device: Any,
    kernel: str = "eager",
    loss: str = "cross_entropy",
    backward: bool = True,
) -> Cost:
    """What PyTorch counts and keeps."""
    with torch.device("meta"):
        model = models.Transformer(spec, seq, kernel, device)
    inputs = inputs_of(spec, batch, seq)
    summed_up = spec.classes or (spec.pooler and not spec.pooler.spare)
    summary = models.summary_of(spec, batch, seq) if summed_up else []
    tokens = [(batch * seq, models.features_of(spec))]
    shapes = [*(tokens if spec.head or not summary else []), *summary]
    made = [meta(rows, dtype=torch.int64) if loss == "cross_entropy" else meta(rows, n) for rows, n in shapes]
    of = F.cross_entropy if loss == "cross_entropy" else F.mse_loss

    def total(y: Any) -> torch.Tensor:
        ends = y if isinstance(y, tuple) else (y,)
        return sum(of(end, target) for end, target in zip(ends, made, strict=True))

    spare = spec.pooler is not None and spec.pooler.spare
    held = spec.gated_delta is not None or spare  # what makes the last state is let go of with it, and so are poolers
    return measure(model, *inputs, loss=total, given=tuple(made), backward=backward, held=held)


def inputs_of(spec: Transformer, batch: int, seq: int) -> list[torch.Tensor]:
    """Tokens, and the segments that they are in and their boxes, if the model asks for them."""
    given: list[Any] = [meta(batch, seq, dtype=torch.int64) for _ in range(1 + (spec.segments is not None))]
    return given if spec.boxes is None else [*given, meta(batch, seq, 4, dtype=torch.int64)]


def on_paper(spec: Transformer, loss: str = "cross_entropy", **settings: Any) -> Cost:
    return stated(predict(spec, loss=loss, **settings), predict(spec, loss=None, **settings))


@differential
@given(transformers(summed_up=True), st.integers(1, 3), SEQ, DEVICE, LOSS, EAGER)
def test_eager_attention(
    spec: Transformer, batch: int, seq: int, device: Any, loss: str, composed: dict[str, Any]
) -> None:
    spec = spec.model_copy(update=composed)
    assert on_paper(spec, loss, batch=batch, seq=seq, device=device) == in_pytorch(spec, batch, seq, device, loss=loss)


@differential
@given(latents(), st.integers(1, 3), SEQ, DEVICE, st.sampled_from(["eager", "efficient", "flash"]))
def test_latent_attention(spec: Transformer, batch: int, seq: int, device: Any, kernel: str) -> None:
    if kernel == "flash" and device == "gpu":
        spec = spec.with_fields({"latent.value_head_size": None})
    paper = on_paper(spec, batch=batch, seq=seq, device=device, attention=kernel)
    own = "cpu" if device == "cpu" and kernel != "eager" else kernel
    found = in_pytorch(spec, batch, seq, device, own)
    if own == "cpu":  # PyTorch counts its fused kernel as nothing
        counted = in_pytorch(spec, batch, seq, device, "efficient")
        found = found._replace(forward_flops=counted.forward_flops, total_flops=paper.total_flops)
    assert paper == found


@differential
@given(gemmas(), st.integers(1, 3), SEQ, DEVICE)
def test_heads_where_all_is_seen_and_vectors_for_blocks(spec: Transformer, batch: int, seq: int, device: Any) -> None:
    assert on_paper(spec, batch=batch, seq=seq, device=device) == in_pytorch(spec, batch, seq, device)


@differential
@given(choosing(), st.integers(1, 3), SEQ, DEVICE)
def test_chosen_keys(spec: Transformer, batch: int, seq: int, device: Any) -> None:
    assert on_paper(spec, batch=batch, seq=seq, device=device) == in_pytorch(spec, batch, seq, device)


@differential
@given(disentangled(), st.integers(1, 3), SEQ, DEVICE)
def test_disentangled_attention(spec: Transformer, batch: int, seq: int, device: Any) -> None:
    assert on_paper(spec, batch=batch, seq=seq, device=device) == in_pytorch(spec, batch, seq, device)


@differential
@given(embedded(), st.integers(1, 3), SEQ, DEVICE)
def test_what_is_embedded_beside_tokens(spec: Transformer, batch: int, seq: int, device: Any) -> None:
    assert on_paper(spec, batch=batch, seq=seq, device=device) == in_pytorch(spec, batch, seq, device)


@differential
@given(mixed(), st.integers(1, 3), SEQ, DEVICE)
def test_other_mixers(spec: Transformer, batch: int, seq: int, device: Any) -> None:
    assert on_paper(spec, batch=batch, seq=seq, device=device) == in_pytorch(spec, batch, seq, device)


@differential
@given(streaming(), st.integers(1, 3), SEQ, DEVICE)
def test_streams_and_shared_keys(spec: Transformer, batch: int, seq: int, device: Any) -> None:
    assert on_paper(spec, batch=batch, seq=seq, device=device) == in_pytorch(spec, batch, seq, device)


@differential
@given(transformers(summed_up=True), st.integers(1, 3), SEQ)
def test_flash_attention(spec: Transformer, batch: int, seq: int) -> None:
    assert on_paper(spec, batch=batch, seq=seq, attention="flash") == in_pytorch(spec, batch, seq, "gpu", "flash")


@differential
@given(transformers(summed_up=True), st.integers(1, 3), SEQ)
def test_efficient_attention(spec: Transformer, batch: int, seq: int) -> None:
    paper = on_paper(spec, batch=batch, seq=seq, attention="efficient")
    if spec.kv_heads in (None, spec.heads):
        assert paper == in_pytorch(spec, batch, seq, "gpu", "efficient")
    else:  # PyTorch has no backward for grouped heads here; its FLOPs are the other kernel's
        found = in_pytorch(spec, batch, seq, "gpu", "efficient", backward=False)
        flash = in_pytorch(spec, batch, seq, "gpu", "flash")
        assert paper == found._replace(total_flops=flash.total_flops)


@differential
@given(transformers(summed_up=True), st.integers(1, 3), SEQ)
def test_fused_attention_on_the_cpu(spec: Transformer, batch: int, seq: int) -> None:
    found = in_pytorch(spec, batch, seq, "cpu", "cpu")
    if not spec.attention_dropout:  # PyTorch counts this kernel as nothing; the library as it counts the GPU's
        flash = in_pytorch(spec, batch, seq, "cpu", "flash")
        found = found._replace(forward_flops=flash.forward_flops, total_flops=flash.total_flops)
    assert on_paper(spec, batch=batch, seq=seq, attention="flash", device="cpu") == found


@differential
@given(transformers(summed_up=True), st.integers(1, 3), SEQ, st.sampled_from(["eager", "flash", "efficient"]))
def test_inference(spec: Transformer, batch: int, seq: int, kernel: str) -> None:
    with torch.device("meta"), torch.no_grad():
        model = models.Transformer(spec, seq, kernel, "gpu").eval()
        found = measure(model, *inputs_of(spec, batch, seq), backward=False)
    paper = predict(spec, batch=batch, seq=seq, attention=kernel, mode="inference")
    assert stated(paper, paper) == found
    assert found.saved == 0
