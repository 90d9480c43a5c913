"""How numbers are shown to people: bytes in binary units, FLOPs and counts in decimal ones."""

from __future__ import annotations

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


def _scaled(value: int, base: int, units: tuple[str, ...], digits: int) -> str:
    number, step = float(value), 0
    while step < len(units) - 1 and number >= base - 0.05:  # what would round up to the base goes on to the next unit
        number, step = number / base, step + 1
    if not step:
        return f"{int(value)} {units[0]}".rstrip()
    exponent = int(f"{number:.{digits - 1}e}".partition("e")[2])  # of the number as rounded: 9.9996 is 10.00
    return f"{number:.{max(1, digits - 1 - exponent)}f} {units[step]}"
