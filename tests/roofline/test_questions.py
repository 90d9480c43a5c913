"""``costmodel roofline check | plot | profile | compare`` from a shell."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.roofline import calibration as measuring
from costmodel.roofline import kept as storage
from tests.command import here, refused
from tests.roofline.synthetic import MACHINE, Clockwork, calibration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clockwork")]

QUICK = ("--rounds", "6", "--batch", "2")
COMMANDS = ("check", "plot", "profile", "compare")


@pytest.fixture(autouse=True)
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clockwork: Clockwork) -> None:
    clockwork.slower = 1.5
    monkeypatch.setenv(storage.CACHE_VARIABLE, str(tmp_path / "cache"))
    for module in (measuring, storage):
        monkeypatch.setattr(module, "this_machine", lambda threads=1: replace(MACHINE, threads=threads))
    monkeypatch.setattr(storage, "measure_probes", lambda *_, **__: calibration())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text("architecture: mlp\nsizes: [7, 24, 5]\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(capsys, command: str) -> None:
    text = here(capsys, "roofline", command, "--help").out
    assert f"    costmodel roofline {command} " in text
    assert "--json" in text


def test_without_a_calibration_one_is_made_and_said_to_be(capsys) -> None:
    first = here(capsys, "roofline", "check", "tiny.yaml", "--no-classes", *QUICK)
    assert first.code == 0
    assert "calibrating now" in first.err
    assert first.out.startswith("MLP: one forward pass (inference), batch 2")
    again = here(capsys, "roofline", "check", "tiny.yaml", "--no-classes", *QUICK)
    assert "calibrating now" not in again.err


def test_a_damaged_calibration_is_named_and_made_anew(capsys) -> None:
    path = storage.path_of(MACHINE)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    outcome = here(capsys, "roofline", "profile", "tiny.yaml", *QUICK)
    assert outcome.code == 0
    assert f"{path.name} is no calibration" in outcome.err
    assert storage.read(path, MACHINE)


def test_check_in_json_has_every_layer_and_its_class(capsys) -> None:
    outcome = here(capsys, "roofline", "check", "tiny.yaml", *QUICK, "--json")
    data = json.loads(outcome.out)
    assert [layer["kind"] for layer in data["layers"]] == ["linear", "relu", "linear"]
    assert all(layer["measured_class"] for layer in data["layers"])


@pytest.mark.parametrize(("most", "code", "said"), [("0%", 1, "over 0.0%"), ("1e9", 0, "within")])
def test_fail_over_decides_the_exit_code_by_the_median(capsys, most: str, code: int, said: str) -> None:
    outcome = here(capsys, "roofline", "check", "tiny.yaml", "--no-classes", *QUICK, "--fail-over", most)
    assert outcome.code == code
    last = outcome.out.splitlines()[-1]
    assert last.startswith("median error")
    assert said in last


@pytest.mark.parametrize("command", ["check", "profile"])
def test_a_baseline_is_kept_and_regressions_fail(capsys, command: str) -> None:
    asked = ("roofline", command, "tiny.yaml", *QUICK)
    assert here(capsys, *asked, "--save", "base.json").code == 0
    kept = json.loads(Path("base.json").read_text())
    kept["samples"] = {name: [value / 1000 for value in values] for name, values in kept["samples"].items()}
    Path("base.json").write_text(json.dumps(kept))
    outcome = here(capsys, *asked, "--against", "base.json")
    assert outcome.code == 1
    assert f"{len(kept['samples'])} slower beyond noise" in outcome.out
    data = json.loads(here(capsys, *asked, "--against", "base.json", "--json").out)
    assert data["against"]["regressions"] == len(kept["samples"])


def test_a_check_that_was_kept_is_drawn_again_without_measuring(capsys, monkeypatch) -> None:
    assert here(capsys, "roofline", "check", "tiny.yaml", *QUICK, "--save", "saved.json").code == 0
    monkeypatch.setattr(storage, "measure_probes", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr("costmodel.roofline.checking.measure_in_place", lambda *_, **__: pytest.fail("measured"))
    drawn = here(capsys, "roofline", "plot", "saved.json", "--kind", "all", "--out", "a.html")
    assert (drawn.code, drawn.out) == (0, "wrote a.html\n")
    page = Path("a.html").read_text()
    assert page.count("<svg") == 3
    assert page.count("<figure>") == 3
    assert "MLP: one forward" in page
    drawn = here(capsys, "roofline", "plot", "saved.json", "--kind", "all", "--out", "a.png")
    assert drawn.out == "wrote a-roofline.png, a-scatter.png, a-bars.png\n"
    assert all(Path(f"a-{kind}.png").stat().st_size > 1000 for kind in ("roofline", "scatter", "bars"))


def test_a_baseline_of_a_profile_has_no_picture(capsys) -> None:
    assert here(capsys, "roofline", "profile", "tiny.yaml", *QUICK, "--save", "base.json").code == 0
    refused(here(capsys, "roofline", "plot", "base.json"), "base.json keeps no check")


def test_a_pipe_is_not_waited_for(capsys) -> None:
    os.mkfifo("pipe.json")
    refused(here(capsys, "roofline", "plot", "pipe.json"), "pipe.json")


@pytest.mark.parametrize("command", ["check", "plot", "profile", "compare"])
def test_what_changes_nothing_is_not_offered(capsys, command: str) -> None:
    text = here(capsys, "roofline", command, "--help").out
    idle = ("device", "allocator", "update", "on", "stack", "checkpoint", "accumulate", "precision", "cache", "past")
    assert not [name for name in idle if f"--{name} " in text]
    assert all(f"--{name} " in text for name in ("batch", "seq", "mode", "optimizer", "loss"))


def test_pictures_and_pages_are_written(capsys) -> None:
    drawn = here(capsys, "roofline", "plot", "tiny.yaml", "--no-classes", *QUICK, "--kind", "bars", "--out", "a.png")
    assert (drawn.code, drawn.out) == (0, "wrote a.png\n")
    assert here(capsys, "roofline", "check", "tiny.yaml", "--no-classes", *QUICK, "--out", "a.html").code == 0
    assert Path("a.png").stat().st_size > 1000
    assert "MLP: one forward" in Path("a.html").read_text()


def test_profile_and_compare_in_json(capsys) -> None:
    data = json.loads(here(capsys, "roofline", "profile", "tiny.yaml", *QUICK, "--mode", "inference", "--json").out)
    assert list(data["passes"]) == ["forward"]
    data = json.loads(here(capsys, "roofline", "compare", "tiny.yaml", "tiny.yaml", *QUICK, "--json").out)
    assert data["interval"][0] <= data["speedup"] <= data["interval"][1]
    assert data["together"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("check nothing-like-it", "unknown model"),
        ("check tiny.yaml --seq 5", "seq"),
        ("check tiny.yaml --level 7", "level 7"),
        ("check tiny.yaml --rounds 0", "rounds 0"),
        ("check tiny.yaml --fail-over much", "25%"),
        ("check tiny.yaml --fail-over=-1", "25%"),
        ("check tiny.yaml --out none/a.html", "cannot write"),
        ("check tiny.yaml --save .", "cannot write"),
        ("check tiny.yaml --against none.json", "none.json"),
        ("check tiny.yaml --against tiny.yaml", "no baseline"),
        ("plot tiny.yaml --out a.doc", ".png"),
        ("plot tiny.yaml --kind pie", "roofline"),
        ("profile gpt2-xl --batch 100000", "use a smaller batch"),
        ("profile tiny.yaml --precision bf16", "--precision"),
        ("check tiny.yaml --device cpu", "--device"),
        ("plot saved.json --batch 3", "leave out"),
        ("compare tiny.yaml", "OTHER"),
        ("compare tiny.yaml other.yaml", "other.yaml"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_measured(capsys, monkeypatch, arguments: str, said: str) -> None:
    monkeypatch.setattr(storage, "measure_probes", lambda *_: pytest.fail("measured"))
    Path("saved.json").write_text('{"format": 1, "question": "?"}')
    refused(here(capsys, "roofline", *arguments.split()), said)
