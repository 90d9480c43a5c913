"""Sheets: a headline, warnings, tables and notes, as aligned text or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from textwrap import fill
from typing import NamedTuple

from costmodel.display.table import WIDTH, Table


class Sheet(NamedTuple):
    """What there is to read of an answer.

    head: the question and what it was asked of, a line each; may be empty. width: columns that notes are wrapped to.
    """

    head: Sequence[str]
    tables: Sequence[Table]
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    width: int = WIDTH

    def text(self) -> str:
        """Aligned plain text, without a final newline."""
        head = "\n".join([*self.head, *(f"warning: {warning}" for warning in self.warnings)])
        notes = "\n".join(fill(note, self.width, subsequent_indent="  ") for note in self.notes)
        return "\n\n".join(filter(None, [head, *(table.text() for table in self.tables), notes]))

    def html(self) -> str:
        """The same for a notebook or a page; everything is escaped, colours are the page's own."""
        lines = [escape(line) for line in self.head]
        head = "<br>".join([*(f"<b>{line}</b>" for line in lines[:1]), *lines[1:]])
        warned = "".join(f"<p><b>warning:</b> {escape(warning)}</p>" for warning in self.warnings)
        tables = "".join(table.html() for table in self.tables)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        listed = f"<ul>{notes}</ul>" if notes else ""
        return f'<div style="overflow-x:auto"><p>{head}</p>{warned}{tables}{listed}</div>'
