"""The command line's edge: runs a command, and turns whatever goes wrong into one line and an exit code.

0: done. 1: it does not fit, or the output could not be written. 2: bad input. 130: interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from costmodel.display.table import Page

NARROWEST = 40
"""Columns that a terminal is taken to have at least."""
MOST_OF_AN_ERROR = 1_000
"""Characters, over all its lines."""
_CONTROLS = "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
"""What moves a terminal's cursor, or turns its text round, written as JSON does; names from files may have it."""
_COLOURS = "\x1b\\[(?:0|1|2|1;31)m"
"""The colours and weights that answers have on a terminal."""
COMPLETION = "_COSTMODEL_COMPLETE"
"""Set by a shell that completes a command line; ``bash_source`` and the like ask for the script that does so."""


def main() -> NoReturn:
    """Entry point of ``costmodel`` and ``python -m costmodel``."""
    import gc

    # A short-lived process: fewer collections, none at exit, and no search for pydantic plugins make a cold start
    # a tenth faster.
    gc.set_threshold(100_000)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _open_streams()
    code = run(sys.argv[1:])
    gc.disable()
    sys.exit(code)


def _open_streams() -> None:
    """Open those standard streams that a shell has closed (``>&-``), or the next file to be opened would be one.

    Errors go nowhere then. Output fails when it is written, since its stream can only be read.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


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
    from click import UsageError
    from click.exceptions import Exit

    from costmodel.cli.commands import costmodel
    from costmodel.display.table import written_for
    from costmodel.errors import CostModelError

    if instruction := os.environ.get(COMPLETION):
        from click.shell_completion import shell_complete

        return shell_complete(costmodel, {}, "costmodel", COMPLETION, instruction)
    try:
        page = _page()
        with costmodel.make_context("costmodel", list(arguments or ["--help"])) as context, written_for(page):
            text, code = costmodel.invoke(context)
    except Exit as done:  # help or version is printed
        return done.exit_code
    except UsageError as error:
        return _fail(f"{error.format_message()} (see {error.ctx.command_path if error.ctx else 'costmodel'} --help)", 2)
    except CostModelError as error:
        return _fail(str(error), 2)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    words, colours = [text], [""]
    if page.colours:
        words, colours = re.split(_COLOURS, text), [*re.findall(_COLOURS, text), ""]
    text = "".join(part for pair in zip(map(_visible, words), colours, strict=True) for part in pair)
    print(text.encode(encoding, "replace").decode(encoding), flush=True)
    return code


def _visible(text: str) -> str:
    """Text without what moves a cursor."""
    if all(map(str.isprintable, text.split("\n"))):
        return text
    return re.sub(_CONTROLS, lambda control: f"\\u{ord(control[0]):04x}", text)


def _page() -> Page:
    """The terminal that the answer is written to; one of no certain width, as into a pipe, unless COLUMNS says it."""
    from costmodel.display.table import Page, is_terminal

    terminal = is_terminal(sys.stdout)
    columns = None
    if terminal or os.environ.get("COLUMNS", "").isdecimal():
        import shutil

        columns = shutil.get_terminal_size().columns
    dumb = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
    return Page(max(columns, NARROWEST) if columns else None, terminal and not dumb)


def _fail(message: str, code: int) -> int:
    from costmodel.errors import in_lines

    line = " ".join(message.split())
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    line = line if len(line) <= MOST_OF_AN_ERROR else line[: MOST_OF_AN_ERROR - 3] + "..."
    print(in_lines(f"error: {line}"), file=sys.stderr)
    return code


def _discard_output() -> None:
    """Keep the interpreter from failing again when it flushes stdout at exit."""
    with suppress(OSError):  # of a program's own stream, which is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
