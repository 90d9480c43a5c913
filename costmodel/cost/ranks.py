"""Ranks of a layout as answers: which differ, what each has and holds, and every collective that it takes part in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from costmodel.cost.question import heading, question
from costmodel.cost.sharding import share_of
from costmodel.cost.timeline import CollectiveCalls, place
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, TextRow
from costmodel.display.units import show_bytes, show_count, show_exact, show_flops, show_share
from costmodel.documents.arguments import typed
from costmodel.errors import SettingError
from costmodel.symbolic.sizes import product
from costmodel.training.schedule import Action, ActionKind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from costmodel.cost.costs import Costs


@dataclass(frozen=True, repr=False)
class Collectives(Answer):
    """Every collective that one rank takes part in, of one step; those of rounds that are alike as one.

    rank: whose they are.

    Example:
        >>> import costmodel as cm
        >>> collectives = cm.predict("llama-3.1-8b", seq=4096, tp=8).collectives
        >>> first = next(iter(collectives))
        >>> first.operation, first.axis, first.devices, first.layer, first.bytes
        ('all_reduce', 'tp', 8, 'embedding.reduce', 67108864)

    """

    calls: tuple[CollectiveCalls, ...]
    rank: Costs = field(compare=False)

    def __iter__(self) -> Iterator[CollectiveCalls]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def bytes(self) -> int:
        """Whole tensors that are gathered, reduced or handed on, each time that they are [bytes]."""
        return sum(call.times * call.bytes for call in self.calls)

    @property
    def wire_bytes(self) -> int:
        """What the rank sends to others for them [bytes]; around a ring."""
        return sum(call.times * call.wire_bytes for call in self.calls)

    def sums(self) -> list[dict[str, Any]]:
        """A row for each axis and operation on a type: how many collectives, their bytes and what is sent for them."""
        groups: list[list[CollectiveCalls]] = []
        for call in self.calls:
            kind = (
                call.axis,
                call.operation,
                call.dtype,
                call.devices,
            )  # compared, as a letter's hash would fix its size
            for group in groups:
                if kind == (group[0].axis, group[0].operation, group[0].dtype, group[0].devices):
                    group.append(call)
                    break
            else:
                groups.append([call])
        return [
            {
                "axis": calls[0].axis,
                "operation": calls[0].operation,
                "devices": calls[0].devices,
                "dtype": calls[0].dtype,
                "times": sum(call.times for call in calls),
                "bytes": sum(call.times * call.bytes for call in calls),
                "wire_bytes": sum(call.times * call.wire_bytes for call in calls),
            }
            for calls in groups
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: totals [bytes], sums by axis and operation, then every collective."""
        return {"bytes": self.bytes, "wire_bytes": self.wire_bytes, "sums": self.sums(), "calls": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each: its phase, layer and rounds, how often it happens, what it is, bytes of one of them."""
        return [{**call._asdict(), "bytes": call.bytes, "wire_bytes": call.wire_bytes} for call in self.calls]

    def sheet(self) -> Sheet:
        """Sums by axis and operation, then every collective."""
        head = [question(self.rank.model, self.rank.settings), f"collectives of {whose(self.rank)}"]
        if not self.calls:
            return Sheet([*head, "no collectives"], [])
        return Sheet(head, [self.summary(), self._listed()], notes=[WIRE])

    def summary(self) -> Table:
        """Sums by axis and operation."""
        rows: list[TextRow] = [
            (
                f"{row['axis']} {row['operation']}",
                row["dtype"],
                f"{row['devices']:,}",
                show_exact(row["times"]),
                show_bytes(row["bytes"]),
                show_bytes(row["wire_bytes"]),
            )
            for row in self.sums()
        ]
        total = ("total", "", "", show_exact(sum(call.times for call in self.calls)))
        rows.append((*total, show_bytes(self.bytes), show_bytes(self.wire_bytes)))
        header = ("Collectives", "dtype", "devices", "times", "bytes", "sent")
        return Table(header, rows, words=frozenset({0, 1}), total=True)

    def _listed(self) -> Table:
        rows = [
            (
                f"{call.axis} {call.operation}",
                call.phase,
                place(call),
                show_exact(call.times),
                show_exact(call.bytes),
                call.dtype,
            )
            for call in self.calls
        ]
        header, worth = ("in order", "phase", "layer", "times", "bytes", "dtype"), ("bytes", "times", "layer", "phase")
        return Table(header, rows, words=frozenset({0, 1, 2}), worth=worth)


WIRE = (
    "bytes: of the whole tensor over all ranks of the axis; sent: by this rank, around a ring, so 2(n−1)/n of an "
    "all-reduce, (n−1)/n of what is gathered, scattered or exchanged"
)


@dataclass(frozen=True, repr=False)
class Ranks(Answer, Sequence["Costs"]):
    """The ranks of a layout that differ, the heaviest first: each a prediction of its own.

    Example:
        >>> import costmodel as cm
        >>> p = cm.predict("llama-3.1-8b", seq=4096, tp=8)
        >>> rank = p.ranks[0]
        >>> rank.params, rank.memory.peak == p.memory.peak
        (1004015616, True)

    """

    kinds: tuple[Costs, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.kinds[index]

    def __len__(self) -> int:
        return len(self.kinds)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: a row for each kind of rank."""
        return {"ranks": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kind: which it is, of how many devices, what each has in flight, its parameters, FLOPs of a
        step, memory and what it sends [bytes]."""
        return [
            {
                "rank": label(rank),
                "pipeline_rank": _pipeline_rank(rank),
                "devices": _alike(rank),
                "in_flight": rank.in_flight,
                "params": held_params(rank),
                "flops": rank.flops.hardware,
                **{name: getattr(rank.memory, name) for name in _MEMORY},
                "wire_bytes": rank.collectives.wire_bytes,
            }
            for rank in self.kinds
        ]

    def sheet(self) -> Sheet:
        """The same as a table."""
        return Sheet([question(self.kinds[0].model, self.kinds[0].settings)], [self.table()])

    @typed
    def plot(
        self,
        path: str | PathLike[str] | None = None,
        *,
        dark: bool = False,
        duration: Callable[[Action], float] | None = None,
    ) -> Figure:
        """A picture of a pipeline's step: a lane for each rank, passes with their micro-batches (extra `plot`).

        Args:
            path: where to write it too, such as "pipeline.png".
            dark: on black instead of white.
            duration: the time that an action takes [s]; None: a unit for forward, for gradients of inputs, and of
                weights.

        Raises:
            CostModelError: no pipeline, or one of very many passes; no matplotlib, or `path` cannot be written.

        Example:
            >>> import costmodel as cm
            >>> figure = cm.predict("gpt2-small", pp=4, accumulate=8).ranks.plot()
            >>> figure.axes[0].get_xlabel()
            'time [units of a forward pass]'

        """
        from costmodel.display.figures import DARK, LIGHT, save
        from costmodel.display.lanes import MOST_LANES, Lane, LaneSpan, lanes

        settings = self.kinds[0].settings
        if settings.layout.pp == 1:
            raise SettingError("a picture of ranks is of a pipeline: give pp, such as pp=4")
        schedule = settings.layout.pipeline(settings.micro_batches)
        if (passes := 2 * schedule.stages * schedule.microbatches) > MOST_PASSES:
            raise SettingError(f"{passes:,} passes are too many to draw: use accumulate for at most {MOST_PASSES:,}")
        timetable = schedule.timetable(duration or (lambda action: 2 if action.kind == "B" else 1))
        rows = [
            Lane(f"rank {rank}", [LaneSpan(start, end, PHASES[a.kind], str(a.microbatch)) for a, start, end in timed])
            for rank, timed in enumerate(timetable)
        ]
        left_out = f"{len(rows) - MOST_LANES} more ranks" if len(rows) > MOST_LANES else ""
        title = heading(self.kinds[0].model, settings)
        units = "" if duration else "units of a forward pass"
        return save(lanes(title, rows[:MOST_LANES], left_out, DARK if dark else LIGHT, units), path)

    def table(self) -> Table:
        """A line for each kind of rank."""
        shows: dict[str, Callable[[Any], str]] = {
            "rank": str,
            "in_flight": str,
            "params": show_count,
            "flops": show_flops,
        }
        rows = [
            [
                shows.get(name, show_bytes)(value)
                for name, value in row.items()
                if name not in ("pipeline_rank", "devices")
            ]
            for row in self.rows()
        ]
        header = ("Ranks", "in flight", "params", "FLOPs", *_MEMORY, "sent")
        return Table(header, rows, worth=("peak", "FLOPs", "params", "sent", "activations", *_MEMORY, "in flight"))


PHASES: dict[ActionKind, str] = {"F": "forward", "B": "backward", "I": "backward", "W": "weights"}
"""What a pass is drawn as."""
MOST_PASSES = 5_000
"""Passes of a step that are drawn."""

_MEMORY = ("weights", "gradients", "optimizer", "activations", "peak")


def held_params(rank: Costs) -> int:
    """Weights that a rank has between steps: of those that are split over ranks its share."""
    return sum(product(share_of(tape, weight).shape) * weight.times for tape in rank.tapes for weight in tape.weights)


def whose(rank: Costs) -> str:
    """Which devices are alike, in words."""
    layout = rank.settings.layout
    if (number := _pipeline_rank(rank)) is not None:
        return f"each of {_alike(rank):,} devices of pipeline rank {number}"
    return "the device" if layout.devices == 1 else f"each of {layout.devices:,} devices"


def _pipeline_rank(rank: Costs) -> int | None:
    """The number of a rank along a pipeline, if it is in one."""
    return rank.tape.layout.stage if rank.place is None else rank.place.rank


def _alike(rank: Costs) -> int:
    """Devices that do as a rank does: all of a stage."""
    layout = rank.settings.layout
    return layout.devices // layout.pp


def label(rank: Costs) -> str:
    """The same as a heading: its place in a pipeline, and how many are alike."""
    number = _pipeline_rank(rank)
    place = "" if number is None else f"pp {number} "
    return f"{place}×{_alike(rank):,}"


def beside_model(p: Costs) -> Table:
    """What the heaviest rank has and does, beside the whole model."""
    rank = p.rank
    pairs: list[tuple[str, int, int, Callable[[int], str]]] = [("params", held_params(rank), p.params, show_count)]
    passes = ("forward", "backward", "hardware") if p.settings.training else ("forward",)
    for name in passes:
        pairs.append((f"FLOPs {name}", getattr(rank.flops, name), getattr(p.flops, name), show_flops))
    rows = [(name, show(own), show_exact(own), show_share(own, whole)) for name, own, whole, show in pairs]
    return Table((f"Rank, {label(rank)}", "", "exact", "of the model"), rows)
