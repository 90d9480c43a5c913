"""``costmodel models | show``."""

from __future__ import annotations

from costmodel.cli.commands import MODEL, Shown, option, verb


@verb(
    option("--family", metavar="NAME", help="Only names that start so, such as llama."),
    option("--min-params", metavar="N", help="Only with at least so many parameters, such as 8e9 or 8B."),
    option("--max-params", metavar="N", help="Only with at most so many parameters, such as 8e9 or 8B."),
    examples=("models", "models --family llama --max-params 8e9", "models --json"),
)
def models(family: str | None, min_params: str | None, max_params: str | None) -> Shown:
    """The ready models, with their parameters and where their numbers come from."""
    from textwrap import shorten

    from costmodel.display.table import Table
    from costmodel.importers.zoo import models as entries

    found = entries(family, min_params=min_params, max_params=max_params)
    fields = ("name", "architecture", "params", "notes")
    data = [{field: getattr(entry, field) for field in fields} for entry in found]
    rows = [(e.name, e.architecture, f"{e.params:,}", shorten(e.notes, 60, placeholder=" ...")) for e in found]
    return Shown(data, Table(("model", "architecture", "params", "source"), rows, words=frozenset({0, 1, 3})).text())


@verb(MODEL, examples=("show gpt2-small > my-model.yaml", "show resnet50 --json"))
def show(model: str) -> Shown:
    """A model's description, which a file can hold: every field that is not at its default."""
    from costmodel.importers.files import describe, to_yaml
    from costmodel.importers.zoo import load

    loaded = load(model)
    return Shown(describe(loaded), to_yaml(loaded).rstrip())
