"""The inverse of a step's matrix against a dense one."""

from __future__ import annotations

import numpy as np
import pytest

from bigfs.solvers.hessian import inverse_of


@pytest.mark.parametrize("P", [1, 3])
@pytest.mark.parametrize("smooth", [True, False])
def test_products_and_steps_are_those_of_the_dense_inverse(P: int, smooth: bool) -> None:
    generator, d = np.random.default_rng(0), 7
    half = generator.normal(size=(d, d))
    S = half @ half.T if smooth else None
    stiff = generator.uniform(2, 3, size=d)
    U = generator.uniform(-0.5, 0.5, size=(d, P))
    N = generator.normal(size=(5, d, P))
    if P > 1:  # rows of one column, of which two share one
        N[2:, :, 1:] = 0.0
        N[4, :, 1], N[4, :, 0] = N[4, :, 0], 0.0
    used = N.any(axis=1)
    few = np.flatnonzero(used.sum(axis=1) == 1) if P > 1 else np.arange(0)
    many = np.setdiff1d(np.arange(5), few)
    wide = np.ascontiguousarray(N[many].transpose(0, 2, 1))
    inverse = inverse_of(S, stiff, U, N, (many, few, used[few].argmax(axis=1)), wide)
    # One unknown for each feature and column, features first; U ties the columns of a feature.
    tie = np.zeros((d, P, d))
    tie[np.arange(d), :, np.arange(d)] = U
    tie = tie.reshape(d * P, d)
    H = np.kron(np.diag(stiff) + (0 if S is None else S), np.eye(P)) - tie @ tie.T
    flat, V, x = N.reshape(5, -1), generator.normal(size=(d, P)), generator.normal(size=5)
    np.testing.assert_allclose(inverse.products, flat @ np.linalg.solve(H, flat.T), atol=1e-12)
    begun, reached = inverse.begin(V)
    np.testing.assert_allclose(reached, flat @ np.linalg.solve(H, V.ravel()), atol=1e-12)
    step = np.linalg.solve(H, V.ravel() + x @ flat).reshape(d, P)
    np.testing.assert_allclose(inverse.finish(begun, x), step, atol=1e-12)
