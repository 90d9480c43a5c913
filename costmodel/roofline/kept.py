"""Calibrations that are kept: one JSON file for each machine, and for an hour what is too unresolved to be kept."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from operator import attrgetter
from pathlib import Path

from costmodel.documents.arguments import called
from costmodel.documents.files import PACKAGE, write
from costmodel.documents.stored import NotStored, read_stored
from costmodel.errors import CostModelError
from costmodel.hardware.machine import Level, Machine, Source
from costmodel.roofline.calibration import (
    FORMAT,
    Calibration,
    CalibrationError,
    CalibrationWarning,
    Progress,
    bar,
    ceilings_of,
    check_asked,
    how_long,
    measure_probes,
)
from costmodel.roofline.host import Host, this_machine
from costmodel.roofline.placed import in_place
from costmodel.roofline.probes import EMPTY, probes

MOST_UNRESOLVED = 0.25
"""A calibration of which a larger share is unresolved serves at once, and is not kept unless told so."""
RECENT = timedelta(hours=1)
"""How long it serves all the same."""
KEEPING = "'costmodel roofline calibrate --keep' measures anew and keeps what it has"
CACHE_VARIABLE = "COSTMODEL_CACHE"
"""Environment variable that names the folder of calibrations."""
LARGEST_FILE = 1_000_000
"""A longer file is refused unread, since reading takes hundreds of times its size; a thorough calibration has an eighth
of this [bytes]."""

Say = Callable[[str], None]
_unkept: dict[Path, Calibration] = {}
"""Calibrations of this process that were not kept, by where they would be."""


def cache_folder() -> Path:
    """Where calibrations are kept: ``$COSTMODEL_CACHE``, or the user's cache folder."""
    from platformdirs import user_cache_path

    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else user_cache_path("costmodel")


def path_of(machine: Host) -> Path:
    """The file of a machine's calibration."""
    return cache_folder() / f"roofline-{machine.key}.json"


def store(calibration: Calibration) -> Path:
    """Write it under the machine's key, in one step. Raises CalibrationError if the folder cannot be written."""
    path = _put(calibration, path_of(calibration.machine))
    with suppress(OSError):
        _recent_path(calibration.machine).unlink(missing_ok=True)
    return path


def _put(calibration: Calibration, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(calibration.model_dump_json(indent=1), path)
    except (OSError, CostModelError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CalibrationError(
            f"{path}: cannot keep the calibration: {reason}; set {CACHE_VARIABLE} to a folder that can be written"
        ) from None
    return path


def read(path: Path, machine: Host) -> Calibration:
    """The calibration in a file. Raises CalibrationError unless it is whole, of this version and of `machine`."""
    try:
        calibration = read_stored(Calibration, path, LARGEST_FILE)
    except NotStored as error:
        raise CalibrationError(f"{path}{' is no calibration' * error.content}: {error}") from None
    if calibration.format != FORMAT:
        raise CalibrationError(f"{path} is of format {calibration.format}, this version reads {FORMAT}")
    if calibration.machine != machine:
        changes = "; ".join(machine.changes_from(calibration.machine))
        raise CalibrationError(f"{path} is of another machine: {changes}")
    expected = {name for name, _ in probes(calibration.sets, calibration.thorough)}
    expected |= {EMPTY, *(op.layer for program in in_place(calibration.sets.beyond) for op in program)}
    if missing := sorted(expected - calibration.seconds.keys()):
        raise CalibrationError(f"{path} lacks {len(missing)} of this version's probes, such as {missing[0]!r}")
    return calibration


@called
def calibrate(
    thorough: bool = False,
    *,
    threads: int = 1,
    progress: bool | Progress = False,
    keep: bool | None = None,
    budget: float | None = None,
    footprint: int | None = None,
) -> Calibration:
    """Measure this machine anew, and keep the result for later.

    Args:
        thorough: more probes, each measured for longer.
        threads: how many BLAS may use.
        progress: a bar on stderr, or a function that is told the share done.
        keep: True or False; None keeps it unless more than `MOST_UNRESOLVED` of the probes are unresolved, and then
            remembers it for `RECENT`.
        budget: how long to go on for what is unresolved [s]; `BUDGET` unless given. It ends earlier on a host at rest.
        footprint: of the largest program that is to be predicted [bytes]; of the largest ready models unless given.

    An interrupted calibration, and one that is not kept, leave what was stored before. Raises CalibrationError if the
    result cannot be kept or there is none, SettingError for a wrong number of threads or a wrong budget.
    """
    check_asked(threads, budget)
    with bar(progress, "calibrating") as tell:
        measured = measure_probes(thorough, threads, tell, budget, footprint=footprint)
    if keep or (keep is None and measured.unresolved <= MOST_UNRESOLVED):
        store(measured)
    elif keep is None:
        _remember(measured)
    return measured


def _warn(doubt: str) -> None:
    """Warn at the line outside of the package that asked."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE + os.sep):
        level, frame = level + 1, frame.f_back
    warnings.warn(doubt, CalibrationWarning, stacklevel=level)


def calibrated(
    *, threads: int = 1, say: Say | None = None, progress: bool | Progress = False, footprint: int | None = None
) -> Calibration:
    """The stored calibration of this machine; without a valid one a quick one is made. `say` is told of doubts.

    One that is not kept, since too much of it is unresolved, serves while this process lives, and for `RECENT` whoever
    asks next. footprint: see `measure_probes`.
    """
    machine, say = this_machine(threads), say or _warn
    path = path_of(machine)
    try:
        calibration = read(path, machine) if path.exists() else None
        reason = f"no calibration of this machine in {path.parent}"
    except CalibrationError as error:
        calibration, reason = None, str(error)
    if calibration is None:
        calibration = _recent(machine)
        if calibration is None:
            say(f"{reason}: calibrating now, which takes {how_long()}")
            calibration = calibrate(threads=threads, progress=progress, footprint=footprint)
            if calibration.unresolved > MOST_UNRESOLVED:
                say(f"this calibration is not kept, but serves for an hour: {KEEPING}")
        else:
            minutes = round(calibration.age / timedelta(minutes=1))
            say(f"{reason}: a calibration of {minutes} minutes ago serves, which is not kept: {KEEPING}")
    for warning in calibration.warnings:
        say(warning)
    return calibration


def _recent(machine: Host) -> Calibration | None:
    """One that was not kept, made here or by another process of this user not long ago."""
    path = _recent_path(machine)
    known = [_unkept[path]] if path in _unkept else []
    with suppress(OSError, CalibrationError):
        if path.is_file() and (not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()):
            stored = read(path, machine)
            known += [stored] * (timedelta(0) <= stored.age < RECENT)
    return max(known, key=attrgetter("created"), default=None)


def _remember(calibration: Calibration) -> None:
    """For `_recent`; where the folder cannot be written it serves this process alone."""
    path = _recent_path(calibration.machine)
    _unkept[path] = calibration
    with suppress(CalibrationError):
        _put(calibration, path)


def _recent_path(machine: Host) -> Path:
    return path_of(machine).with_suffix(".recent.json")


def machine(*, threads: int = 1) -> Machine:
    """This host, as its stored calibration has it, for whatever takes a machine.

    Peaks are those of the fastest matrix product, bandwidths those of streaming from each cache and from memory, the
    overhead that of a call of NumPy; all were attained, so none is a ceiling. Raises CalibrationError without one.
    """
    host = this_machine(threads)
    path = path_of(host)
    if not path.exists():
        raise CalibrationError(
            f"no calibration of this host in {path.parent}: make one by 'costmodel roofline calibrate', in 20 s"
        )
    calibration = read(path, host)
    rates, capacities = calibration.rates, dict(host.caches)
    caches = [ceiling for ceiling in ceilings_of(calibration) if ceiling.name in capacities]
    return Machine(
        name="host",
        category="cpu",
        peak={"fp32": rates.peak("float32"), "fp64": rates.peak("float64")},
        bandwidth=rates.memory_bandwidth,
        memory=_installed_bytes(),
        levels=[Level(name=c.name, size=capacities[c.name], bandwidth=c.rate) for c in caches],
        processors=threads,
        call_overhead=rates.call("add", "float32"),
        measured=True,
        notes=f"{host.cpu}, {threads} thread{'s' * (threads > 1)}, NumPy {host.numpy}"[:1000],
        sources=[Source(title="measured here (costmodel roofline)", date=calibration.created[:10], confirmed=True)],
    )


def _installed_bytes() -> int:
    """Memory of this host [bytes]. Raises CalibrationError where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        raise CalibrationError(
            "the system does not say how much memory this host has: describe it by a Machine"
        ) from None
