"""Why ways to run a step are no answer: refused, or too large; and which one change helps most of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from costmodel.analysis.candidates import Mesh

MOST_CHANGED = 16
"""Of the fastest that do not fit so many are tried with one change."""


class Reason(NamedTuple):
    """Why some candidates are not among the answers, as the first of them says it, and how many they are.

    change: the one change that helps most of those that do not fit; "" if none does.
    """

    text: str
    candidates: int
    change: str = ""


class Remedies:
    """Which one change lets most of those fit that do not: each with settings of its own in place of others.

    changes: by its words what a change makes of settings; None: it is none of these. fits: whether settings fit; None:
    those alone do that were added as such, since all are gone through.
    """

    def __init__(
        self, changes: Mapping[str, Callable[[Mesh], Mesh | None]], fits: Callable[[Mesh], bool] | None = None
    ) -> None:
        self.changes = changes
        self.fits = fits
        self.fit: set[frozenset[tuple[str, Any]]] = set()
        self.unfit: list[Mesh] = []

    def add(self, settings: Mesh, *, fits: bool) -> None:
        """Settings that fit, or do not; of these the first ones are looked at if each takes time."""
        if fits:
            self.fit.add(frozenset(settings.items()))
        elif self.fits is None or len(self.unfit) < MOST_CHANGED:
            self.unfit.append(settings)

    def _helps(self, change: Callable[[Mesh], Mesh | None], settings: Mesh) -> bool:
        other = change(settings)
        if other is None or other == settings:
            return False
        return frozenset(other.items()) in self.fit or (self.fits is not None and self.fits(other))

    @property
    def best(self) -> str:
        """The change that helps most of them, in words; "" if none helps any."""
        helped = {
            words: sum(self._helps(change, each) for each in self.unfit) for words, change in self.changes.items()
        }
        words, count = max(helped.items(), key=lambda item: item[1])
        of = "of them fit" if self.fits is None else f"of the {len(self.unfit)} that would be fastest fit"
        return f"{words}, with which {count / len(self.unfit):.0%} {of}" if count else ""

    def __repr__(self) -> str:
        return f"<Remedies: {len(self.fit)} fit, {len(self.unfit)} do not>"


def _moved(mesh: Mesh, **degrees: int) -> Mesh | None:
    """A mesh with some degrees so many times as large, and fewer copies or shards for it; None: there are too few."""
    factor = prod(degrees.values())
    name = "dp" if mesh["dp"] % factor == 0 else "fsdp"
    if mesh[name] % factor:
        return None
    return {**mesh, name: mesh[name] // factor, **{degree: mesh[degree] * times for degree, times in degrees.items()}}


def _sharded(mesh: Mesh) -> Mesh | None:
    """A mesh whose copies split weights between them."""
    if mesh["runtime"] != "torch" or mesh["dp"] == 1:
        return None
    return {
        **{k: v for k, v in mesh.items() if k != "zero"},
        "fsdp": mesh["fsdp"] * mesh["dp"],
        "dp": 1,
        "reshard": True,
    }


CHANGES_HELD: dict[str, Callable[[Mesh], Mesh | None]] = {
    "split states over copies (zero=1)": lambda mesh: {**mesh, "zero": 1} if mesh.get("zero") == 0 else None,
    "split weights over copies (fsdp in place of dp)": _sharded,
    "twice the tp": lambda mesh: _moved(mesh, tp=2),
    "twice the pp": lambda mesh: _moved(mesh, pp=2),
    "twice the tp, four times the pp": lambda mesh: _moved(mesh, tp=2, pp=4),
}
"""What is tried for those whose weights are too much."""
CHANGES_BESIDE: dict[str, Callable[[Mesh], Mesh | None]] = {
    "recompute blocks (checkpoint='block')": lambda way: {**way, "checkpoint": "block"},
    "recompute attention (checkpoint='selective')": lambda way: {**way, "checkpoint": "selective"},
    "micro-batches of 1 (batch=1)": lambda way: {**way, "batch": 1},
    "split what lies between layers (sp=True)": lambda way: {**way, "sp": True} if way["tp"] > 1 else None,
    "twice the tp": lambda way: _moved(way, tp=2),
}
"""What is tried for those whose weights leave room for too little else."""


class Tally:
    """Candidates counted by reason; reasons that differ in numbers alone are one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._kinds: dict[str, str] = {}

    def add(self, text: str, count: int) -> None:
        """So many more."""
        kind = self._kind(text)
        self._texts.setdefault(kind, text)
        self._counts[kind] = self._counts.get(kind, 0) + count

    def __contains__(self, text: str) -> bool:
        """Whether any are counted that differ from it in numbers alone."""
        return self._kind(text) in self._counts

    def _kind(self, text: str) -> str:
        if text not in self._kinds:
            self._kinds[text] = re.sub("[0-9][0-9,]*", "#", text)
        return self._kinds[text]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The most frequent first."""
        counts = sorted(self._counts.items(), key=lambda item: -item[1])
        return tuple(Reason(self._texts[kind], count) for kind, count in counts if count)

    def __repr__(self) -> str:
        return f"<Tally: {sum(self._counts.values())} by {len(self._counts)} reasons>"


TOO_MUCH_HELD = "weights, gradients and states alone take too much"
TOO_MUCH_BESIDE = "weights, gradients and states would, but not with what passes keep and make"
