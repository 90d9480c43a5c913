"""Hypothesis profiles: no deadlines (machines differ), reproducible in CI. What a run without PyTorch leaves out."""

import os
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if find_spec("torch") is None:
        terminalreporter.write_line("not run without PyTorch (extra 'oracle'): the differential tests in tests/oracle")
