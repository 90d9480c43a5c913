"""Text for people: names made printable, and tables of words, one set of cells as aligned text or as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import fill
from typing import Literal, NamedTuple, TextIO

TextRow = Sequence[str]
WIDTH = 110
"""Columns that prose is wrapped to where the page does not say."""
NARROWEST = 12
"""Columns that a name has at least beside the widest figure."""
MOST_LINES = 3
"""Lines that a name goes on over; of a longer one what is between its first and last words is left out."""
_BREAKS = re.compile(r"(?<=[\s/_+=-])(?=\S)|(?<=[.,:])(?=[^\d\s])")
"""Where a line may end within a name: after a blank, or between its words."""
_BLANKS = re.compile(r"(?<=\s)(?=\S)")
"""Where a line may end within the heading of figures."""
Emphasis = Literal["strong", "alarm", "faint"]
_SGR: dict[Emphasis, str] = {"strong": "1", "alarm": "1;31", "faint": "2"}
_CSS: dict[Emphasis, str] = {
    "strong": "font-weight:bold",
    "alarm": "font-weight:bold;color:#c0392b",
    "faint": "opacity:.6",
}


class Page(NamedTuple):
    """What text is written for: how many columns there are (None: tables as wide as they are), and whether colours."""

    columns: int | None = None
    colours: bool = False


_PAGE: ContextVar[Page] = ContextVar("page", default=Page())  # noqa: B039  (a tuple: frozen)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether someone looks at what is written to a stream: to none, or to a closed one, nothing is."""
    return stream is not None and not stream.closed and stream.isatty()


def page() -> Page:
    """What text is written for now."""
    return _PAGE.get()


@contextmanager
def written_for(page: Page) -> Iterator[None]:
    """Text made within is laid out for this page."""
    token = _PAGE.set(page)
    try:
        yield
    finally:
        _PAGE.reset(token)


class Marked(str):
    """Words that mean something for the reader at a glance: in colour or weight where the page has it."""

    __slots__ = ("emphasis",)
    emphasis: Emphasis

    def __new__(cls, words: str, emphasis: Emphasis) -> Marked:
        """The words, marked."""
        mark = super().__new__(cls, words)
        mark.emphasis = emphasis
        return mark


def styled(words: str, emphasis: str | None = None) -> str:
    """Words in the colour or weight of their emphasis; as they are if they have none, or the page has no colours."""
    style = words.emphasis if isinstance(words, Marked) else emphasis
    return f"\x1b[{_SGR[style]}m{words}\x1b[0m" if style and page().colours else str(words)  # type: ignore[index]


def wrapped(text: str, indent: str = "") -> str:
    """Prose in lines of the page's width; `indent` is put before all but the first."""
    columns = min(page().columns or WIDTH, WIDTH)
    return fill(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def narrowed(line: str) -> str:
    """A line that stays one where the page has room for it."""
    room = page().columns
    return line if room is None or len(line) <= room else fill(line, room, subsequent_indent="  ")


def printable(name: str) -> str:
    """A name from a file without what would steer a terminal or break a line."""
    return "".join(character if character.isprintable() else "?" for character in name)


def shortened(name: str, most: int) -> str:
    """A printable name of at most so many characters: its first and last words, with … for those between."""
    name = printable(name)
    if len(name) <= most:
        return name
    words = _BREAKS.split(name)
    first = last = ""
    while words and len(first + words[-1] + last) < most:
        last = words.pop() + last
        if words and len(first + words[0] + last) < most:
            first += words.pop(0)
    return f"{first}…{last or name[len(name) + 1 - most :]}"


def _lines_of(cell: str, width: int, *, name: bool) -> list[str]:
    """A cell in lines of a column's width that end between words; those of a name are indented after the first."""
    if len(cell) <= width:
        return [cell]
    indent, breaks = (_INDENT, _BREAKS) if name else ("", _BLANKS)
    lines = [""]
    room = width - len(indent)
    for word in breaks.split(shortened(cell, MOST_LINES * room)):
        if lines[-1].strip() and len((lines[-1] + word).rstrip()) > width:
            lines.append(indent)
        lines[-1] += shortened(word.rstrip(), room) + word[len(word.rstrip()) :]
    return [line.rstrip() for line in lines]


class Table(NamedTuple):
    """A table whose header's first cell says what it is about.

    words: columns read from the left; all others are figures, aligned to the right.
    total: whether the last row sums up those above.
    key: how many columns from the left say what a row is of; a narrow page keeps them.
    worth: headings of other columns, the foremost first. Where a narrow page has no room for all of them, they go on
    below, beside the key again; what is not among them is left out there, and named. None: all, as they stand.
    """

    header: TextRow
    rows: Sequence[TextRow]
    words: frozenset[int] = frozenset({0})
    total: bool = False
    key: int = 1
    worth: Sequence[str] | None = None

    def text(self) -> str:
        """Aligned plain text, as wide as the page: what has no room goes on below, or is named there."""
        widest = [max(map(len, cells)) for cells in zip(self.header, *self.rows, strict=True)]
        room = page().columns
        if room is None:
            return self._block(list(range(len(widest))), widest)
        least = [self._least(column, room - NARROWEST - len(_GAP)) for column in range(len(widest))]
        rest, worthy = self._ranked()
        key = list(range(self.key))
        beside = max((least[column] for column in rest[:worthy]), default=0)
        while len(key) > 1 and _width([*key, key[0]], least) - least[key[0]] + beside > room:
            rest.insert(0, key.pop())
            worthy += 1
        least[0] = min(least[0], room - beside - len(_GAP))
        blocks: list[str] = []
        while worthy or not blocks:
            columns = list(key)
            while rest and _width([*columns, rest[0]], least if worthy else widest) <= room:
                columns.append(rest.pop(0))
                worthy -= worthy > 0
            blocks.append(self._block(sorted(columns), self._narrowed(columns, widest, least, room)))
        if rest:
            names = ", ".join(dict.fromkeys(filter(None, (self.header[column] for column in sorted(rest)))))
            blocks[-1] += "\n" + styled(wrapped(f"no room for: {names or 'remarks'} (--wide shows all)", "  "), "faint")
        return "\n\n".join(blocks)

    def _block(self, columns: list[int], widths: list[int]) -> str:
        """Some of the columns, every row."""
        texts = [self._line(cells, widths, columns) for cells in (self.header, *self.rows)]
        texts[0] = "\n".join(styled(line, "strong") for line in texts[0].split("\n"))
        if self.total:
            texts[-1] = "\n".join(styled(line, "strong") for line in texts[-1].split("\n"))
            texts.insert(-1, "-" * _width(columns, widths))
        return "\n".join(texts)

    def _ranked(self) -> tuple[list[int], int]:
        """Columns beside the key, the foremost first, and how many of them are of worth."""
        rest = list(range(self.key, len(self.header)))
        if self.worth is None:
            return rest, len(rest)
        ranked: list[int] = []
        for name in self.worth:  # a heading that stands twice is the one further left
            ranked += [column for column in rest if self.header[column] == name and column not in ranked][:1]
        return [*ranked, *(column for column in rest if column not in ranked)], len(ranked)

    def _least(self, column: int, most: int) -> int:
        """Columns of the page that one of the table needs: names and headings may go on over lines, figures not."""
        heading, *cells = (row[column] for row in (self.header, *self.rows))
        if column not in self.words:
            return min(max(map(len, (*cells, *_BLANKS.split(heading)))), most)
        whole = max(map(len, (heading, *cells)))
        longest = max(len(word.rstrip()) for name in (heading, *cells) for word in _BREAKS.split(name))
        return min(max(len(_INDENT) + longest, whole // 2), whole, most)

    def _narrowed(self, columns: list[int], widest: list[int], least: list[int], room: int) -> list[int]:
        """Widths with which some columns have room: headings of figures go on over lines before names do."""
        widths = list(widest)
        for column in sorted(columns, key=lambda column: (column in self.words, -widest[column])):
            over = _width(columns, widths) - room
            widths[column] -= min(max(over, 0), max(widest[column] - least[column], 0))
        return widths

    def html(self) -> str:
        """The same as an HTML table that takes its colours from the page; every cell is escaped."""
        head = self._row("th", self.header, bold=True)
        last = len(self.rows) - 1
        body = "".join(
            self._row("td", cells, bold=self.total and number == last) for number, cells in enumerate(self.rows)
        )
        return f'<table style="{_TABLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'

    def _line(self, cells: TextRow, widths: list[int], columns: list[int]) -> str:
        """A row of the table, over as many lines as its longest cell; headings stand right above their columns."""
        texts = [_lines_of(cells[c], widths[c], name=c in self.words) for c in columns]
        height = max(map(len, texts))
        padded = []
        for column, text in zip(columns, texts, strict=True):
            blank = [""] * (height - len(text))
            cell = cells[column]
            for number, part in enumerate([*blank, *text] if cells is self.header else [*text, *blank]):
                space = " " * (widths[column] - len(part))
                word = styled(Marked(part, cell.emphasis)) if part and isinstance(cell, Marked) else part
                padded.append((number, word + space if column in self.words else space + word))
        return "\n".join(_GAP.join(part for at, part in padded if at == number).rstrip() for number in range(height))

    def _row(self, tag: str, cells: TextRow, *, bold: bool) -> str:
        from html import escape

        weight = "bold" if bold else "normal"
        row = "".join(
            f'<{tag} style="{_CELL};font-weight:{weight};text-align:{"left" if column in self.words else "right"}'
            f'{";" + _CSS[cell.emphasis] if isinstance(cell, Marked) else ""}">{escape(cell)}</{tag}>'
            for column, cell in enumerate(cells)
        )
        return f'<tr style="background:transparent">{row}</tr>'


def _width(columns: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[column] for column in columns) + len(_GAP) * (len(columns) - 1)


_GAP = "  "
_INDENT = " "
_TABLE = "border-collapse:collapse;color:inherit;font-variant-numeric:tabular-nums;margin:0 0 1em"
_CELL = "padding:1px 8px;white-space:nowrap;color:inherit"
