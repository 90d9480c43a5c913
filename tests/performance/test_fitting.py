"""Constants from measured steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.errors import CostModelError
from costmodel.performance.calibration import Calibration, measured_step
from costmodel.performance.constants import typical
from costmodel.performance.fitting import calibrated
from costmodel.performance.intervals import law_shares, unlike_share
from tests.command import here

ROWS = (
    "gpt2-small batch=8 seq=256 precision=bf16 attention=flash",
    "resnet50 batch=64 precision=fp16-autocast",
    "resnet18 batch=2 mode=inference",
    "vit-b-16 batch=16 mode=inference precision=fp16",
    "gpt2-small batch=1 seq=32",
)


def rows(machine: str, **constants: float) -> list[str]:
    """What a machine with other constants than its family's would measure."""
    device = cm.load_machine(machine)
    found = []
    for row in ROWS:
        time = cm.time_on(measured_step(f"{row}: 1 s").prediction, device)
        found.append(f"{row}: {time.seconds_with(typical(device).changed(**constants)):.9f} s")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.6])
def test_one_step_gives_one_number_that_reproduces_it(factor: float) -> None:
    (row, *_) = rows("h100-sxm", conditions=factor)
    fit = cm.fit_machine("h100-sxm", [row])
    assert fit.calibration.constants == {"conditions": pytest.approx(factor, rel=1e-3)}
    (time,) = fit.after
    assert time.seconds == pytest.approx(fit.steps[0].seconds, rel=1e-4)
    plain = cm.time_on(fit.steps[0].prediction, "h100-sxm")
    assert time.high / time.low < plain.high / plain.low
    assert time.high / time.seconds < 1.1


def test_several_steps_tell_constants_apart() -> None:
    given = rows("a100-sxm-80gb", bandwidth_share=0.75, product_share=0.8, conditions=1.05)
    fit = cm.fit_machine("a100-sxm-80gb", given)
    off = [abs(time.seconds / step.seconds - 1) for time, step in zip(fit.after, fit.steps, strict=True)]
    before = [abs(time / step.seconds - 1) for time, step in zip(fit.before, fit.steps, strict=True)]
    assert max(off) < 0.03 < max(before)


SHARDED = "llama-3.1-8b batch={batch} seq=4096 fsdp={fsdp} precision=bf16-master attention=flash"


def test_steps_on_several_devices_tell_of_their_links_too() -> None:
    """Of a network that half as much is reached of as is typical: kernels are left as they are, and others follow."""
    on = "jean-zay-a100"
    middle = typical(cm.load_cluster(on).machine)
    slow = middle.changed(network_share=0.5 * middle.network_share)
    rows = [SHARDED.format(batch=batch, fsdp=fsdp) for batch, fsdp in ((4, 8), (1, 32), (4, 32), (2, 32))]
    times = [cm.time_on(measured_step(f"{row}: 1 s").prediction, on) for row in rows]
    seconds = [float(time.seconds_with(slow)) for time in times]
    given = [f"{row}: {each:.9f} s" for row, each in zip(rows, seconds, strict=True)][:3]
    constants = cm.fit_machine(on, given).calibration.constants
    assert constants["network_share"] == pytest.approx(slow.network_share, rel=0.1)
    assert constants["product_share"] == pytest.approx(middle.product_share, rel=0.01)
    other = cm.time_on(times[-1].prediction, cm.fit_machine(on, given).calibration).seconds
    assert times[-1].seconds < 0.85 * seconds[-1]
    assert other == pytest.approx(seconds[-1], rel=0.03)
    alone = cm.fit_machine(on, [*given, "all-reduce 64 MiB on 8: 0.6 ms"]).calibration  # which tells of links by itself
    assert not {"link_share", "network_share"} & set(alone.constants)


def test_steps_on_a_named_cluster_are_of_its_network() -> None:
    row, on = SHARDED.format(batch=1, fsdp=32), "jean-zay-a100"
    p = measured_step(f"{row}: 1 s").prediction
    usual = cm.time_on(p, on).seconds
    assert usual > 1.2 * cm.time_on(p, "a100-sxm-80gb").seconds
    fit = cm.fit_machine(on, [f"{row}: {1.1 * usual:.9f} s"])
    assert fit.before == pytest.approx([usual])
    assert fit.after[0].seconds == pytest.approx(1.1 * usual, rel=1e-4)


@pytest.mark.parametrize("least", [0.6, 0.7, 0.75])
def test_what_hides_until_a_link_is_slow_enough_is_fitted_too(least: float) -> None:
    """Slopes before and after it no longer hides differ by far, and lead from one side to the other and back."""
    machine = cm.load_machine("a100-sxm-80gb")

    def predicted(constants: Any) -> list[float]:
        kernels, exposed = 0.1 * constants.link_share**-0.05, max(0.0, least / constants.link_share - 1.0)
        return [kernels + exposed]

    fitted = calibrated(machine, ("link_share",), predicted, [("a step", 0.13)], "", machine.name).on(machine)
    assert predicted(fitted) == pytest.approx([0.13], rel=1e-3)


def test_a_file_comes_back_and_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lab.yaml"
    code, out, _ = here(
        capsys, "machines", "fit", "h100-sxm", "--measured", "gpt2-small batch=32 seq=512: 0.7 s", "--out", str(path)
    )
    assert code == 0
    assert "(0%)" in out
    calibration = Calibration.load(path)
    assert calibration.machine == "h100-sxm"
    assert calibration.measured == ("gpt2-small batch=32 seq=512: 0.7 s",)
    p = cm.predict("gpt2-small", batch=32, seq=512)
    time = p.on(path)
    assert time.tier == "calibrated"
    assert time.seconds == pytest.approx(0.7, rel=1e-3)
    assert p.on(path, tier="typical").seconds == p.on("h100-sxm").seconds
    assert cm.predict("gpt2-small", batch=32, seq=512, on=path).value("seconds") == time.seconds
    code, out, _ = here(capsys, "predict", "gpt2-small", "--batch", "32", "--seq", "512", "--on", str(path))
    assert "700 ms" in out


def test_a_step_of_another_law_than_the_measured_one_has_the_wider_range(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    cm.fit_machine("a100-sxm-80gb", ["bert-base batch=64 seq=128 precision=bf16: 0.15 s"]).save(path)
    like = cm.predict("bert-base", batch=32, seq=128, precision="bf16").on(path)
    unlike = cm.predict("efficientnet_b0", batch=64, precision="bf16").on(path)
    [measured] = [law_shares(step.kernels) for step, _ in like.anchors]
    near, far = (unlike_share(law_shares(time.kernels), [measured]) for time in (like, unlike))
    assert near < 0.1 < 0.3 < far <= 1
    assert like.high / like.low < unlike.high / unlike.low


def test_a_stack_that_fuses_has_a_range_of_its_own() -> None:
    p = cm.predict("resnet50", batch=64, precision="bf16")
    eager, compiled = (p.on("a100-sxm-80gb", stack=stack) for stack in ("eager", "compiled"))
    named = [{effect.name for effect in time.interval.effects} for time in (eager, compiled)]
    assert "compiled_conditions" in named[1] - named[0]
    assert compiled.high / compiled.low > compiled.seconds_with(
        compiled.constants.changed(compiled_conditions=1.1)
    ) / compiled.seconds_with(compiled.constants.changed(compiled_conditions=0.87))


def test_rates_are_read_too() -> None:
    step = measured_step("resnet18 batch=256 image=224x160 mode=inference: 5,120 images/s")
    assert step.seconds == 256 / 5120
    assert step.prediction.batch_shape.image == (224, 160)
    assert measured_step("gpt2-small batch=2 seq=512: 2048 tokens/s").seconds == 0.5
    shared = "gpt2-small batch=2 seq=512 dp=4 accumulate=2: "
    for rate in ("16384 tokens/s", "32 sequences/s"):  # of all devices, as answers have them
        assert measured_step(shared + rate).seconds == 0.5


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("gpt2-small batch=32", "no measured step"),
        ("gpt2-small batch: 1 s", "batch=32"),
        ("gpt2-smal batch=1: 1 s", "gpt2-small"),
        ("resnet18 batch=1: 2 tokens/s", "a sample of ResNet-18 has no tokens: use '2000 images/s'"),
        ("gpt2-small batch=1: fast", "time='fast' is not a time: use text such as '5 µs'"),
        ("gpt2-small batch=1: 0 s", "above 0"),
        ("gpt2-small batch=1 stack=eagr: 1 s", "eager"),
        ("gpt2-small batch=1 seq=64 batch=32: 1 s", "batch is given twice"),
        ("gpt2-small batch=1 seq=64: 1,5 samples/s", "1,5 samples/s' is not a rate: use"),
    ],
)
def test_wrong_rows_are_refused_in_one_line(row: str, said: str) -> None:
    with pytest.raises(CostModelError, match=said) as error:
        cm.fit_machine("h100-sxm", [row])
    assert "\n" not in str(error.value)


def test_a_calibrated_tier_needs_a_calibration() -> None:
    how: Any = {"tier": "calibrated"}
    with pytest.raises(CostModelError, match="machines fit"):
        cm.predict("resnet18", batch=1).on("h100-sxm", **how)


def test_a_step_faster_than_the_datasheet_allows_is_said_to_be() -> None:
    row = "gpt2-small batch=32 seq=512: 0.213 s"  # in fp32: with tf32, as it must have been, it is possible
    (warning,) = cm.fit_machine("h100-sxm", row).warnings
    assert "tf32" in warning
    assert cm.fit_machine("h100-sxm", row.replace("0.213", "0.4")).warnings == []


def test_a_fit_that_is_stopped_says_so() -> None:
    row = "gpt2-small batch=32 seq=512: 20 s"
    (warning,) = cm.fit_machine("h100-sxm", row).warnings
    assert "stopped at conditions, 20 times its typical value: a step was measured in error" in warning
    assert cm.fit_machine("h100-sxm", row.replace("20 s", "2 s")).warnings == []


def test_collectives_that_cannot_be_are_told() -> None:
    """Far slower than any link of the machine, or faster than its datasheet: (1 + 1/8) of 64 MiB take 168 µs."""
    (slow,) = cm.fit_machine("h100-sxm", "all-reduce 64 MiB on 8: 1000 s").warnings
    assert "stopped at NVLink 4 on 8, 20 times its typical value: a collective was measured in error" in slow
    (fast,) = cm.fit_machine("h100-sxm", "all-reduce 64 MiB on 8: 167 us").warnings
    assert "faster than all algorithms at the whole bandwidth of NVLink 4 (168 µs)" in fast
    assert not cm.fit_machine("h100-sxm", "all-reduce 64 MiB on 8: 169 us").warnings


@pytest.mark.parametrize(
    "row", ["64 MiB on 0: 1 ms", "64 MiB on 2.5: 1 ms", "64 MiB: 1 ms", "64 MiB on 8", "on 8: 1 ms"]
)
def test_a_collective_that_is_not_said_whole_is_told_how(row: str) -> None:
    with pytest.raises(cm.CostModelError, match=r"a collective is measured in text such as 'all-reduce 64 MiB on 8: "):
        cm.fit_machine("h100-sxm", f"all-reduce {row}")


def test_a_step_faster_than_the_datasheet_is_left_out_with_a_warning() -> None:
    how = "gpt2-small batch=8 seq={} precision=bf16 attention=flash"
    times = {seq: cm.predict("gpt2-small", batch=8, seq=seq, precision="bf16", attention="flash").on("h100-sxm").seconds
             for seq in (512, 1024)}  # fmt: skip
    rows = [f"{how.format(seq)}: {1100 * seconds:.4g} ms" for seq, seconds in times.items()]
    wrong = "gpt2-small batch=64 seq=1024: 0.01 s"
    fit = cm.fit_machine("h100-sxm", [*rows, wrong])
    assert fit.calibration.constants == cm.fit_machine("h100-sxm", rows).calibration.constants
    assert list(fit.calibration.measured) == rows
    [warning] = fit.warnings
    assert warning.startswith(wrong)
    assert "left out" in warning
