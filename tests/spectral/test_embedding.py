"""spectral_embedding: the choice of a solver, all solvers on one graph, and "auto" clusters."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import block_diag, csr_array
from sklearn.base import clone

from bigfs import MCFS, run, spectral_embedding
from bigfs.core.errors import ConfigError, InputError, MemoryLimitError
from bigfs.core.units import GIB, MIB
from bigfs.runtime.progress import LogReporter
from bigfs.selectors.registry import make_config
from bigfs.spectral.choice import (
    choose_solver,
    eigsh_bytes,
    spectral_cost,
    suggest_n_clusters,
)
from bigfs.store.scratch import Scratch
from tests.spectral.test_chebyshev import neighbor_graph


@pytest.mark.parametrize("solver", ["eigsh", "chebyshev"])
def test_every_solver_gives_the_same_embedding(solver: str, scheduler: str) -> None:
    W = neighbor_graph(2000)
    embedding = spectral_embedding(W, 5, solver=solver, tol=1e-8, chunk_rows=700)
    expected = spectral_embedding(W, 5, solver="eigsh", tol=1e-10)
    assert (embedding.solver, embedding.reason) == (solver, "requested")
    assert embedding.n_iterations > 0
    np.testing.assert_allclose(embedding.eigenvalues, expected.eigenvalues, atol=1e-12)
    np.testing.assert_allclose(embedding.embedding[:], expected.embedding[:], atol=1e-6)
    np.testing.assert_array_equal(embedding.spectrum, embedding.eigenvalues)


def test_auto_says_which_and_why() -> None:
    assert choose_solver("auto", 10_000, 10**5, 20, GIB).solver == "eigsh"
    choice = choose_solver("auto", 10**6, 13 * 10**6, 20, 8 * GIB)
    assert (choice.solver, choice.reason[:17]) == ("chebyshev", "faster than eigsh")
    tight = 10**5, 10**8, 20
    choice = choose_solver("auto", *tight, int((eigsh_bytes(*tight) + 368 * MIB) / 0.65))
    assert choice.solver == "chebyshev"
    assert choice.reason.endswith("which does not fit")
    with pytest.raises(MemoryLimitError, match="with solver 'eigsh'"):
        choose_solver("eigsh", 10**7, 10**8, 20, GIB)
    embedding = spectral_embedding(neighbor_graph(1000), 3)
    assert embedding.solver == "eigsh"
    assert "are few" in embedding.reason
    # A dense solver does for a graph this small.
    assert spectral_embedding(neighbor_graph(300), 3, solver="chebyshev").solver == "eigsh"


def test_the_number_of_clusters_is_at_the_last_clear_gap() -> None:
    assert suggest_n_clusters(np.array([0.1, 0.11, 0.9, 1.0])) == 3
    assert suggest_n_clusters(np.array([0.1, 0.9, 0.91])) == 2
    assert suggest_n_clusters(np.array([0.0, 0.0, 0.2, 0.25])) == 3
    assert suggest_n_clusters(np.zeros(7)) == 7
    # Ten groups, most of them as good as apart.
    assert suggest_n_clusters(np.array([0.0, *np.geomspace(4e-5, 2e-3, 8), 0.36, 0.362])) == 10
    assert suggest_n_clusters(np.array([0.1, 0.2])) == 2
    # Two groups, one of them of three: not the larger gap, but the one above all groups.
    assert suggest_n_clusters(np.array([0.0, 0.1, 0.11, 0.4, 0.41])) == 4


def test_without_a_clear_gap_there_are_eight_clusters_or_more() -> None:
    even = np.linspace(0.05, 0.3, 30)
    assert suggest_n_clusters(even) == 8
    assert suggest_n_clusters(even[:5]) == 5
    # The gap above c clusters: eigenvalue c - 1 times 1.5, which is not clear, or times 3.
    for n_clusters, factor, expected in ((3, 1.5, 8), (3, 3.0, 3), (12, 1.5, 12), (12, 3.0, 12)):
        values = 0.2 + np.linspace(0, 1e-3, 30)
        values[n_clusters - 1 :] *= factor
        assert suggest_n_clusters(values) == expected


@pytest.mark.parametrize("n_parts", [2, 5])
def test_auto_finds_the_parts_of_a_graph(n_parts: int, tmp_path: Path) -> None:
    parts = csr_array(block_diag([neighbor_graph(300, seed=i) for i in range(n_parts)]))
    rows = np.arange(n_parts) * 300
    links = csr_array(
        (np.ones(n_parts - 1), (rows[:-1], rows[1:])), shape=parts.shape, dtype=np.float64
    )
    W = csr_array(parts + links + links.T)
    embedding = spectral_embedding(W, "auto", scratch=Scratch(tmp_path), chunk_rows=128)
    assert len(embedding.spectrum) == 30
    assert embedding.embedding.shape == (len(rows) * 300, n_parts)
    given = spectral_embedding(W, 30)
    np.testing.assert_array_equal(embedding.embedding[:], given.embedding[:, :n_parts])
    np.testing.assert_array_equal(embedding.norms, given.norms[:n_parts])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["affinity", "embedding"]


@pytest.mark.parametrize("bad", [0, 300, 2.0, True, "many"])
def test_numbers_of_components(bad: object) -> None:
    with pytest.raises(InputError, match=r"int in \[1, 299\], .* or 'auto'. Got"):
        spectral_embedding(neighbor_graph(300), bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, -1, np.nan, "a"])
def test_a_tolerance_that_is_none_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="^tol must be a number above 0"):
        spectral_embedding(neighbor_graph(300), 2, tol=bad)  # type: ignore[arg-type]


def test_mcfs_with_the_number_of_clusters_from_the_gap(tmp_path: Path) -> None:
    from sklearn.datasets import make_blobs

    X, _ = make_blobs(400, 6, centers=4, cluster_std=1.0, center_box=(-8, 8), random_state=1)
    # With this scale the roundings of thirty pairs and of four leave the same bits.
    scaled = MCFS(n_features_to_select=3, n_neighbors=10, regression="lasso", coef_scale="l2")
    fitted = clone(scaled).set_params(n_clusters="auto").fit(X)
    assert fitted.n_clusters_ == fitted.coef_.shape[0] == len(fitted.eigenvalues_)
    assert len(fitted.spectrum_) == 30
    assert fitted.n_clusters_ == suggest_n_clusters(fitted.spectrum_)
    given = clone(scaled).set_params(n_clusters=fitted.n_clusters_).fit(X)
    np.testing.assert_array_equal(fitted.scores_, given.scores_)
    np.save(tmp_path / "X.npy", X)
    result = run(
        {
            "run": str(tmp_path / "run"),
            "input": {"uri": str(tmp_path / "X.npy")},
            "n_features_to_select": 3,
            "graph": {"n_neighbors": 10},
            "mcfs": {"n_clusters": "auto", "regression": "lasso", "coef_scale": "l2"},
        }
    )
    np.testing.assert_array_equal(result.scores, fitted.scores_)


def test_auto_beside_a_number_of_eigenvectors_is_refused() -> None:
    with pytest.raises(ConfigError, match="remove one of them"):
        make_config(
            run="r",
            input={"uri": "x.npy"},
            n_features_to_select=3,
            mcfs={"n_clusters": "auto", "n_components": 3},
        )
    with pytest.raises(ConfigError, match="mcfs.n_clusters must be a whole number .*, or auto"):
        make_config(
            run="r", input={"uri": "x.npy"}, n_features_to_select=3, mcfs={"n_clusters": "many"}
        )


@pytest.mark.parametrize(
    "solver, pattern",
    [
        (
            "chebyshev",
            r"^spectral: .*, round 1, 0 of 3 eigenvectors done, largest residual [\d.e+-]+",
        ),
        ("eigsh", r"^spectral: \d+ products$"),
    ],
)
def test_progress_is_rounds_and_residuals(
    solver: str, pattern: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogReporter, "interval_seconds", 0.0)
    caplog.set_level(logging.INFO, "bigfs")
    spectral_embedding(neighbor_graph(900), 3, solver=solver)
    assert any(re.match(pattern, message) for message in caplog.messages), caplog.messages
    assert re.match(r"^spectral: done, .*, largest residual [\d.e+-]+$", caplog.messages[-1])


@pytest.mark.parametrize("limit", [1.25, 1.5, 1.75, 2.0])
def test_the_chosen_solver_fits_a_worker_that_has_searched(limit: float) -> None:
    memory_limit = int(limit * GIB)
    room = 0.95 * memory_limit - 860 * MIB - 24 * MIB  # Dask ends a worker at 95 %
    for n_samples in np.geomspace(20_000, 8_000_000, 40).astype(int):
        for n_components in (5, 10, 20, 50):
            cost = spectral_cost(int(n_samples), 5, n_components, memory_limit)
            assert cost.task_bytes <= room, (n_samples, n_components)
