"""Damage to what a run wrote is mended by the next run, and what it commits is on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bigfs import open_result, run
from bigfs.core.errors import CorruptStoreError, InputError, StorageError
from bigfs.store.ingest import ingest
from bigfs.store.rundir import RunDirectory
from tests.store._folder import finish, settings


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def _shrink(path: Path) -> None:
    """Let the metadata tell of fewer rows, in as many bytes."""
    content = path.read_bytes()
    assert content.count(b"60,") >= 1
    path.write_bytes(content.replace(b"60,", b"30,"))


@pytest.mark.parametrize(
    "name, damage", [("X/c/0/0", _flip), ("X/zarr.json", _shrink), ("zarr.json", _flip)]
)
def test_damaged_data_of_a_run_are_brought_in_again(
    folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run(settings())
    damage(folder / "runs" / "a" / "data.zarr" / name)
    # With another setting: the former result, which is finished, would not read the data.
    result = run(settings(preprocess="minmax"))
    expected = run(settings(preprocess="minmax", run="runs/b"))
    np.testing.assert_array_equal(result.scores, expected.scores)


def test_data_that_are_damaged_as_they_are_written_end_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = RunDirectory.commit

    def commit_and_damage(
        self: RunDirectory, name: str, key: str, record: dict[str, object], **more: bool
    ) -> None:
        commit(self, name, key, record, **more)
        if name == "data":
            _flip(folder / "runs" / "a" / "data.zarr" / "X" / "c" / "0" / "0")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "commit", commit_and_damage)
        with pytest.raises(StorageError, match="check the disk"):
            run(settings())
    assert len(run(settings()).ranking) == 8


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Take down in order what is synced and what is renamed, by the number of the file."""
    events: list[tuple[str, int]] = []
    sync, rename, replace = os.fsync, os.rename, os.replace

    def watched_sync(number: int) -> None:
        events.append(("sync", os.fstat(number).st_ino))
        sync(number)

    def watched(call: Callable[..., None]) -> Callable[..., None]:
        def move(source: str, target: str, **options: object) -> None:
            events.append(("name", os.stat(source).st_ino))
            call(source, target, **options)

        return move

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "rename", watched(rename))
    monkeypatch.setattr(os, "replace", watched(replace))
    return events


def _assert_synced_before_it_is_named(events: list[tuple[str, int]], folder: Path) -> None:
    named = events.index(("name", folder.stat().st_ino))
    before = {number for what, number in events[:named] if what == "sync"}
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_ino in before, f"{path} may be lost in a power failure"


def test_a_stage_is_on_the_disk_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunDirectory(tmp_path / "run").open() as directory:
        events = _watch(monkeypatch)
        finish(directory, "graph", "key")
        stage = directory.stage_path("graph")
        assert isinstance(stage, Path)
        _assert_synced_before_it_is_named(events, stage)
        # Then its new name, then the manifest that speaks of it, then the manifest's name.
        run_number = (tmp_path / "run").stat().st_ino
        stage_number = stage.stat().st_ino
        manifest = (tmp_path / "run" / "manifest.json").stat().st_ino
        named, spoken = events.index(("name", stage_number)), events.index(("name", manifest))
        assert ("sync", run_number) in events[named:spoken]
        assert ("sync", manifest) in events[named:spoken]
        assert ("sync", run_number) in events[spoken:]


def test_a_store_is_on_the_disk_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = _watch(monkeypatch)
    ingest(np.ones((60, 3)), tmp_path / "X.zarr", rows=20)
    _assert_synced_before_it_is_named(events, tmp_path / "X.zarr")


def test_a_result_is_opened_by_a_path() -> None:
    with pytest.raises(InputError, match="a path or an address. Got 3"):
        open_result(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["result", "curves"])
def test_a_changed_byte_of_a_result_is_said_and_done_again(tmp_path: Path, stage: str) -> None:
    config = {
        "run": str(tmp_path / "run"),
        "input": {"uri": "sklearn:iris"},
        "method": "max_variance",
        "n_features_to_select": 2,
    }
    undisturbed = run(config)
    array = {"result": "scores", "curves": "adds"}[stage]
    [chunk] = (tmp_path / "run" / f"{stage}.zarr" / array).glob("c.*")
    _flip(chunk)
    with pytest.raises(CorruptStoreError, match=rf"{stage}.zarr: {array}/c.0 was changed"):
        open_result(tmp_path / "run")
    assert run(config).scores.tobytes() == undisturbed.scores.tobytes()
    assert open_result(tmp_path / "run").features_csv() == undisturbed.features_csv()


@pytest.mark.parametrize("stage", ["data", "result"])
def test_a_list_of_files_with_a_flipped_name_is_no_reason_to_stop(folder: Path, stage: str) -> None:
    before = run(settings())
    place = before.path / f"{stage}.zarr" / "checksums.json"
    place.write_text(place.read_text().replace("zarr.json", "zarr.jsoo", 1))
    after = run(settings())
    assert after.stages[stage]["attempt"] != before.stages[stage]["attempt"], "not done again"
    assert after.scores.tobytes() == before.scores.tobytes()
