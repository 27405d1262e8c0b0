"""Eigenvectors that begin near those of the first rows are those of the graph, found sooner."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs import knn_graph, spectral_embedding
from bigfs.graph import KNNGraph
from bigfs.spectral import block
from bigfs.spectral.embedding import Resume, SpectralEmbedding
from bigfs.store.scratch import Scratch

pytestmark = pytest.mark.full
N, N_OLD = 6000, 5900


@lru_cache
def _graph(n: int) -> KNNGraph:
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(6, 6)) * 1.5
    X = centers[generator.integers(6, size=N)] + generator.normal(size=(N, 6))
    return knn_graph(X[:n].astype(np.float32), 10, algorithm="exact")


def _solved(n: int, **options: Any) -> SpectralEmbedding:
    return spectral_embedding(
        _graph(n), 6, solver="chebyshev", **{"chunk_rows": 700, "tol": 1e-5, **options}
    )


_plain = lru_cache(_solved)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the filter be tasks of a few products each."""
    monkeypatch.setattr(block, "MULTIPLICATIONS", 0)


def test_a_start_gives_the_same_eigenvalues_for_fewer_products() -> None:
    plain = _plain(N)
    started = _solved(N, resume=Resume(start=_plain(N_OLD)))
    np.testing.assert_allclose(started.eigenvalues, plain.eigenvalues, atol=1e-6)
    assert (started.residuals <= 1e-5 * started.eigenvalues).all()
    overlap = abs(np.linalg.svd(np.linalg.qr(started.embedding[:])[0].T
                                @ np.linalg.qr(plain.embedding[:])[0])[1])  # fmt: skip
    assert overlap.min() > 1 - 1e-6
    assert started.n_products < 0.8 * plain.n_products


def test_a_start_is_the_same_bits_under_every_scheduler(scheduler: str) -> None:
    import dask

    former = _plain(N_OLD)
    actual = _solved(N, resume=Resume(start=former))
    with dask.config.set(scheduler="synchronous"):
        expected = _solved(N, resume=Resume(start=former))
    np.testing.assert_array_equal(actual.embedding[:], expected.embedding[:])


def test_an_interrupted_start_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = _plain(N_OLD)
    expected = _solved(N, resume=Resume(start=former))
    run_tasks, left = block.run_tasks, [4]

    def interrupted(fn: Any, *arguments: Any, label: str, **options: Any) -> Any:
        if label == "filter":
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        return run_tasks(fn, *arguments, label=label, **options)

    monkeypatch.setattr(block, "run_tasks", interrupted)
    options = {"resume": Resume(tmp_path / "checkpoint", former)}
    with pytest.raises(KeyboardInterrupt):
        _solved(N, **options)
    assert (tmp_path / "checkpoint" / "spectral.json").exists()
    left[0] = 10**6
    out = Scratch(tmp_path / "out")
    actual = _solved(N, scratch=out, **options)
    assert actual.n_products == expected.n_products
    np.testing.assert_array_equal(actual.embedding[:], expected.embedding[:])
    assert sorted(path.name for path in out.path.iterdir()) == ["affinity", "embedding", "guards"]
