"""A setting is added by one edit of its declaration, and is everywhere that settings are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from costmodel.training import settings
from costmodel.training.keywords import GivenSettings, ServedSettings, SeveralSettings
from costmodel.training.settings import SETTING_NAMES
from tests.training.stub import STUB, stub_text

EDITED = '''
import contextlib, importlib.util, inspect, io, json, sys
from pathlib import Path

spec = importlib.util.find_spec("costmodel.training.settings")
source = Path(spec.origin).read_text(encoding="utf-8")
start = source.index("class Settings(")
end = source.index("\\n    def __post_init__", start)
EDIT = """
    haste: Annotated[Literal["calm", "brisk"], Setting("How a step is hurried.", "brisk")] = "calm"
    turns: Annotated[int, Setting("Turns of a step.", 3)] = 1
    glow: Annotated[bool, Setting("Whether it glows.", True)] = False
"""
source = source[:end] + EDIT + source[end:]
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
exec(compile(source, spec.origin, "exec"), module.__dict__)

import costmodel as cm
from costmodel.cli import run
from costmodel.cost.question import heading
from costmodel.training.keywords import GivenSettings, SeveralSettings
from tests.training.stub import stub_text

# An editor completes what the signature and the stub say.
for verb in (cm.predict, cm.sweep, cm.recommend, cm.roofline.check):
    assert {"haste", "turns", "glow"} <= inspect.signature(verb).parameters.keys(), verb
    assert "haste: How a step is hurried (default calm), as in haste='brisk'." in verb.__doc__
assert GivenSettings.__annotations__["turns"] is int
assert {"haste", "turns", "glow"} <= SeveralSettings.__annotations__.keys()
for line in ("turns: int", "turns: int | Iterable[int]", "glow: bool"):
    assert f"    {line}\\n" in stub_text(source), line


def said(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = run(arguments)
    return code, out.getvalue()


for command in ("predict", "sweep", "recommend"):
    code, text = said(command, "--help")
    assert code == 0 and "--haste" in text and "How a step is hurried" in text
assert "--haste calm|brisk" in said("predict", "--help")[1]

code, text = said("predict", "mlp-mnist", "--haste", "brisk", "--turns", "2", "--glow", "true", "--json")
assert code == 0 and json.loads(text)["settings"]["haste"] == "brisk", text
asked = cm.predict("mlp-mnist", haste="brisk", turns=2, glow=True)
assert json.loads(asked.to_json()) == json.loads(text)
assert cm.Prediction.from_json(text) == asked != cm.predict("mlp-mnist")
assert heading(asked.model, asked.settings).endswith("haste brisk, turns 2, glow True")

grid = cm.sweep("mlp-mnist", haste=["calm", "brisk"], turns=[1, 2, 3], quantities=["params"])
assert dict(grid.sizes) == {"haste": 2, "turns": 3}
code, text = said("sweep", "mlp-mnist", "--haste", "calm,brisk", "--glow", "true,false", "--json")
assert code == 0 and [(cell["haste"], cell["glow"]) for cell in json.loads(text)][-1] == ("brisk", False), text

code, text = said("predict", "mlp-mnist", "--haste", "bris")
assert code == 2 and "unknown haste 'bris': did you mean 'brisk'?" in text, text
code, text = said("predict", "mlp-mnist", "--turns", "0")
assert code == 2 and "turns=0 is not between 1 and" in text, text
'''


def test_one_edit_adds_a_setting_to_completion_help_sweeps_and_json() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", EDITED], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr


def test_the_stub_for_type_checkers_is_current() -> None:
    """``python -m tests.training.stub`` writes it anew."""
    source = Path(settings.__file__).read_text(encoding="utf-8")
    assert STUB.read_text(encoding="utf-8") == stub_text(source)
    assert tuple(GivenSettings.__annotations__) == tuple(SeveralSettings.__annotations__) == (*SETTING_NAMES, "over")
    assert ServedSettings.__annotations__.keys() <= GivenSettings.__annotations__.keys()
