"""Files are written whole or not at all, by one at a time, and nothing of a killed writer stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.cli import run
from costmodel.documents.files import alone, replacing, write
from tests.command import error_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def in_child(job: Callable[[], Any]) -> int:
    """The exit code of a process that does a job, and whose end no handler sees."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = job() or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_writing(path: Path) -> None:
    def killed() -> None:
        with replacing(path) as file:
            file.write(b"half")
            os._exit(9)

    assert in_child(killed) == 9


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    path, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    killed_writing(path)
    killed_writing(other)
    strangers = [tmp_path / name for name in ("a.yaml.part", "a.yaml.x-1.part", "aXyaml.1-1.part")]
    for stranger in strangers:
        stranger.write_text("mine")
    write("whole", path)
    assert path.read_text() == "whole"
    left = {each.name for each in tmp_path.iterdir()}
    assert left >= {each.name for each in strangers}
    assert len(left - {each.name for each in strangers}) == 2  # the file, and what was left of the other


def test_what_another_is_writing_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with replacing(path) as file:
        file.write(b"first")
        assert in_child(lambda: write("second", path)) == 0
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["a.yaml"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "a.yaml"
    path.write_text("before")

    def too_much() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        return 0 if "cannot write" in error_of(lambda: write("x" * 100_000, path)) else 1

    assert in_child(too_much) == 0
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["a.yaml"]


def test_only_one_at_a_time_sweeps_into_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("zarr")
    for suffix in (".parquet", ".zarr"):
        path = tmp_path / f"sweep{suffix}"
        words = ["sweep", "mlp-mnist", "--batch", "1:4", "--quantities", "params", "--out", str(path)]
        with alone(path):
            assert in_child(lambda words=words: run(words)) == 2
            assert run(words) == 2
            assert "is being written by another process" in capsys.readouterr().err
        assert not path.exists()
        assert run(words) == 0
        assert [each.name for each in tmp_path.iterdir() if each.name.startswith(f"sweep{suffix}")] == [path.name]


def test_a_lock_goes_with_whoever_has_it(tmp_path: Path) -> None:
    path = tmp_path / "sweep.zarr"

    def killed() -> None:
        with alone(path):
            os._exit(9)

    assert in_child(killed) == 9
    with alone(path), pytest.raises(cm.CostModelError, match="another process"), alone(path):
        pass
    assert list(tmp_path.iterdir()) == []
