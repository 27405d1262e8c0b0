"""Passes over CSR blocks: the sums of dense rows, and never a dense block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bigfs
from bigfs import MaxVariance, RandomSelection, ingest, open_matrix
from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import make_config
from bigfs.store.source import RandomAccessSource


@pytest.fixture
def matrix() -> Any:
    rng = np.random.default_rng(0)
    X = sp.random_array((300, 8), density=0.3, format="csr", rng=rng).toarray() + 0.0
    X[:, 1] = 0
    X[:, 2] = 0.1
    X[:, 3] -= 1e4 * (X[:, 3] > 0)
    X[:, 4] += 1000
    X[5] = 0
    return sp.csr_array(X)


def _blocks(X: Any, **options: Any) -> RowBlocks:
    return RowBlocks.from_any(X, rows=70, **options)


@pytest.mark.parametrize("transform", ["none", "log1p"])
def test_moments_are_those_of_the_dense_rows(matrix: Any, transform: str) -> None:
    if transform == "log1p":
        matrix = abs(matrix)
    blocks = _blocks(matrix, sparse=True, transform=transform)
    assert blocks.sparse
    moments = blocks.moments()
    X = matrix.toarray() if transform == "none" else np.log1p(matrix.toarray())
    np.testing.assert_allclose(moments.mean, X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(moments.variance, X.var(axis=0), rtol=1e-9, atol=1e-18)
    np.testing.assert_array_equal(moments.minimum, X.min(axis=0))
    np.testing.assert_array_equal(moments.maximum, X.max(axis=0))
    assert np.flatnonzero(moments.constant).tolist() == [1]


@pytest.mark.parametrize("transform", ["log1p", "unit_norm"])
def test_transforms_act_on_entries(matrix: Any, transform: str) -> None:
    X = abs(matrix)[6:]
    forms = [_blocks(X, sparse=sparse, transform=transform) for sparse in (True, False)]
    reads = [blocks.start_pass().read(3, 200) for blocks in forms]
    assert sp.issparse(reads[0])
    np.testing.assert_allclose(reads[0].toarray(), reads[1], rtol=1e-14)


@pytest.mark.parametrize(
    ("transform", "message"),
    [("unit_norm", "row 7 is all zeros"), ("log1p", "row 4, column 2 is -3; values must")],
)
def test_what_a_transform_refuses_is_named(transform: str, message: str) -> None:
    X = sp.csr_array(np.eye(9))
    X = sp.csr_array(np.where(np.arange(9)[:, None] == 7, 0, X.toarray()))
    if transform == "log1p":
        X = sp.csr_array(X.toarray() - 3.0 * (np.eye(9)[:, [4]] @ np.eye(9)[[2]]))
    with pytest.raises(InputError, match=message):
        RowBlocks.from_any(X, sparse=True, transform=transform).moments()


@pytest.mark.parametrize("transform", ["standardize", "rescale", "minmax"])
def test_what_would_fill_zeros_in_is_an_offset(transform: str, matrix: Any) -> None:
    forms = [_blocks(matrix, sparse=sparse, transform=transform) for sparse in (True, False)]
    assert forms[0].sparse and forms[1].offset is None
    entries, dense = (blocks.start_pass().read(0, 300) for blocks in forms)
    assert entries.nnz <= matrix.nnz
    np.testing.assert_allclose(entries.toarray() + forms[0].offset, dense, atol=1e-12)
    for name in ("mean", "variance", "minimum", "maximum", "constant"):
        moments, expected = (getattr(blocks.moments(), name) for blocks in forms)
        np.testing.assert_allclose(moments, expected, atol=1e-9)


def test_totals_of_rows_are_normalized(matrix: Any) -> None:
    X = abs(matrix)
    forms = [_blocks(X, sparse=sparse, transform="normalize_total") for sparse in (True, False)]
    entries, dense = (blocks.start_pass().read(0, 300) for blocks in forms)
    sums = np.where(X.sum(axis=1) > 0, 1e4, 0)
    assert not sums[5]
    np.testing.assert_allclose(dense.sum(axis=1), sums, rtol=1e-12)
    np.testing.assert_allclose(entries.toarray(), dense, rtol=1e-14)
    blocks = _blocks(X, sparse=True, transform="normalize_log1p")
    logged = blocks.start_pass().read(0, 300)
    np.testing.assert_allclose(logged.toarray(), np.log1p(dense), rtol=1e-14)
    for given, kind in ((-X, "normalize_total"), (-X.toarray(), "normalize_log1p")):
        with pytest.raises(InputError, match=rf"'{kind}': row \d+, column \d+ is -.*not be neg"):
            _blocks(given, sparse=True, transform=kind).moments()


@pytest.mark.parametrize("kind", ["memory", "store", "dask"])
def test_methods_with_a_sparse_form_never_make_a_block_dense(
    kind: str, matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = MaxVariance(3, preprocess="none").fit(matrix.toarray()).scores_
    X: Any = matrix
    if kind == "store":
        X = tmp_path / "X.zarr"
        ingest(matrix, X, rows=70)
    elif kind == "dask":
        import dask.array as da

        X = da.from_array(matrix.toarray(), chunks=(90, 8)).map_blocks(sp.csr_array)

    def refuse(source: RandomAccessSource, *rows: int) -> Any:
        assert not source.sparse, "a block was made dense"
        return source.read_rows(*rows)

    monkeypatch.setattr(RandomAccessSource, "read", refuse)
    np.testing.assert_allclose(MaxVariance(3).fit(X).scores_, expected, rtol=1e-9, atol=1e-18)
    assert len(RandomSelection(3).fit(X).ranking_) == 8


def _large() -> Any:
    """Return 3.7 GiB of zeros with a few entries."""
    rows, columns = np.arange(5), np.arange(5)
    return sp.csr_array((np.ones(5, np.float32), (rows, columns)), shape=(100_000, 10_000))


@pytest.mark.full
def test_large_matrices_are_worked_on_or_refused_before_any_work(tmp_path: Path) -> None:
    X = _large()
    assert MaxVariance(3).fit(X).scores_[:6].tolist()[5] == 0
    with pytest.raises(
        InputError, match=r"'udfs' does not support sparse.* 3.73 GiB.*max_variance"
    ):
        bigfs.UDFS(3).fit(X)
    with pytest.raises(
        InputError, match=r"representation 'raw' does not support sparse.*to 'pca:50'"
    ):
        bigfs.MCFS(3, preprocess="none").fit(X)
    assert MaxVariance(3, preprocess="standardize").fit(X).scores_[:5] == pytest.approx(1)
    with pytest.raises(InputError, match="this step does not support sparse"):
        bigfs.knn_graph(X, 5)
    sp.save_npz(tmp_path / "X.npz", X)
    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.npz")}}
    settings |= {"method": "max_variance", "n_features_to_select": 3}
    with pytest.raises(InputError, match="method 'udfs' does not support sparse"):
        bigfs.run({**settings, "method": "udfs"})
    assert not (tmp_path / "run").exists()
    assert bigfs.run({**settings, "stability": {"n_pairs": 2}}).selected.tolist() == [0, 1, 2]


def test_the_plan_counts_entries(tmp_path: Path) -> None:
    X = sp.random_array((4000, 50), density=0.1, format="csr", rng=np.random.default_rng(0))
    sp.save_npz(tmp_path / "X.npz", X)
    config = make_config(
        run=str(tmp_path / "run"), input={"uri": str(tmp_path / "X.npz")}, method="max_variance",
        n_features_to_select=3,
    )  # fmt: skip
    plan = plan_pipeline(config)
    assert "20,000 entries, " in plan.text()
    assert plan.as_dict()["n_entries"] == 20_000
    result = bigfs.run(config)
    stored = open_matrix(tmp_path / "run" / "data.zarr")
    assert stored.sparse
    assert plan.shape == RowBlocks.from_any(stored, sparse=True).layout
    assert result.stages["result"]["bytes_read"] == plan.by_stage["result"].bytes_read
    assert plan.by_stage["result"].bytes_read == 12 * 20_000 + 4 * 4000


def test_selected_columns_are_exported_from_entries(tmp_path: Path, matrix: Any) -> None:
    sp.save_npz(tmp_path / "X.npz", matrix)
    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.npz")}}
    result = bigfs.run({**settings, "method": "max_variance", "n_features_to_select": 3})
    result.export(tmp_path / "X.npy")
    expected = matrix.toarray()[:, np.sort(result.selected)]
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), expected)


def test_damaged_entries_of_a_run_are_brought_in_again(tmp_path: Path, matrix: Any) -> None:
    sp.save_npz(tmp_path / "X.npz", matrix)
    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.npz")}}
    settings |= {"method": "max_variance", "n_features_to_select": 3}
    expected = bigfs.run(settings).scores
    for m, part in ((4, "data"), (5, "indptr")):
        chunk = tmp_path / "run" / "data.zarr" / "X" / "0" / part / "c" / "0"
        content = bytearray(chunk.read_bytes())
        content[len(content) // 2] ^= 255
        chunk.write_bytes(content)
        result = bigfs.run({**settings, "n_features_to_select": m})
        np.testing.assert_array_equal(result.scores, expected)
