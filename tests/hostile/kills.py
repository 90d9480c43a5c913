"""Kills a sweep at many of its uses of files, resumes it, and holds the result to that of a run that nothing stopped.

`python -m tests.hostile.kills MOMENTS` prints what differs, and how many runs were stopped on their way, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from costmodel.analysis.sweep import extents, stores
from costmodel.cli import run

stores.ROWS = 256
extents.CHUNK_BYTES = "2KiB"
QUESTION = ["sweep", "gpt2-small", "--batch", "1:40", "--seq", "1,8,1000,1500,16:2048:64", "--optimizer", "sgd,adamw"]
QUESTION += ["--quantities", "params,flops.recomputed,memory.peak", "--out"]
SIGNALS = (signal.SIGKILL, signal.SIGINT)


def sweep(path: Path, *more: str, stop: tuple[int, int] | None = None) -> tuple[int, int]:
    """Run the sweep in a process of its own; returns its exit code, or minus its signal, and how often it used a file.

    `stop` is a signal that the process sends itself, and at which use of a file.
    """
    uses, written = os.pipe()
    child = os.fork()
    if child == 0:
        count = itertools.count(1)
        last = 0

        def used(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal last
            if arguments and str(path) in str(arguments[0]):
                last = next(count)
                if stop and last == stop[1]:
                    os.kill(os.getpid(), stop[0])

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            sys.addaudithook(used)
            code = run([*QUESTION, str(path), *more])
        os.write(written, str(last).encode())
        os._exit(code)
    os.close(written)
    with os.fdopen(uses) as report:
        count_text = report.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(count_text or 0)


def content(path: Path) -> dict[str, bytes]:
    """Every file that a result has, and what is left beside it."""
    files = [each for each in path.parent.rglob("*") if each.is_file()]
    return {str(each.relative_to(path.parent)): each.read_bytes() for each in sorted(files)}


def main(moments: int) -> None:
    """See the module."""
    faults: list[str] = []
    stopped = 0
    for suffix in (".parquet", ".zarr"):
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder, f"sweep{suffix}")
            code, uses = sweep(whole)
            if code:
                faults.append(f"{suffix} without a stop ended with {code}")
            expected = content(whole)
        for kind in SIGNALS:
            for moment in range(1, moments + 1):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder, whole.name)
                    code, _ = sweep(path, stop=(kind, uses * moment // (moments + 1)))
                    stopped += code in (-signal.SIGKILL, 130)
                    code, _ = sweep(path, "--resume")
                    resumed = content(path)
                differing = [n for n in expected.keys() | resumed.keys() if expected.get(n) != resumed.get(n)]
                if code or differing:
                    faults.append(f"{suffix} {kind.name} at {moment}/{moments + 1}: code {code}, {differing[:4]}")
    print(json.dumps({"faults": faults, "stopped": stopped}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
