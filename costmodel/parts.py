"""Which part of a model runs, and what its callers keep alive meanwhile.

What is handed to a part of a model, such as a block or its attention, is in use until that part is done: its caller has
a name for it, as in ``x = x + attention(norm(x))``. A repeated run of bare layers is no part: it is written as a list.
"""

from __future__ import annotations

from costmodel.graph import Block, Call
from costmodel.layers.cast import Cast
from costmodel.lifetimes import Lifetimes, Stretch


class Part:
    """A part of the model, by the path of its name, and what it was handed that there was before `start`."""

    __slots__ = ("handed", "inside", "name", "start")

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.inside = f"{name}." if name else ""
        self.start = start
        self.handed: list[Stretch] = []


class Parts:
    """The parts that a walk is in, from the whole model inwards."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self._lifetimes = lifetimes
        self._open = [Part("", 0)]
        self._lists: set[str] = set()

    def enter(self, name: str) -> None:
        """Go to the part that holds the next layer: leave those that it is not in, and enter those that it is."""
        if name == self._open[-1].name:
            return
        path = f"{name}."
        while not path.startswith(self._open[-1].inside):
            self._leave()
        now = len(self._lifetimes.moments)
        end = len(self._open[-1].name)
        while (end := path.find(".", end + 1)) > 0:
            if name[:end] not in self._lists:
                self._open.append(Part(name[:end], now))

    def hand(self, stretch: Stretch) -> None:
        """A layer of the innermost part reads this."""
        if stretch.born < self._open[-1].start:
            for part in self._open:
                if stretch.born < part.start:
                    part.handed.append(stretch)

    def leave_since(self, start: int) -> None:
        """Leave every part entered since the moment `start`, such as when a round of a block began."""
        while len(self._open) > 1 and self._open[-1].start >= start:
            self._leave()

    def note(self, block: Block) -> None:
        """See whether a repeated block is a part or a list of bare layers."""
        layers = [entry for entry in block.entries if not (isinstance(entry, Call) and isinstance(entry.kind, Cast))]
        names = {entry.name.rpartition(".")[0] if isinstance(entry, Call) else "" for entry in layers}
        if len(names) == 1 and (name := names.pop()).endswith(block.name):
            self._lists.add(name)

    def _leave(self) -> None:
        now = len(self._lifetimes.moments) - 1
        for stretch in self._open.pop().handed:
            stretch.died = max(stretch.died, now)
