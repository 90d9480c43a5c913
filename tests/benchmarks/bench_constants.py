"""The page of constants in the documentation: ``python -m tests.benchmarks.bench_constants > CONSTANTS.md``.

A row for each constant and family: its range, its source, and how far it moves a step at most (of `STEPS`, whose
machines are of all families): half of the seconds at its slower end over those at its faster one, less one.
"""

from __future__ import annotations

from math import exp
from typing import Any

import costmodel as cm
from costmodel.performance.constants import TABLE, UNITS, ConstantRange, family

STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resnet50", {"batch": 64, "precision": "fp16-autocast", "optimizer": "momentum"}),
    ("efficientnet_b0", {"batch": 64, "optimizer": "momentum"}),
    ("gpt2-small", {"batch": 8, "seq": 512, "precision": "bf16-autocast", "attention": "flash"}),
    ("bert-base", {"batch": 8, "seq": 128}),
    ("llama-3.1-8b", {"mode": "decode", "batch": 1, "past": 1024, "precision": "int4", "attention": "flash"}),
    ("llama-3.1-8b", {"mode": "decode", "batch": 64, "past": 1024, "precision": "bf16", "attention": "flash"}),
)
MACHINES = (
    *("h100-sxm", "a100-sxm-80gb", "rtx-3090", "rtx-4090", "rtx-5090", "b200-sxm", "v100-sxm2-16gb", "t4", "l4"),
    *("mi300x", "mi250x", "tpu-v5p", "gaudi2", "m2-max", "xeon-8480", "gtx-1080-ti"),
)
HEAD = """# Constants of seconds

Every constant of the laws of kernels and collectives: what it is, the interval that holds about four of five machines
and libraries of its family, its source, and how far it moves a step at most. A family is a generation of chips, those
for graphics apart, a vendor or a category; "all" holds where nothing more exact is known. No constant is fitted to the
time of a model. **Not at hand**: the source was not at hand when the value was written down, or is general knowledge;
where such a constant moves a step by more than 3 %, no public measurement of kernels has taken its place so far, and
`machines fit` or `machines calibrate` closes its range on a machine of your own.

Written by `python -m tests.benchmarks.bench_constants`.
"""


def moves() -> dict[tuple[str, str], float]:
    """How far each constant, by the family whose range holds, moves one of the steps at most."""
    most: dict[tuple[str, str], float] = {}
    for machine in map(cm.load_machine, MACHINES):
        for model, settings in STEPS:
            for stack in ("eager", "compiled"):
                try:
                    effects = cm.predict(model, **settings).on(machine, stack=stack).interval.effects
                except cm.CostModelError:
                    continue
                for effect in effects:
                    rows = TABLE[effect.name]
                    key = effect.name, next(key for key in family(machine) if key in rows)
                    most[key] = max(most.get(key, 0.0), exp(effect.width / 2) - 1)
    return most


def row_of(name: str, of: str, values: ConstantRange) -> str:
    """What the page says of a constant of a family, but for what it moves."""
    source = values.source.title + ("" if values.source.confirmed else " (not at hand)")
    cells = (of or "all", f"{values.low:.4g}", f"{values.typical:.4g}", f"{values.high:.4g}", source, values.evidence)
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def page() -> str:
    """The whole page."""
    widths, lines = moves(), [HEAD]
    for name, families in TABLE.items():
        lines += [f"## `{name}`", "", f"{UNITS[name]}.", ""]
        lines += ["| family | low | typical | high | source | evidence | moves |", "|---|---|---|---|---|---|---|"]
        for of, values in families.items():
            width = widths.get((name, of))
            lines.append(f"{row_of(name, of, values)} {'-' if width is None else f'±{width:.0%}'} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
