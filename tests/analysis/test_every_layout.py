"""Every layout of a step: which fit, which are refused, and that each is what a prediction says."""

from __future__ import annotations

import gc
import itertools
import math
import re
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.candidates import Meshes
from costmodel.analysis.layout_reasons import TOO_MUCH_HELD
from costmodel.analysis.layout_search import APART, LayoutSearch
from costmodel.analysis.layouts import blamed
from costmodel.architectures.trace import trace
from costmodel.cost import forward, peaks
from costmodel.cost.costs import Costs
from costmodel.cost.peaks import RankPeaks
from costmodel.cost.stage_passes import StagePasses
from costmodel.errors import CostModelError, SettingError
from costmodel.graph.kernel import Message
from costmodel.performance import layout_steps
from costmodel.performance import work as step_work
from costmodel.performance.layout_steps import LayoutSteps, PassTasks, PipelineShapes
from costmodel.performance.parallel import Prices
from costmodel.performance.time import time_on
from costmodel.training.schedules import SCHEDULES
from costmodel.training.settings import Settings
from tests.profiles import examples

MODEL = cm.Transformer(vocab=96, context=64, layers=4, width=32, heads=4, kv_heads=2, mlp_width=64, tied=False)
RUN: dict[str, Any] = {"seq": 16, "devices": 4, "global_batch": 8, "precision": "fp32"}
RUN["schedule"] = ["1f1b", "looped-bfs"]
PEAKS = RankPeaks(MODEL)
SIZE = {"vocab": 96, "context": 64, "layers": 4, "width": 32, "heads": 4, "kv_heads": 2}


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a run over few devices, legal or not."""
    runtime = draw(st.sampled_from(["torch", "megatron", "deepspeed"]))
    run: dict[str, Any] = {"runtime": runtime, "tp": draw(st.sampled_from([1, 1, 2])), "batch": draw(st.integers(1, 3))}
    run |= {"dp": draw(st.sampled_from([1, 2, 4])), "checkpoint": draw(st.sampled_from(["none", "block", "selective"]))}
    run["accumulate"] = draw(st.sampled_from([1, 2, 4, 8, 12]))
    run["zero"] = draw(st.sampled_from({"torch": [0], "megatron": [0, 1], "deepspeed": [1, 2, 3]}[runtime]))
    if draw(st.booleans()):
        schedule = SCHEDULES[draw(st.sampled_from(sorted(SCHEDULES)))]
        vpp = schedule.only_stages or draw(st.sampled_from([1, 2]))
        run |= {"pp": 2, "schedule": schedule.name, "vpp": vpp, "return_outputs": draw(st.booleans())}
        if runtime == "torch" and draw(st.booleans()):
            run |= {"fsdp": draw(st.sampled_from([2, 4])), "reshard": draw(st.booleans())}
    elif runtime == "torch":
        run |= {"fsdp": draw(st.sampled_from([1, 2])), "sp": run["tp"] > 1}
    return run


@examples(20)
@given(runs())
def test_peaks_of_many_layouts_are_those_of_predictions(run: dict[str, Any]) -> None:
    fixed = {"seq": 16, "precision": "bf16-master-fp32-gradients" if run["runtime"] != "torch" else "fp32"}
    try:
        p = cm.predict(MODEL, **fixed, **run)
    except CostModelError:
        return
    settings = Settings(**fixed, **run)
    peak = RankPeaks(MODEL).peak(settings) if run["runtime"] == "torch" else PEAKS.peak(settings)
    assert peak == p.memory.peak
    assert PEAKS.held(settings).least <= peak if run["runtime"] != "torch" else True
    assert RankPeaks(MODEL).peak(settings, room=peak - 1) > peak - 1


@pytest.fixture(scope="module")
def all_layouts() -> Any:
    return cm.layouts(MODEL, **RUN)


def test_each_layout_is_what_a_prediction_says(all_layouts: Any) -> None:
    assert len(all_layouts) > 100
    for entry in all_layouts.entries[:: len(all_layouts) // 20]:
        p = entry.prediction
        assert (p.memory.peak, p.settings.layout.devices) == (entry.peak, 4)
        assert p.settings.micro_batches * p.settings.batch * p.settings.layout.samplers == 8


def test_layouts_are_ranked_and_each_is_there_once(all_layouts: Any) -> None:
    peaks = [entry.peak for entry in all_layouts]
    assert peaks == sorted(peaks)
    assert len({str(sorted(entry.settings.items(), key=str)) for entry in all_layouts}) == len(peaks)


def test_no_layout_that_fits_is_left_out(all_layouts: Any) -> None:
    """What is skipped with a reason really is too much: those within a budget are the same as of all."""
    room = sorted(entry.peak for entry in all_layouts)[len(all_layouts) // 3]
    within = cm.layouts(MODEL, memory=room, **RUN)
    expected = [entry.settings for entry in all_layouts if entry.peak <= room]
    assert [entry.settings for entry in within] == expected
    assert within.candidates == all_layouts.candidates


def test_degrees_of_every_mesh_make_up_the_devices() -> None:
    for mesh in Meshes(MODEL, 12, {}):
        assert mesh["tp"] * mesh["cp"] * mesh["pp"] * mesh["fsdp"] * mesh["dp"] == 12


def test_what_is_given_stays() -> None:
    found = cm.layouts(MODEL, **RUN, tp=2, runtime=["megatron", "torch"], checkpoint="block", batch=[1, 2], pp=[1, 2])
    assert {entry.prediction.settings.tp for entry in found} == {2}
    assert {entry.prediction.settings.checkpoint for entry in found} == {"block"}
    assert {entry.settings.get("runtime", "torch") for entry in found} == {"torch", "megatron"}


def test_what_is_given_is_in_every_layout_or_at_its_default() -> None:
    found = cm.layouts(MODEL, **RUN, sp=True, runtime="megatron", batch=1, checkpoint="none", return_outputs=False)
    assert all(entry.prediction.settings.sp and not entry.prediction.settings.return_outputs for entry in found)
    staged = cm.layouts(MODEL, **RUN, runtime="megatron", batch=1, checkpoint="none")
    assert all(entry.prediction.settings.pp > 1 for entry in staged if "schedule" in entry.settings)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"global_batch": 4}, "layouts needs devices"),
        ({"devices": 4}, "layouts needs global_batch"),
        ({"devices": 4, "global_batch": 4, "accumulate": 2}, "accumulate=2 follows from"),
        ({"devices": 4, "global_batch": 4, "tp": []}, "tp=.* is empty"),
        ({"devices": 4, "global_batch": 4, "dtype": "bf16"}, "unknown setting 'dtype': did you mean 'precision'?"),
        ({"devices": 4, "global_batch": 4, "memory": 80}, "memory=80 would be 80 bytes: use text such as '80 GiB'"),
        ({"devices": 4, "global_batch": 4, "seq": [16, 32]}, "seq=.* is a list"),
        ({"devices": 4, "global_batch": 4, "tp": 3}, "devices=4 are not a multiple of the 3 "),
        ({"devices": 4, "global_batch": 4, "schedule": ["1f1b", "gpip"]}, "unknown schedule 'gpip'"),
        ({"devices": 4, "global_batch": 4, "runtime": "megatrom"}, "unknown runtime 'megatrom'"),
        (
            {"devices": 4, "global_batch": 4, "mode": "inference"},
            "mode='inference' is no training step, .* or ask deployments",
        ),
    ],
)
def test_a_question_without_layouts_says_why(question: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError, match=message):
        cm.layouts(MODEL, **question)


def test_refused_layouts_are_counted_as_such_however_slow_they_would_be() -> None:
    run: dict[str, Any] = {**RUN, "devices": 8, "on": "h100-sxm", "pp": 1, "tp": 1, "batch": 1, "runtime": "torch"}
    near, whole = cm.layouts(MODEL, **run), cm.layouts(MODEL, **run, every=True)
    assert near.slower > 0
    assert near.refused == whole.refused


TIMED: dict[str, Any] = {"on": "h100-sxm", "runtime": ["torch", "megatron"], "checkpoint": ["none", "block"], **RUN}
TIMED["batch"] = [1, 2]


@pytest.fixture(scope="module")
def timed_layouts() -> Any:
    return cm.layouts(MODEL, **TIMED, every=True)


def test_seconds_of_each_layout_are_those_of_a_prediction(timed_layouts: Any) -> None:
    seconds = [entry.seconds for entry in timed_layouts]
    assert seconds == sorted(seconds)
    assert {entry.settings.get("pp", 1) for entry in timed_layouts} == {1, 2, 4}
    for entry in timed_layouts.entries[:: len(timed_layouts) // 20]:
        time = entry.prediction.on("h100-sxm")
        assert entry.seconds == pytest.approx(time.seconds, rel=1e-9)
        assert entry.step.exposed == pytest.approx(time.exposed, rel=1e-9)
        assert entry.step.bubble == pytest.approx(time.bubble, rel=1e-9, abs=1e-12)
        assert entry.rate == pytest.approx(time.tokens_per_second, rel=1e-9)


def test_the_next_best_loses_for_a_reason_that_its_seconds_have(timed_layouts: Any) -> None:
    best = timed_layouts.best
    for entry in timed_layouts.entries[1:]:
        longer = {
            "collectives": entry.step.exposed - best.step.exposed,
            "stages": entry.step.bubble - best.step.bubble,
            "computing": entry.step.computed - best.step.computed,
        }
        most = max(longer, key=lambda what: longer[what])
        assert most in entry.reason(best) or entry.reason(best) == "as fast"


def test_the_simplest_is_near_the_best_and_no_other_near_it_is_simpler(timed_layouts: Any) -> None:
    simplest = timed_layouts.simplest(0.1)
    near = [entry for entry in timed_layouts if entry.seconds <= 1.1 * timed_layouts.best.seconds]
    assert simplest in near
    assert all(simplest.plainness <= entry.plainness for entry in near)
    assert timed_layouts.simplest(0.0).seconds == timed_layouts.best.seconds


def test_a_table_of_timed_layouts_is_of_eighty_columns(timed_layouts: Any) -> None:
    from costmodel.display.table import Page, written_for

    with written_for(Page(80)):
        assert max(map(len, str(timed_layouts).splitlines())) <= 80


def test_the_change_that_helps_most_is_counted_over_what_does_not_fit() -> None:
    whole = cm.layouts(MODEL, runtime="megatron", pp=1, batch=[1, 4], checkpoint=["none", "block"], **RUN)
    peaks = {str(sorted(entry.settings.items())): entry.peak for entry in whole}
    room = sorted(peaks.values())[len(peaks) // 2]
    found = cm.layouts(MODEL, memory=room, runtime="megatron", pp=1, batch=[1, 4], checkpoint=["none", "block"], **RUN)
    assert len(found) + sum(reason.candidates for reason in found.unfit) == len(whole)
    assert all(reason.change for reason in found.unfit)
    beside = next(reason for reason in found.unfit if "passes" in reason.text)
    unfit = [entry for entry in whole if entry.peak > room]
    if beside.change.startswith("micro-batches"):
        larger = [entry for entry in unfit if entry.settings["batch"] == 4]
        helped = [peaks[str(sorted({**entry.settings, "batch": 1}.items()))] <= room for entry in larger]
        assert f"{sum(helped) / beside.candidates:.0%}" in beside.change


def test_a_setting_is_not_blamed_for_another_whose_name_ends_alike() -> None:
    why = ["ep=3 lacks experts", "vpp=2 is of schedules", "pp=4 with attention"]
    assert blamed(why, ["pp", "tp"]) == why[2]
    assert blamed(why, ["tp"]) == why[0]


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("gpt-oss-20b", {"tp": 8}, "tp=8 is not worked out for biases of experts"),  # not what runtime='megatron' lacks
        ("resnet18", {"cp": 2}, "^cp=2 does not apply to CNN"),
    ],
)
def test_what_is_given_is_blamed_before_what_is_tried(model: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        cm.layouts(model, devices=8, global_batch=8, **given)


def test_layouts_are_drawn_with_their_front(timed_layouts: Any) -> None:
    pytest.importorskip("matplotlib")
    figure = timed_layouts.plot()
    assert "are on the Pareto front" in figure.axes[0].get_title(loc="left") + figure.axes[0].get_title()
    with pytest.raises(SettingError, match="seconds are of a machine"):
        cm.layouts(MODEL, runtime="megatron", pp=1, batch=1, checkpoint="none", **RUN).plot()


def test_tp_stays_within_a_node_unless_it_is_given() -> None:
    run: dict[str, Any] = {**RUN, "devices": 16, "global_batch": 16, "pp": 1, "batch": 1, "checkpoint": "none"}
    found = cm.layouts(MODEL, on="h100-sxm", runtime="megatron", **run)
    every = cm.layouts(MODEL, on="h100-sxm", runtime="megatron", tp=[1, 2, 4, 8, 16], **run)
    assert "within nodes of 8 devices" in str(found)
    assert "within nodes" not in str(every)
    assert found.candidates < every.candidates


def test_layouts_at_another_network_are_those_that_are_asked_for_there() -> None:
    run: dict[str, Any] = {**RUN, "devices": 16, "global_batch": 16, "batch": 1, "checkpoint": "none", "tp": 2}
    found = cm.layouts(MODEL, on="h100-sxm", runtime="megatron", **run)
    slower = found.at("25 Gb/s")
    asked = cm.layouts(MODEL, on="h100-sxm", runtime="megatron", network="25 Gb/s", **run)
    assert [entry.settings for entry in slower] == [entry.settings for entry in asked]
    assert [entry.seconds for entry in slower] == pytest.approx([entry.seconds for entry in asked], rel=1e-12)
    assert slower.best.seconds > found.best.seconds
    link: Any = cm.load_cluster("h100-sxm").network
    half = link.model_copy(update={"bandwidth": link.bandwidth / 2})
    assert [speed.bandwidth / link.bandwidth for speed in found.networks] == [0.5, 1.0, 2.0]
    for n in (0, 5):
        expected = found[n].prediction.on("h100-sxm", network=half).seconds
        assert found.networks[0].seconds[n] == pytest.approx(expected, rel=1e-9)
        assert found.networks[1].seconds[n] == found[n].seconds
    assert "step, by network" in str(found)


@pytest.mark.parametrize("name", ["resnet50", "mlp-mnist", "vit-b-16", "t5-small"])
def test_models_of_every_kind_have_layouts_that_predictions_take(name: str) -> None:
    found = cm.layouts(name, devices=2, global_batch=4, on="a100-sxm-80gb", runtime="torch", batch=1)
    assert found.best.prediction.on("a100-sxm-80gb").seconds == pytest.approx(found.best.seconds, rel=1e-9)


def test_pipelines_of_sharded_weights_are_layouts_too(timed_layouts: Any) -> None:
    sharded = [e for e in timed_layouts if e.settings.get("pp", 1) > 1 and e.settings.get("fsdp", 1) > 1]
    assert len(sharded) > 5
    for entry in sharded[:: len(sharded) // 5]:
        assert entry.peak == entry.prediction.memory.peak
        assert entry.seconds == pytest.approx(entry.prediction.on("h100-sxm").seconds, rel=1e-9)


def test_micro_batches_and_schedules_share_the_stages_of_sharded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[StagePasses] = []
    walk = StagePasses._walked
    run: dict[str, Any] = {"seq": 16, "batch": 1, "pp": 2, "vpp": 2, "fsdp": 2, "on": "h100-sxm"}
    every = [
        Settings(**run, schedule=schedule, accumulate=accumulate)
        for schedule in ("interleaved-1f1b", "looped-bfs")
        for accumulate in (8, 4, 512)
    ]
    expected = [Costs(MODEL, settings) for settings in every]
    steps, counts, seconds, peaks = LayoutSteps(RankPeaks(MODEL), time_on(expected[0], "h100-sxm")), [], [], []
    with monkeypatch.context() as patch:
        patch.setattr(StagePasses, "_walked", lambda own, **how: walked.append(own) or walk(own, **how))
        for settings in every:
            seconds.append(steps.step(settings).seconds)
            peaks.append(steps.ranks.peak(settings))
            counts.append(len(walked))
            walked.clear()
    assert counts[0] > 0
    assert counts[1:3] == counts[4:] == [0, 0]
    assert seconds == pytest.approx([time_on(costs, "h100-sxm").seconds for costs in expected])
    assert peaks == [costs.timeline.peak for costs in expected]


@pytest.mark.parametrize("precision", ["bf16-master", "bf16-master-fp32-gradients"])
def test_losses_are_let_go_of_before_gradients_of_a_large_head_are_summed(precision: Any) -> None:
    """Its gradients in fp32 are summed over ranks in a buffer larger than its weights in bf16 took in the passes."""
    model = MODEL.with_fields({"vocab": 4096})
    settings = Settings(seq=1, batch=1, accumulate=64, precision=precision, pp=2, fsdp=2, return_outputs=False)
    timeline = Costs(model, settings).timeline
    assert timeline.peak_step.layer == "root.gradients"
    assert RankPeaks(model).peak(settings) == timeline.peak


def test_what_was_not_asked_for_in_a_while_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layouts are gone through, few stages stay recorded, and each layout is the same.

    What is recorded of others is freed at once, without Python's search for what refers to itself.
    """
    most, traced = 4, weakref.WeakSet[Any]()

    def noted(*given: Any, **how: Any) -> Any:
        tape = trace(*given, **how)
        traced.add(tape)
        counts["traced"] += 1
        return tape

    ask = {**TIMED, "every": True, "tp": 1, "cp": 1, "pp": [2, 4], "batch": 1}
    counts: Counter[str] = Counter()
    expected = cm.layouts(MODEL, **ask)
    for module, name in ((peaks, "MOST_TAPES"), (peaks, "MOST_PASSES"), (layout_steps, "MOST_STAGES")):
        monkeypatch.setattr(module, name, most)
    monkeypatch.setattr(peaks, "trace", noted)
    gc.disable()
    try:
        few = cm.layouts(MODEL, **ask)
    finally:
        gc.enable()
    assert few == expected
    assert few.search is not None  # it is alive, with all that it keeps
    assert counts["traced"] > 10 * most
    assert 0 < len(traced) <= 3 * most, len(traced)  # recorded; walked; and stages as ways of weights find them


def test_what_calls_take_is_worked_out_once_for_all_walks_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of passes that find gradients there already too, and of other schedules."""
    counts: Counter[Any] = Counter()
    memory_of = forward.memory_of
    monkeypatch.setattr(forward, "memory_of", lambda call: counts.update([call]) or memory_of(call))
    ranks = RankPeaks(MODEL)
    for schedule in ("1f1b", "gpipe"):
        ranks.peak(Settings(seq=16, accumulate=4, pp=2, schedule=schedule))  # type: ignore[arg-type]
    assert set(counts.values()) == {1}


def test_what_is_recorded_of_a_stage_serves_others_on_their_own_layout() -> None:
    """Weights that stay gathered are of one layout alone, whichever is the first to ask for a stage."""
    run: dict[str, Any] = {"seq": 2, "accumulate": 4, "pp": 2, "fsdp": 2, "schedule": "looped-bfs"}
    every = [Settings(**run, reshard=reshard) for reshard in (False, True)]
    peaks = [Costs(MODEL, settings).timeline.peak for settings in every]
    assert peaks[0] > peaks[1]
    for order in ([0, 1], [1, 0]):
        ranks = RankPeaks(MODEL)
        assert [ranks.peak(every[n]) for n in order] == [peaks[n] for n in order]


def check_bounds(found: Any) -> None:
    steps = found.search.steps
    for entry in found:
        settings = entry.prediction.settings
        shapes = PipelineShapes.of([settings.layout], entry.model.layers)
        for work in (steps.work(replace(settings, checkpoint="none")), steps.work(settings)):
            assert steps.least_seconds(work, settings.layout, shapes, settings.micro_batches) <= entry.seconds
        assert work.kept_bytes(settings.layout, settings.micro_batches) <= entry.peak


def test_bounds_are_never_above_what_is_worked_out(timed_layouts: Any) -> None:
    check_bounds(timed_layouts)


def test_bounds_count_blocks_of_several_kinds() -> None:
    experts = {"experts.count": 4, "experts.per_token": 2, "experts.width": 16, "experts.shared_width": 16}
    latent = {"kv_heads": None, "head_size": 12, "rotary.size": 4, "latent.width": 8, "latent.value_head_size": 8}
    model = cm.load("deepseek-v2-lite", over={**SIZE, **latent, **experts, "mlp_width": 64})
    found = cm.layouts(model, **{**TIMED, "checkpoint": "none", "pp": 2, "batch": 1, "ep": [1, 2]}, every=True)
    assert found.search.fixed["attention"] == "efficient"
    check_bounds(found)
    work = found.search.steps.work(found.best.prediction.settings)
    assert [count for count, kept in sorted(work.own.kinds) if kept] == [1, 3]


def test_weights_of_stages_are_split_over_as_many_ranks_as_there_are() -> None:
    """A stage is traced once for all numbers of ranks that its weights are split over."""
    model = cm.load("mixtral-8x7b", over={**SIZE, "mlp_width": 24, "experts.count": 4})
    shared, refused = RankPeaks(model), 0
    for fsdp, ep in [(2, 1), (4, 1), (32, 1), (2, 2), (4, 2), (8, 4), (32, 2)]:
        settings = Settings(seq=16, batch=1, accumulate=4, pp=2, fsdp=fsdp, ep=ep)
        try:
            held = RankPeaks(model).held(settings)
        except SettingError as error:
            refused += 1
            with pytest.raises(SettingError, match=re.escape(str(error))):
                shared.held(settings)
        else:
            assert shared.held(settings) == held
    assert refused == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("name", ["llama-2-7b", "mixtral-8x7b"])
def test_copies_shares_and_stages_ask_the_same_of_a_micro_batch(name: str, precision: str) -> None:
    """A search works out once what a micro-batch of all such layouts asks for."""
    model = cm.load(name, over=SIZE)
    like: dict[Any, tuple[Any, ...]] = {}
    for mesh in [*Meshes(model, 8, {})][::5]:
        try:
            run: dict[str, Any] = {**mesh, "seq": 16, "precision": precision, "batch": 2, "on": "h100-sxm"}
            settings = Settings(**run, accumulate=2 * mesh["pp"] * mesh.get("vpp", 1))
            steps = LayoutSteps(RankPeaks(model), time_on(Costs(model, settings), "h100-sxm"))
            work = steps.work(settings)
        except CostModelError:
            continue
        key = frozenset(item for item in mesh.items() if item[0] not in APART)
        prices = Prices(steps.links, settings.layout)
        assert like.setdefault(key, (vars(work), work.floors(prices))) == (vars(work), work.floors(prices))


@pytest.mark.parametrize(
    "run", [{"runtime": "torch", "fsdp": 2}, {"runtime": "megatron", "tp": 2, "sp": True}], ids=str
)
@pytest.mark.parametrize(("name", "attention"), [("llama-2-7b", "flash"), ("mixtral-8x7b", "eager")])
def test_micro_batches_between_others_are_not_traced(
    name: str, attention: str, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they ask for is on the line between the smallest and the largest, on which one in the middle lies.

    Of two heads a rank, Megatron has the softmax of odd batches in other kernels than that of even ones.
    """
    traced: list[int] = []

    def counted(model: Any, settings: Settings, **options: Any) -> Any:
        traced.append(settings.batch)
        return trace(model, settings, **options)

    monkeypatch.setattr(layout_steps, "trace", counted)
    model, batches = cm.load(name, over=SIZE), [1, 2, 3, 4, 6, 12, 24]
    run = {**run, "seq": 16, "precision": "bf16-master-fp32-gradients", "on": "h100-sxm", "checkpoint": "block"}
    settings = Settings(**run, accumulate=2, attention=attention)
    steps = LayoutSteps(RankPeaks(model), time_on(Costs(model, settings), "h100-sxm"))
    together = [steps.work(replace(settings, batch=batch), batches) for batch in batches]
    of_scores = [1, 2, 3, 6, 24] if run["runtime"] == "megatron" else [1, 2, 4, 6, 24]
    assert sorted(traced) == ([1, 4, 24] if attention == "flash" else of_scores)
    others = LayoutSteps(RankPeaks(model), time_on(Costs(model, settings), "h100-sxm"))
    for work, batch in zip(together, batches, strict=True):
        alone = others.work(replace(settings, batch=batch))
        for own, other in ((work.device, alone.device), (work.host, alone.host)):
            assert [own.whole, own.tail, *own.kinds.values()] == pytest.approx(
                [other.whole, other.tail, *other.kinds.values()], rel=1e-12
            )
        assert (work.messages, work.kept, work.own) == (alone.messages, alone.kept, alone.own)


@examples(20)
@given(runs(), st.sampled_from([1, 2]), st.sampled_from([2, 4]), st.sampled_from(sorted(SCHEDULES)))
def test_pipelines_of_sharded_weights_never_have_less_than_their_bound(
    run: dict[str, Any], vpp: int, fsdp: int, schedule: str
) -> None:
    run = {**run, "runtime": "torch", "zero": 0, "pp": 2, "fsdp": fsdp, "schedule": schedule, "checkpoint": "none"}
    run["vpp"] = SCHEDULES[schedule].only_stages or vpp
    peaks = RankPeaks(MODEL)
    try:
        settings = Settings(seq=16, precision="bf16", **run)
        peak = peaks.peak(settings)
    except CostModelError:
        return
    assert 0 < peaks.peak(settings, room=0) <= peak


def test_the_fastest_are_the_same_as_of_all(timed_layouts: Any) -> None:
    """What is left out as slower really is, and no candidate is lost."""
    near = cm.layouts(MODEL, **TIMED)
    assert [entry.settings for entry in near] == [entry.settings for entry in timed_layouts][: len(near)]
    assert len(near) >= sum(entry.seconds <= 1.05 * near.best.seconds for entry in timed_layouts)
    assert near.candidates == timed_layouts.candidates
    refused = sum(reason.candidates for reason in near.refused)
    assert near.slower + refused == near.candidates - len(near)
    assert refused > 0
    assert near.simplest(0.5).settings == timed_layouts.simplest(0.5).settings


def test_the_fastest_that_fit_are_the_same_as_of_all_that_do() -> None:
    whole = cm.layouts(MODEL, **TIMED, every=True, cp=1, tp=1)
    room = sorted(entry.peak for entry in whole)[len(whole) // 2]
    near = cm.layouts(MODEL, **TIMED, cp=1, tp=1, memory=room)
    fit = [entry.settings for entry in whole if entry.peak <= room]
    assert [entry.settings for entry in near] == fit[: len(near)]
    assert near.candidates == whole.candidates
    assert near.unfit
    wider = near.search.again(within=9.0)  # type: ignore[union-attr]
    unfit, refused = sum(reason.candidates for reason in wider.reasons), wider.refused.reasons
    assert unfit > sum(reason.candidates for reason in near.unfit)
    assert len(wider.entries) + wider.slower + unfit + sum(r.candidates for r in refused) == near.candidates


def test_few_of_many_candidates_are_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Settings] = []
    whole = LayoutSteps.step
    monkeypatch.setattr(LayoutSteps, "step", lambda self, settings: played.append(settings) or whole(self, settings))
    run: dict[str, Any] = {"devices": 16, "global_batch": 64, "seq": 64, "on": "h100-sxm", "runtime": "megatron"}
    near = cm.layouts(MODEL, **run, precision="fp32", cp=1)
    assert near.slower > 300
    assert len(played) < near.slower / 4


def test_where_weights_alone_take_too_much_passes_alone_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of experts: neither what else may be recomputed, nor updates, which no bound has; blocks are counted once."""
    traced: list[Any] = []
    for module, name in ((layout_steps, "trace"), (layout_steps, "kinds_of"), (step_work, "update_tasks")):
        called: Any = getattr(module, name)

        def noted(*given: Any, name: str = name, called: Any = called, **options: Any) -> Any:
            traced.append(given[1].checkpoint if name == "trace" else name)
            return called(*given, **options)

        monkeypatch.setattr(module, name, noted)
    run: dict[str, Any] = {"seq": 16, "devices": 8, "global_batch": 8, "on": "h100-sxm", "memory": "1 kB", "reserve": 0}
    found = cm.layouts(EXPERTS, **run, runtime=["torch", "megatron"])
    assert set(traced) == {"none", "kinds_of"}
    assert traced.count("kinds_of") == 1
    assert [reason.text for reason in found.unfit] == [TOO_MUCH_HELD]
    assert found.candidates == found.unfit[0].candidates + sum(reason.candidates for reason in found.refused)
    text = " ".join(str(found).split())
    assert f"{found.unfit[0].candidates:,} do not fit: {TOO_MUCH_HELD}; no one change makes room" in text
    for reason in found.refused[:3]:
        assert f"{reason.candidates:,}: {reason.text}" in text
    others = sum(reason.candidates for reason in found.refused[3:])
    assert f"{others:,}: {len(found.refused) - 3} other reasons" in text


@pytest.mark.parametrize("devices", [0, -3, 1.5, True, "8", [8]])
def test_devices_that_no_layout_has_are_refused_as_predict_does(devices: Any) -> None:
    with pytest.raises(cm.CostModelError) as own:
        cm.layouts(MODEL, **{**RUN, "devices": devices})
    with pytest.raises(cm.CostModelError) as other:
        cm.predict(MODEL, devices=devices)
    assert str(own.value) == str(other.value)


@pytest.mark.parametrize("checkpoint", ["nonesuch", ["none", "nonesuch"]])
def test_parts_that_there_are_not_are_refused_as_predict_does(checkpoint: Any) -> None:
    with pytest.raises(cm.CostModelError) as own:
        cm.layouts(MODEL, **RUN, checkpoint=checkpoint)
    with pytest.raises(cm.CostModelError) as other:
        cm.predict(MODEL, seq=16, checkpoint="nonesuch")
    assert (type(own.value), str(own.value)) == (type(other.value), str(other.value))


def test_what_one_runtime_refuses_others_may_take() -> None:
    """PyTorch runs no pipelines of fewer micro-batches than stages, others do."""
    run: dict[str, Any] = {"seq": 16, "devices": 4, "global_batch": 4, "batch": 2, "pp": 2, "tp": 1, "cp": 1, "vpp": 1}
    run |= {"schedule": "1f1b", "on": "h100-sxm", "checkpoint": "none", "every": True}
    alone = cm.layouts(MODEL, **run, runtime="megatron")
    both = cm.layouts(MODEL, **run, runtime=["torch", "megatron"])
    assert [e.settings for e in both if e.settings.get("runtime") == "megatron"] == [e.settings for e in alone]


def test_a_refused_layout_leaves_those_that_compute_alike() -> None:
    """Copies of these gradients are refused, and shards are not, of which the copies' micro-batches say nothing."""
    run: dict[str, Any] = {"seq": 16, "devices": 4, "global_batch": 8, "on": "h100-sxm", "runtime": "torch", "cp": 1}
    run |= {"checkpoint": "block", "precision": "bf16-master-fp32-gradients", "pp": [1, 2], "tp": 1}
    run["schedule"] = ["1f1b", "interleaved-1f1b", "gpipe"]
    near, whole = (cm.layouts(MODEL, **run, batch=[2, 4], every=every) for every in (False, True))
    assert near.slower > 0
    assert [entry.settings for entry in near] == [entry.settings for entry in whole][: len(near)]


def test_each_number_of_copies_of_a_pipeline_takes_its_own_time() -> None:
    run: dict[str, Any] = {"seq": 16, "devices": 16, "global_batch": 16, "on": "h100-sxm", "runtime": "torch", "tp": 1}
    run |= {"cp": 1, "fsdp": 1, "pp": [2, 4], "schedule": "looped-bfs", "vpp": [1, 2], "batch": 1, "precision": "fp32"}
    run["checkpoint"] = "none"
    found = cm.layouts(MODEL, **run)
    assert {entry.values("dp")["dp"] for entry in found} == {4, 8}
    for entry in found:
        assert entry.seconds == pytest.approx(entry.prediction.on("h100-sxm").seconds, rel=1e-9)


EXPERTS = cm.load(
    "mixtral-8x7b", over={"vocab": 96, "context": 64, "layers": 4, "width": 32, "heads": 4, "kv_heads": 2}
)


def test_what_a_runtime_takes_in_one_way_alone_is_one_layout() -> None:
    """Megatron splits tokens over the ranks of tp where these meet ep, with sp and without."""
    run: dict[str, Any] = {**RUN, "runtime": "megatron", "tp": 2, "ep": [1, 2], "pp": 1, "cp": 1, "batch": 1}
    found = cm.layouts(EXPERTS, **run, checkpoint="none")
    layouts = [entry.prediction.settings for entry in found]
    assert {settings.ep for settings in layouts} == {1, 2}
    assert len({str(settings) for settings in layouts}) == len(layouts)
    assert cm.layouts(EXPERTS, **{**run, "ep": 2, "sp": False}, checkpoint="none").best.prediction.settings.sp


SPLIT: dict[str, Any] = {"seq": 16, "global_batch": 64, "on": "h100-sxm", "runtime": "megatron", "batch": 1}
SPLIT |= {"checkpoint": "none", "every": True}


@pytest.mark.parametrize("run", [{"devices": 8, "pp": [1, 2]}, {"devices": 32, "pp": [1, 2], "cp": [1, 2]}], ids=str)
def test_experts_split_apart_from_tp_are_layouts_as_predictions_say(run: dict[str, Any]) -> None:
    found = cm.layouts(EXPERTS, **SPLIT, **run)
    apart = [entry for entry in found if "etp" in entry.settings]
    assert {entry.settings["etp"] for entry in apart} == ({1} if run["devices"] == 8 else {1, 2, 4})
    assert {("cp" in entry.settings, entry.settings.get("zero", 0)) for entry in apart} >= {(False, 0), (False, 1)}
    for entry in apart[:: 1 + len(apart) // 20]:
        time = entry.prediction.on("h100-sxm")
        assert (entry.peak, entry.prediction.settings.devices) == (entry.prediction.memory.peak, run["devices"])
        assert entry.seconds == pytest.approx(time.seconds, rel=1e-9)
        assert entry.step.exposed == pytest.approx(time.exposed, rel=1e-9)  # type: ignore[union-attr]
        assert entry.text("tp", "ep", "etp").endswith(f"etp {entry.settings['etp']}")
    check_bounds(found)


@pytest.mark.parametrize("count", [1, 6, 8, 64])
def test_experts_are_split_apart_from_tp_only_where_none_are_left_to_be_dealt_out(count: int) -> None:
    """Of each other legal way some way is drawn that deals out what it splits, over as many ranks."""
    model = cm.load("mixtral-8x7b", over={"experts.count": count, "experts.per_token": 1})
    drawn = {
        (mesh["tp"], mesh["cp"], mesh["pp"], mesh["dp"], mesh["ep"], mesh.get("etp", mesh["tp"])): "etp" in mesh
        for mesh in Meshes(model, 24, {"runtime": ["megatron"]})
    }
    for (tp, cp, pp, dp, ep, etp), apart in drawn.items():
        ranks = tp * cp * dp
        assert ranks % (ep * etp) == 0
        assert not apart or (etp != tp and count % ep == 0 and math.gcd(etp, count // ep) == 1)
        for dealt, split in ((n, k) for n in range(1, ranks + 1) for k in range(1, ranks // n + 1)):
            if count % dealt == 0 and ranks % (dealt * split) == 0:
                more = [n for n in range(dealt, dealt * split + 1) if count % n == 0 and dealt * split % n == 0]
                assert any((tp, cp, pp, dp, n, dealt * split // n) in drawn for n in more)


def test_experts_that_are_dealt_out_are_no_slower_than_split_over_as_many_ranks() -> None:
    """What is held beside differs by what stands for gradients of one expert's weights, `stood_for`."""
    model = cm.load("mixtral-8x7b", over={"layers": 2, "vocab": 1024})
    run: dict[str, Any] = {**SPLIT, "seq": 1024, "devices": 16, "pp": 1, "cp": 1, "etp": [1, 2, 4, 8, 16]}
    found = {
        tuple(entry.values("tp", "ep", "etp", "zero").values()): entry
        for entry in cm.layouts(model, **run, memory="1 TB")
    }
    pairs = 0
    for (tp, ep, etp, zero), entry in found.items():
        for times in (2, 4, 8):
            if etp % times == 0 and 8 % (ep * times) == 0:
                other = found[tp, ep * times, etp // times, zero]
                assert other.seconds <= entry.seconds
                assert other.peak <= entry.peak + 2 * 3 * 4096 * 14336
                pairs += 1
    assert pairs > 60


def test_ranks_that_split_experts_are_as_they_are_given() -> None:
    run: dict[str, Any] = {**SPLIT, "devices": 8, "pp": 1, "cp": 1}
    every = cm.layouts(EXPERTS, **run)
    given = cm.layouts(EXPERTS, **run, etp=[1, 2])
    assert {entry.settings["etp"] for entry in given} == {1, 2}
    assert {entry.values("tp", "ep", "etp")["tp"] for entry in given} == {1, 2, 4}
    usual = cm.layouts(EXPERTS, **run, etp=None)
    assert [entry.settings for entry in usual] == [entry.settings for entry in every if "etp" not in entry.settings]
    assert 0 < len(usual) < len(every)
    with pytest.raises(CostModelError, match="ep=1 and etp=3 are 3 ranks, which do not divide the 8 of tp, cp and dp"):
        cm.layouts(EXPERTS, **run, etp=3)
    refused = cm.layouts(cm.load("mixtral-8x7b", over={**SIZE, "experts.count": 2, "mlp_width": 18}), **run).refused
    assert any(reason.text.startswith("etp=4 does not divide experts.width 18 of mixtral-8x7b") for reason in refused)
    with pytest.raises(CostModelError, match="etp=1 splits experts, of which gpt2-small has none: leave it out"):
        cm.layouts("gpt2-small", devices=4, global_batch=8, etp=1)


PIPELINE: dict[str, Any] = {"devices": 4, "seq": 1024, "global_batch": 16, "on": "h100-sxm", "cp": 1, "tp": 1, "pp": 2}
PIPELINE |= {"batch": [1, 2], "checkpoint": "none", "memory": "200 GB"}
HEAVY = cm.load("llama-3.1-8b", over={"layers": 8})  # whose head takes as long as two blocks


@pytest.mark.parametrize("runtime", ["torch", "megatron"])
def test_pipelines_are_tried_with_blocks_dealt_out_by_time(runtime: Any) -> None:
    found = cm.layouts(HEAVY, runtime=runtime, every=True, **PIPELINE)
    usual = cm.layouts(HEAVY, runtime=runtime, every=True, **PIPELINE, pp_split=())
    own = [{name: value for name, value in entry.settings.items() if name != "pp_split"} for entry in usual]
    split = [entry for entry in found if "pp_split" in entry.settings]
    assert [entry.settings for entry in found if "pp_split" not in entry.settings] == own
    assert 0 < len(split) <= 10
    assert found.candidates == usual.candidates + len(split)
    for entry in split:
        whole = {name: value for name, value in entry.settings.items() if name != "pp_split"}
        assert entry.seconds < usual[own.index(whole)].seconds
        assert own.index(whole) < 10
        assert entry.settings["pp_split"][-1] < 8 / len(entry.settings["pp_split"])
        assert entry.peak == entry.prediction.memory.peak
        assert entry.seconds == pytest.approx(entry.prediction.on("h100-sxm").seconds, rel=1e-9)
        assert Settings(**{**entry.settings, "pp_split": entry.text("pp_split").split()[1]}) == Settings(
            **entry.settings
        )
    near = cm.layouts(HEAVY, runtime=runtime, **PIPELINE)
    assert [entry.settings for entry in near] == [entry.settings for entry in found][: len(near)]
    slower = found.at("25 Gb/s")
    asked = cm.layouts(HEAVY, runtime=runtime, every=True, network="25 Gb/s", **PIPELINE)
    assert [entry.settings for entry in slower] == [entry.settings for entry in asked]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ((5, 5), r"pp_split=\(5, 5\) cuts no pipeline of .*: give how many of its 8 layers each stage has"),
        ("9,9", r"pp_split=\(9, 9\) cuts no pipeline"),
        ([3, 3, 2], r"pp_split=3x2,2 is of 3 stages, as no layout over devices=4 has: cut 2, 4, 8 stages"),
        ((3, 5), r"pp_split=3,5 is of 2 or 3 stages, as no layout over devices=4 has: cut 4, 8 stages"),
        (("block.3", "blok.5"), r"unknown layer in pp_split 'blok.5'"),
    ],
)
def test_a_split_that_cuts_no_pipeline_has_a_sentence_of_its_own(split: Any, message: str) -> None:
    pp = [4] if split == (3, 5) else [1, 2, 4]
    with pytest.raises(CostModelError, match=message):
        cm.layouts(HEAVY, **{**PIPELINE, "pp": pp, "memory": None}, runtime="torch", pp_split=split)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("t5-small", {"pp_split": (2, 2)}, r"pp_split=\(2, 2\) is of a pipeline, .* EncoderDecoder 't5-small'"),
        ("gpt2-small", {"pp_split": (6, 6), "pp": 1}, r"pp_split=6x2 is of 2 stages, .*: leave it out"),
        ("gpt2-small", {"tp": [2], "pp": [4]}, r"devices=4 are not a multiple of the 8 "),
        ("gpt2-small", {"schedule": "gpipe", "pp": 1}, r"schedule='gpipe' is of a pipeline: give pp"),
        ("gpt2-small", {"batch": 3, "tp": 1, "pp": 1, "cp": 1}, r"=8 is no multiple of batch=3 on the 4 ranks that"),
        ("gpt2-small", {"batch": 3, "tp": 4}, r"global_batch=8 is no multiple of batch=3$"),
        ("gpt2-small", {"fsdp": 2, "runtime": "megatron"}, r"fsdp is not worked out with runtime='megatron'"),
    ],
)
def test_what_makes_up_no_layout_is_refused_as_predict_does(model: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError, match=message):
        cm.layouts(model, devices=4, global_batch=8, seq=64, **given)


def test_a_value_that_is_given_twice_is_one() -> None:
    given: dict[str, Any] = {"devices": 2, "global_batch": 2, "seq": 64, "runtime": "megatron", "tp": 2}
    once, twice = (cm.layouts("gpt2-small", **given, sp=sp) for sp in (True, [True, True]))
    assert twice.candidates == once.candidates


def test_shards_that_are_given_are_of_runtimes_that_have_them() -> None:
    found = cm.layouts("gpt2-small", devices=4, global_batch=8, seq=64, checkpoint="none", fsdp=2)
    assert {(entry.settings.get("runtime", "torch"), entry.settings["fsdp"]) for entry in found} == {("torch", 2)}


def test_uneven_splits_are_drawn_with_as_many_stages_of_a_rank_as_they_are_of() -> None:
    found = cm.layouts(HEAVY, devices=2, global_batch=8, seq=64, batch=1, pp_split=(2, 2, 1, 1, 1, 1))
    assert {entry.settings["pp"] * entry.settings["vpp"] for entry in found} == {6}
    assert {entry.settings.get("runtime", "torch") for entry in found} == {"torch", "megatron"}


def test_a_split_is_told_in_short() -> None:
    found = cm.layouts(HEAVY, **PIPELINE, runtime="megatron", vpp=1, pp_split=[5, 3])
    assert found.best.settings["pp_split"] == (5, 3)
    p = cm.predict(HEAVY, seq=1024, pp=4, accumulate=8, pp_split=(2, 2, 3, 1))
    assert "pp_split 2x2,3,1" in str(p).splitlines()[0]


def test_splits_that_are_slower_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Settings] = []
    slow = lambda steps, settings: tried.append(settings) or [(1, 7)]  # noqa: E731
    monkeypatch.setattr(LayoutSteps, "balanced_splits", slow)
    found = cm.layouts(HEAVY, runtime="megatron", schedule="1f1b", **PIPELINE)
    assert tried
    assert not any("pp_split" in entry.settings for entry in found)


def test_splits_fit_and_are_those_of_blocks_alone() -> None:
    found = cm.layouts(HEAVY, runtime="megatron", **PIPELINE)
    split = next(entry for entry in found if "pp_split" in entry.settings)
    usual = next(entry for entry in found if "pp_split" not in entry.settings)
    room = {**PIPELINE, "memory": split.peak - 1, "reserve": 0}
    assert usual.peak < split.peak
    assert all(entry.peak < split.peak for entry in cm.layouts(HEAVY, runtime="megatron", **room))
    mlp = cm.layouts("mlp-mnist", devices=4, on="h100-sxm", global_batch=8, runtime="torch", pp=2)
    assert not any("pp_split" in entry.settings for entry in mlp)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 2), st.integers(0, 8))
def test_no_other_deal_has_the_slowest_faster(beside: list[int], seconds: int, least: int, more: int) -> None:
    blocks = least * len(beside) + more
    every = itertools.product(range(least, blocks + 1), repeat=len(beside))
    slowest = min(max(b + n * seconds for b, n in zip(beside, c, strict=True)) for c in every if sum(c) == blocks)
    counts = layout_steps.dealt(blocks, seconds, [*map(float, beside)], least)
    assert (sum(counts), min(counts) >= least) == (blocks, True)
    assert max(b + n * seconds for b, n in zip(beside, counts, strict=True)) == slowest


@pytest.mark.parametrize("checkpoint", ["none", "selective", "block"])
@pytest.mark.parametrize(
    ("name", "ep", "beside"),
    [("llama-3.1-8b", [1], False), ("mixtral-8x7b", [1, 2], False), ("mixtral-8x7b", [2], True)],
)
def test_what_a_backward_pass_waits_for_is_in_bounds(name: str, ep: list[int], beside: bool, checkpoint: str) -> None:
    """Megatron gathers gradients of outputs that were scattered with nothing beside it, and sends tokens so.

    What runs again sends again.
    """
    run: dict[str, Any] = {"devices": 4, "global_batch": 8, "seq": 4096, "on": "h100-sxm", "memory": "2 TB", "tp": 2}
    run |= {"cp": 1, "pp": [1, 2], "vpp": [1], "batch": 1, "checkpoint": checkpoint, "sp": True, "runtime": "megatron"}
    run |= {"ep": ep} if ep != [1] else {}
    stack = cm.Stack("own", "eager_seconds", experts_beside=beside)
    found = cm.layouts(name, every=True, stack=stack, **run)
    steps: Any = found.search.steps  # type: ignore[union-attr]
    for entry in found:
        settings = entry.prediction.settings
        work = steps.work(settings)
        shapes = PipelineShapes.of([settings.layout], cm.load(name).layers)
        assert steps.least_seconds(work, settings.layout, shapes, settings.micro_batches)[0] <= entry.seconds
        scattered = [each for part, _, each in work.messages if part.layer == "block.attention.output.scatter"]
        assert {message.operation for message in scattered} == {"reduce_scatter", "all_gather"}
        exchanged = [each for part, _, each in work.messages if part.layer == "block.mlp.experts.send_rows"]
        assert len(exchanged) == (0 if beside or settings.ep == 1 else 3 if checkpoint == "block" else 2)


def test_bounds_count_what_a_runtime_sends_where_layers_run_again() -> None:
    """No more of a collective than a prediction has, and of experts and of heads all of it."""
    run: dict[str, Any] = {"seq": 16, "batch": 2, "accumulate": 2, "precision": "bf16-master-fp32-gradients"}
    for layout in (
        {"runtime": "megatron", "tp": 2, "sp": True, "dp": 2, "ep": 2},
        {"runtime": "megatron", "cp": 2, "cp_kind": "ulysses", "dp": 2, "ep": 4},
        {"fsdp": 2, "cp": 2, "cp_kind": "ulysses", "ep": 2},
        {"fsdp": 2, "tp": 2, "ep": 2},
    ):
        for checkpoint in ("none", "selective", "block"):
            settings = Settings(**run, **layout, checkpoint=checkpoint)  # type: ignore[arg-type]
            costs, counted, sent = Costs(EXPERTS, settings), Counter[Message](), Counter[Message]()
            for _, times, message in (
                LayoutSteps(RankPeaks(EXPERTS), time_on(costs, "h100-sxm")).work(settings).messages
            ):
                counted[message] += times * settings.micro_batches
            for each in costs.collectives:
                sent[Message(each.operation, each.axis, each.devices, each.elements, each.dtype)] += each.times
            assert counted <= sent
            ahead = {message for message in sent if message.axis in ("ep", "cp")}
            assert ahead
            assert {message: counted[message] for message in ahead} == {message: sent[message] for message in ahead}


@pytest.mark.parametrize(
    ("layers", "ahead", "mean"),
    [(5, [3, 4], [3 / 2, 9 / 4]), (6, [3, 5], [3 / 2, 9 / 4]), (7, [4, 6], [4 / 2, 12 / 4])],
)
def test_bounds_wait_for_all_blocks_before_the_last_stage(layers: int, ahead: list[int], mean: list[float]) -> None:
    """Of those that are left over earlier stages have one more; Megatron's first has one less where that is even."""
    model = cm.load("llama-2-7b", over={**SIZE, "layers": layers, "mlp_width": 64})
    run: dict[str, Any] = {"devices": 4, "global_batch": 8, "seq": 16, "on": "h100-sxm", "batch": 1, "vpp": 1}
    run |= {"runtime": "megatron", "pp": [2, 4], "checkpoint": "none", "cp": 1, "tp": 1, "zero": 0}
    found = cm.layouts(model, every=True, **run)
    check_bounds(found)
    layouts = {
        entry.settings["pp"]: entry.prediction.settings.layout for entry in found if "pp_split" not in entry.settings
    }
    shapes = PipelineShapes.of([layouts[2], layouts[4]], layers)
    assert (shapes.ahead.tolist(), shapes.mean_ahead.tolist()) == (ahead, mean)


OTHERS: dict[str, dict[str, Any]] = {
    "even": {},
    "with a capacity": {"experts.capacity_factor": 1.25},
    "with biases": {"experts.bias": True},
    "uneven": {"experts.imbalance": 2.0},
}


@pytest.mark.parametrize("experts", OTHERS)
@pytest.mark.parametrize("precision", ["bf16-master-fp32-gradients", "bf16"])
def test_experts_that_are_dealt_out_otherwise_are_not_traced_again(
    experts: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one rank asks for follows from what another does: all numbers are those of a trace, at fewer traces."""
    traced: list[Any] = []
    monkeypatch.setattr(layout_steps, "trace", lambda *given, **how: traced.append(given) or trace(*given, **how))
    model = cm.load("mixtral-8x7b", over={**SIZE, "experts.count": 16, **OTHERS[experts]})
    common: dict[str, Any] = {"seq": 64, "batch": 2, "precision": precision, "on": "h100-sxm"}
    like = time_on(Costs(model, Settings(**common, fsdp=2)), "h100-sxm")
    shared, every, once = LayoutSteps(RankPeaks(model), like), 0, 0
    meshes = Meshes(model, 32, {"pp": [1, 2], "zero": [0], "vpp": [1], "schedule": ["1f1b"], "dp": [1, 2, 4, 8, 16]})
    for n, mesh in enumerate(sorted(meshes, key=lambda mesh: str({**mesh, "ep": 0}))):
        checkpoint = ("none", "selective", "block")[n // 7 % 3]
        try:
            settings = Settings(**common, **mesh, accumulate=2 * mesh["pp"], checkpoint=checkpoint)
        except SettingError:
            continue
        shared._works = {}
        try:
            expected = LayoutSteps(RankPeaks(model), like).work(settings)
        except CostModelError as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                shared.work(settings)
            continue
        traced.clear()
        work = shared.work(settings)
        every, once = every + 1, once + len(traced)
        assert vars(work) == vars(expected)
    assert every > 50
    assert once == every if experts == "uneven" else once < 0.75 * every, (once, every)


@pytest.mark.parametrize("cp_kind", ["all-gather", "ring"])
@pytest.mark.parametrize("runtime", ["torch", "megatron"])
def test_kernels_of_a_ring_that_are_alike_are_worked_out_once(runtime: Any, cp_kind: Any) -> None:
    every: list[PassTasks] = []
    for cp in (4, 16):
        run: dict[str, Any] = {
            "runtime": runtime,
            "cp": cp,
            "cp_kind": cp_kind,
            "precision": "bf16-master-fp32-gradients",
        }
        settings = Settings(seq=64, attention="flash", accumulate=2, **run)
        every.append(PassTasks.of(trace(MODEL, settings), settings, {}, fuse=False))
    assert len(every[0].tasks) == len(every[1].tasks)
    few, many = (sum(task.times for task in tasks.tasks if task.kernel.sort == "attention") for tasks in every)
    assert many == 4 * few > 0


@pytest.mark.parametrize("name", ["llama-2-7b", "mixtral-8x7b"])
def test_how_tokens_are_split_changes_no_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts that differ in it alone are traced once for what their weights take."""
    model = cm.load(name, over=SIZE)
    together, kinds = RankPeaks(model), set[Any]()
    for mesh in Meshes(model, 8, {"dp": [1, 2], "vpp": [1, 2], "schedule": ["1f1b", "looped-bfs"]}):
        kind = tuple(value if type(value) is not int else value > 1 for value in mesh.values())
        if kind in kinds:
            continue
        try:
            run: dict[str, Any] = {**mesh, "seq": 32, "precision": "bf16-master-fp32-gradients", "attention": "flash"}
            settings = Settings(**run, accumulate=2 * mesh["pp"] * mesh.get("vpp", 1))
            with monkeypatch.context() as patch:
                patch.setattr(peaks, "_with_like_weights", lambda settings: settings)
                patch.setattr(RankPeaks, "_without_sequences", lambda ranks, settings, schedule: settings)
                alone = RankPeaks(model).held(settings)
        except CostModelError:
            continue
        kinds.add(kind)
        assert together.held(settings) == alone


@pytest.mark.parametrize(
    ("model", "options"),
    [(MODEL, {}), (EXPERTS, {}), (EXPERTS, {"runtime": ["megatron"], "ep": [4, 8], "etp": [None, 1, 2]})],
    ids=["dense", "experts", "experts given"],
)
def test_meshes_are_refused_by_kind_as_each_is(model: Any, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run: dict[str, Any] = {"seq": 64, "precision": "bf16-master-fp32-gradients"}
    search = LayoutSearch(model, {**run, "devices": 16, "global_batch": 32}, options, None, None)
    search.meshes = [*Meshes(model, 16, options)]
    made: list[Settings] = []
    check = Settings.__post_init__
    monkeypatch.setattr(Settings, "__post_init__", lambda self: made.append(self) or check(self))
    together = [search._checked(number, "block") for number in range(len(search.meshes))]
    count = len(made)
    alone = [search._judged(mesh, "block") for mesh in search.meshes]
    reasons = [[re.sub("[0-9]+", "#", str(each)) for each in several] for several in (together, alone)]
    assert reasons[0] == reasons[1]
    assert count < 0.9 * (len(made) - count)  # of which most are of kinds that a model refuses, or of several ep


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """Questions of few devices, of which some leave a degree or a schedule open."""
    run: dict[str, Any] = {"seq": 16, "global_batch": 8, "on": "h100-sxm", "devices": draw(st.sampled_from([2, 4, 8]))}
    run["runtime"] = draw(st.sampled_from(["torch", "megatron", "deepspeed", ["torch", "megatron"]]))
    run["precision"] = draw(st.sampled_from(["fp32", "fp8", "bf16", "bf16-master-fp32-gradients"]))
    run["checkpoint"] = draw(st.sampled_from(["block", "selective", ["none", "block"], ["block", "selective"]]))
    run["batch"] = draw(st.sampled_from([1, 2, [1, 4], [2, 4]]))
    open_ = {"pp": [1, 2, [1, 2]], "tp": [1, 2], "cp": [1, 2], "fsdp": [1, 2, [1, 4]], "schedule": ["1f1b", "gpipe"]}
    for name in draw(st.sets(st.sampled_from(sorted(open_)), min_size=2)):
        run[name] = draw(st.sampled_from(open_[name]))
    return run


@pytest.mark.slow
@examples(20)
@given(st.sampled_from([MODEL, EXPERTS]), questions())
def test_a_search_answers_what_working_all_out_does(model: Any, run: dict[str, Any]) -> None:
    try:
        whole = cm.layouts(model, **run, every=True)
    except CostModelError:
        with pytest.raises(CostModelError):
            cm.layouts(model, **run)
        return
    near = cm.layouts(model, **run)
    assert [entry.settings for entry in near] == [entry.settings for entry in whole][: len(near)]
    close = sum(entry.seconds <= 1.05 * whole.best.seconds for entry in whole)
    assert len(near) >= max(close, min(10, len(whole)))
    assert near.candidates == whole.candidates
    for entry in (whole[0], whole[len(whole) // 2], whole[len(whole) - 1]):
        assert entry.seconds == pytest.approx(entry.prediction.on("h100-sxm").seconds, rel=1e-9)
        assert entry.peak == entry.prediction.memory.peak
