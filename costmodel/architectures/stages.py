"""Where a model is cut into the stages of a pipeline: which of its parts, one after another, each stage has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any

from costmodel.errors import SettingError, shown, unknown
from costmodel.training.layout import Layout
from costmodel.training.schedules import SCHEDULES, UNSPLIT

if TYPE_CHECKING:
    from costmodel.architectures.base import Architecture

MOST_SHOWN = 60
"""Characters of a split that an error shows."""
MOST_NAMES = 1_000
"""Names that are looked at for one that is close to what is not known."""


class StageParts(Sequence[str]):
    """Names of parts, in order: of runs of equal ones with their number, ``block.0``, ``block.1``.

    runs: a name, and how many are called so.
    """

    def __init__(self, runs: Iterable[tuple[str, int]]) -> None:
        self.runs = [*runs]
        self._ends = [*accumulate(times for _, times in self.runs)]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        place = range(len(self))[index]
        run = bisect_right(self._ends, place)
        name, times = self.runs[run]
        return name if times == 1 else f"{name}.{place - self._ends[run] + times}"

    def number(self, part: str) -> int:
        """The place of a part by its name. Raises UnknownNameError."""
        kind, _, number = part.rpartition(".")
        for (name, times), end in zip(self.runs, self._ends, strict=True):
            if times == 1 and part == name:
                return end - 1
            if kind == name and number.isdecimal() and len(number) < 20 and int(number) < times:
                return end - times + int(number)
        raise unknown("layer in pp_split", part, islice(self, MOST_NAMES))

    def __repr__(self) -> str:
        return f"<StageParts: {len(self)} of {len(self.runs)} kinds>"


def own_parts(layout: Layout, model: Architecture) -> range:
    """The parts of a stage, by number; all of them where none is meant."""
    parts = model.stage_parts
    if layout.stage is None:
        return range(len(parts))
    starts = [*_starts(layout, parts, model), len(parts)]
    return range(starts[layout.stage], starts[layout.stage + 1])


def check_stages(layout: Layout, model: Architecture) -> None:
    """Raise SettingError if a model cannot be cut into so many stages, or not where `pp_split` says."""
    if layout.pp == 1:
        return
    parts, title = model.stage_parts, shown(model.title)
    if not parts:
        raise SettingError(f"pp={layout.pp} is not worked out for {type(model).__name__} {title}: leave it out")
    if layout.stages > len(parts):
        raise SettingError(
            f"pp={layout.pp} and vpp={layout.vpp} are {layout.stages} stages, more than the {len(parts)} "
            f"layers of {model.title}: use at most {len(parts)} stages"
        )
    if SCHEDULES[layout.schedule].splits and not model.SPLITS_BACKWARD:
        raise SettingError(
            f"schedule={layout.schedule!r}, which makes gradients of weights apart, is not worked out for "
            f"{type(model).__name__} {title}: use {' or '.join(UNSPLIT)}"
        )
    _starts(layout, parts, model)


def stages_of_split(split: Sequence[int | str], model: Architecture) -> list[int]:
    """Into how many stages `pp_split` may cut a model. Raises SettingError if it cuts none."""
    parts, counts = model.stage_parts, list[int]()
    for stages in (len(split), len(split) + 1):
        with suppress(SettingError):
            _starts(Layout(pp=stages, split=tuple(split)), parts, model)
            counts.append(stages)
    if counts:
        return counts
    setting = f"pp_split={shown(tuple(split))}"
    setting = setting if len(setting) <= MOST_SHOWN else f"pp_split of {len(split):,} items"
    if not parts:
        raise SettingError(
            f"{setting} is of a pipeline, which is not worked out for {type(model).__name__} {shown(model.title)}: "
            "leave it out"
        )
    raise SettingError(
        f"{setting} cuts no pipeline of {model.title}: give how many of its {len(parts)} layers each stage has, or the "
        "first of each but the first, in order"
    )


def _starts(layout: Layout, parts: StageParts, model: Architecture) -> list[int]:
    """The first part of each stage, as `pp_split` says. Raises SettingError."""
    usual = equal_starts(layout, len(parts))
    if not layout.split:
        return usual
    setting, firsts = f"pp_split={shown(layout.split)}", shown(tuple(usual[1:]))
    if len(setting) > MOST_SHOWN:
        setting = f"pp_split of {len(layout.split):,} items"
    if len(layout.split) == layout.stages:
        counts = layout.split
        if not all(isinstance(count, int) for count in counts) or sum(map(int, counts)) != len(parts):
            each = shown(tuple(b - a for a, b in pairwise([*usual, len(parts)])))
            raise SettingError(
                f"{setting} is not how many of the {len(parts)} layers of {model.title} each stage has: use {each}"
            )
        return [sum(map(int, counts[:stage])) for stage in range(layout.stages)]
    if len(layout.split) != layout.stages - 1:
        raise SettingError(
            f"{setting} is not of {layout.stages} stages: give how many layers each has, or the first of each but the "
            f"first, {firsts}"
        )
    starts = [0, *(part if isinstance(part, int) else parts.number(part) for part in layout.split)]
    if any(a >= b for a, b in pairwise([*starts, len(parts)])):
        raise SettingError(
            f"{setting} are not first layers in order, from 1 to {len(parts) - 1}, of {model.title}: use such as "
            f"{firsts}"
        )
    return starts


def equal_starts(layout: Layout, parts: int) -> list[int]:
    """The first of each of equal parts, of which the first ones have those that are left over.

    Megatron's first and last stage have one less where that makes parts equal, embedding and loss counting as a block
    each (``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``).
    """
    if layout.runtime != "torch" and parts % layout.stages and not (parts + 2) % layout.stages:
        each = (parts + 2) // layout.stages
        return [0, *(stage * each - 1 for stage in range(1, layout.stages))]
    every, over = divmod(parts, layout.stages)
    return [stage * every + min(stage, over) for stage in range(layout.stages)]
