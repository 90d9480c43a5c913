"""The answer to one question: exact numbers about one model, that print, tabulate and explain themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack

from costmodel.architectures.base import Architecture
from costmodel.cost.costs import Costs
from costmodel.cost.quantities import ALL, FLOP_PARTS, TIMED
from costmodel.cost.rows import Row
from costmodel.display.answer import Data
from costmodel.documents.arguments import called, typed
from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.layers.base import Layer
from costmodel.training.keywords import GivenSettings
from costmodel.training.settings import Settings
from costmodel.training.signatures import takes_settings
from costmodel.training.values import OneStack

if TYPE_CHECKING:
    import sympy
    from matplotlib.figure import Figure

    from costmodel.cost.budget import Fit
    from costmodel.cost.explanation import Explanation
    from costmodel.hardware.catalogue import MachineLike
    from costmodel.hardware.cluster import ClusterLike, LinkLike
    from costmodel.performance.time import Time


@typed
class Prediction(Costs, Data):
    """What `model` costs under `settings`. Made by `predict`; every number is computed when first asked for.

    Example:
        >>> import costmodel as cm
        >>> p = cm.predict("gpt2-small", batch=32, seq=512)
        >>> p.params, p.flops.forward, p.memory.peak  # parameters, FLOPs, bytes
        (124439808, 4357135269888, 32328559628)
        >>> bool(p.fits("24 GiB"))
        False

    """

    BELOW = ALL

    @cached_property
    def time(self) -> Time:
        """How long a step takes on the machine of the setting `on`. Raises SettingError if there is none."""
        if self.settings.on is None:
            raise SettingError("time is of a machine: give one, such as on='h100-sxm'")
        machine: Any = self.settings.on
        return self.on(machine, stack=self.settings.stack)

    @property
    def seconds(self) -> float:
        """Of one step on the machine of the setting `on`; `time` has its range. Raises SettingError without one."""
        return self.time.seconds

    @called
    def value(self, quantity: str) -> Any:
        """A quantity by name, such as "memory.activations" [bytes], or of the machine of the setting `on` "seconds".

        Raises UnknownNameError, SettingError.
        """
        if not isinstance(quantity, str) or quantity not in ALL:
            raise unknown("quantity", quantity, ALL)
        return self.time.value(quantity) if quantity in TIMED else self.number(quantity)

    def __getitem__(self, quantity: Any) -> Any:
        """No items: raises SettingError, which names the attribute."""
        known = quantity if isinstance(quantity, str) and quantity in ALL else "memory.peak"
        ways = f"p.{known}, or p.value({known!r})"
        raise SettingError(f"a prediction has attributes, no items such as {shown(quantity)}: use {ways}")

    @called
    def formula(self, quantity: str) -> sympy.Expr:
        """A quantity as a sympy expression in the model's own letters. Raises UnknownNameError."""
        return self.explain(quantity).formula

    @called
    def explain(self, quantity: str) -> Explanation:
        """A quantity's formula, letters, numbers put in, value and sources. Raises UnknownNameError."""
        from costmodel.cost.explanation import explain

        return explain(self, quantity)

    @called
    def fits(self, memory: MachineLike | float | None = None, *, reserve: str | int | None = None) -> Fit:
        """Whether the peak fits `memory`, such as "24 GiB", with `reserve` left for what is not modelled.

        memory: an amount, or a machine such as "h100-sxm", whose own it is (default: that of the setting `on`).
        reserve: for the driver's context, library workspaces and fragmentation (default: of a machine what its driver
        takes at most, see `driver`; of an amount nothing). Raises SettingError, also for a number so small that GiB
        were meant.
        """
        from costmodel.cost.budget import fit

        return fit(self, memory, reserve)

    @called
    def on(
        self,
        machine: ClusterLike | MachineLike,
        *,
        stack: OneStack = "eager",
        tier: Literal["ceiling", "typical", "calibrated"] | None = None,
        allow_tf32: bool | None = None,
        channels_last: bool = False,
        network: LinkLike = None,
    ) -> Time:
        """How long one step takes on a machine, why, and how far that may be off.

        Args:
            machine: a ready machine's name such as "h100-sxm", a file of one or of a calibration, or a `Machine`; or a
                cluster likewise, such as "dgx-h100".
            stack: how kernels are started and which become one: "eager", "compiled", "cuda-graphs", or a
                `Stack`, its fields or a file of them.
            tier: "ceiling" (the datasheet alone: a lower bound), "typical" (what kernels attain on machines of its
                family) or "calibrated" (with what was measured on it); None: calibrated where `machine` is a
                calibration, else typical.
            allow_tf32: whether products of fp32 may be rounded to tf32; None: convolutions alone, as in PyTorch.
            channels_last: whether convolutions have channels last in memory.
            network: of one adapter between nodes, such as "400 Gb/s", of a layout of several devices.

        Raises:
            CostModelError: what is wrong with the question, in one line.

        """
        from costmodel.performance.time import time_on

        return time_on(
            self,
            machine,
            stack=stack,
            tier=tier,  # type: ignore[arg-type]
            allow_tf32=allow_tf32,
            channels_last=channels_last,
            network=network,
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
            "collectives": {"bytes": self.collectives.bytes, "wire_bytes": self.collectives.wire_bytes},
            **({} if self.rank is self else {"ranks": self.ranks.rows(), "calls": self.collectives.rows()}),
            "layers": [row.to_dict() for row in self.layers],
        }

    @classmethod
    @called
    def from_dict(cls, data: Any) -> Prediction:
        """The prediction that `to_dict` described, worked out again.

        Raises CostModelError if the data describes no prediction, or if its numbers are not what its model costs.
        """
        import json

        from costmodel.hardware.cluster import machine_or_cluster
        from costmodel.importers.files import as_json, build

        if not isinstance(data, dict) or not isinstance(data.get("settings"), dict) or "model" not in data:
            raise CostModelError("this is not a prediction: it has no model and settings")
        prediction = cls(build(data["model"], "prediction"), Settings.from_dict(data["settings"], machine_or_cluster))
        actual, stored = json.loads(prediction.to_json()), as_json(data, "a prediction")
        for field in {**actual, **stored}:
            if field not in actual or stored.get(field) != actual[field]:
                raise CostModelError(
                    f"the prediction's {shown(field)} is not what its model costs; it was changed or is of another "
                    "version"
                )
        return prediction

    @classmethod
    @called
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

        return text(self, seconds=self._seconds_in_words())

    def _seconds_in_words(self) -> str:
        """How long a step takes on the machine of the setting `on`, with its range; "" without one."""
        if self.settings.on is None:
            return ""
        from costmodel.display.units import show_seconds

        time, what = self.time, "step" if self.settings.training else "pass"
        return f"{show_seconds(time.seconds)} a {what} ({show_seconds(time.low)} to {show_seconds(time.high)})"

    @typed
    def report(self, *, depth: int | None = None, shapes: bool = False) -> str:
        """The report as text, with layers summed up by part down to `depth` levels, and shapes of outputs if asked.

        Raises SettingError for a depth that is no whole number from 1.
        """
        from costmodel.cost.report import text

        return text(self, depth, shapes)

    @typed
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
            saved = [{"activations": row.activation_bytes, "casts": row.cast_bytes} for row in parts]
            panels.append(memory_panel(saved, "kept for backward"))
        names = [f"{row.name} ×{row.repeat}" if row.repeat > 1 else row.name for row in parts]
        title = heading(self.model, self.settings)
        return save(bars(names, panels, title, DARK if dark else LIGHT, ratios=False), path)

    @typed
    def by_part(self, depth: int = 1) -> list[Row]:
        """A row for each part of the model, `depth` levels down: rows of layers within it added up, in order.

        A repeated block is one part. Raises SettingError for a depth that is no whole number from 1.
        """
        from costmodel.cost.report import parts_of

        return parts_of(self.layers, depth)

    def _repr_html_(self) -> str:
        from costmodel.cost.report import html

        return html(self)


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
    return Prediction.of(model, input, **settings)
