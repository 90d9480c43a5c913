"""Writes pictures to files, whole or not at all."""

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
    target = Path(path)
    known = sorted(figure.canvas.get_supported_filetypes())
    ending = target.suffix[1:].lower()
    if ending not in known:
        raise CostModelError(f"cannot draw {shown(str(path))}: use a name that ends in .png, or in {', '.join(known)}")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending)
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_bytes(drawn.getvalue())
        part.replace(target)
    except OSError as error:
        _discard(part)
        raise CostModelError(f"cannot write {shown(str(path))}: {error.strerror or error}") from None


def _discard(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:
        return
