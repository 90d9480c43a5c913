"""A clock that does not depend on the machine, for tests of what is done with times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.roofline.synthetic import Clockwork


@pytest.fixture(scope="module")
def clockwork() -> Iterator[Clockwork]:
    """For all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        yield Clockwork.put(patch.setattr)
