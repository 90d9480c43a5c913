"""Several models or settings side by side: values, differences and ratios to the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.analysis.closed_forms import varied
from costmodel.analysis.match import Match, nearest
from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.sweep.axes import label_of, own_fields, varied_names
from costmodel.architectures.base import Architecture
from costmodel.architectures.trace import applicable
from costmodel.cost.quantities import QUANTITIES, plain
from costmodel.cost.question import run_of
from costmodel.cost.report import headline
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table, TextRow, printable
from costmodel.display.units import show_seconds, shower
from costmodel.documents.arguments import typed
from costmodel.documents.description import unknown_field
from costmodel.errors import SettingError, shown, unknown
from costmodel.importers.zoo import load
from costmodel.training.settings import SETTING_NAMES, Settings
from costmodel.training.signatures import takes_settings
from costmodel.training.stacks import Stack

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

    from costmodel.training.keywords import SettingsAndFields

MOST = 64
"""More than this side by side is a sweep."""
FIRST = ("params", "flops.total", "memory.activations", "memory.peak")
"""Named first of what is the same in all."""
NAMED = 4
"""Models that a picture's title names."""


@dataclass(frozen=True, repr=False)
class Comparison(Answer):
    """Predictions side by side, by label; the first is what the others are compared with.

    matches: how those that were sized to the first were sized, by label. quantities: of the table. labels:
    names of the columns. predictions: one for each.

    Example:
        >>> import costmodel as cm
        >>> found = cm.compare("gpt2-small", "gpt2-medium", batch=1, seq=512)
        >>> found.difference("gpt2-medium", "params")
        230383360

    """

    labels: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    matches: dict[str, Match]
    quantities: tuple[str, ...] = QUANTITIES

    @typed
    def value(self, label: str, quantity: str) -> Any:
        """A quantity of one of them. Raises UnknownNameError."""
        if label not in self.labels:
            raise unknown("label", label, self.labels)
        return plain(self.predictions[self.labels.index(label)].value(quantity))

    @typed
    def difference(self, label: str, quantity: str) -> Any:
        """By how much it is above the first."""
        return self.value(label, quantity) - self.value(self.labels[0], quantity)

    @typed
    def ratio(self, label: str, quantity: str) -> float | None:
        """How many times the first's it is; None where the first has none."""
        first = self.value(self.labels[0], quantity)
        return self.value(label, quantity) / first if first else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data: for each, what it is and every quantity with its difference and ratio to the first."""
        return {
            "labels": list(self.labels),
            "entries": [
                {
                    "label": label,
                    "question": headline(p),
                    "match": self.matches[label].to_dict() if label in self.matches else None,
                    "quantities": {q: self._figures(label, q) for q in self.quantities},
                }
                for label, p in zip(self.labels, self.predictions, strict=True)
            ],
        }

    def _figures(self, label: str, quantity: str) -> dict[str, Any]:
        return {
            "value": self.value(label, quantity),
            "difference": self.difference(label, quantity),
            "ratio": self.ratio(label, quantity),
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each label and quantity: value, difference, ratio."""
        return [{"label": x, "quantity": q, **self._figures(x, q)} for x in self.labels for q in self.quantities]

    @typed
    def plot(self, path: str | PathLike[str] | None = None, *, dark: bool = False) -> Figure:
        """Bars of parameters, FLOPs, memory at the peak and on machines seconds; what is the same is said above them.

        This takes the extra `plot`.

        Args:
            path: where to write it too, such as "bars.png".
            dark: on black instead of white.

        Raises:
            CostModelError: no matplotlib, or `path` cannot be written.

        Example:
            >>> import costmodel as cm
            >>> figure = cm.compare("mlp-mnist", optimizer=["sgd", "adamw"]).plot()
            >>> [axes.get_title("left") for axes in figure.axes]  # parameters and FLOPs are the same
            ['memory at the peak']

        """
        from costmodel.display.bars import PASSES, bars, flops_panel, memory_panel, params_panel, seconds_panel
        from costmodel.display.figures import DARK, LIGHT, save

        columns = self.predictions
        timed = all(p.settings.on is not None for p in columns)
        times = [p.time for p in columns] if timed else []
        panels = [
            *(
                [seconds_panel([t.seconds for t in times], [(t.low, t.high) for t in times], "time of a step")]
                if timed
                else []
            ),
            params_panel([p.params for p in columns]),
            flops_panel([{part: getattr(p.flops, part) for part in PASSES} for p in columns], "a step"),
            memory_panel([p.timeline.peak_step.alive._asdict() for p in columns], "memory at the peak"),
        ]
        names = [f"{label}{own}" for label, own in zip(self.labels, self._own, strict=True)]
        return save(bars(names, panels, self._title(), DARK if dark else LIGHT, ratios=True), path)

    @cached_property
    def _runs(self) -> list[dict[str, str]]:
        """How each is run, in words by setting."""
        return [run_of(p.model, p.settings) for p in self.predictions]

    @property
    def _own(self) -> list[str]:
        """What is not the same in all and no setting that was given says, such as a model's own sequence length."""
        settings = [p.settings for p in self.predictions]
        own = [
            name
            for name in dict.fromkeys(name for run in self._runs for name in run)
            if len({run.get(name) for run in self._runs}) > 1 and len({repr(getattr(s, name)) for s in settings}) == 1
        ]
        texts = [", ".join(run[name] for name in own if name in run) for run in self._runs]
        return [f"\n{text}" if text else "" for text in texts]

    def _title(self) -> str:
        """The models, and how all of them are run."""
        models = list(dict.fromkeys(p.model.title for p in self.predictions))
        first, *others = self._runs
        how = ", ".join(words for name, words in first.items() if all(run.get(name) == words for run in others))
        stacks = {Stack.of(p.settings.stack).name for p in self.predictions if p.settings.on is not None}
        how += f", stack {stacks.pop()}" if len(stacks) == 1 and "stack" not in first else ""
        return printable(f"{', '.join(models[:NAMED])}{' ...' if len(models) > NAMED else ''}: {how}")

    def tables(self) -> list[Table]:
        """Values with ratios, and differences."""
        first, *others = self.labels
        every = self.quantities[: len(QUANTITIES)] == QUANTITIES
        quantities = [q for q in self.quantities if not every or (self._says_more(q) and not self._is_alike(q))]
        values: list[TextRow] = [
            (q, self._cell(first, q), *(self._cell(x, q, ratio=True) for x in others)) for q in quantities
        ]
        if "seconds" in quantities:
            at = quantities.index("seconds") + 1
            values.insert(at, ("range of seconds", *(self._range(p) for p in self.predictions)))
        changes: list[TextRow] = [(q, *(self._change(x, q) for x in others)) for q in quantities]
        changes = [cells for cells in changes if any(cell != "=" for cell in cells[1:])]
        tables = [Table(("", *self.labels), values)] if values else []
        if changes:
            tables.append(Table((f"difference to {first}", *others), changes))
        return tables

    def _says_more(self, quantity: str) -> bool:
        """Whether a quantity is not zero for all, nor for all the same as the one that it is a variation of."""
        plain = "params" if quantity.endswith("_params") else quantity.replace("hardware", "total")
        return any(self.value(x, quantity) for x in self.labels) and (
            plain == quantity or any(self.value(x, quantity) != self.value(x, plain) for x in self.labels)
        )

    def _is_alike(self, quantity: str) -> bool:
        """Whether a quantity is the same in all."""
        return len({self.value(x, quantity) for x in self.labels}) == 1

    def _range(self, p: Prediction) -> str:
        """Of seconds; as wide as a cell with a ratio."""
        return f"{show_seconds(p.time.low)} to {show_seconds(p.time.high)}"

    def _cell(self, label: str, quantity: str, *, ratio: bool = False) -> str:
        cell = shower(quantity)(self.value(label, quantity))
        if not ratio:
            return cell
        times = self.ratio(label, quantity)
        return f"{cell}  {_times(times):>8}"

    def _change(self, label: str, quantity: str) -> str:
        change = self.difference(label, quantity)
        return f"{'-' if change < 0 else '+'}{shower(quantity)(abs(change))}" if change else "="

    def _heads(self) -> list[str]:
        lines = []
        for label, p in zip(self.labels, self.predictions, strict=True):
            lines.append(f"{label}: {headline(p)}" if not headline(p).startswith(f"{label}:") else headline(p))
            if label in self.matches:
                lines.append(f"  sized to {self.labels[0]}: {self.matches[label]}")
        return lines

    def sheet(self) -> Sheet:
        """The questions, values with ratios, and differences; what is the same in all last, in a line."""
        every = self.quantities[: len(QUANTITIES)] == QUANTITIES
        alike = [q for q in self.quantities if every and self._says_more(q) and self._is_alike(q)]
        first = [q for q in FIRST if q in alike] or alike[:1]
        more = f", and {len(alike) - len(first)} more quantities" if len(alike) > len(first) else ""
        same = ", ".join(f"{q} {self._cell(self.labels[0], q)}" for q in first)
        return Sheet(self._heads(), self.tables(), notes=[f"the same in all: {same}{more}"] if alike else [])


@takes_settings(several=True, and_fields=True)
@typed
def compare(
    *questions: Architecture | str | Prediction,
    at_equal: str | None = None,
    by: str = "width",
    quantities: str | Sequence[str] | None = None,
    **settings: Unpack[SettingsAndFields],
) -> Comparison:
    """Several models, predictions or settings side by side, the first being what the others are compared with.

    A list of values of a setting stands for a column each (a tuple is one value), as in
    ``compare("gpt2-small", optimizer=["sgd", "adamw"])``; so does one of a field, as in ``layers=[12, 24]``. What only
    some of the models have, such as seq or attention, is that of those.

    Args:
        *questions: models as `predict` takes them, or predictions, which keep their own settings.
        at_equal: a quantity, such as "params" or "flops.total": all but the first are sized to come nearest.
        by: the size that is varied for that: "width" or "layers".
        quantities: those to show, such as ["params", "memory.peak"] (default: all).
        **settings: all that `predict` takes, and fields of the models.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.compare("gpt2-small", optimizer=["sgd", "adamw"], batch=8, seq=512)
        >>> found.ratio("adamw", "memory.optimizer") is None  # SGD keeps nothing
        True
        >>> found.value("adamw", "memory.optimizer")  # bytes
        995518464

    """
    if not questions:
        raise SettingError("compare takes at least one model: give one, with a list of values of a setting, or several")
    if len(questions) > MOST:
        raise SettingError(f"compare takes 2 to {MOST} models or settings, not {len(questions)}")
    over = settings.pop("over", None)
    loaded = [q if isinstance(q, Prediction) else load(q, over=over) for q in questions]
    models = [q for q in loaded if isinstance(q, Architecture)]
    if settings and not models:
        raise SettingError(f"{next(iter(settings))} is for models: predictions have their own settings")
    columns = [p for q in loaded for p in ([q] if isinstance(q, Prediction) else _predictions(q, models, settings))]
    if len(columns) == 1:
        raise SettingError(
            f"compare takes 2 to {MOST} models or settings, not 1: name another, or several values, as in batch=[1, 8]"
        )
    if not 2 <= len(columns) <= MOST:
        raise SettingError(f"compare takes 2 to {MOST} models or settings, not {len(columns)}")
    matches: dict[int, Match] = {}
    if at_equal is not None:
        target = plain(columns[0].value(at_equal))
        matches = {n: nearest(p, at_equal, target, by) for n, p in enumerate(columns) if n}
        columns = [matches[n].prediction if n in matches else p for n, p in enumerate(columns)]
    labels = _labels(columns)
    timed = quantities is None and all(p.settings.on is not None for p in columns)
    usual = (*QUANTITIES, "seconds") if timed else QUANTITIES
    names = (quantities,) if isinstance(quantities, str) else usual if quantities is None else quantities
    if not isinstance(names, Iterable):
        raise SettingError(f"quantities={shown(quantities)} is no list of quantities: give such as ['memory.peak']")
    names = tuple(names)
    if not names:
        raise SettingError("quantities is empty: give at least one, such as memory.peak")
    for quantity in names:
        columns[0].value(quantity)
    return Comparison(labels, tuple(columns), {labels[n]: match for n, match in matches.items()}, names)


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"×{ratio:,.0f}" if ratio >= 1000 else f"×{ratio:.3g}"


def _predictions(model: Architecture, models: Sequence[Architecture], settings: Mapping[str, Any]) -> list[Prediction]:
    """One for each combination of the values that lists hold."""
    fields = dict.fromkeys(name for m in models for name in varied_names(m))
    for name in settings:
        if name not in SETTING_NAMES and name not in fields:
            known = [*(name for name in SETTING_NAMES if any(name in applicable(m) for m in models)), *fields]
            raise unknown_field("setting or field of the models", name, map(type, models), known)
    own = {name: value for name, value in settings.items() if not _of_others(name, model, models)}
    choices = []
    for name, value in own.items():
        if isinstance(value, list | range) and not value:
            raise SettingError(f"{name}={shown(value)} is empty: give at least one value")
        choices.append(value if isinstance(value, list | range) else [value])
    count = 1
    for values in choices:  # counted before any is worked out
        count *= len(values[: MOST + 1])
    if count > MOST:
        raise SettingError(f"compare takes 2 to {MOST} models or settings, and these are more: use fewer, or a sweep")
    return [_prediction(model, dict(zip(own, values, strict=True))) for values in product(*choices)]


def _prediction(model: Architecture, values: dict[str, Any]) -> Prediction:
    """The prediction with these values of fields of the model and of settings."""
    fields = {name: value for name, value in values.items() if name in varied_names(model)}
    return predict(varied(model, fields), **{name: value for name, value in values.items() if name not in fields})


def _of_others(setting: str, model: Architecture, models: Sequence[Architecture]) -> bool:
    """Whether a setting is one that this model does not have and another does: to be varied only if none has it."""
    owners = [other for other in models if setting in applicable(other) or setting in own_fields(other)]
    owners = owners or [other for other in models if setting in other.DERIVED]
    return bool(owners) and all(owner is not model for owner in owners)


def _labels(predictions: Sequence[Prediction]) -> tuple[str, ...]:
    """Each one's model, where they differ, and the settings that it has otherwise than others of that model."""
    titles = [printable(p.model.title) for p in predictions]
    labels = []
    for p, title in zip(predictions, titles, strict=True):
        peers = [q for q, other in zip(predictions, titles, strict=True) if other == title]
        differing = [f.name for f in fields(Settings) if len({repr(getattr(q.settings, f.name)) for q in peers}) > 1]
        own = " ".join(
            [
                *(_setting_text(name, getattr(p.settings, name)) for name in differing),
                *(f"{name} {value}" for name, value in _differing_fields(p, peers)),
            ]
        )
        labels.append(" ".join(part for part in (title if len(set(titles)) > 1 or not own else "", own) if part))
    return tuple(
        f"{label} #{labels[:n].count(label) + 1}" if labels.count(label) > 1 else label
        for n, label in enumerate(labels)
    )


def _differing_fields(p: Prediction, peers: Sequence[Prediction]) -> list[tuple[str, Any]]:
    """Fields in which models of one name are not alike, and have few words for it."""
    if any(type(q.model) is not type(p.model) for q in peers):
        return []
    leaves = [name for name in own_fields(p.model) if name not in p.model.parts()]
    names = [name for name in leaves if len({repr(q.model.value(name)) for q in peers}) > 1]
    values = {name: p.model.value(name) for name in names}
    return [(name, value) for name, value in values.items() if len(str(value)) <= 24]


def _setting_text(name: str, value: Any) -> str:
    text = label_of(value) if name in ("optimizer", "precision", "checkpoint") else str(value)
    return text if name in ("optimizer", "precision", "mode") else f"{name} {text}"
