"""Questions turned around: an answer is within its target, the next value is not, and both are what `predict` says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.analysis.search import VariedSize, last_true
from costmodel.analysis.solve import solve_for
from tests.command import error_of, here, refused
from tests.profiles import examples
from tests.strategies import mlps, questions, sizes, transformers


def with_size(model: Any, name: str, value: int) -> Any:
    return type(model)(**{**dict(model), name: value})


@given(st.integers(1, 300), st.integers(0, 299), st.integers(0, 400))
def test_a_search_ends_at_the_last_that_holds(count: int, last: int, guess: int) -> None:
    assume(last < count)
    assert last_true(lambda n: n <= last, count, guess) == last


@pytest.mark.slow
@given(questions(), st.integers(1, 12), st.integers(0, 99))
@examples(25)
def test_the_largest_batch_is_the_largest_of_all_that_fit(question: Any, fits: int, spare: int) -> None:
    model, asked = question
    asked = {name: value for name, value in asked.items() if name != "batch"}
    peaks = [cm.predict(model, batch=batch, **asked).memory.peak for batch in range(1, 30)]
    memory = peaks[fits - 1] + spare
    assume(peaks[-1] > memory)
    found = cm.max_batch(model, memory=memory, **asked)
    assert found.answer == max(n for n, peak in enumerate(peaks, 1) if peak <= memory)
    assert (found.value, found.past_value) == (peaks[int(found) - 1], peaks[int(found)])
    assert found.margin == memory - found.value


@pytest.mark.slow
@given(transformers(), st.sampled_from(["layers", "width", "vocab", "heads"]), st.integers(1, 30), sizes)
@examples(60)
def test_an_answer_is_within_its_target_and_the_next_size_is_not(model: Any, name: str, more: int, batch: int) -> None:
    seq = min(4, model.context)
    least = cm.predict(model, batch=batch, seq=seq, optimizer="sgd").memory.peak
    found = cm.solve(model, "memory.peak", more * least, for_=name, batch=batch, seq=seq, optimizer="sgd")
    past, over = found.past, found.past_value
    assume(found and past and over)
    assert past
    assert over
    peak = cm.predict(with_size(model, name, int(found)), batch=batch, seq=seq, optimizer="sgd").memory.peak
    assert peak == found.value <= more * least
    assert over == cm.predict(with_size(model, name, past), batch=batch, seq=seq, optimizer="sgd").memory.peak
    assert over > more * least
    for between in range(int(found) + 1, past):
        error_of(lambda size=between: cm.predict(with_size(model, name, size), batch=batch, seq=seq))


@pytest.mark.slow
@given(mlps(), sizes)
@examples(40)
def test_a_perceptron_is_widened_in_proportion(model: cm.MLP, times: int) -> None:
    assume(len(model.sizes) > 2)
    wide = cm.MLP(
        **{**dict(model), "sizes": (model.sizes[0], *(times * n for n in model.sizes[1:-1]), model.sizes[-1])}
    )
    found = cm.max_width(model, memory=cm.predict(wide, batch=3).memory.peak, batch=3)
    assert int(found) >= times * model.sizes[1]
    assert found.past_value
    assert found.prediction.memory.peak <= found.target.bytes < found.past_value


@pytest.mark.parametrize(
    ("asked", "settings", "answer"),
    [
        (("gpt2-small", "params", "1B", "layers"), {}, (10**9 - 1024 * 768 - 50257 * 768 - 2 * 768) // 7_087_872),
        (("gpt2-small", "flops.forward", 10**13, "batch"), {"seq": 512}, None),
        (("gpt2-small", "memory.peak", "24 GiB", "seq"), {}, 1024),
        (("gpt2-small", "flops.forward", 1e13, "batch"), {"seq": 512}, None),
        (("gpt2-small", "flops.forward", "1e13", "batch"), {"seq": 512}, None),
        (("gpt2-small", "flops.forward", "0.1e2 TFLOP", "batch"), {"seq": 512}, None),
        (("gpt2-small", "memory.peak", 24.5 * 2**30, "seq"), {}, 1024),
    ],
)
def test_answers_by_hand(asked: tuple, settings: dict, answer: int | None) -> None:
    model, quantity, target, varied = asked
    if answer is None:
        answer = 10**13 // cm.predict(model, **settings).flops.forward
    assert int(cm.solve(model, quantity, target, for_=varied, **settings)) == answer


def test_an_answer_says_what_stands_in_the_way() -> None:
    found = cm.max_width("gpt2-small", memory="80 GiB", seq=512)
    assert found.past == int(found) + 12
    assert "heads divide" in str(found)
    assert "position table" in str(cm.max_seq("gpt2-small", memory="24 GiB"))
    assert "activations" in str(cm.max_batch("gpt2-small", memory="24 GiB", seq=512))


def test_no_answer_is_false_and_says_by_how_much() -> None:
    found = cm.max_batch("gpt2-small", memory="1 GiB", seq=512)
    peak = cm.predict("gpt2-small", batch=1, seq=512).memory.peak
    assert not found
    assert (found.answer, found.value, found.margin) == (None, peak, 2**30 - peak)
    assert str(found).splitlines()[1].startswith("no batch fits 1.00 GiB")
    assert "no batch fits" in error_of(lambda: int(found))


def test_where_more_takes_less_the_smallest_is_found() -> None:
    model = cm.Transformer(vocab=5000, context=64, layers=1, width=8, heads=1)
    plain, cut = (cm.predict(model, batch=8, loss_chunks=n).memory.peak for n in (1, 4))
    assert cut < plain
    found = cm.solve(model, "memory.peak", cut, for_="loss_chunks", batch=8)
    assert 1 < int(found) <= 4
    assert cm.predict(model, batch=8, loss_chunks=int(found)).memory.peak <= cut
    assert cm.predict(model, batch=8, loss_chunks=int(found) - 1).memory.peak > cut


@pytest.mark.parametrize("rows", [8, 11])
def test_where_more_takes_less_and_none_does_the_least_is_told(rows: int) -> None:
    model = cm.Transformer(vocab=5000, context=64, layers=1, width=1, heads=1)
    asked: dict[str, Any] = {"batch": 1, "seq": rows, "optimizer": "sgd"}
    peaks = [cm.predict(model, loss_chunks=n, **asked).memory.peak for n in range(1, rows + 1)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-2] > peaks[-1]
    found = cm.solve(model, "memory.peak", peaks[-1] - 1, for_="loss_chunks", **asked)
    assert (found.answer, found.value, found.margin) == (None, peaks[-1], -1)
    assert f"at loss_chunks {peaks.index(peaks[-1]) + 1}, where it is least" in str(found)
    assert cm.solve(model, "memory.peak", peaks[-1], for_="loss_chunks", **asked).value == peaks[-1]


def test_a_reserve_is_left() -> None:
    asked = cm.predict("gpt2-small", seq=512)
    whole, spared = (solve_for(asked, "memory.peak", "24 GiB", "batch", r) for r in (0, "4 GiB"))
    assert int(spared) == int(cm.max_batch("gpt2-small", memory="20 GiB", seq=512)) < int(whole)


@pytest.mark.parametrize(
    ("model", "quantity", "target", "for_", "more", "said"),
    [
        ("gpt2-small", "memory.peek", "24 GiB", "batch", {}, "'memory.peak'"),
        ("gpt2-small", "memory.peak", "24", "batch", {}, "no unit"),
        ("gpt2-small", "params", "24 GiB", "layers", {}, "124M"),
        ("gpt2-small", "params", 0, "layers", {}, "124M"),
        ("gpt2-small", "params", "0", "layers", {}, "positive"),
        ("gpt2-small", "params", -1, "layers", {}, "not a positive number"),
        ("gpt2-small", "params", -1.0, "layers", {}, "not a positive number"),
        ("gpt2-small", "params", "-1", "layers", {}, "not a positive number"),
        ("gpt2-small", "params", 1.5, "layers", {}, "not a whole number"),
        ("gpt2-small", "params", float("nan"), "layers", {}, "not a whole number"),
        ("gpt2-small", "params", True, "layers", {}, "not a number"),
        ("gpt2-small", "memory.peak", 1.5, "batch", {}, "not a whole number of bytes"),
        ("gpt2-small", "memory.peak", float("inf"), "batch", {}, "not a whole number of bytes"),
        ("gpt2-small", "memory.peak", "24e9", "batch", {}, "no unit"),
        ("gpt2-small", "memory.peak", "24 GiB", "bach", {}, "'batch'"),
        ("gpt2-small", "memory.peak", "24 GiB", "batch", {"batch": 3}, "leave it out"),
        ("gpt2-small", "params", "1B", "batch", {}, "nothing to find"),
        ("gpt2-small", "params", "1B", "layers", {"reserve": "1 GiB"}, "reserve"),
        ("resnet50", "memory.peak", "24 GiB", "layers", {}, "width"),
        ("gpt2-small", "memory.peak", "24 GiB", "accumulate", {"mode": "inference"}, "training"),
    ],
)
def test_bad_questions(model: str, quantity: str, target: Any, for_: str, more: dict, said: str) -> None:
    assert said in error_of(lambda: cm.solve(model, quantity, target, for_=for_, **more))


def test_the_shell_answers_as_python_does(capsys) -> None:
    asked = ("solve", "gpt2-small", "memory.peak")
    found = cm.max_batch("gpt2-small", memory="24 GiB", seq=512, optimizer="sgd")
    options = ("--for", "batch", "--seq", "512", "--optimizer", "sgd")
    assert here(capsys, *asked, "24GiB", *options).out.splitlines()[1:] == str(found).splitlines()[1:]
    outcome = here(capsys, *asked, "24GiB", *options, "--json")
    assert (outcome.code, json.loads(outcome.out)) == (0, found.to_dict())
    assert here(capsys, *asked, "1GiB", *options).code == 1
    refused(here(capsys, *asked, "24GiB", "--for", "bach"), "'batch'")
    refused(here(capsys, *asked, "24GiB", "--for", "batch", "--batch", "3"), "leave it out")


@pytest.mark.parametrize(("name", "most"), [("batch", 8), ("seq", 8), ("layers", 8), ("width", 12)])
def test_few_questions_are_predicted(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    values: list[int] = []
    at = VariedSize.at
    monkeypatch.setattr(VariedSize, "at", lambda varied, value: values.append(value) or at(varied, value))
    own: dict[str, Any] = {other: size for other, size in {"batch": 8, "seq": 256}.items() if other != name}
    found = cm.solve("gpt2-small", "memory.peak", "12 GiB", for_=name, **own)
    assert {found.answer, found.past} <= set(values)
    assert len(values) == len(set(values)) <= most


def test_the_search_begins_where_there_is_a_model() -> None:
    rotary = cm.Transformer(vocab=9, context=16, layers=1, width=16, heads=2, positions="rotary", rotary={"size": 4})
    found = cm.max_width(rotary, memory="1 MiB", seq=4)
    assert found.past_value
    assert found.value <= 2**20 < found.past_value


def test_the_fewest_ranks_that_fit_are_among_those_that_divide() -> None:
    found = cm.solve("llama-3.1-8b", "memory.peak", "20 GiB", for_="tp", seq=4096, attention="flash", precision="bf16")
    assert found.answer == 8
    peaks = {
        tp: cm.predict("llama-3.1-8b", seq=4096, attention="flash", precision="bf16", tp=tp).memory.peak
        for tp in (4, 8)
    }
    assert peaks[8] <= 20 * 2**30 < peaks[4]


def test_batches_of_a_global_batch_divide_what_is_left_to_each_rank() -> None:
    run: dict[str, Any] = {"tp": 8, "seq": 1024, "attention": "flash", "global_batch": 24}
    found = cm.solve("llama-3.1-8b", "memory.peak", "60 GiB", for_="batch", **run)
    assert found.answer == 8
