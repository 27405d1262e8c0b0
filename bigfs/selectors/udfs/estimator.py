"""The estimator of UDFS."""

from __future__ import annotations

from bigfs.selectors.base import SeededSelector


class UDFS(SeededSelector):
    """Unsupervised discriminative feature selection.

    Looks for an orthonormal projection under which each neighborhood has little scatter that a
    linear map could not explain, with a penalty that empties whole rows of the projection.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        Columns of the projection: the number of clusters expected. At most n_features.
    gamma : float or None, default=None
        Weight of the l2,1-norm, per row. None: ``sparsity`` says it.
    sparsity : float, default=0.03
        The weight as a share of the mean of M's diagonal, what one feature costs. It depends
        neither on the number of rows nor on that of features.
    ridge : float, default=0.3
        The paper's lambda, in squared units.
    unit : {"rms", "none"}, default="rms"
        What ``ridge`` counts in: X divided by the root of the mean squared distance of its rows
        from their mean. "none": X as it is, and gamma for all rows, which is the paper's form.
    n_neighbors : int, default=5
        Neighbors of each row in its neighborhood, besides itself.
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading; the authors' code scales features to [0, 1].

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Norms of the rows of B, larger is better. Constant features get the lowest score.
    coef_ : ndarray of shape (n_features, n_clusters), float64
        B, the paper's W; fewer columns where fewer features vary.
    n_iter_ : int
        Iterations made.
    converged_ : bool
        Whether the objective settled within ``tol``.
    objective_ : ndarray of shape (n_iter,), float64
        Eq. (11) after each iteration.
    gamma_ : float
        The weight that was used, for all rows.
    unit_ : float
        What X would be divided by for ``ridge`` to hold; 1 with ``unit`` "none".
    n_clusters_ : int
        With "auto", the number that was chosen.
    spectrum_ : ndarray, float64
        With "auto", the eigenvalues of the graph that it was chosen among.

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
    who compares with it. Of nine pairs of ridge and sparsity the defaults are the best that fail on
    none of 14 sets, and none is as good on their mean as features drawn at random
    (``tests/bench/README.md``): that is the method, which prefers what has little variance.

    Cost beyond the graph: M is summed in one edge pass (each block is read once, and again by the
    blocks whose rows list rows in it), ``(n_neighbors + 1) n_samples n_features^2`` products; then
    an eigenproblem of n_features per iteration on the client. Where M vanishes on more than
    n_clusters dimensions, ``n_samples - 1 + n_clusters < n_features``, any basis of these solves
    the first problem: the iteration begins with the root mean square of all of them, and the
    client holds the rows instead of M (unless gamma is 0, where they solve every problem).

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
