"""The documentation is true: its outputs are the program's, its examples run, and its lists are complete."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import click
import pytest

import costmodel as cm
from costmodel import roofline
from costmodel.cli.commands import costmodel as program
from costmodel.layers.base import Layer
from costmodel.performance.constants import TABLE, UNITS
from costmodel.training.optimizers import OPTIMIZERS
from costmodel.training.precision import PRECISIONS
from costmodel.training.settings import SETTING_NAMES
from tests.benchmarks.bench_constants import row_of
from tests.command import here
from tests.training import settings_page

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}


EVERYTHING = "\n".join(PAGES.values())


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def files(text: str) -> dict[str, str]:
    """The blocks that name the file they stand for in a first comment."""
    return {block.splitlines()[0].removeprefix("# "): block for block in (*blocks(text, "yaml"), *scripts(text))}


def scripts(text: str) -> list[str]:
    """The blocks that are files of Python."""
    return [block for block in blocks(text, "python") if not block.startswith(">>>")]


def examples(text: str) -> list[str]:
    """The blocks that a prompt shows."""
    return [block for block in blocks(text, "python") if block.startswith(">>>")]


CONSOLE = [block for text in PAGES.values() for block in blocks(text, "console")]


@pytest.mark.slow
@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.splitlines()[0])
def test_outputs_are_the_program_s(capsys: pytest.CaptureFixture[str], block: str) -> None:
    command, _, output = block.partition("\n")
    assert command.startswith("$ costmodel ")
    assert here(capsys, *shlex.split(command)[2:]) == (0, output, "")


TYPED = {
    " ".join(command.replace("\\\n", "").split())
    for text in PAGES.values()
    for command in (
        *re.findall(r"`(costmodel [^`]+)`", text),
        *re.findall(r"^costmodel .*", "\n".join(blocks(text, "sh")).replace("\\\n", ""), re.MULTILINE),
    )
}
"""Commands that pages name."""


def named(group: click.Group) -> dict[str, click.Command]:
    """Its commands, and those of groups within it, by the words that name them."""
    commands = {}
    for word in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), word)
        assert command is not None
        within = named(command) if isinstance(command, click.Group) else {}
        commands |= {word: command} | {f"{word} {name}": each for name, each in within.items()}
    return commands


COMMANDS = {"": program} | named(program)


@pytest.mark.parametrize("typed", sorted(TYPED))
def test_every_command_and_option_of_the_pages_is_the_program_s(typed: str) -> None:
    words = shlex.split(typed)[1:]
    first = list(takewhile(lambda word: not word.startswith("-"), words))
    command = COMMANDS.get(" ".join(first[:2])) or COMMANDS[" ".join(first[:1])]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert [word for word in words if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not isinstance(command, click.Group)])
def test_every_command_is_listed(name: str) -> None:
    shown = name.removesuffix(" search")  # which is what a group does by itself
    assert re.search(rf"^\| `costmodel {shown}\b", PAGES["docs/reference/shell.md"], re.MULTILINE)


DRAWN = "docs/gallery.md"
"""Its examples run where its pictures are drawn."""
WITH_EXAMPLES = [name for name, text in PAGES.items() if name != DRAWN and examples(text)]
RUN_PAGES = """
import doctest, importlib, os, sys

for name in ("costmodel.analysis.sweep.sweeps", "pandas", "sympy", "xarray"):
    importlib.import_module(name)
codes = []
for folder in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        sys.path.insert(0, "")
        print(folder, *doctest.testfile(os.path.join(folder, "examples.txt"), False), flush=True)
        os._exit(0)
    codes.append(os.waitpid(child, 0)[1])
sys.exit(any(codes))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_examples_run(tmp_path: Path) -> None:
    # Each page in a process of its own, in which its files can be imported and a layer kind once defined stays.
    expected = []
    for number, page in enumerate(WITH_EXAMPLES):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, body in files(PAGES[page]).items():
            (folder / name).write_text(body, encoding="utf-8")
        (folder / "examples.txt").write_text("\n".join(examples(PAGES[page])), encoding="utf-8")
        expected.append(f"{folder} 0 {sum(block.count('>>> ') for block in examples(PAGES[page]))}")
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", RUN_PAGES, *(line.split()[0] for line in expected)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", expected), done.stdout


SCRIPTS = [block for name, text in PAGES.items() if name not in WITH_EXAMPLES for block in scripts(text)]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.splitlines()[0])
def test_scripts_run(tmp_path: Path, script: str) -> None:
    if "import torch" in script:
        pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-X", "utf8", "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


GALLERY = PAGES[DRAWN]
CALLS = [line for block in blocks(GALLERY, "sh") for line in block.replace("\\\n", "").splitlines()]


def test_no_code_of_the_gallery_is_cut() -> None:
    every = [line for kind in ("python", "sh") for block in blocks(GALLERY, kind) for line in block.splitlines()]
    assert [line for line in every if len(line) > 105] == []


@pytest.mark.slow
def test_every_picture_of_the_gallery_is_drawn_by_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("xarray")
    from matplotlib.image import imread

    monkeypatch.chdir(tmp_path)
    failures, tried = doctest.testfile(str(ROOT / DRAWN), module_relative=False, encoding="utf-8")
    assert (failures, tried > 20) == (0, True)
    shown = re.findall(r"!\[[^]]+\]\(gallery/(\S+)\)", GALLERY)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(shown)
    for name in shown:
        pixels = imread(name)[..., :3]
        assert pixels.std() > 0.05, f"{name} is blank"
        assert (tmp_path / name).stat().st_size < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_command_draws_the_gallery_s_pictures_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("xarray")
    monkeypatch.chdir(tmp_path)
    program, *words = call.split()
    assert program == "costmodel"
    assert here(capsys, *words).code == 0
    assert [path.read_bytes()[:4] for path in tmp_path.iterdir()] == [b"\x89PNG"]
    assert (tmp_path / words[-1]).exists()


def test_the_example_of_a_layer_kind_says_what_every_kind_must() -> None:
    for method in Layer.__abstractmethods__:
        assert f"def {method}(" in files(PAGES["docs/how-to/own-layer.md"])["prelu.py"]


@pytest.mark.parametrize("name", [*OPTIMIZERS, *PRECISIONS, *SETTING_NAMES])
def test_every_name_that_predict_takes_is_listed(name: str) -> None:
    assert f"`{name}`" in EVERYTHING


def test_the_table_of_settings_is_what_they_declare() -> None:
    """If not: ``python -m tests.training.settings_page > docs/reference/settings.md``."""
    assert PAGES["docs/reference/settings.md"] == settings_page.page()


@pytest.mark.parametrize("name", [*cm.__all__, *(f"roofline.{name}" for name in roofline.__all__)])
def test_every_public_name_has_its_place_in_the_api(name: str) -> None:
    pages = {page: text for page, text in PAGES.items() if page.startswith("docs/reference/api/")}
    others = isinstance(getattr(cm, name, None), cm.Transformer | ModuleType) or name == "GPT"
    place = rf"`{name}`" if others else rf"^\.\. auto(function|class):: costmodel\.{re.escape(name)}$"
    assert sum(len(re.findall(place, text, re.MULTILINE)) for text in pages.values()) == 1
    assert f"`{name.removeprefix('roofline.')}`" in PAGES["docs/reference/api.md"]


@pytest.mark.parametrize("name", TABLE)
def test_every_constant_is_listed_with_its_range_and_source(name: str) -> None:
    """If not: ``python -m tests.benchmarks.bench_constants > docs/reference/constants.md``."""
    _, _, section = PAGES["docs/reference/constants.md"].partition(f"## `{name}`\n")
    listed = section.partition("\n## ")[0]
    assert UNITS[name] in listed
    assert [of for of, values in TABLE[name].items() if row_of(name, of, values) not in listed] == []


def places() -> list[tuple[str, str]]:
    """Each file that `where-things-are` names, with each name that is said to be in it, or with none."""
    pairs = []
    for line in re.findall(r"^\|.*", PAGES["docs/reference/where-things-are.md"], re.MULTILINE):
        path = ""
        for code in re.findall(r"`([^`]+)`", line):
            if re.fullmatch(r"[\w/]+(\.pyi?|/)", code):
                path = code
                pairs.append((path, ""))
            elif path and code.isidentifier():
                pairs.append((path, code))
    return pairs


@pytest.mark.parametrize(("path", "name"), places())
def test_things_are_where_they_are_said_to_be(path: str, name: str) -> None:
    file = ROOT / "costmodel" / path
    assert file.exists()
    if name:
        assert re.search(rf"^ *(def |class )?{name}\b[ :=(]", file.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", ["main job", "tests"])
def test_the_commands_that_ci_runs_stand_behind_their_marks(name: str) -> None:
    assert len(re.findall(rf"^<!-- ci: {name} -->\n```sh\n[^\n]+\n```$", README, re.MULTILINE)) == 1
