"""Pictures of a sweep: along one axis what a quantity is made of, over two axes lines or colours with what fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.search import PeakMemory, peaks_along
from costmodel.cost.quantities import TIMED
from costmodel.cost.question import heading, question, timed_question
from costmodel.display.figures import DARK, LIGHT, Budgets
from costmodel.display.heatmaps import Heat, heatmap
from costmodel.display.lines import FEW, MOST_LINES, line, numbers, several, stacked
from costmodel.display.units import read_reserve
from costmodel.errors import CostModelError, SettingError, unknown
from costmodel.training.settings import SETTING_NAMES

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

MOST_CELLS = 500
"""Along an axis; of more, every so manieth is drawn."""


def picture(sweep: xarray.Dataset, quantity: str | None, memory: Any, reserve: Any, dark: bool) -> Figure:
    """See `Sweep.plot`."""
    theme = DARK if dark else LIGHT
    names = [str(name) for name in sweep.data_vars if name != "reason"]
    chosen = quantity or ("memory.peak" if "memory.peak" in names else names[0])
    if chosen not in names:
        raise unknown("quantity of this sweep", chosen, names)
    budgets = _budgets(memory, reserve, names)
    cut = _cut(sweep)
    of = SweepQuestion(cut)
    title = of.timed_title if chosen in TIMED else of.title
    if len(cut.dims) == 2:
        return _over_two(cut, chosen, budgets, title, theme)
    (axis,) = map(str, cut.dims)
    if chosen == "memory.peak" and (peaks := of.peaks(axis)):
        return stacked(axis, peaks, budgets, of.title, theme)
    own = budgets if chosen == "memory.peak" else Budgets()
    return line(axis, cut[axis].values.tolist(), cut[chosen].values.astype(float), chosen, own, title, theme)


def _budgets(memory: Any, reserve: Any, names: list[str]) -> Budgets:
    """Budgets less the reserve. Raises SettingError, also if the sweep has no peaks to hold against one asked for."""
    if memory is None:
        if reserve:
            raise SettingError("reserve is taken off memory: give memory too, such as memory='24 GiB'")
        return Budgets.of(None) if "memory.peak" in names else Budgets()
    if "memory.peak" not in names:
        raise SettingError("what fits memory is told by memory.peak, which this sweep does not have: sweep it too")
    return Budgets.of(memory, read_reserve(reserve))


def _cut(sweep: xarray.Dataset) -> xarray.Dataset:
    """Without axes of one value, and with no more cells than are drawn. Raises SettingError if axes are left over."""
    long = [str(dim) for dim in sweep.dims if sweep.sizes[dim] > 1] or [str(dim) for dim in sweep.dims][:1]
    if not long:
        raise SettingError("a picture has one or two axes, and this sweep has none: sweep several values of a size")
    if len(long) > 2:
        value = sweep[long[-1]].values.tolist()[0]
        raise SettingError(
            f"a picture has one or two axes, and this sweep has {len(long)} ({', '.join(long)}): choose one value of "
            f"all others, as in sweep.sel({long[-1]}={value!r}).plot()"
        )
    places = {dim: slice(None, None, -(-sweep.sizes[dim] // MOST_CELLS)) if dim in long else 0 for dim in sweep.dims}
    return sweep.isel(places).compute()


def _over_two(cut: xarray.Dataset, quantity: str, budgets: Budgets, title: str, theme: Any) -> Figure:
    """Lines for each of a few names or of two numbers, else colours."""
    y, x = sorted(map(str, cut.dims), key=lambda dim: _rank(cut, dim), reverse=True)
    across, up = cut[x].values.tolist(), cut[y].values.tolist()
    if few(up) and numbers(across) and len(across) > FEW and across == sorted(across):
        values = cut[quantity].transpose(y, x).values.astype(float)
        own = budgets if quantity == "memory.peak" else Budgets()
        return several(x, across, dict(zip(up, values, strict=True)), quantity, y, own, title, theme)
    return heatmap(_heat(cut, quantity, (y, x), budgets), title, theme)


def few(values: Sequence[Any]) -> bool:
    """Whether values are a few names, or two numbers: each is a line, as a slab of colours would say nothing more."""
    return 2 <= len(values) <= (2 if numbers(values) else MOST_LINES)


def _rank(cut: xarray.Dataset, dim: str) -> tuple[Any, ...]:
    """Across goes the axis that comes first: many numbers before few and names, then as settings are listed.

    It depends on what the axes are, not on how they were given, so that figures can be held side by side.
    """
    values = cut[dim].values.tolist()
    place = SETTING_NAMES.index(dim) if dim in SETTING_NAMES else len(SETTING_NAMES)
    return not numbers(values), few(values), place, dim


def _heat(cut: xarray.Dataset, quantity: str, names: tuple[str, str], budgets: Budgets) -> Heat:
    """Values over two axes, up and across, and what fits."""
    y, x = names
    values = cut[quantity].transpose(y, x).values.astype(float)
    peaks = cut["memory.peak"].transpose(y, x).values.astype(float) if "memory.peak" in cut else None
    labels = cut[y].values.tolist(), cut[x].values.tolist()
    edges = budgets if budgets.explicit or quantity == "memory.peak" else Budgets()
    return Heat(quantity, names, labels, values, peaks, edges)


class SweepQuestion:
    """The question of a sweep, as far as its attributes tell. fixed: labels of the axes of which it has one value."""

    def __init__(self, cut: xarray.Dataset) -> None:
        self.cut = cut
        self.fixed = {str(name): cut[name].item() for name in cut.coords if name not in cut.dims}

    @cached_property
    def _attributes(self) -> dict[str, Any] | None:
        """Model, settings, fields that were changed, and what labels stand for; None if there are none."""
        from costmodel.importers.files import build

        try:
            attributes = json.loads(self.cut.attrs["question"])
            return {**attributes, "model": build(attributes["model"], "sweep")}
        except (KeyError, TypeError, ValueError, CostModelError):
            return None

    def at(self, point: Mapping[str, Any]) -> Prediction:
        """The prediction at labels of axes. Raises CostModelError."""
        from costmodel.analysis.closed_forms import varied

        attributes = self._attributes
        assert attributes is not None
        labels = {**self.fixed, **point}
        values = {name: attributes["values"].get(name, {}).get(str(label), label) for name, label in labels.items()}
        fields = attributes["changed"] | {name: value for name, value in values.items() if name not in SETTING_NAMES}
        settings = attributes["settings"] | {name: value for name, value in values.items() if name not in fields}
        return predict(varied(attributes["model"], fields), **settings)

    @property
    def title(self) -> str:
        """The model and how it is run, without what varies."""
        return self._line(heading)

    @property
    def timed_title(self) -> str:
        """The same with the machine, and how kernels are started."""
        return self._line(timed_question)

    @property
    def first_line(self) -> str:
        """The same as the first line of an answer."""
        return self._line(timed_question if any(name in self.cut for name in TIMED) else question)

    def _line(self, words: Callable[..., str]) -> str:
        axes = [str(dim) for dim in self.cut.dims]
        fields = "".join(f", {name} {value}" for name, value in self.fixed.items() if name not in SETTING_NAMES)
        for place in (0, -1):
            try:
                if self._attributes is not None:
                    first = self.at({axis: self.cut[axis].values.tolist()[place] for axis in axes})
                    return words(first.model, first.settings, axes) + fields
            except CostModelError:
                continue
        known = {"batch": 1, "precision": "fp32", **json.loads(self.cut.attrs.get("settings", "{}")), **self.fixed}
        settings = ", ".join(f"{name} {value}" for name, value in known.items() if name not in axes)
        return f"{self.cut.attrs.get('model', '')}: {settings}"

    def peaks(self, axis: str) -> dict[Any, PeakMemory]:
        """Bytes at the peak by category along the one axis, by label; nothing where the sweep tells no question."""
        if self._attributes is None:
            return {}
        return peaks_along(self.cut[axis].values.tolist(), lambda value: self.at({axis: value}))
