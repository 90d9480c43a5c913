"""Seconds of a layout on the page: what a rank does by numbers of formulas, and what plays it as JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from costmodel.performance import communication, parallel, queues, time
from costmodel.performance.communication import CollectiveModel, CollectiveTime, Latencies, Way
from costmodel.performance.parallel import PlayedStep, Prices, ProgramSet, RankWork
from costmodel.performance.programs import Arrival, Drain, Event, Parts, RankProgram, Repeated, Sending, Stretch
from costmodel.performance.queues import CollectiveSum, Flight, Player, Price, QueueEvent
from costmodel.performance.time import Time
from costmodel.performance.work import Task
from costmodel.training.layout import Layout
from costmodel.training.stacks import Stack

_RECORDS: tuple[type, ...] = (
    *(Stretch, Sending, Arrival, Drain, Parts, Repeated, QueueEvent, Price, CollectiveSum, PlayedStep),
    *(Message, DeviceGroup, CollectiveTime, Latencies, Way),
)
"""What has fields alone."""
_METHODS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys(_RECORDS, ()),
    Flight: ("__init__",),
    RankProgram: (),
    Player: tuple(name for name, of in vars(Player).items() if callable(of) and name != "_note_kernels"),
    ProgramSet: ("kernel_seconds",),
    RankWork: ("step",),
    Prices: ("__init__", "__call__", "_price"),
    CollectiveModel: tuple(name for name, of in vars(CollectiveModel).items() if callable(of) and name != "__repr__"),
    Cluster: ("group", "group_of", "place", "link_bandwidth", "network_bandwidth"),
    Layout: ("devices", "shards", "expert_tp", "samplers", "megatron"),
    Time: ("_slower", "_faster"),
}
_FUNCTIONS = (
    *(queues.hidden, queues._larger, queues._lesser, queues._everywhere, queues.are_close, queues._label),
    *(communication._fastest, communication._least, communication._most, parallel.overlapped),
)
_CONSTANTS: dict[Any, tuple[str, ...]] = {
    queues: ("SAME", "TINY", "MOST_TRACED"),
    parallel: ("MOST_TAKEN", "PHASES"),
    time: ("MOST_HIDDEN",),
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
    bare = (RankProgram, ProgramSet, RankWork, Cluster, Time)
    text = Translation(_FUNCTIONS, _METHODS, constants, bare).text
    python, glue = ((files("costmodel.explorer") / name).read_text("utf-8") for name in ("python.js", "play.js"))
    return f"(()=>{{{python}\n{text}\n{glue}\nreturn{{Rank,timeOf}}}})()"


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
    """What one rank does in a step, by numbers of formulas.

    number: gives that of a size's formula. contractions: FLOPs of the model's products. tasks: kernels, those of copies
    for what is sent among them. data: as the page's script reads it (`play.js`).
    """

    def __init__(self, rank: Costs, stack: Stack, number: Callable[[int], int], contractions: int) -> None:
        work = RankWork(rank, fuse=stack.fuses, share=lambda times, happenings: TaskShare(1, times, happenings))
        self._number = number
        self.tasks: list[Task] = [*work.tasks]
        layout = rank.tape.layout
        degrees = [getattr(layout, name) for name in OF_LAYOUT]
        self.data: list[Any] = [
            (layout.runtime, layout.sp, rank.settings.training, work.overlaps),
            [-1 if degree is None else self._of(degree) for degree in degrees],
            self._of(work.micro_batches),
            self._of(contractions),
            [self._all(task.starts(stack.recorded)) for task in work.tasks],
            [self._program(work.programs[name]) for name in ("passes", "ending")],
        ]

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
