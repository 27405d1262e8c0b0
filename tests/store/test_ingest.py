"""Ingest: what is written, what is checked on the way, and that nothing half-done is left."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from bigfs.core.errors import InputError, StorageError
from bigfs.store.csr import whole_chunks
from bigfs.store.ingest import ChunkWriter, ingest
from bigfs.store.lease import Lease
from bigfs.store.scratch import chunk_rows
from bigfs.store.source import Source, is_store, open_matrix
from bigfs.store.verify import verify

NAN = np.nan


def _read(path: Path) -> np.ndarray:
    return np.asarray(zarr.open_group(str(path), mode="r")["X"][...])


class _Stream(Source):
    """Blocks of any length, of a number of rows that is known or not."""

    uri = "stream"

    def __init__(self, blocks: list[np.ndarray], n_samples: int | None = None) -> None:
        self._blocks, self.n_samples = blocks, n_samples
        self.n_features, self.dtype = blocks[0].shape[1], blocks[0].dtype
        self.reads = 0

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        self.reads += 1
        yield from self._blocks


def test_the_layout_on_disk(tmp_path: Path) -> None:
    import pandas as pd

    X = np.random.default_rng(0).normal(size=(25, 3)).astype(np.float32)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    report = ingest(frame, tmp_path / "new" / "X.zarr", rows=10)
    group = zarr.open_group(str(tmp_path / "new" / "X.zarr"), mode="r")
    array = group["X"]
    assert (group.metadata.zarr_format, array.shape, array.chunks) == (3, (25, 3), (10, 3))
    assert array.dtype == np.float32
    checksums = [f"{zlib.crc32(X[i : i + 10].tobytes()):08x}" for i in (0, 10, 20)]
    assert dict(group.attrs) == {
        "bigfs_store": 1, "source": "X", "feature_names": ["a", "b", "c"], "missing": "error",
        "filled_values": 0, "dropped_rows": 0, "checksums": checksums,
        "stored_dtype": "<f4", "n_samples": 25,
    }  # fmt: skip
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["X.zarr"]
    assert (report.path, report.dtype, report.n_chunks) == (
        tmp_path / "new" / "X.zarr", "float32", 3,
    )  # fmt: skip
    assert report.nbytes == X.nbytes
    assert is_store(report.path)
    assert open_matrix(report.path).checked


def test_chunks_have_their_usual_size(tmp_path: Path) -> None:
    ingest(np.zeros((70_000, 100), np.float32), tmp_path / "X.zarr")
    assert _open(tmp_path / "X.zarr").chunks == (chunk_rows(100, 4), 100) == (40_000, 100)


def _open(path: Path) -> Any:
    return zarr.open_group(str(path), mode="r")["X"]


@given(
    lengths=st.lists(st.integers(0, 30), max_size=12),
    rows=st.integers(1, 25),
)
def test_blocks_are_regrouped_into_whole_chunks(lengths: list[int], rows: int) -> None:
    X = np.arange(sum(lengths) * 2.0).reshape(-1, 2)
    blocks = np.split(X, np.cumsum(lengths)[:-1]) if lengths else []
    chunks = [chunk.copy() for chunk in whole_chunks(iter(blocks), rows)]
    assert all(len(chunk) == rows for chunk in chunks[:-1])
    assert all(1 <= len(chunk) <= rows for chunk in chunks)
    np.testing.assert_array_equal(np.concatenate([X[:0], *chunks]), X)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("lengths", [[1, 1], [3, 0, 4, 90, 1], [200], [10] * 10])
def test_streams_of_any_length(tmp_path: Path, lengths: list[int], known: bool) -> None:
    X = np.random.default_rng(0).normal(size=(sum(lengths), 4))
    stream = _Stream(np.split(X, np.cumsum(lengths)[:-1]), len(X) if known else None)
    report = ingest(stream, tmp_path / "X.zarr", rows=10)
    np.testing.assert_array_equal(_read(tmp_path / "X.zarr"), X)
    assert report.n_chunks == -(-len(X) // 10) == len(list((tmp_path / "X.zarr/X/c").iterdir()))


@pytest.mark.parametrize("announced", [99, 101])
def test_a_source_that_ends_elsewhere_than_it_says(tmp_path: Path, announced: int) -> None:
    with pytest.raises(InputError, match=f"has 100 rows, but its shape says {announced}"):
        ingest(_Stream([np.zeros((100, 2))], announced), tmp_path / "X.zarr", rows=10)
    assert list(tmp_path.iterdir()) == []


def test_a_chunk_has_one_writer_and_is_whole(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path / "w", 10, 2, np.dtype("f4"), None)
    with pytest.raises(StorageError, match="not exactly one chunk of 10 rows"):
        writer.append(np.zeros((11, 2), "f4"))
    writer.append(np.zeros((10, 2), "f4"))
    writer.append(np.zeros((4, 2), "f4"))
    with pytest.raises(StorageError, match="rows 14 to 24: they are not exactly one chunk"):
        writer.append(np.zeros((10, 2), "f4"))


def _wide(row: int, column: int, value: float) -> np.ndarray:
    X = np.zeros((40_000, 12), dtype=np.float32)
    X[row, column] = value
    return X


@pytest.mark.parametrize("form", ["numpy", "npy", "csv", "pandas", "zarr", "dask"])
def test_nan_in_row_31007_is_named(tmp_path: Path, form: str) -> None:
    import dask.array as da
    import pandas as pd

    X = _wide(31_007, 5, NAN)
    names = [f"b{j}" for j in range(12)]
    if form == "npy":
        np.save(tmp_path / "X.npy", X)
    elif form == "csv":
        pd.DataFrame(X, columns=names).to_csv(tmp_path / "X.csv", index=False)
    elif form == "zarr":
        zarr.create_array(store=str(tmp_path / "X.zarr"), data=X, chunks=(999, 12))
    source = {
        "numpy": X, "pandas": pd.DataFrame(X, columns=names), "dask": da.from_array(X),
    }.get(form, tmp_path / f"X.{form}")  # fmt: skip
    named = r" \('b5'\)" if form in ("csv", "pandas") else ""
    with pytest.raises(InputError, match=f"row 31007, column 5{named} is NaN. Remove or fill"):
        ingest(source, tmp_path / "out.zarr", rows=777)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(("value", "message"), [(np.inf, "inf"), (-np.inf, "-inf")])
@pytest.mark.parametrize("missing", ["error", "mean", "zero", "drop_rows"])
def test_infinity_is_an_error_under_every_policy(
    tmp_path: Path, value: float, message: str, missing: str
) -> None:
    X = _wide(31_007, 5, value)
    X[35_000, 0] = np.inf
    if missing != "error":
        X[5] = NAN
    with pytest.raises(
        InputError, match=f"row 31007, column 5 is {message}. Infinity cannot be fil"
    ):
        ingest(X, tmp_path / "out.zarr", missing=missing, rows=777)


def test_the_first_of_several_is_named(tmp_path: Path) -> None:
    X = np.zeros((20, 5))
    X[7, 4] = X[8, 0] = X[7, 2] = NAN
    with pytest.raises(InputError, match="row 7, column 2 is NaN"):
        ingest(X, tmp_path / "out.zarr")


HOLES = np.array([[1, 2.0], [NAN, 4], [5, NAN], [6, 8], [NAN, NAN], [9, 1]])


@pytest.mark.parametrize("rows", [1, 2, 4, 100])
@pytest.mark.parametrize(
    ("missing", "expected", "filled", "dropped"),
    [
        ("zero", [[1, 2], [0, 4], [5, 0], [6, 8], [0, 0], [9, 1]], 4, 0),
        ("mean", [[1, 2], [5.25, 4], [5, 3.75], [6, 8], [5.25, 3.75], [9, 1]], 4, 0),
        ("drop_rows", [[1, 2], [6, 8], [9, 1]], 0, 3),
    ],
)
def test_policies_for_missing_values(
    tmp_path: Path, missing: str, expected: Any, filled: int, dropped: int, rows: int
) -> None:
    stream = _Stream([HOLES[:3], HOLES[3:]], 6)
    report = ingest(stream, tmp_path / "X.zarr", missing=missing, rows=rows)
    np.testing.assert_array_equal(_read(tmp_path / "X.zarr"), expected)
    assert (report.filled_values, report.dropped_rows) == (filled, dropped)
    assert report.n_samples == len(expected)
    attributes = zarr.open_group(str(tmp_path / "X.zarr"), mode="r").attrs
    assert (attributes["missing"], attributes["dropped_rows"]) == (missing, dropped)
    assert stream.reads == (2 if missing == "mean" else 1)


@pytest.mark.parametrize(
    ("X", "missing", "message"),
    [
        (np.full((5, 2), NAN), "drop_rows", "Got 0 after 5 rows with NaN were dropped"),
        (HOLES[:3], "drop_rows", "Got 1 after 2 rows with NaN were dropped"),
        (np.array([[1, NAN], [2, NAN]]), "mean", "column 1 has no values at all"),
        (np.full((3, 1), 1.7e308), "mean", "column 0 has values whose sum overflows"),
        (HOLES, "median", "missing must be one of error, mean, zero, drop_rows. Got 'median'"),
    ],
)
def test_policies_that_cannot_help(
    tmp_path: Path, X: np.ndarray, missing: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ingest(X, tmp_path / "X.zarr", missing=missing)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_store_is_replaced_only_when_told(tmp_path: Path) -> None:
    dest = tmp_path / "X.zarr"
    ingest(np.zeros((3, 2)), dest)
    with pytest.raises(InputError, match=r"already exists.*--overwrite \(overwrite=True\)"):
        ingest(np.ones((3, 2)), dest)
    assert not _read(dest).any()
    ingest(np.ones((4, 2)), dest, overwrite=True)
    assert _read(dest).tolist() == [[1, 1]] * 4
    ingest(dest, dest, overwrite=True, rows=1)
    assert _read(dest).tolist() == [[1, 1]] * 4
    assert [p.name for p in tmp_path.iterdir()] == ["X.zarr"]


def test_what_bigfs_did_not_write_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "final.tex").write_text("years of work")
    (tmp_path / "notes").write_text("more")
    zarr.create_array(store=str(tmp_path / "other.zarr"), shape=(2, 2), dtype="f4")
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    for name in ("thesis", "notes", "other.zarr"):
        with pytest.raises(InputError, match="not a store that bigfs wrote, so it is not overwrit"):
            ingest(np.zeros((3, 2)), tmp_path / name, overwrite=True)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


class _Broken(_Stream):
    """Fails in the middle, as a cable or a person does."""

    def __init__(self, error: BaseException) -> None:
        super().__init__([np.ones((10, 2))], None)
        self._error = error

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        for _ in range(5):
            yield self._blocks[0]
        raise self._error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError("cable"), ZeroDivisionError(), InputError("no.")]
)
@pytest.mark.parametrize("replacing", [True, False])
def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path, error: BaseException, replacing: bool
) -> None:
    if replacing:
        ingest(np.zeros((3, 2)), tmp_path / "X.zarr")
    with pytest.raises(type(error)):
        ingest(_Broken(error), tmp_path / "X.zarr", overwrite=True, rows=7)
    assert [p.name for p in tmp_path.iterdir()] == (["X.zarr"] if replacing else [])
    if replacing:
        assert _read(tmp_path / "X.zarr").shape == (3, 2), "the old store is still there"


def test_a_disk_that_fails_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ChunkWriter, "append", full)
    with pytest.raises(StorageError, match="Cannot write .*X.zarr: .*No space left.*Nothing was"):
        ingest(np.zeros((3, 2)), tmp_path / "X.zarr")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file. Give a folder for the store"):
        ingest(np.zeros((3, 2)), tmp_path / "file" / "X.zarr")


def test_progress_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="bigfs"):
        ingest(np.ones((30, 2)), tmp_path / "X.zarr", rows=10, missing="mean")
    assert "column means: done, 30 rows" in caplog.text
    assert "ingest: done, 3 chunks" in caplog.text


def test_a_store_is_not_written_into_what_it_is_read_from(tmp_path: Path) -> None:
    source, inside = tmp_path / "ours.zarr", tmp_path / "ours.zarr" / "sub.zarr"
    ingest(np.arange(12.0).reshape(6, 2), source)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"sub.zarr lies in the store .*ours.zarr"):
        ingest(source, inside)
    with pytest.raises(InputError, match="lies in the store"):
        ingest([str(source), str(source)], inside)
    assert sorted(tmp_path.rglob("*")) == before
    ingest(source, source, overwrite=True, rows=2)  # which is written beside it
    assert verify(source).n_chunks == 3


_KILLED = """
import os, signal, sys
import numpy as np
from bigfs.store.csr import whole_chunks
from bigfs.store.ingest import ChunkWriter, ingest

ChunkWriter.append = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ingest(np.ones((20, 3)), sys.argv[1], **{name: True for name in sys.argv[2:]})
"""


@pytest.mark.parametrize("option", [(), ("append",), ("overwrite",)], ids=str)
def test_what_a_killed_ingest_left_is_removed_by_the_next(
    option: tuple[str, ...], tmp_path: Path
) -> None:
    store, held = tmp_path / "X[1].zarr", tmp_path / "X[1].zarr.partial-0a1b2c3d"
    if option:
        ingest(np.zeros((20, 3)), store)
    ingest(np.zeros((20, 3)), tmp_path / "X[1].zarr.partial-1a2b3c4d")  # nobody's
    held.mkdir()
    with Lease(held, "0a1b2c3d"):
        before = set(tmp_path.iterdir())
        command = [sys.executable, "-c", _KILLED, str(store), *option]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        (left,) = set(tmp_path.iterdir()) - before
        shutil.copytree(left, tmp_path / "X[1].zarr.partial-2a3b4c5d")  # of another's lease
        ingest(np.ones((20, 3)), store, append="append" in option, overwrite="overwrite" in option)
        assert set(tmp_path.iterdir()) == before | {store, tmp_path / "X[1].zarr.partial-2a3b4c5d"}
    assert not (store / "lease.json").exists()


def test_settings_of_the_input_are_those_of_open_matrix(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_bytes("größe;b\n1,5;2\n3,5;4\n".encode("latin-1"))
    csv = {"encoding": "latin-1", "delimiter": ";", "decimal": ","}
    ingest(tmp_path / "X.csv", tmp_path / "X.zarr", csv=csv)
    assert open_matrix(tmp_path / "X.zarr").feature_names == ["größe", "b"]
    with pytest.raises(TypeError, match="'spelling'"):
        ingest(tmp_path / "X.csv", tmp_path / "Y.zarr", spelling=csv)


def test_a_path_below_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "X.npy", np.eye(3))
    ingest("~/X.npy", "~/X.zarr")
    assert open_matrix("~/X.zarr").n_samples == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.npy", "X.zarr"]
