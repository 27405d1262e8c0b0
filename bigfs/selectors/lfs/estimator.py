"""LFS: localized feature selection, a feature subset for each cluster."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
from sklearn.base import ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import Moments
from bigfs.blocks.preprocess import Transform
from bigfs.core.errors import InputError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits, task_budget
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB, parse_bytes
from bigfs.runtime.progress import silenced, track
from bigfs.selectors.base import BaseSelector, _is_stored
from bigfs.selectors.costs import LFS_PRODUCT_BYTES, lfs_bytes
from bigfs.selectors.eigengap import chosen_n_clusters, known_n_clusters
from bigfs.selectors.lfs.kernels import Assignment, Clusterings, Rules
from bigfs.selectors.lfs.passes import Passes
from bigfs.selectors.lfs.search import begin, search
from bigfs.selectors.lfs.start import (
    assignment,
    best_restart,
    check_start,
    draw_rows,
    given_centers,
    score_of,
    usable_features,
)
from bigfs.selectors.lfs.state import Settings, State, load_state, save_state
from bigfs.stages.scores import FeatureScores
from bigfs.store.location import Location
from bigfs.store.scratch import Scratch

logger = logging.getLogger("bigfs")

MAX_CLUSTERS = 60
CHECKPOINT_SECONDS = 10.0
UNASSIGNED = ("nearest", "leave")
DROPS = ("one", "many")


def lfs_scores(
    blocks: RowBlocks,
    n_clusters: int | str,
    *,
    alpha: float = 4.0,
    beta: float = 4.0,
    tie_width: float = 2.0,
    drop: str = "one",
    init: Any = "k-means++",
    n_init: int = 10,
    sample_size: int | None = None,
    unassigned: str = "nearest",
    max_iter: int = 100,
    tol: float = 1e-3,
    random_state: int = 0,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    out: Scratch | None = None,
    checkpoint: Location | None = None,
) -> FeatureScores:
    """Find clusters that live each in features of its own, and score the features by them.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    n_clusters : int or "auto"
        In [1, 60].
    alpha, beta, tie_width, drop, init, n_init, sample_size, unassigned, max_iter, tol
        As in `LFS`.
    random_state : int, default=0
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.
    out : Scratch or None, default=None
        Where labels and memberships are stored. None: beside the data's small arrays.
    checkpoint : Path, ObjectPath or None, default=None
        A folder that outlives this process: the search is stored there, and goes on from there.

    Returns
    -------
    result : FeatureScores
        The fraction of rows whose cluster keeps the feature; in ``details`` what `LFS` says,
        with ``labels`` and ``membership`` as `ArrayRef`.

    Raises
    ------
    InputError
        If a parameter is out of range or the start does not fit the data.
    MemoryLimitError
        If the statistics of the clusters do not fit a worker.
    """
    settings = Settings(alpha, beta, tie_width, drop, max_iter, tol)
    checked = (blocks.n_samples, n_init, sample_size, unassigned)
    check_parameters(settings, known_n_clusters(n_clusters), *checked)
    n_clusters, gap = chosen_n_clusters(
        n_clusters, blocks, random_state=random_state, memory_limit=memory_limit
    )
    check_parameters(settings, n_clusters, *checked)
    given = check_start(init, n_clusters, blocks.n_samples, blocks.n_features)
    if given is not None and given.ndim == 1 and sample_size is not None:
        raise InputError(
            "init: labels are of all rows and sample_size searches on some of them; give the "
            "labels' class means as centroids, or remove sample_size."
        )
    values = min(blocks.rows, blocks.n_samples) * blocks.n_features
    # A block, its copy while it is read, and in float64.
    block_bytes = values * (2 * blocks.dtype.itemsize + 8)
    budget = check_memory(n_clusters, blocks.n_features, parse_bytes(memory_limit), block_bytes)
    out = out or blocks.scratch.child(blocks.scratch.unique("lfs"))
    before = blocks.passes
    moments = blocks.moments()
    file = Scratch(checkpoint).path / "lfs.npz" if checkpoint else None
    labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
    inside = out.create("membership", (blocks.n_samples, n_clusters), np.bool_, blocks.rows)
    with single_thread():
        state = load_state(file) if file else None
        rows = blocks
        if sample_size is not None and sample_size < blocks.n_samples:
            rows = draw_rows(blocks, sample_size, random_state)
        passes = Passes(rows, rows.moments().mean, budget)
        if state is None:
            state = _start(passes, n_clusters, given, n_init, settings, budget, random_state)
        _search(passes, state, settings, file)
        # Rules and means count from the origin of the rows that were searched.
        whole = Passes(blocks, state.origin, budget)
        how = assignment(state)
        with silenced():
            sums = whole.assign(how, unassigned == "leave", labels, inside)
    scores = sums[:, 0] @ state.subsets / blocks.n_samples
    evidence = score_of(sums, state, moments.variance)
    details = {
        "labels": labels,
        "membership": inside,
        "cluster_centers": how.centers + state.origin,
        "origin": state.origin,
        "feature_masks": state.subsets,
        "variances": how.variances,
        "rule_centers": state.rules.clusterings.centers,
        "rule_masks": state.rules.clusterings.masks,
        "rule_members": state.rules.members,
        "trace": state.trace,
        "evidence": evidence if np.isfinite(evidence) else None,
        "n_iter": max(1, state.round),
        "n_passes": blocks.passes - before,
        **gap,
    }
    return FeatureScores(scores, _ranking(scores, state, moments), details)


def _ranking(scores: np.ndarray, state: State, moments: Moments) -> np.ndarray:
    """Return the order by score; among equals, what went later comes first, constants last."""
    lateness = np.where(moments.minimum < moments.maximum, 0, -1)
    for place, entry in enumerate(state.trace):
        lateness[entry["dropped"]] += place
    return np.lexsort((np.arange(len(scores)), -lateness, -scores)).astype(np.int64)


def _start(
    passes: Passes,
    n_clusters: int,
    given: np.ndarray | None,
    n_init: int,
    settings: Settings,
    budget: int,
    random_state: int,
) -> State:
    """Return the first solution: the start's clusters with all features, or a finished one."""
    if given is not None:
        centers = given_centers(given, passes, n_clusters)
    else:
        best, saw_all = best_restart(
            passes.blocks, n_clusters, n_init, settings, budget, random_state
        )
        if saw_all:
            return best
        centers = best.sums.means + best.origin - passes.origin
    usable = usable_features(passes.blocks.moments(), passes.blocks.source.uri)
    with silenced():
        return begin(passes, centers, usable, settings)


def _search(passes: Passes, state: State, settings: Settings, file: Location | None) -> None:
    """Run the search with progress, and a checkpoint every ten seconds and at the end."""
    saved = time.monotonic()

    def save(now: State) -> None:
        nonlocal saved
        if file is not None and (now.finished or time.monotonic() - saved > CHECKPOINT_SECONDS):
            save_state(file, now)
            saved = time.monotonic()

    total = int(state.subsets.sum()) - len(state.subsets)
    with track("lfs", total, "features dropped of") as progress, silenced():
        search(passes, state, settings, progress, save)


def check_memory(n_clusters: int, n_features: int, limit: int, block_bytes: int = 0) -> int:
    """Return the bytes that the products of a task may take; raise where they do not fit.

    Raises
    ------
    MemoryLimitError
        If the covariances of the clusters do not fit, beside a block of rows.
    """
    square, rest = 8 * n_features**2, block_bytes + 64 * MIB
    needed = lfs_bytes(n_clusters, n_features, block_bytes)
    what = f"the covariances of {n_clusters} clusters in {n_features:,} features"
    check_fits("lfs", needed, limit, what)
    return int(min(task_budget(limit) - rest - 4 * square * n_clusters, LFS_PRODUCT_BYTES))


def check_parameters(
    settings: Settings,
    n_clusters: int,
    n_samples: int,
    n_init: int,
    sample_size: int | None,
    unassigned: str,
) -> None:
    """Raise InputError for a parameter that is out of range."""
    largest = min(MAX_CLUSTERS, n_samples)
    if not _whole(n_clusters) or not 1 <= n_clusters <= largest:
        raise InputError(
            f"n_clusters must be an int in [1, {largest}], since X has {n_samples} rows. "
            f"Got {n_clusters!r}."
        )
    for name in ("alpha", "beta", "tie_width", "tol"):
        value = getattr(settings, name)
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not number or not 0 <= value < np.inf:
            raise InputError(f"{name} must be a finite number of at least 0. Got {value!r}.")
    for name, text, choices in (
        ("drop", settings.drop, DROPS),
        ("unassigned", unassigned, UNASSIGNED),
    ):
        if text not in choices:
            raise InputError(f"{name} must be one of {', '.join(choices)}. Got {text!r}.")
    for name, count in (("n_init", n_init), ("max_iter", settings.max_iter)):
        if not _whole(count) or count < 1:
            raise InputError(f"{name} must be an int of at least 1. Got {count!r}.")
    if sample_size is not None and (not _whole(sample_size) or sample_size < 2 * n_clusters):
        raise InputError(
            f"sample_size must be None or an int of at least {2 * n_clusters}, twice the number "
            f"of clusters. Got {sample_size!r}."
        )


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class LFS(ClusterMixin, BaseSelector):
    """Localized feature selection: clusters that keep each a feature subset of its own.

    Clusters the rows by k-means on all features; then tries, cluster by cluster, what happens
    without one feature: the rows are clustered again, and every cluster whose new version is
    more separate from the others, overlap and gaps weighed in, is replaced by it.

    Parameters
    ----------
    n_features_to_select : int or None, default=None
        Length of the one list (`get_support`, `transform`); None keeps what any cluster keeps.
    n_clusters : int or "auto", default=8
        Number of clusters, in [1, 60].
    alpha, beta : float, default=4.0
        Price of rows in several clusters and of rows in none; the paper has 1 and 1, and 1 and 6
        for iris.
    tie_width : float, default=2.0
        A loss of separability within this many standard errors is a tie, which fewer features
        win. 0: the paper's rule, in which every difference counts. See Notes.
    drop : {"one", "many"}, default="one"
        Try features one at a time, as the paper does; or after each such sweep also without the
        2, 4, 8, ... features it would do best without, which takes far fewer passes where
        features are many.
    init : "k-means++" or array-like, default="k-means++"
        Where the clusters begin: the best of ``n_init`` searches; centroids of shape
        (n_clusters, n_features), in units of the preprocessed data; or labels of shape
        (n_samples,), whose class means are taken.
    n_init : int, default=10
        Searches from k-means++, each on all rows or a sample of 5,000.
    sample_size : int or None, default=None
        Search on so many random rows and label all rows at the end. None: on all rows.
    unassigned : {"nearest", "leave"}, default="nearest"
        Rows of no cluster take the nearest by eq. (20), or the label -1.
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
    feature_subsets_ : list of ndarray of int64
        Indices of the features that each cluster keeps.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
        Of several clusters a row belongs to, the nearest by eq. (20).
    membership_ : ndarray (zarr array where X was stored) of shape (n_samples, n_clusters), bool
        Overlaps and gaps.
    cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
        Means of the members, in units of the preprocessed data.
    scores_ : ndarray of shape (n_features,), float64
        Fraction of rows whose cluster keeps the feature.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; of equal ones that which the clusters dropped later.
    trace_ : list of dict
        The accepted replacements: cluster, features dropped, log ratio with its standard error,
        overlap and unassigned share after it.
    evidence_ : float or None
        How well the solution describes the rows, in nats above no clusters at all (BIC); restarts
        are compared by it. None if a label has fewer than two rows.
    n_iter_ : int
        Rounds over the clusters.
    n_passes_ : int
        Passes over X.

    See Also
    --------
    GFSKMeans : One subset for all clusters.

    Notes
    -----
    Clusters are compared by eqs. (13) to (18) of [1]_, every one of a candidate clustering with
    the one it overlaps most (figure 2 read to the letter), if the candidate has fewer features.
    A rise of overlap or gaps counts against the new cluster (eqs. 17 and 18 print the other
    sign). Equal members are a tie. Otherwise the standard error of the log ratio decides: a
    jackknife that leaves out each of 20 groups of rows in turn, memberships fixed. With few rows
    per feature (wine: 178 rows) errors are wide and features go that matter; ``tie_width=0`` then
    does better. Where the covariance of a cluster is singular, all four terms are ratios of traces.
    Features that never vary are dropped first.

    The variance in eq. (20) is the mean one of the features a cluster keeps.

    Cost: each step one pass per iteration of k-means, for all candidates of a cluster together,
    one for covariances, at most one for errors. Nothing that has a row per sample is stored
    before the end. Memory grows with n_clusters * n_features^2.

    References
    ----------
    .. [1] Y. Li, M. Dong, J. Hua, "Localized feature selection for clustering", Pattern
       Recognition Letters 29, 2008, doi:10.1016/j.patrec.2007.08.012.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import LFS
    >>> X, y = load_iris(return_X_y=True)
    >>> found = LFS(n_clusters=3, alpha=1, beta=6, tie_width=1, init=y).fit(X)
    >>> [subset.tolist() for subset in found.feature_subsets_]
    [[3], [2, 3], [2, 3]]
    """

    def __init__(
        self,
        n_features_to_select: int | None = None,
        *,
        n_clusters: int | str = 8,
        alpha: float = 4.0,
        beta: float = 4.0,
        tie_width: float = 2.0,
        drop: str = "one",
        init: Any = "k-means++",
        n_init: int = 10,
        sample_size: int | None = None,
        unassigned: str = "nearest",
        max_iter: int = 100,
        tol: float = 1e-3,
        preprocess: str = "none",
        random_state: int = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        self.n_features_to_select = n_features_to_select
        self.n_clusters = n_clusters
        self.alpha = alpha
        self.beta = beta
        self.tie_width = tie_width
        self.drop = drop
        self.init = init
        self.n_init = n_init
        self.sample_size = sample_size
        self.unassigned = unassigned
        self.max_iter = max_iter
        self.tol = tol
        self.preprocess = preprocess
        self.random_state = random_state
        self.memory_limit = memory_limit

    def fit(self, X: Any, y: Any = None) -> LFS:
        """Find the clusters and their features; see `BaseSelector.fit`."""
        super().fit(X, y)
        if self.n_features_to_select is None:
            self.n_features_to_select_ = int((self.scores_ > 0).sum())
        self.feature_subsets_ = [np.flatnonzero(mask) for mask in self.feature_masks_]
        return self

    def _score(self, blocks: RowBlocks, n_features_to_select: int) -> FeatureScores:
        columns = blocks.transform.columns
        self._preprocessing = (blocks.transform.kind, None if columns is None else columns.load())
        return lfs_scores(
            blocks,
            self.n_clusters,
            alpha=self.alpha,
            beta=self.beta,
            tie_width=self.tie_width,
            drop=self.drop,
            init=self.init,
            n_init=self.n_init,
            sample_size=self.sample_size,
            unassigned=self.unassigned,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=self.random_state,
            memory_limit=self.memory_limit,
        )

    def predict(self, X: Any) -> Any:
        """Label rows, by blocks, as `fit` labels its own.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, Dask array, zarr array, path or URI
            Data with the features of `fit`.

        Returns
        -------
        labels : ndarray (zarr array where X is stored) of shape (n_samples,), int32
        """
        check_is_fitted(self, "ranking_")
        stored = _is_stored(X)
        if not stored:
            X = validate_data(self, X, reset=False, accept_sparse=("csr", "csc"), dtype="numeric")
        # Opened data have two rows at least.
        alone = not stored and X.shape[0] == 1
        blocks = RowBlocks.from_any(X[[0, 0]] if alone else X, scratch=Scratch())
        if blocks.n_features != self.n_features_in_:
            raise InputError(
                f"X has {blocks.n_features} features, but LFS is expecting "
                f"{self.n_features_in_} features as input."
            )
        kind, columns = self._preprocessing
        scratch = blocks.scratch
        blocks.transform = Transform(
            kind, None if columns is None else scratch.put("columns", columns)
        )
        labels = scratch.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        rules = Rules(Clusterings(self.rule_centers_, self.rule_masks_), self.rule_members_)
        how = Assignment(
            rules, self.cluster_centers_ - self.origin_, self.feature_masks_, self.variances_
        )
        passes = Passes(blocks, self.origin_, 256 * MIB)
        with single_thread():
            passes.assign(how, self.unassigned == "leave", labels)
        blocks.check_unchanged()
        return labels.open(scratch) if stored else labels.load()[: X.shape[0]]
