"""Does it fit: how amounts are read, and what the answer says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.predict import predict
from costmodel.architectures.mlp import MLP
from costmodel.display.units import read_budget, show_bytes
from costmodel.errors import CostModelError, SettingError
from tests.command import here, refused

MODEL = MLP(sizes=[784, 512, 10])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24 GiB", 24 * 2**30),
        ("24GiB", 24 * 2**30),
        ("24 GB", 24 * 10**9),
        ("24 gb", 24 * 10**9),
        ("24G", 24 * 10**9),
        ("1.5 kiB", 1536),
        ("80000000000 B", 80 * 10**9),
        ("24bytes", 24),
        ("1 byte", 1),
        (17, 17),
    ],
)
def test_amounts_are_read_by_their_unit(text: Any, size: int) -> None:
    assert read_budget(text).bytes == size


@pytest.mark.parametrize(
    "text", ["-3 GB", "", "GB", "24 XB", "1e9", "24 GiB GiB", True, 0, -1, 2.5, "0 GB", "24 i", "24 iB", [24]]
)
def test_what_is_no_amount_is_refused(text: Any) -> None:
    with pytest.raises(SettingError, match=r"memory=.*use text such as '24 GiB'"):
        predict(MODEL).fits(text)


@pytest.mark.parametrize("text", ["24", " 24 ", "2.5", "80000000000"])
def test_a_number_without_a_unit_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingError, match=r"has no unit: use text such as '24 GiB', '24 GB' or '24 bytes'"):
        predict(MODEL).fits(text)
    refused(here(capsys, "fits", "mlp-mnist", text), f"memory={text!r} has no unit")


@given(st.integers(1, 4096))
def test_the_margin_is_exact(batch: int) -> None:
    p = predict(MODEL, batch=batch)
    assert p.fits(p.memory.peak)
    assert p.fits(p.memory.peak).margin == 0
    assert not p.fits(p.memory.peak - 1)
    assert p.fits(p.memory.peak + 5, reserve=7).margin == -2


def test_the_answer_names_the_unit_read_and_what_binds() -> None:
    answer = str(predict(MODEL, batch=65536).fits("24 gb"))
    assert "24 GB = 24,000,000,000 bytes" in answer
    assert "most of the peak is" in answer


def test_the_exit_code_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert here(capsys, "fits", "mlp-mnist", "24GiB").code == 0
    tight = here(capsys, "fits", "mlp-mnist", "1 MB", "--json")
    assert tight.code == 1
    assert '"fits": false' in tight.out
    refused(here(capsys, "fits", "mlp-mnist", "24 XB"), "'24 XB' is not an amount of memory")


@pytest.mark.parametrize("text", ["-3 GB", "-3GB", "-24 GiB"])
def test_a_negative_amount_in_a_shell_is_not_taken_for_an_option(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(here(capsys, "fits", "mlp-mnist", text), "is not positive: use one such as '24 GiB'")


def test_a_machine_s_memory_is_less_a_reserve_for_its_driver() -> None:
    p = cm.predict("gpt2-small", seq=64)
    fit = p.fits("T4")
    assert (fit.budget.bytes, fit.reserve) == (cm.load_machine("t4").memory, p.driver.high)
    assert f"reserve {show_bytes(p.driver.high)} for what is not modelled" in str(fit)
    assert (p.fits("16 GiB").reserve, p.fits("t4", reserve=0).reserve, p.fits("m1").reserve) == (0, 0, 0)
    assert cm.predict("gpt2-small", seq=64, on="t4").fits().margin == fit.margin
    with pytest.raises(cm.CostModelError, match="memory is that of h100-sxm, and the question is of on='t4'"):
        cm.predict("gpt2-small", seq=64, on="t4").fits("h100-sxm")
    many = cm.predict("gpt2-small", seq=64, tp=2)
    assert many.fits("t4").reserve == many.driver.high > p.driver.high
    for found in (
        cm.max_batch("gpt2-small", "t4", seq=64),
        cm.recommend("gpt2-small", on="t4", seq=64, checkpoint="none", optimizer="sgd", precision="fp32"),
        cm.cheapest_checkpoint("gpt2-small", "t4", seq=64),
    ):
        assert found.reserve == p.driver.high


@pytest.mark.parametrize(
    ("memory", "said"),
    [("h100-sxn", "did you mean 'h100-sxm'"), ("lots", "use text such as '24 GiB'"), (None, "or a machine with on")],
)
def test_what_is_neither_an_amount_nor_a_machine_is_refused(memory: Any, said: str) -> None:
    with pytest.raises(CostModelError, match=said):
        cm.predict("mlp-mnist").fits(memory)


def test_what_less_plain_settings_need_is_worked_out() -> None:
    plain = cm.predict("llama-3.2-1b", seq=1024).fits("8 GiB")
    assert not plain
    (*_, (words, peak)) = plain.plain
    assert words == "mode inference + precision bf16 + attention flash"
    inference = cm.predict("llama-3.2-1b", seq=1024, mode="inference", precision="bf16", attention="flash")
    assert peak == inference.memory.peak
    assert "less plain settings need: " in str(plain)
    assert "recommend finds settings that fit" in str(plain)
    led = cm.predict("gpt2-small", batch=8).fits("80 GiB")  # fits, and stored scores lead its peak
    assert (
        dict(led.plain)["attention efficient"] == cm.predict("gpt2-small", batch=8, attention="efficient").memory.peak
    )
    assert cm.predict("gpt2-small", batch=8, attention="flash", precision="bf16").fits("80 GiB").plain == ()
    assert cm.predict("mlp-mnist").fits("80 GiB").plain == ()
