"""What a run without PyTorch leaves out. Importing `tests.profiles` chooses how Hypothesis draws."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import tests.profiles  # noqa: F401

os.environ.pop("COLUMNS", None)  # how wide this terminal is; what the tests expect is written for no certain width

ORACLE = ("torch", "torchvision")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hostile", action="store_true", help="run all hostile cases of tests/hostile, not a sample")


def pytest_configure() -> None:
    if os.environ.get("COSTMODEL_REQUIRE_ORACLE") and (missing := [m for m in ORACLE if find_spec(m) is None]):
        raise pytest.UsageError(f"COSTMODEL_REQUIRE_ORACLE is set, but {' and '.join(missing)} cannot be imported")


@pytest.fixture(scope="module")
def traced() -> Iterator[None]:
    """`predict` traces every question of a module: for tests that hold closed forms against what it answers."""
    from costmodel.cost import recipes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "MOST_FORMS", 0)
        recipes._RECIPES.clear()
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if find_spec("torch") is None:
        terminalreporter.write_line("left out without PyTorch (extra oracle): the differential tests in tests/oracle")
