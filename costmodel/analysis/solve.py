"""Inverse questions: how large one size may be so that a quantity stays within a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.analysis.predict import Prediction
from costmodel.analysis.search import (
    Curve,
    PeakMemory,
    VariedSize,
    last_true,
    open_question,
    peaks_along,
    size_of,
    varied_size,
)
from costmodel.cost.budget import binding, room_for
from costmodel.cost.quantities import BETTER, TIMED, plain
from costmodel.cost.question import question
from costmodel.display.answer import Answer, Sheet
from costmodel.display.units import (
    TIMES,
    UNITS,
    Budget,
    read_amount,
    read_count,
    read_reserve,
    show_amount,
    show_bytes,
    shower,
    whole,
)
from costmodel.documents.arguments import typed
from costmodel.errors import CostModelError, SettingError, shown
from costmodel.training.keywords import GivenSettings
from costmodel.training.signatures import takes_settings

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

    from costmodel.architectures.base import Architecture

LARGEST_TARGET = 10**30
"""Numbers that are solved for are smaller."""


@dataclass(frozen=True, repr=False)
class Solution(Answer):
    """The largest value of a size at which a quantity is within its target; true if there is one.

    Where the quantity falls as the size grows it is the smallest value. answer: None if no value will do. value: the
    quantity there, or if no value will do where it is least: at the smallest value, or one from which it falls no more.
    past: the next value, at which the quantity is beyond the target or which the model cannot take; None if there is
    none. binds: what stands in the way of `past`. quantity: what is held against `target`, which has its unit. varied:
    the size, with its values. reserve: memory left for what is not modelled [bytes]. prediction: at the answer,
    or where the quantity is least. past_value: the quantity at `past`.

    Example:
        >>> import costmodel as cm
        >>> found = cm.max_batch("gpt2-small", "24 GiB", seq=512)
        >>> found.answer, found.margin > 0, found.past
        (25, True, 26)

    """

    quantity: str
    varied: VariedSize
    target: Budget
    reserve: int
    answer: int | None
    prediction: Prediction
    past: int | None
    past_value: int | None
    binds: str

    def __bool__(self) -> bool:
        return self.answer is not None

    def __int__(self) -> int:
        if self.answer is None:
            raise SettingError(self.sheet().head[1])
        return self.answer

    @cached_property
    def value(self) -> Any:
        """The quantity at the answer; where it is least if there is none."""
        return plain(self.prediction.value(self.quantity))

    @property
    def margin(self) -> int:
        """What is to spare of the target at the answer; negative if there is none."""
        left = self.target.bytes - self.reserve - self.value
        return -left if self.quantity in BETTER else left

    @typed
    def plot(self, path: str | PathLike[str] | None = None, *, dark: bool = False) -> Figure:
        """Memory at the peak by category along the varied size, with the target (extra `plot`).

        Args:
            path: where to write it too, such as "batch.png".
            dark: on black instead of white.

        Raises:
            CostModelError: no matplotlib, another quantity than memory.peak, or `path` cannot be written.

        Example:
            >>> import costmodel as cm
            >>> figure = cm.max_batch("mlp-mnist", memory="64 MiB").plot()
            >>> figure.axes[0].get_xlabel()
            'batch [samples]'

        """
        from costmodel.cost.question import heading
        from costmodel.display.figures import DARK, LIGHT, Budgets, save
        from costmodel.display.lines import stacked

        if self.quantity != "memory.peak":
            raise CostModelError(f"only memory.peak is drawn along {self.varied.name}, not {self.quantity}")
        less = f", less {show_bytes(self.reserve)}" if self.reserve else ""
        left = Budget(self.target.bytes - self.reserve, f"{show_bytes(self.target.bytes)}{less}")
        verdict = f"{self.varied.name} {self.answer:,} fits" if self.answer else f"no {self.varied.name} fits"
        of = self.prediction
        title = f"{heading(of.model, of.settings, (self.varied.name,))}: {verdict}"
        theme = DARK if dark else LIGHT
        figure = stacked(self.varied.name, self._along(), Budgets([left], explicit=True), title, theme, self.answer)
        return save(figure, path)

    def _along(self) -> dict[int, PeakMemory]:
        """Bytes at the peak by category from the size's first value to a quarter past the answer."""
        values = self.varied.values
        end = values.index(self.past or self.answer or values[0])
        last = min(max(end + 1, 5 * end // 4 + 1, 4), len(values) - 1)
        return peaks_along(values[: last + 1], self.varied.at, {max(0, end - 1), end})

    def to_dict(self) -> dict[str, Any]:
        """Plain data; sizes of memory in bytes."""
        return {
            "question": question(self.prediction.model, self.prediction.settings, (self.varied.name,)),
            "quantity": self.quantity,
            "for": self.varied.name,
            "answer": self.answer,
            "value": self.value,
            "target": self.target.bytes,
            "reserve": self.reserve,
            "margin": self.margin,
            "past": self.past,
            "past_value": self.past_value,
            "binds": self.binds,
            "note": self.varied.note,
        }

    def sheet(self) -> Sheet:
        """The question, the answer, what it leaves of the target, and what stands in the way of more."""
        name, show = self.varied.name, shower(self.quantity)
        head = question(self.prediction.model, self.prediction.settings, (name,))
        reserve = f" less a reserve of {show(self.reserve)}" if self.reserve else ""
        target = f"{show(self.target.bytes)} ({self.target.reading}){reserve}"
        note = [f"note: {self.varied.note}"] if self.varied.note else []
        if self.answer is None:
            place = size_of(self.prediction, name)
            least = f"{name} {place:,}" + (", where it is least," if place > self.varied.values[0] else "")
            verdict = f"no {name} fits {target}: at {least} {self.quantity} is {show(self.value)}, "
            binds = [f"{name} {place:,}: {self.binds}"] if self.binds else []
            return Sheet([head, f"{verdict}{show(-self.margin)} {self._off}", *binds, *note], [])
        verdict = (
            f"{name} {self.answer:,}: {self.quantity} {show(self.value)} of {target}, {show(self.margin)} to spare"
        )
        return Sheet([head, verdict, self._past(show), *note], [])

    @property
    def _off(self) -> str:
        return "too little" if self.quantity in BETTER else "too much"

    def _past(self, show: Callable[[int], str]) -> str:
        """What stands in the way of more."""
        if self.past is None:
            return self.binds
        parts = [self.binds] if self.binds else []
        if self.past_value is not None:
            over = show(abs(self.past_value + self.reserve - self.target.bytes))
            parts.insert(0, f"{show(self.past_value)}, {over} {self._off}")
        side = "past it" if self.past > (self.answer or 0) else "too small"
        return f"{self.varied.name} {self.past:,} is {side}: {'; '.join(parts)}"


@takes_settings()
def solve(
    model: Architecture | str,
    quantity: str,
    target: str | float,
    *,
    for_: str,
    reserve: str | int | None = None,
    **settings: Unpack[GivenSettings],
) -> Solution:
    """The largest value of `for_` at which `quantity` is at most `target`, checked by `predict` there and one past it.

    Where the quantity falls as `for_` grows, it is the smallest value. Where it both rises and falls (as with groups of
    layers to recompute), the answer is a value that is within the target and has a neighbour that is not. The result is
    false if no value will do.

    Args:
        model: as `predict` takes it.
        quantity: such as "memory.peak" or "flops.total".
        target: for memory bytes such as "24 GiB" or a machine such as "t4", else a number or text such as "124M" or
            "2.5 TFLOP".
        for_: the size to vary: batch, seq, image, accumulate, or a size of the model such as layers or width.
        reserve: memory to leave for what is not modelled (default: of a machine what its driver takes at most).
        **settings: all that `predict` takes but what is to be found.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> found = cm.solve("gpt2-small", "params", "1B", for_="layers")
        >>> found.answer, found.value
        (135, 996248064)

    """
    return solve_for(open_question(model, for_, settings), quantity, target, for_, reserve)


@takes_settings(without="batch")
def max_batch(
    model: Architecture | str,
    memory: str | float,
    *,
    reserve: str | int | None = None,
    **settings: Unpack[GivenSettings],
) -> Solution:
    """The largest batch whose peak fits `memory`; see `solve`.

    Args:
        model: as `predict` takes it.
        memory: what there is, such as "24 GiB", or a machine such as "h100-sxm".
        reserve: memory to leave for what is not modelled (default: of a machine what its driver takes at most).
        **settings: all that `predict` takes but batch.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> int(cm.max_batch("gpt2-small", "24 GiB", seq=512))
        25

    """
    return solve(model, "memory.peak", memory, for_="batch", reserve=reserve, **settings)


@takes_settings(without="seq")
def max_seq(
    model: Architecture | str,
    memory: str | float,
    *,
    reserve: str | int | None = None,
    **settings: Unpack[GivenSettings],
) -> Solution:
    """The longest sequence whose peak fits `memory`; see `solve`.

    Args:
        model: as `predict` takes it.
        memory: what there is, such as "24 GiB", or a machine such as "h100-sxm".
        reserve: memory to leave for what is not modelled (default: of a machine what its driver takes at most).
        **settings: all that `predict` takes but seq.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> int(cm.max_seq("llama-3.2-1b", "40 GiB", batch=1, precision="bf16", attention="flash"))
        15760

    """
    return solve(model, "memory.peak", memory, for_="seq", reserve=reserve, **settings)


@takes_settings()
def max_layers(
    model: Architecture | str,
    memory: str | float,
    *,
    reserve: str | int | None = None,
    **settings: Unpack[GivenSettings],
) -> Solution:
    """The most blocks, or equal hidden layers, whose peak fits `memory`; see `solve`.

    Args:
        model: as `predict` takes it.
        memory: what there is, such as "24 GiB", or a machine such as "h100-sxm".
        reserve: memory to leave for what is not modelled (default: of a machine what its driver takes at most).
        **settings: all that `predict` takes but layers.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> int(cm.max_layers("gpt2-small", "24 GiB", batch=8, seq=512))
        43

    """
    return solve(model, "memory.peak", memory, for_="layers", reserve=reserve, **settings)


@takes_settings()
def max_width(
    model: Architecture | str,
    memory: str | float,
    *,
    reserve: str | int | None = None,
    **settings: Unpack[GivenSettings],
) -> Solution:
    """The largest width whose peak fits `memory`, in steps that the model can take; see `solve`.

    Args:
        model: as `predict` takes it.
        memory: what there is, such as "24 GiB", or a machine such as "h100-sxm".
        reserve: memory to leave for what is not modelled (default: of a machine what its driver takes at most).
        **settings: all that `predict` takes but width.

    Raises:
        CostModelError: what is wrong with the question, in one line.

    Example:
        >>> import costmodel as cm
        >>> int(cm.max_width("gpt2-small", "24 GiB", batch=8, seq=512))
        2496

    """
    return solve(model, "memory.peak", memory, for_="width", reserve=reserve, **settings)


def read_target(quantity: str, target: Any, reserve: Any = None, groups: int = 0) -> tuple[Budget, int]:
    """A target and a reserve in the quantity's unit, with so many groups of ranks. Raises SettingError."""
    if quantity.startswith("memory."):
        return room_for(target, reserve, groups=groups)
    if read_reserve(reserve):
        raise SettingError(f"reserve={shown(reserve)} is memory: leave it out for {quantity}")
    if quantity in TIMES:
        return _timed_target(quantity, target), 0
    number, wrong = whole(target), "a whole number" if isinstance(target, float) else "a number"
    if isinstance(target, str) and (count := read_count(target)) is not None:
        number = int(count)
    if number is None or not 1 <= number < LARGEST_TARGET:
        wrong = wrong if number is None else "a positive number" if number < 1 else "a number below 10^30"
        raise SettingError(f"target={shown(target)} is not {wrong} of {quantity}: use one such as 124M, 1e9 or 2.5T")
    return Budget(number, f"{number:,}"), 0


def _timed_target(quantity: str, target: Any) -> Budget:
    """A target of a quantity of time: seconds such as "200 ms", or a number. Raises SettingError."""
    if UNITS[quantity] == "s":
        seconds = read_amount(target, "target", "s")
        return Budget(seconds, show_amount(seconds, "s"))
    number = read_count(target)
    if number is None or not number > 0:
        raise SettingError(f"target={shown(target)} is not a positive number of {UNITS[quantity]}: use one such as 0.4")
    return Budget(float(number), f"{float(number):g}")


def solve_for(question: Prediction, quantity: str, target: Any, for_: str, reserve: Any = None) -> Solution:
    """`solve` for the question of a prediction, whose own value of `for_` does not matter."""
    question.value(quantity)
    groups = question.driver.groups if question.settings.layout.devices > 1 else 0
    budget, spared = read_target(quantity, target, reserve, groups)
    return _Search(varied_size(question, for_), quantity, budget, spared).solution()


class _Search:
    """The last value of a size at which a quantity is within its target; of rates, of which more is better, negated."""

    def __init__(self, varied: VariedSize, quantity: str, target: Budget, reserve: int) -> None:
        self.varied, self.quantity, self.target, self.reserve = varied, quantity, target, reserve
        sign = -1 if quantity in BETTER else 1
        self.limit = sign * target.bytes - reserve
        self.curve = Curve(varied.values, varied.at, lambda p: sign * plain(p.value(quantity)))

    def solution(self) -> Solution:
        count = len(self.varied.values)
        if not self.curve.exists(0):
            start = last_true(lambda n: not self.curve.exists(n), count) + 1
            if start < count:
                later = replace(self.varied, values=self.varied.values[start:])
                return _Search(later, self.quantity, self.target, self.reserve).solution()
        if not self._within(0):
            return self._falling(count)
        last = self._last(self._within, count)
        if last == count - 1 and not self.varied.limit:
            raise SettingError(
                f"{self.quantity} is within the target at every {self.varied.name}: nothing to find; ask for a size "
                "that moves it, such as for_='layers' (--for layers)"
            )
        return self._answer(last, last + 1)

    def _within(self, position: int) -> bool:
        return self.curve.within(position, self.limit)

    def _last(self, holds: Callable[[int], bool], count: int) -> int:
        rounds = 1 if self.quantity in TIMED else 8  # times rise in steps: more lines lead no nearer
        guess = self.curve.guess(self.target.bytes - self.reserve, rounds=rounds) if count > 2 else 0
        return last_true(holds, count, guess)

    def _falling(self, count: int) -> Solution:
        """The first value does not do: either a later one does, or none."""
        self.curve.at(0)
        last = self._last(lambda n: not self._within(n), count)
        if last + 1 == count and not self.curve.exists(last):  # it may fall, and end before the next that was tried
            count = last_true(self.curve.exists, count) + 1
            last = self._last(lambda n: not self._within(n), count)
        if last + 1 < count:
            return self._answer(last + 1, last)
        end, least = self.curve.value(count - 1), 0
        if end < self.curve.value(0):
            least = last_true(lambda n: self.curve.exists(n) and self.curve.value(n) > end, count) + 1
        at = self.curve.at(least)
        return self._solution(None, at, binds=self._binds(at))

    def _answer(self, position: int, past: int) -> Solution:
        at, answer = self.curve.at(position), self.varied.values[position]
        if past == len(self.varied.values):
            return self._solution(answer, at, binds=self.varied.limit)
        value = self.varied.values[past]
        try:
            beyond = self.curve.at(past)
        except CostModelError as error:
            return self._solution(answer, at, value, binds=str(error))
        return self._solution(answer, at, value, plain(beyond.value(self.quantity)), self._binds(beyond))

    def _binds(self, at: Prediction) -> str:
        if self.quantity != "memory.peak":
            return ""
        return binding(at)

    def _solution(
        self, answer: int | None, at: Prediction, past: int | None = None, past_value: Any = None, binds: str = ""
    ) -> Solution:
        return Solution(self.quantity, self.varied, self.target, self.reserve, answer, at, past, past_value, binds)
