"""Places in a bucket of a real S3-compatible server do what folders do."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.errors import CorruptStoreError, InputError, RunLockedError, StorageError
from bigfs.graph import knn_graph, partition
from bigfs.store import lease, objects
from bigfs.store.fingerprint import fingerprint
from bigfs.store.formats.zarr_array import UNFINISHED
from bigfs.store.ingest import ingest
from bigfs.store.labels import load_labels
from bigfs.store.lease import Lease
from bigfs.store.location import (
    Location,
    as_location,
    copy_tree,
    files_below,
    free_bytes,
    new_file,
    remove_tree,
    replaced_file,
    write_atomic,
)
from bigfs.store.objects import ConflictError, ObjectPath
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes
from bigfs.store.source import is_store, open_matrix
from bigfs.store.verify import verify
from tests._s3 import KEY, SECRET, Proxy

X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
Y = np.repeat([3, 5], 25)


@pytest.fixture(params=["folder", "bucket"])
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
        objects._client.cache_clear()
        yield running


# ---- places


def test_a_place_has_the_face_of_a_path(place: Location) -> None:
    file = place / "a.zarr" / "zarr.json"
    assert not file.exists() and not file.is_file() and not (place / "a.zarr").exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("one")
    (place / "b.txt").write_text("three")
    assert file.is_file() and not file.is_dir() and file.parent.is_dir()
    assert (place / "a.zarr").exists() and not (place / "a.zar").exists()
    assert file.read_text() == "one" and file.stat().st_size == 3
    assert sorted(path.name for path in place.iterdir()) == ["a.zarr", "b.txt"]
    assert [path.name for path in place.glob("*.zarr")] == ["a.zarr"]
    assert (file.name, file.stem, file.parent.stem) == ("zarr.json", "zarr", "a")
    assert str(file.with_name("x")) == f"{place}/a.zarr/x"
    assert {name: size for name, (size, _) in files_below(place).items()} == {
        "a.zarr/zarr.json": 3,
        "b.txt": 5,
    }
    file.unlink()
    file.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        file.read_text()
    remove_tree(place)
    remove_tree(place)
    assert not place.exists()


def test_a_file_is_whole_or_not_there(place: Location) -> None:
    with new_file(place / "new") as file:
        file.write(b"12")
        file.write(memoryview(np.arange(3, dtype=np.uint8)))
    with (place / "new").open("rb") as file:
        assert file.read() == b"12\0\1\2"
    for opened in (new_file, replaced_file):
        with pytest.raises(ZeroDivisionError), opened(place / opened.__name__) as file:
            file.write(b"half")
            raise ZeroDivisionError
    if isinstance(place, ObjectPath):
        assert list(files_below(place)) == ["new"]
    write_atomic(place / "new", "old")
    with pytest.raises(ZeroDivisionError), replaced_file(place / "new") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert (place / "new").read_text() == "old"


def test_large_files_are_sent_in_parts_and_read_by_ranges(place: Location) -> None:
    values = np.random.default_rng(1).integers(0, 2**31, 5 * 10**6).astype(np.int32)
    with new_file(place / "large") as file:
        for start in range(0, len(values), 10**6):
            part = memoryview(values[start : start + 10**6]).cast("B")
            while len(part):
                part = part[file.write(part) :]
    with (place / "large").open("rb", buffering=0) as file:
        out = np.empty(1000, np.int32)
        file.seek(4 * 3_999_900)
        assert file.readinto(memoryview(out).cast("B")) == 4000
        np.testing.assert_array_equal(out, values[3_999_900:4_000_900])
        file.seek(-400, os.SEEK_END)
        assert file.readinto(memoryview(out).cast("B")) == 400
        assert file.readinto(memoryview(out).cast("B")) == 0
    with (place / "large").open("rb") as file:
        np.testing.assert_array_equal(np.frombuffer(file.read(), np.int32), values)
    with (place / "empty").open("wb"):
        pass
    with (place / "empty").open("rb") as file:
        assert file.read() == b""


def test_archives_pass_through_a_place(place: Location) -> None:
    with replaced_file(place / "state.npz") as file:
        np.savez(file, a=np.arange(5), b=np.ones((2, 3)))
    with (place / "state.npz").open("rb") as file, np.load(file) as stored:
        np.testing.assert_array_equal(stored["a"], np.arange(5))
        assert stored["b"].shape == (2, 3)


def test_a_tree_is_copied(place: Location) -> None:
    Scratch(place / "from").put("a", np.arange(4))
    copy_tree(place / "from", place / "to")
    np.testing.assert_array_equal(ArrayRef.at(place / "to" / "a").load(), np.arange(4))


def test_only_a_bucket_has_no_end(place: Location) -> None:
    free = free_bytes(place)
    assert free is None if isinstance(place, ObjectPath) else free > 0
    Scratch(place).check_free("graph", 1)


def test_conditional_writes(lab: ObjectPath) -> None:
    first = (lab / "x").write_if("1", None)
    with pytest.raises(ConflictError):
        (lab / "x").write_if("2", None)
    second = (lab / "x").write_if("2", first)
    with pytest.raises(ConflictError):
        (lab / "x").write_if("3", first)
    assert (lab / "x").read_status() == ("2", second)
    (lab / "x").unlink()
    with pytest.raises(ConflictError):  # a heartbeat does not resurrect what is gone
        (lab / "x").write_if("3", second)
    assert not (lab / "x").exists()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s3://", "must be s3://BUCKET/NAME"),
        ("s3://lab", "must be s3://BUCKET/NAME"),
        ("gs://lab//x", "without empty parts"),
        ("az://lab/a/../x", "without empty parts or dots"),
        ("ftp://u:p4ss@host/x?k=p4ss", "^ftp://host/x: only local paths and s3://, gs://, az://"),
        ("https://lab/x?X-Amz-Signature=p4ss", "^https://lab/x: only local"),
        ("s3://u:p4ss@lab/x", "^s3://lab/x: the address must not hold a user"),
        ("s3://lab/x?secret=p4ss#p4ss", "^s3://lab/x: the address must not hold"),
    ],
)
def test_addresses_that_are_none(uri: str, said: str) -> None:
    for use in (as_location, open_matrix, load_labels, RunDirectory, Scratch, fingerprint):
        with pytest.raises(InputError, match=said) as caught:
            use(uri)
        assert "p4ss" not in str(caught.value)


def test_the_other_clouds_go_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    for uri in ("az://lab/x", "gs://lab/x"):
        place = as_location(uri)
        assert isinstance(place, ObjectPath) and str(place) == uri
        assert objects.client(place.scheme, place.bucket) is not None
    objects._client.cache_clear()


def test_credentials_of_a_profile(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(
        f"[night]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    (tmp_path / "config").write_text("[profile night]\nregion = us-east-1\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "night")
    objects._client.cache_clear()
    place = as_location(f"{bucket}/x")
    place.write_text("read by a profile")
    assert place.read_text() == "read by a profile"


def test_without_the_extra_the_message_names_it(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InputError, match=r"pip install 'bigfs\[s3\]'") as caught:
        open_matrix(f"{bucket}/X.npy")
    assert caught.value.exit_code == 2


# ---- storage that fails


def test_requests_that_fail_now_and_then_are_made_again(proxy: Proxy, lab: ObjectPath) -> None:
    proxy.fail_every = 5
    for i in range(30):
        (lab / str(i)).write_text(str(i))
        assert (lab / str(i)).read_text() == str(i)
    assert len(files_below(lab)) == 30
    assert proxy.n_failed > 10


def test_answers_that_end_in_the_middle_are_asked_for_again(proxy: Proxy, lab: ObjectPath) -> None:
    values = np.random.default_rng(2).integers(0, 2**31, 10**6)
    ref = Scratch(lab).put("a", values)
    ingest(values.reshape(-1, 4).astype(np.float32), lab / "X.zarr", rows=50_000)
    source = open_matrix(str(lab / "X.zarr"))
    source.read(0, 10)
    proxy.failures, proxy.fail_every = ("half",), 2
    for _ in range(3):
        np.testing.assert_array_equal(ref.read(1000, 900_000), values[1000:900_000])
        found = source.read(10, 200_000)
        np.testing.assert_array_equal(found, values.reshape(-1, 4)[10:200_000].astype("f4"))
    assert proxy.n_failed > 3


def test_an_answer_that_is_lost_is_no_conflict_with_oneself(proxy: Proxy, lab: ObjectPath) -> None:
    proxy.failures = ("lost",)
    with RunDirectory(lab / "run").open() as directory:
        proxy.fail_every = 2
        for _ in range(4):
            directory.write()
        proxy.fail_every = 0
    proxy.fail_every = 1
    held = Lease(lab)
    threading.Timer(0.2, lambda: setattr(proxy, "fail_every", 0)).start()
    with held:
        held.check()


def test_storage_that_is_gone_says_so(proxy: Proxy, lab: ObjectPath) -> None:
    Scratch(lab).put("a", np.arange(3))
    ref = ArrayRef.at(lab / "a")
    proxy.is_gone = True
    began = time.monotonic()
    with pytest.raises(StorageError, match="the server does not answer.*run again") as caught:
        ref.load()
    assert 1 < time.monotonic() - began < 15
    assert caught.value.exit_code == 4
    said = f"{caught.value} {caught.value.__cause__}"
    assert KEY not in said and SECRET not in said and proxy.endpoint not in said
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), StorageError)
    proxy.is_gone = False
    np.testing.assert_array_equal(ref.load(), np.arange(3))


def test_a_bucket_that_is_not_there(bucket: str) -> None:
    with (
        pytest.raises(InputError, match="there is no bucket 'no-such-lab'"),
        RunDirectory("s3://no-such-lab/run").open(),
    ):
        pass


def test_credentials_stay_where_they_are(lab: ObjectPath) -> None:
    ingest(X, lab / "X.zarr")
    source = open_matrix(str(lab / "X.zarr"))
    source.iter_blocks(10)
    scratch = Scratch(lab / "work")
    things = [source, scratch.put("a", X), scratch.put("a", X).open(scratch), lab / "x"]
    for thing in things:
        sent = pickle.dumps(thing)
        assert KEY.encode() not in sent and SECRET.encode() not in sent
        assert KEY not in repr(thing)
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again.read(3, 7), X[3:7])


# ---- shared arrays


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
    found = Scratch(place).put("a", values).load()
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


def test_reading_rows_takes_one_request_of_these_rows(proxy: Proxy, lab: ObjectPath) -> None:
    scratch = Scratch(lab)
    ref = scratch.create("a", (1000, 50), np.float32, 500)
    ref.write(0, np.zeros((1000, 50), np.float32))
    before = proxy.n_requests
    ref.read(100, 110)
    ref.read(495, 505)
    assert proxy.n_requests - before == 3


# ---- run directories


def _finish(directory: RunDirectory, name: str, key: str, values: Any = (0, 1, 2)) -> None:
    directory.stage_scratch(name).put("values", np.array(values))
    directory.commit(name, key, {"seconds": 1.0})


def _names(place: ObjectPath) -> set[str]:
    return {path.name for path in place.iterdir()}


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
    assert not lab.exists() or _names(lab) <= {"manifest.json"}


def test_leftovers_of_a_killed_run_are_swept(lab: ObjectPath) -> None:
    with RunDirectory(lab).open() as directory:
        _finish(directory, "graph", "key")
        kept = directory.stage_path("graph").name
    dead = RunDirectory(lab)
    dead.stage_scratch("spectral").put("values", np.arange(3))
    dead.work_scratch("spectral").put("values", np.arange(3))
    with RunDirectory(lab).open() as directory:
        assert directory.finished("graph", "key") is not None
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
        (stored / "values" / "c" / "0").write_text("cut off")
        assert not directory.is_intact("graph")
        (stored / "values" / "c" / "0").unlink()
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


def test_a_lease_is_taken_over_when_it_is_stale_or_its_process_is_gone(lab: ObjectPath) -> None:
    _write_lease(lab, beat=time.time() - 59)
    with pytest.raises(RunLockedError, match="on elsewhere"), Lease(lab):
        pass
    _write_lease(lab, beat=time.time() - 61)
    with Lease(lab):
        assert json.loads((lab / "lease.json").read_text())["pid"] == os.getpid()
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    _write_lease(lab, host=socket.gethostname(), pid=child)
    with Lease(lab):
        pass


def test_of_many_runs_at_once_one_gets_the_lease(lab: ObjectPath) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(6)

    def take() -> None:
        barrier.wait()
        try:
            with Lease(lab):
                outcomes.append("held")
                time.sleep(1)
        except RunLockedError:
            outcomes.append("locked")

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
    directory.manifest["stages"]["spectral"] = {"key": "k", "stored": {}}
    directory.write()


def test_a_place_of_other_objects_is_refused(lab: ObjectPath) -> None:
    (lab / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="not a bigfs run"), RunDirectory(lab).open(fresh=True):
        pass
    with pytest.raises(InputError, match="is a file"), RunDirectory(lab / "thesis.tex").open():
        pass


# ---- inputs and labels


def _table(separator: str) -> bytes:
    lines = [separator.join("abcd"), *(separator.join(map(repr, row)) for row in X.tolist())]
    return ("\n".join(lines) + "\n").encode()


def _upload(folder: Path, lab: ObjectPath, name: str) -> str:
    """Write the matrix in some format, and bring it into the bucket."""
    local = folder / name
    if name.endswith(".npy"):
        np.save(local, X)
    elif name.endswith(".npz"):
        np.savez_compressed(local, X=X, y=Y)
    elif ".csv" in name:
        content = _table(",")
        local.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    elif name.endswith(".parquet"):
        import pandas as pd

        pd.DataFrame(X, columns=list("abcd")).to_parquet(local)
    elif name.endswith(".mat"):
        from scipy.io import savemat

        savemat(local, {"X": X})
    else:
        import zarr

        form = 2 if "v2" in name else 3
        array = zarr.create_array(
            str(local), shape=X.shape, chunks=(15, 4), dtype=X.dtype, zarr_format=form
        )
        array[:] = X
        for path, _ in files_below(local).items():
            (lab / name / path).write_bytes((local / path).read_bytes())
        return str(lab / name)
    (lab / name).write_bytes(local.read_bytes())
    return str(lab / name)


_FORMATS = ["X.npy", "X.npz", "X.csv", "X.csv.gz", "X.parquet", "X.mat", "v2.zarr", "v3.zarr"]


@pytest.mark.parametrize("name", _FORMATS)
def test_every_format_is_read_from_a_bucket(tmp_path: Path, lab: ObjectPath, name: str) -> None:
    uri = _upload(tmp_path, lab, name)
    source = open_matrix(uri)
    assert source.uri.startswith(uri)
    found = np.concatenate(list(source.iter_blocks(20)))
    np.testing.assert_allclose(found, X, rtol=1e-6)
    report = ingest(uri, lab / "store.zarr", rows=20)
    assert str(report.path) == f"{lab}/store.zarr" and report.n_chunks == 3
    assert verify(str(report.path)).ok and is_store(report.path)
    np.testing.assert_allclose(open_matrix(str(report.path)).read(18, 45), X[18:45], rtol=1e-6)


def test_npy_is_read_by_ranges_and_fortran_order_is_refused(
    proxy: Proxy, tmp_path: Path, lab: ObjectPath
) -> None:
    source = open_matrix(_upload(tmp_path, lab, "X.npy"))
    before = proxy.n_requests
    np.testing.assert_array_equal(source.read(10, 20), X[10:20])
    assert proxy.n_requests - before == 1
    np.save(tmp_path / "F.npy", np.asfortranarray(X))
    (lab / "F.npy").write_bytes((tmp_path / "F.npy").read_bytes())
    with pytest.raises(InputError, match=r"stored by columns.*numpy\.ascontiguousarray"):
        open_matrix(str(lab / "F.npy"))


def test_inputs_that_are_not_there_or_are_damaged(tmp_path: Path, lab: ObjectPath) -> None:
    with pytest.raises(InputError, match=r"no\.npy does not exist"):
        open_matrix(str(lab / "no.npy"))
    with pytest.raises(InputError, match="does not exist"):
        load_labels(str(lab / "no.npy"))
    whole = _upload(tmp_path, lab, "X.npy")
    content = as_location(whole).read_bytes()
    (lab / "cut.npy").write_bytes(content[:-100])
    with pytest.raises(InputError, match="cut off"):
        open_matrix(str(lab / "cut.npy"))
    (lab / "text.npz").write_text("no archive")
    with pytest.raises(InputError, match="not a .npz file"):
        open_matrix(str(lab / "text.npz"))
    (lab / "odd" / "file").write_text("x")
    with pytest.raises(InputError, match="no zarr array or group"):
        open_matrix(str(lab / "odd"))


def test_labels_are_read_from_a_bucket(tmp_path: Path, lab: ObjectPath) -> None:
    np.save(tmp_path / "y.npy", Y)
    (lab / "y.npy").write_bytes((tmp_path / "y.npy").read_bytes())
    (lab / "y.csv").write_text("\n".join(["class", *map(str, Y)]))
    npz = _upload(tmp_path, lab, "X.npz")
    Scratch(lab / "y.zarr").put("y", Y)
    Scratch(lab / "y.zarr").describe()
    for uri in (f"{lab}/y.npy", f"{npz}::y", f"{lab}/y.csv::class", f"{lab}/y.zarr::y"):
        np.testing.assert_array_equal(load_labels(uri, 50), np.repeat([0, 1], 25))


def test_a_fingerprint_tells_changed_objects(tmp_path: Path, lab: ObjectPath) -> None:
    for name in ("X.npy", "v3.zarr"):
        uri = _upload(tmp_path, lab, name)
        first = fingerprint(uri)
        assert fingerprint(uri) == first
        at = as_location(uri) if name == "X.npy" else as_location(uri) / "c" / "0" / "0"
        content = bytearray(at.read_bytes())
        content[-1] ^= 1
        at.write_bytes(bytes(content))
        assert fingerprint(uri) != first


# ---- stores


def test_a_missing_or_changed_chunk_is_named(lab: ObjectPath) -> None:
    ingest(X, lab / "X.zarr", rows=10)
    source = open_matrix(str(lab / "X.zarr"))
    changed = lab / "X.zarr" / "X" / "c" / "1" / "0"
    content = bytearray(changed.read_bytes())
    content[20] ^= 1
    changed.write_bytes(bytes(content))
    with pytest.raises(CorruptStoreError, match="rows 10 to 20 cannot be decoded"):
        source.read(10, 20)
    assert verify(lab / "X.zarr").mismatched == ["X/c/1/0"]
    (lab / "X.zarr" / "X" / "c" / "3" / "0").unlink()
    with pytest.raises(CorruptStoreError, match="chunk c/3/0 is missing"):
        source.read(30, 35)
    with pytest.raises(CorruptStoreError, match=r"X/c/3/0 is missing \(1 of 5\)"):
        open_matrix(str(lab / "X.zarr"))
    assert verify(lab / "X.zarr").missing == ["X/c/3/0"]


def test_a_chunk_that_others_left_out_reads_as_their_fill_value(
    tmp_path: Path, lab: ObjectPath, caplog: pytest.LogCaptureFixture
) -> None:
    uri = _upload(tmp_path, lab, "v3.zarr")
    (as_location(uri) / "c" / "1" / "0").unlink()
    source = open_matrix(uri)
    assert "not stored (1 of 4)" in caplog.text
    assert not source.read(15, 30).any()


def test_a_store_is_there_when_it_is_whole(lab: ObjectPath) -> None:
    dest = lab / "X.zarr"
    bad = X.copy()
    bad[45, 2] = np.nan
    with pytest.raises(InputError, match="row 45, column 2 is NaN"):
        ingest(bad, dest, rows=10)
    assert not dest.exists()
    ingest(X, dest, rows=10)
    with pytest.raises(InputError, match="already exists"):
        ingest(X, dest)
    ingest(X + 1, dest, rows=25, overwrite=True)
    np.testing.assert_array_equal(open_matrix(str(dest)).read(0, 50), X + 1)
    assert len(files_below(dest / "X" / "c")) == 2
    # As if the process had been killed on the way.
    (dest / UNFINISHED).write_text("")
    with pytest.raises(InputError, match=r"is not finished.*--overwrite"):
        open_matrix(str(dest))
    ingest(X, dest, overwrite=True)
    assert verify(dest).ok
    (lab / "other" / "file").write_text("x")
    with pytest.raises(InputError, match="not a store that bigfs wrote"):
        ingest(X, lab / "other", overwrite=True)


def test_a_shuffle_in_a_bucket_reads_larger_slices_to_the_same_graph(
    lab: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[partition.PartitionPlan] = []

    def planned(*shape: Any, **options: Any) -> partition.PartitionPlan:
        plans.append(partition.plan_partitions(*shape, **options))
        return plans[-1]

    monkeypatch.setattr(partition, "_SLICE_BYTES", 100)
    monkeypatch.setattr("bigfs.graph.knn.plan_partitions", planned)
    rows = np.repeat(X, 12, axis=0) + np.arange(600)[:, None]
    found = []
    for scratch in (Scratch(), Scratch(lab)):
        graph = knn_graph(RowBlocks.from_any(rows, rows=50), 5, n_partitions=4, scratch=scratch)
        found.append(graph.indices[:].tobytes() + graph.distances[:].tobytes())
    assert plans[0].run_blocks < plans[1].run_blocks
    assert found[0] == found[1]
