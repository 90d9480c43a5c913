"""Which settings go together, layouts over devices among them: all others are refused in one line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from costmodel.errors import SettingError, listed, shown
from costmodel.symbolic.sizes import peek
from costmodel.training.layout import RUNTIME_SCHEDULES, Layout, multiples_near
from costmodel.training.schedule import MOST_GATHERED
from costmodel.training.schedules import UNSPLIT

if TYPE_CHECKING:
    from costmodel.training.settings import Settings

OF_RUNTIMES = ("adam", "adamw", "sgd", "momentum")
"""Optimizers that Megatron-Core and DeepSpeed have a kernel for that updates all weights in place."""


def check_together(settings: Settings) -> None:
    """Raise SettingError unless settings go together."""
    if settings.mode == "decode":
        _check_decode(settings)
    if settings.accumulate > 1 and not settings.training:
        raise SettingError(f"accumulate={settings.accumulate} is for training: leave it out of inference")
    _check_counts(settings)
    if settings.freeze and settings.lora:
        raise SettingError("lora freezes all but its adapters: leave out freeze")
    _check_update(settings)
    _check_layout(settings)
    if settings.training and settings.policy.quantised and settings.lora is None:
        raise SettingError(
            f"precision {settings.policy.name!r} is for inference, or for training adapters on frozen weights: use "
            "mode='inference', lora, or another precision"
        )


def _check_decode(settings: Settings) -> None:
    if settings.seq is not None and settings.seq != settings.step_tokens:
        drafts = "" if settings.speculative is None else f" and its {settings.speculative} drafts"
        raise SettingError(
            f"seq={settings.seq} does not apply to mode 'decode', a step of one token{drafts}: leave it out, or give "
            f"speculative={max(1, settings.seq - 1)} for as many drafts that it verifies"
        )


def _check_update(settings: Settings) -> None:
    """Raise SettingError if the optimizer has no such update."""
    ways = {"loop": True, "foreach": settings.states.together is not None, "fused": settings.states.fused}
    if not ways[settings.update]:
        others = " or ".join(repr(way) for way, has in ways.items() if has)
        raise SettingError(f"optimizer {settings.states.name!r} has no {settings.update} update: use update={others}")


def _check_counts(settings: Settings) -> None:
    """Raise SettingError if devices or samples are not what the degrees make of them."""
    layout = settings.layout
    if settings.devices is not None and layout.devices != settings.devices:
        each = layout._replace(dp=1).devices
        if settings.dp is not None:
            fitting = "" if settings.devices % each else f", or dp={settings.devices // each}"
            raise SettingError(
                f"devices={settings.devices} are not the {layout.devices} of all degrees: use devices={layout.devices}"
                f"{fitting}"
            )
        raise SettingError(
            f"devices={settings.devices} are not a multiple of the {each} that one copy of the model takes: use "
            f"{multiples_near(settings.devices, each)}"
        )
    if settings.zero > 1 and layout.runtime == "torch" and settings.fsdp > 1:
        raise SettingError(f"zero={settings.zero} is what fsdp={settings.fsdp} does by itself: leave one of them out")
    for name in ("zero", "bucket_view"):
        value = getattr(settings, name)
        if value and layout.samplers * layout.cp == 1:
            raise SettingError(f"{name}={value} is of what dp ranks have alike: give dp, such as 8, or leave it out")
        if value == 1 and layout.runtime == "torch" and layout.shards > 1:
            axis = next(name for name in ("fsdp", "cp", "zero") if settings.chosen(name))
            raise SettingError(
                f"{name}={value} is of weights that each rank has whole, which {axis}={getattr(settings, axis)} "
                "splits: leave one of them out"
            )
    if not settings.reshard and layout.shards == 1:
        raise SettingError("reshard=False keeps what fsdp gathers: give fsdp, such as fsdp=8, or leave it out")
    if settings.chosen("wrap") and layout.shards == 1:
        raise SettingError("wrap says what fsdp gathers together: give fsdp, such as fsdp=8, or leave it out")
    if settings.global_batch is None:
        return
    together = peek(settings.batch * layout.samplers)
    if settings.global_batch % together:
        raise SettingError(
            f"global_batch={settings.global_batch} is no multiple of batch={settings.batch} on {layout.samplers} "
            f"ranks: use {multiples_near(settings.global_batch, together)}"
        )
    if settings.accumulate not in (1, settings.global_batch // together):
        raise SettingError(
            f"accumulate={settings.accumulate} is not the {settings.global_batch // together} micro-batches of "
            f"global_batch={settings.global_batch}: leave one of them out"
        )


def _check_layout(settings: Settings) -> None:
    """Raise SettingError if ranks cannot be laid out so."""
    layout = settings.layout
    if settings.checkpoint == "operators":
        _check_operators(settings)
    _check_pipeline(settings, layout)
    if settings.offload and layout.runtime != "deepspeed":
        raise SettingError(f"offload={shown(settings.offload)} is of runtime='deepspeed', not {layout.runtime!r}")
    if layout.runtime != "torch":
        _check_runtime(settings)
    for name in ("cp_kind", "cp_balanced"):
        if layout.cp == 1 and settings.chosen(name):
            raise SettingError(f"{_written(settings, name)} is of ranks of a sequence: give cp, such as cp=4")
    if layout.devices == 1 and not (layout.sp or layout.split_loss or layout.ep > 1 or layout.etp is not None):
        return
    for name in ("sp", "loss_parallel"):
        if getattr(settings, name) and layout.tp == 1:
            raise SettingError(f"{name}=True splits over the ranks of tp: give tp, such as tp=2, or leave it out")
    if not settings.training:
        _check_passes(settings, layout)
    _check_shares(settings, layout)
    if layout.shards > 1:
        _check_sharding(settings, layout)
    elif layout.dp > 1 and layout.runtime == "torch":
        _check_copies(settings, layout)
    _check_experts(settings, layout)
    _check_context(settings)


def _check_operators(settings: Settings) -> None:
    """Raise SettingError for what is not worked out where results of some operators are kept."""
    for name in ("tp", "cp", "ep", "pp", "runtime", "freeze", "lora"):
        if settings.chosen(name):
            raise SettingError(
                f"checkpoint='operators' is not worked out with {_written(settings, name)}: use checkpoint='block'"
            )
    if settings.policy.scaled:  # whose products are another operator, ``_scaled_mm``
        raise SettingError(
            f"checkpoint='operators' is not worked out with precision {settings.policy.name!r}: use checkpoint='block'"
        )


def _check_passes(settings: Settings, layout: Layout) -> None:
    """Raise SettingError for what of a layout a forward pass by itself has not."""
    whole = settings.mode == "inference" and layout.pp == 1
    for name in ("vpp", "schedule", "return_outputs"):
        if settings.chosen(name):
            raise SettingError(f"{_written(settings, name)} is of training: leave it out of mode {settings.mode!r}")
    for name in ("cp", "loss_parallel", "runtime", *(() if whole else ("fsdp", "sp"))):
        if settings.chosen(name):
            others = listed(("tp", "dp", "ep", *(("sp", "fsdp") if whole else ("pp",))))
            raise SettingError(
                f"{_written(settings, name)} is not worked out in mode {settings.mode!r}: of a layout use {others}"
            )


def _check_copies(settings: Settings, layout: Layout) -> None:
    """Raise SettingError for what is not worked out of DistributedDataParallel."""
    if layout.zero and (layout.tp > 1 or layout.pp > 1):
        raise SettingError(
            f"zero=1 of runtime 'torch' is not worked out with tp or pp: use fsdp={layout.dp}, or runtime='megatron'"
        )
    if layout.zero and settings.states.flat:
        raise SettingError(
            f"zero=1 deals weights out one by one, and optimizer {settings.states.name!r} has them in a row: leave it "
            "out"
        )
    if layout.sp or (layout.ep > 1 and settings.training):
        axis = "sp" if layout.sp else "ep"
        raise SettingError(f"dp={layout.dp} is not worked out with {axis}: use fsdp={layout.dp} in place of dp")
    if settings.policy.gradient not in (None, settings.policy.weight):
        raise SettingError(
            f"DistributedDataParallel has gradients in the type of weights, not as precision {settings.policy.name!r}: "
            f"use fsdp={layout.dp}, or another precision"
        )


def _check_sharding(settings: Settings, layout: Layout) -> None:
    """Raise SettingError for what is not worked out where weights are split by FSDP."""
    if settings.update == "fused" and settings.states.name not in ("adam", "adamw"):
        raise SettingError(
            f"update='fused' of {settings.states.name!r} takes no weights that are split (DTensor): use 'foreach'"
        )
    if settings.checkpoint == "sqrt" or (isinstance(settings.checkpoint, int) and settings.checkpoint > 1):
        raise SettingError(
            f"checkpoint={settings.checkpoint!r} of several units of fsdp is not worked out: use 'block'"
        )
    if settings.policy.quantised or settings.policy.scaled:
        raise SettingError(
            f"precision {settings.policy.name!r} is not worked out with {_sharding(layout)}: leave one of them out"
        )


def _check_experts(settings: Settings, layout: Layout) -> None:
    """Raise SettingError if experts cannot be split over ranks so."""
    megatron = layout.runtime == "megatron"
    if layout.etp is not None and layout.devices == 1:
        raise SettingError(f"etp={layout.etp} is of ranks of runtime='megatron': give tp or ep, or leave it out")
    if layout.etp not in (None, layout.tp) and not megatron:
        raise SettingError(f"etp={layout.etp} apart from tp={layout.tp} is of runtime='megatron': leave it out")
    if layout.ep * layout.expert_tp == 1:
        return
    if megatron:
        _check_folded(layout)
        return
    if layout.ep == 1:
        return
    for name in ("runtime", "wrap"):
        if settings.chosen(name):
            raise SettingError(
                f"{_written(settings, name)} is not worked out with ep={layout.ep}: leave one of them out"
            )
    if settings.policy.autocast is not None:
        raise SettingError(
            f"precision {settings.policy.name!r} is not worked out with ep={layout.ep}: use one whose gathered weights "
            "are of 16 bits, 'bf16-master-fp32-gradients'"
        )
    if not (settings.training or layout.shards > 1):
        if layout.dp % layout.ep:
            near = multiples_near(layout.dp, layout.ep)
            raise SettingError(f"ep={layout.ep} does not divide the {layout.dp} ranks of dp: use dp={near}")
    elif layout.shards % layout.ep:
        raise SettingError(
            f"ep={layout.ep} does not divide the {layout.shards} ranks that weights are split over (fsdp·cp): use "
            f"fsdp={multiples_near(settings.fsdp, layout.ep)}"
        )


def _check_folded(layout: Layout) -> None:
    """Raise SettingError if Megatron's ranks of a stage are not those of experts, laid out anew (``etp``, ``ep``)."""
    ranks, experts = layout.tp * layout.cp * layout.dp, layout.ep * layout.expert_tp
    if ranks % experts:
        others = layout.tp * layout.cp
        near = multiples_near(layout.dp, experts // math.gcd(int(experts), int(others)))
        raise SettingError(
            f"ep={layout.ep} and etp={layout.expert_tp} are {experts} ranks, which do not divide the {ranks} of tp, cp "
            f"and dp: use dp={near}"
        )


def _check_shares(settings: Settings, layout: Layout) -> None:
    """Raise SettingError for what takes more of a weight or of logits than a rank has of them."""
    if (layout.tp > 1 or layout.shards > 1) and not settings.states.by_element:
        raise SettingError(
            f"optimizer {settings.states.name!r} reads whole weights, of which tp and fsdp leave a rank a share: use "
            "one that goes by element, such as 'adamw'"
        )
    if layout.tp > 1 and layout.shards == 1 and layout.runtime == "torch" and settings.states.reads is None:
        raise SettingError(
            f"optimizer {settings.states.name!r} is not worked out where tp={layout.tp} leaves gradients that are not "
            "split as their weights are: use 'adamw', 'sgd' or 'momentum', or fsdp beside tp"
        )
    if layout.tp > 1 and settings.policy.scaled and not settings.policy.linear_alone:
        raise SettingError(
            f"precision {settings.policy.name!r} is not worked out with tp={layout.tp}, whose ranks agree on scales: "
            "use 'bf16-autocast', or leave tp out"
        )
    for name in ("lora", "loss_chunks") if layout.tp > 1 else ():
        if settings.chosen(name):
            raise SettingError(f"{name} is not worked out with tp={layout.tp}: leave one of them out")
    if layout.tp > 1 and layout.shards == 1 and layout.runtime == "torch" and settings.update != "loop":
        why = f"PyTorch takes no weights that tp={layout.tp} splits together with others"
        why = "it is not worked out with sp=True" if layout.sp else why
        raise SettingError(f"update={settings.update!r}: {why}: use update='loop', its default for these, or fsdp")
    if layout.tp > 1 and layout.runtime == "torch" and settings.label_smoothing and not layout.split_loss:
        raise SettingError(f"label_smoothing is not worked out with tp={layout.tp}: leave one of them out")
    for name in ("loss_chunks", "label_smoothing") if layout.split_loss else ():
        if settings.chosen(name):
            raise SettingError(f"{name} is not of the loss that loss_parallel takes: leave one of them out")
    if layout.split_loss and settings.loss not in ("default", "cross_entropy"):
        raise SettingError(f"loss_parallel=True is of cross_entropy, not of loss {settings.loss!r}: leave it out")


def _check_context(settings: Settings) -> None:
    """Raise SettingError if sequences cannot be split over ranks so."""
    cp, ring = settings.cp, settings.cp_kind != "ulysses"
    if cp == 1:
        return
    megatron = settings.runtime == "megatron"
    if settings.runtime == "deepspeed" and ring:
        raise SettingError(f"cp_kind={settings.cp_kind!r} is not in runtime='deepspeed': use cp_kind='ulysses'")
    if not settings.cp_balanced and (megatron or not ring):
        where = "runtime 'torch'" if ring else "cp_kind 'ring' or 'all-gather'"
        raise SettingError(f"cp_balanced=False is for {where}: leave it out")
    fused = ("flash", "efficient") if megatron else ("flash",)
    if ring and settings.attention not in fused:
        raise SettingError(
            f"attention={settings.attention!r} sees no keys of other ranks: use {' or '.join(map(repr, fused))}, or "
            "cp_kind='ulysses'"
        )
    if ring and settings.device == "cpu":
        raise SettingError(f"cp_kind={settings.cp_kind!r} has no kernel on device 'cpu': use cp_kind='ulysses'")


def _check_pipeline(settings: Settings, layout: Layout) -> None:
    """Raise SettingError if micro-batches cannot pass through stages so."""
    if layout.pp == 1:
        for name in ("vpp", "pp_split", "schedule", "return_outputs"):
            if settings.chosen(name):
                raise SettingError(
                    f"{_written(settings, name)} is of a pipeline: give pp, such as pp=2, or leave it out"
                )
        return
    for name in ("freeze", "lora", "allocator", "loss_chunks"):
        if settings.chosen(name):
            raise SettingError(f"{name} is not worked out with pp={layout.pp}: leave one of them out")
    if not settings.training:
        return  # a pass by itself goes through stages one after the other
    if (schedule := settings.schedule) not in (schedules := RUNTIME_SCHEDULES[layout.runtime]):
        raise SettingError(f"runtime={layout.runtime!r} has no schedule={schedule!r}: use {' or '.join(schedules)}")
    if layout.runtime == "deepspeed" and layout.zero > 1:
        raise SettingError(
            f"zero={layout.zero} of runtime='deepspeed' reduces gradients in every micro-batch, which pipelines do "
            "not: use zero=1"
        )
    apart = layout.pipeline(settings.micro_batches).splits
    for name in ("checkpoint", "sp", "loss_parallel") if apart else ():
        if not settings.chosen(name):
            continue
        raise SettingError(
            f"{name} is not worked out with schedule={settings.schedule!r}, which makes gradients of weights "
            f"apart: use {' or '.join(UNSPLIT)}"
        )
    if layout.shards > 1 and layout.runtime == "torch":
        _check_sharded_pipeline(settings, layout)
    if layout.bucket_view:
        raise SettingError(f"bucket_view is not worked out with pp={layout.pp}: leave one of them out")
    if layout.dp > 1 and layout.runtime == "torch" and layout.pipeline(settings.micro_batches).splits:
        raise SettingError(f"dp={layout.dp} is not worked out with schedule={settings.schedule!r}: use '1f1b'")


def _check_sharded_pipeline(settings: Settings, layout: Layout) -> None:
    """Raise SettingError for what is not worked out of stages whose weights are split by FSDP."""
    if layout.pipeline(settings.micro_batches).splits:
        raise SettingError(f"{_sharding(layout)} is not worked out with schedule={settings.schedule!r}: use '1f1b'")
    if settings.policy.autocast is not None or settings.chosen("wrap"):
        name = "wrap" if settings.chosen("wrap") else "precision"
        raise SettingError(f"{_written(settings, name)} is not worked out with fsdp and pp: leave one of them out")
    kept = layout.ep > 1 and settings.chosen("checkpoint")
    if kept and layout.pipeline(settings.micro_batches).gathered_ahead(0):
        raise SettingError(
            f"checkpoint is not worked out with ep={layout.ep} and schedule={layout.schedule!r}, which gathers weights "
            "ahead: use gpipe or 1f1b"
        )
    if layout.vpp > MOST_GATHERED:
        raise SettingError(
            f"vpp={layout.vpp} with fsdp is not worked out, where weights of stages make room for others': use "
            f"vpp={MOST_GATHERED}"
        )


def _check_runtime(settings: Settings) -> None:
    """Raise SettingError if another runtime than PyTorch's own cannot train so."""
    runtime, policy, layout = f"runtime={settings.runtime!r}", settings.policy, settings.layout
    if not settings.training:
        raise SettingError(f"{runtime} is for training: leave it out of mode {settings.mode!r}")
    casts = policy.autocast is not None and not (policy.linear_alone and settings.runtime == "megatron")
    if casts or policy.quantised or (policy.weight != "fp32") != (policy.master is not None):
        raise SettingError(
            f"{runtime} trains 16-bit weights with fp32 masters, not precision {policy.name!r}: use "
            "'bf16-master-fp32-gradients', 'bf16-master', 'fp16-master', 'fp32', 'fp8', 'mxfp8' or 'nvfp4'"
        )
    if settings.states.name not in OF_RUNTIMES:
        raise SettingError(f"{runtime} has no optimizer {settings.states.name!r}: use {listed(OF_RUNTIMES)}")
    names = ["fsdp", "device", "bucket_view", "reshard", "update"]
    if layout.megatron:
        names += ["implementation", "lora", "freeze", "loss_chunks", "label_smoothing"]
    for name in names:
        if settings.chosen(name):
            raise SettingError(f"{name} is not worked out with {runtime}: leave one of them out")
    if settings.runtime == "megatron" and settings.zero > 1:
        raise SettingError(f"zero={settings.zero} is not in {runtime}: use 1, its distributed optimizer")
    if settings.runtime == "deepspeed":
        _check_deepspeed(settings)


def _check_deepspeed(settings: Settings) -> None:
    layout = settings.layout
    if not settings.zero or layout.dp * layout.cp == 1:
        raise SettingError("runtime='deepspeed' is ZeRO: give zero=1, 2 or 3 and dp, or leave the runtime out")
    if layout.tp > 1 and settings.sp:
        raise SettingError(f"sp=True is not worked out with tp={layout.tp} of runtime='deepspeed': leave one out")
    if "parameters" in settings.offload and settings.zero < 3:
        raise SettingError(f"offload='parameters' is of stage 3, not zero={settings.zero}: use zero=3")


def _sharding(layout: Layout) -> str:
    """The axis that weights are split over, as it is given: that of sequences where there is no other."""
    return f"fsdp={layout.fsdp}" if layout.fsdp > 1 else f"cp={layout.cp}"


def _written(settings: Settings, name: str) -> str:
    """A setting as it is given."""
    return f"{name}={shown(getattr(settings, name))}"
