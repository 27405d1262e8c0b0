"""Pairs in the bulk of the spectrum: never a failure, and said to be what they are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from bigfs import knn_graph, spectral_embedding
from bigfs.core.errors import ConvergenceError
from bigfs.spectral import eigsh, iteration
from bigfs.spectral.iteration import count_before_bulk
from bigfs.spectral.problem import Goal


def _groups(n_groups: int = 4, n: int = 1500) -> csr_array:
    """Return random graphs, whose spectrum is all bulk, with a few links between them."""
    rng = np.random.default_rng(0)
    heads = np.repeat(np.arange(n_groups * n), 6)
    tails = heads // n * n + rng.integers(n, size=len(heads))
    ends = np.arange(n_groups - 1) * n
    rows, columns = np.r_[heads, ends], np.r_[tails, ends + n]
    W = csr_array((np.ones(len(rows)), (rows, columns)), shape=(n_groups * n, n_groups * n))
    W = csr_array(W.maximum(W.T))
    W.setdiag(0)
    W.eliminate_zeros()
    return W


def test_the_separated_pairs_converge_and_the_rest_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(iteration, "_PATIENCE_BEHIND_GAP", 1)
    W = _groups()
    embedding = spectral_embedding(W, 8, solver="chebyshev", tol=1e-8)
    expected = spectral_embedding(W, 8, solver="eigsh", tol=1e-8)
    np.testing.assert_allclose(embedding.eigenvalues[:3], expected.eigenvalues[:3], atol=1e-12)
    np.testing.assert_allclose(embedding.embedding[:, :3], expected.embedding[:, :3], atol=1e-7)
    assert embedding.residuals[:3].max() <= 1e-8 < embedding.residuals[3:].max()
    np.testing.assert_allclose(embedding.eigenvalues[3:], expected.eigenvalues[3:], rtol=0.05)
    d = W.sum(axis=1)
    np.testing.assert_allclose(
        embedding.embedding[:].T @ (d[:, None] * embedding.embedding[:]), np.eye(8), atol=1e-9
    )
    bulk, mixed = embedding.notes()
    assert bulk.startswith("3 of 8 eigenvectors describe groups, the others belong to the bulk")
    assert bulk.endswith("3 eigenvectors suffice to separate 4 groups.")
    assert mixed.startswith("Eigenvectors ") and " cannot be separated from those" in mixed
    assert not embedding.mixed[:3].any() and embedding.mixed[3:].any()


def test_auto_needs_only_the_gap() -> None:
    embedding = spectral_embedding(_groups(), "auto", solver="chebyshev", tol=1e-8)
    assert len(embedding.eigenvalues) == 4
    assert embedding.n_iterations < 20
    assert embedding.notes()[0].startswith(
        "n_clusters auto: 4, at the last clear gap between the first 30"
    )


def test_auto_says_where_no_gap_is_clear() -> None:
    X = np.random.default_rng(0).standard_normal((300, 20))
    embedding = spectral_embedding(knn_graph(X, 5), "auto")
    assert len(embedding.eigenvalues) >= 8
    [note] = embedding.notes()
    assert note.startswith(f"n_clusters auto: {len(embedding.eigenvalues)}, without a clear gap")


def test_where_arpack_stalls_the_other_solver_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    W = _groups()
    expected = spectral_embedding(W, 3)
    monkeypatch.setattr(eigsh, "_MOST_RESTARTS", 1)
    embedding = spectral_embedding(W, 3)
    assert (expected.solver, embedding.solver) == ("eigsh", "chebyshev")
    assert embedding.reason == "eigsh did not converge"
    np.testing.assert_allclose(embedding.embedding[:], expected.embedding[:], atol=1e-6)


def test_late_pairs_before_the_bulk_are_an_error() -> None:
    goal = Goal(1000, 1, 3, 1e-6, edge=0.4)
    values, late = np.array([0.01, 0.3, 0.39]), np.array([0.0, 1e-3, 1e-3])
    goal.check(values, late)
    goal.check(values, np.zeros(3))
    for bad in ([1e-3, 0, 0], [0, 0.02, 0], [0, np.nan, 0]):
        with pytest.raises(ConvergenceError, match="residuals must be at most 3e-07 .1e-06 of"):
            goal.check(values, np.array(bad))


def test_where_the_bulk_begins() -> None:
    assert count_before_bulk(np.array([0.001, 0.002, 0.44, 0.45]), 0.46) == 2
    assert count_before_bulk(np.array([0.40, 0.41]), 0.42) == 0
    assert count_before_bulk(np.array([0.001, 0.002, 0.003]), 0.44) is None
    assert count_before_bulk(np.array([0.02, 0.03, 0.05, 0.06]), 0.065) is None
    # Chebyshev's edge is several eigenvalues farther, which few neighbors spread.
    assert count_before_bulk(np.array([0.007, 0.009, 0.409]), 0.437) is None
    assert count_before_bulk(np.array([0.007, 0.009, 0.409]), 0.437, 6) == 2
