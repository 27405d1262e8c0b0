"""QAlpha: feature weights under which the data have the clearest spectrum."""

from __future__ import annotations

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.threads import single_thread
from bigfs.core.units import parse_bytes
from bigfs.selectors.base import BaseSelector
from bigfs.selectors.costs import QALPHA_MATRICES
from bigfs.selectors.eigengap import chosen_n_clusters, known_n_clusters
from bigfs.solvers.qalpha import q_alpha
from bigfs.stages.scores import FeatureScores


def qalpha_scores(
    blocks: RowBlocks,
    n_clusters: int | str,
    *,
    max_iter: int = 100,
    tol: float = 1e-8,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
) -> FeatureScores:
    """Return the Q-alpha weight of every feature, from one pass.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    n_clusters : int or "auto"
        Leading eigenvalues that count, in [1, n_features].
    max_iter : int, default=100
    tol : float, default=1e-8
        Stop when no weight changes by more.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.

    Returns
    -------
    result : FeatureScores
        Constant features get the lowest score and rank last; details as the attributes of `QAlpha`.

    Raises
    ------
    InputError
        If a parameter is out of range.
    MemoryLimitError
        If the matrices of n_features x n_features do not fit.
    """
    check_qalpha(known_n_clusters(n_clusters), blocks.n_features, parse_bytes(memory_limit))
    check_iteration(max_iter, tol)
    n_clusters, gap = chosen_n_clusters(
        n_clusters, blocks, random_state=0, memory_limit=memory_limit
    )
    found = blocks.gram()
    size = np.sqrt(found.gram.diagonal())
    varies = np.flatnonzero(size > 0)
    scores = np.zeros(blocks.n_features)
    if not len(varies):
        return FeatureScores.from_scores(
            scores, constant=size == 0, n_iter=0, converged=True, objective=np.empty(0), **gap
        )
    gram = found.gram[np.ix_(varies, varies)]
    gram /= size[varies]
    gram /= size[varies][:, None]
    with single_thread():
        result = q_alpha(gram, n_clusters, max_iter=max_iter, tol=tol)
    scores[varies] = result.alpha
    return FeatureScores.from_scores(
        scores,
        constant=size == 0,
        n_iter=len(result.objective),
        converged=result.converged,
        objective=result.objective,
        **gap,
    )


def check_qalpha(n_clusters: int, n_features: int, limit: int) -> None:
    """Raise unless the number of clusters is in range and n_features^2 numbers fit."""
    whole = isinstance(n_clusters, (int, np.integer)) and not isinstance(n_clusters, bool)
    if not whole or n_clusters < 1:
        raise InputError(f"n_clusters must be an int of at least 1. Got {n_clusters!r}.")
    needed = 8 * QALPHA_MATRICES * n_features**2
    what = f"{QALPHA_MATRICES} matrices of {n_features:,} x {n_features:,} features"
    check_fits("q_alpha", needed, limit, what)


def check_iteration(max_iter: int, tol: float) -> None:
    """Raise InputError unless the iteration's parameters are in range."""
    whole = isinstance(max_iter, (int, np.integer)) and not isinstance(max_iter, bool)
    if not whole or max_iter < 1:
        raise InputError(f"max_iter must be an int of at least 1. Got {max_iter!r}.")
    if not isinstance(tol, (int, float)) or not 0 <= tol < 1:
        raise InputError(f"tol must be a number in [0, 1). Got {tol!r}.")


class QAlpha(BaseSelector):
    """Keep the features whose weighted outer products have the clearest clusters.

    Parameters
    ----------
    n_features_to_select : int or None, default=None
        How many features to keep; None keeps half of them.
    n_clusters : int or "auto", default=8
        How many leading eigenvalues of the samples' affinity count; at most the rank does.
    max_iter : int, default=100
        Most iterations.
    tol : float, default=1e-8
        Stop when no weight changes by more.
    preprocess : {"none", "standardize", "rescale", "minmax", "unit_norm", "log1p"}, \
default="none"
        Applied while reading. Columns are centered and scaled to norm one afterwards.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        The weight alpha of each feature, larger is better; together of norm one. Constant
        features get the lowest.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last.
    n_iter_ : int
        Iterations made.
    converged_ : bool
        Whether the weights settled within ``tol``.
    objective_ : ndarray of shape (n_iter,), float64
        The sum of squares that is maximized, as each iteration sees it.

    Notes
    -----
    The algorithm of section 4 of [1]_ (its standard power-embedded Q-alpha). With ``m_i`` the
    values of feature i, centered and of norm one, ``A = sum_i alpha_i m_i m_i'`` and Q of
    ``n_clusters`` orthonormal columns it maximizes ``tr(Q'A'A Q)`` by::

        G_ij = (m_i'm_j) (m_i'QQ'm_j),   alpha = leading eigenvector of G,   Q = qr(A Q)

    Where the paper starts from any Q, ours is that of the leading principal components: nothing
    is random. Weights that are not negative are favored but not enforced. Only inner products of
    features enter: cost is one pass over X for the Gram matrix, then ``O(n_features^3)`` once
    and ``O(n_features^2 n_clusters)`` per iteration on the client, in five matrices of
    n_features^2.

    References
    ----------
    .. [1] L. Wolf, A. Shashua, "Feature selection for unsupervised and supervised inference:
       the emergence of sparsity in a weight-based approach", Journal of Machine Learning
       Research 6, 2005.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import QAlpha
    >>> QAlpha(n_features_to_select=2, n_clusters=3).fit_transform(load_iris().data).shape
    (150, 2)
    """

    def __init__(
        self,
        n_features_to_select: int | None = None,
        *,
        n_clusters: int | str = 8,
        max_iter: int = 100,
        tol: float = 1e-8,
        preprocess: str = "none",
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        self.n_features_to_select = n_features_to_select
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.tol = tol
        self.preprocess = preprocess
        self.memory_limit = memory_limit

    def _score(self, blocks: RowBlocks, n_features_to_select: int) -> FeatureScores:
        return qalpha_scores(
            blocks,
            self.n_clusters,
            max_iter=self.max_iter,
            tol=self.tol,
            memory_limit=self.memory_limit,
        )
