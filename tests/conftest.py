"""Hypothesis profiles: no deadlines (machines differ), reproducible in CI. What a run without PyTorch leaves out."""

import os
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

ORACLE = ("torch", "torchvision")

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure() -> None:
    if os.environ.get("COSTMODEL_REQUIRE_ORACLE") and (missing := [m for m in ORACLE if find_spec(m) is None]):
        raise pytest.UsageError(f"COSTMODEL_REQUIRE_ORACLE is set, but {' and '.join(missing)} cannot be imported")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if find_spec("torch") is None:
        terminalreporter.write_line("left out without PyTorch (extra oracle): the differential tests in tests/oracle")
