"""How the documentation is built: ``sphinx-build -W docs site``."""

import doctest
import inspect
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # the documentation of this checkout, whatever is installed

import costmodel as cm  # noqa: E402
from costmodel import errors  # noqa: E402
from costmodel.cost.quantities import MEANINGS  # noqa: E402
from costmodel.layers import load_all  # noqa: E402

project = "costmodel"
author = "the authors of costmodel"
release = version = cm.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_render_markdown_format = "myst"  # formulas and tables of what explains itself
nb_execution_mode = "off"  # notebooks show what is committed, which the tests hold against a run
html_theme = "furo"
html_title = f"costmodel {version}"
html_static_path = ["_static"]
html_css_files = ["notebooks.css"]
exclude_patterns = ["README.md"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
suppress_warnings = ["misc.highlighting_failure", "mystnb.unknown_mime_type"]
nitpicky = False


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; a bar within a cell does not end it."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def first_sentence(made: object) -> str:
    """What a class or a function says of itself first."""
    return " ".join((inspect.getdoc(made) or "").split("\n\n")[0].split())


def page(name: str, title: str, text: str) -> None:
    """Write a page that is made of the program's own words."""
    (HERE / "reference" / f"{name}.md").write_text(f"# {title}\n\n{text}", encoding="utf-8")


page(
    "quantities",
    "Quantities",
    "What `p.formula`, `p.explain`, sweeps and comparisons take by name.\n\n"
    + table(("quantity", "what it is"), [(f"`{name}`", meaning) for name, meaning in MEANINGS.items()]),
)
page(
    "layers",
    "Layer kinds",
    "Each is one class that states what one layer costs, with the source of its formulas.\n\n"
    + table(
        ("kind", "what it computes", "source"),
        [(f"`{name}`", first_sentence(kind), kind.source) for name, kind in sorted(load_all().items())],
    ),
)
page(
    "errors",
    "Errors",
    "All that is wrong with a question is a `CostModelError`, whose message is one line: what, where, which value, and "
    "what would be right. From a shell it is one line on stderr and exit code 2.\n\n"
    + table(
        ("error", "when"),
        [
            (f"`{name}`", first_sentence(kind))
            for name, kind in vars(errors).items()
            if isinstance(kind, type) and issubclass(kind, errors.CostModelError)
        ],
    ),
)

shown = HERE / "notebooks"
shown.mkdir(exist_ok=True)
for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
    shutil.copy(notebook, shown / notebook.name)
shutil.copy(HERE.parent / "notebooks/README.md", shown / "index.md")

drawn = HERE / "gallery"
drawn.mkdir(exist_ok=True)
os.chdir(drawn)  # the gallery's calls write their pictures where they stand
failures, _ = doctest.testfile(str(HERE / "gallery.md"), module_relative=False, encoding="utf-8")
os.chdir(HERE)
if failures:
    raise RuntimeError("the calls of gallery.md do not give what it says")
