"""What a neural network costs, exact and explained: parameters, FLOPs and memory from its description alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import costmodel.roofline as roofline
    from costmodel.analysis.break_even import break_even
    from costmodel.analysis.checkpoint import cheapest_checkpoint
    from costmodel.analysis.compare import compare
    from costmodel.analysis.deployments import deployments
    from costmodel.analysis.gpus import gpus
    from costmodel.analysis.layouts import layouts
    from costmodel.analysis.match import match
    from costmodel.analysis.pareto import pareto
    from costmodel.analysis.predict import Prediction, predict
    from costmodel.analysis.recommend import recommend
    from costmodel.analysis.sensitivity import sensitivity
    from costmodel.analysis.solve import max_batch, max_layers, max_seq, max_width, solve
    from costmodel.analysis.sweep.sweeps import sweep
    from costmodel.architectures.cnn import CNN
    from costmodel.architectures.encoder_decoder import EncoderDecoder
    from costmodel.architectures.mlp import MLP
    from costmodel.architectures.transformer import Transformer
    from costmodel.architectures.vision_transformer import VisionTransformer
    from costmodel.errors import CostModelError
    from costmodel.explorer.page import explore
    from costmodel.hardware.catalogue import load_machine, machines
    from costmodel.hardware.cluster import Cluster, clusters, load_cluster
    from costmodel.hardware.machine import Machine
    from costmodel.importers.torch.importing import from_torch
    from costmodel.importers.zoo import load, models
    from costmodel.performance.communication import collective_seconds
    from costmodel.performance.disaggregated import Disaggregated, disaggregated
    from costmodel.performance.fitting import fit_machine
    from costmodel.performance.jobs import energy
    from costmodel.performance.probing import calibrate_machine
    from costmodel.performance.serving import Drafts, Serving, serve
    from costmodel.performance.time import Time, time_on
    from costmodel.training.engines import Engine
    from costmodel.training.stacks import Stack

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
    "EncoderDecoder": "costmodel.architectures.encoder_decoder",
    "VisionTransformer": "costmodel.architectures.vision_transformer",
    "cheapest_checkpoint": "costmodel.analysis.checkpoint",
    "compare": "costmodel.analysis.compare",
    "break_even": "costmodel.analysis.break_even",
    "sensitivity": "costmodel.analysis.sensitivity",
    "CostModelError": "costmodel.errors",
    "explore": "costmodel.explorer.page",
    **dict.fromkeys(("max_batch", "max_layers", "max_seq", "max_width", "solve"), "costmodel.analysis.solve"),
    "Prediction": "costmodel.analysis.predict",
    "predict": "costmodel.analysis.predict",
    "recommend": "costmodel.analysis.recommend",
    "gpus": "costmodel.analysis.gpus",
    "layouts": "costmodel.analysis.layouts",
    "deployments": "costmodel.analysis.deployments",
    "match": "costmodel.analysis.match",
    **dict.fromkeys(("Cluster", "clusters", "load_cluster"), "costmodel.hardware.cluster"),
    "Machine": "costmodel.hardware.machine",
    "load_machine": "costmodel.hardware.catalogue",
    "machines": "costmodel.hardware.catalogue",
    "Engine": "costmodel.training.engines",
    **dict.fromkeys(("Drafts", "Serving", "serve"), "costmodel.performance.serving"),
    **dict.fromkeys(("Disaggregated", "disaggregated"), "costmodel.performance.disaggregated"),
    "fit_machine": "costmodel.performance.fitting",
    "calibrate_machine": "costmodel.performance.probing",
    "collective_seconds": "costmodel.performance.communication",
    "energy": "costmodel.performance.jobs",
    "Stack": "costmodel.training.stacks",
    "Time": "costmodel.performance.time",
    "time_on": "costmodel.performance.time",
    "from_torch": "costmodel.importers.torch.importing",
    "pareto": "costmodel.analysis.pareto",
    "sweep": "costmodel.analysis.sweep.sweeps",
    "load": "costmodel.importers.zoo",
    "models": "costmodel.importers.zoo",
}
_READY = {"GPT2Small": "gpt2-small", "GPT2Medium": "gpt2-medium", "GPT2Large": "gpt2-large", "GPT2XL": "gpt2-xl"}

__all__ = [
    "CNN",
    "GPT",
    "GPT2XL",
    "MLP",
    "Cluster",
    "CostModelError",
    "Disaggregated",
    "Drafts",
    "EncoderDecoder",
    "Engine",
    "GPT2Large",
    "GPT2Medium",
    "GPT2Small",
    "Machine",
    "Prediction",
    "Serving",
    "Stack",
    "Time",
    "Transformer",
    "VisionTransformer",
    "break_even",
    "calibrate_machine",
    "cheapest_checkpoint",
    "clusters",
    "collective_seconds",
    "compare",
    "deployments",
    "disaggregated",
    "energy",
    "explore",
    "fit_machine",
    "from_torch",
    "gpus",
    "layouts",
    "load",
    "load_cluster",
    "load_machine",
    "machines",
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
    "serve",
    "solve",
    "sweep",
    "time_on",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that importing the package costs nothing (PEP 562)."""
    from importlib import import_module

    if name in _READY:
        value = import_module("costmodel.importers.zoo").load(_READY[name])
    elif name == "roofline":
        value = import_module("costmodel.roofline")
    elif name == "GPT":
        value = __getattr__("Transformer")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        from costmodel.errors import no_member

        raise no_member(__name__, name, () if name.startswith("_") else __all__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
