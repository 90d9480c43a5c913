"""How numbers are shown to people, and read from them: bytes in binary units, FLOPs and counts in decimal ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.documents.arguments import LARGEST_FLOAT, native
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


def show_share(part: float, whole: float, digits: int = 1) -> str:
    """``21.3%``; a dash for nothing, so that what is small is told from what is not there."""
    if not part or not whole:
        return "-"
    if part == whole:
        return "100%"
    share = part / whole if isinstance(part, float) else int(part) / int(whole)
    return f"<{10**-digits:g}%" if share < 0.005 * 10**-digits else f"{share:.{digits}%}"


def show_change(share: float, digits: int = 0) -> str:
    """``+12%``, ``-3%``; ``0%`` for what rounds to nothing, which has no sign."""
    text = f"{share:+.{digits}%}"
    return text if any(character in text for character in "123456789") or "n" in text else text[1:]


def show_seconds(seconds: float) -> str:
    """``1.23 ms``; three significant digits."""
    if not seconds:
        return "0 s"
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


BEYOND = 10**7
"""So many times what has the next unit has none, and is written with an exponent."""


def _scaled(value: int, base: int, units: tuple[str, ...], digits: int) -> str:
    number, step = float(value), 0
    while step < len(units) - 1 and number >= base - 0.05:  # what would round up to the base goes on to the next unit
        number, step = number / base, step + 1
    if not step:
        return f"{int(value)} {units[0]}".rstrip()
    if number > BEYOND * base:  # the last unit
        return f"{number:.{digits - 1}e} {units[step]}"
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
    "collectives": "bytes",
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
    UNITS["mfu"]: lambda share: show_share(share, 1.0) if share else "0%",
    UNITS["energy"]: lambda joules: show_amount(joules, "J"),
    **dict.fromkeys((UNITS["samples_per_second"], UNITS["tokens_per_second"], UNITS["money"]), show_few),
}

NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,9}|[0-9]{1,30})(?:\.[0-9]{1,9})?(?:[eE][+-]?[0-9]{1,2})?"
"""What is read as a number, such as 24, 1,210, 24.5, 1.5e9 or 8.1e-2."""
LONGEST_AMOUNT = 80
"""Characters of a text that is read as one."""
_LARGE = {"k": 1, "m": 2, "g": 3, "b": 3, "t": 4, "p": 5, "e": 6, "z": 7}
_SMALL = {"m": -1, "u": -2, "µ": -2, "μ": -2, "n": -3}


class Unit(NamedTuple):
    """A unit that amounts are given in.

    measure: what it measures. example: an amount in it. spelling: the regular expression of its forms; its group 1 is
    the prefix, its group 2 not empty where that is binary. powers: of 1000, or of 1024, by prefix in small letters.
    """

    measure: str
    example: str
    spelling: str
    powers: Mapping[str, int] = _LARGE

    def scale(self, name: str) -> Fraction | None:
        """How much of the unit one is that has this name, as "TB/s" or "GiB"; None if it is of another unit."""
        from fractions import Fraction

        form = re.fullmatch(self.spelling, name)
        if form is None:
            return None
        prefix, binary = (*form.groups(default=""), "", "")[:2]
        if prefix == "m" and name[1:2].isupper() and self.powers is _LARGE:  # mHz is a thousandth; mhz is what it was
            return None
        powers = self.powers
        return Fraction(1024 if binary else 1000) ** (powers[prefix.lower()] if prefix else 0)


_UNITS = {
    "B": Unit("an amount of memory", "24 GiB", r"(?i)(?!(?-i:[KMGTP]i?b)$)([kmgtp])(i?)b?|b|bytes?"),
    "B/s": Unit("a bandwidth", "3.35 TB/s", r"(?:([kmgtpeKMGTPE])(i?))?(?:B/s|Bps|[Bb]ytes?/s)"),
    "bit/s": Unit("a bandwidth in bits", "400 Gbit/s", r"([kmgtpeKMGTPE])?(?:[Bb]its?/s|bps)"),
    "b/s": Unit("a bandwidth in bits", "400 Gb/s", r"([kMGTPE])b/s"),
    "FLOP/s": Unit("an arithmetic rate", "312 TFLOP/s", r"(?i)([kmgtpe])?(?:FLOP/s|FLOPS|OP/s|OPS)"),
    "Hz": Unit("a frequency", "1.41 GHz", r"(?i)([kmgtpe])?Hz"),
    "W": Unit("a power", "400 W", r"([kKMGTPE])?(?i:W|watts?)"),
    "s": Unit("a time", "5 µs", r"([muµμn])?(?i:s|seconds?)", _SMALL),
    "samples/s": Unit("a rate", "2000 samples/s", r"(?:image|sample|sequence|token)s?/s(?:ec(?:ond)?)?"),
    "g/kWh": Unit("a carbon intensity", "400 g/kWh", r"(k)?g(?:\s*CO2e?q?)?/kWh"),
    "": Unit("a count", "124M, 1e9 or 2.5T", r"([kKmMgGbBtTPEZ])?(?:FLOPs?)?"),
}
"""What amounts are read in; the last is a count of anything."""


def read_text(text: Any, what: str, unit: str, example: str = "", *, bits: bool = False) -> tuple[Fraction, str]:
    """An amount from text such as "3.35 TB/s", in the unit, and the name of its own unit as it is written.

    Prefixes are decimal, of bytes binary too; bits are read where bytes are meant ("400 Gbit/s" is 50e9 B/s), but
    "Gb/s" and "Gb", which could be either, are refused. what, example: what errors call the amount, and one that would
    be right. bits: whether "Gb/s" is bits after all. Raises SettingError.
    """
    from fractions import Fraction

    of, example = _UNITS[unit], example or _UNITS[unit].example
    amount = rf"\s*({NUMBER})\s*([^\d.,].*?)?\s*"
    parts = re.fullmatch(amount, text) if isinstance(text, str) and len(text) < LONGEST_AMOUNT else None
    if parts is None:
        raise SettingError(f"{what}={shown(text)} is not {of.measure}: use text such as '{example}'")
    number, name = parts.groups(default="")
    scale = of.scale(name)
    for other in ("bit/s", "b/s")[: 1 + bits] if scale is None and unit == "B/s" else ():
        if (size := _UNITS[other].scale(name)) is not None:
            scale = size / 8
    if scale is None:
        raise SettingError(f"{what}={shown(text)} {_mismatch(number, name, unit, example, bits)}")
    return Fraction(number.replace(",", "")) * scale, name


def _mismatch(number: str, name: str, unit: str, example: str, in_bits: bool) -> str:
    """What is wrong with the unit of an amount, and what would be right, as the end of an error; see `read_text`."""
    of = _UNITS[unit]
    if not name:
        number_of = {"B": "'24 GB' or '24 bytes'"}.get(unit, f"or a number of {unit}")
        example = f"{number} s" if unit == "s" else example
        return f"has no unit: use text such as '{example}', {number_of}"
    prefix = name[:1] if name[:1].lower() in "kmgtpe" else ""
    bits = re.fullmatch(r"(?:[kmgtp](i?))?b(/s)?", name, re.IGNORECASE)
    if bits and f"B{bits[2] or ''}" == unit:
        forms = (f"{bits[1] or ''}{unit}", *(["b/s" if in_bits else "bit/s"] if unit == "B/s" else []))
        both = " or ".join(f"'{number} {prefix.upper()}{form}'" for form in forms)
        return f"is not {of.measure}, '{name}' could be bits: use {both}"
    for amount in {"B/s": ("B", "iB"), "FLOP/s": ("FLOP", "OP", "FLOPs")}.get(unit, ()):
        if name[len(prefix) :].lower() == amount.lower():
            binary = "i" if amount == "iB" else ""
            rate = "b/s" if in_bits and name.endswith("b") else unit
            return f"is not {of.measure} but an amount: use '{number} {prefix}{binary}{rate}'"
    if others := [each.measure for each in _UNITS.values() if len(name) > 1 and each.scale(name) is not None]:
        return f"is {others[0]}, not {of.measure}: use text such as '{example}'"
    from difflib import get_close_matches

    forms = [f"{prefix}{unit}" for letter in ("", *of.powers) for prefix in {letter, letter.upper()}]
    near = get_close_matches(name, [form for form in forms if of.scale(form) is not None], n=1, cutoff=0.7)
    meant = f" (did you mean '{number} {near[0]}'?)" if near else ""
    return f"is not {of.measure}{meant}: use text such as '{example}'"


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
        amount, name = read_text(memory, what, "B")
        size = int(amount)
        prefix, binary = name[:1].lower().replace("b", ""), "i" in name.lower()
        unit = f"{prefix if prefix == 'k' and not binary else prefix.upper()}{'i' * binary}B"
        reading = f"{memory.strip()[: -len(name)].strip()} {unit} = {size:,} bytes"
    if size >= 2**63:
        raise SettingError(f"{what}={shown(memory)} is more memory than there is: use an amount such as '24 GiB'")
    if size <= 0:
        raise SettingError(f"{what}={shown(memory)} is not a positive amount of memory: use text such as '24 GiB'")
    return Budget(size, reading)


def read_reserve(reserve: Any) -> int:
    """Bytes to leave free; none for 0 or None. Raises SettingError."""
    if reserve is None or (isinstance(reserve, int | float | str) and reserve in (0, "", "0")):
        return 0
    return read_budget(reserve, "reserve").bytes


def whole(number: Any) -> int | None:
    """The int that is the same number, as 1e9 is 1000000000; None for what is no whole number."""
    number = native(number)
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def read_amount(
    value: Any, what: str, unit: str, *, zero: bool = False, example: str = "", bits: bool = False
) -> float:
    """A number of a unit from a plain number, which may be infinite, or from text such as "3.35 TB/s".

    unit: "FLOP/s", "B/s", "Hz", "W", "s" or "g/kWh". zero: whether 0 is an amount too. example: one that would be right
    for errors. bits: see `read_text`. Raises SettingError.
    """
    number = native(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        number = read_text(value, what, unit, example, bits=bits)[0]
    measure, example = _UNITS[unit].measure, example or _UNITS[unit].example
    if number != inf and abs(number) > LARGEST_FLOAT:
        raise SettingError(f"{what}={shown(value)} is larger than {measure} can be: use one such as '{example}'")
    if number > 0 or (zero and number == 0):
        return float(number)
    raise SettingError(f"{what}={shown(value)} is not {measure} above 0: use one such as '{example}'")


def read_count(value: Any) -> Fraction | None:
    """A count from a number, or from text such as "124M", "2.5TFLOP" or "8B"; None for what is none."""
    from fractions import Fraction

    if isinstance(value, str):
        sign, text = (-1, value.strip()[1:]) if value.strip().startswith("-") else (1, value)
        try:
            return sign * read_text(text, "", "")[0]
        except SettingError:
            return None
    value = native(value)
    number = value if isinstance(value, float) else whole(value)
    return Fraction(number) if number is not None and -inf < number < inf else None
