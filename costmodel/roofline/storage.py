"""Calibrations on disk: one JSON file for each machine, written whole or not at all, and never trusted unread."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from costmodel.errors import CostModelError, SettingError, shown
from costmodel.roofline.calibration import FORMAT, Calibration, Progress, measure_probes
from costmodel.roofline.machine import Machine, this_machine
from costmodel.roofline.probes import probes

CACHE_VARIABLE = "COSTMODEL_CACHE"
"""The environment's own choice of where calibrations are kept."""
LARGEST_FILE = 10_000_000

Say = Callable[[str], None]


class CalibrationError(CostModelError):
    """A stored calibration that cannot be used: damaged, of another version, or of another machine."""


class CalibrationWarning(UserWarning):
    """What is said of a calibration that is used: that it had to be made, is old, or is noisy."""


def _warn(message: str) -> None:
    warnings.warn(message, CalibrationWarning, stacklevel=3)


def cache_folder() -> Path:
    """Where calibrations are kept: ``$COSTMODEL_CACHE``, or the user's cache folder."""
    from platformdirs import user_cache_path

    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else user_cache_path("costmodel")


def path_of(machine: Machine) -> Path:
    """The file of a machine's calibration."""
    return cache_folder() / f"roofline-{machine.key}.json"


def store(calibration: Calibration) -> Path:
    """Write it under the machine's key, in one step. Raises CalibrationError if the folder cannot be written."""
    path = path_of(calibration.machine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            try:
                file.write(calibration.model_dump_json(indent=1))
            except BaseException:
                os.unlink(file.name)
                raise
        os.replace(file.name, path)
    except OSError as error:
        raise CalibrationError(
            f"{path}: cannot keep the calibration: {error.strerror or error}; set {CACHE_VARIABLE} to a folder that"
            " can be written"
        ) from None
    return path


def read(path: Path, machine: Machine) -> Calibration:
    """The calibration in a file. Raises CalibrationError unless it is whole, of this version and of `machine`."""
    from pydantic import ValidationError

    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CalibrationError(f"{path} is no calibration: it is larger than {LARGEST_FILE:,} bytes")
        found = Calibration.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "nested too deep"}
        where = ".".join(map(str, first["loc"]))
        raise CalibrationError(f"{path} is no calibration: {where + ': ' if where else ''}{first['msg']}") from None
    if found.format != FORMAT:
        raise CalibrationError(f"{path} is of format {found.format}, this version reads {FORMAT}")
    if found.machine != machine:
        changes = "; ".join(machine.changes_from(found.machine))
        raise CalibrationError(f"{path} is of another machine: {changes}")
    expected = {probe.name for probe in probes(found.thorough)}
    if missing := sorted(expected - found.seconds.keys()):
        raise CalibrationError(f"{path} lacks {len(missing)} of this version's probes, such as {missing[0]!r}")
    return found


def calibrate(
    thorough: bool = False, *, threads: int = 1, progress: bool | Progress = False, keep: bool = True
) -> Calibration:
    """Measure this machine anew, at most 10 seconds (60 if thorough), and keep the result for later.

    threads: how many BLAS may use. progress: a bar on stderr, or a function that is told the share done. An interrupted
    calibration leaves what was stored before. Raises CalibrationError if the result cannot be kept, SettingError for
    a wrong number of threads.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= this_machine().cores:
        raise SettingError(f"threads {shown(threads)} is not from 1 to {this_machine().cores}, the cores there are")
    with bar(progress, "calibrating") as told:
        measured = measure_probes(thorough, threads, told)
    if keep:
        store(measured)
    return measured


def calibrated(*, threads: int = 1, say: Say = _warn, progress: bool | Progress = False) -> Calibration:
    """The stored calibration of this machine; without one that can be trusted, a quick one is made, and `say` told."""
    machine = this_machine(threads)
    path = path_of(machine)
    try:
        found = read(path, machine) if path.exists() else None
        reason = f"no calibration of this machine in {path.parent}"
    except CalibrationError as error:
        found, reason = None, str(error)
    if found is None:
        say(f"{reason}: calibrating now, which takes about ten seconds")
        found = calibrate(threads=threads, progress=progress)
    for warning in found.warnings:
        say(warning)
    return found


@contextmanager
def bar(progress: bool | Progress, name: str) -> Iterator[Progress | None]:
    """What to tell the share done: the function given, a bar on stderr, or nothing."""
    if callable(progress):
        yield progress
    elif not progress:
        yield None
    else:
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task(name, total=1.0)
            yield lambda share: shown.update(task, completed=share)
