"""Activation checkpointing: which stretches of a model are run again in backward instead of kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Self

from costmodel.errors import SettingError, UnknownNameError, unknown
from costmodel.graph.call import Block, Call, Rerun
from costmodel.graph.tensor import Alias, Storage, Tensor
from costmodel.symbolic.sizes import branch_value, ceil_root
from costmodel.training.settings import Settings

SELECTIVE = "core"
"""What mixers call the part that "selective" recomputes."""


@dataclass
class PartNames:
    """Parts of a model by name, as `is_named` says.

    seen: paths of the parts that were met. matched: the names that some part has.
    """

    names: frozenset[str] = frozenset()
    seen: set[str] = field(default_factory=set)
    matched: set[str] = field(default_factory=set)

    def picks(self, path: list[str]) -> bool:
        """Whether the part at this path is one that was named."""
        if not self.names:
            return False
        here = ".".join(path)
        self.seen.add(here)
        picked = {name for name in self.names if is_named(here, name)}
        self.matched |= picked
        return bool(picked)

    def check_all(self, what: str) -> None:
        """Raise UnknownNameError for a name that no part has. what: says what they were named for."""
        for name in sorted(self.names - self.matched):
            raise unknown_part(what, name, self.seen)


@dataclass
class Recomputation(PartNames):
    """What to recompute: every so many equal blocks ("sqrt": as many as there are groups), and parts by name.

    depth: the most equal blocks in a row that were met. by_operator: whether results of some layers are kept within.
    """

    every: int | str | None = None
    by_operator: bool = False
    depth: int = 0
    open: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """A fresh plan of what `settings` say is recomputed."""
        if not settings.training or settings.checkpoint == "none":
            return cls()
        if settings.checkpoint in ("block", "sqrt"):
            return cls(every=1 if settings.checkpoint == "block" else "sqrt")
        if settings.checkpoint == "operators":
            return cls(every=1, by_operator=True)
        if isinstance(settings.checkpoint, int):
            return cls(every=settings.checkpoint)
        names = (SELECTIVE,) if settings.checkpoint == "selective" else settings.checkpoint
        return cls(names=frozenset((names,) if isinstance(names, str) else names))

    def __bool__(self) -> bool:
        return self.every is not None or bool(self.names)

    def group(self, depth: int) -> int:
        """Blocks to a group, of `depth` equal ones. Raises SettingError if there are fewer."""
        self.depth = max(self.depth, branch_value(depth))
        size = ceil_root(depth) if self.every == "sqrt" else int(self.every or 1)
        if size > depth:
            raise SettingError(f"checkpoint={size} is larger than the depth of {depth} blocks: use at most {depth}")
        return size

    def part(self, path: list[str], block: Block) -> AbstractContextManager[None]:
        """What is called within, on `block`, is recomputed if the part at this path was named."""
        return self.stretch(block) if self.picks(path) else nullcontext()

    @contextmanager
    def stretch(self, block: Block, rerun: Rerun = "whole", inputs: Sequence[Tensor] | None = None) -> Iterator[None]:
        """What is called within, on `block`, is recomputed; a stretch within a stretch is part of it.

        inputs: what autograd keeps of it, read within or not; what else is read is only held, by the function that runs
        it (None: autograd keeps all that is read).
        """
        if self.open:
            yield
            return
        self.open = True
        start = len(block.entries)
        try:
            yield
        finally:
            self.open = False
        if any(not isinstance(entry, Alias) for entry in block.entries[start:]):
            stretch = _recomputed(block, block.entries[start:], rerun, inputs)
            block.entries[start:] = [stretch]
            if self.by_operator:
                _keep_results(stretch)

    def check(self) -> None:
        """Raise an error if what was asked for is nowhere in the model."""
        if self.every is not None and not self.depth:
            raise SettingError(
                "checkpoint by blocks needs a model of equal blocks: name the parts to recompute instead"
            )
        if SELECTIVE in self.names - self.matched:
            raise SettingError(
                'checkpoint="selective" recomputes attention from its scores to mixed values, and scans, of which'
                " this model has none: name the parts to recompute instead"
            )
        self.check_all("part to checkpoint")


GROUP = "group"
"""What stands in a path for blocks that are recomputed together."""


def is_named(path: str, name: str) -> bool:
    """Whether a part goes by a name: its path (``block.mlp``) or the end of it (``mlp``).

    Each word of the name may leave out its number (``conv`` is every one of ``conv1``, ``conv2``), and the name a word
    that is a number, which tells rounds of a part or modules of a list apart (``hidden1`` is all of ``hidden1`` and
    ``hidden1.2``). So a name means the same however many of its equal rounds were traced at once.
    """
    parts = name.split(".")
    words = path.split(".")
    if name.isdigit():  # says nothing without what it is a number of
        return words == parts
    return _ends_in(words, parts)


def paths_to(path: str) -> list[str]:
    """Paths of the parts that what is at this path is in, and its own."""
    words = path.split(".")
    return [".".join(words[:end]) for end in range(1, len(words) + 1)]


def _ends_in(words: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a path ends in the parts of a name, words left out as `is_named` says; in as many steps as both have."""
    open_parts = {len(parts)}  # how many parts of the name may be left to match before the words so far
    for word in reversed(words):
        if 0 in open_parts:
            break
        matched = {number - 1 for number in open_parts if parts[number - 1] in (word, *_unnumbered(word))}
        open_parts = matched | open_parts if _is_number(word) or word == GROUP else matched
    return 0 in open_parts


def _is_number(word: str) -> bool:
    """Whether a word numbers rounds: "2", or "2-5"."""
    return not word.strip("0123456789-")


def _unnumbered(word: str) -> tuple[str, ...]:
    """A word without the number at its end, and without what joins them, as far as something is left."""
    stem = word.rstrip("0123456789")
    return tuple(name for name in (stem, stem.rstrip("_")) if name and stem != word)


def unknown_part(what: str, name: str, paths: Iterable[str], others: Iterable[str] = ()) -> UnknownNameError:
    """Error for a `name` of no part: the nearest names that parts at these paths go by, or the last words of all.

    others: names that could have been meant besides.
    """
    every, last = set(paths), set()
    for path in paths:
        words = path.split(".")
        plain = [(_unnumbered(word) or (word,))[-1] for word in words if not _is_number(word)]
        every |= {".".join(some[start:]) for some in (words, plain) for start in range(len(some))}
        last |= {*plain[-1:]}
    return unknown(what, name, {*others, *(one for one in every if any(is_named(path, one) for path in paths))}, last)


def _recomputed(
    outer: Block, entries: list[Call | Alias | Block], rerun: Rerun, inputs: Sequence[Tensor] | None
) -> Block:
    """A block of these entries that keeps only what they read from outside."""
    block = Block(outer.name, 1, outer)
    block.entries, block.recomputed = entries, rerun
    calls = list(block.calls())
    fresh = [call.y.storage for call in calls if all(x.storage is not call.y.storage for x in call.inputs)]
    made = {leaf for storage in fresh for leaf in storage.leaves()}
    made |= {entry.storage for nested in block.blocks() if (entry := nested.entry) is not None}
    read: dict[Storage, None] = {}
    for call in calls:
        read.update(dict.fromkeys(leaf for x in call.inputs for leaf in _memory(x)))
    if any(call.differentiated for call in calls):
        block.saved = tuple(s for s in read if s not in made and s.origin == "computed")
    if inputs is not None:
        own = dict.fromkeys(leaf for x in inputs for leaf in _memory(x) if leaf.origin == "computed")
        block.held = tuple(s for s in block.saved if s not in own)
        block.saved = tuple(own)
    for call in calls:
        call.recomputed = call.rerun = True
    return block


def _keep_results(stretch: Block) -> None:
    """Note what calls of a stretch make that stays, by their kind.

    Source: ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` with the list of torchtitan's "selective op"
    (``torchtitan/distributed/activation_checkpoint.py``): ``aten.mm``, every second one left out, and fused attention.
    """
    _note_results(stretch, 0)


def _note_results(block: Block, products: int) -> int:
    """Products of a block and those before it, of which every second one's result stays."""
    for entry in block.entries:
        if isinstance(entry, Block):
            within = _note_results(entry, products) - products
            if within % 2 and branch_value(entry.count) > 1:
                raise SettingError(
                    f"checkpoint='operators' is not worked out for {entry.name!r}, an odd number of products that "
                    "repeat within a block: use checkpoint='block'"
                )
            products += within * branch_value(entry.count)
        elif isinstance(entry, Call):
            products = _note_result(entry, products)
    return products


def _note_result(call: Call, products: int) -> int:
    """Products up to this call, whose result is noted if it stays."""
    if call.layer.of_experts:
        raise SettingError("checkpoint='operators' is not worked out for experts: use checkpoint='block'")
    kept = call.layer.kept_results
    products += kept == "every second"
    if kept == "all" or (kept == "every second" and products % 2):
        beside = [s for s in call.saved if s.role in ("statistic", "random")] if kept == "all" else []
        call.results = (call.y.storage, *beside)
    return products


def _memory(x: Tensor) -> list[Storage]:
    """The memory of a tensor, be it that of a round."""
    return [leaf for leaf in (x.storage, *x.storage.leaves()) if leaf.parts is None]
