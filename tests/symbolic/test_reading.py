"""Factored formulas have the value of what they are made from, and are written as sympy writes them."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import example, given
from hypothesis import strategies as st

from costmodel.symbolic.polynomial import Polynomial, ceil_quotient, exact_quotient, extreme, remainder
from costmodel.symbolic.reading import readable

POINT = {"B": 3, "T": 5, "L": 2, "d": 24, "h": 4, "n_ctx": 7}
LETTERS = {name: Polynomial.letter(name) for name in POINT}
B, T, L, D, H = (LETTERS[name] for name in ("B", "T", "L", "d", "h"))
leaves = st.sampled_from([*LETTERS.values()]) | st.integers(1, 40).map(Polynomial.of)


def _grown(inner: st.SearchStrategy[Polynomial]) -> st.SearchStrategy[Polynomial]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda pair: pair[0] + pair[1]),
        pairs.map(lambda pair: pair[0] - pair[1]),
        pairs.map(lambda pair: pair[0] * pair[1]),
        pairs.map(lambda pair: extreme("max", pair)),
        pairs.map(lambda pair: extreme("min", pair)),
        st.tuples(inner, st.integers(2, 9)).map(lambda pair: ceil_quotient(pair[0], Polynomial.of(pair[1]))),
        inner.map(lambda one: exact_quotient(one * D, H)),  # h divides d
        inner.map(lambda one: exact_quotient(one * 6, Polynomial.of(2))),
    )


polynomials = st.recursive(leaves, _grown, max_leaves=8)


@given(polynomials)
@example(Polynomial.of(0))
@example(B * T * 5 - T * 3)
@example(Polynomial.of(5) - D * 3)
@example(Polynomial.of(5) - D * H * 3)
@example(extreme("max", [B * L * D + D, T * 7, L * 5 + 3]))
@example(exact_quotient(D * extreme("max", [B, Polynomial.of(1)]) - D * extreme("max", [Polynomial.of(1), B]), H))
@example(ceil_quotient(Polynomial.of(1), Polynomial.of(2)) * 3)
@example(ceil_quotient(D - 46, Polynomial.of(32)) * L * B + ceil_quotient(D - 6, Polynomial.of(7)))
def test_a_reading_has_the_value_of_its_polynomial_and_the_text_of_sympy(formula: Polynomial) -> None:
    reading = readable(formula, ["L"], ["B", "T"])
    assert reading.value(POINT) == formula.value(POINT)
    assert reading.text({}) == str(reading.sympy())
    assert reading.letters() == {str(symbol) for symbol in reading.sympy().free_symbols}


@given(polynomials)
def test_a_text_with_numbers_is_worked_out_to_the_value(formula: Polynomial) -> None:
    text = readable(formula, ["L"], ["B", "T"]).text(POINT)
    functions = {"Max": max, "Min": min, "ceiling": sympy.ceiling, "floor": sympy.floor}
    assert eval(text.replace("/", "/one/"), {**functions, "one": sympy.Integer(1)}) == formula.value(POINT)


def test_a_remainder_is_a_function() -> None:
    reading = readable(remainder(D + 1, H) * L, ["L"], [])
    assert reading.text({}) == "L*Mod(d + 1, h)"
    assert reading.value(POINT) == 2


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (L * B * T * D * 12 + L * B * D + B * T * H, "B*(L*(12*T*d + d) + T*h)"),
        (L * L * D + L * D * 3 + D, "L**2*d + 3*L*d + d"),
        (exact_quotient(D * B + T * B, H + 1), "B*(T/(h + 1) + d/(h + 1))"),
        (extreme("max", [B * T * D + B * H, B * B * 9]), "Max(9*B**2, B*(T*d + h))"),
    ],
)
def test_repeats_and_sizes_of_the_batch_stand_outside(formula: Polynomial, text: str) -> None:
    assert readable(formula, ["L"], ["B", "T"]).text({}) == text
