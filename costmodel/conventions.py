"""The conventions behind the numbers, in words: every report prints those in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from costmodel.optimizers import Optimizer
    from costmodel.precision import Precision
    from costmodel.prediction import Prediction


def conventions(p: Prediction) -> list[tuple[str, str]]:
    """The conventions in force, as (topic, sentence)."""
    settings = p.settings
    rule = "as PyTorch's FlopCounterMode counts them" if settings.flop_rule == "pytorch" else "by plain arithmetic"
    said = [
        (
            "FLOPs",
            f"a multiply-add is 2; contractions (matrix products, convolutions, attention) {rule}; all other "
            "arithmetic is pointwise, on its own line",
        ),
    ]
    if settings.training:
        said += _training(p)
    if p.model.HAS_ATTENTION:
        said.append(("attention", _ATTENTION[settings.attention] + _PAIRS[settings.attention_pairs]))
    said += p.model.assumptions(p.extent)
    said.append(("precision", _sourced(settings.policy)))
    if settings.allocator == "cuda":
        said.append(("allocator", _CUDA))
    return [
        *p.model.caveats,
        *said,
        (
            "layers",
            "a row counts all its repeats, and rows add up to the totals; weights and activations are counted once, "
            "where they first occur; forward and backward are FLOPs; FLOP/B is forward FLOPs a byte of inputs, weights "
            "and outputs, each moved once",
        ),
        ("units", "bytes binary (1 GiB = 2^30 B), FLOPs and counts decimal (1 T = 10^12)"),
    ]


def _training(p: Prediction) -> list[tuple[str, str]]:
    settings = p.settings
    loss = p.model.default_loss if settings.loss == "default" else settings.loss
    kept = f"with what the loss ({loss}) keeps" if loss else "loss left out"
    return [
        ("backward", "weight gradients and input gradients, as autograd runs them: none for an input that needs none"),
        (
            "activations",
            f"what PyTorch's eager autograd keeps for backward on a {settings.device.upper()}, {kept}; "
            "each memory once, without weights, buffers and inputs",
        ),
        ("optimizer", _sourced(settings.states) + _UPDATES[settings.update]),
        *([("checkpointing", _checkpointing(settings.checkpoint))] if settings.checkpoint != "none" else []),
    ]


def _checkpointing(checkpoint: str | int | tuple[str, ...]) -> str:
    if isinstance(checkpoint, tuple):
        which = ", ".join(checkpoint)
    else:
        which = f"every {checkpoint} blocks" if isinstance(checkpoint, int) else checkpoint
    return (
        f"{which}: of each recomputed stretch its inputs are kept, and the whole of it is run again in backward "
        "(torch.utils.checkpoint); hardware FLOPs are model FLOPs and recomputed ones"
    )


def _sourced(declared: Precision | Optimizer) -> str:
    return f"{declared.name}: {declared.source}" if declared.source else declared.name


_UPDATES = {"loop": "", "foreach": "; all weights at once (foreach)", "fused": "; all weights in one kernel (fused)"}
_CUDA = (
    "PyTorch's CUDA caching allocator: the peak counts blocks, multiples of 512 B; reserved is what its segments take "
    "(2 MiB for tensors up to 1 MiB, 20 MiB up to 10 MiB, else their own) when one step is replayed; all other lines "
    "are exact"
)
_ATTENTION = {
    "eager": "eager, the scores are stored",
    "flash": "flash, the scores are never stored",
    "efficient": "memory-efficient kernel, the scores are never stored",
}
_PAIRS = {"full": "; FLOPs of the full square of positions", "visible": "; FLOPs of visible positions only"}
