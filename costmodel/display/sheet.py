"""Sheets: a headline, warnings, tables and notes, as aligned text or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from costmodel.display.table import Marked, Table, narrowed, styled, wrapped


class Sheet(NamedTuple):
    """What there is to read of an answer. head: the question and what it was asked of, a line each; may be empty."""

    head: Sequence[str]
    tables: Sequence[Table]
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Aligned plain text, without a final newline."""
        warned = (styled(wrapped(f"warning: {warning}", "  "), "alarm") for warning in self.warnings)
        head = "\n".join([*(_line(line) for line in self.head), *warned])
        notes = "\n".join(wrapped(note, "  ") for note in self.notes)
        return "\n\n".join(filter(None, [head, *(table.text() for table in self.tables), notes]))

    def html(self) -> str:
        """The same for a notebook or a page; everything is escaped, colours are the page's own."""
        from html import escape

        lines = [escape(line) for line in self.head]
        head = "<br>".join([*(f"<b>{line}</b>" for line in lines[:1]), *lines[1:]])
        warned = "".join(f"<p><b>warning:</b> {escape(warning)}</p>" for warning in self.warnings)
        tables = "".join(table.html() for table in self.tables)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        listed = f"<ul>{notes}</ul>" if notes else ""
        return f'<div style="overflow-x:auto"><p>{head}</p>{warned}{tables}{listed}</div>'


def document(title: str, body: str) -> str:
    """A whole page of HTML around a body, light or dark as the reader's system is."""
    from html import escape

    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}"
    "th{border-bottom:1px solid}tbody tr:nth-child(even){background:rgba(128,128,128,.08)!important}"
)


def _line(line: str) -> str:
    """A line of the head, whose own line breaks stay; only a narrow page wraps it."""
    return styled("\n".join(map(narrowed, line.split("\n"))), line.meaning if isinstance(line, Marked) else None)
