"""GFS-k-means: one feature subset for all clusters, by backward search around k-means."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClusterMixin

from bigfs.blocks import RowBlocks
from bigfs.blocks.kmeans import plus_plus
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.seeds import rng
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB, parse_bytes
from bigfs.runtime.execute import inline, run_tasks
from bigfs.runtime.progress import silenced, track
from bigfs.selectors.base import BaseSelector
from bigfs.selectors.costs import gfs_bytes
from bigfs.selectors.eigengap import chosen_n_clusters, known_n_clusters
from bigfs.selectors.lfs.estimator import check_parameters, usable_features
from bigfs.selectors.lfs.kernels import Assignment, Clusterings, Rules, Sweep
from bigfs.selectors.lfs.passes import Passes
from bigfs.selectors.lfs.search import converge
from bigfs.selectors.lfs.start import START_ROWS, check_start, draw_rows, given_centers
from bigfs.selectors.lfs.state import Settings
from bigfs.solvers.separability import evidence, is_singular, pair_separability
from bigfs.stages.scores import FeatureScores
from bigfs.store.scratch import ArrayRef, Scratch


def gfs_scores(
    blocks: RowBlocks,
    n_clusters: int | str,
    *,
    init: Any = "k-means++",
    n_init: int = 10,
    max_iter: int = 100,
    tol: float = 1e-3,
    random_state: int = 0,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    out: Scratch | None = None,
) -> FeatureScores:
    """Score features by how long a backward search around k-means keeps them.

    Parameters are those of `GFSKMeans`; ``out`` is where the labels are stored.

    Returns
    -------
    result : FeatureScores
        Details as the attributes of `GFSKMeans`, with ``labels`` as an `ArrayRef`.

    Raises
    ------
    InputError
        If a parameter is out of range or the start does not fit the data.
    MemoryLimitError
        If the covariance of all features does not fit a worker.
    """
    settings = Settings(0.0, 0.0, 0.0, "one", max_iter, tol)
    known = known_n_clusters(n_clusters)
    check_parameters(settings, known, blocks.n_samples, n_init, None, "nearest")
    n_clusters, gap = chosen_n_clusters(
        n_clusters, blocks, random_state=random_state, memory_limit=memory_limit
    )
    given = check_start(init, n_clusters, blocks.n_samples, blocks.n_features)
    d, limit = blocks.n_features, parse_bytes(memory_limit)
    check_fits("gfs_kmeans", gfs_bytes(n_clusters, d), limit, f"sums of {d:,} features")
    out = out or blocks.scratch.child(blocks.scratch.unique("gfs"))
    labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
    before = blocks.passes
    usable = usable_features(blocks.moments(), blocks.source.uri)
    with single_thread():
        gram = blocks.gram()
        total = gram.gram / gram.count
        passes = Passes(blocks, gram.mean, 64 * MIB)
        if given is not None:
            centers = given_centers(given, passes, n_clusters)
        else:
            centers = _best_start(passes, n_clusters, n_init, settings, random_state)
        with track("gfs_kmeans", int(usable.sum()) - 1, "features dropped of") as progress:
            with silenced():
                now, order = _search(passes, centers, usable, total, settings, progress)
        _write_labels(passes, now, labels)
    mask, means = now.masks[0], now.centers[0]
    # Dropped first, scored least; what is kept shares the best score, constants have none.
    scores = mask.astype(np.float64)
    scores[order] = (np.arange(len(order)) + 1) / (len(order) + 1)
    return FeatureScores.from_scores(
        scores,
        labels=labels,
        cluster_centers=means + gram.mean,
        support=mask,
        dropped=np.array(order, dtype=np.int64),
        n_iter=len(order) + 1,
        n_passes=blocks.passes - before,
        **gap,
    )


def _search(
    passes: Passes,
    centers: np.ndarray,
    usable: np.ndarray,
    total: np.ndarray,
    settings: Settings,
    progress: Any,
) -> tuple[Clusterings, list[int]]:
    """Drop the feature without which the clusters are most separate, while they are no less so."""
    k, d = centers.shape
    rules = Rules(Clusterings(np.zeros((k, k, d)), np.zeros((k, d), dtype=bool)), np.full(k, -1))
    now, found = converge(passes, Clusterings(centers[None], usable[None]), rules, settings)
    order: list[int] = []
    while now.masks[0].sum() > 1:
        kept = np.flatnonzero(now.masks[0])
        masks = np.tile(now.masks[0], (len(kept), 1))
        masks[np.arange(len(kept)), kept] = False
        means = _means(found, 0, now.centers[0])
        start = Clusterings(np.tile(means, (len(kept), 1, 1)), masks)
        candidates, sweep = converge(passes, start, rules, settings)
        values = [
            _log_ratio(found, sweep, place, now.masks[0], masks[place], total)
            for place in range(len(kept))
        ]
        best = int(np.argmax(values))
        if not values[best] >= 0:
            break
        order.append(int(kept[best]))
        now = candidates.take(np.array([best]))
        found = Sweep(sweep.counts[[best]], sweep.sums[[best]], sweep.codes, sweep.joint[[best]])
        progress.advance(1)
    return Clusterings(_means(found, 0, now.centers[0])[None], now.masks), order


def _means(found: Sweep, place: int, otherwise: np.ndarray) -> np.ndarray:
    """Return the means of one clustering; an empty cluster keeps its center."""
    counts = found.counts[place][:, None]
    return np.where(counts > 0, found.sums[place] / np.maximum(counts, 1), otherwise)


def _log_ratio(
    old: Sweep, new: Sweep, place: int, mask: np.ndarray, subset: np.ndarray, total: np.ndarray
) -> float:
    """Return the log of the cross-projected criterion of the new clusters over the old ones'."""
    first, second = np.flatnonzero(mask), np.flatnonzero(subset)
    values = []
    parts = [(old.counts[0], old.sums[0]), (new.counts[place], new.sums[place])]
    if np.array_equal(parts[0][0], parts[1][0]) and np.array_equal(parts[0][1], parts[1][1]):
        return 0.0  # the same clusters
    scatter = [_within(counts, sums, total) for counts, sums in parts]
    use_trace = any(
        is_singular(within[np.ix_(s, s)], parts[0][0].sum()) for within in scatter
        for s in (first, second)
    )  # fmt: skip
    for (counts, sums), within in zip(parts, scatter, strict=True):
        means = sums / np.maximum(counts, 1)[:, None]
        values.append(float(pair_separability(counts, means, within, first, second, use_trace)))
    value = values[1] - values[0]
    return value if np.isfinite(value) else -np.inf


def _within(counts: np.ndarray, sums: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the pooled covariance within the clusters: that of all rows less that between."""
    means = sums / np.maximum(counts, 1)[:, None]
    weighted = means * (counts / counts.sum())[:, None]
    return np.asarray(total - weighted.T @ means)


def _best_start(
    passes: Passes, n_clusters: int, n_init: int, settings: Settings, random_state: int
) -> np.ndarray:
    """Return the centers of the best of several searches from k-means++, on a sample of rows."""
    blocks = passes.blocks
    size = min(START_ROWS, blocks.n_samples)
    rows = draw_rows(blocks, size, random_state)
    data = blocks.scratch.put(blocks.scratch.unique("start"), rows.reader.read(0, size))
    found = run_tasks(
        _restart_task, list(range(n_init)), data, n_clusters, settings, random_state,
        label="gfs restarts", unit="restarts",
    )  # fmt: skip
    blocks.scratch.remove(data)
    best = int(np.argmax([score for score, _ in found]))
    return np.asarray(found[best][1] - passes.origin)


def _restart_task(
    restart: int, data: ArrayRef, n_clusters: int, settings: Settings, random_state: int
) -> tuple[float, np.ndarray]:
    """Search from one draw of k-means++; return its evidence and its centers in all features."""
    X = data.load()
    with inline():
        blocks = RowBlocks.from_any(X, rows=len(X))
        moments, gram = blocks.moments(), blocks.gram()
        usable = usable_features(moments, "init")
        chosen = plus_plus(X[:, usable], n_clusters, rng(random_state, "gfs restart", restart))
        chosen = np.resize(chosen, n_clusters)  # fewer distinct rows than clusters
        passes = Passes(blocks, gram.mean, 64 * MIB, in_memory=True)
        with track("gfs_kmeans", None) as progress:
            now, _ = _search(
                passes, X[chosen] - gram.mean, usable, gram.gram / gram.count, settings, progress
            )
        sums = _write_labels(passes, now, None)
    counts = sums[:, 0]
    n, d = np.maximum(counts, 1)[:, None], X.shape[1]
    variances = sums[:, 1 + d :] / n - (sums[:, 1 : 1 + d] / n) ** 2
    masks = np.tile(now.masks[0], (n_clusters, 1))
    return evidence(counts, variances, moments.variance, masks), now.centers[0] + gram.mean


def _write_labels(passes: Passes, now: Clusterings, labels: ArrayRef | None) -> np.ndarray:
    """Label all rows by the nearest center; return the sums of the labels' rows."""
    k = now.centers.shape[1]
    rules = Rules(now.take(np.zeros(k, dtype=np.int64)), np.arange(k))
    masks = np.tile(now.masks[0], (k, 1))
    with silenced():
        how = Assignment(rules, now.centers[0], masks, np.ones(k))
        return passes.assign(how, False, labels)


class GFSKMeans(ClusterMixin, BaseSelector):
    """Global feature selection around k-means, backward.

    Clusters the rows by k-means on all features, then again without each feature in turn, and
    drops the one without which the clusters are most separate, as long as they are no less
    separate than before: `LFS` with one subset for all clusters.

    Parameters
    ----------
    n_features_to_select : int or None, default=None
        How many features to keep; None keeps those at which the search stops.
    n_clusters : int or "auto", default=8
        Number of clusters, in [1, 60].
    init : "k-means++" or array-like, default="k-means++"
        Where the clusters begin: the best of ``n_init`` searches on at most 5,000 rows;
        centroids of shape (n_clusters, n_features); or labels of shape (n_samples,).
    n_init : int, default=10
        Searches from k-means++.
    max_iter : int, default=100
        Most iterations of k-means for a candidate.
    tol : float, default=1e-3
        A candidate's k-means stops when its centers move less than this share of their extent.
    preprocess : {"none", "standardize", "minmax", "unit_norm", "log1p"}, default="none"
        Applied while reading.
    random_state : int, default=0
        Seed of everything random.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        1 for what is kept at the end, below it in the order of dropping, first dropped least.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index.
    support_ : ndarray of shape (n_features,), bool
        The subset at which the search stopped.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
    cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
    dropped_ : ndarray of int64
        Features in the order in which they went.
    n_iter_ : int
        Subsets clustered, one with a feature less than the other.
    n_passes_ : int
        Passes over X.

    See Also
    --------
    LFS : A subset for each cluster.

    Notes
    -----
    The criterion is ``tr(S_w^-1 S_b)`` with cross-projection [1]_: clusters of both subsets are
    valued in both, and the products are compared. The search goes backward and not forward, as
    in [2]_. S_w is the covariance of all rows less S_b, so no pass beyond k-means is needed.

    References
    ----------
    .. [1] J. G. Dy, C. E. Brodley, "Feature selection for unsupervised learning", Journal of
       Machine Learning Research 5, 2004.
    .. [2] Y. Li, M. Dong, J. Hua, "Localized feature selection for clustering", Pattern
       Recognition Letters 29, 2008, section 3.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import GFSKMeans
    >>> X, y = load_iris(return_X_y=True)
    >>> GFSKMeans(n_clusters=3, init=y).fit(X).get_support(indices=True)
    array([3])
    """

    def __init__(
        self,
        n_features_to_select: int | None = None,
        *,
        n_clusters: int | str = 8,
        init: Any = "k-means++",
        n_init: int = 10,
        max_iter: int = 100,
        tol: float = 1e-3,
        preprocess: str = "none",
        random_state: int = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        self.n_features_to_select = n_features_to_select
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.preprocess = preprocess
        self.random_state = random_state
        self.memory_limit = memory_limit

    def fit(self, X: Any, y: Any = None) -> GFSKMeans:
        """Find the clusters and the features; see `BaseSelector.fit`."""
        super().fit(X, y)
        if self.n_features_to_select is None:
            self.n_features_to_select_ = int(self.support_.sum())
        return self

    def _score(self, blocks: RowBlocks, n_features_to_select: int) -> FeatureScores:
        return gfs_scores(
            blocks,
            self.n_clusters,
            init=self.init,
            n_init=self.n_init,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=self.random_state,
            memory_limit=self.memory_limit,
        )
