"""MCFS with forward regression of all eigenvectors: equal to the dense reference, also if wide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import bigfs
from bigfs import MCFS
from bigfs.core.errors import InputError
from tests.reference.greedy import forward_selection
from tests.reference.mcfs import neighbor_affinity, smallest_eigenvectors


def omp(m: int, **settings: Any) -> MCFS:
    return MCFS(m, regression="omp", **settings)


def _wide(n: int = 60) -> np.ndarray:
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(n, 6))
    X = factors @ rng.normal(size=(6, 6000)) + rng.normal(size=(n, 6000))
    X[:, [0, 17]] = 3.0
    return X


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n_clusters", [1, 4])
def test_it_equals_the_dense_reference(intercept: bool, n_clusters: int) -> None:
    X = load_digits().data[:150]
    selector = omp(6, n_clusters=n_clusters, n_neighbors=20, fit_intercept=intercept).fit(X)
    assert selector.n_connected_components_ == 1, "the reference is for connected graphs"
    _, Y = smallest_eigenvectors(neighbor_affinity(X, 20), n_clusters)
    A = X.copy()
    if intercept:
        A, Y = A - A.mean(axis=0), Y - Y.mean(axis=0)
    order, gains = forward_selection(A, Y, 6)
    assert selector.ranking_[:6].tolist() == order
    np.testing.assert_allclose(selector.explained_ratio_, gains / np.linalg.norm(Y) ** 2, rtol=1e-7)
    scaled = Y / found_norms(X, n_clusters)
    coef = np.linalg.lstsq(A[:, order], scaled, rcond=None)[0]
    fitted = A[:, order] @ selector.coef_.toarray()[:, order].T
    np.testing.assert_allclose(np.abs(fitted), np.abs(A[:, order] @ coef), atol=1e-7)


def found_norms(X: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return the Euclidean norms of the eigenvectors, before their means are taken off."""
    _, Y = smallest_eigenvectors(neighbor_affinity(X, 20), n_clusters)
    return np.linalg.norm(Y, axis=0)


@pytest.mark.full
@pytest.mark.parametrize("intercept", [True, False])
def test_wide_data_give_the_same_path_from_few_columns(intercept: bool) -> None:
    X = _wide()
    settings = {"n_clusters": 3, "fit_intercept": intercept}
    full_fit = omp(30, **settings).fit(X)
    few = omp(30, memory_limit="768 MiB", **settings).fit(X)
    np.testing.assert_array_equal(few.ranking_[:30], full_fit.ranking_[:30])
    np.testing.assert_allclose(few.explained_ratio_, full_fit.explained_ratio_, rtol=1e-9)
    assert few.ranking_[-2:].tolist() == full_fit.ranking_[-2:].tolist() == [0, 17]


@pytest.mark.full
def test_passes_of_wide_data_are_few_and_within_the_plan(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", _wide(200))
    result = bigfs.run(
        {
            "run": str(tmp_path / "run"),
            "input": {"uri": str(tmp_path / "X.npy")},
            "n_features_to_select": 40,
            "memory_limit": "768 MiB",
            "mcfs": {"n_clusters": 5, "regression": "omp"},
        }
    )
    record = result.stages["result"]
    assert record["strategy"] == "ForwardOnColumns"
    assert record["passes"] <= 8  # of noise; a dozen if columns were 160


def test_every_smaller_selection_is_that_of_its_fit_and_scores_decrease() -> None:
    X = load_digits().data[:300]
    full_fit = omp(40, n_clusters=5).fit(X)
    assert (np.diff(full_fit.scores_[full_fit.ranking_]) <= 0).all()
    for m in (1, 7, 23):
        fitted = omp(m, n_clusters=5).fit(X)
        np.testing.assert_array_equal(full_fit.support(m), fitted.get_support(indices=True))
        np.testing.assert_array_equal(full_fit.ranking_[:m], fitted.ranking_[:m])


def test_degenerate_data() -> None:
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(20, 50))
    fitted = omp(30, n_clusters=3).fit(wide)
    assert len(fitted.explained_ratio_) <= 19 and np.isfinite(fitted.scores_).all()
    assert np.isclose(fitted.explained_ratio_.sum(), 1)
    assert omp(50, n_clusters=1).fit(wide).get_support().all()
    A = rng.normal(size=(40, 4))
    twice = np.column_stack([np.full(40, 7.0), A, A])
    again = omp(9, n_clusters=2).fit(np.repeat(twice, 2, axis=0))
    assert again.ranking_[-1] == 0 and sorted(again.ranking_[:4]) == [1, 2, 3, 4]
    assert omp(1, n_clusters=2).fit(A[:, :1]).ranking_.tolist() == [0]
    none = omp(2, n_clusters=1, n_neighbors=2).fit(np.ones((8, 3)))
    assert none.ranking_.tolist() == [0, 1, 2] and not none.scores_.any()


def test_a_scale_of_coefficients_is_refused() -> None:
    with pytest.raises(InputError, match="coef_scale applies to regression 'lasso' only"):
        omp(2, coef_scale="max").fit(np.eye(10))
