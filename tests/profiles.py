"""How Hypothesis draws: the profile `default` alike for everyone and always, `explore` at random and much more.

Neither has a deadline: machines differ, and a first call is slow. The next run of `explore` replays what it found, from
the database of examples in ``.hypothesis``; once mended, that is kept as an ``@example``.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

TIMES = 20
"""How many times as many examples `explore` draws."""
PER_TEST = 100

settings.register_profile(
    "default",
    max_examples=PER_TEST,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore",
    settings.get_profile("default"),
    max_examples=TIMES * PER_TEST,
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def examples(number: int) -> settings:
    """Settings of a test that draws so many examples where others draw `PER_TEST`.

    Modules of tests are imported once the profile is chosen, so that `explore` draws more of these too.
    """
    return settings(max_examples=number * settings().max_examples // PER_TEST)


def how_many(number: int) -> int:
    """How many a test draws by itself where `examples` would draw so many of a strategy."""
    return examples(number).max_examples
