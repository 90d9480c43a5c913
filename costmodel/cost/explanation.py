"""One quantity explained: its formula, as people read it, its letters, its value, and where it is from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from costmodel.architectures.base import Definition
from costmodel.cost.costs import Costs
from costmodel.cost.quantities import ROW_COLUMNS, check_formula
from costmodel.cost.question import question
from costmodel.cost.rows import CHECKPOINT, CHECKPOINTING
from costmodel.display.answer import Data
from costmodel.display.table import wrapped
from costmodel.display.units import UNITS
from costmodel.documents.citation import entry, latex_text, software
from costmodel.graph.call import Block
from costmodel.symbolic.guards import expression
from costmodel.symbolic.reading import Sum, readable
from costmodel.training.layout import DEGREES
from costmodel.training.settings import SETTINGS

if TYPE_CHECKING:
    import sympy

_EXTENTS = ("B", "T", "P", "H", "W")
"""Sizes of a batch: formulas read best with them in front."""


def repeats_of(block: Block) -> list[str]:
    """Letters that count repeats: formulas are sums over them."""
    letters = (letter for nested in block.blocks() for letter in sorted(expression(nested.count).letters))
    return list(dict.fromkeys(letters))


_OTHER_SOURCES = {
    "memory.optimizer": "{optimizer} ({source})",
    "memory.counters": "{optimizer} ({source})",
    "flops.recomputed": "forward passes run again in backward: checkpoint {checkpoint}",
    "pointwise_flops.recomputed": "forward passes run again in backward: checkpoint {checkpoint}",
    "memory.masters": "fp32 copies that the optimizer updates: {policy}",
    "memory.casts": "copies of weights that matrix products read and backward needs: {policy}",
    "memory.inputs": "what the user feeds in: the batch and its targets",
    "memory.buffers": "constants beside the weights: running statistics, masks, position tables",
    "memory.cache": "keys and values of each token that a block sees (Pope et al. 2023, §2.1), or the latent and "
    "turned key that all heads share (DeepSeek-AI 2024, V2, §2.1.3), in the type that attention reads",
    "memory.host": "masters, states or weights that are offloaded (Ren et al. 2021, ZeRO-Offload, §4)",
    "traffic.forward": "every input, weight and output of each layer, moved once (compulsory traffic)",
    "traffic.weights": "weights, each read once a layer; of a table the rows looked up, of experts those with rows",
    "traffic.kv_read": "cached keys and values that layers read, of which growing a dynamic cache is one",
    "traffic.kv_written": "cached keys and values that layers write, of which growing a dynamic cache is one",
    "kv_bytes_per_token": "keys and values of a token in every block (Pope et al. 2023, §2.1), or the latent and "
    "turned key that all heads share (DeepSeek-AI 2024, V2, §2.1.3), in the type that they are kept in",
    "collectives.bytes": "the timeline: every collective of a step, the whole tensor over all ranks of its axis",
    "collectives.wire_bytes": "the timeline: every collective of a step, around a ring (Patarasuk & Yuan 2009, §3)",
    "memory.temporaries": "the timeline: the most that short-lived tensors take at any step",
    "memory.peak": "the timeline: the most alive at any step of forward, loss, backward and optimizer",
}


@dataclass(frozen=True, repr=False)
class Explanation(Data):
    """One quantity, explained. `formula` is a sympy expression whose symbols are named in `letters`.

    question: what it is a quantity of. note: at which sizes the formula holds, where that is not all. assumptions: what
    it takes for granted besides. quantity: its name. unit: of its value. reading: the formula, factored. value: the
    number that it gives here. sources: where the formulas of the layers are from.

    Example:
        >>> import costmodel as cm
        >>> explanation = cm.predict("gpt2-small").explain("params")
        >>> explanation.formula
        L*(12*d**2 + 13*d) + V*d + d*n_ctx + 2*d
        >>> explanation.numbers
        '12*(12*768**2 + 13*768) + 50257*768 + 768*1024 + 2*768'

    """

    quantity: str
    unit: str
    reading: Sum
    letters: tuple[Definition, ...]
    value: int
    sources: tuple[str, ...]
    note: str = ""
    assumptions: tuple[str, ...] = ()
    question: str = ""

    @cached_property
    def formula(self) -> sympy.Expr:
        """The formula as a sympy expression."""
        return self.reading.sympy()

    @property
    def text(self) -> str:
        """The formula as text, which is ``str(self.formula)``."""
        return self.reading.text({})

    @property
    def numbers(self) -> str:
        """The formula with each letter's value put in, not worked out."""
        return self.reading.text({d.symbol: d.value for d in self.letters})

    def latex(self) -> str:
        """An equation for a paper: the formula, the numbers put in, the value; its letters, and what to cite.

        It needs the package amsmath. Entries of BibTeX follow as comments.

        Example:
            >>> import costmodel as cm
            >>> print(cm.predict("mlp-mnist").explain("params").latex().splitlines()[1])
            \\mathrm{params}

        """
        import sympy

        name = rf"\mathrm{{{latex_text(self.quantity)}}}"
        lines = [sympy.latex(self.formula), _set(self.numbers), rf"{_grouped(self.value)}\ \text{{{self.unit}}}"]
        letters = [
            rf"${sympy.latex(sympy.Symbol(d.symbol))} = {_grouped(d.value)}$ ({latex_text(d.meaning)})"
            for d in self.letters
        ]
        return "\n".join(
            [
                r"\begin{align*}",
                name,
                "\n".join(rf"  &= {line}{chr(92) * 2}" for line in lines[:-1]),
                f"  &= {lines[-1]}",
                r"\end{align*}",
                *([f"with {', '.join(letters)}."] if letters else []),
                *(f"% {line}" for line in self.bibtex().splitlines()),
            ]
        )

    def bibtex(self) -> str:
        """Entries of BibTeX for the program, with this number as its note, and for where the formulas are from."""
        entries = [software(f"{self.quantity} = {self.value:,} {self.unit} of {self.question}")]
        for number, source in enumerate(self.sources, 1):
            kind, _, words = source.partition(": ") if ": " in source[:40] else ("", "", source)
            entries.append(
                entry("misc", f"costmodel:{kind.replace(' ', '-') or number}", {"title": kind, "note": words})
            )
        return "\n\n".join(entries)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        import sympy

        return {
            "question": self.question,
            "quantity": self.quantity,
            "unit": self.unit,
            "formula": self.text,
            "latex": sympy.latex(self.formula),
            "letters": {d.symbol: {"meaning": d.meaning, "value": d.value} for d in self.letters},
            "numbers": self.numbers,
            "value": self.value,
            "sources": list(self.sources),
            "note": self.note,
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        width = max((len(d.symbol) for d in self.letters), default=0)
        value = max((len(f"{d.value:,}") for d in self.letters), default=0)
        return "\n".join(
            [
                *([wrapped(self.question, "  "), ""] if self.question else []),
                *self._equations(),
                *(["", "where"] if self.letters else []),
                *(f"  {d.symbol:<{width}} = {d.value:>{value},}  {d.meaning}" for d in self.letters),
                *(["", wrapped(f"note: {self.note}", "  ")] if self.note else []),
                *(
                    ["", "assumed", *(wrapped(f"  {sentence}", "  ") for sentence in self.assumptions)]
                    if self.assumptions
                    else []
                ),
                *(["", "sources"] if self.sources else []),
                *(wrapped(f"  {source}", "  ") for source in self.sources),
            ]
        )

    def _equations(self) -> list[str]:
        """The formula, with the numbers put in, and worked out; of what is a number alone one line."""
        result = f" = {self.value:,} {self.unit}"
        if not self.letters:
            return [f"{self.quantity}{result}"]
        blank = " " * len(self.quantity)
        return [_spread(self.quantity, self.text), _spread(blank, self.numbers), f"{blank}{result}"]

    def _repr_latex_(self) -> str:
        import sympy

        name = sympy.Symbol(self.quantity.replace("_", " "))
        return f"$\\displaystyle \\mathrm{{{sympy.latex(name)}}} = {sympy.latex(self.formula)}$"

    def _repr_markdown_(self) -> str:
        import sympy

        rows = [f"| ${sympy.latex(sympy.Symbol(d.symbol))}$ | {d.value:,} | {d.meaning} |" for d in self.letters]
        table = ["| letter | value | meaning |", "|---|---:|---|", *rows] if rows else []
        sources = [f"- {source}" for source in self.sources]
        result = f"`= {self.numbers}` = **{self.value:,} {self.unit}**"
        note = [f"note: {self.note}", ""] if self.note else []
        assumptions = [*(f"assumed: {sentence}" for sentence in self.assumptions), ""] if self.assumptions else []
        return "\n".join([self._repr_latex_(), "", result, "", *table, "", *note, *assumptions, *sources])


def _grouped(number: int) -> str:
    """A number whose thousands LaTeX sets apart as text does."""
    return f"{number:,}".replace(",", "{,}")


def _set(numbers: str) -> str:
    """A formula with numbers put in, as LaTeX sets it."""
    powers = re.sub(r"\*\*(\d+)", r"^{\1}", numbers).replace("*", r" \cdot ")
    return re.sub(r"\b(Max|Min|floor|ceiling)\(", lambda of: rf"\operatorname{{{of[1].lower()}}}(", powers)


def _spread(left: str, right: str) -> str:
    """An equation in lines of the page's width: each alternative of a maximum begins one."""
    line = f"{left} = {right}"
    if len(wrapped(line).splitlines()) == 1:
        return line
    maximum = re.fullmatch(r"(\d+\*)?Max\((.*)\)", right)
    if not maximum or _depth(maximum[2]) < 0:
        return wrapped(line, " " * (len(left) + 3))
    alternatives, depth, start = [], 0, 0
    for at, character in enumerate(maximum[2]):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            alternatives.append(maximum[2][start : at + 1].strip())
            start = at + 1
    alternatives.append(f"{maximum[2][start:].strip()})")
    lines = [wrapped(f"    {alternative}", "      ") for alternative in alternatives]
    return "\n".join([f"{left} = {maximum[1] or ''}Max(", *lines])


def _depth(text: str) -> int:
    """The least number of open brackets anywhere in `text`; below 0 if its ends do not belong together."""
    depth = least = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        least = min(least, depth)
    return least


def explain(costs: Costs, quantity: str) -> Explanation:
    """See `Prediction.explain`."""
    check_formula(quantity)
    value = int(costs.number(quantity))
    for generic in (True, False):  # each is a trace, and most need one
        symbolic = costs.symbolic(generic=generic)
        formula = readable(expression(symbolic.number(quantity)), repeats_of(symbolic.tape.root), _EXTENTS)
        letters = tuple(d for d in definitions_of(costs) if d.symbol in formula.letters())
        number = formula.value({d.symbol: d.value for d in letters})
        if number == value:
            note = _note(quantity, generic=generic) if value else _why_nothing(quantity, costs)
            unit = UNITS[quantity.partition(".")[0]]
            headline = question(costs.model, costs.settings)
            sources, assumptions = _sources(costs, quantity), _assumptions(quantity, costs)
            return Explanation(quantity, unit, formula, letters, value, sources, note, assumptions, headline)
    raise ArithmeticError(f"the formula of {quantity} gives {number}, not {value}")


def _note(quantity: str, *, generic: bool) -> str:
    """Where the formula does not hold at all sizes."""
    if quantity in ("memory.peak", "memory.temporaries"):
        return "the highest step of each phase at these sizes; at others another step may be higher"
    if not generic:
        return "holds where the batch's sizes are as small as here; at larger ones other tensors may be kept"
    return ""


_KEPT = ("kv_bytes_per_token", "memory.cache", "traffic.kv_read", "traffic.kv_written")
_TRAINED = ("flops.backward", "pointwise_flops.backward", "memory.gradients", "memory.optimizer", "memory.activations")


def _why_nothing(quantity: str, costs: Costs) -> str:
    """Of a quantity that is 0 whatever the sizes: which mode has one."""
    settings = costs.settings
    if quantity in _KEPT and not settings.keeps:
        return f"mode {settings.mode} keeps no keys and values: ask with mode prefill or decode"
    if quantity in _TRAINED and not settings.training:
        return f"mode {settings.mode} has no backward pass and no update: ask with mode train"
    return ""


def _assumptions(quantity: str, costs: Costs) -> tuple[str, ...]:
    """What a quantity of the batch takes for granted; weights and what is of their size take nothing."""
    if quantity.partition(".")[0] not in ("flops", "pointwise_flops") and quantity not in _OF_THE_BATCH:
        return ()
    return tuple(f"{topic}: {sentence}" for topic, sentence in costs.model.assumptions(costs.batch_shape))


_OF_THE_BATCH = ("memory.activations", "memory.temporaries", "memory.peak")


def definitions_of(costs: Costs) -> list[Definition]:
    """A letter for each size of the batch and of the model."""
    extent = costs.batch_shape
    definitions = [Definition("B", "batch size", extent.batch)]
    if extent.seq is not None:
        definitions.append(Definition("T", "sequence length", extent.seq))
    if costs.settings.past is not None or costs.settings.mode == "decode":
        definitions.append(Definition("P", "tokens in the cache", int(extent.past or 0)))
    if extent.target is not None and costs.settings.target_seq is not None:
        definitions.append(Definition("T_t", "target length", extent.target))
    if extent.image is not None:
        height, width = extent.image
        definitions += [Definition("H", "image height", height), Definition("W", "image width", width)]
    for name in DEGREES:
        if (degree := getattr(costs.settings, name)) != 1:
            text = SETTINGS[name].text
            definitions.append(Definition(name, f"{text[0].lower()}{text[1:-1]}", degree))
    return definitions + list(costs.model.size_fields().values())


def _sources(costs: Costs, quantity: str) -> tuple[str, ...]:
    """What the formulas rest on: the source of each kind that adds to the quantity."""
    fields = ROW_COLUMNS.get(quantity, ())
    kinds = dict.fromkeys(row.kind for row in costs.layers if any(getattr(row, field) for field in fields))
    by_kind = {call.layer.kind: call.layer.source for call in costs.tape.root.calls()} | {CHECKPOINT: CHECKPOINTING}
    settings = costs.settings
    other = _OTHER_SOURCES.get(quantity, "").format(
        optimizer=settings.states.describe(),
        source=settings.states.source,
        policy=settings.policy.source,
        checkpoint=costs.recomputed,
    )
    return (*([other] if other else []), *(f"{kind}: {by_kind[kind]}" for kind in kinds))
