"""Recommended settings: they fit, one more sample would not, they are ranked by what they say, and tips hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.recommend import CHECKPOINTS, Recommendations
from costmodel.analysis.search import line_guess
from tests.command import here, refused
from tests.profiles import examples
from tests.strategies import transformers

TINY = cm.Transformer(vocab=100, context=64, layers=2, width=32, heads=4)
ONE: dict[str, Any] = {"optimizer": "sgd", "precision": "fp32"}


@pytest.fixture(scope="module")
def found() -> Recommendations:
    return cm.recommend(TINY, memory="8 MiB")


def peak(**asked: Any) -> int:
    return cm.predict(TINY, **asked).memory.peak


def test_each_fits_as_predict_says_and_one_more_sample_does_not(found: Recommendations) -> None:
    assert len(found) > 4
    for entry in found:
        assert peak(**entry.settings) == entry.peak <= 8 * 2**20
        assert found.margin(entry) == 8 * 2**20 - entry.peak
        assert peak(**entry.settings | {"batch": entry.batch + 1}) > 8 * 2**20


def test_what_is_left_out_recomputes_and_takes_no_larger_batch(found: Recommendations) -> None:
    every = cm.recommend(TINY, memory="8 MiB", checkpoint=list(CHECKPOINTS))
    assert len(every) == found.counts.fit == every.counts.fit > len(found)
    kept = [entry.settings for entry in found]
    assert all(settings in [entry.settings for entry in every] for settings in kept)
    for entry in every:
        if entry.settings in kept:
            continue
        alike = [
            e
            for e in found
            if {**e.settings, "checkpoint": 0, "batch": 0} == {**entry.settings, "checkpoint": 0, "batch": 0}
        ]
        assert any(
            e.batch >= entry.batch
            and e.prediction.flops.recomputed * entry.batch <= entry.prediction.flops.recomputed * e.batch
            for e in alike
        )


@pytest.mark.parametrize("model", [TINY, "resnet18", "mlp-mnist"])
def test_the_most_useful_is_first_and_shares_are_of_a_whole(model: Any) -> None:
    found = cm.recommend(model, memory="512 MiB", checkpoint=["none", "block"], **ONE)
    shares = [entry.useful for entry in found]
    assert shares == sorted(shares, reverse=True)
    assert found.best is found[0]
    for entry in found:
        assert entry.useful + entry.recomputed + entry.moving == pytest.approx(1)
        assert f"{entry.useful:.1%} of the step is work" in entry.reason(found.best)


def test_where_moving_is_free_only_recomputing_counts() -> None:
    found = cm.recommend(TINY, memory="8 MiB", flops_per_byte=0, **ONE)
    paid = [entry.prediction.flops.recomputed / entry.samples for entry in found]
    assert paid == sorted(paid)
    assert paid[0] == 0 < paid[-1]


def test_what_is_given_stays_and_of_a_list_one_is_chosen() -> None:
    found = cm.recommend(
        TINY, memory="8 MiB", optimizer="sgd", attention="eager", batch=4, checkpoint=["none", "block"]
    )
    for entry in found:
        assert (entry.settings["optimizer"], entry.settings["attention"], entry.batch) == ("sgd", "eager", 4)
        assert entry.settings["checkpoint"] in ("none", "block")
    assert {entry.batch for entry in cm.recommend(TINY, memory="8 MiB", batch=range(2, 5), **ONE)} <= {2, 3, 4}


@pytest.mark.parametrize(("samples", "dp"), [(1, 1), (24, 1), (97, 1), (4096, 1), (4096, 4)])
def test_a_step_has_the_samples_that_are_asked_for(samples: int, dp: int) -> None:
    found = cm.recommend(TINY, memory="8 MiB", samples=samples, dp=dp, **ONE)
    for entry in found:
        assert dp * entry.batch * entry.accumulate == entry.samples == samples
        assert peak(**entry.settings) <= 8 * 2**20


def test_fused_attention_is_the_kernel_that_there_is(found: Recommendations) -> None:
    assert {(e.settings["precision"], e.settings["attention"]) for e in found} == {
        ("bf16-autocast", "flash"),
        ("fp32", "efficient"),
    }
    capped = cm.Transformer(**{**dict(TINY), "score_cap": 50.0})
    assert {e.settings["attention"] for e in cm.recommend(capped, memory="8 MiB", **ONE)} == {"eager"}


def test_inference_chooses_a_precision_alone() -> None:
    best = cm.recommend(TINY, memory="8 MiB", mode="inference").best
    assert set(best.settings) == {"mode", "precision", "attention", "batch", "accumulate"}
    assert cm.predict(TINY, **best.settings).memory.peak <= 8 * 2**20


AS_ASKED = ["bf16-autocast", "fp32"]
"""Precisions between which is chosen: given, no other numbers are tried."""


def test_the_change_that_helps_first_is_said_first_and_none_that_does_not() -> None:
    """Of Llama 3.1 8B at its context half the peak is logits, which chunks of the loss do away with."""
    found = cm.recommend("llama-3.1-8b", memory="80 GB", seq=131_072)
    needs, first, *_ = found.tips
    assert not found
    assert needs.startswith("it needs")
    assert first.startswith("with loss_chunks 16")
    assert first.endswith("and fit")
    smallest = found.smallest.prediction
    less = cm.predict("llama-3.1-8b", **{**found.smallest.settings, "loss_chunks": 16})
    assert less.memory.peak <= 80e9 < smallest.memory.peak
    assert not [tip for tip in found.tips if "sgd" in tip]  # the optimizer's states are not what is too much


@pytest.mark.slow
def test_weights_that_alone_do_not_fit_are_said_to() -> None:
    assert any("weights alone" in tip for tip in cm.recommend("llama-3.1-8b", memory="4 GiB").tips)


def test_a_batch_and_a_cache_that_are_too_large_are_said_to_be() -> None:
    (tip,) = [tip for tip in cm.recommend("resnet18", memory="1 GB", batch=256).tips if "batch" in tip]
    batch = int(tip.split()[2])
    peaks = [cm.recommend("resnet18", memory="1 GB", batch=n).smallest.peak for n in (batch, 256)]
    assert peaks[0] <= 1e9 < peaks[1]
    tips = cm.recommend("llama-3.2-1b", memory="6 GiB", mode="decode", past=100_000, batch=8).tips
    assert any("past" in tip for tip in tips)


def test_without_a_machine_16_bits_come_before_fp32() -> None:
    found = cm.recommend("gpt2-small", memory="24 GiB", seq=512)
    kinds = [entry.settings["precision"] for entry in found]
    assert kinds == sorted(kinds, key=["bf16-autocast", "fp32"].index)
    assert set(kinds) == {"bf16-autocast", "fp32"}


@pytest.mark.slow
def test_where_nothing_fits_the_tips_do() -> None:
    found = cm.recommend(TINY, memory="300 kB", optimizer="adamw", precision=AS_ASKED)
    assert (bool(found), found.entries) == (False, ())
    assert found.smallest.peak == peak(**found.smallest.settings) > 300_000
    assert cm.recommend(TINY, memory=found.smallest.peak, optimizer="adamw", precision=AS_ASKED)
    assert not cm.recommend(TINY, memory=found.smallest.peak - 1, optimizer="adamw", precision=AS_ASKED)
    with pytest.raises(cm.CostModelError, match=f"none of {found.counts.tried} ways"):
        _ = found.best
    room = found.smallest.peak - 1
    (seq,) = [
        tip for tip in cm.recommend(TINY, memory=room, optimizer="adamw", precision=AS_ASKED).tips if "seq" in tip
    ]
    assert cm.recommend(TINY, memory=room, optimizer="adamw", precision=AS_ASKED, seq=int(seq.split()[2]))
    assert not [tip for tip in cm.recommend(TINY, memory="9 kB", precision=AS_ASKED).tips if "seq" in tip]
    assert not [
        tip for tip in cm.recommend(TINY, memory="9 kB", optimizer="sgd", precision=AS_ASKED).tips if "sgd" in tip
    ]


def test_tables_and_frames_have_each(found: Recommendations) -> None:
    assert list(found.to_dataframe()["rank"]) == list(range(1, len(found) + 1))
    assert str(found.best.batch) in str(found.table().text()).splitlines()[1]
    assert found.best.reason(found.best) in found._repr_html_()
    json.dumps(found.to_dict())


@pytest.mark.slow
@given(transformers(), st.integers(1, 40))
@examples(15)
def test_whatever_is_recommended_fits_and_is_as_large_as_can_be(model: Any, more: int) -> None:
    least = cm.predict(model, optimizer="sgd", seq=min(4, model.context)).memory.peak
    asked = {"optimizer": "sgd", "precision": "fp32", "seq": min(4, model.context), "checkpoint": ["none", "selective"]}
    found = cm.recommend(model, memory=least * more, **asked)
    assume(found)
    for entry in found:
        assert cm.predict(model, **entry.settings).memory.peak <= least * more
        assert cm.predict(model, **entry.settings | {"batch": entry.batch + 1}).memory.peak > least * more


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 10**6), st.integers(-5, 10**4))
def test_a_straight_line_leads_to_the_last_within_a_target(slope: int, offset: int, target: int, start: int) -> None:
    found = line_guess(lambda n: slope * (n + 1) + offset, range(1, 10**7), target, start)
    assert found == max(1, (target - offset) // slope - 1)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"memory": "24"}, "memory='24' has no unit"),
        ({"memory": "1 GiB", "seq": [1, 2]}, "seq=[1, 2] is a list: give one value"),
        ({"memory": "1 GiB", "optimizer": []}, "optimizer=[] is empty"),
        ({"memory": "1 GiB", "batch": []}, "batch=[] is empty"),
        ({"memory": "1 GiB", "optimizer": ["sgd", "adamm"]}, "unknown optimizer 'adamm'"),
        ({"memory": "1 GiB", "checkpoint": ["none", ("mlpp",)]}, "unknown part to checkpoint 'mlpp'"),
        ({"memory": "1 GiB", "samples": 10, "batch": 3}, "samples=10 is no step with batch=3"),
        ({"memory": "1 GiB", "samples": 0}, "samples=0 is not a whole number"),
        ({"memory": "1 GiB", "samples": 10, "dp": 4}, "samples=10 is no multiple of the 4 batches of a pass"),
        ({"memory": "1 GiB", "samples": 8, "mode": "inference"}, "samples=8 is of an optimizer step"),
        ({"memory": "1 GiB", "flops_per_byte": -1}, "flops_per_byte=-1 is not a number of FLOPs"),
        ({"memory": "1 GiB", "optimiser": "sgd"}, "unknown setting 'optimiser'"),
    ],
)
def test_bad_questions_are_one_clear_line(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(cm.CostModelError) as error:
        cm.recommend(TINY, **asked)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_command_answers_as_python_does(capsys) -> None:
    asked = ("recommend", "mlp-mnist", "1GiB", "--optimizer", "adamw,sgd", "--precision", "fp32")
    found = cm.recommend("mlp-mnist", memory="1GiB", optimizer=["adamw", "sgd"], precision="fp32")
    assert here(capsys, *asked) == (0, f"{found}\n", "")
    assert json.loads(here(capsys, *asked, "--json").out) == json.loads(json.dumps(found.to_dict()))
    assert here(capsys, "recommend", "gpt2-small", "64MiB", "--batch", "1", "--seq", "8")[0] == 1
    refused(here(capsys, "recommend", "gpt2-small", "1GiB", "--seq", "1,2"), "is a list: give one value")
