"""Both ways to the lasso paths are scikit-learn's on the dense data, on degenerate ones too."""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import pytest
from sklearn.linear_model import lars_path

from bigfs import MCFS, spectral_embedding
from bigfs.blocks import RowBlocks
from bigfs.core.units import GIB
from bigfs.graph import knn_graph
from bigfs.selectors.mcfs.strategies import FullGram
from bigfs.selectors.mcfs.wide import wide_paths
from bigfs.spectral.embedding import SpectralEmbedding
from tests.selectors._local import inputs_of, selection_of

KINDS = ("plain", "far from zero", "identical", "zero", "constant", "collinear", "all of it")
# Which earlier feature a feature repeats; the data are dealt with in tens of features.
TWINS = {11: 10, 25: 10, 33: 32}


@lru_cache
def _data(kind: str, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 8)) @ rng.normal(size=(8, 60)) + 0.7 * rng.normal(size=(200, 60))
    everything = kind == "all of it"
    if kind == "far from zero" or everything:
        X += 1000.0
    if kind == "collinear" or everything:
        X[:, 40] = X[:, 41] - X[:, 42]
    if kind == "zero" or everything:
        X[:, [0, 5, 59]] = 0.0
    if kind == "constant" or everything:
        X[:, [1, 6]] = 0.1
        X[:, 58] = -2000.0
    X = X.astype(dtype)
    if kind == "identical" or everything:
        for feature, twin in TWINS.items():
            X[:, feature] = X[:, twin]
    return X


@lru_cache
def _embedded(kind: str, dtype: str) -> tuple[RowBlocks, SpectralEmbedding]:
    blocks = RowBlocks.from_any(_data(kind, dtype), rows=32)
    return blocks, spectral_embedding(knn_graph(blocks, 6), 4, chunk_rows=blocks.rows)


def _peer(X: np.ndarray, y: np.ndarray, ours: np.ndarray, intercept: bool) -> np.ndarray:
    """Return scikit-learn's coefficients where the largest correlation is that of ours."""
    X = X.astype(np.float64)
    # It breaks off at equal features; that the later ones stay out is checked by the caller.
    repeats = [f for f, twin in TWINS.items() if np.array_equal(X[:, f], X[:, twin])]
    X[:, repeats] = 0.0
    X[:, np.ptp(X, axis=0) == 0] = 0.0  # which never join
    if intercept:
        X = X - X.mean(axis=0)
        y = y - y.mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alphas, _, coefs = lars_path(X, y, method="lasso", max_iter=5000)
    level = np.abs(X.T @ (y - X @ ours)).max() / len(X)
    return np.array([np.interp(level, alphas[::-1], row[::-1]) for row in coefs])


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["gram", "wide"])
def test_paths_equal_scikit_learn(way: str, kind: str, dtype: str, intercept: bool) -> None:
    X, m = _data(kind, dtype), 20
    blocks, spectral = _embedded(kind, dtype)
    selection = selection_of("mcfs", m, GIB, n_clusters=4, fit_intercept=intercept)
    if way == "gram":
        strategy = FullGram(blocks.layout, selection)
        out = blocks.scratch.child(blocks.scratch.unique("result"))
        scores = strategy.run(inputs_of(blocks, spectral=spectral), out)
        coef = scores.details["coef"].toarray()
    else:
        paths = wide_paths(blocks, spectral, selection)
        coef = np.zeros((4, 60))
        for row, (active, values, _) in zip(coef, paths.last, strict=True):
            row[active] = values
    constant = np.ptp(X, axis=0) == 0
    assert not coef[:, ~X.any(axis=0)].any()
    assert not coef[:, constant].any(), "a constant feature never joins"
    Y = spectral.embedding_ref.load() / spectral.norms
    for ours, y in zip(coef, Y.T, strict=True):
        expected = _peer(X, y, ours, intercept)
        if kind in ("identical", "all of it"):
            assert not ours[list(TWINS)].any(), "of equal features the lowest index joins"
        assert np.abs(ours - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.full
@pytest.mark.parametrize("memory_limit", ["768 MiB", "4 GiB"])
def test_mcfs_on_degenerate_wide_data(memory_limit: str) -> None:
    """The way that memory decides on: equal features by index, constant ones last."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 6000)) + rng.normal(size=(60, 6000))
    X[:, 3000:] = X[:, :3000]
    X[:, [7, 3007]] = 0.0
    X[:, [8, 3008]] = 0.1
    selector = MCFS(20, n_clusters=3, regression="lasso", memory_limit=memory_limit).fit(X)
    assert hasattr(selector, "largest_violation_") == (memory_limit == "768 MiB")
    assert selector.support(20).max() < 3000
    assert not selector.scores_[[7, 8, 3007, 3008]].any()
