"""``costmodel models | show | list``."""

from __future__ import annotations

import click

from costmodel.cli.commands import MODEL, Reply, option, public, verb
from costmodel.display.table import wrapped

models = public(
    "models",
    "The ready models, with their parameters and where their numbers come from.",
    option("--family", metavar="NAME", help="Only names that start so, such as llama."),
    option("--min-params", metavar="N", help="Only with at least so many parameters, such as 8e9 or 8B."),
    option("--max-params", metavar="N", help="Only with at most so many parameters, such as 8e9 or 8B."),
    examples=("models", "models --family llama --max-params 8e9", "models --json"),
)


@verb(MODEL, examples=("show gpt2-small > my-model.yaml", "show resnet50 --json"))
def show(model: str) -> Reply:
    """A model's description, which a file can hold: every field that is not at its default."""
    from costmodel.importers.files import describe, to_yaml
    from costmodel.importers.zoo import load

    loaded = load(model)
    return Reply(describe(loaded), to_yaml(loaded).rstrip())


@verb(
    click.Argument(["what"], type=click.Choice(["quantities", "optimizers", "precisions", "settings", "layers"])),
    examples=("list quantities", "list optimizers --json"),
)
def list_(what: str) -> Reply:
    """Names that other verbs take: of quantities, optimizers, precisions, settings, or kinds of layers in files."""
    meanings = _LISTED[what]()
    width = max(map(len, meanings))
    lines = (wrapped(f"{name:{width}}  {meaning}", " " * (width + 2)) for name, meaning in meanings.items())
    return Reply(meanings, "\n".join(lines))


def _quantities() -> dict[str, str]:
    from costmodel.cost.quantities import MEANINGS

    return MEANINGS


def _optimizers() -> dict[str, str]:
    from costmodel.training.optimizers import OPTIMIZERS

    return {name: optimizer.source for name, optimizer in OPTIMIZERS.items()}


def _precisions() -> dict[str, str]:
    from costmodel.training.precision import PRECISIONS

    return {name: precision.source for name, precision in PRECISIONS.items()}


def _settings() -> dict[str, str]:
    from costmodel.training.settings import SETTINGS

    return {name: str(setting) for name, setting in SETTINGS.items()}


def _layers() -> dict[str, str]:
    from costmodel.layers import load_all
    from costmodel.layers.base import KINDS

    load_all()
    return {name: (kind.__doc__ or "").strip().split("\n\n")[0] for name, kind in sorted(KINDS.items())}


_LISTED = {
    "quantities": _quantities,
    "optimizers": _optimizers,
    "precisions": _precisions,
    "settings": _settings,
    "layers": _layers,
}
