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
from bigfs.store import buckets
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
    read_into,
    read_version,
    remove_tree,
    replaced_file,
    write_atomic,
)
from bigfs.store.objects import ConflictError, ObjectPath
from bigfs.store.pages import open_own
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes
from bigfs.store.source import open_matrix
from tests._s3 import KEY, SECRET, Proxy, private_authority

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
    assert (file.name, file.parent.name) == ("zarr.json", "a.zarr")
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
    with replaced_file(place / "new", own=True) as file:
        file.write(b"12")
        file.write(memoryview(np.arange(3, dtype=np.uint8)))
    with open_own(place / "new") as file:
        assert file.read() == b"12\0\1\2"
    for own in (True, False):
        with pytest.raises(ZeroDivisionError), replaced_file(place / "other", own=own) as file:
            file.write(b"half")
            raise ZeroDivisionError
    assert not (place / "other").exists()
    assert list(files_below(place)) == ["new"]
    write_atomic(place / "new", "old")
    with pytest.raises(ZeroDivisionError), replaced_file(place / "new") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert (place / "new").read_text() == "old"
    assert list(files_below(place)) == ["new"]


def test_a_response_after_a_damaged_one_is_judged_by_itself() -> None:
    answers = [buckets.DamagedError("a byte"), FileNotFoundError("gone"), None]

    def action() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    with pytest.raises(FileNotFoundError):
        buckets.again(ObjectPath("s3", "lab", "x"), "read", action)
    assert answers == [None]


def test_large_files_are_sent_in_parts_and_read_by_ranges(place: Location) -> None:
    values = np.random.default_rng(1).integers(0, 2**31, 5 * 10**6).astype(np.int32)
    with replaced_file(place / "large", own=True) as file:
        for start in range(0, len(values), 10**6):
            part = memoryview(values[start : start + 10**6]).cast("B")
            while len(part):
                part = part[file.write(part) :]
    with open_own(place / "large", buffering=0) as file:
        out = np.empty(1000, np.int32)
        file.seek(4 * 3_999_900)
        assert file.readinto(memoryview(out).cast("B")) == 4000
        np.testing.assert_array_equal(out, values[3_999_900:4_000_900])
        file.seek(-400, os.SEEK_END)
        assert file.readinto(memoryview(out).cast("B")) == 400
        assert file.readinto(memoryview(out).cast("B")) == 0
    with open_own(place / "large") as file:
        np.testing.assert_array_equal(np.frombuffer(file.read(), np.int32), values)
    with replaced_file(place / "empty"):
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
    assert read_version(lab / "x") == ("2", second)
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
        ("s3://u:p4ss@lab/x", "^s3://lab/x: an address must not contain a user"),
        ("s3://lab/x?secret=p4ss#p4ss", "^s3://lab/x: an address must not contain"),
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
        assert buckets.client(place.scheme, place.bucket) is not None
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(InputError, match="there is no account: check AZURE_STORAGE_ACCOUNT_NAME"):
        buckets.client("az", "lab")


@pytest.mark.parametrize(
    ("scheme", "names"), [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_APPLICATION_CREDENTIALS")]
)
def test_the_keys_that_are_named_are_those_of_the_cloud(scheme: str, names: str) -> None:
    error = OSError("error sending request for http://169.254.169.254/token")
    assert f"there are no credentials: check {names}" in buckets._reason(error, scheme)


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
    place = as_location(f"{bucket}/x")
    place.write_text("read by a profile")
    assert place.read_text() == "read by a profile"
    monkeypatch.setenv("AWS_PROFILE", "day")
    with pytest.raises(
        InputError, match=r"profile \(day\) could not be found. Correct AWS_PROFILE"
    ):
        place.read_text()


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
        assert {"a", "X.zarr"} == {path.name for path in lab.iterdir()}
        assert lab.is_dir() and files_below(lab / "a")
        (lab / "a-file").unlink()
        remove_tree(lab / "b")
    assert proxy.n_failed > 3


def test_no_bit_of_an_answer_is_taken_that_was_not_written(proxy: Proxy, lab: ObjectPath) -> None:
    values = np.random.default_rng(2).integers(0, 2**31, (250_000, 4))
    small = np.arange(10.0)
    scratch = Scratch(lab)
    ref = scratch.create("a", values.shape, values.dtype, 100_003)
    for start in range(0, len(values), ref.chunk_rows):
        ref.write(start, values[start : start + ref.chunk_rows])
    ingest(values.astype(np.float32), lab / "X.zarr", rows=50_000)
    scratch.describe(norms=list(small))
    with replaced_file(lab / "own", own=True) as file:
        file.write(values)
    proxy.failures, proxy.fail_every = ("flip",), 2
    for start in (1, 99_999):
        stop = min(start + 120_000, len(values))
        np.testing.assert_array_equal(ref.read(start, stop), values[start:stop])
        rows = open_matrix(str(lab / "X.zarr")).read(start, stop)
        np.testing.assert_array_equal(rows, values[start:stop].astype(np.float32))
        assert read_attributes(lab) == {"norms": list(small)}
        with open_own(lab / "own", buffering=0) as file:
            read_into(file, start * 32, out := np.empty((100, 4), values.dtype))
        np.testing.assert_array_equal(out[: stop - start], values[start:stop][:100])
    assert proxy.n_flipped > 10
    proxy.fail_every = 1
    with pytest.raises(StorageError, match=r"checksums .* do not match.*--fresh") as caught:
        ref.read(0, 10)
    assert caught.value.exit_code == 4


def test_a_tag_that_is_no_checksum_takes_two_answers_that_agree() -> None:
    former: set[str] = set()
    for content in (b"one answer", b"another"):
        with pytest.raises(buckets.DamagedError):
            buckets.check_answer(content, f'"{32 * "0"}"', former)
    buckets.check_answer(b"one answer", f'"{32 * "0"}"', former)
    for tag in (None, '"0x8D1"', f'"{32 * "0"}-2"'):
        buckets.check_answer(b"any", tag, set())


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


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("403 InvalidAccessKeyId", "403 Forbidden, InvalidAccessKeyId: .*check AWS_ACCESS_KEY_ID"),
        ("403 SignatureDoesNotMatch", "403 .*: the secret does not belong to the key"),
        ("403 RequestTimeTooSkewed", "RequestTimeTooSkewed: the clock of this machine is wrong"),
        ("400 ExpiredToken", "ExpiredToken: the session token has expired: get a new"),
        ("400 AuthorizationHeaderMalformed", "another region: set AWS_REGION"),
        ("403", "access is denied: check AWS_ACCESS_KEY_ID .* and the clock"),
        ("410 NotHeardOf", "answers 410 Gone, NotHeardOf. .*when the storage answers"),
    ],
)
def test_refusals_have_the_code_of_the_storage_and_what_helps(
    proxy: Proxy, lab: ObjectPath, answer: str, expected: str
) -> None:
    proxy.failures, proxy.fail_every = (answer,), 1
    for request in (lab.iterdir, (lab / "a").read_bytes):
        with pytest.raises(StorageError, match=f"Cannot read {lab}.*{expected}") as caught:
            request()
        assert SECRET not in str(caught.value)


def test_without_credentials_they_are_asked_for(
    lab: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "0.5")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StorageError, match="there are no credentials: check AWS_ACCESS_KEY_ID"):
        (lab / "a").read_bytes()


def test_a_private_authority_is_trusted_once_it_is_named(
    s3_endpoint: str, lab: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab / "a").write_text("here")
    authority, context = private_authority(tmp_path)
    monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "0.5")
    with Proxy(s3_endpoint, context=context) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        with pytest.raises(StorageError, match="is not trusted: set AWS_CA_BUNDLE"):
            (lab / "a").read_text()
        for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
            with monkeypatch.context() as patch:
                patch.setenv(name, str(authority))
                assert (lab / "a").read_text() == "here"
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none"))
        with pytest.raises(InputError, match="AWS_CA_BUNDLE cannot be read: .*No such file"):
            (lab / "a").read_text()


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


@pytest.mark.parametrize("given", ["5m", "", "-1", "nan"])
def test_a_wrong_time_of_retries_is_named(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", given)
    with pytest.raises(InputError, match=f"a number of seconds, such as 300. Got '{given}'"):
        buckets.client("s3", "lab")
