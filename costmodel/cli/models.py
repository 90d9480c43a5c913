"""``costmodel models | show | list``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from costmodel.cli.commands import MODEL, Reply, argument, option, public, verb
from costmodel.cli.options import CHANGED
from costmodel.display.table import page, wrapped
from costmodel.errors import unknown
from costmodel.training.declaration import Declaration

models = public(
    "models",
    "The ready models, with their parameters and where their numbers come from.",
    option("--family", metavar="NAME", help="Only names that start so, such as llama."),
    option("--min-params", metavar="N", help="Only with at least so many parameters, such as 8e9 or 8B."),
    option("--max-params", metavar="N", help="Only with at most so many parameters, such as 8e9 or 8B."),
    examples=("models", "models --family llama --max-params 8e9", "models --json"),
)


@verb(
    MODEL,
    CHANGED,
    examples=(
        "show gpt2-small > my-model.yaml",
        "show gpt2-small --over layers=24 > my-model.yaml",
        "show resnet50 --json",
    ),
)
def show(model: str, settings: dict[str, Any]) -> Reply:
    """A model's description, which a file can hold: every field that is not at its default."""
    from costmodel.importers.files import describe, to_yaml
    from costmodel.importers.zoo import load

    loaded = load(model, over=settings.get("over"))
    return Reply(describe(loaded), to_yaml(loaded, (page().columns or 130) - LONGEST_WORD).rstrip())


LONGEST_WORD = 20
"""Of a note, by which a line of YAML may pass its width."""


NAMED = {
    "quantities": ("costmodel.cost.quantities", "MEANINGS"),
    "optimizers": ("costmodel.training.optimizers", "OPTIMIZERS"),
    "precisions": ("costmodel.training.precision", "PRECISIONS"),
    "stacks": ("costmodel.training.stacks", "STACKS"),
    "engines": ("costmodel.training.engines", "ENGINES"),
    "settings": ("costmodel.training.settings", "SETTINGS"),
    "layers": ("costmodel.layers.base", "KINDS"),
}
"""Where what has a name is, by it."""


@verb(
    argument("what", f"One of {', '.join(NAMED)}."),
    examples=("list quantities", "list optimizers --json"),
)
def list_(what: str) -> Reply:
    """Names that other verbs take: of quantities, of settings and of what they name, of kinds of layers in files."""
    from costmodel.layers import load_all

    if what not in NAMED:
        raise unknown("list", what, NAMED)
    if what == "layers":
        load_all()
    module, table = NAMED[what]
    members = vars(import_module(module))[table]
    meanings = {name: _meaning(members[name]) for name in (sorted(members) if what == "layers" else members)}
    width = max(map(len, meanings))
    lines = (wrapped(f"{name:{width}}  {meaning}", " " * (width + 2)) for name, meaning in meanings.items())
    return Reply(meanings, "\n".join(lines))


def _meaning(member: Any) -> str:
    """The description of a kind, the source of a declaration, or the text of a setting or a quantity."""
    if isinstance(member, type):
        return (member.__doc__ or "").strip().split("\n\n")[0]
    return member.source if isinstance(member, Declaration) else str(member)
