"""The inverse of a step's matrix against a dense one."""

from __future__ import annotations

import numpy as np
import pytest

from bigfs.solvers.interior import Inverse


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("P", [1, 3])
@pytest.mark.parametrize("smooth", [True, False])
def test_products_and_solutions_are_those_of_the_dense_inverse(
    P: int, smooth: bool, fixed: bool
) -> None:
    generator, d = np.random.default_rng(0), 7
    half = generator.normal(size=(d, d))
    S = half @ half.T if smooth else None
    sigma = generator.uniform(0.2, 1, size=d)
    a = np.full(d, np.inf) if fixed else generator.uniform(0.1, 3, size=d)
    u = generator.normal(size=(d, P))
    N = generator.normal(size=(5, d, P))
    N[2:, :, 1:] = 0.0  # rows of one column
    inverse = Inverse(S, sigma, a, u, N)
    # One unknown for each feature and column, features first; u ties the columns of a feature.
    H = np.kron(np.zeros((d, d)) if S is None else S, np.eye(P))
    for k in range(d):
        at = slice(k * P, (k + 1) * P)
        H[at, at] += np.linalg.inv(sigma[k] * np.eye(P) + np.outer(u[k], u[k]) / a[k])
    flat, V = N.reshape(5, -1), generator.normal(size=(d, P))
    np.testing.assert_allclose(inverse.products, flat @ np.linalg.solve(H, flat.T), atol=1e-12)
    np.testing.assert_allclose(
        inverse.solve(V), np.linalg.solve(H, V.ravel()).reshape(d, P), atol=1e-12
    )
