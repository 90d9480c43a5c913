"""``costmodel roofline`` from a shell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.roofline import calibration as measuring
from costmodel.roofline import kept as storage
from costmodel.roofline import validation
from costmodel.roofline.calibration import Calibration
from costmodel.roofline.classification import Verdict
from costmodel.roofline.timing import Timing
from costmodel.roofline.validation import FunctionTime, LayerTrial, ProgramTime, Validation, layers_of
from tests.command import here, refused
from tests.roofline.synthetic import MACHINE, calibration


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    found = calibration()
    monkeypatch.setenv(storage.CACHE_VARIABLE, str(tmp_path))
    for module in (measuring, storage):
        monkeypatch.setattr(module, "this_machine", lambda threads=1: replace(MACHINE, threads=threads))
    monkeypatch.setattr(storage, "measure_probes", lambda *_, **__: found)
    return found


def test_calibrate_says_what_it_found_and_where_it_is(capsys, measured: Calibration) -> None:
    outcome = here(capsys, "roofline", "calibrate")
    assert outcome.code == 0
    assert outcome.err == "note: calibrating takes about 20 s on a host at rest, and up to 45 s on one that is not\n"
    assert "Abacus" in outcome.out
    assert "products float32: 100.0 GFLOP/s at most" in outcome.out
    assert str(storage.path_of(MACHINE)) in outcome.out
    assert storage.read(storage.path_of(MACHINE), MACHINE) == measured


def test_calibrate_in_json_is_the_calibration(capsys, measured: Calibration) -> None:
    outcome = here(capsys, "roofline", "calibrate", "--json")
    assert Calibration.model_validate_json(outcome.out) == measured


def test_too_much_unresolved_is_not_kept_unless_asked_for(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "measure_probes", lambda *_, **__: calibration(unresolved=0.6, doubt=0.4))
    outcome = here(capsys, "roofline", "calibrate", "--budget", "20")
    assert outcome.code == 1
    assert "about 20 s on a host at rest, and up to 20 s" in outcome.err
    assert "warning: 60% of the probes are unresolved" in outcome.out
    assert "not kept: more than 25% of the probes are unresolved (--keep keeps it)" in outcome.out
    assert not storage.path_of(MACHINE).exists()
    assert here(capsys, "roofline", "calibrate", "--keep").code == 0
    assert storage.path_of(MACHINE).exists()


def test_bad_input_is_one_line(capsys) -> None:
    refused(here(capsys, "roofline", "calibrate", "--budget", "0"), "budget 0", "from 10 to 3,600")
    refused(here(capsys, "roofline", "calibrate", "--threads", "0"), "threads 0", "from 1 to 1")
    refused(here(capsys, "roofline", "calibrat"), "'calibrat'", "'calibrate'")


@pytest.mark.parametrize("command", ["calibrate", "validate"])
def test_help_has_examples(capsys, command: str) -> None:
    text = here(capsys, "roofline", command, "--help").out
    assert f"    costmodel roofline {command}\n" in text
    assert "--json" in text


def test_validate_takes_no_more_threads_than_there_are_cores(capsys) -> None:
    refused(here(capsys, "roofline", "validate", "--threads", "4096"), "threads 4096", "the cores there are")


def validated() -> Validation:
    """Layers of which the second measurement took a tenth longer, and of the last, which is unresolved, nine times."""
    programs = [*layers_of([("mlp-lenet-300-100", {"batch": 32})]).values()]
    compute, memory, last = Verdict("matmul"), Verdict("cache", "L2", close=True), len(programs) - 1
    layers = (
        LayerTrial(
            program,
            Timing((1e-4 * (i + 1),)),
            Timing(((1.1 if i < last else 9) * 1e-4 * (i + 1),), resolved=i < last),
            compute,
            memory if i else compute,
            Verdict("memory"),
        )
        for i, program in enumerate(programs)
    )
    whole = ProgramTime("one", 1.1, 1.0), ProgramTime("two", 0.9, 1.0), ProgramTime("three", 3.0, 2.0, 4.0, 0.7)
    return Validation(calibration(), tuple(layers), whole, (FunctionTime("exp", 12, 0.5, 1.0, 0.3),), 80.0)


@pytest.mark.slow
def test_validate_prints_every_model_the_floor_and_the_worst_cases(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "validate", lambda *_, **__: validated())
    outcome = here(capsys, "roofline", "validate")
    assert (outcome.code, outcome.err) == (0, "")
    for said in (
        "6 overheads",
        "two measurements of the same layer",
        "worst",
        "three",
        "+50.0%",
        "kappa",
        "-50%",
        "2.00",
        "recall",
    ):
        assert said in outcome.out
    data = json.loads(here(capsys, "roofline", "validate", "--json").out)
    assert data["whole"] == pytest.approx({"median": 0.1, "p90": 0.42, "worst": 0.5, "r_squared": 0.4237}, rel=1e-3)
    assert data["floor"]["worst"] == pytest.approx(1 - 1 / 1.1), "what is unresolved is not judged"
    assert data["resolved"] == pytest.approx(1 - 1 / len(validated().layers))
    assert data["functions"][0]["bias"] == -0.5
    assert data["agreement_where_clear"]["layers"] == 1
    assert set(data["models"]) == {"1", "6"}
    first, *_, last = data["layers"]
    assert first["name"] == "mlp-lenet-300-100 (batch 32) hidden1.linear", "with the model that it stands in"
    assert (first["first"], first["second"]) == pytest.approx((1e-4, 1.1e-4))
    assert (first["predicted_class"], first["measured_class"]) == ("matmul", "matmul")
    assert not last["resolved"]
