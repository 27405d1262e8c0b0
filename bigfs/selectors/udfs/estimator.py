"""UDFS: a sparse projection under which every neighborhood is told apart from its own scatter."""

from __future__ import annotations

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.threads import single_thread
from bigfs.core.units import parse_bytes
from bigfs.graph import KNNGraph, knn_graph
from bigfs.selectors.base import BaseSelector
from bigfs.selectors.costs import UDFS_MATRICES, udfs_block_bytes
from bigfs.selectors.eigengap import chosen_n_clusters, known_n_clusters
from bigfs.selectors.q_alpha.estimator import check_iteration
from bigfs.selectors.udfs.kernels import gathered_rows, local_scatter
from bigfs.solvers.udfs import sparse_basis
from bigfs.stages.scores import FeatureScores


def udfs_scores(
    blocks: RowBlocks,
    graph: KNNGraph,
    n_clusters: int | str,
    *,
    gamma: float = 0.1,
    ridge: float = 1.0,
    max_iter: int = 30,
    tol: float = 1e-5,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
) -> FeatureScores:
    """Score features by a sparse discriminative projection.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    graph : KNNGraph
        Over the same rows.
    n_clusters : int or "auto"
        Columns of the projection.
    gamma : float, default=0.1
        Weight of the l2,1-norm; not negative.
    ridge : float, default=1.0
        Added to each neighborhood's Gram matrix; positive.
    max_iter : int, default=30
    tol : float, default=1e-5
        Stop when the objective changes by less than this share.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.

    Returns
    -------
    result : FeatureScores
        Row norms of the projection; constant features get the lowest score and rank last.
        Details as the attributes of `UDFS`.

    Raises
    ------
    InputError
        If a parameter is out of range.
    MemoryLimitError
        If a block with its neighbors' rows and the matrices of n_features^2 do not fit.
    """
    limit = parse_bytes(memory_limit)
    check_udfs(known_n_clusters(n_clusters, 1), blocks.n_features, limit)
    check_weights(gamma, ridge)
    check_iteration(max_iter, tol)
    _check_block(blocks, graph.n_neighbors, limit)
    n_clusters, gap = chosen_n_clusters(
        n_clusters, blocks, random_state=0, memory_limit=memory_limit, graph=graph
    )
    M, varies = local_scatter(blocks, graph.indices_ref, ridge)
    kept = np.flatnonzero(varies)
    scores = np.zeros(blocks.n_features)
    coef = np.zeros((blocks.n_features, min(n_clusters, len(kept))))
    if not len(kept):
        return FeatureScores.from_scores(
            scores,
            constant=~varies,
            n_iter=0,
            converged=True,
            objective=np.empty(0),
            coef=coef,
            **gap,
        )
    if len(kept) < len(M):
        M = M[np.ix_(kept, kept)]
    with single_thread():
        found = sparse_basis(M, coef.shape[1], gamma, max_iter=max_iter, tol=tol)
    coef[kept] = found.B
    scores[kept] = np.linalg.norm(found.B, axis=1)
    return FeatureScores.from_scores(
        scores,
        constant=~varies,
        n_iter=len(found.objective),
        converged=found.converged,
        objective=found.objective,
        coef=coef,
        **gap,
    )


def check_udfs(n_clusters: int, n_features: int, limit: int) -> None:
    """Raise unless the number of clusters is in range and n_features^2 numbers fit."""
    whole = isinstance(n_clusters, (int, np.integer)) and not isinstance(n_clusters, bool)
    if not whole or not 1 <= n_clusters <= n_features:
        raise InputError(
            f"n_clusters must be an int in [1, {n_features}], since X has {n_features} features. "
            f"Got {n_clusters!r}."
        )
    needed = 8 * UDFS_MATRICES * n_features**2
    what = f"{UDFS_MATRICES} matrices of {n_features:,} x {n_features:,} features"
    check_fits("udfs", needed, limit, what)


def check_weights(gamma: float, ridge: float) -> None:
    """Raise InputError unless gamma is at least 0 and the ridge above it."""
    for name, value, fits in (("gamma", gamma, "at least"), ("ridge", ridge, "above")):
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not number or not np.isfinite(value) or value < 0 or (value == 0 and fits == "above"):
            raise InputError(f"{name} must be a finite number of {fits} 0. Got {value!r}.")


def _check_block(blocks: RowBlocks, n_neighbors: int, limit: int) -> None:
    """Raise MemoryLimitError unless a block and the rows of its neighborhoods fit."""
    shape = blocks.layout
    needed = udfs_block_bytes(
        shape, n_neighbors, gathered_rows(shape.n_features, shape.itemsize, n_neighbors)
    )
    check_fits("udfs", needed, limit, f"a block of {shape.rows:,} rows with its neighbors' rows")


class UDFS(BaseSelector):
    """Unsupervised discriminative feature selection.

    Looks for an orthonormal projection under which each neighborhood has little scatter that a
    linear map could not explain, with a penalty that empties whole rows of the projection.

    Parameters
    ----------
    n_features_to_select : int or None, default=None
        How many features to keep; None keeps half of them.
    n_clusters : int or "auto", default=8
        Columns of the projection: the number of clusters expected. At most n_features.
    gamma : float, default=0.1
        Weight of the l2,1-norm.
    ridge : float, default=1.0
        The paper's lambda, in units of squared values: scale X (or the ridge) to what you expect.
    n_neighbors : int, default=5
        Neighbors of each row in its neighborhood, besides itself.
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
        Distance between rows.
    preprocess : {"none", "standardize", "rescale", "minmax", "unit_norm", "log1p"}, \
default="none"
        Applied while reading; the authors' code scales features to [0, 1].
    max_iter : int, default=30
        Most iterations; they need no pass.
    tol : float, default=1e-5
        Stop when the objective changes by less than this share.
    random_state : int, default=0
        Seed of everything random.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Norms of the rows of B, larger is better. Constant features get the lowest score.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last.
    coef_ : ndarray of shape (n_features, n_clusters), float64
        B, the paper's W; fewer columns where fewer features vary.
    n_iter_ : int
        Iterations made.
    converged_ : bool
        Whether the objective settled within ``tol``.
    objective_ : ndarray of shape (n_iter,), float64
        Eq. (11) after each iteration.

    Notes
    -----
    Solves the problem of section 2 of [1]_ (its X is our X'), with S_i selecting row i and its
    neighbors, H centering them and ``Z_i = H S_i'X``::

        min tr(B'MB) + gamma |B|_2,1,  B'B = I
        M = X'(sum_i S_i H (Z_i Z_i' + lambda I)^-1 H S_i')X
          = sum_i Z_i'(Z_i Z_i' + lambda I)^-1 Z_i

    by its algorithm 1: B are the eigenvectors of the smallest eigenvalues of ``M + gamma D``,
    ``D = diag(1 / (2 |b_j|))``, first of the identity. The objective never rises. Constant
    features, which cost nothing and say nothing, are set aside; others of little variance cost
    little and come first unless features are brought to one scale. The paper has no defaults: it
    tunes gamma and the ridge over {1e-6, 1e-4, ..., 1e6} with the labels in view, and so should
    who compares with it. Of 35 pairs on seven sets, none is good on all: gamma = 1 doubles the NMI
    that k-means has with 0.1 on USPS and digits, and loses a quarter on satimage. Cost beyond the
    graph: M is summed in one edge pass (each block is read once, and again by the blocks whose
    rows list rows in it), ``(n_neighbors + 1) n_samples n_features^2`` products; then an
    eigenproblem of n_features per iteration on the client.

    References
    ----------
    .. [1] Y. Yang, H. T. Shen, Z. Ma, Z. Huang, X. Zhou, "l2,1-norm regularized discriminative
       feature selection for unsupervised learning", IJCAI 2011,
       doi:10.5591/978-1-57735-516-8/IJCAI11-267.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import UDFS
    >>> UDFS(n_features_to_select=2, n_clusters=3).fit_transform(load_iris().data).shape
    (150, 2)
    """

    def __init__(
        self,
        n_features_to_select: int | None = None,
        *,
        n_clusters: int | str = 8,
        gamma: float = 0.1,
        ridge: float = 1.0,
        n_neighbors: int = 5,
        metric: str = "euclidean",
        preprocess: str = "none",
        max_iter: int = 30,
        tol: float = 1e-5,
        random_state: int = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        self.n_features_to_select = n_features_to_select
        self.n_clusters = n_clusters
        self.gamma = gamma
        self.ridge = ridge
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.preprocess = preprocess
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.memory_limit = memory_limit

    def _score(self, blocks: RowBlocks, n_features_to_select: int) -> FeatureScores:
        known = known_n_clusters(self.n_clusters, 1)
        check_udfs(known, blocks.n_features, parse_bytes(self.memory_limit))
        check_weights(self.gamma, self.ridge)
        check_iteration(self.max_iter, self.tol)
        graph = knn_graph(
            blocks,
            self.n_neighbors,
            metric=self.metric,
            memory_limit=self.memory_limit,
            random_state=self.random_state,
        )
        return udfs_scores(
            blocks,
            graph,
            self.n_clusters,
            gamma=self.gamma,
            ridge=self.ridge,
            max_iter=self.max_iter,
            tol=self.tol,
            memory_limit=self.memory_limit,
        )
