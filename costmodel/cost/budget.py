"""Does it fit: a prediction's peak against a budget of memory."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from costmodel.cost.driver import DriverMemory
from costmodel.cost.question import question
from costmodel.cost.remedies import in_words, lighter, scores_lead
from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Marked
from costmodel.display.units import Budget, read_budget, read_reserve, show_bytes, whole
from costmodel.errors import CostModelError, SettingError, shown

if TYPE_CHECKING:
    from costmodel.cost.costs import Costs

LEAST_BYTES = 1024
"""Fewer bytes than this are a budget only as text: whoever writes 24 means 24 GiB."""


@dataclass(frozen=True, repr=False)
class Fit(Answer):
    """Whether a prediction's peak, with a reserve for what is not modelled, fits a budget; true if it does.

    question: what is held against the budget. margin: bytes to spare, negative if it does not fit. binds: what takes
    most at the peak, and where that is. plain: where it does not fit, or scores lead the peak, what settings need that
    are less plain, in words and bytes.

    Example:
        >>> import costmodel as cm
        >>> answer = cm.predict("gpt2-small", batch=32, seq=512).fits("24 GiB", reserve="1 GiB")
        >>> bool(answer), answer.margin  # bytes
        (False, -7632497676)

    """

    question: str
    budget: Budget
    peak: int
    reserve: int
    binds: str
    plain: tuple[tuple[str, int], ...] = ()

    @property
    def margin(self) -> int:
        """Bytes to spare; negative if there are too few."""
        return self.budget.bytes - self.reserve - self.peak

    def __bool__(self) -> bool:
        return self.margin >= 0

    def sheet(self) -> Sheet:
        """The question, and the verdict in one line."""
        verdict = "fits" if self else "does not fit"
        spare = f"{show_bytes(abs(self.margin))} {'to spare' if self else 'too much'}"
        reserve = f", reserve {show_bytes(self.reserve)} for what is not modelled" if self.reserve else ""
        sentence = (
            f"{verdict}: peak {show_bytes(self.peak)}{reserve}, budget {show_bytes(self.budget.bytes)} "
            f"({self.budget.reading}), {spare}; {self.binds}"
        )
        head = [self.question, sentence if self else Marked(sentence, "alarm")]
        head += [in_words(self.plain)] if self.plain else []
        head += [] if self else ["recommend finds settings that fit, layouts those of several devices"]
        return Sheet(head, [])

    def to_dict(self) -> dict[str, Any]:
        """Plain data [bytes]."""
        return {
            "question": self.question,
            "fits": bool(self),
            "budget": self.budget.bytes,
            "peak": self.peak,
            "reserve": self.reserve,
            "margin": self.margin,
            "binds": self.binds,
            "plain": [{"settings": words, "peak": peak} for words, peak in self.plain],
        }


MACHINE_NAME = re.compile(r"[A-Za-z][^/]*\d|.*[/\\]|.*\.(yaml|yml|json)$")
"""Text that names a machine, not an amount of memory, which starts with its number."""


def room_for(memory: Any, reserve: Any = None, *, on: Any = None, groups: int = 0) -> tuple[Budget, int]:
    """What a device has of memory, and what of it is left for what is not modelled [bytes].

    memory: an amount, or a machine or its name; None: that of the machine `on`. reserve: None: what the driver takes at
    most (`DriverMemory`) with so many groups of ranks if the memory is that of a GPU, else nothing.

    Raises CostModelError, also where there is neither memory nor a machine.
    """
    from costmodel.hardware.cluster import Cluster, machine_of, machine_or_cluster
    from costmodel.hardware.machine import Machine

    if memory is None and on is None:
        raise SettingError("memory is not given: give what there is, such as memory='24 GiB', or a machine with on")
    where = on if memory is None else memory
    named = isinstance(where, Machine | Cluster | os.PathLike) or (
        isinstance(where, str) and MACHINE_NAME.match(where) is not None
    )
    if memory is not None and not named:
        try:
            return read_budget(memory), read_reserve(reserve)
        except SettingError as error:
            raise _meant(memory) or error from None
    place = machine_or_cluster(where)  # type: ignore[arg-type]
    machine = machine_of(place)
    if memory is not None and on is not None and machine_of(on).name != machine.name:
        other = machine_of(on).name
        raise SettingError(f"memory is that of {machine.name}, and the question is of on={other!r}: name one machine")
    if reserve is None:
        spared = DriverMemory.of(groups).high if machine.category == "gpu" else 0
    else:
        spared = read_reserve(reserve)
    each = f"each {machine.name} of {place.name}" if isinstance(place, Cluster) else machine.name
    return Budget(machine.memory, f"of {each}"), spared


def _meant(memory: Any) -> SettingError | None:
    """The error of text that is no amount of memory, but names a machine, or several of one."""
    from costmodel.hardware.catalogue import machine_name, machines

    several = re.fullmatch(r"\s*([1-9][0-9]{0,3})\s*[x×*]\s*(.+)", memory) if isinstance(memory, str) else None
    if several:
        with suppress(CostModelError):
            name = machine_name(several[2])
            return SettingError(
                f"memory={shown(memory)} is of {several[1]} devices: name one, {name!r}, and say what they split, as "
                f"in tp={several[1]} or fsdp={several[1]}"
            )
    elif isinstance(memory, str) and re.fullmatch("[0-9]{3,4}", memory):
        with suppress(CostModelError):
            near = " or ".join(repr(machine.name) for machine in machines(memory)[:3])
            return SettingError(f"memory={shown(memory)} has no unit: use '{memory} GiB', or a machine such as {near}")
    return None


def check_meant(memory: Any) -> None:
    """Raise SettingError for a number so small that GiB were meant."""
    size = whole(memory)
    if size is not None and 0 < size < LEAST_BYTES:
        raise SettingError(f"memory={shown(memory)} would be {size:,} bytes: use text such as '{size} GiB'")


def fit(p: Costs, memory: Any, reserve: Any = None) -> Fit:
    """See `Prediction.fits`."""
    check_meant(memory)
    budget, spared = room_for(
        memory, reserve, on=p.settings.on, groups=p.driver.groups if p.settings.layout.devices > 1 else 0
    )
    answer = Fit(question(p.model, p.settings), budget, p.memory.peak, spared, binding(p))
    if answer and not scores_lead(p):
        return answer
    return replace(answer, plain=tuple(lighter(p)))


def binding(p: Costs) -> str:
    """What takes most at the peak, and where that is."""
    step = p.timeline.peak_step
    line, size = max(step.alive._asdict().items(), key=lambda item: item[1])
    where = f"{step.phase} of {step.layer}" + (f", round {step.rounds}" if step.rounds else "")
    return f"most of the peak is {line} ({show_bytes(size)}), in {where}"
