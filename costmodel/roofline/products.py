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
        measured = [
            Measured(p, self.operand_times(p), self._one(name, p), call / p.batch)
            for name, p in products.items()
            if regime_of(p) == regime
        ]
        least = begun_by_threads(measured) if self.rates.threads > 1 else None
        if least is None:
            return self._exposing(fit(measured), lambda p: regime_of(p) == regime)
        below = [each for each in measured if multiply_adds(each.product) < least]
        above = [each for each in measured if multiply_adds(each.product) >= least]
        threaded = self._exposing(fit(above), lambda p: regime_of(p) == regime and multiply_adds(p) >= least)
        alone = self._exposing(fit(below), lambda p: regime_of(p) == regime and multiply_adds(p) < least)
        return replace(alone, threaded=(least, threaded))

    def _exposing(self, fitted: ProductFit, like: Callable[[ProductSignature], bool]) -> ProductFit:
        """With what of the way of operands is not hidden, by products in place that are like those."""
        placed, more, extra = [], [], []
        for name, (op, distances) in self.rates.placed.items():
            p = signature_of(op)
            if name.startswith("cold ") and isinstance(p, ProductSignature) and like(p):
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
