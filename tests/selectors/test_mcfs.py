"""MCFS: one fit serves every smaller number of features; its coefficients are sparse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression

import bigfs
from bigfs import MCFS, knn_graph, spectral_embedding
from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.graph import affinity
from bigfs.selectors.mcfs import wide as _tasks
from bigfs.solvers.lars import lars_path_gram


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return load_digits().data[:400]


def _wide() -> np.ndarray:
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(60, 6))
    return factors @ rng.normal(size=(6, 6000)) + rng.normal(size=(60, 6000))


@pytest.mark.parametrize("scale", ["none", "l2", "explained"])
def test_support_is_that_of_a_fit_with_fewer_features(digits: np.ndarray, scale: str) -> None:
    selector = MCFS(40, n_clusters=6, regression="lasso", coef_scale=scale).fit(digits)
    for m in (1, 2, 5, 17, 33, 40):
        smaller = clone(selector).set_params(n_features_to_select=m).fit(digits)
        np.testing.assert_array_equal(selector.support(m), smaller.get_support(indices=True))
    np.testing.assert_array_equal(selector.support(50), np.sort(selector.ranking_[:50]))


@pytest.mark.full
def test_support_on_the_wide_path_is_that_of_a_fit_with_fewer_features() -> None:
    X = _wide()
    selector = MCFS(30, n_clusters=3, regression="lasso", memory_limit="768 MiB").fit(X)
    assert hasattr(selector, "largest_violation_")
    for m in (3, 11, 30):
        smaller = clone(selector).set_params(n_features_to_select=m).fit(X)
        np.testing.assert_array_equal(selector.support(m), smaller.get_support(indices=True))


def test_beyond_the_kept_stops_support_is_the_head_of_the_ranking(
    digits: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tasks, "MAX_STOPS", 5)
    selector = MCFS(12, n_clusters=3).fit(digits)
    np.testing.assert_array_equal(selector.support(7), np.sort(selector.ranking_[:7]))
    smaller = clone(selector).set_params(n_features_to_select=5).fit(digits)
    np.testing.assert_array_equal(selector.support(5), smaller.get_support(indices=True))


def test_stops_of_a_path_are_those_of_shorter_ones() -> None:
    """Also where several features join at one knot, and where the path ends before."""
    tied = np.eye(5), np.array([1.0, 2.0, 2.0, -2.0, 0.0])
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 30)) + rng.normal(size=(12, 1))
    X -= X.mean(axis=0)
    short = X.T @ X, X.T @ rng.normal(size=12)
    for gram, xty in (tied, short):
        n_stops = len(xty)
        complete = lars_path_gram(gram, xty, n_stops, keep_knots=n_stops)
        stops = _tasks.stops_of(complete, n_stops, xty)
        assert len(stops) == n_stops
        for m, (active, values, explained) in enumerate(stops, start=1):
            path = lars_path_gram(gram, xty, m)
            share = path.coef @ (2 * xty - gram @ path.coef)
            assert explained == pytest.approx(min(share, 1), abs=1e-12)
            np.testing.assert_array_equal(active, np.sort(path.active))
            np.testing.assert_array_equal(values, path.coef[active])


def test_coefficients_are_sparse_and_explain_the_scores(digits: np.ndarray) -> None:
    selector = MCFS(10, n_clusters=4, regression="lasso", coef_scale="none").fit(digits)
    assert issparse(selector.coef_)
    assert selector.coef_.format == "csr"
    assert selector.coef_.shape == (4, 64)
    assert selector.coef_.has_canonical_format
    np.testing.assert_array_equal(np.diff(selector.coef_.indptr), selector.n_active_)
    np.testing.assert_array_equal(np.abs(selector.coef_.toarray()).max(0), selector.scores_)


def test_equal_features_go_by_index(digits: np.ndarray) -> None:
    twice = np.hstack([digits, digits])
    selector = MCFS(20, n_clusters=4, n_neighbors=8).fit(twice)
    assert selector.support(20).max() < 64, "of two equal features the lower index joins"
    constant = np.ptp(twice[:, selector.ranking_], axis=0) == 0
    unused = selector.scores_[selector.ranking_] == 0
    for group in (unused & ~constant, constant):
        np.testing.assert_array_equal(selector.ranking_[group], np.sort(selector.ranking_[group]))


def test_a_run_keeps_coefficients_and_smaller_selections(
    digits: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "X.npy", digits)
    result = bigfs.run(
        {
            "run": str(tmp_path / "run"),
            "input": {"uri": str(tmp_path / "X.npy")},
            "n_features_to_select": 20,
            "mcfs": {"n_clusters": 5},
        }
    )
    fitted = MCFS(20, n_clusters=5).fit(digits)
    np.testing.assert_array_equal(result.coef.toarray(), fitted.coef_.toarray())
    for m in (1, 7, 20, 31):
        np.testing.assert_array_equal(result.support(m), fitted.support(m))
    with pytest.raises(InputError, match=r"int in \[1, 64\].*Got 65"):
        result.support(65)


@pytest.mark.full
def test_a_run_on_wide_data_says_what_proves_its_paths(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", _wide())
    settings = {
        "run": str(tmp_path / "run"),
        "input": {"uri": str(tmp_path / "X.npy")},
        "n_features_to_select": 20,
        "mcfs": {"n_clusters": 3, "regression": "lasso"},
    }
    small = bigfs.run({**settings, "memory_limit": "768 MiB"})
    violation, screened = small.certificate
    assert violation.shape == (3,)
    assert violation.max() <= 1e-9
    assert f"Paths are exact: {screened[-1]} features were screened" in small.summary()
    assert bigfs.run(settings).certificate is None


def test_a_long_lasso_path_says_what_is_faster(
    caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    monkeypatch.setattr("bigfs.selectors.mcfs.strategies.MAX_STOPS", 5)
    X = np.random.default_rng(0).normal(size=(40, 12))
    MCFS(5, n_clusters=2, regression="lasso").fit(X)
    assert not caplog.messages
    MCFS(6, n_clusters=2, regression="lasso").fit(X)
    assert "Set regression to 'omp'" in caplog.text


@pytest.mark.parametrize("fits", [True, False])
def test_explained_is_that_of_a_regression_with_an_intercept(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fits:  # then features are screened
        monkeypatch.setattr("bigfs.selectors.mcfs.strategies.gram_bytes", lambda *sizes: 2**60)
    rng = np.random.default_rng(7)
    X = rng.poisson(np.exp(rng.normal(size=(200, 1)) + rng.normal(size=(1, 12)))).astype(float)
    settings = {"n_clusters": 3, "preprocess": "none", "weight": "dot", "regression": "lasso"}
    fitted = MCFS(12, **settings).fit(X)
    W = affinity(knn_graph(X, 5), weight="dot", blocks=RowBlocks.from_any(X))
    Y = spectral_embedding(W, 3, tol=3e-3).embedding[:]
    expected = [LinearRegression().fit(X, y).score(X, y) for y in Y.T]
    np.testing.assert_allclose(fitted.explained_, expected, atol=0.01)
