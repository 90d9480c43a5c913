"""What a page can set: sizes with the stops of their sliders, and choices of settings and fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

from costmodel.analysis.closed_forms import ClosedForms, open_sizes, varied
from costmodel.analysis.predict import predict
from costmodel.analysis.sweep.axes import Axis, label_of, read_axes
from costmodel.architectures.base import Architecture, BatchShape
from costmodel.architectures.cnn import CNN
from costmodel.architectures.trace import OF_TRAINING, applicable, batch_shape
from costmodel.cost.recipes import SIDES, SIZES
from costmodel.errors import CostModelError, SettingError, SpecError, shown
from costmodel.explorer.regimes import OF_DECODING, SliderSize
from costmodel.importers.files import settings_of
from costmodel.symbolic.guards import Branch
from costmodel.training.layout import DEGREES
from costmodel.training.settings import SETTING_NAMES, SETTINGS

CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": ("train", "inference", "prefill", "decode"),
    "optimizer": ("adamw", "sgd"),
    "precision": ("fp32", "bf16-autocast", "bf16"),
    "checkpoint": ("none", "selective", "block"),
    "attention": ("eager", "flash"),
}
"""What a page offers unless other values are given."""
STARTS = ("batch", "seq", "target_seq", "image")
"""Settings that say where a slider starts, if one value is given."""
OF_A_STEP = (*OF_TRAINING, "loss_chunks", "update")
"""Choices that an inference does not have."""
OF_LAYOUTS: dict[str, Any] = {
    "mode": "train",
    "optimizer": "adamw",
    "precision": "bf16",
    "checkpoint": "none",
    "attention": "flash",
}
"""What a page with degrees of a layout offers unless other values are given, as degrees have many more regimes."""
AXES = ("tp", "ep", "pp", "cp", "fsdp", "dp")
"""Axes of a layout, each with a slider for its degree; cp beside pp only if it is asked for."""
MOST_DEGREES = {"tp": 8, "cp": 4, "ep": 8, "pp": 4}
"""Of an axis, unless other degrees are given; samples are split over all devices."""
BATCH = 8
"""Where a page starts unless another batch is given."""
MOST_STOPS = 64
"""Of a slider; a longer range has so many of its values as stops, and its field takes them all."""
MOST_COMBINATIONS = 512
"""Of choices: a page of more is refused."""
REACH = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""Eighths of a size's own value at which its slider stops."""
POWERS = tuple(sorted({m * 2**n for n in range(40) for m in (1, 3)}))


class Choice(NamedTuple):
    """A setting or field with the values that a page offers, and what each is called."""

    name: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    meaning: str


class Controls(NamedTuple):
    """What a page of a model can set, and what holds for all of it.

    model: with the fields that are fixed to other values than its own. settings: those that are fixed. fixed: sizes
    that are not offered unless asked for, since each of their values has formulas of its own.
    """

    model: Architecture
    sizes: tuple[SliderSize, ...]
    choices: tuple[Choice, ...]
    settings: Mapping[str, Any]
    fixed: tuple[str, ...] = ()

    def combinations(self) -> list[dict[str, Any]]:
        """Every choice of values but the optimizer's, which formulas have in common; an inference has no others."""
        choices = [choice for choice in self.choices if choice.name != "optimizer"]
        distinct: list[dict[str, Any]] = []
        for values in product(*(choice.values for choice in choices)):
            combination = dict(zip((choice.name for choice in choices), values, strict=True))
            if self.mode(combination) != "train":
                combination = {name: value for name, value in combination.items() if name not in OF_A_STEP}
            if combination not in distinct:
                distinct.append(combination)
        return distinct

    def mode(self, picked: Mapping[str, Any]) -> str:
        """Of a combination: "train" or "inference"."""
        return picked.get("mode", self.settings.get("mode", "train"))

    @property
    def staged(self) -> bool:
        """Whether there are pipelines on the page."""
        return self.settings.get("pp", 1) > 1 or any(choice.name == "pp" for choice in self.choices)

    def label(self, name: str, value: Any) -> str:
        """What a choice's value is called."""
        choice = next(choice for choice in self.choices if choice.name == name)
        return choice.labels[choice.values.index(value)]


def controls_of(model: Architecture, question: Mapping[str, Any]) -> Controls:
    """What to offer, by what is asked of `explore`. Raises CostModelError."""
    question = with_degrees(model, {name: _single(value) for name, value in question.items()})
    axes, settings, changed = read_axes(model, question)
    for axis in axes:
        if axis.name in SETTING_NAMES and axis.name not in applicable(model):
            predict(model, **{axis.name: axis.values[-1]})  # says why it does not apply
            raise SettingError(f"{axis.name} does not apply to {model.title}: leave it out")
    model = varied(model, changed) if changed else model
    starts = {name: settings.pop(name) for name in STARTS if settings.get(name) is not None}
    listed = {letter: sorted(values) for axis in axes for letter, values in axis.letters.items()}
    some = dict(settings)
    if "accumulate" in listed:  # without which a pipeline has too few micro-batches
        some["accumulate"] = listed["accumulate"][-1]
    predict(model, **starts, **some)  # one that is wrong altogether is refused before the work
    choices = tuple(_choices(model, axes, some))
    sizes = tuple(_sizes(model, some, starts, listed))
    controls = Controls(model, sizes, choices, settings)
    if controls.staged:  # other sizes of a model are cut into other stages
        controls = controls._replace(sizes=tuple(size for size in sizes if size.name in listed or size.name in SIZES))
    if (count := len(controls.combinations())) > MOST_COMBINATIONS:
        raise SettingError(
            f"{count:,} combinations of choices are too many for a page: offer at most {MOST_COMBINATIONS}, with fewer "
            "values for some settings"
        )
    several = tuple(size for size in controls.sizes if _varies(controls, size))
    for size in controls.sizes:
        if size.name in listed and size not in several:
            start = {each.name: each.value for each in controls.sizes}
            raise SettingError(str(_forms(controls).reason({**start, size.name: size.stops[-1]})))
    controls = controls._replace(sizes=several)
    each = _valued(controls)
    offered = tuple(size for size in controls.sizes if size.name not in each or size.name in listed)
    constants = {size.name: size.value for size in controls.sizes if size not in offered and size.name in SETTING_NAMES}
    return controls._replace(
        sizes=offered,
        settings={**settings, **constants},
        fixed=tuple(size.name for size in controls.sizes if size not in offered),
    )


def with_degrees(model: Architecture, question: Mapping[str, Any]) -> dict[str, Any]:
    """A question with degrees to choose between: of `devices` those of every axis that the model and runtime take.

    Raises SettingError.
    """
    question = dict(question)
    devices = question.pop("devices", None)
    if devices is None and not any(isinstance(question.get(name), list | range) for name in AXES):
        return question
    usual = {**OF_LAYOUTS, "precision": "bf16" if question.get("runtime", "torch") == "torch" else "bf16-master"}
    if question.get("mode", "train") != "train":
        usual = {name: value for name, value in usual.items() if name not in OF_A_STEP}
    question = {**{name: value for name, value in usual.items() if name in applicable(model)}, **question}
    if devices is None:
        return question
    most = max(devices) if isinstance(devices, list | range) and len(devices) else devices
    if type(most) is not int or not 1 < most <= 2**20:
        raise SettingError(f"devices={shown(devices)} is not the most devices of a layout: use 2 to {2**20:,}")
    for name in AXES:
        if name in question or (name == "dp" and "fsdp" in question) or (name == "cp" and "pp" in question):
            continue
        limit = min(most, MOST_DEGREES.get(name, most))
        degrees = [
            n for n in (2**power for power in range(21)) if n <= limit and _degree_taken(model, question, name, n)
        ]
        if len(degrees) > 1:
            question[name] = degrees
    if isinstance(question.get("pp"), list) and "accumulate" not in question and "global_batch" not in question:
        question["accumulate"] = 4 * max(question["pp"])
    return question


def _degree_taken(model: Architecture, question: Mapping[str, Any], name: str, degree: int) -> bool:
    """Whether a model can be laid out so along one axis alone; experts over ranks that weights are split over."""
    settings = {
        each: value[0] if isinstance(value, list | range) else value
        for each, value in question.items()
        if each in SETTING_NAMES and each not in STARTS
    }
    beside = {"pp": {"accumulate": max(degree, settings.get("accumulate") or 1)}, "ep": {"fsdp": degree}}
    return degree == 1 or _taken(model, {**settings, **beside.get(name, {}), name: degree})


def _single(value: Any) -> Any:
    """The one value of a list of one, which is no axis."""
    return value[0] if isinstance(value, list | range) and len(value) == 1 else value


def _choices(model: Architecture, axes: Sequence[Axis], settings: Mapping[str, Any]) -> Iterator[Choice]:
    own = {axis.name: tuple(axis.values) for axis in axes if not axis.numeric}
    training = "train" in own.get("mode", (settings.get("mode", "train"),))
    for name in applicable(model):
        if name in own:
            yield _choice(SETTINGS[name].text, name, own.pop(name))
        elif name in CHOICES and name not in settings and (training or name not in OF_A_STEP):
            values = tuple(value for value in CHOICES[name] if _taken(model, {**settings, name: value}))
            if "prefill" in values:  # an inference but for logits of the last token alone
                values = tuple(value for value in values if value != "inference")
            if values:
                yield _choice(SETTINGS[name].text, name, values)
    if "width" in model.DERIVED and isinstance(model, CNN) and "width" not in own:
        own["width"] = _widths(model)
    for name, values in own.items():
        _check_values(model, name, values)
        meaning = model.field_named(name).description if name in model.field_names() else f"{name} of the first layer"
        if len(values) > 1:
            yield _choice(meaning or name, name, values)


def _check_values(model: Architecture, name: str, values: tuple[Any, ...]) -> None:
    """Raise SpecError for a value that the field takes in no model; others may fit with other sizes."""
    for value in values:
        try:
            model.vary(name, value)
        except SpecError as error:
            if error.path:
                raise


def _taken(model: Architecture, settings: Mapping[str, Any]) -> bool:
    """Whether a model can be asked about so, at a small batch."""
    smallest: dict[str, Any] = {name: 16 for name in ("seq", "target_seq") if name in model.BATCH_SIZES}
    if settings.get("mode") == "decode":
        if "target_seq" in smallest:
            return False
        smallest = {OF_DECODING[name]: size for name, size in smallest.items()}
    try:
        predict(model, **smallest | dict(settings))
    except CostModelError:
        return False
    return True


def _choice(meaning: str, name: str, values: tuple[Any, ...]) -> Choice:
    return Choice(name, values, tuple(map(label_of, values)), meaning)


def _widths(model: Architecture) -> tuple[int, ...]:
    """Half, all and twice of the width that a network of listed layers has, as far as there is such a network."""
    widths: list[int] = []
    with suppress(CostModelError):
        own = model.size("width")
        for width in (own, own // 2, 2 * own):
            with suppress(CostModelError):
                model.vary("width", width)
                widths.append(width)
    return tuple(widths)


def _sizes(
    model: Architecture, settings: Mapping[str, Any], starts: dict[str, Any], listed: Mapping[str, Sequence[int]]
) -> Iterator[SliderSize]:
    shape = batch_shape(model, settings_of({**settings, "batch": BATCH, **starts}))
    own: dict[str, tuple[str, str, int]] = {"batch": ("B", "batch size", shape.batch)}
    if shape.seq is not None:
        own["seq"] = ("T", "sequence length", shape.seq)
    if shape.target is not None:
        own["target_seq"] = ("T_t", "target length", shape.target)
    if shape.image is not None:
        for side, symbol, value in zip(SIDES, "HW", shape.image, strict=True):
            own[side] = (symbol, f"image {side.partition('.')[2]}", value)
    own |= {name: (d.symbol, d.meaning, d.value) for name, d in model.size_fields().items()}
    known = open_sizes(model)
    for name in ("accumulate", "loss_chunks", *DEGREES):
        if name in listed:
            own[name] = (name, SETTINGS[name].text.removesuffix("."), min(listed[name]))
    for name, (symbol, meaning, value) in own.items():
        if name not in known:
            continue
        stops = listed.get(name) or _stops(model, name, value, shape)
        if name in listed and value not in stops:
            value = stops[0]
        discrete = name in ("accumulate", *DEGREES)
        yield SliderSize(name, symbol, meaning, value, tuple(thinned(sorted({*stops, value}))), discrete)


def _stops(model: Architecture, name: str, value: int, shape: BatchShape) -> list[int]:
    """Where the slider of a size stands, unless that is asked: about an eighth of its value to eight times as much."""
    if name == "batch":
        return [n for n in POWERS if n <= 1024]
    if name in ("seq", "target_seq"):
        return [n for n in POWERS if 16 <= n <= max(4 * value, 8192)]
    if name in SIDES:
        step = 32 if value >= 128 else max(1, value // 8)
        return list(range(step, 2 * value + 1, step))
    if name not in model.LETTERS:
        return _reach(value)
    allowed: Sequence[int] = ()
    with suppress(CostModelError):
        allowed = model.allowed(name, shape).values
    if isinstance(allowed, range):
        step = allowed.step
        return [n for n in dict.fromkeys(n // step * step for n in _reach(value)) if n in allowed]
    return [n for n in allowed if value <= 8 * n and n <= 8 * value] or _reach(value)


def _reach(value: int) -> list[int]:
    if value < 8:
        return list(range(1, 4 * value + 1))
    return [value * n // 8 for n in REACH if value * n >= 32 and (value < 32 or n > 1)]


def thinned(stops: Sequence[int]) -> list[int]:
    """At most so many of some values, with both ends."""
    if len(stops) <= MOST_STOPS:
        return list(stops)
    return sorted({stops[n * (len(stops) - 1) // (MOST_STOPS - 1)] for n in range(MOST_STOPS)})


def _forms(controls: Controls, quantities: Sequence[str] = ()) -> ClosedForms:
    """Closed forms in all sizes, with the first of each choice."""
    first = {choice.name: min(choice.values, key=lambda value: value == "decode") for choice in controls.choices}
    changed = {name: value for name, value in first.items() if name not in SETTING_NAMES}
    settings = {**controls.settings, **{name: value for name, value in first.items() if name in SETTING_NAMES}}
    return ClosedForms(controls.model, settings, [size.name for size in controls.sizes], quantities, changed)


def _varies(controls: Controls, size: SliderSize) -> bool:
    """Whether there is an answer at another value than the one that a size starts with.

    Of degrees that need others, as of experts over ranks that weights are split over, where these are the largest.
    """
    start, forms = {each.name: each.value for each in controls.sizes}, _forms(controls)
    largest = {each.name: each.stops[-1] for each in controls.sizes if each.name in DEGREES and each.discrete}
    for others in (start, start | largest) if size.name in largest else (start,):
        for stop in sorted(size.stops, key=lambda stop: abs(stop - size.value)):
            if stop != size.value and not forms.reason({**others, size.name: stop}):
                return True
    return False


def _valued(controls: Controls) -> frozenset[str]:
    """Sizes that formulas have no letter for, as it turns out, such as a number of blocks that differ."""
    of_rank = () if controls.staged else ("memory.activations",)  # ranks are not compared by their values on a page
    forms = _forms(controls, ("flops.total", *of_rank))
    forms.at({size.name: size.value for size in controls.sizes})
    node, names = forms.tree, frozenset[str]()
    while isinstance(node, Branch):
        if node.condition.relation == "value":
            names |= node.condition.of.letters
        node = next(iter(node.after.values()))
    return names
