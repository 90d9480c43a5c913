"""Run every notebook anew and hold what is committed against it; with --write, commit what the run gave.

A notebook is a pair: the percent script is its source, the .ipynb the same cells with their outputs. What the second
holds is what the first gives: text and formulas to the letter, of pictures that there is one. A notebook with a clock
in it (``measured: true`` in its header) gives other numbers each time, and only has to run. Sliders need a kernel: what
is committed in their place is what they show where they stand at first. Every solution has to stop at a wrong answer.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbclient.output_widget import OutputWidget

HERE = Path(__file__).parent
COMPARED = ("text/latex", "text/markdown", "text/plain")
"""What two runs of one cell have alike; pictures differ by the version of what draws them."""
SLIDERS = "application/vnd.jupyter.widget-view+json"
SECONDS = 300
"""The longest that one cell may take."""
WRONG_ANSWER = """
class WrongAnswer(float):
    "A number, and a function that gives it."

    def __call__(self, *_):
        return float(self)


{answer} = WrongAnswer(-1.5)
try:
    exec({solution!r})
except Exception:
    {answer} = None
else:
    raise AssertionError("the solution takes a wrong answer to {answer}")
"""


def main() -> int:
    """Run what the command line asks for; the exit code."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts to run (default: all)")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    asked = parser.parse_args()
    wrong = 0
    for script in [HERE / name for name in asked.names] or sorted(HERE.glob("[0-9]*-*.py")):
        began = perf_counter()
        problems = list(_checked(script, asked.write))
        wrong += len(problems)
        print(f"{script.name}: {perf_counter() - began:.0f} s", *problems, sep="\n  ", flush=True)
    return 1 if wrong else 0


def _checked(script: Path, write: bool) -> Iterator[str]:
    """Run one notebook, store it if asked, and say what is wrong."""
    source, stored = jupytext.read(script), script.with_suffix(".ipynb")
    try:
        ran = _ran(source)
    except CellExecutionError as error:
        yield f"fails: {error}"
        return
    if failing := list(_failing(ran)):
        yield from failing
        return
    yield from _private(ran)
    if write:
        nbformat.write(ran, stored)
        return
    if not stored.exists():
        yield f"{stored.name} is missing: run notebooks/execute.py --write"
        return
    committed = nbformat.read(stored, as_version=4)
    yield from _private(committed)
    yield from _differences(committed, ran)


def _ran(notebook: Any) -> Any:
    """The notebook with its outputs, and nothing that says when or where it was run."""
    own, wrong = len(notebook.cells), list(_wrong_answers(notebook))
    notebook.cells += wrong
    client = NotebookClient(notebook, timeout=SECONDS, record_timing=False, coalesce_streams=True)
    client.resources = {"metadata": {"path": str(HERE)}}
    client.widget_registry["@jupyter-widgets/output"]["OutputModel"] = _BelowSliders
    done = client.execute()
    del done.cells[own:]
    for number, cell in enumerate(done.cells):
        cell.id = f"cell-{number}"  # scripts have none, and those drawn at random would change with every run
        if "outputs" in cell:
            cell.outputs = [seen for output in cell.outputs for seen in _without_kernel(output, client.widget_state)]
    measured = done.metadata.get("measured", False)
    done.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    if measured:
        done.metadata["measured"] = True
    return done


def _wrong_answers(notebook: Any) -> Iterator[Any]:
    """For each solution a cell that fails if the solution takes a wrong answer."""
    for cell in notebook.cells:
        if "hide-cell" in cell.metadata.get("tags", ()):
            answer = re.search(r"\banswer_\d+\b", cell.source)
            assert answer, cell.source
            yield nbformat.v4.new_code_cell(WRONG_ANSWER.format(answer=answer[0], solution=cell.source))


class _BelowSliders(OutputWidget):
    """What stands below sliders, held here alone."""

    def sync_state(self) -> None:
        """Tell the kernel nothing: what is sent while its answer is awaited on the same socket can hide that answer,
        and the cell then waits for its whole time (https://github.com/jupyter/nbclient/issues/312)."""


def _without_kernel(output: Any, widgets: dict[str, Any]) -> Iterator[Any]:
    """What a page without a kernel shows for an output: itself, or for sliders what stands below them."""
    view = output.get("data", {}).get(SLIDERS)
    if view is None:
        yield output
        return
    waiting = [view["model_id"]]
    while waiting:
        widget = widgets[waiting.pop(0)]
        yield from widget.get("outputs", ())
        waiting += [child.removeprefix("IPY_MODEL_") for child in widget.get("children", ())]


def _failing(notebook: Any) -> Iterator[str]:
    """Errors below sliders, which do not end the run of a cell."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                yield f"fails below its sliders: {output.evalue}: {cell.source!r}"


def _differences(committed: Any, ran: Any) -> Iterator[str]:
    """Where the committed notebook is not what its script gives."""
    if [(c.cell_type, c.source) for c in committed.cells] != [(c.cell_type, c.source) for c in ran.cells]:
        yield "script and notebook have different cells: run notebooks/execute.py --write"
    elif not ran.metadata.get("measured", False):
        for old, new in zip(committed.cells, ran.cells, strict=True):
            if _given(old) != _given(new):
                yield f"another output than is committed, run notebooks/execute.py --write: {new.source!r}"


def _given(cell: Any) -> list[Any]:
    """What a cell gave, as far as it is the same each time."""
    texts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        shown = {kind: data[kind] for kind in COMPARED if kind in data and "image/png" not in data}
        texts.append((output.output_type, output.get("text"), shown, "image/png" in data))
    return texts


def _private(notebook: Any) -> Iterator[str]:
    """Paths of the machine in the outputs, and warnings."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                yield f"says on stderr: {output.text!r}"
            for path in re.findall(r"(?:/home|/root|/tmp|/Users|/work)/[^\s\"']*", str(output)):
                yield f"names a path of the machine that ran it: {path}"


if __name__ == "__main__":
    sys.exit(main())
