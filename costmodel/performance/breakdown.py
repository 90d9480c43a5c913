"""Where the time of a step goes: rows for its phases, layers and kernels, and what each waits for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

from costmodel.graph.kernel import MeshAxis, Operation
from costmodel.performance.accounting import StepTime
from costmodel.performance.queues import CollectiveSum
from costmodel.performance.work import PHASES, StepPhase

Key = TypeVar("Key", bound=Hashable)
Bottleneck = Literal["compute", "memory", "overhead"]
"""What a kernel waits for: arithmetic, bytes, or its start."""
StepBottleneck = Literal["compute", "memory", "overhead", "host", "collectives", "stages"]
"""What a step waits for; host: for kernels to be started, while the device is idle; collectives: for those that nothing
runs beside; stages: for other ranks of a pipeline."""


class KernelTime(NamedTuple):
    """One kernel of one layer, all that a step has of it together.

    seconds: of the device. share: of the device's time in a step. intensity: FLOPs a byte.
    """

    layer: str
    phase: StepPhase
    kernel: str
    sort: str
    launches: int
    flops: int
    bytes: int
    seconds: float
    share: float
    intensity: float
    bound: Bottleneck


class LayerTime(NamedTuple):
    """One layer, its repeats and all its kernels together [s]; rows add up to the device's time in a step."""

    name: str
    kind: str
    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    seconds: float
    share: float
    bound: Bottleneck


class PhaseTime(NamedTuple):
    """One phase: the device's time, the host's time to start its kernels, and the longer of the two [s]."""

    phase: StepPhase
    seconds: float
    device_seconds: float
    host_seconds: float
    launches: int


class CollectivePart(NamedTuple):
    """Collectives of one layer in one phase, as all devices of an axis take part in them, in a step.

    bytes: of the whole tensor, once. seconds: of all of them; exposed: of these what the device waits; hidden: what
    kernels run beside. A wait for a link that others are on is of the collective that waits.
    """

    phase: StepPhase
    layer: str
    axis: MeshAxis
    operation: Operation
    devices: int
    bytes: int
    times: int
    seconds: float
    exposed: float
    hidden: float
    link: str
    algorithm: str


def collective_parts(step: StepTime) -> list[CollectivePart]:
    """A row for collectives that are alike, in the order in which they first run; none on one device."""
    return [] if step.shared is None else [_collective(of) for of in step.shared.collectives]


def _collective(of: CollectiveSum) -> CollectivePart:
    message, price, times, exposed = of.message, of.price, round(float(of.times)), float(of.exposed)
    seconds = times * float(price.seconds)
    what = (message.axis, message.operation, int(message.devices), int(message.bytes), times)
    hidden = max(0.0, seconds - exposed)
    return CollectivePart(of.phase, of.layer, *what, seconds, exposed, hidden, price.queue, price.algorithm)


def phase_times(step: StepTime) -> list[PhaseTime]:
    """Forward with the loss, backward with what is run again for it, and the update; empty ones too."""
    device, host = step.device_seconds, step.host_seconds
    return [
        PhaseTime(phase, float(seconds), float(device[phase]), float(host[phase]), int(step.launches[phase]))
        for phase, seconds in step.phase_seconds.items()
    ]


def kernel_times(step: StepTime) -> list[KernelTime]:
    """A row for each task of a step; rows add up to the device's time."""
    whole = sum(step.task_seconds) or 1.0
    rows = []
    for task, seconds, bound in zip(step.tasks, step.task_seconds, _bottlenecks(step), strict=True):
        kernel, times = task.kernel, int(task.times)
        flops, moved = times * int(kernel.flops), times * int(kernel.read + kernel.written)
        rows.append(
            KernelTime(
                task.layer, task.phase, kernel.name, kernel.sort, times * int(kernel.launches), flops, moved,
                seconds, seconds / whole, flops / moved if moved else 0.0, bound,
            )
        )  # fmt: skip
    return rows


def layer_times(step: StepTime, kernels: Sequence[KernelTime]) -> list[LayerTime]:
    """A row for each layer, in the order of the forward pass; sums of gradients and the optimizer last."""
    layers: dict[tuple[str, str], list[KernelTime]] = {}
    for task, kernel in zip(step.tasks, kernels, strict=True):
        layers.setdefault((task.layer, task.kind), []).append(kernel)
    whole = sum(step.task_seconds) or 1.0
    rows = []
    for (name, kind), own in layers.items():
        phases = _sums((kernel.phase, kernel.seconds) for kernel in own)
        forward, backward, update = (phases.get(phase, 0.0) for phase in PHASES)
        seconds, waits = forward + backward + update, _sums((kernel.bound, kernel.seconds) for kernel in own)
        bound = max(waits, key=waits.__getitem__)
        rows.append(LayerTime(name, kind, forward, backward, update, seconds, seconds / whole, bound))
    return rows


def step_bottleneck(
    phases: Sequence[PhaseTime], kernels: Sequence[KernelTime], exposed: float = 0.0, bubble: float = 0.0
) -> StepBottleneck:
    """What most of a step's time is spent waiting for. exposed: for collectives; bubble: for other ranks [s]."""
    waiting = {phase.phase: phase.host_seconds for phase in phases if phase.host_seconds > phase.device_seconds}
    waits: dict[StepBottleneck, float] = {
        **_sums((kernel.bound, kernel.seconds) for kernel in kernels if kernel.phase not in waiting)
    }
    if waiting:
        waits["host"] = sum(waiting.values())
    if exposed:
        waits["collectives"] = exposed
    if bubble:
        waits["stages"] = bubble
    return max(waits, key=lambda bottleneck: waits[bottleneck]) if waits else "host"


def _sums(amounts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    sums: dict[Key, float] = {}
    for key, amount in amounts:
        sums[key] = sums.get(key, 0.0) + amount
    return sums


def _bottlenecks(step: StepTime) -> list[Bottleneck]:
    """Of each task's kernel. It waits for its start if that is more than half of its time."""
    model = step.model
    start = 0.0 if model.tier == "ceiling" else model.constants.kernel_seconds
    bottlenecks: list[Bottleneck] = []
    for task, seconds in zip(step.tasks, step.kernel_seconds, strict=True):
        kernel = task.kernel
        compute = kernel.flops / model.peak(kernel)
        memory = (kernel.read + kernel.written) / model.machine.bandwidth
        waits = 2 * kernel.launches * start > seconds
        bottlenecks.append("overhead" if waits else "compute" if compute > memory else "memory")
    return bottlenecks
