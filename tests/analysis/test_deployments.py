"""Layouts of serving, and pools of devices for prompts and for tokens: what holds for each of their rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

import costmodel as cm
from costmodel.analysis.deployments import Deployments
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
    assert where == {"4 x h100-sxm (tp 2, dp 2)", "4 x h100-sxm (tp 2, pp 2)"}
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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"devices": 0}, "devices=0 is not a whole number from 1"),
        ({"devices": 10**9}, "4,096 at most"),
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
