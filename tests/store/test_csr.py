"""Sparse matrices: whatever they come as, they become the same store of CSR blocks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from bigfs import ingest, open_matrix
from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.pipeline.inspect import inspect
from bigfs.store import csr
from bigfs.store.csr import CSRSource, csr_layout, first_unusable
from bigfs.store.formats.csr_store import StoredCSR
from bigfs.store.verify import verify


@pytest.fixture
def matrix() -> Any:
    return sp.random_array((103, 9), density=0.2, format="csr", rng=np.random.default_rng(0))


def _saved(form: str) -> Callable[[Any, Path], Path]:
    def make(X: Any, folder: Path) -> Path:
        sp.save_npz(folder / "X.npz", X.asformat(form))
        return folder / "X.npz"

    return make


def _parts(X: Any, folder: Path) -> Path:
    """Save bare parts, of the types that other programs write."""
    parts = {"data": X.data.astype(">f8"), "indices": X.indices.astype(np.uint32)}
    np.savez_compressed(folder / "X.npz", **parts, indptr=X.indptr.astype(">i8"), shape=X.shape)
    return folder / "X.npz"


def _dask_of_sparse(X: Any, folder: Path) -> Any:
    sparse = pytest.importorskip("sparse")
    import dask.array as da

    whole = sparse.COO.from_scipy_sparse(X)
    return da.from_array(whole, chunks=(20, X.shape[1]), asarray=False)


def _dask(X: Any, folder: Path) -> Any:
    import dask.array as da

    return da.from_array(X.toarray(), chunks=(30, 9)).map_blocks(sp.csr_array)


def _untidy(X: Any, folder: Path) -> Any:
    """Return entries out of order, some of them in two parts, and zeros among them."""
    coo = X.tocoo()
    row, col = (np.concatenate([part[::-1], part, [0]]) for part in coo.coords)
    data = np.concatenate([coo.data[::-1] * 0.25, coo.data * 0.75, [0.0]])
    order = np.argsort(row, kind="stable")
    indptr = np.searchsorted(row[order], np.arange(X.shape[0] + 1))
    return sp.csr_array((data[order], col[order], indptr), shape=X.shape)


def _h5ad(form: str) -> Callable[[Any, Path], Path]:
    def make(X: Any, folder: Path) -> Path:
        ad = pytest.importorskip("anndata", reason="anndata is not installed")
        ad.AnnData(X.asformat(form)).write_h5ad(folder / "X.h5ad")
        return folder / "X.h5ad"

    return make


FORMS: dict[str, Callable[[Any, Path], Any]] = {
    "csr": lambda X, folder: X,
    "csr_matrix": lambda X, folder: sp.csr_matrix(X),
    "csc": lambda X, folder: X.tocsc(),
    "coo": lambda X, folder: X.tocoo(),
    "untidy": _untidy,
    "npz csr": _saved("csr"),
    "npz csc": _saved("csc"),
    "npz coo": _saved("coo"),
    "npz parts": _parts,
    "dask": _dask,
    "dask of sparse": _dask_of_sparse,
    "h5ad csr": _h5ad("csr"),
    "h5ad csc": _h5ad("csc"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_the_same_store(form: str, matrix: Any, tmp_path: Path) -> None:
    given = FORMS[form](matrix, tmp_path)
    before = given.copy() if sp.issparse(given) else None
    report = ingest(given, tmp_path / "X.zarr", rows=40)
    source = open_matrix(tmp_path / "X.zarr")
    assert isinstance(source, StoredCSR)
    assert (report.n_chunks, report.nbytes) == (3, 12 * matrix.nnz)
    assert (source.n_samples, source.n_features, source.dtype) == (103, 9, np.float64)
    assert source.layout.n_entries == matrix.nnz
    for rows in (7, 40, 200):
        blocks = list(source.iter_rows(rows))
        assert all(b.indices.dtype == b.indptr.dtype == np.int32 for b in blocks)
        assert all(b.has_canonical_format and b.data.all() for b in blocks)
        np.testing.assert_array_equal(sp.vstack(blocks).toarray(), matrix.toarray())
    np.testing.assert_array_equal(source.read(15, 61), matrix[15:61].toarray())
    np.testing.assert_array_equal(
        source.read_columns(5, 50, [2, 0]), matrix[5:50, [2, 0]].toarray()
    )
    assert verify(tmp_path / "X.zarr").ok
    if before is not None:  # the caller's matrix stays as it was
        np.testing.assert_array_equal(given.data, before.data)


def test_a_stored_matrix_travels_as_its_address(matrix: Any, tmp_path: Path) -> None:
    ingest(matrix, tmp_path / "X.zarr", rows=10)
    journey = pickle.dumps(open_matrix(tmp_path / "X.zarr"))
    assert len(journey) < 1000
    np.testing.assert_array_equal(pickle.loads(journey).read(0, 103), matrix.toarray())


def test_blocks_are_cut_by_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csr, "_BLOCK_BYTES", 800)
    indptr = np.cumsum([0] + [1] * 90 + [20] * 10)
    layout = csr_layout(indptr, 4)
    assert layout.n_entries == 290
    # By the mean there would be 25 rows; five of the last are 800 bytes, but 25 are halved to 4.
    assert layout.rows == 4
    assert layout.block_entries == 80
    assert csr_layout(np.array([0, 500, 1000]), 4).rows == 1  # a row is never divided
    assert csr_layout(np.zeros(10, dtype=int), 4).block_entries == 0


def test_a_matrix_without_entries_is_stored(tmp_path: Path) -> None:
    ingest(sp.csr_array((50, 4)), tmp_path / "X.zarr", rows=20)
    assert not open_matrix(tmp_path / "X.zarr").read(0, 50).any()
    assert verify(tmp_path / "X.zarr").ok


@pytest.mark.parametrize("missing", ["mean", "zero", "drop_rows"])
def test_missing_values_are_dealt_with_as_in_dense_data(
    missing: str, matrix: Any, tmp_path: Path
) -> None:
    matrix.data[[3, 50, 51]] = np.nan
    reports = [
        ingest(X, tmp_path / f"{i}.zarr", missing=missing, rows=20)
        for i, X in enumerate((matrix, matrix.toarray()))
    ]
    sparse, dense = (open_matrix(tmp_path / f"{i}.zarr") for i in (0, 1))
    n = dense.n_samples
    np.testing.assert_allclose(sparse.read(0, n), dense.read(0, n), rtol=1e-14)
    assert sparse.n_samples == n
    assert [(r.filled_values, r.dropped_rows) for r in reports] in ([(3, 0)] * 2, [(0, 2)] * 2,
                                                                    [(0, 3)] * 2)  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_bad_values_are_named_and_nothing_is_left(
    value: float, matrix: Any, tmp_path: Path
) -> None:
    matrix.data[77] = value
    row = int(np.searchsorted(matrix.indptr, 77, side="right")) - 1
    place = f"row {row}, column {matrix.indices[77]} is"
    with pytest.raises(InputError, match=place):
        ingest(matrix, tmp_path / "X.zarr", rows=10)
    assert not list(tmp_path.iterdir())
    assert first_unusable(matrix)[:2] == (row, matrix.indices[77])  # type: ignore[index]


def test_a_store_is_replaced_only_if_it_holds_nothing_else(matrix: Any, tmp_path: Path) -> None:
    for overwrite in (False, True):
        ingest(matrix, tmp_path / "X.zarr", rows=20, overwrite=overwrite)
    (tmp_path / "X.zarr" / "X" / "0" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="notes.txt"):
        ingest(matrix, tmp_path / "X.zarr", overwrite=True)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "chunk": (lambda f: (f / "X/1/data/c/0").unlink(), "X/1/data/c/0 is missing"),
    "metadata": (lambda f: (f / "X/2/indptr/zarr.json").unlink(), "X/2/indptr/zarr.json is miss"),
    "attributes": (
        lambda f: (f / "zarr.json").write_text(
            (f / "zarr.json").read_text().replace('"rows": 20', '"rows": 7')
        ),
        "metadata of the store is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_store_with_parts_missing_is_refused(damage: str, matrix: Any, tmp_path: Path) -> None:
    ingest(matrix, tmp_path / "X.zarr", rows=20)
    break_it, message = DAMAGES[damage]
    break_it(tmp_path / "X.zarr")
    with pytest.raises(CorruptStoreError, match=message):
        open_matrix(tmp_path / "X.zarr")
    with pytest.raises(CorruptStoreError):
        inspect(tmp_path / "X.zarr", verify=True)


def test_changed_bytes_are_never_read_as_values(matrix: Any, tmp_path: Path) -> None:
    ingest(matrix, tmp_path / "X.zarr", rows=20)
    source, chunk = open_matrix(tmp_path / "X.zarr"), tmp_path / "X.zarr/X/1/indices/c/0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 255
    chunk.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="block 1 cannot be decoded"):
        source.read(0, 103)
    assert verify(tmp_path / "X.zarr").mismatched == ["X/1"]
    chunk.unlink()  # after it was opened: it would read as zeros
    with pytest.raises(CorruptStoreError, match=r"X/1/indices: chunk c/0 is missing"):
        source.read(20, 30)


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "column outside": ({"indices": [0, 9]}, "indices"),
    "negative column": ({"indices": [0, -1]}, "indices"),
    "pointers fall": ({"indptr": [0, 3, 2]}, "indptr is not a non-decreasing"),
    "pointers start late": ({"indptr": [1, 1, 2]}, "indptr is not a non-decreasing"),
    "too many pointers": ({"indptr": [0, 1, 1, 2]}, "have shapes"),
    "fewer values": ({"data": [1.0]}, "have shapes"),
    "columns of fractions": ({"indices": [0.0, 1.0]}, "whole numbers"),
    "three dimensions": ({"shape": [2, 3, 1]}, "2 dimensions"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_parts_that_are_no_matrix_are_refused(case: str, tmp_path: Path) -> None:
    parts = {"data": [1.0, 2.0], "indices": [0, 2], "indptr": [0, 1, 2], "shape": [2, 3]}
    changed, message = HOSTILE[case]
    arrays = {name: np.array(value) for name, value in {**parts, **changed}.items()}
    np.savez(tmp_path / "X.npz", **arrays)
    with pytest.raises(InputError, match=message):
        ingest(tmp_path / "X.npz", tmp_path / "X.zarr")
    assert not (tmp_path / "X.zarr").exists()


def test_a_damaged_matrix_in_memory_is_refused() -> None:
    X = sp.csr_array(np.eye(3))
    X.indices[1] = 7
    with pytest.raises(InputError, match="damaged sparse matrix"):
        CSRSource(X)
