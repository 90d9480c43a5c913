"""How the documentation is built: ``sphinx-build -W docs site``."""

import doctest
import inspect
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # the documentation of this checkout, whatever is installed

from docutils.nodes import SkipNode  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402

import costmodel as cm  # noqa: E402
from costmodel import errors  # noqa: E402
from costmodel.cost.quantities import MEANINGS, TIMED  # noqa: E402
from costmodel.layers import load_all  # noqa: E402
from costmodel.training.settings import SETTINGS  # noqa: E402

project = "costmodel"
author = "the authors of costmodel"
release = version = cm.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_render_markdown_format = "myst"  # formulas and tables of what explains itself
nb_execution_mode = "off"  # notebooks show what is committed, which the tests hold against a run
html_math_renderer = "mathml"  # which browsers show by themselves: no script from elsewhere
html_theme = "furo"
html_title = f"costmodel {version}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
exclude_patterns = ["README.md"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"  # settings have a table of their own
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config, model_post_init, BELOW, READY"}
suppress_warnings = ["misc.highlighting_failure", "mystnb.unknown_mime_type"]
nitpicky = False


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; a bar within a cell does not end it."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def first_sentence(thing: object) -> str:
    """What a class or a function says of itself first."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def page(name: str, title: str, text: str) -> None:
    """Write a page of the program's own words."""
    (HERE / "reference" / f"{name}.md").write_text(f"# {title}\n\n{text}", encoding="utf-8")


page(
    "quantities",
    "Quantities",
    "What `p.formula`, `p.explain`, sweeps and comparisons take by name.\n\n"
    + table(("quantity", "what it is"), [(f"`{name}`", meaning) for name, meaning in MEANINGS.items()])
    + "\n[Of a step on a machine](../how-to/time.md), with the setting `on` and without a formula: "
    + ", ".join(f"`{name}`" for name in TIMED)
    + ".\n",
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

notebooks = HERE / "notebooks"
notebooks.mkdir(exist_ok=True)
for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
    shutil.copy(notebook, notebooks / notebook.name)
index = (HERE.parent / "notebooks/README.md").read_text(encoding="utf-8").replace("(../docs/", "(../")
(notebooks / "index.md").write_text(
    f"{index}\n```{{toctree}}\n:hidden:\n:glob:\n\n[0-9]-*\n[0-9][0-9]-*\n```\n", encoding="utf-8"
)

gallery = HERE / "gallery"
gallery.mkdir(exist_ok=True)
os.chdir(gallery)  # the gallery's calls write their pictures where they stand
failures, _ = doctest.testfile(str(HERE / "gallery.md"), module_relative=False, encoding="utf-8")
cm.predict("gpt2-small", batch=32, seq=512).timeline.plot("timeline-dark.png", dark=True)  # of the first page
os.chdir(HERE)
if failures:
    raise RuntimeError("the calls of gallery.md do not give what it says")


def short_signature(app, what, name, thing, options, signature, returned):
    """A question's own arguments, and `**settings` for all others, whose types are in their table."""
    if "\nSettings:\n" not in (inspect.getdoc(thing) or ""):
        return None
    own = [p for n, p in inspect.signature(thing).parameters.items() if n not in SETTINGS]
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in own])).replace(")", ", **settings)"), returned


def short_settings(app, what, name, thing, options, lines):
    """The names of settings, and where a question has defaults of its own these, in place of the whole list."""
    if "Settings:" not in lines:
        return
    at = lines.index("Settings:")
    said = dict(line.strip().split(": ", 1) for line in lines[at + 1 :] if line.strip())
    taken = [n for n in said if n in SETTINGS]
    own = {n: p.default for n, p in inspect.signature(thing).parameters.items() if n in taken}
    defaults = [f"``{n}={own[n]!r}``" for n in own if own[n] not in (..., SETTINGS[n].default)]
    lines[at:] = [":doc:`Settings </reference/settings>`: " + ", ".join(f"``{n}``" for n in taken) + ".", ""]
    if defaults:
        lines += ["By default " + ", ".join(defaults) + ".", ""]
    for name in [n for n in said if n not in SETTINGS]:
        lines += [f"``{name}``: {said[name]}", ""]


def listed_fields(app, what, name, thing, options, lines):
    """The fields of a spec; and a property's first sentence as a sentence, where a colon would make it a type."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # an empty comment, in whose line napoleon looks for the colon
    fields = getattr(thing, "model_fields", {}) if what == "class" else {}
    described = {name: field for name, field in fields.items() if field.description}
    if described:
        lines += ["", "Fields:", ""]
    for name, field in described.items():
        default = "" if field.is_required() or field.default is None else f" (default ``{field.get_default()!r}``)"
        lines.append(f"* ``{name}``{default}: {field.description}")


def inline_formula(translator, node):
    """A formula within a sentence."""
    translator.body.append(convert(node.astext()))
    raise SkipNode


def displayed_formula(translator, node):
    """A formula on lines of its own."""
    translator.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def without_last_blank_line(app, name, source):
    """Examples end in a blank line, for which doctest asks and no reader does."""
    source[0] = source[0].replace("\n\n```\n", "\n```\n")


def setup(app):
    """Connect what formulas, examples and the pages of the API are shown by."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.connect("source-read", without_last_blank_line)
    app.connect("autodoc-process-signature", short_signature)
    for listener in (short_settings, listed_fields):
        app.connect("autodoc-process-docstring", listener, priority=400)  # before napoleon reads sections
