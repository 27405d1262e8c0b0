"""Matrices, labels and stores are read from a bucket of a real S3-compatible server."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.errors import CorruptStoreError, InputError, RunLockedError, StorageError
from bigfs.core.paths import as_text
from bigfs.graph import knn_graph, partition
from bigfs.pipeline.inspect import inspect
from bigfs.store.fingerprint import fingerprint
from bigfs.store.ingest import _in_bucket, ingest
from bigfs.store.labels import load_labels
from bigfs.store.lease import LEASE, Lease
from bigfs.store.location import (
    as_location,
    files_below,
)
from bigfs.store.objects import ObjectPath
from bigfs.store.records import UNFINISHED
from bigfs.store.scratch import Scratch
from bigfs.store.several import sources_of
from bigfs.store.source import is_store, open_matrix
from bigfs.store.verify import verify
from tests._s3 import Proxy
from tests.store.test_tenx import MAKERS

X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
Y = np.repeat([3, 5], 25)


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
    rows = np.concatenate(list(source.iter_blocks(20)))
    np.testing.assert_allclose(rows, X, rtol=1e-6)
    report = ingest(uri, lab / "store.zarr", rows=20)
    assert str(report.path) == f"{lab}/store.zarr" and report.n_chunks == 3
    assert verify(str(report.path)).ok and is_store(report.path)
    np.testing.assert_allclose(open_matrix(str(report.path)).read(18, 45), X[18:45], rtol=1e-6)


def test_globs_folders_and_lists_of_objects_are_one_matrix(tmp_path: Path, lab: ObjectPath) -> None:
    names = [f"p/day={day}/part-{i}.csv" for day in (1, 2) for i in (9, 10)]
    text = _table(",").decode()
    for i, name in enumerate(names):  # the second half has its columns in another order
        lines = [line.split(",") for line in text.splitlines()]
        lines = [line[::-1] if i > 1 else line for line in lines]
        (lab / name).write_text("".join(",".join(line) + "\n" for line in lines))
    (lab / "p/_SUCCESS").write_text("")
    places = [str(lab / name) for name in names]
    days = np.repeat([1.0, 2.0], 100)[:, None]
    kinds = {f"{lab}/p": True, f"{lab}/p/day=*/part-*.csv": True, as_text(places): False}
    for uri, has_days in kinds.items():
        source = open_matrix(uri)
        rows = np.concatenate(list(source.iter_blocks(30)))
        expected = np.tile(X, (4, 1))
        np.testing.assert_allclose(rows[:, :4], expected, rtol=1e-6)
        assert source.feature_names == [*"abcd", *(["day"] if has_days else [])]
        np.testing.assert_array_equal(rows[:, 4:], days if has_days else rows[:, 4:])
        np.testing.assert_array_equal(load_labels(f"{uri}::source"), np.repeat(range(4), 50))
    known = [fingerprint(uri) for uri in kinds]
    (lab / names[2]).write_text((lab / names[2]).read_bytes().decode().replace("1", "2"))
    assert not set(known) & {fingerprint(uri) for uri in kinds}
    with pytest.raises(InputError, match=r"p/\*.parquet matches no file"):
        open_matrix(f"{lab}/p/*.parquet")
    stores = [ingest(X[i : i + 25], lab / f"s/{i}.zarr").path for i in (0, 25)]
    source = open_matrix(f"{lab}/s/*.zarr")
    assert [part.uri for part in source.parts] == [str(store) for store in stores]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(20))), X)


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
    complete = _upload(tmp_path, lab, "X.npy")
    content = as_location(complete).read_bytes()
    (lab / "cut.npy").write_bytes(content[:-100])
    with pytest.raises(InputError, match="cut off"):
        open_matrix(str(lab / "cut.npy"))
    (lab / "text.npz").write_text("no archive")
    with pytest.raises(InputError, match="not a .npz file"):
        open_matrix(str(lab / "text.npz"))
    (lab / "odd" / "file").write_text("x")
    with pytest.raises(InputError, match="not a zarr array or group"):
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


@pytest.mark.parametrize("name", ["X.npy", "X.csv", "v3.zarr"])
def test_objects_that_change_while_they_are_ingested_are_refused(
    tmp_path: Path, lab: ObjectPath, name: str
) -> None:
    uri = _upload(tmp_path, lab, name)
    source = open_matrix(uri)
    source.begin()
    at = as_location(uri) if name != "v3.zarr" else as_location(uri) / "c" / "0" / "0"
    content = at.read_bytes()
    at.write_bytes(content[:-2] + content[-3:-1])
    with pytest.raises(InputError, match=f"{name} changed while it was read"):
        ingest(source, lab / "out.zarr")
    assert not (lab / "out.zarr").exists()
    at.write_bytes(content)
    ingest(uri, lab / "out.zarr")


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
    monkeypatch.setattr("bigfs.graph.build.plan_partitions", planned)
    rows = np.repeat(X, 12, axis=0) + np.arange(600)[:, None]
    results = []
    for scratch in (Scratch(), Scratch(lab)):
        graph = knn_graph(RowBlocks.from_any(rows, rows=50), 5, n_partitions=4, scratch=scratch)
        results.append(graph.indices[:].tobytes() + graph.distances[:].tobytes())
    assert plans[0].run_blocks < plans[1].run_blocks
    assert results[0] == results[1]


@pytest.mark.parametrize("name", MAKERS)
def test_counts_of_cell_ranger_are_read_from_a_bucket(
    tmp_path: Path, lab: ObjectPath, name: str
) -> None:
    local = MAKERS[name](tmp_path)
    for path in [local] if local.is_file() else list(local.iterdir()):
        (lab / str(path.relative_to(tmp_path))).write_bytes(path.read_bytes())
    uri = str(lab / local.name)
    assert not is_store(uri)
    ingest(uri, tmp_path / "X.zarr")
    actual, expected = open_matrix(tmp_path / "X.zarr"), open_matrix(local)
    assert actual.feature_names == expected.feature_names
    rows = [np.concatenate(list(source.iter_blocks(15))) for source in (actual, expected)]
    np.testing.assert_array_equal(*rows)


def test_a_sparse_store_lies_in_a_bucket(lab: ObjectPath) -> None:
    from scipy.sparse import random_array

    sparse = random_array((103, 9), density=0.2, format="csr", rng=np.random.default_rng(0))
    ingest(sparse, lab / "X.zarr", rows=20)
    source = open_matrix(str(lab / "X.zarr"))
    assert source.sparse
    stored = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(stored.read(15, 90), sparse[15:90].toarray())
    assert verify(lab / "X.zarr").ok
    (lab / "X.zarr" / "X/1/data/c/0").unlink()
    with pytest.raises(CorruptStoreError, match="block 1 cannot|X/1/data"):
        stored.read(20, 40)


@pytest.mark.parametrize("name", ["X.csv", "X.zarr"])
def test_storage_that_fails_while_an_input_is_read_is_no_bad_input(
    tmp_path: Path, lab: ObjectPath, proxy: Proxy, name: str
) -> None:
    if name == "X.zarr":
        ingest(X, lab / name, rows=20)
        source = open_matrix(str(lab / name))
    else:
        source = open_matrix(_upload(tmp_path, lab, name))
    source.begin()
    next(source.iter_blocks(20))
    proxy.is_gone = True
    with pytest.raises(StorageError, match="run again when the storage answers") as caught:
        source.check_unchanged()
    assert caught.value.exit_code == 4


def test_globs_match_in_a_bucket_as_they_do_on_a_disk(bucket: str, tmp_path: Path) -> None:
    names = ("a.csv", ".hidden.csv", "b/c.csv", "b/d/e.csv", "b/.f/g.csv", "x.npy")
    for i, name in enumerate(names):
        place = tmp_path / "data" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"p,q\n{i},1\n{i},2\n")
        (as_location(f"{bucket}/data") / name).write_text(place.read_text())
    for pattern in ("*.csv", "**/*.csv", "*/*.csv", "b/**/e.csv", "**/[ce].csv", "b/**/*"):
        on_disk = sources_of(f"{tmp_path}/data/{pattern}")
        in_bucket = sources_of(f"{bucket}/data/{pattern}")
        assert on_disk is not None and in_bucket is not None
        parts = [name.removeprefix(f"{bucket}/") for name in in_bucket]
        assert parts == [name.removeprefix(f"{tmp_path}/") for name in on_disk], pattern
    assert open_matrix(f"{bucket}/data/**/*.csv").n_features == 2
    # A folder and the files in it are not both read.
    files = [f"{tmp_path}/data/{name}" for name in ("b/c.csv", "b/d/e.csv")]
    assert sources_of(f"{tmp_path}/data/b/**") == files
    with pytest.raises(InputError, match="below a folder of the bucket"):
        sources_of(f"{bucket}/*.csv")


def test_data_with_latest_in_their_name_are_data(bucket: str) -> None:
    place = as_location(f"{bucket}/data-latest.csv")
    place.write_text("p,q\n1,2\n3,4\n5,6\n")
    assert "the first 3 rows" in inspect(str(place))


def test_two_ingests_to_one_address_do_not_mix(bucket: str, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.arange(40.0).reshape(20, 2))
    dest = as_location(f"{bucket}/X.zarr")
    with Lease(dest):  # of another process
        with pytest.raises(RunLockedError):
            ingest(str(tmp_path / "X.npy"), dest, overwrite=True)
    ingest(str(tmp_path / "X.npy"), dest)
    assert open_matrix(dest).n_samples == 20 and not (dest / LEASE).exists()
    with pytest.raises(InputError, match="already exists"):
        ingest(str(tmp_path / "X.npy"), dest)
    assert ingest(str(tmp_path / "X.npy"), dest, overwrite=True).n_samples == 20
    left, others = dest.with_name("X.zarr.partial-0123abcd"), dest.with_name("X.zarr.partial-my")
    (left / "zarr.json").write_text("{}")
    (others / "zarr.json").write_text("{}")
    ingest(str(tmp_path / "X.npy"), dest, append=True)
    assert not left.exists() and others.exists() and open_matrix(dest).n_samples == 40


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_an_ingest_that_lost_its_place_touches_nothing(bucket: str, error: Any) -> None:
    dest = as_location(f"{bucket}/X.zarr")
    with pytest.raises(error or RunLockedError), _in_bucket(dest, True) as (place, check):
        (dest / LEASE).unlink()  # as if it had been frozen for a minute
        ingest(X, dest, overwrite=True)
        with Lease(dest):
            if error is not None:
                raise error
            check(0.0)
    assert open_matrix(dest).n_samples == 50 and verify(dest).ok


@pytest.mark.parametrize("endpoint", ["", "localhost:9000"])
def test_an_endpoint_without_a_scheme_is_refused(
    endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InputError, match="AWS_ENDPOINT_URL must begin with http"):
        open_matrix(f"{bucket}/X.csv")
