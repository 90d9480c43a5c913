"""How a model is run: the settings of one question, and what they make of roles, states and losses."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

from costmodel.errors import CostModelError, SettingError, UnknownNameError, shown, unknown
from costmodel.symbolic.sizes import LARGEST_SIZE
from costmodel.training.declaration import check_declared, declared
from costmodel.training.fields import check_fields, check_names
from costmodel.training.frozen import Frozen, frozen
from costmodel.training.optimizers import Optimizer, optimizer_named
from costmodel.training.precision import Precision, precision_named

Mode = Literal["train", "inference"]
FlopRule = Literal["pytorch", "arithmetic"]
Allocator = Literal["exact", "cuda"]


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

    The text beside a field's type says what it is, in the words of every help and signature. seq, target_seq and image
    stay None where the model's own are meant. loss None or "none" leaves the loss out; "default" is the model's.
    loss_chunks: more than 1 runs a linear head and its cross-entropy together over so many chunks of rows, so that only
    one chunk's logits exist at a time.
    optimizer and precision are names of ready-made ones, or declarations: made, as a mapping of their fields, or as the
    path of a YAML or JSON file of them.

    checkpoint: what is recomputed in backward instead of kept: "none", "block" (each of the equal blocks), "sqrt" (as
    many to a group as there are groups), an int (groups of so many), "selective" (attention from scores to mixed
    values), or names of parts. accumulate: FLOPs are those of all micro-batches, activations those of one, and
    gradients are added up.

    update: how the optimizer goes over the weights: "loop" (one after another), "foreach" (all at once, as PyTorch does
    by default on CUDA) or "fused" (in one kernel). allocator: what the timeline and its peak count: the bytes of
    tensors, or the blocks that PyTorch's CUDA caching allocator has for them.
    """

    batch: Annotated[int, "Samples in a batch."] = 1
    seq: Annotated[int | None, "Tokens in a sequence (default: the model's context)."] = None
    target_seq: Annotated[int | None, "Tokens in a target of an encoder-decoder (default: as in the sequence)."] = None
    image: Annotated[tuple[int, int] | None, "Image size, such as 224 or 224x320 (default: the model's own)."] = None
    mode: Annotated[Mode, "With or without a backward pass."] = "train"
    optimizer: Annotated[str | Optimizer, "Optimizer."] = "adamw"
    precision: Annotated[str | Precision, "Precision policy."] = "fp32"
    attention: Annotated[Literal["eager", "flash", "efficient"], "Attention: scores stored, or a fused kernel."] = (
        "eager"
    )
    loss: Annotated[
        Literal["default", "cross_entropy", "mean_squared_error", "none"] | None, "Loss (default: the model's own)."
    ] = "default"
    loss_chunks: Annotated[int, "Chunks of rows that head and cross-entropy run over together."] = 1
    device: Annotated[Literal["gpu", "cpu"], "Whose kernels decide what is kept."] = "gpu"
    flop_rule: Annotated[FlopRule, "Count FLOPs as PyTorch does, or as done."] = "pytorch"
    attention_pairs: Annotated[
        Literal["full", "visible"], "Count attention's full square, or only what masks leave."
    ] = "full"
    checkpoint: Annotated[
        Literal["none", "block", "sqrt", "selective"] | int | str | tuple[str, ...],
        "What backward recomputes: equal blocks, groups of N, attention's core, or parts by name.",
    ] = "none"
    accumulate: Annotated[int, "Micro-batches to an optimizer step."] = 1
    freeze: Annotated[tuple[str, ...], "Parts whose weights are not trained, such as embedding,mlp."] = ()
    lora: Annotated[Lora | None, "Adapters, which alone are trained then, such as 8:qkv,mlp.up."] = None
    update: Annotated[
        Literal["loop", "foreach", "fused"],
        "The optimizer updates weights one by one, all at once, or in one kernel.",
    ] = "loop"
    allocator: Annotated[Allocator, "What the peak counts: tensors, or the blocks of PyTorch's CUDA allocator."] = (
        "exact"
    )

    def __post_init__(self) -> None:
        _check_size("batch", self.batch)
        _check_size("loss_chunks", self.loss_chunks)
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
        if self.accumulate > 1 and not self.training:
            raise SettingError(f"accumulate={self.accumulate} is for training: leave it out of inference")
        if self.freeze and self.lora:
            raise SettingError("lora freezes all but its adapters: leave out freeze")
        for name, kind in (("optimizer", Optimizer), ("precision", Precision)):
            object.__setattr__(self, name, declared(kind, getattr(self, name), name))
        # Named here once, so that a wrong name is refused when the settings are made.
        _ = self.states, self.policy
        for name in ("optimizer", "precision"):
            check_declared(name, getattr(self, name))
        self._check_update()
        if self.training and self.policy.quantised:
            raise SettingError(
                f"precision {self.policy.name!r} is for inference: use mode='inference', or another precision"
            )

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
    "attention": ("eager", "flash", "efficient"),
    "loss": ("default", "cross_entropy", "mean_squared_error", None),
    "device": ("gpu", "cpu"),
    "flop_rule": get_args(FlopRule),
    "attention_pairs": ("full", "visible"),
    "update": ("loop", "foreach", "fused"),
    "allocator": get_args(Allocator),
}

ALIASES = {
    "mse": "mean_squared_error",
    "l2": "mean_squared_error",
    "ce": "cross_entropy",
    "xent": "cross_entropy",
    "nll": "cross_entropy",
    "training": "train",
    "eval": "inference",
    "infer": "inference",
    "cuda": "gpu",
}
"""Other names that people give values of settings, for errors."""

SETTING_NAMES = tuple(field.name for field in fields(Settings))


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
