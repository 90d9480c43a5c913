"""Text for people: names made printable, and tables of words, one set of cells as aligned text or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

Cells = Sequence[str]
WIDTH = 110
"""Columns that prose is wrapped to."""


def printable(name: str) -> str:
    """A name from a file without what would steer a terminal or break a line."""
    return "".join(character if character.isprintable() else "?" for character in name)


class Table(NamedTuple):
    """A table whose header's first cell says what it is about.

    words: columns read from the left; all others are figures, aligned to the right.
    total: whether the last row sums up those above.
    """

    header: Cells
    rows: Sequence[Cells]
    words: frozenset[int] = frozenset({0})
    total: bool = False

    def text(self) -> str:
        """Aligned plain text."""
        lines = [self.header, *self.rows]
        widths = [max(len(cells[column]) for cells in lines) for column in range(len(self.header))]
        shown = [self._line(cells, widths) for cells in lines]
        if self.total:
            shown.insert(-1, "-" * max(map(len, shown)))
        return "\n".join(shown)

    def html(self) -> str:
        """The same as an HTML table that takes its colours from the page; every cell is escaped."""
        head = self._row("th", self.header, bold=True)
        last = len(self.rows) - 1
        body = "".join(
            self._row("td", cells, bold=self.total and number == last) for number, cells in enumerate(self.rows)
        )
        return f'<table style="{_TABLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'

    def _line(self, cells: Cells, widths: list[int]) -> str:
        padded = (
            cell.ljust(width) if column in self.words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    def _row(self, tag: str, cells: Cells, *, bold: bool) -> str:
        weight = "bold" if bold else "normal"
        shown = "".join(
            f'<{tag} style="{_CELL};font-weight:{weight};text-align:{"left" if column in self.words else "right"}">'
            f"{escape(cell)}</{tag}>"
            for column, cell in enumerate(cells)
        )
        return f'<tr style="background:transparent">{shown}</tr>'


_TABLE = "border-collapse:collapse;color:inherit;font-variant-numeric:tabular-nums;margin:0 0 1em"
_CELL = "padding:1px 8px;white-space:nowrap;color:inherit"
