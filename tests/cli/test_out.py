"""``--out`` means one thing in every command, and what it writes is the answer."""

from __future__ import annotations

import csv
import json
import os
import resource
from pathlib import Path
from threading import Thread

import click
import pytest

from costmodel.analysis.predict import predict
from costmodel.cli.commands import Verb, Verbs, costmodel
from costmodel.documents.files import replacing
from costmodel.errors import CostModelError
from costmodel.performance.calibration import Calibration
from tests.command import here, refused

MLP = ("mlp-mnist", "--batch", "4")
ASKED = {
    "predict": ("predict", *MLP),
    "on": ("predict", *MLP, "--on", "h100-sxm"),
    "parts": ("predict", *MLP, "--depth", "1"),
    "explain": ("explain", "mlp-mnist", "params"),
    "fits": ("fits", "mlp-mnist", "1GiB"),
    "choose": ("fits", "mlp-mnist", "1GiB", "--choose"),
    "timeline": ("timeline", *MLP),
    "solve": ("solve", "mlp-mnist", "memory.peak", "64MiB"),
    "sensitivity": ("sensitivity", "mlp-mnist", "params"),
    "break-even": ("break-even", "mlp-mnist", "memory.activations", "memory.weights", "--for", "batch"),
    "recommend": ("recommend", "mlp-mnist", "1GiB", "--optimizer", "sgd", "--precision", "fp32"),
    "compare": ("compare", "mlp-mnist", "--optimizer", "sgd,adamw"),
    "pareto": ("pareto", "mlp-mnist", "memory.peak", "flops.total", "--batch", "1,2"),
    "models": ("models", "--family", "mlp"),
    "show": ("show", "mlp-mnist"),
    "list": ("list", "precisions"),
    "machines": ("machines", "hopper"),
    "machine": ("machines", "show", "h100-sxm"),
}
DRAWN = {"predict", "on", "parts", "timeline", "solve", "compare", "pareto"}


def every_verb(group: Verbs) -> list[Verb]:
    context = click.Context(group)
    found = [group.get_command(context, name) for name in group.list_commands(context)]
    groups = [each for each in found if isinstance(each, Verbs)]
    return [each for each in found if isinstance(each, Verb)] + [v for each in groups for v in every_verb(each)]


def test_every_command_takes_out_and_none_an_older_name() -> None:
    verbs = every_verb(costmodel)
    assert len(verbs) > 20
    for verb in verbs:
        options = {name for parameter in verb.params for name in parameter.opts}
        assert "--out" in options, verb.name
        assert not options & {"--plot", "--html", "--csv"}, verb.name


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_every_answer_is_written_as_page_table_data_and_text(capsys, tmp_path: Path, asked: tuple[str, ...]) -> None:
    pytest.importorskip("pandas")
    files = {ending: tmp_path / f"a{ending}" for ending in (".html", ".csv", ".json", ".txt")}
    printed = here(capsys, *asked)
    for path in files.values():
        outcome = here(capsys, *asked, "--out", str(path))
        assert (outcome.code, outcome.out, outcome.err) == printed
    page = files[".html"].read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert files[".csv"].read_text(encoding="utf-8").partition("\n")[0]
    assert json.loads(files[".json"].read_text(encoding="utf-8")) == json.loads(here(capsys, *asked, "--json").out)
    assert files[".txt"].read_text(encoding="utf-8") == printed.out
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_picture_is_written_where_there_is_one(
    capsys, tmp_path: Path, asked: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.png"
    outcome = here(capsys, *asked, "--out", str(path))
    if request.node.callspec.id in DRAWN:
        assert outcome.code == 0, outcome.err
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        refused(outcome, "a.png", ".html (a page)", ".csv")
        assert not path.exists()


def test_a_table_has_a_row_for_each_layer(capsys, tmp_path: Path) -> None:
    assert here(capsys, "predict", *MLP, "--out", str(tmp_path / "layers.csv")).code == 0
    rows = list(csv.DictReader((tmp_path / "layers.csv").open(encoding="utf-8")))
    p = predict("mlp-mnist", batch=4)
    assert sum(int(row["params"]) for row in rows) == p.params
    assert [row["name"] for row in rows] == [row.name for row in p.layers]
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert here(capsys, "predict", *MLP, "--out", str(tmp_path / "layers.parquet")).code == 0
    assert pandas.read_parquet(tmp_path / "layers.parquet")["params"].sum() == p.params


def test_a_sweep_is_written_as_cells_and_as_pictures(capsys, tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    asked = ("sweep", "mlp-mnist", "--batch", "1:8", "--quantities", "memory.peak")
    files = [tmp_path / name for name in ("a.csv", "a.png", "b.svg")]
    assert here(capsys, *asked, *(word for path in files for word in ("--out", str(path)))).code == 0
    rows = list(csv.DictReader(files[0].open(encoding="utf-8")))
    peaks = [predict("mlp-mnist", batch=n).memory.peak for n in range(1, 9)]
    assert [int(row["memory.peak"]) for row in rows] == peaks
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[2].read_text()
    refused(here(capsys, *asked, "--out", "a.xyz"), "a.xyz", ".parquet", ".png")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("timeline", "mlp-mnist", "--plot", "a.png"), "--out FILE"),
        (("roofline", "check", "mlp-mnist", "--html", "a.html"), "--out FILE"),
        (("recommend", "mlp-mnist", "--memory", "1GiB"), "follows MODEL"),
        (("predict", "mlp-mnist", "--out", "no/such/a.html"), "cannot write"),
        (("machines", "fit", "no-such", "--measured", "mlp-mnist: 1 s", "--out", "no/such/a.yaml"), "cannot write"),
        (("machines", "calibrate", "no-such", "--out", "no/such/a.yaml"), "cannot write"),
        (("predict", "mlp-mnist", "--out", "a.xyz"), ".png, .svg or .pdf"),
        (("predict", "mlp-mnist", "--out", ""), "use a name that ends in"),
    ],
)
def test_what_is_not_written_is_one_line(capsys, words: tuple[str, ...], said: str) -> None:
    refused(here(capsys, *words), said)


CALIBRATION = Calibration(machine="h100-sxm", constants={"conditions": 2.0})


def test_a_file_is_as_it_was_where_there_is_no_room_for_another(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(CostModelError, match="cannot write"):
            CALIBRATION.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["lab.yaml", "lab.yml", "lab.json", "LAB.JSON"])
def test_a_calibration_is_read_back_whatever_its_file_is_called(name: str, tmp_path: Path) -> None:
    CALIBRATION.save(tmp_path / name)
    assert Calibration.load(tmp_path / name) == CALIBRATION


def test_a_link_is_replaced_and_what_it_names_is_left_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "lab.yaml", tmp_path / "other"
    other.write_text("before")
    path.symlink_to(other)
    CALIBRATION.save(path)
    assert other.read_text() == "before"
    assert Calibration.load(path) == CALIBRATION


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)  # or whoever opens it to write waits for ever
    try:
        with pytest.raises(CostModelError, match="pipe: name a regular file"):
            CALIBRATION.save(tmp_path / "pipe")
    finally:
        os.close(reader)


def test_two_that_write_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    with replacing(path) as file:
        file.write(b"mine, ")
        thread = Thread(target=CALIBRATION.save, args=(path,))
        thread.start()
        thread.join()
        assert Calibration.load(path) == CALIBRATION
        file.write(b"whole")
    assert path.read_text() == "mine, whole"
    assert list(tmp_path.iterdir()) == [path]
