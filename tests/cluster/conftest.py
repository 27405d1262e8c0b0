"""A canary in every run directory of these tests; runs in processes have it from `_jobs`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests._canary import planted


@pytest.fixture(autouse=True)
def canary(request: pytest.FixtureRequest) -> Iterator[None]:
    """Files that are not the run's lie wherever a run begins, and are the same afterwards."""
    with planted(request):
        yield
