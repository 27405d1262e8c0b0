"""Damage is found: by verify in every chunk, and by whoever reads one."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.store.ingest import ingest
from bigfs.store.source import RandomAccessSource, open_matrix
from bigfs.store.verify import verify

X = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    ingest(X, tmp_path / "X.zarr", rows=10)
    return tmp_path / "X.zarr"


def _open(path: Path) -> RandomAccessSource:
    source = open_matrix(path)
    assert isinstance(source, RandomAccessSource)
    return source


def test_a_sound_store(store: Path) -> None:
    report = verify(store)
    assert report.ok
    assert (report.n_chunks, report.missing, report.mismatched) == (10, [], [])
    report.check()


@pytest.mark.parametrize("position", [0, 1, 3, 4, 9, 12, 16, 40, 100, -5, -1])
def test_a_flipped_byte_is_found_wherever_it_is(store: Path, position: int) -> None:
    chunk = store / "X/c/3/0"
    content = bytearray(chunk.read_bytes())
    content[position] ^= 0x10
    chunk.write_bytes(content)
    report = verify(store)
    assert not report.ok
    assert (report.missing, report.mismatched) == ([], ["X/c/3/0"])
    with pytest.raises(CorruptStoreError, match=r"of 10 chunks, 1 changed \(X/c/3/0\). Ingest"):
        report.check()
    source = _open(store)
    np.testing.assert_array_equal(source.read(0, 30), X[:30])
    with pytest.raises(CorruptStoreError, match="rows 35 to 45 cannot be decoded"):
        source.read(35, 45)


def test_a_chunk_that_is_empty_or_of_another_place_is_found(store: Path) -> None:
    (store / "X/c/2/0").write_bytes(b"")
    shutil.copy(store / "X/c/4/0", store / "X/c/5/0")
    assert verify(store).mismatched == ["X/c/2/0", "X/c/5/0"]


def test_a_deleted_chunk_is_found_and_never_read_as_zeros(store: Path) -> None:
    source = _open(store)
    (store / "X/c/7/0").unlink()
    report = verify(store)
    assert (report.missing, report.mismatched) == (["X/c/7/0"], [])
    with pytest.raises(CorruptStoreError, match=r"1 missing \(X/c/7/0\)"):
        report.check()
    with pytest.raises(CorruptStoreError, match=r"chunk X/c/7/0 is missing \(1 of 10\) and would"):
        open_matrix(store)
    for opened_before in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(opened_before.read(0, 70), X[:70])
        with pytest.raises(CorruptStoreError, match="would read as zeros.*--verify"):
            opened_before.read(65, 75)


def test_a_store_is_read_from_a_zip_of_it(store: Path) -> None:
    shutil.make_archive(str(store), "zip", store)
    np.testing.assert_array_equal(_open(store.with_name("X.zarr.zip")).read(15, 35), X[15:35])


def test_ids_that_were_deleted_are_never_read_as_empty(tmp_path: Path) -> None:
    lines = [f"{i},{i}.5,r{i}" for i in range(20)]
    (tmp_path / "X.csv").write_text("\n".join(["a,b,id", *lines]))
    ingest(tmp_path / "X.csv", tmp_path / "X.zarr", index="id")
    (tmp_path / "X.zarr/index/c/0").unlink()
    with pytest.raises(CorruptStoreError, match="index: chunk c/0 is missing"):
        next(open_matrix(tmp_path / "X.zarr").iter_index())


@pytest.mark.parametrize("array", ["index", "dropped"])
def test_a_flipped_byte_beside_the_matrix_is_found(tmp_path: Path, array: str) -> None:
    """Whichever byte it is: a chunk of ids that decodes to others would rename rows in silence."""
    lines = [f"{i},{'' if i % 7 == 3 else i}.5,r{i:05}" for i in range(400)]
    (tmp_path / "X.csv").write_text("\n".join(["a,b,id", *lines]).replace(",.5", ","))
    store = tmp_path / "X.zarr"
    ingest(tmp_path / "X.csv", store, index="id", missing="drop_rows")
    assert verify(store).ok
    chunk = store / array / "c" / "0"
    content = chunk.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 8)):
        damaged = bytearray(content)
        damaged[position] ^= 0x04
        chunk.write_bytes(damaged)
        assert verify(store).mismatched == [array], position
        with pytest.raises(CorruptStoreError, match="cannot be decoded"):
            source = open_matrix(store)
            list(source.iter_index()), list(source.dropped)


def test_row_numbers_that_were_deleted_are_never_read_as_zeros(tmp_path: Path) -> None:
    rows = X.copy()
    rows[[3, 50], 2] = np.nan
    store = tmp_path / "X.zarr"
    ingest(rows, store, missing="drop_rows")
    shutil.make_archive(str(store), "zip", store)
    assert list(_open(store.with_name("X.zarr.zip")).dropped) == [3, 50]
    shutil.rmtree(store / "dropped/c")
    assert verify(store).mismatched == ["dropped"]
    with pytest.raises(CorruptStoreError, match="chunk c/0 is missing"):
        list(open_matrix(store).dropped)
    shutil.rmtree(store / "dropped")
    assert verify(store).mismatched == ["dropped"]


def test_ids_whose_metadata_are_gone_are_reported(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text("a,b,id\n" + "\n".join(f"{i},{i}.5,r{i}" for i in range(9)))
    ingest(tmp_path / "X.csv", tmp_path / "X.zarr", index="id")
    shutil.rmtree(tmp_path / "X.zarr/index")
    assert verify(tmp_path / "X.zarr").mismatched == ["index"]


def test_chunks_of_zeros_are_stored(tmp_path: Path) -> None:
    ingest(np.zeros((50, 3)), tmp_path / "X.zarr", rows=10)
    assert len(list((tmp_path / "X.zarr/X/c").iterdir())) == 5
    assert verify(tmp_path / "X.zarr").ok


def test_several_missing_chunks_are_counted(store: Path) -> None:
    for i in (1, 3, 5, 7):
        (store / f"X/c/{i}/0").unlink()
    with pytest.raises(
        CorruptStoreError, match=r"chunks X/c/1/0, X/c/3/0, X/c/5/0, \.\.\. are mis"
    ):
        open_matrix(store)
    with pytest.raises(CorruptStoreError, match=r"4 missing \(X/c/1/0, X/c/3/0, X/c/5/0, \.\.\.\)"):
        verify(store).check()


def test_rows_that_were_added_later_do_not_count(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    array = zarr.open_array(str(store / "X"), mode="r+")
    array.resize((112, 6))
    array[100:] = 1
    report = verify(store)
    assert report.ok and report.n_chunks == 10
    (store / "X/c/11/0").unlink()
    assert verify(store).ok
    (store / "X/c/9/0").unlink()
    assert verify(store).missing == ["X/c/9/0"]
    array[90:] = np.vstack([X[90:], np.ones((12, 6))])
    assert _open(store).n_samples == 100
    assert "of its 112 rows, only the first 100 are used" in caplog.text


def test_what_is_no_store_has_no_checksums(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only stores written by bigfs"):
        verify(tmp_path)
    zarr.create_array(store=str(tmp_path / "X.zarr"), shape=(4, 3), dtype="f4")
    with pytest.raises(InputError, match="only stores written by bigfs"):
        verify(tmp_path / "X.zarr")


def test_damaged_metadata_are_corruption(store: Path) -> None:
    content = json.loads((store / "X/zarr.json").read_text())
    content["chunk_grid"]["configuration"]["chunk_shape"] = [0, 0]
    (store / "X/zarr.json").write_text(json.dumps(content))
    with pytest.raises(CorruptStoreError, match=r"chunks have no rows or columns\)\. Ingest"):
        verify(store)
    shutil.rmtree(store / "X")
    with pytest.raises(CorruptStoreError, match="the metadata of the store is damaged"):
        verify(store)
    content = json.loads((store / "zarr.json").read_text())
    assert content["attributes"]["bigfs_store"] == 1
    zarr.create_group(store=str(store / "X"))
    with pytest.raises(CorruptStoreError, match="X is not an array"):
        verify(store)
