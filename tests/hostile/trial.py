"""Runs one hostile case in a forked child, and counts what it took: calls of functions, and memory beyond the start.

Calls are counted, not seconds: a busy machine changes none of them. What computes without a call, as a loop in C does, is
ended after `STUCK` times what a reference took in this process, however fast the machine is.
"""

from __future__ import annotations

import contextlib
import cProfile
import io
import math
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from costmodel.errors import CostModelError

WAITING_SECONDS = 600
"""A child that waits for ever, as on a pipe, is ended by the clock; none that computes comes near."""
STUCK = 400
"""A child is ended after so many times the reference, some 20 s of the CPU."""
STUCK_BYTES = 6 * 2**30


class Outcome(NamedTuple):
    """What a case did. code: an exit code, 2 for an error that was raised; -1 for anything else that ended it.

    out, err: what it printed; failure: a traceback, or what ended it; calls: of functions in Python and C;
    grown: bytes beyond the start.
    """

    code: int
    out: str
    err: str
    failure: str
    calls: int
    grown: int


@cache
def reference_seconds() -> float:
    """What a loop of a million steps takes of this CPU."""
    begun = time.process_time()
    sum(number & 7 for number in range(1_000_000))
    return time.process_time() - begun


def trial(case: Callable[[], Any], stuck: float = STUCK) -> Outcome:
    """Run a case in a child of its own, in an empty folder. It returns an exit code or a value, or raises."""
    folder = tempfile.mkdtemp(prefix="hostile-")
    most_seconds = math.ceil(stuck * reference_seconds())
    with tempfile.TemporaryFile() as report:
        child = os.fork()
        if child == 0:
            _be_tried(case, folder, report, most_seconds)
        _, status, usage = os.wait4(child, 0)
        report.seek(0)
        text = report.read()
    shutil.rmtree(folder, ignore_errors=True)
    if not text:
        signalled = os.WIFSIGNALED(status)
        ended = f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if signalled else f"ended with status {status}"
        return Outcome(-1, "", "", ended, 0, 0)
    code, out, err, failure, calls, start = pickle.loads(text)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Outcome(code, out, err, failure, calls, peak - start)


def _be_tried(case: Callable[[], Any], folder: str, report: Any, most_seconds: int) -> None:
    """The child: never returns."""
    signal.alarm(WAITING_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (STUCK_BYTES, STUCK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    start = _resident()
    out, err = io.StringIO(), io.StringIO()
    code, failure = 0, ""
    counter = cProfile.Profile()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = counter.runcall(case)
            code = code if type(code) is int and 0 <= code < 256 else 0
    except CostModelError as error:
        code = 2
        err.write(f"error: {error}\n")
    except BaseException as error:
        code, failure = -1, "".join(traceback.format_exception(error))[-3000:]
    calls = sum(entry.callcount for entry in counter.getstats())
    report.write(pickle.dumps((code, out.getvalue(), err.getvalue(), failure, calls, start)))
    report.flush()
    os._exit(0)


def _resident() -> int:
    """Bytes of memory that this process has now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
