"""What a file says is what the model is, number by number; and back."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.documents.document import dump, parse
from costmodel.errors import SpecError
from costmodel.importers.files import build, describe, read, to_yaml
from tests.strategies import mlps, transformers

GPT = {"architecture": "transformer", "vocab": 11, "context": 8, "layers": 2, "width": 6, "heads": 3}


def value_of(text: str) -> object:
    return parse(f"x: {text}", "test").data["x"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("0.1", 0.1),
        (".5", 0.5),
        ("1e-2", 0.01),
        ("1E2", 100.0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("relu", "relu"),
        ('"12"', "12"),
        ("'true'", "true"),
    ],
)
def test_plain_values_mean_what_json_means(text: str, value: object) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    ["010", "0o10", "0x10", "0b1", "1_000", "12:30", "1:2:3", "+5", "yes", "no", "on", "y", "2024-01-01", ".inf", "e5"],
)
def test_spellings_whose_meaning_depends_on_the_yaml_version_stay_text(text: str) -> None:
    assert value_of(text) == text


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**30), 10**30)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8"), max_size=12),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
@example("1e5")
@example("010")
@example("a\n  b\n")
def test_what_is_dumped_is_parsed_back(data: object) -> None:
    assert parse(dump({"x": data}), "test").data == {"x": data}


@given(
    st.dictionaries(
        st.text("abc"), st.lists(st.integers() | st.text(st.characters(codec="ascii", exclude_categories=["C"])))
    )
)
def test_json_is_read_as_json_reads_it(data: object) -> None:
    assert parse(json.dumps(data), "test").data == data
    assert parse(json.dumps(data, indent="\t"), "test").data == data


@given(mlps() | transformers())
def test_a_description_builds_an_equal_model(model: cm.MLP | cm.Transformer) -> None:
    data = describe(model)
    assert build(data, "test") == model
    assert build(parse(to_yaml(model), "test").data, "test") == model
    assert build(json.loads(json.dumps(data)), "test") == model


def test_a_description_leaves_out_defaults_and_starts_with_the_architecture() -> None:
    data = describe(cm.MLP(sizes=[3, 2], activation="tanh", bias=True))
    assert list(data.items()) == [("architecture", "mlp"), ("sizes", [3, 2]), ("activation", "tanh")]


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
def test_yaml_and_json_files_describe_the_same_model(tmp_path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_text(json.dumps(GPT) if suffix == ".json" else dump(GPT), encoding="utf-8-sig")
    assert read(path) == cm.load(path) == cm.load(str(path)) == build(GPT, "test")


def test_lines_are_those_of_the_fields() -> None:
    document = parse("# a comment\na: 1\nb:\n  - c: 2\n    d: [3,\n      4]\n", "m.yaml")
    assert document.place(("a",)) == "m.yaml, line 2"
    assert document.place(("b", 0, "d")) == "m.yaml, line 5"
    assert document.place(("b", 0, "d", 1)) == "m.yaml, line 6"
    assert document.place(("b", 0, "unheard of")) == "m.yaml, line 4"


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        ({"width": 7}, 7, "width 7"),
        ({"layers": 0}, 5, "layers"),
        ({"kv_heads": 2}, 8, "kv_heads 2"),
        ({"activation": "gelo"}, 8, "'gelu'"),
        ({"hight": 3}, 8, "'hight'"),
        ({"tied": "no"}, 8, "'no'"),
    ],
)
def test_an_error_names_the_line_of_the_field_to_blame(tmp_path, change: dict, line: int, said: str) -> None:
    (tmp_path / "gpt.yaml").write_text("# mine\n" + dump({**GPT, **change}))
    with pytest.raises(SpecError) as caught:
        cm.load(tmp_path / "gpt.yaml")
    assert f"gpt.yaml, line {line}: " in str(caught.value)
    assert said in str(caught.value)


def test_a_cnn_error_names_the_line_of_the_layer(tmp_path) -> None:
    path = tmp_path / "cnn.yaml"
    path.write_text(
        "architecture: cnn\ninput: [3, 8, 8]\nblocks:\n- relu\n- conv: {channels: 4, kernl: 3}\n- flatten\n"
    )
    with pytest.raises(SpecError, match=r"cnn\.yaml, line 5: .*'kernl': did you mean 'kernel'"):
        cm.load(path)
