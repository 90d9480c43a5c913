"""What a neural network costs, exact and explained: parameters, FLOPs and memory from its description alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import costmodel.roofline as roofline
    from costmodel.architectures.cnn import CNN
    from costmodel.architectures.mlp import MLP
    from costmodel.architectures.transformer import Transformer
    from costmodel.architectures.translator import EncoderDecoder
    from costmodel.architectures.vision import VisionTransformer
    from costmodel.choice import cheapest_checkpoint
    from costmodel.comparison import compare
    from costmodel.crossing import break_even
    from costmodel.elasticity import sensitivity
    from costmodel.errors import CostModelError
    from costmodel.frontier import pareto
    from costmodel.imported.importing import from_torch
    from costmodel.inverse import max_batch, max_layers, max_seq, max_width, solve
    from costmodel.prediction import Prediction, predict
    from costmodel.recommendation import recommend
    from costmodel.sizing import match
    from costmodel.sweeps import sweep
    from costmodel.zoo import load, models

    GPT = Transformer
    GPT2Small: Transformer
    GPT2Medium: Transformer
    GPT2Large: Transformer
    GPT2XL: Transformer

__version__ = "0.1.0"

_HOMES = {
    "CNN": "costmodel.architectures.cnn",
    "MLP": "costmodel.architectures.mlp",
    "Transformer": "costmodel.architectures.transformer",
    "EncoderDecoder": "costmodel.architectures.translator",
    "VisionTransformer": "costmodel.architectures.vision",
    "cheapest_checkpoint": "costmodel.choice",
    "compare": "costmodel.comparison",
    "break_even": "costmodel.crossing",
    "sensitivity": "costmodel.elasticity",
    "CostModelError": "costmodel.errors",
    **dict.fromkeys(("max_batch", "max_layers", "max_seq", "max_width", "solve"), "costmodel.inverse"),
    "Prediction": "costmodel.prediction",
    "predict": "costmodel.prediction",
    "recommend": "costmodel.recommendation",
    "match": "costmodel.sizing",
    "from_torch": "costmodel.imported.importing",
    "pareto": "costmodel.frontier",
    "sweep": "costmodel.sweeps",
    "load": "costmodel.zoo",
    "models": "costmodel.zoo",
}
_READY = {"GPT2Small": "gpt2-small", "GPT2Medium": "gpt2-medium", "GPT2Large": "gpt2-large", "GPT2XL": "gpt2-xl"}

__all__ = [
    "CNN",
    "GPT",
    "GPT2XL",
    "MLP",
    "CostModelError",
    "EncoderDecoder",
    "GPT2Large",
    "GPT2Medium",
    "GPT2Small",
    "Prediction",
    "Transformer",
    "VisionTransformer",
    "break_even",
    "cheapest_checkpoint",
    "compare",
    "from_torch",
    "load",
    "match",
    "max_batch",
    "max_layers",
    "max_seq",
    "max_width",
    "models",
    "pareto",
    "predict",
    "recommend",
    "roofline",
    "sensitivity",
    "solve",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that importing the package costs nothing (PEP 562)."""
    from importlib import import_module

    if name in _READY:
        value = import_module("costmodel.zoo").load(_READY[name])
    elif name == "roofline":
        value = import_module("costmodel.roofline")
    elif name == "GPT":
        value = __getattr__("Transformer")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'costmodel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
