"""Runs command lines, in this process and in one of their own, and holds what they refuse to one line."""

import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from costmodel.cli import run
from costmodel.errors import CostModelError


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def here(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """In this process: fast."""
    capsys.readouterr()
    code = run(arguments)
    return Outcome(code, *capsys.readouterr())


def apart(*arguments: str, **environment: str) -> Outcome:
    """In a process of its own: true."""
    done = subprocess.run(
        [sys.executable, "-m", "costmodel", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, **environment},
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def refused(outcome: Outcome, *said: str) -> None:
    """Assert exit code 2, nothing on stdout, and one line on stderr that says all of `said`."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    assert len(outcome.err) < 1_100
    for words in said:
        assert words in outcome.err


def error_of(call: Any) -> str:
    with pytest.raises(CostModelError) as caught:
        call()
    return said_in_one_line(caught.value)


def said_in_one_line(error: CostModelError) -> str:
    message = str(error)
    assert message
    assert "\n" not in message
    assert len(message) < 1_000
    return message
