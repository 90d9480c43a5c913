"""Formulas printed as JavaScript are worth what the polynomials are, whatever their letters are called."""

import re
from functools import reduce

import pytest
import quickjs
from hypothesis import given
from hypothesis import strategies as st

from costmodel.explorer.javascript import RESERVED, Formulas, identifiers
from costmodel.explorer.page import _part
from costmodel.symbolic.polynomial import Polynomial, ceil_quotient, extreme, remainder
from tests.profiles import examples

LETTERS = {"batch": "B", "layers": "L", "width": "d", "experts.count": "E"}
numbers = st.integers(-9, 9)
letters = st.sampled_from(list(LETTERS)).map(Polynomial.letter)


def operations(of: st.SearchStrategy[Polynomial]) -> st.SearchStrategy[Polynomial]:
    divisors = letters | st.integers(1, 7).map(Polynomial.of)
    return st.one_of(
        st.tuples(of, of).map(lambda pair: pair[0] + pair[1]),
        st.tuples(of, of).map(lambda pair: pair[0] * pair[1]),
        st.tuples(of, numbers).map(lambda pair: pair[0] * pair[1]),
        st.tuples(of, divisors).map(lambda pair: ceil_quotient(*pair)),
        st.tuples(of, divisors).map(lambda pair: remainder(*pair)),
        st.lists(of, min_size=1, max_size=3).map(lambda several: extreme("max", several)),
        st.lists(of, min_size=1, max_size=3).map(lambda several: extreme("min", several)),
    )


polynomials = st.recursive(letters | numbers.map(Polynomial.of), operations, max_leaves=12)


def worth(formulas: Formulas, point: dict[str, int]) -> list[int]:
    """What the script's formulas are worth at a point, as an engine works them out."""
    context = quickjs.Context()
    context.eval(_part("formulas.js"))
    values = ",".join(f"{value}n" for value in point.values())
    code = f"const made=({formulas.script()})();made.set([{values}]);made.f.map((f)=>String(f())).join()"
    return [int(each) for each in context.eval(code).split(",")]


@given(st.lists(polynomials, min_size=1, max_size=4), st.tuples(*[st.integers(1, 10**12)] * len(LETTERS)))
@examples(150)
def test_the_script_is_worth_what_the_polynomials_are(several: list[Polynomial], sizes: tuple[int, ...]) -> None:
    point = dict(zip(LETTERS, sizes, strict=True))
    formulas = Formulas(LETTERS, ["layers"], ["batch"])
    places = [formulas.number(polynomial) for polynomial in several]
    found = worth(formulas, point)
    assert [found[place] for place in places] == [polynomial.value(point) for polynomial in several]


def test_equal_formulas_are_printed_once() -> None:
    formulas = Formulas(LETTERS)
    b, d = Polynomial.letter("batch"), Polynomial.letter("width")
    assert formulas.number(b * d + d) == formulas.number(d + d * b)
    assert formulas.texts == ["B*d+d"]


def test_formulas_are_sums_over_repeats_with_the_batch_in_front() -> None:
    b, layers, d = (Polynomial.letter(name) for name in ("batch", "layers", "width"))
    total = reduce(lambda a, c: a + c, [b * layers * d * d * 12, b * layers * d * 13, b * d * 2, d])
    assert Formulas(LETTERS, ["layers"], ["batch"]).text(total) == "B*L*(12n*d**2n+13n*d)+2n*B*d+d"


@pytest.mark.parametrize("symbol", ["in", "q1", "1x", "λ", "a b", "</script>", "max", "", "constructor"])
def test_any_symbol_becomes_a_name(symbol: str) -> None:
    first, second = identifiers([symbol, symbol])
    assert first != second
    for name in (first, second):
        assert re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)
        assert name not in RESERVED
        assert not re.fullmatch("q[0-9]+", name)
        assert quickjs.Context().eval(f"let {name} = 3; {name}") == 3
