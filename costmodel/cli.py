"""The command line's edge: runs a command, and turns whatever goes wrong into one line and an exit code.

0: done. 1: it does not fit, or the output could not be written. 2: bad input. 130: interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_ERROR = 1_000


def main() -> NoReturn:
    """Entry point of ``costmodel`` and ``python -m costmodel``."""
    import gc

    # A short-lived process: fewer collections, none at exit, and no search for pydantic plugins make a cold start
    # a tenth faster.
    gc.set_threshold(100_000)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    code = run(sys.argv[1:])
    gc.disable()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Errors are one line on stderr."""
    try:
        return _answered(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads has seen enough, as in `costmodel models | head -1`
        _discard_output()
        return 0
    except OSError as error:
        _discard_output()
        return _fail(f"cannot write the output: {error.strerror or error}", 1)


def _answered(arguments: Sequence[str]) -> int:
    from costmodel.commands import UsageError, command
    from costmodel.errors import CostModelError

    try:
        answer = command().main(list(arguments), prog_name="costmodel", standalone_mode=False)
    except UsageError as error:
        context = getattr(error, "ctx", None)
        help_of = context.command_path if context else "costmodel"
        return _fail(f"{_said(error)} (see {help_of} --help)", 2)
    except CostModelError as error:
        return _fail(str(error), 2)
    if isinstance(answer, int):  # an exit code: typer itself printed help, or was interrupted
        return answer
    text, code = answer if isinstance(answer, tuple) else (answer, 0)
    _print(text)
    return code


def _said(error: Any) -> str:
    """What a usage error says; what looks like an option and starts with a digit was meant as a number."""
    option = getattr(error, "option_name", "")
    if option[1:2].isdigit():
        return f"an amount that starts with {option} is not positive: use one such as '24 GiB'"
    return error.format_message()


def _print(text: str) -> None:
    """To stdout, now, with ? for what its encoding does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    print(f"error: {line if len(line) <= LONGEST_ERROR else line[: LONGEST_ERROR - 3] + '...'}", file=sys.stderr)
    return code


def _discard_output() -> None:
    """Keep the interpreter from failing again when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
