"""Hostile results: Parquet files, Zarr stores, baselines, calibrations and predictions, damaged or made to do harm."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

import costmodel as cm
from costmodel.cli import run
from tests.hostile.files import VALUES, Case, mutated, shortened
from tests.hostile.ground import Ground

PARETO = ["params", "memory.peak"]
SWEEP = ["sweep", "mlp-mnist", "--batch", "1:6", "--optimizer", "sgd,adamw", "--quantities", ",".join(PARETO)]


class Touch:
    """Runs a command wherever it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def pickled_in_version_2(ground: Ground, store: Path) -> None:
    """Put in a store's place one of Zarr 2, whose object would run a command where it is unpickled."""
    shutil.rmtree(store)
    (store / "params").mkdir(parents=True)
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C",
             "filters": [{"id": "pickle"}], "compressor": None}  # fmt: skip
    (store / "params" / ".zarray").write_text(json.dumps(array))
    (store / "params" / "0").write_bytes(pickle.dumps(np.array([Touch(ground.touched)], object)))


def lay(ground: Ground) -> None:
    """Lay results on the ground: a sweep as a Zarr store, and a Parquet file of 2·10^7 equal rows."""
    run([*SWEEP, "--out", ground.at("whole.zarr")])
    part = pyarrow.table({name: np.ones(2_000_000, np.int64) for name in ("batch", *PARETO)})
    with parquet.ParquetWriter(ground.at("many.parquet"), part.schema) as writer:
        for _ in range(10):
            writer.write_table(part, row_group_size=2_000_000)


def saved(ground: Ground) -> Iterator[Case]:
    """All of them."""
    yield from _places(ground)
    yield from _parquet()
    yield from _zarr(ground)
    yield from _stored(ground)


def _places(ground: Ground) -> Iterator[Case]:
    """Devices, pipes, links and folders where a result is read or written."""
    for name in ("pipe", "zero", "loop", "link", "folder"):
        for suffix in (".parquet", ".zarr"):
            path = ground.at(f"{name}{suffix}")
            yield f"pareto {name}{suffix}", lambda path=path: run(["pareto", path, *PARETO])
            for more in ([], ["--resume"]):
                yield (
                    f"sweep to {name}{suffix} {more}",
                    lambda path=path, more=more: run([*SWEEP, "--out", path, *more]),
                )
        for suffix in ("", ".json", ".html", ".png"):
            path = ground.at(f"{name}{suffix}")
            for words in (
                ["roofline", "check", "mlp-mnist", "--against", path],
                ["roofline", "check", "mlp-mnist", "--save", path],
                ["roofline", "check", "mlp-mnist", "--out", path],
                ["roofline", "profile", "mlp-mnist", "--save", path],
                ["roofline", "plot", "mlp-mnist", "--out", path],
                ["timeline", "mlp-mnist", "--out", path],
                [*SWEEP, "--out", path],
            ):
                yield f"{' '.join(words[:4])} {name}{suffix}", lambda words=words: run(words)


def _table(rows: int = 20, **columns: Any) -> Any:
    plain = {"batch": range(rows), "params": [1] * rows, "memory.peak": range(rows), "reason": [""] * rows}
    return pyarrow.table({**plain, **columns} if rows else columns)


def _parquet() -> Iterator[Case]:
    def with_file(write: Callable[[], Any], *words: list[str]) -> Callable[[], Any]:
        def ask() -> int:
            write()
            return max(run(each) for each in (words or (["pareto", "x.parquet", *PARETO],)))

        return ask

    def written(table: Any, **options: Any) -> Callable[[], Any]:
        return lambda: parquet.write_table(table, "x.parquet", **options)

    harsh = ["\x1b[31m", "\x9b2J", "\u202ex", "a\nb", "", "x" * 5000, "$(x)", "__class__", "-"]
    for name in harsh:
        yield f"column {shortened(name)}", with_file(written(_table(**{name: range(20)})))
        yield f"label {shortened(name)}", with_file(written(_table(optimizer=[name] * 20)))
        yield (
            f"label in JSON {shortened(name)}",
            with_file(written(_table(optimizer=[name] * 20)), ["pareto", "x.parquet", *PARETO, "--json"]),
        )
    for kind, values in {
        "lists": [[1]] * 20, "structs": [{"a": 1}] * 20, "bytes": [b"x"] * 20, "nulls": [None] * 20,
        "nans": [float("nan")] * 20, "infinities": [float("inf")] * 20, "texts": ["x"] * 20, "truths": [True] * 20,
    }.items():  # fmt: skip
        yield f"axis of {kind}", with_file(written(_table(batch=values)))
        yield f"quantity of {kind}", with_file(written(_table(params=values)))
    dictionary = pyarrow.array(["a"] * 20).dictionary_encode()
    yield "a dictionary", with_file(written(_table(optimizer=dictionary)))
    yield "metadata", with_file(written(_table().replace_schema_metadata({b"pandas": b"{", b"costmodel": b"\xff"})))
    yield "300 columns", with_file(written(_table(**{f"c{n}": range(20) for n in range(300)})))
    yield "no rows", with_file(written(_table().slice(0, 0)))
    yield "no columns", with_file(written(pyarrow.table({})))

    def equal(rows: int, groups: int) -> Callable[[], Any]:
        def write() -> None:
            part = pyarrow.table({name: pyarrow.array(np.ones(rows, np.int64)) for name in ("batch", *PARETO)})
            with parquet.ParquetWriter("x.parquet", part.schema) as writer:
                for _ in range(groups):
                    writer.write_table(part, row_group_size=rows)

        return write

    yield "many equal rows", with_file(equal(2_000_000, 5))
    yield "resume from many equal rows", with_file(equal(2_000_000, 5), [*SWEEP, "--out", "x.parquet", "--resume"])
    yield "a folder", with_file(lambda: Path("x.parquet").mkdir())
    rng = random.Random(3)
    for number in range(60):
        seed = rng.randrange(10**9)

        def damage(seed: int = seed) -> None:
            parquet.write_table(_table(), "x.parquet")
            _spoil(Path("x.parquet"), random.Random(seed))

        yield f"damaged Parquet {number}", with_file(damage)

        def part(seed: int = seed) -> None:
            run([*SWEEP, "--out", "x.parquet"])
            _spoil(Path("x.parquet"), random.Random(seed))

        yield f"damaged sweep {number}", with_file(part, [*SWEEP, "--out", "x.parquet", "--resume"])

        def left(seed: int = seed) -> None:
            run([*SWEEP, "--out", "x.parquet"])
            Path("x.parquet.parts").mkdir()
            Path("x.parquet").rename("x.parquet.parts/part-0000000.parquet")
            if seed % 3:
                _spoil(Path("x.parquet.parts/part-0000000.parquet"), random.Random(seed))

        yield f"damaged parts {number}", with_file(left, [*SWEEP, "--out", "x.parquet", "--resume"])


def _spoil(path: Path, rng: random.Random) -> None:
    """Damage a file somewhere."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(content)) if content else 0
        kind = rng.randrange(4)
        if kind == 0:
            del content[at:]
        elif kind == 1 and content:
            content[at] = rng.randrange(256)
        elif kind == 2:
            content[at : at + 8] = rng.randbytes(8)
        else:
            content[-12:-8] = rng.randbytes(4)
    path.write_bytes(bytes(content))


def _zarr(ground: Ground) -> Iterator[Case]:
    """Stores with other codecs, layouts and sizes than a sweep has, and with files that are gone or damaged."""
    resume = [*SWEEP, "--out", "x.zarr", "--resume"]

    def with_store(change: Callable[[Path], Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
        for name, words in (("read", ["pareto", "x.zarr", *PARETO]), ("resumed", resume)):

            def ask(words: list[str] = words) -> int:
                store = Path("x.zarr")
                shutil.copytree(ground.folder / "whole.zarr", store)
                change(store)
                return run(words)

            yield name, ask

    def edited(array: str, **changes: Any) -> Callable[[Path], None]:
        def change(store: Path) -> None:
            path = store / array / "zarr.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))

        return change

    def replaced(file: str, content: bytes) -> Callable[[Path], Any]:
        return lambda store: (store / file).write_bytes(content)

    def pickled(name: str, configuration: Any) -> Callable[[Path], None]:
        def change(store: Path) -> None:
            edited("params", codecs=[{"name": name, "configuration": configuration}])(store)
            (store / "params" / "c" / "0" / "0").write_bytes(pickle.dumps(Touch(ground.touched)))

        return change

    little = {"name": "bytes", "configuration": {"endian": "little"}}
    zstd = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
    changes: dict[str, Callable[[Path], Any]] = {"version 2 with a pickle": partial(pickled_in_version_2, ground)}
    for codec in (
        "pickle",
        "numcodecs.pickle",
        "numcodecs.json2",
        "gzip",
        "blosc",
        "crc32c",
        "transpose",
        "sharding_indexed",
    ):
        changes[f"codec {codec}"] = pickled(codec, {"protocol": 5})
    for codecs in (
        [],
        [little],
        [zstd, little],
        [little, zstd, zstd],
        [little, {"name": "zstd"}],
        "zstd",
        None,
        {},
        [1, 2],
    ):
        changes[f"codecs {shortened(codecs)}"] = edited("params", codecs=codecs)
    for field in (
        "shape",
        "chunk_grid",
        "data_type",
        "dimension_names",
        "chunk_key_encoding",
        "zarr_format",
        "node_type",
    ):
        for value in (
            None,
            0,
            -1,
            [],
            {},
            "x",
            [2**39, 2**39],
            [10**6, 10**6],
            [1.5],
            "|O",
            ["\x1b"],
            ["a", "a"],
            True,
        ):
            changes[f"{field} {shortened(value)}"] = edited("params", **{field: value})
    changes["another key"] = edited("params", must_understand=True)
    changes["transformers"] = edited("params", storage_transformers=[{"name": "x"}])
    for shape in ([2**39, 2], [10**5, 10**5], [6, 2]):
        grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
        changes[f"grid {shape}"] = lambda store, shape=shape, grid=grid: [
            edited(name, shape=shape, chunk_grid=grid)(store) for name in PARETO
        ]
    bomb = b"\x28\xb5\x2f\xfd\xe0" + (2**34).to_bytes(8, "little")
    for file in ("params/c/0/0", "memory.peak/c/0/0", "batch/c/0", "optimizer/c/0", "zarr.json", "params/zarr.json"):
        for name, content in {
            "empty": b"", "zeros": bytes(100), "bomb": bomb, "long": bytes(2**21), "deep": b"[" * 10**6, "list": b"[]",
        }.items():  # fmt: skip
            changes[f"{name} {file}"] = replaced(file, content)
        changes[f"no {file}"] = lambda store, file=file: (store / file).unlink()
        changes[f"folder {file}"] = lambda store, file=file: ((store / file).unlink(), (store / file).mkdir())
        changes[f"pipe {file}"] = lambda store, file=file: ((store / file).unlink(), os.mkfifo(store / file))
        changes[f"zero {file}"] = lambda store, file=file: (
            (store / file).unlink(),
            (store / file).symlink_to("/dev/zero"),
        )
        changes[f"link {file}"] = lambda store, file=file: (
            (store / file).unlink(),
            (store / file).symlink_to(ground.canary),
        )
    changes["a chunk beyond"] = lambda store: (store / "params/c/9").mkdir()
    changes["a variable"] = lambda store: shutil.copytree(store / "params", store / "\x1b[31m")
    rng = random.Random(4)
    for number in range(40):
        file = rng.choice(("params/c/0/0", "optimizer/c/0", "batch/c/0", "zarr.json", "params/zarr.json"))
        changes[f"damaged {file} {number}"] = lambda store, file=file, seed=number: _spoil(
            store / file, random.Random(seed)
        )
    for name, change in changes.items():
        for how, case in with_store(change):
            yield f"Zarr {how}: {name}", case


def _stored(ground: Ground) -> Iterator[Case]:
    """Baselines, calibrations and predictions."""
    prediction = cm.predict("mlp-mnist").to_dict()
    machine = {"cpu": "x", "cores": 1, "caches": [["L1", 1]], "numpy": "2", "blas": "b", "blas_version": "1",
               "blas_kernels": "k", "threads": 1}  # fmt: skip
    baseline = {"format": 2, "question": "q", "machine": machine, "created": "2026-01-01T00:00:00+00:00",
                "statistic": "quartile", "samples": {"layer": [1e-3, 2e-3]}}  # fmt: skip
    rng = random.Random(5)

    def held(data: Any) -> Callable[[], Any]:
        def ask() -> int:
            Path("base.json").write_text(data if isinstance(data, str) else json.dumps(data))
            return run(["roofline", "check", "mlp-mnist", "--against", "base.json"])

        return ask

    for number in range(40):
        data = mutated(prediction, rng)
        yield f"prediction {number}", lambda data=data: cm.Prediction.from_dict(data)
        yield f"baseline {number}", held(mutated(baseline, rng))
    for value in VALUES:
        yield f"prediction from {shortened(value)}", lambda value=value: cm.Prediction.from_json(json.dumps(value))
    for name, text in {
        "deep": "[" * 10**6, "many": '{"samples": {"x": [' + "1," * 10**6 + "1]}}", "nan": '{"format": NaN}',
        "huge": "1" * 10**7, "long": " " * 20_000_000, "name": json.dumps({**baseline, "samples": {"\x1b[31m": ["x"]}}),
    }.items():  # fmt: skip
        yield f"baseline {name}", held(text)

        def calibrated(text: str = text) -> Any:
            from costmodel.roofline.host import this_machine
            from costmodel.roofline.kept import read

            Path("c.json").write_text(text)
            return read(Path("c.json"), this_machine())

        yield f"calibration {name}", calibrated
