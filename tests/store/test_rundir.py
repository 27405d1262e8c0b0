"""A run directory holds finished stages and nothing else, and one run at a time."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from bigfs.core.errors import ClusterError, InputError, RunLockedError, StorageError
from bigfs.store import lease, records
from bigfs.store.lease import Lease
from bigfs.store.location import write_atomic
from bigfs.store.rundir import RunDirectory, stage_key
from bigfs.store.scratch import ArrayRef, Scratch
from tests._canary import own
from tests.store._folder import MEASURED


def _finish(directory: RunDirectory, name: str, key: str) -> None:
    directory.stage_scratch(name).put("values", np.arange(3.0))
    directory.commit(name, key, MEASURED)


def test_a_finished_stage_is_found_by_its_key(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run").open() as first:
        _finish(first, "graph", "key")
    with RunDirectory(tmp_path / "run").open() as second:
        assert second.finished("graph", "key")["seconds"] == 1.0
        assert second.finished("graph", "other") is None
        assert second.why_stale("graph", "other", 1, {}) == "the version of its algorithm changed"
        assert second.why_stale("spectral", "key", 1, {}) == "not yet run"
        values = ArrayRef.at(second.stage_path("graph") / "values").load()
        np.testing.assert_array_equal(values, [0, 1, 2])


def test_nothing_but_finished_stages_is_left(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(RuntimeError, match="stop"), RunDirectory(path).open() as directory:
        _finish(directory, "graph", "key")
        directory.stage_scratch("spectral").put("half", np.zeros(3))
        directory.work_scratch("spectral").put("temporary", np.zeros(3))
        raise RuntimeError("stop")
    assert own(path) == {".bigfs-run", "graph.zarr", "manifest.json"}


def _kill(directory: RunDirectory) -> None:
    """Leave an open run as a kill does: nothing is cleaned up, and its process is gone."""
    directory.lease._stop.set()
    record = json.loads((directory.path / "lease.json").read_text())
    (directory.path / "lease.json").write_text(json.dumps({**record, "pid": 2**40}))


def test_leftovers_of_a_killed_run_are_swept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunDirectory(path).open() as directory:
        _finish(directory, "graph", "key")
    dead = RunDirectory(path)
    holding = dead.open()
    holding.__enter__()
    dead.stage_scratch("spectral").put("half", np.zeros(3))
    dead.work_scratch("spectral").put("temporary", np.zeros(3))
    (path / f"manifest.json.partial-{dead.attempt}").write_text("{")
    (path / f"lease.beat-{dead.attempt}").write_text("{")
    _kill(dead)
    with RunDirectory(path).open() as directory:
        assert directory.finished("graph", "key") is not None
        assert own(path) == {
            ".bigfs-run", "attempts", "graph.zarr", "lease.json", "manifest.json",
        }  # fmt: skip
        assert not dead.attempt_path.exists()
    assert own(path) == {".bigfs-run", "graph.zarr", "manifest.json"}


def test_a_changed_byte_is_found_when_a_stage_is_taken_over(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).open() as directory:
        _finish(directory, "graph", "key")
    chunk = tmp_path / "graph.zarr" / "values" / "c.0"
    content = bytearray(chunk.read_bytes())
    content[3] ^= 4
    chunk.write_bytes(content)
    with RunDirectory(tmp_path).open() as directory:
        assert directory.finished("graph", "key") is None
        why = directory.why_stale("graph", "key", 1, {})
        assert why == "values/c.0 of its result was changed"


def test_a_stage_that_is_redone_replaces_the_old_one(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).open() as directory:
        _finish(directory, "graph", "old")
        directory.stage_scratch("graph").put("values", np.ones(2))
        directory.commit("graph", "new", {})
        assert directory.finished("graph", "old") is None
        values = ArrayRef.at(directory.stage_path("graph") / "values").load()
        np.testing.assert_array_equal(values, [1, 1])


def test_fresh_takes_nothing_over_and_keeps_stages_until_they_are_replaced(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run").open() as directory:
        _finish(directory, "graph", "key")
        _finish(directory, "spectral", "key")
    with (
        pytest.raises(RuntimeError, match="stop"),
        RunDirectory(tmp_path / "run").open(fresh=True) as directory,
    ):
        assert directory.finished("graph", "key") is None
        assert directory.why_stale("graph", "key", 1, {}) == "recomputed because of --fresh"
        raise RuntimeError("stop")
    # What was forgotten stays forgotten when the run goes on, and is there until it is replaced.
    with RunDirectory(tmp_path / "run").open() as directory:
        assert directory.finished("graph", "key") is None
        assert directory.is_intact("graph")
        _finish(directory, "graph", "key")
        assert directory.finished("graph", "key")["attempt"] == directory.attempt
        directory.finish()
    assert own(tmp_path / "run") == {".bigfs-run", "graph.zarr", "manifest.json"}


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with (
        pytest.raises(InputError, match=r"not a bigfs run.*Nothing in it was changed"),
        RunDirectory(tmp_path).open(fresh=True),
    ):
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"), RunDirectory(tmp_path / "file").open():
        pass


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99, "stages": {}}', '{"format": 1}'])
def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=r"manifest\.json is not a manifest.*--fresh"):
        RunDirectory(tmp_path).read()


def test_a_second_run_is_locked_out_and_the_lease_is_given_back(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).open():
        with (
            pytest.raises(RunLockedError, match="another run holds this directory"),
            RunDirectory(tmp_path).open(),
        ):
            pass
        assert (tmp_path / "lease.json").exists()
    assert not (tmp_path / "lease.json").exists()


def _write_lease(folder: Path, **record: object) -> None:
    held = {"owner": "o", "pid": os.getpid(), "host": "elsewhere", "beat": time.time(), **record}
    (folder / "lease.json").write_text(json.dumps(held))


def test_a_run_that_lost_its_lease_commits_nothing(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).open() as directory:
        directory.stage_scratch("graph").put("values", np.zeros(2))
        _write_lease(tmp_path)
        with pytest.raises(RunLockedError, match="another one took its place"):
            directory.commit("graph", "key", {})
        assert not directory.stage_path("graph").exists()
    assert json.loads((tmp_path / "lease.json").read_text())["owner"] == "o"


@pytest.mark.parametrize("dropped", [True, False])
def test_a_write_that_ends_after_a_takeover_leaves_no_checkpoint(
    tmp_path: Path, dropped: bool
) -> None:
    with RunDirectory(tmp_path).open() as directory:
        _finish(directory, "graph", "key")
        checkpoint = directory.checkpoint_path("result", "key")
        _write_lease(tmp_path)  # of a run that takes this one's place, and finishes the stage
        manifest = json.loads((tmp_path / "manifest.json").read_text())
        if dropped:
            del manifest["checkpoints"]["result"]
            (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        Scratch(checkpoint).put("F", np.zeros(2))  # this one wakes up in a write
        with pytest.raises(RunLockedError):
            directory.commit("result", "key", {})
    assert Path(checkpoint).exists() == (not dropped)


def test_the_heartbeat_keeps_the_lease_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    with Lease(tmp_path):
        before = json.loads((tmp_path / "lease.json").read_text())["beat"]
        deadline = time.time() + 10
        while json.loads((tmp_path / "lease.json").read_text())["beat"] == before:
            assert time.time() < deadline
            time.sleep(0.02)


def test_keys_follow_from_settings_version_and_upstream() -> None:
    base = stage_key("graph", 1, {"k": 5}, "data")
    assert base == stage_key("graph", 1, {"k": 5}, "data")
    others = [
        stage_key("graph", 2, {"k": 5}, "data"),
        stage_key("graph", 1, {"k": 6}, "data"),
        stage_key("graph", 1, {"k": 5}, "other"),
    ]
    assert base not in others


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", "old")
    with pytest.raises(StorageError, match="Cannot write"):
        write_atomic(tmp_path / "missing" / "a", "new")
    assert (tmp_path / "a").read_text() == "old"


def test_rows_are_written_by_whole_chunks_only(tmp_path: Path) -> None:
    ref = Scratch(tmp_path).create("rows", (10, 2), np.float32, 4)
    ref.write(4, np.ones((4, 2)))
    for start, rows in ((2, 4), (4, 3), (0, 6)):
        with pytest.raises(StorageError, match="whole chunks of 4 rows"):
            ref.write(start, np.ones((rows, 2)))
    with pytest.raises(StorageError, match="2 of 3 chunks are missing"):
        ref.check_complete()
    ref.write(0, np.zeros((4, 2)))
    ref.write(8, np.ones((2, 2)))
    ref.check_complete()
    np.testing.assert_array_equal(ref.read(3, 9)[:, 0], [0, 1, 1, 1, 1, 1])
    assert ArrayRef.at(ref.path) == ref


def test_a_run_that_finished_nothing_leaves_no_folder(tmp_path: Path, bare: None) -> None:
    with pytest.raises(RuntimeError, match="stop"), RunDirectory(tmp_path / "new").open():
        raise RuntimeError("stop")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(RuntimeError, match="stop"), RunDirectory(tmp_path / "mine").open():
        raise RuntimeError("stop")
    assert [*(tmp_path / "mine").iterdir()] == []
    with pytest.raises(RuntimeError), RunDirectory(tmp_path / "notes").open():
        (tmp_path / "notes" / "notes.txt").write_text("written meanwhile")
        raise RuntimeError("stop")
    assert (tmp_path / "notes" / "notes.txt").exists()
    with RunDirectory(tmp_path / "notes").open():
        pass  # it is still known for a run directory


def test_starts_that_keep_nothing_end_with_the_reason(
    tmp_path: Path, bare: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"

    def start(*stages: str, checkpoint: str | None = None) -> str:
        with (
            pytest.raises((KeyboardInterrupt, ClusterError)) as caught,
            RunDirectory(path).open() as directory,
        ):
            for stage in stages:
                _finish(directory, stage, "key")
            if checkpoint is not None:
                place = directory.checkpoint_path("spectral", "key")
                place.mkdir(parents=True, exist_ok=True)
                write_atomic(place / "state", checkpoint)
            raise KeyboardInterrupt
        return str(caught.value)

    assert start() == start() == ""  # nobody's time was over
    assert not path.exists()
    monkeypatch.setattr(records, "LONG_SECONDS", 0.0)
    assert start() == start("graph") == start(checkpoint="one") == start(checkpoint="two!") == ""
    reason = f"{path}: this start was interrupted after 0 minutes, like the one before"
    assert start().startswith(reason)
    assert "the stage after graph takes longer than a start may" in start()
    assert start("spectral") == ""
    with RunDirectory(path).open() as directory:
        assert directory.finished("graph", "key") and directory.finished("spectral", "key")


def test_a_stage_that_lost_files_is_not_finished(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).open() as directory:
        _finish(directory, "graph", "key")
        assert directory.is_intact("graph")
        (directory.stage_path("graph") / "values" / "c.0").write_bytes(b"short")
        assert directory.finished("graph", "key") is None
        assert directory.why_stale("graph", "key", 1, {}) == "files of its result are missing"


def test_a_run_that_lost_its_place_leaves_the_other_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunDirectory(path).open():
        _write_lease(path)
        (path / "attempts" / "other").mkdir()
        (path / "attempts" / "other" / "half").write_text("of the run that took over")
    assert (path / "attempts" / "other" / "half").exists()
    assert json.loads((path / "lease.json").read_text())["owner"] == "o"
