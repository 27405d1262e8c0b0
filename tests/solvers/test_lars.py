"""The lasso path in Gram form: scikit-learn's path, and a certificate that needs no peer."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import lars_path

from bigfs.solvers.lars import LarsPath, lars_path_gram


def _center(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return X - X.mean(axis=0), y - y.mean()


def _run(X: np.ndarray, y: np.ndarray, m: int) -> LarsPath:
    X, y = _center(X, y)
    return lars_path_gram(X.T @ X, X.T @ y, m)


def _assert_optimal(X: np.ndarray, y: np.ndarray, path: LarsPath, tol: float = 1e-8) -> None:
    """Karush-Kuhn-Tucker: no correlation above lambda, equal to it with the sign of a_j."""
    X, y = _center(X, y)
    scale = np.abs(X.T @ y).max()
    correlation = X.T @ (y - X @ path.coef)
    assert np.abs(correlation).max() <= path.lambda_ + tol * scale
    inside = path.coef != 0
    np.testing.assert_allclose(
        correlation[inside], path.lambda_ * np.sign(path.coef[inside]), atol=tol * scale
    )
    assert set(np.flatnonzero(inside)) <= set(path.active.tolist())


def _peer(X: np.ndarray, y: np.ndarray, lambda_: float) -> np.ndarray:
    """scikit-learn's coefficients at a level of the penalty; linear between its knots."""
    X, y = _center(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alphas, _, coefs = lars_path(X, y, method="lasso", max_iter=5000)
    level = lambda_ / len(X)
    return np.array([np.interp(level, alphas[::-1], row[::-1]) for row in coefs])


@pytest.mark.parametrize("correlated", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(
    "n, d, m", [(100, 20, 1), (100, 20, 7), (100, 20, 20), (50, 100, 30), (50, 100, 49)]
)
def test_equals_scikit_learn_at_the_knot(n: int, d: int, m: int, correlated: float) -> None:
    rng = np.random.default_rng(n + d + m)
    X = np.sqrt(1 - correlated) * rng.normal(size=(n, d))
    X += np.sqrt(correlated) * rng.normal(size=(n, 1))
    y = X @ rng.normal(size=d) + rng.normal(size=n)
    path = _run(X, y, m)
    expected = _peer(X, y, path.lambda_)
    np.testing.assert_allclose(path.coef, expected, atol=1e-6 * np.abs(expected).max())
    _assert_optimal(X, y, path)
    assert path.n_active == len(path.active) == m


def test_features_leave_and_come_back_on_real_data() -> None:
    X, target = load_digits(return_X_y=True)
    y = np.random.default_rng(0).normal(size=10)[target]
    path = _run(X, y, 50)
    assert path.n_knots > 51, "this path has drops, or the test says nothing of them"
    expected = _peer(X, y, path.lambda_)
    np.testing.assert_allclose(path.coef, expected, atol=1e-9 * np.abs(expected).max())
    assert path.n_active == 50


def test_without_drops_the_path_would_not_be_the_lasso() -> None:
    """Plain LARS, the best-known public package's choice, violates optimality here."""
    X, target = load_digits(return_X_y=True)
    y = np.random.default_rng(0).normal(size=10)[target]
    Xc, yc = _center(X, y)
    _, _, coefs = lars_path(Xc, yc, method="lar", max_iter=50)
    correlation = Xc.T @ (yc - Xc @ coefs[:, -1])
    inside = np.flatnonzero(coefs[:, -1])
    assert (np.sign(correlation[inside]) != np.sign(coefs[inside, -1])).any()


def test_the_end_of_the_path_comes_first_when_rows_are_few() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 30)), rng.normal(size=12)
    path = _run(X, y, 20)
    assert path.n_active == 11
    assert path.lambda_ == 0
    np.testing.assert_allclose(X @ path.coef - (X @ path.coef).mean(), y - y.mean(), atol=1e-9)


def test_all_features_give_least_squares() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 6)), rng.normal(size=50)
    path = _run(X, y, 6)
    expected = np.linalg.lstsq(*_center(X, y), rcond=None)[0]
    np.testing.assert_allclose(path.coef, expected, rtol=1e-9)


def test_degenerate_designs() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 8))
    X[:, 3] = X[:, 1]
    X[:, 5] = 2.0
    X[:, 7] = X[:, 0] + X[:, 2]
    y = X[:, 1] + 0.5 * X[:, 0] + 0.1 * rng.normal(size=40)
    path = _run(X, y, 8)
    assert path.coef[3] == 0, "of two equal features the lower index joins"
    assert path.coef[5] == 0, "a constant feature never joins"
    assert path.n_active == 5, "what the active ones explain stays out"
    _assert_optimal(X, y, path)


def test_nothing_to_explain() -> None:
    for gram, xty in ((np.zeros((3, 3)), np.zeros(3)), (np.eye(3), np.zeros(3))):
        path = lars_path_gram(gram, xty, 2)
        assert path.n_active == 0
        assert not path.coef.any()
        assert path.lambda_ == 0


def test_equal_correlations_join_at_one_knot() -> None:
    path = lars_path_gram(np.eye(4), np.array([1.0, 2.0, 2.0, -2.0]), 1)
    assert path.active.tolist() == [1, 2, 3], "never an active set whose coefficients are zero"
    np.testing.assert_allclose(path.coef, [0, 1, 1, -1])
    assert path.lambda_ == pytest.approx(1)


def test_of_equal_correlations_only_those_join_that_optimality_lets() -> None:
    """Here the lower index must wait: with it the first coefficient would have a wrong sign."""
    gram, xty = np.array([[4.0, 1.5, 0], [1.5, 1, 0], [0, 0, 1]]), np.array([1.0, 1.0, 0.5])
    path = lars_path_gram(gram, xty, 1)
    assert path.active.tolist() == [1]
    np.testing.assert_allclose(path.coef, [0, 0.5, 0])


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_gram_may_have_either_order(order: str) -> None:
    X, target = load_digits(return_X_y=True)
    Xc, yc = _center(X, target.astype(float))
    expected = _run(X, target.astype(float), 30)
    actual = lars_path_gram(np.array(Xc.T @ Xc, order=order), Xc.T @ yc, 30)
    np.testing.assert_array_equal(actual.coef, expected.coef)
    _assert_optimal(X, target.astype(float), actual)


@given(
    n=st.integers(3, 40),
    d=st.integers(1, 30),
    share=st.floats(0.05, 1),
    kind=st.sampled_from(["normal", "integers", "twins", "collinear"]),
    seed=st.integers(0, 10_000),
)
def test_every_stop_is_optimal(n: int, d: int, share: float, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    if kind == "integers":
        X = np.round(X)
    if kind == "twins":
        X[:, -1] = X[:, 0]
    if kind == "collinear":
        X = rng.normal(size=(n, 2)) @ rng.normal(size=(2, d)) + 1e-4 * X
    y = X @ rng.normal(size=d) * (seed % 2) + rng.normal(size=n)
    m = max(1, round(share * d))
    path = _run(X, y, m)
    _assert_optimal(X, y, path, tol=1e-7)
    assert path.n_active <= min(m, n - 1)


@given(
    n=st.integers(3, 60),
    d=st.integers(1, 30),
    share=st.floats(0.05, 1),
    kind=st.sampled_from(["signs", "indicators", "scaled", "one-hot"]),
    seed=st.integers(0, 10_000),
)
def test_ties_of_discrete_data_keep_every_stop_optimal(
    n: int, d: int, share: float, kind: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    X = {
        "signs": lambda: rng.choice([-1.0, 1.0], size=(n, d)),
        "indicators": lambda: rng.integers(0, 2, size=(n, d)).astype(float),
        "scaled": lambda: rng.integers(0, 2, size=(n, d)) * 2.0 ** rng.integers(-2, 3, size=d),
        "one-hot": lambda: np.eye(d)[rng.integers(0, d, size=n)],
    }[kind]()
    y = rng.integers(0, 3, size=n).astype(float)
    Xc, yc = _center(X, y)
    if np.abs(Xc.T @ yc).max() < 1e-9:
        return
    m = max(1, round(share * d))
    path = _run(X, y, m)
    _assert_optimal(X, y, path, tol=1e-9)
    assert path.coef.any()
    assert path.lambda_ == 0 or path.n_active >= m
