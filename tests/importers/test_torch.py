"""Imported models as plain data, without PyTorch: they are read, checked, costed and written again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.importers.files import build, describe
from costmodel.importers.torch.program import evaluate
from tests.command import said_in_one_line

LINEAR = {"op": "linear", "path": ["net"], "name": "head", "changes": None, "grad": True}
DATA: dict[str, Any] = {
    "architecture": "imported",
    "name": "tiny",
    "example": {"batch": 2},
    "limits": {"batch": [1, 64]},
    "program": {
        "weights": {"w": {"path": "net.head.weight", "shape": [3, 4], "trained": True}},
        "buffers": {},
        "inputs": {"x": {"path": "x", "shape": ["batch", 4], "dtype": "float32"}},
        "steps": [
            {
                **LINEAR,
                "args": {"input": {"tensor": "x"}, "weight": {"tensor": "w"}},
                "makes": [{"name": "y", "shape": ["batch", 3], "dtype": "float32"}],
            }
        ],
        "outputs": ["y"],
    },
}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """The data with one value changed."""
    data = copy.deepcopy(DATA)
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return data


def test_a_program_is_costed_and_written_again() -> None:
    model = build(DATA, "test")
    prediction = cm.predict(model, batch=5)
    assert (prediction.params, prediction.flops.forward, prediction.flops.total) == (12, 120, 240)
    assert [row.name for row in prediction.layers] == ["net.head"]
    assert str(prediction.formula("flops.forward")) == "24*B"
    assert build(json.loads(json.dumps(describe(model))), "test") == model


def test_a_file_of_one_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(DATA), encoding="utf-8")
    assert cm.predict(str(path), batch=5).params == 12


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("program",), None),
        (("program",), []),
        (("program", "weights"), []),
        (("program", "weights", "w"), {"path": "w"}),
        (("program", "weights", "w", "shape"), "no shape"),
        (("program", "weights", "w", "shape"), [3, "four"]),
        (("program", "inputs", "x", "shape"), [["?", 1], 4]),
        (("program", "inputs", "x", "shape"), [["//", "batch", 0], 4]),
        (("program", "inputs", "x", "dtype"), "fp32"),
        (("program", "steps"), 3),
        (("program", "steps", 0, "op"), "lineer"),
        (("program", "steps", 0, "args"), {}),
        (("program", "steps", 0, "args"), {"input": {"tensor": "z"}, "weight": {"tensor": "w"}}),
        (("program", "steps", 0, "makes", 0, "shape"), ["batch", 4]),
        (("program", "steps", 0, "makes", 0, "dtype"), "float8_e5m2"),
        (("program", "steps", 0, "path"), 3),
        (("program", "outputs"), ["z"]),
        (("program", "outputs"), []),
        (("example",), {"batch": 0}),
        (("limits",), {"batch": 3}),
    ],
)
def test_what_is_wrong_with_a_program_is_said_in_one_line(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(cm.CostModelError) as caught:
        cm.predict(build(changed(*path, to=value), "test"), batch=5)
    said_in_one_line(caught.value)


@pytest.mark.parametrize(
    ("tree", "value"),
    [
        (7, 7),
        ("batch", 5),
        (["+", "batch", ["*", 2, "seq"]], 27),
        (["//", "seq", 4], 2),
        (["ceil", "seq", 4], 3),
        (["%", "seq", 4], 3),
        (["/", ["*", 4, "batch"], 2], 10),
        (["min", "batch", "seq"], 5),
        (["max", "batch", "seq"], 11),
    ],
)
def test_trees_are_arithmetic(tree: Any, value: int) -> None:
    assert evaluate(tree, {"batch": 5, "seq": 11}) == value


def test_a_size_beyond_the_limits_is_refused() -> None:
    with pytest.raises(cm.CostModelError, match="batch=65 is beyond what 'tiny' takes: use at most 64"):
        cm.predict(build(DATA, "test"), batch=65)
