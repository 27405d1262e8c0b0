"""One suite for every format: the same matrix gives the same rows, names and checksums."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from bigfs.store.ingest import ingest
from bigfs.store.source import RandomAccessSource, open_matrix

N_SAMPLES, N_FEATURES = 103, 7
NAMES = [f"gene {j}" for j in range(N_FEATURES)]


def _matrix(dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(0, [1, 1e-9, 1e9, 3, 0.1, 1, 1], (N_SAMPLES, N_FEATURES))
    X[rng.random(X.shape) < 0.4] = 0
    return X.astype(dtype)


def _npy(X: np.ndarray, folder: Path) -> Path:
    np.save(folder / "X.npy", X)
    return folder / "X.npy"


def _npy_fortran(X: np.ndarray, folder: Path) -> Path:
    np.save(folder / "X.npy", np.asfortranarray(X))
    return folder / "X.npy"


def _npy_big_endian(X: np.ndarray, folder: Path) -> Path:
    np.save(folder / "X.npy", X.astype(X.dtype.newbyteorder(">")))
    return folder / "X.npy"


def _npz(X: np.ndarray, folder: Path) -> Path:
    np.savez_compressed(folder / "X.npz", X=X, y=np.arange(len(X)), Z=X[::-1])
    return folder / "X.npz"


def _npz_only_matrix(X: np.ndarray, folder: Path) -> Path:
    np.savez(folder / "X.npz", values=X, y=np.array(["a", None], dtype=object))
    return folder / "X.npz"


def _npz_csr(X: np.ndarray, folder: Path) -> Path:
    from scipy.sparse import csr_matrix

    S = csr_matrix(X)
    np.savez(
        folder / "X.npz", data=S.data, indices=S.indices, indptr=S.indptr, shape=S.shape, y=[1, 2]
    )
    return folder / "X.npz"


def _npz_scipy_csc(X: np.ndarray, folder: Path) -> Path:
    from scipy.sparse import csc_matrix, save_npz

    save_npz(folder / "X.npz", csc_matrix(X))
    return folder / "X.npz"


def _csv(X: np.ndarray, folder: Path) -> Path:
    _frame(X, folder).to_csv(folder / "X.csv", index=False)
    return folder / "X.csv"


def _csv_without_header(X: np.ndarray, folder: Path) -> Path:
    _frame(X, folder).to_csv(folder / "X.csv", index=False, header=False)
    return folder / "X.csv"


def _csv_gz(X: np.ndarray, folder: Path) -> Path:
    _frame(X, folder).to_csv(folder / "X.csv.gz", index=False)
    return folder / "X.csv.gz"


def _csv_quoted_windows(X: np.ndarray, folder: Path) -> Path:
    import csv

    text = _frame(X, folder).to_csv(index=False, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    (folder / "X.csv").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n\r\n")
    return folder / "X.csv"


def _tsv(X: np.ndarray, folder: Path) -> Path:
    _frame(X, folder).to_csv(folder / "X.tsv", sep="\t", index=False)
    return folder / "X.tsv"


def _parquet(X: np.ndarray, folder: Path) -> Path:
    pytest.importorskip("pyarrow", reason="the extra bigfs[parquet] is not installed")
    frame = _frame(X, folder).set_index(np.arange(len(X)) * 2)
    frame.to_parquet(folder / "X.parquet", row_group_size=40)
    return folder / "X.parquet"


def _mat(X: np.ndarray, folder: Path) -> Path:
    from scipy.io import savemat

    savemat(folder / "X.mat", {"fea": X, "gnd": np.arange(len(X))[:, None], "cells": "text"})
    return folder / "X.mat"


def _mat_sparse(X: np.ndarray, folder: Path) -> Path:
    from scipy.io import savemat
    from scipy.sparse import csc_matrix

    savemat(folder / "X.mat", {"X": csc_matrix(X), "Y": X})
    return folder / "X.mat"


def _zarr(zarr_format: int, chunks: tuple[int, int], **options: Any) -> Callable[..., Path]:
    def write(X: np.ndarray, folder: Path) -> Path:
        array = zarr.create_array(
            store=str(folder / "X.zarr"), shape=X.shape, dtype=X.dtype, chunks=chunks,
            zarr_format=zarr_format, **options,
        )  # fmt: skip
        array[...] = X
        return folder / "X.zarr"

    return write


def _zarr_group(X: np.ndarray, folder: Path) -> Path:
    group = zarr.open_group(str(folder / "X.zarr"), mode="w")
    group.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(20, 7))[...] = X
    group.create_array("y", shape=(len(X),), dtype="int64")
    group.attrs["feature_names"] = NAMES
    return folder / "X.zarr"


def _csr_store(X: np.ndarray, folder: Path) -> Path:
    from scipy.sparse import csr_array

    from bigfs.store.csr import CSRSource

    ingest(CSRSource(csr_array(X), names=NAMES), folder / "csr.zarr", rows=20)
    return folder / "csr.zarr"


def _own_store(X: np.ndarray, folder: Path) -> Path:
    ingest(_frame(X, folder), folder / "X.zarr", rows=20)
    return folder / "X.zarr"


def _zarr_object(X: np.ndarray, folder: Path) -> Any:
    return zarr.open_array(_zarr(3, (20, 3))(X, folder), mode="r")


def _zarr_group_object(X: np.ndarray, folder: Path) -> Any:
    return zarr.open_group(_zarr_group(X, folder), mode="r")


def _zarr_in_memory(X: np.ndarray, folder: Path) -> Any:
    return zarr.array(X, chunks=(20, 7))


def _frame(X: np.ndarray, folder: Path) -> Any:
    import pandas as pd

    return pd.DataFrame(X, columns=NAMES)


def _frame_without_names(X: np.ndarray, folder: Path) -> Any:
    import pandas as pd

    return pd.DataFrame(X)


def _sparse(kind: str) -> Callable[..., Any]:
    def make(X: np.ndarray, folder: Path) -> Any:
        import scipy.sparse

        return getattr(scipy.sparse, kind)(X)

    return make


def _dask(chunks: tuple[int, int]) -> Callable[..., Any]:
    def make(X: np.ndarray, folder: Path) -> Any:
        import dask.array as da

        return da.from_array(X, chunks=chunks)

    return make


def _dask_sparse(X: np.ndarray, folder: Path) -> Any:
    import dask.array as da
    from scipy.sparse import csr_array

    return da.from_array(X, chunks=(30, 7)).map_blocks(csr_array)


def _anndata(form: str = "csr_matrix") -> Callable[..., Any]:
    """Return a maker of an AnnData that has X in one form."""

    def make(X: np.ndarray, folder: Path) -> Any:
        ad = pytest.importorskip("anndata", reason="anndata is not installed")
        import pandas as pd
        import scipy.sparse

        matrix = X if form == "dense" else getattr(scipy.sparse, form)(X)
        return ad.AnnData(matrix, var=pd.DataFrame(index=NAMES))

    return make


def _h5ad(form: str, **options: Any) -> Callable[..., Path]:
    def write(X: np.ndarray, folder: Path) -> Path:
        _anndata(form)(X, folder).write_h5ad(folder / "X.h5ad", **options)
        return folder / "X.h5ad"

    return write


def _anndata_zarr(form: str, zarr_format: int, **options: Any) -> Callable[..., Path]:
    def write(X: np.ndarray, folder: Path) -> Path:
        adata = _anndata(form)(X, folder)
        import anndata as ad

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # anndata's and zarr's, of what they write
            with ad.settings.override(zarr_write_format=zarr_format):
                adata.write_zarr(folder / "X.zarr")
        return folder / "X.zarr"

    return write


def _backed(form: str) -> Callable[..., Any]:
    def make(X: np.ndarray, folder: Path) -> Any:
        path = _h5ad(form)(X, folder)
        import anndata as ad

        return ad.read_h5ad(path, backed="r")

    return make


def _parquet_parts(X: np.ndarray, folder: Path) -> Path:
    pytest.importorskip("pyarrow", reason="the extra bigfs[parquet] is not installed")
    frame = _frame(X, folder)
    (folder / "table").mkdir()
    for i, start in enumerate(range(0, len(X), 10)):  # part.10 comes behind part.9
        columns = NAMES if i % 2 == 0 else NAMES[::-1]
        frame[columns][start : start + 10].to_parquet(folder / "table" / f"part.{i}.parquet")
    frame[:0].to_parquet(folder / "table" / "part.11.parquet")
    (folder / "table" / "_SUCCESS").touch()
    return folder / "table"


def _csv_parts(X: np.ndarray, folder: Path) -> str:
    for i, start in enumerate(range(0, len(X), 50)):
        _frame(X, folder)[start : start + 50].to_csv(folder / f"part-{i}.csv", index=False)
    return str(folder / "part-*.csv")


def _list(X: np.ndarray, folder: Path) -> list[Path]:
    np.save(folder / "first.npy", X[:60])
    np.savez(folder / "second.npz", X=X[60:])
    return [folder / "first.npy", folder / "second.npz"]


def _list_of_sparse(X: np.ndarray, folder: Path) -> list[str]:
    from scipy.sparse import csc_array, csr_array, save_npz

    save_npz(folder / "first.npz", csr_array(X[:60]))
    save_npz(folder / "second.npz", csc_array(X[60:]))
    return [str(folder / "first.npz"), str(folder / "second.npz")]


# name -> (writer or maker, whether the format carries names)
FORMATS: dict[str, tuple[Callable[..., Any], bool]] = {
    "npy": (_npy, False),
    "npy by columns": (_npy_fortran, False),
    "npy big-endian": (_npy_big_endian, False),
    "npz": (_npz, False),
    "npz with one matrix": (_npz_only_matrix, False),
    "npz of CSR parts": (_npz_csr, False),
    "npz of scipy, CSC": (_npz_scipy_csc, False),
    "csv": (_csv, True),
    "csv without header": (_csv_without_header, False),
    "csv gzipped": (_csv_gz, True),
    "csv quoted, with BOM and CRLF": (_csv_quoted_windows, True),
    "tsv": (_tsv, True),
    "parquet": (_parquet, True),
    "mat": (_mat, False),
    "mat sparse": (_mat_sparse, False),
    "zarr v2": (_zarr(2, (20, 7)), False),
    "zarr v2, Fortran order": (_zarr(2, (20, 7), order="F"), False),
    "zarr v3": (_zarr(3, (20, 7)), False),
    "zarr v3, column chunks": (_zarr(3, (103, 1)), False),
    "zarr v3, sharded": (_zarr(3, (10, 7), shards=(40, 7)), False),
    "zarr group": (_zarr_group, True),
    "store of our own": (_own_store, True),
    "store of CSR blocks": (_csr_store, True),
    "zarr.Array": (_zarr_object, False),
    "zarr.Group": (_zarr_group_object, True),
    "zarr.Array in memory": (_zarr_in_memory, False),
    "numpy": (lambda X, folder: X, False),
    "numpy Fortran": (lambda X, folder: np.asfortranarray(X), False),
    "numpy strided": (lambda X, folder: np.repeat(X, 2, axis=1)[:, ::2], False),
    "pandas": (_frame, True),
    "pandas without names": (_frame_without_names, False),
    "CSR": (_sparse("csr_matrix"), False),
    "CSR array": (_sparse("csr_array"), False),
    "CSC": (_sparse("csc_matrix"), False),
    "COO": (_sparse("coo_matrix"), False),
    "dask": (_dask((13, 7)), False),
    "dask, column chunks": (_dask((90, 2)), False),
    "dask of sparse chunks": (_dask_sparse, False),
    "h5ad": (_h5ad("dense"), True),
    "h5ad CSR": (_h5ad("csr_matrix"), True),
    "h5ad CSC": (_h5ad("csc_matrix"), True),
    "AnnData zarr v3, CSR": (_anndata_zarr("csr_array", 3), True),
    "AnnData": (_anndata(), True),
    "folder of Parquet files": (_parquet_parts, True),
    "CSV parts by a pattern": (_csv_parts, True),
    "list": (_list, False),
    "list of sparse files": (_list_of_sparse, False),
}
# Whose readers are those of another one above.
ALIKE: dict[str, tuple[Callable[..., Any], bool]] = {
    "h5ad gzipped": (_h5ad("dense", compression="gzip"), True),
    "h5ad CSR gzipped": (_h5ad("csr_array", compression="gzip"), True),
    "AnnData zarr v2": (_anndata_zarr("dense", 2), True),
    "AnnData zarr v2, CSR": (_anndata_zarr("csr_matrix", 2), True),
    "AnnData zarr v3": (_anndata_zarr("dense", 3), True),
    "AnnData zarr v3, CSC": (_anndata_zarr("csc_matrix", 3), True),
    "AnnData dense": (_anndata("dense"), True),
    "AnnData backed": (_backed("dense"), True),
    "AnnData backed CSR": (_backed("csr_matrix"), True),
    "AnnData backed CSC": (_backed("csc_matrix"), True),
}


@pytest.fixture(params=[*FORMATS, *(pytest.param(n, marks=pytest.mark.full) for n in ALIKE)])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, list[str] | None]:
    """The matrix in one of the formats, and the names it should have."""
    make, named = {**FORMATS, **ALIKE}[request.param]
    return make(_matrix(), tmp_path), NAMES if named else None


@pytest.mark.parametrize("rows", [1, 19, 20, 21, 103, 1000])
def test_blocks_are_the_rows_in_order(stored: tuple[Any, Any], rows: int) -> None:
    X, names = stored
    source = open_matrix(X)
    blocks = list(source.iter_blocks(rows))
    assert source.n_samples in (N_SAMPLES, None)
    assert (source.n_features, source.dtype) == (N_FEATURES, np.float64)
    assert source.feature_names == names
    for block in blocks:
        assert type(block) is np.ndarray
        assert block.dtype == source.dtype
        assert block.dtype.isnative
        assert block.flags.c_contiguous
        assert 1 <= len(block) <= rows
    np.testing.assert_array_equal(np.concatenate(blocks), _matrix())


def test_any_rows_can_be_read(stored: tuple[Any, Any]) -> None:
    source = open_matrix(stored[0])
    if not isinstance(source, RandomAccessSource):
        return
    for start, stop in [(0, 1), (0, 103), (5, 5), (19, 41), (100, 103)]:
        found = source.read(start, stop)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, _matrix()[start:stop])


def test_shared_sources_are_read_after_a_journey(stored: tuple[Any, Any]) -> None:
    source = open_matrix(stored[0])
    if not isinstance(source, RandomAccessSource) or not source.shareable:
        return
    journey = pickle.dumps(source)
    assert len(journey) < 1000
    np.testing.assert_array_equal(pickle.loads(journey).read(40, 60), _matrix()[40:60])


def test_ingest_gives_the_same_store(stored: tuple[Any, Any], tmp_path: Path) -> None:
    X, names = stored
    report = ingest(X, tmp_path / "out.zarr", rows=25)
    assert report.n_chunks == 5
    assert (report.n_samples, report.n_features) == (N_SAMPLES, N_FEATURES)
    if open_matrix(X).sparse:  # in CSR blocks: tests/store/test_csr.py
        np.testing.assert_array_equal(open_matrix(tmp_path / "out.zarr").read(0, 103), _matrix())
        return
    group = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    np.testing.assert_array_equal(group["X"][...], _matrix())
    assert group.attrs["feature_names"] == names
    ingest(_matrix(), tmp_path / "expected.zarr", rows=25)
    expected = zarr.open_group(str(tmp_path / "expected.zarr"), mode="r")
    assert group.attrs["checksums"] == expected.attrs["checksums"]


@pytest.mark.parametrize(
    ("stored_as", "worked_in"),
    [
        ("float32", "float32"), ("float16", "float32"), ("uint8", "float32"), ("int8", "float32"),
        ("int16", "float32"), ("uint16", "float32"), ("bool", "float32"), ("int32", "float64"),
        ("uint32", "float64"), ("int64", "float64"), ("uint64", "float64"), ("float64", "float64"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["numpy", "npy", "npz", "zarr v3", "pandas", "dask"])
def test_values_are_worked_in_the_smallest_type_that_holds_them(
    name: str, stored_as: str, worked_in: str, tmp_path: Path
) -> None:
    X = np.abs(_matrix() * 3 % 100).astype(stored_as)
    source = open_matrix(FORMATS[name][0](X, tmp_path))
    assert source.dtype == worked_in
    block = next(source.iter_blocks(1000))
    assert block.dtype == worked_in
    np.testing.assert_array_equal(block, X.astype(worked_in))


def test_tables_may_mix_types_and_hold_nulls(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "a": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.array([True, False, None], dtype="boolean"),
            "c": np.array([1.5, np.nan, 2], dtype="float32"),
            "d": np.array([1, 2, 3], dtype="uint8"),
            "e": [True, False, True],
        }
    )
    expected = [[1, 1, 1.5, 1, 1], [np.nan, 0, np.nan, 2, 0], [3, np.nan, 2, 3, 1]]
    pytest.importorskip("pyarrow", reason="the extra bigfs[parquet] is not installed")
    frame.to_parquet(tmp_path / "X.parquet")
    frame.to_csv(tmp_path / "X.csv", index=False)
    for X in (frame, tmp_path / "X.parquet"):
        np.testing.assert_array_equal(next(open_matrix(X).iter_blocks(9)), expected)


def test_frames_of_the_same_type_keep_it() -> None:
    import pandas as pd

    source = open_matrix(pd.DataFrame({"a": np.float32([1, 2]), "b": np.uint8([3, 4])}))
    assert source.dtype == np.float32


@pytest.mark.parametrize("name", ["npz", "zarr group", "mat"])
def test_a_variable_can_be_named(name: str, tmp_path: Path) -> None:
    X = FORMATS[name][0](_matrix(), tmp_path)
    named = {"npz": "Z", "zarr group": "X", "mat": "gnd"}[name]
    source = open_matrix(X, variable=named)
    first = next(source.iter_blocks(1000))
    expected = {"Z": _matrix()[::-1], "X": _matrix(), "gnd": np.arange(103.0)[:, None]}[named]
    np.testing.assert_array_equal(first, expected)


@pytest.mark.parametrize(
    ("uri", "shape"),
    [
        ("sklearn:digits", (1797, 64)), ("sklearn:iris", (150, 4)), ("sklearn:wine", (178, 13)),
        ("sklearn:breast_cancer", (569, 30)),
    ],
)  # fmt: skip
def test_sets_of_scikit_learn(uri: str, shape: tuple[int, int]) -> None:
    source = open_matrix(uri)
    assert (source.n_samples, source.n_features) == shape
    assert len(source.feature_names or []) == shape[1]


def test_uris_and_opened_sources(tmp_path: Path) -> None:
    path = _npy(_matrix(), tmp_path)
    source = open_matrix(f"file://{path}")
    assert open_matrix(source) is source
    assert source.n_samples == N_SAMPLES


def test_names_are_not_in_the_pickle_of_a_wide_store(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(np.zeros((2, 50_000)), columns=[f"gene {j}" for j in range(50_000)])
    ingest(frame, tmp_path / "X.zarr")
    source = open_matrix(tmp_path / "X.zarr")
    assert len(source.feature_names or []) == 50_000
    assert len(pickle.dumps(source)) < 1000


def test_a_replaced_store_is_not_read_through_an_old_handle(tmp_path: Path) -> None:
    for value, rows in ((1.0, 4), (2.0, 6)):
        ingest(np.full((rows, 3), value), tmp_path / "X.zarr", overwrite=True)
        source = pickle.loads(pickle.dumps(open_matrix(tmp_path / "X.zarr")))
        np.testing.assert_array_equal(source.read(0, rows), np.full((rows, 3), value))


def test_dask_chunks_are_computed_once() -> None:
    import dask
    import dask.array as da

    computed = []

    def count(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        computed.append(block_info[0]["chunk-location"])
        return block

    X = da.from_array(_matrix(), chunks=(40, 4)).map_blocks(count, dtype=np.float64, meta=_matrix())
    with dask.config.set(scheduler="synchronous"):
        blocks = list(open_matrix(X).iter_blocks(7))
    np.testing.assert_array_equal(np.concatenate(blocks), _matrix())
    assert sorted(computed) == [(i, j) for i in range(3) for j in range(2)]


def test_chunks_of_a_foreign_array_are_decoded_once(tmp_path: Path) -> None:
    reads: list[str] = []

    class Counting(zarr.storage.LocalStore):
        async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            reads.append(key)
            return await super().get(key, *args, **kwargs)

    path = _zarr(3, (50, 3))(_matrix(), tmp_path)
    source = open_matrix(zarr.open_array(Counting(path), mode="r"))
    reads.clear()
    assert sum(len(block) for block in source.iter_blocks(7)) == N_SAMPLES
    assert sorted(reads) == sorted(f"c/{i}/{j}" for i in range(3) for j in range(3))
