"""Optimizers and precisions of one's own, as fields and as files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.hardware.catalogue import load_machine
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


OWN = {"name": "own", "launch": 2e-6, "fuses": True}
QUESTION: dict[str, Any] = {"batch": 2, "seq": 128, "on": "h100-sxm"}


@pytest.fixture(params=["object", "fields", "path", "text"])
def own_stack(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A stack in each of the forms that a declaration is taken in."""
    (tmp_path / "own.yaml").write_text("name: own\nlaunch: 2.0e-6\nfuses: true\n", encoding="utf-8")
    path = tmp_path / "own.yaml"
    return {"object": cm.Stack(**OWN), "fields": OWN, "path": path, "text": str(path)}[request.param]


def test_a_declared_stack_is_taken_wherever_a_named_one_is(own_stack: Any) -> None:
    p = cm.predict("gpt2-small", stack=own_stack, **QUESTION)
    meant = cm.predict("gpt2-small", **QUESTION).on("h100-sxm", stack=cm.Stack("own", 2e-6, fuses=True))
    assert p.time.seconds == meant.seconds == p.on("h100-sxm", stack=own_stack).seconds
    assert p.settings.to_dict()["stack"] == {
        **OWN,
        "channels_last": False,
        "attention": None,
        "norms": "fused",
        "loss": None,
        "logged": 0,
        "blocking": False,
        "unaligned": "matrices",
        "recorded": (),
        "experts_beside": False,
        "sums_beside": True,
        "linears": "joined",
        "scatter_gather": False,
        "source": "as declared",
    }
    assert cm.Prediction.from_json(p.to_json()) == p
    grid = cm.sweep("gpt2-small", stack=["eager", own_stack], quantities=["seconds"], **QUESTION)
    assert grid["stack"].values.tolist()[0] == "eager"
    assert grid["seconds"].values[1] == pytest.approx(meant.seconds, rel=1e-12)
    best = cm.recommend("mlp-mnist", on="h100-sxm", batch=[8, 16], stack=own_stack).best
    assert best.prediction.time.stack.name == "own"
    rows = cm.compare("gpt2-small", stack=["eager", own_stack], quantities=["seconds"], **QUESTION).rows()
    assert meant.seconds in [value for row in rows for value in row.values()]


def test_a_declared_stack_is_an_option_a_serving_engine_s_and_a_page_s(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(OWN), encoding="utf-8")
    told = here(capsys, "predict", "gpt2-small", "--on", "h100-sxm", "--stack", str(path), "--json")
    assert json.loads(told.out)["stack"] == "own"
    assert json.loads(told.out)["settings"]["stack"]["launch"] == 2e-6
    engine = tmp_path / "engine.json"
    engine.write_text(json.dumps({"name": "mine", "step": 1e-3, "stack": OWN}), encoding="utf-8")
    arguments = ("--on", "h100-sxm", "--input", "16", "--output", "8", "--engine", str(engine), "--json")
    told = here(capsys, "serve", "llama-3.2-1b", *arguments)
    assert json.loads(told.out)["engine"]["stack"]["name"] == "own"
    (tmp_path / "half.json").write_text(HALF, encoding="utf-8")
    served = cm.serve("llama-3.2-1b", on="h100-sxm", input=16, output=8, precision=tmp_path / "half.json")
    assert served.to_dict()["settings"]["precision"]["weight"] == "bf16"
    page = cm.explore("mlp-mnist", stack=OWN, on="h100-sxm", optimizer=["sgd"])
    assert '"stack":"own"' in page.html.replace(" ", "")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"fuses": "no"}, "stack.fuses: 'no' is not true or false"),
        ({"launch": True}, "stack.launch: True is not eager_seconds or compiled_seconds or graph_seconds or a finite"),
        ({"launch": float("inf")}, "stack.launch: inf is not"),
        ({"launch": 10**400}, "stack.launch: a number of more than 398 digits is not"),
        ({"launch": -1e-6}, "stack.launch: -1e-06 is no time: give seconds, such as 5e-6"),
        ({"launch": "eager_second"}, "unknown value of stack.launch 'eager_second': did you mean 'eager_seconds'"),
        ({"name": 3}, "stack.name: 3 is not a text"),
    ],
)
def test_wrong_fields_of_a_stack_are_refused_when_it_is_made_or_read(fields: dict[str, Any], says: str) -> None:
    for ask in (lambda: cm.Stack(**OWN | fields), lambda: cm.predict("mlp-mnist", stack={**OWN, **fields})):
        with pytest.raises(cm.CostModelError) as caught:
            ask()
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"name": "mine", "step": "fast"}, "engine.step: 'fast' is not a finite number"),
        ({"name": "mine", "step": -1.0}, "engine step=-1.0 is no time in seconds"),
        ({"name": "mine", "merged": 1}, "engine.merged: 1 is not true or false"),
        ({"name": "mine", "chunk": 0}, "engine.chunk: 0 is not a whole number from 1"),
        ({"name": "mine", "utilisation": 1.5}, "engine utilisation=1.5 is not a share"),
        ({"name": "mine", "stack": "eagr"}, "unknown value of engine.stack 'eagr': did you mean 'eager'?"),
        ({"name": "mine", "stack": 3}, "engine.stack: 3 is not eager or compiled or cuda-graphs or a Stack"),
        ({"name": "mine", "stack": {"name": "x"}}, "engine.stack: field launch is missing"),
        ("vlm", "unknown engine 'vlm': did you mean 'vllm'"),
        (3, "engine=3 is not a text or an Engine"),
    ],
)
def test_wrong_fields_of_an_engine_are_refused_in_one_line(engine: Any, says: str) -> None:
    with pytest.raises(cm.CostModelError) as caught:
        cm.serve("llama-3.2-1b", on="h100-sxm", input=16, output=8, engine=engine)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "settings: None is not a mapping of settings by name"),
        ([["batch", 2]], "is not a mapping of settings by name"),
        ({1: 2}, "unknown setting 1"),
        ({"on": 5}, "on=5 is not a machine: use a name such as 'h100-sxm' or a Machine"),
        ({"on": {"name": "lab"}}, "Machine: field peak is missing"),
        ({"on": {1: 2}}, "Machine: 1 is not the name of a field"),
        ({"stack": {"name": "own"}}, "stack: field launch is missing"),
        ({"stack": "own.yaml"}, "unknown stack 'own.yaml'"),
    ],
)
def test_what_is_no_settings_is_refused_in_one_line(data: Any, says: str) -> None:
    with pytest.raises(cm.CostModelError) as caught:
        Settings.from_dict(data, load_machine)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_hold_no_fields_of_a_machine() -> None:
    with pytest.raises(cm.CostModelError, match="is not a machine"):
        Settings.from_dict({"on": cm.load_machine("h100-sxm").to_dict()})


def test_settings_are_plain_data_and_back() -> None:
    machine = cm.load_machine("h100-sxm")
    p = cm.predict("gpt2-small", on=machine, stack=OWN, optimizer={"name": "mine", "states": []}, lora=None)
    data = json.loads(json.dumps(p.settings.to_dict()))
    assert Settings.from_dict(data, load_machine) == p.settings
    assert data["on"] == json.loads(json.dumps(machine.to_dict()))
    assert json.loads(p.time.to_json())["settings"] == data == json.loads(p.to_json())["settings"]
    grid = cm.sweep("mlp-mnist", batch=[1, 2], on=machine, stack=[cm.Stack(**OWN), "eager"], quantities=["seconds"])
    question = json.loads(grid.attrs["question"])
    assert question["settings"]["on"] == data["on"]
    assert question["values"]["stack"] == {"own": data["stack"], "eager": "eager"}
