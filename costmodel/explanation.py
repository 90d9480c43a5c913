"""Why a number is what it is: its formula in the model's letters, derived by running the model on letters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy
from sympy.printing.str import StrPrinter

from costmodel.architectures.base import Definition
from costmodel.cost import CHECKPOINT, CHECKPOINTING
from costmodel.errors import unknown
from costmodel.prediction import trace
from costmodel.quantities import QUANTITIES
from costmodel.sizes import Letter, expression

if TYPE_CHECKING:
    from costmodel.graph import Block
    from costmodel.prediction import Prediction

UNITS = {
    "params": "parameters",
    "trainable_params": "parameters",
    "flops": "FLOP",
    "pointwise_flops": "FLOP",
    "memory": "bytes",
}

_EXTENTS = sympy.symbols("B T H W", integer=True, positive=True)
"""Sizes of a batch: formulas read best with them in front."""

_PASSES = {
    "forward": ("forward",),
    "backward": ("backward",),
    "total": ("forward", "backward"),
    "recomputed": ("recomputed",),
    "hardware": ("forward", "backward", "recomputed"),
}
_ROW_FIELDS = {
    "params": ("params",),
    "trainable_params": ("params",),
    **{
        f"{group}.{part}": tuple(f"{name}_{group}" for name in passes)
        for group in ("flops", "pointwise_flops")
        for part, passes in _PASSES.items()
    },
    "memory.weights": ("params",),
    "memory.gradients": ("params",),
    "memory.optimizer": ("params",),
    "memory.activations": ("activation_bytes",),
    "memory.casts": ("cast_bytes",),
}
"""Which columns of a layer's row a quantity sums; the others are made of tensors or moments, not of layers."""

_OTHER_SOURCES = {
    "memory.optimizer": "{optimizer} ({source})",
    "memory.counters": "{optimizer} ({source})",
    "flops.recomputed": "forward passes run again in backward: checkpoint {checkpoint}",
    "pointwise_flops.recomputed": "forward passes run again in backward: checkpoint {checkpoint}",
    "memory.masters": "fp32 copies that the optimizer updates: {policy}",
    "memory.casts": "copies of weights that matrix products read and backward needs: {policy}",
    "memory.inputs": "what the user feeds in: the batch and its targets",
    "memory.buffers": "constants beside the weights: running statistics, masks, position tables",
    "memory.temporaries": "the timeline: the most that short-lived tensors take at any step",
    "memory.peak": "the timeline: the most alive at any step of forward, loss, backward and optimizer",
}


@dataclass(frozen=True)
class Explanation:
    """One quantity, explained. `formula` is a sympy expression whose symbols are named in `letters`."""

    quantity: str
    unit: str
    formula: sympy.Expr
    letters: tuple[Definition, ...]
    value: int
    sources: tuple[str, ...]

    @property
    def numbers(self) -> str:
        """The formula with each letter's value put in, not worked out."""
        return _NumberPrinter({d.symbol: d.value for d in self.letters}).doprint(self.formula)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "quantity": self.quantity,
            "unit": self.unit,
            "formula": str(self.formula),
            "latex": sympy.latex(self.formula),
            "letters": {d.symbol: {"meaning": d.meaning, "value": d.value} for d in self.letters},
            "numbers": self.numbers,
            "value": self.value,
            "sources": list(self.sources),
        }

    def __str__(self) -> str:
        width = max((len(d.symbol) for d in self.letters), default=0)
        value = max((len(f"{d.value:,}") for d in self.letters), default=0)
        return "\n".join(
            [
                f"{self.quantity} = {self.formula}",
                f"{' ' * len(self.quantity)} = {self.numbers}",
                f"{' ' * len(self.quantity)} = {self.value:,} {self.unit}",
                *(["", "where"] if self.letters else []),
                *(f"  {d.symbol:<{width}} = {d.value:>{value},}  {d.meaning}" for d in self.letters),
                "",
                "sources",
                *(f"  {source}" for source in self.sources),
            ]
        )

    def _repr_latex_(self) -> str:
        name = sympy.Symbol(self.quantity.replace("_", " "))
        return f"$\\displaystyle \\mathrm{{{sympy.latex(name)}}} = {sympy.latex(self.formula)}$"

    def _repr_markdown_(self) -> str:
        rows = [f"| ${sympy.latex(sympy.Symbol(d.symbol))}$ | {d.value:,} | {d.meaning} |" for d in self.letters]
        table = ["| letter | value | meaning |", "|---|---:|---|", *rows] if rows else []
        sources = [f"- {source}" for source in self.sources]
        result = f"`= {self.numbers}` = **{self.value:,} {self.unit}**"
        return "\n".join([self._repr_latex_(), "", result, "", *table, "", *sources])


class _NumberPrinter(StrPrinter):
    """Prints numbers where the letters stand."""

    def __init__(self, values: dict[str, int]) -> None:
        super().__init__()
        self._values = values

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return str(self._values[expr.name])


def explain(prediction: Prediction, quantity: str) -> Explanation:
    """See `Prediction.explain`."""
    if quantity not in QUANTITIES:
        raise unknown("quantity", quantity, QUANTITIES)
    value = int(prediction.value(quantity))
    lettered, letters = prediction.lettered
    formula = readable(expression(lettered.value(quantity)), _counts(lettered.run.root))
    used = {str(symbol) for symbol in formula.free_symbols}
    shown = tuple(d for d in letters if d.symbol in used)
    numbers: dict[Any, Any] = {sympy.Symbol(d.symbol, integer=True, positive=True): d.value for d in shown}
    worked_out = formula.subs(numbers)
    if worked_out != value:
        raise ArithmeticError(f"the formula of {quantity} gives {worked_out}, not {value}")
    unit = UNITS[quantity.partition(".")[0]]
    return Explanation(quantity, unit, formula, shown, value, _sources(prediction, quantity))


def with_letters(prediction: Prediction) -> tuple[Prediction, list[Definition]]:
    """The same question with a letter for each size."""
    model, settings, extent = prediction.model, prediction.settings, prediction.extent
    batch = Definition("B", "batch size", extent.batch)
    definitions = [batch]
    changes: dict[str, Any] = {"batch": _letter(batch)}
    if extent.seq is not None:
        seq = Definition("T", "sequence length", extent.seq)
        definitions.append(seq)
        changes["seq"] = _letter(seq)
    if extent.image is not None:
        sides = [
            Definition(s, f"image {name}", v)
            for s, name, v in zip("HW", ("height", "width"), extent.image, strict=True)
        ]
        definitions += sides
        changes["image"] = tuple(_letter(side) for side in sides)
    fields = model.size_fields()
    definitions += fields.values()
    lettered = model.with_sizes({field: _letter(d) for field, d in fields.items()})
    return trace(lettered, replace(settings, **changes)), definitions


def _letter(definition: Definition) -> Letter:
    return Letter(definition.value, sympy.Symbol(definition.symbol, integer=True, positive=True))


def _counts(block: Block) -> list[sympy.Symbol]:
    """Letters that count repeats: formulas are sums over them."""
    from costmodel.graph import Block

    found: dict[sympy.Symbol, None] = {}
    for entry in block.entries:
        if isinstance(entry, Block):
            found.update(dict.fromkeys(sympy.sympify(expression(entry.count)).free_symbols))
            found.update(dict.fromkeys(_counts(entry)))
    return list(found)


def readable(formula: Any, counts: list[sympy.Symbol]) -> sympy.Expr:
    """The same expression as a sum over repeats, with the batch's sizes in front of what they multiply."""
    formula = sympy.sympify(formula)
    if formula.is_number:
        return formula
    if isinstance(formula, sympy.Max):
        return sympy.Max(*(readable(candidate, counts) for candidate in _candidates(formula)), evaluate=False)
    collected = sympy.collect(sympy.expand(formula), counts, evaluate=False)
    parts = [(power, *_common_extents(coefficient)) for power, coefficient in collected.items()]
    shared = {s: min(powers.get(s, 0) for _, powers, _ in parts) for s in _EXTENTS}
    terms = [power * _monomial(powers, shared) * rest for power, powers, rest in parts]
    return _monomial(shared, {}) * sympy.Add(*terms)


def _candidates(formula: Any) -> list[Any]:
    """What a maximum, possibly of maxima, is taken over."""
    if not isinstance(formula, sympy.Max):
        return [formula]
    return [candidate for argument in formula.args for candidate in _candidates(argument)]


def _common_extents(terms: sympy.Expr) -> tuple[dict[sympy.Symbol, int], sympy.Expr]:
    """The highest power of each batch size that divides every term, and what remains."""
    powers = [term.as_powers_dict() for term in sympy.Add.make_args(terms)]
    common = {s: min(int(p[s]) for p in powers) for s in _EXTENTS}
    divisor = _monomial(common, {})
    return common, sympy.Add(*(term / divisor for term in sympy.Add.make_args(terms)))


def _monomial(powers: dict[sympy.Symbol, int], less: dict[sympy.Symbol, int]) -> sympy.Expr:
    return sympy.Mul(*(s ** (power - less.get(s, 0)) for s, power in powers.items()))


def _sources(prediction: Prediction, quantity: str) -> tuple[str, ...]:
    """What the formulas rest on: the source of each kind that adds to the quantity."""
    fields = _ROW_FIELDS.get(quantity, ())
    kinds = dict.fromkeys(row.kind for row in prediction.layers if any(getattr(row, field) for field in fields))
    by_kind = {call.kind.kind: call.kind.source for call in prediction.run.root.calls()} | {CHECKPOINT: CHECKPOINTING}
    settings = prediction.settings
    other = _OTHER_SOURCES.get(quantity, "").format(
        optimizer=settings.states.describe(),
        source=settings.states.source,
        policy=settings.policy.source,
        checkpoint=settings.checkpoint,
    )
    return (*([other] if other else []), *(f"{kind}: {by_kind[kind]}" for kind in kinds))
