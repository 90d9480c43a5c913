"""The memory timeline: what is alive at each step of forward, loss, backward and optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.graph import Run
from costmodel.training import Settings


@dataclass(frozen=True)
class Timeline:
    """Bytes alive at each step."""

    peak: int
    temporaries: int


def timeline_of(run: Run, settings: Settings) -> Timeline:
    raise NotImplementedError
