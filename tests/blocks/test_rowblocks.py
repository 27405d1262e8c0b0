"""Passes over row blocks: right sums, one read per chunk, nothing large in the graph."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from bigfs.blocks import RowBlocks, kernels, lazy_array
from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.runtime.execute import TREE_ARITY
from bigfs.store.ingest import ingest
from bigfs.store.scratch import Scratch


@pytest.fixture
def matrix() -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(100, [1, 5, 0.1, 2, 7], (500, 5)).astype(np.float32)
    X[:, 2] = 0.1
    return X


def _blocks(X: Any, tmp_path: Path, rows: int = 60, **options: Any) -> RowBlocks:
    return RowBlocks.from_any(X, scratch=Scratch(tmp_path / "s"), rows=rows, **options)


def _store(X: np.ndarray, path: Path, rows: int) -> str:
    array = zarr.create_array(
        store=str(path), shape=X.shape, dtype=X.dtype, chunks=(rows, X.shape[1])
    )
    array[:] = X
    return str(path)


def test_moments_equal_numpy(matrix: np.ndarray, tmp_path: Path, scheduler: str) -> None:
    moments = _blocks(matrix, tmp_path).moments()
    dense = matrix.astype(np.float64)
    np.testing.assert_allclose(moments.mean, dense.mean(0), rtol=1e-13)
    np.testing.assert_allclose(moments.variance, dense.var(0), rtol=1e-11, atol=1e-30)
    np.testing.assert_array_equal(moments.minimum, dense.min(0))
    np.testing.assert_array_equal(moments.maximum, dense.max(0))
    assert moments.variance[2] == 0, "a constant feature has no variance at all"


def test_gram_and_cross_product_equal_numpy(
    matrix: np.ndarray, tmp_path: Path, scheduler: str
) -> None:
    blocks = _blocks(matrix, tmp_path)
    Y = np.random.default_rng(1).normal(3, 1, (500, 2))
    ref = blocks.create_rows("Y", 2, np.float64)
    for start, stop in blocks.bounds:
        ref.write(start, Y[start:stop])
    gram = blocks.gram(ref)
    dense = matrix.astype(np.float64)
    centered = dense - dense.mean(0)
    np.testing.assert_allclose(gram.gram, centered.T @ centered, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(gram.xty, centered.T @ (Y - Y.mean(0)), rtol=1e-9, atol=1e-6)
    np.testing.assert_array_equal(gram.gram, gram.gram.T)
    assert not gram.gram[2].any(), "a constant feature correlates with nothing"


def test_products_equal_numpy(matrix: np.ndarray, tmp_path: Path, scheduler: str) -> None:
    blocks = _blocks(matrix, tmp_path)
    V = np.random.default_rng(1).normal(size=(500, 3))
    ref = blocks.create_rows("V", 3, np.float64)
    for start, stop in blocks.bounds:
        ref.write(start, V[start:stop])
    np.testing.assert_allclose(blocks.xtv(ref), matrix.astype(np.float64).T @ V, rtol=1e-12)


def test_results_are_the_same_bits_on_every_scheduler(
    matrix: np.ndarray, tmp_path: Path, scheduler: str
) -> None:
    import dask

    path = _store(matrix, tmp_path / "X.zarr", 60)
    gram = _blocks(path, tmp_path).gram()
    with dask.config.set(scheduler="synchronous"):
        expected = _blocks(path, tmp_path).gram()
    assert gram.gram.tobytes() == expected.gram.tobytes()
    assert gram.mean.tobytes() == expected.mean.tobytes()


@given(n=st.integers(2, 60), d=st.integers(1, 6), rows=st.integers(1, 70), seed=st.integers(0, 99))
def test_moments_do_not_depend_on_the_blocks(n: int, d: int, rows: int, seed: int) -> None:
    X = np.random.default_rng(seed).normal(1e6, 1, (n, d))
    parts = [kernels.block_gram(X[i : i + rows], None) for i in range(0, n, rows)]
    total = parts[0]
    for part in parts[1:]:
        total = kernels.merge_gram(total, part)
    expected = (X - X.mean(0)).T @ (X - X.mean(0))
    np.testing.assert_allclose(kernels.complete_gram(total, d).gram, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["trend", "late", "offset"])
def test_gram_keeps_its_digits_where_the_first_rows_say_nothing(kind: str) -> None:
    """Sums are taken about the first rows, exact about the mean: also where those differ."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(3000, 12)).astype(np.float32).astype(np.float64)
    if kind == "trend":
        Z += np.linspace(-1000, 1000, 3000)[:, None]
    if kind == "late":
        Z[:2000] = 0.0
    if kind == "offset":
        Z += 1e4
    X, Y = Z[:, :8], Z[:, 8:]
    X[:, 3] = 0.1
    total = kernels.block_gram(X[:1700], Y[:1700])
    total = kernels.merge_gram(total, kernels.block_gram(X[1700:], Y[1700:]))
    gram = kernels.complete_gram(total, 8)
    exact = Z.astype(np.longdouble) - Z.astype(np.longdouble).mean(axis=0)
    exact[:, 3] = 0.0
    expected = (exact.T @ exact).astype(np.float64)
    norms = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs(gram.gram - expected[:8, :8]).max() <= 1e-12 * norms.max()
    assert np.abs(gram.xty - expected[:8, 8:]).max() <= 1e-12 * norms.max()
    assert not gram.gram[3].any() and not gram.xty[3].any()
    assert gram.mean[3] == 0.1


@pytest.mark.parametrize("value, text", [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_the_first_bad_value_is_named(
    matrix: np.ndarray, tmp_path: Path, value: float, text: str
) -> None:
    import dask

    matrix[333, 4] = value
    path = _store(matrix, tmp_path / "X.zarr", 60)
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(InputError, match=f"row 333, column 4 is {text}"),
    ):
        _blocks(path, tmp_path)


@pytest.mark.parametrize("value", [1.1e140, -1e200, 1.7e308])
def test_a_value_too_large_to_be_squared_is_named(tmp_path: Path, value: float) -> None:
    X = np.ones((300, 5))
    X[7, 2] = 1e140
    RowBlocks.from_any(X, scratch=Scratch(tmp_path), rows=100)
    X[233, 4] = value
    with pytest.raises(InputError, match=rf"row 233, column 4 is {value:g}".replace("+", r"\+")):
        RowBlocks.from_any(X, scratch=Scratch(tmp_path), rows=100)


@pytest.mark.parametrize("transform", ["none", "standardize", "minmax", "unit_norm", "log1p"])
@pytest.mark.parametrize("value, text", [(np.nan, "NaN"), (np.inf, "inf")])
def test_a_store_that_is_changed_in_place_is_noticed_by_the_next_pass(
    tmp_path: Path, transform: str, value: float, text: str
) -> None:
    X = np.random.default_rng(0).random((300, 5)) + 1
    ingest(X, tmp_path / "X.zarr", rows=50)
    blocks = _blocks(tmp_path / "X.zarr", tmp_path, rows=100, transform=transform)
    blocks.gram()
    zarr.open_group(tmp_path / "X.zarr", mode="r+")["X"][233, 4] = value
    message = f"row 233, column 4 is {text}, but was not when the data were ingested"
    for read in (blocks.gram, lambda: blocks.map_blocks(_identity)):
        with pytest.raises(CorruptStoreError, match=message):
            read()


@pytest.mark.parametrize("kind", ["standardize", "minmax", "unit_norm", "log1p"])
def test_preprocessing_is_part_of_reading(
    matrix: np.ndarray, tmp_path: Path, scheduler: str, kind: str
) -> None:
    dense = matrix.astype(np.float64)
    blocks = _blocks(dense, tmp_path, transform=kind)
    actual = np.concatenate([blocks_rows for blocks_rows in blocks.map_blocks(_identity)])
    varies = np.ptp(dense, axis=0) > 0
    expected = {
        "standardize": lambda: (dense - dense.mean(0)) / np.where(varies, dense.std(0), 1),
        "minmax": lambda: (dense - dense.min(0)) / np.where(varies, np.ptp(dense, axis=0), 1),
        "unit_norm": lambda: dense / np.linalg.norm(dense, axis=1, keepdims=True),
        "log1p": lambda: np.log1p(dense),
    }[kind]()
    if kind == "standardize":
        expected[:, ~varies] = 0
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def _identity(X: np.ndarray, first_row: int) -> np.ndarray:
    return X


def test_preprocessing_that_cannot_be_done_is_an_error(tmp_path: Path) -> None:
    X = np.ones((6, 3))
    X[4] = 0
    with pytest.raises(InputError, match="row 4 is all zeros"):
        _blocks(X, tmp_path, rows=2, transform="unit_norm").gram()
    X[3, 1] = -1
    with pytest.raises(InputError, match="row 3, column 1 is -1"):
        _blocks(X, tmp_path, rows=2, transform="log1p").gram()
    with pytest.raises(InputError, match="preprocess must be one of .* Got 'zscore'"):
        _blocks(X, tmp_path, transform="zscore")


class _CountingStore(zarr.storage.LocalStore):
    """Counts how often each chunk of a matrix is read."""

    reads: dict[str, int] = {}

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        if "/c/" in f"/{key}":
            self.reads[key] = self.reads.get(key, 0) + 1
        return await super().get(key, *args, **kwargs)


def test_each_pass_reads_each_chunk_once(matrix: np.ndarray, tmp_path: Path) -> None:
    _store(matrix, tmp_path / "X.zarr", 30)
    store = _CountingStore(tmp_path / "X.zarr")
    store.reads.clear()
    blocks = _blocks(zarr.open_array(store, mode="r"), tmp_path)
    assert len(store.reads) == 17
    assert set(store.reads.values()) == {1}, "opening checks every value in one pass"
    assert blocks.passes == 1
    blocks.moments()
    assert set(store.reads.values()) == {1}, "moments are remembered"
    blocks.gram()
    assert set(store.reads.values()) == {2}
    assert blocks.passes == 2


def test_a_block_is_a_whole_number_of_chunks(matrix: np.ndarray, tmp_path: Path) -> None:
    path = _store(matrix, tmp_path / "X.zarr", 60)
    with pytest.raises(InputError, match="multiple of the 60 rows of a chunk.*set it to 120"):
        _blocks(path, tmp_path, rows=100)


def test_tasks_carry_addresses_and_never_rows(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(5000, 40))
    in_memory = _blocks(X, tmp_path, rows=500)
    assert len(pickle.dumps(in_memory.start_pass())) < 1000
    ingest(X, tmp_path / "X.zarr")
    stored = _blocks(tmp_path / "X.zarr", tmp_path, rows=None)
    assert len(pickle.dumps(stored.start_pass())) < 2000


def test_a_task_gets_one_block_and_a_fold_gets_sums(
    matrix: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task and no call of the client ever receives more than one block of rows."""
    import dask

    from bigfs.runtime import execute

    blocks = _blocks(matrix, tmp_path, rows=25)
    seen: list[int] = []
    call, fold = execute._call, execute._fold

    def watch_call(fn: Any, item: Any, *rest: Any) -> Any:
        assert item[1] - item[0] <= 25
        result = call(fn, item, *rest)
        seen.append(len(pickle.dumps(result)))
        return result

    def watch_fold(combine: Any, parts: list[Any], *rest: Any) -> Any:
        assert len(parts) <= 2 * TREE_ARITY - 1
        return fold(combine, parts, *rest)

    monkeypatch.setattr(execute, "_call", watch_call)
    monkeypatch.setattr(execute, "_fold", watch_fold)
    with dask.config.set(scheduler="synchronous"):
        blocks.gram()
    assert len(seen) == 20
    assert max(seen) < 1500, "a partial Gram is d x d, whatever the rows"


def test_lazy_arrays_read_when_asked(matrix: np.ndarray, tmp_path: Path) -> None:
    path = _store(matrix, tmp_path / "X.zarr", 60)
    lazy = lazy_array(path)
    assert lazy.shape == (500, 5)
    np.testing.assert_array_equal(lazy[100:130, [1, 3]].compute(), matrix[100:130, [1, 3]])
    (tmp_path / "X.csv").write_text("a,b\n1,2\n3,4\n")
    # A text table has no row ranges: it is copied first.
    np.testing.assert_array_equal(lazy_array(tmp_path / "X.csv").compute(), [[1, 2], [3, 4]])


@pytest.mark.cluster
def test_data_in_memory_are_stored_once_for_a_cluster(
    matrix: np.ndarray, tmp_path: Path, client: Any
) -> None:
    blocks = _blocks(matrix, tmp_path, rows=None)
    assert blocks.source.shareable
    np.testing.assert_allclose(blocks.moments().mean, matrix.astype(np.float64).mean(0))


def test_a_kept_gram_is_computed_once(tmp_path, monkeypatch) -> None:
    calls = []
    once = kernels.block_gram
    monkeypatch.setattr(kernels, "block_gram", lambda X, Y: calls.append(len(X)) or once(X, Y))
    X = np.random.default_rng(0).normal(size=(500, 7)) + 40
    X[:, 3] = 2.0
    blocks = RowBlocks.from_any(X, scratch=Scratch(tmp_path), rows=100)
    Y = np.random.default_rng(1).normal(size=(500, 2)) + 1
    ref = blocks.scratch.create("Y", Y.shape, np.float64, 100)
    ref.write(0, Y)
    expected = blocks.gram(ref)
    calls.clear()
    blocks.keeps_gram = True
    for actual in (blocks.gram(ref), blocks.gram(ref)):
        for name in ("mean", "gram", "y_mean", "xty"):
            np.testing.assert_allclose(
                getattr(actual, name), getattr(expected, name), rtol=1e-11, atol=1e-9
            )
        actual.gram[:] = 0  # callers may write into theirs
    assert blocks.gram().xty.shape == (7, 0)
    assert len(calls) == 5, "one call for each block, once"
