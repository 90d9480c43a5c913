"""Machines, calibrations, engines, stacks and measured rows, from files, plain data and a shell, damaged in each field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import costmodel as cm
from costmodel.cli import run
from costmodel.performance.calibration import Calibration, measured_step
from tests.hostile.files import Case, shortened
from tests.hostile.ground import MACHINE, OPTIMIZER, Ground

SERVED = ["serve", "llama-3.2-1b", "--on", "h100-sxm", "--input", "8", "--output", "8", "--concurrency", "1"]
KINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "machine": (
        {**MACHINE, "levels": [{"name": "L2", "size": "50 MiB"}], "links": [{"name": "x", "bandwidth": "1 GB/s"}],
         "boost_clock": "1.4 GHz", "tdp": "400 W", "processors": 8, "price": 2.5},
        ["predict", "mlp-mnist", "--on"],
    ),
    "calibration": (
        {"machine": "h100-sxm", "constants": {"product_share": 0.8}, "measured": ["mlp-mnist batch=32: 0.4 s"]},
        ["predict", "mlp-mnist", "--on"],
    ),
    "optimizer": (OPTIMIZER, ["predict", "mlp-mnist", "--optimizer"]),
    "stack": ({"name": "own", "launch": 1e-6, "fuses": True}, ["predict", "mlp-mnist", "--on", "h100-sxm", "--stack"]),
    "engine": ({"name": "own", "step": 1e-3, "chunk": 512, "stack": "eager", "speed": 1.0}, [*SERVED, "--engine"]),
}  # fmt: skip
"""Fields of each, all right, and the command that takes a file of them."""
JSON_VALUES = (
    "NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "9" * 5000, "true", "null", "-1", "0", "1.5", '""', '"5 mHz"',
    '"500 mW"', '"24 Gb"', '"1,5 GB/s"', r'"\ud800"', r'"a\u0000b"', r'"a\nb"', r'"$\\frac{1}{$"', "[]", "{}", "[[[1]]]",
    '["x"]', '{"a": {"b": NaN}}', f'"{"x" * 5000}"', f'"{"9" * 400} GB/s"', '"/dev/zero"', '"1 GiB"',
)  # fmt: skip
"""Values as a file has them: what JSON has no numbers for among them."""
RESULTS = (
    "", "0 s", "nan s", "-1 s", "inf s", "1,5 samples/s", "1,5 s", "5 mHz", "5 Ms", "1 s 2 s", "9" * 400 + " s",
    "9" * 5000, "1e99 s", "1 token/s", "1 image/s", "1 GiB", "1/s", "0 samples/s", "s", ":", "1 s\n", "1 s\0",
)  # fmt: skip
QUESTIONS = (
    "", "mlp-mnist", "mlp-mnist model=x", "mlp-mnist input=3", "mlp-mnist batch=1 batch=2", "mlp-mnist batch=" + "9" * 5000,
    "mlp-mnist batch", "mlp-mnist =1", "mlp-mnist batch=", "mlp-mnist batch=1,2", "mlp-mnist on=h100-sxm", "mlp-mnist on=/",
    "mlp-mnist stack=x", "mlp-mnist stack=1", "mlp-mnist optimizer=/dev/zero", "mlp-mnist allow_tf32=1", "\ud800", "a\0b",
    "mlp-mnist seq=1", "mlp-mnist\0batch=1", "/dev/zero", "..", "mlp-mnist " * 2000, "mlp-mnist batch=1:9",
)  # fmt: skip


def declared(_: Ground) -> Iterator[Case]:
    """All of them."""
    for kind, (fields, words) in KINDS.items():
        for field in (*fields, "zzz"):
            for value in JSON_VALUES:
                text = json.dumps({**fields, field: "@@"}).replace('"@@"', value)
                for suffix in (".json", ".yaml"):
                    yield f"{kind}{suffix} {field} {shortened(value)}", _asked(text, suffix, words)
        whole = json.dumps(fields)
        for name, text in {
            "deep": "[" * 100_000, "deep mappings": '{"a": ' * 50_000, "twice": f'{whole[:-1]}, "name": "x", "name": "y"}}',
            "wide": json.dumps({f"k{n}": 1 for n in range(60_000)}), "marked": f"\ufeff{whole}", "cut": whole[:-3],
        }.items():  # fmt: skip
            for suffix in (".json", ".yaml"):
                yield f"{kind}{suffix} {name}", _asked(text, suffix, words)
    for question in QUESTIONS:
        yield f"row {shortened(question)}", lambda row=f"{question}: 1 s": cm.fit_machine("h100-sxm", [row])
    for result in RESULTS:
        row = f"mlp-mnist batch=8: {result}"
        yield f"row {shortened(result)}", lambda row=row: measured_step(row)
        yield (
            f"machines fit {shortened(result)}",
            lambda row=row: run(["machines", "fit", "h100-sxm", "--measured", row]),
        )
    for seconds in (0.0, -1.0, float("nan"), float("inf"), "1", None, True, 1e300, 1e-300):
        yield (
            f"timer {seconds}",
            lambda s=seconds: cm.calibrate_machine("h100-sxm", lambda _: s, launch=1e-6).save("own.yaml"),  # type: ignore[arg-type]
        )
    yield (
        "a calibration saved over a folder",
        lambda: Calibration(machine="h100-sxm", constants={"conditions": 1.0}).save("."),
    )


def _asked(text: str, suffix: str, words: list[str]) -> Callable[[], Any]:
    def ask() -> int:
        Path(f"own{suffix}").write_bytes(text.encode("utf-8", "surrogatepass"))
        return run([*words, f"./own{suffix}"])

    return ask
