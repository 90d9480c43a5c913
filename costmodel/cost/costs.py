"""What a model costs: every number of one question, exact, worked out when it is first asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from costmodel.architectures.base import Architecture, BatchShape
from costmodel.architectures.trace import batch_shape, check_applies, trace
from costmodel.cost.allocator import ALLOTTED, exactly
from costmodel.cost.driver import DriverMemory
from costmodel.cost.liveness import ACTIVATIONS
from costmodel.cost.persistent import gradient_bytes, persistent_bytes, persistent_tensors
from costmodel.cost.pipeline import Pipeline, PipelineRank
from costmodel.cost.quantities import (
    QUANTITIES,
    ROW_COLUMNS,
    SUMMED,
    Flops,
    LineItems,
    Memory,
    Traffic,
    check_formula,
)
from costmodel.cost.ranks import Collectives, Ranks
from costmodel.cost.recipes import Polynomials, Recipe, recipe_of, settings_at
from costmodel.cost.rows import Row, idle_params, rows_of
from costmodel.cost.runtimes import rank_of
from costmodel.cost.timeline import Timeline, timeline_of, timeline_of_rank, timelines_of
from costmodel.cost.walk import reserved_bytes
from costmodel.documents.arguments import typed
from costmodel.errors import CostModelError, SettingError, ShapeError, shown
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import RoundLayout
from costmodel.importers.files import asked_in, settings_of
from costmodel.layers.base import Layer
from costmodel.symbolic.sizes import LARGEST_SIZE
from costmodel.training.dtypes import size_bytes
from costmodel.training.layout import DEGREES, Layout
from costmodel.training.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from costmodel.symbolic.sizes import SymInt

C = TypeVar("C", bound=LineItems)

OWN_STRETCHES = "as the module itself has it"
"""What is recomputed where a module imported from PyTorch says so."""
MOST_REPLAYED = 20_000
"""Moments of a step, round by round, that are replayed."""
MOST_PERSISTENT = 400_000
"""Tensors there throughout, which are taken before them."""


def stage_tapes(model: Architecture, settings: Settings, kind: Callable[[Layout], Hashable]) -> list[tuple[Tape, int]]:
    """What is recorded of the stages that a pass without backward goes through, in order, and how many have it.

    kind: of a stage's layout; stages of one kind that are handed the same are recorded once.
    """
    kinds: dict[Hashable, list[tuple[tuple[RoundLayout, ...], Tape]]] = defaultdict(list)
    counts: dict[Tape, int] = {}
    arrival: tuple[RoundLayout, ...] = ()
    for stage in range(settings.layout.pp):
        layout = settings.layout._replace(stage=stage)
        alike = kinds[kind(layout)]  # arrivals are compared, since a key would fix sizes that are letters
        tape = next((tape for given, tape in alike if given == arrival), None)
        if tape is None:
            tape = trace(model, settings, layout=layout, arrival=arrival)
            alike.append((arrival, tape))
        counts[tape] = counts.get(tape, 0) + 1
        arrival = tape.handed_on
    return [*counts.items()]


class Costs:
    """What `model` costs under `settings`: numbers alone; every one is computed when first asked for.

    Over several devices parameters, FLOPs and layers are those of the whole model, all else is of its heaviest rank.

    tape: what was recorded of it, if it has been traced already; the sizes of model and settings may be letters then.
    place: of a rank of a pipeline, its stages and what it does.
    """

    _recipe: Recipe | None = None
    _forms: Polynomials | None = None

    def __init__(
        self, model: Architecture, settings: Settings, tape: Tape | None = None, place: PipelineRank | None = None
    ) -> None:
        self.model = model
        self.settings = settings
        self.place = place
        if tape is not None:
            self.tape = tape
            return
        self._recipe, self._point = recipe_of(model, settings)
        self._forms = self._recipe.known(self._point)
        if self._forms is None:
            _ = self.rank.tape if self._pipeline is None else self._pipeline.tapes  # what cannot be is refused here

    @classmethod
    def of(cls, model: Architecture | Layer | str, input: Sequence[int] | None = None, **settings: Any) -> Self:
        """What is asked by name: see `predict`. Raises CostModelError."""
        if not isinstance(model, Architecture | Layer):
            model, settings = asked_in(model, settings)
        over = settings.pop("over", None)
        if over is not None and isinstance(model, Layer):
            raise SettingError(f"over={shown(over)} is of a model's fields: give the layer with others")
        if isinstance(model, Layer):
            from costmodel.architectures.single import alone

            model, settings["batch"] = alone(model, input, settings.get("batch"))
        elif input is not None:
            raise SettingError(f"input={shown(input)} is for a layer by itself: leave it out")
        if over is not None or not isinstance(model, Architecture):
            from costmodel.importers.zoo import load

            model = load(model, over=over)
        for name in settings:
            if name not in SETTINGS and name in (*model.field_names(), *model.DERIVED, *model.RENAMED):
                raise SettingError(
                    f"{name} is a field of {model.title}, no setting: use over={{{name!r}: {shown(settings[name])}}} "
                    f"(--over {name}={settings[name]})"
                )
        sizes = {name: size for name, size in settings.items() if type(size) is int and 0 < size <= LARGEST_SIZE}
        model.check_degrees(sizes)  # before what settings ask of each other
        question = settings_of(settings)
        check_applies(model, question)
        try:
            return cls(model, question)
        except ShapeError as error:
            raise ShapeError(f"{model.file}: {error}" if model.file else str(error)) from None

    @cached_property
    def tape(self) -> Tape:
        """What is recorded of a step, on one device or of all of them as if they were one."""
        return trace(self.model, self.settings, layout=Layout())

    @cached_property
    def rank(self) -> Costs:
        """The heaviest rank by itself: what it has of weights, what it computes, keeps and sends; on one device this.

        All ranks of a layout without stages are alike, but for the last ones' smaller shares of weights whose rows do
        not divide.
        """
        return self._kinds_of_ranks[0]

    @property
    def ranks(self) -> Ranks:
        """The ranks of its layout that differ, the heaviest first."""
        return Ranks(tuple(self._kinds_of_ranks))

    @cached_property
    def _kinds_of_ranks(self) -> list[Self]:
        ranks = self.ranks_in_order
        return sorted(ranks, key=lambda rank: int(rank.timeline.peak), reverse=True) if len(ranks) > 1 else ranks

    @cached_property
    def ranks_in_order(self) -> list[Self]:
        """The ranks that differ, from the first stage of a pipeline to its last; sizes may be letters."""
        of_rank = "tape" in vars(self) and not self.tape.layout.single
        if of_rank or self.settings.layout.single:
            return [self]
        if self._pipeline is None:
            stages = self._stages if self.settings.layout.pp > 1 else [trace(self.model, self.settings)]
            return [type(self)(self.model, self.settings, tape) for tape in stages]
        return [type(self)(self.model, self.settings, place.tapes[0], place) for place in self._pipeline.ranks]

    @cached_property
    def _pipeline(self) -> Pipeline | None:
        staged = self.settings.layout.pp > 1 and self.settings.training
        return Pipeline(self.model, self.settings) if staged else None

    @property
    def _stages(self) -> list[Tape]:
        """What is recorded of each stage that a pass without backward goes through."""
        return [tape for tape, _ in stage_tapes(self.model, self.settings, lambda layout: layout.stage)]

    @property
    def tapes(self) -> tuple[Tape, ...]:
        """What is recorded of all stages of a rank."""
        return (self.tape,) if self.place is None else self.place.tapes

    @property
    def in_flight(self) -> int:
        """Most micro-batches whose forward pass the heaviest rank has run and whose backward pass it has not finished.

        In a pipeline each counts in every stage of the rank.
        """
        return 1 if self.rank.place is None else self.rank.place.in_flight

    @cached_property
    def collectives(self) -> Collectives:
        """Every collective of one step that the heaviest rank takes part in; none on one device.

        Those of forward and backward are of all micro-batches, but for those along dp: gradients are summed once.
        """
        rounds = self.settings.micro_batches if self.rank.place is None else 1  # else its timeline has them all
        runtime = rank_of(self.rank.tape, self.settings)
        calls = [
            call
            if call.phase == "optimizer" or (call.axis == "dp" if runtime is None else call.layer in runtime.once)
            else call._replace(times=rounds * call.times)
            for call in self.timeline.collectives
        ]
        return Collectives(tuple(calls), self.rank)

    @cached_property
    def batch_shape(self) -> BatchShape:
        """The sizes of one batch."""
        return batch_shape(self.model, self.settings)

    @property
    def samples(self) -> int:
        """Samples of a step: of all micro-batches, on all devices."""
        settings = self.settings
        return self.batch_shape.batch * settings.micro_batches * settings.layout.samplers

    @property
    def tokens(self) -> int | None:
        """Tokens of these; None where a sample has none."""
        seq = self.batch_shape.seq
        return None if seq is None else self.samples * seq

    @property
    def recomputed(self) -> str | int | tuple[str, ...]:
        """What is recomputed: as the setting `checkpoint` says, or `OWN_STRETCHES`."""
        again = self.flops.recomputed or self.pointwise_flops.recomputed
        return OWN_STRETCHES if self.settings.checkpoint == "none" and again else self.settings.checkpoint

    @cached_property
    def layers(self) -> list[Row]:
        """A row for each layer, repeats folded; rows add up to the totals."""
        rule, times = self.settings.flop_rule, self.settings.micro_batches
        return [row for tape in self.tapes for row in rows_of(tape, rule, times)]

    @cached_property
    def params(self) -> int:
        """Trained weights, each counted once (tied ones too)."""
        return self._number("params")

    @cached_property
    def trainable_params(self) -> int:
        """Weights that are trained: all but the frozen ones, each counted once; none in inference."""
        return self._number("trainable_params")

    @cached_property
    def active_params(self) -> int:
        """Weights that one token meets: of experts only those that it chooses, of all else everything."""
        return self._number("active_params")

    @cached_property
    def flops(self) -> Flops:
        """Contraction FLOPs, a multiply-add being two."""
        return self._lines(Flops, "flops")

    @cached_property
    def pointwise_flops(self) -> Flops:
        """All other arithmetic."""
        return self._lines(Flops, "pointwise_flops")

    def _lines(self, kind: type[C], group: str) -> C:
        return kind(*[self._number(f"{group}.{line}") for line in kind.__dataclass_fields__])

    def _number(self, quantity: str) -> int:
        """A quantity by the form that is known to hold here, else from the tape."""
        if self._forms is not None:
            return self._forms[quantity].value(self._point)
        if quantity.startswith("memory.") and self.rank is not self:
            return self.rank._number(quantity)
        if quantity == "memory.activations" and self.place is not None:
            return self.timeline.most(ACTIVATIONS)
        if quantity in SUMMED:
            return sum([getattr(row, column) for column in ROW_COLUMNS[quantity] for row in self.layers])
        if quantity in _FROM_TAPE:
            return _FROM_TAPE[quantity](self)
        return self._persistent[quantity.removeprefix("memory.")]

    @cached_property
    def timeline(self) -> Timeline:
        """Bytes alive, by category, at every step of forward, backward and the optimizer."""
        if self.rank is not self:
            return self.rank.timeline
        if self.place is not None:
            return timeline_of_rank(self.place, self._persistent)
        return timeline_of(self.model, self.tape, self.settings, self._allotted)

    @property
    def _allotted(self) -> dict[str, int]:
        """What is there throughout, as the allocator takes it."""
        allocator = self.settings.allocator
        exact = allocator == "exact"
        return self._persistent if exact else persistent_bytes(self.tapes, self.settings, ALLOTTED[allocator])

    @cached_property
    def _persistent(self) -> dict[str, int]:
        total = persistent_bytes(self.tapes, self.settings, exactly)
        return total if self.place is None else {**total, "inputs": self.place.buffers}

    @cached_property
    def reserved(self) -> int:
        """Segments that PyTorch's CUDA caching allocator takes from the device for one step [bytes], replayed.

        Raises SettingError where the step has too many moments to replay.
        """
        if self.rank is not self:
            return self.rank.reserved
        if self.place is not None:
            raise SettingError(f"reserved segments are not worked out with pp={self.settings.pp}: use timeline.peak")
        if self.timeline.happenings > MOST_REPLAYED:
            raise SettingError(
                f"a step of {self.timeline.happenings:,} moments is too long to replay (at most {MOST_REPLAYED:,}): "
                "use timeline.peak"
            )
        tensors = sum(times for _, _, times in persistent_tensors(self.tapes, self.settings))
        if tensors > MOST_PERSISTENT:
            raise SettingError(
                f"{tensors:,} tensors that stay are too many to replay (at most {MOST_PERSISTENT:,}): use timeline.peak"
            )
        return reserved_bytes(self.tape, self.settings)

    @property
    def driver(self) -> DriverMemory:
        """What CUDA and NCCL take of the heaviest rank's device beside all that is counted."""
        return DriverMemory.of(len({(call.axis, call.devices) for call in self.collectives.calls}))

    @cached_property
    def memory(self) -> Memory:
        """Memory by purpose [bytes]."""
        alone = self.settings.layout.pp == 1
        if alone and self._forms is None and self._recipe is not None and "timeline" not in vars(self):
            self._forms = self._recipe.learn(self._point, self._in_letters)
        return self._lines(Memory, "memory")

    def _in_letters(self, letters: Mapping[str, SymInt]) -> dict[str, int]:
        """Every quantity, with letters for sizes."""
        settings = replace(self.settings, **settings_at(letters))
        costs = Costs(self.model, settings, trace(self.model, settings, layout=Layout()))
        return {quantity: costs.number(quantity) for quantity in QUANTITIES}

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: formulas are found again when they are asked for."""
        left_out = ("_symbolic", "_recipe", "_point", "_forms")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    @cached_property
    def traffic(self) -> Traffic:
        """What a forward pass moves to and from memory at least [bytes]."""
        return self._lines(Traffic, "traffic")

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """What decoding keeps of one more token of one sample, as long as no window is full [bytes]; 0 in training."""
        return self._number("kv_bytes_per_token")

    @typed
    def symbolic(self, *, generic: bool = False) -> Costs:
        """The same question with a letter for each size: its numbers come with formulas.

        generic: at sizes of a batch that are nowhere 1 if the model allows: formulas hold more widely.
        """
        if generic not in self._symbolic:
            try:
                self._symbolic[generic] = with_letters(self, generic=generic)
            except CostModelError:
                if not generic:
                    raise
                self._symbolic[generic] = self.symbolic()
        return self._symbolic[generic]

    @cached_property
    def _symbolic(self) -> dict[bool, Costs]:
        return {}

    def number(self, quantity: str) -> int:
        """A quantity of `cost.quantities.QUANTITIES` by name: by the form that is known to hold here, else by the tape.

        Raises UnknownNameError.
        """
        check_formula(quantity)
        if self._forms is not None or self._recipe is None:  # of a trace each is worked out by itself
            return self._number(quantity)
        value: Any = self
        for part in quantity.split("."):
            value = getattr(value, part)
        return value


_FROM_TAPE: dict[str, Callable[[Costs], int]] = {
    "trainable_params": lambda p: sum(s.elements * s.times for tape in p.tapes for s in tape.trained),
    "active_params": lambda p: p.params - sum(map(idle_params, p.tapes)),
    "memory.gradients": lambda p: sum(gradient_bytes(tape, p.settings, exactly) for tape in p.tapes),
    "memory.temporaries": lambda p: p.timeline.temporaries,
    "memory.peak": lambda p: p.timeline.peak,
    "collectives.bytes": lambda p: p.collectives.bytes,
    "collectives.wire_bytes": lambda p: p.collectives.wire_bytes,
    "memory.cache": lambda p: sum(kept.storage.bytes * kept.storage.times for kept in p.tape.cached),
    "kv_bytes_per_token": lambda p: sum(size_bytes(token, s.dtype) * s.times for s, token, _ in p.tape.cached),
}
"""Quantities that are no sums of rows' columns; other lines of memory are those of what is there throughout."""


def share_passes(alike: Sequence[Costs]) -> None:
    """Work out timelines at once, of one device: what they are of differs in the optimizer alone."""
    first, settings = alike[0], [each.settings for each in alike]
    timelines = timelines_of(first.model, first.tape, settings, [each._allotted for each in alike])
    for each, timeline in zip(alike, timelines, strict=True):
        each.timeline = timeline


def with_letters(costs: Costs, *, generic: bool) -> Costs:
    """The same question with a letter for each size.

    generic: with a batch of at least two rows and tokens and an image of at least 64 pixels, where no axis happens to
    have size 1 and to be treated as such.
    """
    from costmodel.symbolic.guards import symint

    model, extent = costs.model, costs.batch_shape
    changes: dict[str, Any] = {"batch": symint("B", max(extent.batch, 2) if generic else extent.batch)}
    if extent.seq is not None and costs.settings.mode != "decode":
        changes["seq"] = symint("T", max(extent.seq, 2) if generic else extent.seq)
    if costs.settings.past is not None or costs.settings.mode == "decode":
        changes["past"] = symint("P", int(extent.past or 0))
    if extent.target is not None and costs.settings.target_seq is not None:
        changes["target_seq"] = symint("T_t", max(extent.target, 2) if generic else extent.target)
    if extent.image is not None:
        sides = (_at_least_64(side) if generic else side for side in extent.image)
        changes["image"] = tuple(symint(name, side) for name, side in zip("HW", sides, strict=True))
    model = model.with_sizes({field: symint(d.symbol, d.value) for field, d in model.size_fields().items()})
    for name in DEGREES:
        if (degree := getattr(costs.settings, name)) != 1:
            changes[name] = symint(name, degree)
    settings = replace(costs.settings, **changes)
    whole = costs.rank is not costs
    return Costs(model, settings, trace(model, settings, layout=Layout() if whole else None))


def _at_least_64(side: int) -> int:
    while side < 64:  # doubled, since some networks halve the image so often that it must divide
        side = 2 * side
    return side
