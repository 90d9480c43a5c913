"""Pictures of a sweep: along one axis what a quantity is made of, over two axes colours with what fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from costmodel.cost.prediction import predict
from costmodel.display.charts import line, stacked
from costmodel.display.figures import DARK, LIGHT
from costmodel.display.heatmaps import Heat, heatmap
from costmodel.display.units import Budget, read_budget, show_bytes
from costmodel.errors import CostModelError, SettingError, unknown
from costmodel.training.settings import SETTING_NAMES

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

MOST_CELLS = 500
"""Along an axis; of more, every so manieth is drawn."""
MOST_STACKED = 64


def picture(sweep: xarray.Dataset, quantity: str | None, memory: Any, reserve: Any, dark: bool) -> Figure:
    """See `Sweep.plot`."""
    theme = DARK if dark else LIGHT
    names = [str(name) for name in sweep.data_vars if name != "reason"]
    chosen = quantity or ("memory.peak" if "memory.peak" in names else names[0])
    if chosen not in names:
        raise unknown("quantity of this sweep", chosen, names)
    room = _room(memory, reserve, names)
    cut = _cut(sweep)
    if len(cut.dims) == 2:
        return heatmap(_heat(cut, chosen, room), _title(cut, chosen), theme)
    title, (axis,) = _title(cut, chosen), map(str, cut.dims)
    found = predictions_of(thinned(cut)) if chosen == "memory.peak" else {}
    if found:
        return stacked(axis, found, room, title, theme)
    return line(axis, cut[axis].values.tolist(), cut[chosen].values.astype(float), chosen, room, title, theme)


def _room(memory: Any, reserve: Any, names: list[str]) -> Budget | None:
    """The budget less the reserve. Raises SettingError, also if the sweep has no peaks to hold against it."""
    if memory is None:
        if reserve:
            raise SettingError("reserve is taken off memory: give memory too, such as memory='24 GiB'")
        return None
    if "memory.peak" not in names:
        raise SettingError("what fits memory is told by memory.peak, which this sweep does not have: sweep it too")
    budget = read_budget(memory)
    if not reserve:
        return Budget(budget.bytes, show_bytes(budget.bytes))
    spared = read_budget(reserve, "reserve").bytes
    return Budget(budget.bytes - spared, f"{show_bytes(budget.bytes)} less {show_bytes(spared)}")


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


def _heat(cut: xarray.Dataset, quantity: str, room: Budget | None) -> Heat:
    """Over the longer axis across, if one is longer; texts up."""
    y, x = sorted(map(str, [*cut.dims][::-1]), key=lambda dim: (cut[dim].dtype.kind != "O", cut.sizes[dim]))
    values = cut[quantity].transpose(y, x).values.astype(float)
    fits = None if room is None else cut["memory.peak"].transpose(y, x).values <= room.bytes
    labels = cut[y].values.tolist(), cut[x].values.tolist()
    return Heat(quantity, (y, x), labels, values, fits, room.reading if room else "")


def thinned(cut: xarray.Dataset) -> xarray.Dataset:
    """At most so many cells as are worth a prediction each, with the last."""
    ((axis, count),) = cut.sizes.items()
    places = sorted({(count - 1) * n // (MOST_STACKED - 1) for n in range(MOST_STACKED)})
    return cut.isel({axis: places})


def _title(cut: xarray.Dataset, quantity: str) -> str:
    """The model, the quantity, and all that is the same in every cell."""
    held = json.loads(cut.attrs.get("settings", "{}"))
    held |= {str(name): cut[name].item() for name in cut.coords if name not in cut.dims}
    said = ", ".join(f"{name} {value}" for name, value in held.items())
    return f"{cut.attrs.get('model', '')}: {quantity}" + (f" ({said})" if said else "")


def predictions_of(cut: xarray.Dataset) -> Mapping[Any, Mapping[str, int]]:
    """Bytes at the peak by category along the one axis, by label; nothing where the sweep does not say its question."""
    from costmodel.analysis.closed_forms import varied
    from costmodel.importers.files import build

    try:
        asked = json.loads(cut.attrs["question"])
        model, settings, changed = build(asked["model"], "sweep"), asked["settings"], asked["changed"]
    except (KeyError, TypeError, ValueError):
        return {}
    held = {str(name): cut[name].item() for name in cut.coords if name not in cut.dims}
    (axis,) = map(str, cut.dims)
    found: dict[Any, dict[str, int]] = {}
    for value in cut[axis].values.tolist():
        point = {name: asked["values"].get(name, {}).get(str(at), at) for name, at in {**held, axis: value}.items()}
        fields = changed | {name: at for name, at in point.items() if name not in SETTING_NAMES}
        own = settings | {name: at for name, at in point.items() if name not in fields}
        try:
            found[value] = predict(varied(model, fields), **own).timeline.peak_step.alive._asdict()
        except CostModelError:
            continue
    return found
