"""Streaming PCA against the singular value decomposition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.graph import affinity, knn_graph, representation
from bigfs.graph.knn import KNNGraph
from bigfs.graph.recall import sample_rows
from bigfs.graph.representation import components_enough, principal_rows
from bigfs.pipeline.run import run
from bigfs.store.scratch import Scratch, read_attributes
from bigfs.store.source import open_matrix
from tests.graph._brute import brute_neighbors, manifold


@pytest.fixture(scope="module")
def low_rank() -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 6)) * [9, 7, 5, 4, 3, 2] @ rng.normal(size=(6, 60))
    return 50 + X + 0.01 * rng.normal(size=X.shape)


@pytest.mark.parametrize("gram", [False, True])
def test_distances_of_the_components(low_rank: np.ndarray, scheduler: str, gram: bool) -> None:
    blocks = RowBlocks.from_any(low_rank, rows=90)
    before, scratch = blocks.passes, Scratch(blocks.scratch.path / "pca")
    projected, explained, products = principal_rows(blocks, 5, 0, scratch, gram=gram)
    assert blocks.passes - before <= (2 if gram else 5) and (products is not None) == gram
    centered = low_rank - low_rank.mean(axis=0)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    true = u[:, :5] * s[:5]
    rows = projected.source.read(0, 700).astype(np.float64)
    np.testing.assert_allclose(rows @ rows.T, true @ true.T, atol=1e-3 * s[0] ** 2 / 700)
    assert explained == pytest.approx(float((s[:5] ** 2).sum() / (s**2).sum()), rel=1e-6)


@pytest.mark.parametrize(
    ("rank", "n", "p"), [(0, 300, 6), (3, 300, 10), (0, 30, 20), (40, 30, 30), (0, 300, 40)]
)
def test_components_are_the_first_ones(rank: int, n: int, p: int, tmp_path: Path) -> None:
    """Of noise, of fewer directions than are asked for, of few rows, and of all features."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, 40))
    X = X if rank else rng.normal(size=(n, 40))
    for data in (X, csr_array(X)):
        blocks = RowBlocks.from_any(data, rows=70, sparse=data is not X)
        scratch = Scratch(tmp_path / str(data is X))
        projected, explained, _ = principal_rows(blocks, p, 0, scratch)
        _, s, Vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
        assert explained == pytest.approx((s[:p] ** 2).sum() / (s**2).sum(), rel=1e-3)
        rows = projected.source.read(0, n).astype(np.float64)
        shares = np.linalg.svd(rows, compute_uv=False) / s[:p].clip(1e-9)
        assert shares[: min(p, rank or 40, n - 1)].min() > 0.95
        assert blocks.passes <= representation.MOST_PASSES + 2


def test_graph_of_the_components(low_rank: np.ndarray) -> None:
    graph = knn_graph(low_rank, 5, representation="pca:6")
    _, true = brute_neighbors(low_rank, 5)
    np.testing.assert_allclose(graph.distances[...], true, rtol=2e-2)
    assert graph.details["explained_variance"] > 0.999
    assert graph.details["passes"] == 4 and graph.details["passes_over_components"] == 1
    assert not list(graph.scratch.path.glob("representation*/*"))
    with pytest.raises(InputError, match="Set representation to 'raw'"):
        affinity(graph, "dot", blocks=RowBlocks.from_any(low_rank))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"representation": "pca"}, "'raw' or 'pca:p'"),
        ({"representation": "pca:0"}, "'raw' or 'pca:p'"),
        ({"representation": "pca:5", "metric": "cosine"}, "needs metric 'euclidean'"),
        ({"representation": "pca:9"}, "at most 8 components"),
    ],
)
def test_refusals(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        knn_graph(manifold(100, 8), 3, **options)


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rule of wide rows hold for small data too."""
    monkeypatch.setattr(representation, "MANY_ROWS", 500)
    monkeypatch.setattr(representation, "WIDE", 100)
    monkeypatch.setattr(representation, "_ROWS_OF_GRAM", 1)


def test_wide_rows_are_compared_by_components_that_keep_their_neighbors(any_size: None) -> None:
    rng = np.random.default_rng(1)
    few = manifold(600, 300)
    many = rng.normal(size=(600, 80)) @ rng.normal(size=(80, 300))

    def enough(X: np.ndarray, preprocess: str = "none") -> int | None:
        return components_enough(open_matrix(X), preprocess, 5, 2**31)

    assert enough(few) == 50 and enough(few, "standardize") == 50
    assert enough(many) in (100, 200)  # of rank 80
    assert enough(rng.normal(size=(600, 300))) is None  # no direction says more than another
    assert enough(few[:400]) is None and enough(few[:, :90]) is None
    with_gaps = few.copy()
    with_gaps[::3, 7] = np.nan
    assert enough(with_gaps) == 50
    with_gaps[:, 7] = np.nan
    assert enough(with_gaps) is None
    assert components_enough(open_matrix(csr_array(few)), "none", 5, 2**31) is None
    assert components_enough(open_matrix(few), "none", 5, 2**30) is None


def test_wide_rows_of_any_file_are_compared_by_components(any_size: None, tmp_path: Path) -> None:
    X = manifold(600, 300)
    np.savetxt(tmp_path / "X.csv", X, delimiter=",")
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "q.npy", np.arange(600))
    for at_most, expected in ((599, 50), (498, None)):
        rows = {"column": str(tmp_path / "q.npy"), "at_most": at_most}
        source = open_matrix(tmp_path / "X.npy", rows=rows)
        assert components_enough(source, "none", 5, 2**31) == expected
    assert components_enough(open_matrix(tmp_path / "X.csv"), "none", 5, 2**31) == 50


def test_a_run_says_how_many_neighbors_in_all_features_it_has(
    any_size: None, tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = manifold(700, 120) + 0.1 * np.random.default_rng(2).normal(size=(700, 120))
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    settings = {
        "run": f"{tmp_path}/run",
        "input": {"uri": f"{tmp_path}/X.npy"},
        "mcfs": {"n_clusters": 4},
        "n_features_to_select": 5,
        "blocks": {"rows": 150},
    }
    result = run(settings)
    about = read_attributes(result.path / result.stages["graph"]["folder"])
    measured = about["graph"]["recall_of_all_features"]
    graph = KNNGraph.open(result.path / result.stages["graph"]["folder"], about["graph"])
    true, _ = brute_neighbors(X.astype(np.float32), 5)
    rows = sample_rows(700, 0, 100)
    found = graph.indices[...][rows]
    held = [np.isin(t, f).mean() for t, f in zip(true[rows], found, strict=True)]
    assert measured["value"] == pytest.approx(np.mean(held)) and measured["n_rows"] == 100
    assert 0.8 < measured["value"] < 1
    assert any("of the nearest rows in all features" in note for note in about["notes"])
    # The Gram matrix of the components serves the regression: one more pass for X'Y.
    assert [result.stages[name]["passes"] for name in ("components", "result")] == [2, 1]
    monkeypatch.setattr(representation, "LARGEST_GRAM_BYTES", 0)
    without = run({**settings, "run": f"{tmp_path}/without"})
    assert without.stages["components"]["passes"] == 4
    np.testing.assert_array_equal(without.ranking[:5], result.ranking[:5])
    best = result.ranking[:5]
    np.testing.assert_allclose(without.scores[best], result.scores[best], rtol=1e-3)
    raw = {**settings, "run": f"{tmp_path}/raw", "graph": {"representation": "raw"}}
    updated = {**settings, "run": f"{tmp_path}/updated", "update": "auto"}
    for other in (raw, updated):
        assert "components" not in run(other).stages
