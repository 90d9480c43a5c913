"""Seconds of a step on a machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

import costmodel as cm
from costmodel.architectures.base import BatchShape
from costmodel.architectures.single import Single
from costmodel.errors import CostModelError
from costmodel.graph.tape import Tape
from costmodel.graph.tensor import Tensor
from costmodel.layers.activation import Relu
from costmodel.layers.base import Layer
from costmodel.layers.norm import Batchnorm, BatchnormFixed, BatchnormUntracked
from costmodel.performance.parallel import ProgramSet
from costmodel.performance.time import Time
from tests.command import here

CASES: list[tuple[str, dict[str, Any]]] = [
    ("resnet18", {"batch": 8}),
    ("resnet18", {"batch": 8, "mode": "inference", "precision": "fp16-autocast"}),
    ("gpt2-small", {"batch": 2, "seq": 64, "checkpoint": "block"}),
    ("gpt2-small", {"batch": 2, "seq": 64, "attention": "flash", "precision": "bf16", "accumulate": 3}),
    ("efficientnet_b0", {"batch": 4, "optimizer": "momentum"}),
    ("mixtral-8x7b", {"batch": 1, "seq": 32, "mode": "inference", "precision": "int4"}),
]


def timed(case: tuple[str, dict[str, Any]], machine: Any = "h100-sxm", **how: Any) -> Time:
    name, settings = case
    return cm.predict(name, **settings).on(machine, **how)


class Normed(Single):
    """The layer, and an activation after it."""

    def forward(self, tape: Tape, shape: BatchShape, attention: Any) -> Tensor:
        return Relu()(super().forward(tape, shape, attention))


@pytest.mark.parametrize(("norm", "kernels"), [(Batchnorm(), 2), (BatchnormUntracked(), 2), (BatchnormFixed(), 1)])
def test_statistics_of_the_batch_take_a_kernel_of_their_own(norm: Layer, kernels: int) -> None:
    model = Normed(layer=norm, sample=(8, 14, 14))
    assert cm.predict(model, batch=4).on("h100-sxm", stack="compiled").phases[0].launches == kernels
    evaluated = cm.predict(model, batch=4, mode="inference").on("h100-sxm", stack="compiled")
    assert evaluated.phases[0].launches == kernels - isinstance(norm, Batchnorm)  # which takes running ones then


def _chains(name: str, **settings: Any) -> list[tuple[str, ...]]:
    return [f.layers for f in cm.predict(name, **settings).on("a100-sxm-80gb", stack="compiled").fusions]


def test_a_compiled_cross_entropy_reads_the_logits_once_each_way_and_writes_their_gradient() -> None:
    """Two and one times 12.9 MB of 64 x 50,304 logits in fp32: what inductor's scheduler counts, but for the pick."""
    p = cm.predict("gpt2-small", batch=4, seq=128, precision="bf16-autocast")
    compiled, eager = (p.on("a100-sxm-80gb", stack=stack).kernels for stack in ("compiled", "eager"))
    logits = 4 * 128 * 50257 * 2
    moved = {(k.phase, k.launches): k.bytes for k in compiled if k.layer == "loss"}
    assert moved == {
        ("forward", 1): pytest.approx(logits, rel=0.001),
        ("backward", 1): pytest.approx(2 * logits, rel=0.001),
    }
    assert sum(k.bytes for k in eager if k.layer.startswith("loss")) > 5.9 * sum(moved.values())


def test_a_compiler_joins_what_follows_across_blocks() -> None:
    """As inductor does: a bias with its activation, both sides of a residual, and a norm with the sum before it."""
    assert ("repeat1.conv", "repeat1.relu") in _chains("vgg11", batch=2, mode="inference")
    resnet = _chains("resnet18", batch=2, mode="inference")
    assert any(chain.count("stage2.projected.residual.projection.batchnorm") for chain in resnet if len(chain) == 4)
    p = cm.predict("gpt2-small", batch=4, seq=128, mode="inference")
    normed, added = (
        next(row for row in p.on("a100-sxm-80gb", stack="compiled").kernels if row.layer == f"block.{layer}")
        for layer in ("attention_norm", "add_mlp")
    )
    tensor = 4 * 128 * 768 * 4
    assert (normed.launches, added.launches) == (0, 12)
    assert normed.bytes == pytest.approx(12 * tensor, rel=0.01)  # its result: what it reads is at hand
    assert added.bytes == 12 * 3 * tensor


def test_a_compiler_norms_what_it_has_just_concatenated() -> None:
    """The next layer's norm of what a dense layer hands on goes on where it was put together (Huang et al. 2017)."""
    rows = cm.predict("densenet121", batch=2, mode="inference").on("a100-sxm-80gb", stack="compiled").kernels
    normed = next(row for row in rows if row.layer == "dense_layer1.2.branches.path2.relu1")
    assert normed.launches == 0
    assert normed.bytes == pytest.approx(2 * 96 * 56 * 56 * 4, rel=0.01)  # its result alone
    [put] = [row for row in rows if row.layer == "dense_layer1.branches.concat"]
    assert (put.launches, put.bytes) == (1, 2 * 2 * 96 * 56 * 56 * 4)


def test_windows_read_what_is_written() -> None:
    """Not so pools: what windows are read from is written first, and a mean over places has another order."""
    chains = [*_chains("vgg11", batch=2, mode="inference"), *_chains("efficientnet_b0", batch=2, mode="inference")]
    assert chains
    assert not any("pool" in layer and len(chain) > 1 for chain in chains for layer in chain[1:])


def test_phases_follow_the_mode() -> None:
    t = timed(CASES[1])
    assert t.backward_seconds == t.update_seconds == 0
    assert t.samples == 8
    assert t.tokens_per_second is None
    assert t.samples_per_second == pytest.approx(8 / t.seconds)


def test_micro_batches_repeat_all_but_the_update() -> None:
    settings = {"batch": 4, "seq": 128, "precision": "bf16"}
    one, four = (cm.predict("gpt2-small", accumulate=n, **settings).on("h100-sxm") for n in (1, 4))
    assert four.forward_seconds == pytest.approx(4 * one.forward_seconds)
    assert four.update_seconds == pytest.approx(one.update_seconds)
    assert four.backward_seconds > 4 * one.backward_seconds  # gradients are added up
    assert four.tokens == 4 * 4 * 128


def test_recomputation_is_run_in_backward_and_told_from_the_model() -> None:
    none, block = (cm.predict("gpt2-small", batch=4, seq=128, checkpoint=c).on("h100-sxm") for c in ("none", "block"))
    assert block.forward_seconds == pytest.approx(none.forward_seconds)
    assert block.backward_seconds > 1.3 * none.backward_seconds
    assert block.hfu > block.mfu
    assert none.hfu == none.mfu


def test_gradients_that_meet_are_added_up() -> None:
    p = cm.predict("gpt2-small", batch=2, seq=64)
    sums = [task for task in p.on("h100-sxm").work.tasks if task.kind == "gradient sum"]
    # In each block two residual streams come together; the embedding is the head's weight too.
    assert sum(task.times for task in sums if task.kernel.written == 4 * 2 * 64 * 768) == 2 * 12
    assert any(task.kernel.written == 4 * 50257 * 768 for task in sums)


@pytest.mark.parametrize(
    ("precision", "casts", "read", "written"),
    [("fp16-autocast", 0, 2, 4), ("bf16-autocast", 1, 4, 4), ("fp16", 0, 2, 2)],
)
def test_softmax_reads_halves_where_its_kernel_makes_floats_of_them(
    precision: Any, casts: int, read: int, written: int
) -> None:
    """at::softmax of fp16 for fp32 is one kernel (half_to_float), of bf16 a cast and one more; so is its gradient."""
    p = cm.predict("gpt2-small", batch=2, seq=64, precision=precision)
    scores = 12 * 2 * 12 * 64 * 64  # of all layers
    rows = p.on("a100-sxm-80gb").kernels
    softmax = {row.phase: row.bytes for row in rows if row.layer == "block.attention.softmax"}
    assert softmax["forward"] == (read + written) * scores
    assert softmax["backward"] == (2 * written + read) * scores
    assert sum(row.layer == "block.attention.softmax.cast" and row.phase == "forward" for row in rows) == casts
    kept = {row.phase: row.bytes for row in rows if row.layer == "block.attention.softmax.cast"}
    assert kept == ({"forward": 6 * scores, "backward": 6 * scores} if casts else {})


def test_a_fused_update_moves_28_bytes_a_parameter_in_fp32() -> None:
    p = cm.predict("gpt2-small", batch=1, seq=8, update="fused")
    update = [task for task in p.on("h100-sxm").work.tasks if task.phase == "update"]
    assert sum(task.kernel.read + task.kernel.written for task in update) == 28 * p.params


def test_the_course_figures() -> None:
    """154 GFLOP at 312 TFLOP/s take 0.5 ms; a Relu of 10^9 numbers at 900 GB/s takes 8.9 ms."""
    a100 = cm.predict(cm.MLP(sizes=[4389, 4389]), batch=4000, precision="bf16", mode="inference").on(
        "a100-sxm-40gb", tier="ceiling"
    )
    assert a100.prediction.flops.forward == pytest.approx(154e9, rel=0.01)
    assert a100.seconds == pytest.approx(0.5e-3, rel=0.02)
    relu = cm.predict(cm.CNN(input=(1000, 100, 100), blocks=["relu"]), batch=100, mode="inference")
    machine = cm.Machine(name="course", peak={"fp32": "15 TFLOP/s"}, bandwidth="900 GB/s", memory="16 GB")
    assert relu.on(machine, tier="ceiling").seconds == pytest.approx(8.9e-3, rel=0.01)


def test_the_question_comes_first_and_fits_a_terminal() -> None:
    for case, stack in zip(CASES, ("eager", "compiled") * 3, strict=True):
        text = str(timed(case, "v100-sxm2-16gb", stack=stack))
        first, *rest = text.splitlines()
        assert "on v100-sxm2-16gb: " in first
        assert max(map(len, [first, *rest])) <= 80, text


def test_what_runs_in_another_type_or_does_not_fit_is_said() -> None:
    assert "no units for bf16" in str(timed(CASES[3], "t4"))
    assert "warning: needs" in str(cm.predict("llama-3.1-8b", batch=1, seq=128).on("t4"))


def test_a_type_that_a_machine_lacks_runs_in_the_nearest_and_is_said_to() -> None:
    t = timed(CASES[1], "tpu-v4")
    assert t.runs_in["fp16"] == "bf16"
    assert "tpu-v4 has no units for fp16, which runs in bf16" in str(t)


def test_every_answer_in_seconds_says_what_a_machine_has_no_units_for() -> None:
    """With the half precision that it has, where it has another."""
    load: dict[str, Any] = {"input": 64, "output": 16}
    for machine, rest in (("v100-sxm2-16gb", ": it has those for fp16"), ("gtx-1080", ""), ("a100-sxm-80gb", None)):
        answers = [
            cm.layouts(
                "gpt2-small", devices=2, global_batch=2, seq=64, on=machine, tp=1, pp=1, cp=1, runtime="megatron"
            ),
            cm.serve("gpt2-small", on=machine, **load),
            cm.deployments("gpt2-small", devices=2, on=machine, **load),
            cm.predict("gpt2-small", seq=64, precision="bf16", on=machine).time,
        ]
        said = f"warning: {machine} has no units for bf16, which runs in fp32{rest}"
        for answer in answers:
            assert (f"{said} " in " ".join(str(answer).split())) == (rest is not None)


def test_runs_energy_carbon_and_money_say_what_they_assume() -> None:
    t = timed(CASES[0], "v100-sxm2-16gb")
    run = t.run(samples=1.28e6, epochs=90)
    assert run.steps == 1.28e6 * 90 / 8
    assert run.seconds == pytest.approx(run.steps * t.seconds)
    assert run.low < run.seconds < run.high
    energy = t.energy(pue=1.1, power="330 W", samples=1.28e6, epochs=90)
    assert energy.joules == pytest.approx(330 * 1.1 * run.seconds)
    assert "PUE" in str(energy)
    assert "330 W (as given)" in str(energy)
    carbon = t.carbon(intensity="0.4 kg/kWh", pue=1.1, power=330, samples=1.28e6, epochs=90)
    assert carbon.grams == pytest.approx(energy.joules / 3.6e6 * 400)
    assert "400 g/kWh" in str(carbon)
    assert t.money(price=2.5, steps=100).amount == pytest.approx(100 * t.seconds / 3600 * 2.5)
    tdp, typical = (t.energy(pue=1, power=power).joules for power in ("tdp", "typical"))
    assert typical <= tdp == pytest.approx(300 * t.seconds)


MEASURED_WATTS = [
    ("v100-sxm2-32gb", {"mode": "decode", "past": 512}, (180, 200)),
    ("v100-sxm2-32gb", {"mode": "prefill", "seq": 2048}, (270, 300)),
    ("rtx-3090", {"mode": "decode", "past": 512}, (337, 350)),
    ("rtx-5060-ti-16gb", {"mode": "decode", "past": 512}, (173, 173)),
]
"""1CatAI/1Cat-vLLM issue 535: nvidia-smi while a V100 decodes and prefills; noonghunna/club-3090 issue 222 and
jeanfbrito.github.io: an RTX 3090 with llama.cpp; inventivehq.com: an RTX 5060 Ti with llama.cpp."""


@pytest.mark.parametrize(("machine", "how", "measured"), MEASURED_WATTS)
def test_power_follows_work(machine: str, how: dict[str, Any], measured: tuple[float, float]) -> None:
    p = cm.predict("llama-2-7b", precision="fp16", attention="flash", **how)
    t = p.on(machine, stack="cuda-graphs")
    low, high = measured
    watts = t.energy(pue=1).watts
    assert 0.85 * low < watts < 1.15 * high
    assert t.value("energy") == pytest.approx(watts * t.seconds)
    waiting = t.energy(pue=1, samples=1000, loader=t.samples_per_second / 1e6).watts
    assert waiting == pytest.approx(float(t.kernel_model.waiting_watts), rel=1e-3)
    assert waiting < watts < t.energy(pue=1, power="tdp").watts


def test_training_gpt_3_took_what_is_published() -> None:
    """10,000 V100 at 330 W for 14.8 days with a PUE of 1.10: 1,287 MWh (Patterson et al. 2021, table 4)."""
    t = timed(CASES[0], "v100-sxm2-32gb")
    steps = 14.8 * 86400 / t.seconds
    energy = t.energy(power=330, pue=1.10, steps=steps, devices=10_000)
    assert energy.kwh / 1e3 == pytest.approx(1287, rel=0.005)


def test_loading_is_the_limit_where_it_is_slower() -> None:
    t = timed(CASES[0])
    slow, fast = (t.run(samples=8000, loader=f"{int(rate)} images/s") for rate in (t.samples_per_second / 2, 1e9))
    assert slow.input_bound
    assert "loading data is the limit" in str(slow)
    assert slow.seconds == pytest.approx(8000 / int(t.samples_per_second / 2))
    assert not fast.input_bound
    assert fast.seconds == pytest.approx(1000 * t.seconds)


def test_loaders_count_in_what_a_sample_is_or_has() -> None:
    language, images = timed(CASES[2]), timed(CASES[0])
    assert language.run(loader="6400 tokens/s").loader == language.run(loader="100 sequences/s").loader == 100
    assert images.run(loader="2,000 images/sec").loader == images.run(loader=2000).loader == 2000
    with pytest.raises(CostModelError, match="has no images: use '2000 sequences/s'"):
        language.run(loader="2000 images/s")
    with pytest.raises(CostModelError, match="has no tokens: use '2000 images/s'"):
        images.run(loader="2000 tokens/s")


def test_an_epoch_is_its_share_of_a_run_and_said() -> None:
    t = timed(CASES[0])
    run = t.run(samples=1.28e6, epochs=90)
    assert run.epoch_seconds == pytest.approx(t.run(samples=1.28e6).seconds)
    assert "90 epochs of" in str(run)
    assert "an epoch" in str(run.money(price=2))
    assert "energy of an epoch" in str(run.energy(pue=1))
    assert "an epoch" in str(run.carbon(pue=1, intensity=400))


def test_the_shell_asks_for_runs(capsys: pytest.CaptureFixture[str]) -> None:
    question = "predict resnet18 --batch 8 --on h100-sxm --samples 1.28e6 --epochs 90 --loader"
    bill = "--pue 1.1 --power 330 --intensity 400g/kWh --price 2.5"
    code, text, _ = here(capsys, *question.split(), "2000 images/s", *bill.split())
    assert code == 0
    for said in ("loading data is the limit", "90 epochs", "400 g/kWh", "PUE", "1.1", "2.5 an hour", "330 W"):
        assert said in text
    _, text, _ = here(capsys, *question.split(), "2000 images/s", *bill.split(), "--json")
    data, run = json.loads(text), timed(CASES[0]).run(samples=1.28e6, epochs=90, loader=2000)
    assert data["run"]["seconds"] == run.seconds
    assert data["carbon"]["grams"] == run.carbon(pue=1.1, power=330, intensity=400).grams
    assert data["money"]["amount"] == run.money(price=2.5).amount
    code, text, _ = here(capsys, *["predict", "gpt2-small", "--seq", "64", "--on", "t4", "--tokens", "1e9", "--json"])
    assert json.loads(text)["run"]["steps"] == 1e9 / 64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--samples 1e6", "give --on MACHINE too"),
        ("--on t4 --samples 1e6 --intensity 400", "need --pue"),
        ("--on t4 --tokens 1e9", "has no tokens"),
        ("--on t4 --epochs 3", "of nothing"),
        ("--on t4 --price -1", "above 0"),
        ("--on t4 --loader 2/s", "2000 images/s"),
    ],
)
def test_the_shell_refuses_wrong_runs_in_one_line(arguments: str, said: str, capsys: Any) -> None:
    code, _, error = here(capsys, "predict", "resnet18", *arguments.split())
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda t: t.energy(pue=0.5), "pue=0.5"),
        (lambda t: t.energy(pue=1.1, power="tpd"), "'tdp', 'typical'"),
        (lambda t: t.money(), "has no price"),
        (lambda t: t.carbon(intensity="400", pue=1.1), "400 g/kWh"),
        (lambda t: t.run(samples=1, tokens=1), "give one of them"),
        (lambda t: t.run(tokens=1e9), "has no tokens"),
        (lambda t: t.run(samples=-1), "above 0"),
        (lambda t: t.run(loader="2000"), "2000 images/s"),
        (lambda t: t.run(devices=0), "devices=0 is not a whole number from 1"),
    ],
)
def test_wrong_runs_are_refused_in_one_line(ask: Any, said: str) -> None:
    with pytest.raises(CostModelError, match=said):
        ask(timed(CASES[0]))


def test_eager_attention_is_said_to_be_slower_than_what_frameworks_run() -> None:
    kinds: tuple[Any, ...] = ("eager", "flash")
    eager, flash = (cm.predict("vit-b-16", batch=8, attention=kind, precision="bf16").on("h100-sxm") for kind in kinds)
    assert "attention='flash'" in str(eager)
    assert "as asked" not in str(cm.predict("vit-b-16").on("h100-sxm"))  # eager is the default
    assert "attention='flash'" not in str(flash)
    assert eager.attention == "composed"
    assert flash.attention == flash.to_dict()["attention"] == "flash-2"
    assert "FlashAttention-2" in str(flash)
    assert flash.seconds < eager.seconds


def test_data_has_everything() -> None:
    t = timed(CASES[0], stack="compiled")
    data = json.loads(t.to_json())
    assert data["seconds"] == t.seconds
    assert len(data["kernels"]) == len(t.kernels) == len(t.to_dataframe())
    assert data["fusions"]
    assert data["widest"][0]["seconds_low"] <= t.seconds <= data["widest"][0]["seconds_high"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"machine": "h100-sxn"}, "h100-sxm"),
        ({"stack": "eagre"}, "eager"),
        ({"tier": "roof"}, "calibrated, ceiling, typical"),
        ({"allow_tf32": "yes"}, "is not true or false"),
        ({"stack": cm.Stack("odd", "eager_seconds", fuses=True)}, ""),
    ],
)
def test_wrong_questions_are_refused_in_one_line(how: dict[str, Any], said: str) -> None:
    p = cm.predict("resnet18", batch=1)
    machine = how.pop("machine", "h100-sxm")
    if not said:
        assert p.on(machine, **how).seconds > 0
        return
    with pytest.raises(CostModelError, match=said) as error:
        p.on(machine, **how)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("name", [model.name for model in cm.models()])
def test_every_ready_model_has_a_time(name: str, mode: Any) -> None:
    sizes: dict[str, Any] = {"seq": 16} if "seq" in cm.load(name).BATCH_SIZES else {}
    for stack in ("eager", "compiled"):
        t = cm.predict(name, batch=2, mode=mode, **sizes).on("rtx-4090", stack=stack)
        assert t.seconds > 0
        assert t.mfu <= 1


def test_energy_and_money_are_of_a_run_with_its_failures() -> None:
    lossy = (
        cm.predict("gpt2-small", batch=8, seq=512, on="h100-sxm")
        .time.run(steps="1e6")
        .goodput(mtbf="20 h", checkpoint="60 s", restart="10 min")
    )
    whole = lossy.whole
    assert whole.seconds == lossy.total_seconds > lossy.job.seconds
    assert whole.money(price=2).amount == pytest.approx(lossy.job.money(price=2).amount / lossy.share)
    waiting, working = whole.energy(pue=1).joules, lossy.job.energy(pue=1).joules
    assert working < waiting < working / lossy.share


@pytest.mark.parametrize(("name", "example"), [("mtbf", "50000 h"), ("checkpoint", "60 s"), ("restart", "10 min")])
def test_a_duration_that_is_none_is_told_one_of_its_kind(name: str, example: str) -> None:
    run = cm.predict("gpt2-small", on="h100-sxm").time.run(steps=10)
    with pytest.raises(cm.CostModelError, match=f"{name}=.*such as '{example}'"):
        run.goodput(**{"mtbf": 1, "checkpoint": 1, "restart": 1, name: "often"})


def test_goodput_is_what_failures_checkpoints_and_restarts_leave() -> None:
    """The best interval loses least; without failures nothing but writing is lost; twice the devices fail twice."""
    run = cm.predict("gpt2-small", batch=8, seq=512).on("h100-sxm").run(steps=1e7, devices=1000)
    how: dict[str, Any] = {"mtbf": "50000 h", "checkpoint": "2 min", "restart": "10 min"}
    best = run.goodput(**how)
    assert best.between_failures == 50_000 * 3600 / 1000
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert run.goodput(**how, interval=factor * best.interval_seconds).share < best.share
    young = (2 * 120 * best.between_failures) ** 0.5
    assert best.interval_seconds == pytest.approx(young, rel=0.1)  # the first-order optimum (Young 1974)
    assert best.total_seconds == pytest.approx(run.seconds / best.share)
    rare = run.goodput(mtbf=1e18, checkpoint=60, restart=600, interval=3600)
    assert rare.share == pytest.approx(3600 / 3660)
    assert best.failures == pytest.approx(best.total_seconds / best.between_failures)
    assert run.goodput(mtbf=1, checkpoint=3600, restart=3600).share == pytest.approx(0.0)
    with pytest.raises(cm.CostModelError, match="mtbf"):
        run.goodput(mtbf="often", checkpoint=60, restart=60)


@pytest.mark.parametrize("hour", ["1h", "1 hour", "60 min", "60minutes", "3,600 s", "3600s", 3600])
def test_times_of_failures_are_read_with_and_without_a_space(hour: float | str) -> None:
    run = cm.predict("gpt2-small", batch=8, seq=512).on("h100-sxm").run(steps=1e7)
    assert run.goodput(mtbf=hour, checkpoint="60s", restart="1 s").mtbf == 3600


@pytest.mark.parametrize("wrong", ["0 h", "-5 h", "5 fortnights", "nan h"])
def test_a_time_of_failures_that_is_none_is_told_one_of_their_length(wrong: str) -> None:
    run = cm.predict("gpt2-small", batch=8, seq=512).on("h100-sxm").run(steps=1e7)
    with pytest.raises(cm.CostModelError, match=rf"mtbf='{wrong}' .* '50000 h'"):
        run.goodput(mtbf=wrong, checkpoint=60, restart=60)


def test_a_run_that_failures_never_let_end_says_so() -> None:
    never = (
        cm.predict("gpt2-small", batch=8, seq=512)
        .on("h100-sxm")
        .run(steps=1e7)
        .goodput(mtbf=1, checkpoint=3600, restart=3600)
    )
    assert "goodput 0.0%: never done" in str(never)
    json.loads(never.to_json(), parse_constant=pytest.fail)  # Infinity is no JSON


def test_goodput_is_the_mean_of_simulated_runs() -> None:
    """A run with failures at random, each of which loses what is since the last checkpoint, and a restart."""
    from random import Random

    run = cm.predict("gpt2-small", batch=8, seq=512).on("h100-sxm").run(steps=1e6, devices=100)
    answer = run.goodput(mtbf=100 * 7200.0, checkpoint=120, restart=300, interval=1800)
    random, clock, intervals = Random(0), 0.0, 4000
    for _ in range(intervals):
        left, down = 1800 + 120.0, False
        while (until := random.expovariate(1 / 7200)) < left + 300 * down:
            clock, down = clock + until, True
        clock += left + 300 * down
    assert answer.share == pytest.approx(1800 * intervals / clock, rel=0.03)


def test_plain_settings_are_said_to_cost_what_they_do() -> None:
    plain = cm.predict("gpt2-small", batch=16, seq=1024).on("a100-sxm-80gb")
    assert plain.usual is not None
    settings, seconds = plain.usual
    assert settings == "precision='bf16-autocast', attention='flash' and stack='compiled'"
    assert f"plain settings: {settings} make it" in " ".join(str(plain).split())
    usual = cm.predict("gpt2-small", batch=16, seq=1024, precision="bf16-autocast", attention="flash")
    again = usual.on("a100-sxm-80gb", stack="compiled")
    assert seconds == again.seconds < plain.seconds / 4
    assert again.usual is None
    assert cm.predict("gpt2-small", batch=16, seq=1024).on("gtx-1080").usual is None  # it has no units for 16 bits


def test_a_kernel_of_attention_that_a_machine_has_not_is_said() -> None:
    p = cm.predict("gpt2-small", batch=1, seq=128, precision="bf16", attention="flash", mode="inference")
    stack = cm.Stack("own", 2e-6, attention="flash-3")
    on = {name: " ".join(str(p.on(name, stack=stack)).split()) for name in ("a100-sxm-80gb", "h100-sxm")}
    assert "a100-sxm-80gb does not run flash-3 in this type, which the stack says" in on["a100-sxm-80gb"]
    assert "does not run" not in on["h100-sxm"]


def test_energy_of_hours_needs_no_step() -> None:
    """GPT-3: 10,000 V100 for 14.8 days at 330 W and a PUE of 1.1 are 1,287 MWh (Patterson et al. 2021, table 4)."""
    energy = cm.energy(hours=14.8 * 24, watts=330, pue=1.1, devices=10_000)
    assert energy.kwh == pytest.approx(1_287e3, rel=0.01)
    carbon = cm.energy(hours=14.8 * 24, watts="330 W", pue=1.1, devices=10_000, intensity="429 g/kWh")
    assert carbon.grams == pytest.approx(552e6, rel=0.01)
    assert "10,000" in str(carbon)
    for wrong in ({"hours": 0}, {"watts": -1}, {"pue": 0.5}, {"devices": 0}, {"intensity": "much"}):
        with pytest.raises(CostModelError):
            cm.energy(**{"hours": 1.0, "watts": 300, "pue": 1.1, **wrong})


# One A100 of 80 GB, 16 sequences of 1,024 tokens (Karpathy, Let's reproduce GPT-2: what is added, and milliseconds); 10
# billion tokens of steps of 524,288 in 90 and 45 minutes on 8 A100 and 8 H100 (llm.c discussion 481); ResNet-50
# (NVIDIA, Deep Learning Examples: 2,470 images/s).
PLAIN: dict[str, Any] = {"model": "gpt2-small", "batch": 16, "seq": 1024, "precision": "fp32"}
LOWER = {**PLAIN, "precision": "bf16-autocast"}
FLASH = {**LOWER, "attention": "flash"}
LLM_C = {**FLASH, "precision": "bf16-master", "batch": 64, "dp": 8}
RESNET = {"model": "resnet50", "batch": 256, "precision": "fp16-autocast", "optimizer": "momentum"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "machine", "how", "milliseconds"),
    [
        (PLAIN, "a100-sxm-80gb", {}, 1000),
        (PLAIN, "a100-sxm-80gb", {"allow_tf32": True}, 333),
        (LOWER, "a100-sxm-80gb", {}, 300),
        (LOWER, "a100-sxm-80gb", {"stack": "compiled"}, 130),
        (FLASH, "a100-sxm-80gb", {"stack": "compiled"}, 96),
        ({**FLASH, "update": "fused"}, "a100-sxm-80gb", {"stack": "compiled"}, 90),
        (LLM_C, "a100-sxm-80gb", {"stack": "compiled"}, 524288 / 10e9 * 90 * 60e3),
        (LLM_C, "h100-sxm", {"stack": "compiled"}, 524288 / 10e9 * 45 * 60e3),
        (RESNET, "a100-sxm-80gb", {"channels_last": True}, 256 / 2.470),
    ],
)
def test_steps_that_people_know_are_within_their_ranges(question, machine, how, milliseconds) -> None:
    time = cm.predict(**question).on(machine, **how)
    assert 1e3 * time.low < milliseconds < 1e3 * time.high


def test_mfu_of_a_measured_time_stands_beside_the_prediction() -> None:
    time = cm.predict("gpt2-small", batch=8, seq=512, checkpoint="block", on="a100-sxm").time
    found = time.mfu_of("600 ms")
    assert float(found) == pytest.approx(time.prediction.flops.total / (0.6 * time.peak))
    assert found.rows_by_phase[-1].mfu == time.mfu
    forward = found.rows_by_phase[0]
    assert forward.mfu == pytest.approx(time.prediction.flops.forward / (time.peak * time.forward_seconds))
    assert "600 ms" in str(found)
    assert "warning: above the peak" in str(time.mfu_of("1 ms"))
    assert "within the range" in str(time.mfu_of(time.seconds))
    fast = cm.predict("gpt2-small", batch=8, seq=512, precision="bf16-autocast", attention="flash", on="a100-sxm").time
    slow = cm.predict("gpt2-small", batch=8, seq=512, attention="flash", on="a100-sxm").time
    assert dict(fast.mfu_of(slow.seconds).slower)["precision fp32"] == slow.seconds > fast.high
    assert fast.mfu_of(fast.seconds).slower == ()
    apart = time.mfu_of({"forward": 0.1, "backward": "200 ms", "update": "20 ms"})
    assert float(apart) == pytest.approx(time.prediction.flops.total / (0.32 * time.peak))
    assert apart.rows_by_phase[1].measured == 0.2
    for wrong, said in (("fast", "measured"), ({"forward": 1.0}, "lacks backward"), ({"forwards": 1.0}, "'forward'")):
        with pytest.raises(cm.CostModelError, match=said):
            time.mfu_of(wrong)


@pytest.mark.parametrize(
    "asked",
    [
        {"batch": 2},
        {"batch": 2, "stack": "compiled"},
        {"tp": 2, "batch": 2},
        {"pp": 4, "mode": "prefill"},
        {"pp": 2, "accumulate": 4},
    ],
    ids=str,
)
def test_the_same_step_elsewhere_is_that_of_the_other_machine(asked: dict[str, Any]) -> None:
    stack = asked.pop("stack", "eager")
    p = cm.predict("gpt2-small", seq=128, **asked)
    there = p.on("h100-sxm", stack=stack).elsewhere("l4")
    own = p.on("l4", stack=stack)
    assert (there.machine.name, there.seconds, there.interval) == (own.machine.name, own.seconds, own.interval)
    assert there.kernels == own.kernels


def test_stages_that_do_the_same_are_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    time = cm.predict("gpt2-small", seq=128, pp=6, mode="prefill").on("h100-sxm")
    stages = time._rank.stages  # type: ignore[union-attr]
    assert (len(stages), len({id(stage) for stage in stages})) == (6, 3)
    monkeypatch.setattr(ProgramSet, "does_as", lambda *_: False)
    each = cm.predict("gpt2-small", seq=128, pp=6, mode="prefill").on("h100-sxm")
    assert len({id(stage) for stage in each._rank.stages}) == 6  # type: ignore[union-attr]
    assert each.seconds == time.seconds


def test_a_roofline_has_the_peaks_of_all_units_that_its_kernels_run_on() -> None:
    a100 = cm.load_machine("a100-sxm-80gb")
    network = cm.predict("resnet18", batch=8).on(a100)
    names = {a100.product_peak("fp32", True): ["tf32 products"]}
    assert network._ceilings.items() >= names.items()
    assert set(network._ceilings[a100.vector_peak()]) == {"vectors", "fp32 products"}  # of the last layer
    halves = cm.predict("gpt2-small", seq=64, precision="bf16", attention="flash").on(a100)
    assert halves._ceilings[a100.product_peak("bf16")] == ["bf16 products"]
    texts = [text.get_text() for text in network.plot().axes[0].texts]
    assert any("vectors and fp32 products" in text or "fp32 products and vectors" in text for text in texts)


def test_lengths_of_runs_are_read_as_counts_are() -> None:
    time = cm.predict("gpt2-small", batch=8, seq=512).on("t4")
    assert time.run(tokens="10B").seconds == time.run(tokens=10e9).seconds
    assert time.run(samples="1.28M").steps == time.run(samples=1.28e6).steps
    with pytest.raises(CostModelError, match="tokens='many' is not a number above 0"):
        time.run(tokens="many")
