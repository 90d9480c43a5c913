"""How a model is run: the settings of one question, and what they make of roles, states and losses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from costmodel.errors import SettingError, shown, unknown
from costmodel.sizes import LARGEST_SIZE
from costmodel.tensor import Role

Mode = Literal["train", "inference"]
FlopRule = Literal["pytorch", "arithmetic"]

PRECISIONS: dict[str, dict[Role, int]] = {
    "fp32": {"weight": 4, "activation": 4, "logits": 4, "statistic": 4, "mask": 1, "index": 8, "random": 8}
}
"""Bytes an element of each role takes, by precision policy."""

OPTIMIZERS = {"adamw": 2}
"""fp32 states per weight, by optimizer (AdamW: two moments, Loshchilov & Hutter 2019, alg. 2)."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything a question asks beside the model; each field is checked when it is made.

    seq and image stay None where the model's own are meant. loss None leaves the loss out; "default" is the model's.
    """

    batch: int = 1
    seq: int | None = None
    image: tuple[int, int] | None = None
    mode: Mode = "train"
    optimizer: str = "adamw"
    precision: str = "fp32"
    attention: Literal["eager", "flash", "efficient"] = "eager"
    loss: Literal["default", "cross_entropy", "mean_squared_error"] | None = "default"
    device: Literal["gpu", "cpu"] = "gpu"
    flop_rule: FlopRule = "pytorch"
    attention_pairs: Literal["full", "visible"] = "full"

    def __post_init__(self) -> None:
        _check_size("batch", self.batch)
        if self.seq is not None:
            _check_size("seq", self.seq)
        if self.image is not None:
            object.__setattr__(self, "image", _image(self.image))
        _check_name("optimizer", self.optimizer, OPTIMIZERS)
        _check_name("precision", self.precision, PRECISIONS)
        for name, known in _CHOICES.items():
            _check_name(name, getattr(self, name), known)

    @property
    def training(self) -> bool:
        """Whether there is a backward pass."""
        return self.mode == "train"

    def bytes_of(self, role: Role) -> int:
        """Bytes of one element."""
        return PRECISIONS[self.precision][role]


_CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": get_args(Mode),
    "attention": ("eager", "flash", "efficient"),
    "loss": ("default", "cross_entropy", "mean_squared_error", None),
    "device": ("gpu", "cpu"),
    "flop_rule": get_args(FlopRule),
    "attention_pairs": ("full", "visible"),
}

SETTING_NAMES = tuple(field.name for field in fields(Settings))


def _check_size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(f"{name}={shown(value)} is not a whole number: use an int such as {name}=32")
    if not 1 <= value <= LARGEST_SIZE:
        raise SettingError(f"{name}={shown(value)} is not between 1 and {LARGEST_SIZE:,}")
    return value


def _image(value: Any) -> tuple[int, int]:
    height, width = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
    return _check_size("image", height), _check_size("image", width)


def _check_name(what: str, name: Any, known: Any) -> None:
    if name in known if isinstance(name, str) or name is None else False:
        return
    raise unknown(what, name, [str(k) for k in known])
