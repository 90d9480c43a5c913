"""Text for people: names made printable, and tables of words, one set of cells as aligned text or as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import fill
from typing import Literal, NamedTuple, TextIO

TextRow = Sequence[str]
WIDTH = 110
"""Columns that prose is wrapped to where the page does not say."""
NARROWEST = 8
"""Columns that a name is shortened to at most; in a first column half as many more."""
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


class Table(NamedTuple):
    """A table whose header's first cell says what it is about.

    words: columns read from the left; all others are figures, aligned to the right.
    total: whether the last row sums up those above.
    key: how many columns from the left say what a row is of; a narrow page keeps them.
    worth: headings of other columns, those that a narrow page keeps longest first. What is not among them goes first,
    from the right; names are cut before one of these goes. None: all of them, as they stand.
    folds: whether columns without room go on below, beside the key again: where each was asked for by name.
    """

    header: TextRow
    rows: Sequence[TextRow]
    words: frozenset[int] = frozenset({0})
    total: bool = False
    key: int = 1
    worth: Sequence[str] | None = None
    folds: bool = False

    def text(self) -> str:
        """Aligned plain text, as wide as the page: what has no room is named below, or goes on there."""
        lines = [self.header, *self.rows]
        widths = [max(len(cells[column]) for cells in lines) for column in range(len(self.header))]
        columns, left_out = self._fitting(list(range(len(widths))), widths, page().columns)
        blocks = [self._block(columns, widths)]
        while left_out and self.folds:
            columns, left_out = self._fitting([*range(self.key), *left_out], widths, page().columns)
            if columns[self.key :]:
                blocks.append(self._block(columns, widths))
            else:  # not even one beside the key
                break
        if left_out:
            names = ", ".join(dict.fromkeys(filter(None, (self.header[column] for column in left_out))))
            blocks[-1] += "\n" + styled(wrapped(f"no room for: {names or 'remarks'} (--wide shows all)", "  "), "faint")
        return "\n\n".join(blocks)

    def _block(self, columns: list[int], widths: list[int]) -> str:
        """Some of the columns, every row."""
        texts = [self._line(cells, widths, columns) for cells in (self.header, *self.rows)]
        texts[0] = styled(texts[0], "strong")
        if self.total:
            texts[-1] = styled(texts[-1], "strong")
            texts.insert(-1, "-" * (sum(widths[column] for column in columns) + 2 * (len(columns) - 1)))
        return "\n".join(texts)

    def _ranked(self, columns: list[int]) -> tuple[list[int], int]:
        """Columns beside the key, what goes first last, and how many of them are of worth."""
        rest = columns[self.key :]
        if self.worth is None:
            return rest, len(rest)
        ranked: list[int] = []
        for name in self.worth:  # a heading that stands twice is the one further left
            ranked += [column for column in rest if self.header[column] == name and column not in ranked][:1]
        return [*ranked, *(column for column in rest if column not in ranked)], len(ranked)

    def _fitting(self, columns: list[int], widths: list[int], most: int | None) -> tuple[list[int], list[int]]:
        """Columns that are shown and those that are not; `widths` of names are cut where that saves one of worth."""
        if most is None:
            return columns, []

        def over() -> int:
            return sum(widths[column] for column in columns) + 2 * (len(columns) - 1) - most

        def room(column: int) -> int:
            least = max(widths[column] // 2, NARROWEST + 4 * (column == 0))
            return max(widths[column] - least, 0) if column in self.words else 0

        columns = list(columns)
        left_out: list[int] = []
        ranked, worthy = self._ranked(columns)
        for place, column in reversed(list(enumerate(ranked))):
            if over() <= (sum(map(room, columns)) if place < worthy else 0):
                break
            columns.remove(column)
            left_out.append(column)
        for column in sorted((c for c in columns if c in self.words), key=lambda c: -widths[c]):
            widths[column] -= min(max(over(), 0), room(column))
        while over() > 0 and len(columns) > 1:  # the key itself is too wide: its first column stays
            left_out.append(columns.pop())
        return columns, sorted(left_out)

    def html(self) -> str:
        """The same as an HTML table that takes its colours from the page; every cell is escaped."""
        head = self._row("th", self.header, bold=True)
        last = len(self.rows) - 1
        body = "".join(
            self._row("td", cells, bold=self.total and number == last) for number, cells in enumerate(self.rows)
        )
        return f'<table style="{_TABLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'

    def _line(self, cells: TextRow, widths: list[int], columns: list[int]) -> str:
        padded = []
        for column in columns:
            cell, width = cells[column], widths[column]
            cut = (
                str(cell)
                if len(cell) <= width
                else f"{cell[: width // 2 - 1]}…{cell[len(cell) - (width - width // 2) :]}"
            )
            space = " " * (width - len(cut))
            text = styled(Marked(cut, cell.emphasis)) if isinstance(cell, Marked) else cut
            padded.append(text + space if column in self.words else space + text)
        return "  ".join(padded).rstrip()

    def _row(self, tag: str, cells: TextRow, *, bold: bool) -> str:
        from html import escape

        weight = "bold" if bold else "normal"
        row = "".join(
            f'<{tag} style="{_CELL};font-weight:{weight};text-align:{"left" if column in self.words else "right"}'
            f'{";" + _CSS[cell.emphasis] if isinstance(cell, Marked) else ""}">{escape(cell)}</{tag}>'
            for column, cell in enumerate(cells)
        )
        return f'<tr style="background:transparent">{row}</tr>'


_TABLE = "border-collapse:collapse;color:inherit;font-variant-numeric:tabular-nums;margin:0 0 1em"
_CELL = "padding:1px 8px;white-space:nowrap;color:inherit"
