"""When each stretch of memory in a training step is taken and given back: what replays of a tape write down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate
from operator import add
from typing import Literal, NamedTuple

from costmodel.cost.allocator import exactly
from costmodel.graph.call import Block, Call
from costmodel.graph.kernel import Message

MomentPhase = Literal["forward", "loss", "backward", "recompute", "optimizer"]

GRADIENTS, ACTIVATIONS, CASTS, CACHE, TEMPORARIES = LINES = range(5)
"""The lines on which memory comes and goes during a step; on all others it is there throughout."""

LineBytes = tuple[int, int, int, int, int]
"""Bytes on each of these lines; of what decoding keeps, those more than there were at the start."""

Course = tuple[tuple[int, ...], ...]
"""For each of these lines bytes at every moment, or changes of them around it."""

Moment = tuple[MomentPhase, str, str]
"""What runs: its phase, its layer, and the rounds of the blocks around it."""


Stream = Literal["layers", "gather", "reduce"]
"""CUDA streams of a step: that of the layers, and those in which FSDP2 gathers weights and reduces gradients."""

BEFORE = -1
"""When what was there before the first moment was made."""


class Allocation:
    """Bytes that are alive from one moment to another, both included; `died` moves on with every use.

    born: `BEFORE` if they were there when the first moment began.
    handles: of a gradient, how many hold it. rounds: how many are given back at once, where it stands for those of
    alike rounds and all stay until after them.
    settled: the moment after which a gradient is its weight's. stream: the CUDA stream whose kernels run meanwhile, if
    another than that of the layers: allocators have blocks for each by itself.
    """

    __slots__ = ("born", "died", "handles", "line", "rounds", "settled", "size", "stream")

    def __init__(self, size: int, line: int, born: int, stream: Stream = "layers") -> None:
        self.size = size
        self.stream: Stream = stream
        self.line = line
        self.born = self.settled = self.died = born
        self.rounds = 1
        self.handles = 0


class MomentLoop(NamedTuple):
    """The moments from `start` up to `end` happen `more` times beside the one written down."""

    start: int
    end: int
    more: int


class Lifetimes:
    """The moments of one step, and what is alive at each. allotted: what the allocator takes for so many bytes.

    ready: of each bucket of gradients that is sent at the end, how many moments there are until it is full.
    """

    def __init__(self, allotted: Callable[[int], int] = exactly) -> None:
        self.allotted = allotted
        self.moments: list[Moment] = []
        self.allocations: list[Allocation] = []
        self.loops: list[MomentLoop] = []
        self.released: list[tuple[int, int]] = []
        self.messages: list[tuple[int, Message]] = []
        self.ready: list[int] = []

    def release(self, size: int, now: int) -> None:
        """Bytes kept by decoding since before the start, which something new takes the place of at this moment."""
        self.released.append((size, now))

    def moment(self, phase: MomentPhase, layer: str, rounds: str) -> int:
        """Time moves on."""
        now = len(self.moments)
        self.moments.append((phase, layer, rounds))
        return now

    def send(self, messages: Iterable[Message], now: int) -> None:
        """Collectives that run at this moment, in order."""
        self.messages += [(now, message) for message in messages]

    def take(self, size: int, now: int, line: int = TEMPORARIES, stream: Stream = "layers") -> Allocation:
        """So many bytes, for this moment until `died` says otherwise."""
        allocation = Allocation(size, line, now, stream)
        self.allocations.append(allocation)
        return allocation

    def held(self, size: int, line: int = TEMPORARIES) -> Allocation:
        """So many bytes that were there before, of which only the end is of these moments."""
        allocation = Allocation(size, line, BEFORE)
        self.allocations.append(allocation)
        return allocation

    def loop(self, start: int, more: int) -> None:
        """All since the moment `start` happens `more` times beside."""
        if start < len(self.moments):
            self.loops.append(MomentLoop(start, len(self.moments), more))

    def changes(self) -> Course:
        """For each line two changes a moment: bytes taken before it, and those given back after it, which are negative.

        A gradient in the making is a temporary, until it is its weight's.
        """
        allotted = self.allotted
        changes = [[0] * (2 * len(self.moments)) for _ in LINES]
        temporaries = changes[TEMPORARIES]
        for allocation in self.allocations:
            size, line = allotted(allocation.size), changes[allocation.line]
            if allocation.born == BEFORE:
                pass
            elif allocation.line == GRADIENTS:
                temporaries[2 * allocation.born] += size
                temporaries[2 * allocation.settled + 1] -= size
                line[2 * allocation.settled + 1] += size
            else:
                line[2 * allocation.born] += size
            line[2 * allocation.died + 1] -= size * allocation.rounds
        for size, now in self.released:
            changes[CACHE][2 * now + 1] -= allotted(size)
        return tuple(map(tuple, changes))

    def levels(self, changes: Course) -> Course:
        """Bytes alive at each moment.

        Rounds that are alike add the same to what stays alive, so over all of them each moment is at its highest in the
        first or in the last: the one that is higher stands here for all.
        """
        alive, growths = self._flow(changes)
        for (start, end, _), grown in zip(self.loops, growths, strict=True):
            if sum(grown) > 0:
                for line, more in zip(alive, grown, strict=True):
                    line[start:end] = [size + more for size in line[start:end]]
        return tuple(map(tuple, alive))

    def every_level(self, changes: Course) -> tuple[tuple[LineBytes, ...], ...]:
        """As `levels`, of letters: at each moment what it is in the first round, and in the last where that differs."""
        alive, growths = self._flow(changes, _plus)
        result = [[level] for level in zip(*alive, strict=True)]
        for (start, end, _), grown in zip(self.loops, growths, strict=True):
            if grown[TEMPORARIES] == 0:
                for levels in result[start:end]:
                    levels += [tuple(map(_plus, level, grown)) for level in levels]
            elif sum(grown) > 0:
                for levels in result[start:end]:
                    levels[:] = [tuple(map(_plus, level, grown)) for level in levels]
        return tuple(map(tuple, result))

    def _flow(self, changes: Course, plus: Callable[[int, int], int] = add) -> tuple[list[list[int]], list[list[int]]]:
        """Bytes alive at each moment, in the first round of every loop; what the rounds after that add to each line.

        Inner loops are in front of those around them, which so contain what they add. plus: how sizes are added.
        """
        changed = list(map(list, changes))
        growths: list[list[int]] = []
        for start, end, more in self.loops:
            grown = [more * reduce(plus, line[2 * start : 2 * end], 0) for line in changed]
            for line, added in zip(changed, grown, strict=True):
                line[2 * end - 1] += added
            growths.append(grown)
        return [list(accumulate(line, plus))[::2] for line in changed], growths

    def __repr__(self) -> str:
        return f"<Lifetimes: {len(self.moments)} moments, {len(self.allocations)} allocations>"


def _plus(total: int, size: int) -> int:
    """The sum, which takes no time where nothing is added: most changes are none."""
    return total if type(size) is int and not size else total + size


def unrolled(moments: int, loops: Sequence[MomentLoop]) -> list[int]:
    """The order in which so many moments happen with every round of `loops` by itself; inner folds come first."""
    order = [[now] for now in range(moments)]
    for start, end, more in loops:
        once = [now for stretch in order[start:end] for now in stretch]
        order[start:end] = [once * (1 + int(more)), *([] for _ in range(start + 1, end))]
    return [now for stretch in order for now in stretch]


class OpenPart:
    """A part of the model, by its path (`Tape.caller`), and what it was handed that there was before `start`."""

    __slots__ = ("handed", "path", "start")

    def __init__(self, path: str, start: int) -> None:
        self.path = path
        self.start = start
        self.handed: list[Allocation] = []


class OpenParts:
    """The parts that a replay is in, from the whole model inwards."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self._lifetimes = lifetimes
        self._open = [OpenPart("", 0)]
        self._lists: set[str] = set()

    @property
    def start(self) -> int:
        """When the innermost was entered."""
        return self._open[-1].start

    def enter(self, path: str) -> None:
        """Go to the part that holds the next layer: leave those that it is not in, and enter those that it is."""
        if path == self._open[-1].path:
            return
        while not path.startswith(self._open[-1].path):
            self._leave()
        now = len(self._lifetimes.moments)
        end = len(self._open[-1].path)
        while end := path.find("/", end) + 1:
            if path[:end] not in self._lists:
                self._open.append(OpenPart(path[:end], now))

    def hand(self, allocation: Allocation) -> None:
        """A layer of the innermost part reads this, which there was before its start."""
        for part in self._open:
            if allocation.born < part.start:
                part.handed.append(allocation)

    def leave_since(self, start: int) -> None:
        """Leave every part entered since the moment `start`, such as when a round of a block began."""
        while len(self._open) > 1 and self._open[-1].start >= start:
            self._leave()

    def note(self, block: Block) -> None:
        """See whether a repeated block is a part or a list of bare layers."""
        calls = [entry for entry in block.entries if isinstance(entry, Call) and not entry.layer.converts]
        paths = {call.part for call in calls} | {"" for entry in block.entries if isinstance(entry, Block)}
        if len(paths) == 1 and (path := paths.pop()).endswith(f"{block.name}/"):
            self._lists.add(path)

    def _leave(self) -> None:
        now = len(self._lifetimes.moments) - 1
        for allocation in self._open.pop().handed:
            allocation.died = max(allocation.died, now)
