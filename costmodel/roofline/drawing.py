"""Pictures of a check by name: which one, in which form, to which file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args

from costmodel.architectures.base import Architecture
from costmodel.cost.prediction import Prediction
from costmodel.display.figures import check_writable, ending_of, figure_class, save
from costmodel.errors import unknown
from costmodel.roofline.findings import Check
from costmodel.roofline.inspection import check as checked
from costmodel.roofline.interactive import require
from costmodel.roofline.page import plot_page
from costmodel.roofline.pictures import picture

Kind = Literal["roofline", "scatter", "bars"]


def plot(
    model: Check | Architecture | Prediction | str,
    path: str | os.PathLike[str] | None = None,
    *,
    kind: str = "roofline",
    dark: bool = False,
    **asked: Any,
) -> Any:
    """Draw a check, or check a model and draw that (extra `plot`).

    Args:
        model: a check, or what `check` takes.
        path: .png, .svg, .pdf, ...; .html is interactive and self-contained. Without it matplotlib's figure is given.
        kind: "roofline", "scatter" (predicted against measured) or "bars" (time of each layer).
        dark: on black instead of white; a page takes its colours from the reader's system.
        **asked: as `check` takes them.

    Raises:
        CostModelError: an unknown kind, a file that cannot be written, or what `check` raises.

    """
    check_drawable(path, kind)
    return draw(model if isinstance(model, Check) else checked(model, **asked), path, kind=kind, dark=dark)


def draw(check: Check, path: str | os.PathLike[str] | None, *, kind: str = "roofline", dark: bool = False) -> Any:
    """The picture as matplotlib's figure, or in a file. Raises CostModelError."""
    check_drawable(path, kind)
    if path is not None and _is_page(path):
        return plot_page(check, kind, path)
    figure = picture(check, kind, dark)
    if path is None:
        return figure
    save(figure, path)
    return None


def check_drawable(path: str | os.PathLike[str] | None, kind: str) -> None:
    """Raise CostModelError for what cannot be drawn, or not there, before anything is measured."""
    if kind not in get_args(Kind):
        raise unknown("kind of picture", kind, get_args(Kind))
    if path is not None and _is_page(path):
        require()
    else:
        figure = figure_class()()
        if path is not None:
            ending_of(path, figure)
    if path is not None:
        check_writable(path)


def _is_page(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() in (".html", ".htm")
