"""One rank of a pipeline costs what PyTorch says: parameters, FLOPs, every message in order, the peak of each phase."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import costmodel as cm
from costmodel.errors import SettingError
from costmodel.training.schedules import SCHEDULES
from tests.profiles import examples

from .ranks import answer_to
from .settings import DRAWN
from .stages import V_SHAPED
from .test_ranks import ALWAYS, HEADS, SHAPES
from .test_schedules import SINGLE
from .test_timeline import stated

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
    """All but what is said beside it, to the byte, with as many micro-batches as the schedule takes."""
    try:
        p = cm.predict(cm.Transformer.of(model), **asked, **how)
    except SettingError as error:
        asked = {**asked, "accumulate": int(str(error).rsplit(" ", 1)[1])}
        p = cm.predict(cm.Transformer.of(model), **asked, **how)
    kernel = how["attention"]
    theirs = answer_to({"model": model, "kernel": kernel, "optimizer": how["optimizer"], "rank": place, **asked})
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
    unseen = 4 * asked["batch"] * 8 * HEADS // asked.get("tp", 1) if kernel == "flash" else 0
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


SHARDED = st.fixed_dictionaries(
    {"fsdp": st.sampled_from([2, 3])},
    optional={
        "dp": st.just(2),
        "reshard": st.just(False),
        "precision": st.sampled_from(["bf16-master", "bf16-master-fp32-gradients"]),
        "checkpoint": st.just("block"),
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
    model = {**ALWAYS, **shape, "layers": pp * vpp + data.draw(st.integers(0, 3)), "kv_heads": 8}
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
