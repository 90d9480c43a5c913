"""How the program and what its formulas are from are cited, in BibTeX: of the program what CITATION.cff says."""

from __future__ import annotations

import os
from collections.abc import Mapping

from costmodel.documents.document import parse
from costmodel.documents.files import PACKAGE

_SPECIAL = {c: rf"\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"}
"""What LaTeX reads as more than a character."""


def latex_text(text: str) -> str:
    """Words as LaTeX sets them, no command among them."""
    return "".join(_SPECIAL.get(character, character) for character in text)


def entry(kind: str, key: str, fields: Mapping[str, str]) -> str:
    """An entry of BibTeX, a line for each field."""
    lines = [f"  {name} = {{{latex_text(value)}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


def software(note: str = "") -> str:
    """The program's entry; note: which of its answers is cited."""
    # A wheel has the file in the package; a checkout and an editable install have it beside it.
    homes = (os.path.join(home, "CITATION.cff") for home in (PACKAGE, os.path.dirname(PACKAGE)))
    path = next(filter(os.path.exists, homes))
    with open(path, encoding="utf-8") as file:
        said = parse(file.read(), path).data
    authors = " and ".join(
        f"{{{author['name']}}}" if "name" in author else _person(author) for author in said["authors"]
    )
    fields = {
        "title": said["title"],
        "version": str(said["version"]),
        "url": said.get("repository-code", ""),
        "note": note,
    }
    author = f"  author = {{{authors}}},"
    head, *rest = entry("software", "costmodel", fields).split("\n")
    return "\n".join([head, author, *rest])


def _person(author: Mapping[str, str]) -> str:
    return f"{author['family-names']}, {author['given-names']}"
