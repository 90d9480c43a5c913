"""A check as one page of HTML that needs nothing else: tables, and pictures where plotly is there."""

from __future__ import annotations

import os
from html import escape
from importlib.util import find_spec
from typing import Any

from costmodel.display.figures import write
from costmodel.roofline.findings import Check
from costmodel.roofline.sheet import headline, html

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; } }
body { margin: 2em; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
figure { margin: 1.5em 0; overflow-x: auto; }
"""
THEME = """
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const ink = dark.matches ? "#e6e6e6" : "#222222";
  document.querySelectorAll(".js-plotly-plot").forEach(plot => Plotly.relayout(plot, {"font.color": ink}));
}
dark.addEventListener("change", paint);
paint();
"""
KINDS = ("roofline", "scatter", "bars")


def page(check: Check) -> str:
    """Tables, and the three pictures if plotly is there."""
    kinds = KINDS if find_spec("plotly") is not None else ()
    if not any(layer.arithmetic for layer in check.layers):
        kinds = tuple(kind for kind in kinds if kind != "roofline")
    return _page(headline(check), html(check) + _figures(check, kinds))


def plot_page(check: Check, kind: str, path: str | os.PathLike[str]) -> None:
    """One interactive picture as a page. Raises CostModelError if plotly is missing or `path` cannot be written."""
    title = headline(check)
    write(_page(title, f"<p><b>{escape(title)}</b><br>{escape(str(check.calibration.machine))}</p>"
                + _figures(check, (kind,))), path)  # fmt: skip


def _figures(check: Check, kinds: tuple[str, ...]) -> str:
    if not kinds:
        return ""
    from costmodel.roofline.interactive import figure_of

    shown: list[str] = []
    for number, kind in enumerate(kinds):
        figure: Any = figure_of(check, kind)
        drawn = figure.to_html(full_html=False, include_plotlyjs=not number, config={"displaylogo": False})
        shown.append(f"<figure>{drawn}</figure>")
    return "".join(shown) + f"<script>{THEME}</script>"


def _page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
