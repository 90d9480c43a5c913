"""A file that describes no model is refused in one line, with its name, the line to mend, and what would be right."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.documents.document import parse
from costmodel.importers.files import build, describe, read
from tests.command import apart, error_of, here, refused, said_in_one_line

GPT: dict[str, Any] = {"vocab": 11, "context": 8, "layers": 2, "width": 6, "heads": 3}
CNN: dict[str, Any] = {"input": [3, 8, 8]}

LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"

BAD_FILES: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["empty"]),
    "a comment": (b"# nothing\n", ["empty"]),
    "null": (b"null\n", ["line 1", "nothing"]),
    "a word": (b"gpt2-small\n", ["line 1", "'gpt2-small'"]),
    "a list": (b"- 1\n- 2\n", ["line 1", "a list"]),
    "binary": (bytes(range(256)), ["binary"]),
    "utf-16": ("architecture: mlp\n".encode("utf-16"), ["binary"]),
    "latin-1": (b"architecture: mlp\nname: caf\xe9\n", ["line 2", "UTF-8"]),
    "control characters": (b"architecture: mlp\nname: a\x01b\n", ["not valid YAML"]),
    "truncated": (b"architecture: mlp\nsizes: [3, 2", ["line 2", "not valid YAML"]),
    "truncated json": (b'{"architecture": "mlp", "sizes": [3, ', ["line 1", "not valid YAML"]),
    "a stray tab": (b"architecture: mlp\n\tsizes: 3\n", ["line 2", "not valid YAML"]),
    "a repeated field": (b"architecture: mlp\nsizes: [3, 2]\nsizes: [3, 4]\n", ["line 3", "'sizes'", "line 2"]),
    "a repeated nested field": (
        b"architecture: cnn\ninput: [3, 8, 8]\nblocks:\n- conv: {channels: 1, kernel: 1, kernel: 3}\n",
        ["line 4", "'kernel'", "twice"],
    ),
    "an anchor": (b"architecture: mlp\nsizes: &s [3, 2]\n", ["line 2", "&s"]),
    "an alias": (b"architecture: mlp\nsizes: *s\n", ["line 2", "s"]),
    "a billion laughs": (LAUGHS.encode(), ["line 1", "&a"]),
    "a merge": (b"<<: {architecture: mlp}\nsizes: [3, 2]\n", ["architecture"]),
    "a tag": (b"architecture: !!python/object/apply:os.getcwd []\n", ["line 1", "tag"]),
    "two documents": (b"architecture: mlp\n---\nsizes: [3, 2]\n", ["line 2", "second document"]),
    "deep lists": (b"[" * 100_000, ["line 1", "deeper than 40"]),
    "deep mappings": (b"{a: " * 100_000, ["line 1", "deeper than 40"]),
    "deep dashes": (b"- " * 100_000, ["line 1", "deeper than 40"]),
    "deep question marks": (b"? " * 100_000, ["line 1"]),
    "many values": (b"[" + b"1," * 200_000 + b"1]", ["line 1", "20,000 values"]),
    "too many bytes": (b"#" * (2**20 + 1), ["1,048,576 bytes"]),
    "a long number": (b"architecture: mlp\nsizes: [3, " + b"9" * 1_000_000 + b"]", ["line 2", "1,000,000 characters"]),
    "a huge number": (b"architecture: mlp\nsizes: [3, 1" + b"0" * 30 + b"]", ["line 2", "sizes.1"]),
    "a wrong architecture": (b"architecture: transfomer\n", ["line 1", "'transfomer'", "'transformer'"]),
    "a list for an architecture": (b"architecture: [mlp]\n", ["line 1", "architecture"]),
    "no architecture": (b"sizes: [3, 2]\n", ["line 1", "architecture: transformer"]),
    "a number for a field name": (b"architecture: mlp\n3: 4\n", ["line 2", "3"]),
    "a list for a field name": (b"architecture: mlp\n[3]: 4\n", ["line 2", "field name"]),
    "a float for a size": (b"architecture: mlp\nsizes: [3, 2.0]\n", ["line 2", "2.0"]),
    "a truth value for a size": (b"architecture: mlp\nsizes: [3, true]\n", ["line 2", "True"]),
    "text for a size": (b"architecture: mlp\nsizes: [3, '2']\n", ["line 2", "'2'"]),
    "an octal size": (b"architecture: mlp\nsizes:\n- 3\n- 010\n", ["line 4", "'010'"]),
    "a sexagesimal size": (b"architecture: mlp\nsizes: [3, 12:30]\n", ["line 2", "'12:30'"]),
    "a size with underscores": (b"architecture: mlp\nsizes: [3, 1_000]\n", ["line 2", "'1_000'"]),
    "no for false": (b"architecture: mlp\nsizes: [3, 2]\nbias: no\n", ["line 3", "bias", "'no'"]),
    "an unknown field": (b"architecture: mlp\nsizes: [3, 2]\ndropuot: 0.1\n", ["line 3", "'dropuot'", "'dropout'"]),
    "an unknown layer": (
        b"architecture: cnn\ninput: [3, 8, 8]\nblocks:\n- relu\n- cnov: {channels: 1, kernel: 1}\n",
        ["line 5", "'cnov'", "'conv'"],
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content, said = BAD_FILES[name]
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    message = error_of(lambda: cm.load(path))
    assert "bad.yaml" in message
    assert [words for words in said if words not in message] == []
    refused(here(capsys, "predict", str(path)), "bad.yaml", *said)


def test_what_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(here(capsys, "predict", f"{tmp_path}/none.yaml"), "none.yaml", "no such file")
    refused(here(capsys, "predict", f"{tmp_path}/"), "is a directory")
    refused(here(capsys, "predict", "/dev/null"), "/dev/null")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    refused(here(capsys, "predict", f"{tmp_path}/loop.yaml"), "loop.yaml")


@pytest.mark.slow
def test_a_bad_file_ends_the_process_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"[" * 1_000_000)
    refused(apart("predict", str(path)), "bad.yaml, line 1", "deeper than 40")


@given(st.binary(max_size=300))
@example(b"\xff\xfe")
@example(b"a: !<")
@example(b"%TAG")
@example(b"- - - ? - :")
def test_no_bytes_give_anything_but_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.yaml"
    path.write_bytes(content)
    error_of(lambda: read(path))


WORDS = ["blocks", "body", "paths", "times", "channels", "kernel", "join", "projection", "name", "features", "template"]
KINDS = ["relu", "conv", "linear", "batchnorm", "flatten", "repeat", "residual", "branches", "sequence", "$x"]
scalars = st.none() | st.booleans() | st.integers(-3, 9) | st.just(10**30) | st.floats() | st.text(max_size=4)
values = st.recursive(
    scalars | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KINDS + WORDS), inner, max_size=3),
    max_leaves=10,
)
FIELDS = ["sizes", "activation", "bias", "norm", "dropout", "name", "notes", "input", "blocks", "define", "self", "cls"]
FIELDS += [
    "vocab",
    "context",
    "layers",
    "width",
    "heads",
    "kv_heads",
    "head_size",
    "positions",
    "window",
    "rotary",
    "experts",
    "head",
]
RIGHT = {"mlp": {"sizes": [3, 2]}, "cnn": {**CNN, "blocks": ["relu"]}, "transformer": GPT}


@given(st.sampled_from(sorted(RIGHT)), st.dictionaries(st.sampled_from(FIELDS), values, max_size=3))
def test_whatever_a_description_holds_it_costs_something_or_is_refused(name: str, changes: dict[str, Any]) -> None:
    try:
        model = build({"architecture": name, **RIGHT[name], **changes}, "test")
        assert cm.predict(model).params >= 0
    except cm.CostModelError as error:
        said_in_one_line(error)


@given(st.sampled_from([*json.dumps({"architecture": "cnn", **RIGHT["cnn"]})]), st.integers(0, 70), st.text(max_size=3))
def test_a_mutated_file_is_read_or_refused(cut: str, at: int, put: str) -> None:
    text = json.dumps({"architecture": "cnn", **RIGHT["cnn"]})
    mutated = text[:at].replace(cut, put) + put + text[at:]
    try:
        build(parse(mutated, "test").data, "test")
    except cm.CostModelError as error:
        said_in_one_line(error)


WRONG_SHAPES = {
    "residual.add": (
        {"residual": {"body": [{"conv": {"channels": 4, "kernel": 1}}]}},
        "give the residual a projection",
    ),
    "conv": ({"conv": {"channels": 4, "kernel": 9}}, "a window of height 9 is larger"),
}


@pytest.mark.parametrize("layer", WRONG_SHAPES)
def test_shapes_that_do_not_fit_name_the_file(layer: str, tmp_path: Path) -> None:
    block, said = WRONG_SHAPES[layer]
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"architecture": "cnn", **CNN, "blocks": [block]}))
    made = cm.CNN(**CNN, blocks=[block])
    loaded = cm.load(path)
    for model in (str(path), loaded):
        message = error_of(lambda model=model: cm.predict(model))
        assert message.startswith(f"{path}: {layer}: ")
        assert said in message
    assert error_of(lambda: cm.predict(made)).startswith(f"{layer}: ")
    assert loaded == made
    assert describe(loaded) == describe(made)
