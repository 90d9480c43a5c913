"""A model run on paper: its forward pass and its loss, recorded."""

from __future__ import annotations

from costmodel.architectures.attention import AttentionSetting
from costmodel.architectures.base import Architecture, BatchShape
from costmodel.architectures.loss import attach_loss
from costmodel.graph.recomputation import Recomputation
from costmodel.graph.run import Run
from costmodel.layers.adaptation import Adaptation
from costmodel.layers.cast import Cast
from costmodel.training.settings import Settings


def trace(model: Architecture, settings: Settings, run: Run | None = None) -> Run:
    """Record the model's forward pass and loss on `run`, or on a new one that the settings imply.

    The sizes of model and settings may be letters. Raises CostModelError.
    """
    run = run or Run(
        training=settings.training,
        device=settings.device,
        precision=settings.policy,
        cast=Cast,
        recomputation=Recomputation.of(settings),
        adaptation=Adaptation.of(settings),
    )
    shape = batch_shape(model, settings)
    output = model.forward(run, shape, AttentionSetting(settings.attention, settings.attention_pairs))
    run.recomputation.check()
    if run.adaptation is not None:
        run.adaptation.check()
    loss = model.default_loss if settings.loss == "default" else settings.loss
    attach_loss(run, loss if settings.training else None, output, settings.loss_chunks)
    return run


def batch_shape(model: Architecture, settings: Settings) -> BatchShape:
    """The sizes of one batch of the model. Raises SettingError for a size that it does not have."""
    shape = model.batch_shape(settings.batch, settings.seq, settings.image)
    return model.with_target(shape, settings.target_seq)
