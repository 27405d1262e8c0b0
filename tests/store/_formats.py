"""The same matrix in every format that is read: writers of files, and makers of objects."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from bigfs.store.ingest import ingest

N_SAMPLES, N_FEATURES = 103, 7
NAMES = [f"gene {j}" for j in range(N_FEATURES)]


def matrix(dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(0, [1, 1e-9, 1e9, 3, 0.1, 1, 1], (N_SAMPLES, N_FEATURES))
    X[rng.random(X.shape) < 0.4] = 0
    return X.astype(dtype)


def as_npy(X: np.ndarray, folder: Path) -> Path:
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
    frame = _frame(X, folder).set_index(np.arange(len(X)) * 2)
    frame.to_parquet(folder / "X.parquet", row_group_size=40)
    return folder / "X.parquet"


def _feather(X: np.ndarray, folder: Path) -> Path:
    _frame(X, folder).to_feather(folder / "X.feather", chunksize=40)
    return folder / "X.feather"


def _arrow_stream(X: np.ndarray, folder: Path) -> Path:
    import pyarrow as pa

    table = pa.Table.from_pandas(_frame(X, folder))
    with (
        pa.OSFile(str(folder / "X.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as s,
    ):
        s.write_table(table, max_chunksize=40)
    return folder / "X.arrow"


def _mat(X: np.ndarray, folder: Path) -> Path:
    from scipy.io import savemat

    savemat(folder / "X.mat", {"fea": X, "gnd": np.arange(len(X))[:, None], "cells": "text"})
    return folder / "X.mat"


def _mat_sparse(X: np.ndarray, folder: Path) -> Path:
    from scipy.io import savemat
    from scipy.sparse import csc_matrix

    savemat(folder / "X.mat", {"X": csc_matrix(X), "Y": X})
    return folder / "X.mat"


def as_zarr(zarr_format: int, chunks: tuple[int, int], **options: Any) -> Callable[..., Path]:
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

    source = CSRSource(csr_array(X))
    source.feature_names = NAMES
    ingest(source, folder / "csr.zarr", rows=20)
    return folder / "csr.zarr"


def _own_store(X: np.ndarray, folder: Path) -> Path:
    ingest(_frame(X, folder), folder / "X.zarr", rows=20)
    return folder / "X.zarr"


def _zarr_object(X: np.ndarray, folder: Path) -> Any:
    return zarr.open_array(as_zarr(3, (20, 3))(X, folder), mode="r")


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
    "npy": (as_npy, False),
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
    "feather": (_feather, True),
    "Arrow stream": (_arrow_stream, True),
    "mat": (_mat, False),
    "mat sparse": (_mat_sparse, False),
    "zarr v2": (as_zarr(2, (20, 7)), False),
    "zarr v2, Fortran order": (as_zarr(2, (20, 7), order="F"), False),
    "zarr v3": (as_zarr(3, (20, 7)), False),
    "zarr v3, column chunks": (as_zarr(3, (103, 1)), False),
    "zarr v3, sharded": (as_zarr(3, (10, 7), shards=(40, 7)), False),
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


def write_tenx(path: Path, cells: Any, ids: list[str], names: list[str]) -> Path:
    """Write counts (n_cells, n_genes) in CSR form as Cell Ranger does, by cells."""
    import h5py

    with h5py.File(path, "w") as file:
        group = file.create_group("matrix")
        for name in ("data", "indices", "indptr"):
            group.create_dataset(name, data=getattr(cells, name), compression="gzip")
        group["shape"] = np.array(cells.shape[::-1])
        group["barcodes"] = np.array([f"AAC{i}-1" for i in range(cells.shape[0])], dtype="S")
        group["features/name"] = np.array(names, dtype="S")
        group["features/id"] = np.array(ids, dtype="S")
    return path
