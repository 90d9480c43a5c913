"""The ready machines are what their vendors say, hang together, and are found by the names that people write."""

from __future__ import annotations

import re

import pytest

import costmodel as cm
from costmodel.hardware.catalogue import _key, _known, load_machine, machines
from costmodel.hardware.machine import Peaks
from tests.command import error_of

READY = {machine.name: machine for machine in machines()}

PUBLISHED = {
    # processors, boost clock [MHz], L2 [MiB], 16-bit products accumulated in fp32 [TFLOP/s], GB/s, GiB, W
    "p100-sxm2": (56, 1480, 4, 21.2, 732, 16, 300),
    "v100-sxm2-32gb": (80, 1530, 6, 125, 900, 32, 300),
    "v100-pcie-16gb": (80, 1380, 6, 112, 900, 16, 250),
    "t4": (40, 1590, 4, 65, 320, 16, 70),
    "rtx-2080-ti": (68, 1545, 5.5, 53.8, 616, 11, 250),
    "titan-rtx": (72, 1770, 6, 130.5, 672, 24, 280),
    "a100-sxm-40gb": (108, 1410, 40, 312, 1555, 40, 400),
    "a100-sxm-80gb": (108, 1410, 40, 312, 2039, 80, 400),
    "a100-pcie-80gb": (108, 1410, 40, 312, 1935, 80, 300),
    "a30": (56, 1440, 24, 165, 933, 24, 165),
    "a40": (84, 1740, 6, 149.7, 696, 48, 300),
    "a10": (72, 1695, 6, 125, 600, 24, 150),
    "rtx-a6000": (84, 1800, 6, 154.8, 768, 48, 300),
    "rtx-3090": (82, 1695, 6, 71, 936, 24, 350),
    "rtx-3080": (68, 1710, 5, 59.5, 760, 10, 320),
    "l4": (58, 2040, 48, 121, 300, 24, 72),
    "l40s": (142, 2520, 96, 362, 864, 48, 350),
    "rtx-4090": (128, 2520, 72, 165.2, 1008, 24, 450),
    "rtx-4080": (76, 2505, 64, 97.5, 716.8, 16, 320),
    "rtx-6000-ada": (142, 2505, 96, 364.2, 960, 48, 300),
    "h100-sxm": (132, 1980, 50, 989.4, 3350, 80, 700),
    "h100-pcie": (114, 1755, 50, 756, 2000, 80, 350),
    "h200-sxm": (132, 1980, 60, 989.4, 4800, 141, 700),
    "b200-sxm": (148, 1965, 126.5, 2250, 8000, 180, 1000),
    "rtx-5090": (170, 2407, 96, 209.5, 1792, 32, 575),
    "rtx-5080": (84, 2617, 64, 112.6, 960, 16, 360),
    "rtx-pro-6000": (188, 2617, 128, 503.8, 1792, 96, 600),
}
"""As the vendors' architecture white papers and data sheets have them."""


@pytest.mark.parametrize(("name", "figures"), PUBLISHED.items(), ids=PUBLISHED)
def test_figures_are_those_of_the_white_papers(name: str, figures: tuple[float, ...]) -> None:
    processors, boost, cache, half, bandwidth, memory, power = figures
    machine = READY[name]
    assert machine.processors == processors
    assert machine.boost_clock == boost * 1e6
    assert machine.levels[0].name == "L2"
    assert max(level.size for level in machine.levels) == cache * 2**20
    assert machine.product_peak("fp16") == pytest.approx(half * 1e12, rel=0.005)
    assert machine.bandwidth == pytest.approx(bandwidth * 1e9, rel=0.002)
    assert machine.memory == memory * 2**30
    assert machine.tdp == power


MATRIX_RATE = {
    "volta": 1024,
    "turing": 1024,
    "ampere": 1024,
    "ada": 1024,
    "blackwell": 1024,
    "hopper": 4096,
    "GA100": 2048,
    "GB100": 8192,
    "cdna": 1024,
    "cdna2": 1024,
    "cdna3": 2048,
    "cdna4": 4096,
    "rdna3": 512,
    "rdna4": 1024,
}
"""FLOP a clock of one processor in dense 16-bit products accumulated in fp32, by chip or architecture: multiply-adds
a tensor core (Volta 64, Turing 64, GA100 256, GA10x 128, Hopper 512, Blackwell 1024) times cores a processor (8 of
Volta and Turing, else 4), times two; of AMD as its CDNA white papers list them."""
GEFORCE = re.compile(r"(rtx|gtx)-\d{4}(-ti|-super|-d)*(-\d+gb)?")
HALVED = {"l40", "l20", "a10g"}
"""Boards beside GeForce ones that accumulate in fp32 at half the rate."""
PRODUCT_CLOCK = {
    **dict.fromkeys(["h100-sxm", "h200-sxm", "h800-sxm", "gh200-96gb", "gh200-144gb"], 1.83e9),
    "h100-pcie": 1.62e9,
    **dict.fromkeys(["h100-nvl", "h200-nvl"], 1.545e9),
    "b200-sxm": 1.856e9,
    **dict.fromkeys(["gb200", "gb300"], 2.008e9),
    "b300-sxm": 1.856e9,
}
"""Where peaks of products are at another clock than the boost clock: peak over processors and rate [Hz]."""
OTHER = {"h20", "gb10"}
"""Machines whose products run at a rate of their own."""


def rate_of(machine: cm.Machine) -> float:
    rate = MATRIX_RATE.get(machine.chip) or MATRIX_RATE.get(machine.architecture, 0)
    if machine.name in {"b300-sxm", "gb300"}:
        rate = MATRIX_RATE["GB100"]
    return rate / 2 if GEFORCE.fullmatch(machine.name) or machine.name in HALVED else rate


WITH_MATRIX_UNITS = [
    name
    for name, machine in READY.items()
    if machine.vendor in {"NVIDIA", "AMD"} and machine.peak.fp16 and name not in OTHER
]


@pytest.mark.parametrize("name", WITH_MATRIX_UNITS)
def test_peaks_of_products_are_processors_times_clock_times_rate(name: str) -> None:
    machine = READY[name]
    assert machine.processors
    clock = PRODUCT_CLOCK.get(name) or machine.boost_clock
    if clock is None:
        pytest.skip("its clock is not published")
    assert machine.peak.fp16 == pytest.approx(machine.processors * clock * rate_of(machine), rel=0.015)


LANES = {
    "kepler": 192,
    "maxwell": 128,
    "pascal": 128,
    "volta": 64,
    "turing": 64,
    "ampere": 128,
    "ada": 128,
    "hopper": 128,
    "blackwell": 128,
    "GP100": 64,
    "GA100": 64,
    "gcn5": 64,
    "cdna": 64,
    "cdna2": 64,
    "cdna3": 128,
    "cdna4": 128,
    "rdna3": 128,
    "rdna4": 128,
}
"""fp32 multiply-adds a clock of one processor, on vector units."""


@pytest.mark.parametrize("name", [n for n, m in READY.items() if m.architecture in LANES and m.boost_clock])
def test_vector_peaks_are_processors_times_clock_times_lanes(name: str) -> None:
    machine = READY[name]
    if name in OTHER:
        pytest.skip("its figures are of another clock")
    assert machine.processors
    assert machine.boost_clock
    lanes = LANES.get(machine.chip) or LANES[machine.architecture]
    assert machine.peak.fp32 == pytest.approx(machine.processors * machine.boost_clock * 2 * lanes, rel=0.03)


@pytest.mark.parametrize("machine", READY.values(), ids=READY)
def test_every_machine_hangs_together(machine: cm.Machine) -> None:
    peaks = machine.peak.rates
    for slower, faster in [
        ("fp64", "fp32"),
        ("fp64", "fp64_tensor"),
        ("fp32", "tf32"),
        ("fp32", "fp16_vector"),
        ("tf32", "fp16"),
        ("fp16", "fp16_acc16"),
        ("bf16", "fp8"),
        ("fp8", "fp8_acc16"),
        ("fp8", "fp4"),
        ("int8", "int4"),
    ]:
        if slower in peaks and faster in peaks:
            assert peaks[slower] <= peaks[faster] * 1.001, (slower, faster)
    assert all(1e10 < peak < 1e17 for peak in peaks.values())
    assert 1e10 < machine.bandwidth < 1e13
    assert 2**32 <= machine.memory <= 2**39
    assert all(level.bandwidth is None or level.bandwidth > machine.bandwidth for level in machine.levels)
    assert all(2**18 <= level.size <= 2**29 for level in machine.levels)
    assert machine.year
    assert 2014 <= machine.year <= 2026
    assert machine.vector_peak() <= max(peaks.values())
    assert machine.price is None, "prices change, and are given"


@pytest.mark.parametrize("machine", READY.values(), ids=READY)
def test_every_figure_has_a_source_and_a_date(machine: cm.Machine) -> None:
    for figure in (row["figure"] for row in machine.rows()):
        source = machine.source_of(figure)
        assert source is not None, figure
        assert source.date
    named = {figure for source in machine.sources for figure in source.figures}
    known = {*cm.Machine.model_fields, *(f"peak.{name}" for name in Peaks.model_fields)}
    assert named <= known
    given = {figure for figure in named if figure.startswith("peak.")}
    assert {figure.removeprefix("peak.") for figure in given} <= machine.peak.rates.keys()


@pytest.mark.parametrize("machine", READY.values(), ids=READY)
def test_a_machine_is_made_again_from_its_data(machine: cm.Machine) -> None:
    assert cm.Machine(**machine.to_dict()) == machine
    assert load_machine(machine.name) == machine
    assert max(map(len, str(machine).splitlines())) <= 100


WRITTEN = {
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "A100-SXM4-40GB DGX": "a100-sxm-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "A100-PCIe-80GB": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "A100": "a100-sxm-80gb",
    "H100": "h100-sxm",
    "h100_SXM": "h100-sxm",
    "H100-SXM5-80GB": "h100-sxm",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "H200-SXM-141GB": "h200-sxm",
    "H800-SXM-80GB": "h800-sxm",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "B200-SXM": "b200-sxm",
    "GB200 (per GPU)": "gb200",
    "4090": "rtx-4090",
    "RTX4090": "rtx-4090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "RTX 3090": "rtx-3090",
    "GeForce RTX 3080 Ti": "rtx-3080-ti",
    "2080 Ti": "rtx-2080-ti",
    "GTX 1080 Ti": "gtx-1080-ti",
    "NVIDIA TITAN RTX": "titan-rtx",
    "TITAN Xp": "titan-xp",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "V100-SXM3-32GB DGX-2": "v100-sxm3-32gb",
    "V100": "v100-sxm2-16gb",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla T4": "t4",
    "Tesla P4": "p4",
    "NVIDIA A10G": "a10g",
    "NVIDIA L40S": "l40s",
    "A6000": "rtx-a6000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "Quadro RTX 6000": "quadro-rtx-6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000",
    "MI300X": "mi300x",
    "AMD Instinct MI250X": "mi250x",
    "MI210": "mi210",
    "Gaudi2": "gaudi-2",
    "Intel Gaudi 3": "gaudi-3",
    "TPU v3 (chip)": "tpu-v3",
    "Cloud TPU v5e": "tpu-v5e",
    "TPUv4": "tpu-v4",
    "M2 Ultra GPU": "m2-ultra",
    "Apple M1 Max": "m1-max",
    "RTX 3090 24GB": "rtx-3090",
    "L40S-48GB": "l40s",
    "TITAN V (12GB)": "titan-v",
    "A100-80G": "a100-sxm-80gb",
    "V100 16G": "v100-sxm2-16gb",
    "DGX H100": "h100-sxm",
    "HGX B200": "b200-sxm",
}


@pytest.mark.parametrize(("written", "name"), WRITTEN.items(), ids=WRITTEN)
def test_machines_are_found_as_people_and_drivers_write_them(written: str, name: str) -> None:
    for form in (written, written.upper(), written.lower(), written.replace("-", " "), written.replace(" ", "_")):
        assert load_machine(form).name == name


def test_no_two_machines_are_written_alike() -> None:
    known = _known()
    for name, machine in READY.items():
        assert machine.name == name
        for written in (name, *machine.aliases):
            assert known[_key(written)] == name


def test_a_name_that_several_begin_with_is_refused_with_all_of_them() -> None:
    message = error_of(lambda: load_machine("A100 PCIe"))
    assert "'a100-pcie-40gb', 'a100-pcie-80gb'" in message
    assert "say which" in message


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("h1000", "'h100-sxm'"),
        ("RTX 4090 Laptop GPU", "'rtx-4090'"),
        ("gtx-1080-tie", "'gtx-1080-ti'"),
        ("mi300z", "'mi300x'"),
        ("RTX 3090 12GB", "'rtx-3090' has 24 GiB"),
        ("abacus", "costmodel machines"),
        ("", "costmodel machines"),
        (None, "is not a machine"),
        (100, "is not a machine"),
    ],
)
def test_an_unknown_machine_gets_the_nearest(asked: object, said: str) -> None:
    assert said in error_of(lambda: load_machine(asked))  # type: ignore[arg-type]


def test_searching_finds_by_name_vendor_architecture_chip_and_category() -> None:
    assert {m.name for m in machines("hopper")} >= {"h100-sxm", "h100-pcie", "h200-sxm"}
    assert {m.architecture for m in machines("hopper")} == {"hopper"}
    assert {m.category for m in machines("tpu")} == {"tpu"}
    assert {m.chip for m in machines("ga100")} == {"GA100"}
    assert {m.name for m in machines("a100 pcie")} == {"a100-pcie-40gb", "a100-pcie-80gb"}
    assert {m.vendor for m in machines("amd cpu")} == {"AMD"}
    assert [m.name for m in machines()] == sorted(READY)
    assert "'hopper'" in error_of(lambda: machines("hoper"))
    assert "costmodel machines" in error_of(lambda: machines(" "))
    assert cm.machines is machines


def test_machines_show_themselves_as_a_table() -> None:
    found = machines("a100 pcie")
    assert repr(found) == str(found)
    assert [line.split()[0] for line in str(found).splitlines()[:3]] == ["machine", "a100-pcie-40gb", "a100-pcie-80gb"]
    assert found._repr_html_().count("<tr") == 3
    assert found.to_dict() == [machine.to_dict() for machine in found]
