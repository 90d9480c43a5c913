"""Kills a sweep at many moments, resumes it, and holds the result to that of a run that nothing stopped.

`python -m tests.hostile.kills MOMENTS` prints what differs, and how many runs were stopped on their way, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from costmodel.analysis.sweep import extents, stores
from costmodel.cli import run

stores.ROWS = 256
extents.CHUNK_BYTES = "2KiB"
ASKED = ["sweep", "gpt2-small", "--batch", "1:40", "--seq", "1,8,1000,1500,16:2048:64", "--optimizer", "sgd,adamw"]
ASKED += ["--quantities", "params,flops.recomputed,memory.peak", "--out"]
SIGNALS = (signal.SIGKILL, signal.SIGINT)


def started(path: Path, *more: str) -> int:
    """A process of its own that writes the sweep; returns its number."""
    child = os.fork()
    if child == 0:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            os._exit(run([*ASKED, str(path), *more]))
    return child


def ended(child: int) -> int:
    """How a process ended: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def content(path: Path) -> dict[str, bytes]:
    """Every file that a result has, and what is left beside it."""
    files = [each for each in path.parent.rglob("*") if each.is_file()]
    return {str(each.relative_to(path.parent)): each.read_bytes() for each in sorted(files)}


def _wait_for(folder: Path, seconds: float) -> None:
    """Until anything is in a folder, `seconds` at most: the first files are written in a moment that is soon over."""
    end = time.monotonic() + seconds
    while not any(folder.iterdir()) and time.monotonic() < end:
        time.sleep(0.0005)


def main(moments: int) -> None:
    """See the module."""
    faults: list[str] = []
    stopped = 0
    for suffix in (".parquet", ".zarr"):
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder, f"sweep{suffix}")
            begun = time.monotonic()
            if code := ended(started(whole)):
                faults.append(f"{suffix} without a stop ended with {code}")
            took = time.monotonic() - begun
            expected = content(whole)
        for kind in SIGNALS:
            for moment in range(moments):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder, whole.name)
                    child = started(path)
                    if moment % 2:
                        _wait_for(path.parent, took)
                        time.sleep(0.002 * moment)
                    else:
                        time.sleep(took * (moment + 1) / (moments + 1))
                    os.kill(child, kind)
                    stopped += ended(child) in (-signal.SIGKILL, 130)
                    code = ended(started(path, "--resume"))
                    found = content(path)
                differing = [n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)]
                if code or differing:
                    faults.append(f"{suffix} {kind.name} at {moment + 1}/{moments + 1}: code {code}, {differing[:4]}")
    print(json.dumps({"faults": faults, "stopped": stopped}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
