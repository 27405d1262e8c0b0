"""MCFS: multi-cluster feature selection by spectral embedding and sparse regression."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from bigfs._kernels import Gram
from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.core.execute import run_tasks
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, task_budget
from bigfs.core.units import parse_bytes
from bigfs.graph import affinity, knn_graph
from bigfs.scores import FeatureScores, rank
from bigfs.selectors._base import BaseSelector
from bigfs.selectors._tasks import SparseVector, lars_task
from bigfs.selectors._wide import wide_paths
from bigfs.selectors.costs import gram_bytes
from bigfs.spectral.embedding import SpectralEmbedding, spectral_embedding

COEF_SCALES = ("none", "l1", "l2", "max")


def mcfs_scores(
    blocks: RowBlocks,
    spectral: SpectralEmbedding,
    n_features_to_select: int,
    *,
    fit_intercept: bool = True,
    coef_scale: str = "l2",
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
) -> FeatureScores:
    """Score features by the sparse regressions of each eigenvector on all of them.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    spectral : SpectralEmbedding of shape (n_samples, n_components)
        The y of eq. (1); each is scaled to Euclidean norm one.
    n_features_to_select : int
        Size of the active set at which each path stops.
    fit_intercept : bool, default=True
        Center the columns of X.
    coef_scale : {"none", "l1", "l2", "max"}, default="l2"
        Norm that each coefficient vector is divided by before eq. (4).
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.

    Returns
    -------
    result : FeatureScores
        Scores of eq. (4), ``max_k |a_kj|``, and the supports of every smaller number of
        features (up to 500), each that of a fit with it: a path to fewer features is the
        beginning of this one. Details: ``coef``, a CSR array (n_components, n_features) of the
        active features' coefficients, and ``n_active`` (n_components,), how many they are; for
        wide data also ``largest_violation`` (n_components,) and ``n_screened`` (n_rounds,) of
        `bigfs.selectors._wide.WidePaths`.

    Raises
    ------
    MemoryLimitError
        If not even the Gram columns of the features that may join a path fit a worker.

    Notes
    -----
    Solves eq. (3) in Gram form: one pass over X gives ``G = X'X`` and ``X'Y``, after which the
    paths are independent of n and run in parallel. Where G does not fit, columns of it for
    screened features do: the same paths, certified at every knot, in a few passes.
    """
    if coef_scale not in COEF_SCALES:
        raise InputError(f"coef_scale must be one of {', '.join(COEF_SCALES)}. Got {coef_scale!r}.")
    limit = parse_bytes(memory_limit)
    details: dict[str, np.ndarray] = {}
    if gram_bytes(blocks.layout, len(spectral.eigenvalues)) <= task_budget(limit):
        paths, constant = _full_paths(blocks, spectral, n_features_to_select, fit_intercept)
        last, stops = [path[0] for path in paths], [path[1] for path in paths]
    else:
        found = wide_paths(
            blocks,
            spectral,
            n_features_to_select,
            fit_intercept=fit_intercept,
            memory_limit_bytes=limit,
        )
        last, stops, constant = found.last, found.stops, found.constant
        details = {
            "largest_violation": found.largest_violation,
            "n_screened": found.n_screened,
        }
    n_features = blocks.n_features
    return FeatureScores.from_scores(
        _scores(last, coef_scale, n_features),
        constant=constant,
        supports=_supports(stops, coef_scale, constant),
        coef=_as_rows(last, n_features),
        n_active=np.array([len(indices) for indices, _ in last]),
        **details,
    )


def _full_paths(
    blocks: RowBlocks, spectral: SpectralEmbedding, n_nonzero: int, fit_intercept: bool
) -> tuple[list[tuple[SparseVector, list[SparseVector]]], np.ndarray]:
    """Return the stops of all targets' paths on the whole Gram matrix, and what is constant."""
    gram = blocks.gram(spectral.embedding_ref, label="regression")
    constant = gram.gram.diagonal() <= 0
    matrix, xty = (gram.gram, gram.xty) if fit_intercept else _uncentered(gram)
    scratch = blocks.scratch
    shared = (
        scratch.put(scratch.unique("gram"), matrix),
        scratch.put(scratch.unique("xty"), xty / spectral.norms),
    )
    targets = range(len(spectral.eigenvalues))
    paths = run_tasks(lars_task, targets, *shared, n_nonzero, label="paths", unit="eigenvectors")
    scratch.remove(*shared)
    return paths, constant


def _scores(vectors: list[SparseVector], scale: str, n_features: int) -> np.ndarray:
    """Return eq. (4) of the coefficient vectors, each divided by its norm."""
    scores = np.zeros(n_features)
    for indices, values in vectors:
        size = np.abs(values)
        scores[indices] = np.maximum(scores[indices], size / _norm(size, scale))
    return scores


def _norm(size: np.ndarray, scale: str) -> float:
    """Return what a vector of absolute coefficients is divided by."""
    if scale == "none" or not size.any():
        return 1.0
    order = {"l1": 1, "l2": 2, "max": np.inf}[scale]
    return float(np.linalg.norm(size, order))


def _supports(stops: list[list[SparseVector]], scale: str, constant: np.ndarray) -> np.ndarray:
    """Return the selections of 1, 2, ... features: each path stops where it first has as many."""
    found = []
    for n_selected, vectors in enumerate(zip(*stops, strict=True), start=1):
        scores = _scores(list(vectors), scale, len(constant))
        found.append(np.sort(rank(scores, constant)[:n_selected]))
    return np.concatenate(found).astype(np.int32)


def _as_rows(vectors: list[SparseVector], n_features: int) -> csr_array:
    """Return sparse vectors as the rows of a matrix."""
    indices, values = (np.concatenate(parts) for parts in zip(*vectors, strict=True))
    starts = np.cumsum([0, *(len(found) for found, _ in vectors)])
    return csr_array((values, indices, starts), shape=(len(vectors), n_features))


def _uncentered(gram: Gram) -> tuple[np.ndarray, np.ndarray]:
    """Return ``X'X`` and ``X'Y`` of the data as they are."""
    return (
        gram.gram + gram.count * np.multiply.outer(gram.mean, gram.mean),
        gram.xty + gram.count * np.multiply.outer(gram.mean, gram.y_mean),
    )


class MCFS(BaseSelector):
    """Multi-cluster feature selection.

    Embeds the rows by the smallest eigenvectors of their neighbor graph, explains each
    eigenvector by a sparse regression on the features, and keeps the features of largest
    coefficient. Groups of clusters that only some features tell apart are all covered.

    Parameters
    ----------
    n_features_to_select : int or None, default=None
        How many features to keep; None keeps half of them.
    n_clusters : int or "auto", default=8
        Number of eigenvectors K; the paper sets it to the number of clusters. "auto": where
        the relative gap between the first 30 eigenvalues is largest.
    n_neighbors : int, default=5
        Neighbors of each row in the graph.
    weight : {"binary", "heat", "dot", "cosine"}, default="binary"
        Weights of the graph's edges.
    sigma : float or None, default=None
        Heat-kernel width in ``exp(-|x_i - x_j|^2 / sigma)``. None: the squared
        median neighbor distance.
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
        Distance between rows.
    preprocess : {"none", "standardize", "minmax", "unit_norm", "log1p"}, default="none"
        Applied while reading.
    fit_intercept : bool, default=True
        Whether the regressions have an intercept.
    coef_scale : {"none", "l1", "l2", "max"}, default="l2"
        Norm that each coefficient vector is divided by before the maximum is taken, so that
        every eigenvector has the same say; ``none`` is the paper's eq. (4).
    random_state : int, default=0
        Seed of everything random.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        ``max_k |a_kj|``, larger is better.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last.
    coef_ : scipy.sparse.csr_array of shape (n_clusters, n_features), float64
        Coefficients ``a_k`` for eigenvectors of norm one, not scaled.
    n_active_ : ndarray of shape (n_clusters,), int
        Size of the active set at which each path ended.
    n_clusters_ : int
        Number of eigenvectors that were used.
    eigenvalues_ : ndarray of shape (n_clusters,), float64
        Of ``L y = lambda D y``, ascending, without the trivial one.
    spectrum_ : ndarray of shape (n_computed,), float64
        With "auto", all eigenvalues that the number was chosen from; else as ``eigenvalues_``.
    largest_violation_ : ndarray of shape (n_clusters,), float64
        Only where the Gram matrix of all features does not fit ``memory_limit``: the certificate
        of the paths, the most by which any feature's correlation exceeds lambda at any knot, as
        a share of the largest at the start.
    n_screened_ : ndarray of shape (n_rounds,), int
        There too: how many features were candidates in each round.
    n_connected_components_ : int
        Of the graph. With more than one, any rotation of the null space would be as good.

    See Also
    --------
    LaplacianScore : Scores each feature on its own.

    Notes
    -----
    Implements table 1 of [1]_. Paths are LARS with the lasso modification, stopped when the
    active set first has ``n_features_to_select`` features. Cost beyond the graph: one pass; for
    wide data a few, see `n_screened_`.
    The order of features depends on ``n_features_to_select``, as in the paper: `ranking_` is that
    of this fit. A path to fewer features is the beginning of this one, so ``support(m)`` is what a
    fit with m features would select, for every m up to ``n_features_to_select`` and 500; for
    other m it is the first m of `ranking_`.

    References
    ----------
    .. [1] D. Cai, C. Zhang, X. He, "Unsupervised feature selection for multi-cluster data",
       KDD 2010, doi:10.1145/1835804.1835848.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import MCFS
    >>> MCFS(n_features_to_select=2, n_clusters=3).fit_transform(load_iris().data).shape
    (150, 2)
    """

    def __init__(
        self,
        n_features_to_select: int | None = None,
        *,
        n_clusters: int | str = 8,
        n_neighbors: int = 5,
        weight: str = "binary",
        sigma: float | None = None,
        metric: str = "euclidean",
        preprocess: str = "none",
        fit_intercept: bool = True,
        coef_scale: str = "l2",
        random_state: int = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        self.n_features_to_select = n_features_to_select
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.weight = weight
        self.sigma = sigma
        self.metric = metric
        self.preprocess = preprocess
        self.fit_intercept = fit_intercept
        self.coef_scale = coef_scale
        self.random_state = random_state
        self.memory_limit = memory_limit

    def _score(self, blocks: RowBlocks, n_features_to_select: int) -> FeatureScores:
        graph = knn_graph(
            blocks,
            self.n_neighbors,
            metric=self.metric,
            memory_limit=self.memory_limit,
            random_state=self.random_state,
        )
        W = affinity(graph, weight=self.weight, sigma=self.sigma, blocks=blocks)
        spectral = spectral_embedding(
            W,
            self.n_clusters,
            random_state=self.random_state,
            memory_limit=self.memory_limit,
            scratch=blocks.scratch.child("spectral"),
            chunk_rows=blocks.rows,
        )
        result = mcfs_scores(
            blocks,
            spectral,
            n_features_to_select,
            fit_intercept=self.fit_intercept,
            coef_scale=self.coef_scale,
            memory_limit=self.memory_limit,
        )
        result.details["n_clusters"] = len(spectral.eigenvalues)
        result.details["eigenvalues"] = spectral.eigenvalues
        result.details["spectrum"] = spectral.spectrum
        result.details["n_connected_components"] = spectral.n_connected_components
        return result
