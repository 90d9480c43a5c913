"""The stub of `training/keywords.py`, made of what settings declare: ``python -m tests.training.stub`` writes it."""

from __future__ import annotations

import ast
from pathlib import Path

from costmodel.training import keywords, settings, values

STUB = Path(keywords.__file__).with_suffix(".pyi")
OWN = {
    "GivenSettings": "What a verb takes for each setting, which is more than what `Settings` keeps of it.",
    "SeveralSettings": "What a verb takes for each setting that is answered for one value of it, or for several.",
    "ServedSettings": "Settings of `predict` that serving takes; it gives the others itself.",
}


def written_types(source: str) -> dict[str, str]:
    """The type of what verbs take for each setting, as the source of its declaration writes it."""
    [declaration] = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Settings"
    ]
    types = {}
    for field in declaration.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.annotation, ast.Subscript):
            kept, setting = field.annotation.slice.elts  # type: ignore[attr-defined]
            takes = next((word.value for word in setting.keywords if word.arg == "takes"), kept)
            types[field.target.id] = ast.unparse(takes)  # type: ignore[union-attr]
    return types


def several(kind: str) -> str:
    """The type of one value, or of several; None comes last."""
    one, nothing, _ = kind.rpartition(" | None")
    return f"{one} | Iterable[{kind}] | None" if nothing else f"{kind} | Iterable[{kind}]"


def stub_text(source: str) -> str:
    """The stub for the source of `training/settings.py`."""
    types = written_types(source)
    names = {node.id for kind in types.values() for node in ast.walk(ast.parse(kind)) if isinstance(node, ast.Name)}
    own = sorted({*names, "Over"} & vars(values).keys() - {"Any"})
    others = sorted(names & vars(settings).keys() - {"Any", *own})
    served = [name for name, setting in settings.SETTINGS.items() if setting.served]
    forms = {
        "GivenSettings": types,
        "SeveralSettings": {name: several(kind) for name, kind in types.items()},
        "ServedSettings": {name: types[name] for name in served},
    }
    lines = [
        "# Made by python -m tests.training.stub of the declaration in settings.py.",
        "from collections.abc import Iterable",
        "from typing import Any",
        "",
        "from typing_extensions import TypedDict",
        "",
        *("from costmodel.training.settings import (", *(f"    {name}," for name in others), ")"),
        *("from costmodel.training.values import (", *(f"    {name}," for name in own), ")"),
    ]
    for form, fields in forms.items():
        lines += ["", f"class {form}(TypedDict, total=False):", f'    """{OWN[form]}"""', ""]
        lines += [f"    {name}: {kind}" for name, kind in (fields | {"over": "Over"}).items()]
    lines += ["", "class SettingsAndFields(SeveralSettings, TypedDict, total=False, extra_items=Any):"]
    lines += ['    """The same, and fields of the model (PEP 728)."""']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    STUB.write_text(stub_text(Path(settings.__file__).read_text(encoding="utf-8")), encoding="utf-8")
