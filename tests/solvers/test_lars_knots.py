"""The recorded knots are the path: each is optimal, and the last one is the result."""

from __future__ import annotations

import numpy as np

from bigfs.solvers.lars import lars_path_gram


def test_every_knot_is_optimal() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 90)) + rng.normal(size=(60, 1))
    X -= X.mean(axis=0)
    y = X[:, :5].sum(axis=1) + rng.normal(size=60)
    y -= y.mean()
    path = lars_path_gram(X.T @ X, X.T @ y, 30, keep_knots=30)
    assert len(path.knots) == path.n_knots
    scale = np.abs(X.T @ y).max()
    before = np.inf
    for level, active, values in path.knots:
        assert level < before
        before = level
        correlation = X.T @ (y - X[:, active] @ values)
        assert np.abs(correlation).max() <= level + 1e-10 * scale
    np.testing.assert_array_equal(path.knots[0][1], [])
    np.testing.assert_array_equal(path.knots[-1][1], path.active)
    np.testing.assert_array_equal(path.knots[-1][2], path.coef[path.active])
    assert lars_path_gram(X.T @ X, X.T @ y, 30).knots == []
