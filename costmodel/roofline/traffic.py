"""Memory traffic: what the layers must move against what plain NumPy moves, in its passes over memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction, predict
from costmodel.cost.rows import traffic
from costmodel.display.table import Table
from costmodel.display.units import show_bytes
from costmodel.roofline.recorder import forward_program
from costmodel.training.settings import GivenSettings, takes_settings


class LayerPasses(NamedTuple):
    """A layer's forward pass, all its repeats together [bytes].

    compulsory_bytes: every input, weight and output once. numpy_bytes: what each of its NumPy calls reads and writes.
    calls: of NumPy functions.
    """

    name: str
    kind: str
    repeat: int
    calls: int
    compulsory_bytes: int
    numpy_bytes: int

    @property
    def ratio(self) -> float:
        """NumPy's traffic over the compulsory; 0 where nothing must move."""
        return self.numpy_bytes / self.compulsory_bytes if self.compulsory_bytes else 0.0


@dataclass(frozen=True, repr=False)
class Passes:
    """Compulsory traffic and NumPy's of a model's forward pass; prints as a table of kinds, iterates over layers."""

    title: str
    layers: tuple[LayerPasses, ...]

    def __iter__(self) -> Iterator[LayerPasses]:
        return iter(self.layers)

    @property
    def kinds(self) -> list[LayerPasses]:
        """Layers of one kind added up, those that move most first."""
        found: dict[str, LayerPasses] = {}
        for layer in self.layers:
            before = found.get(layer.kind, LayerPasses(layer.kind, layer.kind, 0, 0, 0, 0))
            sums = (a + b for a, b in zip(before[2:], layer[2:], strict=True))
            found[layer.kind] = LayerPasses(layer.kind, layer.kind, *sums)
        return sorted(found.values(), key=lambda kind: -kind.numpy_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"model": self.title, "layers": [{**layer._asdict(), "ratio": layer.ratio} for layer in self.layers]}

    def __str__(self) -> str:
        rows = [
            (k.kind, str(k.repeat), str(k.calls), show_bytes(k.compulsory_bytes), show_bytes(k.numpy_bytes), _times(k))
            for k in self.kinds
        ]
        return Table((self.title, "layers", "calls", "compulsory", "NumPy", "ratio"), rows).text()

    __repr__ = __str__


def _times(row: LayerPasses) -> str:
    return f"{row.ratio:.1f}×" if row.compulsory_bytes else "-"


@takes_settings(mode="inference")
def passes(model: Architecture | Prediction | str, **settings: Unpack[GivenSettings]) -> Passes:
    """Compulsory traffic and NumPy's of each layer's forward pass, in fp32; settings as `predict` takes them.

    Raises CostModelError, as `predict` does.
    """
    prediction = model if isinstance(model, Prediction) else predict(model, **{"mode": "inference", **settings})
    layers = []
    for call in prediction.run.root.calls():
        program, times = forward_program(call), int(call.times)
        sums = (times * len(program), times * traffic(call), times * program.traffic_bytes)
        layers.append(LayerPasses(call.name, call.kind.kind, times, *sums))
    return Passes(prediction.model.title, tuple(layers))
