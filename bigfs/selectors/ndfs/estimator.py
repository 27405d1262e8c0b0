"""The estimator of NDFS."""

from __future__ import annotations

from typing import Any

from bigfs.selectors.base import GraphSelector


class NDFS(GraphSelector):
    """Non-negative discriminative feature selection.

    Clusters the rows on their neighbor graph with indicators that are non-negative and nearly
    orthogonal, and at the same time regresses the indicators on the features with a penalty that
    sets entire rows of the coefficients to zero. Features with large rows are kept.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        Number of clusters c, approximately the number of groups in the data. "auto" chooses it at
        the last clear gap of the graph's eigenvalues, or 8 or more if no gap is clear
        (`bigfs.spectral.choice.suggest_n_clusters`); it needs ``init`` "spectral". Too few
        clusters do more harm than too many (``tests/bench/README.md``).
    alpha : float, default=1.0
        Weight of the regression relative to the smoothness on the graph.
    beta : float or None, default=None
        Weight of the l2,1-norm. None: it is determined by ``sparsity``. A given beta refers to the
        ``unit`` and should grow as ``sqrt(n_samples)``.
    sparsity : float, default=0.2
        The weight as a share of ``2 max_j |x_j'F|``, with the start F and centered features; for
        larger weights B is zero. It depends neither on the unit of X nor on the number of rows.
    unit : {"rms", "none"}, default="rms"
        "rms": a given beta applies to X divided by the root of the mean squared distance of its
        rows from their mean, and the regression has an intercept, so that neither a factor nor a
        shift of the features matters. "none": X is used as it is and there is no intercept, as in
        the paper.
    gamma : float, default=10.0
        Weight of orthogonality; 1e8 in the paper. See Notes.
    weight : {"heat", "binary", "dot", "cosine"}, default="heat"
        Weights of the graph's edges.
    sigma : float, "median" or None, default=None
        Heat-kernel width in ``exp(-|x_i - x_j|^2 / sigma)`` (the paper's sigma squared). None gives
        each edge its own width, ``max(s_i, s_j)^2`` with s the distance to the last neighbor.
    update : {"safe", "printed"}, default="safe"
        "safe": an update that never increases the objective. "printed": the paper's update (15),
        with its denominator clamped and the columns of F normalized. See Notes.
    init : "spectral", str or array-like, default="spectral"
        Initial F: "spectral" for k-means on the spectral embedding, best of 20 restarts; or labels
        of shape (n_samples,), whole numbers below ``n_clusters``, or a file of them; or F itself,
        used as it is.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Norms of the rows of B, larger is better; zero for a constant feature, whose row acts as an
        intercept.
    labels_ : ndarray (zarr array if X was stored) of shape (n_samples,), int32
        Column of the largest entry of each row of F.
    coef_ : ndarray of shape (n_features, n_clusters), float64
        B, the paper's W.
    beta_ : float
        The weight that was used, for X as it was read.
    unit_ : float
        Number that X would have to be divided by for ``beta`` to apply; 1 with ``unit`` "none".
    n_iter_ : int
        Number of iterations.
    objective_ : ndarray of shape (n_iter,), float64
        Eq. (10) after each iteration.
    objective_parts_ : ndarray of shape (n_iter, 3), float64
        Its parts: smoothness on the graph, regression with its penalty, orthogonality.
    orthogonality_ : ndarray of shape (n_iter,), float64
        ``|F'F - I|`` after each iteration.
    movement_ : ndarray of shape (n_iter,), float64
        Change of F in each iteration, ``|F_t - F_t-1|``.
    distance_from_start_ : float
        ``|F - F_start|``.
    n_labels_changed_ : int
        Number of rows whose label differs from that of the start.
    solver_ : {"cholesky", "woodbury", "cg"}
        Solver of the regressions.
    n_passes_ : int
        Number of passes over X, without those for the graph and the start.
    n_clusters_ : int
        Number of columns of F.
    spectrum_ : ndarray, float64
        Eigenvalues of the graph, ascending, that the start was computed from and "auto" chose from;
        not set if the start was given.

    See Also
    --------
    MCFS : The same graph, but eigenvectors of either sign and one regression for each.

    Notes
    -----
    Implements algorithm 1 of [1]_ (its X is our X', its W our B)::

        min tr(F'LF) + alpha (|XB - F|^2 + beta |B|_2,1) + gamma/2 |F'F - I|^2,  F >= 0

    With ``unit`` "rms", X and F are centered in the regression, which is equivalent to an intercept
    without a penalty. Delta is computed from the B of the same iteration; the norms of its rows are
    smoothed by a millionth of the scale of B. The denominator of the printed update is clamped so
    that an entry grows at most tenfold in one iteration. Delta starts as the identity, scaled so
    that it does not depend on the unit of X and, with ``sparsity``, on the number of rows. Among
    values from 0.003 to 0.5, the default of ``sparsity`` has the largest mean of NMI minus 1-NN
    error over 13 data sets (``tests/bench/README.md``).

    The paper sets gamma to 1e8. Then F becomes hard indicators of its start within 20
    iterations, no label ever changes, and alpha has hardly any effect. With the safe update and
    gamma 10, F stays nearly orthogonal but can follow the regression that alpha weights. By the
    paper's protocol (``pipelines/paper/ndfs.yaml``) this gave the best results: on five draws from
    MNIST a mean ACC of 58.8 and NMI of 52.6, compared to 58.1 and 52.0 with gamma 1, 57.3 and 52.2
    with gamma 100, and 57.1 and 52.1 with eq. (15) and gamma 1e8. On UMIST and AT&T the results of
    all of these, and of a gamma that increases from 1 to 100 or 1e8, are closer together (NMI 71.9
    to 73.2 and 82.8 to 83.4). The start matters most: clusters of the spectral embedding agree far
    better with known classes than those of k-means on X (NMI 84 compared to 64 on UMIST).

    Cost: each iteration is a pass, but blocks that fit into the workers' memory are read only once;
    F is stored by row blocks. The client solves the regressions. If a worker can fold matrices
    ``X'X`` and the client can factorize one, they need one more pass, for ``X'X`` (``solver_``
    "cholesky"). If there are fewer rows than features, the client holds X and three
    n_samples x n_samples matrices, if these fit into memory ("woodbury"). If neither fits,
    conjugate gradients need up to 500 passes for each of the two regressions of an iteration
    ("cg"); a larger ``memory_limit`` avoids them.

    References
    ----------
    .. [1] Z. Li, Y. Yang, J. Liu, X. Zhou, H. Lu, "Unsupervised feature selection using
       nonnegative spectral analysis", AAAI 2012.
    """

    n_clusters: int | str = 8
    alpha: float = 1.0
    beta: float | None = None
    sparsity: float = 0.2
    unit: str = "rms"
    gamma: float = 10.0
    weight: str = "heat"
    update: str = "safe"
    init: Any = "spectral"
    max_iter: int = 30
    tol: float = 1e-5
