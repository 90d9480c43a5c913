"""A site about ready models: a page for each and one that leads to them, as files that can be put anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from costmodel.display.answer import Data
from costmodel.display.units import show_count
from costmodel.documents.files import check_writable, write
from costmodel.errors import CostModelError, shown, unknown
from costmodel.explorer.page import document, explore
from costmodel.importers.zoo import models

BODY = """<header>
  <h1>What models cost</h1>
  <p id="subtitle">A page for each: sizes and settings to turn, and what they cost at once.</p>
</header>
<main class="list">
<table>
<thead><tr><th>model</th><th class="word">kind</th><th>parameters</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</main>"""


@dataclass(frozen=True, repr=False)
class Site(Data):
    """The files of a site. pages: the size of each [bytes], by the model's name. refused: why others have none."""

    folder: str
    pages: Mapping[str, int]
    refused: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"folder": self.folder, "pages": dict(self.pages), "refused": dict(self.refused)}

    def __str__(self) -> str:
        lines = [f"{self.folder}: index.html and {len(self.pages):,} pages, {sum(self.pages.values()):,} bytes"]
        return "\n".join([*lines, *(f"  {name} has no page: {why}" for name, why in self.refused.items())])


def explore_ready(
    folder: str | os.PathLike[str],
    names: Sequence[str] | None = None,
    *,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Site:
    """A page of each ready model (of `names` alone if they are given), and `index.html`, written to a folder.

    A page is written once it is made, so that what there is stays if the work is cut off. progress: told how many
    models are done, and of how many. All else is as of `explore`. Raises CostModelError where nothing can be written,
    and UnknownNameError.
    """
    ready = {entry.name: entry for entry in models()}
    for name in names or ():
        if name not in ready:
            raise unknown("ready model", name, ready)
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CostModelError(f"cannot write to {shown(str(place))}: {error.strerror or error}") from None
    check_writable(place / "index.html")
    entries = [entry for entry in ready.values() if names is None or entry.name in names]
    pages: dict[str, int] = {}
    refused: dict[str, str] = {}
    rows: list[str] = []
    for done, entry in enumerate(entries, 1):
        try:
            pages[entry.name] = explore(
                entry.name, out=place / f"{entry.name}.html", executor=executor, **settings
            ).bytes
        except CostModelError as error:
            refused[entry.name] = str(error)
        name = escape(entry.name)
        link = f'<a href="{name}.html">{name}</a>' if entry.name in pages else f"{name}: {escape(refused[entry.name])}"
        kind = f'<td class="word">{entry.architecture}</td>'
        rows.append(f"<tr><td>{link}</td>{kind}<td>{show_count(entry.params)}</td></tr>")
        if progress:
            progress(done, len(entries))
    if not pages:
        raise CostModelError(next(iter(refused.values()), "there is no such ready model"))
    write(document(BODY.format(rows="\n".join(rows))), place / "index.html")
    return Site(str(place), pages, refused)
