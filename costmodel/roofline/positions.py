"""The constants of attention: which keys a query sees, and what tells positions apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from costmodel.architectures.transformer import Transformer

if TYPE_CHECKING:
    import numpy


def _visible(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """Which keys each query sees."""
    import numpy

    behind = numpy.arange(shape[0])[:, None] - numpy.arange(shape[1])
    window = shape[1] if model.window is None else model.window.size
    return (behind < window) & ((behind >= 0) if model.causal else (behind > -window))


def _visible_beyond(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """Which keys each query of a block without the window sees."""
    return _visible(model.model_copy(update={"window": None}), shape)


def _slopes(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """A slope a head times the position of the key (Press et al. 2022, §3); a row's own position adds a constant."""
    import numpy

    heads = model.heads
    whole = 2 ** math.floor(math.log2(heads))
    exponents = [8 * (i + 1) / whole for i in range(whole)] + [4 * (2 * i + 1) / whole for i in range(heads - whole)]
    return 2.0 ** -numpy.array(exponents)[:, None, None] * numpy.arange(shape[2])


def _angles(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """Position over 10000^(2i/size) for pair i, once for each of the pair (Su et al. 2021, §3.2.2)."""
    import numpy

    pairs = 10_000.0 ** -(numpy.arange(0, shape[1], 2) / shape[1])
    return numpy.tile(numpy.arange(shape[0])[:, None] * pairs, 2)


def _cosines(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    import numpy

    return numpy.cos(_angles(model, shape))


def _sines(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    import numpy

    return numpy.sin(_angles(model, shape))


def _buckets(model: Transformer, shape: tuple[int, ...]) -> numpy.ndarray:
    """Distances of up to 128: short ones each to themselves, longer ones by their logarithm (Raffel et al. 2020, §2.1).

    Half of the buckets are for what comes after, where tokens see that.
    """
    import numpy

    ahead = numpy.arange(shape[1]) - numpy.arange(shape[0])[:, None]
    count = model.buckets if model.causal else max(model.buckets // 2, 1)
    exact, distance = max(count // 2, 1), numpy.maximum(-ahead, 0) if model.causal else abs(ahead)
    share = numpy.log(numpy.maximum(distance, 1) / exact) / math.log(max(128 / exact, 2))
    far = numpy.minimum(exact + (share * (count - exact)).astype(int), count - 1)
    found = numpy.where(distance < exact, distance, far) + (0 if model.causal else count * (ahead > 0))
    return numpy.minimum(found, model.buckets - 1)


TABLES: dict[str, Callable[[Transformer, tuple[int, ...]], Any]] = {
    "attention_mask": _visible,
    "global_attention_mask": _visible_beyond,
    "alibi": _slopes,
    "cos": _cosines,
    "sin": _sines,
    "relative_buckets": _buckets,
}
"""Buffers of a transformer, by name."""
