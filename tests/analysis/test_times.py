"""Seconds, rates, energy and money as quantities like any other."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel as cm
from costmodel.analysis.sweep.guarded import PIECE
from costmodel.cost.quantities import TIMED
from costmodel.display.units import shower
from costmodel.errors import CostModelError
from tests.command import here

PRICED = cm.Machine(
    name="lab", peak={"bf16": "400 TFLOP/s", "fp32": "20 TFLOP/s"}, bandwidth="2 TB/s", memory="64 GiB", tdp="400 W",
    price=3.0,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["eager", "compiled"])
def test_a_sweep_has_the_times_of_predictions(stack: Any) -> None:
    grid: dict[str, Any] = {"batch": range(1, 8), "seq": [16, 100, 256]}
    same: dict[str, Any] = {"attention": "flash", "stack": stack}
    swept = cm.sweep("gpt2-small", quantities=list(TIMED), on=PRICED, **grid, **same)
    for batch, seq in ((1, 16), (3, 100), (7, 256)):
        p = cm.predict("gpt2-small", batch=batch, seq=seq, on=PRICED, **same)
        for quantity in TIMED:
            found = float(swept[quantity].sel(batch=batch, seq=seq))
            assert found == pytest.approx(p.value(quantity), rel=1e-9), quantity


def test_a_grid_that_is_worked_out_in_pieces_has_the_times_of_predictions() -> None:
    sizes = {"batch": range(1, 161), "seq": range(4, 644, 4)}
    swept = cm.sweep("gpt2-small", on="h100-sxm", quantities=["seconds", "mfu"], **sizes)
    assert len(sizes["batch"]) * len(sizes["seq"]) > PIECE
    for batch, seq in ((1, 4), (80, 320), (81, 324), (160, 640), (1, 640), (160, 4)):
        t = cm.predict("gpt2-small", batch=batch, seq=seq).on("h100-sxm")
        cell = swept.sel(batch=batch, seq=seq)
        assert float(cell["seconds"]) == pytest.approx(t.seconds, rel=1e-9)
        assert float(cell["mfu"]) == pytest.approx(t.mfu, rel=1e-9)


def test_each_cluster_has_each_network_and_a_cell_says_which() -> None:
    speeds, clusters = ["100 Gb/s", 5e10], ["h100-sxm", "a100-sxm-80gb"]
    swept = cm.sweep("gpt2-small", seq=64, dp=16, on=clusters, network=speeds, quantities="seconds")
    names = ["dgx-h100, 100 Gb/s", "dgx-h100, 400 Gb/s", "dgx-a100, 100 Gb/s", "dgx-a100, 400 Gb/s"]
    assert swept["on"].values.tolist() == names
    times = [cm.predict("gpt2-small", seq=64, dp=16).on(each, network=speed) for each in clusters for speed in speeds]
    assert swept["seconds"].values.tolist() == pytest.approx([time.seconds for time in times], rel=1e-9)
    one = cm.sweep("gpt2-small", seq=64, dp=16, on="h100-sxm", network="100 Gb/s")
    assert float(one["seconds"]) == pytest.approx(times[0].seconds, rel=1e-9)
    for wrong, says in (
        ({"network": "100 Gb/s"}, "network='100 Gb/s' joins nodes of a cluster: give on='h100-sxm', say, too"),
        ({"on": "h100-sxm", "network": []}, "axis network is empty"),
        ({"on": "h100-sxm", "network": ["50 GB/s", "400 Gb/s"]}, "axis on has 'dgx-h100, 400 Gb/s' twice"),
    ):
        with pytest.raises(CostModelError, match=says):
            cm.sweep("gpt2-small", seq=64, dp=16, **wrong)


def test_machines_and_images_are_axes_too() -> None:
    machines = ["rtx-4090", "h100-sxm"]
    swept = cm.sweep(
        "resnet18", quantities=["seconds", "params"], batch=[1, 64, 65], image=range(64, 192, 16), on=machines,
        mode="inference",
    )  # fmt: skip
    assert swept["seconds"].attrs["units"] == "s"
    for machine in machines:
        p = cm.predict("resnet18", batch=65, image=112, on=machine, mode="inference")
        found = float(swept["seconds"].sel(on=machine, batch=65, image=112))
        assert found == pytest.approx(p.value("seconds"), rel=1e-9)
    front = cm.pareto(swept, "seconds", most="batch")
    assert set(front[front["batch"] > 1]["on"]) == {"h100-sxm"}  # with a single image both wait for the host


def test_searches_take_times() -> None:
    asked: dict[str, Any] = {"seq": 128, "on": "h100-sxm"}
    found = cm.solve("gpt2-small", "seconds", "60 ms", for_="batch", **asked)
    assert found.value <= 0.06 < cm.predict("gpt2-small", batch=int(found) + 1, **asked).value("seconds")
    deepest = cm.solve("gpt2-small", "tokens_per_second", "40k", for_="layers", batch=8, **asked)
    model = cm.load("gpt2-small")
    assert isinstance(model, cm.Transformer)
    deeper = model.with_fields({"layers": int(deepest) + 1})
    assert deepest.value >= 40e3 > cm.predict(deeper, batch=8, **asked).value("tokens_per_second")
    assert "too little" in str(deepest)


def test_comparisons_take_machines() -> None:
    found = cm.compare(
        "resnet18", batch=4, on=["h100-sxm", "rtx-4090"], quantities=["params", "seconds", "samples_per_second"]
    )
    assert found.value("on h100-sxm", "seconds") < found.value("on rtx-4090", "seconds")
    assert found.ratio("on rtx-4090", "params") == 1
    assert "ms" in str(found)


def test_time_without_a_machine_is_refused() -> None:
    p = cm.predict("resnet18", batch=1)
    with pytest.raises(CostModelError, match="on='h100-sxm'"):
        p.value("seconds")
    with pytest.raises(CostModelError, match="h100-sxm"):
        cm.predict("resnet18", batch=1, on="h100-sxn")
    with pytest.raises(CostModelError, match="no tokens"):
        cm.predict("resnet18", batch=1, on="h100-sxm").value("tokens_per_second")
    with pytest.raises(CostModelError, match="has no price"):
        cm.predict("resnet18", batch=1, on="h100-sxm").value("money")


def test_a_machine_goes_into_data_and_comes_back() -> None:
    for on in ("h100-sxm", PRICED):
        p = cm.predict("resnet18", batch=2, on=on)
        again = cm.Prediction.from_json(p.to_json())
        assert again.value("seconds") == p.value("seconds")


def test_the_shell_times(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = here(capsys, "predict", "resnet18", "--batch", "8", "--on", "h100-sxm", "--stack", "compiled")
    assert code == 0
    assert out.startswith("ResNet-18 on h100-sxm: one training step, batch 8, image 224×224, fp32, adamw,")
    code, out, _ = here(capsys, "sweep", "resnet18", "--batch", "1:64:*2", "--on", "t4", "--quantities", "seconds,mfu")
    assert code == 0
    assert "ms" in out
    assert "%" in out
    code, _, said = here(capsys, "predict", "resnet18", "--on", "h100-sxn")
    assert code == 2
    assert "h100-sxm" in said


def test_recommendations_rank_by_samples_a_second_on_a_machine() -> None:
    found = cm.recommend("gpt2-small", on="rtx-4090", seq=256)
    rates = [entry.samples_per_second or 0.0 for entry in found]
    assert rates == sorted(rates, reverse=True)
    assert len(found) > 1
    assert found.budget.bytes == cm.load_machine("rtx-4090").memory
    assert "samples/s" in str(found)
    assert not found.best.changes


def test_what_does_not_fit_as_asked_is_tried_with_other_numbers() -> None:
    found = cm.recommend("llama-3.1-8b", memory="80 GiB", seq=512, batch=1, optimizer="adamw")
    assert found.best.changes == "weights, gradients and states in bf16"
    assert "changes numerics" in str(found)
    adapters = cm.recommend("llama-3.1-8b", memory="20 GiB", seq=512, batch=1, optimizer="adamw")
    assert "adapters of rank 16 on bf16 weights" in adapters.best.changes
    smallest = cm.recommend("llama-3.1-8b", memory="12 GiB", seq=512, batch=1, optimizer="adamw")
    assert "adapters of rank 16 on int4 weights" in smallest.best.changes
    p = smallest.best.prediction
    assert p.settings.lora is not None
    assert p.trainable_params < 0.01 * p.params
    assert {s.dtype for s in p.tape.trained} == {"fp16"}
    assert not cm.recommend("llama-3.1-8b", memory="80 GiB", seq=512, batch=1, optimizer="adamw", precision="fp32")


def test_recommendations_need_memory_or_a_machine() -> None:
    with pytest.raises(CostModelError, match="memory='24 GiB'"):
        cm.recommend("gpt2-small")


def test_sensitivities_of_times_are_those_of_near_sizes() -> None:
    found = cm.sensitivity("gpt2-small", "seconds", batch=50, seq=512, on="h100-sxm")
    assert 0.8 < float(found["batch"].elasticity) < 1.1
    assert float(found["layers"].elasticity) > 0.3
    assert "ms" in str(found) or "µs" in str(found)
    # A slope is of less than a second: it is not rounded to none.
    assert all(f"+{shower('seconds')(one.slope)}" in str(found) for one in found.ranked if one.slope > 0)


def test_seconds_are_there_where_a_machine_is_named() -> None:
    p = cm.predict("gpt2-small", seq=64, on="h100-sxm")
    assert p.seconds == p.time.seconds == p.on("h100-sxm").seconds
    assert "ms a step (" in str(p).splitlines()[2]
    assert "a step (" not in str(cm.predict("gpt2-small", seq=64)).splitlines()[2]
    with pytest.raises(cm.CostModelError, match="time is of a machine"):
        cm.predict("gpt2-small", seq=64).seconds  # noqa: B018
    found = cm.compare("mlp-mnist", on=["t4", "h100-sxm"])
    assert found.value("on t4", "seconds") == cm.predict("mlp-mnist", on="t4").seconds
    assert "seconds" in str(found)
    assert "seconds" not in cm.compare("mlp-mnist", batch=[1, 2]).quantities


def test_what_a_run_that_cannot_be_needs_stands_before_its_price() -> None:
    time = cm.predict("llama-3.1-8b", seq=64).on("t4")
    for answer in (time.run(steps=10), time.money(price=1.0)):
        assert str(answer).splitlines()[1].startswith("cannot be: needs ")
    assert "cannot be" not in str(cm.predict("mlp-mnist").on("t4").money(price=1.0))
