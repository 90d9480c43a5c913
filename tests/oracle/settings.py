"""How Hypothesis draws: alike on every run in CI, at random elsewhere; without deadline: a first call is slow."""

import os

from hypothesis import HealthCheck, settings

differential = settings(
    max_examples=int(os.environ.get("ORACLE_EXAMPLES", "30")),
    derandomize="CI" in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
