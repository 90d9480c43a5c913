"""Questions from several threads at once, with streams that are closed, and on disks that are full."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from costmodel.cli import run
from tests.hostile.files import Case
from tests.hostile.ground import Ground

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
THREADS = """
import sys, threading
sys.setswitchinterval(1e-6)
import costmodel as cm
errors, start = [], threading.Barrier(8)
def ask(number):
    start.wait()
    try:
        cm.predict("gpt2-small", batch=number + 1, seq=8, on="h100-sxm").time.seconds
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit("\\n".join(errors) or 0)
"""
STREAMS = {
    "no output": ">&-",
    "no errors": "2>&-",
    "neither": ">&- 2>&-",
    "a full output": "> /dev/full",
    "full errors": "2> /dev/full",
    "no input": "<&-",
}
VERBS = {
    "predict": ["predict", "mlp-mnist"],
    "a mistake": ["predict", "mlp-mnst"],
    "models": ["models", "mlp"],
    "sweep": ["sweep", "mlp-mnist", "--batch", "1,2", "--quantities", "params", "--out", "made.parquet"],
    "explore": ["explore", "mlp-mnist", "--optimizer", "sgd", "--precision", "fp32", "--out", "made.html"],
}


def places(_: Ground) -> Iterator[Case]:
    """All of them."""
    for number in range(12):
        yield f"the first question from eight threads {number}", lambda: _ended([sys.executable, "-c", THREADS])
    for verb, words in VERBS.items():
        for name, redirection in STREAMS.items():
            shell = f'exec "$@" {redirection}'
            command = ["sh", "-c", shell, "sh", sys.executable, "-m", "costmodel", *words]
            yield f"{verb} with {name}", lambda command=command, words=words: _without_traceback(command, words)
    for words in (
        ["predict", "mlp-mnist", "--out", "made.json"],
        ["timeline", "mlp-mnist", "--out", "made.png"],
        ["explore", "mlp-mnist", "--optimizer", "sgd", "--out", "made.html"],
        ["sweep", "mlp-mnist", "--batch", "1:9", "--quantities", "params", "--out", "made.parquet"],
        ["sweep", "mlp-mnist", "--batch", "1:9", "--quantities", "params", "--out", "made.csv"],
        ["machines", "fit", "h100-sxm", "--measured", "mlp-mnist batch=32: 1 ms", "--out", "made.yaml"],
    ):
        yield f"{words[0]} to a full disk: {words[-1]}", _on_a_full_disk(words)


def _ended(command: list[str]) -> None:
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr[-500:])


def _without_traceback(command: list[str], words: list[str]) -> None:
    """Whatever is closed, no traceback is written, and a file is there that was asked for."""
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr[-500:]
    assert done.returncode in (0, 1, 2), done.returncode
    asked = [word for word in words if word.startswith("made")]
    assert all(Path(name).stat().st_size for name in asked), os.listdir()


def _on_a_full_disk(words: list[str]) -> Callable[[], Any]:
    def ask() -> int:
        Path(words[-1]).write_text("before")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
        try:
            code = run(words)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert Path(words[-1]).read_text() == "before"
        assert os.listdir() == [words[-1]], os.listdir()
        return code

    return ask
