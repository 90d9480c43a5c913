"""Files as plain data: a small, safe and literal reading of YAML, of which JSON is a part.

Numbers and truth values are those of JSON, so that no spelling means two things: `010`, `1_000`, `12:30`, `0x10`,
`no` and dates stay text, which a field that wants a number then refuses. Anchors, aliases, tags and repeated keys are
errors.

What ready models are written in, mappings of names to plain words, numbers, short lists and folded notes, is read here:
importing a YAML library takes longer than the rest of a prediction. Everything else is read by `yaml_reader`, and
whatever is wrong.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MOST_VALUES = 20_000
DEEPEST = 40
LONGEST_NUMBER = 1_000

Path = tuple[str | int, ...]

_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
INT = r"-?(0|[1-9][0-9]*)"
FLOAT = r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"


class Document(NamedTuple):
    """What a file says: plain data, and the line that each value in it starts on."""

    data: Any
    where: str
    lines: dict[Path, int]

    def nearest(self, path: Path) -> Path:
        """`path`, or as much of it as the document has."""
        while path and path not in self.lines:
            path = path[:-1]
        return path

    def place(self, path: Path) -> str:
        """File and line of the value at `path`, or of the nearest one around it."""
        line = self.lines.get(self.nearest(path))
        return self.where if line is None else f"{self.where}, line {line}"


def parse(text: str, where: str, about: str = "a model, starting with its architecture") -> Document:
    """Plain data from YAML or JSON text; `where` names it in errors, `about` what it should give. Raises SpecError."""
    found = _Plain(text).document(where) if len(text) < MOST_VALUES else None
    if found is not None:
        return found
    from costmodel.documents import yaml_reader

    return yaml_reader.parse(text, where, about)


def meant(text: str) -> Any:
    """What text without quotes means: nothing, a truth value, a number or itself. Raises ValueError."""
    if text in _WORDS:
        return _WORDS[text]
    if not re.fullmatch(FLOAT, text):
        return text
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text):,} characters: no size is that large")
    return int(text) if re.fullmatch(INT, text) else float(text)


_WORD = "[A-Za-z0-9][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./+()-]+)*"
_ENTRY = f"( *)([a-z][a-z0-9_]*):(?: (?:(>-)|({_WORD})|\\[({_WORD}(?:, {_WORD})*)\\]))?"


class _Plain:
    """Reads text of which every line is of a form that has one meaning; it gives up at any other."""

    def __init__(self, text: str) -> None:
        self.rows = text.removesuffix("\n").split("\n")
        self.at = 0
        self.lines: dict[Path, int] = {(): 1}

    def document(self, where: str) -> Document | None:
        """What the text says; None if it is not so plain."""
        if not all(map(str.isprintable, self.rows)):
            return None
        try:
            data = self._mapping((), 0)
        except ValueError:
            return None
        return Document(data, where, self.lines) if self.at == len(self.rows) else None

    def _indent(self) -> int:
        """Of the next line; -1 at the end."""
        if self.at == len(self.rows):
            return -1
        row = self.rows[self.at]
        return len(row) - len(row.lstrip(" "))

    def _mapping(self, path: Path, indent: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while self._indent() == indent:
            entry = re.fullmatch(_ENTRY, self.rows[self.at])
            if entry is None or entry[2] in data or entry[2] in _WORDS or len(path) >= DEEPEST - 2:
                raise ValueError
            self.at += 1
            here = (*path, entry[2])
            self.lines[here] = self.at
            data[entry[2]] = self._value(entry, here, indent)
        if not data or self._indent() > indent:
            raise ValueError
        return data

    def _value(self, entry: re.Match[str], here: Path, indent: int) -> Any:
        _, _, folded, word, words = entry.groups()
        if folded:
            return self._folded(indent)
        if word:
            return meant(word)
        if words:
            items = words.split(", ")
            self.lines |= {(*here, number): self.lines[here] for number in range(len(items))}
            return [meant(item) for item in items]
        if self._indent() <= indent:
            raise ValueError
        return self._mapping(here, self._indent())

    def _folded(self, indent: int) -> str:
        """Lines that are one, up to the next that is no further in."""
        start, within = self.at, self._indent()
        while self._indent() > indent:
            if self._indent() != within or self.rows[self.at] != self.rows[self.at].rstrip():
                raise ValueError
            self.at += 1
        if self.at == start:
            raise ValueError
        return " ".join(row[within:] for row in self.rows[start : self.at])
