"""Runs one hostile case in a forked child, and measures what it took: time of the CPU, and memory beyond the start."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from costmodel.errors import CostModelError

STUCK_SECONDS = 120
"""A child that waits for ever is ended after so long by the clock; how much it computes is told by time of the CPU."""
STUCK_CPU = 20
STUCK_BYTES = 6 * 2**30


class Outcome(NamedTuple):
    """What a case did. code: an exit code, 2 for an error that was raised; -1 for anything else that ended it.

    out, err: what it printed; failure: a traceback, or what ended it; cpu: seconds; grown: bytes beyond the start.
    """

    code: int
    out: str
    err: str
    failure: str
    cpu: float
    grown: int


def trial(case: Callable[[], Any]) -> Outcome:
    """Run a case in a child of its own, in an empty folder. It returns an exit code or a value, or raises."""
    folder = tempfile.mkdtemp(prefix="hostile-")
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            _be_tried(case, folder, told)
        _, status, used = os.wait4(child, 0)
        told.seek(0)
        text = told.read()
    shutil.rmtree(folder, ignore_errors=True)
    if not text:
        signalled = os.WIFSIGNALED(status)
        ended = f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if signalled else f"ended with status {status}"
        return Outcome(-1, "", "", ended, used.ru_utime + used.ru_stime, 0)
    code, out, err, failure, cpu, start = pickle.loads(text)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Outcome(code, out, err, failure, used.ru_utime + used.ru_stime - cpu, peak - start)


def _be_tried(case: Callable[[], Any], folder: str, told: Any) -> None:
    """The child: never returns."""
    signal.alarm(STUCK_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (STUCK_CPU, STUCK_CPU))
    resource.setrlimit(resource.RLIMIT_AS, (STUCK_BYTES, STUCK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    begun = resource.getrusage(resource.RUSAGE_SELF)
    start, cpu = _resident(), begun.ru_utime + begun.ru_stime
    out, err = io.StringIO(), io.StringIO()
    code, failure = 0, ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = case()
            code = code if type(code) is int and 0 <= code < 256 else 0
    except CostModelError as error:
        code = 2
        err.write(f"error: {error}\n")
    except BaseException as error:
        code, failure = -1, "".join(traceback.format_exception(error))[-3000:]
    told.write(pickle.dumps((code, out.getvalue(), err.getvalue(), failure, cpu, start)))
    told.flush()
    os._exit(0)


def _resident() -> int:
    """Bytes of memory that this process has now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
