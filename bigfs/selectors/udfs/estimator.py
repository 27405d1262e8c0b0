"""The estimator of UDFS."""

from __future__ import annotations

from bigfs.selectors.base import SeededSelector


class UDFS(SeededSelector):
    """Unsupervised discriminative feature selection.

    Finds an orthonormal projection under which each neighborhood has little scatter that a linear
    map could not explain, with a penalty that sets whole rows of the projection to zero.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        Number of columns of the projection: the expected number of clusters. At most n_features.
    gamma : float or None, default=None
        Weight of the l2,1-norm, per row of X. None: determined by ``sparsity``.
    sparsity : float, default=0.03
        The weight as a share of the mean of M's diagonal, which is the cost of a single feature.
        It depends neither on the number of rows nor on the number of features.
    ridge : float, default=0.3
        The paper's lambda, in squared units.
    unit : {"rms", "none"}, default="rms"
        Unit of ``ridge``. "rms": ridge applies to X divided by the root mean squared distance of
        its rows from their mean. "none": ridge applies to X as it is, and gamma is the weight for
        all rows, as in the paper.
    n_neighbors : int, default=5
        Number of neighbors of each row in its neighborhood, in addition to the row itself.
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading; the authors' code scales features to [0, 1].

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Norms of the rows of B, larger is better. Constant features get the lowest score.
    coef_ : ndarray of shape (n_features, n_clusters), float64
        B, the paper's W; it has fewer columns if fewer features vary.
    n_iter_ : int
        Number of iterations.
    converged_ : bool
        True if the objective converged within ``tol``.
    objective_ : ndarray of shape (n_iter,), float64
        Objective, eq. (11), after each iteration.
    gamma_ : float
        The weight that was used, for all rows.
    unit_ : float
        Divisor of X to which ``ridge`` refers; 1 with ``unit`` "none".
    n_clusters_ : int
        With "auto", the chosen number.
    spectrum_ : ndarray, float64
        With "auto", the eigenvalues of the graph by which the number was chosen.

    Notes
    -----
    Solves the problem of section 2 of [1]_ (its X is our X'), with S_i selecting row i and its
    neighbors, H centering them and ``Z_i = H S_i'X``::

        min tr(B'MB) + gamma |B|_2,1,  B'B = I
        M = X'(sum_i S_i H (Z_i Z_i' + lambda I)^-1 H S_i')X
          = sum_i Z_i'(Z_i Z_i' + lambda I)^-1 Z_i

    by its algorithm 1: the columns of B are the eigenvectors of the smallest eigenvalues of
    ``M + gamma D``, ``D = diag(1 / (2 |b_j|))``, starting with the identity for D. The objective
    never rises. Constant features, which cost nothing and carry no information, are excluded.
    Other features with little variance cost little and are ranked first unless all features are
    scaled alike. The paper has no defaults: it tunes gamma and the ridge over
    {1e-6, 1e-4, ..., 1e6} using the labels, and comparisons with it should do the same. Of nine
    pairs of ridge and sparsity, the defaults are the best that do not fail on any of 14 data sets.
    None of the pairs is as good on their mean as random features (``tests/bench/README.md``),
    because the method prefers features with little variance.

    Cost beyond the graph: M is summed in one edge pass (each block is read once, and again by the
    blocks whose rows have neighbors in it), ``(n_neighbors + 1) n_samples n_features^2``
    products; then an eigenproblem of size n_features per iteration on the client. If the null
    space of M has more than n_clusters dimensions, ``n_samples - 1 + n_clusters < n_features``,
    any basis in it solves the first problem. The iteration then starts from the root mean square
    of all these bases, and the client holds the rows instead of M (unless gamma is 0, when they
    solve every problem).

    References
    ----------
    .. [1] Y. Yang, H. T. Shen, Z. Ma, Z. Huang, X. Zhou, "l2,1-norm regularized discriminative
       feature selection for unsupervised learning", IJCAI 2011,
       doi:10.5591/978-1-57735-516-8/IJCAI11-267.
    """

    n_clusters: int | str = 8
    gamma: float | None = None
    sparsity: float = 0.03
    ridge: float = 0.3
    unit: str = "rms"
    n_neighbors: int = 5
    metric: str = "euclidean"
    representation: str = "auto"
    max_iter: int = 30
    tol: float = 1e-5
