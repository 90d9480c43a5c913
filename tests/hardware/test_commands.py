"""``costmodel machines`` lists, searches and shows, within 80 columns, and refuses in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import costmodel as cm
from tests.command import here, refused


def test_the_list_has_every_machine_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = here(capsys, "machines")
    header, *rows = out.partition("\n\n")[0].splitlines()
    assert code == 0
    assert header.split() == [
        *("machine", "memory", "bandwidth", "fp32", "16", "bit", "TDP", "year", "confirmed"),
    ]
    assert [row.split()[0] for row in rows] == [machine.name for machine in cm.machines()]
    assert {row.split()[-1] for row in rows} == {"yes", "part", "no"}
    assert max(map(len, out.splitlines())) <= 80


def test_words_search(capsys: pytest.CaptureFixture[str]) -> None:
    found = here(capsys, "machines", "a100", "pcie")
    assert [line.split()[0] for line in found.out.splitlines()[1:3]] == ["a100-pcie-40gb", "a100-pcie-80gb"]
    assert found == here(capsys, "machines", "search", "a100", "pcie")
    listed = json.loads(here(capsys, "machines", "a100", "pcie", "--json").out)
    assert [cm.Machine(**fields).name for fields in listed] == ["a100-pcie-40gb", "a100-pcie-80gb"]


def test_show_is_the_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert here(capsys, "machines", "show", "H100") == (0, f"{cm.load_machine('h100-sxm')}\n", "")
    shown = here(capsys, "machines", "show", "NVIDIA A100 80GB PCIe", "--json")
    assert cm.Machine(**json.loads(shown.out)) == cm.load_machine("a100-pcie-80gb")
    path = tmp_path / "lab.yaml"
    path.write_text("name: lab\npeak: {bf16: 400 TFLOP/s}\nbandwidth: 2 TB/s\nmemory: 64 GiB\n")
    assert "lab: accelerator" in here(capsys, "machines", "show", str(path)).out


def test_what_is_not_there_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refused(here(capsys, "machines", "show", "h1000"), "'h1000'", "'h100-sxm'")
    refused(here(capsys, "machines", "show"), "MACHINE", "costmodel machines show --help")
    refused(here(capsys, "machines", "show", "A100 PCIe"), "say which")
    refused(here(capsys, "machines", "abacus"), "'abacus'")
    path = tmp_path / "lab.yaml"
    path.write_text("name: lab\npeak: {bf16: 400 TFLOP/s}\nbandwidth: 2 TB\nmemory: 64 GiB\n")
    refused(here(capsys, "machines", "show", str(path)), "lab.yaml, line 3", "'2 TB/s'")


@pytest.mark.slow
def test_listing_loads_no_algebra() -> None:
    code = (
        "import sys; from costmodel.cli import run; run(['machines']); assert not {'numpy', 'sympy'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
