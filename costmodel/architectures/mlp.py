"""Multilayer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from costmodel.architectures.activations import activation
from costmodel.architectures.base import (
    ActivationName,
    Allowed,
    Architecture,
    BatchShape,
    Definition,
    DropRate,
    Size,
    as_tuple,
    check_splits,
    nearest_divisor,
    refuse,
    scaled_size,
)
from costmodel.architectures.ranks import columns, rows
from costmodel.architectures.stages import StageParts, own_parts
from costmodel.documents.description import Listed
from costmodel.errors import SettingError
from costmodel.graph.tape import MOST_CALLS, Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Dropout
from costmodel.layers.linear import Linear
from costmodel.layers.norm import Batchnorm, Layernorm, Rmsnorm
from costmodel.symbolic.sizes import exact_div, peek
from costmodel.training.fields import whole_size
from costmodel.training.layout import Layout

NORMS = {"batchnorm": Batchnorm, "layernorm": Layernorm, "rmsnorm": Rmsnorm}


class MLP(Architecture):
    """Linear → norm → activation → dropout for each hidden layer, then a bare linear.

    Source: Goodfellow et al. 2016, ch. 6.

    Example:
        >>> import costmodel as cm
        >>> cm.predict(cm.MLP(sizes=[784, 512, 10], activation="relu", dropout=0.1), batch=64).params
        407050

    """

    DATA_ALONE: ClassVar[bool] = True
    SPLIT_BY: ClassVar[tuple[str, ...]] = ("tp",)
    DERIVED: ClassVar[tuple[str, ...]] = ("layers", "width")

    sizes: Annotated[Listed[Size], BeforeValidator(as_tuple)] = Field(
        min_length=2, max_length=10_000, description="features of the input, of each hidden layer and of the output"
    )
    activation: ActivationName = Field(default="relu", description="activation after each hidden layer")
    bias: bool = Field(default=True, description="whether linear layers have a bias")
    norm: Literal["none", "batchnorm", "layernorm", "rmsnorm"] = Field(
        default="none", description="norm before activations"
    )
    norm_affine: bool = Field(default=True, description="trained scale (and bias) in norms")
    dropout: DropRate = Field(default=0.0, description="dropout probability after activations")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _, *hidden, _ = self.sizes
        distinct = sum(1 for _ in groupby(hidden))
        most = MOST_CALLS // (2 + (self.norm != "none") + (self.dropout > 0)) - 1
        if distinct > most:
            raise ValueError(
                f"sizes: {distinct:,} changes of size among hidden layers are too many: use at most {most:,} (layers "
                "of one size, next to each other, count once)"
            )
        return self

    def batch_shape(self, batch: int, seq: int | None, image: tuple[int, int] | None) -> BatchShape:
        """A batch of rows."""
        refuse("seq", seq, self, "only batch")
        refuse("image", image, self, "only batch")
        return BatchShape(batch)

    def forward(self, tape: Tape, shape: BatchShape, attention: Any) -> Tensor:
        """(batch, n_0) → (batch, n_last). Hidden layers of one size in a row go by the number of the first.

        Over ranks of tp they go in twos, of which the first is split by its outputs and the second by its inputs; the
        output is the second of a hidden layer that is left over, and whole on every rank if there is none.
        """
        first, *hidden, last = self.sizes
        own = own_parts(tape.layout, self)
        x = tape.input((shape.batch, first)) if tape.layout.first else tape.received()
        number, together = own.start + 1, 1 if tape.layout.tp == 1 else 2
        if together == 2 and tape.recomputation.every is not None:
            raise SettingError(f"checkpoint is not worked out with tp of {self.title!r}: leave one of them out")
        widths = hidden[own.start : own.stop]
        for each, group in groupby(tuple(widths[n : n + together]) for n in range(0, len(widths), together)):
            times = len(list(group))
            x = tape.repeat(times, partial(self._layers, widths=each), x, f"hidden{number}")
            number += times * len(each)
        if not tape.layout.last:
            return x
        if together == 2 and len(hidden) % 2:
            return rows(x, last, "output", bias=self.bias)
        return Linear(last, bias=self.bias)(x, name="output")

    @property
    def stage_parts(self) -> StageParts:
        """See `Architecture.stage_parts`: hidden layers, each with what follows it, and the last."""
        return StageParts([*((f"hidden{number}", 1) for number in range(1, len(self.sizes) - 1)), ("output", 1)])

    def stage_kind(self, layout: Layout) -> object:
        """See `Architecture.stage_kind`: its widths."""
        own = own_parts(layout, self)
        return self.sizes[own.start : own.stop + 1]

    def _layers(self, x: Tensor, widths: tuple[int, ...]) -> Tensor:
        width, *second = widths
        x = self._after(columns(x, exact_div(width, x.tape.layout.tp), "linear", bias=self.bias))
        for features in second:
            x = self._after(rows(x, features, "linear2", bias=self.bias))
        return x

    def _after(self, x: Tensor) -> Tensor:
        if self.norm != "none":
            x = NORMS[self.norm](affine=self.norm_affine)(x)
        x = activation(self.activation)(x)
        return Dropout(self.dropout)(x) if self.dropout else x

    def local(self, layout: Layout) -> Self:
        """This model, whose hidden layers are split when they run; see `Architecture.local`."""
        degree = peek(layout.tp)
        if degree != 1:
            check_splits(self, layout)
            if self.norm != "none":
                raise SettingError(f"tp={degree} leaves a rank a part of what norm {self.norm!r} needs: use 'none'")
            if not self.sizes[1:-1]:
                raise SettingError(f"tp={degree} splits hidden layers, of which {self.title} has none: leave it out")
            for width in self.sizes[1:-1:2]:
                if width % degree:
                    legal = nearest_divisor(math.gcd(*map(peek, self.sizes[1:-1:2])), degree)
                    raise SettingError(
                        f"tp={degree} does not divide hidden size {width} of {self.title}: use tp={legal}"
                    )
        super().local(layout)
        return self

    def size(self, name: str) -> int:
        """See `Architecture.size`: the number of hidden layers, or the features of the first."""
        hidden = self._hidden(name)
        return len(hidden) if name == "layers" else hidden[0]

    def allowed(self, name: str, shape: BatchShape) -> Allowed:
        """See `Architecture.allowed`."""
        if name in self.DERIVED:
            self.vary(name, self.size(name))
        return Allowed()

    def vary(self, name: str, value: Any) -> Self:
        """See `Architecture.vary`: hidden layers keep their proportions, rounded; input and output stay."""
        if name not in self.DERIVED:
            return self.with_fields({name: value})
        size, hidden = whole_size(name, value), self._hidden(name)
        if name == "width":
            hidden_sizes = tuple(scaled_size(features, size, hidden[0]) for features in hidden)
        elif len(set(hidden)) > 1:
            raise SettingError(f"{self.title} has no number of layers to turn: its hidden layers differ in size")
        else:
            hidden_sizes = hidden[:1] * size
        return self.with_fields({"sizes": (self.sizes[0], *hidden_sizes, self.sizes[-1])})

    def _hidden(self, name: str) -> tuple[int, ...]:
        if not self.sizes[1:-1]:
            raise SettingError(f"{self.title} has no {name} to turn: it has no hidden layers")
        return self.sizes[1:-1]

    def size_fields(self) -> dict[str, Definition]:
        """A letter for the input, for each run of equal hidden layers, and for the output."""
        _, *hidden, _ = self.sizes
        runs: list[tuple[int, int]] = [(0, 0)]
        for _, group in groupby(hidden):
            start = runs[-1][1] + 1
            runs.append((start, start + len(list(group)) - 1))
        runs.append((len(self.sizes) - 1, len(self.sizes) - 1))
        meanings = ["features of the input", *(_hidden(a, b) for a, b in runs[1:-1]), "features of the output"]
        return {
            f"{a}:{b}": Definition(f"n_{index}", meaning, self.sizes[a])
            for index, ((a, b), meaning) in enumerate(zip(runs, meanings, strict=True))
        }

    def with_sizes(self, sizes: Mapping[str, int]) -> Self:
        """`sizes` maps runs of layers ``first:last`` to their letters."""
        spread = list(self.sizes)
        for field, letter in sizes.items():
            start, end = (int(part) for part in field.split(":"))
            spread[start : end + 1] = [letter] * (end - start + 1)
        return self.model_copy(update={"sizes": tuple(spread)})


def _hidden(first: int, last: int) -> str:
    return f"features of hidden layer {first}" if first == last else f"features of hidden layers {first} to {last}"
