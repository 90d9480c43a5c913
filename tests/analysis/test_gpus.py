"""Which machine: groups, numbers and money are those of predictions on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from tests.command import error_of, here

SOME = ["t4", "l4", "a100-sxm", "h100-sxm"]


def test_offers_are_what_predictions_on_a_machine_say() -> None:
    found = cm.gpus("llama-3.2-1b", mode="decode", past=512, machines=SOME, counts=[1, 2], prices={"H100 SXM": 2.5})
    assert found.question == (
        "llama-3.2-1b: one decode step, batch 1, seq 1, past 512, bf16, attention flash, stack eager"
    )
    asked: dict[str, Any] = {"mode": "decode", "past": 512, "precision": "bf16", "attention": "flash"}
    for offer in found:
        axis = offer.layout.partition(" ")[0]
        degrees: dict[str, Any] = {axis: 2} if offer.devices == 2 else {}
        p = cm.predict("llama-3.2-1b", **asked, **degrees)
        assert offer.layout in (("tp 2", "pp 2") if degrees else ("",))
        assert offer.headroom == p.fits(offer.machine).margin
        time = p.on(cm.load_cluster(offer.machine) if degrees else offer.machine)
        assert offer.time is not None
        assert (offer.time.seconds, offer.rate) == (time.seconds, time.tokens_per_second)
        if offer.machine.name == "h100-sxm":
            assert offer.money == pytest.approx(time.money(price=2.5, tokens=1e6).amount)
        else:
            assert offer.money is None
    assert {offer.name for offer in found} >= {"t4", "l4", "h100-sxm", "2 × h100-sxm"}
    paid = [offer.money for offer in found if offer.money is not None]
    assert paid == sorted(paid)
    assert [offer.money is None for offer in found] == sorted(offer.money is None for offer in found)


def test_groups_are_by_what_is_to_spare() -> None:
    found = cm.gpus("llama-3.1-8b", mode="decode")
    assert bool(found)
    assert len({offer.machine.name for offer in found}) > 100
    for offer in found:
        spare = offer.headroom / offer.machine.memory
        assert offer.group == ("no" if spare < 0 else "tight" if spare < 0.1 else "room")
        assert (offer.time is None) == (offer.group == "no")
        assert offer.devices <= cm.load_cluster(offer.machine).size
    assert [o.group for o in found] == sorted((o.group for o in found), key=("room", "tight", "no").index)
    rates = [o.rate or 0.0 for o in found.groups["room"]]
    assert rates == sorted(rates, reverse=True)
    assert not cm.gpus("llama-3.1-405b", machines=["t4"], counts=1)


@pytest.mark.parametrize("by", ["rate", "seconds", "headroom", "joules", "memory", "name"])
def test_each_order_is_kept_within_groups(by: Any) -> None:
    found = cm.gpus("resnet50", batch=32, machines=SOME, counts=1, by=by)
    values = {
        "rate": lambda o: -o.rate,
        "seconds": lambda o: o.time.seconds,
        "headroom": lambda o: -o.headroom,
        "joules": lambda o: o.joules,
        "memory": lambda o: o.machine.memory,
        "name": lambda o: o.machine.name,
    }
    order = [values[by](offer) for offer in found.groups["room"]]
    assert order == sorted(order)
    assert found.unit == "samples"


def best_of(machine: str, ways: list[dict[str, int]], **settings: Any) -> tuple[str, float]:
    """The fastest layout in words, and its tokens a second, each way asked by itself."""
    rates = {}
    for degrees in ways:
        words = " ".join(f"{axis} {degree}" for axis, degree in degrees.items())
        p = cm.predict("gpt2", attention="flash", **settings, **degrees)
        rates[words] = p.on(cm.load_cluster(machine)).tokens_per_second or 0.0
    return max(rates.items(), key=lambda each: each[1])


def test_layouts_are_those_given_or_the_best_that_can_be() -> None:
    (given,) = cm.gpus("gpt2", machines=["h100-sxm"], tp=2)
    assert (given.devices, given.layout) == (2, "tp 2")
    (four,) = cm.gpus("gpt2", machines=["h100-sxm"], devices=4, seq=64)
    ways = [{"fsdp": 4}, {"fsdp": 2, "dp": 2}, {"dp": 4}]
    assert (four.layout, four.rate) == best_of("h100-sxm", ways, seq=64, precision="bf16-autocast")
    (passes,) = cm.gpus("gpt2", machines=["l4"], counts=4, mode="prefill", batch=8, seq=512)
    ways = [{"tp": 4}, {"tp": 2, "pp": 2}, {"pp": 4}]
    assert (passes.layout, passes.rate) == best_of("l4", ways, mode="prefill", batch=8, seq=512, precision="bf16")
    (both,) = cm.gpus("gpt2", machines=["l4", "l4"], tp=2, counts=4)
    assert (both.devices, both.layout.split()[:2]) == (4, ["tp", "2"])
    (served,) = cm.gpus("gpt2", machines=["l4"], mode="decode", counts=2)
    assert served.layout in ("tp 2", "pp 2")
    changed = cm.gpus("gpt2", machines=["h100-sxm"], counts=1, over={"layers": 2}, precision="fp32", attention="eager")
    assert changed.question.startswith(
        "gpt2-small with layers 2: one training step, batch 1, seq 1024, fp32, adamw, att"
    )


def test_the_shell_takes_prices_and_prints_80_columns(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "prices.yaml").write_text("h100-sxm: 9\nA100 SXM 80GB: 1.5\n")
    words = ["gpus", "llama-3.1-70b", "--mode", "decode", "--machines", "a100-sxm,h100-sxm", "--price", "h100-sxm=2.5"]
    code, out, _ = here(capsys, *words, "--prices", str(tmp_path / "prices.yaml"))
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for heading in ("fits with room", "tokens/s", "money", "does not fit", "too much"):
        assert heading in out
    code, out, _ = here(capsys, *words, "--json")
    prices = {row["machine"]: row["money"] for row in json.loads(out)["offers"] if row["fits"] != "no"}
    assert (prices["a100-sxm-80gb"], prices["h100-sxm"] is None) == (None, False)
    (tmp_path / "prices.yaml").write_text("H100 SXM: 9\n")
    again = json.loads(here(capsys, *words, "--prices", str(tmp_path / "prices.yaml"), "--json").out)["offers"]
    assert [row["money"] for row in again if row["machine"] == "h100-sxm"] == [
        row["money"] for row in json.loads(out)["offers"] if row["machine"] == "h100-sxm"
    ]
    assert here(capsys, "gpus", "llama-3.1-70b", "--machines", "t4", "--counts", "1").code == 1
    assert "given twice" in here(capsys, *words, "--price", "h100-sxm=3").err
    (tmp_path / "prices.yaml").write_text("")
    _, _, err = here(capsys, *words, "--prices", str(tmp_path / "prices.yaml"))
    assert "is empty: describe prices" in err


def test_money_is_named_only_where_prices_are_of_these_machines() -> None:
    elsewhere = cm.gpus("mlp-mnist", machines=["t4", "l4"], counts=1, prices={"h100-sxm": 3})
    assert (elsewhere.by, "by rate" in str(elsewhere)) == ("rate", True)
    assert cm.gpus("mlp-mnist", machines=["t4", "l4"], counts=1, prices={"l4": 3}).by == "money"


def test_a_number_that_no_node_has_is_left_out_in_words() -> None:
    offers = cm.gpus("mlp-mnist", machines=["t4", "l4"], counts=(1, 1000))
    assert {offer.devices for offer in offers} == {1}
    assert "2 left out: nodes of these machines have fewer than 1,000 devices" in str(offers)


def test_what_waits_for_the_host_and_what_fits_nowhere_is_told_what_would_help() -> None:
    waits = cm.gpus("gpt2", mode="decode", machines=["h100-sxm"], counts=1)
    compiled = waits[0].prediction.on("h100-sxm", stack="compiled")
    assert waits[0].time is not None
    assert (waits[0].time.bound, compiled.seconds < waits[0].time.seconds) == ("host", True)
    told = " ".join(str(waits).split())
    assert "1 of the 1 shown waits for the host" in told
    assert f"with stack compiled h100-sxm takes {compiled.seconds * 1e6:.0f} µs" in told
    nowhere = cm.gpus("llama-3.1-8b", machines=["l4"], counts=1, reserve=0)
    smaller = cm.predict("llama-3.1-8b", mode="inference", precision="bf16", attention="flash").memory.peak
    assert f"mode inference + precision bf16 + attention flash {smaller / 2**30:.1f} GiB" in " ".join(
        str(nowhere).split()
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"by": "speed"}, "did you mean 'seconds'"),
        ({"on": "t4"}, "is what is to be found"),
        ({"machines": "h100-sxn"}, "did you mean"),
        ({"prices": {"t4": -1}}, "is not money for an hour"),
        ({"prices": {"h100-sxn": 1}}, "did you mean 'h100-sxm'"),
        ({"prices": {"H100 SXM": 1, "h100-sxm": 2}}, "has two, 1 and 2: keep one"),
        ({"by": "money", "prices": {"l4": 1}}, "no price of these machines is known"),
        ({"counts": 0}, "counts=0 is not a whole number from 1"),
        ({"counts": [1, 0]}, "counts[1]=0 is not a whole number from 1"),
        ({"counts": []}, "counts=[] is no number of devices"),
        ({"counts": 4, "devices": 2}, "say the same: give one of them"),
        ({"counts": 3, "dp": 2}, "over none of counts=3, with dp 2 a multiple of 2"),
        ({"machines": []}, "machines is empty"),
        ({"prices": {3: 2}}, "prices: its key 3 is not a text"),
        ({"tokens": 1e6, "samples": 1e6}, "give one of them"),
        ({"tokens": 5}, "mlp-mnist has none: give samples"),
        ({"samples": "much"}, "is no length of a job"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(asked: dict[str, Any], said: str) -> None:
    assert said in error_of(lambda: cm.gpus("mlp-mnist", **{"machines": "t4", **asked}))
