"""Pictures of a chart of layers: which one, in which form, to which file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from costmodel.display.answer import document
from costmodel.display.figures import DARK, LIGHT, ending_of, figure_class, save
from costmodel.display.rooflines import Chart, gid, picture
from costmodel.documents.files import check_writable, write
from costmodel.errors import CostModelError, unknown

KINDS = ("roofline", "scatter", "bars")
ALL = "all"


def check_drawable(path: str | os.PathLike[str] | None, kind: str) -> None:
    """Raise CostModelError for an unknown kind, a missing library or a path that cannot be written."""
    if kind not in (*KINDS, ALL):
        raise unknown("kind of picture", kind, (*KINDS, ALL))
    figure = figure_class()()
    if path is not None and not _is_page(path):
        ending_of(path, figure)
    if path is not None:
        check_writable(path)


def drawn(
    chart: Chart, machine: str, path: str | os.PathLike[str] | None, *, kind: str = "roofline", dark: bool = False
) -> Any:
    """Matplotlib's figure, or without one the picture in a file, whose path is returned; None for a page.

    machine: that the chart was measured on, in words. Raises CostModelError, as `check_drawable` does, too.
    """
    check_drawable(path, kind)
    if path is not None:
        files = draw(chart, machine, path, kind=kind, dark=dark)
        return None if _is_page(path) else Path(files[0])
    if kind == ALL:
        raise CostModelError(
            "all kinds of pictures need a path: give one that ends in .html, or in .png for a file each"
        )
    _check_kind(chart, kind)
    return picture(chart, kind, dark)


def draw(
    chart: Chart, machine: str, path: str | os.PathLike[str], *, kind: str = "roofline", dark: bool = False
) -> list[str]:
    """Draw to a file; all kinds on one page, or in a file each, whose name ends in the kind. Returns their names."""
    kinds = drawable(chart) if kind == ALL else [kind]
    for name in kinds:
        _check_kind(chart, name)
    if _is_page(path):
        head = f"<p><b>{escape(chart.title)}</b><br>{escape(machine)}</p>"
        write(_page(chart, head, kinds), path)
        return [str(path)]
    whole = Path(path)
    paths = [whole.with_name(f"{whole.stem}-{name}{whole.suffix}") for name in kinds] if kind == ALL else [whole]
    for name, each in zip(kinds, paths, strict=True):
        save(picture(chart, name, dark), each)
    return list(map(str, paths))


def page(chart: Chart, body: str, path: str | os.PathLike[str] | None = None) -> str:
    """A page of HTML, also written to `path`: a body, and the pictures that can be drawn if matplotlib is there."""
    text = _page(chart, body, drawable(chart) if find_spec("matplotlib") is not None else [])
    if path is not None:
        write(text, path)
    return text


def _page(chart: Chart, body: str, kinds: Sequence[str]) -> str:
    """A whole page: a body, which is HTML, then pictures of these kinds."""
    figures = "".join(f"<figure>{_svg(chart, kind)}</figure>" for kind in kinds)
    return document(chart.title, f"<style>{STYLE}</style>{body}{figures}")


STYLE = (
    f":root{{--ink:{LIGHT.ink};--paper:{LIGHT.paper}}}"
    f"@media (prefers-color-scheme: dark){{:root{{--ink:{DARK.ink};--paper:{DARK.paper}}}}}"
    "figure{margin:1.5em 0;overflow-x:auto}svg{width:100%;height:auto}"
)


def _svg(chart: Chart, kind: str) -> str:
    """A picture in a page: colours are those that the reader's system has, and a dot pointed at tells of itself."""
    from matplotlib import rc_context

    drawing = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": kind}):
        picture(chart, kind).savefig(drawing, format="svg", metadata={"Date": None})
    text = "<svg" + drawing.getvalue().partition("<svg")[2]
    for colour, name in ((LIGHT.ink, "--ink"), (LIGHT.paper, "--paper")):
        text = text.replace(f": {colour}", f": var({name})")
    for dot in chart.dots:
        mark = f'<g id="{escape(gid(dot))}">'
        text = text.replace(mark, f"<g><title>{escape(chr(10).join(dot.details))}</title>")
    return text


def drawable(chart: Chart) -> list[str]:
    """Kinds of pictures that a chart has: without arithmetic there is no roofline."""
    return [kind for kind in KINDS if kind != "roofline" or chart.drawn]


def _check_kind(chart: Chart, kind: str) -> None:
    if kind not in drawable(chart):
        raise CostModelError(f"{chart.title} does no arithmetic: there is nothing to draw")


def _is_page(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() in (".html", ".htm")
