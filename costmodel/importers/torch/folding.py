"""Equal blocks of a program, one after another: found once, so that a run traces one for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from costmodel.importers.torch.program import TENSOR, CapturedProgram, Step, tensors_in


class Loop(NamedTuple):
    """Blocks that do the same, each to what the one before made.

    scope, label: where they are, and what one of them is called; depth: parts of the path that this stands for.
    blocks: their steps. entries, exits: the tensor that each is handed and the one that it hands on. own: names of the
    weights and buffers of each. outer: tensors from outside that all of them read.
    """

    scope: tuple[str, ...]
    label: str
    depth: int
    blocks: tuple[tuple[Step, ...], ...]
    entries: tuple[str, ...]
    exits: tuple[str, ...]
    own: tuple[frozenset[str], ...]
    outer: frozenset[str]


Item = Step | Loop


class _Block(NamedTuple):
    """One candidate: its steps by number, what it is in terms of its `entry`, and what others use of it."""

    start: int
    stop: int
    signature: Any
    own: frozenset[str]
    outer: frozenset[str]


def fold(program: CapturedProgram) -> tuple[Item, ...]:
    """The steps, with equal blocks folded."""
    return tuple(_Folding(program).items(0, len(program.steps), 0))


def stem_of(part: str) -> str | None:
    """A numbered module's name without its number; None if it has none."""
    stem = part.rstrip("0123456789")
    return None if stem == part else stem


def writes_outside(loop: Loop) -> bool:
    """Whether equal blocks write through views to what is made before them, so that each has another version of it."""
    makers = {output.name: step for step in loop.blocks[0] for output in step.makes}
    bases = [base_of(step.changes, makers) for step in loop.blocks[0]]
    return any(viewed and name not in makers for name, viewed in bases)


def base_of(name: str | None, makers: Mapping[str, Step]) -> tuple[str | None, bool]:
    """The tensor in whose memory one may be, as far back as the steps go that make each, and whether through a view."""
    viewed = False
    while name is not None and (maker := makers.get(name)) and (maker.changes or maker.op in VIEWS):
        viewed = viewed or maker.changes is None
        name = maker.changes or next(iter(tensors_in(list(maker.args.values()))), None)
    return name, viewed


VIEWS = frozenset(
    {
        *("view", "reshape", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten", "permute", "transpose"),
        *("swapaxes", "swapdims", "t", "numpy_T", "mT", "adjoint", "matrix_H", "movedim", "unsqueeze", "squeeze"),
        *("alias", "positive", "expand", "expand_as", "broadcast_to", "slice", "narrow", "select", "diagonal"),
        *("split", "split_with_sizes", "chunk", "tensor_split", "unbind", "unsafe_split", "unsafe_chunk", "hsplit"),
        *("contiguous", "to", "type_as", "unfold", "atleast_1d", "atleast_2d", "dropout", "feature_dropout"),
    }
)
"""Operators whose results may be in the memory of what they read first."""


class _Folding:
    """Looks for modules that a list numbers, such as ``layers.0``, ``layers.1``."""

    def __init__(self, program: CapturedProgram) -> None:
        self.program = program
        self.steps = program.steps
        self.uses: dict[str, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            for name in tensors_in(list(step.args.values())):
                self.uses[name].append(number)
        for name in program.outputs:
            self.uses[name].append(len(self.steps))

    def items(self, start: int, stop: int, depth: int) -> Iterator[Item]:
        """Items of a stretch of steps, whose paths are alike up to `depth`."""
        at = start
        while at < stop:
            level = next(
                (n for n, part in enumerate(self.steps[at].path) if n >= depth and stem_of(part) is not None), None
            )
            if level is None:
                yield self.steps[at]
                at += 1
                continue
            prefix = self.steps[at].path[:level]
            stretches = list(self._stretches(at, stop, prefix))
            yield from self._series(stretches, prefix)
            at = stretches[-1][1]

    def _stretches(self, start: int, stop: int, prefix: tuple[str, ...]) -> Iterator[tuple[int, int]]:
        """Stretches of steps, one for each numbered module under `prefix`, in a row."""
        level = len(prefix)
        stem = stem_of(self.steps[start].path[level])

        def child(number: int) -> str | None:
            path = self.steps[number].path
            inside = len(path) > level and path[:level] == prefix and stem_of(path[level]) == stem
            return path[level] if inside else None

        for name, numbers in groupby(range(start, stop), child):
            if name is None:
                return
            every = list(numbers)
            yield every[0], every[-1] + 1

    def _series(self, stretches: list[tuple[int, int]], prefix: tuple[str, ...]) -> Iterator[Item]:
        first = 0
        while first < len(stretches):
            found = self._fold(stretches, first, prefix)
            if found is None:
                yield from self.items(*stretches[first], len(prefix) + 1)
                first += 1
            else:
                yield found
                first += len(found.blocks)

    def _fold(self, stretches: list[tuple[int, int]], first: int, prefix: tuple[str, ...]) -> Loop | None:
        """The longest fold that starts at a stretch, of two blocks at least."""
        handed = self._handed_on(stretches, first)
        if handed is None:
            return None
        (start, stop), level = stretches[first], len(prefix) + 1
        read = dict.fromkeys(n for step in self.steps[start:stop] for n in tensors_in(list(step.args.values())))
        second = self._block(*stretches[first + 1], handed, level)
        for entry in read:
            if self._block(start, stop, entry, level).signature == second.signature:
                return self._longest(stretches, first, prefix, entry)
        return None

    def _longest(
        self, stretches: list[tuple[int, int]], first: int, prefix: tuple[str, ...], entry: str
    ) -> Loop | None:
        blocks, entries, exits = [self._block(*stretches[first], entry, len(prefix) + 1)], [entry], []
        while handed := self._handed_on(stretches, first + len(exits)):
            block = self._block(*stretches[first + len(blocks)], handed, len(prefix) + 1)
            if block.signature != blocks[0].signature:
                break
            blocks.append(block)
            entries.append(handed)
            exits.append(handed)
        if len(blocks) < 2:
            return None
        last = self._namesake(blocks[-1], blocks[-2], exits[-1])
        if not self._alone(blocks[-1], last):
            blocks, entries = blocks[:-1], entries[:-1]
        else:
            exits.append(last)
        if len(blocks) < 2:
            return None
        steps = tuple(self.steps[block.start : block.stop] for block in blocks)
        own = tuple(block.own for block in blocks)
        stem = (stem_of(steps[0][0].path[len(prefix)]) or "").rstrip("_")
        scope, label = (prefix, stem) if stem or not prefix else (prefix[:-1], prefix[-1])
        return Loop(scope, label or "block", len(prefix) + 1, steps, tuple(entries), tuple(exits), own, blocks[0].outer)

    def _handed_on(self, stretches: list[tuple[int, int]], number: int) -> str | None:
        """The one tensor of a stretch that is used after it, if the next stretch uses it, and no one else."""
        if number + 1 >= len(stretches):
            return None
        (start, stop), (_, end) = stretches[number], stretches[number + 1]
        names = [output.name for step in self.steps[start:stop] for output in step.makes]
        used = [name for name in names if any(use >= stop for use in self.uses[name])]
        if len(used) != 1 or any(use >= end for use in self.uses[used[0]]):
            return None
        return used[0]

    def _namesake(self, block: _Block, model: _Block, name: str) -> str:
        """The tensor of `block` that is where `name` is in `model`."""
        for step, like in zip(self.steps[block.start : block.stop], self.steps[model.start : model.stop], strict=True):
            for output, known in zip(step.makes, like.makes, strict=True):
                if known.name == name:
                    return output.name
        raise AssertionError(f"{name} is not made there")

    def _alone(self, block: _Block, name: str) -> bool:
        """Whether nothing after a block uses another of its tensors than this."""
        names = (output.name for step in self.steps[block.start : block.stop] for output in step.makes)
        return all(other == name or all(use < block.stop for use in self.uses[other]) for other in names)

    def _block(self, start: int, stop: int, entry: str, level: int) -> _Block:
        """A stretch in terms of its entry, its own weights and buffers, and what it makes."""
        local: dict[str, Any] = {entry: "entry"}
        own: set[str] = set()
        outer: set[str] = set()

        def reference(name: str) -> Any:
            if name in local:
                return local[name]
            standing = self.program.weights.get(name) or self.program.buffers.get(name)
            if standing is not None and all(start <= use < stop for use in self.uses[name]):
                own.add(name)
                local[name] = (len(local), *standing[1:])
                return local[name]
            outer.add(name)
            return name

        def written(value: Any) -> Any:
            if isinstance(value, dict):
                return reference(value[TENSOR]) if TENSOR in value else repr(value)
            return tuple(map(written, value)) if isinstance(value, list | tuple) else value

        signature = []
        for step in self.steps[start:stop]:
            args = tuple((name, written(value)) for name, value in step.args.items())
            changes = None if step.changes is None else reference(step.changes)
            outputs = tuple((repr(output.shape), output.dtype) for output in step.makes)
            inner = step.path[level:]
            signature.append((step.op, inner, step.name, args, outputs, changes, step.grad))
            for made_here in step.makes:
                local[made_here.name] = len(local)
        return _Block(start, stop, signature, frozenset(own), frozenset(outer))
