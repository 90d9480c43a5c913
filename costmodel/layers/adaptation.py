"""Which weights are trained: frozen parts, and low-rank adapters beside frozen weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from costmodel.errors import SettingError, shown
from costmodel.graph.call import Call
from costmodel.graph.recomputation import is_named, paths_to, unknown_part
from costmodel.graph.tensor import Tensor
from costmodel.layers.arithmetic import Add, Dropout, Scale
from costmodel.layers.linear import Linear
from costmodel.training.settings import Settings
from costmodel.training.values import Lora

DOWN, UP = "lora_down", "lora_up"

STANDS_FOR = {
    "qkv": ("query", "key", "value"),
    "q_proj": ("query",),
    "k_proj": ("key",),
    "v_proj": ("value",),
    "o_proj": ("attention.output", "cross_attention.output"),
    "gate_proj": ("mlp.gate", "mlp.shared.gate"),
    "up_proj": ("mlp.up", "mlp.shared.up"),
    "down_proj": ("mlp.down", "mlp.shared.down"),
}
"""Parts that a name means where the model has no part called so: of separate projections, and as model hubs say."""


@dataclass
class Adaptation:
    """What of a model is trained.

    frozen: parts by name, as `is_named` says. seen: paths of the parts that could be named. present: the names that
    some have. layers: paths of all layers.
    """

    frozen: frozenset[str] = frozenset()
    lora: Lora | None = None
    seen: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    layers: set[str] = field(default_factory=set)

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
        parts = paths_to(".".join(path))
        self.seen.update(parts)
        return not self._picked(parts, self.frozen)

    @property
    def names(self) -> frozenset[str]:
        """Names of the parts to freeze, or to adapt."""
        return self._targets if self.lora else self.frozen

    @cached_property
    def _targets(self) -> frozenset[str]:
        named = self.lora.targets if self.lora else ()
        return frozenset(part for name in named for part in (name, *STANDS_FOR.get(name, ())))

    def _picked(self, paths: Sequence[str], names: Iterable[str]) -> set[str]:
        """Those of the names that one of the paths has."""
        picked = {name for name in names if any(is_named(path, name) for path in paths)}
        self.present |= picked
        return picked

    def adapt(self, call: Call, x: Tensor, path: list[str]) -> Tensor:
        """The output of a call on `x`, with an adapter's added if the call is a target."""
        lora = self.lora
        self.layers.add(call.name)
        if lora is None or not call.layer.adaptable or path[-1] in (DOWN, UP):
            return call.y
        self.seen.add(call.name)
        if not self._picked([call.name], self._targets):
            return call.y
        name = path[-1]
        with call.tape.scope(f"{name}_adapter"):
            inner = Dropout(lora.dropout)(x) if lora.dropout else x
            inner = Linear(lora.rank, bias=False)(inner, name=DOWN)
            update = Scale(1.0)(Linear(call.y.shape[-1], bias=False)(inner, name=UP))
            return Add()(call.y, update)

    def check(self) -> None:
        """Raise an error if a part that was named is nowhere in the model, or has nothing to freeze or to adapt."""
        what, lacks = ("adapt", "is no linear layer") if self.lora else ("freeze", "has no weights")
        for name in sorted(self.lora.targets if self.lora else self.frozen):
            if not self.present.isdisjoint((name, *(STANDS_FOR.get(name, ()) if self.lora else ()))):
                continue
            error = unknown_part(f"part to {what}", name, self.seen)
            if any(is_named(path, name) for layer in self.layers for path in paths_to(layer)):
                raise SettingError(f"{shown(name)} {lacks} to {what}: {error.args[0].partition(': ')[2]}")
            raise error
