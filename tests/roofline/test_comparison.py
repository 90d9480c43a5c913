"""Profiles, comparisons and baselines: what is a difference and what is noise."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.display.rooflines import Dot
from costmodel.errors import CostModelError
from costmodel.roofline import baseline, timing
from costmodel.roofline.checking import check
from costmodel.roofline.findings import Check
from costmodel.roofline.host import Host
from costmodel.roofline.profiling import Comparison, Profile, compare, profile
from costmodel.roofline.timing import Timing, ratio_interval
from tests.command import error_of, here, refused
from tests.roofline.synthetic import Clockwork, calibration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clockwork")]

MLP = cm.MLP(sizes=[7, 24, 5], activation="relu")
GPT = cm.Transformer(vocab=31, context=8, layers=2, width=16, heads=2)
SLOW = Timing(tuple(2e-3 + 1e-5 * (i % 5) for i in range(20)), statistic="median")
FAST = Timing(tuple(1e-3 + 1e-5 * (i % 5) for i in range(20)), statistic="median")
WIDE = Timing(tuple(1e-3 * (1 + (i % 5)) for i in range(20)), statistic="median")


@pytest.fixture(scope="module")
def profiled(clockwork: Clockwork) -> Profile:
    return profile(GPT, batch=2, seq=5, rounds=2, calibration=calibration())


@pytest.fixture(scope="module")
def checked(clockwork: Clockwork) -> Check:
    return check(MLP, batch=3, rounds=1, classes=False, calibration=calibration())


def test_a_profile_has_the_prediction_s_numbers(profiled: Profile) -> None:
    p, alone = cm.predict(GPT, batch=2, seq=5), cm.predict(GPT, batch=2, seq=5, mode="inference")
    forward, both = profiled.passes["forward"], profiled.passes["forward+backward"]
    assert profiled.params == p.params
    assert (forward.flops, both.flops) == (p.flops.forward, p.flops.total)
    assert (forward.pointwise_flops, both.pointwise_flops) == (alone.pointwise_flops.forward, p.pointwise_flops.total)
    assert both.peak_bytes > forward.peak_bytes > p.memory.weights


def test_throughput_and_efficiency_follow_from_the_median(profiled: Profile) -> None:
    for name, found in profiled.passes.items():
        assert found.samples_per_second == pytest.approx(2 / found.timing.median)
        assert found.tokens_per_second == pytest.approx(10 / found.timing.median)
        assert profiled.efficiency_of(name) == pytest.approx(found.flops / found.timing.median / profiled.peak)
        assert sum(found.shares.values()) == pytest.approx(1)
        assert found.timing.count == 2


def test_every_view_of_a_profile_has_every_pass(profiled: Profile) -> None:
    data = json.loads(profiled.to_json())
    assert list(data["passes"]) == ["forward", "forward+backward"]
    latency = data["passes"]["forward"]["latency"]
    assert latency["minimum"] <= latency["p50"]
    assert latency["p95"] is latency["p99"] is None, "two samples say nothing of one in twenty"
    assert latency["interval"][0] <= latency["seconds"] <= latency["interval"][1]
    assert all(name in text for name in data["passes"] for text in (str(profiled), profiled._repr_html_()))


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_a_profile_ends_with_its_budget_however_busy_the_host_is(
    monkeypatch: pytest.MonkeyPatch, slower: float
) -> None:
    """Forward and backward passes of some 25 and 80 s took fifteen times as long before."""
    clockwork = Clockwork.put(monkeypatch.setattr, lambda op: 1.0)
    clockwork.slower = slower
    said: list[str] = []
    found = profile(GPT, seq=5, calibration=calibration(), say=said.append)
    once = sum(slower * len(each.host.calls) for each in found.passes.values())
    assert all(each.timing.count >= 1 for each in found.passes.values())
    assert 2 * once <= clockwork.passed * 1e-9 <= 2.2 * once, "no longer than it takes to run each twice"
    assert said[-1].startswith("all passes are predicted to take ")
    clockwork = Clockwork.put(monkeypatch.setattr, lambda op: 1e-3)
    profile(GPT, seq=5, calibration=calibration(), budget=1.0)
    assert clockwork.passed * 1e-9 <= 1.5, "a budget is kept"


def test_products_run_on_as_many_threads_as_were_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    by = calibration(machine=replace(calibration().machine, cores=2, threads=2))
    threads: list[int] = []
    resting = timing.at_rest
    monkeypatch.setattr(timing, "at_rest", lambda n=1: (threads.append(n), resting(n))[1])
    monkeypatch.setattr("costmodel.roofline.inplace.at_rest", timing.at_rest)
    assert "2 threads of 2 cores" in str(check(MLP, batch=3, rounds=2, calibration=by))
    profile(MLP, batch=3, rounds=1, calibration=by)
    assert set(threads) == {2}


def test_a_mode_asks_for_one_pass_and_settings_of_training_stay_with_it() -> None:
    asked = {"rounds": 1, "calibration": calibration()}
    assert list(profile(MLP, mode="inference", **asked).passes) == ["forward"]
    assert list(profile(cm.predict(MLP), **asked).passes) == ["forward+backward"]
    assert list(profile(MLP, optimizer="sgd", loss=None, mode="train", **asked).passes) == ["forward+backward"]
    assert len(profile(MLP, optimizer="sgd", **asked).passes) == 2


def test_a_model_too_large_is_refused_with_its_size(monkeypatch) -> None:
    monkeypatch.setattr("costmodel.roofline.profiling.measure", lambda *_, **__: pytest.fail("measured"))
    said = error_of(lambda: profile("gpt2-xl", batch=100_000, calibration=calibration()))
    assert "iB" in said
    assert "use a smaller batch" in said


def test_twice_as_fast_is_two_and_significant() -> None:
    found = Comparison(("slow", "fast"), (SLOW, FAST))
    assert found.speedup == pytest.approx(2.02e-3 / 1.02e-3)
    assert found.interval[0] <= found.speedup <= found.interval[1]
    assert found.significant
    back = Comparison(("fast", "slow"), (FAST, SLOW))
    assert back.speedup == pytest.approx(1 / found.speedup)
    assert back.significant


def test_noise_is_no_difference() -> None:
    found = Comparison(("a", "b"), (WIDE, Timing(WIDE.samples[::-1], statistic="median")))
    assert not found.significant
    assert "no significant difference" in str(found)
    assert any("noisy" in warning for warning in found.warnings)


def test_more_samples_never_widen_what_is_certain() -> None:
    low, high = ratio_interval(SLOW, FAST)
    lower, higher = ratio_interval(*(replace(timing, samples=timing.samples * 10) for timing in (SLOW, FAST)))
    assert low <= lower <= higher <= high


def test_a_baseline_of_another_question_is_refused_before_anything_is_measured(
    checked: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline.save(checked, tmp_path / "then.json")

    def measured(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured before the baseline was looked at")

    for module in ("checking", "profiling"):
        monkeypatch.setattr(f"costmodel.roofline.{module}.calibrated", measured)
    for verb in ("check", "profile"):
        words = ["roofline", verb, "mlp-mnist", "--batch", "3", "--against", str(tmp_path / "then.json")]
        refused(here(capsys, *words), "the baseline is of another question")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("bound", "magic", "is bound by 'magic', which is no class"),
        ("measured_seconds", -1.0, "has -1.0, where a time, a rate or a share stands"),
        ("predicted_total", 1e300, "where a time, a rate or a share stands"),
        ("share", 0.0, "where a time, a rate or a share stands"),
    ],
)
def test_a_damaged_picture_is_refused_and_named(checked: Check, tmp_path, place: str, value: object, said: str) -> None:
    data = json.loads(baseline.baseline_of(checked).model_dump_json())
    fields = [*Dot._fields]
    data["chart"]["dots"][0][fields.index(place)] = value
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(data))
    error = error_of(lambda: baseline.read_chart(path))
    assert said in error
    assert "\n" not in error


def test_a_picture_without_ceilings_is_refused(checked: Check, tmp_path) -> None:
    data = json.loads(baseline.baseline_of(checked).model_dump_json())
    data["chart"]["ceilings"] = []
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(data))
    assert "ceilings of both kinds" in error_of(lambda: baseline.read_chart(path))


def test_what_is_unresolved_then_or_now_is_no_regression(checked: Check) -> None:
    then = baseline.baseline_of(checked).model_copy(update={"unresolved": []})
    first, *_ = then.samples
    slow = then.model_copy(update={"samples": {name: [9.0 * max(s)] * 9 for name, s in then.samples.items()}})
    outcomes = {c.name: c.outcome for c in baseline.changes_between(then, slow).changes}
    assert set(outcomes.values()) == {"slower"}
    doubtful = slow.model_copy(update={"unresolved": [first]})
    outcomes = {c.name: c.outcome for c in baseline.changes_between(then, doubtful).changes}
    assert outcomes.pop(first) == "unresolved"
    assert set(outcomes.values()) == {"slower"}


def test_models_are_measured_side_by_side() -> None:
    side = compare(MLP, cm.MLP(sizes=[7, 600, 600, 5]), batch=3, rounds=3)
    assert side.speedup < 1
    assert side.significant
    even = compare(MLP, cm.predict(MLP, batch=3, mode="inference"), batch=3, rounds=3)
    assert even.speedup == pytest.approx(1, rel=1e-3)
    assert even.interval == pytest.approx((1, 1), rel=1e-3)


@pytest.mark.parametrize("side", [3, None, b"mlp-mnist"])
def test_what_cannot_be_timed_is_refused(side: object) -> None:
    assert "cannot be timed" in error_of(lambda: compare(side, "mlp-mnist"))  # type: ignore[arg-type]


def test_a_baseline_comes_back_as_it_was(tmp_path, checked: Check, profiled: Profile) -> None:
    for found in (checked, profiled):
        path = tmp_path / "base.json"
        baseline.save(found, path)
        assert baseline.read(path) == baseline.baseline_of(found).model_copy(
            update={"created": baseline.read(path).created}
        )
        changes = baseline.changes_between(baseline.read(path), baseline.baseline_of(found)).changes
        assert {change.outcome for change in changes} <= {"as before", "unresolved"}
    assert [p.name for p in tmp_path.iterdir()] == ["base.json"]


@pytest.mark.parametrize(
    ("factor", "outcome"), [(0.5, "slower"), (1 / 1.05, "as before"), (1.05, "as before"), (2, "faster")]
)
def test_only_what_is_beyond_noise_and_drift_is_a_change(checked: Check, factor: float, outcome: str) -> None:
    """The baseline took `factor` times as long."""
    now = baseline.baseline_of(checked).model_copy(update={"unresolved": []})
    first = next(iter(now.samples))
    then = now.model_copy(update={"samples": now.samples | {first: [factor * min(now.samples[first])] * 9}})
    still = {name: [min(values)] * 9 for name, values in now.samples.items()}
    changes = baseline.changes_between(then, now.model_copy(update={"samples": still}))
    assert changes.changes[0].outcome == outcome
    assert len(changes.slower) == (outcome == "slower")


def test_layers_that_are_new_or_gone_are_said_to_be(checked: Check) -> None:
    now = baseline.baseline_of(checked).model_copy(update={"unresolved": []})
    first, *_ = now.samples
    then = {f"{name}s" if name == first else name: values for name, values in now.samples.items()}
    outcomes = {
        c.name: c.outcome for c in baseline.changes_between(now.model_copy(update={"samples": then}), now).changes
    }
    assert (outcomes[first], outcomes[f"{first}s"]) == ("new", "gone")


def test_a_baseline_of_another_question_or_machine_is_refused(checked: Check) -> None:
    then = baseline.baseline_of(checked)
    other = check(MLP, batch=4, rounds=1, classes=False, calibration=calibration())
    assert "another question" in error_of(lambda: baseline.changes_between(then, baseline.baseline_of(other)))
    foreign = Host(**{**vars(then.machine), "cpu": "Quipu"})
    said = error_of(lambda: baseline.changes_between(then.model_copy(update={"machine": foreign}), then))
    assert "another machine" in said
    assert "Quipu" in said


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", "null", '{"format": 1}', "\x00",
        '{"format": 1, "question": "q", "machine": {}, "created": "", "statistic": "quartile", "samples": {}}',
    ],
)  # fmt: skip
def test_what_is_no_baseline_is_named(tmp_path, text: str) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    assert "base.json is no baseline" in error_of(lambda: baseline.read(path))


@pytest.mark.parametrize("value", ["NaN", "-1.0", "0.0", '"1"', "Infinity", "true"])
def test_samples_are_times(tmp_path, checked: Check, value: str) -> None:
    path = tmp_path / "base.json"
    data = json.loads(baseline.baseline_of(checked).model_dump_json())
    first = next(iter(data["samples"]))
    data["samples"][first] = ["MARK"]
    path.write_text(json.dumps(data).replace('"MARK"', value))
    assert "base.json is no baseline" in error_of(lambda: baseline.read(path))


def test_another_format_is_refused(tmp_path, checked: Check) -> None:
    path = tmp_path / "base.json"
    path.write_text(baseline.baseline_of(checked).model_copy(update={"format": baseline.FORMAT + 1}).model_dump_json())
    assert f"format {baseline.FORMAT + 1}" in error_of(lambda: baseline.read(path))


def test_a_baseline_that_cannot_be_written_leaves_nothing(tmp_path, checked: Check) -> None:
    with pytest.raises(CostModelError, match="cannot write"):
        baseline.save(checked, tmp_path / "none" / "base.json")
    (tmp_path / "base.json").mkdir()
    with pytest.raises(CostModelError, match="cannot write"):
        baseline.save(checked, tmp_path / "base.json")
    assert [p.name for p in tmp_path.iterdir()] == ["base.json"]
