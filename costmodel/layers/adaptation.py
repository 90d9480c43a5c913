"""Which weights are trained: frozen parts, and low-rank adapters beside frozen weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from costmodel.errors import CostModelError, SettingError, shown, unknown
from costmodel.graph.recomputation import ends_of
from costmodel.graph.tensor import Call, Tensor
from costmodel.layers.arithmetic import Add, Dropout, Scale
from costmodel.layers.linear import Linear
from costmodel.training.fields import check_fields

DOWN, UP = "lora_down", "lora_up"


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters: W x becomes W x + s·B (A x), A: (rank, n_in) and B: (n_out, rank) trained, W frozen.

    targets: parts whose linear layers get one, by the end of their path (``qkv``, ``mlp.up``). Everything else is
    frozen (Hu et al. 2022, eq. 3). dropout: of the adapter's input.
    """

    rank: int
    targets: tuple[str, ...]
    dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", names_of("lora targets", self.targets))
        try:
            check_fields(self, "lora")
        except CostModelError as error:
            raise SettingError(str(error)) from None
        if not self.targets:
            raise SettingError("lora targets no part: name linear layers such as 'qkv'")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"lora dropout {self.dropout} is not in [0, 1)")


@dataclass
class Adaptation:
    """What of a model is trained. `frozen`: parts by name, as `Recomputation` names them."""

    frozen: frozenset[str] = frozenset()
    lora: Lora | None = None
    seen: set[str] = field(default_factory=set)

    def trains(self, path: list[str]) -> bool:
        """Whether the weights of the layer at this path are trained."""
        if self.lora is not None:
            return path[-1] in (DOWN, UP)
        if not self.frozen:
            return True
        return self.frozen.isdisjoint(self._parts(path))

    def _parts(self, path: list[str]) -> set[str]:
        """Names of the layer and of every part that it is in."""
        parts = set().union(*(ends_of(path[:end]) for end in range(1, len(path) + 1)))
        self.seen |= parts
        return parts

    def adapt(self, call: Call, x: Tensor, path: list[str]) -> Tensor:
        """The output of a call on `x`, with an adapter's added if the call is a target."""
        lora, kind = self.lora, call.kind
        if lora is None or not isinstance(kind, Linear) or path[-1] in (DOWN, UP):
            return call.y
        ends = ends_of(path)
        self.seen |= ends
        if not ends.intersection(lora.targets):
            return call.y
        name = path[-1]
        with call.run.scope(f"{name}_adapter"):
            inner = Dropout(lora.dropout)(x) if lora.dropout else x
            inner = Linear(lora.rank, bias=False)(inner, name=DOWN)
            update = Scale()(Linear(kind.features, bias=False)(inner, name=UP))
            return Add()(call.y, update)

    def check(self) -> None:
        """Raise an error if a part that was named is nowhere in the model."""
        for name in sorted(self.lora.targets if self.lora else self.frozen):
            if name not in self.seen:
                raise unknown("part to adapt" if self.lora else "part to freeze", name, self.seen)


def names_of(what: str, value: Any) -> tuple[str, ...]:
    """Names of parts: one, or several. Raises SettingError."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise SettingError(f"{what}={shown(value)} is not a list of names of parts")
    return tuple(names)
