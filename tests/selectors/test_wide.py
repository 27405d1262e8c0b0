"""Wide data: paths from screened columns are those of the whole Gram matrix, and certified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs import MCFS, spectral_embedding
from bigfs.blocks import RowBlocks
from bigfs.core.errors import MemoryLimitError
from bigfs.core.units import GIB, MIB
from bigfs.graph import knn_graph
from bigfs.selectors.mcfs import wide as _wide
from bigfs.selectors.mcfs.strategies import FullGram
from bigfs.selectors.mcfs.wide import LassoPaths, wide_paths
from bigfs.spectral.embedding import SpectralEmbedding
from tests.selectors._local import inputs_of, selection_of


def _correlated(n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n, 8))
    X = factors @ rng.normal(size=(8, d)) + 0.7 * rng.normal(size=(n, d))
    return 5.0 + X * rng.uniform(0.2, 2.0, size=d)


def _embedded(
    X: np.ndarray, n_targets: int, rows: int | None = None
) -> tuple[RowBlocks, SpectralEmbedding]:
    blocks = RowBlocks.from_any(X, rows=rows)
    graph = knn_graph(blocks, 5)
    spectral = spectral_embedding(graph, n_targets, chunk_rows=blocks.rows)
    return blocks, spectral


def _full(blocks: RowBlocks, spectral: SpectralEmbedding, m: int, intercept: bool = True) -> Any:
    """Return the scores by the whole Gram matrix."""
    K = len(spectral.eigenvalues)
    selection = selection_of("mcfs", m, GIB, n_clusters=K, fit_intercept=intercept)
    strategy, scratch = FullGram(blocks.layout, selection), blocks.scratch
    inputs = inputs_of(blocks, spectral=spectral)
    return strategy.run(inputs, scratch.child(scratch.unique("result")))


def _paths(blocks: RowBlocks, spectral: SpectralEmbedding, m: int, intercept: bool) -> LassoPaths:
    return wide_paths(blocks, spectral, selection_of("mcfs", m, GIB, fit_intercept=intercept))


def _sizes(paths: LassoPaths) -> list[int]:
    return [len(active) for active, *_ in paths.last]


def _dense(paths: LassoPaths, n_features: int) -> np.ndarray:
    coef = np.zeros((len(paths.last), n_features))
    for row, (active, values, _) in zip(coef, paths.last, strict=True):
        row[active] = values
    return coef


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n, d, m", [(150, 800, 30), (400, 300, 50), (40, 200, 60)])
def test_equals_the_full_gram_path(n: int, d: int, m: int, intercept: bool) -> None:
    X = _correlated(n, d)
    X[:, [3, 7]] = 2.5
    X[:, 11] = X[:, 10]
    blocks, spectral = _embedded(X, 4, rows=64)
    before = blocks.passes
    paths = _paths(blocks, spectral, m, intercept)
    assert blocks.passes - before == 1 + len(paths.details["n_screened"])
    assert paths.details["largest_violation"].max() <= 1e-9
    expected = _full(blocks, spectral, m, intercept)
    coef = expected.details["coef"].toarray()
    np.testing.assert_array_equal(_sizes(paths), expected.details["n_active"])
    np.testing.assert_allclose(_dense(paths, d), coef, atol=1e-8 * np.abs(coef).max())


def test_a_constant_feature_is_no_intercept() -> None:
    X = _correlated(80, 12)
    X[:, 3] = 7.3
    blocks, spectral = _embedded(X, 3)
    for m in (6, 10):
        coef = _full(blocks, spectral, m, False).details["coef"].toarray()
        wide = _dense(_paths(blocks, spectral, m, False), 12)
        without = _full(RowBlocks.from_any(np.delete(X, 3, axis=1)), spectral, m, False)
        expected = np.insert(without.details["coef"].toarray(), 3, 0.0, axis=1)
        for actual in (coef, wide):
            np.testing.assert_allclose(actual, expected, atol=1e-8 * np.abs(expected).max())


def test_a_start_that_misses_everything_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wide, "_FIRST", 0)
    blocks, spectral = _embedded(_correlated(150, 400), 3)
    paths = _paths(blocks, spectral, 20, True)
    assert paths.details["n_screened"][0] <= 3
    assert len(paths.details["n_screened"]) > 1
    expected = _full(blocks, spectral, 20).details["coef"].toarray()
    np.testing.assert_allclose(_dense(paths, 400), expected, atol=1e-8 * np.abs(expected).max())


def test_every_scheduler_gives_the_same_bits(scheduler: str) -> None:
    import dask

    blocks, spectral = _embedded(_correlated(100, 200), 3, rows=16)
    paths = _paths(blocks, spectral, 15, True)
    with dask.config.set(scheduler="synchronous"):
        again = _paths(blocks, spectral, 15, True)
    np.testing.assert_array_equal(_dense(paths, 200), _dense(again, 200))


def test_mcfs_takes_this_way_where_the_gram_does_not_fit() -> None:
    X = _correlated(120, 6000).astype(np.float32)
    wide = MCFS(10, n_clusters=3, regression="lasso", memory_limit="768 MiB").fit(X)
    full = MCFS(10, n_clusters=3, regression="lasso", memory_limit="4 GiB").fit(X)
    assert wide.largest_violation_.shape == (3,)
    assert wide.n_screened_[0] < 600
    assert not hasattr(full, "largest_violation_")
    np.testing.assert_array_equal(wide.ranking_[:10], full.ranking_[:10])
    np.testing.assert_allclose(wide.scores_, full.scores_, atol=1e-6)


def test_constant_data_have_no_path() -> None:
    blocks, spectral = _embedded(_correlated(60, 30), 2)
    constant = RowBlocks.from_any(np.ones((60, 30)))
    paths = _paths(constant, spectral, 5, True)
    assert _sizes(paths) == [0, 0]


def test_columns_that_do_not_fit_are_refused() -> None:
    blocks, spectral = _embedded(_correlated(60, 20_000), 2)
    with pytest.raises(MemoryLimitError, match="Gram columns of .* of 20,000 features"):
        wide_paths(blocks, spectral, selection_of("mcfs", 600, 768 * MIB))


@pytest.mark.data
def test_worm_neuron_takes_at_most_six_passes(data_dir: Path) -> None:
    from scipy.sparse import csr_matrix

    with np.load(data_dir / "worm_neuron.npz") as stored:
        parts = (stored["data"], stored["indices"], stored["indptr"])
        X = csr_matrix(parts, shape=tuple(stored["shape"]))[:1000].toarray().astype(np.float32)
    blocks, spectral = _embedded(X, 4)
    before = blocks.passes
    paths = _paths(blocks, spectral, 50, True)
    assert blocks.passes - before <= 6
    assert _sizes(paths) == [50] * 4
    assert paths.details["largest_violation"].max() <= 1e-9
