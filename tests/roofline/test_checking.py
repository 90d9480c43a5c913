"""A check says of every layer what the paper and the clock say, and adds up."""

import json
import math
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

import costmodel as cm
from costmodel.display.table import Page, written_for
from costmodel.errors import CostModelError
from costmodel.roofline import memory
from costmodel.roofline.calibration import ceilings_of
from costmodel.roofline.checking import check, parts_of
from costmodel.roofline.classification import BOUNDS, Verdict
from costmodel.roofline.clock import Sentinel
from costmodel.roofline.findings import Check, Gain
from costmodel.roofline.hosttime import predict_seconds
from costmodel.roofline.inplace import measure_in_place
from costmodel.roofline.recorder import forward_program, network_of
from costmodel.roofline.timing import Timing
from tests.command import error_of
from tests.roofline.synthetic import MACHINE, SETS, Clockwork, calibration, took

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clockwork")]

MLP = cm.MLP(sizes=[7, 24, 24, 24, 5], activation="relu")
CNN = cm.CNN(
    input=(3, 9, 9),
    blocks=[
        {"conv": {"channels": 6, "kernel": 3}},
        "relu",
        {"conv": {"channels": 6, "kernel": 3}},
        "relu",
        {"adaptive_avg_pool": {"size": 1}},
        "flatten",
        {"linear": {"features": 4}},
    ],
)
GPT = cm.Transformer(vocab=31, context=8, layers=2, width=16, heads=2)
SETTINGS: dict[str, Any] = {"rounds": 1, "calibration": calibration(), "classes": False, "reuse": "warm"}


def in_place(rounds: int | None) -> dict[str, Any]:
    """To run the whole model so many times."""
    return {**SETTINGS, "reuse": "in place", "rounds": rounds}


def alone(reuse: int | str) -> dict[str, Any]:
    """To run each layer by itself."""
    return {**SETTINGS, "reuse": reuse}


@pytest.fixture(scope="module")
def mlp(clockwork: Clockwork) -> Check:
    return check(MLP, batch=3, rounds=1, calibration=calibration(), reuse="warm")


@pytest.mark.parametrize(("model", "asked"), [(MLP, {"batch": 3}), (CNN, {"batch": 2}), (GPT, {"seq": 5})])
def test_flops_and_traffic_are_those_of_the_prediction(model: cm.MLP, asked: dict) -> None:
    found, prediction = check(model, **asked, **SETTINGS), cm.predict(model, mode="inference", **asked)
    rows = {row.name: row for row in prediction.layers}
    for layer in found.layers:
        row = rows[layer.name]
        assert (layer.kind, layer.repeat) == (row.kind, row.repeat)
        assert (layer.flops, layer.pointwise_flops) == (row.forward_flops, row.forward_pointwise_flops)
        assert layer.compulsory_bytes == row.forward_bytes
    assert sum(layer.flops for layer in found.layers) == prediction.flops.forward
    assert {layer.name for layer in found.layers} | set(found.idle) == set(rows)


def test_a_training_check_has_both_passes_and_all_contractions() -> None:
    found = check(MLP, batch=3, mode="train", **SETTINGS)
    assert {layer.phase for layer in found.layers} == {"forward", "backward"}
    assert sum(layer.flops for layer in found.layers) == cm.predict(MLP, batch=3).flops.total


def test_repeats_are_measured_once_and_count_as_often_as_they_run(mlp: Check) -> None:
    repeated = next(layer for layer in mlp.layers if layer.repeat == 2 and layer.kind == "linear")
    assert repeated.measured_seconds == pytest.approx(2 * repeated.timing.seconds)
    assert repeated.measured_interval[0] == pytest.approx(2 * repeated.timing.interval[0])
    call = next(c for c in mlp.prediction.tape.root.calls() if c.name == repeated.name)
    once = predict_seconds(forward_program(call), calibration())
    assert repeated.predicted_seconds == pytest.approx(2 * once.seconds)
    assert repeated.numpy_bytes == 2 * forward_program(call).traffic_bytes


def test_identical_programs_are_measured_once() -> None:
    found = check(CNN, batch=1, **SETTINGS)
    twins = check(cm.CNN(input=(6, 5, 5), blocks=["relu", "relu", "sigmoid"]), **SETTINGS).layers
    assert [layer.program for layer in twins] == [0, 0, 1]
    assert twins[0].timing is twins[1].timing
    assert len({layer.program for layer in found.layers}) == len(found.layers)


def test_in_place_a_layer_takes_what_its_calls_take_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as long as predicted; no call is forgotten or counted twice."""
    Clockwork.put(monkeypatch.setattr, lambda op: 2 * took(op))
    cases: list[tuple[Any, dict]] = [(GPT, {"seq": 5}), (MLP, {"batch": 3, "mode": "train"}), (CNN, {"batch": 2})]
    for model, settings in cases:
        found = check(model, **settings, **in_place(5))
        assert found.run is not None
        assert found.resolved == 1
        whole = sum(2 * took(op) for op in found.run.program)
        assert found.measured_seconds == pytest.approx(whole, rel=1e-3)
        assert found.as_it_came == pytest.approx(whole, rel=1e-3)
        assert found.error == pytest.approx(-0.5, abs=0.02)
        assert [layer.error for layer in found.layers] == pytest.approx([-0.5] * len(found.layers), abs=0.08)
        assert found.disturbance == pytest.approx(1, abs=1e-3)


def test_one_run_serves_all_layers_and_says_before_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    Clockwork.put(monkeypatch.setattr)
    said: list[str] = []
    found = check(GPT, seq=5, **in_place(None), say=said.append)
    assert found.run is not None
    assert 3 <= len(found.run.passes) <= 6, "no longer than it takes to settle"
    (told,) = said
    assert told.startswith("a pass is predicted to take ")
    assert "measuring takes up to" in told


@pytest.mark.parametrize("slower", [1.0, 5.0])
def test_a_budget_ends_between_two_calls(monkeypatch: pytest.MonkeyPatch, slower: float) -> None:
    """However busy the machine is: each call was made once, and what it takes is known."""
    clockwork = Clockwork.put(monkeypatch.setattr, lambda op: 20 * took(op))
    clockwork.slower = slower
    program = network_of(cm.predict(GPT, seq=5, mode="inference")).program
    each = [20e9 * slower * took(op) for op in program]
    for passes in (0.0, 0.5, 1.4, 2.7):
        sentinel, began = Sentinel(clockwork), clockwork.passed
        found = measure_in_place(program, budget=passes * sum(each) * 1e-9, sentinel=sentinel)
        over = clockwork.passed - began - max(passes, 1.0) * sum(each)
        assert over <= max(each) + 800 * 12_000 * slower, "400 readings of a sentinel come before"
        assert found.seconds == pytest.approx(sum(each) * 1e-9, rel=1e-3)
        assert len(found.passes) == max(int(passes) - 1, 1)


@pytest.mark.parametrize("optimizer", ["adamw", "adam-8bit"])
def test_the_optimizer_s_step_has_a_row(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Clockwork.put(monkeypatch.setattr)
    wide = cm.MLP(sizes=[70, 90, 5], activation="relu")
    found = check(wide, batch=3, mode="train", optimizer=optimizer, **in_place(3))
    (step,) = [layer for layer in found.layers if layer.phase == "optimizer"]
    assert (step.name, step.kind) == ("optimizer's step", optimizer)
    assert found.run is not None
    ops = [op for op in found.run.program if op.phase == "optimizer"]
    assert step.calls == len(ops)
    assert step.measured_seconds == pytest.approx(sum(map(took, ops)), rel=1e-3)
    assert step.pointwise_flops == sum(op.pointwise for op in ops) > 0


def test_in_place_what_a_neighbour_disturbed_is_no_layer_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven readings of ten find that all takes 1.7 times as long."""
    clockwork, turns = Clockwork.put(monkeypatch.setattr), count()
    steady = clockwork.sentinel

    def sentinel() -> None:
        clockwork.slower = 1.0 if next(turns) // 2 % 10 in (0, 1, 5) else 1.7
        steady()

    monkeypatch.setattr(clockwork, "sentinel", sentinel)
    found = check(GPT, seq=5, **in_place(60))
    assert found.run is not None
    whole = sum(map(took, found.run.program))
    assert found.resolved == 1
    assert found.measured_seconds == pytest.approx(whole, rel=1e-3)
    assert found.as_it_came > 1.2 * whole
    assert "as it came" in str(found)


def test_layers_without_an_undisturbed_moment_are_shown_and_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    clockwork = Clockwork.put(monkeypatch.setattr)
    monkeypatch.setattr("costmodel.roofline.clock.Sentinel.rests", lambda *_: False)
    found = check(GPT, seq=5, **in_place(4))
    assert clockwork.passed > 0
    assert found.resolved == 0
    assert found.errors.predicted == ()
    assert not found.fails(0.0)
    assert all(layer.full_name in str(found) for layer in found.layers)
    assert any("are unresolved" in warning for warning in found.warnings)
    assert json.loads(found.to_json())["errors"]["median"] is None


def test_totals_are_sums_and_shares_add_up_to_one(mlp: Check) -> None:
    assert mlp.measured_seconds == pytest.approx(math.fsum(layer.measured_seconds for layer in mlp.layers))
    assert mlp.predicted_seconds == pytest.approx(math.fsum(layer.predicted_seconds for layer in mlp.layers))
    assert math.fsum(map(mlp.share, mlp.layers)) == pytest.approx(1)
    assert math.fsum(gain.share for gain in mlp.gains) == pytest.approx(1)


def test_errors_are_of_the_layers() -> None:
    """Twice as long as predicted is off by half, four times by three quarters."""
    found = check(MLP, batch=3, **SETTINGS)
    slow = [2.0, 2.0, 2.0, 4.0, 1.0]
    layers = tuple(
        replace(layer, timing=Timing((layer.host.seconds * factor,)))
        for layer, factor in zip(found.layers, slow, strict=True)
    )
    told = replace(found, layers=layers)
    assert told.errors.median == pytest.approx(0.5)
    assert told.errors.worst == pytest.approx(0.75)
    assert [layer.error for layer in told.layers] == pytest.approx([-0.5, -0.5, -0.5, -0.75, 0])
    assert told.fails(0.25)
    assert not told.fails(0.51)


def test_rates_and_shares_of_peak_follow_from_time(mlp: Check) -> None:
    layer = replace(mlp.layers[0], timing=Timing((1e-3,)))
    assert layer.arithmetic == 2 * 3 * 7 * 24 + 3 * 24
    assert layer.flops_per_second == pytest.approx(layer.arithmetic * 1e3)
    row = replace(mlp, layers=(layer,)).rows()[0]
    assert row["share_of_peak"] == pytest.approx(layer.arithmetic * 1e3 / mlp.peak)
    assert row["intensity"] == pytest.approx(layer.arithmetic / layer.compulsory_bytes)


def test_speeding_up_a_kind_obeys_amdahl() -> None:
    assert Gain("linear", 3.0, 0.75).twice == pytest.approx(1.6)
    assert Gain("linear", 3.0, 0.75).limit == pytest.approx(4)
    assert Gain("linear", 3.0, 1.0).limit == math.inf


def test_classes_are_predicted_measured_and_the_textbook_s(mlp: Check) -> None:
    assert all(isinstance(layer.measured_class, Verdict) for layer in mlp.layers)
    unresolved, *resolved = (replace(layer, timing=Timing((layer.timing.seconds,))) for layer in mlp.layers)
    unresolved = replace(unresolved, timing=replace(unresolved.timing, resolved=False))
    judged = replace(mlp, layers=(unresolved, *resolved))
    assert len(judged.agreement.pairs) == len(judged.textbook_agreement.pairs) == len(mlp.layers) - 1
    assert {layer.textbook_class.bound for layer in mlp.layers} <= {"compute", "memory"}
    assert {layer.measured_class.bound for layer in mlp.layers if layer.measured_class} <= set(BOUNDS)
    without = check(MLP, batch=3, **SETTINGS)
    assert {layer.measured_class for layer in without.layers} == {None}
    assert without.to_dict()["agreement"] is None


def test_parts_of_a_model_are_those_a_reader_knows() -> None:
    gpt = check(GPT, seq=5, **SETTINGS)
    assert {gain.name for gain in gpt.part_gains} == {"attention", "MLP", "norms", "embedding", "head"}
    assert {layer.part for layer in gpt.layers if layer.name == "block.add_attention"} == {"attention"}
    assert math.fsum(gain.share for gain in gpt.part_gains) == pytest.approx(1)
    calls = cm.predict("resnet18", mode="inference", image=64).tape.root.calls()
    parts = parts_of({call.name: call.layer.kind for call in calls})
    assert [*dict.fromkeys(parts.values())] == ["stem", "basic", "stage1", "stage2", "stage3", "head"]
    assert parts["conv"] == parts["max_pool"] == "stem"
    calls = cm.predict("vgg16", mode="inference", image=64).tape.root.calls()
    assert parts_of({call.name: call.layer.kind for call in calls})["max_pool2"] == "repeat2"


def test_the_verdict_comes_first_and_says_what_takes_the_time_what_binds_it_and_how_far_off(mlp: Check) -> None:
    lines = str(mlp).splitlines()
    assert lines[1].startswith("takes ")
    assert "as it came" in lines[1]
    assert lines[2].startswith("bound by: ")
    assert lines[3].startswith("predicted ")
    layers = tuple(
        replace(layer, timing=Timing((2 * layer.host.seconds, 4 * layer.host.seconds, 4 * layer.host.seconds)))
        for layer in mlp.layers
    )
    told = replace(mlp, layers=layers)
    assert "2.00 ×" in told.verdict[0]
    assert "50.0% too short; layers: median error 50.0%" in told.verdict[2]


def test_a_narrow_terminal_keeps_the_columns_that_matter(mlp: Check) -> None:
    with written_for(Page(80)):
        lines = str(mlp).splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("layer"))) :]
    assert all(name in table[0] for name in ("layer", "measured", "share", "off", "bound by"))
    assert max(map(len, table[: len(mlp.layers) + 3])) <= 80
    assert any("no room for" in line for line in table)


def test_every_view_has_every_layer(mlp: Check) -> None:
    names = [layer.name for layer in mlp.layers]
    assert [row["name"] for row in json.loads(mlp.to_json())["layers"]] == names
    assert list(mlp.to_dataframe().name) == names
    assert all(name in str(mlp) for name in names)
    assert all(name in mlp._repr_html_() for name in names)


def test_a_name_is_no_markup(tmp_path) -> None:
    spec = MLP.model_copy(update={"name": "<b>x</b>"})
    page = check(spec, batch=1, **SETTINGS).to_html(tmp_path / "page.html")
    assert "<b>x</b>" not in page.replace("<b>&lt;b&gt;", "")
    assert (tmp_path / "page.html").read_text() == page


def test_more_layers_than_have_lines_are_summed_up(monkeypatch, mlp: Check) -> None:
    monkeypatch.setattr("costmodel.roofline.findings.MOST_ROWS", 2)
    text = str(mlp)
    assert "3 others" in text
    assert sum(layer.name in text for layer in mlp.layers) < len(mlp.layers)


def test_levels_differ_only_in_what_is_predicted() -> None:
    found = {level: check(MLP, batch=3, level=level, **SETTINGS) for level in (1, 6)}
    assert found[1].predicted_seconds < found[6].predicted_seconds
    assert [layer.numpy_bytes for layer in found[1].layers] == [layer.numpy_bytes for layer in found[6].layers]


def test_cold_layers_are_predicted_as_cold_and_say_so() -> None:
    wide = cm.MLP(sizes=[400, 500, 9], activation="relu")
    warm, cold = check(wide, batch=60, **SETTINGS), check(wide, batch=60, **alone("16 MiB"))
    assert cold.predicted_seconds > warm.predicted_seconds
    assert "cold (16.0 MiB between two runs)" in str(cold)
    assert "warm" in str(warm)
    assert [layer.numpy_bytes for layer in cold.layers] == [layer.numpy_bytes for layer in warm.layers]


def test_ceilings_are_what_was_measured() -> None:
    told = ceilings_of(calibration())
    assert [ceiling.name for ceiling in told] == ["matmul float32", "L1", "L2", "DRAM"]
    assert told[0].rate == calibration().rates.peak("float32")
    assert told[-1].at(2.0) == 2 * calibration().rates.memory_bandwidth
    exponential = ceilings_of(calibration(), functions=["exp"])[1]
    assert (exponential.name, exponential.rate) == ("exp", pytest.approx(1e9, rel=0.01)), "a nanosecond an element"
    bare = calibration(machine=replace(MACHINE, caches=()))
    assert [ceiling.name for ceiling in ceilings_of(bare)] == ["matmul float32", "DRAM"]


def test_a_function_that_takes_a_good_part_of_a_layer_has_a_ceiling() -> None:
    """GELU is bound by its many passes over memory as much as by its tanh."""
    slow = {name: 8 * took for name, took in calibration().seconds.items() if name.startswith("rate tanh ")}
    slower = calibration(seconds=calibration().seconds | slow)
    found = check(GPT, seq=8, batch=40, **{**SETTINGS, "calibration": slower})
    assert "tanh" in {ceiling.name for ceiling in found.ceilings}
    assert "tanh" not in {ceiling.name for ceiling in check(GPT, seq=8, batch=40, **SETTINGS).ceilings}


def test_of_a_model_that_memory_does_not_hold_one_block_is_run_and_the_rest_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep = cm.Transformer(vocab=31, context=8, layers=30, width=16, heads=2)
    whole = check(deep, seq=5, **in_place(5))
    monkeypatch.setattr(memory, "free_bytes", lambda: 100_000)
    found = check(deep, seq=5, **in_place(5))
    assert found.run is not None
    assert len(found.run.program) < len(whole.run.program) / 10
    assert [(each.name, each.repeat) for each in found.layers] == [(each.name, each.repeat) for each in whole.layers]
    assert found.measured_seconds == pytest.approx(whole.measured_seconds, rel=1e-3)
    assert found.predicted_seconds == pytest.approx(whole.predicted_seconds, rel=0.02)
    assert found.as_it_came == pytest.approx(whole.as_it_came, rel=1e-3)
    assert "one round of each block" in str(found)
    assert any(warning.startswith("memory does not hold all weights: one round") for warning in found.warnings)
    assert "is free" in error_of(lambda: check(deep, seq=5, mode="train", **in_place(5)))


def test_a_level_that_seems_slower_than_the_next_has_no_ceiling() -> None:
    seconds = calibration().seconds
    slow = {name: 100 * took for name, took in seconds.items() if name == f"curve add {SETS.curve[0]} float32"}
    told = ceilings_of(calibration(seconds=seconds | slow))
    assert [ceiling.name for ceiling in told] == ["matmul float32", "L2", "DRAM"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"level": 0}, "level 0"),
        ({"level": True}, "level True"),
        ({"rounds": 0}, "rounds 0"),
        ({"rounds": 2.5}, "rounds 2.5"),
        ({"reuse": "64"}, "no unit"),
        ({"reuse": "900 TiB"}, "is free"),
        ({"budget": 0}, "budget 0"),
        ({"budget": "8"}, "budget '8'"),
        ({"batch": 0}, "batch"),
        ({"attention": "flash"}, "attention"),
        ({"precision": "bf16"}, "fp32"),
        ({"device": "cpu"}, "device='cpu' has no effect on what NumPy runs: leave it out"),
        ({"device": "gpu"}, "device='gpu' is not timed: NumPy runs on this CPU: leave it out"),
        ({"threads": 99}, "threads 99 is not from 1 to "),
        ({"allocator": "cuda"}, "allocator='cuda' has no effect"),
        ({"mode": "train", "update": "foreach"}, "update='foreach' has no effect"),
        ({"checkpoint": "block", "mode": "train"}, "checkpoint"),
        ({"batch": 10**9}, "use a smaller batch"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_anything_is_measured(asked: dict, said: str, monkeypatch) -> None:
    def never(*_, **__) -> None:
        raise AssertionError

    monkeypatch.setattr("costmodel.roofline.checking.calibrated", never)
    monkeypatch.setattr("costmodel.roofline.checking.measure", never)
    monkeypatch.setattr("costmodel.roofline.checking.measure_in_place", never)
    assert said in error_of(lambda: check(MLP, **asked))


def test_a_model_of_views_alone_is_refused() -> None:
    with pytest.raises(CostModelError, match="nothing can be measured"):
        check(cm.CNN(input=(3, 4, 4), blocks=["flatten"]), calibration=calibration())


def test_a_prediction_has_its_settings() -> None:
    assert "leave out batch" in error_of(lambda: check(cm.predict(MLP, mode="inference"), batch=2))
