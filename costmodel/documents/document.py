"""Files as plain data: a small, safe and literal reading of YAML, of which JSON is a part.

Numbers and truth values are those of JSON, so that no spelling means two things: `010`, `1_000`, `12:30`, `0x10`,
`no` and dates stay text, which a field that wants a number then refuses. Anchors, aliases, tags and repeated keys are
errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from costmodel.errors import SpecError, shown

MOST_VALUES = 20_000
DEEPEST = 40
TOO_DEEP = f"values nest deeper than {DEEPEST} levels: flatten the description"
LONGEST_NUMBER = 1_000

Path = tuple[str | int, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


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
    try:
        reader = _Reader(yaml.parse(text, Loader=_LOADER), where, about)
        return reader.document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        # The end of the text is reported as a line of its own.
        place = f"{where}, line {min(mark.line + 1, len(text.splitlines()))}" if mark else where
        if "nesting depth" in problem:  # of which the parser, which looks ahead, may hear first
            raise SpecError(f"{place}: {TOO_DEEP}") from None
        raise SpecError(f"{place}: not valid YAML or JSON: {problem}: mend or complete the file there") from None


def dump(data: Any, width: int = 110) -> str:
    """Plain data as YAML that `parse` reads back: a line for each field, lists of plain values in brackets.

    width: columns after which a line ends where its word does.
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, not any(isinstance(item, list | dict) for item in sequence))

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, False)

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML quotes by the rules of YAML 1.1, where "1e5" is text, and loses some of the rarer line breaks.
        quoted = bool(_FLOAT.fullmatch(data)) or not data.isprintable()
        return self.represent_scalar("tag:yaml.org,2002:str", data, '"' if quoted else None)


_Dumper.add_representer(str, _Dumper.represent_str)


class _Reader:
    """Builds data from parse events, within limits, and notes where each value was."""

    def __init__(self, events: Iterator[Any], where: str, about: str) -> None:
        self.events = events
        self.where = where
        self.about = about
        self.lines: dict[Path, int] = {}

    def document(self) -> Document:
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                data = self._value(next(self.events), ())
                self._end()
                return Document(data, self.where, self.lines)
        raise SpecError(f"{self.where}: the file is empty: describe {self.about}")

    def _end(self) -> None:
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                raise self._error(event, "a second document starts here: a file has one")

    def _value(self, event: Any, path: Path) -> Any:
        if isinstance(event, AliasEvent):
            raise self._error(event, f"alias *{event.anchor[:40]}: write the value out")
        if event.anchor is not None:
            raise self._error(event, f"anchor &{event.anchor[:40]}: write the value out where it is used")
        if event.tag is not None:
            raise self._error(event, f"tag {shown(event.tag)}: use plain values without tags")
        self.lines[path] = event.start_mark.line + 1
        if len(self.lines) > MOST_VALUES:
            raise self._error(event, f"the file has more than {MOST_VALUES:,} values: fold what repeats")
        if isinstance(event, ScalarEvent):
            return event.value if event.style or not event.implicit[0] else self._plain(event)
        if len(path) >= DEEPEST:
            raise self._error(event, TOO_DEEP)
        return self._mapping(path) if isinstance(event, MappingStartEvent) else self._sequence(event, path)

    def _sequence(self, start: Any, path: Path) -> list[Any]:
        assert isinstance(start, SequenceStartEvent)
        items: list[Any] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            if not isinstance(event, ScalarEvent | AliasEvent):
                raise self._error(event, "a list or mapping cannot be a field name: use a word")
            key = self._value(event, (*path, ""))
            if not isinstance(key, str):
                raise self._error(event, f"{shown(key)} cannot be a field name: use a word")
            if key in data:
                first = self.lines[(*path, key)]
                raise self._error(event, f"field {shown(key)} is given twice (first on line {first}): keep one")
            line = event.start_mark.line + 1
            data[key] = self._value(next(self.events), (*path, key))
            self.lines[(*path, key)] = line
        self.lines.pop((*path, ""), None)
        return data

    def _plain(self, event: ScalarEvent) -> Any:
        text = event.value
        if text in _WORDS:
            return _WORDS[text]
        if not _FLOAT.fullmatch(text):
            return text
        if len(text) > LONGEST_NUMBER:
            raise self._error(event, f"a number of {len(text):,} characters: no size is that large")
        number = int(text) if _INT.fullmatch(text) else float(text)
        if number in (math.inf, -math.inf):
            raise self._error(event, f"{shown(text)} is beyond all numbers that are computed with")
        return number

    def _error(self, event: Any, message: str) -> SpecError:
        return SpecError(f"{self.where}, line {event.start_mark.line + 1}: {message}")
