"""Files of somebody else, beside and inside a run directory, that nothing may ever touch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bigfs.store.location import Location, files_below
from bigfs.store.records import create_mark, new_id
from bigfs.store.runfolder import RunFolder

BESIDE = "canary"
# Names that resemble those of runs, of this version and earlier ones.
_INSIDE = {
    "notes.txt": "read this first",
    "cells.zarr/zarr.json": json.dumps({"attributes": {"bigfs_store": 1}}),
    "cells.zarr/X/c/0/0": "\0" * 100,
    "c.zarr.partial-1a2b3c4d/zarr.json": "{}",
    "manifest.json.partial-12": "{",
    "attempts/mine/x.scratch/c.0": "1",
    "attempts/0123456789ab/graph.scratch/c.0": "2",
    "checkpoints/mine/x.npz": "3",
    "checkpoints/result-0123456789abcdef/x.npz": "4",
    "graph-0123456789ab.zarr/zarr.json": "{}",
    "lease.beat-foo": "{}",
    "lease.stale-0123456789abcdef0123456789abcdef": "{}",
    "report.html": "<p>mine</p>",
}
_BESIDE = {"thesis.tex": "years of work", "data.zarr/zarr.json": "{}", "attempts/mine": "5"}


def plant(run: Location) -> None:
    """Put the files beside a run directory and into it, which is made if it is not there."""
    run.mkdir(parents=True, exist_ok=True)
    create_mark(run, new_id())
    for folder, files in ((run, _INSIDE), (run.with_name(BESIDE), _BESIDE)):
        for name, text in files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)


def check(run: Location) -> None:
    """Compare the checksums of what was planted."""
    for folder, files in ((run, _INSIDE), (run.with_name(BESIDE), _BESIDE)):
        wanted = {name: _digest(text.encode()) for name, text in files.items()}
        results = {
            name: _digest((folder / name).read_bytes())
            for name in files_below(folder)
            if name in wanted
        }
        assert results == wanted, f"{folder}: files that are not the run's were touched"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def own(run: Location) -> set[str]:
    """Return the names directly below a run directory, without what was planted."""
    planted = {name.partition("/")[0] for name in _INSIDE} - {"attempts", "checkpoints"}
    names = {path.name for path in run.iterdir()} - planted
    for name in ("attempts", "checkpoints"):
        inside = {path.split("/")[1] for path in _INSIDE if path.startswith(f"{name}/")}
        if name in names and {path.name for path in (run / name).iterdir()} <= inside:
            names.discard(name)
    return names - {BESIDE}


def own_files(run: Location) -> set[str]:
    """Return the names of all files below a run directory, without what was planted."""
    return set(files_below(run)) - set(_INSIDE)


@contextmanager
def planted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Plant the files wherever a run of this process begins, and compare them at the end."""
    if "bare" in request.fixturenames:
        yield
        return
    for name in ("bucket", "proxy", "small_disk"):  # which must be there until then
        if name in request.fixturenames:
            request.getfixturevalue(name)
    runs: dict[str, Location] = {}
    create = RunFolder._create

    def create_and_plant(self: RunFolder) -> tuple[bool, bool]:
        made = create(self)
        if str(self.path) not in runs:
            plant(self.path)
            runs[str(self.path)] = self.path
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "_create", create_and_plant)
        yield
    for run in runs.values():
        check(run)
