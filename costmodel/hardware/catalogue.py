"""Ready machines: the specs that ship with the package, by name and by the other ways that people write it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from costmodel.display.answer import Answer, Sheet
from costmodel.display.table import Table
from costmodel.display.units import show_amount, show_bytes, show_tick
from costmodel.documents.arguments import called, typed
from costmodel.documents.files import SPECS, is_path, shown_path
from costmodel.errors import SettingError, SpecError, UnknownNameError, shown
from costmodel.hardware.machine import Machine

MACHINES = Path(SPECS) / "machines"

_FILLERS = frozenset(
    {
        *("amd", "apple", "google", "habana", "intel", "nvidia"),
        *("cloud", "geforce", "instinct", "radeon", "tesla"),
        *("chip", "dgx", "generation", "gpu", "hgx", "per"),
    }
)
"""Words that say nothing that a name does not: vendors, their families, and what a figure is of."""


MachineLike = str | os.PathLike[str] | Machine | Mapping[str, Any]
"""What is taken for a machine: a ready one's name, the path of a file, a machine, or its fields."""


@called
def load_machine(machine: MachineLike) -> Machine:
    """A machine by its name, or from a YAML or JSON file.

    Args:
        machine: a name such as "h100-sxm", or one as tables and drivers write it, such as "A100-SXM4-40GB" or
            "NVIDIA GeForce RTX 4090", in any case and with anything between its parts; or a path, which is what has a
            directory separator or ends in .yaml, .yml or .json; or a mapping of its fields. A machine is returned as it
            is.

    Raises:
        SpecError: the file cannot be read or describes no machine.
        UnknownNameError: no ready machine has that name, or several may be meant; the nearest are listed.

    Example:
        >>> import costmodel as cm
        >>> cm.load_machine("NVIDIA A100 80GB PCIe").name
        'a100-pcie-80gb'

    """
    if isinstance(machine, Machine):
        return machine
    if is_path(machine):
        if not os.path.lexists(machine):
            raise SpecError(f"no such file: {shown_path(machine)}: give the path of a YAML or JSON file")
        return Machine.load(machine)
    if isinstance(machine, Mapping):
        if wrong := [name for name in machine if not isinstance(name, str)]:
            raise SpecError(f"Machine: {shown(wrong[0])} is not the name of a field")
        return Machine(**machine)
    if not isinstance(machine, str):
        raise SpecError(
            f"{shown(machine)} is not a machine: give a ready machine's name such as 'h100-sxm', a file's path, or a "
            "Machine"
        )
    return _ready(machine)


def machine_name(machine: MachineLike) -> str:
    """What `load_machine` knows a machine by: the path of its file, or the name of a ready one.

    Raises SettingError for a machine of one's own that is in no file.
    """
    if is_path(machine):
        return os.fspath(machine)
    device = load_machine(machine)
    if _all().get(device.name) != device:
        raise SettingError(
            f"machine {shown(device.name)} is none of the ready ones, which a calibration names: write it to a file, "
            "and give that path"
        )
    return device.name


class Machines(Answer, tuple[Machine, ...]):
    """Machines by name, shown as a table with a line for each."""

    def to_dict(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Every figure of each, in SI units."""
        return [machine.to_dict() for machine in self]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each machine."""
        return self.to_dict()

    def sheet(self) -> Sheet:
        """What there is to read."""
        header = ("machine", "memory", "bandwidth", "fp32", "16 bit", "TDP", "year", "confirmed")
        notes = (
            "fp32, 16 bit: products [FLOP/s], dense, accumulated in fp32; fp32 without TF32",
            "confirmed: the vendor's sheet of these figures was at hand (part: of some)",
        )
        worth = ("memory", "bandwidth", "16 bit", "fp32", "confirmed", "TDP")
        return Sheet([], [Table(header, [_row(machine) for machine in self], worth=worth)], notes=notes)


def _row(machine: Machine) -> tuple[str, ...]:
    """A line of the table."""
    peaks = machine.peak.rates
    fp32 = max((name for name in ("fp32_tensor", "fp32") if name in peaks), key=peaks.__getitem__, default=None)
    half = max((name for name in _HALF if name in peaks), key=peaks.__getitem__, default=None)
    figures = ["memory", "bandwidth", *(f"peak.{name}" for name in (fp32, half) if name)]
    seen = [machine.confirmed(figure) for figure in figures]
    return (
        machine.name,
        show_tick(show_bytes(machine.memory)),
        show_amount(machine.bandwidth, "B/s", 3),
        *("-" if name is None else show_amount(peaks[name], "", 3) for name in (fp32, half)),
        "-" if machine.tdp is None else f"{machine.tdp:g} W",
        str(machine.year or "-"),
        "yes" if all(seen) else "part" if any(seen) else "no",
    )


_HALF = ("bf16", "fp16", "bf16_vector", "fp16_vector")


@typed
def machines(search: str | None = None) -> Machines:
    """Every ready machine, by name; or those with each word of `search` in a name, or as vendor, architecture, chip
    or category.

    Args:
        search: words, such as "hopper" or "rtx 40" (default: every machine).

    Raises:
        UnknownNameError: there is none; the nearest are listed.

    Example:
        >>> import costmodel as cm
        >>> [machine.name for machine in cm.machines("hopper h200")]
        ['gh200-144gb', 'gh200-96gb', 'h200-nvl', 'h200-sxm']

    """
    if search is None:
        return Machines(_all().values())
    words = search.lower().split()
    matches = Machines(m for m in _all().values() if words and all(_has(m, word) for word in words))
    if not matches:
        words_for = {w: w for m in _all().values() for w in (m.vendor.lower(), m.architecture, m.category)}
        raise _unknown(search, _key(search), words_for | _known())
    return matches


def _has(machine: Machine, word: str) -> bool:
    names = [machine.name, *machine.aliases]
    if any(_key(word) and _key(word) in _key(name) for name in names):
        return True
    return word in (machine.vendor.lower(), machine.architecture.lower(), machine.category, machine.chip.lower())


def _ready(name: str) -> Machine:
    key = _key(name)
    if key in _stems():
        return _spec(_stems()[key])
    known = _known()
    stem = known.get(key) or _by_memory(name)
    if stem is not None:
        return _spec(stem)
    if os.path.isfile(name):
        raise SpecError(f"{shown(name)} is no ready machine, but a file: use {shown_path(os.path.join('.', name))}")
    several = sorted({stem for full, stem in known.items() if key and full.startswith(key)})
    if len(several) > 1:
        nearest = ", ".join(map(repr, several[:6])) + (", ..." if len(several) > 6 else "")
        raise UnknownNameError(f"machine {shown(name)} could be {nearest}: say which")
    raise _unknown(name, key, known)


def _by_memory(name: str) -> str | None:
    """The name of what is written with an amount of memory that says nothing more, as in "RTX 3090 24GB".

    Raises UnknownNameError if the machine has another amount.
    """
    words = _words(name)
    sizes = [word for word in words if _SIZE.fullmatch(word)]
    stem = _known().get("".join(word for word in words if word not in sizes)) if len(sizes) == 1 else None
    if stem and int(sizes[0][:-2]) * 2**30 != _spec(stem).memory:
        has = show_tick(show_bytes(_spec(stem).memory))
        raise UnknownNameError(f"unknown machine {shown(name)}: {stem!r} has {has}")
    return stem


def _unknown(name: str, key: str, known: dict[str, str]) -> UnknownNameError:
    """Error with the nearest names, whichever of a machine's names is near."""
    from difflib import get_close_matches  # only errors need it

    near = dict.fromkeys(known[name] for name in get_close_matches(key, known, n=6, cutoff=0.6))
    if near:
        meant = " or ".join(map(repr, list(near)[:3]))
        return UnknownNameError(f"unknown machine {shown(name)}: did you mean {meant}? (costmodel machines lists all)")
    return UnknownNameError(
        f"unknown machine {shown(name)}: use one such as 'h100-sxm' or 'rtx-4090' (costmodel machines lists all), the "
        "path of a file, or a Machine of your own"
    )


@cache
def _all() -> dict[str, Machine]:
    return {stem: _spec(stem) for stem in _stems().values()}


@cache
def _stems() -> dict[str, str]:
    """Names by their plain form."""
    return {_key(path.stem): path.stem for path in sorted(MACHINES.glob("*.yaml"), key=lambda path: path.stem)}


@cache
def _known() -> dict[str, str]:
    """Names by the plain form of every way to write them. Raises SpecError if two machines are written alike."""
    known = dict(_stems())
    for name, machine in _all().items():
        for alias in machine.aliases:
            if known.setdefault(_key(alias), name) != name:
                raise SpecError(f"{alias!r} is both {name} and {known[_key(alias)]}: give it to one")
    return known


@cache
def _spec(stem: str) -> Machine:
    return Machine.load(MACHINES / f"{stem}.yaml")


def _key(name: str) -> str:
    """The plain form of a name: its words, one after another."""
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    """Small letters, digits and "+" of a name, without fillers; 80g is 80gb."""
    words = re.findall(r"[a-z0-9+]+", name.lower())
    return [f"{word}b" if _SIZE.fullmatch(f"{word}b") else word for word in words if word not in _FILLERS]


_SIZE = re.compile("[1-9][0-9]{0,2}gb")
