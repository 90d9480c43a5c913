"""Pipeline schedules: closed forms held against the lists that they stand for."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import SettingError
from costmodel.training.layout import Layout
from costmodel.training.schedule import Action, Schedule
from costmodel.training.schedules import ELSEWHERE, SCHEDULES

UNITS = {"F": 1, "B": 2, "I": 1, "W": 1}


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    kind = draw(st.sampled_from(sorted({*SCHEDULES.values(), *ELSEWHERE.values()}, key=lambda kind: kind.__name__)))
    ranks = draw(st.integers(1, 7))
    stages = {"gpipe": 1, "1f1b": 1, "zbv-zero-bubble": 2, "dualpipev": 2}.get(kind.name) or draw(st.integers(1, 4))
    microbatches = draw(st.integers(1, 40))
    try:
        return kind(ranks, stages, microbatches)
    except SettingError as error:
        return kind(ranks, stages, int(str(error).rsplit(" ", 1)[1]))


@given(schedules())
def test_each_micro_batch_passes_each_stage_once_each_way(schedule: Schedule) -> None:
    every = [action for rank in range(schedule.ranks) for action in schedule.actions(rank)]
    kinds = Counter((action.stage, action.microbatch, action.kind) for action in every)
    assert set(kinds.values()) == {1}
    passes = {
        (stage, n): {kind for at, m, kind in kinds if (at, m) == (stage, n)}
        for stage in range(schedule.stages)
        for n in range(schedule.microbatches)
    }
    assert all(kinds in ({"F", "B"}, {"F", "I", "W"}) for kinds in passes.values())
    assert all(
        action.stage in schedule.stages_of(rank) for rank in range(schedule.ranks) for action in schedule.actions(rank)
    )


@given(schedules())
def test_most_in_flight_is_the_closed_form(schedule: Schedule) -> None:
    for rank in range(schedule.ranks):
        level = most = 0
        for action in schedule.actions(rank):
            level += (action.kind == "F") - (action.kind in "BW")
            most = max(most, level)
        assert (level, most) == (0, schedule.in_flight(rank))


@given(schedules())
def test_the_bubble_is_the_closed_form(schedule: Schedule) -> None:
    timetable = schedule.timetable(lambda action: UNITS[action.kind])
    last = max(own[-1].end for own in timetable)
    busy = 3 * schedule.microbatches * schedule.stages_per_rank
    assert all(sum(end - start for _, start, end in own) == busy for own in timetable)
    assert last - busy == schedule.idle


@given(schedules())
def test_a_timetable_keeps_to_the_order_of_the_model(schedule: Schedule) -> None:
    ends: dict[Action, float] = {}
    starts: dict[Action, float] = {}
    for own in schedule.timetable(lambda action: UNITS[action.kind]):
        assert all(before.end <= after.start for before, after in pairwise(own))
        for action, start, end in own:
            starts[action], ends[action.result] = start, end
    for action, start in starts.items():
        if before := schedule.needs(action):
            assert ends[before] <= start


@given(schedules())
def test_every_message_has_its_sender_and_its_reader(schedule: Schedule) -> None:
    programs = schedule.programs()
    every = [action for program in programs for action in program]
    sent = Counter(f"{action.stage + 1}F{action.microbatch}" for action in every if action.kind == "SEND_F")
    sent += Counter(f"{action.stage - 1}B{action.microbatch}" for action in every if action.kind == "SEND_B")
    received = Counter(
        f"{action.stage}{action.kind[-1]}{action.microbatch}" for action in every if action.kind.startswith("RECV")
    )
    assert sent == received
    crossings = sum(schedule.rank_of(a) != schedule.rank_of(a + 1) for a in range(schedule.stages - 1))
    assert sum(sent.values()) == 2 * crossings * schedule.microbatches
    assert sum(action.kind == "REDUCE_GRAD" for action in every) == schedule.stages


@given(schedules())
def test_no_stage_computes_without_its_weights(schedule: Schedule) -> None:
    if schedule.name in ("gpipe", "1f1b"):
        return
    for program in schedule.programs():
        gathered: set[int] = set()
        for stage, kind, _, _ in program:
            if kind == "UNSHARD":
                assert stage not in gathered
                gathered.add(stage)
                assert len(gathered) <= 3
            elif kind == "RESHARD":
                gathered.remove(stage)
            elif kind in UNITS:
                assert stage in gathered
        assert not gathered


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_of_many_micro_batches_is_a_few_runs(name: str) -> None:
    stages = 1 if name in ("gpipe", "1f1b") else 2
    schedule = SCHEDULES[name](16, stages, 32_768)
    for rank in (0, 7, 15):
        runs = [*schedule.runs(rank)]
        assert len(runs) <= 12
        assert sum(len(run.actions) * run.times for run in runs) in range(4 * 16_384 * stages, 6 * 16_384 * stages + 1)
        assert sum(len(run.actions) for run in runs) <= 500


@pytest.mark.parametrize(
    ("name", "pipeline", "near"),
    [
        ("gpipe", (4, 2, 8), "vpp=2 with schedule='gpipe': use 1, or a schedule of several such as 'interleaved-1f1b'"),
        ("1f1b", (4, 1, 3), "accumulate=3, the micro-batches of schedule='1f1b' with pp=4 and vpp=1: use 4"),
        ("interleaved-1f1b", (4, 2, 9), "accumulate=9, the micro-batches of schedule='interleaved-1f1b' with pp=4 "
         "and vpp=2: use 8 or 10"),
        ("interleaved-zero-bubble", (4, 2, 11), "accumulate=11, the micro-batches of schedule="
         "'interleaved-zero-bubble' with pp=4 and vpp=2: use 10 or 12"),
        ("zbv-zero-bubble", (4, 3, 8), "vpp=3 with schedule='zbv-zero-bubble': use 2"),
        ("dualpipev", (4, 2, 7), "accumulate=7, the micro-batches of schedule='dualpipev' with pp=4 and vpp=2: use 8"),
        ("looped-bfs", (4, 0, 7), "vpp=0 with schedule='looped-bfs': use 1 or more"),
        ("looped-bfs", (4, 2, 0), "accumulate=0: use 1 or more"),
    ],
)  # fmt: skip
def test_a_pipeline_that_a_schedule_does_not_take_is_refused(
    name: str, pipeline: tuple[int, int, int], near: str
) -> None:
    with pytest.raises(SettingError) as error:
        SCHEDULES[name](*pipeline)
    assert str(error.value) == near


def test_rounds_of_megatron_have_as_many_micro_batches_as_there_are_ranks() -> None:
    """``forward_backward_pipelining_with_interleaving`` raises for fewer; PyTorch's takes them."""
    torch = Layout(pp=4, vpp=2, schedule="interleaved-1f1b")
    for count in (1, 2, 3):
        assert torch.pipeline(count).microbatches == count
        with pytest.raises(SettingError, match=f"accumulate={count}, .*: use 4$"):
            torch._replace(runtime="megatron").pipeline(count)
    for count in (4, 6, 8, 10):
        assert [*torch._replace(runtime="megatron").pipeline(count).runs(1)] == [*torch.pipeline(count).runs(1)]


@pytest.mark.parametrize(
    ("microbatches", "rounds"), [(9, [5, 4]), (11, [6, 5]), (13, [7, 6]), (14, [5, 5, 4]), (18, [6] * 3), (7, [7])]
)
def test_the_last_round_of_megatron_may_be_smaller(microbatches: int, rounds: list[int]) -> None:
    """The smallest group from ``pp`` on whose remainder is none or no smaller than ``pp``, as Megatron-Core asks."""
    schedule = Layout(pp=4, vpp=3, schedule="interleaved-1f1b", runtime="megatron").pipeline(microbatches)
    starts = [sum(rounds[:n]) for n in range(len(rounds))]
    for rank in range(4):
        order = [
            (4 * chunk + rank, start + n)
            for start, size in zip(starts, rounds, strict=True)
            for chunk in range(3)
            for n in range(size)
        ]
        actions = [*schedule.actions(rank)]
        assert [(action.stage, action.microbatch) for action in actions if action.kind == "F"] == order
        warm_up = min(2 * (4 - rank - 1) + 2 * rounds[0], 3 * microbatches)
        assert [action.kind for action in actions[: warm_up + 2]] == ["F"] * (warm_up + 1) + ["B"]


@given(st.sampled_from(["interleaved-1f1b", "interleaved-zero-bubble"]), st.integers(1, 9), st.integers(1, 90))
def test_the_nearest_counts_of_micro_batches_are_legal(name: str, ranks: int, microbatches: int) -> None:
    legal = [m for m in range(1, 120) if m % max(1, m // ranks) == 0]
    if microbatches in legal:
        assert SCHEDULES[name](ranks, 2, microbatches).nearest == (microbatches,)
        return
    near = max(m for m in legal if m < microbatches), min(m for m in legal if m > microbatches)
    with pytest.raises(SettingError, match=f"use {near[0]} or {near[1]}$"):
        SCHEDULES[name](ranks, 2, microbatches)


@pytest.mark.parametrize("runtime", ["megatron", "deepspeed"])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 9])
def test_others_than_pytorch_take_fewer_micro_batches_than_stages(runtime: Any, microbatches: int) -> None:
    """Ranks do as many passes ahead as there are.

    Sources: Megatron-Core's forward_backward_pipelining_without_interleaving, and DeepSpeed's TrainSchedule, which
    leaves out what is no micro-batch (_valid_micro_batch).
    """
    schedule = Layout(pp=4, runtime=runtime).pipeline(microbatches)
    for rank in range(4):
        kinds = [action.kind for action in schedule.programs()[rank] if action.kind in ("F", "B")]
        assert kinds.count("F") == kinds.count("B") == microbatches
        ahead = [kinds[:end].count("F") - kinds[:end].count("B") for end in range(len(kinds) + 1)]
        assert max(ahead) == schedule.in_flight(rank) == min(microbatches, 4 - rank)
    with pytest.raises(SettingError, match="use 4") if microbatches < 4 else nullcontext():
        Layout(pp=4).pipeline(microbatches)
