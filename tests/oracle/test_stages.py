"""One rank of a pipeline costs what PyTorch says: parameters, FLOPs, every message in order, the peak of each phase."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import costmodel as cm
from costmodel.errors import SettingError
from costmodel.training.schedules import SCHEDULES
from tests.profiles import examples

from .drawn_networks import networks
from .ranks import answer_to
from .settings import DRAWN
from .stages import V_SHAPED, module_of
from .test_mlp import MLPS
from .test_ranks import ALWAYS, HEADS, SHAPES
from .test_schedules import SINGLE
from .test_timeline import stated
from .test_vision_transformer import vision_transformers

SENT = {"isend": "send", "irecv": "receive"}


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@settings(examples(min(6, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(SHAPES, st.data())
def test_a_rank_of_a_pipeline_costs_what_it_does(schedule: str, shape: dict[str, Any], data: st.DataObject) -> None:
    pp = data.draw(st.integers(2, 4))
    vpp = 1 if schedule in SINGLE else 2 if schedule in V_SHAPED else data.draw(st.integers(1, 3))
    model = {**ALWAYS, **shape, "layers": pp * vpp + data.draw(st.integers(0, 3))}
    model["positions"] = data.draw(st.sampled_from(["learned", "rotary", "none"]))
    kernel = data.draw(st.sampled_from(["eager", "flash"]))
    tensor = {} if SCHEDULES[schedule].splits else data.draw(st.sampled_from([{}, {"tp": 2}, {"tp": 2, "sp": True}]))
    if tensor:
        model["norm"] = "layernorm"
        model["positions"] = "none" if tensor.get("sp") else model["positions"]
    asked: dict[str, Any] = {
        "pp": pp,
        "vpp": vpp,
        "schedule": schedule,
        "accumulate": data.draw(st.integers(1, 12)),
        "batch": data.draw(st.integers(1, 3)),
        "seq": 8,
        "return_outputs": data.draw(st.booleans()),
        "checkpoint": "none" if tensor or SCHEDULES[schedule].splits else data.draw(st.sampled_from(["none", "block"])),
        **tensor,
    }
    optimizer = data.draw(st.sampled_from(["sgd", "adamw"])) if "sp" not in tensor else "sgd"
    how = {"optimizer": optimizer, "attention": kernel}
    assert_a_stage_agrees(model, asked, how, data.draw(st.integers(0, pp - 1)))


def assert_a_stage_agrees(model: dict[str, Any], asked: dict[str, Any], how: dict[str, Any], place: int) -> None:
    """See `assert_a_rank_agrees`, of a decoder or encoder."""
    question = {"model": model, "kernel": how["attention"]}
    unseen = 4 * asked["batch"] * 8 * HEADS // asked.get("tp", 1) if how["attention"] == "flash" else 0
    assert_a_rank_agrees(cm.Transformer.of(model), question, asked, how, place, unseen)


def assert_a_rank_agrees(
    model: Any, question: dict[str, Any], asked: dict[str, Any], how: dict[str, Any], place: int, unseen: int = 0
) -> None:
    """All but what is said beside it, to the byte, with as many micro-batches as the schedule takes.

    unseen: what of the statistics of flash attention the meta device does not have [bytes].
    """
    try:
        p = cm.predict(model, **asked, **how)
    except SettingError as error:
        asked = {**asked, "accumulate": int(str(error).rsplit(" ", 1)[1])}
        p = cm.predict(model, **asked, **how)
    theirs = answer_to(
        {**question, "optimizer": how["optimizer"], "rank": place, "vpp": 1, "schedule": "1f1b", **asked}
    )
    rank = next(rank for rank in p.ranks if rank.place is not None and rank.place.rank == place)
    calls = [*rank.timeline.every_collective()]
    assert rank.flops.hardware == theirs["total_flops"]
    if "fsdp" not in asked:
        assert rank.params == theirs["params"]
    sent = [(x.operation, x.bytes) for x in calls if x.axis == "pp"]
    assert sent == [(SENT[op], size) for op, size in theirs["messages"]]
    if "sp" not in asked:
        assert [[x.operation, x.bytes, x.devices] for x in calls if x.axis != "pp"] == theirs["collectives"]
    ours = stated(rank)
    for phase, most in theirs["most"].items():
        alive = max(
            ours[name].alive for name in (phase, *(["recompute"] if phase == "backward" else [])) if name in ours
        )
        over = alive - rank.memory.buffers - (most.alive - theirs["buffers"] - theirs["counters"])
        if phase == "forward":
            assert over <= 4
        elif phase == "backward":
            assert 0 <= over <= 4 + unseen
        elif not asked.get("sp"):  # where it would sum gradients of norms over ranks first, in memory of its own
            assert over == 0


@pytest.mark.parametrize("outputs", [True, False], ids=["outputs", "no outputs"])
@pytest.mark.parametrize("schedule", sorted(name for name, kind in SCHEDULES.items() if kind.splits))
def test_a_tensor_rank_that_makes_gradients_of_weights_apart_costs_what_it_does(schedule: str, outputs: bool) -> None:
    """The last stage's: logits that are gathered keep what is left of their graph, if they are kept themselves."""
    sizes = {"vocab": 32, "width": 24, "layers": 5, "kv_heads": 4, "head_size": 4, "mlp_width": 40, "mlp": "gated"}
    model = {**ALWAYS, **sizes, "positions": "rotary", "norm": "layernorm", "attention_bias": True}
    asked = {"pp": 2, "vpp": 2, "schedule": schedule, "accumulate": 4, "batch": 1, "seq": 8, "tp": 2}
    how = {"optimizer": "adamw", "attention": "eager"}
    last = 0 if schedule in V_SHAPED else 1
    assert_a_stage_agrees(model, {**asked, "return_outputs": outputs}, how, last)


SHARDED = st.fixed_dictionaries(
    {"fsdp": st.sampled_from([2, 3])},
    optional={
        "dp": st.just(2),
        "reshard": st.just(False),
        "precision": st.sampled_from(["bf16-master", "bf16-master-fp32-gradients"]),
        "checkpoint": st.just("block"),
        "tp": st.sampled_from([2, 4]),
        "sp": st.just(True),
    },
)


@pytest.mark.parametrize("schedule", sorted(name for name, kind in SCHEDULES.items() if not kind.splits))
@settings(examples(min(6, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes two seconds
@given(SHAPES, SHARDED, st.data())
def test_a_rank_of_a_pipeline_of_sharded_weights_costs_what_it_does(
    schedule: str, shape: dict[str, Any], sharded: dict[str, Any], data: st.DataObject
) -> None:
    pp = data.draw(st.integers(2, 3))
    vpp = 1 if schedule in SINGLE else data.draw(st.integers(1, 3))
    model = {**ALWAYS, **shape, "layers": pp * vpp + data.draw(st.integers(0, 3))}
    sharded = {name: value for name, value in sharded.items() if name != "sp" or "tp" in sharded}
    if "precision" in sharded:  # of which the CPU's kernel has other statistics
        model["norm"] = "rmsnorm"
    asked: dict[str, Any] = {
        "pp": pp,
        "vpp": vpp,
        "schedule": schedule,
        "accumulate": data.draw(st.integers(1, 10)),
        "batch": data.draw(st.integers(1, 2)),
        "seq": 8,
        "return_outputs": data.draw(st.booleans()),
        **sharded,
    }
    how = {"optimizer": data.draw(st.sampled_from(["sgd", "adamw"])), "attention": "eager"}
    assert_a_stage_agrees(model, asked, how, data.draw(st.integers(0, pp - 1)))


ENCODER = {
    "vocab": 32,
    "context": 16,
    "width": 16,
    "heads": HEADS,
    "causal": False,
    "segments": 2,
    "positions": "learned",
}
WAYS_TO_END: dict[str, dict[str, Any]] = {
    "tokens": {"head": {"transform": "gelu", "bias": True}, "tied": False},
    "tied": {"tied": True},
    "spare pooler": {"pooler": {"activation": "tanh", "spare": True}, "tied": False},
    "classes": {"head": None, "tied": False, "classes": {"count": 3, "dropout": 0.1}},
    "pooled classes": {"head": None, "tied": False, "pooler": {"activation": "tanh"}, "classes": {"count": 3}},
    "each token": {"head": None, "tied": False, "classes": {"count": 5, "told_by": "each"}},
    "last token": {"head": None, "tied": False, "classes": {"count": 5, "told_by": "last"}},
    "mean": {"head": None, "tied": False, "classes": {"count": 5, "told_by": "mean"}},
}


NO_VIEWS = {"spare pooler", "classes", "pooled classes"}
"""Those whose last layer makes no view, as one of every token with a bias does, and that have no table at both ends."""
KINDS: dict[str, Any] = {"mlp": cm.MLP, "cnn": cm.CNN, "vit": cm.VisionTransformer, "encoder": cm.Transformer}


@st.composite
def models_of_parts(draw: st.DrawFn, kind: str, *, apart: bool) -> tuple[dict[str, Any], dict[str, Any], int]:
    """A model whose parts go one after another, what is asked beside the pipeline, and what of flash is not seen."""
    batch, kernel = draw(st.integers(1, 3)), draw(st.sampled_from(["eager", "flash"]))
    asked: dict[str, Any] = {"batch": batch, "attention": kernel}
    if kind == "mlp":
        return draw(MLPS.filter(lambda mlp: min(mlp.sizes) > 1)).stated(), {"batch": batch + 1}, 0
    if kind == "cnn":
        sides = draw(st.sampled_from([(8, 8), (9, 12)]))
        stem = {"conv": {"channels": 8, "kernel": 3, "padding": 1}}  # as every network has: weights in its first stage
        blocks = [stem, *draw(networks())]
        return {"input": [3, *sides], "blocks": blocks}, {"batch": batch + 1}, 0
    if kind == "vit":
        # on one device too, two tokens that tell classes leave a little more while their gradients are joined
        vit = draw(vision_transformers().filter(lambda vit: vit.width > 1 and not vit.distilled))
        vit = vit.with_fields({"layers": draw(st.integers(2, 5)), "classes": vit.classes or 3, "layer_scale": False})
        batch += 1  # the gradient of one image's first token is a slice of that of all
        tokens = vit.tokens + (vit.input[1] // vit.patch) * (vit.input[2] // vit.patch)
        return vit.stated(), {**asked, "batch": batch}, 4 * batch * tokens * vit.heads if kernel == "flash" else 0
    end = WAYS_TO_END[draw(st.sampled_from(sorted(WAYS_TO_END if not apart else NO_VIEWS)))]
    encoder = {**ENCODER, "layers": draw(st.integers(2, 5)), **end}
    return encoder, {**asked, "seq": 8}, 4 * batch * 8 * HEADS if kernel == "flash" else 0


@pytest.mark.parametrize(
    ("kind", "schedule"),
    [(k, s) for k in KINDS for s, how in SCHEDULES.items() if KINDS[k].SPLITS_BACKWARD or not how.splits],
)
@settings(examples(min(3, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(st.data())
def test_a_rank_of_any_model_costs_what_it_does(kind: str, schedule: str, data: st.DataObject) -> None:
    fields, asked, unseen = data.draw(models_of_parts(kind, apart=SCHEDULES[schedule].splits))
    model = KINDS[kind].of(fields)
    if kind == "cnn":
        try:
            _ = cm.predict(model, **asked).params
        except cm.CostModelError:
            assume(False)
    parts, vpp = len(model.stage_parts), SCHEDULES[schedule].only_stages or 1
    assume(parts >= 2 * vpp)
    if schedule not in SINGLE and not SCHEDULES[schedule].only_stages:
        vpp = data.draw(st.integers(1, min(3, parts // 2)))
    pp = data.draw(st.integers(2, min(4, parts // vpp)))
    asked |= {"pp": pp, "vpp": vpp, "schedule": schedule, "accumulate": data.draw(st.integers(1, 10))}
    asked["return_outputs"] = data.draw(st.booleans())
    if data.draw(st.booleans()):
        inner = data.draw(
            st.lists(st.integers(1, parts - 1), min_size=pp * vpp - 1, max_size=pp * vpp - 1, unique=True)
        )
        asked["pp_split"] = [b - a for a, b in pairwise([0, *sorted(inner), parts])]
    question = {"kind": kind, "fields": fields, "kernel": asked.get("attention", "eager")}
    optimizer = data.draw(st.sampled_from(["sgd", "adamw"]))
    assert_a_rank_agrees(model, question, asked, {"optimizer": optimizer}, data.draw(st.integers(0, pp - 1)), unseen)


@st.composite
def contexts_and_experts(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a model and settings of ranks that have parts of sequences, some of the experts, or both."""
    axes = draw(st.sampled_from(["cp", "ep", "cp ep"]))
    shape = draw(SHAPES)
    kept = ("vocab", "width", "head_size", "mlp", "norm", "activation", "mlp_width")
    model = {**ALWAYS, **{name: shape[name] for name in kept}, "positions": "rotary"}
    asked = {**draw(SHARDED), "fsdp": draw(st.sampled_from([2, 4]))}
    asked = {name: value for name, value in asked.items() if name not in ("tp", "sp")}
    if "precision" in asked:  # of which the CPU's kernel has other statistics
        model["norm"] = "rmsnorm"
    if "cp" in axes:
        kind = draw(st.sampled_from(["all-gather", "ring", "ulysses"]))
        # of 16 bits the last one of ranks that are not balanced has a little more now and then
        uneven = kind != "ulysses" and "precision" not in asked and draw(st.booleans())
        balanced = {"cp_balanced": False} if uneven else {}
        asked |= {"cp": 2, "cp_kind": kind, "fsdp": draw(st.sampled_from([1, 2])), "attention": "flash", **balanced}
    if "ep" in axes:
        experts = {"count": draw(st.sampled_from([4, 8])), "per_token": draw(st.integers(1, 2)), "width": 24}
        if draw(st.booleans()):
            experts["shared_width"] = 16
        if draw(st.booleans()):
            experts["dense_layers"] = 1
        model["experts"], asked["ep"] = experts, 2
    return model, asked


@pytest.mark.parametrize("schedule", sorted(name for name, kind in SCHEDULES.items() if not kind.splits))
@settings(examples(min(6, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes two seconds
@given(contexts_and_experts(), st.data())
def test_a_rank_of_a_pipeline_with_parts_of_sequences_and_experts_costs_what_it_does(
    schedule: str, drawn: tuple[dict[str, Any], dict[str, Any]], data: st.DataObject
) -> None:
    model, asked = drawn
    pp = data.draw(st.integers(2, 3))
    vpp = 1 if schedule in SINGLE else data.draw(st.integers(1, 2))
    model["layers"] = pp * vpp + data.draw(st.integers(0, 2))
    asked |= {"pp": pp, "vpp": vpp, "schedule": schedule, "batch": data.draw(st.integers(1, 2)), "seq": 16}
    asked |= {"accumulate": pp * data.draw(st.integers(1, 3)), "return_outputs": data.draw(st.booleans())}
    kernel = asked.pop("attention", "eager")
    if "ep" in asked and schedule not in ("1f1b", "gpipe"):
        asked.pop("checkpoint", None)
    unseen = 4 * asked["batch"] * asked["seq"] * HEADS // asked.get("cp", 1) if kernel == "flash" else 0
    how = {"optimizer": data.draw(st.sampled_from(["sgd", "adamw"])), "attention": kernel}
    within = 0 if asked.get("cp_balanced", True) else 1  # who has most to do
    question = {"model": model, "kernel": kernel, "cp_balanced": True, "within": within}
    assert_a_rank_agrees(cm.Transformer.of(model), question, asked, how, data.draw(st.integers(0, pp - 1)), unseen)


@settings(examples(min(10, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes two seconds
@given(
    st.sampled_from(["1f1b", "gpipe"]),
    st.sampled_from(["block", "block", "selective", ["mlp"], ["attention", "mlp"]]),
    st.integers(1, 3),
    st.booleans(),
    st.data(),
)
def test_a_rank_of_blocks_that_differ_and_are_recomputed_costs_what_it_does(
    schedule: str, checkpoint: Any, dense: int, short: bool, data: st.DataObject
) -> None:
    """Stages of dense blocks, of dense ones and then experts, and of experts, cut evenly or not."""
    pp = data.draw(st.integers(2, 3))
    model: dict[str, Any] = {**ALWAYS, **data.draw(SHAPES), "layers": pp + data.draw(st.integers(1, 3))}
    model |= {"kv_heads": HEADS, "positions": "rotary", "norm": "rmsnorm", "mlp": "gated"}
    model["experts"] = {"count": 4, "per_token": data.draw(st.integers(1, 2)), "width": 24, "dense_layers": dense}
    asked: dict[str, Any] = {"ep": 2, "fsdp": 2, "pp": pp, "schedule": schedule, "seq": 16}
    asked |= {"batch": data.draw(st.integers(1, 2)), "accumulate": pp * data.draw(st.integers(1, 3))}
    asked |= {"checkpoint": checkpoint, "return_outputs": data.draw(st.booleans())}
    if short:
        asked["precision"] = "bf16-master"
    question = {"model": model, "kernel": "eager", "cp_balanced": True, "within": 0}
    how = {"optimizer": "sgd", "attention": "eager"}
    assert_a_rank_agrees(cm.Transformer.of(model), question, asked, how, data.draw(st.integers(0, pp - 1)))


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b"])
@settings(examples(min(3, DRAWN)), phases=[Phase.explicit, Phase.generate])
@given(contexts_and_experts(), st.sampled_from([2, 4]), st.data())
def test_a_tensor_rank_of_a_pipeline_with_parts_of_sequences_and_experts_costs_what_it_does(
    schedule: str, drawn: tuple[dict[str, Any], dict[str, Any]], tp: int, data: st.DataObject
) -> None:
    model, asked = drawn
    if "experts" in model:
        model["experts"]["bias"] = False
    own = test_a_rank_of_a_pipeline_with_parts_of_sequences_and_experts_costs_what_it_does
    own.hypothesis.inner_test(schedule, (model, {**asked, "tp": tp}), data)  # type: ignore[attr-defined]


MODULES = st.one_of(
    st.just({"of": "blocks"}),
    st.fixed_dictionaries(
        {"of": st.just("sequential"), "sizes": st.lists(st.integers(2, 9), min_size=2, max_size=4)},
    ),
    st.fixed_dictionaries({"of": st.just("skipping"), "width": st.integers(2, 9), "blocks": st.integers(1, 4)}),
)


@pytest.mark.parametrize("schedule", sorted(name for name, kind in SCHEDULES.items() if not kind.splits))
@settings(examples(min(6, DRAWN)), phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(MODULES, st.data())
def test_a_rank_of_an_imported_module_costs_what_it_does(
    schedule: str, fields: dict[str, Any], data: st.DataObject
) -> None:
    module, shape = module_of(fields)
    model = cm.from_torch(module, torch.zeros(3, *shape))
    parts = len(model.stage_parts)
    vpp = 1 if schedule in SINGLE else data.draw(st.integers(1, min(3, parts // 2)))
    pp = data.draw(st.integers(2, min(4, parts // vpp)))
    inner = data.draw(st.lists(st.integers(1, parts - 1), min_size=pp * vpp - 1, max_size=pp * vpp - 1, unique=True))
    asked = {"pp": pp, "vpp": vpp, "schedule": schedule, "accumulate": pp * data.draw(st.integers(1, 3))}
    asked |= {"batch": data.draw(st.integers(2, 4)), "return_outputs": data.draw(st.booleans())}
    asked["pp_split"] = [b - a for a, b in pairwise([0, *sorted(inner), parts])]
    how = {"optimizer": data.draw(st.sampled_from(["sgd", "adamw"])), "loss": "cross_entropy"}
    question = {"kind": "imported", "fields": fields}
    assert_a_rank_agrees(model, question, asked, how, data.draw(st.integers(0, pp - 1)))


@pytest.mark.parametrize("views", [[], [torch.nn.Flatten()]], ids=["itself", "a view of it"])
def test_what_writes_to_the_stage_before_is_refused_by_name(views: list[torch.nn.Module]) -> None:
    writes = torch.nn.ReLU(inplace=True)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), *views, writes, torch.nn.Linear(8, 3))
    model = cm.from_torch(module, torch.zeros(3, 1, 4))
    with pytest.raises(SettingError, match="writes in place to what another stage made, which PyTorch refuses"):
        cm.predict(model, pp=2, accumulate=2, pp_split=["1"])
    after = str(len(views) + 2)
    assert cm.predict(model, pp=2, accumulate=2, pp_split=[after]).params == model_params(module)


def model_params(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())
