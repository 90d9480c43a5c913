"""How numbers are shown to people, and read from them: bytes in binary units, FLOPs and counts in decimal ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from operator import index
from typing import TYPE_CHECKING, Any

from costmodel.errors import SettingError, shown

if TYPE_CHECKING:
    from fractions import Fraction

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")


def show_bytes(size: int) -> str:
    """``22.6 GiB``; three significant digits and at least one decimal, exact below 1 KiB."""
    return _scaled(size, 1024, _BINARY, 3)


def binary_unit(size: int) -> tuple[int, str]:
    """The unit that `show_bytes` shows a size in: its bytes, and its name."""
    name = show_bytes(size).split()[1]
    return 1024 ** _BINARY.index(name), name


def show_flops(flops: int) -> str:
    """``4.357 TFLOP``; four significant digits, exact below 1,000."""
    return _scaled(flops, 1000, tuple(prefix + "FLOP" for prefix in _DECIMAL), 4)


def show_count(count: int) -> str:
    """``124.4 M``; four significant digits, exact below 1,000. Headings say of what."""
    return _scaled(count, 1000, _DECIMAL, 4)


def show_exact(count: int) -> str:
    """``124,439,808``."""
    return f"{int(count):,}"


def show_share(part: int, whole: int) -> str:
    """``21.3%``; a dash for nothing, so that what is small is told from what is not there."""
    if not part or not whole:
        return "-"
    if part == whole:
        return "100%"
    share = int(part) / int(whole)
    return "<0.1%" if share < 0.0005 else f"{share:.1%}"


def show_change(share: float, digits: int = 0) -> str:
    """``+12%``, ``-3%``; ``0%`` for what rounds to nothing, which has no sign."""
    text = f"{share:+.{digits}%}"
    return text if any(character in text for character in "123456789") or "n" in text else text[1:]


def show_seconds(seconds: float) -> str:
    """``1.23 ms``; three significant digits."""
    steps = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, factor = next((step for step in steps if seconds >= 0.9995 * step[1]), steps[-1])
    number = seconds / factor
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"


def show_rate(rate: float) -> str:
    """``31.2 G``, a second; three significant digits. Headings say of what."""
    return _scaled(int(rate), 1000, _DECIMAL, 3)


def show_amount(value: float, unit: str, digits: int = 4) -> str:
    """``3.35 TB/s``, ``1.98 GHz``, ``700 W``; of so many significant digits, in a form that `read_amount` reads."""
    if value == inf:
        return f"infinite {unit}".rstrip()
    if unit == "s":
        return show_seconds(value)
    step = 0
    while step < len(_DECIMAL) - 1 and value >= 1000 - 0.5 * 10 ** (3 - digits):  # what would round up to 1000
        value, step = value / 1000, step + 1
    return f"{value:.{digits}g} {_DECIMAL[step]}{unit}".rstrip()


def show_tick(text: str) -> str:
    """A number at an axis, without noughts that say nothing: ``100 G`` for ``100.0 G``."""
    number, space, unit = text.partition(" ")
    return f"{float(number):g}{space}{unit}"


def _scaled(value: int, base: int, units: tuple[str, ...], digits: int) -> str:
    number, step = float(value), 0
    while step < len(units) - 1 and number >= base - 0.05:  # what would round up to the base goes on to the next unit
        number, step = number / base, step + 1
    if not step:
        return f"{int(value)} {units[0]}".rstrip()
    exponent = int(f"{number:.{digits - 1}e}".partition("e")[2])  # of the number as rounded: 9.9996 is 10.00
    return f"{number:.{max(1, digits - 1 - exponent)}f} {units[step]}"


UNITS = {
    "params": "parameters",
    "trainable_params": "parameters",
    "active_params": "parameters",
    "flops": "FLOP",
    "pointwise_flops": "FLOP",
    "memory": "bytes",
    **dict.fromkeys(("seconds", "forward_seconds", "backward_seconds", "update_seconds"), "s"),
    "samples_per_second": "samples/s",
    "tokens_per_second": "tokens/s",
    **dict.fromkeys(("mfu", "hfu"), "share of the peak"),
    "energy": "J (at the board's limit, PUE 1)",
    "money": "price of a device for an hour · hours",
    "traffic": "bytes",
    "kv_bytes_per_token": "bytes",
}
"""The unit of each quantity, by the first part of its name."""
TIMES = frozenset(name for name in UNITS if "second" in name) | {"mfu", "hfu", "energy", "money"}
"""Quantities of a machine, whose values are no whole numbers."""


def shower(quantity: str) -> Callable[[Any], str]:
    """How values of a quantity are written."""
    group = quantity.partition(".")[0]
    if group in TIMES:
        return _TIMES[UNITS[group]]
    return show_bytes if UNITS.get(group) == "bytes" else show_flops if "flops" in group else show_count


def show_few(value: float) -> str:
    """``7.395 k`` or ``0.903``: of what is counted a second, or paid."""
    return show_count(int(value)) if value >= 1000 else f"{value:.3g}"


_TIMES: dict[str, Callable[[Any], str]] = {
    "s": show_seconds,
    UNITS["mfu"]: lambda share: f"{share:.1%}",
    UNITS["energy"]: lambda joules: show_amount(joules, "J"),
    **dict.fromkeys((UNITS["samples_per_second"], UNITS["tokens_per_second"], UNITS["money"]), show_few),
}

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_NUMBER = r"\s*[0-9.,_]+(?:[eE]\+?[0-9]+)?\s*"
NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:[eE]\+?[0-9]{1,2})?"
"""What is read as a number, such as 24, 24.5 or 1.5e9."""
_SIZE = rf"(?i)\s*({NUMBER})\s*(?:([kmgtp])(i?)b?|b|bytes?)\s*"


@dataclass(frozen=True)
class Budget:
    """An amount of memory [bytes], or of another quantity in its unit, and how it was read."""

    bytes: Any
    reading: str


def read_budget(memory: Any, what: str = "memory") -> Budget:
    """Bytes from a whole number, or from text such as "24 GiB" (binary), "24 GB" (decimal) or "24 bytes"; "24G" is GB.

    Raises SettingError for anything else, and for what is not positive.
    """
    size = whole(memory)
    if size is not None:
        reading = f"{size:,} bytes" if abs(size) < 2**63 else ""
    elif isinstance(memory, float):
        raise SettingError(f"{what}={memory} is not a whole number of bytes: round it, or use text such as '24 GiB'")
    else:
        found = re.fullmatch(_SIZE, memory) if isinstance(memory, str) else None
        if found is None and isinstance(memory, str) and re.fullmatch(_NUMBER, memory):
            raise SettingError(f"{what}={shown(memory)} has no unit: use text such as '24 GiB', '24 GB' or '24 bytes'")
        if found is None:
            raise SettingError(
                f"{what}={shown(memory)} is not an amount of memory: use text such as '24 GiB' or '24 GB'"
            )
        from fractions import Fraction

        number, prefix, binary = found.groups(default="")
        size = int(Fraction(number) * (1024 if binary else 1000) ** _POWERS[prefix.lower()])
        letter = prefix.upper() if binary or prefix.lower() != "k" else "k"
        reading = f"{number} {letter}{'i' if binary else ''}B = {size:,} bytes"
    if not 0 < size < 2**63:
        raise SettingError(f"{what}={shown(memory)} is not a positive amount of memory: use text such as '24 GiB'")
    return Budget(size, reading)


def read_reserve(reserve: Any) -> int:
    """Bytes to leave free; none for 0 or None. Raises SettingError."""
    if reserve is None or (isinstance(reserve, int | float | str) and not reserve):
        return 0
    return read_budget(reserve, "reserve").bytes


def whole(number: Any) -> int | None:
    """The int that is the same number, as 1e9 is 1000000000; None for what is no whole number."""
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        return None
    try:
        return index(number)
    except TypeError:  # an array of several numbers
        return None


_MEASURES = {
    "FLOP/s": (r"(?i)FLOP/s|FLOPS|OP/s|OPS", "312 TFLOP/s", "an arithmetic rate"),
    "B/s": (r"B/s|Bps|[Bb]ytes?/s", "3.35 TB/s", "a bandwidth"),
    "bit/s": (r"[Bb]its?/s|bps", "400 Gbit/s", "a bandwidth"),
    "Hz": (r"(?i)Hz", "1.41 GHz", "a frequency"),
    "W": (r"(?i)W|watts?", "400 W", "a power"),
    "s": (r"(?i)s|seconds?", "5 µs", "a time"),
}
"""How each unit is spelt after its prefix, an example, and what it measures."""
_SMALL = {"m": -1, "u": -2, "µ": -2, "μ": -2, "n": -3}
_AMOUNT = rf"\s*({NUMBER})\s*(\D.*?)?\s*"


def read_amount(value: Any, what: str, unit: str, *, zero: bool = False) -> float:
    """A number of a unit ("FLOP/s", "B/s", "Hz", "W" or "s") from a plain number or from text such as "3.35 TB/s".

    zero: whether 0 is an amount too. A number may be infinite, text not. Prefixes are decimal, of bytes binary too;
    bits are read where bytes are meant ("400 Gbit/s" is 50e9 B/s), but "Gb/s", which could be either, is refused.
    Raises SettingError.
    """
    _, example, measure = _MEASURES[unit]
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = _as_float(value)
        if not (number > 0 or (zero and number == 0)):
            raise SettingError(f"{what}={shown(value)} is not {measure} above 0: use one such as '{example}'")
        return number
    found = re.fullmatch(_AMOUNT, value) if isinstance(value, str) and len(value) < 80 else None
    if found is None:
        raise SettingError(f"{what}={shown(value)} is not {measure}: use text such as '{example}'")
    if found[2] is None:
        raise SettingError(f"{what}={shown(value)} has no unit: use text such as '{example}', or a number of {unit}")
    scale = _scale(found[2], unit)
    if scale is None:
        raise SettingError(f"{what}={shown(value)} is not {measure}{_instead(found[1], found[2], unit, example)}")
    from fractions import Fraction

    number = float(Fraction(found[1]) * scale)
    if not number and not zero:
        raise SettingError(f"{what}={shown(value)} is not {measure} above 0: use one such as '{example}'")
    return number


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return inf


def _scale(spelt: str, unit: str) -> Fraction | None:
    """What one of a unit with its prefix is, such as "TB/s" or "TiB/s"; None for another unit."""
    from fractions import Fraction

    if re.fullmatch(_MEASURES[unit][0], spelt):
        return Fraction(1)
    prefix, rest = spelt[0], spelt[1:]
    if unit == "s":
        power, base = _SMALL.get(prefix), 1000
    else:
        power, base = _POWERS.get(prefix.lower()), 1000
        if unit == "B/s" and rest[:1] == "i":
            base, rest = 1024, rest[1:]
    if power is not None and re.fullmatch(_MEASURES[unit][0], rest):
        return Fraction(base) ** power
    bits = _scale(spelt, "bit/s") if unit == "B/s" else None
    return bits / 8 if bits is not None else None


def _instead(number: str, spelt: str, unit: str, example: str) -> str:
    """What would be right for an amount of another unit, as the end of an error."""
    prefix = spelt[:1] if spelt[:1].lower() in _POWERS else ""
    if unit == "B/s" and re.fullmatch(r"[kmgtp]?b/s", spelt, re.IGNORECASE):
        return f", '{spelt}' could be bits: use '{number} {prefix.upper()}B/s' or '{number} {prefix.upper()}bit/s'"
    for amount in {"B/s": ("B", "iB"), "FLOP/s": ("FLOP", "OP", "FLOPs")}.get(unit, ()):
        if spelt[len(prefix) :].lower() == amount.lower():
            binary = "i" if amount == "iB" else ""
            return f" but an amount: use '{number} {prefix}{binary}{unit}'"
    return f": use text such as '{example}'"
