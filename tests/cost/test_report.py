"""A prediction as people read it and as programs do: everything that it says adds up, in every form."""

from __future__ import annotations

import dataclasses
import json
import re
from html import unescape
from typing import Any

import pandas
import pytest
from hypothesis import given

import costmodel as cm
from costmodel.analysis.predict import Prediction, predict
from costmodel.cost.report import is_free, tables
from costmodel.display.units import show_bytes
from costmodel.errors import CostModelError, SettingError
from costmodel.layers.activation import Relu
from costmodel.layers.conv import Conv
from costmodel.layers.shape import Flatten
from costmodel.training.optimizers import Optimizer, State
from costmodel.training.precision import Precision
from tests.command import error_of, said_in_one_line
from tests.profiles import examples
from tests.strategies import questions

MLP = cm.MLP(sizes=[784, 512, 10])
CNN = cm.CNN(input=(3, 8, 8), blocks=[Conv(4, kernel=3), Relu(), Flatten()])
EVIL = "<script>alert(1)</script> & sons"
ASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": ("gpt2-small", {"batch": 32, "seq": 512}),
    "gpt2 inference": ("gpt2-small", {"mode": "inference", "attention": "flash"}),
    "mlp": (MLP, {"batch": 64, "loss": "mean_squared_error"}),
    "resnet50": ("resnet50", {"batch": 8, "image": 256}),
    "densenet121": ("densenet121", {"optimizer": "sgd"}),
    "llama": ("tinyllama-1.1b", {"precision": "bf16-autocast", "device": "cpu", "loss": None}),
}

everything = pytest.mark.parametrize("p", [predict(model, **asked) for model, asked in ASKED.values()], ids=list(ASKED))


def section(report: str, heading: str) -> list[list[str]]:
    """Cells of a table in the text: columns are two spaces apart at least."""
    lines = next(part for part in report.split("\n\n") if part.startswith(heading)).splitlines()
    rows = [re.split(r" {2,}", line) for line in lines[1:] if not line.startswith(("---", "without", "FlopCounter"))]
    return [row for row in rows if row[0] != ""]


def layers_in(line: list[str], p: Prediction) -> int:
    """How many layers a line stands for: ``linear``, or ``9 layers``; so many times where some stand for several."""
    words = re.fullmatch(r"(?:([\d,]+) layers?|\w+)", line[1])
    assert words, line
    times = int(line[2]) if any(row.repeat > 1 for row in p.layers) else 1
    return int((words[1] or "1").replace(",", "")) * times


def test_totals_come_first_then_layers_then_conventions() -> None:
    report = str(predict("gpt2-small", batch=32, seq=512))
    places = [
        report.index(f"\n{heading}") for heading in ("Totals ", "Memory ", "layer ", "total ", "FLOPs: ", "units: ")
    ]
    question, verdict, *_ = report.splitlines()
    assert question == "gpt2-small: one training step, batch 32, seq 512, fp32, adamw, attention eager"
    assert verdict.startswith("124.4 M parameters, 13.07 TFLOP a step, peak ")
    assert places == sorted(places)


def test_every_answer_starts_with_its_question() -> None:
    asked: dict[str, Any] = {"seq": 64, "precision": "bf16", "attention": "flash", "on": "h100-sxm"}
    p = predict("gpt2-small", **asked)
    ready = "gpt2-small on h100-sxm: one training step, batch 1, seq 64, bf16, adamw, attention flash"
    for answer in (p, p.time, p.fits("1 GiB"), p.timeline, p.explain("params"), cm.sensitivity("gpt2-small", **asked)):
        assert " ".join(str(answer).split()).startswith(ready)
    assert str(cm.max_batch("gpt2-small", "4 GiB", **asked)).startswith(ready.replace("batch 1, ", ""))
    assert str(cm.recommend("gpt2-small", checkpoint="none", **asked)).startswith(
        "gpt2-small on h100-sxm: one training step, seq 64, bf16, attention flash\n"
    )
    assert str(cm.cheapest_checkpoint("gpt2-small", "4 GiB", **asked)).startswith(ready)
    crossing = cm.break_even("gpt2-small", "attention.scores", "mlp", for_="seq", checkpoint="block")
    assert str(crossing).startswith("gpt2-small: one training step, batch 1, fp32, adamw, attention eager, checkpoint")


def test_totals_say_their_unit_and_every_digit() -> None:
    p = predict("gpt2-small", batch=32, seq=512)
    figures = {row[0]: row[1:] for row in section(str(p), "Totals")}
    assert figures["params"] == ["124.4 M", "124,439,808"]
    assert figures["FLOPs forward"][:2] == ["4.357 TFLOP", "4,357,135,269,888"]
    assert figures["FLOPs total"][1] == f"{p.flops.total:,}"
    lines = {row[0]: row[1:] for row in section(str(p), "Memory")}
    assert lines["activations"][:2] == ["22.6 GiB", "24,247,472,132"]
    assert lines["peak"][1] == f"{p.memory.peak:,}"


@everything
def test_every_figure_has_a_unit_or_a_heading_with_one(p: Prediction) -> None:
    report = str(p)
    for name, shown, *_ in section(report, "Totals")[1:]:
        assert re.fullmatch(r"[\d.]+ [kMGTPE]?FLOP", shown), name
    for name, shown, *_ in section(report, "Memory"):
        assert re.fullmatch(r"[\d.]+ ([KMGT]i)?B", shown), name
    assert "forward and backward are FLOPs" in " ".join(report.split())


@everything
def test_every_layer_is_in_a_line_or_named_as_costless(p: Prediction) -> None:
    *lines, total = section(str(p), "layer ")
    shown = sum(layers_in(line, p) for line in lines)
    free = dict.fromkeys(sorted({row.kind for row in p.layers if is_free(row)}), 0)
    for row in filter(is_free, p.layers):
        free[row.kind] += row.repeat
    said = re.search(r"without cost, and so without a line: ([\d,]+) layers? \((.*?)\)", " ".join(str(p).split()))
    named = dict(re.findall(r"(\w+) ×(\d+)", said[2])) if said else {}
    assert {kind: int(times) for kind, times in named.items()} == free
    assert shown == sum(row.repeat for row in p.layers if not is_free(row))
    assert total[0] == "total"
    assert layers_in(total, p) == shown + sum(free.values())


@everything
def test_shares_add_up(p: Prediction) -> None:
    table = tables(p)[-1]
    *lines, total = table.rows
    for number, name in enumerate(table.header):
        if name == "share":
            parts = [float(line[number].strip("<%")) for line in lines if line[number] != "-"]
            assert total[number] == ("100%" if parts else "-")
            assert abs(sum(parts) - 100 * bool(parts)) <= 0.1 * len(parts)


def test_repeats_are_folded() -> None:
    lines = {line[0]: line for line in section(str(predict("gpt2-small", batch=32, seq=512)), "layer ")}
    assert lines["block.mlp.up"][1:5] == ["linear", "12", "28.35 M", "927.7 G"]
    assert not any(re.search(r"block\d", name) for name in lines)


def test_many_layers_are_shown_by_scope() -> None:
    lines = {line[0]: line[1:3] for line in section(str(predict("resnet50")), "layer ")}
    assert lines["stage3.bottleneck.residual"] == ["9 layers", "5"]
    assert len(lines) < 30


def conventions(p: Prediction) -> dict[str, str]:
    said = re.sub(r"\n  ", " ", str(p).split("\n\n")[-1]).splitlines()
    return dict(line.split(": ", 1) for line in said)


def test_conventions_in_force_are_named() -> None:
    plain = conventions(predict("gpt2-small"))
    assert "a multiply-add is 2" in plain["FLOPs"]
    assert "FlopCounterMode" in plain["FLOPs"]
    assert "on a GPU" in plain["activations"]
    assert "the loss (cross_entropy)" in plain["activations"]
    assert plain["attention"].startswith("eager")
    assert plain["optimizer"].startswith("adamw: ")
    assert plain["precision"].startswith("fp32: ")
    asked = {"device": "cpu", "loss": None, "attention": "efficient", "attention_pairs": "visible"}
    other = conventions(
        predict("gpt2-small", optimizer="lion", precision="bf16-autocast", flop_rule="arithmetic", **asked)
    )
    assert "FlopCounterMode" not in other["FLOPs"]
    assert "on a CPU" in other["activations"]
    assert "loss left out" in other["activations"]
    assert "memory-efficient" in other["attention"]
    assert "visible positions only" in other["attention"]
    assert other["optimizer"].startswith("lion: ")
    assert other["precision"].startswith("bf16-autocast: ")


def test_conventions_that_do_not_apply_are_not_named() -> None:
    assert "attention" not in conventions(predict(MLP))
    assert not {"backward", "activations", "optimizer"} & conventions(predict(MLP, mode="inference")).keys()


def test_inference_has_no_column_of_training() -> None:
    report = str(predict(MLP, mode="inference"))
    assert report.startswith("MLP: one forward pass (inference), batch 1, fp32\n")
    assert "adamw" not in report
    header = next(line for line in report.splitlines() if line.startswith("layer "))
    assert re.split(r" {2,}", header) == ["layer", "kind", "params", "forward", "share", "FLOP/B"]


def test_a_grouped_convolution_is_footnoted_where_counters_disagree() -> None:
    grouped = cm.CNN(input=(4, 8, 8), blocks=[Conv(4, kernel=1), Conv(4, kernel=3, groups=2)])
    assert "grouped convolution" in str(predict(grouped, loss=None))
    assert "grouped convolution" not in str(predict("resnet50"))


def test_names_cannot_break_lines_or_steer_a_terminal() -> None:
    model = cm.MLP(sizes=[3, 2], name="two\nlines \x1b[31m")
    declared = Precision("own", source="no\x1b[1msource")
    report = str(predict(model, precision=declared, optimizer=Optimizer("own", (), "so\x1burce")))
    assert report.startswith("two?lines ?[31m: ")
    assert {character for character in report if not character.isprintable()} == {"\n"}


@pytest.mark.parametrize("name", ["", "fp\n32", "s\x07gd", "a\0b", "\ud800", "x" * 1000])
def test_a_declaration_has_a_name_that_can_be_shown(name: str) -> None:
    assert "is not a name" in error_of(lambda: predict("mlp-mnist", precision=Precision(name)))
    assert "is not a name" in error_of(lambda: predict("mlp-mnist", optimizer=Optimizer(name, ())))


@given(questions())
@examples(30)
def test_every_question_has_a_report(question: tuple[Any, dict[str, Any]]) -> None:
    model, asked = question
    p = predict(model, **asked)
    assert f"{p.params:,}" in str(p)
    assert f"{p.memory.peak:,}" in p._repr_html_()


@everything
def test_html_says_what_the_text_says(p: Prediction) -> None:
    html, text = p._repr_html_(), str(p)
    cells = [unescape(cell) for cell in re.findall(r"<t[dh] [^>]*>(.*?)</t[dh]>", html)]
    assert [cell for table in tables(p) for line in (table.header, *table.rows) for cell in line] == cells
    for topic in conventions(p):
        assert f"<b>{topic}</b>" in html
    assert text.splitlines()[0] in html
    assert "color:inherit" in html
    assert not re.search(r"color:\s*(#|rgb|white|black)", html)


def test_html_is_escaped() -> None:
    p = predict(
        cm.CNN(input=(3, 8, 8), blocks=CNN.blocks, name=EVIL),
        precision=Precision("<b>", source="a & b <i>"),
        optimizer=Optimizer("<u>", (State("<s>"),), "x < y & z"),
    )
    html = p._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; sons" in html
    tags = {"div", "p", "b", "br", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "ul", "li"}
    assert set(re.findall(r"<(\w+)", html)) == tags
    assert len(re.findall(r"<b>", html)) == 1 + len(conventions(p))
    assert not re.search(r"&(?!(amp|lt|gt|quot|#x27);)", html)


@everything
def test_a_data_frame_has_the_layers_and_their_totals(p: Prediction) -> None:
    frame = p.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["name"]) == [row.name for row in p.layers]
    assert frame["params"].sum() == p.params
    assert frame["forward_flops"].sum() == p.flops.forward
    assert frame["backward_flops"].sum() == p.flops.backward
    assert frame["activation_bytes"].sum() == p.memory.activations


@everything
def test_json_round_trips(p: Prediction) -> None:
    again = Prediction.from_json(p.to_json())
    assert again == p
    assert again.to_dict() == p.to_dict()
    assert json.loads(p.to_json())["memory"]["peak"] == p.memory.peak


DECLARED: dict[str, Any] = {
    "optimizer": Optimizer(
        "mine",
        (State("first"), State("second", "rows", 1, block=64, least=100), State("step", "scalar", 4)),
        "a note",
        vectors=(State("first"),),
    ),
    "precision": Precision("mixed", weight="bf16", autocast="fp16", master="fp32", gradient="fp32", states="bf16"),
}


@pytest.mark.parametrize("model", ["gpt2-small", MLP, CNN], ids=["transformer", "mlp", "cnn"])
def test_json_round_trips_with_declared_optimizers_and_precisions(model: Any) -> None:
    p = predict(model, **DECLARED)
    again = Prediction.from_json(p.to_json())
    assert again == p
    assert again.settings.states == DECLARED["optimizer"]
    assert again.settings.policy == DECLARED["precision"]
    assert again.memory == p.memory


def tampered(**changes: Any) -> str:
    """The JSON of a prediction with other values at some dotted places."""
    data = predict(MLP, **DECLARED).to_dict()
    data["settings"]["optimizer"]["states"] = list(data["settings"]["optimizer"]["states"])
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = data
        for parent in parents:
            place = place[int(parent) if parent.isdecimal() else parent]
        place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("params", 1, "'params'"),
        ("flops.total", 0, "'flops'"),
        ("memory.peak", 7, "'memory'"),
        ("layers.0.params", 3, "'layers'"),
        ("extra", 3, "'extra'"),
        ("model.sizes", [784, 512, 11], "not what its model costs"),
        ("model.sizes", [784, -1], "sizes"),
        ("model", 3, "prediction"),
        ("settings", [], "no model and settings"),
        ("settings.batch", True, "batch"),
        ("settings.batch", 10**30, "batch"),
        ("settings.bach", 3, "'batch'"),
        ("settings.optimizer", "adammw", "'adamw'"),
        ("settings.optimizer", [], "neither a name nor an Optimizer"),
    ],
)
def test_tampered_json_is_refused_in_one_line(path: str, value: Any, said: str) -> None:
    with pytest.raises(CostModelError) as caught:
        Prediction.from_json(tampered(**{path: value}))
    assert said in said_in_one_line(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("settings.optimizer", {}, "name is missing"),
        ("settings.optimizer.stats", [], "'states'"),
        ("settings.optimizer.states", 3, "3 is not a list"),
        ("settings.optimizer.states", [3], "states[0]: 3 is not a mapping"),
        ("settings.optimizer.states.0.bytes", 0, "bytes: 0"),
        ("settings.optimizer.states.0.extent", "column", "'columns'"),
        ("settings.optimizer.only_matrices", 1, "only_matrices: 1"),
        ("settings.precision", {}, "name is missing"),
        ("settings.precision.name", 3, "name: 3"),
        ("settings.precision.weigth", "fp32", "'weight'"),
        ("settings.precision.weight", "fp33", "'fp32'"),
        ("settings.precision.group", True, "group: True"),
    ],
)
def test_a_declaration_that_is_none_is_a_setting_error(path: str, value: Any, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        Prediction.from_json(tampered(**{path: value}))
    assert said in said_in_one_line(caught.value)


@pytest.mark.parametrize("text", ["", "{", "3", "null", "[1]", "{}", "[" * 100_000, "9" * 5_000, b"\xff", None])
def test_what_is_no_prediction_is_refused_in_one_line(text: Any) -> None:
    with pytest.raises(CostModelError) as caught:
        Prediction.from_json(text)
    assert "not a prediction" in said_in_one_line(caught.value)


def test_a_declaration_is_checked_in_python_too() -> None:
    wrong: Any = "fp33"
    with pytest.raises(SettingError, match="'fp32'"):
        predict(MLP, precision=dataclasses.replace(DECLARED["precision"], weight=wrong))
    states: Any = [3]
    with pytest.raises(SettingError, match=r"states: \[3\] is not a list of States"):
        predict(MLP, optimizer=Optimizer("mine", states, ""))


@everything
def test_parts_add_up_to_the_layers(p: Prediction) -> None:
    for depth in (1, 2, 9):
        parts = p.by_part(depth)
        assert len({part.name for part in parts}) == len(parts) <= len(p.layers)
        assert all(part.name.count(".") < depth for part in parts)
        for figure in ("params", "forward_flops", "backward_flops", "activation_bytes", "forward_bytes"):
            assert sum(getattr(part, figure) for part in parts) == sum(getattr(row, figure) for row in p.layers)


def test_a_part_is_what_its_layers_are_together() -> None:
    parts = {part.name: part for part in predict("gpt2-small").by_part()}
    assert list(parts)[-4:] == ["block", "final_norm", "head", "loss"]
    assert parts["block"].params == 12 * (12 * 768**2 + 13 * 768)  # Radford et al. 2019: attention, MLP, two norms


@pytest.mark.parametrize("depth", [0, -1, True, 1.0, "1"])
def test_a_depth_is_a_number_of_levels(depth: Any) -> None:
    assert "is not a whole number from 1" in error_of(lambda: predict("gpt2-small").by_part(depth))


def test_shapes_are_those_of_the_outputs() -> None:
    rows = {row[0]: row for row in section(predict("resnet18", batch=2).report(shapes=True), "layer")}
    assert rows["conv"][2] == "2 × 64 × 112 × 112"


def test_the_report_is_what_a_prompt_shows() -> None:
    p = predict("gpt2-small")
    assert repr(p) == str(p)


@pytest.mark.parametrize(("precision", "said"), [("fp32", True), ("bf16", False), ("fp16-autocast", False)])
def test_flash_attention_in_fp32_is_another_kernel(precision: Any, said: bool) -> None:
    assert ("attention='efficient'" in str(predict("gpt2-small", attention="flash", precision=precision))) is said


def test_what_storages_hold_of_a_window_and_what_is_used_of_it_are_two_lines() -> None:
    """A prefill of 32 tokens leaves storages of all of them, of which the next one attends to the last 7 (window 8)."""
    sizes: dict[str, Any] = {"vocab": 50, "context": 64, "layers": 2, "width": 16, "heads": 4, "positions": "rotary"}
    report = str(predict(cm.Transformer(**sizes, window=8), mode="prefill", seq=32))
    lines = {line.split("  ")[0].strip(): line for line in report.splitlines()}
    held = 2 * 2 * 16 * 4  # keys and values of each layer, in fp32
    assert f"{32 * held:,}  what storages hold" in lines["cache"]
    assert f"{7 * held:,}  of it, what the next token attends to" in lines["cache used"]
    assert "cache used" not in str(predict(cm.Transformer(**sizes), mode="prefill", seq=32))


def test_where_stored_scores_lead_the_peak_the_report_says_what_others_need() -> None:
    led = predict("gpt2-small", batch=8)
    fused = predict("gpt2-small", batch=8, attention="efficient")
    line = str(led).splitlines()[2]
    assert line.startswith(f"less plain settings need: attention efficient {show_bytes(fused.memory.peak)}, precision ")
    assert "mode inference" not in line  # which is no training
    assert unescape(line) in unescape(led._repr_html_())
    assert "less plain" not in str(fused)
    assert "less plain" not in str(predict("mlp-mnist"))


def test_what_a_mode_does_not_have_has_no_line() -> None:
    lines = [line.split()[0] for line in tables(predict("gpt2-small", mode="inference"))[1].text().splitlines()]
    assert not {"gradients", "optimizer", "activations"} & {*lines}
    assert {"weights", "peak"} <= {*lines}


def test_titles_have_adapters_as_a_shell_takes_them() -> None:
    p = predict("llama-3.1-8b", seq=64, lora={"rank": 8, "targets": ["q_proj", "v_proj"]})
    assert str(p).partition("\n")[0].endswith("lora 8:q_proj,v_proj")
