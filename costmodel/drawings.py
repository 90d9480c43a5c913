"""Writes pictures and pages to files, whole or not at all."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.errors import CostModelError, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a picture in the format that the path's ending names, whole or not at all. Raises CostModelError."""
    ending = ending_of(path, figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending)
    write(drawn.getvalue(), path)


def ending_of(path: str | os.PathLike[str], figure: Figure) -> str:
    """The format that a path's ending names. Raises CostModelError for one that is not drawn."""
    known = sorted(figure.canvas.get_supported_filetypes())
    ending = Path(path).suffix[1:].lower()
    if ending not in known:
        raise CostModelError(f"cannot draw {shown(str(path))}: use a name that ends in .png, or in {', '.join(known)}")
    return ending


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise CostModelError if a file could not be written there, before the work that gives its content."""
    target = Path(path)
    folder = target.parent
    if target.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "it is a folder" if target.is_dir() else f"{shown(str(folder))} is no folder that can be written to"
        raise CostModelError(f"cannot write {shown(str(path))}: {reason}")


def write(content: bytes | str, path: str | os.PathLike[str]) -> None:
    """Write a file, whole or not at all; text as UTF-8. Raises CostModelError."""
    target = Path(path)
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(target)
    except OSError as error:
        _discard(part)
        raise CostModelError(f"cannot write {shown(str(path))}: {error.strerror or error}") from None


def _discard(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:
        return
