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
