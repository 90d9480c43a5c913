"""Layouts of serving, and pools of devices for prompts and for tokens: what holds for each of their rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

import costmodel as cm
from costmodel.analysis.deployments import PARTS, Deployments
from costmodel.performance.deployment import Deployment
from tests.command import here

ASKED: dict[str, Any] = {"on": "h100-sxm", "input": 512, "output": 64, "engine": "vllm"}


def ranked(model: str = "llama-3.2-1b", **asked: Any) -> Deployments:
    return cm.deployments(model, **{"devices": 4, **ASKED, **asked})


def test_each_layout_is_as_serving_it_says() -> None:
    found = ranked(tpot=0.02)
    assert {(e.degrees["tp"], e.degrees["pp"], e.degrees["dp"]) for e in found} >= {(1, 1, 4), (2, 1, 2), (4, 1, 1)}
    rates = [entry.load.tokens_per_second for entry in found]
    assert rates == sorted(rates, reverse=True)
    for entry in found:
        degrees = {name: n for name, n in entry.degrees.items() if n > 1}
        again = cm.serve("llama-3.2-1b", **ASKED, arrivals="steady", **degrees)
        assert again.at(entry.load.concurrency) == entry.load
        assert again.devices == 4


def test_the_most_requests_meet_the_targets_and_more_do_not() -> None:
    free = ranked()
    assert {entry.binds for entry in free} <= {"memory", "engine"}
    for goals in ({"tpot": 0.012}, {"ttft": "12 ms"}, {"tpot": "12 ms", "ttft": 0.5}):
        found = ranked(**goals)
        assert len(found) + sum(found.missed.values()) == len(free)
        for entry in found:
            assert goals.keys() >= {entry.binds} or entry.load.concurrency == entry.serving.largest
            assert found.tpot is None or entry.load.time_per_token <= found.tpot
            assert found.ttft is None or entry.load.time_to_first_token <= found.ttft
            if entry.binds in goals:
                ranks = entry.serving.layout.dp
                more = entry.serving.at(entry.load.concurrency + ranks * max(1, entry.load.concurrency // ranks // 90))
                value = more.time_per_token if entry.binds == "tpot" else more.time_to_first_token
                assert value > (found.tpot if entry.binds == "tpot" else found.ttft or 0.0)


def test_tighter_targets_never_serve_more() -> None:
    best = [ranked(tpot=tpot).best.load.tokens_per_second for tpot in (0.05, 0.01, 0.005)]
    assert best == sorted(best, reverse=True)


def test_degrees_that_are_given_stay_and_experts_are_split_too() -> None:
    where = {entry.serving.where for entry in ranked(tp=2)}
    assert where == {"4 × h100-sxm (tp 2, dp 2)", "4 × h100-sxm (tp 2, pp 2)"}
    found = ranked("deepseek-v2-lite", pp=1, tp=1)
    assert {entry.degrees["ep"] for entry in found} == {1, 2, 4}
    assert {entry.degrees["dp"] for entry in found} == {4}


def test_nothing_that_serves_is_said_and_is_no_error() -> None:
    found = ranked("llama-3.1-405b", devices=2)
    assert not found
    assert found.missed["memory"] == 3
    assert "no layout serves so" in str(found)
    with pytest.raises(cm.CostModelError, match="over 2 devices serves so"):
        _ = found.best


@pytest.mark.slow
def test_a_search_finds_what_going_through_all_does() -> None:
    """The first ten, those within 5 % and what is missed; how much less is worked out is counted."""
    drawn: list[dict[str, Any]] = [
        {"devices": 16, "tpot": 0.02},
        {"model": "deepseek-v2-lite", "devices": 8, "tpot": 0.015, "ttft": 0.5, "pp": 1, "arrivals": "together"},
    ]
    for asked in drawn:
        found, every = ranked(**asked), ranked(**asked, every=True)
        assert every.slower == 0
        assert len(found) + found.slower + sum(found.missed.values()) == len(every) + sum(every.missed.values())
        assert [(e.degrees, e.load, e.binds) for e in found] == [
            (e.degrees, e.load, e.binds) for e in every.entries[: len(found)]
        ]
        least = 0.95 * every.best.load.tokens_per_second
        assert sum(entry.load.tokens_per_second >= least for entry in every) <= len(found)


def test_devices_by_the_thousand_ask_for_no_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the model are alike, and so are stages of a pipeline: 64 times the devices are no 64 times the work."""
    counted: list[int] = []
    once = Deployment._step
    monkeypatch.setattr(Deployment, "_step", lambda self, costs: counted.append(1) or once(self, costs))
    work = []
    for devices in (64, 4096):
        counted.clear()
        found = ranked(devices=devices, tpot=0.02)
        work.append(len(counted))
        assert {entry.serving.devices for entry in found} == {devices}
    assert work[1] < 1.5 * work[0]


def test_why_the_next_best_loses_is_said_of_each() -> None:
    found = ranked("llama-3.1-70b", devices=8, tpot=0.03)
    best, others = found.best, found.entries[1:]
    assert best.reason(best) == ""
    for entry in others:
        reason = entry.reason(best)
        assert reason in " ".join(str(found).split())
        if "a token more" in reason:  # and what it is more of is what its token takes longer for
            most = best.load.concurrency
            own, of_best = (each.serving.parts(most) for each in (entry, best))
            name = next(name for name, words in PARTS.items() if words in reason)
            assert own[name] > of_best[name]
            assert sum(own.values()) > sum(of_best.values())
    found = ranked("llama-3.1-8b", devices=2, on="rtx-4090", input=4096)
    (roomless,) = (entry for entry in found if entry.degrees["dp"] == 2)
    most, own = found.best.load.concurrency, roomless.serving.largest
    assert roomless.reason(found.best) == f"memory has room for {own:,} requests at a time, not {most:,}"


def test_the_layout_that_misses_by_least_is_named() -> None:
    found = ranked("llama-3.1-70b", devices=8, tpot=0.006)
    assert not found
    (name,) = (name for name in found.missed if name != "memory")
    degrees = {axis: degree for axis, degree in found.closest[name].degrees.items() if degree > 1}
    served = cm.serve("llama-3.1-70b", **ASKED, arrivals="steady", **degrees)
    assert found.closest[name].value == pytest.approx(served.at(served.layout.dp).time_per_token)
    assert "miss tpot" in str(found)
    assert json.loads(found.to_json())["closest"][name]["degrees"] == found.closest[name].degrees


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"devices": 0}, "devices=0 is not a whole number from 1"),
        ({"devices": 10**9}, "1,000,000 at most"),
        ({"tpot": 0}, "tpot"),
        ({"ttft": "soon"}, "ttft"),
        ({"tp": 3}, "no layout of devices=4 has tp=3"),
        ({"tp": 4, "dp": 2}, "no layout of devices=4 has tp=4, dp=2"),
        ({"tp": 0}, "tp=0 is not between 1"),
        ({"tp": -2}, "tp=-2 is not between 1"),
        ({"devices": 1, "network": "1 Gb/s"}, "network='1 Gb/s' is between devices, of which there is one"),
        ({"model": "resnet50"}, "no decoder of tokens"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(cm.CostModelError, match=said) as error:
        ranked(**asked)
    assert "\n" not in str(error.value)


def test_from_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["deployments", "llama-3.2-1b", "--on", "h100-sxm", "--input", "512", "--output", "64", "--devices", "2"]
    done = here(capsys, *asked, "--engine", "vllm", "--tpot", "20ms", "--json")
    assert done.code == 0
    best = json.loads(done.out)["deployments"][0]
    assert best["concurrency"] == ranked(devices=2, tpot=0.02).best.load.concurrency


def pools(**asked: Any) -> Any:
    served = [cm.serve("llama-3.1-8b", **{**ASKED, "input": 4096, **asked}, tp=tp) for tp in (1, 2)]
    return cm.disaggregated(*served, concurrency=32)


def test_groups_of_both_pools_keep_pace_at_the_ratio() -> None:
    apart = pools()
    assert apart.ratio * apart.prefill_rate == pytest.approx(apart.decode_rate)
    alone = cm.serve("llama-3.1-8b", **{**ASKED, "input": 4096, "output": 1}, concurrency=1).loads[0]
    assert apart.time_to_first_token == pytest.approx(alone.time_to_first_token + apart.transfer_seconds)
    assert apart.time_per_token == pytest.approx(apart.decode.at(32).time_per_token)  # together: no prompts between
    sent = cm.predict("llama-3.1-8b", mode="decode", past=4095, precision="bf16").memory.cache
    assert apart.sent_bytes == sent
    network = cm.load_cluster("dgx-h100").network_bandwidth
    assert apart.transfer_seconds > sent / network
    assert pools(cache_precision="fp8").transfer_seconds < 0.6 * apart.transfer_seconds


def test_no_other_split_of_the_devices_serves_more() -> None:
    apart = pools()
    for devices in (3, 8, 17):
        best = apart.over(devices)
        assert best.prefill + 2 * best.decode + best.idle == devices
        for decode in range(1, (devices - 1) // 2 + 1):
            rate = min((devices - 2 * decode) * apart.prefill_rate, decode * apart.decode_rate)
            assert rate <= best.requests_per_second * (1 + 1e-9)
    with pytest.raises(cm.CostModelError, match="devices=2 are fewer than the 1 and 2"):
        apart.over(2)


def test_pools_of_other_questions_are_refused() -> None:
    a = cm.serve("llama-3.1-8b", **ASKED)
    with pytest.raises(cm.CostModelError, match="input 512 of prefill is not the 256 of decode"):
        cm.disaggregated(a, cm.serve("llama-3.1-8b", **{**ASKED, "input": 256}))
    with pytest.raises(cm.CostModelError, match="sent as they are"):
        cm.disaggregated(a, cm.serve("llama-3.1-8b", **ASKED, cache_precision="fp8"))


def test_keys_and_values_of_the_model_that_drafts_are_sent_too() -> None:
    drafts = cm.Drafts("llama-3.2-1b", count=4)
    plain, drafting = (cm.serve("llama-3.1-8b", **ASKED, drafts=each) for each in (None, drafts))
    sent, with_drafts = (cm.disaggregated(pool, pool, concurrency=8).sent_bytes for pool in (plain, drafting))
    assert with_drafts - sent == 16 * 2 * 8 * 64 * 2 * 512  # layers, keys and values, heads, features, bf16, tokens
    with pytest.raises(cm.CostModelError, match="drafts of prefill are not those of decode"):
        cm.disaggregated(plain, drafting)


def test_pools_that_do_not_fit_are_refused() -> None:
    one, four = (cm.serve("llama-3.1-70b", **ASKED, tp=tp) for tp in (1, 4))
    with pytest.raises(cm.CostModelError, match="prefill: nothing fits"):
        cm.disaggregated(one, four, concurrency=1)
    with pytest.raises(cm.CostModelError, match="decode: nothing fits"):
        cm.disaggregated(four, one, concurrency=1)
    with pytest.raises(
        cm.CostModelError, match=f"concurrency={four.largest + 1}: decode takes {four.largest:,} requests"
    ):
        cm.disaggregated(four, four, concurrency=four.largest + 1)


def test_the_slower_network_of_two_pools_bounds_what_is_sent() -> None:
    h100, a100 = (cm.serve("llama-3.1-8b", **{**ASKED, "on": on}) for on in ("h100-sxm", "a100-sxm-80gb"))
    alike, apart = cm.disaggregated(h100, h100, concurrency=1), cm.disaggregated(h100, a100, concurrency=1)
    assert [cluster.name for cluster in apart.clusters] == ["dgx-h100", "dgx-a100"]
    assert apart.transfer_seconds > 1.5 * alike.transfer_seconds


def test_pools_within_a_target_have_the_most_requests_that_meet_it() -> None:
    served = cm.serve("llama-3.1-8b", **{**ASKED, "input": 4096})
    apart = cm.disaggregated(served, served, tpot="12 ms", devices=9)
    assert apart.time_per_token <= 0.012 < apart.decode.token_seconds(apart.concurrency + 1)
    assert apart.pools == apart.over(9)
    assert apart.pools is not None
    rates = {"prefill": apart.pools.prefill * apart.prefill_rate, "decode": apart.pools.decode * apart.decode_rate}
    assert apart.pools.requests_per_second == rates[apart.pools.bound] == min(rates.values())
    assert apart.together.time_per_token > apart.time_per_token  # prompts between other steps
    assert "9 devices" in str(apart)
    with pytest.raises(cm.CostModelError, match="tpot='1 ms': a token takes"):
        cm.disaggregated(served, served, tpot="1 ms")


def test_pools_from_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["disaggregated", "llama-3.1-8b", "--on", "h100-sxm", "--input", "4096", "--output", "64"]
    groups = ["--prefill", "tp=1", "--decode", "tp=2"]
    done = here(capsys, *asked, *groups, "--engine", "vllm", "--concurrency", "32", "--devices", "8", "--json")
    assert done.code == 0
    assert json.loads(done.out)["pools"]["prefill"] == pools().over(8).prefill
    network = ["--network", "100 Gb/s"]
    other = here(capsys, *asked, "--prefill", "tp=1,on=l40s", "--decode", "tp=2", *network)
    assert "l40s (prompts) and 2 × h100-sxm (tp 2) (tokens)" in " ".join(other.out.split())
    for wrong in ("4", "tp=1,tp=2", "gpus=3", "tp=none", ""):
        failed = here(capsys, *asked, "--prefill", wrong, "--decode", "tp=2")
        assert failed.code == 2
        assert len(failed.err.strip()) < 200
