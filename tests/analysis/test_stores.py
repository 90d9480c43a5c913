"""``costmodel sweep``: what it prints, and files that are readable whenever it ends and can be gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import xarray

import costmodel as cm
from costmodel.analysis.sweep import extents, stores
from costmodel.analysis.sweep.sweeps import grid_of
from costmodel.cli.options import read_values
from costmodel.display.units import show_bytes
from tests.command import error_of, here, refused

AXES: dict[str, Any] = {"batch": range(1, 9), "seq": [1, 8, 16, 2048], "optimizer": ["sgd", "adamw"]}
ARGUMENTS = ("sweep", "gpt2-small", "--batch", "1:8", "--seq", "1,8,16,2048", "--optimizer", "sgd,adamw")
NAMES = ["params", "memory.peak"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("7", [7]),
        ("1,2,4", [1, 2, 4]),
        ("1:4", [1, 2, 3, 4]),
        ("6:24:6", [6, 12, 18, 24]),
        ("6:23:6", [6, 12, 18]),
        ("1:64:*2", [1, 2, 4, 8, 16, 32, 64]),
        ("3:100:*3", [3, 9, 27, 81]),
        ("1:3,8", [1, 2, 3, 8]),
        ("224,224x320", [224, (224, 320)]),
        ("none,mlp+attention", ["none", ("mlp", "attention")]),
    ],
)
def test_values_are_lists_and_ranges_with_their_ends(text: str, values: list[Any]) -> None:
    assert list(read_values("batch", text)) == values


@pytest.mark.parametrize("text", ["", "1:", "4:1", "1:9:0", "1:9:*1", "0:9:*2", "1:2:3:4", "1,,2", "1:9:x"])
def test_values_that_are_none_are_refused(text: str) -> None:
    assert "batch" in error_of(lambda: cm.sweep(cm.GPT2Small, batch=read_values("batch", text)))


def test_a_small_grid_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    out = here(
        capsys, "sweep", "gpt2-small", "--batch", "2", "--seq", "16,2048", "--quantities", "params,memory.peak"
    ).out
    lines = out.splitlines()[2:]
    assert out.startswith("gpt2-small: one training step, batch 2, fp32, adamw, attention eager\n")
    assert lines[0].split() == ["batch", "seq", "params", "memory.peak"]
    peak = cm.predict("gpt2-small", batch=2, seq=16).memory.peak
    assert lines[1].split() == ["2", "16", "124.4", "M", *show_bytes(peak).split()]
    assert lines[2].split() == ["2", "2048", "-", "-"]
    assert "no answer in 1: seq 2048 is beyond" in out


def test_json_has_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads(here(capsys, *ARGUMENTS, "--json").out)
    assert len(cells) == 64
    cell = next(c for c in cells if (c["batch"], c["seq"], c["optimizer"]) == (3, 8, "sgd"))
    p = cm.predict("gpt2-small", batch=3, seq=8, optimizer="sgd")
    assert {name: cell[name] for name in ("flops.total", "memory.peak")} == {
        "flops.total": p.flops.total,
        "memory.peak": p.memory.peak,
    }
    assert all((cell["params"] is None) == (cell["seq"] == 2048) == bool(cell["reason"]) for cell in cells)


def test_fields_of_the_model_vary(capsys: pytest.CaptureFixture[str]) -> None:
    out = here(capsys, "sweep", "gpt2-small", "--over", "layers=6:12:6", "--over", "tied=true,false", "--json").out
    assert [(c["layers"], c["tied"]) for c in json.loads(out)] == [(6, True), (6, False), (12, True), (12, False)]


def test_parquet_holds_every_cell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "sweep.parquet"
    outcome = here(capsys, *ARGUMENTS, "--out", str(path))
    assert outcome.code == 0
    assert "64 cells, 16 of them without an answer" in outcome.out
    frame = pandas.read_parquet(path).set_index(list(AXES))
    expected = cm.sweep("gpt2-small", **AXES).to_dataframe()
    pandas.testing.assert_frame_equal(
        frame.drop(columns="reason"), expected.drop(columns="reason"), check_dtype=False, check_index_type=False
    )
    assert list(frame.reason) == list(expected.reason)


@pytest.mark.slow
def test_zarr_holds_every_cell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert here(capsys, *ARGUMENTS, "--out", str(tmp_path / "sweep.zarr")).code == 0
    found = xarray.open_zarr(tmp_path / "sweep.zarr", consolidated=False)
    np.testing.assert_array_equal(found["memory.peak"], cm.sweep("gpt2-small", **AXES)["memory.peak"])


def interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write part of a sweep, in parts of eight cells."""
    monkeypatch.setattr(stores, "ROWS", 8)
    grid = grid_of("gpt2-small", NAMES, AXES)
    with pytest.raises(KeyboardInterrupt, match="holds 8 of 64 cells; --resume goes on"):
        stores.stream(grid, str(path), resume=False, progress=lambda _: os.kill(os.getpid(), signal.SIGINT))


def test_an_interrupt_leaves_a_readable_file_that_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sweep.parquet"
    interrupted(path, monkeypatch)
    assert len(pandas.read_parquet(path)) == 8
    grid = grid_of("gpt2-small", NAMES, AXES)
    worked_out: list[Any] = []
    monkeypatch.setattr(grid, "exact", lambda window, exact=grid.exact: worked_out.append(window) or exact(window))
    assert stores.stream(grid, str(path), resume=True, progress=lambda _: None) == (64, 16)
    assert len(worked_out) == 1 + 7  # one for the types, and all parts but the first
    whole = tmp_path / "whole.parquet"
    stores.stream(grid_of("gpt2-small", NAMES, AXES), str(whole), resume=False, progress=lambda _: None)
    pandas.testing.assert_frame_equal(pandas.read_parquet(path), pandas.read_parquet(whole))
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".parquet"] == []


@pytest.mark.slow
def test_an_interrupt_leaves_a_readable_store_that_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "CHUNK_BYTES", "64B")
    path, grid = tmp_path / "sweep.zarr", grid_of("gpt2-small", NAMES, AXES)
    stop: Any = lambda cells: os.kill(os.getpid(), signal.SIGINT) if cells == 8 else None  # noqa: E731
    with pytest.raises(KeyboardInterrupt, match="holds 8 of 64 cells; --resume goes on"):
        stores.store(grid, str(path), resume=False, progress=stop)
    with pytest.raises(KeyboardInterrupt) as second:
        stores.store(grid, str(path), resume=True, progress=stop)
    held = int(str(second.value).split("holds ")[1].split()[0])
    assert 0 < held < 64
    told: list[int] = []
    assert stores.store(grid, str(path), resume=True, progress=told.append) == (64, 16)
    assert (told[0], sum(told)) == (held, 64)
    found = xarray.open_zarr(path, consolidated=False).load()
    whole = cm.sweep("gpt2-small", quantities=NAMES, **AXES)
    pandas.testing.assert_frame_equal(
        found[list(whole.data_vars)].to_dataframe().reset_index(), whole.to_dataframe().reset_index(), check_dtype=False
    )
    other = grid_of("gpt2-small", NAMES, {**AXES, "batch": [1, 2]})
    assert "holds another sweep" in error_of(lambda: stores.store(other, str(path), resume=True, progress=told.append))
    (path / "zarr.json").write_text("{")
    assert "cannot resume from" in error_of(lambda: stores.store(grid, str(path), resume=True, progress=told.append))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *(({"chunks": bad}, f"chunks={bad} does not fit a grid of (2,)") for bad in (0, -5, True, 2.5, (1, 2))),
        ({"chunks": {"batch": -2}}, "chunks={'batch': -2} does not fit"),
        ({"client": 3, "chunks": 1}, "client=3 is no dask.distributed client"),
        ({"executor": ThreadPoolExecutor}, "executor=<class"),
        ({"client": 3}, "client=3 is no dask.distributed client"),
        ({"executor": 3}, "executor=3 is no concurrent.futures executor"),
        ({"quantities": 3}, "quantities=3 is no list of names"),
    ],
)
def test_what_cannot_do_the_work_is_refused(asked: dict[str, Any], said: str) -> None:
    assert error_of(lambda: cm.sweep("mlp-mnist", batch=[1, 2], **asked)).startswith(said)


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="needs device files")
def test_only_files_are_written_over(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.parquet"
    os.mkfifo(pipe)
    assert "it is there and is no file" in error_of(lambda: cm.sweep("mlp-mnist", batch=[1]).to_parquet(pipe))
    assert "cannot write" in error_of(lambda: cm.sweep("mlp-mnist", batch=[1]).to_zarr("/dev/null/sweep.zarr"))
    assert "is no sweep" in error_of(lambda: cm.pareto(3, "params", "memory.peak"))


def test_only_the_same_sweep_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sweep.parquet"
    interrupted(path, monkeypatch)
    before = path.read_bytes()
    other = grid_of("gpt2-small", NAMES, {**AXES, "batch": range(1, 10)})
    line = error_of(lambda: stores.stream(other, str(path), resume=True, progress=lambda _: None))
    assert "holds another sweep" in line
    assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda _: b"", lambda _: b"PAR1 nothing at all PAR1"])
def test_a_corrupt_file_is_not_resumed(capsys, tmp_path: Path, monkeypatch: Any, damage: Any) -> None:
    path = tmp_path / "sweep.parquet"
    interrupted(path, monkeypatch)
    path.write_bytes(damage(path.read_bytes()))
    refused(here(capsys, *ARGUMENTS, "--out", str(path), "--resume"), "cannot resume", path.name)


def test_a_file_that_is_not_there_is_begun(capsys, tmp_path: Path) -> None:
    assert here(capsys, *ARGUMENTS, "--out", str(tmp_path / "new.parquet"), "--resume").code == 0


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_link_to_itself_is_no_place_for_a_store(capsys, tmp_path: Path, resume: tuple[str, ...]) -> None:
    path = tmp_path / "loop.zarr"
    path.symlink_to(path.name)
    refused(here(capsys, *ARGUMENTS, "--out", str(path), *resume), "cannot write", "Too many levels of symbolic links")


def test_an_unwritable_path_is_one_line(capsys, tmp_path: Path) -> None:
    refused(here(capsys, *ARGUMENTS, "--out", str(tmp_path / "missing" / "sweep.parquet")), "cannot write")
    (tmp_path / "taken.parquet").mkdir()
    refused(here(capsys, *ARGUMENTS, "--out", str(tmp_path / "taken.parquet")), "is no file")


def test_a_full_disk_is_one_line_and_leaves_what_was_there(capsys, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "sweep.parquet"
    path.write_bytes(b"before")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    refused(here(capsys, *ARGUMENTS, "--out", str(path)), "cannot write", "No space left on device")
    assert path.read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bacth", "1,2"], "--batch"),
        (["--over", "layer=1,2"], "'layers'"),
        (["--over", "layers"], "layers=6:48:6"),
        (["--batch", "4:1"], "4:1"),
        (["--batch", "1:100000", "--seq", "1:100000", "--over", "layers=1:100000", "--json"], "--out"),
        (["--batch", "1", "--out", "sweep.xyz"], ".parquet, .zarr"),
        (["--batch", "1", "--quantities", "memory.peek"], "'memory.peak'"),
        (["--batch", "1", "--resume"], "give its --out FILE.parquet"),
        (["--batch", "1:1000000", "--seq", "1:1024", "--over", "layers=1:100000", "--out", "s.parquet"], "at most"),
        (["--batch", "1:9999999", "--seq", "1:1024", "--over", "layers=1:100000", "--out", "s.zarr"], "free"),
        (["--batch", "1:1000000", "--seq", "1:1024", "--over", "layers=1:100000"], "fewer values, or several"),
        (["--over", "layers=1,2", "--over", " layers =3"], "axis layers is given twice"),
        (["--batch", "1,2", "--over", "batch=3"], "axis batch is given twice"),
        (["--batch", "1,2", "--batch", "3"], "axis batch is given twice"),
        (["--batch", "1", "--quantities", ""], "--quantities names nothing"),
        (["--batch", "1", "--quantities", "params,,flops.total"], "take out a comma"),
        (["--batch", "1", "--out", "no/such/folder/s.zarr"], "there is no folder 'no/such/folder'"),
    ],
)
def test_what_is_wrong_with_a_command_is_one_line(capsys, arguments: list[str], said: str) -> None:
    refused(here(capsys, "sweep", "gpt2-small", *arguments), said)


def test_truth_values_are_read_as_they_are_written(capsys) -> None:
    found = [
        here(capsys, "sweep", "gpt2-small", "--seq", "64", "--over", f"tied={v}") for v in ("true,false", "True,False")
    ]
    assert found[0] == found[1]
    assert "no answer" not in found[0].out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_ctrl_c_ends_with_130_and_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.parquet"
    arguments = ["sweep", "gpt2-small", "--batch", "1:3000", "--seq", "1:1024", "--out", str(path)]
    # The process stops itself once a part is whole: no clock tells when that is.
    program = """if True:
        import os, signal, sys
        from costmodel.cli import run

        def stop(event, arguments):
            if event == "os.rename" and "part-" in str(arguments[1]):
                os.kill(os.getpid(), signal.SIGINT)

        sys.addaudithook(stop)
        sys.exit(run(sys.argv[1:]))
    """
    process = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    said = process.stderr
    assert process.returncode == 130
    assert said.startswith(f"stopped: {path} holds ")
    assert said.endswith("of 3,072,000 cells; --resume goes on\n")
    assert 0 < len(pandas.read_parquet(path, columns=["batch"])) < 3000 * 1024
