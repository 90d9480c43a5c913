"""Answers: data for programs first, and the text and HTML that people read from the same, as sheets."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from costmodel.display.table import Marked, Table, narrowed, styled, wrapped
from costmodel.documents.arguments import typed
from costmodel.errors import SettingError, no_attribute, not_installed, shown

if TYPE_CHECKING:
    from os import PathLike

    import pandas


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
    return styled("\n".join(map(narrowed, line.split("\n"))), line.emphasis if isinstance(line, Marked) else None)


class Data(ABC):
    """Abstract: what a question is answered with, as plain data, JSON and a data frame."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data: texts, exact numbers, truth values, lists and mappings of them."""

    def rows(self) -> list[dict[str, Any]]:
        """What a data frame has a row for each of; here the answer's single values, as one row."""
        return [{name: value for name, value in self.to_dict().items() if not isinstance(value, dict | list)}]

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @typed
    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """A page of its own, also written to `path`; its colours follow the reader's system.

        Raises CostModelError if it cannot be written.
        """
        text = document(str(self).partition("\n")[0], self._repr_html_())
        if path is not None:
            from costmodel.documents.files import write

            write(text, path)
        return text

    def to_dataframe(self) -> pandas.DataFrame:
        """`rows` as a data frame. Raises CostModelError without pandas (extra `frame`)."""
        try:
            import pandas
        except ImportError:
            raise not_installed("to_dataframe needs pandas", "frame") from None
        return pandas.DataFrame(self.rows())

    BELOW: ClassVar[Sequence[str]] = ()
    """Attributes of attributes, such as "memory.peak", that an error names for one that there is not."""

    if not TYPE_CHECKING:  # which knows the attributes that there are

        def __getattr__(self, name: str) -> Any:
            """Nothing: raises AttributeError with the nearest name."""
            above = getattr(super(), "__getattr__", None)
            try:
                if above is not None:
                    return above(name)
            except AttributeError:
                pass
            raise no_attribute(self, name, self.BELOW)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the text as it is, where an answer has no tables of its own."""
        from html import escape

        return f'<pre style="overflow-x:auto">{escape(str(self))}</pre>'


class Answer(Data):
    """Abstract: data that shows itself as a sheet, in a terminal as text and in a notebook as HTML."""

    @abstractmethod
    def sheet(self) -> Sheet:
        """What there is to read."""

    def __str__(self) -> str:
        return self.sheet().text()

    def _repr_html_(self) -> str:
        return self.sheet().html()


Entry = TypeVar("Entry")


class Ranking(Answer, Generic[Entry]):
    """Abstract: an answer of entries, the best first; true if there is one."""

    entries: tuple[Entry, ...]

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __getitem__(self, rank: int) -> Entry:
        """As of any sequence, IndexError where there is none. Raises SettingError for what is no whole number."""
        if isinstance(rank, slice) or hasattr(type(rank), "__index__"):
            return self.entries[rank]
        of = type(self).__name__.lower()
        known = rank if isinstance(rank, str) and hasattr(type(self), rank) else "best"
        raise SettingError(f"{of} has entries by rank, none such as {shown(rank)}: use {of}.{known}, or {of}[0]")

    @property
    def best(self) -> Entry:
        """The first entry. Raises SettingError if there is none."""
        if not self.entries:
            raise SettingError(self._reason())
        return self.entries[0]

    @abstractmethod
    def _reason(self) -> str:
        """Why there is no entry."""
