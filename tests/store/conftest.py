"""Places to test: a folder, a bucket, and a bucket behind a proxy that fails as told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bigfs.store.location import Location, as_location
from bigfs.store.objects import ObjectPath
from tests._canary import planted
from tests._s3 import Proxy
from tests.store._folder import folder  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def canary(request: pytest.FixtureRequest) -> Iterator[None]:
    """Files that are not the run's lie wherever a run begins, and are the same afterwards."""
    with planted(request):
        yield


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A place of either kind: one body tests both."""
    if request.param == "folder":
        return as_location(str(tmp_path))
    return as_location(f"{request.getfixturevalue('bucket')}/here")


@pytest.fixture
def lab(bucket: str) -> ObjectPath:
    place = as_location(f"{bucket}/lab")
    assert isinstance(place, ObjectPath)
    return place


@pytest.fixture
def proxy(s3_endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the server, which fails as a test wants."""
    with Proxy(s3_endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "3")
        yield running
