"""``costmodel machines``: the ready machines, by search or by name, and constants of one that is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.commands import Verbs, argument, epilog, option, public, verb, writable
from costmodel.training.setting import from_text

if TYPE_CHECKING:
    from costmodel.hardware.catalogue import Machines


class Searching(Verbs):
    """A group that searches unless a verb is named: ``machines hopper`` is ``machines search hopper``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a command line, with the verb put in that it leaves out."""
        if not args or not (args[0] in self.list_commands(ctx) or args[0] in ctx.help_option_names):
            args = ["search", *args]
        return super().parse_args(ctx, args)


@verb(
    click.Argument(["words"], nargs=-1, metavar="[SEARCH]..."),
    examples=("machines", "machines hopper", "machines rtx 40 --json"),
)
def search(words: Sequence[str]) -> Machines:
    """The ready machines, or those with each word in a name, or as vendor, architecture, chip or category."""
    from costmodel.hardware.catalogue import machines as ready

    return ready(" ".join(words) if words else None)


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
        help="A measured step: 'gpt2-small batch=32 seq=512: 0.213 s', or its '1210 samples/s'; or a collective: "
        "'all-reduce 64 MiB on 8: 0.42 ms'. May be given again.",
    ),
    option("--software", default="", metavar="TEXT", help="What ran, such as 'PyTorch 2.13, CUDA 13.0'."),
    option("--out", metavar="FILE", callback=writable, help="Write the calibration to FILE.yaml, which --on takes."),
    examples=(
        "machines fit h100-sxm --measured 'gpt2-small batch=32 seq=512: 0.213 s' --out lab.yaml",
        "predict gpt2-medium --batch 8 --seq 1024 --on ./lab.yaml",
    ),
)
def fit(machine: str, rows: Sequence[str], software: str, out: str | None) -> Any:
    """Constants of a machine from measured steps: one number from one step, several from three or more.

    From collectives a factor for each link and number of devices.
    """
    from costmodel.performance.fitting import fit_machine

    fitted = fit_machine(machine, rows, software=software)
    if out is not None:
        fitted.save(out)
    return fitted


@verb(
    click.Argument(["machine"], required=False),
    option("--out", metavar="FILE", callback=writable, help="Write the calibration to FILE.yaml, which --on takes."),
    examples=("machines calibrate --out lab.yaml", "machines calibrate h100-sxm --json"),
)
def calibrate(machine: str | None, out: str | None) -> Any:
    """Constants of a machine from kernels timed on the GPU at hand with PyTorch, in under a minute.

    MACHINE is the GPU's own name unless given.
    """
    from costmodel.performance.probing import calibrate_machine, device_name

    measurement = calibrate_machine(machine or device_name())
    if out is not None:
        measurement.save(out)
    return measurement


@verb(
    click.Argument(["name"], required=False),
    examples=("clusters", "clusters dgx-h100", "clusters h100-sxm --json"),
)
def clusters(name: str | None) -> Any:
    """The ready clusters; with NAME all that is known of one, each figure with its source.

    NAME is a ready cluster or machine, or the path of a YAML or JSON file of one.
    """
    from costmodel.hardware.cluster import clusters as ready
    from costmodel.hardware.cluster import load_cluster

    return ready() if name is None else load_cluster(name)


machines = Searching(
    "machines",
    {"Commands": ("machines", ("search", "show", "fit", "calibrate"))},
    help="Ready machines, by name, chip or vendor. Without a command the words search.",
    epilog=epilog("machines", "machines hopper", "machines show h100-sxm"),
)


energy = public(
    "energy",
    "Energy of devices that run for so many hours, without a question of what they run.",
    option("--hours", type=float, metavar="HOURS", required=True, help="That all of them run."),
    option(
        "--watts",
        "--power",
        "watts",
        metavar="WATTS",
        required=True,
        callback=lambda _, __, text: from_text(text),
        help="Of one device, such as 330 or '330 W'.",
    ),
    option("--pue", type=float, metavar="RATIO", required=True, help="What the data centre draws over its devices."),
    option("--devices", type=int, metavar="N", default=1, help="That run side by side."),
    option("--intensity", metavar="INTENSITY", help="Such as '400 g/kWh': the answer is then the carbon."),
    examples=(
        "energy --hours 355.2 --watts 330 --devices 10000 --pue 1.1",
        "energy --hours 24 --watts '700 W' --devices 8 --pue 1.2 --intensity '400 g/kWh'",
    ),
)
