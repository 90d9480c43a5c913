"""Answers: data for programs first, and the text and HTML that people read from the same."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from costmodel.display.sheet import Sheet
from costmodel.errors import CostModelError

if TYPE_CHECKING:
    from os import PathLike

    import pandas


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

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """A page of its own, also written to `path`; its colours follow the reader's system.

        Raises CostModelError if it cannot be written.
        """
        from costmodel.display.sheet import document

        text = document(str(self).partition("\n")[0], self._repr_html_())
        if path is not None:
            from costmodel.display.figures import write

            write(text, path)
        return text

    def to_dataframe(self) -> pandas.DataFrame:
        """`rows` as a data frame. Raises CostModelError without pandas (extra `frame`)."""
        try:
            import pandas
        except ImportError:
            raise CostModelError("to_dataframe needs pandas: pip install 'costmodel[frame]'") from None
        return pandas.DataFrame(self.rows())

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
