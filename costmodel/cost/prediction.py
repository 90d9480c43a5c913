"""The answer to one question: exact numbers about one model, that print, tabulate and explain themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import costmodel  # the names of the whole package, each loaded when it is used: time stands above this floor
from costmodel.architectures.base import Architecture, BatchShape
from costmodel.architectures.trace import batch_shape, check_applies, trace
from costmodel.cost.allocator import ALLOTTED, exactly
from costmodel.cost.quantities import (
    ALL,
    FLOP_PARTS,
    QUANTITIES,
    ROW_COLUMNS,
    SUMMED,
    TIMED,
    Flops,
    Lines,
    Memory,
    Traffic,
)
from costmodel.cost.recipes import Forms, Recipe, recipe_of, settings_at
from costmodel.cost.rows import Row, idle_params, rows_of
from costmodel.cost.timeline import (
    Standing,
    Timeline,
    gradient_bytes,
    lasting,
    reserved_bytes,
    standing_of,
    timeline_of,
)
from costmodel.display.answer import Data
from costmodel.display.units import whole
from costmodel.errors import CostModelError, SettingError, ShapeError, shown, unknown
from costmodel.graph.tape import Tape
from costmodel.importers.files import settings_of
from costmodel.layers.base import Layer
from costmodel.training.dtypes import size_bytes
from costmodel.training.keywords import GivenSettings
from costmodel.training.settings import OneStack, Settings, takes_settings

if TYPE_CHECKING:
    import sympy
    from matplotlib.figure import Figure

    from costmodel.cost.budget import Fit
    from costmodel.cost.explanation import Explanation
    from costmodel.hardware.machine import Machine
    from costmodel.symbolic.sizes import SymInt

C = TypeVar("C", bound=Lines)

LEAST_BYTES = 1024
"""Fewer bytes than this are a budget of `Prediction.fits` only as text: whoever writes 24 means 24 GiB."""
MOST_REPLAYED = 20_000
"""Moments of a step, round by round, that are replayed."""
MOST_STANDING = 400_000
"""Tensors there throughout, which are taken before them."""


class Prediction(Data):
    """What `model` costs under `settings`. Made by `predict`; every number is computed when first asked for.

    tape: what was recorded of it, if it has been traced already; the sizes of model and settings may be letters then.

    Example:
        >>> import costmodel as cm
        >>> p = cm.predict("gpt2-small", batch=32, seq=512)
        >>> p.params, p.flops.forward, p.memory.peak  # parameters, FLOPs, bytes
        (124439808, 4357135269888, 32328559628)
        >>> bool(p.fits("24 GiB"))
        False

    """

    _recipe: Recipe | None = None
    _forms: Forms | None = None

    def __init__(self, model: Architecture, settings: Settings, tape: Tape | None = None) -> None:
        self.model = model
        self.settings = settings
        if tape is not None:
            self.tape = tape
            return
        self._recipe, self._point = recipe_of(model, settings)
        self._forms = self._recipe.known(self._point)
        if self._forms is None:
            _ = self.tape  # what cannot be is refused here

    @cached_property
    def tape(self) -> Tape:
        """What is recorded of a step."""
        return trace(self.model, self.settings)

    @cached_property
    def batch_shape(self) -> BatchShape:
        """The sizes of one batch."""
        return batch_shape(self.model, self.settings)

    @cached_property
    def layers(self) -> list[Row]:
        """A row for each layer, repeats folded; rows add up to the totals."""
        return rows_of(self.tape, self.settings.flop_rule, self.settings.accumulate)

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
        if quantity in SUMMED:
            return sum([getattr(row, column) for column in ROW_COLUMNS[quantity] for row in self.layers])
        if quantity in _FROM_TAPE:
            return _FROM_TAPE[quantity](self)
        return getattr(self._standing, quantity.removeprefix("memory."))

    @cached_property
    def timeline(self) -> Timeline:
        """Bytes alive, by category, at every step of forward, backward and the optimizer."""
        asked = self.settings
        exact = asked.allocator == "exact"
        standing = self._standing if exact else standing_of(self.tape, asked, ALLOTTED[asked.allocator])
        return timeline_of(self.model, self.tape, asked, standing)

    @cached_property
    def _standing(self) -> Standing:
        return standing_of(self.tape, self.settings, exactly)

    @cached_property
    def reserved(self) -> int:
        """Segments that PyTorch's CUDA caching allocator takes from the device for one step [bytes], replayed.

        Raises SettingError where the step has too many moments to replay.
        """
        if self.timeline.happenings > MOST_REPLAYED:
            raise SettingError(
                f"a step of {self.timeline.happenings:,} moments is too long to replay (at most {MOST_REPLAYED:,}): "
                "use timeline.peak"
            )
        standing = sum(times for _, _, times in lasting(self.tape, self.settings))
        if standing > MOST_STANDING:
            raise SettingError(
                f"{standing:,} tensors that stay are too many to replay (at most {MOST_STANDING:,}): use timeline.peak"
            )
        return reserved_bytes(self.tape, self.settings)

    @cached_property
    def memory(self) -> Memory:
        """Memory by purpose [bytes]."""
        if self._forms is None and self._recipe is not None and "timeline" not in vars(self):
            self._forms = self._recipe.learn(self._point, self._in_letters)
        return self._lines(Memory, "memory")

    def _in_letters(self, letters: Mapping[str, SymInt]) -> dict[str, int]:
        """Every quantity, with letters for sizes."""
        settings = replace(self.settings, **settings_at(letters))
        prediction = Prediction(self.model, settings, trace(self.model, settings))
        return {quantity: prediction.value(quantity) for quantity in QUANTITIES}

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

    def symbolic(self, *, generic: bool = False) -> Prediction:
        """The same question with a letter for each size: its numbers come with formulas.

        generic: at sizes of a batch that are nowhere 1 if the model allows: formulas hold more widely.
        """
        from costmodel.cost.explanation import with_letters

        if generic not in self._symbolic:
            try:
                self._symbolic[generic] = with_letters(self, generic=generic)
            except CostModelError:
                if not generic:
                    raise
                self._symbolic[generic] = self.symbolic()
        return self._symbolic[generic]

    @cached_property
    def _symbolic(self) -> dict[bool, Prediction]:
        return {}

    @cached_property
    def time(self) -> costmodel.Time:
        """How long a step takes on the machine of the setting `on`. Raises SettingError if there is none."""
        if self.settings.on is None:
            raise SettingError("time is of a machine: give one, such as on='h100-sxm'")
        machine: Any = self.settings.on
        return self.on(machine, stack=self.settings.stack)

    def value(self, quantity: str) -> Any:
        """A quantity by name, such as "memory.activations" [bytes], or of the machine of the setting `on` "seconds".

        Raises UnknownNameError, SettingError.
        """
        if not isinstance(quantity, str):
            raise unknown("quantity", shown(quantity), ALL)
        if quantity in TIMED:
            return self.time.value(quantity)
        if quantity not in QUANTITIES:
            raise unknown("quantity", quantity, ALL)
        if self._forms is not None:
            return self._number(quantity)
        value: Any = self
        for part in quantity.split("."):
            value = getattr(value, part)
        return value

    def formula(self, quantity: str) -> sympy.Expr:
        """A quantity as a sympy expression in the model's own letters. Raises UnknownNameError."""
        return self.explain(quantity).formula

    def explain(self, quantity: str) -> Explanation:
        """A quantity's formula, letters, numbers put in, value and sources. Raises UnknownNameError."""
        from costmodel.cost.explanation import explain

        return explain(self, quantity)

    def fits(self, memory: str | float, *, reserve: str | int = 0) -> Fit:
        """Whether the peak fits `memory`, such as "24 GiB", with `reserve` left for what is not modelled.

        What is not modelled: the driver's context, library workspaces, fragmentation. Raises SettingError, also for a
        number so small that GiB were meant.
        """
        from costmodel.cost.budget import fit

        size = whole(memory)
        if size is not None and 0 < size < LEAST_BYTES:
            raise SettingError(f"memory={shown(memory)} would be {size:,} bytes: use text such as '{size} GiB'")
        return fit(self.memory.peak, self.timeline.peak_step, memory, reserve)

    def on(
        self,
        machine: str | os.PathLike[str] | Machine,
        *,
        stack: OneStack = "eager",
        tier: Literal["ceiling", "typical", "calibrated"] | None = None,
        allow_tf32: bool | None = None,
        channels_last: bool = False,
    ) -> costmodel.Time:
        """How long one step takes on a machine, why, and how far that may be off.

        Args:
            machine: a ready machine's name such as "h100-sxm", a file of one or of a calibration, or a `Machine`.
            stack: how kernels are started and which become one: "eager", "compiled", "cuda-graphs", or a
                `Stack`, its fields or a file of them.
            tier: "ceiling" (the datasheet alone: a lower bound), "typical" (what kernels attain on machines of its
                family) or "calibrated" (with what was measured on it); None: calibrated where `machine` is a
                calibration, else typical.
            allow_tf32: whether products of fp32 may be rounded to tf32; None: convolutions alone, as in PyTorch.
            channels_last: whether convolutions have channels last in memory.

        Raises:
            CostModelError: what is wrong with the question, in one line.

        """
        return costmodel.time_on(
            self,
            machine,
            stack=stack,
            tier=tier,  # type: ignore[arg-type]
            allow_tf32=allow_tf32,
            channels_last=channels_last,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the question (model and settings), then the answer."""
        from costmodel.importers.files import describe

        return {
            "model": describe(self.model),
            "settings": self.settings.to_dict(),
            "params": self.params,
            "trainable_params": self.trainable_params,
            "active_params": self.active_params,
            "flops": {part: getattr(self.flops, part) for part in FLOP_PARTS},
            "pointwise_flops": {part: getattr(self.pointwise_flops, part) for part in FLOP_PARTS},
            "memory": asdict(self.memory),
            "traffic": asdict(self.traffic),
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "layers": [row.to_dict() for row in self.layers],
        }

    @classmethod
    def from_dict(cls, data: Any) -> Prediction:
        """The prediction that `to_dict` described, worked out again.

        Raises CostModelError if the data describes no prediction, or if its numbers are not what its model costs.
        """
        import json

        from costmodel.importers.files import as_json, build, machine_of

        if not isinstance(data, dict) or not isinstance(data.get("settings"), dict) or "model" not in data:
            raise CostModelError("this is not a prediction: it has no model and settings")
        again = cls(build(data["model"], "prediction"), Settings.from_dict(data["settings"], machine_of))
        found, given = json.loads(again.to_json()), as_json(data, "a prediction")
        for field in {**found, **given}:
            if field not in found or given.get(field) != found[field]:
                raise CostModelError(
                    f"the prediction's {shown(field)} is not what its model costs; it was changed or is of another "
                    "version"
                )
        return again

    @classmethod
    def from_json(cls, text: str) -> Prediction:
        """The prediction that `to_json` wrote. Raises CostModelError."""
        import json

        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise CostModelError(f"this is not a prediction: {error}") from None
        return cls.from_dict(data)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer."""
        return [row.to_dict() for row in self.layers]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prediction):
            return NotImplemented
        return self.model == other.model and self.settings == other.settings

    def __hash__(self) -> int:
        return hash((self.model.title, self.settings))

    def __str__(self) -> str:
        from costmodel.cost.report import text

        return text(self)

    def report(self, *, depth: int | None = None, shapes: bool = False) -> str:
        """The report as text, with layers summed up by part down to `depth` levels, and shapes of outputs if asked.

        Raises SettingError for a depth that is no whole number from 1.
        """
        from costmodel.cost.report import text

        return text(self, depth, shapes)

    def plot(self, path: str | os.PathLike[str] | None = None, *, depth: int = 2, dark: bool = False) -> Figure:
        """Parameters, FLOPs and kept activations by part, the largest dozen and "other" (extra `plot`).

        What is alive at each moment is drawn by `timeline.plot`, a roofline by `on(machine).plot`.

        Args:
            path: where to write it too, such as "parts.png".
            depth: levels of parts, as in `by_part`.
            dark: on black instead of white.

        Raises:
            CostModelError: no matplotlib, a depth that is none, or `path` cannot be written.

        Example:
            >>> import costmodel as cm
            >>> figure = cm.predict("gpt2-small", batch=8, seq=512).plot()
            >>> [axes.get_title("left") for axes in figure.axes]
            ['parameters', 'contraction FLOPs a step', 'kept for backward']

        """
        from costmodel.cost.question import heading
        from costmodel.display.bars import PASSES, bars, flops_panel, memory_panel, params_panel
        from costmodel.display.figures import DARK, LIGHT, save

        parts = self.by_part(depth)
        training = self.settings.training
        panels = [
            params_panel([row.params for row in parts]),
            flops_panel(
                [{one: getattr(row, f"{one}_flops") for one in PASSES} for row in parts],
                "a step" if training else "a pass",
            ),
        ]
        if training:
            kept = [{"activations": row.activation_bytes, "casts": row.cast_bytes} for row in parts]
            panels.append(memory_panel(kept, "kept for backward"))
        names = [f"{row.name} ×{row.repeat}" if row.repeat > 1 else row.name for row in parts]
        title = heading(self.model, self.settings)
        figure = bars(names, panels, title, DARK if dark else LIGHT, ratios=False)
        if path is not None:
            save(figure, path)
        return figure

    def by_part(self, depth: int = 1) -> list[Row]:
        """A row for each part of the model, `depth` levels down: rows of layers within it added up, in order.

        A repeated block is one part. Raises SettingError for a depth that is no whole number from 1.
        """
        from costmodel.cost.report import parts_of

        return parts_of(self.layers, depth)

    def _repr_html_(self) -> str:
        from costmodel.cost.report import html

        return html(self)


_FROM_TAPE: dict[str, Callable[[Prediction], int]] = {
    "trainable_params": lambda p: sum(s.elements * s.times for s in p.tape.trained),
    "active_params": lambda p: p.params - idle_params(p.tape),
    "memory.gradients": lambda p: gradient_bytes(p.tape, exactly),
    "memory.temporaries": lambda p: p.timeline.temporaries,
    "memory.peak": lambda p: p.timeline.peak,
    "memory.cache": lambda p: sum(s.bytes * s.times for s, _ in p.tape.cached),
    "kv_bytes_per_token": lambda p: sum(size_bytes(token, s.dtype) * s.times for s, token in p.tape.cached),
}
"""Quantities that are no sums of rows' columns; other lines of memory are those of what is there throughout."""


@takes_settings()
def predict(
    model: Architecture | Layer | str, *, input: Sequence[int] | None = None, **settings: Unpack[GivenSettings]
) -> Prediction:
    """What a model costs, before anyone builds it.

    Args:
        model: an architecture, or what `load` takes: a ready model's name or a file's path; or a layer by itself.
        input: of a layer by itself the shape of its input, the batch first; its input needs a gradient.
        **settings: how it is run; each is listed below.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> cm.predict("gpt2-small", batch=32, seq=512, precision="bf16-autocast").params
        124439808

    """
    if isinstance(model, Layer):
        from costmodel.architectures.single import alone

        model, settings["batch"] = alone(model, input, settings.get("batch"))
    elif input is not None:
        raise SettingError(f"input={shown(input)} is for a layer by itself: leave it out")
    if not isinstance(model, Architecture):
        from costmodel.importers.zoo import load

        model = load(model)
    asked = settings_of(settings)
    check_applies(model, asked)
    try:
        return Prediction(model, asked)
    except ShapeError as error:
        raise ShapeError(f"{model.file}: {error}" if model.file else str(error)) from None
