"""Templates of a model file's section ``define``, whose layers' names are checked even where they are not used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from costmodel.architectures.blocks import COMPOSITES
from costmodel.errors import SpecError, unknown
from costmodel.layers import load_all
from costmodel.training.fields import check_names, show

DEEPEST = 50
"""Nesting beyond this is refused."""


class Template(NamedTuple):
    """A definition: names of its fields, the items that they go into, and the definitions before it."""

    takes: tuple[str, ...]
    blocks: list[Any]
    earlier: Mapping[str, Template]


def read_templates(define: Any) -> dict[str, Template]:
    """The section `define`. Raises SpecError or UnknownNameError."""
    templates: dict[str, Template] = {}
    if not isinstance(define, Mapping):
        raise SpecError(f"define: {show(define)} is not a mapping from names to templates")
    for name, body in define.items():
        where = f"define.{name}"
        if not isinstance(name, str) or not name.isidentifier():
            raise SpecError(f"define: {show(name)} is not a name: use letters, digits and underscores")
        if name in item_names(()):
            raise SpecError(f"{where}: there is a layer kind of that name; choose another")
        if not isinstance(body, Mapping) or not {"blocks"} <= {*body} <= {"takes", "blocks"}:
            raise SpecError(
                f"{where}: a template is a mapping with takes (a list of names) and blocks, not {show(body)}"
            )
        takes = body.get("takes", [])
        if not isinstance(takes, list) or not all(isinstance(t, str) and t.isidentifier() for t in takes):
            raise SpecError(f"{where}.takes: {show(takes)} is not a list of names")
        _check_items(body["blocks"], f"{where}.blocks", templates, 0)
        templates[name] = Template(tuple(takes), body["blocks"], dict(templates))
    return templates


def item_names(templates: Collection[str]) -> set[str]:
    """Everything that an item can be called."""
    return {name for name, kind in load_all().items() if kind.in_lists} | {*COMPOSITES, *templates}


def _check_items(items: Any, where: str, templates: Mapping[str, Template], depth: int) -> None:
    """Raise an error for an item of a name that is not known; what else is wrong shows when the template is used."""
    if depth > DEEPEST:
        raise SpecError(f"{where[:200]}...: the description is nested more than {DEEPEST} deep")
    for n, item in enumerate(items if isinstance(items, list | tuple) else ()):
        name, given = next(iter(item.items())) if isinstance(item, Mapping) and len(item) == 1 else (item, {})
        if not isinstance(name, str) or name.startswith("$"):
            continue
        place = f"{where}[{n}].{name}"
        if name not in (known := item_names(templates)):
            raise unknown(f"layer at {place}:", name, known)
        if name not in COMPOSITES:
            if name not in templates and isinstance(given, Mapping):
                check_names(load_all()[name], given, place)
            continue
        for field, inner in _lists_in(given):
            _check_items(inner, f"{place}{field}", templates, depth + 1)


def _lists_in(given: Any) -> Iterator[tuple[str, Any]]:
    """Lists of items within a composite, each with its place there."""
    if not isinstance(given, Mapping):
        yield "", given
        return
    for field in ("blocks", "body", "projection"):
        if field in given:
            yield f".{field}", given[field]
    paths = given.get("paths")
    for n, path in enumerate(paths if isinstance(paths, list | tuple) else ()):
        yield f".paths[{n}]", path
