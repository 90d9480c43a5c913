"""A model run on paper: whether the settings apply, its forward pass, and the loss that training minimises."""

from __future__ import annotations

from typing import TypeVar

from costmodel.architectures.attention import AttentionSetting
from costmodel.architectures.base import BATCH_SYMBOLS, Architecture, BatchShape
from costmodel.architectures.kv_cache import Cache
from costmodel.errors import SettingError, shown
from costmodel.graph.recomputation import Recomputation
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import RoundLayout, Tensor
from costmodel.layers.adaptation import Adaptation
from costmodel.layers.arithmetic import Add, Cast
from costmodel.layers.attention import Softmax
from costmodel.layers.linear import Linear
from costmodel.layers.loss import (
    Compared,
    CrossEntropy,
    FusedLinearCrossEntropy,
    MeanSquaredError,
    SplitCrossEntropy,
    VocabParallelCrossEntropy,
)
from costmodel.symbolic.sizes import exact_div, peek
from costmodel.training.layout import Layout, multiples_near
from costmodel.training.settings import SETTING_NAMES, SETTINGS, Settings, needing

TapeKind = TypeVar("TapeKind", bound=Tape)

OF_ATTENTION, OF_CACHE, OF_TRAINING, OF_MODULES = map(needing, ("attention", "cache", "training", "modules"))


def applicable(model: Architecture) -> list[str]:
    """Settings that can matter to a model."""
    others = [name for name in BATCH_SYMBOLS if name not in ("batch", *model.BATCH_SIZES)]
    others += () if model.HAS_ATTENTION else (*OF_ATTENTION, *OF_CACHE)
    others += () if model.HAS_MODULES else OF_MODULES
    return [name for name in SETTING_NAMES if name not in others]


def check_applies(model: Architecture, settings: Settings) -> None:
    """Raise SettingError for a setting that is not at its default and cannot matter; no loss is right in inference."""
    name = type(model).__name__
    for setting in () if model.HAS_ATTENTION else OF_ATTENTION:
        if (value := getattr(settings, setting)) != SETTINGS[setting].default:
            raise SettingError(
                f"{setting}={shown(value)} does not apply to {name} {model.title!r}, which has no attention: "
                "leave it out"
            )
    model.check_plan(settings.plan)
    for setting in () if settings.keeps else OF_CACHE:
        if (value := getattr(settings, setting)) != SETTINGS[setting].default:
            raise SettingError(
                f"{setting}={shown(value)} does not apply to mode {settings.mode!r}, which keeps no keys and values: "
                "use mode='decode' or 'prefill'"
            )
    if settings.speculative is not None and settings.mode == "prefill":
        raise SettingError(f"speculative={settings.speculative} is for decoding: use mode='decode'")
    if settings.page_size != SETTINGS["page_size"].default and settings.cache != "paged":
        raise SettingError(
            f"page_size={settings.page_size} does not apply to cache {settings.cache!r}: use cache='paged'"
        )
    for setting in () if settings.training else OF_TRAINING:
        if (value := getattr(settings, setting)) != SETTINGS[setting].default and value is not None:
            raise SettingError(
                f"{setting}={shown(value)} does not apply to mode {settings.mode!r}: leave it out, or train"
            )


def new_tape(
    settings: Settings, layout: Layout | None = None, arrival: tuple[RoundLayout, ...] = (), kind: type[TapeKind] = Tape
) -> TapeKind:
    """An empty tape, of a kind, as settings imply it; layout and arrival as in `trace`."""
    return kind(
        training=settings.training,
        device=settings.device,
        precision=settings.policy,
        cast=Cast,
        recomputation=Recomputation.of(settings),
        adaptation=Adaptation.of(settings),
        layout=settings.layout if layout is None else layout,
        arrival=arrival,
    )


def trace(
    model: Architecture,
    settings: Settings,
    tape: Tape | None = None,
    layout: Layout | None = None,
    arrival: tuple[RoundLayout, ...] = (),
) -> Tape:
    """Record the model's forward pass and loss on `tape`, or on a new one that the settings imply.

    layout: over devices, if another than the settings say. arrival: what comes from the stage before. The
    sizes of model and settings may be letters.

    Raises CostModelError.
    """
    layout = settings.layout if layout is None else layout
    tape = tape or new_tape(settings, layout, arrival)
    model = model.implemented(settings.implementation)
    shape = batch_shape(model, settings)
    if layout.cp > 1 and shape.seq is not None:
        shape = shape._replace(seq=_own_tokens(shape.seq, layout))
    if layout.sp and shape.seq is not None and shape.seq % layout.tp:
        unit = int(layout.tp * layout.cp)
        near = multiples_near(int(shape.seq * layout.cp), unit)
        raise SettingError(f"sp=True splits seq={shape.seq * layout.cp} over {unit} ranks: use seq={near}")
    cache = None if shape.past is None else Cache(shape.past, settings.cache, settings.page_size, settings.cache_dtype)
    absorbed = settings.latent_attention == "absorbed"
    gathered = model.gathered_keys(tape.layout)
    setting = AttentionSetting(settings.attention, settings.attention_pairs, absorbed, cache, gathered)
    output = model.local(tape.layout).forward(tape, shape, setting)
    tape.recomputation.check()
    tape.wrapping.check_all("part to wrap")
    if tape.adaptation is not None:
        tape.adaptation.check()
    loss = model.default_loss if settings.loss == "default" else settings.loss
    in_fp32 = settings.loss_precision == "fp32" or settings.implementation == "transformers"
    loss = loss if settings.training and tape.layout.last else None
    tape.result = output if isinstance(output, tuple) else (output,)
    chunks, smoothing = settings.loss_chunks, settings.label_smoothing
    ends = attach_loss(tape, loss, output, chunks, in_fp32=in_fp32, smoothing=smoothing)
    if settings.training and (model.DETACHES or tape.recomputation.by_operator):
        tape.settle(ends)
    return tape


def _own_tokens(seq: int, layout: Layout) -> int:
    """Tokens that one rank has of each sequence. Raises SettingError."""
    unit = layout.cp * (2 if layout.cp_balanced and layout.cp_kind != "ulysses" else 1)
    if seq % unit:
        of = f"cp={layout.cp}" if unit == layout.cp else f"2·cp={unit}, as cp_balanced=True has it"
        raise SettingError(f"seq={seq} is no multiple of {of}: use {multiples_near(peek(seq), unit)}")
    return exact_div(seq, layout.cp)


def batch_shape(model: Architecture, settings: Settings) -> BatchShape:
    """The sizes of one batch of the model. Raises SettingError for a size that it does not have."""
    if settings.keeps and "past" not in model.BATCH_SIZES:
        model.with_past(BatchShape(settings.batch), settings.past, last=settings.mode == "prefill")
    seq = settings.step_tokens if settings.mode == "decode" else settings.seq
    shape = model.with_target(model.batch_shape(settings.batch, seq, settings.image), settings.target_seq)
    return model.with_past(shape, settings.past, last=settings.mode == "prefill") if settings.keeps else shape


def attach_loss(
    tape: Tape,
    loss: str | None,
    output: Tensor | tuple[Tensor, ...],
    chunks: int = 1,
    *,
    in_fp32: bool = False,
    smoothing: float = 0.0,
) -> tuple[Tensor, ...]:
    """End the tape in `loss` of `output`, over so many chunks of rows with the head; of several outputs in their sum.

    in_fp32: outputs are cast before. smoothing: of labels, by cross-entropy alone. Returns what backward starts from:
    the loss, or without one all outputs. All that this records, casts and sums too, is of the phase "loss". Raises
    SettingError.
    """
    tape.phase = "forward" if loss is None else "loss"
    if loss is None:
        if chunks > 1:
            raise SettingError(f"loss_chunks={chunks} is for training that ends in a loss: leave it out")
        tape.outputs = output if isinstance(output, tuple) else tape.outputs
        return output if isinstance(output, tuple) else tape.outputs or (output,)
    tape.outputs = ()
    if smoothing and loss != "cross_entropy":
        raise SettingError(f"label_smoothing={smoothing:g} is for loss 'cross_entropy', not {loss!r}: leave it out")
    if smoothing and chunks > 1:
        raise SettingError(f"label_smoothing={smoothing:g} is not in the loss that runs in loss_chunks: leave one out")
    if in_fp32 and chunks > 1:
        raise SettingError("loss_precision='fp32' casts all logits, which loss_chunks never makes: leave one out")
    if isinstance(output, tuple):
        if chunks > 1:
            raise SettingError(f"loss_chunks={chunks} is for a model with one output, not {len(output)}: leave it out")
        total, *rest = (
            _of(tape, loss, y, f"loss{n}", f"targets{n}", in_fp32, smoothing) for n, y in enumerate(output, start=1)
        )
        for n, more in enumerate(rest, start=1):
            total = Add()(total, more, name="loss" if n == len(rest) else f"add_loss{n}")
        return (total,)
    if chunks > 1:
        return (_take_chunked(tape, loss, output, chunks),)
    return (_of(tape, loss, output, "loss", "targets", in_fp32, smoothing),)


def _of(tape: Tape, loss: str, output: Tensor, name: str, targets: str, in_fp32: bool, smoothing: float) -> Tensor:
    if in_fp32 and output.dtype != "fp32":
        output = Cast("fp32")(output, name=f"{name}.cast")
    if loss != "cross_entropy":
        wanted = tape.input(output.shape, name=targets)
        if loss == "mean_squared_error":
            return MeanSquaredError()(output, wanted, name=name)
        if loss == "binary_cross_entropy":
            return Compared("binary_cross_entropy_with_logits", "mean")(output, wanted, name=name)
        likelihoods = Softmax(1, logarithm=True)(output, name="log_softmax")
        return Compared("kl_div", "mean")(likelihoods, wanted, name=name)
    batch, _, *rest = output.shape
    labels = tape.input((batch, *rest), "index", targets)
    if tape.layout.megatron:
        return VocabParallelCrossEntropy("tp", tape.layout.tp)(output, labels, name=name)
    if tape.layout.split_loss:
        return SplitCrossEntropy("tp", tape.layout.tp)(output, labels, name=name)
    return CrossEntropy(smoothing)(output, labels, name=name)


def _take_chunked(tape: Tape, loss: str, output: Tensor, chunks: int) -> Tensor:
    """Take the head back, so that it makes no logits, and run it with the loss."""
    if loss != "cross_entropy":
        raise SettingError(f"loss_chunks={chunks} is for loss 'cross_entropy', not {loss!r}: leave it out")
    head = output.maker
    if head is None or head is not tape.last_call() or not isinstance(head.layer, Linear) or len(output.shape) != 2:
        raise SettingError(f"loss_chunks={chunks} needs a model that ends in one linear layer over rows: leave it out")
    rows = output.shape[0]
    if chunks > rows:
        raise SettingError(f"loss_chunks={chunks} is more than the {rows} rows of logits: use at most {rows}")
    tape.take_back(head)
    targets = tape.input(head.x.shape[:-1], "index", "targets")
    fused = FusedLinearCrossEntropy(head.layer.features, head.layer.bias, chunks)
    return fused(head.x, targets, name="loss", tied=head.stored)
