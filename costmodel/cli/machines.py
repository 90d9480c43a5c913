"""``costmodel machines``: the ready machines, found and shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from costmodel.cli.commands import Verbs, argument, epilog, option, verb

if TYPE_CHECKING:
    from costmodel.hardware.machine import Machine


class Machines(Verbs):
    """A group that searches unless a verb is named: ``machines hopper`` is ``machines search hopper``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a command line, with the verb put in that it leaves out."""
        if not args or not (args[0] in self.list_commands(ctx) or args[0] in ctx.help_option_names):
            args = ["search", *args]
        return super().parse_args(ctx, args)


class Listing(NamedTuple):
    """Machines as a table, a line each."""

    machines: list[Machine]

    def to_dict(self) -> list[dict[str, Any]]:
        """Every figure of each, in SI units."""
        return [machine.to_dict() for machine in self.machines]

    def __str__(self) -> str:
        from costmodel.display.sheet import Sheet
        from costmodel.display.table import Table

        header = ("machine", "memory", "bandwidth", "fp32", "16 bit", "TDP", "year", "confirmed")
        notes = (
            "fp32, 16 bit: products [FLOP/s], dense, accumulated in fp32; fp32 without TF32",
            "confirmed: the vendor's sheet of these figures was at hand (part: of some)",
        )
        return Sheet(
            [], [Table(header, [_row(machine) for machine in self.machines], spare=(6, 5))], notes=notes
        ).text()


@verb(
    click.Argument(["words"], nargs=-1, metavar="[SEARCH]..."),
    examples=("machines", "machines hopper", "machines rtx 40 --json"),
)
def search(words: Sequence[str]) -> Listing:
    """The ready machines, or those with each word in a name, or as vendor, architecture, chip or category."""
    from costmodel.hardware.catalogue import machines as ready

    return Listing(ready(" ".join(words) if words else None))


def _row(machine: Machine) -> tuple[str, ...]:
    from costmodel.display.units import show_amount, show_bytes, show_tick

    peaks = machine.peak.given
    fp32 = max((name for name in ("fp32_tensor", "fp32") if name in peaks), key=peaks.__getitem__, default=None)
    half = max((name for name in _HALF if name in peaks), key=peaks.__getitem__, default=None)
    shown = ["memory", "bandwidth", *(f"peak.{name}" for name in (fp32, half) if name)]
    seen = [machine.confirmed(figure) for figure in shown]
    return (
        machine.name,
        show_tick(show_bytes(machine.memory)),
        show_amount(machine.bandwidth, "B/s", 3),
        *("-" if name is None else show_amount(peaks[name], "", 3) for name in (fp32, half)),
        "-" if machine.tdp is None else f"{machine.tdp:g} W",
        str(machine.year or "-"),
        "yes" if all(seen) else "part" if any(seen) else "no",
    )


_HALF = ("bf16", "fp16", "bf16_vector", "fp16_vector")


@verb(
    argument("machine", "A ready machine's name, or the path of a YAML or JSON file."),
    examples=("machines show h100-sxm", "machines show 'NVIDIA A100 80GB PCIe' --json"),
)
def show(machine: str) -> Any:
    """All that is known of a machine, each figure with its source."""
    from costmodel.hardware.catalogue import load_machine

    return load_machine(machine)


@verb(
    argument("machine", "A ready machine's name, or the path of a YAML or JSON file."),
    option(
        "--measured",
        "rows",
        multiple=True,
        required=True,
        metavar="ROW",
        help="A measured step: 'gpt2-small batch=32 seq=512: 0.213 s', or its '1210 samples/s'. May be given again.",
    ),
    option("--software", default="", metavar="TEXT", help="What ran, such as 'PyTorch 2.13, CUDA 13.0'."),
    option("--out", metavar="FILE", help="Write the calibration to FILE.yaml, which --on takes."),
    examples=(
        "machines fit h100-sxm --measured 'gpt2-small batch=32 seq=512: 0.213 s' --out lab.yaml",
        "predict gpt2-medium --batch 8 --seq 1024 --on ./lab.yaml",
    ),
)
def fit(machine: str, rows: Sequence[str], software: str, out: str | None) -> Any:
    """Constants of a machine from measured steps: one number from one step, several from three or more."""
    from costmodel.hardware.catalogue import load_machine
    from costmodel.performance.fitting import fit_machine

    found = fit_machine(load_machine(machine), rows, software=software)
    if out is not None:
        found.save(out)
    return found


machines = Machines(
    "machines",
    {"Commands": ("machines", ("search", "show", "fit"))},
    help="Ready machines, by name, chip or vendor. Without a command the words search.",
    epilog=epilog("machines", "machines hopper", "machines show h100-sxm"),
)
