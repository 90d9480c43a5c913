"""The one symbolic function that sizes need beside arithmetic: a quotient, rounded up."""

from __future__ import annotations

from typing import Any

import sympy


class CeilDiv(sympy.Function):
    """``ceiling(n/d)`` of whole numbers, kept as it was written: (H − 46)/32 does not fall apart into fractions."""

    nargs = 2
    is_integer = True
    is_positive = True

    @classmethod
    def eval(cls, *args: Any) -> Any:
        """A number for numbers."""
        n, d = args
        if d == 1:
            return n
        return sympy.Integer(-(-int(n) // int(d))) if n.is_Integer and d.is_Integer else None

    def _written(self) -> tuple[str, Any, Any]:
        """(rounding, numerator, divisor); ceiling((n − d + 1)/d) reads better as floor(n/d)."""
        n: Any
        d: Any
        n, d = self.args
        shift, rest = n.as_coeff_Add()
        return ("floor", rest, d) if d.is_Integer and shift == 1 - d else ("ceiling", n, d)

    def _sympystr(self, printer: Any) -> str:
        rounding, n, d = self._written()
        above, below = ((f"({printer.doprint(x)})" if x.is_Add or x.is_Mul else printer.doprint(x)) for x in (n, d))
        return f"{rounding}({above}/{below})"

    def _latex(self, printer: Any, exp: Any = None) -> str:
        rounding, n, d = self._written()
        side = {"floor": "floor", "ceiling": "ceil"}[rounding]
        text = rf"\left\l{side} \frac{{{printer.doprint(n)}}}{{{printer.doprint(d)}}} \right\r{side}"
        return text if exp is None else rf"{text}^{{{exp}}}"
