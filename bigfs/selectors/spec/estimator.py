"""The estimators of SPEC and of the Laplacian score."""

from __future__ import annotations

from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.selectors.base import BaseSelector, NumberOfFeatures


class SPEC(BaseSelector):
    """Keep the features that vary slowly along the graph's spectrum.

    Parameters
    ----------
    ranking : {"phi1", "phi2", "phi3"}, default="phi2"
        Ranking function. See Notes.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Larger is better: ``phi1`` and ``phi2`` negated. Constant features get the lowest.

    Notes
    -----
    The functions of section 3.2 of [1]_, with ``h = D^1/2 f`` of norm one, ``Ln`` the normalized
    Laplacian, its eigenvalues rising and ``xi_1 = D^1/2 1`` of norm one::

        phi1 = h'Ln h
        phi2 = h'Ln h / (1 - (h'xi_1)^2)
        phi3 = sum_{j >= 2} (2 - lambda_j) (h'xi_j)^2

    Small is good for the first two (of the paper's cut-off functions of the spectrum, the
    identity), large for the third. ``phi2`` is the Laplacian score. No eigenvector is computed:
    over all of them ``phi3 = h'(2I - Ln)h - 2 (h'xi_1)^2 = (2 s - f'Lf) / f'Df`` with s the
    D-weighted squared deviations of f, free of cancellation. In a graph of several parts the
    eigenvalue 0 repeats; only ``xi_1`` is left out, so that what tells the parts apart counts
    with the full weight 2, whatever basis is taken of that eigenspace. ``phi1`` and ``phi3``
    change when a constant is added to a feature: ``phi3`` counts its spread against its mean.
    For features without a D-weighted mean all three give one order. The paper builds its graph
    of all pairs; ours is that of the nearest neighbors. A constant feature, of ``phi1 = 0``, is
    put last here. The paper names no default; ``phi2`` is ours, since a constant added to a
    feature does not change it: on seven sets, as they are and scaled to [0, 1], k-means on its
    features had the higher NMI than on those of ``phi3`` in 13 of 14 cases (USPS 47 against 21 %;
    tests/bench/bench_baselines.py). Cost beyond the graph: each block is read once, and again by
    the blocks that have edges into it.

    References
    ----------
    .. [1] Z. Zhao, H. Liu, "Spectral feature selection for supervised and unsupervised
       learning", ICML 2007, doi:10.1145/1273496.1273641.
    """

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        ranking: str = "phi2",
        n_neighbors: int = 5,
        weight: str = "binary",
        sigma: float | str | None = None,
        metric: str = "euclidean",
        representation: str = "auto",
        preprocess: str = "auto",
        missing: str = "error",
        redundancy: float | None = None,
        random_state: int | None = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())


class LaplacianScore(BaseSelector):
    """Keep the features that are smoothest on the neighbor graph.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        The Laplacian score, negated: larger is better. Constant features get the lowest.

    Notes
    -----
    Implements the score of section 3 of [1]_, ``f'Lf / f'Df`` after removing the D-weighted
    mean, with ``f'Lf`` summed as ``w_ij (f_i - f_j)^2`` over edges. Cost beyond the graph: each
    block is read once, and again by the blocks that have edges into it.

    References
    ----------
    .. [1] X. He, D. Cai, P. Niyogi, "Laplacian score for feature selection", NIPS 18, 2005.
    """

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        n_neighbors: int = 5,
        weight: str = "binary",
        sigma: float | str | None = None,
        metric: str = "euclidean",
        representation: str = "auto",
        preprocess: str = "auto",
        missing: str = "error",
        redundancy: float | None = None,
        random_state: int | None = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())
