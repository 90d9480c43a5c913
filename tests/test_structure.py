"""The shape of the house: packages import in one order, loading is light, and kinds are defined in one place each."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.graph.call import Call
from costmodel.importers.files import build
from costmodel.layers import load_all
from costmodel.layers.arithmetic import Identity
from costmodel.layers.base import KINDS, Layer, LayerFlops, Unary, layer
from costmodel.layers.linear import Linear

PACKAGE = Path(cm.__file__).parent

ORDER = (
    "errors",
    "documents",
    "symbolic",
    "display",
    "training",
    "hardware",
    "graph",
    "layers",
    "architectures",
    "importers",
    "cost",
    "performance",
    "analysis",
    "explorer",
    "roofline",
    "cli",
)
"""The packages from the ground up: each imports itself and those before it, without exception."""


def modules() -> dict[str, Path]:
    paths = {path.relative_to(PACKAGE).with_suffix(""): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(at.parts).removesuffix("__init__").rstrip(".") or "costmodel": path for at, path in paths.items()}


MODULES = modules()
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


def imports(*, for_types: bool = True) -> Iterator[tuple[str, str]]:
    """Each module of the package with each that it imports, at the top, in a function or, if so asked, for types alone.

    A name that is taken from the root package is its home's.
    """
    homes = {name: home.removeprefix("costmodel.") for name, home in cm._HOMES.items()}
    for module, tree in TREES.items():
        typed = {id(node) for each in ast.walk(tree) if _is_for_types(each) for node in ast.walk(each)}
        for node in ast.walk(tree):
            if id(node) in typed and not for_types:
                continue
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{module} imports relatively"
                for alias in node.names:
                    full = f"{node.module}.{alias.name}".removeprefix("costmodel.")
                    if node.module == "costmodel" and alias.name in homes:
                        yield module, homes[alias.name]
                    elif (node.module or "").startswith("costmodel.") or full in MODULES:
                        yield module, full if full in MODULES else (node.module or "").removeprefix("costmodel.")
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.startswith("costmodel."):
                        yield module, alias.name.removeprefix("costmodel.")
            elif isinstance(node, ast.Attribute) and node.attr in homes and ast.unparse(node.value) == "costmodel":
                yield module, homes[node.attr]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_everything_is_in_one_of_the_packages() -> None:
    assert {name.partition(".")[0] for name in MODULES} - {"costmodel", "__main__"} == set(ORDER)


@pytest.mark.slow
def test_packages_import_downward_only() -> None:
    floor = {package: number for number, package in enumerate(ORDER)} | {
        "costmodel": len(ORDER),
        "__main__": len(ORDER),
    }
    at = {name: floor[name.partition(".")[0]] for name in MODULES}
    assert [(module, imported) for module, imported in imports() if at[imported] > at[module]] == []


@pytest.mark.slow
@pytest.mark.parametrize(("for_types", "most"), [(False, 0), (True, 4)])
def test_no_files_import_each_other_in_a_circle(for_types: bool, most: int) -> None:
    """But for types: a tensor names the call that made it and the tape that it is on, whose files name tensors."""
    pairs = set(imports(for_types=for_types))
    after = {name: {imported for module, imported in pairs if module == name} for name in MODULES}
    reached = {name: _reached(name, after) for name in MODULES}
    circles = {frozenset(b for b in reached[a] if a in reached[b]) for a in MODULES if a in reached[a]}
    assert [sorted(circle) for circle in circles if len(circle) > most] == []


def _reached(start: str, after: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [*after[start]]
    while ahead:
        if (name := ahead.pop()) not in found:
            found.add(name)
            ahead += after[name]
    return found


def test_files_are_named_for_what_they_hold() -> None:
    vague = {"utils", "util", "helpers", "common", "misc", "manager"}
    assert [name for name in MODULES if vague & set(name.split("."))] == []


SHARED = {
    "Calibration": "of a machine's constants, and public in the roofline",
    "Comparison": "of predictions, and public in the roofline",
    "Rotary": "a part of a description, and the layer kind that it asks for",
}
"""Names that two files may define, and why."""


def test_a_class_or_alias_has_a_name_of_its_own() -> None:
    homes: dict[str, set[str]] = {}
    for module, tree in TREES.items():
        for node in tree.body:
            target: ast.AST = node
            if isinstance(node, ast.Assign) and not ast.unparse(node.value).startswith("TypeVar("):
                target = node.targets[0]
            elif isinstance(node, ast.AnnAssign):
                target = node.target
            name = node.name if isinstance(node, ast.ClassDef) else getattr(target, "id", "")
            if (name[:1].isupper() and not name.isupper()) or isinstance(node, ast.ClassDef):
                homes.setdefault(name, set()).add(module)
    assert {name: sorted(where) for name, where in homes.items() if len(where) > 1 and name not in SHARED} == {}


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after running some code."""
    code += "\nimport sys; print(' '.join({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.slow
def test_importing_loads_nothing_heavy() -> None:
    loaded = loaded_by("import costmodel; from costmodel import __version__")
    assert "costmodel" in loaded
    assert not {"sympy", "numpy", "pydantic", "yaml", "click", "rich", "pandas", "matplotlib"} & loaded


@pytest.mark.slow
def test_predicting_and_printing_load_no_algebra() -> None:
    loaded = loaded_by("import costmodel as cm; p = cm.predict('gpt2-small', batch=32, seq=512); str(p), p.to_json()")
    assert "pydantic" in loaded
    assert not {"sympy", "numpy", "click", "pandas", "matplotlib"} & loaded


def test_public_names_are_there() -> None:
    assert all(getattr(cm, name) is not None for name in cm.__all__)
    assert set(cm.__all__) <= set(dir(cm))
    with pytest.raises(AttributeError, match="predicted"):
        cm.predicted  # noqa: B018


@pytest.mark.parametrize("kind", load_all().values(), ids=load_all())
def test_every_kind_says_what_it_is_and_where_that_is_from(kind: type[Layer]) -> None:
    assert kind.source.strip()
    assert kind.__dict__.get("__doc__"), "a docstring of its own, not the one that a dataclass makes up"
    assert not kind.__doc__.startswith(f"{kind.__name__}(")
    assert not inspect.isabstract(kind)
    assert kind.__module__.startswith("costmodel.layers.")


def test_a_new_kind_is_usable_at_once_from_python_and_from_data() -> None:
    try:

        @layer
        class Cube(Unary):
            """y = x³."""

            source = "by hand: dx = 3 x² g"

            def forward(self, call: Call) -> LayerFlops:
                return LayerFlops(0, 2 * call.x.size)

            def backward(self, call: Call) -> list:
                return []

            def saved(self, call: Call) -> tuple:
                return (call.x,)

        from_python = cm.CNN(input=(3, 4, 4), blocks=[Cube()])
        from_data = build({"architecture": "cnn", "input": [3, 4, 4], "blocks": ["cube"]}, "test")
        assert from_data == from_python
        assert [row.kind for row in cm.predict(from_data, loss=None).layers] == ["cube"]
        assert cm.predict(from_data, loss=None).pointwise_flops.forward == 2 * 3 * 4 * 4
    finally:
        KINDS.pop("cube", None)


def test_concrete_kinds_are_final() -> None:
    for kind in (Linear, Identity):
        with pytest.raises(TypeError, match=f"{kind.__name__} is final; derive Other from an abstract kind"):
            type("Other", (kind,), {})
    assert "other" not in KINDS


def test_a_kind_that_leaves_a_cost_out_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="Forgetful does not say: backward, forward, saved"):

        @layer
        class Forgetful(Unary):
            source = "none"

    stated = {name: getattr(Identity, name) for name in ("forward", "backward", "saved")}
    with pytest.raises(TypeError, match="Sourceless names no source"):
        layer(type("Sourceless", (Unary,), stated))
    assert not {"forgetful", "sourceless"} & KINDS.keys()


def test_a_second_kind_of_one_name_is_refused() -> None:
    body = {name: getattr(Identity, name) for name in ("forward", "backward", "saved")}
    with pytest.raises(TypeError, match="two layer kinds are called identity"):
        layer(type("Identity", (Unary,), {**body, "source": "again"}))
    assert KINDS["identity"] is Identity
