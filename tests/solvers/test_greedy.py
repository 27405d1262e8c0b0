"""Greedy paths: picks and gains of projecting the data anew, on Gram matrices and on rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.linalg import hilbert, qr
from scipy.sparse import csr_array

from bigfs.solvers import greedy
from bigfs.solvers.greedy import (
    GramProducts,
    GreedyPath,
    NormPath,
    Products,
    RowProducts,
    SparseRowProducts,
    TargetPath,
    VariancePath,
)
from bigfs.solvers.sparserows import SparseRows
from tests.reference.greedy import forward_selection

KINDS: dict[str, Callable[[np.ndarray], Products]] = {
    "gram": lambda X: GramProducts(X.T @ X),
    "gram in Fortran order": lambda X: GramProducts(np.asfortranarray(X.T @ X)),
    "rows": lambda X: RowProducts(X.copy()),
    "CSR rows": lambda X: SparseRowProducts(SparseRows(csr_array(X))),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[[np.ndarray], Products]:
    return KINDS[request.param]


def _correlated(n: int = 40, d: int = 14) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 4)) @ rng.normal(size=(4, d)) + 0.3 * rng.normal(size=(n, d))


def _decaying(n: int = 60, d: int = 16, least: float = 1e-7) -> np.ndarray:
    """Return columns whose singular values fall to a small share: explained variance near 1."""
    rng = np.random.default_rng(1)
    U, V = (np.linalg.qr(rng.normal(size=(k, d)))[0] for k in (n, d))
    return U * np.geomspace(1, least, d) @ V.T


def test_column_subset_is_that_of_projections(kind: Callable[..., Products]) -> None:
    X = _correlated()
    picks, gains = forward_selection(X, X, 14)
    path = VariancePath(kind(X), 14)
    assert path.order == picks
    np.testing.assert_allclose(path.gains, gains, rtol=1e-9)
    assert not path.left.any()


def test_what_is_left_is_what_each_column_would_add(kind: Callable[..., Products]) -> None:
    X = _correlated()
    path = VariancePath(kind(X), 3)
    Q = np.linalg.qr(X[:, path.order])[0]
    E = X - Q @ (Q.T @ X)
    others = np.setdiff1d(np.arange(14), path.order)
    expected = [np.linalg.norm(E.T @ E[:, j]) ** 2 / (E[:, j] @ E[:, j]) for j in others]
    np.testing.assert_allclose(path.left[others], expected, rtol=1e-9)
    assert not path.left[path.order].any()


def test_column_subset_when_nearly_all_is_explained(kind: Callable[..., Products]) -> None:
    """The recursion is quadratic in what is left: alone it picks noise from about 1e-7 on."""
    X = _decaying()
    picks, gains = forward_selection(X, X, 11)
    path = VariancePath(kind(X), 11)
    assert gains[-1] < 1e-8 * gains.sum()
    assert path.order == picks
    np.testing.assert_allclose(path.gains, gains, rtol=1e-9, atol=1e-15)


def test_forward_regression_is_that_of_projections(kind: Callable[..., Products]) -> None:
    X, rng = _correlated(), np.random.default_rng(2)
    Y = X @ rng.normal(size=(14, 3)) + rng.normal(size=(40, 3))
    picks, gains = forward_selection(X, Y, 14)
    path = TargetPath(kind(X), 14, X.T @ Y)
    assert path.order == picks
    np.testing.assert_allclose(path.gains, gains, rtol=1e-8)


def test_forward_regression_does_not_see_rotations_of_the_targets() -> None:
    X, rng = _correlated(), np.random.default_rng(3)
    Y = rng.normal(size=(40, 4))
    rotated = Y @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    single, two = (TargetPath(GramProducts(X.T @ X), 14, X.T @ T) for T in (Y, rotated))
    assert single.order == two.order
    np.testing.assert_allclose(single.gains, two.gains, rtol=1e-9)


@pytest.mark.parametrize("shape", [(40, 14), (10, 25)])
def test_pivoted_qr_is_lapacks(kind: Callable[..., Products], shape: tuple[int, int]) -> None:
    X = np.random.default_rng(4).normal(size=shape)
    R, order = qr(X, mode="r", pivoting=True)
    path = NormPath(kind(X), 14)
    n = min(shape)
    assert path.order == order[:n].tolist()[:14]
    np.testing.assert_allclose(np.sqrt(path.gains), np.abs(np.diag(R))[:14], rtol=1e-9)


def test_pivoted_qr_ends_where_the_order_is_that_of_rounding(
    kind: Callable[..., Products],
) -> None:
    X = hilbert(14)
    R, order = qr(X, mode="r", pivoting=True)
    path = NormPath(kind(X), 14)
    certain = int((np.diag(R) ** 2 > 1e-13 * R[0, 0] ** 2).sum())
    assert 3 < certain < 14
    assert path.order == order[:certain].tolist()
    assert not path.left.any()


@pytest.mark.parametrize("path", [VariancePath, NormPath])
def test_ties_explained_and_constant_columns(path: type, kind: Callable[..., Products]) -> None:
    rng = np.random.default_rng(5)
    A = rng.normal(size=(30, 4))
    twice = np.column_stack([np.zeros(30), A, A, A[:, 0] + A[:, 1]])
    actual = path(kind(twice), 10)
    assert len(actual.order) == 4, "the others are explained"
    assert 0 not in actual.order and max(actual.order) <= 9
    assert len({(j - 1) % 4 for j in actual.order if j < 9}) == sum(j < 9 for j in actual.order)
    equal = path(kind(np.eye(6)), 6)
    assert equal.order == [0, 1, 2, 3, 4, 5]
    nothing = path(kind(np.zeros((5, 3))), 2)
    assert nothing.order == [] and not nothing.left.any()


def test_a_path_to_fewer_is_the_beginning(kind: Callable[..., Products]) -> None:
    X = _decaying()
    complete = VariancePath(kind(X), 11).order
    assert VariancePath(kind(X), 4).order == complete[:4]


def test_components_are_the_leading_ones(kind: Callable[..., Products]) -> None:
    X = _correlated()
    actual = kind(X).components(3)
    V = np.linalg.svd(X, full_matrices=False)[2][:3]
    np.testing.assert_allclose(np.abs(actual @ V.T), np.eye(3), atol=1e-9)
    low = np.outer(np.arange(1.0, 9.0), np.arange(1.0, 6.0))
    assert kind(low).components(4).shape == (1, 5), "as many as rounding leaves"


@pytest.mark.parametrize("path", ["variance", "norms", "targets"])
def test_a_path_does_not_depend_on_how_many_candidates_come_in(
    path: str, kind: Callable[..., Products], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few held, most picks are missing; with groups of one nothing is picked ahead."""
    rng = np.random.default_rng(7)
    X = rng.poisson(0.3 * rng.gamma(1.0, size=90), size=(70, 90)).astype(float)
    X[:, 60:75] = X[:, 30:45] + (rng.random((70, 15)) < 0.02)  # nearly the same
    Y = X @ rng.normal(size=(90, 3)) + rng.normal(size=(70, 3))
    matrix = X if path == "norms" else X - X.mean(axis=0)

    def run() -> GreedyPath:
        if path == "targets":
            return TargetPath(kind(matrix), 60, matrix.T @ Y)
        return (VariancePath if path == "variance" else NormPath)(kind(matrix), 60)

    paths = [run()]
    for fetched, held, group in ((3, 7, 1), (5, 5, 4), (20, 40, 16)):
        for owner, name, value in (
            (GramProducts, "fetched", fetched),
            (RowProducts, "fetched", fetched),
            (GramProducts, "held", held),
            (RowProducts, "held", held),
            (greedy, "_GROUP", group),
        ):
            monkeypatch.setattr(owner, name, value)
        paths.append(run())
    for other in paths[1:]:
        assert other.order == paths[0].order
        np.testing.assert_allclose(other.gains, paths[0].gains, rtol=1e-8)
        np.testing.assert_allclose(other.left, paths[0].left, rtol=1e-6, atol=1e-9)
    if path != "norms":
        picks, _ = forward_selection(matrix, matrix if path == "variance" else Y, 6)
        assert paths[0].order[:6] == picks
