"""Pipeline schedules held against ``torch.distributed.pipelining``: every action of every rank, in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import SettingError
from costmodel.training.schedule import Schedule
from costmodel.training.schedules import SCHEDULES

pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
import torch  # noqa: E402

CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv-zero-bubble": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
SINGLE = ("gpipe", "1f1b")


class RecordedStage(SimpleNamespace):
    """A stage that writes down what its schedule asks of it, and computes nothing."""

    def __getattr__(self, name: str) -> Any:
        forms = {
            "get_fwd_recv_ops": "RECV_F",
            "forward_one_chunk": "F",
            "get_fwd_send_ops": "SEND_F",
            "get_bwd_recv_ops": "RECV_B",
            "backward_one_chunk": "B",
            "get_bwd_send_ops": "SEND_B",
            "perform_reduce_grad": "REDUCE_GRAD",
        }
        if name not in forms:
            raise AttributeError(name)

        def write_down(microbatch: int, *_: Any, **__: Any) -> list[Any]:
            kind = forms[name]
            ends = {"RECV_F": 0, "SEND_B": 0, "SEND_F": self.num_stages - 1, "RECV_B": self.num_stages - 1}
            if ends.get(kind) != self.stage_index:
                self.record.append(f"{self.stage_index}{kind}{'' if kind == 'REDUCE_GRAD' else microbatch}")
            return []

        return write_down


def stage_of(index: int, ranks: int, stages: int) -> RecordedStage:
    module = torch.nn.Identity()
    return RecordedStage(
        stage_index=index, num_stages=stages, group_size=ranks, group_rank=index % ranks, submod=module, record=[]
    )


def programs_of(name: str, ranks: int, stages_per_rank: int, microbatches: int) -> list[list[str]]:
    """What each rank does, as PyTorch's own schedule plays it. Raises ValueError where it takes no such pipeline."""
    kind = getattr(pipelining, CLASSES[name])
    if name in SINGLE:
        return [played(kind, rank, ranks, microbatches) for rank in range(ranks)]
    stages = ranks * stages_per_rank
    schedule = kind([stage_of(n * ranks, ranks, stages) for n in range(stages_per_rank)], microbatches)
    lists = schedule.pipeline_order_with_comms
    return [[str(one) for action in lists[rank] for one in action.sub_actions or (action,)] for rank in range(ranks)]


def played(kind: Any, rank: int, ranks: int, microbatches: int) -> list[str]:
    """A stage's own loop, run on one that computes nothing.

    The list that ``Schedule1F1B`` has of itself counts micro-batches of the last rank from 1, and is not what it runs.
    """
    stage = stage_of(rank, ranks, ranks)
    schedule = kind(stage, microbatches)
    schedule._initialize_stage = lambda *_: None
    schedule._maybe_compute_loss = schedule._update_losses = lambda *_, **__: None
    schedule._maybe_get_loss = lambda *_: None
    schedule._step_microbatches([()] * microbatches, [{}] * microbatches)
    return stage.record


def in_order(program: list[str]) -> Iterator[str]:
    """Weights that are dropped one after the other, in the order of stages: PyTorch keeps them in a set."""
    for dropped, names in groupby(program, key=lambda name: name.endswith("RESHARD")):
        own = [*names]
        yield from sorted(own) if dropped else own


def check(schedule: Schedule) -> None:
    theirs = programs_of(schedule.name, schedule.ranks, schedule.stages_per_rank, schedule.microbatches)
    for rank, program in enumerate(schedule.programs()):
        assert [*in_order([*map(str, program)])] == [*in_order(theirs[rank])], (schedule, rank)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_rank_does_what_pytorch_does(name: str) -> None:
    """Or both refuse."""
    for ranks in range(1, 6):
        for stages in (1,) if name in SINGLE else (1, 2, 3):
            for microbatches in (1, 2, 3, 4, 5, 7, 8, 10, 11):
                try:
                    schedule = SCHEDULES[name](ranks, stages, microbatches)
                except SettingError:
                    with pytest.raises(ValueError, match=r"icrobatch|exactly 2 stages"):
                        programs_of(name, ranks, stages, microbatches)
                else:
                    check(schedule)


@settings(deadline=None)
@given(st.sampled_from(sorted(SCHEDULES)), st.integers(2, 9), st.integers(1, 6), st.integers(1, 70))
def test_drawn_pipelines_do_what_pytorch_does(name: str, ranks: int, stages: int, microbatches: int) -> None:
    stages = {"gpipe": 1, "1f1b": 1, "zbv-zero-bubble": 2, "dualpipev": 2}.get(name, stages)
    try:
        schedule = SCHEDULES[name](ranks, stages, microbatches)
    except SettingError as error:
        schedule = SCHEDULES[name](ranks, stages, int(str(error).rsplit(" ", 1)[1]))
    check(schedule)
