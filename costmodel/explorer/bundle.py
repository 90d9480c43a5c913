"""Guarded formulas as the data and the JavaScript of a page, each distinct piece once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from costmodel.analysis.closed_forms import Forms, Leaf, Refusal
from costmodel.cost.quantities import QUANTITIES
from costmodel.cost.timeline import Alive
from costmodel.explorer.javascript import Formulas
from costmodel.explorer.laws import ARGUMENTS
from costmodel.explorer.regimes import COLUMNS, LINES, Key, PageForms
from costmodel.graph.kernel import Kernel
from costmodel.symbolic.guards import Branch

PERSISTENT = tuple(line for line in Alive._fields if line not in LINES)
"""What is in memory throughout a step."""
REPEATS = ("layers", "decoder_layers")
"""Sizes that count repeats: formulas read as sums over them, with the batch in front."""


class Part(NamedTuple):
    """The forms of one combination of choices, as plain data; numbers are places in its own lists.

    tree: a leaf's number, None where there has been no look, or [condition, outcome, tree, outcome, tree, ...].
    leaves: [rows, {optimizer: [quantities, persistent, levels, kernels]}], or [message, point] of a refusal.
    kernels: one of each law.
    """

    formulas: Formulas
    conditions: list[tuple[str, int]]
    leaves: list[Any]
    tree: Any
    kernels: Mapping[str, Kernel]


def part_of(forms: PageForms, names: Mapping[str, str]) -> Part:
    """Print what has been explored; names: what each letter is called."""
    part = Part(Formulas(names, REPEATS, ("batch",)), [], [], None, forms.kernels)
    known: dict[Any, int] = {}
    return part._replace(tree=_tree(forms, forms.tree, part, known))


def _tree(forms: PageForms, node: Branch | Leaf | None, part: Part, known: dict[Any, int]) -> Any:
    while isinstance(node, Branch) and (outcome := forms.outcome(node.condition)) is not None:
        node = node.after.get(outcome)
    if isinstance(node, Branch):
        condition = node.condition
        if condition not in known:
            known[condition] = len(part.conditions)
            part.conditions.append((condition.relation, part.formulas.number(condition.of)))
        after = [(int(outcome), _tree(forms, child, part, known)) for outcome, child in node.after.items()]
        return [known[condition], *(each for pair in sorted(after, key=lambda pair: pair[0]) for each in pair)]
    if node is None:
        return None
    part.leaves.append(_refusal(node) if isinstance(node, Refusal) else _leaf(node, part.formulas))
    return len(part.leaves) - 1


def _refusal(leaf: Refusal) -> list[Any]:
    return [leaf.message, dict(leaf.point)]


def _leaf(leaf: Forms, formulas: Formulas) -> list[Any]:
    rows: dict[int, list[Any]] = {}
    levels: dict[str, dict[int, list[Any]]] = {}
    kernels: dict[str, dict[int, list[Any]]] = {}
    others: dict[tuple[str, str], dict[str, int]] = {}
    for key, formula in leaf.formulas.items():
        assert isinstance(key, Key)
        number = formulas.number(formula)
        if key.section == "row":
            rows.setdefault(key.number, list(key.place)).append(number)
        elif key.section in ("level", "kernel"):
            of = levels if key.section == "level" else kernels
            of.setdefault(key.optimizer, {}).setdefault(key.number, list(key.place)).append(number)
        else:
            others.setdefault((key.section, key.optimizer), {})[key.name] = number
    return [
        list(rows.values()),
        {
            optimizer: [
                [numbers.get(quantity, -1) for quantity in QUANTITIES],
                [others["persistent", optimizer][line] for line in PERSISTENT],
                list(levels[optimizer].values()),
                list(kernels.get(optimizer, {}).values()),
            ]
            for (section, optimizer), numbers in others.items()
            if section == "quantity"
        },
    ]


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


class Bundle:
    """The formulas of all combinations of one model."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)
        self.texts, self.quotients, self.words = Distinct(), Distinct(), Distinct()
        self.conditions, self.nodes, self.leaves = Distinct(), Distinct(), Distinct()
        self.rows, self.levels, self.tasks, self.lists = Distinct(), Distinct(), Distinct(), Distinct()
        self.kernels: dict[str, Kernel] = {}
        self.trees: dict[str, int | None] = {}

    def add(self, key: str, part: Part) -> None:
        """Join the forms of one combination."""
        renamed: dict[str, str] = {}

        def text(of: str) -> str:
            return re.sub(r"\bq\d+\b", lambda name: renamed[name[0]], of) if renamed else of

        for quotient, name in part.formulas.quotients.items():
            renamed[name] = f"q{1 + self.quotients.number(text(quotient))}"
        numbers = [self.texts.number(text(each)) for each in part.formulas.texts]
        conditions = [self.conditions.number((relation, numbers[at])) for relation, at in part.conditions]
        leaves = [self._leaf(leaf, numbers) for leaf in part.leaves]
        self.kernels |= part.kernels
        self.trees[key] = self._node(part.tree, conditions, leaves)

    def _leaf(self, leaf: Sequence[Any], numbers: Sequence[int]) -> int:
        if isinstance(leaf[0], str):
            message, point = leaf
            return self.leaves.number((message, *(point[name] for name in self.names)))
        rows, by_optimizer = leaf

        def listed(store: Distinct, items: Sequence[Sequence[Any]], words: int) -> int:
            entries = [
                (*map(self.words.number, item[:words]), *(numbers[number] for number in item[words:])) for item in items
            ]
            return self.lists.number(tuple(map(store.number, entries)))

        forms = [
            (
                self.words.number(optimizer),
                self.lists.number(tuple(numbers[number] if number >= 0 else -1 for number in quantities)),
                self.lists.number(tuple(numbers[number] for number in persistent)),
                listed(self.levels, levels, 3),
                listed(self.tasks, kernels, 4),
            )
            for optimizer, (quantities, persistent, levels, kernels) in by_optimizer.items()
        ]
        return self.leaves.number((listed(self.rows, rows, 2), *forms))

    def _node(self, tree: Any, conditions: Sequence[int], leaves: Sequence[int]) -> int | None:
        """A leaf is −1 − its number."""
        if tree is None:
            return None
        if isinstance(tree, int):
            return -1 - leaves[tree]
        condition, *after = tree
        branches = [self._node(each, conditions, leaves) if place % 2 else each for place, each in enumerate(after)]
        return self.nodes.number((conditions[condition], *branches))

    def script(self) -> str:
        """The formulas as JavaScript; see `Formulas.script`."""
        printed = Formulas(self.names)
        printed.texts = self.texts.items
        printed.quotients = {text: f"q{number}" for number, text in enumerate(self.quotients.items, 1)}
        return printed.script()

    def data(self) -> dict[str, Any]:
        """What the formulas are of, and where they hold."""
        return {
            "trees": self.trees,
            "words": self.words.items,
            "conditions": self.conditions.items,
            "nodes": self.nodes.items,
            "leaves": self.leaves.items,
            "rows": self.rows.items,
            "levels": self.levels.items,
            "tasks": self.tasks.items,
            "lists": self.lists.items,
            "columns": COLUMNS,
            "persistent": PERSISTENT,
            "lines": LINES,
            "quantities": QUANTITIES,
            "arguments": ARGUMENTS,
        }
