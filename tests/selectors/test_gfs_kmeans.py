"""GFS-k-means equals its dense definition, and keeps what tells the clusters apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

from bigfs import GFSKMeans, ingest
from bigfs.blocks import RowBlocks
from bigfs.blocks.lloyd import label_sums
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.selectors.clusters import SearchedRows
from bigfs.selectors.gfs_kmeans.strategies import CrossProjection
from tests.bench._lfs_data import planted
from tests.reference.lfs import lloyd
from tests.selectors._local import result_of


def _criterion(X: np.ndarray, labels: np.ndarray) -> float:
    """Return tr(S_w^-1 S_b) of all clusters, eq. (4)."""
    total = np.cov(X.T, bias=True).reshape(X.shape[1], -1)
    within = np.zeros_like(total)
    for j in np.unique(labels):
        rows = X[labels == j]
        within += len(rows) / len(X) * np.cov(rows.T, bias=True).reshape(X.shape[1], -1)
    return float(np.trace(np.linalg.solve(within, total - within)))


def _reference(X: np.ndarray, centers: np.ndarray) -> tuple[list[int], np.ndarray]:
    kept = list(range(X.shape[1]))
    labels = lloyd(X, centers)
    while len(kept) > 1:
        means = np.stack([X[labels == j].mean(axis=0) for j in range(len(centers))])
        tried = []
        for feature in kept:
            rest = [f for f in kept if f != feature]
            new = lloyd(X[:, rest], means[:, rest])
            values = [
                _criterion(X[:, s], clusters) for clusters in (new, labels) for s in (kept, rest)
            ]
            tried.append((values[0] * values[1] / (values[2] * values[3]), rest, new))
        share = np.bincount(labels) / len(X)
        between = (share[:, None] * (means - share @ means) ** 2).sum(axis=0)
        alone = (between / (X.var(axis=0) - between))[kept]
        # Where the clusters stay the same: the feature that tells them apart least.
        place = max(range(len(kept)), key=lambda i: (round(np.log(tried[i][0]), 8), -alone[i]))
        ratio, rest, new = tried[place]
        if ratio < 1 - 1e-12:
            break
        kept, labels = rest, new
    return kept, labels


def _reference_many(X: np.ndarray, centers: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Drop the least separate quarter of the features, or half of that, and so on, while it may."""
    kept, labels, found = list(range(X.shape[1])), lloyd(X, centers), True
    while found and len(kept) > 1:
        means = np.stack([X[labels == j].mean(axis=0) for j in range(len(centers))])
        between = (np.bincount(labels)[:, None] / len(X) * (means - X.mean(axis=0)) ** 2).sum(
            axis=0
        )
        order = sorted(kept, key=lambda f: between[f] / (X[:, f].var() - between[f]))
        size, found = max(1, len(kept) // 4), False
        while size and not found:
            rest = sorted(order[size:])
            new = lloyd(X[:, rest], means[:, rest])
            values = [_criterion(X[:, s], z) for z in (new, labels) for s in (kept, rest)]
            found = values[0] * values[1] / (values[2] * values[3]) >= 1 - 1e-9
            size //= 2
        if found:
            kept, labels = rest, new
    return kept, labels


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_several_features_at_a_time_go_as_in_the_dense_reference(load) -> None:
    X, y = load(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    centers = np.stack([X[y == j].mean(axis=0) for j in range(y.max() + 1)])
    settings = {"n_clusters": len(centers), "init": centers, "tol": 0, "drop": "many"}
    fitted = GFSKMeans(**settings).fit(X)
    kept, labels = _reference_many(X, centers)
    assert fitted.get_support(indices=True).tolist() == kept
    np.testing.assert_array_equal(fitted.labels_, labels)
    assert fitted.n_iter_ <= 1 + X.shape[1] - len(kept)


@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_equals_the_dense_reference(load) -> None:
    X, y = load(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    centers = np.stack([X[y == j].mean(axis=0) for j in range(3)])
    fitted = GFSKMeans(n_clusters=3, init=centers, tol=0, drop="one").fit(X)
    kept, labels = _reference(X, centers)
    assert fitted.get_support(indices=True).tolist() == kept
    np.testing.assert_array_equal(fitted.labels_, labels)


def test_a_petal_is_all_that_is_kept_of_iris() -> None:
    X, y = load_iris(return_X_y=True)
    fitted = GFSKMeans(n_clusters=3, init=y).fit(X)
    assert fitted.get_support(indices=True).tolist() == [3]
    assert fitted.ranking_[0] == 3
    assert fitted.dropped_.tolist() == fitted.ranking_[:0:-1].tolist()


def test_row_blocks_give_the_same_subset(tmp_path: Path) -> None:
    X, y, _ = planted(3_000, 10, 4, seed=0)
    ingest(X, tmp_path / "X.zarr", rows=500)
    full_fit = GFSKMeans(n_clusters=4, init=y).fit(X)
    parts = GFSKMeans(n_clusters=4, init=y).fit(tmp_path / "X.zarr")
    np.testing.assert_array_equal(parts.ranking_, full_fit.ranking_)
    np.testing.assert_array_equal(parts.labels_[:], full_fit.labels_)
    again = GFSKMeans(n_clusters=4, n_init=3).fit(tmp_path / "X.zarr")
    assert 1 <= again.get_support().sum() <= 10


@pytest.mark.parametrize("n", [900, 5_200], ids=["restarts alone", "more rows"])
def test_row_blocks_lose_the_same_features_many_at_a_time(n: int) -> None:
    X, y, _ = planted(n, 41, 4, seed=0)
    for start in ({"init": y}, {"n_init": 2}):
        fits = [
            result_of("gfs_kmeans", RowBlocks.from_any(X, rows=rows), n_clusters=4, **start)
            for rows in (n, 400)
        ]
        np.testing.assert_array_equal(fits[0].ranking, fits[1].ranking)


def _log_criterion(X: np.ndarray, labels: np.ndarray, traces: bool) -> float:
    if not traces:
        return float(np.log(_criterion(X, labels)))
    within = sum((labels == j).mean() * X[labels == j].var(axis=0) for j in np.unique(labels))
    return float(np.log((X.var(axis=0) - within).sum() / within.sum()))


@pytest.mark.parametrize(
    "kind", ["plain", "far from one scale", "singular", "few rows", "explained"]
)
def test_candidates_compared_together_have_the_ratio_of_each(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    X, labels = generator.normal(size=(60, 9)), np.arange(60) % 4
    X[:, :3] += labels[:, None]
    if kind == "far from one scale":
        X *= 10.0 ** np.arange(-6, 12, 2)
    if kind == "singular":
        X[:, 7] = X[:, 6]
    if kind == "few rows":
        X, labels = X[:8], labels[:8]
    tried = np.tile(labels, (9, 1))
    for row in tried[2:]:  # two candidates stay the same
        some = generator.choice(len(X), 3, replace=False)
        row[some] = (row[some] + generator.integers(1, 4, 3)) % 4
    traced = np.full(9, kind in ("singular", "few rows"))
    if kind == "explained":  # a candidate has a cluster in which a feature does not vary
        X[:, 4] = tried[5] == 0
        traced[5] = True
    rows, kept, masks = SearchedRows.of(X), np.arange(9), ~np.eye(9, dtype=bool)
    old, new = labels[rows.order].astype(np.int32), tried[:, rows.order].astype(np.int32)
    [counts], [sums], _ = label_sums(rows.X, old[None], 4)
    for together in (1, 2**18):
        monkeypatch.setattr("bigfs.selectors.gfs_kmeans.strategies.TOGETHER", together)
        criterion = CrossProjection(rows, kept, counts, sums / counts[:, None], 1)
        ratios = criterion.log_ratios(old, new, masks)
        assert ratios[:2].tolist() == [0, 0]
        for i in range(2, 9):
            logs = [
                _log_criterion(X[:, mask], clusters, traced[i])
                for clusters in (tried[i], labels)
                for mask in (slice(None), masks[i])
            ]
            np.testing.assert_allclose(ratios[i], logs[0] + logs[1] - logs[2] - logs[3], atol=2e-8)


def test_what_cannot_be_used_is_refused() -> None:
    X = load_iris().data
    with pytest.raises(InputError, match="n_clusters must be"):
        GFSKMeans(n_clusters=0).fit(X)
    with pytest.raises(InputError, match="every feature is constant"):
        GFSKMeans(n_clusters=2).fit(np.ones((9, 2)))
    with pytest.raises(MemoryLimitError, match="9 clusters on 2,500 rows in 3,000 features"):
        GFSKMeans(n_clusters=9, drop="one", sample_size=2_500, memory_limit="1 GiB").fit(
            np.random.rand(2_500, 3_000)
        )


def test_candidates_tried_some_at_a_time_give_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = load_wine().data
    results = []
    for size in (1, 2**24):
        monkeypatch.setattr("bigfs.selectors.sampled._BATCH_BYTES", size)
        results.append(GFSKMeans(n_clusters=4, n_init=2, preprocess="standardize").fit(X))
    np.testing.assert_array_equal(results[0].dropped_, results[1].dropped_)
    np.testing.assert_array_equal(results[0].labels_, results[1].labels_)
