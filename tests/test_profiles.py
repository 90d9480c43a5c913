"""The two ways to draw examples, and that no test draws a number of its own."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings

from tests import profiles

TESTS = Path(__file__).parent


def test_everyone_draws_the_same_unless_exploring() -> None:
    default, explore = map(settings.get_profile, ("default", "explore"))
    assert (default.derandomize, explore.derandomize) == (True, False)
    assert (default.database is None, explore.database is None) == (True, False)
    assert explore.max_examples == 20 * default.max_examples


def test_every_test_draws_more_when_exploring() -> None:
    own = [path for path in TESTS.rglob("*.py") if "max_examples" in path.read_text(encoding="utf-8")]
    assert set(own) == {TESTS / "profiles.py", Path(__file__)}
    assert profiles.examples(30).max_examples * profiles.PER_TEST == 30 * settings().max_examples
