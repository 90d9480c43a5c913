"""Constants from kernels, timed by a stand-in for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import costmodel as cm
from costmodel.errors import CostModelError
from costmodel.performance.constants import typical
from costmodel.performance.laws import KernelModel
from costmodel.performance.probing import KernelProbe, probes
from tests.command import here

TRUE = {"product_share": 0.75, "bandwidth_share": 0.78, "kernel_seconds": 4e-6, "reduction_stream": 0.8}


def timer_of(machine: cm.Machine, noise: float = 0.0):
    """What a machine with other constants than its family's would time, each kernel a little off."""
    model = KernelModel(machine, typical(machine).changed(**TRUE), allow_tf32=False)
    state = {"sign": 1}

    def timer(probe: KernelProbe) -> float:
        state["sign"] = -state["sign"]
        return model.kernel_time(probe.kernel) * (1 + state["sign"] * noise)

    return timer


def test_constants_are_found_again() -> None:
    machine = cm.load_machine("a100-sxm-80gb")
    found = cm.calibrate_machine(machine, timer_of(machine), launch=5e-6, software="a stand-in")
    before, after = found.errors()
    assert after < 0.01 < before
    constants = found.calibration.constants
    for name, value in TRUE.items():
        assert constants[name] == pytest.approx(value, rel=0.08), name
    assert constants["eager_seconds"] == 5e-6


def test_noise_moves_constants_little() -> None:
    machine = cm.load_machine("rtx-4090")
    found = cm.calibrate_machine(machine, timer_of(machine, 0.05))
    assert found.errors()[1] < 0.07
    assert "eager_seconds" not in found.calibration.constants


def test_a_calibration_by_kernels_is_taken_by_times(tmp_path: Path) -> None:
    machine = cm.load_machine("h100-sxm")
    found = cm.calibrate_machine(machine, timer_of(machine))
    path = tmp_path / "lab.yaml"
    found.calibration.save(path)
    p = cm.predict("gpt2-small", batch=8, seq=512, precision="bf16")
    plain, own = p.on("h100-sxm"), p.on(path)
    assert own.tier == "calibrated"
    assert own.seconds > plain.seconds  # less of peak and bandwidth
    assert own.high / own.low < plain.high / plain.low
    assert "kernels are off" in str(found)


def test_what_is_timed_is_small_and_of_every_law() -> None:
    made = list(probes(cm.load_machine("v100-sxm2-16gb")))
    assert {probe.kernel.sort for probe in made} == {"product", "attention", "pointwise", "reduction"}
    assert {probe.kernel.dtype for probe in made} == {"fp16", "fp32"}  # there is no bf16
    assert 12 <= sum(probe.operator == "product" for probe in made) <= 40
    assert max(probe.kernel.read + probe.kernel.written for probe in made) < 4e9
    assert len({probe.row for probe in made}) == len(made)


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(CostModelError, match="needs a GPU"):
        cm.calibrate_machine("h100-sxm")
    code, _, said = here(capsys, "machines", "calibrate")
    assert code == 2
    assert "PyTorch sees no GPU" in said


def test_kernels_faster_than_the_datasheet_are_left_out_with_a_warning() -> None:
    model = KernelModel(cm.load_machine("h100-sxm"), allow_tf32=False)

    def timer(probe: KernelProbe) -> float:
        return float(model.kernel_time(probe.kernel)) * (0.01 if probe.sizes == (8192, 8192, 8192) else 1.05)

    fit = cm.calibrate_machine("h100-sxm", timer, launch=4e-6)
    assert [text.split(" is faster")[0] for text in fit.warnings] == [
        "product 8192x8192x8192 bf16", "product 8192x8192x8192 fp32",
    ]  # fmt: skip
    assert not fit.stops
    kept = [(m, a) for m, a, least in zip(fit.measured, fit.after, fit.least, strict=True) if m >= least]
    assert sum(abs(after / measured - 1) for measured, after in kept) / len(kept) < 0.03
