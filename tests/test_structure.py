"""The shape of the house: imports go down the floors, loading is light, and kinds are defined in one place each."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import costmodel as cm
from costmodel.graph.tensor import Call
from costmodel.importers.files import build
from costmodel.layers import load_all
from costmodel.layers.arithmetic import Identity
from costmodel.layers.base import KINDS, Kind, Unary, Work, layer
from costmodel.layers.linear import Linear

PACKAGE = Path(cm.__file__).parent

FLOORS = """
errors symbols units table quantities layers.frozen
polynomial sizes document drawings
operations dtypes layers.fields files allocator
contest decisions tensor lifetimes
plans precision optimizers graph
evaluation declaration recomputation layers.base formulas
layers.arithmetic layers.attention layers.cast layers.embedding layers.experts layers.function layers.linear
layers.loss layers.noise layers.norm layers.reduction layers.routing layers.spatial
layers.adaptation layers.conv layers.pool layers.shape layers.tokens
layers.activation layers.adaptive_pool layers.indexing layers.leaf layers.resize
layers
parts
run training
objective cost forward standing architectures architectures.base architectures.activations architectures.normalisation
architectures.stack architectures.ends architectures.feedforward architectures.latent architectures.summary
backward architectures.blocks architectures.mlp architectures.attention architectures.moe
architectures.sublayers
architectures.transformer
architectures.vision_transformer architectures.encoder_decoder
architectures.templates memory
architectures.blocklist
importers importers.huggingface importers.huggingface.fields
importers.huggingface.family
importers.huggingface.rules importers.huggingface.encoders
importers.huggingface.gpt importers.huggingface.llama
importers.huggingface.blocks importers.huggingface.experts
importers.huggingface.families
architectures.cnn zoo conventions applicability
imported.trees imported.meta imported.failures scaling
imported.program
imported.site imported.axes imported.capture imported.folding
imported.rules.shapes
imported.rules.elementwise
imported.rules.attention imported.rules.contractions imported.rules.images imported.rules.indexing
imported.rules.layers imported.rules.losses imported.rules.norms
imported.rules
imported.replay
imported.model
imported
report budget
milestones
pictures prediction
imported.importing
themes
scales
explanation choice closedforms search
knobs charts
fronts curves
inverse shares frontier steps ranking
sizing crossing elasticity recommendation lines heatmaps
comparison
regimes axes tables
sheets
space
gridpictures
extents
results streams
stores
sweeps
roofline.reference
roofline.memory
roofline.operation
roofline.program roofline.tape
roofline.kernels.kernel
roofline.kernels.activations roofline.kernels.arithmetic roofline.kernels.attention roofline.kernels.convolutions
roofline.kernels.experts roofline.kernels.gelu roofline.kernels.images roofline.kernels.losses roofline.kernels.norms
roofline.kernels.pools roofline.kernels.products roofline.kernels.routing roofline.kernels.steps roofline.kernels.tables
roofline.kernels.tokens
roofline.kernels.views
roofline.kernels.large_steps
roofline.kernels.optimizers
roofline.kernels
roofline.layer roofline.machine roofline.timing roofline.signature roofline.arena
roofline.shapes
roofline.placement roofline.probes roofline.products
roofline.measurement roofline.rates
roofline.hosttime roofline.intervention
roofline.buffering
roofline.footprint
roofline.recorder roofline.movement roofline.positions
roofline.network
roofline.execution roofline.surrogates
roofline.calibration
roofline.storage roofline.forecast roofline.classification
roofline.validation
roofline.ceilings roofline.labels
roofline.findings
roofline.inspection roofline.sheet roofline.dots
roofline.profiling roofline.pictures roofline.interactive
roofline.comparison roofline.page
roofline.baseline roofline.drawing
roofline
costmodel
cli.commands
cli.options
cli.prediction cli.models cli.analysis cli.sweep cli.roofline
cli
__main__
"""
"""Every module, a floor a line, from the ground up: what a module imports stands on a line before its own."""

UPWARD = {
    ("imported.site", "imported.replay"): "types: a rule works on a replay",
    ("tensor", "graph"): "types: a storage is charged to a block",
    ("tensor", "run"): "types: a tensor is recorded on a run",
    ("graph", "layers.base"): "types: a call is of a kind",
    ("graph", "run"): "types: a call is recorded on a run",
    ("architectures.attention", "architectures.transformer"): "types: attention reads the model's fields",
    ("architectures.normalisation", "architectures.transformer"): "types: norms read the model's fields",
    ("architectures.summary", "architectures.transformer"): "types: the summary reads the model's fields",
    ("architectures.feedforward", "architectures.transformer"): "types: MLPs read the model's fields",
    ("architectures.moe", "architectures.transformer"): "types: experts read the model's fields",
    ("architectures.ends", "architectures.transformer"): "types: embeddings and logits read the model's fields",
    ("architectures.latent", "architectures.transformer"): "types: latent attention reads the model's fields",
    ("architectures.sublayers", "architectures.transformer"): "types: blocks read the model's fields",
    ("files", "architectures.base"): "types: a file describes an architecture",
    ("conventions", "prediction"): "types: the views of a prediction",
    ("report", "prediction"): "types: the views of a prediction",
    ("budget", "prediction"): "types: the views of a prediction",
    ("charts", "comparison"): "types: the picture of a comparison",
    ("charts", "inverse"): "types: the picture of an answer",
    ("memory", "milestones"): "called late: a timeline prints itself",
    ("memory", "pictures"): "called late: a timeline draws itself",
    ("roofline.findings", "roofline.drawing"): "called late: a check draws itself",
    ("roofline.findings", "roofline.page"): "called late: a check makes a page of itself",
    ("roofline.findings", "roofline.sheet"): "called late: a check prints itself",
    ("prediction", "explanation"): "called late: a prediction explains itself, with sympy",
    ("zoo", "prediction"): "called late: the list of models counts their parameters",
}


class Import(NamedTuple):
    """One module of the package that names another; late: only when a function runs, or never."""

    module: str
    imported: str
    late: bool


def modules() -> dict[str, Path]:
    paths = {path.relative_to(PACKAGE).with_suffix(""): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(at.parts).removesuffix("__init__").rstrip(".") or "costmodel": path for at, path in paths.items()}


MODULES = modules()
FLOOR = {name: number for number, line in enumerate(FLOORS.strip().splitlines()) for name in line.split()}


def imports() -> Iterator[Import]:
    for module, path in MODULES.items():
        yield from _imports(ast.parse(path.read_text(encoding="utf-8")), module, late=False)


def _imports(node: ast.AST, module: str, late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            assert not getattr(child, "level", 0), f"{module} imports relatively"
            names = [child.module or ""] if isinstance(child, ast.ImportFrom) else [a.name for a in child.names]
            for name in names:
                if name.split(".")[0] == "costmodel":
                    yield Import(module, name.removeprefix("costmodel."), late)
        unloaded = isinstance(child, ast.FunctionDef) or (
            isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        )
        yield from _imports(child, module, late or unloaded)


def test_every_module_is_on_one_floor() -> None:
    placed = FLOORS.split()
    assert sorted(MODULES.keys() - set(placed)) == [], "place a new module on a floor"
    assert sorted(set(placed) - MODULES.keys()) == [], "take a module that is gone off its floor"
    assert len(placed) == len(set(placed))


def test_imports_go_down() -> None:
    up = {(i.module, i.imported): i.late for i in imports() if not _goes_down(i)}
    assert sorted(up.keys() - UPWARD.keys()) == [], "import from a floor below, or have it passed in"
    assert [pair for pair, late in up.items() if not late] == [], "an import upward can only be late"
    assert sorted(UPWARD.keys() - up.keys()) == [], "no longer needed"


def _goes_down(i: Import) -> bool:
    """A module that is on no floor fails a test of its own."""
    return FLOOR.get(i.imported, -1) < FLOOR.get(i.module, len(FLOOR))


def test_files_are_small_and_named_for_what_they_hold() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 500} == {}
    vague = {"utils", "util", "helpers", "common", "misc", "manager"}
    assert [name for name in MODULES if vague & set(name.split("."))] == []


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after running some code."""
    code += "\nimport sys; print(' '.join({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_importing_loads_nothing_heavy() -> None:
    loaded = loaded_by("import costmodel; from costmodel import __version__")
    assert "costmodel" in loaded
    assert not {"sympy", "numpy", "pydantic", "yaml", "click", "rich", "pandas", "matplotlib"} & loaded


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
def test_every_kind_says_what_it_is_and_where_that_is_from(kind: type[Kind]) -> None:
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

            def forward(self, call: Call) -> Work:
                return Work(0, 2 * call.x.size)

            def backward(self, call: Call) -> list:
                return []

            def kept(self, call: Call) -> tuple:
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
    with pytest.raises(TypeError, match="Forgetful does not say: backward, forward, kept"):

        @layer
        class Forgetful(Unary):
            source = "none"

    with pytest.raises(TypeError, match="Sourceless names no source"):
        layer(type("Sourceless", (Unary,), {name: Identity.__dict__[name] for name in ("forward", "backward", "kept")}))
    assert not {"forgetful", "sourceless"} & KINDS.keys()


def test_a_second_kind_of_one_name_is_refused() -> None:
    body = {name: Identity.__dict__[name] for name in ("forward", "backward", "kept")}
    with pytest.raises(TypeError, match="two layer kinds are called identity"):
        layer(type("Identity", (Unary,), {**body, "source": "again"}))
    assert KINDS["identity"] is Identity
