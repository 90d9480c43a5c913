"""How far seconds of published kernels are off: ``python -m tests.benchmarks.bench_kernels``.

By what was measured, its source and machine: the mean error, the mean with its sign, and the share of rows in range.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tape import Tape
from costmodel.hardware.catalogue import load_machine
from costmodel.layers.attention import FusedAttention
from costmodel.performance.constants import Constants, typical
from costmodel.performance.intervals import interval
from costmodel.performance.laws import KernelModel
from costmodel.training.dtypes import BITS
from costmodel.training.precision import PRECISIONS
from costmodel.training.stacks import Stack

ROWS = Path(__file__).with_name("measured_kernels.json")


class Scored(NamedTuple):
    """A measured kernel: predicted over measured seconds, and whether the range has it."""

    ratio: float
    within: bool


def attention_kernels(row: dict[str, Any]) -> tuple[list[Kernel], float]:
    """Kernels of a row of fused attention, and its seconds."""
    batch, heads, tokens, size, causal = (row[name] for name in ("batch", "heads", "tokens", "size", "causal"))
    tape = Tape(training=row["pass"] != "forward", device="gpu", precision=PRECISIONS["bf16"])
    q, k, v = (tape.tensor((batch, heads, tokens, size), requires_grad=True) for _ in range(3))
    seen = tokens * (tokens + 1) // 2 if causal else None
    FusedAttention(seen=seen)(q, k, v)
    [call] = tape.root.calls()
    parts: dict[str, tuple[float, list[Kernel]]] = {
        "forward": (4, [*call.layer.forward_kernels(call)]),
        "backward": (10, [*call.layer.backward_kernels(call)] if tape.training else []),
    }
    taken = [parts[name] for name in parts if row["pass"] in (name, "both")]
    work = sum(of for of, _ in taken) * batch * heads * tokens**2 * size / (2 if causal else 1)
    return [kernel for _, kernels in taken for kernel in kernels], work / row["teraflops"] / 1e12


def product_kernels(row: dict[str, Any]) -> tuple[list[Kernel], float]:
    """The kernel of a row of a matrix product, and its seconds."""
    m, n, k, dtype = (row[name] for name in ("m", "n", "k", "dtype"))
    sizes, wide = Product(row.get("batch", 1), m, n, k), BITS["fp32" if dtype == "tf32" else dtype] / 8
    written = sizes.batch * m * n * max(wide, 2)
    one = Kernel("product", "product", sizes.flops, int(sizes.batch * (m * k + k * n) * wide), int(written),
                 "fp32" if dtype == "tf32" else dtype, 1, sizes)  # fmt: skip
    return [one], row["seconds"] if "seconds" in row else sizes.flops / row["teraflops"] / 1e12


def scored(row: dict[str, Any], kernels: list[Kernel], seconds: float) -> Scored:
    """One row."""
    machine = load_machine(row["machine"])
    how: dict[str, Any] = {"allow_tf32": row.get("dtype") == "tf32"}
    if "kernel" in row:
        how["stack"] = Stack("row", 0.0, attention=row["kernel"])

    def time(constants: Constants) -> Any:
        model = KernelModel(machine, constants, **how)
        return sum(model.kernel_time(kernel) for kernel in kernels)

    range_ = interval(time, machine)
    return Scored(float(time(typical(machine))) / seconds, range_.low <= seconds <= range_.high)


READERS: dict[str, Callable[[dict[str, Any]], tuple[list[Kernel], float]]] = {
    "attention": attention_kernels,
    "products": product_kernels,
}
"""What makes kernels of a row, by what was measured."""


def scores(key: Callable[[str, dict[str, Any]], Any]) -> dict[Any, list[Scored]]:
    """Rows of all kinds, in groups by a key of their kind and themselves."""
    read, groups = json.loads(ROWS.read_text(encoding="utf-8")), {}
    for what, reader in READERS.items():
        for row in read.get(what, ()):
            groups.setdefault(key(what, row), []).append(scored(row, *reader(row)))
    return groups


if __name__ == "__main__":
    print(f"{'kernels, source, machine':90}{'rows':>5}{'error':>8}{'signed':>8}{'in range':>10}")
    groups = scores(lambda what, row: (what, row["source"], row["machine"], row.get("kernel", row.get("dtype"))))
    for names, of in groups.items():
        errors = [step.ratio - 1 for step in of]
        line = f"{len(of):5}{mean(map(abs, errors)):8.1%}{mean(errors):+8.1%}{mean(s.within for s in of):10.0%}"
        print(f"{', '.join(names)[:89]:90}{line}")
    for what in READERS:
        errors = [step.ratio - 1 for names, of in groups.items() if names[0] == what for step in of]
        if errors:
            print(f"{what}: {len(errors)} rows, mean error {mean(map(abs, errors)):.1%}")
