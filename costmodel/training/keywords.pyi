# Made by python -m tests.training.stub of the declaration in settings.py.
from collections.abc import Iterable
from typing import Any

from typing_extensions import TypedDict

from costmodel.training.settings import (
    Allocator,
    AttentionName,
    AttentionPairs,
    CacheName,
    CachePrecision,
    ContextKind,
    Device,
    FlopRule,
    Implementation,
    LatentAttention,
    LossName,
    LossPrecision,
    Mode,
    Runtime,
    ScheduleName,
    UpdateName,
)
from costmodel.training.values import (
    CheckpointName,
    Image,
    Lora,
    Names,
    OneMachine,
    OneOptimizer,
    OnePlan,
    OnePrecision,
    OneStack,
    Over,
    Split,
)

class GivenSettings(TypedDict, total=False):
    """What a verb takes for each setting, which is more than what `Settings` keeps of it."""

    batch: int
    seq: int | None
    target_seq: int | None
    image: Image
    mode: Mode
    past: int | None
    speculative: int | None
    cache: CacheName
    page_size: int
    cache_precision: CachePrecision
    latent_attention: LatentAttention
    optimizer: OneOptimizer
    precision: OnePrecision
    attention: AttentionName
    loss: LossName | None
    loss_chunks: int
    label_smoothing: float
    loss_precision: LossPrecision
    implementation: Implementation
    device: Device
    flop_rule: FlopRule
    attention_pairs: AttentionPairs
    checkpoint: CheckpointName | int | Names
    accumulate: int
    freeze: Names
    lora: Lora | dict[str, Any] | None
    update: UpdateName
    allocator: Allocator
    devices: int | None
    global_batch: int | None
    dp: int | None
    zero: int
    bucket_view: bool
    tp: int
    plan: OnePlan
    sp: bool
    loss_parallel: bool
    fsdp: int
    cp: int
    cp_kind: ContextKind
    cp_balanced: bool
    ep: int
    etp: int | None
    reshard: bool
    wrap: Names
    pp: int
    vpp: int | None
    pp_split: Split
    schedule: ScheduleName
    return_outputs: bool
    runtime: Runtime
    offload: Names
    on: OneMachine
    stack: OneStack
    over: Over

class SeveralSettings(TypedDict, total=False):
    """What a verb takes for each setting that is answered for one value of it, or for several."""

    batch: int | Iterable[int]
    seq: int | Iterable[int | None] | None
    target_seq: int | Iterable[int | None] | None
    image: Image | Iterable[Image]
    mode: Mode | Iterable[Mode]
    past: int | Iterable[int | None] | None
    speculative: int | Iterable[int | None] | None
    cache: CacheName | Iterable[CacheName]
    page_size: int | Iterable[int]
    cache_precision: CachePrecision | Iterable[CachePrecision]
    latent_attention: LatentAttention | Iterable[LatentAttention]
    optimizer: OneOptimizer | Iterable[OneOptimizer]
    precision: OnePrecision | Iterable[OnePrecision]
    attention: AttentionName | Iterable[AttentionName]
    loss: LossName | Iterable[LossName | None] | None
    loss_chunks: int | Iterable[int]
    label_smoothing: float | Iterable[float]
    loss_precision: LossPrecision | Iterable[LossPrecision]
    implementation: Implementation | Iterable[Implementation]
    device: Device | Iterable[Device]
    flop_rule: FlopRule | Iterable[FlopRule]
    attention_pairs: AttentionPairs | Iterable[AttentionPairs]
    checkpoint: CheckpointName | int | Names | Iterable[CheckpointName | int | Names]
    accumulate: int | Iterable[int]
    freeze: Names | Iterable[Names]
    lora: Lora | dict[str, Any] | Iterable[Lora | dict[str, Any] | None] | None
    update: UpdateName | Iterable[UpdateName]
    allocator: Allocator | Iterable[Allocator]
    devices: int | Iterable[int | None] | None
    global_batch: int | Iterable[int | None] | None
    dp: int | Iterable[int | None] | None
    zero: int | Iterable[int]
    bucket_view: bool | Iterable[bool]
    tp: int | Iterable[int]
    plan: OnePlan | Iterable[OnePlan]
    sp: bool | Iterable[bool]
    loss_parallel: bool | Iterable[bool]
    fsdp: int | Iterable[int]
    cp: int | Iterable[int]
    cp_kind: ContextKind | Iterable[ContextKind]
    cp_balanced: bool | Iterable[bool]
    ep: int | Iterable[int]
    etp: int | Iterable[int | None] | None
    reshard: bool | Iterable[bool]
    wrap: Names | Iterable[Names]
    pp: int | Iterable[int]
    vpp: int | Iterable[int | None] | None
    pp_split: Split | Iterable[Split]
    schedule: ScheduleName | Iterable[ScheduleName]
    return_outputs: bool | Iterable[bool]
    runtime: Runtime | Iterable[Runtime]
    offload: Names | Iterable[Names]
    on: OneMachine | Iterable[OneMachine]
    stack: OneStack | Iterable[OneStack]
    over: Over

class ServedSettings(TypedDict, total=False):
    """Settings of `predict` that serving takes; it gives the others itself."""

    cache_precision: CachePrecision
    latent_attention: LatentAttention
    precision: OnePrecision
    attention: AttentionName
    devices: int | None
    dp: int | None
    tp: int
    ep: int
    pp: int
    over: Over

class SettingsAndFields(SeveralSettings, TypedDict, total=False, extra_items=Any):
    """The same, and fields of the model (PEP 728)."""
