"""Guarded formulas as the data and the JavaScript of a page, each distinct piece once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from costmodel.analysis.closed_forms import Forms, Leaf, Refusal
from costmodel.cost.timeline import Alive
from costmodel.explorer.javascript import Formulas
from costmodel.explorer.laws import ARGUMENTS
from costmodel.explorer.regimes import (
    CHANGES,
    COLUMNS,
    LINES,
    MODEL_QUANTITIES,
    OF_DECODING,
    RANK_QUANTITIES,
    SUMS,
    Key,
    PageForms,
)
from costmodel.graph.kernel import Kernel
from costmodel.symbolic.guards import Branch
from costmodel.symbolic.polynomial import Polynomial

REPEATS = ("layers", "decoder_layers")
"""Sizes that count repeats: formulas read as sums over them, with the batch in front."""


class Distinct:
    """Items by number, each once."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, item: Any) -> int:
        """The number of an item that can be hashed."""
        known = self._numbers.setdefault(item, len(self.items))
        if known == len(self.items):
            self.items.append(item)
        return known


class Part(NamedTuple):
    """The forms of one combination of choices, as plain data; numbers are places in its own lists.

    formulas: each once.

    nodes: of the tree, the root first, then each after the one that leads to it: a leaf's number, None where there has
    been no look, or [condition, outcome, node, outcome, node, ...]. A tree may be deeper than Python calls reach.
    leaves: [rows, {optimizer: [quantities, ranks, kernels]}], or [message, point] of a refusal. A rank is [quantities,
    persistent, levels, sums, course], and a course moments in order, each [phase, layer, rounds, (change, formula),
    ...], with [how many more times, [moments]] in place of those that happen again.
    kernels: one of each law.
    """

    formulas: list[Polynomial]
    conditions: list[tuple[str, int]]
    leaves: list[Any]
    nodes: list[Any]
    kernels: Mapping[str, Kernel]


def part_of(forms: PageForms) -> Part:
    """What has been explored."""
    formulas, conditions, leaves, nodes = Distinct(), Distinct(), list[Any](), list[Any]()
    found: list[Branch[Leaf] | Leaf | None] = [forms.tree]
    for node in found:  # which grows
        if isinstance(node, Branch):
            relation, of = node.condition
            after = sorted(node.after.items(), key=lambda pair: int(pair[0]))
            ways = [each for place, (outcome, _) in enumerate(after, len(found)) for each in (int(outcome), place)]
            nodes.append([conditions.number((relation, formulas.number(of))), *ways])
            found += [child for _, child in after]
        elif node is None:
            nodes.append(None)
        else:
            nodes.append(len(leaves))
            leaves.append(_refusal(node) if isinstance(node, Refusal) else _leaf(node, formulas))
    return Part(formulas.items, conditions.items, leaves, nodes, forms.kernels)


def _refusal(leaf: Refusal) -> list[Any]:
    return [leaf.message, dict(leaf.point)]


def _leaf(leaf: Forms, formulas: Distinct) -> list[Any]:
    listed: dict[tuple[str, str, int], dict[int, list[Any]]] = {}
    named: dict[tuple[str, str, int], dict[str, int]] = {}
    for key, formula in leaf.formulas.items():
        assert isinstance(key, Key)
        number, of = formulas.number(formula), (key.section, key.optimizer, key.rank)
        if key.section in ("quantity", "rank", "persistent"):
            named.setdefault(of, {})[key.name] = number
        elif key.section == "moment":
            moment = listed.setdefault(of, {}).setdefault(key.number, list(key.place))
            moment += [(CHANGES.index(key.name), number)] if key.name else []
        else:
            listed.setdefault(of, {}).setdefault(key.number, list(key.place)).append(number)

    def items(section: str, optimizer: str = "", rank: int = 0) -> list[list[Any]]:
        """Those that are the same whatever the optimizer, then its own."""
        of = ("", optimizer) if optimizer else ("",)
        return [item for each in of for item in listed.get((section, each, rank), {}).values()]

    ranks: dict[str, list[Any]] = {}
    for section, optimizer, rank in named:
        if section == "rank":
            numbers, throughout = named[section, optimizer, rank], named["persistent", optimizer, rank]
            ranks.setdefault(optimizer, []).append(
                [
                    [numbers[quantity] for quantity in RANK_QUANTITIES],
                    [throughout[line] for line in Alive._fields],
                    items("level", optimizer, rank),
                    items("sum", optimizer, rank),
                    _course(items("moment", optimizer, rank), items("loop", optimizer, rank)),
                ]
            )
    return [
        items("row"),
        {
            optimizer: [
                [named["quantity", optimizer, 0].get(quantity, -1) for quantity in MODEL_QUANTITIES],
                own,
                items("kernel", optimizer),
            ]
            for optimizer, own in ranks.items()
        },
    ]


def _course(moments: list[Any], loops: Sequence[Sequence[Any]]) -> list[Any]:
    """Moments with those that happen again in a list of their own; inner loops come before those around them."""
    course = [[moment] for moment in moments]
    for start, end, more in loops:
        first, after = int(start), int(end)
        again = [each for stretch in course[first:after] for each in stretch]
        course[first:after] = [[[more, again]], *([] for _ in range(first + 1, after))]
    return [each for stretch in course for each in stretch]


class Bundle:
    """The formulas of all combinations of one model."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """names: what each letter is called."""
        self.sizes = tuple(names)
        decoding = {OF_DECODING[name]: letter for name, letter in names.items() if name in OF_DECODING}
        self.formulas, self.words = Formulas({**names, **decoding}, REPEATS, ("batch",)), Distinct()
        self.conditions, self.nodes, self.leaves = Distinct(), Distinct(), Distinct()
        self.rows, self.levels, self.tasks, self.lists = Distinct(), Distinct(), Distinct(), Distinct()
        self.ranks, self.sums, self.moments, self.courses = Distinct(), Distinct(), Distinct(), Distinct()
        self.kernels: dict[str, Kernel] = {}
        self.trees: dict[str, int | None] = {}

    def add(self, key: str, part: Part) -> None:
        """Join the forms of one combination."""
        numbers = list(map(self.formulas.number, part.formulas))
        conditions = [self.conditions.number((relation, numbers[at])) for relation, at in part.conditions]
        leaves = [self._leaf(leaf, numbers) for leaf in part.leaves]
        self.kernels |= part.kernels
        nodes: dict[int, int | None] = {}  # a leaf is −1 − its number
        for place, node in reversed([*enumerate(part.nodes)]):
            if isinstance(node, list):
                condition, *ways = node
                after = [nodes[each] if turn % 2 else each for turn, each in enumerate(ways)]
                nodes[place] = self.nodes.number((conditions[condition], *after))
            else:
                nodes[place] = None if node is None else -1 - leaves[node]
        self.trees[key] = nodes[0]

    def _leaf(self, leaf: Sequence[Any], numbers: Sequence[int]) -> int:
        if isinstance(leaf[0], str):
            message, point = leaf
            return self.leaves.number(
                (message, *(point[name] if name in point else point[OF_DECODING[name]] for name in self.sizes))
            )
        rows, by_optimizer = leaf

        def listed(store: Distinct, items: Sequence[Sequence[Any]], words: int) -> int:
            entries = [
                (*map(self.words.number, item[:words]), *(numbers[number] for number in item[words:])) for item in items
            ]
            return self.lists.number(tuple(map(store.number, entries)))

        def formulas(items: Sequence[int]) -> int:
            return self.lists.number(tuple(numbers[number] if number >= 0 else -1 for number in items))

        def moment(phase: str, layer: str, rounds: str, *changes: tuple[int, int]) -> int:
            words = map(self.words.number, (phase, layer, rounds))
            return self.moments.number((*words, *(each for at, of in changes for each in (at, numbers[of]))))

        def course(items: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
            return tuple(
                (numbers[item[0]], course(item[1])) if isinstance(item[0], int) else moment(*item) for item in items
            )

        def rank(quantities: Sequence[int], persistent: Sequence[int], levels: Any, sums: Any, moments: Any) -> int:
            return self.ranks.number(
                (
                    formulas(quantities),
                    formulas(persistent),
                    listed(self.levels, levels, 3),
                    listed(self.sums, sums, 3),
                    self.courses.number(course(moments)),
                )
            )

        forms = [
            (
                self.words.number(optimizer),
                formulas(quantities),
                self.lists.number(tuple(rank(*each) for each in ranks)),
                listed(self.tasks, kernels, 4),
            )
            for optimizer, (quantities, ranks, kernels) in by_optimizer.items()
        ]
        return self.leaves.number((listed(self.rows, rows, 2), *forms))

    def data(self) -> dict[str, Any]:
        """What the formulas are of, and where they hold."""
        return {
            "trees": self.trees,
            "words": self.words.items,
            "conditions": self.conditions.items,
            "nodes": self.nodes.items,
            "leaves": self.leaves.items,
            "rows": self.rows.items,
            "ranks": self.ranks.items,
            "levels": self.levels.items,
            "moments": self.moments.items,
            "courses": self.courses.items,
            "sums": self.sums.items,
            "tasks": self.tasks.items,
            "lists": self.lists.items,
            "columns": COLUMNS,
            "persistent": Alive._fields,
            "lines": LINES,
            "quantities": MODEL_QUANTITIES,
            "rankQuantities": RANK_QUANTITIES,
            "sumColumns": SUMS,
            "arguments": ARGUMENTS,
        }
