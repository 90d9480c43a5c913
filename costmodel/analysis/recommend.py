"""Settings with which a training step or an inference fits its memory, ranked by how much of it is useful work."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Unpack

from costmodel.analysis.predict import Prediction, predict
from costmodel.analysis.search import Curve, last_true, with_settings
from costmodel.analysis.solve import solve_for
from costmodel.analysis.sweep.axes import label_of
from costmodel.architectures.trace import check_applies
from costmodel.cost.budget import room_for
from costmodel.cost.question import question
from costmodel.display.answer import Ranking, Sheet
from costmodel.display.table import Table, printable, wrapped
from costmodel.display.units import Budget, show_bytes, show_few
from costmodel.documents.arguments import Bounds, fits, typed
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.importers.files import read_setting
from costmodel.importers.zoo import load
from costmodel.symbolic.sizes import LARGEST_SIZE, divisors
from costmodel.training.dtypes import BITS
from costmodel.training.keywords import SeveralSettings
from costmodel.training.setting import plain
from costmodel.training.settings import Settings
from costmodel.training.signatures import takes_settings
from costmodel.training.values import Lora

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture

MOST_SAMPLES = 10**12

RUN = ("batch", "accumulate")
LINK = 7
"""Bytes of memory that move while one goes over a link, each way (H100 SXM: 3.35 TB/s to 450 GB/s of NVLink)."""
MOST_SHOWN = 10
"""Rows of the table; `Recommendations` has all."""


@dataclass(frozen=True)
class Recommendation:
    """One way to run a step: its prediction, and how much of the step is work on its samples.

    settings: what to give `predict` for it. flops_per_byte: FLOPs that the device could do while it moves a byte.
    changes: the settings with other numbers than in the question, in words; "" if nothing.
    """

    settings: dict[str, Any]
    prediction: Prediction
    flops_per_byte: float
    changes: str = ""

    @cached_property
    def samples_per_second(self) -> float | None:
        """On the machine of the question; None if it names none."""
        return self.prediction.time.samples_per_second if self.prediction.settings.on is not None else None

    @property
    def rank(self) -> tuple[float, ...]:
        """The best is the smallest: by samples a second on a machine, else by the share of a step that is useful.

        Without a machine products of 16 bits and fewer come before those of fp32: no device is slower at them.
        """
        policy = self.prediction.settings.policy
        wide = BITS[policy.autocast or policy.weight] > 16 and self.samples_per_second is None
        return wide, -(self.samples_per_second or self.useful), -self.samples, self.peak

    @property
    def batch(self) -> int:
        """Samples of a pass."""
        return self.prediction.settings.batch

    @property
    def accumulate(self) -> int:
        """Passes to a step."""
        return self.prediction.settings.micro_batches

    @property
    def samples(self) -> int:
        """Samples of a step, on all devices."""
        return self.prediction.samples

    @cached_property
    def peak(self) -> int:
        """The most memory alive at once [bytes]."""
        return self.prediction.timeline.peak

    @cached_property
    def moved(self) -> int:
        """Bytes of weights, gradients and states that a step goes over, whatever its samples.

        Each pass reads weights forward and backward, and reads and writes gradients; the update reads gradients, and
        reads and writes weights, masters and states. Inference reads weights. A byte that a rank sends to others counts
        as `LINK` bytes.
        """
        m, sent = self.prediction.memory, LINK * self.prediction.collectives.wire_bytes
        if not self.prediction.settings.training:
            return m.weights + sent
        updated = m.weights + m.masters + m.optimizer
        return self.accumulate * (2 * m.weights + 2 * m.gradients) + m.gradients + 2 * updated + sent

    @cached_property
    def _spent(self) -> float:
        """A step's FLOPs of a rank, and those that could be done while `moved` is moved."""
        return self.prediction.rank.flops.hardware + self.flops_per_byte * self.moved

    @property
    def useful(self) -> float:
        """The share of a step that is model FLOPs, the rest being recomputed or spent on moving weights and states."""
        return self.prediction.rank.flops.total / self._spent

    @property
    def recomputed(self) -> float:
        """The share of a step that is recomputed FLOPs."""
        return self.prediction.rank.flops.recomputed / self._spent

    @property
    def moving(self) -> float:
        """The share of a step that goes over weights, gradients and states."""
        return self.flops_per_byte * self.moved / self._spent

    def beaten_by(self, other: Recommendation) -> bool:
        """Whether another that recomputes something else, and differs in nothing more, does it for as much or less."""
        if self._numerics != other._numerics:
            return False
        mine, its = (Fraction(e.prediction.flops.recomputed, e.samples) for e in (self, other))
        better = (other.batch, -its, -other.peak) > (self.batch, -mine, -self.peak)
        return other.batch >= self.batch and its <= mine and better

    @cached_property
    def _numerics(self) -> Settings:
        """The settings, but for what is recomputed and the samples that this has room for."""
        return replace(self.prediction.settings, batch=1, accumulate=1, checkpoint="none")

    def reason(self, first: Recommendation) -> str:
        """Why it ranks where it does: what a step is spent on, and how that differs from the first."""
        over = "weights, gradients and states" if self.prediction.settings.training else "weights"
        again = f"{self.recomputed:.1%} recomputed" if self.recomputed else "nothing recomputed"
        facts = f"{self.useful:.1%} of the step is work on its samples, {again}, {self.moving:.1%} moves {over}"
        remarks = [f"changes numerics: {self.changes}"] if self.changes else []
        if self.samples_per_second is not None:
            remarks.append(f"{show_few(self.samples_per_second)} samples/s, bound by {self.prediction.time.bound}")
        remarks += [] if self is first else list(self._differences(first))
        return f"{facts}; {', '.join(remarks)}" if remarks else facts

    def remarks(self, first: Recommendation) -> Iterator[str]:
        """What a row of the table does not say of it."""
        if self.changes != first.changes:
            yield f"changes numerics: {self.changes or 'nothing'}"
        extra = self._persistent - first._persistent
        if extra > 0:
            yield f"weights, gradients and states take {show_bytes(extra)} more than those of 1"

    def _differences(self, first: Recommendation) -> Iterator[str]:
        """What tells it from the first."""
        if self.batch != first.batch:
            yield f"batch {self.batch:,}, where the first has {first.batch:,}"
        extra = self._persistent - first._persistent
        if extra > 0:
            yield f"weights, gradients and states take {show_bytes(extra)} more"
        if self.recomputed and not first.recomputed:
            yield "the first recomputes nothing"

    @property
    def _persistent(self) -> int:
        """Bytes of weights, gradients and states."""
        m = self.prediction.memory
        return int(m.weights + m.masters + m.gradients + m.optimizer)

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes, FLOPs, shares]."""
        flops = self.prediction.flops
        return {
            "settings": {name: plain(value) for name, value in self.settings.items()},
            "samples": self.samples,
            "peak": self.peak,
            "flops": flops.total,
            "recomputed_flops": flops.recomputed,
            "moved_bytes": self.moved,
            "samples_per_second": self.samples_per_second,
            "changes": self.changes,
            "useful": self.useful,
            "recomputed": self.recomputed,
            "moving": self.moving,
        }


class Counts(NamedTuple):
    """How many ways were tried, and how many of them fit."""

    tried: int
    fit: int


@dataclass(frozen=True, repr=False)
class Recommendations(Ranking[Recommendation]):
    """What fits, the most useful first; true if anything does.

    chosen: settings that were chosen. smallest: what takes the least of all that was tried. tips: what would make it
    fit, where nothing does. Ways that recompute more than another and have no larger batch for it are left out. title:
    the model's. budget: what there is [bytes]. reserve: what is left of it for what is not modelled [bytes]. counts:
    how many ways were tried and fit. entries: what fits, ranked, each a `Recommendation`.

    Example:
        >>> import costmodel as cm
        >>> found = cm.recommend("mlp-mnist", "1 GiB", precision="fp32", optimizer="sgd")
        >>> found.best.batch, found.margin(found.best) >= 0
        (30406, True)

    """

    title: str
    budget: Budget
    reserve: int
    chosen: tuple[str, ...]
    counts: Counts
    entries: tuple[Recommendation, ...]
    smallest: Recommendation
    tips: tuple[str, ...]

    @typed
    def margin(self, entry: Recommendation) -> int:
        """Bytes that one leaves; negative if there are too few."""
        return self.budget.bytes - self.reserve - entry.peak

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes, FLOPs, shares]."""
        return {
            "fits": bool(self),
            "budget": self.budget.bytes,
            "reserve": self.reserve,
            "chosen": list(self.chosen),
            "tried": self.counts.tried,
            "fit": self.counts.fit,
            "recommendations": [
                {"rank": n, **entry.to_dict(), "margin": self.margin(entry), "reason": entry.reason(self.best)}
                for n, entry in enumerate(self.entries, 1)
            ],
            "smallest": {**self.smallest.to_dict(), "margin": self.margin(self.smallest)},
            "tips": list(self.tips),
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row for each recommendation."""
        return [{**entry, **entry.pop("settings")} for entry in self.to_dict()["recommendations"]]

    def table(self) -> Table:
        """The first of them."""
        names = [*(name for name in self.chosen if name not in RUN), "batch"]
        names += ["accumulate"] if any(entry.accumulate > 1 for entry in self.entries) else []
        rows = [
            (
                str(rank),
                *(_cell(getattr(entry.prediction.settings, name)) for name in names),
                show_bytes(entry.peak),
                f"{entry.recomputed:.1%}" if entry.recomputed else "-",
                f"{entry.useful:.1%}",
                *(
                    ()
                    if entry.samples_per_second is None
                    else (show_few(entry.samples_per_second), entry.prediction.time.bound)
                ),
            )
            for rank, entry in enumerate(self.entries[:MOST_SHOWN], 1)
        ]
        words = {*range(1, 1 + sum(name not in RUN for name in names))}
        timed = any(entry.samples_per_second is not None for entry in self.entries)
        rates = ("samples/s", "bound by") if timed else ()
        worth = (*names, *rates[:1], "peak", "recomputed", "useful", *rates[1:])
        header = ("", *names, "peak", "recomputed", "useful", *rates)
        words |= {len(header) - 1} if timed else set()
        return Table(header, rows, words=frozenset(words), worth=worth)

    def _reason(self) -> str:
        return self._head()

    def _head(self) -> str:
        reserve = f" less a reserve of {show_bytes(self.reserve)}" if self.reserve else ""
        budget = f"{show_bytes(self.budget.bytes)} ({self.budget.reading}){reserve}"
        if not self:
            return (
                f"none of {self.counts.tried} ways to run it fits {budget}: the smallest takes "
                f"{show_bytes(self.smallest.peak)}, {show_bytes(-self.margin(self.smallest))} too much"
            )
        changes = f" (as asked none does; changes numerics: {self.best.changes})" if self.best.changes else ""
        beaten = self.counts.fit - len(self)
        less = f", of which {beaten} recompute for nothing and are left out" if beaten else ""
        return f"{self.counts.fit} of {self.counts.tried} ways to run it fit {budget}{changes}{less}"

    def _notes(self) -> list[str]:
        if not self:
            settings = self.smallest.prediction.settings
            values = (f"{name} {_cell(getattr(settings, name))}" for name in self.chosen)
            return [f"the smallest: {', '.join(values)}", *self.tips]
        ranks: dict[str, list[str]] = {}
        for n, entry in enumerate(self.entries[1:MOST_SHOWN], 2):
            for remark in entry.remarks(self.best):
                ranks.setdefault(remark, []).append(str(n))
        reasons = [f"1: {self.best.reason(self.best)}"]
        reasons += [f"{', '.join(numbers)}: {remark}" for remark, numbers in ranks.items()]
        more = [f"{len(self) - MOST_SHOWN} more fit"] if len(self) > MOST_SHOWN else []
        rate = f"{self.best.flops_per_byte:g} FLOPs"
        if self.best.prediction.settings.layout.devices > 1:
            rate = f"{rate}, one sent to another rank as {LINK}"
        return [*reasons, *more, f"useful: the share of a step that is model FLOPs, a byte moved counting as {rate}"]

    def sheet(self) -> Sheet:
        """The question, and the first of them, each with its reason."""
        smallest = self.smallest.prediction
        head = question(smallest.model, smallest.settings, (*self.chosen, *RUN))
        return Sheet(
            [head, wrapped(printable(self._head()))],
            [self.table()] if self else [],
            notes=[printable(note) for note in self._notes()],
        )


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Lora):
        return f"rank {value.rank}"
    return label_of(value)


FLOPS_PER_BYTE = 100
"""Below what data sheets of accelerators give for 16-bit arithmetic (V100: 139, A100 of 80 GB: 153, H100: 295)."""

OPTIMIZERS = ("adamw", "adam-8bit")
"""Chosen between unless one is given: they train alike."""
PRECISIONS = {"train": ("bf16-autocast", "fp32"), "inference": ("bf16", "fp32")}
CHECKPOINTS = ("none", "selective", ("attention",), ("mlp",), "block", "sqrt")
FUSED = "fused"
"""Of attention: the kernel that PyTorch has for the precision."""
MOST_BATCHES, MOST_CHOICES = 2_000, 500
"""More values of a batch, or combinations of all others, are not chosen between."""
TIPS = (("loss_chunks", 16), ("optimizer", "sgd"), ("precision", "bf16"), ("precision", "int4"))
"""Changes that are tried one by one where nothing fits."""
WORTH = 0.99
"""Of the peak: a change that leaves more than this does not help."""
CHOOSABLE = ("checkpoint", "attention", "precision", "optimizer")
"""In the order in which they are tried: what changes least last."""


@takes_settings(several=True, batch=..., accumulate=..., optimizer=..., precision=..., attention=..., checkpoint=...)
def recommend(
    model: Architecture | str,
    memory: str | float | None = None,
    *,
    samples: int | None = None,
    reserve: str | int | None = None,
    flops_per_byte: float = FLOPS_PER_BYTE,
    **settings: Unpack[SeveralSettings],
) -> Recommendations:
    """The settings with which a model fits `memory`, ranked by how much of a step is work on its samples.

    On a machine (`on`) they are ranked by samples a second there. Where nothing fits, what changes the numbers is tried
    next, one after another until something fits: weights in bf16, adapters on them (LoRA), adapters on int4 weights.

    Precision, optimizer, attention and checkpoint are chosen between unless they are given, each with the largest batch
    that fits. What is not work on samples is what checkpoints recompute, and going over weights, gradients and states,
    which weighs less the more samples a step has.

    Args:
        model: as `predict` takes it.
        memory: such as "24 GiB", as `Prediction.fits` takes it or a machine (default: that of the setting `on`).
        samples: of an optimizer step on all devices, reached by accumulating (default: one batch, as large as fits).
        reserve: memory to leave for what is not modelled (default: of a machine what its driver takes at most).
        flops_per_byte: FLOPs that the device could do while it moves a byte.
        **settings: all that `predict` takes; of a list of precisions, optimizers, kinds of attention, checkpoints or
            batches one is chosen.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.recommend("gpt2-small", "24 GiB", seq=512, precision="bf16-autocast", optimizer="adamw")
        >>> bool(found), found.best.settings["attention"]
        (True, 'flash')

    """
    if (over := settings.pop("over", None)) is not None:
        model = load(model, over=over)
    budget, spared = room_for(memory, reserve, on=settings.get("on"))
    if not fits(flops_per_byte, Annotated[float, Bounds("FLOPs", 0, below=1e9)]):
        raise SettingError(f"flops_per_byte={shown(flops_per_byte)} is not a number of FLOPs: use one such as 100")
    options = {name: _listed(name, value) for name, value in settings.items()}
    declared = (name for name, value in options.items() if name in CHOOSABLE and isinstance(value, list))
    options |= {name: [read_setting(name, each) for each in options[name]] for name in declared}
    fixed = {name: value for name, value in options.items() if not isinstance(value, list)}
    first = predict(model, **fixed)
    if first.settings.global_batch is not None:
        raise SettingError(f"global_batch={first.settings.global_batch} is a step's samples: give samples instead")
    batches, choices = _batches(first.settings, samples, options), _choices(first, options)
    names = (*choices, *(name for name in RUN if name not in fixed))
    room = budget.bytes - spared
    entries: list[Recommendation] = []
    fit: list[Recommendation] = []
    for changes, numbers in chain([("", {})], _other_numbers(first, options)):
        question = Prediction(first.model, replace(first.settings, **numbers)) if numbers else first
        others = {name: values for name, values in choices.items() if name not in numbers}
        chosen = (*names, *(name for name in numbers if name not in names))
        ways = [
            Recommendation({name: getattr(p.settings, name) for name in (*fixed, *chosen)}, p, flops_per_byte, changes)
            for p in _ways(question, others, batches, samples, room)
        ]
        entries += ways
        if fit := [entry for entry in ways if entry.peak <= room]:
            break
    else:
        chosen = names
    worth = fit if "checkpoint" in options else [entry for entry in fit if not any(map(entry.beaten_by, fit))]
    worth.sort(key=lambda entry: entry.rank)
    least = min(entries, key=lambda entry: entry.peak)
    tips = () if fit else tuple(_tips(least, budget.bytes, spared))
    counts = Counts(len(entries), len(fit))
    return Recommendations(first.model.title, budget, spared, chosen, counts, tuple(worth), least, tips)


RANK = 16
"""Of adapters, where they are tried (Hu et al. 2022, table 6: more does little)."""


def _listed(name: str, value: Any) -> Any:
    """A range as a list. Raises SettingError for more values than can be chosen between."""
    most = MOST_BATCHES if name == "batch" else MOST_CHOICES
    if isinstance(value, list | range) and len(value[: most + 1]) > most:
        raise SettingError(f"{name} has more than {most:,} values to choose between: give fewer, or leave it out")
    return list(value) if isinstance(value, range) else value


def _batches(first: Settings, samples: int | None, options: Mapping[str, Any]) -> Sequence[int]:
    """The batches of a pass in order: the given one, those of a list, or all; for a step of `samples` its divisors.

    Raises SettingError if there is none.
    """
    if samples is not None and not first.training:
        raise SettingError(f"samples={shown(samples)} is of an optimizer step: leave it out of inference")
    if samples is not None and not fits(samples, int, 1, MOST_SAMPLES):
        raise SettingError(f"samples={shown(samples)} is not a whole number of samples: use an int such as samples=512")
    batch = options.get("batch")
    if batch == []:
        raise SettingError("batch=[] is empty: give at least one value")
    batches: Sequence[int] = range(1, LARGEST_SIZE + 1)
    if batch is not None:
        batches = sorted({replace(first, batch=n).batch for n in (batch if isinstance(batch, list) else [batch])})
    if samples is None:
        return batches
    own, rest = divmod(samples, first.layout.samplers)
    if rest:
        raise SettingError(f"samples={samples} is no multiple of the {first.layout.samplers} batches of a pass")
    parts = [n for n in divisors(own) if n in batches]
    if "accumulate" in options:
        parts = [n for n in parts if n * first.accumulate == own]
    if not parts:
        step = " and ".join(f"{name}={shown(options[name])}" for name in RUN if name in options)
        raise SettingError(f"samples={samples} is no step with {step}: use what batch times accumulate can be")
    return parts


def _choices(first: Prediction, options: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """What is chosen between, by setting: all that is not given and matters to this model, and what is a list.

    Attention is a fused kernel unless it is given, which does the same as the eager one in less memory.
    """
    training = first.settings.training
    own: dict[str, Sequence[Any]] = {"precision": PRECISIONS["train" if training else "inference"]}
    if training:
        own |= {"optimizer": OPTIMIZERS, "checkpoint": CHECKPOINTS}
    if first.model.HAS_ATTENTION:
        own["attention"] = (FUSED,)
    for name, value in options.items():
        if name == "batch" or not isinstance(value, list):
            own.pop(name, None)
        elif name in CHOOSABLE and value:
            own[name] = value
        else:
            wrong = "is empty: give at least one value" if name in CHOOSABLE else "is a list: give one value"
            raise SettingError(f"{name}={shown(value)} {wrong}")
    ways = prod(len(own[name]) for name in CHOOSABLE if name in own)
    if ways > MOST_CHOICES:
        raise SettingError(
            f"{ways:,} combinations are too many to choose between, at most {MOST_CHOICES:,}: give fewer"
        )
    return {name: own[name] for name in CHOOSABLE if name in own}


def _other_numbers(first: Prediction, options: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings that change the numbers of training and take less memory, what changes least first, in words."""
    if not first.settings.training or "precision" in options:
        return
    yield "weights, gradients and states in bf16", {"precision": "bf16"}
    if first.settings.lora or first.settings.freeze:
        return
    repeated = [call for block in first.tape.root.blocks() for call in block.calls()]
    targets = sorted({call.name.rpartition(".")[2] for call in repeated if call.layer.adaptable})
    if targets:
        lora = Lora(RANK, tuple(targets))
        yield f"adapters of rank {RANK} on bf16 weights", {"precision": "bf16", "lora": lora}
        yield f"adapters of rank {RANK} on int4 weights", {"precision": "int4", "lora": lora}


def _ways(
    first: Prediction, choices: Mapping[str, Sequence[Any]], batches: Sequence[int], samples: int | None, room: int
) -> Iterator[Prediction]:
    """Of every combination that the model takes, the largest step that fits, or its smallest if none does.

    Raises CostModelError for a value that it takes in no combination, unless others are tried of themselves.
    """
    refused: dict[tuple[str, int], CostModelError] = {}
    taken: set[tuple[str, int]] = set()
    start = 1
    for places in product(*(range(len(values)) for values in choices.values())):
        combination = list(zip(choices, places, strict=True))
        values = {name: choices[name][place] for name, place in combination}
        try:
            way = _largest_step(first, values, batches, samples, room, start)
        except CostModelError as error:
            refused |= dict.fromkeys(combination, error)
            continue
        taken.update(combination)
        start = bisect_left(batches, way.settings.batch)  # the next one's may be near
        yield way
    for (name, place), error in refused.items():
        if (name, place) not in taken and (not taken or isinstance(choices[name], list)):
            raise error


def _largest_step(
    first: Prediction, values: dict[str, Any], batches: Sequence[int], samples: int | None, room: int, start: int
) -> Prediction:
    """The question with these values and the largest batch that fits, sought from `start` on, or the smallest batch."""
    if values.get("attention") == FUSED:
        policy = replace(first.settings, **{**values, "attention": "eager"}).policy
        kernel = "flash" if (policy.autocast or policy.weight) in ("bf16", "fp16") else "efficient"
        try:
            return _largest_step(first, {**values, "attention": kernel}, batches, samples, room, start)
        except CostModelError:
            values = {**values, "attention": "eager"}
    settings = replace(first.settings, **values)
    check_applies(first.model, settings)

    def with_batch(batch: int) -> Prediction:
        passes = settings.micro_batches if samples is None else samples // (settings.layout.samplers * batch)
        return Prediction(first.model, replace(settings, batch=batch, accumulate=passes))

    peaks = Curve(batches, with_batch, lambda p: p.timeline.peak)
    if peaks.value(0) > room or len(batches) == 1:
        return peaks.at(0)
    return peaks.at(last_true(lambda n: peaks.value(n) <= room, len(batches), peaks.guess(room, start)))


def _tips(least: Recommendation, room: int, spared: int) -> Iterator[str]:
    """What would make the smallest of all that was tried fit, the one change that helps most first."""
    p = least.prediction
    yield f"it needs {show_bytes(least.peak + spared)}"
    if (weights := int(p.memory.weights)) > room - spared:
        yield f"its weights alone take {show_bytes(weights)}"
    smaller: list[tuple[int, str]] = []
    for name, value in TIPS:
        other = with_settings(p, **{name: value})
        if other is not None and (peak := other.timeline.peak) < WORTH * least.peak:
            smaller.append((peak, f"with {name} {value} it would need {show_bytes(peak + spared)}"))
    fitting = [f"{text}, and fit" for peak, text in sorted(smaller) if peak <= room - spared]
    if p.settings.batch > 1 and (largest := solve_for(p, "memory.peak", room, "batch", spared)):
        fitting.append(f"with batch {int(largest):,} or less it fits")
    tokens = "past" if p.settings.mode == "decode" else "seq"
    if p.model.HAS_ATTENTION and p.batch_shape.seq and (longest := solve_for(p, "memory.peak", room, tokens, spared)):
        fitting.append(f"with {tokens} {int(longest):,} or less it fits")
    yield from fitting
    yield from (text for peak, text in sorted(smaller) if peak > room - spared)
