"""Arrays, run directories and leases in a bucket of a real S3-compatible server."""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

from bigfs.core.errors import CorruptStoreError, InputError, RunLockedError, StorageError
from bigfs.pipeline.inspect import inspect
from bigfs.pipeline.run import run
from bigfs.results.result import open_result
from bigfs.store import lease
from bigfs.store.buckets import client
from bigfs.store.lease import Lease
from bigfs.store.location import Location, as_location, files_below
from bigfs.store.objects import ObjectPath
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes
from tests._canary import own
from tests._s3 import Proxy
from tests.store._folder import MEASURED


def test_arrays_are_written_by_chunks_and_read_by_rows(place: Location) -> None:
    scratch = Scratch(place)
    ref = scratch.create("a", (10, 3), np.float64, 4)
    values = np.arange(30.0).reshape(10, 3)
    ref.write(0, values[:8])
    with pytest.raises(StorageError, match="1 of 3 chunks are missing"):
        ref.check_complete()
    with pytest.raises(StorageError, match="chunk 2 is missing"):
        ref.load()
    ref.write(8, values[8:])
    ref.check_complete()
    ref = pickle.loads(pickle.dumps(ref))
    np.testing.assert_array_equal(ref.load(), values)
    for start, stop in ((0, 10), (3, 5), (4, 8), (7, 10), (9, 10), (5, 5)):
        np.testing.assert_array_equal(ref.read(start, stop), values[start:stop])
    np.testing.assert_array_equal(ref.open(scratch)[2:9], values[2:9])
    assert ArrayRef.at(ref.path) == ref
    with pytest.raises(StorageError, match="do not cover whole chunks"):
        ref.write(2, values[:4])
    scratch.describe(norms=[1.5], name="x")
    assert read_attributes(place) == {"norms": [1.5], "name": "x"}
    scratch.remove(ref)
    assert not (place / "a").exists()


@pytest.mark.parametrize("values", [np.array([True, False]), np.zeros((0, 3)), np.zeros(0, "i8")])
def test_arrays_of_any_kind(place: Location, values: np.ndarray) -> None:
    actual = Scratch(place).put("a", values).load()
    assert actual.dtype == values.dtype
    np.testing.assert_array_equal(actual, values)


def test_reading_rows_takes_one_request_of_these_rows(proxy: Proxy, lab: ObjectPath) -> None:
    scratch = Scratch(lab)
    ref = scratch.create("a", (1000, 50), np.float32, 500)
    ref.write(0, np.zeros((1000, 50), np.float32))
    before = proxy.n_requests
    ref.read(100, 110)
    ref.read(495, 505)
    assert proxy.n_requests - before == 3


def _finish(directory: RunDirectory, name: str, key: str, values: Any = (0, 1, 2)) -> None:
    directory.stage_scratch(name).put("values", np.array(values))
    directory.commit(name, key, MEASURED)


def _names(place: ObjectPath) -> set[str]:
    return own(place) - {".bigfs-run"}


def test_a_stage_is_there_once_the_manifest_names_it(lab: ObjectPath) -> None:
    with RunDirectory(lab).open() as first:
        _finish(first, "graph", "key")
        folder = first.stage_path("graph").name
        assert folder == f"graph-{first.attempt}.zarr"
    assert _names(lab) == {folder, "manifest.json"}
    with RunDirectory(str(lab)).open() as second:
        assert second.finished("graph", "key")["seconds"] == 1.0
        assert second.finished("graph", "other") is None
        values = ArrayRef.at(second.stage_path("graph") / "values").load()
        np.testing.assert_array_equal(values, [0, 1, 2])
        _finish(second, "graph", "other", [7])
        assert ArrayRef.at(second.stage_path("graph") / "values").load().tolist() == [7]
    assert _names(lab) == {second.stage_path("graph").name, "manifest.json"}
    with RunDirectory(lab).open(fresh=True) as third:
        assert third.finished("graph", "other") is None
        assert third.is_intact("graph")
        third.finish()
    assert _names(lab) == {"manifest.json"}


def test_leftovers_of_a_killed_run_are_swept(lab: ObjectPath) -> None:
    with RunDirectory(lab).open() as directory:
        _finish(directory, "graph", "key")
        kept = directory.stage_path("graph").name
    dead = RunDirectory(lab)
    holding = dead.open()
    holding.__enter__()
    dead.stage_scratch("spectral").put("values", np.arange(3))
    dead.work_scratch("spectral").put("values", np.arange(3))
    left = dead.stage_target("spectral")
    # As if it had been killed: nothing is cleaned up, and the lease is not renewed.
    dead.lease._stop.set()
    record = json.loads((lab / "lease.json").read_text())
    (lab / "lease.json").write_text(json.dumps({**record, "pid": 2**40}))
    with RunDirectory(lab).open() as directory:
        assert directory.finished("graph", "key") is not None
        assert not left.exists() and not dead.attempt_path.exists()
        assert _names(lab) == {kept, "manifest.json", "lease.json"}


def test_an_interrupted_stage_leaves_nothing(lab: ObjectPath) -> None:
    with pytest.raises(RuntimeError, match="stop"), RunDirectory(lab).open() as directory:
        _finish(directory, "graph", "key")
        directory.stage_scratch("spectral").put("half", np.zeros(3))
        directory.work_scratch("spectral").put("temporary", np.zeros(3))
        raise RuntimeError("stop")
    assert _names(lab) == {directory.stage_path("graph").name, "manifest.json"}


def test_objects_of_a_late_task_do_not_matter_and_missing_ones_do(lab: ObjectPath) -> None:
    with RunDirectory(lab).open() as directory:
        _finish(directory, "graph", "key")
        stored = directory.stage_path("graph")
        (stored / "runs" / "run-000000-late").write_text("of a task that was given up")
        assert directory.is_intact("graph")
        (stored / "values" / "c.0").write_text("cut off")
        assert not directory.is_intact("graph")
        (stored / "values" / "c.0").unlink()
        assert directory.why_stale("graph", "key", 1, {}) == "files of its result are missing"


def test_a_second_run_is_locked_out(lab: ObjectPath) -> None:
    with RunDirectory(lab).open():
        with (
            pytest.raises(RunLockedError, match="another run holds this directory") as caught,
            RunDirectory(lab).open(),
        ):
            pass
        assert caught.value.exit_code == 75
        assert (lab / "lease.json").exists()
    assert not (lab / "lease.json").exists()


def _write_lease(lab: ObjectPath, **record: Any) -> None:
    held = {"owner": "o", "pid": os.getpid(), "host": "elsewhere", "beat": time.time(), **record}
    (lab / "lease.json").write_text(json.dumps(held))


@pytest.mark.parametrize("store", ["ignores", "none"])
def test_a_bucket_without_conditional_writes_is_refused(
    proxy: Proxy, lab: ObjectPath, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "0.5")
    proxy.store = store
    with (
        pytest.raises(InputError, match="not support conditional writes.* on a disk") as caught,
        RunDirectory(lab).open(),
    ):
        raise AssertionError
    assert caught.value.exit_code == 2
    assert not own(lab)


@pytest.mark.parametrize("failures", [(), ("lost",), ("half", "cut")])
def test_entity_tags_without_quotes_are_those_of_ceph(
    proxy: Proxy, lab: ObjectPath, failures: tuple[str, ...]
) -> None:
    proxy.store, proxy.failures, proxy.fail_every = "ceph", failures, 3 if failures else 0
    with RunDirectory(lab).open() as directory:
        _finish(directory, "graph", "k")
        directory.write()
        directory.lease.check()
        with pytest.raises(RunLockedError, match="another run holds"), RunDirectory(lab).open():
            raise AssertionError
    before = proxy.n_requests
    proxy.fail_every = 0
    with RunDirectory(lab).open() as directory:
        assert directory.finished("graph", "k")
    assert proxy.n_requests - before < 30  # it is tried once in a process


def test_a_lease_is_taken_over_when_it_does_not_change_or_its_process_is_gone(
    lab: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_lease(lab, beat=time.time() - 40)
    with pytest.raises(RunLockedError, match="on elsewhere"), Lease(lab):
        pass
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.5)
    _write_lease(lab, beat=time.time() + 61)
    with Lease(lab):
        assert json.loads((lab / "lease.json").read_text())["pid"] == os.getpid()
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)
    _write_lease(lab, host=socket.gethostname(), pid=child, kernel=lease._kernel())
    with Lease(lab):
        pass


def test_of_many_runs_at_once_one_gets_the_lease(lab: ObjectPath) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(6)

    def take() -> None:
        barrier.wait(30)
        try:
            with Lease(lab):
                outcomes.append("held")
                time.sleep(1)
        except RunLockedError:
            outcomes.append("locked")

    threads = [threading.Thread(target=take, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["held"] + ["locked"] * 5


def test_a_frozen_run_does_not_come_back(lab: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    with RunDirectory(lab).open() as frozen:
        _finish(frozen, "graph", "key")
        before = json.loads((lab / "lease.json").read_text())["beat"]
        deadline = time.monotonic() + 10
        while json.loads((lab / "lease.json").read_text())["beat"] == before:
            assert time.monotonic() < deadline, "the heart does not beat"
        frozen.stage_scratch("spectral").put("values", np.zeros(3))
        _write_lease(lab)
        time.sleep(0.3)  # several beats
        with pytest.raises(RunLockedError, match="another one took its place"):
            frozen.commit("spectral", "key", {})
    assert json.loads((lab / "lease.json").read_text())["owner"] == "o"


def test_a_manifest_of_another_run_is_not_overwritten(lab: ObjectPath) -> None:
    with RunDirectory(lab).open() as frozen:
        _finish(frozen, "graph", "key")
        other = RunDirectory(lab).read()
        _finish_without_lease(other)
        with pytest.raises(RunLockedError, match="another one took its place"):
            frozen.write()
    assert set(RunDirectory(lab).read().manifest["stages"]) == {"graph", "spectral"}


def _finish_without_lease(directory: RunDirectory) -> None:
    directory.manifest["stages"]["spectral"] = {
        **{"key": "k", "attempt": "0" * 12, "folder": "spectral.zarr", "stored": {}}
    }
    directory.write()


def test_a_place_of_other_objects_is_refused(lab: ObjectPath) -> None:
    (lab / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="not a bigfs run"), RunDirectory(lab).open(fresh=True):
        pass
    with pytest.raises(InputError, match="is a file"), RunDirectory(lab / "thesis.tex").open():
        pass


@pytest.mark.parametrize("name", ["zarr.json", "scores/c.0"])
def test_an_object_of_a_stage_that_was_changed_is_noticed(
    bucket: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = {
        "run": f"{bucket}/run",
        "input": {"uri": "sklearn:iris"},
        "method": "max_variance",
        "n_features_to_select": 2,
    }
    expected = run(config).scores
    place = RunDirectory(config["run"]).read().stage_path("result") / name
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(bytes(content))
    with pytest.raises(CorruptStoreError, match=f"{name} was changed"):
        inspect(config["run"], verify=True)
    with caplog.at_level("INFO", "bigfs"):
        np.testing.assert_array_equal(run(config).scores, expected)
    assert f"{name} of its result was changed" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "bigfs"):
        run(config)
    assert "was changed" not in caplog.text


def test_a_copy_of_a_run_is_read_whatever_its_tags(bucket: str) -> None:
    config = {
        "run": f"{bucket}/run",
        "input": {"uri": "sklearn:iris"},
        "method": "max_variance",
        "n_features_to_select": 2,
    }
    ranking = run(config).ranking.tolist()
    source, copy = as_location(config["run"]), as_location(f"{bucket}/copy")
    for name in files_below(source):
        content = (source / name).read_bytes()
        if name.endswith("zarr.json"):  # an object of several parts, which has a tag of its own
            client(copy.scheme, copy.bucket).put(f"{copy.key}/{name}", content, use_multipart=True)
        else:
            (copy / name).write_bytes(content)
    assert open_result(str(copy)).ranking.tolist() == ranking
    assert "unchanged" in inspect(str(copy), verify=True)
