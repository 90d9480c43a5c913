"""Files: what is a path, where ready descriptions are, text with errors that name lines; the writer of all files."""

from __future__ import annotations

import os
import re
import stat
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard, TypeVar

from costmodel.errors import CostModelError, SpecError, a, shown

if TYPE_CHECKING:
    from costmodel.documents.document import Document

Built = TypeVar("Built")

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A wheel has the specs in the package; a checkout and an editable install have them beside it.
_HOMES = [os.path.join(home, "specs") for home in (PACKAGE, os.path.dirname(PACKAGE))]
SPECS = next(filter(os.path.isdir, _HOMES), _HOMES[0])
"""The folder of the ready models."""

SUFFIXES = (".yaml", ".yml", ".json")
MOST_BYTES = 2**20
"""Longer files are refused: the largest model of the zoo takes a hundredth of it."""


def is_path(value: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a value is a path: text is if it has a directory separator, or ends in .yaml, .yml or .json."""
    if not isinstance(value, str):
        return isinstance(value, os.PathLike)
    return value.lower().endswith(SUFFIXES) or any(separator in value for separator in {os.sep, os.altsep or os.sep})


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path fit for one line of text."""
    text = os.fsdecode(path)
    text = text if len(text) <= 200 else "..." + text[-197:]
    return text if text.isprintable() else ascii(text)


def read_fields(path: str | os.PathLike[str], what: str, build: Callable[[Any], Built], start: str) -> Built:
    """What `build` makes of the fields in a YAML or JSON file that describes a `what`; start: a line that it may have.

    Raises SpecError, with the line; errors of `build` name a value by its path, with or without `what` first.
    """
    from costmodel.documents.document import Document, parse

    where = shown_path(path)
    document = parse(text_of(path, where, what), where, f"the {what}'s fields, starting with {start!r}")
    if not isinstance(document.data, dict):
        data = shown(document.data)
        raise SpecError(
            f"{document.place(())}: {what}: {data} is not a mapping of fields: start with a line such as {start!r}"
        )
    try:
        return build(document.data)
    except CostModelError as error:
        lines = {(what, *place): line for place, line in document.lines.items()} | document.lines
        whole = Document({**document.data, what: document.data}, where, lines)
        blame = error if isinstance(error, SpecError) else SpecError(str(error))
        raise SpecError(f"{whole.place(culprit(blame, whole))}: {error}") from None


def culprit(error: SpecError, document: Document) -> tuple[str | int, ...]:
    """Path of the value to blame: of those that validation or the message names, the most exact, else the first."""
    named = ([int(p) if p.isdecimal() else p for p in re.findall(r"\w+", w)] for w in re.findall(r"\S+", str(error)))
    return max((document.nearest(path) for path in (error.path, *map(tuple, named))), key=len)


def text_of(path: str | os.PathLike[str], where: str, what: str = "model") -> str:
    """A file's text, which is JSON if the file is called so; `what` it should describe is said in errors.

    What is JSON to excess is left to who parses it. Raises SpecError.
    """
    text = _text(path, where, what)
    if os.fsdecode(path).lower().endswith(".json") and text.strip():
        import json

        def refused(constant: str) -> None:
            raise SpecError(f"{where}: not valid JSON: {constant} is no number of JSON: mend the file")

        try:
            json.loads(text, parse_constant=refused)
        except SpecError:
            raise
        except json.JSONDecodeError as error:
            raise SpecError(
                f"{where}, line {error.lineno}: not valid JSON: {error.msg[0].lower()}{error.msg[1:]}: mend or "
                "complete the file there"
            ) from None
        except (ValueError, RecursionError):
            pass
    return text


def _text(path: str | os.PathLike[str], where: str, what: str) -> str:
    """A file's text: regular, of at most MOST_BYTES, UTF-8."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind == stat.S_IFDIR:
            raise SpecError(f"{where} is a directory: name {a(what)} file in it")
        if kind != stat.S_IFREG:
            raise SpecError(f"{where} is a device or pipe: name a regular file")
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"cannot read {where}: {reason.lower()}: give the path of a YAML or JSON file") from None
    if len(content) > MOST_BYTES:
        raise SpecError(f"{where} is larger than {MOST_BYTES:,} bytes: {a(what)} file is a few thousand at most")
    if b"\0" in content:
        raise SpecError(f"{where} is binary: {a(what)} file is YAML or JSON text in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{where}, line {line}: not UTF-8 text: save the file as UTF-8") from None


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise CostModelError if a file could not be written there, before the work that gives its content."""
    folder = os.path.dirname(path) or os.curdir
    try:
        try:
            kind = stat.S_IFMT(os.stat(os.fspath(path) or folder).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            kind = stat.S_IFREG
        if kind == stat.S_IFDIR:
            reason = "it is a folder"
        elif kind != stat.S_IFREG:
            reason = "it is a device or pipe: name a regular file"
        elif not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            reason = f"{shown(os.fsdecode(folder))} is no folder that can be written to"
        else:
            return
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero byte
        reason = getattr(error, "strerror", None) or str(error)
    raise CostModelError(f"cannot write {shown(os.fsdecode(path))}: {reason}")


def write(content: bytes | str, path: str | os.PathLike[str]) -> None:
    """Write a regular file, whole or not at all; text as UTF-8. Raises CostModelError."""
    check_writable(path)
    try:
        with replacing(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise CostModelError(f"cannot write {shown(os.fsdecode(path))}: {error.strerror or error}") from None


@contextmanager
def replacing(target: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file beside `target` that takes its place at the end; whatever goes wrong, `target` is as it was.

    Its name begins as that of the target, and has the process and the thread that write; what writers of the same
    target left that were killed goes first. Raises OSError.
    """
    folder, name = os.path.split(os.fsdecode(target))
    _remove_left(folder or os.curdir, name)
    part = os.path.join(folder, f"{name[:50]}.{os.getpid()}-{get_ident()}.part")
    try:
        with suppress(FileNotFoundError):
            os.unlink(part)
        with open(part, "xb") as file:  # "x": what another left there, such as a link, is not written through
            _lock(file.fileno())
            yield file
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def _remove_left(folder: str, name: str) -> None:
    """Remove the parts of a file whose writers are gone: nobody has them locked, and no process has their number."""
    for each in os.listdir(folder):
        number = re.fullmatch(rf"{re.escape(name[:50])}\.([0-9]{{1,9}})-[0-9]+\.part", each)
        if number is None or _alive(int(number[1])):
            continue
        with suppress(OSError):
            part = os.open(os.path.join(folder, each), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                if _lock(part):
                    os.unlink(os.path.join(folder, each))
            finally:
                os.close(part)


def _alive(process: int) -> bool:
    """Whether a process of this host has that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another's
        return True
    return True


def _lock(file: int) -> bool:
    """Lock an open file until it is closed, or its process ends; False where another has it, or where none can be."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def alone(target: str | os.PathLike[str]) -> Iterator[None]:
    """Within, nobody else who asks for it writes to `target`: a lock on a file beside it, which goes at the end.

    Raises CostModelError where another has it, OSError.
    """
    beside = f"{os.fsdecode(target)}.lock"
    file = os.open(beside, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        locked = _lock(file) and os.path.samestat(os.stat(beside), os.fstat(file))  # not one that its owner removed
        if not locked and os.name == "posix":
            raise CostModelError(f"{shown(os.fsdecode(target))} is being written by another process: wait for it")
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(beside)
    finally:
        os.close(file)
