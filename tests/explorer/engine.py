"""A page's own script run without a browser, and what it and `predict` say of the same settings."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from collections.abc import Iterator
from typing import Any

import quickjs

import costmodel as cm
from costmodel.analysis.closed_forms import varied
from costmodel.cost.quantities import QUANTITIES
from costmodel.training.settings import SETTING_NAMES

ANSWER = """
function plain(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return value.map(plain);
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, plain(each)]));
  return value;
}
function asked(place, sizes, choices) {
  const found = models[place].at(JSON.parse(sizes), JSON.parse(choices));
  if (found.why) return JSON.stringify(plain({ why: found.why, message: found.message }));
  const { quantities, peak, phases, rows, ranks } = found;
  return JSON.stringify(plain({ quantities, peak, phases, rows, ranks }));
}
"""


def parts_of(html: str) -> tuple[dict[str, Any], str]:
    """What a page holds: its data with the packed tables, and its script, after the formulas that are packed."""
    data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    packed = re.findall(r'<script type="text/plain" id="packed">(.*?)</script>', html, re.S)
    script = re.findall(r"<script>(.*?)</script>\n</body>", html, re.S)
    assert len(data) == len(packed) == len(script) == 1
    code, tables = zlib.decompress(base64.b64decode(packed[0]), -zlib.MAX_WBITS).decode().split("\0")
    whole = json.loads(data[0])
    packed_tables = json.loads(tables)
    for model, own in zip(whole["models"], packed_tables["models"], strict=True):
        model |= own
    whole["machines"] = packed_tables["machines"]
    return whole, f"{code}\n{script[0]}"


TIME = """
function timed(place, sizes, choices, machine, ranged) {
  const found = models[place].at(JSON.parse(sizes), JSON.parse(choices));
  const time = timeOn(found, DATA.machines[machine]);
  if (time.why) return JSON.stringify({ why: time.why });
  const { phases, seconds, least, mfu, samplesPerSecond } = time;
  const { exposed, bubble } = time.shared ?? { exposed: 0, bubble: 0 };
  const waits = { exposed, bubble };
  return JSON.stringify({ phases, seconds, least, mfu, samplesPerSecond, ...waits, ...(ranged ? rangeOf(time) : {}) });
}
"""


STEPS = """
function stepsOf(place, sizes, choices, most) {
  const found = models[place].at(JSON.parse(sizes), JSON.parse(choices));
  return JSON.stringify(models[place].steps(found.rank, most));
}
"""


class Engine:
    """The formulas of a page in a JavaScript engine."""

    def __init__(self, html: str) -> None:
        self.data, script = parts_of(html)
        # What the page does with its elements is for a browser; its formulas and what evaluates them end before that.
        formulas = script.partition("// The page: what is set")[0]
        self._context = quickjs.Context()
        self._context.eval(formulas + f"\nconst OF_TRAINING = new Set({json.dumps(self.data['training'])});")
        self._context.eval(f"const DATA = {json.dumps(self.data)};")
        self._context.eval("const models = DATA.models.map((data, place) => new Model(data, FORMULAS[place]));")
        self._context.eval(ANSWER + TIME + STEPS)

    def at(self, sizes: dict[str, int], choices: dict[str, int], model: int = 0) -> dict[str, Any]:
        """What the page answers; whole numbers as text."""
        return json.loads(self._context.get("asked")(model, json.dumps(sizes), json.dumps(choices)))

    def on(
        self, machine: int, sizes: dict[str, int], choices: dict[str, int], model: int = 0, *, ranged: bool = True
    ) -> dict[str, Any]:
        """Seconds of what `at` answers; ranged: with those that four of five runs fall between."""
        return json.loads(self._context.get("timed")(model, json.dumps(sizes), json.dumps(choices), machine, ranged))

    def steps(self, sizes: dict[str, int], choices: dict[str, int], most: int = 100_000) -> list[dict[str, Any]]:
        """The moments of the heaviest rank's step, in rounds of so many at most before they are left out."""
        return json.loads(self._context.get("stepsOf")(0, json.dumps(sizes), json.dumps(choices), most))

    def eval(self, code: str) -> Any:
        return self._context.eval(code)


def drawn(data: dict[str, Any], count: int, seed: int = 0) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Settings that the page can be put to: sliders at stops, fields at any number within their ranges, choices."""
    draw = random.Random(seed)
    for _ in range(count):
        sizes = {}
        for size in data["sizes"]:
            stops = size["stops"]
            anywhere = draw.choice(stops) if size["discrete"] else draw.randint(stops[0], stops[-1])
            sizes[size["name"]] = draw.choice([size["value"], draw.choice(stops), draw.choice(stops), anywhere])
        if {"heads", "width"} <= {
            *sizes
        } and draw.random() < 0.8:  # what the sliders do: they stop where there is such a model
            step = sizes["heads"] * (2 if "kv_heads" in sizes else 1)
            stops = next(size["stops"] for size in data["sizes"] if size["name"] == "width")
            sizes["width"] = max(step * -(-stops[0] // step), sizes["width"] // step * step)
            if "kv_heads" in sizes:
                sizes["kv_heads"] = draw.choice([n for n in (1, 2, 4, 8, 16, 32) if sizes["heads"] % n == 0])
        if "experts.per_token" in sizes:
            sizes["experts.per_token"] = min(sizes["experts.per_token"], sizes["experts.count"])
        if "context" in sizes and "seq" in sizes:
            sizes["seq"] = min(sizes["seq"], sizes["context"]) if draw.random() < 0.9 else sizes["seq"]
        yield sizes, {choice["name"]: draw.randrange(len(choice["labels"])) for choice in data["choices"]}


def predicted(
    model: Any, data: dict[str, Any], sizes: dict[str, int], choices: dict[str, int], **fixed: Any
) -> cm.Prediction:
    """What `predict` answers at the same settings, and those that are fixed. Raises CostModelError."""
    asked: dict[str, Any] = {**fixed}
    fields: dict[str, Any] = {}
    picked = {c["name"]: c["labels"][choices[c["name"]]] for c in data["choices"]}
    training = picked.get("mode", "train") == "train"
    for name, label in picked.items():
        if name not in SETTING_NAMES:
            fields[name] = int(label) if label.isdecimal() else label
        elif training or name not in ("optimizer", "checkpoint"):
            asked[name] = int(label) if label.isdecimal() else label
    for name, value in sizes.items():
        if name.startswith("image."):
            asked["image"] = (sizes["image.height"], sizes["image.width"])
        else:
            (asked if name in SETTING_NAMES else fields)[name] = value
    if asked.get("mode") == "decode" and "seq" in asked:
        asked["past"] = asked.pop("seq")
    return cm.predict(varied(model, fields), **asked)


def check_steps(engine: Engine, sizes: dict[str, int], choices: dict[str, int], p: cm.Prediction) -> None:
    """At every moment what is alive is what `predict` says, and so is the most where alike rounds are left out."""
    lines = engine.data["models"][0]["lines"]
    expected = [
        (step.phase, step.layer, [getattr(step.alive, line) for line in lines]) for step in p.timeline.unrolled()
    ]
    assert [(step["phase"], step["layer"], step["alive"]) for step in engine.steps(sizes, choices)] == expected
    folded = engine.steps(sizes, choices, most=1)
    assert max(sum(step["alive"]) for step in folded) == max(sum(alive) for *_, alive in expected)


def check_ranks(found: dict[str, Any], p: cm.Prediction) -> None:
    """Every rank holds, computes and sends what `predict` says, and a pipeline idles as its timetable does."""
    ranks = sorted(found["ranks"], key=lambda rank: int(rank["peak"]["total"]), reverse=True)
    assert len(ranks) == len(p.ranks)
    for rank, own, row in zip(ranks, p.ranks, p.ranks.rows(), strict=True):
        values = {name: int(each["value"]) for name, each in rank["quantities"].items()}
        assert {name: values[name] for name in ("params", "flops", "in_flight")} == {
            name: row[name] for name in ("params", "flops", "in_flight")
        }
        assert values["memory.activations"] == own.memory.activations
        assert values["memory.weights"] == own.memory.weights
        assert values["collectives.wire_bytes"] == row["wire_bytes"]
        assert int(rank["peak"]["total"]) == own.memory.peak
        sums = [
            {"axis": each["axis"], "operation": each["operation"], "dtype": each["dtype"]}
            | {column: int(value) for column, value in each["values"].items()}
            for each in rank["sums"]
        ]
        assert sums == own.collectives.sums()
    if "pipeline.idle" in found["quantities"]:
        idle, busy = (int(found["quantities"][f"pipeline.{name}"]["value"]) for name in ("idle", "busy"))
        schedule = p.settings.layout.pipeline(p.settings.micro_batches)
        timetable = schedule.timetable(lambda action: 2 if action.kind == "B" else 1)
        assert idle + busy == max(each[-1].end for each in timetable)


def check_equal(found: dict[str, Any], p: cm.Prediction) -> None:
    """Every quantity, layer and phase is what `predict` says."""
    assert {q: int(found["quantities"][q]["value"]) for q in QUANTITIES} == {q: p.value(q) for q in QUANTITIES}
    rows = [(row["name"], row["kind"], {c: int(v) for c, v in row["values"].items()}) for row in found["rows"]]
    expected = [(row.name, row.kind, row._asdict()) for row in p.layers]
    assert rows == [(n, k, {c: v for c, v in r.items() if c not in ("name", "kind")}) for n, k, r in expected]
    highest: dict[str, int] = {}
    for step in p.timeline.steps:
        highest[step.phase] = max(highest.get(step.phase, 0), step.alive.total)
    assert {each["phase"]: int(each["total"]) for each in found["phases"]} == highest
    assert int(found["peak"]["total"]) == p.memory.peak
    check_ranks(found, p)
    lines = {line: int(value) for line, value in found["peak"]["lines"].items()}
    alive = [step.alive._asdict() for step in p.timeline.steps]
    # Of steps that are equally high, the page's may be in another round than the one that a folded step is drawn at.
    assert lines in alive or lines in [step.alive._asdict() for step in p.timeline.unrolled()]
