"""The quantities that a prediction answers with, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from costmodel.display.units import show_bytes, show_flops
from costmodel.errors import SettingError, no_attribute, shown, unknown
from costmodel.training.frozen import Frozen, frozen

if TYPE_CHECKING:
    from costmodel.display.table import Table


class LineItems(Frozen):
    """Abstract: numbers of one unit, a line for each; in a notebook a table."""

    _show: ClassVar[Callable[[int], str]]

    def table(self) -> Table:
        """A line for each that is not zero."""
        from costmodel.display.table import Table

        lines = {name: getattr(self, name) for name in (*self.__dataclass_fields__, *self._sums)}
        show = type(self)._show
        rows = [(name, show(int(n)), f"{int(n):,}") for name, n in lines.items() if n]
        return Table((type(self).__name__, "", "exact"), rows)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Nothing: raises AttributeError with the nearest name."""
            raise no_attribute(self, name)

    def __getitem__(self, name: Any) -> Any:
        """No items: raises SettingError, which names the attribute."""
        of, fields = type(self).__name__.lower(), (*self.__dataclass_fields__, *self._sums)
        known = name if name in fields else fields[0]
        raise SettingError(f"{of} has attributes, no items such as {shown(name)}: use {of}.{known}")

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()

    _sums: ClassVar[tuple[str, ...]] = ()
    """Properties that are lines too."""


@frozen()
class Flops(LineItems):
    """FLOPs of one step on the whole batch; recomputed are those of forward passes run again in backward.

    Example:
        >>> import costmodel as cm
        >>> flops = cm.predict("gpt2-small", batch=1, seq=512).flops
        >>> flops.total == flops.forward + flops.backward
        True

    """

    _show = staticmethod(show_flops)
    _sums = ("total", "hardware")

    forward: int
    backward: int
    recomputed: int = 0

    @property
    def total(self) -> int:
        """Forward and backward: model FLOPs, as in MFU (Chowdhery et al. 2022, app. B)."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """Model FLOPs and recomputed ones, as in HFU (Chowdhery et al. 2022, app. B)."""
        return self.total + self.recomputed


@frozen()
class Memory(LineItems):
    """Memory by purpose [bytes]; `peak` is the most alive at once, not the sum of the lines.

    masters: the optimizer's own copies of the weights. counters: its fp32 scalars, such as steps. casts: copies of
    weights in a lower precision that backward needs. temporaries: the most that short-lived tensors take at any moment.
    cache: what decoding keeps of tokens after the pass, part of the peak of a prefill and of a decode step; after an
    inference, which keeps nothing, what it would be, beside the peak. weights: as they are stored. gradients: of the
    trained weights. optimizer: its states. buffers: constants beside the weights. inputs: inputs and targets.
    activations: what is kept for backward. host: what a runtime keeps there instead of on the device.

    Example:
        >>> import costmodel as cm
        >>> memory = cm.predict("gpt2-small", batch=1, seq=512).memory
        >>> memory.weights, memory.optimizer  # bytes
        (497759232, 995518464)

    """

    _show = staticmethod(show_bytes)

    weights: int
    masters: int
    gradients: int
    optimizer: int
    counters: int
    buffers: int
    inputs: int
    activations: int
    casts: int
    temporaries: int
    peak: int
    cache: int
    host: int


@frozen()
class Traffic(LineItems):
    """Compulsory bytes of one forward pass: every input, weight and output of each layer moved once.

    forward is all of it. weights: of these those that are weights, of experts as many as have rows, in few bits with
    their scales. kv_read, kv_written: those that decoding keeps. A dynamic cache is read and written to grow it, too.
    """

    _show = staticmethod(show_bytes)

    forward: int
    weights: int
    kv_read: int
    kv_written: int


_FLOPS = {
    "forward": "of the forward pass",
    "backward": "of gradients",
    "total": "forward and backward, as in MFU",
    "recomputed": "of forward passes run again in backward",
    "hardware": "total and recomputed, as in HFU",
}
_MEMORY = {
    "weights": "weights as they are stored",
    "masters": "the optimizer's own copies of the weights",
    "gradients": "gradients of the trained weights",
    "optimizer": "the optimizer's states",
    "counters": "the optimizer's scalars, on the host",
    "buffers": "constants beside the weights",
    "inputs": "inputs and targets",
    "activations": "what is kept for backward",
    "casts": "copies of weights in a lower precision that backward needs",
    "temporaries": "the most that short-lived tensors take at any moment",
    "peak": "the most alive at once",
    "cache": "keys and values that decoding keeps",
    "host": "what is offloaded to the host",
}
_TRAFFIC = {
    "forward": "inputs, weights and outputs of each layer, each moved once in forward",
    "weights": "weights that forward reads",
    "kv_read": "keys and values that decoding reads",
    "kv_written": "keys and values that decoding writes",
}
MEANINGS = {
    "params": "weights, each counted once",
    "trainable_params": "weights that are trained",
    "active_params": "weights that one token meets",
    **{f"flops.{part}": f"contraction FLOPs {meaning}" for part, meaning in _FLOPS.items()},
    **{f"pointwise_flops.{part}": f"all other FLOPs {meaning}" for part, meaning in _FLOPS.items()},
    **{f"memory.{line}": f"{_MEMORY[line]} [bytes]" for line in Memory.__dataclass_fields__},
    **{f"traffic.{part}": f"{_TRAFFIC[part]} [bytes]" for part in Traffic.__dataclass_fields__},
    "kv_bytes_per_token": "what decoding keeps of one more token of one sample [bytes]",
    "collectives.bytes": "whole tensors of the collectives that the heaviest rank takes part in [bytes]",
    "collectives.wire_bytes": "what the heaviest rank sends to others for them, around rings [bytes]",
}
"""What each quantity with a formula is, by the name that `formula` and `explain` take."""
QUANTITIES = tuple(MEANINGS)
FLOP_PARTS = tuple(_FLOPS)

TIMED = (
    "seconds",
    "forward_seconds",
    "backward_seconds",
    "update_seconds",
    "samples_per_second",
    "tokens_per_second",
    "mfu",
    "hfu",
    "energy",
    "money",
)
"""Quantities of one step on a machine, which take the setting `on`.

energy: of devices by the work of their kernels, without what the data centre draws beside (PUE 1) [J]. money: at the
price of a device that the machine has.
"""
BETTER = frozenset({"samples_per_second", "tokens_per_second", "mfu", "hfu"})
"""Quantities of which more is better."""
ALL = (*QUANTITIES, *TIMED)
"""Every quantity, by the name that `value` and the questions over many predictions take."""


def check_formula(quantity: object) -> None:
    """Raise SettingError for a quantity of a step on a machine, UnknownNameError for what is none."""
    if not isinstance(quantity, str) or quantity not in ALL:
        raise unknown("quantity", quantity, QUANTITIES)
    if quantity in TIMED:
        raise SettingError(
            f"{quantity} is of a step on a machine, without a formula: ask predict with on='h100-sxm', say"
        )


def plain(value: Any) -> Any:
    """A value of a quantity without its formula: an int, or what is measured in time a float."""
    return value if isinstance(value, float) else int(value)


_PASSES = {
    "forward": ("forward",),
    "backward": ("backward",),
    "total": ("forward", "backward"),
    "recomputed": ("recomputed",),
    "hardware": ("forward", "backward", "recomputed"),
}
ROW_COLUMNS = {
    "params": ("params",),
    "trainable_params": ("params",),
    "active_params": ("params",),
    **{
        f"{group}.{part}": tuple(f"{name}_{group}" for name in passes)
        for group in ("flops", "pointwise_flops")
        for part, passes in _PASSES.items()
    },
    "memory.weights": ("params",),
    "memory.gradients": ("params",),
    "memory.optimizer": ("params",),
    "memory.activations": ("activation_bytes",),
    "memory.casts": ("cast_bytes",),
    "traffic.forward": ("forward_bytes",),
    **{f"traffic.{part}": (f"{part.removesuffix('s')}_bytes",) for part in ("weights", "kv_read", "kv_written")},
}
"""Which columns of a layer's row a quantity comes from; the others are made of tensors or moments, not of layers."""

SUMMED = tuple(name for name, columns in ROW_COLUMNS.items() if name == "params" or columns != ("params",))
"""The quantities that are sums of those columns, and so can be asked of a part of a model."""
