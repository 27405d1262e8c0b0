"""Eigenvectors that begin near those of the first rows are those of the graph, found sooner."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs import knn_graph, spectral_embedding
from bigfs.graph import KNNGraph
from bigfs.spectral import choice, storedblock
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.store.scratch import Scratch

pytestmark = pytest.mark.full
N, N_OLD = 6000, 5900
SPREAD = {"one task": False, "row blocks": True, "strips": None}
Solve = Callable[..., SpectralEmbedding]


@lru_cache
def _graph(n: int) -> KNNGraph:
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(6, 6)) * 1.5
    X = centers[generator.integers(6, size=N)] + generator.normal(size=(N, 6))
    return knn_graph(X[:n].astype(np.float32), 10, algorithm="exact")


def _solved(where: str, n: int, **options: Any) -> SpectralEmbedding:
    options = {"distributed": SPREAD[where], "chunk_rows": 700, **options}
    embedding = spectral_embedding(_graph(n), 6, solver="chebyshev", **options)
    assert bool(embedding.details) == (where != "one task")
    assert ("in strips" in embedding.reason) == (where == "strips")
    return embedding


_plain = lru_cache(_solved)


@pytest.fixture
def solve(monkeypatch: pytest.MonkeyPatch) -> Solve:
    """Return eigenvectors of the first n rows, found in one task, on row blocks or in strips."""
    monkeypatch.setattr(choice, "_MANY_ROWS", 1000)
    monkeypatch.setattr("bigfs.spectral.strips._MULTIPLICATIONS", 0)
    return lambda *given, **options: (_solved if "start" in options else _plain)(*given, **options)


@pytest.mark.parametrize(
    "former, where",
    [("one task", "one task"), ("one task", "strips"), ("one task", "row blocks"),
     ("row blocks", "one task"), ("strips", "strips")],
)  # fmt: skip
def test_a_start_gives_the_same_eigenvalues_for_fewer_products(
    former: str, where: str, solve: Solve
) -> None:
    plain = solve(where, N)
    started = solve(where, N, start=solve(former, N_OLD))
    np.testing.assert_allclose(started.eigenvalues, plain.eigenvalues, atol=1e-6)
    assert (started.residuals <= 1e-6).all()
    overlap = abs(np.linalg.svd(np.linalg.qr(started.embedding[:])[0].T
                                @ np.linalg.qr(plain.embedding[:])[0])[1])  # fmt: skip
    assert overlap.min() > 1 - 1e-6
    assert started.n_products < 0.8 * plain.n_products


def test_a_start_takes_as_many_products_wherever_it_begins(solve: Solve) -> None:
    """Rows that are new are filled in alike, and guards are kept alike."""
    products = {
        where: solve(where, N, start=solve(where, N_OLD), tol=2e-5).n_products for where in SPREAD
    }
    assert max(products.values()) <= 1.25 * min(products.values()), products


def test_a_start_is_the_same_bits_under_every_scheduler(scheduler: str, solve: Solve) -> None:
    import dask

    former = solve("one task", N_OLD, tol=1e-4)
    for where in ("row blocks", "strips"):
        actual = solve(where, N, start=former, tol=1e-4)
        with dask.config.set(scheduler="synchronous"):
            expected = solve(where, N, start=former, tol=1e-4)
        np.testing.assert_array_equal(actual.embedding[:], expected.embedding[:])


def test_an_interrupted_start_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solve: Solve
) -> None:
    former = solve("row blocks", N_OLD)
    expected = solve("row blocks", N, start=former)
    product, left = storedblock.StoredBlock._product, [20]

    def interrupted(*arguments: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return product(*arguments)

    monkeypatch.setattr(storedblock.StoredBlock, "_product", interrupted)
    options = {"start": former, "checkpoint": tmp_path / "checkpoint"}
    with pytest.raises(KeyboardInterrupt):
        solve("row blocks", N, **options)
    assert (tmp_path / "checkpoint" / "spectral.json").exists()
    left[0] = 10**6
    out = Scratch(tmp_path / "out")
    actual = solve("row blocks", N, scratch=out, **options)
    assert actual.n_products == expected.n_products
    np.testing.assert_array_equal(actual.embedding[:], expected.embedding[:])
    assert sorted(path.name for path in out.path.iterdir()) == ["affinity", "embedding", "guards"]
