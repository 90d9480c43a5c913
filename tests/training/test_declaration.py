"""Optimizers and precisions of one's own, as fields and as files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.training.optimizers import OPTIMIZERS, Optimizer, State
from costmodel.training.precision import PRECISIONS
from costmodel.training.settings import Settings
from tests.command import here, refused

ADAM = """\
name: my-adam
states:
- name: first
- {name: second, bytes: 1, block: 64}
- {name: step, extent: scalar, bytes: 4}
vectors: [{name: first}]
"""
HALF = """{"name": "half", "weight": "bf16", "master": "fp32"}"""


def test_a_file_of_an_optimizer_is_read(tmp_path: Path) -> None:
    (tmp_path / "adam.yaml").write_text(ADAM, encoding="utf-8")
    step = State("step", "scalar", 4)
    meant = Optimizer("my-adam", (State("first"), State("second", bytes=1, block=64), step), vectors=(State("first"),))
    for path in (tmp_path / "adam.yaml", str(tmp_path / "adam.yaml")):
        p = cm.predict("mlp-mnist", optimizer=path)
        assert p.settings.states == meant
        assert p == cm.predict("mlp-mnist", optimizer=meant)
        assert cm.Prediction.from_json(p.to_json()) == p
        assert "my-adam" in str(p.explain("memory.optimizer"))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_ready_optimizer_s_fields_make_the_same(name: str) -> None:
    states = [{"name": s.name, "extent": s.extent, "bytes": s.bytes} for s in OPTIMIZERS[name].states]
    p = cm.predict("mlp-mnist", optimizer={"name": name, "states": states})
    assert [s.name for s in p.settings.states.states] == [s.name for s in OPTIMIZERS[name].states]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_ready_optimizer_may_be_given_itself(name: str) -> None:
    given, named = (cm.predict("mlp-mnist", optimizer=optimizer) for optimizer in (OPTIMIZERS[name], name))
    assert given.memory == named.memory


def test_states_that_are_alike_may_be_counted() -> None:
    def memory(*states: dict[str, Any]) -> Any:
        return cm.predict("mlp-mnist", optimizer={"name": "mine", "states": list(states)}).memory

    alike = [{"name": f"s{n}", "extent": "rows"} for n in range(3)]
    assert memory({"name": "s", "extent": "rows", "count": 3}) == memory(*alike)
    assert (
        memory({"name": "s", "extent": "scalar", "count": 5}).counters
        == 5 * memory({"name": "s", "extent": "scalar"}).counters
    )


@pytest.mark.slow
@given(st.lists(st.sampled_from(["weight", "rows", "scalar"]), max_size=4))
def test_states_add_up(extents: list[Any]) -> None:
    def memory(chosen: list[Any]) -> int:
        states = [{"name": f"s{n}", "extent": extent} for n, extent in enumerate(chosen)]
        return cm.predict("mlp-mnist", optimizer={"name": "mine", "states": states}).memory.optimizer

    assert memory(extents) == sum(memory([extent]) for extent in extents)


def test_a_precision_may_be_fields_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text(HALF, encoding="utf-8")
    from_file = cm.predict("mlp-mnist", precision=str(tmp_path / "half.json"))
    assert from_file == cm.predict("mlp-mnist", precision=json.loads(HALF))
    assert from_file.memory == cm.predict("mlp-mnist", precision="bf16-master").memory
    assert PRECISIONS["bf16-master"] != from_file.settings.policy


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("optimizer", {}, "optimizer: field name is missing"),
        ("optimizer", {"name": "a"}, "optimizer: field states is missing"),
        ("optimizer", {"name": "a", "states": "exp_avg"}, "optimizer.states: 'exp_avg' is not a list"),
        ("optimizer", {"name": "a", "states": [3]}, "optimizer.states[0]: 3 is not a mapping of fields"),
        (
            "optimizer",
            {"name": "a", "states": [{"name": "m", "byte": 1}]},
            "unknown field of optimizer.states[0] 'byte'",
        ),
        (
            "optimizer",
            {"name": "a", "states": [{"name": "m"}, {"name": "n", "extent": "row"}]},
            "unknown value of optimizer.states[1].extent 'row': did you mean 'rows'?",
        ),
        ("optimizer", {"name": "a", "states": [{"name": "m", "bytes": -1}]}, "optimizer.states[0].bytes: -1 is not"),
        (
            "optimizer",
            {"name": "a", "states": [{"name": "m", "bytes": True}]},
            "optimizer.states[0].bytes: True is not",
        ),
        (
            "optimizer",
            {"name": "a", "states": [{"name": "m", "count": 63}, {"name": "n", "count": 2}]},
            "optimizer.states: 65 are too many for a weight: use at most 64",
        ),
        ("optimizer", {"name": "a", "flat": True, "states": [{"name": "m", "count": 10**6}]}, "use at most 1024"),
        ("optimizer", {"name": "a", "states": [], "in_turn": [{"name": "m"}] * 65}, "use at most 64"),
        (
            "optimizer",
            {"name": "a", "states": [], "in_turn": [3]},
            "optimizer.in_turn[0]: 3 is not a mapping of fields",
        ),
        ("optimizer", {"name": "a", "states": [{"name": "m", "count": "two"}]}, "states[0].count: 'two' is not"),
        ("optimizer", {"name": "a", "states": [], "flat": 1}, "optimizer.flat: 1 is not"),
        ("optimizer", {"name": 3, "states": []}, "optimizer.name: 3 is not a text"),
        ("optimizer", {"name": "a", "states": [], 3: 4}, "unknown field of optimizer 3"),
        ("optimizer", "no-such.yaml", "cannot read no-such.yaml: no such file"),
        ("optimizer", "adamv", "unknown optimizer 'adamv'"),
        ("optimizer", [], "optimizer=[] is neither a name nor an Optimizer"),
        ("precision", {"name": "a", "weight": "fp33"}, "unknown value of precision.weight 'fp33'"),
        ("precision", {"name": "a", "weight": ["fp32"]}, "precision.weight: ['fp32'] is not"),
        ("precision", {"name": "a", "weigth": "fp32"}, "unknown field of precision 'weigth': did you mean 'weight'?"),
        ("precision", {"name": "a", "quantised": "int8"}, "precision 'a' is for inference"),
        ("precision", {"name": "a", "weight": "int4"}, "precision.weight: 'int4' is no floating type: use bf16, fp16,"),
        ("precision", {"name": "a", "states": "bool"}, "precision.states: 'bool' is no floating type"),
        ("precision", {"name": "a", "group": 128}, "precision.group is of what quantised makes"),
        ("precision", {"name": "a", "scaled": True}, "precision.scaled is of what autocast makes"),
        ("precision", "a/b", "cannot read a/b: no such file"),
    ],
)
def test_wrong_fields_are_refused_in_one_line(setting: str, value: Any, says: str) -> None:
    with pytest.raises(cm.CostModelError) as caught:
        cm.predict("mlp-mnist", **{setting: value})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "mine.yaml: the file is empty: describe the optimizer's fields"),
        ("- a", "mine.yaml, line 1: optimizer: ['a'] is not a mapping of fields"),
        ("name: a\nstates: [{name: m}, {name: n, byts: 1}]", "mine.yaml, line 2: unknown field of optimizer.states[1]"),
        (
            "name: a\nstates:\n- name: m\n  extent: row\n",
            "mine.yaml, line 4: unknown value of optimizer.states[0].extent",
        ),
        ("name: a\nstates: []\nname: b", "mine.yaml, line 3: field 'name' is given twice"),
        ("name: a\nstates: !!python/object:x []", "mine.yaml, line 2: tag"),
        ("name: a\nstates: [", "mine.yaml, line 2: not valid YAML or JSON"),
        ("name: a\n---\nname: b", "mine.yaml, line 2: a second document starts here"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    refused(here(capsys, "predict", "mlp-mnist", "--optimizer", str(path)), says)


def test_the_options_take_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "adam.yml").write_text(ADAM, encoding="utf-8")
    (tmp_path / "half.json").write_text(HALF, encoding="utf-8")
    asked = ("--optimizer", str(tmp_path / "adam.yml"), "--precision", str(tmp_path / "half.json"))
    said = here(capsys, "predict", "mlp-mnist", *asked)
    assert said.code == 0
    assert "my-adam" in said.out
    assert "half" in said.out


def test_a_stored_prediction_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text(HALF, encoding="utf-8")
    with pytest.raises(cm.CostModelError, match="unknown precision"):
        Settings.from_dict({"precision": str(tmp_path / "half.json")})
