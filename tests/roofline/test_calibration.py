"""A stored calibration is whole, of this machine and of this version, or it is not used."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.errors import CostModelError
from costmodel.roofline import calibration as measuring
from costmodel.roofline import host as machines
from costmodel.roofline import kept as storage
from costmodel.roofline.calibration import STALE, Calibration, CalibrationError, CalibrationWarning
from costmodel.roofline.host import this_machine
from costmodel.roofline.hosttime import predict_seconds
from costmodel.roofline.kept import LARGEST_FILE, calibrate, calibrated, path_of, read, store
from costmodel.roofline.probes import EMPTY, probes
from costmodel.roofline.program import Program
from costmodel.roofline.recorder import forward_program
from costmodel.roofline.timing import Timing
from tests.roofline.synthetic import MACHINE, SETS, Clockwork, calibration


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(storage.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(storage, "_unkept", {})
    for module in (measuring, storage):
        monkeypatch.setattr(module, "this_machine", lambda threads=1: replace(MACHINE, threads=threads))
    monkeypatch.setattr(storage, "measure_probes", lambda *_, **__: calibration(created=datetime.now(UTC).isoformat()))
    return tmp_path


def test_what_is_stored_is_read_again(folder: Path) -> None:
    path = store(calibration())
    assert path == path_of(MACHINE)
    assert path.parent == folder
    assert read(path, MACHINE) == calibration()
    assert [entry.name for entry in folder.iterdir()] == [path.name], "nothing beside it"


def edited(path: Path, **changes: object) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 99}, "is of format 99"),
        ({"seconds": {"empty": 1e-7}}, "lacks"),
        ({"seconds": {"empty": -1.0}}, "'empty' took -1.0 s"),
        ({"seconds": {"empty": "fast"}}, "seconds.empty"),
        ({"seconds": {"empty": 1e9}}, "which is no time"),
        ({"created": "yesterday"}, "created"),
        ({"created": "2026-01-02"}, "no time zone"),
        ({"thorough": 1}, "thorough"),
        ({"comment": "edited"}, "comment"),
        ({"machine": {"cpu": "Abacus"}}, "machine.cores"),
    ],
)
def test_a_damaged_file_is_refused_and_named(changes: dict, said: str) -> None:
    path = store(calibration())
    edited(path, **changes)
    with pytest.raises(CalibrationError) as caught:
        read(path, MACHINE)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 50_000, b"NaN"])
def test_a_file_that_is_no_calibration_is_refused_and_named(content: bytes) -> None:
    path = store(calibration())
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match="is no calibration") as caught:
        read(path, MACHINE)
    assert "\n" not in str(caught.value)


def test_a_file_larger_than_any_calibration_is_refused_unread() -> None:
    """A list of a million numbers took 358 MB to find out that it has no machine."""
    thorough = {name: 1.2345678901234567e-06 for name, _ in probes(SETS, thorough=True)}
    path = store(calibration(thorough=True, seconds=thorough))
    assert 5 * path.stat().st_size < LARGEST_FILE
    path.write_text('{"samples": {"x": [' + "1," * 10**6 + "1]}}")
    with pytest.raises(CalibrationError, match="is larger than 1,000,000 bytes"):
        read(path, MACHINE)


def test_another_machine_s_file_is_refused_and_the_difference_said() -> None:
    path = store(calibration())
    with pytest.raises(CalibrationError, match=r"is of another machine: numpy: 2\.0, here 9\.9"):
        read(path, replace(MACHINE, numpy="9.9"))


def test_every_change_of_the_machine_changes_its_key() -> None:
    changes = {"cpu": "Slide rule", "cores": 2, "caches": (), "numpy": "1", "blas": "mkl", "threads": 2}
    keys = {replace(MACHINE, **{name: value}).key for name, value in changes.items()}
    assert len(keys | {MACHINE.key}) == len(changes) + 1


def test_without_one_a_quick_one_is_made_and_said() -> None:
    with pytest.warns(CalibrationWarning, match=r"no calibration of this machine in .*: calibrating now") as warned:
        made = calibrated()
    assert {each.filename for each in warned} == {__file__}
    assert made.machine == MACHINE
    said: list[str] = []
    assert calibrated(say=said.append) == made
    assert said == []


@pytest.mark.parametrize("content", [b"not json", b"{}"])
def test_a_damaged_one_is_named_and_redone(content: bytes) -> None:
    path = store(calibration())
    path.write_bytes(content)
    said: list[str] = []
    made = calibrated(say=said.append)
    assert said[0].startswith(f"{path} is no calibration")
    assert read(path, MACHINE) == made


def test_an_old_one_is_used_and_said_to_be_old() -> None:
    created = datetime.now(UTC) - STALE - timedelta(days=1)
    store(calibration(created=created.isoformat()))
    said: list[str] = []
    assert calibrated(say=said.append).stale
    assert said == ["this calibration is 15 days old: costmodel roofline calibrate renews it"]


def test_an_interrupted_calibration_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(calibration())
    before = path.read_bytes()

    def interrupted(*_: object, **__: object) -> Calibration:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "measure_probes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate()
    monkeypatch.setattr(storage, "measure_probes", lambda *_, **__: calibration())
    monkeypatch.setattr("costmodel.roofline.calibration.Calibration.model_dump_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate()
    assert path.read_bytes() == before
    assert [entry.name for entry in folder.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(storage.CACHE_VARIABLE, str(blocked))
    with pytest.raises(CalibrationError, match=f"set {storage.CACHE_VARIABLE}"):
        calibrate()


@pytest.mark.parametrize("threads", [0, -1, 2, True, 1.0, "all"])
def test_threads_are_as_many_as_there_are_cores_at_most(threads: object) -> None:
    with pytest.raises(CostModelError, match="is not from 1 to 1, the cores there are"):
        calibrate(threads=threads)  # type: ignore[arg-type]


def test_what_the_system_does_not_say_is_unknown_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr(machines, "CACHES", tmp_path / "none")
    monkeypatch.setattr(machines, "_blas", dict)
    monkeypatch.setattr("platform.processor", lambda: "")
    bare = this_machine()
    assert bare.unknown == ("cpu", "blas", "blas_version", "blas_kernels", "caches")
    assert "caches unknown" in str(bare)
    found = calibration(machine=bare, created=datetime.now(UTC).isoformat())
    assert found.warnings == ["the system does not say: cpu, blas, blas_version, blas_kernels, caches"]


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "find_spec", lambda name: None if name == "scipy" else object())
    with pytest.raises(CostModelError, match=r"the roofline needs scipy: pip install 'nn-costmodel\[roofline\]'"):
        this_machine()


def test_a_level_is_the_first_that_holds_so_much() -> None:
    assert [MACHINE.level_of(size) for size in (1, 32_768, 32_769, 2**20, 2**21)] == ["L1", "L1", "L2", "L2", "memory"]
    assert replace(MACHINE, caches=()).level_of(1) == "memory"


def test_two_calibrations_join_to_the_faster_of_each_probe() -> None:
    slow = calibration(seconds={name: 2 * value for name, value in calibration().seconds.items()})
    assert slow.joined(calibration()).seconds == calibration().seconds == calibration().joined(slow).seconds


def test_unresolved_probes_are_said_and_widen_every_interval() -> None:
    now = datetime.now(UTC).isoformat()
    doubtful = calibration(unresolved=0.3, doubt=0.2, created=now)
    assert doubtful.warnings == [
        "30% of the probes are unresolved, for lack of undisturbed moments, so that predictions may be off by 20% "
        "more: calibrate again when the machine is at rest"
    ]
    program = next(program for program in programs() if len(program) > 1)
    low, high = predict_seconds(program, doubtful).interval
    lower, higher = predict_seconds(program, calibration()).interval
    assert low < lower <= higher < high
    assert high >= 1.2 * predict_seconds(program, doubtful).seconds


def programs() -> list[Program]:
    calls = cm.predict("mlp-lenet-300-100", mode="inference").tape.root.calls()
    return [forward_program(call) for call in calls]


def test_a_joined_calibration_has_rates_of_its_own() -> None:
    slow = calibration()
    fast = calibration(seconds={name: took / 2 for name, took in slow.seconds.items()})
    assert slow.rates.peak("float32") == pytest.approx(slow.joined(fast).rates.peak("float32") / 2)


def test_the_calibrated_host_is_a_machine_like_any_other() -> None:
    store(calibration())
    host = cm.roofline.machine()
    rates = calibration().rates
    assert isinstance(host, cm.Machine)
    assert host.measured
    assert host.product_peak("fp32") == rates.peak("float32")
    assert host.product_peak("fp64") == rates.peak("float64")
    assert host.bandwidth == rates.memory_bandwidth
    assert {level.name: level.size for level in host.levels}.items() <= dict(MACHINE.caches).items()
    assert all(level.bandwidth and level.bandwidth >= host.bandwidth for level in host.levels)
    assert host.call_overhead == pytest.approx(1e-6, rel=0.01)
    assert host.confirmed("bandwidth", "peak.fp32", "levels", "call_overhead")
    assert "2026-01-02" in str(host)


def test_without_a_calibration_there_is_no_machine() -> None:
    with pytest.raises(CalibrationError, match=r"no calibration of this host in .*: make one by 'costmodel roofline"):
        cm.roofline.machine()


def test_one_with_too_much_unresolved_serves_and_is_kept_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(calibration())
    before = path.read_bytes()
    monkeypatch.setattr(
        storage, "measure_probes", lambda *_, **__: calibration(unresolved=storage.MOST_UNRESOLVED + 0.01)
    )
    assert calibrate().unresolved > storage.MOST_UNRESOLVED
    assert path.read_bytes() == before
    found = calibrate(keep=True)
    assert read(path, MACHINE) == found
    monkeypatch.setattr(storage, "measure_probes", lambda *_, **__: calibration(unresolved=storage.MOST_UNRESOLVED))
    assert read(path_of(MACHINE), MACHINE) != calibrate() == read(path, MACHINE)
    calibrate(keep=False)


def unkept(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Calibrations come out with too much unresolved."""
    now = datetime.now(UTC).isoformat()
    made = calibration(**{"unresolved": 0.9, "created": now, **changes})
    monkeypatch.setattr(storage, "measure_probes", lambda *_, **__: made)


def test_one_that_is_made_and_not_kept_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    unkept(monkeypatch)
    said: list[str] = []
    calibrated(say=said.append)
    assert "calibrating now, which takes about 20 s on a host at rest, and up to 45 s on one that is not" in said[0]
    assert said[1].startswith("this calibration is not kept, but serves for an hour: 'costmodel roofline calibrate --")
    assert not path_of(MACHINE).exists()


@pytest.mark.parametrize("process", ["the same", "the next"])
def test_one_that_is_not_kept_serves_for_an_hour(monkeypatch: pytest.MonkeyPatch, process: str) -> None:
    unkept(monkeypatch, created=(datetime.now(UTC) - timedelta(minutes=7)).isoformat())
    made = calibrated(say=[].append)
    unkept(monkeypatch, took_seconds=99.0)
    if process == "the next":
        monkeypatch.setattr(storage, "_unkept", {})
    said: list[str] = []
    assert calibrated(say=said.append) == made
    assert "a calibration of 7 minutes ago serves, which is not kept: 'costmodel roofline calibrate --keep'" in said[0]


@pytest.mark.parametrize("content", [b"not json", b"{}", b"[" * 50_000])
def test_one_that_is_damaged_does_not_serve(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    path_of(MACHINE).with_suffix(".recent.json").write_bytes(content)
    unkept(monkeypatch)
    said: list[str] = []
    calibrated(say=said.append)
    assert "calibrating now" in said[0]


def test_one_that_is_too_old_or_another_user_s_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(MACHINE).with_suffix(".recent.json")
    unkept(monkeypatch, created=(datetime.now(UTC) - timedelta(minutes=61)).isoformat())
    calibrated(say=[].append)
    assert path.exists()
    monkeypatch.setattr(storage, "_unkept", {})
    unkept(monkeypatch, took_seconds=99.0)
    assert calibrated(say=[].append).took_seconds == 99.0
    monkeypatch.setattr(storage, "_unkept", {})
    monkeypatch.setattr("os.getuid", lambda: path.stat().st_uid + 1)
    unkept(monkeypatch, took_seconds=98.0)
    assert calibrated(say=[].append).took_seconds == 98.0


def test_one_that_is_kept_takes_the_place_of_those_that_were_not(monkeypatch: pytest.MonkeyPatch) -> None:
    unkept(monkeypatch)
    calibrated(say=[].append)
    monkeypatch.setattr(storage, "measure_probes", lambda *_, **__: calibration(took_seconds=2.0))
    kept = calibrate()
    assert calibrated(say=[].append) == kept
    assert [entry.name for entry in path_of(MACHINE).parent.iterdir()] == [path_of(MACHINE).name]


@pytest.mark.parametrize("budget", [0, -1.0, True, "60", float("nan"), float("inf"), 1e6])
def test_a_budget_is_a_time(budget: object) -> None:
    with pytest.raises(CostModelError, match="is not from 10 to 3,600 seconds"):
        calibrate(budget=budget)  # type: ignore[arg-type]


def test_times_that_are_none_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a machine so busy that its clock stood still."""
    monkeypatch.undo()
    Clockwork.put(monkeypatch.setattr)
    nothing = Timing((0.0,) * 3)
    monkeypatch.setattr(measuring, "time_calls", lambda calls, *_, **__: [nothing] * len(calls))
    with pytest.raises(CalibrationError, match=r"measuring came to nothing .* which is no time.*machine is at rest"):
        measuring.measure_probes()


def test_a_calibration_without_the_probe_that_calls_nothing_is_refused() -> None:
    seconds = {name: each for name, each in calibration().seconds.items() if name != EMPTY}
    path = store(calibration(seconds=seconds))
    with pytest.raises(CalibrationError, match=r"lacks 1 of this version's probes, such as 'empty'"):
        read(path, MACHINE)
