"""Values of settings that are more than a choice or a number: what is taken for each, and what is kept."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from costmodel.documents.arguments import native
from costmodel.errors import ALIASES, CostModelError, SettingError, listed, shown, unknown
from costmodel.training.declaration import built
from costmodel.training.fields import check_fields, whole_size
from costmodel.training.frozen import Frozen, frozen
from costmodel.training.layout import STYLES, Plan, plan_of
from costmodel.training.optimizers import Optimizer, OptimizerName
from costmodel.training.precision import Precision, PrecisionName
from costmodel.training.setting import part_names
from costmodel.training.stacks import Stack, StackName

CheckpointName = Literal["none", "block", "sqrt", "selective", "operators"]


@runtime_checkable
class Described(Protocol):
    """A machine, of which more is known above this floor."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain data."""
        ...


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
        object.__setattr__(self, "targets", part_names("lora targets", self.targets))
        try:
            check_fields(self, "lora")
        except CostModelError as error:
            raise SettingError(str(error)) from None
        if not self.targets:
            raise SettingError("lora targets no part: name linear layers such as 'qkv'")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"lora dropout {self.dropout} is not in [0, 1)")

    def __str__(self) -> str:
        """As a shell takes it, and the dropout."""
        dropout = f" dropout {self.dropout:g}" if self.dropout else ""
        return f"{self.rank}:{','.join(self.targets)}{dropout}"


Over = Mapping[str, Any] | None
"""What every verb takes beside settings: other values for fields of the model, see `Architecture.changed`."""
OneOptimizer = OptimizerName | Optimizer | dict[str, Any] | os.PathLike[str]
OnePrecision = PrecisionName | Precision | dict[str, Any] | os.PathLike[str]
OneStack = StackName | Stack | dict[str, Any] | os.PathLike[str]
"""What is taken for a declaration. Paths of files are text too when a program runs; a type checker, which is to find
misspelt names, wants a Path."""
OnePlan = dict[str, str] | Plan | Literal["auto"]
OneMachine = str | Described | dict[str, Any] | os.PathLike[str] | None
Names = str | tuple[str, ...] | list[str]
Image = int | tuple[int, int] | list[int] | None
Split = int | str | tuple[int | str, ...] | list[int | str]


def read_lora(name: str, value: Any) -> Lora:
    """Adapters, or their fields. Raises SettingError."""
    if isinstance(value, Lora):
        return value
    if not isinstance(value, Mapping):
        raise SettingError(f"{name}={shown(value)} is not a Lora or a mapping of its fields")
    return built(Lora, value, name)


def read_checkpoint(name: str, value: Any) -> str | int | tuple[str, ...]:
    """A name, how many blocks are recomputed together, or names of parts. Raises SettingError."""
    if isinstance(value, str):
        names = get_args(CheckpointName)
        if ALIASES.get(value.replace("-", "_")) in names:  # any other name may be that of a part
            raise unknown(name, value, names)
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value):
        return tuple(value)
    if isinstance(value, list | tuple):
        raise SettingError(f"{name}={shown(value)} is not a list of names of parts")
    return whole_size(name, value)


MOST_STAGES = 10_000
"""Stages that are told one by one."""


def _alike_stages(part: str) -> list[int | str]:
    """The layers of one stage as text, or of several alike, such as ``5x4``."""
    if times := re.fullmatch("([0-9]{1,19})[x×]([0-9]{1,5})", part):
        return [int(times[1])] * int(times[2])
    return [int(part) if part.isdecimal() and len(part) < 20 else part]


def split_text(split: Sequence[int | str]) -> str:
    """Layers of each stage as a shell takes them, those that are alike together.

    Example:
        >>> split_text((4, 4, 4, 5, 5, 2))
        '4x3,5x2,2'

    """
    runs = [(part, len([*alike])) for part, alike in itertools.groupby(split)]
    return ",".join(str(part) if times == 1 else f"{part}x{times}" for part, times in runs)


def read_split(name: str, value: Any) -> tuple[int | str, ...]:
    """Layers of each stage, or the first ones; text as a shell takes it. Raises SettingError."""
    if isinstance(value, str):  # as in a shell
        value = [stage for part in re.split("[,+]", value) for stage in _alike_stages(part)]
    parts = tuple(value) if isinstance(value, list | tuple) else (value,)
    if any(isinstance(part, bool) or not isinstance(native(part), int | str) for part in parts):
        raise SettingError(f"{name}={shown(value)} is not of numbers or names of layers: use such as {name}=(3, 9)")
    if len(parts) > MOST_STAGES:
        raise SettingError(f"{name} is of {len(parts):,} stages: use at most {MOST_STAGES:,}")
    if not all(part for part in parts if isinstance(part, str)):
        raise SettingError(f"{name} has an empty item: use numbers or names of layers, such as {name}='3,9'")
    return tuple(part if isinstance(part, str) else whole_size(name, part) for part in parts)


OFFLOADED = ("optimizer", "parameters")
"""What may be kept on the host."""


def read_offload(name: str, value: Any) -> tuple[str, ...]:
    """Names of what is kept on the host. Raises SettingError."""
    parts = part_names(name, value)
    for part in parts:
        if part not in OFFLOADED:
            raise SettingError(f"{name}={shown(value)} is nothing that is offloaded: use {listed(OFFLOADED)}, or both")
    return parts


def read_plan(name: str, value: Any) -> Plan:
    """Styles by names of layers. Raises SettingError."""
    if isinstance(value, str) and value == "auto":
        return ()
    if isinstance(value, Mapping) and not value:
        raise SettingError(f"{name} is empty: leave it out for the module's own, or give {{'*.q_proj': 'colwise'}}")
    plan = plan_of(name, value)
    for module, style in plan:
        if style not in STYLES:
            raise unknown(f"style of {shown(module)} in {name}", style, STYLES)
    return plan


def read_zero(name: str, value: Any) -> int:
    """A stage of ZeRO. Raises SettingError."""
    if type(stage := native(value)) is not int or stage not in range(4):
        raise SettingError(f"{name}={shown(value)} is no stage of ZeRO: use 0, 1, 2 or 3")
    return stage


def read_machine(name: str, value: Any) -> str | Described:
    """A machine, or the name of one, which is read above this floor. Raises SettingError."""
    if not isinstance(value, str | Described):
        raise SettingError(f"{name}={shown(value)} is not a machine: use a name such as 'h100-sxm' or a Machine")
    return value
