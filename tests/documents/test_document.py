"""Plain text is read without a YAML library, and then as that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.documents import yaml_reader
from costmodel.documents.document import _Plain, parse
from costmodel.documents.files import SPECS
from costmodel.errors import SpecError


def whole(text: str) -> Any:
    """What the library's reader makes of a text: its data and lines, or its error."""
    try:
        return yaml_reader.parse(text, "x", "")
    except SpecError as error:
        return error


def test_ready_models_are_plain_but_for_those_with_blocks() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(Path(SPECS).glob("*.yaml"))}
    plain = {name: _Plain(text).document("x") for name, text in texts.items()}
    assert all(document == whole(texts[name]) for name, document in plain.items() if document is not None)
    others = [name for name, document in plain.items() if document is None]
    assert all(texts[name].startswith("architecture: cnn") for name in others)


PIECES = """a;gpt2-small;1;-1;0.5;1e5;010;1_0;null;true;no;~;a b;a - b
a #b;a: b;a:b;'q';"q";[1, 2];[a, 0.5];[];[1,2];[1, [2]]
{};{a: 1};&a b;*a;!t x;>-;|;- x;a ;é;a(b);a (b);a,b;\u2028;\t;? a;%a;@a;-;1 2;""".replace("\n", ";").split(";")
WORDS = st.sampled_from([*PIECES, "x" * 50, "1" * 1_001])
LINES = st.builds(
    lambda indent, key, colon, value: " " * indent + key + colon + value,
    st.integers(0, 3),
    st.sampled_from(["a", "b", "head", "null", "true", "notes", "a.b", "1", "", "- a", "#", "..."]),
    st.sampled_from([": ", ":", ":  ", "", ": >-"]),
    st.one_of(st.just(""), WORDS),
)


@given(st.lists(LINES, max_size=6).map("\n".join), st.sampled_from(["", "\n", "\n\n"]))
def test_what_is_read_as_plain_is_what_yaml_says(text: str, end: str) -> None:
    found = _Plain(text + end).document("x")
    assert found is None or found == whole(text + end)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 1\nb: x y\n", {"a": 1, "b": "x y"}),
        ("a:\n  b: [1, 0.5, true, x]\n  c: null\nd: false", {"a": {"b": [1, 0.5, True, "x"], "c": None}, "d": False}),
        ("a: >-\n  one: #two\n  three\nb: 1e5", {"a": "one: #two three", "b": 1e5}),
    ],
)
def test_plain_text(text: str, data: dict[str, Any]) -> None:
    found = _Plain(text).document("x")
    assert found is not None
    assert found.data == data
    assert found == whole(text) == parse(text, "x")


def test_long_text_is_left_to_the_library() -> None:
    with pytest.raises(SpecError, match="more than 20,000 values"):
        parse(f"a: [{', '.join(['1'] * 20_001)}]", "x")
