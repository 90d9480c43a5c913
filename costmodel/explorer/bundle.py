"""Guarded formulas as the data and the JavaScript of a page, each distinct piece once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from costmodel.analysis.closed_forms import Leaf, Refusal
from costmodel.cost.timeline import Alive
from costmodel.explorer.javascript import Formulas
from costmodel.explorer.laws import ARGUMENTS
from costmodel.explorer.playing import OF_LAYOUT, FormulaNumber
from costmodel.explorer.regimes import (
    COLUMNS,
    LINES,
    MODEL_QUANTITIES,
    OF_DECODING,
    RANK_QUANTITIES,
    SUMS,
    Distinct,
    PageForms,
    PageLeaf,
)
from costmodel.graph.kernel import Kernel
from costmodel.symbolic.guards import Branch
from costmodel.symbolic.polynomial import Polynomial

REPEATS = ("layers", "decoder_layers")
"""Sizes that count repeats: formulas read as sums over them, with the batch in front."""


class Part(NamedTuple):
    """The forms of one combination of choices, as plain data; numbers are places in its own lists.

    formulas: each once.

    nodes: of the tree, the root first, then each after the one that leads to it: a leaf's number, None where there has
    been no look, or [condition, outcome, node, outcome, node, ...]. A tree may be deeper than Python calls reach.
    leaves: [rows, {optimizer: [quantities, ranks, kernels, play]}], or [message, point] of a refusal. play: see
    `PlayOutline`, of layouts alone. A rank is [quantities,
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
    formulas, conditions, leaves, nodes = forms.formulas, Distinct(), list[Any](), list[Any]()
    found: list[Branch[Leaf] | Leaf | None] = [forms.tree]
    for node in found:  # which grows
        if isinstance(node, Branch):
            relation, of = node.condition
            after = sorted(node.after.items(), key=lambda pair: int(pair[0]))
            ways = [each for place, (outcome, _) in enumerate(after, len(found)) for each in (int(outcome), place)]
            nodes.append([conditions[relation, formulas[of]], *ways])
            found += [child for _, child in after]
        elif node is None:
            nodes.append(None)
        else:
            nodes.append(len(leaves))
            leaves.append(node.outline if isinstance(node, PageLeaf) else _refusal(node))
    return Part([*formulas], [*conditions], leaves, nodes, forms.kernels)


def _refusal(leaf: Leaf) -> list[Any]:
    assert isinstance(leaf, Refusal)
    return [leaf.message, dict(leaf.point)]


class WrittenFormulas(dict[int, int]):
    """Of the formulas of a part, by their place in it, the number that each has once it is written."""

    def __init__(self, part: Part, formulas: Formulas) -> None:
        super().__init__()
        self.part, self.formulas = part, formulas

    def __missing__(self, place: int) -> int:
        number = self[place] = self.formulas.number(self.part.formulas[place])
        return number


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
        self.plays = Distinct()
        self.kernels: dict[str, Kernel] = {}
        self.trees: dict[str, int | None] = {}

    def add(self, key: str, part: Part) -> None:
        """Join the forms of one combination."""
        numbers = WrittenFormulas(part, self.formulas)
        conditions = [self.conditions[relation, numbers[at]] for relation, at in part.conditions]
        leaves = [self._leaf(leaf, numbers) for leaf in part.leaves]
        self.kernels |= part.kernels
        nodes: dict[int, int | None] = {}  # a leaf is −1 − its number
        for place, node in reversed([*enumerate(part.nodes)]):
            if isinstance(node, list):
                condition, *ways = node
                after = [nodes[each] if turn % 2 else each for turn, each in enumerate(ways)]
                nodes[place] = self.nodes[(conditions[condition], *after)]
            else:
                nodes[place] = None if node is None else -1 - leaves[node]
        self.trees[key] = nodes[0]

    def _leaf(self, leaf: Sequence[Any], numbers: WrittenFormulas) -> int:
        if isinstance(leaf[0], str):
            message, point = leaf
            return self.leaves[
                (message, *(point[name] if name in point else point[OF_DECODING[name]] for name in self.sizes))
            ]
        rows, by_optimizer = leaf

        def written(item: Any) -> Any:
            if isinstance(item, FormulaNumber):
                return numbers[item]
            return tuple(map(written, item)) if isinstance(item, list | tuple) else item

        words = self.words

        def listed(store: Distinct, items: Sequence[Sequence[Any]], named: int) -> int:
            entries = [
                store[(*[words[word] for word in item[:named]], *[numbers[number] for number in item[named:]])]
                for item in items
            ]
            return self.lists[tuple(entries)]

        def formulas(items: Sequence[int]) -> int:
            return self.lists[tuple([numbers[number] if number >= 0 else -1 for number in items])]

        def moment(phase: str, layer: str, rounds: str, *changes: tuple[int, int]) -> int:
            around = [each for at, of in changes for each in (at, numbers[of])]
            return self.moments[(words[phase], words[layer], words[rounds], *around)]

        def course(items: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
            return tuple(
                [(numbers[item[0]], course(item[1])) if isinstance(item[0], int) else moment(*item) for item in items]
            )

        def rank(quantities: Sequence[int], persistent: Sequence[int], levels: Any, sums: Any, moments: Any) -> int:
            return self.ranks[
                formulas(quantities),
                formulas(persistent),
                listed(self.levels, levels, 3),
                listed(self.sums, sums, 3),
                self.courses[course(moments)],
            ]

        forms = [
            (
                words[optimizer],
                formulas(quantities),
                self.lists[tuple([rank(*each) for each in ranks])],
                listed(self.tasks, kernels, 4),
                -1 if play is None else self.plays[written(play)],
            )
            for optimizer, (quantities, ranks, kernels, play) in by_optimizer.items()
        ]
        return self.leaves[(listed(self.rows, rows, 2), *forms)]

    def data(self) -> dict[str, Any]:
        """What the formulas are of, and where they hold."""
        return {
            "trees": self.trees,
            "words": [*self.words],
            "conditions": [*self.conditions],
            "nodes": [*self.nodes],
            "leaves": [*self.leaves],
            "rows": [*self.rows],
            "ranks": [*self.ranks],
            "levels": [*self.levels],
            "moments": [*self.moments],
            "courses": [*self.courses],
            "sums": [*self.sums],
            "tasks": [*self.tasks],
            "plays": [*self.plays],
            "lists": [*self.lists],
            "columns": COLUMNS,
            "persistent": Alive._fields,
            "lines": LINES,
            "quantities": MODEL_QUANTITIES,
            "rankQuantities": RANK_QUANTITIES,
            "sumColumns": SUMS,
            "arguments": ARGUMENTS,
            "degrees": OF_LAYOUT,
        }
