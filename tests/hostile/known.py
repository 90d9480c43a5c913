"""What did get through once, each with what is said of it now: held in every run, not in a sample."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import costmodel as cm
from costmodel.cli import run
from tests.hostile.calls import FORMULA, Odd, Plain
from tests.hostile.files import CONV, Case
from tests.hostile.ground import GPT, Ground
from tests.hostile.saved import PARETO, SWEEP, Touch, pickled_in_version_2


def known(ground: Ground) -> Iterator[Case]:
    """All of them."""
    for number, (words, said) in enumerate(_commands(ground).items()):
        yield f"known command {number}: {' '.join(words)[:60]}", lambda words=words, said=said: _run(words, said)
    for name, (data, said) in _descriptions().items():
        yield f"known description {name}", lambda data=data, said=said: _asked(data, said)
    for name, (call, said) in _calls().items():
        yield f"known call {name}", lambda call=call, said=said: _call(call, said)
    for name, (change, said) in _stores(ground).items():
        yield f"known store {name}", lambda change=change, said=said: _store(ground, change, said)
    many = ("pareto", ground.at("many.parquet"), *PARETO)
    yield "known Parquet of many equal rows", lambda: _run(many, "claim to hold")
    yield "known Parquet whose names move the cursor", _moving
    yield "known store without a chunk", lambda: _without_a_chunk(ground)


def _run(words: tuple[str, ...], said: str) -> int:
    code = run(words)
    told: Any = sys.stderr
    assert (code, said in told.getvalue()) == (2, True), (code, told.getvalue())
    return code


def _commands(ground: Ground) -> dict[tuple[str, ...], str]:
    batch = ("sweep", "mlp-mnist", "--batch")
    return {
        (*batch, "1,1:100000000000"): "has 100,000,000,000 values",
        (*batch, "1:99999999999999999999999999"): "use at most 10,000,000",
        ("sweep", "mlp-mnist", "--optimizer", "1:1000000"): "has 1,000,000 values: use at most 10,000",
        ("recommend", "mlp-mnist", "1GiB", "--batch", "1:100000000000"): "100,000,000,000 values",
        ("compare", "mlp-mnist", "--batch", "1:100000"): "use fewer, or a sweep",
        **{
            ("roofline", "check", "mlp-mnist", "--against", path): "no regular file"
            for path in ("/dev/zero", "/dev/null", ground.at("pipe"), ground.at("zero"))
        },
        **{
            words: "cannot write"
            for path in (ground.at("pipe.png"), "/dev/null")
            for words in (
                ("timeline", "mlp-mnist", "--out", path),
                ("roofline", "check", "mlp-mnist", "--save", path),
                ("roofline", "check", "mlp-mnist", "--out", path),
            )
        },
        ("pareto", ground.at("pipe.parquet"), *PARETO): "is no regular file",
        (*SWEEP, "--out", ground.at("pipe.parquet"), "--resume"): "is no file",
        ("predict", "mlp-mnist", "--optimizer", ground.at("pipe.json")): "is a device or pipe",
    }


def _asked(data: Any, said: str) -> int:
    Path("model.json").write_text(json.dumps(data))
    return _run(("predict", "./model.json"), said)


def _descriptions() -> dict[str, tuple[Any, str]]:
    def cnn(*blocks: Any, **define: Any) -> Any:
        return {"architecture": "cnn", "input": [3, 8, 8], "define": define, "blocks": list(blocks)}

    nested: Any = CONV
    for _ in range(12):
        nested = {"repeat": {"times": 3, "blocks": [nested]}}
    chained = {"t0": {"blocks": ["relu"]}} | {f"t{n}": {"blocks": [f"t{n - 1}"]} for n in range(1, 3000)}
    tokens = {
        "architecture": "cnn",
        "input": [3, 8, 8],
        "blocks": [{"adaptive_avg_pool": {"size": 963_761_198_400}}, "relu"],
    }
    found = {
        "12 nested repeats": (cnn(nested), "repeats nest so that"),
        "3,000 chained templates": (cnn("t2999", **chained), "3,000 templates are too many"),
        "divisors": (tokens, "larger than any machine could hold"),
        "a pattern of layers": (
            {**GPT, "layers": 2**40, "window": {"size": 3, "pattern": [True, False]}},
            "blocks of several kinds are at most 10,000",
        ),
        "a shape of half": (
            {
                "architecture": "imported",
                "example": {"batch": 1},
                "program": {
                    "weights": {},
                    "buffers": {},
                    "steps": [],
                    "outputs": ["x"],
                    "inputs": {"x": {"path": "x", "shape": 0.5, "dtype": "float32"}},
                },
            },
            "shape 0.5 is not a list of sizes",
        ),
    }
    for family in ("qwen3_moe", "gemma2", "gemma3_text", "deepseek_v3", "lfm2"):
        config = {"model_type": family, "num_hidden_layers": 10**9}
        found[f"{family} of 10^9 layers"] = (config, "at most 10,000")
    return found


def _call(call: Callable[[], Any], said: str) -> None:
    if not said:
        call()
        return
    with pytest.raises(cm.CostModelError, match=re.escape(said)):
        call()


def _prepended() -> None:
    """Tokens before those of an image, each a weight of its own."""
    from costmodel.graph.tape import Tape
    from costmodel.layers.embedding import Prepend

    run = Tape(training=True, device="gpu")
    Prepend(2**40)(run.input((1, 3, 4)))


def _calls() -> dict[str, tuple[Callable[[], Any], str]]:
    states = {"name": "o", "states": [{"name": "s"}] * 10**6}

    def pickled() -> None:
        p = cm.predict("mlp-mnist")
        p.explain("params")
        assert pickle.loads(pickle.dumps(p)).explain("params").value == p.params

    def plain() -> None:
        assert cm.Prediction.from_json(cm.predict(Plain(sizes=[3, 2])).to_json()).params == 8

    deep = cm.Transformer(vocab=100, context=64, layers=4768, width=64, heads=2)
    return {
        "an endless axis": (lambda: cm.sweep("mlp-mnist", batch=itertools.count(1)), "does not end before"),
        "tokens": (_prepended, "tokens 1,099,511,627,776 are too many"),
        "a million states": (lambda: cm.predict("mlp-mnist", optimizer=states), "1,000,000 are too many"),
        "4,768 layers replayed": (lambda: cm.predict(deep, allocator="cuda").reserved, "too long to replay"),
        "family": (lambda: cm.models(family=3), "family=3"),  # type: ignore[arg-type]
        "break_even": (lambda: cm.break_even("gpt2-small", 1.5, "mlp", for_="seq"), "1.5 is not a cost"),  # type: ignore[arg-type]
        "max_batch": (lambda: cm.max_batch("gpt2-small", memory=2**33, seq=64), ""),
        "explain": (lambda: cm.predict("mlp-mnist").explain(np.ones(3)), "unknown quantity"),  # type: ignore[arg-type]
        "value": (lambda: cm.predict("mlp-mnist").value(np.ones(3)), "unknown quantity"),  # type: ignore[arg-type]
        "sensitivity": (lambda: cm.sensitivity("mlp-mnist", np.ones(3)), "unknown quantity"),  # type: ignore[arg-type]
        "compare": (lambda: cm.compare("mlp-mnist", "vgg16", quantities=3), "quantities=3"),  # type: ignore[arg-type]
        "pareto": (lambda: cm.pareto(cm.sweep("mlp-mnist", batch=[1, 2]), 10**5000, "params"), "is not a text"),  # type: ignore[arg-type]
        "match": (lambda: cm.match("mlp-mnist", "params", 10**5000, by="sizes"), "a number below 10^30"),
        "match by": (lambda: cm.match("mlp-mnist", "params", 10, by=["batch"]), "unknown size"),  # type: ignore[arg-type]
        "a pickle": (pickled, ""),
        "a class of one's own": (plain, ""),
        "another network": (lambda: cm.predict(Odd(sizes=[3, 2])).to_json(), "which no file can name"),
        "a formula": (lambda: cm.compare(cm.MLP(sizes=[3, 2], name=FORMULA), "mlp-mnist").plot("x.png"), ""),
    }


def _store(ground: Ground, change: Callable[[Path], Any], said: str) -> int:
    shutil.copytree(ground.folder / "whole.zarr", "x.zarr")
    change(Path("x.zarr"))
    return _run(("pareto", "x.zarr", *PARETO), said)


def _stores(ground: Ground) -> dict[str, tuple[Callable[[Path], Any], str]]:
    def pickled(store: Path) -> None:
        path = store / "params" / "zarr.json"
        codecs = [{"name": "numcodecs.pickle", "configuration": {}}]
        path.write_text(json.dumps({**json.loads(path.read_text()), "codecs": codecs}))
        (store / "params" / "c" / "0" / "0").write_bytes(pickle.dumps(Touch(ground.touched)))

    def bomb(store: Path) -> None:
        (store / "params" / "c" / "0" / "0").write_bytes(b"\x28\xb5\x2f\xfd\xe0" + (2**34).to_bytes(8, "little"))

    def pipe(store: Path) -> None:
        (store / "params" / "zarr.json").unlink()
        os.mkfifo(store / "params" / "zarr.json")

    return {
        "with a pickle, of version 2": (partial(pickled_in_version_2, ground), "zarr.json"),
        "with a pickle": (pickled, "is stored in a way that no sweep is"),
        "with a bomb": (bomb, "claims to hold 17,179,869,184 bytes"),
        "with a pipe": (pipe, "is no regular file"),
        "that is no JSON": (lambda store: (store / "zarr.json").write_text("{"), "cannot read the sweep"),
    }


def _moving() -> int:
    table = pyarrow.table({"batch": ["\x1b[2J"], "params": [1], "memory.peak": [2]})
    parquet.write_table(table, "x.parquet")
    assert run(["pareto", "x.parquet", *PARETO]) == 0
    parquet.write_table(table.rename_columns(["\x1b[31m", *PARETO]), "x.parquet")
    return _run(("pareto", "x.parquet", *PARETO), "a column is called")


def _without_a_chunk(ground: Ground) -> int:
    shutil.copytree(ground.folder / "whole.zarr", "x.zarr")
    shutil.rmtree("x.zarr/memory.peak/c")
    found = cm.pareto("x.zarr", *PARETO)
    assert found.empty, found
    return 0
