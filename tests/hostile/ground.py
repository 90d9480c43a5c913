"""The ground that hostile cases stand on: a folder with a canary, devices, pipes, links, and valid seeds to damage."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

import costmodel as cm
from costmodel.cli import run
from costmodel.cli.commands import costmodel as commands
from costmodel.importers.files import build
from costmodel.roofline import checking, kept, profiling, validation
from tests.roofline import synthetic

SECRET, PLAIN = "a canary sings in the mine", "sizes: [3, 2]"

GPT: dict[str, Any] = {"architecture": "transformer", "vocab": 11, "context": 8, "layers": 2, "width": 6, "heads": 3}
CONV = {"conv": {"channels": 4, "kernel": 3, "padding": 1}}
CNN: dict[str, Any] = {
    "architecture": "cnn",
    "input": [3, 8, 8],
    "define": {"unit": {"takes": ["c"], "blocks": [{"conv": {"channels": "$c", "kernel": 1}}, "relu"]}},
    "blocks": [
        CONV,
        {"unit": {"c": 4}},
        {"repeat": {"times": 3, "blocks": [{"residual": {"body": [CONV]}}]}},
        {"branches": {"paths": [[CONV], []], "join": "concat"}},
        {"adaptive_avg_pool": {"size": 1}},
        "flatten",
        {"linear": {"features": 5}},
    ],
}
MACHINE: dict[str, Any] = {
    "name": "m",
    "category": "gpu",
    "peak": {"bf16": "400 TFLOP/s"},
    "bandwidth": "3 TB/s",
    "memory": "24 GiB",
}
OPTIMIZER = {"name": "mine", "states": [{"name": "m", "bytes": 1, "block": 64}, {"name": "v", "extent": "rows"}]}
SEEDS: dict[str, dict[str, Any]] = {
    "mlp": {"architecture": "mlp", "sizes": [7, 5, 3], "dropout": 0.5, "norm": "layernorm"},
    "cnn": CNN,
    "transformer": {**GPT, "positions": "rotary", "experts": {"count": 4, "per_token": 2}, "tied": False},
    "windowed": {**GPT, "window": {"size": 3, "pattern": [True, False]}, "kv_heads": 1, "mlp": "gated"},
    "encoder_decoder": {"architecture": "encoder_decoder", "layers": 2, "width": 6, "heads": 3},
    "vision_transformer": {"architecture": "vision_transformer", "patch": 16, "layers": 2, "width": 6, "heads": 3},
    "llama": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2},
    "imported": {
        "architecture": "imported",
        "program": {
            "weights": {"w": {"path": "w", "shape": [3, 4], "trained": True}},
            "buffers": {},
            "inputs": {"x": {"path": "x", "shape": ["batch", 4], "dtype": "float32"}},
            "steps": [
                {
                    "op": "linear",
                    "path": [],
                    "name": "linear",
                    "args": {"input": {"tensor": "x"}, "weight": {"tensor": "w"}},
                    "makes": [{"name": "y", "shape": ["batch", 3], "dtype": "float32"}],
                }
            ],
            "outputs": ["y"],
        },
        "example": {"batch": 2},
    },
}
"""Valid descriptions, each of which costs something."""


class Ground(NamedTuple):
    """Where all is.

    canary: what nothing may read out or change. linked: what links lead to, which nothing may change. touched: what
    code that ran would have made.
    """

    folder: Path
    canary: Path
    linked: Path
    touched: Path

    def at(self, name: str) -> str:
        """The path of something on the ground."""
        return str(self.folder / name)

    def unharmed(self, output: str) -> str:
        """What was done to the canary; "" if nothing."""
        if self.touched.exists():
            return "code from the input ran"
        if self.canary.read_text() != SECRET or self.linked.read_text() != PLAIN:
            return "the canary was changed"
        if SECRET in output:
            return "the canary was read out"
        return ""


def prepare(folder: Path) -> Ground:
    """Lay out the ground in an empty folder."""
    ground = Ground(folder, folder / "canary", folder / "linked", folder / "touched")
    ground.canary.write_text(SECRET)
    ground.linked.write_text(PLAIN)
    for suffix in ("", ".yaml", ".json", ".parquet", ".png", ".html", ".zarr"):
        os.mkfifo(folder / f"pipe{suffix}")
        (folder / f"link{suffix}").symlink_to(ground.linked)
        (folder / f"zero{suffix}").symlink_to("/dev/zero")
        (folder / f"loop{suffix}").symlink_to(f"loop{suffix}")
        (folder / f"folder{suffix}").mkdir()
    for name, seed in SEEDS.items():
        (folder / f"{name}.json").write_text(json.dumps(seed))
    (folder / "optimizer.json").write_text(json.dumps(OPTIMIZER))
    (folder / "big.yaml").write_bytes(b"#" * 2**21)
    return ground


MODULES = (
    "costmodel.analysis.sweep.saved",
    "costmodel.analysis.sweep.stores",
    "costmodel.roofline.checking",
    "costmodel.roofline.baseline",
    "costmodel.roofline.findings",
    "costmodel.roofline.pictures",
    "matplotlib.figure",
    "pandas",
    "sympy",
    "xarray",
)


def warm() -> None:
    """Import and build what a first question would, so that a case is charged for itself alone.

    What measures does so by a stand-in clock and a calibration that is there, so that it is not as long as a machine is
    busy; `validate`, which measures for minutes, is refused.
    """
    for name in MODULES:
        import_module(name)

    def refused(*_: Any, **__: Any) -> Any:
        raise cm.CostModelError("nothing is validated here")

    abacus = synthetic.calibration()
    synthetic.Clockwork.put(setattr, lambda _: 0.1)  # so long that few calls settle what a layer takes
    validation.measure_probes = refused
    kept.measure_probes = checking.calibrated = profiling.calibrated = lambda *_, **__: abacus
    context = click.Context(commands)
    for name in commands.list_commands(context):
        commands.get_command(context, name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for model in ("mlp-mnist", "gpt2-small", "resnet18"):
            run(["explain", model, "memory.peak"])
        run(["sweep", "mlp-mnist", "--batch", "1,2", "--optimizer", "sgd,adamw"])
        run(["recommend", "mlp-mnist", "1GiB"])
        run(["models"])
        for verb in ("check", "profile"):
            run(["roofline", verb, "mlp-mnist"])
        with tempfile.TemporaryDirectory() as folder:
            run(["roofline", "plot", "mlp-mnist", "--out", f"{folder}/a.png"])
        for seed in SEEDS.values():
            cm.predict(build(seed, "seed")).to_json()
