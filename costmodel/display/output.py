"""Answers written to files: a picture, a page, a table, data or text, as the ending of the name says."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from costmodel.documents.files import check_writable, write
from costmodel.errors import CostModelError, not_installed, shown

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
TABLES = (".csv", ".parquet")
REST = (".json", ".txt")


def check_out(path: str | os.PathLike[str], *, drawn: bool) -> None:
    """Raise CostModelError if no answer could be written there. drawn: whether it has a picture."""
    ending = Path(path).suffix.lower()
    if drawn and ending and ending not in (*PAGES, *TABLES, *REST):
        from costmodel.display.figures import figure_class

        if ending[1:] not in figure_class()().canvas.get_supported_filetypes():
            raise CostModelError(_refusal(path, drawn))
    elif ending not in (*PAGES, *TABLES, *REST):
        raise CostModelError(_refusal(path, drawn))
    check_writable(path)


def _refusal(path: str | os.PathLike[str], drawn: bool) -> str:
    picture = ".png, .svg or .pdf (a picture), " if drawn else ""
    return (
        f"cannot write {shown(str(path))}: use a name that ends in {picture}.html (a page), .csv or .parquet "
        "(a table), .json or .txt"
    )


def write_out(answer: Any, path: str | os.PathLike[str]) -> None:
    """Write an answer in the form that the path's ending names. Raises CostModelError."""
    ending = Path(path).suffix.lower()
    check_out(path, drawn=hasattr(answer, "plot"))
    if ending in PAGES:
        answer.to_html(path)
    elif ending == ".csv":
        write(_csv(answer.rows()), path)
    elif ending == ".parquet":
        _write_parquet(answer, path)
    elif ending == ".json":
        write(json.dumps(answer.to_dict(), indent=2, ensure_ascii=False) + "\n", path)
    elif ending == ".txt":
        from costmodel.display.table import Page, written_for

        with written_for(Page()):
            write(f"{answer}\n", path)
    else:
        answer.plot(path)


def _csv(rows: list[dict[str, Any]]) -> str:
    """A line for each row; what is no text, number or truth value is written as JSON."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, dict | list | tuple) else value


def _write_parquet(answer: Any, path: str | os.PathLike[str]) -> None:
    frame = answer.to_dataframe()
    for name in frame:
        if any(isinstance(value, dict | list | tuple) for value in frame[name]):
            frame[name] = [_cell(value) for value in frame[name]]
    try:
        content = frame.to_parquet(index=False)
    except ImportError:
        raise not_installed("a Parquet file needs pyarrow", "sweep") from None
    write(content, path)
