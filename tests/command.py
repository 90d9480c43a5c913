"""Runs command lines, in this process and in one of their own, and holds what they refuse to one line."""

import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from costmodel.cli import run
from costmodel.errors import LONGEST_ERROR, CostModelError

MOST_SAID = 1_100
"""Characters that an error stays below with all its details."""


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
    """Assert exit code 2, nothing on stdout, and on stderr a short line, with details below, that say all of `said`."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.endswith("\n")
    message = said_in_one_line(outcome.err.removesuffix("\n"))
    for words in said:
        assert words in message


def error_of(call: Any) -> str:
    with pytest.raises(CostModelError) as caught:
        call()
    return said_in_one_line(caught.value)


def said_in_one_line(error: CostModelError | str) -> str:
    """What an error says, its details in the same line."""
    message = str(error)
    assert is_brief(message)
    first, *details = message.split("\n")
    return " ".join([first, *(line.strip() for line in details)])


def is_brief(message: str) -> bool:
    """Whether what an error says is a short line, and its details are indented lines below it."""
    first, *details = message.split("\n")
    short = all(0 < len(line) < LONGEST_ERROR for line in (first, *details))
    return short and len(message) < MOST_SAID and all(line.startswith("  ") for line in details)
