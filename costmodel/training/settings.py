"""How a model is run: every setting of a question, declared once."""

# No `from __future__ import annotations`: texts, types and examples are read from annotations, and making objects of
# strings again would take longer than all else here.
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from costmodel.errors import SettingError, shown, unknown
from costmodel.symbolic.sizes import exact_div
from costmodel.training.dtypes import RealType
from costmodel.training.frozen import Frozen, frozen
from costmodel.training.layout import ContextKind, Layout, Plan, Runtime
from costmodel.training.legality import check_together
from costmodel.training.optimizers import Optimizer, OptimizerName
from costmodel.training.precision import TRANSFORMER_ENGINE, Precision, PrecisionName
from costmodel.training.schedule import ScheduleName
from costmodel.training.schedules import SCHEDULES
from costmodel.training.setting import Need, Setting, ValueForm, image_size, part_names, plain, share
from costmodel.training.stacks import Stack, StackName
from costmodel.training.values import (
    CheckpointName,
    Described,
    Image,
    Lora,
    Names,
    OneMachine,
    OneOptimizer,
    OnePlan,
    OnePrecision,
    OneStack,
    Split,
    read_checkpoint,
    read_lora,
    read_machine,
    read_offload,
    read_plan,
    read_split,
    read_zero,
)

Mode = Literal["train", "inference", "prefill", "decode"]
AttentionName = Literal["eager", "flash", "efficient"]
LossKind = Literal["cross_entropy", "mean_squared_error", "binary_cross_entropy", "kl_divergence"]
LossName = Literal["default", LossKind, "none"]
LossPrecision = Literal["output", "fp32"]
Device = Literal["gpu", "cpu"]
FlopRule = Literal["pytorch", "arithmetic"]
AttentionPairs = Literal["full", "visible"]
Implementation = Literal["plain", "transformers"]
UpdateName = Literal["loop", "foreach", "fused"]
Allocator = Literal["exact", "cuda"]
CacheName = Literal["dynamic", "static", "paged"]
CachePrecision = Literal["same", "fp32", "bf16", "fp16", "fp8"]
LatentAttention = Literal["expanded", "absorbed"]


@frozen(kw_only=True)
class Settings(Frozen):
    """Everything a question asks beside the model; each field is checked when the settings are made.

    A field with its `Setting` (see `training.setting`) is all there is to declare: signatures, options, axes of sweeps,
    titles and plain data follow from it; ``python -m tests.training.stub`` writes `keywords.pyi` for type checkers.

    seq, target_seq and image stay None where the model's own are meant, and loss is "default" where the model's is.
    optimizer, precision and stack are names of ready ones, or declarations, also as mappings of their fields. on: a
    ready machine's name, the path of a file, or a machine; what takes time is asked of it. What each of the others is
    stands with its field; docs/reference/settings.md is the table of them, which
    ``python -m tests.training.settings_page`` writes.
    """

    batch: Annotated[int, Setting("Samples in a batch.", 32, titled=False)] = 1
    seq: Annotated[
        int | None, Setting("Tokens in a sequence (default: the model's context, up to 2,048).", 512, titled=False)
    ] = None
    target_seq: Annotated[
        int | None,
        Setting(
            "Tokens in a target of an encoder-decoder (default: as in the sequence).",
            128,
            titled=False,
            detail="Where the source is sound, `seq` is the same.",
        ),
    ] = None
    image: Annotated[
        tuple[int, int] | None,
        Setting("Image size (default: the model's own).", (224, 320), takes=Image, read=image_size, titled=False),
    ] = None
    mode: Annotated[
        Mode,
        Setting(
            "A training step, a forward pass, or one that keeps keys and values.",
            "inference",
            titled=False,
            detail="`prefill` has logits of the last token alone; `decode` is a step of one token, after "
            "`past` tokens that are kept.",
        ),
    ] = "train"
    past: Annotated[
        int | None,
        Setting(
            "Tokens of each sequence in the cache (default: before a prefill none; before a decode step as many as, "
            "with its own, a sequence has by default).",
            4096,
            needs="cache",
            titled=False,
            detail="A prefill with it goes on where an earlier one stopped.",
        ),
    ] = None
    speculative: Annotated[
        int | None, Setting("Drafts that a decode step verifies beside its own token.", 4, needs="cache")
    ] = None
    cache: Annotated[
        CacheName,
        Setting(
            "How keys and values are kept: anew at each step, in place, or in pages.",
            "paged",
            needs="cache",
            detail="`dynamic` is DynamicCache of transformers; `static` and `paged` are memory for all "
            "tokens there at once.",
        ),
    ] = "dynamic"
    page_size: Annotated[int, Setting("Tokens in a page of a paged cache.", 32, needs="cache")] = 16
    cache_precision: Annotated[
        CachePrecision,
        Setting(
            "Type of cached keys and values: as computed, or another.",
            "fp8",
            needs="cache",
            served=True,
            detail="`fp8` has scales.",
        ),
    ] = "same"
    latent_attention: Annotated[
        LatentAttention,
        Setting(
            "Latent attention over keys and values made anew, or over the latents.",
            "absorbed",
            needs="cache",
            served=True,
        ),
    ] = "expanded"
    optimizer: Annotated[
        OptimizerName | Optimizer, Setting("Optimizer.", "muon", takes=OneOptimizer, needs="training", titled=False)
    ] = "adamw"
    precision: Annotated[
        PrecisionName | Precision,
        Setting(
            "Precision policy.", "bf16-autocast", takes=OnePrecision, served=True, titled=False, executed="default"
        ),
    ] = "fp32"
    attention: Annotated[
        AttentionName,
        Setting(
            "Attention: scores stored, or a fused kernel.", "flash", needs="attention", served=True, executed="default"
        ),
    ] = "eager"
    loss: Annotated[
        LossName | None,
        Setting(
            "Loss (default: the model's own).",
            "mean_squared_error",
            needs="training",
            detail="`binary_cross_entropy` is of logits, `kl_divergence` of log softmax; `none` or None "
            "leaves the loss out.",
        ),
    ] = "default"
    loss_chunks: Annotated[
        int,
        Setting(
            "Chunks of rows that head and cross-entropy run over together.",
            8,
            detail="With more than 1 only one chunk's logits exist at a time, and gradients are computed in forward.",
        ),
    ] = 1
    label_smoothing: Annotated[
        float,
        Setting(
            "Share of a label that cross-entropy spreads over all classes.",
            0.1,
            read=share,
            needs="training",
            detail="As in `torch.nn.CrossEntropyLoss`: more arithmetic, and a mask of the rows that is kept.",
        ),
    ] = 0.0
    loss_precision: Annotated[
        LossPrecision,
        Setting(
            "The loss is taken of what the model makes, or of that in fp32 (logits.float()).",
            "fp32",
            needs="training",
            detail="As transformers and most trainers do; autocast casts it anyway, so it matters in pure 16 bits.",
        ),
    ] = "output"
    implementation: Annotated[
        Implementation,
        Setting(
            "Operators as PyTorch has them, or as the package transformers writes the model.",
            "transformers",
            executed="default",
            detail="Of models read from published configurations: norms, activations, masks, positions and "
            "the loss's type are then as that package's own code has them.",
        ),
    ] = "plain"
    device: Annotated[Device, Setting("Whose kernels decide what is kept.", "cpu", executed="nothing")] = "gpu"
    flop_rule: Annotated[
        FlopRule,
        Setting(
            "Count FLOPs as PyTorch does, or as done.",
            "arithmetic",
            detail="`pytorch` is its FlopCounterMode.",
        ),
    ] = "pytorch"
    attention_pairs: Annotated[
        AttentionPairs,
        Setting("Count attention's full square, or only what masks leave.", "visible", needs="attention"),
    ] = "full"
    checkpoint: Annotated[
        CheckpointName | int | str | tuple[str, ...],
        Setting(
            "What backward recomputes: equal blocks, groups of N, all but some operators, attention's core, or parts.",
            ("mlp", "attention.scores"),
            takes=CheckpointName | int | Names,
            read=read_checkpoint,
            needs="training",
            executed="default",
            detail="`block` is each of the equal blocks, `sqrt` as many to a group as there are groups, a "
            "number groups of so many; `selective` attention from scores to mixed values; `operators` "
            "each block but for results of fused attention and of every second product without a "
            'bias, as torchtitan\'s "selective op".',
        ),
    ] = "none"
    accumulate: Annotated[
        int,
        Setting(
            "Micro-batches to an optimizer step.",
            4,
            needs="training",
            titled=False,
            executed="default",
            detail="FLOPs are those of all micro-batches, activations those of one, and gradients are added up.",
        ),
    ] = 1
    freeze: Annotated[
        tuple[str, ...],
        Setting("Parts whose weights are not trained.", ("embedding", "mlp"), takes=Names, read=part_names),
    ] = ()
    lora: Annotated[
        Lora | None,
        Setting(
            "Adapters, which alone are trained then.",
            {"rank": 8, "targets": ["qkv", "mlp.up"]},
            takes=Lora | dict[str, Any] | None,
            read=read_lora,
        ),
    ] = None
    update: Annotated[
        UpdateName,
        Setting(
            "The optimizer updates weights one by one, all at once, or in one kernel.",
            "fused",
            executed="nothing",
            detail="`foreach` is PyTorch's default on CUDA.",
        ),
    ] = "loop"
    allocator: Annotated[
        Allocator,
        Setting(
            "What the peak counts: tensors, or the blocks of PyTorch's CUDA allocator.",
            "cuda",
            executed="nothing",
            detail="With `cuda`, `p.reserved` is what its segments take.",
        ),
    ] = "exact"
    devices: Annotated[
        int | None,
        Setting(
            "Devices in all, of which the other degrees leave the rest to dp.",
            8,
            served=True,
            executed="default",
            detail="Where degrees are given that come to all devices, these are held against it.",
        ),
    ] = None
    global_batch: Annotated[
        int | None,
        Setting(
            "Samples in a step of all devices, which say how many micro-batches there are.",
            256,
            needs="training",
            executed="default",
        ),
    ] = None
    dp: Annotated[
        int | None,
        Setting(
            "Copies of the model, each with samples of its own (default: as devices say).",
            8,
            served=True,
            executed="default",
            detail="DistributedDataParallel: gradients are summed in its buckets, one more copy of them "
            "unless `bucket_view`.",
        ),
    ] = None
    zero: Annotated[
        int,
        Setting(
            "What dp splits: nothing (0), states (1), gradients too (2), weights too (3).",
            3,
            read=read_zero,
            needs="training",
            executed="default",
            detail="With runtime `torch` 2 and 3 are FSDP's (2 with `reshard=False`).",
        ),
    ] = 0
    bucket_view: Annotated[
        bool,
        Setting(
            "Gradients are views of the buckets they are sent in.",
            True,
            needs="training",
            executed="default",
            detail="`gradient_as_bucket_view` of DistributedDataParallel.",
        ),
    ] = False
    tp: Annotated[
        int, Setting("Ranks that split each layer's weights (tensor parallel).", 2, served=True, executed="default")
    ] = 1
    plan: Annotated[
        Plan,
        Setting(
            "Which layers of an imported module tp splits, by name (default: as the module says).",
            {"*.up": "colwise", "*.down": "rowwise"},
            takes=OnePlan,
            read=read_plan,
            needs="modules",
            executed="default",
        ),
    ] = ()
    sp: Annotated[
        bool,
        Setting("Split activations by tokens over the same ranks (sequence parallel).", True, executed="default"),
    ] = False
    loss_parallel: Annotated[
        bool, Setting("Take the loss of logits that stay split by vocabulary.", True, executed="default")
    ] = False
    fsdp: Annotated[
        int,
        Setting(
            "Ranks that weights, gradients and states are split over (ZeRO-3).",
            8,
            executed="default",
            detail="FSDP2, with each block of a transformer as a unit and all else the root; masters are "
            "then the shares themselves, as with `MixedPrecisionPolicy`; with `dp` HSDP.",
        ),
    ] = 1
    cp: Annotated[
        int,
        Setting(
            "Ranks that have a part of each sequence (context parallel).",
            4,
            executed="default",
            detail="Weights are split over them too, as PyTorch's trainers do, so it takes `fsdp`, or `zero=3`.",
        ),
    ] = 1
    cp_kind: Annotated[
        ContextKind,
        Setting(
            "How attention sees the other parts of a sequence.",
            "ulysses",
            needs="attention",
            executed="default",
            detail="`all-gather` or `ring` of keys and values (the rotation methods of PyTorch's "
            "`context_parallel`), `ulysses`: all tokens of some heads.",
        ),
    ] = "all-gather"
    cp_balanced: Annotated[
        bool,
        Setting(
            "A rank has tokens of both ends of a sequence.",
            False,
            needs="attention",
            executed="default",
            detail="So a causal mask leaves each as much to do (PyTorch's load balance).",
        ),
    ] = True
    ep: Annotated[
        int,
        Setting(
            "Ranks that each have some of the experts.",
            2,
            served=True,
            executed="default",
            detail="They are of those that weights are split over (`fsdp`·`cp`), or in passes without "
            "backward of copies (`dp`), and hand each other tokens.",
        ),
    ] = 1
    etp: Annotated[
        int | None,
        Setting(
            "Ranks that split each expert (default: those of tp).",
            2,
            executed="default",
            detail='Of `runtime="megatron"`.',
        ),
    ] = None
    reshard: Annotated[
        bool,
        Setting(
            "Drop gathered weights between forward and backward.",
            False,
            executed="default",
            detail="`reshard_after_forward` of FSDP2.",
        ),
    ] = True
    wrap: Annotated[
        tuple[str, ...],
        Setting(
            "Parts whose weights fsdp gathers together: each block, the root alone, or parts by name.",
            ("mlp", "attention"),
            takes=Names,
            read=part_names,
            executed="default",
        ),
    ] = ("block",)
    pp: Annotated[
        int,
        Setting(
            "Ranks that have a part of the blocks each (pipeline parallel).",
            4,
            served=True,
            executed="default",
            detail="Of an MLP it is its layers, of a CNN its items (each time of one that repeats): equally "
            "many, the first ranks one more where they do not divide. Micro-batches are `accumulate`. "
            "A tied table is on the first and the last rank, each with its gradient.",
        ),
    ] = 1
    vpp: Annotated[
        int | None, Setting("Stages of a rank (default: 1 or 2, by the schedule).", 2, executed="default")
    ] = None
    pp_split: Annotated[
        tuple[int | str, ...],
        Setting(
            "Layers of each stage, or the first of each but the first, by number or name (default: equal parts).",
            (3, 9),
            takes=Split,
            read=read_split,
            executed="default",
            detail='`(7, 9, 9, 7)`, `"7,9x2,7"`, `(7, 16, 25)` or `("stage2.bottleneck.0", "stage4.projected")`.',
        ),
    ] = ()
    schedule: Annotated[
        ScheduleName, Setting("Order of a pipeline's micro-batches.", "interleaved-1f1b", executed="default")
    ] = "1f1b"
    return_outputs: Annotated[
        bool,
        Setting(
            "A pipeline's last stage keeps what it makes of all micro-batches.",
            False,
            executed="default",
            detail="`return_outputs` of PyTorch's `step`.",
        ),
    ] = True
    runtime: Annotated[
        Runtime, Setting("Whose collectives, buffers and copies a rank has.", "megatron", executed="nothing")
    ] = "torch"
    offload: Annotated[
        tuple[str, ...],
        Setting(
            "What DeepSpeed keeps on the host: the optimizer's states, or parameters (stage 3).",
            ("optimizer",),
            takes=Names,
            read=read_offload,
            needs="training",
            executed="nothing",
        ),
    ] = ()
    on: Annotated[
        str | Described | None,
        Setting(
            "Machine that it runs on, for its seconds.",
            "h100-sxm",
            takes=OneMachine,
            read=read_machine,
            titled=False,
            executed="nothing",
        ),
    ] = None
    stack: Annotated[
        StackName | Stack,
        Setting("How kernels are started on it, and which become one.", "compiled", takes=OneStack, executed="nothing"),
    ] = "eager"

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            value = getattr(self, name)
            if value is not SETTINGS[name].default and (kept := read(name, value)) is not value:
                object.__setattr__(self, name, kept)
        if self.runtime == "megatron":
            self._follow_megatron()
        check_together(self)

    def _follow_megatron(self) -> None:
        """Set what Megatron takes in one way alone: `sp` where tp and ep meet, a fused kernel over parts of a sequence.

        Source: ``megatron/core/model_parallel_config.py`` ("sequence parallelism must be used"),
        ``megatron/core/transformer/dot_product_attention.py`` ("Context parallelism is only supported by
        TEDotProductAttention").
        """
        for name, value in self.forced.items():
            if name == "sp" or self.attention == "eager":
                object.__setattr__(self, name, value)

    @property
    def forced(self) -> dict[str, Any]:
        """Settings that Megatron takes in one way alone beside the others, each with what it takes."""
        if self.runtime != "megatron":
            return {}
        together = {"sp": True} if self.tp > 1 and self.ep > 1 else {}
        return together | ({"attention": "flash"} if self.cp > 1 and self.cp_kind != "ulysses" else {})

    @property
    def step_tokens(self) -> int:
        """Tokens of one sequence in a decode step: its own, and drafts."""
        return 1 + (self.speculative or 0)

    @property
    def keeps(self) -> bool:
        """Whether a pass keeps its tokens' keys and values."""
        return self.mode in ("prefill", "decode")

    @property
    def cache_dtype(self) -> RealType | None:
        """The type that keys and values are kept in, if another than they are computed in."""
        return None if self.cache_precision == "same" else self.cache_precision

    def chosen(self, name: str) -> bool:
        """Whether a setting is not at its default."""
        return getattr(self, name) != SETTINGS[name].default

    def to_dict(self) -> dict[str, Any]:
        """Every setting as plain data, which `from_dict` reads: declarations and machines as their fields."""
        return {name: plain(getattr(self, name)) for name in SETTINGS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], machine: Callable[[Any], Described] | None = None) -> Self:
        """Settings from plain data as `to_dict` gives it, which names no file to read. Raises CostModelError.

        machine: what makes a machine of its fields.
        """
        if not isinstance(data, Mapping):
            raise SettingError(f"settings: {shown(data)} is not a mapping of settings by name")
        check_names(data)
        if machine is not None and isinstance(data.get("on"), Mapping):
            data = {**data, "on": machine(data["on"])}
        return cls(**data)

    @property
    def training(self) -> bool:
        """Whether there is a backward pass."""
        return self.mode == "train"

    @cached_property
    def layout(self) -> Layout:
        """How the model is laid out over devices; what other degrees leave of them are copies of the model."""
        layout = Layout(
            self.tp,
            self.sp,
            self.loss_parallel,
            self.fsdp,
            pp=self.pp,
            vpp=SCHEDULES[self.schedule].usual_stages if self.vpp is None else self.vpp,
            split=self.pp_split,
            schedule=self.schedule,
            runtime=self.runtime,
            zero=self.zero,
            reshard=self.reshard,
            wrap=self.wrap,
            bucket_view=self.bucket_view,
            cp=self.cp,
            cp_kind=self.cp_kind,
            cp_balanced=self.cp_balanced,
            ep=self.ep,
            etp=self.etp,
            plan=self.plan,
        )
        implied = 1 if self.devices is None else max(1, self.devices // layout.devices)
        return layout._replace(dp=implied if self.dp is None else self.dp).sharded()

    @property
    def micro_batches(self) -> int:
        """Those of one optimizer step: as `accumulate` says, or as `global_batch` leaves to each rank."""
        if self.global_batch is None:
            return self.accumulate
        return exact_div(self.global_batch, self.batch * self.layout.samplers)

    @cached_property
    def policy(self) -> Precision:
        """The precision policy in force."""
        engine = self.runtime == "megatron" and self.precision == TRANSFORMER_ENGINE.name
        return TRANSFORMER_ENGINE if engine else Precision.named(self.precision)

    @cached_property
    def states(self) -> Optimizer:
        """The optimizer in force."""
        return Optimizer.named(self.optimizer)


def checked(name: str, value: Any) -> Any:
    """What is kept of a value for a setting. Raises CostModelError."""
    return _READERS[name](name, value)


SETTINGS = {field.name: Setting.of_field(field) for field in fields(Settings)}
"""Every setting, by name."""
_READERS = {name: setting.reader for name, setting in SETTINGS.items()}
SETTING_NAMES = tuple(SETTINGS)
LAYOUT_NAMES = SETTING_NAMES[SETTING_NAMES.index("devices") : SETTING_NAMES.index("runtime") + 1]
"""Settings that say how a model is laid out over devices."""


FORMS: dict[Any, ValueForm] = {
    int: ValueForm("N", "a whole number"),
    float: ValueForm("X", "a number"),
    bool: ValueForm("true|false", "`True`, `False`"),
    str: ValueForm("NAME", "a name"),
    tuple[int, int]: ValueForm("HxW", "(height, width), or one number for both"),
    tuple[str, ...]: ValueForm("NAMES", "names"),
    tuple[int | str, ...]: ValueForm("N,N,...", "numbers or names"),
    Lora: ValueForm("RANK:NAMES", "its fields"),
    Plan: ValueForm("NAME=STYLE", "styles of names"),
    Described: ValueForm("FILE", "a `Machine`"),
}
"""How values of settings are written, by their types; declarations, as machines, are names or files in a shell."""


def needing(need: Need) -> tuple[str, ...]:
    """The names of the settings that have a need."""
    return tuple(name for name, setting in SETTINGS.items() if need == setting.needs)


def check_names(names: Iterable[str]) -> None:
    """Raise UnknownNameError for a name that is no setting's."""
    for name in names:
        if name not in SETTINGS:
            raise unknown("setting", name, SETTINGS)
