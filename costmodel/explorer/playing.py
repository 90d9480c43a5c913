"""Seconds of a layout on the page: what a rank does by numbers of formulas, and what plays it as JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from costmodel.cost.costs import Costs
from costmodel.errors import SettingError
from costmodel.explorer.translation import Translation
from costmodel.graph.kernel import Message
from costmodel.hardware import cluster
from costmodel.hardware.cluster import Cluster, DeviceGroup, load_cluster
from costmodel.hardware.machine import Machine
from costmodel.performance import communication, intervals, parallel, pipelines, queues
from costmodel.performance.communication import CollectiveModel, CollectiveTime, Latencies, Way
from costmodel.performance.parallel import PlayedStep, Prices, ProgramSet, RankWork, StagedPass, overlaps
from costmodel.performance.pipelines import PipelineWork, StagePass, StageWork, step_of
from costmodel.performance.programs import Arrival, Drain, Event, Parts, RankProgram, Repeated, Sending, Stretch
from costmodel.performance.queues import CollectiveSum, Flight, Player, Price, QueueEvent, Wait
from costmodel.performance.work import Task
from costmodel.training import schedules
from costmodel.training.layout import Layout
from costmodel.training.schedule import Action, Run, Schedule
from costmodel.training.schedules import ELSEWHERE, SCHEDULES
from costmodel.training.stacks import Stack

_RECORDS: tuple[type, ...] = (
    *(Stretch, Sending, Arrival, Drain, Parts, Repeated, QueueEvent, Price, CollectiveSum, PlayedStep),
    *(Message, DeviceGroup, CollectiveTime, Latencies, Way, StagePass, pipelines._Order, pipelines._Way),
)
"""What has fields alone."""
_SCHEDULES = tuple(dict.fromkeys((*SCHEDULES.values(), *ELSEWHERE.values())))
_ORDERS: dict[type, tuple[str, ...]] = {
    Action: ("result",),
    Run: ("repetition",),
    Schedule: (
        "__post_init__",
        "nearest",
        "stages",
        "period",
        "with_microbatches",
        "rank_of",
        "stages_of",
        "needs",
        "_beside",
    ),
    schedules._Single: (),
    schedules._OneForwardOneBackward: ("runs",),
    schedules._Interleaved: (
        "rounds",
        "round",
        "period",
        "with_microbatches",
        "nearest",
        "passes",
        "pass_at",
        "periodic",
    ),
    schedules._VShaped: (),
    **{
        kind: tuple(name for name in ("round", "nearest", "runs", "_runs", "_ahead", "_drain") if name in vars(kind))
        for kind in _SCHEDULES
    },
}
"""What says in which order the ranks of a pipeline run their passes."""
_METHODS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys(_RECORDS, ()),
    Flight: ("__init__",),
    Wait: ("__init__",),
    RankProgram: (),
    Player: tuple(name for name, of in vars(Player).items() if callable(of) and not name.startswith("_note_")),
    ProgramSet: ("kernel_seconds",),
    RankWork: ("step",),
    StagedPass: ("step",),
    StageWork: ("busy", "passes"),
    PipelineWork: (
        *(
            "busiest",
            "tasks",
            "step",
            "played",
            "_ended",
            "passes",
            "_whole",
            "_handing_on",
            "_counts",
            "_apart",
            "_sent",
            "ending",
        ),
    ),
    **_ORDERS,
    Prices: ("__init__", "__call__", "_price"),
    CollectiveModel: tuple(name for name, of in vars(CollectiveModel).items() if callable(of) and name != "__repr__"),
    Cluster: ("group", "group_of", "place", "link_bandwidth", "network_bandwidth"),
    Layout: ("devices", "shards", "expert_tp", "samplers", "share", "megatron"),
}
_FUNCTIONS = (
    *(queues.hidden, queues._larger, queues._lesser, queues._everywhere, queues.are_close, queues.is_no_less),
    *(intervals.slower_end, intervals.faster_end),
    *(communication._fastest, communication._least, communication._most, parallel.links_taken, parallel.overlapped),
    *(
        pipelines._work_of,
        pipelines.ends_of,
        pipelines._ends_of_whole,
        pipelines._longest,
        pipelines._shorter,
        pipelines._order,
        pipelines._numbered,
        pipelines.play_passes,
    ),
    *(pipelines._plain, pipelines._times, schedules._forward, schedules._backward),
)
_CONSTANTS: dict[Any, tuple[str, ...]] = {
    queues: ("SAME", "TINY", "MOST_TRACED"),
    parallel: ("MOST_TAKEN", "PHASES"),
    pipelines: ("WHOLE", "MOST_TRIES", "_RESULTS"),
    intervals: ("MOST_HIDDEN",),
    cluster: ("AXES",),
    communication: (
        *("LATENCIES", "PROTOCOL_SHARES", "CHANNEL", "PLATEAU", "DOUBLING", "PIECE", "_LEAST", "_TURNS", "NONE"),
    ),
}
OF_LAYOUT = ("tp", "cp", "ep", "fsdp", "dp", "pp", "etp", "zero")
"""Degrees of a layout by which its devices lie over nodes."""
OF_CLUSTER = (
    *("name", "size", "joined", "shape", "in_switch_reduction", "nics", "oversubscription", "network_reduction"),
)


@cache
def script() -> str:
    """What plays a step, as a function's result: `performance.queues` and all that it asks."""
    constants = {name: getattr(module, name) for module, names in _CONSTANTS.items() for name in names}
    bare = (RankProgram, ProgramSet, RankWork, StagedPass, StageWork, PipelineWork, Cluster)
    text = Translation(_FUNCTIONS, _METHODS, constants, bare).text
    python, glue = ((files("costmodel.explorer") / name).read_text("utf-8") for name in ("python.js", "play.js"))
    orders = ",".join(kind.__name__ for kind in _SCHEDULES)
    return f"(()=>{{{python}\n{text}\nconst SCHEDULES={{{orders}}};\n{glue}\nreturn{{LayoutStep,timeOf}}}})()"


def cluster_data(machine: Machine) -> dict[str, Any]:
    """What a page needs of the cluster that is built of a machine; or why there is none."""
    of = load_cluster(machine)
    try:
        inside = of.inside
    except SettingError as error:
        return {"why": str(error)}
    network = of.network and {name: getattr(of.network, name) for name in ("name", "bandwidth", "latency")}
    return {
        **{name: getattr(of, name) for name in OF_CLUSTER},
        "inside": {"name": inside.name, "bandwidth": inside.bandwidth},
        "network": network,
        "machine": {"processors": of.machine.processors, "category": of.machine.category},
    }


@dataclass(frozen=True)
class TaskShare:
    """How often a task runs at some moments that are alike: so many times what it does in all, over all of these."""

    count: int
    times: int
    happenings: int

    def __add__(self, other: TaskShare) -> TaskShare:
        return TaskShare(self.count + other.count, self.times, self.happenings)

    def __radd__(self, zero: float) -> TaskShare:
        return self


class FormulaNumber(int):
    """The number of a formula, among others that are what they say."""


class PlayOutline:
    """What the ranks of a layout do in a step, by numbers of formulas.

    ranks: in order. number: gives that of a size's formula. contractions: FLOPs of the model's products. tasks: kernels
    of every set of programs, those of copies for what is sent among them. data: as the page's script reads it
    (`play.js`), each set of programs once.
    """

    def __init__(self, ranks: Sequence[Costs], stack: Stack, number: Callable[[int], int], contractions: int) -> None:
        work = step_of(
            ranks,
            lambda _: 0.0,  # which rank has most to do, a machine decides
            fuse=stack.fuses,
            share=lambda times, happenings: TaskShare(1, times, happenings),
        )
        self._number, self._recorded = number, stack.recorded
        self.tasks: list[Task] = []
        self._sets: dict[ProgramSet, list[Any]] = {}
        settings = ranks[0].settings
        layout = settings.layout
        degrees = [getattr(layout, name) for name in OF_LAYOUT]
        order = [type(work).__name__, *self._order(work, stack)]
        self.data: list[Any] = [
            (
                layout.runtime,
                layout.sp,
                settings.training,
                overlaps(ranks[0].tape),
                stack.experts_beside,
                stack.sums_beside,
                stack.blocking,
                stack.input_sums_beside,
            ),
            [-1 if degree is None else self._of(degree) for degree in degrees],
            self._of(settings.micro_batches),
            self._of(contractions),
            [*self._sets.values()],
            order,
        ]

    def _order(self, work: RankWork | StagedPass | PipelineWork, stack: Stack) -> list[Any]:
        """Which sets of programs there are of what, by number: of a rank its own, or of each stage, or these, of each
        rank that of its ending, the schedule, stages of a rank, what stages hand on, and whether they wait for it."""
        match work:
            case RankWork():
                return [self._set(work)]
            case StagedPass():
                return [[*map(self._set, work.stages)]]
        stages = [self._set(work.stages[stage]) for stage in range(work.schedule.stages)]
        endings = [self._set(work.ending_of(rank)) for rank in work.ranks]
        return [
            stages,
            endings,
            type(work.schedule).__name__,
            work.schedule.stages_per_rank,
            [*map(self._message, work.handed(stack))],
            work.blocking_sends,
        ]

    def _set(self, programs: ProgramSet) -> int:
        """The number of a set of programs, whose kernels come after those of the sets before it."""
        if programs not in self._sets:
            self.tasks += programs.tasks
            starts = [self._all(task.starts(self._recorded)) for task in programs.tasks]
            own = [[name, *self._program(program)] for name, program in programs.programs.items()]
            self._sets[programs] = [type(programs).__name__, starts, own]
        return [*self._sets].index(programs)

    def _of(self, size: int) -> FormulaNumber:
        return FormulaNumber(self._number(size))

    def _all(self, sizes: Iterable[int]) -> list[FormulaNumber]:
        return [*map(self._of, sizes)]

    def _program(self, program: RankProgram) -> list[Any]:
        used: dict[int, int] = {}
        events = [self._event(event, used) for event in program.events]
        rows = [[self._share(*each) for each in program.rows[row].items()] for row in used]
        return [events, rows, self._all(program.ready)]

    def _share(self, task: int, share: Any) -> list[Any]:
        if not isinstance(share, TaskShare):
            return [task, int(share)]
        return [task, share.count, self._of(share.times), self._of(share.happenings)]

    def _event(self, event: Event, used: dict[int, int]) -> list[Any]:
        """Its type, text, and numbers of formulas; rows of kernels by the order in which they are met."""

        def row(number: int) -> int:
            return used.setdefault(number, len(used))

        match event:
            case Repeated(events, times):
                return ["Repeated", [self._event(each, used) for each in events], self._of(times)]
            case Stretch(phase, number, moments):
                return ["Stretch", phase, row(number), moments]
            case Sending(phase, layer, message, waiting, once):
                return ["Sending", phase, layer, self._message(message), waiting, int(once)]
            case Arrival(phase, unit, number):
                return ["Arrival", phase, unit, row(number)]
            case Drain(phase):
                return ["Drain", phase]
            case Parts(phase, layer, number, parts, messages):
                sent = [[part, self._message(message)] for part, message in messages]
                return ["Parts", phase, layer, row(number), parts, sent]

    def _message(self, message: Message) -> list[Any]:
        sizes = (message.devices, message.elements, message.bytes)
        return [message.operation, message.axis, message.dtype, *self._all(sizes)]
