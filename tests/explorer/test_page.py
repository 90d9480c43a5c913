"""A page gives what `predict` says wherever it gives anything, and nothing of a model can break out of its data."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.display.units import show_bytes, show_count, show_flops
from costmodel.explorer.page import LARGEST
from costmodel.explorer.site import explore_ready
from tests.command import error_of, here
from tests.explorer.engine import Engine, check_equal, check_steps, drawn, parts_of, predicted
from tests.profiles import how_many

pytestmark = pytest.mark.usefixtures("traced")

MODELS = ("gpt2-small", "resnet50", "mlp-mnist", "llama-3.1-8b", "mixtral-8x7b")
FEW: dict[str, Any] = {"precision": ["fp32", "bf16-autocast"], "checkpoint": ["none", "block"], "mode": "train"}
"""Choices of a page that is made soon."""
OF_LARGE: dict[str, Any] = {
    "llama-3.1-8b": {**FEW, "checkpoint": "none"},
    "mixtral-8x7b": {**FEW, "precision": "fp32", "checkpoint": "none"},
}
"""Those of models whose pages take longer; precisions and checkpoints are the same formulas in the others."""
SPLIT: dict[str, Any] = {"vocab": 96, "context": 64, "layers": 3, "width": 64, "heads": 8, "positions": "rotary"}
SMALL = cm.MLP(sizes=(8, 16, 16, 4))


@cache
def page_of(model: str) -> cm.explorer.page.Explorer:
    return cm.explore(model, **OF_LARGE.get(model, FEW))


def settings_drawn(engine: Engine, count: int) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    return drawn(engine.data["models"][0], count)


def compare(name: str, html: str, count: int) -> Counter[str]:
    """Hold a page to `predict` at settings drawn at random; how often there was which outcome."""
    engine, model = Engine(html), cm.load(name)
    outcomes: Counter[str] = Counter()
    for sizes, choices in settings_drawn(engine, count):
        found = engine.at(sizes, choices)
        try:
            p = predicted(model, engine.data["models"][0], sizes, choices)
        except cm.CostModelError:
            assert found.get("why") in ("refused", "unknown"), (sizes, choices)
            outcomes["refused"] += 1
            continue
        assert "why" not in found, (sizes, choices, found)
        check_equal(found, p)
        outcomes["equal"] += 1
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_page_says_what_predict_says(name: str) -> None:
    page = page_of(name)
    assert page.bytes < LARGEST
    outcomes = compare(name, page.html, how_many(40))
    assert outcomes["equal"] > outcomes["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_moment_of_a_step_is_that_of_predict(name: str) -> None:
    engine, model = Engine(page_of(name).html), cm.load(name)
    data = engine.data["models"][0]
    compared = 0
    for sizes, choices in drawn(data, 12, seed=3):
        if "why" not in engine.at(sizes, choices):
            check_steps(engine, sizes, choices, predicted(model, data, sizes, choices))
            compared += 1
    assert compared > 4


def test_sizes_that_are_compared_can_be_equal() -> None:
    """The search is led there: of 6,000 widths of the input, one is that of the hidden layers."""
    engine = Engine(page_of("mlp-mnist").html)
    data = engine.data["models"][0]
    picked = {choice["name"]: 0 for choice in data["choices"]}
    for checkpoint in range(2):
        for width, classes in ((1024, 10), (1024, 80), (300, 10), (6001, 5)):
            sizes = {"batch": 8, "0:0": width, "1:3": width, "4:4": classes}
            choices = picked | {"checkpoint": checkpoint}
            check_equal(engine.at(sizes, choices), predicted(cm.load("mlp-mnist"), data, sizes, choices))


def test_the_formulas_of_a_small_page_are_exact() -> None:
    engine = Engine(cm.explore(SMALL, precision=["fp32", "bf16-autocast"], checkpoint="none").html)
    for sizes, choices in settings_drawn(engine, 40):
        check_equal(engine.at(sizes, choices), predicted(SMALL, engine.data["models"][0], sizes, choices))


def test_degrees_of_a_layout_are_sizes_of_the_page() -> None:
    model = cm.Transformer.of({**SPLIT, "tied": False, "fused_qkv": False})
    page = cm.explore(model, precision="fp32", checkpoint="none", attention="eager", tp=[1, 2, 4], on=None)
    engine = Engine(page.html)
    data = engine.data["models"][0]
    assert "tp" in [size["name"] for size in data["sizes"]]
    outcomes: Counter[str] = Counter()
    for sizes, choices in settings_drawn(engine, 25):
        found = engine.at(sizes, choices)
        try:
            p = predicted(model, data, sizes, choices)
        except cm.CostModelError:
            assert found.get("why") in ("refused", "unknown"), (sizes, choices)
            continue
        check_equal(found, p)
        outcomes[f"tp {sizes['tp']}"] += 1
    assert outcomes["tp 2"]
    assert outcomes["tp 4"]


LAID_OUT: dict[str, dict[str, Any]] = {
    "stages": {"tp": [1, 2], "pp": [1, 2, 3], "accumulate": [3, 6]},
    "shares": {"tp": [1, 2], "fsdp": [1, 4], "cp": [1, 2]},
    "devices": {"devices": 4, "optimizer": ["adamw", "sgd"]},
    "copies": {"dp": [1, 2, 4], "pp": [1, 2], "accumulate": [4], "precision": "fp32"},
    "megatron": {"runtime": "megatron", "tp": [1, 2], "dp": [1, 2], "pp": [1, 3], "accumulate": [3, 6]},
    "inference": {"mode": "inference", "pp": [1, 3], "tp": [1, 2]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAID_OUT)
def test_every_rank_of_a_layout_is_that_of_predict(name: str) -> None:
    asked = LAID_OUT[name]
    model = cm.Transformer.of({**SPLIT, "tied": False, "fused_qkv": False})
    engine = Engine(cm.explore(model, seq=[16, 32, 64], on=None, **asked).html)
    data = engine.data["models"][0]
    fixed = {name: int(label) if label.isdecimal() else label for name, label in data["fixed"].items()}
    outcomes: Counter[str] = Counter()
    for sizes, choices in settings_drawn(engine, how_many(120)):
        found = engine.at(sizes, choices)
        try:
            p = predicted(model, data, sizes, choices, **fixed)
        except cm.CostModelError:
            assert found.get("why") in ("refused", "unknown"), (sizes, choices)
            continue
        assert "why" not in found, (sizes, choices, found)
        check_equal(found, p)
        check_steps(engine, sizes, choices, p)
        outcomes[f"{len(found['ranks'])} kinds of {p.settings.layout.devices}"] += 1
    assert len(outcomes) > 2


def test_decisions_are_more_on_one_way_than_calls_that_python_makes() -> None:
    """Python refuses a depth of 1,000; 126 blocks with no recomputation take more decisions."""
    page = cm.explore("llama-3.1-405b", **OF_LARGE["mixtral-8x7b"])
    assert compare("llama-3.1-405b", page.html, 4)["equal"]


def test_numbers_beyond_doubles_are_exact() -> None:
    wide = 10**9
    engine = Engine(cm.explore(SMALL, precision="fp32", mode="train", checkpoint="none", batch=[1, wide]).html)
    found = engine.at({"batch": wide, "0:0": 8, "1:2": 64, "3:3": 4}, {"optimizer": 0})
    total = int(found["quantities"]["memory.activations"]["value"])
    assert total == cm.predict(cm.MLP(sizes=(8, 64, 64, 4)), batch=wide).memory.activations


@pytest.mark.parametrize("show", [("showBytes", show_bytes), ("showFlops", show_flops), ("showCount", show_count)])
def test_numbers_are_written_as_everywhere_else(show: Any) -> None:
    script, python = show
    engine = Engine(small_page())
    near = [base**power * part // 16 + step for base in (1000, 1024) for power in range(7) for part in range(1, 40)
            for step in (-1, 0, 1)]  # fmt: skip
    for number in [0, 1, 999, *(n for n in near if n >= 0)]:
        assert engine.eval(f"{script}({number}n)") == python(number)


@cache
def small_page() -> str:
    return cm.explore(SMALL, precision="fp32", mode="inference").html


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2-small", "resnet50", "mixtral-8x7b"])
def test_seconds_on_machines_are_those_of_predict(name: str) -> None:
    """Up to what a floating-point power and another order of sums may change."""
    engine, model = Engine(page_of(name).html), cm.load(name)
    data = engine.data["models"][0]
    compared = 0
    for sizes, choices in drawn(data, 7, seed=2):
        if "why" in engine.at(sizes, choices):
            continue
        p = predicted(model, data, sizes, choices)
        for number, machine in enumerate(engine.data["machines"]):
            found, time = engine.on(number, sizes, choices), p.on(machine["name"])
            for at, value in (
                ("seconds", time.seconds),
                ("low", time.low),
                ("high", time.high),
                ("mfu", time.mfu),
                ("samplesPerSecond", time.samples_per_second),
            ):
                assert found[at] == pytest.approx(value, rel=1e-9)
            assert found["least"] == pytest.approx(p.on(machine["name"], tier="ceiling").seconds, rel=1e-9)
            for phase, expected in zip(found["phases"], time.phases, strict=True):
                assert phase["device"] == pytest.approx(expected.device_seconds, rel=1e-9)
                assert phase["host"] == pytest.approx(expected.host_seconds, rel=1e-9)
                assert phase["launches"] == expected.launches
            compared += 1
    assert compared > 20


def test_sizes_outside_the_page_have_no_answer() -> None:
    engine = Engine(small_page())
    first = engine.data["models"][0]["sizes"][0]
    start = {size["name"]: size["value"] for size in engine.data["models"][0]["sizes"]}
    for wrong in (first["stops"][-1] + 1, 0, -3, 1.5, None):
        assert engine.at({**start, first["name"]: wrong}, {})["why"] == "range"


def test_what_a_model_refuses_the_page_refuses() -> None:
    page = cm.explore("gpt2-small", batch=[2, 4], precision="fp32", attention="eager", optimizer="sgd", mode="train",
                      checkpoint="none")  # fmt: skip
    engine = Engine(page.html)
    start = {size["name"]: size["value"] for size in engine.data["models"][0]["sizes"]}
    assert "quantities" in engine.at(start, {})
    found = engine.at({**start, "heads": 11}, {})
    assert found["why"] in ("refused", "unknown")
    beyond = engine.at({**start, "seq": 2048, "context": 1024}, {})
    assert beyond["why"] in ("refused", "unknown")


def test_decoding_is_exact_too() -> None:
    model = cm.Transformer(vocab=50, context=64, layers=4, width=8, heads=2)
    asked: dict[str, Any] = {"mode": "decode", "past": 16, "precision": "bf16", "attention": "eager"}
    engine = Engine(cm.explore(model, on=None, **asked).html)
    start = {size["name"]: size["value"] for size in engine.data["models"][0]["sizes"]}
    for sizes in (start, {**start, "batch": 3, "layers": 7}, {**start, "width": 12}):
        fields = {name: value for name, value in sizes.items() if name != "batch"}
        check_equal(engine.at(sizes, {}), cm.predict(model.with_fields(fields), batch=sizes["batch"], **asked))


def test_a_page_decodes_with_as_many_tokens_before_as_a_sequence_is_long() -> None:
    model = cm.Transformer(vocab=50, context=64, layers=4, width=8, heads=2)
    engine = Engine(cm.explore(model, precision="bf16", attention="eager", mode=["inference", "decode"]).html)
    data = engine.data["models"][0]
    assert {choice["name"] for choice in data["choices"]} == {"mode"}
    modes: Counter[str] = Counter()
    for sizes, choices in settings_drawn(engine, 40):
        found = engine.at(sizes, choices)
        try:
            p = predicted(model, data, sizes, choices, precision="bf16", attention="eager")
        except cm.CostModelError:
            assert found.get("why") in ("refused", "unknown"), (sizes, choices)
            continue
        check_equal(found, p)
        modes[p.settings.mode] += 1
        high = p.on(engine.data["machines"][0]["name"]).high
        assert engine.on(0, sizes, choices)["high"] == pytest.approx(high, rel=1e-9)
    assert modes["decode"] > 5
    assert modes["inference"] > 5


HOSTILE = '</script><img src=x onerror="window.hit=1"><!--[[SCRIPT]]${alert(1)}'


def test_a_hostile_name_stays_text() -> None:
    html = cm.explore(SMALL.with_fields({"name": HOSTILE}), precision="fp32", mode="inference").html
    data, script = parts_of(html)
    assert data["models"][0]["title"] == HOSTILE
    assert "onerror" not in script
    assert html.count("</script>") == 3
    assert "<img" not in html
    assert html.count("start();") == 1


def test_the_page_takes_nothing_from_anywhere() -> None:
    html = small_page()
    assert "default-src 'none'" in html
    assert "unsafe-" not in html
    assert "http://" not in html
    assert "https://" not in html
    _, script = parts_of(html)
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "fetch(", "XMLHttpRequest", "eval("):
        assert name not in script


def test_several_models_are_one_page() -> None:
    other = cm.MLP(sizes=(4, 6, 2), name="other")
    engine = Engine(cm.explore(SMALL, other, precision="fp32", mode="inference").html)
    assert [model["title"] for model in engine.data["models"]] == ["MLP", "other"]
    sizes = {size["name"]: size["value"] for size in engine.data["models"][1]["sizes"]}
    found = engine.at(sizes, {}, model=1)
    assert int(found["quantities"]["params"]["value"]) == cm.predict(other).params


@pytest.mark.slow
def test_a_setting_of_one_of_several_models_is_left_out_of_the_others() -> None:
    small = cm.Transformer(vocab=50, context=16, layers=4, width=8, heads=2)
    asked: dict[str, Any] = {"precision": "fp32", "mode": "inference", "attention": ["eager", "flash"], "on": None}
    engine = Engine(cm.explore(SMALL, small, **asked).html)
    assert [[choice["name"] for choice in model["choices"]] for model in engine.data["models"]] == [[], ["attention"]]
    with pytest.raises(cm.CostModelError, match="attention"):
        cm.explore(SMALL, **asked)


def test_a_site_has_a_page_for_each_model_and_one_that_leads_to_them(tmp_path: Path) -> None:
    names = ("mlp-mnist", "gpt2-small")
    site = explore_ready(tmp_path / "site", names, precision="fp32", mode="inference", on=None, attention="flash")
    assert [*site.pages] == ["gpt2-small"]
    assert "attention" in site.refused["mlp-mnist"]
    index = (tmp_path / "site" / "index.html").read_text()
    assert "style-src 'sha256-" in index
    assert "script-src" not in index, "it runs nothing"
    for name, size in site.pages.items():
        assert f'href="{name}.html"' in index
        assert (tmp_path / "site" / f"{name}.html").stat().st_size == size


def test_a_site_of_a_model_that_there_is_not_is_refused(tmp_path: Path) -> None:
    assert "did you mean 'gpt2-small'" in error_of(lambda: explore_ready(tmp_path / "site", ["mlp-mnist", "gpt2-smal"]))
    assert not (tmp_path / "site").exists()


def test_a_site_whose_index_cannot_be_written_is_refused_before_its_pages(tmp_path: Path) -> None:
    (tmp_path / "index.html").mkdir()
    assert "index.html" in error_of(lambda: explore_ready(tmp_path, ["mlp-mnist"], mode="inference", on=None))
    assert not (tmp_path / "mlp-mnist.html").exists()


def test_pages_of_many_models_are_small() -> None:
    page = cm.explore("gpt2-small", "llama-3.2-1b", precision=["fp32", "bf16"], checkpoint="none", mode="train")
    shell = cm.explore(SMALL, precision="fp32", mode="inference", on=None).bytes
    assert (page.bytes - shell) / 2 < 3_000_000 / 20


def test_the_shell_writes_a_page_and_says_what_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    asked = ("explore", "mlp-mnist", "--out", str(out), "--precision", "fp32", "--mode", "inference")
    done = here(capsys, *asked)
    assert done.code == 0
    assert str(out) in done.out
    assert "mlp-mnist" in done.out
    assert Engine(out.read_text()).data["models"][0]["name"] == "mlp-mnist"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-model",), "unknown model"),
        (("mlp-mnist", "--batch", "0:4"), "batch"),
        (("mlp-mnist", "--optimizer", "adamq"), "optimizer"),
        (("mlp-mnist", "--seq", "5"), "seq"),
        (("mlp-mnist", "--attention", "flash"), "attention"),
        (("mlp-mnist", "--over", "sizes=1,2"), "sizes: 1 is not a list"),
        (("gpt2-small", "--over", "positions=rotary,round"), "not 'round'"),
        (("mlp-mnist", "--out", "/no/such/folder/x.html"), "cannot write"),
    ],
)
def test_a_wrong_question_is_one_line(arguments: Any, said: str, tmp_path: Path, capsys: Any) -> None:
    out = () if "--out" in arguments else ("--out", str(tmp_path / "x.html"))
    done = here(capsys, "explore", *arguments, *out)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_workers_end_with_the_process_that_started_them() -> None:
    abrupt = (
        "import os\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from costmodel.cli.explorer import end_with_parent\n"
        "with ProcessPoolExecutor(2, initializer=end_with_parent) as executor:\n"
        "    print(len({*executor.map(abs, range(2))}), flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    # What is printed is read to its end, which comes when the last process that could print has ended.
    done = subprocess.run([sys.executable, "-c", abrupt], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (-9, "2\n"), done.stderr
