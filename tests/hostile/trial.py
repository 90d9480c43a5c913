"""Runs one hostile case in a forked child, and measures what it took: time of the CPU, and memory beyond the start."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

STUCK_SECONDS = 60
"""A child that waits for ever is ended after so long, by the clock; what it computes is limited by time of the CPU."""
STUCK_CPU = 30
STUCK_BYTES = 4 * 2**30


class Outcome(NamedTuple):
    """What a case did. code: an exit code, 2 for an error that was raised, -1 for a child that did not end by itself.

    out, err: what it printed; failure: a traceback; cpu: seconds; grown: bytes of memory beyond the start.
    """

    code: int
    out: str
    err: str
    failure: str
    cpu: float
    grown: int


def trial(case: Callable[[], Any]) -> Outcome:
    """Run a case in a child of its own. It returns an exit code or a value, or raises."""
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            _be_tried(case, told)
        _, status, used = os.wait4(child, 0)
        told.seek(0)
        text = told.read()
    code, out, err, failure, start = pickle.loads(text) if text else (-1, "", "", "", 0)
    if not text:
        failure = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"ended with status {status}"
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Outcome(code, out, err, failure, used.ru_utime + used.ru_stime, peak - start if start else 0)


def _be_tried(case: Callable[[], Any], told: Any) -> None:
    """The child: never returns."""
    os.setpgrp()
    signal.alarm(STUCK_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (STUCK_CPU, STUCK_CPU))
    resource.setrlimit(resource.RLIMIT_AS, (STUCK_BYTES, STUCK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    start = _resident()
    out, err = io.StringIO(), io.StringIO()
    code, failure = 0, ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = case()
            code = code if isinstance(code, int) else 0
    except BaseException as error:
        code, failure = _judged(error, err)
    told.write(pickle.dumps((code, out.getvalue(), err.getvalue(), failure, start)))
    told.flush()
    os._exit(0)


def _judged(error: BaseException, err: Any) -> tuple[int, str]:
    from costmodel.errors import CostModelError

    if isinstance(error, CostModelError):
        err.write(f"error: {error}\n")
        return 2, ""
    return -1, "".join(traceback.format_exception(error))[-3000:]


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
