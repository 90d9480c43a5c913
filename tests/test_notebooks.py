"""The notebooks are a course: each says what it teaches, asks before it tells, and checks what it asks."""

import ast
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*-*.py"))
INDEX = (ROOT / "notebooks/README.md").read_text(encoding="utf-8")
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))

of_each = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook: Path) -> list[tuple[str, str]]:
    """What follows each cell's mark, and the cell's text; that of Markdown without the comment signs."""
    parts = re.split(r"^# %%(.*)\n", notebook.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [
        (mark.strip(), re.sub(r"^# ?", "", text, flags=re.MULTILINE) if "[markdown]" in mark else text)
        for mark, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def code(notebook: Path) -> ast.Module:
    """All code cells as one module."""
    texts = [text for mark, text in cells(notebook) if "[markdown]" not in mark]
    return ast.parse("\n".join(re.sub(r"^%.*$", "", text, flags=re.MULTILINE) for text in texts))


@of_each
def test_the_head_says_what_it_teaches(notebook: Path) -> None:
    mark, head = cells(notebook)[0]
    assert mark == "[markdown]"
    assert head.startswith("# ")
    for part in ("**The point:** ", "**You learn** ", "**Time:** ", "**Before it:** ", "**How:** "):
        assert part in head


@of_each
def test_readers_predict_before_they_run(notebook: Path) -> None:
    texts = cells(notebook)
    asking = [number for number, (mark, text) in enumerate(texts) if mark == "[markdown]" and "**Predict:**" in text]
    assert len(asking) >= 3
    for number in asking:
        assert "[markdown]" not in texts[number + 1][0], "no cell follows that tells"


@of_each
def test_each_exercise_is_checked_by_a_collapsed_solution(notebook: Path) -> None:
    texts = cells(notebook)
    headings = [text.partition("\n")[0] for mark, text in texts if mark == "[markdown]"]
    assert headings[-1] == "## Solutions"
    answers = [text.partition(" = ")[0] for _, text in texts if re.fullmatch(r"answer_\d+ = None\s*", text)]
    assert answers == [f"answer_{number + 1}" for number in range(len(answers))]
    assert len(answers) >= 3
    solutions = [(mark, text) for mark, text in texts if "hide-cell" in mark]
    assert len(solutions) == len(answers)
    assert texts[-len(solutions) :] == solutions
    for answer, (mark, text) in zip(answers, solutions, strict=True):
        assert '"source_hidden": true' in mark
        assert f"{answer} in (None" in text or f"{answer} is None or" in text or f"{answer} or " in text
        assert len(re.findall(r"^ *assert ", text, re.MULTILINE)) >= 1


@of_each
def test_one_exercise_derives_and_one_codes(notebook: Path) -> None:
    headings = re.findall(r"^\*\*\d+\. (\w+) it\.\*\*", "\n".join(text for _, text in cells(notebook)), re.MULTILINE)
    assert headings == ["Derive", "Code"]


def test_students_get_all_but_solutions_and_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jupytext")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setattr(sys, "argv", ["students.py", str(tmp_path)])
    assert script_of("students").main() == 0
    read = set(re.findall(r'"([\w-]+\.(?:json|mplstyle))"', "\n".join(path.read_text("utf-8") for path in NOTEBOOKS)))
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".ipynb"} == read
    for notebook in NOTEBOOKS:
        handout = nbformat.read(tmp_path / f"{notebook.stem}.ipynb", as_version=4)
        nbformat.validate(handout)
        given = [(mark, text) for mark, text in cells(notebook) if "hide-cell" not in mark][:-1]
        assert [cell.cell_type == "markdown" for cell in handout.cells] == ["[markdown]" in mark for mark, _ in given]
        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in handout.cells)
        text = "\n".join(cell.source for cell in handout.cells)
        assert not re.search(r"\bsolutions?\b", text, re.IGNORECASE)
        for asked in (r"^answer_\d+ = None$", r"\*\*Predict:\*\*"):
            whole = "\n".join(text for _, text in given)
            assert len(re.findall(asked, text, re.MULTILINE)) == len(re.findall(asked, whole, re.MULTILINE)) >= 3


@of_each
def test_only_public_names_are_used(notebook: Path) -> None:
    """Public is what the package lists, and what the documentation imports."""
    for node in ast.walk(code(notebook)):
        if isinstance(node, ast.Import):
            assert not [name.name for name in node.names if name.name.startswith("costmodel.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("costmodel"):
            assert re.search(rf"^(>>> )?from {node.module} import ", PAGES, re.MULTILINE), f"{node.module} is internal"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cm":
            assert node.attr in cm.__all__ or node.attr == "roofline"
        elif isinstance(node, ast.Attribute):
            assert node.attr == "__init__" or not node.attr.startswith("_"), f"{node.attr} is private"


@of_each
def test_the_index_has_it_with_its_time(notebook: Path) -> None:
    head = cells(notebook)[0][1]
    (minutes,) = re.findall(r"^\*\*Time:\*\* (\d+) minutes", head, re.MULTILINE)
    before = re.findall(r"notebooks? (.*?)\.", head.partition("**Before it:**")[2].partition("\n\n")[0])
    (row,) = [line for line in INDEX.splitlines() if f"({notebook.stem}.ipynb)" in line]
    *_, listed, after, _ = (cell.strip() for cell in row.split("|"))
    assert listed == minutes
    assert re.findall(r"\d", after) == re.findall(r"\d", "".join(before))


def test_the_index_is_linked() -> None:
    assert "(notebooks/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "notebooks/index" in (ROOT / "docs/index.md").read_text(encoding="utf-8")


SLIDER = """# %%
from ipywidgets import interact


@interact(batch=(1, 64))
def show(batch=8):
    print("batch", 1 // {divisor} * batch)
"""


def script_of(name: str) -> Any:
    """A script that stands beside the notebooks, as a module."""
    spec = spec_from_file_location(name, ROOT / f"notebooks/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def executed(folder: Path, text: str) -> tuple[list[str], Any]:
    """What is wrong with a notebook of this text, and what is stored of it, if anything is."""
    for needed in ("ipykernel", "ipywidgets", "jupytext"):
        pytest.importorskip(needed)
    nbformat = pytest.importorskip("nbformat")
    execute = script_of("execute")
    script = folder / "notebook.py"
    script.write_text(text, encoding="utf-8")
    problems, stored = list(execute._checked(script, True)), script.with_suffix(".ipynb")
    return problems, nbformat.read(stored, as_version=4) if stored.exists() else None


@pytest.mark.slow
def test_a_page_without_a_kernel_shows_sliders_where_they_stand_first(tmp_path: Path) -> None:
    problems, stored = executed(tmp_path, SLIDER.format(divisor=1))
    assert problems == []
    (output,) = stored.cells[0].outputs
    assert output.text == "batch 8\n"


@pytest.mark.slow
def test_what_fails_below_sliders_fails_the_notebook(tmp_path: Path) -> None:
    (problem,), stored = executed(tmp_path, SLIDER.format(divisor=0))
    assert "by zero" in problem
    assert stored is None


EXERCISE = """# %%
answer_1 = None

# %% tags=["hide-cell"]
assert {check}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("answer_1 in (None, 2)", ""),
        ("answer_1 is None or answer_1(3) == 9", ""),
        ("answer_1 is None or answer_1 < 2", "the solution takes a wrong answer to answer_1"),
    ],
)
def test_a_solution_that_takes_a_wrong_answer_fails_the_notebook(tmp_path: Path, check: str, said: str) -> None:
    problems, stored = executed(tmp_path, EXERCISE.format(check=check))
    assert [said in problem for problem in problems] == ([True] if said else [])
    assert stored is None if said else len(stored.cells) == 2
