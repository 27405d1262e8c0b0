"""Places in a bucket of a real S3-compatible server do what folders do, also when it fails."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bigfs.core.errors import InputError, StorageError
from bigfs.store import objects
from bigfs.store.fingerprint import fingerprint
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
from bigfs.store.scratch import ArrayRef, Scratch
from bigfs.store.source import open_matrix
from tests._s3 import KEY, SECRET, Proxy

X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


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
    ("uri", "expected"),
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
def test_addresses_that_are_none(uri: str, expected: str) -> None:
    for use in (as_location, open_matrix, load_labels, RunDirectory, Scratch, fingerprint):
        with pytest.raises(InputError, match=expected) as caught:
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
        rows = source.read(10, 200_000)
        np.testing.assert_array_equal(rows, values.reshape(-1, 4)[10:200_000].astype("f4"))
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
    message = f"{caught.value} {caught.value.__cause__}"
    assert KEY not in message and SECRET not in message and proxy.endpoint not in message
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
    values = [source, scratch.put("a", X), scratch.put("a", X).open(scratch), lab / "x"]
    for item in values:
        sent = pickle.dumps(item)
        assert KEY.encode() not in sent and SECRET.encode() not in sent
        assert KEY not in repr(item)
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again.read(3, 7), X[3:7])
