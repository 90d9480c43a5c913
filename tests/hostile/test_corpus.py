"""Nothing that means harm gets through: no traceback, no memory or time without end, no touch of what is not its own.

By default a sample; ``pytest --hostile tests/hostile`` takes all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
if not hasattr(os, "fork") or not Path("/proc/self/statm").exists():
    pytest.skip("needs fork and /proc", allow_module_level=True)

from tests.hostile.corpus import MOST_CALLS, PARTS, fault
from tests.hostile.ground import Ground, prepare
from tests.hostile.trial import STUCK, trial

EVERY = 83
"""Every so manieth case is in the sample."""
ROOT = Path(__file__).parents[2]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "part" in metafunc.fixturenames:
        metafunc.parametrize("part", list(PARTS) if metafunc.config.getoption("--hostile") else [""])


def told(module: str, *arguments: str) -> dict[str, Any]:
    """What a module says that is run in a process of its own, from which it forks."""
    command = [sys.executable, "-m", f"tests.hostile.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_nothing_hostile_gets_through(part: str) -> None:
    found = told("corpus", str(1 if part else EVERY), part)
    assert found["faults"] == []
    assert sum(found["counts"].values()) >= (40 if part else 150)
    assert len(found["counts"]) == (1 if part else len(PARTS))


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_to_the_same_bytes(request: pytest.FixtureRequest) -> None:
    moments = 20 if request.config.getoption("--hostile") else 2
    found = told("kills", str(moments))
    assert found["faults"] == []
    assert found["stopped"] == 4 * moments  # two signals, two formats


@pytest.mark.slow
def test_there_are_more_than_a_thousand_cases(tmp_path: Path) -> None:
    ground = prepare(tmp_path)
    labels = [label for cases in PARTS.values() for label, _ in cases(ground)]
    assert len(labels) > 1_000


def _hog(ground: Ground) -> Any:
    return len(bytearray(os.urandom(1)) * 300_000_000)


def _busy(ground: Ground) -> None:
    for _ in range(MOST_CALLS + 1):
        len("")


def _endless(ground: Ground) -> None:
    while True:
        pass


HARM: dict[str, tuple[Callable[[Ground], Any], str]] = {
    "an error of another kind": (lambda _: 1 // 0, "a traceback: ZeroDivisionError"),
    "an end without a word": (lambda _: os._exit(3), "a traceback: ended with status"),
    "an error of two lines": (lambda _: print("error: a\nerror: b", file=sys.stderr) or 2, "not brief"),
    "a control character": (lambda _: print("\x1b[31m"), "a control character '\\x1b'"),
    "much memory": (_hog, " MB"),
    "many calls": (_busy, " calls"),
    "a loop without end": (_endless, "ended by SIGKILL"),
    "code that ran": (lambda ground: ground.touched.touch(), "code from the input ran"),
    "a changed file": (lambda ground: ground.linked.write_text(""), "the canary was changed"),
    "a secret": (lambda ground: print(ground.canary.read_text()), "the canary was read out"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARM)
def test_what_would_get_through_is_seen(name: str, tmp_path: Path) -> None:
    ground = prepare(tmp_path)
    case, said = HARM[name]
    outcome = trial(lambda: case(ground), stuck=STUCK if name == "many calls" else 1)
    assert said in fault(outcome, ground)


def test_what_is_answered_or_refused_is_no_fault(tmp_path: Path) -> None:
    ground = prepare(tmp_path)
    assert fault(trial(lambda: print("fine")), ground) == ""
    assert fault(trial(lambda: print("error: no", file=sys.stderr) or 2), ground) == ""
