"""How numbers read."""

from contextlib import suppress
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from costmodel.display.units import (
    read_amount,
    read_budget,
    read_count,
    read_text,
    show_amount,
    show_bytes,
    show_change,
    show_count,
    show_exact,
    show_flops,
    show_share,
)
from costmodel.errors import SettingError

POWERS = ["", "K", "M", "G", "T", "P", "E", "Z", "Y"]
BINARY = {f"{prefix}i": 1024**n for n, prefix in enumerate(POWERS) if n}
DECIMAL = {prefix.replace("K", "k"): 1000**n for n, prefix in enumerate(POWERS)}


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (24_247_472_132, "22.6 GiB"),
        (3 * 2**90, "3072.0 YiB"),
    ],
)
def test_bytes_are_binary(size: int, text: str) -> None:
    assert show_bytes(size) == text


@pytest.mark.parametrize(
    ("flops", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.000 kFLOP"),
        (4_357_135_269_888, "4.357 TFLOP"),
        (10**15, "1.000 PFLOP"),
    ],
)
def test_flops_are_decimal(flops: int, text: str) -> None:
    assert show_flops(flops) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (784, "784"),
        (124_439_808, "124.4 M"),
        (999_999, "1.000 M"),
        (9_999_999, "10.00 M"),
        (10**35, "100000.0 Q"),
        (10**50, "1.000e+20 Q"),
    ],
)
def test_counts_are_decimal_and_headings_say_of_what(count: int, text: str) -> None:
    assert show_count(count) == text


@given(st.integers(0, 10**26))
def test_what_is_shown_is_near_what_is_meant(value: int) -> None:
    number, unit = show_bytes(value).split()
    assert abs(float(number) * BINARY.get(unit.removesuffix("B"), 1) - value) <= value * 0.006
    number, _, unit = show_flops(value).partition(" ")
    assert abs(float(number) * DECIMAL[unit.removesuffix("FLOP")] - value) <= value * 0.0006


def test_exact_numbers_have_every_digit() -> None:
    assert show_exact(124_439_808) == "124,439,808"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 9, "-"), (0, 0, "-"), (9, 9, "100%"), (1, 3, "33.3%"), (1, 10**6, "<0.1%"), (10**30 // 2, 10**30, "50.0%")],
)
def test_shares_tell_nothing_from_little(part: int, whole: int, text: str) -> None:
    assert show_share(part, whole) == text


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (989.4e12, "FLOP/s", "989.4 TFLOP/s"),
        (1978.9e12, "FLOP/s", "1.979 PFLOP/s"),
        (999.96e9, "B/s", "1 TB/s"),
        (700, "W", "700 W"),
        (1.98e9, "Hz", "1.98 GHz"),
        (5e-6, "s", "5.00 µs"),
        (inf, "B/s", "infinite B/s"),
    ],
)
def test_an_amount_has_four_digits_and_its_unit(amount: float, unit: str, text: str) -> None:
    assert show_amount(amount, unit) == text


@given(st.floats(1.0, 1e20), st.sampled_from(["FLOP/s", "B/s", "Hz", "W"]))
def test_what_is_shown_of_an_amount_is_read_as_that_amount(amount: float, unit: str) -> None:
    assert read_amount(show_amount(amount, unit), "x", unit) == pytest.approx(amount, rel=5.1e-4)


@given(st.text(max_size=20))
@example("1 TB/s")
@example("1e99 TB/s")
@example("1 iB/s")
@example("٣ TB/s")
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    for unit in ("FLOP/s", "B/s", "Hz", "W", "s"):
        with suppress(SettingError):
            assert 0 < read_amount(text, "x", unit) < inf


@given(st.floats(-2, 2), st.integers(0, 2))
def test_a_change_of_nothing_has_no_sign(share: float, digits: int) -> None:
    text = show_change(share, digits)
    assert float(text[:-1]) / 100 == pytest.approx(share, abs=0.5 / 10 ** (digits + 2) + 1e-12)
    assert (text[0] in "+-") is (float(text[:-1]) != 0)


def test_a_change_is_written_with_its_sign() -> None:
    assert [show_change(share, 1) for share in (-0.0004, 0.0, 0.0006, -0.25, 1.5)] == [
        "0.0%",
        "0.0%",
        "+0.1%",
        "-25.0%",
        "+150.0%",
    ]


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("8.1e-2 s", "s", 0.081),
        ("10 µs", "s", 10e-6),
        ("3 seconds", "s", 3),
        ("2 TB/s", "B/s", 2e12),
        ("1.5e3 GB/s", "B/s", 1.5e12),
        ("1,935 GB/s", "B/s", 1.935e12),
        ("400 Gbit/s", "B/s", 50e9),
        ("400 TFLOP/s", "FLOP/s", 400e12),
        ("1410 MHz", "Hz", 1.41e9),
        ("0.4 kW", "W", 400),
        ("0.4 kg/kWh", "g/kWh", 400),
        ("400 g CO2e/kWh", "g/kWh", 400),
    ],
)
def test_a_number_with_a_unit_is_read_alike_everywhere(text: str, unit: str, amount: float) -> None:
    assert read_amount(text, "x", unit) == pytest.approx(amount, rel=1e-12)
    assert read_text(f"  {text} ", "x", unit)[0] == pytest.approx(amount, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "size"), [("1.5e3 GB", 1_500_000_000_000), ("24 GiB", 24 * 2**30), ("1,024 MB", 1_024_000_000)]
)
def test_memory_is_read_to_the_byte(text: str, size: int) -> None:
    assert read_budget(text).bytes == size
    assert f"= {size:,} bytes" in read_budget(text).reading


@pytest.mark.parametrize(
    ("text", "count"),
    [("124M", 124e6), ("2.5TFLOP", 2.5e12), ("8b", 8e9), ("1e9", 1e9), ("1,000", 1000), ("-3k", -3000), (7, 7)],
)
def test_counts_have_letters(text: str | int, count: float) -> None:
    assert read_count(text) == count


@pytest.mark.parametrize("text", ["many", "8.1.2", "3 GB/s", "", None, True, inf, "1,00"])
def test_what_is_no_count_is_none(text: object) -> None:
    assert read_count(text) is None


@pytest.mark.parametrize(
    ("text", "unit", "says"),
    [
        ("24", "s", "x='24' has no unit: use text such as '24 s', or a number of s"),
        ("3 TB/s", "s", "x='3 TB/s' is a bandwidth, not a time: use text such as '5 µs'"),
        ("24 GiB", "B/s", "x='24 GiB' is not a bandwidth but an amount: use '24 GiB/s'"),
        ("400 Gb/s", "B/s", "'Gb/s' could be bits: use '400 GB/s' or '400 Gbit/s'"),
        ("24 Gb", "B", "x='24 Gb' is not an amount of memory, 'Gb' could be bits: use '24 GB'"),
        ("24 Gib", "B", "'Gib' could be bits: use '24 GiB'"),
        ("1,5 samples/s", "samples/s", "x='1,5 samples/s' is not a rate: use text such as '2000 samples/s'"),
        ("3 TBs/s", "B/s", "is not a bandwidth (did you mean '3 TB/s'?): use text such as '3.35 TB/s'"),
        ("400 kwat", "W", "x='400 kwat' is not a power: use text such as '400 W'"),
        ("330 mW", "W", "x='330 mW' is not a power"),
        ("fast", "samples/s", "x='fast' is not a rate: use text such as '2000 samples/s'"),
        ("0 W", "W", "x='0 W' is not a power above 0"),
        (-1.0, "Hz", "x=-1.0 is not a frequency above 0: use one such as '1.41 GHz'"),
    ],
)
def test_what_is_wrong_with_an_amount_is_said_in_one_line(text: object, unit: str, says: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_amount(text, "x", unit)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
