"""How a model is run: the settings of one question, and what they make of roles, states and losses."""

# No `from __future__ import annotations`: texts, types and examples are read from annotations, and making objects of
# strings again would take longer than all else here.
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cached_property
from inspect import Parameter, cleandoc, signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, Self, TypedDict, TypeVar, get_args

from costmodel.errors import CostModelError, SettingError, UnknownNameError, shown, unknown
from costmodel.symbolic.sizes import LARGEST_SIZE
from costmodel.training.declaration import check_declared, declared
from costmodel.training.dtypes import Dtype
from costmodel.training.fields import check_fields, check_names
from costmodel.training.frozen import Frozen, frozen
from costmodel.training.optimizers import OPTIMIZERS, Optimizer, OptimizerName, optimizer_named
from costmodel.training.precision import PRECISIONS, Precision, PrecisionName, precision_named

Mode = Literal["train", "inference", "prefill", "decode"]
Attention = Literal["eager", "flash", "efficient"]
Loss = Literal["default", "cross_entropy", "mean_squared_error", "binary_cross_entropy", "kl_divergence", "none"]
LossPrecision = Literal["output", "fp32"]
Device = Literal["gpu", "cpu"]
FlopRule = Literal["pytorch", "arithmetic"]
AttentionPairs = Literal["full", "visible"]
Checkpoint = Literal["none", "block", "sqrt", "selective"]
Update = Literal["loop", "foreach", "fused"]
Allocator = Literal["exact", "cuda"]
CacheName = Literal["dynamic", "static", "paged"]
CachePrecision = Literal["same", "fp32", "bf16", "fp16", "fp8"]
LatentAttention = Literal["expanded", "absorbed"]
Stack = Literal["eager", "compiled", "cuda-graphs"]


class Described(Protocol):
    """A machine, of which more is known above this floor."""

    name: str


@frozen()
class Lora(Frozen):
    """Low-rank adapters: W x becomes W x + s·B (A x), A: (rank, n_in) and B: (n_out, rank) trained, W frozen, s = 1.

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


@frozen(kw_only=True)
class Settings(Frozen):
    """Everything a question asks beside the model; each field is checked when it is made.

    The text beside a field's type says what it is, in the words of every help; the value after it is an example. seq,
    target_seq and image stay None where the model's own are meant. loss None or "none" leaves the loss out; "default"
    is the model's. loss_chunks: more than 1 runs a linear head and its cross-entropy together over so many chunks of
    rows, so that only one chunk's logits exist at a time. loss_precision: "fp32" casts what the model makes before the
    loss, as transformers and most trainers do; the same under autocast, which casts it anyway.
    label_smoothing: of cross-entropy's targets, as in ``torch.nn.CrossEntropyLoss``.
    optimizer and precision are names of ready-made ones, or declarations: made, as a mapping of their fields, or as the
    path of a YAML or JSON file of them.

    checkpoint: what is recomputed in backward instead of kept: "none", "block" (each of the equal blocks), "sqrt" (as
    many to a group as there are groups), an int (groups of so many), "selective" (attention from scores to mixed
    values), or names of parts. accumulate: FLOPs are those of all micro-batches, activations those of one, and
    gradients are added up.

    update: how the optimizer goes over the weights: "loop" (one after another), "foreach" (all at once, as PyTorch does
    by default on CUDA) or "fused" (in one kernel). allocator: what the timeline and its peak count: the bytes of
    tensors, or the blocks that PyTorch's CUDA caching allocator has for them.

    on: a ready machine's name, the path of a file, or a machine; what takes time is asked of it. stack: see
    `performance.stacks`.

    mode: "inference" is a forward pass that keeps nothing. "prefill" keeps its tokens' keys and values, and has logits
    of the last token alone; "decode" is a step of one token, or of one and `speculative` drafts that it verifies, after
    `past` tokens that are kept. A prefill with `past` goes on where an earlier one stopped. cache: how they are kept:
    "dynamic" (new memory at each step, as DynamicCache of transformers), "static" (memory for all tokens there at once,
    written in place) or "paged" (that, in pages of page_size tokens). latent_attention: keys and values of all tokens
    made anew from their latents at each step ("expanded"), or attention over the latents themselves ("absorbed").
    """

    batch: Annotated[int, "Samples in a batch.", 32] = 1
    seq: Annotated[int | None, "Tokens in a sequence (default: the model's context).", 512] = None
    target_seq: Annotated[
        int | None, "Tokens in a target of an encoder-decoder (default: as in the sequence).", 128
    ] = None
    image: Annotated[tuple[int, int] | None, "Image size (default: the model's own).", (224, 320)] = None
    mode: Annotated[Mode, "A training step, a forward pass, or one that keeps keys and values.", "inference"] = "train"
    past: Annotated[int | None, "Tokens of each sequence that a prefill or a decode step finds in the cache.", 4096] = (
        None
    )
    speculative: Annotated[int | None, "Drafts that a decode step verifies beside its own token.", 4] = None
    cache: Annotated[CacheName, "How keys and values are kept: anew at each step, in place, or in pages.", "paged"] = (
        "dynamic"
    )
    page_size: Annotated[int, "Tokens in a page of a paged cache.", 32] = 16
    cache_precision: Annotated[CachePrecision, "Type of cached keys and values: as computed, or another.", "fp8"] = (
        "same"
    )
    latent_attention: Annotated[
        LatentAttention, "Latent attention over keys and values made anew, or over the latents.", "absorbed"
    ] = "expanded"
    optimizer: Annotated[str | Optimizer, "Optimizer.", "muon"] = "adamw"
    precision: Annotated[str | Precision, "Precision policy.", "bf16-autocast"] = "fp32"
    attention: Annotated[Attention, "Attention: scores stored, or a fused kernel.", "flash"] = "eager"
    loss: Annotated[Loss | None, "Loss (default: the model's own).", "mean_squared_error"] = "default"
    loss_chunks: Annotated[int, "Chunks of rows that head and cross-entropy run over together.", 8] = 1
    label_smoothing: Annotated[float, "Share of a label that cross-entropy spreads over all classes.", 0.1] = 0.0
    loss_precision: Annotated[
        LossPrecision, "The loss is taken of what the model makes, or of that in fp32 (logits.float()).", "fp32"
    ] = "output"
    device: Annotated[Device, "Whose kernels decide what is kept.", "cpu"] = "gpu"
    flop_rule: Annotated[FlopRule, "Count FLOPs as PyTorch does, or as done.", "arithmetic"] = "pytorch"
    attention_pairs: Annotated[
        AttentionPairs, "Count attention's full square, or only what masks leave.", "visible"
    ] = "full"
    checkpoint: Annotated[
        Checkpoint | int | str | tuple[str, ...],
        "What backward recomputes: equal blocks, groups of N, attention's core, or parts by name.",
        ("mlp", "attention.scores"),
    ] = "none"
    accumulate: Annotated[int, "Micro-batches to an optimizer step.", 4] = 1
    freeze: Annotated[tuple[str, ...], "Parts whose weights are not trained.", ("embedding", "mlp")] = ()
    lora: Annotated[
        Lora | None, "Adapters, which alone are trained then.", {"rank": 8, "targets": ["qkv", "mlp.up"]}
    ] = None
    update: Annotated[Update, "The optimizer updates weights one by one, all at once, or in one kernel.", "fused"] = (
        "loop"
    )
    allocator: Annotated[
        Allocator, "What the peak counts: tensors, or the blocks of PyTorch's CUDA allocator.", "cuda"
    ] = "exact"
    on: Annotated[str | Described | None, "Machine that it runs on, for its seconds.", "h100-sxm"] = None
    stack: Annotated[Stack, "How kernels are started on it, and which become one.", "compiled"] = "eager"

    def __post_init__(self) -> None:
        _check_size("batch", self.batch)
        _check_size("loss_chunks", self.loss_chunks)
        if isinstance(self.label_smoothing, bool) or not isinstance(self.label_smoothing, int | float):
            raise SettingError(f"label_smoothing={shown(self.label_smoothing)} is not a number: use one such as 0.1")
        if not 0 <= self.label_smoothing < 1:
            raise SettingError(f"label_smoothing={self.label_smoothing} is not in [0, 1): use one such as 0.1")
        _check_size("accumulate", self.accumulate)
        for name in ("seq", "target_seq"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        if self.image is not None:
            object.__setattr__(self, "image", _image(self.image))
        if isinstance(self.loss, str) and self.loss == "none":
            object.__setattr__(self, "loss", None)
        for name, known in _CHOICES.items():
            _check_name(name, getattr(self, name), known)
        object.__setattr__(self, "checkpoint", _checkpoint(self.checkpoint))
        object.__setattr__(self, "freeze", names_of("freeze", self.freeze))
        object.__setattr__(self, "lora", _lora(self.lora))
        self._check_cache()
        if self.accumulate > 1 and not self.training:
            raise SettingError(f"accumulate={self.accumulate} is for training: leave it out of inference")
        if self.freeze and self.lora:
            raise SettingError("lora freezes all but its adapters: leave out freeze")
        for name, kind in (("optimizer", Optimizer), ("precision", Precision)):
            object.__setattr__(self, name, declared(kind, getattr(self, name), name))
        # Named here once, so that a wrong name is refused when the settings are made.
        for name, known in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            if isinstance(getattr(self, name), str):
                _check_name(name, getattr(self, name), known)
        _ = self.states, self.policy
        for name in ("optimizer", "precision"):
            check_declared(name, getattr(self, name))
        self._check_update()
        if self.training and self.policy.quantised and self.lora is None:
            raise SettingError(
                f"precision {self.policy.name!r} is for inference, or for training adapters on frozen weights: use "
                "mode='inference', lora, or another precision"
            )

    def _check_cache(self) -> None:
        """Raise SettingError if settings of what is kept of tokens do not go together."""
        for name in ("past", "speculative"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        _check_size("page_size", self.page_size)
        if self.mode == "decode":
            self._check_decode()

    def _check_decode(self) -> None:
        if self.past is None:
            raise SettingError("mode='decode' needs the tokens in the cache: give past, such as past=4096")
        if self.seq is not None and self.seq != self.step_tokens:
            given = "" if self.speculative is None else f" and its {self.speculative} drafts"
            raise SettingError(
                f"seq={self.seq} does not apply to mode 'decode', a step of one token{given}: leave it out, or give "
                f"speculative={max(1, self.seq - 1)} for as many drafts that it verifies"
            )

    @property
    def step_tokens(self) -> int:
        """Tokens of one sequence in a decode step: its own, and drafts."""
        return 1 + (self.speculative or 0)

    @property
    def keeps(self) -> bool:
        """Whether a pass keeps its tokens' keys and values."""
        return self.mode in ("prefill", "decode")

    @property
    def cache_dtype(self) -> Dtype | None:
        """The type that keys and values are kept in, if another than they are computed in."""
        return None if self.cache_precision == "same" else self.cache_precision

    def _check_update(self) -> None:
        """Raise SettingError if the optimizer has no such update."""
        ways = {"loop": True, "foreach": self.states.together is not None, "fused": self.states.fused}
        if not ways[self.update]:
            others = " or ".join(repr(way) for way, has in ways.items() if has)
            raise SettingError(f"optimizer {self.states.name!r} has no {self.update} update: use update={others}")

    @classmethod
    def from_dict(cls, data: dict[Any, Any]) -> Self:
        """Settings from the plain data that ``dataclasses.asdict`` makes of them. Raises CostModelError."""
        for name in data:
            if name not in SETTING_NAMES:
                raise unknown("setting", name, SETTING_NAMES)
        for name, named in (("optimizer", optimizer_named), ("precision", precision_named)):
            if isinstance(data.get(name), str):
                named(data[name])  # data that came from elsewhere names no file to read
        return cls(**data)

    @property
    def training(self) -> bool:
        """Whether there is a backward pass."""
        return self.mode == "train"

    @cached_property
    def policy(self) -> Precision:
        """The precision policy in force."""
        return precision_named(self.precision)

    @cached_property
    def states(self) -> Optimizer:
        """The optimizer in force."""
        return optimizer_named(self.optimizer)


_CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": get_args(Mode),
    "attention": get_args(Attention),
    "loss": (*(name for name in get_args(Loss) if name != "none"), None),
    "loss_precision": get_args(LossPrecision),
    "device": get_args(Device),
    "flop_rule": get_args(FlopRule),
    "attention_pairs": get_args(AttentionPairs),
    "update": get_args(Update),
    "allocator": get_args(Allocator),
    "stack": get_args(Stack),
    "cache": get_args(CacheName),
    "cache_precision": get_args(CachePrecision),
    "latent_attention": get_args(LatentAttention),
}

ALIASES = {
    "mse": "mean_squared_error",
    "l2": "mean_squared_error",
    "ce": "cross_entropy",
    "xent": "cross_entropy",
    "nll": "cross_entropy",
    "bce": "binary_cross_entropy",
    "kl": "kl_divergence",
    "kl_div": "kl_divergence",
    "training": "train",
    "eval": "inference",
    "infer": "inference",
    "cuda": "gpu",
    "sdpa": "flash",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "fused": "flash",
    "math": "eager",
    "standard": "eager",
    "mem_efficient": "efficient",
    "xformers": "efficient",
    "full": "block",
    "every": "block",
    "layer": "block",
    "float32": "fp32",
    "float": "fp32",
    "tf32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "amp": "fp16-autocast",
    "mixed": "bf16-autocast",
    "mixed-precision": "bf16-autocast",
    "adam8bit": "adam-8bit",
    "adamw_8bit": "adam-8bit",
    "adamw8bit": "adam-8bit",
    "adamw_torch": "adamw",
    "sgd_momentum": "momentum",
}
"""Other names that people give values of settings, for errors."""

SETTING_NAMES = tuple(field.name for field in fields(Settings))

OneOptimizer = OptimizerName | Optimizer | dict[str, Any] | os.PathLike[str]
OnePrecision = PrecisionName | Precision | dict[str, Any] | os.PathLike[str]
Names = str | tuple[str, ...] | list[str]
Image = int | tuple[int, int] | list[int] | None
OneMachine = str | Described | os.PathLike[str] | None


class GivenSettings(TypedDict, total=False):
    """What a verb takes for each setting, which is more than what `Settings` keeps of it.

    Paths of files are text too when a program runs; a type checker, which is to find misspelt names, wants a Path.
    """

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
    attention: Attention
    loss: Loss | None
    loss_chunks: int
    label_smoothing: float
    loss_precision: LossPrecision
    device: Device
    flop_rule: FlopRule
    attention_pairs: AttentionPairs
    checkpoint: Checkpoint | int | Names
    accumulate: int
    freeze: Names
    lora: Lora | dict[str, Any] | None
    update: Update
    allocator: Allocator
    on: OneMachine
    stack: Stack


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
    attention: Attention | Iterable[Attention]
    loss: Loss | Iterable[Loss | None] | None
    loss_chunks: int | Iterable[int]
    label_smoothing: float | Iterable[float]
    loss_precision: LossPrecision | Iterable[LossPrecision]
    device: Device | Iterable[Device]
    flop_rule: FlopRule | Iterable[FlopRule]
    attention_pairs: AttentionPairs | Iterable[AttentionPairs]
    checkpoint: Checkpoint | int | Names | Iterable[Checkpoint | int | Names]
    accumulate: int | Iterable[int]
    freeze: Names | Iterable[Names]
    lora: Lora | dict[str, Any] | Iterable[Lora | dict[str, Any] | None] | None
    update: Update | Iterable[Update]
    allocator: Allocator | Iterable[Allocator]
    on: OneMachine | Iterable[OneMachine]
    stack: Stack | Iterable[Stack]


if TYPE_CHECKING:
    import typing_extensions

    # Python's own TypedDict takes no extra items yet (PEP 728).
    class SettingsAndFields(SeveralSettings, typing_extensions.TypedDict, total=False, extra_items=Any):
        """The same, and fields of the model."""


class Meaning(NamedTuple):
    """What a setting is, in a sentence; an example of a value; and what it is unless given."""

    text: str
    example: Any
    default: Any

    def __str__(self) -> str:
        said = self.default in (None, "default", (), ...)  # the sentence says it, or the verb does
        return self.text if said else f"{self.text.removesuffix('.')} (default {self.default})."


MEANINGS = {field.name: Meaning(*field.type.__metadata__, field.default) for field in fields(Settings)}  # type: ignore[union-attr]
"""What each setting is, by name."""

Verb = TypeVar("Verb", bound=Callable[..., Any])


def takes_settings(
    *, several: bool = False, and_fields: bool = False, without: str = "", **defaults: Any
) -> Callable[[Verb], Verb]:
    """Show the settings that a function takes as ``**settings`` in its signature and in its documentation.

    several: whether it takes several values of one. and_fields: whether it takes fields of the model too. without: a
    setting that it does not take. defaults: those that are not as in `Settings`; ... where the function says which.
    """
    types = (SeveralSettings if several else GivenSettings).__annotations__
    meanings = {
        name: meaning._replace(default=defaults.get(name, meaning.default))
        for name, meaning in MEANINGS.items()
        if name != without
    }
    shown_settings = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=meaning.default, annotation=types[name])
        for name, meaning in meanings.items()
    ]
    fields_of_models = [Parameter("fields", Parameter.VAR_KEYWORD, annotation=Any)] if and_fields else []
    lines = [
        f"    {name}: {str(meaning)[:-1]}, as in {name}={meaning.example!r}." for name, meaning in meanings.items()
    ]

    def shown_by(verb: Verb) -> Verb:
        own = signature(verb)
        *first, _ = own.parameters.values()
        vars(verb)["__signature__"] = own.replace(parameters=[*first, *shown_settings, *fields_of_models])
        if verb.__doc__:  # python -OO leaves none
            verb.__doc__ = "\n".join([cleandoc(verb.__doc__), "", "Settings:", *lines])
        return verb

    return shown_by


def _lora(value: Any) -> Lora | None:
    if value is None or isinstance(value, Lora):
        return value
    if not isinstance(value, dict):
        raise SettingError(f"lora={shown(value)} is not a Lora or a mapping of its fields")
    try:
        check_names(Lora, value, "lora")
    except CostModelError as error:
        raise SettingError(str(error)) from None
    return Lora(**value)


def _checkpoint(value: Any) -> str | int | tuple[str, ...]:
    if isinstance(value, str):
        if ALIASES.get(value) in get_args(Checkpoint):  # any other name may be that of a part
            raise UnknownNameError(f"unknown checkpoint {shown(value)}: did you mean {ALIASES[value]!r}?")
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    if isinstance(value, list | tuple):
        raise SettingError(f"checkpoint={shown(value)} is not a list of names of parts")
    return _check_size("checkpoint", value)


def _check_size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(f"{name}={shown(value)} is not a whole number: use an int such as {name}=32")
    if not 1 <= value <= LARGEST_SIZE:
        raise SettingError(f"{name}={shown(value)} is not between 1 and {LARGEST_SIZE:,}")
    return value


def _image(value: Any) -> tuple[int, int]:
    if isinstance(value, tuple | list) and len(value) != 2:
        raise SettingError(f"image={shown(value)} is not (height, width) or one size for both: use image=(224, 320)")
    height, width = value if isinstance(value, tuple | list) else (value, value)
    return _check_size("image", height), _check_size("image", width)


def _check_name(what: str, name: Any, known: Any) -> None:
    if name in known if isinstance(name, str) or name is None else False:
        return
    if isinstance(name, str) and ALIASES.get(name, "") in known:
        raise UnknownNameError(f"unknown {what} {shown(name)}: did you mean {ALIASES[name]!r}?")
    raise unknown(what, name, ["none" if k is None else k for k in known if k != "default"])


def names_of(what: str, value: Any) -> tuple[str, ...]:
    """Names of parts: one, or several. Raises SettingError."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise SettingError(f"{what}={shown(value)} is not a list of names of parts")
    return tuple(names)
