"""A machine is its figures, in SI units, however they are written; what is none is refused in one line."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.hardware.machine import PRODUCT_PEAKS, Peaks
from tests.command import error_of

LAB: dict[str, Any] = {"name": "lab", "peak": {"bf16": "400 TFLOP/s"}, "bandwidth": "2 TB/s", "memory": "64 GiB"}


def lab(**changes: Any) -> cm.Machine:
    return cm.Machine(**{**LAB, **changes})


def test_a_machine_of_ones_own_in_one_line() -> None:
    machine = cm.Machine(name="lab", peak={"bf16": "400 TFLOP/s"}, bandwidth="2 TB/s", memory="64 GiB")
    assert machine.product_peak("bf16") == 4e14
    assert machine.bandwidth == 2e12
    assert machine.memory == 64 * 2**30
    assert machine.vector_peak() == 4e14 / 16, "the documented default"
    assert machine.ridge("bf16") == 200
    assert (machine.processors, machine.tdp, machine.price, machine.levels) == (None, None, None, ())
    assert machine.node_size == 1
    assert not machine.confirmed("bandwidth")


@pytest.mark.parametrize(
    ("field", "texts", "value"),
    [
        ("bandwidth", ["900 GB/s", "900GB/s", "0.9 TB/s", "900 GBps", 9e11, 900_000_000_000], 9e11),
        ("bandwidth", ["400 Gbit/s", "400 Gbps", "50 GB/s"], 5e10),
        ("bandwidth", ["1 TiB/s"], 2.0**40),
        ("boost_clock", ["1.41 GHz", "1410 MHz", "1410MHz", 1.41e9], 1.41e9),
        ("tdp", ["400 W", "0.4 kW", 400], 400.0),
        ("call_overhead", ["5 µs", "5 us", "5000 ns", 5e-6], 5e-6),
        ("memory", ["1 GiB", "1024 MiB", 2**30], 2**30),
    ],
)
def test_an_amount_is_the_same_however_it_is_written(field: str, texts: list[Any], value: float) -> None:
    for text in texts:
        assert getattr(lab(**{field: text}), field) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["312 TFLOP/s", "312 TFLOPS", "312 TFLOPs", "312 TOP/s", "312 TOPS", "0.312 PFLOP/s"])
def test_peaks_take_the_spellings_of_datasheets(text: str) -> None:
    if text.endswith("s") and "/" not in text and not text.isupper():
        assert lab(peak={"bf16": text}).peak.bf16 == 3.12e14
    assert lab(peak={"int8": text}).peak.int8 == pytest.approx(3.12e14)


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a limit above the most": ({"tdp": 400, "power_limit": 500}, ["power_limit 500 W", "tdp is 400 W"]),
    "a limit of what is not known": ({"power_limit": "300 W"}, ["power_limit 300 W", "not given"]),
    "an amount for a rate": ({"bandwidth": "2 TB"}, ["bandwidth='2 TB'", "'2 TB/s'"]),
    "nothing a second": ({"bandwidth": 0}, ["bandwidth=0"]),
    "nothing a second as text": ({"bandwidth": "0 TB/s"}, ["bandwidth='0 TB/s'"]),
    "not a number": ({"bandwidth": math.nan}, ["bandwidth=nan"]),
    "not a number as text": ({"bandwidth": "nan"}, ["bandwidth='nan'", "'3.35 TB/s'"]),
    "less than nothing": ({"bandwidth": -1.0}, ["bandwidth=-1.0"]),
    "less than nothing as text": ({"bandwidth": "-2 TB/s"}, ["bandwidth='-2 TB/s'"]),
    "no unit": ({"bandwidth": "2000"}, ["bandwidth='2000'", "no unit"]),
    "bits or bytes": ({"bandwidth": "400 Gb/s"}, ["'400 GB/s'", "'400 Gbit/s'"]),
    "FLOP/s for B/s": ({"bandwidth": "2 TFLOP/s"}, ["bandwidth='2 TFLOP/s'"]),
    "None for a bandwidth": ({"bandwidth": None}, ["bandwidth=None"]),
    "a truth value": ({"bandwidth": True}, ["bandwidth=True"]),
    "a list": ({"bandwidth": ["2 TB/s"]}, ["bandwidth=['2 TB/s']"]),
    "an infinite text": ({"bandwidth": "inf TB/s"}, ["bandwidth='inf TB/s'"]),
    "memory without unit": ({"memory": "64"}, ["memory='64'", "64"]),
    "TFLOP/s as FLOP/s": ({"peak": {"bf16": 400}}, ["peak.bf16=400 is 400 FLOP/s", "'400 TFLOP/s' or 400e12"]),
    "GFLOP/s as FLOP/s": ({"peak": {"fp32": 19500.0}}, ["19500 FLOP/s", "'19500 GFLOP/s' or 19500e9"]),
    "a peak in words without its prefix": ({"peak": {"bf16": "400 FLOP/s"}}, ["'400 TFLOP/s'"]),
    "GB/s as B/s": ({"bandwidth": 900}, ["bandwidth=900 is 900 B/s", "'900 GB/s' or 900e9"]),
    "TB/s as B/s": ({"bandwidth": 3.35}, ["3.35 B/s", "'3.35 TB/s' or 3.35e12"]),
    "GB/s of a link as B/s": ({"links": [{"name": "x", "bandwidth": 300}]}, ["300 B/s", "'300 GB/s' or 300e9"]),
    "GB/s of a level as B/s": (
        {"levels": [{"name": "L2", "size": "4 MiB", "bandwidth": 5500}]},
        ["5500 B/s", "'5500 GB/s' or 5500e9"],
    ),
    "GiB as bytes": ({"memory": 80}, ["memory=80 is 80 bytes", "'80 GiB' or 80 * 2**30"]),
    "MiB of a level as bytes": ({"levels": [{"name": "L2", "size": 50}]}, ["50 bytes", "'50 MiB' or 50 * 2**20"]),
    "GHz as Hz": ({"boost_clock": 1.98}, ["1.98 Hz", "'1.98 GHz' or 1.98e9"]),
    "MHz as Hz": ({"base_clock": 1410}, ["1410 Hz", "'1410 MHz' or 1410e6"]),
    "µs as s": ({"call_overhead": 5}, ["5 s", "'5 µs' or 5e-6"]),
    "a call that never ends": ({"call_overhead": math.inf}, ["inf s", "give less than 1 s"]),
    "next to nothing": ({"peak": {"bf16": 1e-9}}, ["1e-09 FLOP/s", "give at least 100000 FLOP/s"]),
    "µs of a link as s": ({"links": [{"name": "x", "bandwidth": 1e9, "latency": 2.0}]}, ["2 s", "'2 µs' or 2e-6"]),
    "a rate for memory": ({"memory": "64 GB/s"}, ["memory='64 GB/s'"]),
    "an unknown type": ({"peak": {"bf61": "1 TFLOP/s"}}, ["'bf61'", "'bf16'"]),
    "an amount for a peak": ({"peak": {"bf16": "1 TFLOP"}}, ["peak.bf16='1 TFLOP'", "'1 TFLOP/s'"]),
    "a peak of nothing": ({"peak": {"bf16": 0}}, ["peak.bf16=0"]),
    "no peaks": ({"peak": {}}, ["peak", "bf16"]),
    "peaks of None": ({"peak": {"bf16": None}}, ["peak", "bf16"]),
    "one peak for all": ({"peak": "400 TFLOP/s"}, ["peak", "400 TFLOP/s"]),
    "numbers as types": ({"peak": {16: "400 TFLOP/s"}}, ["peak", "16"]),
    "an unknown field": ({"bandwith": "2 TB/s"}, ["'bandwith'", "'bandwidth'"]),
    "an unknown field of a level": ({"levels": [{"name": "L2", "sise": "4 MiB"}]}, ["levels.0", "size"]),
    "a level without size": ({"levels": [{"name": "L2"}]}, ["levels.0.size", "missing"]),
    "a level of nothing": ({"levels": [{"name": "L2", "size": "0 MiB"}]}, ["size='0 MiB'"]),
    "a level that is text": ({"levels": ["L2"]}, ["levels.0", "'L2'"]),
    "no list": ({"levels": 3}, ["levels", "3"]),
    "a link of bits or bytes": ({"links": [{"name": "x", "bandwidth": "100 Gb/s"}]}, ["100 Gbit/s"]),
    "no name": ({"name": ""}, ["name"]),
    "an unknown category": ({"category": "gpuu"}, ["category", "'gpu'", "'gpuu'"]),
    "no processors": ({"processors": 0}, ["processors", "0"]),
    "half a processor": ({"processors": 1.5}, ["processors", "1.5"]),
    "a price below nothing": ({"price": -1.0}, ["price", "-1"]),
    "a date of another form": ({"sources": [{"title": "a sheet", "date": "May 2020"}]}, ["'May 2020'", "2026-11-22"]),
    "base above boost": ({"base_clock": "2 GHz", "boost_clock": "1 GHz"}, ["base_clock", "boost_clock"]),
}


@pytest.mark.parametrize(("changes", "said"), BAD.values(), ids=BAD)
def test_what_is_no_machine_is_refused_in_one_line(changes: dict[str, Any], said: list[str]) -> None:
    message = error_of(lambda: lab(**changes))
    for words in said:
        assert words in message


def test_a_microcontroller_is_a_machine() -> None:
    """However slow, in numbers as in words, and there and back again."""
    small = cm.Machine(name="avr", peak={"fp32": 1e5}, bandwidth=1e6, memory=2048, base_clock=32_768)
    words = {"peak": {"fp32": "100 kFLOP/s"}, "bandwidth": "1 MB/s", "memory": "2 KiB", "base_clock": "32.768 kHz"}
    assert cm.Machine(name="avr", **words) == small == cm.Machine(**small.to_dict())
    assert lab(peak={"fp32": 1e6}, memory=65536).product_peak("fp32") == 1e6


@pytest.mark.parametrize("missing", LAB)
def test_what_has_no_default_must_be_given(missing: str) -> None:
    fields = {name: value for name, value in LAB.items() if name != missing}
    assert f"field {missing} is missing" in error_of(lambda: cm.Machine(**fields))


def test_a_type_without_a_peak_says_what_it_would_run_in() -> None:
    machine = lab(peak={"fp32": "10 TFLOP/s", "fp16": "80 TFLOP/s"})
    assert "it would run in fp32" in error_of(lambda: machine.product_peak("bf16"))
    assert "it would run in fp16" in error_of(lambda: machine.product_peak("fp8"))
    assert "nothing that it has" in error_of(lambda: machine.product_peak("fp64"))
    for dtype in ("fp32", "tf32", "fp16"):  # as on a TPU
        assert "bf16, which rounds its values" in error_of(lambda dtype=dtype: lab().product_peak(dtype))
    assert machine.runs_in("bf16") == "fp32"
    assert machine.runs_in("fp16") == "fp16"
    assert machine.runs_in("fp64") is None
    assert "did you mean" in error_of(lambda: machine.product_peak("bfloat16"))
    assert "no peak for fp64" in error_of(lambda: machine.vector_peak("fp64"))


def test_products_of_fp32_run_in_tf32_only_where_that_is_allowed() -> None:
    machine = lab(peak={"fp32": 1e13, "tf32": 8e13})
    assert machine.product_peak("fp32") == 1e13
    assert machine.product_peak("fp32", allow_tf32=True) == 8e13
    assert lab(peak={"fp32": 1e13}).product_peak("fp32", allow_tf32=True) == 1e13


def test_matrix_units_are_for_products_alone() -> None:
    machine = lab(peak={"fp32": 1e13, "fp32_tensor": 4e13, "fp16": 8e13, "fp16_vector": 2e13, "fp64": 1e12})
    assert machine.product_peak("fp32") == 4e13
    assert machine.vector_peak() == machine.vector_peak("bf16") == 1e13
    assert machine.vector_peak("fp16") == 2e13
    assert machine.vector_peak("fp64") == machine.product_peak("fp64") == 1e12


@given(st.dictionaries(st.sampled_from(sorted(Peaks.model_fields)), st.floats(1e6, 1e18), min_size=1))
def test_a_type_has_a_peak_or_runs_in_one_that_has(peaks: dict[str, float]) -> None:
    machine = lab(peak=peaks)
    for dtype in PRODUCT_PEAKS:
        runs_in = machine.runs_in(dtype)
        if runs_in == dtype:
            assert machine.product_peak(dtype) in peaks.values()
        else:
            error_of(lambda dtype=dtype: machine.product_peak(dtype))
            assert runs_in is None or machine.product_peak(runs_in) in peaks.values()


def test_an_infinite_machine_can_be_asked_about_in_python() -> None:
    machine = lab(peak={"bf16": math.inf}, bandwidth=math.inf)
    assert machine.product_peak("bf16") == math.inf
    assert "infinite" in str(machine)


def test_a_machine_is_fixed_once_it_is_made() -> None:
    machine = lab()
    assert "fixed" in error_of(lambda: setattr(machine, "bandwidth", 1.0))
    assert machine.with_fields({"tdp": "300 W", "peak.fp8": "800 TFLOP/s"}).product_peak("fp8") == 8e14
    assert machine.tdp is None
    assert copy.deepcopy(machine) == pickle.loads(pickle.dumps(machine)) == machine
    assert hash(copy.deepcopy(machine)) == hash(machine)


FILE = """\
name: lab
peak:
  fp32: 20 TFLOP/s
  bf16: 400 TFLOP/s
bandwidth: 2 TB/s
memory: 64 GiB
levels:
  - {name: L2, size: 40 MiB, bandwidth: 5 TB/s}
links:
  - name: fabric
    bandwidth: 100 GB/s
    latency: 2 us
sources:
  - title: a sheet
    date: 2026-01-02
    confirmed: true
"""


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(FILE)
    machine = cm.load_machine(path)
    assert machine == cm.Machine.load(path) == cm.load_machine(str(path))
    assert machine.levels[0].bandwidth == 5e12
    assert machine.links[0].latency == 2e-6
    assert machine.fastest_link == machine.links[0]
    assert machine.confirmed("bandwidth", "peak.fp32")
    as_json = tmp_path / "lab.json"
    as_json.write_text(machine.to_json())
    assert cm.load_machine(as_json) == machine


@pytest.mark.parametrize(
    ("was", "now", "line", "said"),
    [
        ("bandwidth: 2 TB/s", "bandwidth: 2 TB", 5, "'2 TB/s'"),
        ("bandwidth: 2 TB/s", "bandwidth: 0", 5, "bandwidth=0"),
        ("bandwidth: 2 TB/s", "bandwidth: .nan", 5, "bandwidth='.nan'"),
        ("bandwidth: 2 TB/s", "bandwidth: -1", 5, "bandwidth=-1"),
        ("bandwidth: 2 TB/s", "bandwith: 2 TB/s", 5, "'bandwidth'"),
        ("bf16: 400", "bf61: 400", 2, "'bf16'"),
        ("bf16: 400 TFLOP/s", "bf16: 400 TFLOP", 4, "'400 TFLOP/s'"),
        ("size: 40 MiB", "size: forty", 8, "size='forty'"),
        ("latency: 2 us", "latency: 2 m", 12, "latency"),
        ("date: 2026-01-02", "date: today", 14, "'today'"),
        ("peak:", "peak: &p", 2, "&p"),
        ("name: lab", "name: !!python/object/apply:os.getcwd []", 1, "tag"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_line(tmp_path: Path, was: str, now: str, line: int, said: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(FILE.replace(was, now, 1))
    message = error_of(lambda: cm.load_machine(path))
    assert f"lab.yaml, line {line}: " in message
    assert said in message


@pytest.mark.parametrize("content", [b"", b"- 1\n", b"lab\n", bytes(range(256)), b"#" * (2**20 + 1), b"[" * 100_000])
def test_any_file_is_a_machine_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lab.yaml"
    path.write_bytes(content)
    assert "lab.yaml" in error_of(lambda: cm.load_machine(path))
    assert "no such file" in error_of(lambda: cm.load_machine(tmp_path / "none.yaml"))
    assert "directory" in error_of(lambda: cm.load_machine(tmp_path))


def test_a_sheet_says_where_each_figure_is_from() -> None:
    sources = [
        {"title": "the sheet", "date": "2026-01-02", "confirmed": True, "figures": ["bandwidth", "peak"]},
        {"title": "hearsay", "figures": ["peak.fp64"]},
    ]
    machine = lab(peak={"bf16": 1e14, "fp64": 1e12}, sources=sources)
    assert machine.source_of("peak.bf16") == machine.source_of("bandwidth") == machine.sources[0]
    assert machine.source_of("peak.fp64") == machine.sources[1]
    assert machine.source_of("memory") is None
    assert machine.confirmed("peak.bf16", "bandwidth")
    assert not machine.confirmed("peak.fp64")
    assert not machine.confirmed("memory")
    rows = {row["figure"]: (row["source"], row["confirmed"]) for row in machine.rows()}
    assert rows["peak.fp64"] == ("hearsay", False)
    assert rows["memory"] == (None, False)
    lines = {line.split()[0]: line.split()[-1] for line in str(machine).splitlines() if line}
    assert (lines["bf16"], lines["fp64"], lines["memory"]) == ("yes", "no", "no")
    assert "<table" in machine._repr_html_()
    assert json.loads(machine.to_json())["peak"] == {"bf16": 1e14, "fp64": 1e12}
