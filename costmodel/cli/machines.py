"""``costmodel machines``: the ready machines, found and shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.commands import Verbs, argument, epilog, verb

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


machines = Searching(
    "machines",
    {"Commands": ("machines", ("search", "show"))},
    help="Ready machines, by name, chip or vendor. Without a command the words search.",
    epilog=epilog("machines", "machines hopper", "machines show h100-sxm"),
)
