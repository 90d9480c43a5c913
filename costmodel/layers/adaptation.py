"""Which weights are trained: frozen parts, and low-rank adapters beside frozen weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from costmodel.errors import unknown
from costmodel.graph.recomputation import ends_of
from costmodel.graph.tensor import Call, Tensor
from costmodel.layers.arithmetic import Add, Dropout, Scale
from costmodel.layers.linear import Linear
from costmodel.training.settings import Lora, Settings

DOWN, UP = "lora_down", "lora_up"

STANDS_FOR = {
    "qkv": ("query", "key", "value"),
    "q_proj": ("query",),
    "k_proj": ("key",),
    "v_proj": ("value",),
    "o_proj": ("attention.output",),
    "gate_proj": ("mlp.gate",),
    "up_proj": ("mlp.up",),
    "down_proj": ("mlp.down",),
}
"""Parts that a name means where the model has no part called so: of separate projections, and as model hubs say."""


@dataclass
class Adaptation:
    """What of a model is trained. `frozen`: parts by name, as `Recomputation` names them."""

    frozen: frozenset[str] = frozenset()
    lora: Lora | None = None
    seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """What `settings` say is trained; None if all of the model is."""
        return cls(frozenset(settings.freeze), settings.lora) if settings.freeze or settings.lora else None

    def trains(self, path: list[str]) -> bool:
        """Whether the weights of the layer at this path are trained."""
        if self.lora is not None:
            return path[-1] in (DOWN, UP)
        if not self.frozen:
            return True
        return self.frozen.isdisjoint(self._parts(path))

    @cached_property
    def _targets(self) -> frozenset[str]:
        named = self.lora.targets if self.lora else ()
        return frozenset(part for name in named for part in (name, *STANDS_FOR.get(name, ())))

    def _parts(self, path: list[str]) -> set[str]:
        """Names of the layer and of every part that it is in."""
        parts = set().union(*(ends_of(path[:end]) for end in range(1, len(path) + 1)))
        self.seen |= parts
        return parts

    def adapt(self, call: Call, x: Tensor, path: list[str]) -> Tensor:
        """The output of a call on `x`, with an adapter's added if the call is a target."""
        lora, layer = self.lora, call.layer
        if lora is None or not isinstance(layer, Linear) or path[-1] in (DOWN, UP):
            return call.y
        ends = ends_of(path)
        self.seen |= ends
        if not ends.intersection(self._targets):
            return call.y
        name = path[-1]
        with call.run.scope(f"{name}_adapter"):
            inner = Dropout(lora.dropout)(x) if lora.dropout else x
            inner = Linear(lora.rank, bias=False)(inner, name=DOWN)
            update = Scale(1.0)(Linear(layer.features, bias=False)(inner, name=UP))
            return Add()(call.y, update)

    def check(self) -> None:
        """Raise an error if a part that was named is nowhere in the model."""
        for name in sorted(self.lora.targets if self.lora else self.frozen):
            if not self.seen.intersection((name, *(STANDS_FOR.get(name, ()) if self.lora else ()))):
                raise unknown("part to adapt" if self.lora else "part to freeze", name, self.seen)
