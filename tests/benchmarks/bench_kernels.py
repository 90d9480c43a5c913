"""How far seconds of published kernels are off: ``python -m tests.benchmarks.bench_kernels``.

By what was measured, its source and machine: the mean error, the mean with its sign, and the share of rows in range;
the error without the family, with the constants that hold for chips whose family is unknown; and without the source,
where constants that were read from the publication of a row are left out for those of a wider family. Rows that are
`sustained` are of products that ran long enough for the board's limit to set in; all others are tests of milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from costmodel.graph.kernel import Kernel, Product
from costmodel.graph.tape import Tape
from costmodel.hardware.catalogue import load_machine
from costmodel.hardware.machine import Machine
from costmodel.layers.attention import FusedAttention
from costmodel.performance.constants import TABLE, Constants, constant, family, typical
from costmodel.performance.intervals import interval
from costmodel.performance.laws import ADDED, OF_EXPERTS, KernelModel
from costmodel.training.dtypes import BITS
from costmodel.training.precision import PRECISIONS
from costmodel.training.stacks import Stack

ROWS = Path(__file__).with_name("measured_kernels.json")


class Scored(NamedTuple):
    """A measured kernel: predicted over measured seconds, and whether the range has it; the ratio without constants of
    its family, and without those of its source."""

    ratio: float
    within: bool
    no_family: float
    no_source: float


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
    """The kernel of a row of a matrix product, and its seconds. adds: the type of what it adds to, if it does."""
    m, n, k, dtype = (row[name] for name in ("m", "n", "k", "dtype"))
    sizes, wide = Product(row.get("batch", 1), m, n, k), BITS["fp32" if dtype == "tf32" else dtype] / 8
    name, read, written = "product", sizes.batch * (m * k + k * n) * wide, sizes.batch * m * n * max(wide, 2)
    if "adds" in row:
        name, written = f"product {ADDED}", sizes.batch * m * n * BITS[row["adds"]] / 8
        read += written
    one = Kernel(name, "product", sizes.flops, int(read), int(written), "fp32" if dtype == "tf32" else dtype, 1, sizes)
    return [one], row["seconds"] if "seconds" in row else sizes.flops / row["teraflops"] / 1e12


def expert_kernels(row: dict[str, Any]) -> tuple[list[Kernel], float]:
    """Both products of a gated MLP of several experts, and their seconds."""
    experts, width, inner, dtype = (row[name] for name in ("experts", "width", "inner", "dtype"))
    rows = row["tokens"] * row["chosen"] // experts
    kernels = [
        product_kernels({"m": rows, "n": n, "k": k, "dtype": dtype, "batch": experts, "seconds": 1.0})[0][0]
        for n, k in ((2 * inner, width), (width, inner))
    ]
    work = sum(kernel.flops for kernel in kernels)
    return [kernel._replace(name=OF_EXPERTS) for kernel in kernels], work / row["teraflops"] / 1e12


def _publication(source: str) -> str:
    """Who published: a repository, or authors and year, without what of it."""
    return re.split(r",| issue | pull request | \(|:", source)[0]


def without_source(machine: Machine, source: str) -> Constants:
    """Typical constants of a machine, each of the most exact family whose row is not from a publication.

    What only that publication says stays.
    """
    left = {}
    for name, rows in TABLE.items():
        others = (rows[key] for key in family(machine) if key in rows)
        apart = (of for of in others if _publication(source) not in of.source.title)
        left[name] = next(apart, constant(name, machine)).typical
    return Constants(**left)


def scored(row: dict[str, Any], kernels: list[Kernel], seconds: float) -> Scored:
    """One row."""
    machine = load_machine(row["machine"])
    how: dict[str, Any] = {"allow_tf32": row.get("dtype") == "tf32"}
    if "kernel" in row:
        how["stack"] = Stack("row", 0.0, attention=row["kernel"])

    def time(constants: Constants) -> Any:
        if not row.get("sustained"):  # a test of milliseconds
            constants = constants.changed(sustained_watts=1.0)
        model = KernelModel(machine, constants, **how)
        return sum(model.kernel_time(kernel) for kernel in kernels)

    range_ = interval(time, machine)
    general = {name: rows[""].typical for name, rows in TABLE.items() if "" in rows}
    left_out = (typical(machine), typical(machine).changed(**general), without_source(machine, row["source"]))
    usual, no_family, no_source = (float(time(constants)) / seconds for constants in left_out)
    return Scored(usual, range_.low <= seconds <= range_.high, no_family, no_source)


READERS: dict[str, Callable[[dict[str, Any]], tuple[list[Kernel], float]]] = {
    "attention": attention_kernels,
    "products": product_kernels,
    "experts": expert_kernels,
}
"""What makes kernels of a row, by what was measured."""


def scores(key: Callable[[str, dict[str, Any]], Any]) -> dict[Any, list[Scored]]:
    """Rows of all kinds, in groups by a key of their kind and themselves."""
    read, groups = json.loads(ROWS.read_text(encoding="utf-8")), {}
    for what, reader in READERS.items():
        for row in read.get(what, ()):
            groups.setdefault(key(what, row), []).append(scored(row, *reader(row)))
    return groups


def _line(of: list[Scored]) -> str:
    """Of several rows."""
    errors = [s.ratio - 1 for s in of]
    left_out = mean(abs(s.no_family - 1) for s in of), mean(abs(s.no_source - 1) for s in of)
    line = f"{len(of):5}{mean(map(abs, errors)):8.1%}{mean(errors):+8.1%}{mean(s.within for s in of):10.0%}"
    return line + "".join(f"{error:11.1%}" for error in left_out)


if __name__ == "__main__":
    header = f"{'kernels, source, machine':90}{'rows':>5}{'error':>8}{'signed':>8}{'in range':>10}"
    print(f"{header}{'no family':>11}{'no source':>11}")
    groups = scores(lambda what, row: (what, row["source"], row["machine"], row.get("kernel", row.get("dtype"))))
    for names, of in groups.items():
        print(f"{', '.join(names)[:89]:90}{_line(of)}")
    for what in READERS:
        print(f"{what:90}{_line([step for names, of in groups.items() if names[0] == what for step in of])}")
