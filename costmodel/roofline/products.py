"""The time of a matrix product where its operands are, by what was fitted to a calibration's products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from costmodel.roofline.gemm import (
    Measured,
    ProductFit,
    begun_by_threads,
    exposing,
    fit,
    further,
    multiply_adds,
    regime_of,
)
from costmodel.roofline.memory import ITEM_BYTES
from costmodel.roofline.probes import READ_LENGTHS
from costmodel.roofline.signature import ProductSignature, signature_of

if TYPE_CHECKING:
    from costmodel.roofline.rates import Rates


class Products:
    """By the rates of a host, among whose probes they are."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.fit = cache(self._fit)

    def _signature(self, name: str) -> ProductSignature:
        signature = signature_of(self.rates.ops[name])
        assert isinstance(signature, ProductSignature)
        return signature

    def _fit(self, regime: str, dtype: str) -> ProductFit:
        """The fitted time of products of a regime; where there are threads, of those that share them too."""
        kinds = "product ", "products ", "curve matmul "
        names = [name for name in self.rates.seconds if name.startswith(kinds) and name.endswith(f" {dtype}")]
        products = {name: self._signature(name) for name in names}
        call = self.rates.call("matmul", dtype)

        def fitted(least: float = 0.0, most: float = float("inf")) -> ProductFit:
            """Of those of the regime from so many multiply-adds on, and of fewer than so many."""

            def among(p: ProductSignature) -> bool:
                return regime_of(p) == regime and p.dtype == dtype and least <= multiply_adds(p) < most

            return self._exposing(fit([each for each in measured if among(each.product)]), among)

        measured = [
            Measured(p, self.operand_times(p), self._one(name, p), call / p.batch)
            for name, p in products.items()
            if regime_of(p) == regime
        ]
        least = begun_by_threads(measured) if self.rates.threads > 1 else None
        return fitted() if least is None else replace(fitted(most=least), threaded=(least, fitted(least)))

    def _exposing(self, fitted: ProductFit, among: Callable[[ProductSignature], bool]) -> ProductFit:
        """With what of the way of operands is not hidden, by products in place that are among those."""
        placed, more, extra = [], [], []
        for name, (op, distances) in self.rates.placed.items():
            p = signature_of(op)
            if name.startswith("cold ") and isinstance(p, ProductSignature) and among(p):
                placed.append(p)
                more.append(further(self.operand_times(p), self.operand_times(p, distances[: len(op.accesses)])))
                extra.append(self._one(name, p) - self._one(name.replace("cold", "warm", 1), p))
        return exposing(fitted, placed, more, extra)

    def _one(self, name: str, p: ProductSignature) -> float:
        """Time of one product of the batch of a probe, without the call's overhead [s]."""
        return (
            max(self.rates.seconds[name] - self.rates.call("matmul", p.dtype), 0.1 * self.rates.seconds[name]) / p.batch
        )

    def time(self, p: ProductSignature, distances: Sequence[float], sizes: Sequence[int]) -> tuple[float, float]:
        """Time of one product of a batch, its operands at reuse distances, and how much of it is memory [s].

        sizes: what each operand takes up [bytes]; what all products of a batch share comes from afar only once, and
        then from where the product before left it.
        """
        shares = [min(size / (p.batch * one), 1.0) for size, one in zip(sizes, _sizes(p), strict=True)]
        after = self.operand_times(p, [sum(_sizes(p))] * 3)

        def shared(times: Sequence[float]) -> list[float]:
            return [near + share * (far - near) for near, far, share in zip(after, times, shares, strict=True)]

        home = shared(self.operand_times(p, [sum(sizes)] * 3))
        return self.fit(regime_of(p), p.dtype).of(p).placed(p, home, shared(self.operand_times(p, distances)))

    def operand_times(self, p: ProductSignature, distances: Sequence[float] = ()) -> list[float]:
        """Time to load each operand of one product of a batch, beyond that from cache [s].

        Without distances they are those of the product run over and over.
        """
        sizes, lengths = _sizes(p), [READ_LENGTHS[0]] * 3
        if p.batch == 1 and regime_of(p) == "vector":  # others pack their operands, or find them in parts
            rows = (p.m if p.a_transposed else p.k, p.k if p.b_transposed else p.n)
            matrix = int(p.m == 1)
            lengths[matrix] = rows[matrix]
        *read, written = distances or [p.batch * sum(sizes)] * 3
        parts = zip(sizes, read, lengths, strict=False)
        loaded = (max(size * self.rates.read(distance, length), 0.0) for size, distance, length in parts)
        return [*loaded, sizes[2] * self.rates.far(written, "in place")]


def _sizes(p: ProductSignature) -> list[int]:
    """Of both operands of one product of a batch, and of its result [bytes]."""
    item = ITEM_BYTES[p.dtype]
    return [item * p.m * p.k, item * p.k * p.n, item * p.m * p.n]
