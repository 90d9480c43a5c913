"""Write the notebooks as students get them, without outputs and solutions: ``python notebooks/students.py FOLDER``.

Answers are checked by the notebooks as they are committed: put a student's cells of answers in place of theirs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat

HERE = Path(__file__).parent
SOLUTIONS = "## Solutions"
OF_SOLUTIONS = (", with\nsolutions that check yours", ", then run the solutions")
"""What the text of notebooks says of them."""
READ = ("hosts.json", "pictures.mplstyle")
"""Files that notebooks read."""


def main() -> int:
    """Write all notebooks into the folder that the command line names; the exit code."""
    match sys.argv[1:]:
        case [folder]:
            target = Path(folder)
        case _:
            print("usage: python notebooks/students.py FOLDER", file=sys.stderr)
            return 2
    target.mkdir(parents=True, exist_ok=True)
    for name, notebook in handouts():
        nbformat.write(notebook, target / f"{name}.ipynb")
    for name in READ:
        shutil.copy(HERE / name, target)
    return 0


def handouts() -> Iterator[tuple[str, Any]]:
    """The name of each notebook, and what students get of it."""
    for script in sorted(HERE.glob("[0-9]*-*.py")):
        notebook = jupytext.read(script)
        headings = [cell.source.partition("\n")[0] for cell in notebook.cells]
        notebook.cells = notebook.cells[: headings.index(SOLUTIONS)]
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"
            for words in OF_SOLUTIONS:
                cell.source = cell.source.replace(words, "")
        notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        yield script.stem, notebook


if __name__ == "__main__":
    sys.exit(main())
