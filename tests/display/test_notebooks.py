"""What a notebook shows of every result: its numbers as a table, with what a name holds made harmless."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

import costmodel as cm
from costmodel.display.answer import Data
from costmodel.display.units import show_bytes, show_count

EVIL = cm.MLP(sizes=[4, 3, 2], name="<img src=x onerror=alert(1)>")
P = cm.predict(EVIL, batch=4)


def every_result() -> dict[str, Any]:
    return {
        "prediction": P,
        "time": P.on("h100-sxm"),
        "memory": P.memory,
        "flops": P.flops,
        "pointwise": P.pointwise_flops,
        "traffic": P.traffic,
        "row": P.layers[0],
        "timeline": P.timeline,
        "explanation": P.explain("params"),
        "fit": P.fits("1 GiB"),
        "solution": cm.max_batch(EVIL, memory="1 MiB"),
        "choice": cm.cheapest_checkpoint(cm.Transformer(vocab=9, context=4, layers=1, width=8, heads=2), "1 MiB"),
        "break even": cm.break_even(EVIL, "memory.activations", "memory.weights", for_="batch"),
        "sensitivities": cm.sensitivity(EVIL, "params"),
        "comparison": cm.compare(EVIL, optimizer=["sgd", "adamw"]),
        "match": cm.match(EVIL, "params", "1k"),
        "recommendations": cm.recommend(EVIL, "1 GiB", precision="fp32", optimizer="sgd"),
        "model": EVIL,
        "models": cm.models(family="mlp"),
        "machine": cm.load_machine("h100-sxm"),
        "machines": cm.machines("hopper"),
        "serving": cm.serve("llama-3.2-1b", on="h100-sxm", input=8, output=8, concurrency=[1]),
    }


RESULTS = every_result()


class Balanced(HTMLParser):
    """Collects text, and tags that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in ("br", "meta", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Balanced:
    found = Balanced()
    found.feed(html)
    found.close()
    assert not found.open
    return found


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_every_result_shows_itself(result: Any) -> None:
    found = read(result._repr_html_())
    assert found.seen & {"table", "pre", "p"}
    assert not found.seen & {"img", "script"}
    assert len(found.text) > 20


@pytest.mark.parametrize("result", [r for r in RESULTS.values() if isinstance(r, Data)], ids=lambda r: type(r).__name__)
def test_every_answer_is_its_text_and_a_page(result: Data) -> None:
    assert isinstance(repr(result), str)
    page = read(result.to_html())
    assert {"html", "title", "body"} <= page.seen
    assert not page.seen & {"img", "script"}


def test_tables_hold_the_numbers() -> None:
    memory, flops = read(P.memory._repr_html_()).text, read(P.flops._repr_html_()).text
    assert show_bytes(P.memory.peak) in memory
    assert f"{P.memory.activations:,}" in memory
    assert f"{P.flops.total:,}" in flops
    row = P.layers[0]
    assert row.name in read(row._repr_html_()).text
    assert show_count(row.params) in read(row._repr_html_()).text


def test_what_is_printed_is_a_table_or_a_line_that_can_be_typed() -> None:
    p = cm.predict("gpt2-small", batch=32, seq=512)
    lines = repr(p.memory).splitlines()
    assert lines[0].split() == ["Memory", "exact"]
    assert lines[-1].split() == ["peak", "30.1", "GiB", "32,328,559,628"]
    assert not any(" 0 B" in line for line in lines)
    row = p.layers[0]
    assert eval(repr(row), {"Row": type(row)}) == row
    assert repr(p.settings) == "Settings(batch=32, seq=512)"
    assert eval(repr(p.settings), {"Settings": type(p.settings)}) == p.settings
    assert repr(cm.models()[0]) == "alexnet: CNN, 61,100,840 parameters"


@pytest.mark.parametrize("name", ["gpt2-small", "llama-3.1-8b", "deepseek-v3", "t5-small", "vit-b-16", "mlp-mnist"])
def test_a_model_prints_what_makes_it(name: str) -> None:
    model = cm.load(name)
    kinds = [type(model)]
    for kind in kinds:
        kinds += [part for part in kind.parts().values() if part not in kinds]
    made = eval(repr(model), {kind.__name__: kind for kind in kinds})
    assert made == model.model_copy(update={"notes": ""})
    assert len(repr(cm.load("gpt2-small"))) < 200
