"""What public objects say of themselves is whole and true: every argument, errors, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from dataclasses import fields, is_dataclass
from types import FunctionType, ModuleType
from typing import Any

import pytest

import costmodel as cm
from costmodel.analysis.break_even import BreakEven
from costmodel.analysis.checkpoint import CheckpointChoice
from costmodel.analysis.compare import Comparison
from costmodel.analysis.deployments import Deployments
from costmodel.analysis.gpus import Gpus
from costmodel.analysis.layouts import Layouts
from costmodel.analysis.match import Match
from costmodel.analysis.recommend import Recommendations
from costmodel.analysis.sensitivity import Sensitivities
from costmodel.analysis.solve import Solution
from costmodel.cost.budget import Fit
from costmodel.cost.explanation import Explanation
from costmodel.cost.quantities import Flops, Memory
from costmodel.cost.rows import Row
from costmodel.cost.timeline import Timeline
from costmodel.training.settings import SETTING_NAMES

RESULTS = (
    *(BreakEven, CheckpointChoice, Comparison, Explanation, Fit, Flops, Match, Memory, Recommendations, Row),
    *(Deployments, Gpus, Layouts, Sensitivities, Solution, Timeline),
)
"""What public functions answer with."""
PUBLIC: dict[str, Any] = {
    name: made for name in cm.__all__ if isinstance(made := getattr(cm, name), type | FunctionType)
} | {made.__name__: made for made in RESULTS}
FUNCTIONS = {name: made for name, made in PUBLIC.items() if isinstance(made, FunctionType)}
CLASSES = {name: made for name, made in PUBLIC.items() if isinstance(made, type)}
NEEDS = {"from_torch": "torch"}


def text_of(made: Any) -> str:
    return inspect.getdoc(made) or ""


def examples_of(name: str, text: str) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(text, {"cm": cm}, name, None, None)


def methods_with_examples() -> dict[str, str]:
    return {
        f"{name}.{method}": text_of(made)
        for name, kind in CLASSES.items()
        for method, made in vars(kind).items()
        if isinstance(made, FunctionType) and not method.startswith("_") and ">>>" in text_of(made)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PUBLIC, *methods_with_examples()])
def test_every_public_object_has_an_example_that_runs(name: str) -> None:
    pytest.importorskip("xarray")
    pytest.importorskip("matplotlib")
    pytest.importorskip(NEEDS.get(name, "numpy"))
    test = examples_of(name, methods_with_examples().get(name) or text_of(PUBLIC[name]))
    assert test.examples, f"{name} has no example"
    said: list[str] = []
    found = doctest.DocTestRunner().run(test, out=said.append)
    assert found.failed == 0, "".join(said)


def test_every_public_name_is_an_object_a_model_or_a_module() -> None:
    others = [getattr(cm, name) for name in cm.__all__ if name not in PUBLIC]
    assert all(isinstance(other, ModuleType | cm.Transformer) for other in others)
    assert len(PUBLIC) > 40


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_and_error_of_a_public_function_is_described(name: str) -> None:
    text = text_of(FUNCTIONS[name])
    own = [p for p in inspect.signature(FUNCTIONS[name]).parameters if p not in (*SETTING_NAMES, "fields")]
    missing = [p for p in own if not re.search(rf"^ +\**{p}: ", text, re.MULTILINE)]
    assert not missing
    assert re.search(r"^Raises( \w|:)", text, re.MULTILINE) or "Raises" in text


def own_members(kind: type) -> dict[str, Any]:
    """Public methods and properties that this package defines."""
    found = {}
    for name, made in inspect.getmembers_static(kind):
        code = made.fget if isinstance(made, property) else getattr(made, "func", made)
        if isinstance(code, FunctionType) and code.__module__.startswith("costmodel") and not name.startswith("_"):
            found[name] = made
    return found


def names_of_fields(kind: type) -> list[str]:
    if hasattr(kind, "model_fields"):
        return [name for name, field in kind.model_fields.items() if not field.description]
    return [f.name for f in fields(kind)] if is_dataclass(kind) else list(getattr(kind, "_fields", ()))


@pytest.mark.parametrize("name", CLASSES)
def test_every_attribute_of_a_public_class_is_described(name: str) -> None:
    kind = CLASSES[name]
    text = text_of(kind).partition("\nExample:")[0]
    missing = [n for n in names_of_fields(kind) if not n.startswith("_") and not re.search(rf"\b{n}\b", text)]
    missing += [n for n, made in own_members(kind).items() if not inspect.getdoc(made)]
    assert not missing
