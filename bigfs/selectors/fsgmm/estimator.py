"""FSGMM: a mixture of Gaussians that learns which features tell its components apart."""

from __future__ import annotations

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.units import parse_bytes
from bigfs.selectors.base import BaseSelector
from bigfs.selectors.costs import fsgmm_parameter_bytes
from bigfs.selectors.fsgmm.iteration import Columns, State, begin, fit, load, write_labels
from bigfs.selectors.q_alpha.estimator import check_iteration
from bigfs.solvers.saliency import information
from bigfs.stages.scores import FeatureScores
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch


def fsgmm_scores(
    blocks: RowBlocks,
    n_clusters: int = 30,
    *,
    min_clusters: int = 1,
    max_iter: int = 500,
    tol: float = 1e-5,
    random_state: int = 0,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    out: Scratch | None = None,
    checkpoint: Location | None = None,
) -> FeatureScores:
    """Fit a mixture with feature saliency and return the saliencies.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    n_clusters : int, default=30
        Components at the start.
    min_clusters : int, default=1
        Components that stay.
    max_iter : int, default=500
        Most passes.
    tol : float, default=1e-5
        A number of components has settled when the message length changes by less than this
        share.
    random_state : int, default=0
        Seed of the rows that the components start at.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.
    out : Scratch or None, default=None
        Where the labels are stored. None: beside the data's small arrays.
    checkpoint : Path, ObjectPath or None, default=None
        A folder that outlives this process: a run that finds the state of one there continues.

    Returns
    -------
    result : FeatureScores
        Saliencies; constant features get 0 and rank last; details as the attributes of `FSGMM`,
        with ``labels`` as an `ArrayRef`.

    Raises
    ------
    InputError
        If a parameter is out of range.
    MemoryLimitError
        If a block, or the parameters of all components, do not fit.
    """
    limit = parse_bytes(memory_limit)
    check_fsgmm(n_clusters, min_clusters, blocks.n_samples, blocks.n_features, limit)
    check_iteration(max_iter, tol)
    shape = blocks.layout
    needed = shape.read_bytes + fsgmm_parameter_bytes(n_clusters, blocks.n_features)
    what = f"a block of {shape.rows:,} rows and {n_clusters} components"
    check_fits("fsgmm", needed, limit, what)
    out = out or blocks.scratch.child(blocks.scratch.unique("fsgmm"))
    folder = blocks.scratch.child(blocks.scratch.unique("mixtures"))
    labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
    moments = blocks.moments()
    kept = np.flatnonzero(moments.maximum > moments.minimum)
    if not len(kept):
        raise InputError(
            f"{blocks.source.uri}: all {blocks.n_features} features are constant. There is "
            "nothing to tell clusters apart by."
        )
    scaling = np.stack([moments.mean[kept], 1 / np.sqrt(moments.variance[kept])])
    columns = Columns(folder.put("kept", kept), folder.put("scaling", scaling))
    file = checkpoint / "state.npz" if checkpoint else None
    state = load(file) or begin(blocks, columns, n_clusters, random_state)
    state = fit(
        blocks, columns, state, folder,
        min_clusters=min_clusters, max_iter=max_iter, tol=tol, file=file,
    )  # fmt: skip
    write_labels(blocks, columns, state.best, folder, labels)
    folder.close()
    return _result(state, kept, blocks.n_features, labels)


def _result(state: State, kept: np.ndarray, n_features: int, labels: ArrayRef) -> FeatureScores:
    """Rank by saliency; equal ones, of which many are 0 or 1, by what the feature tells."""
    best = state.best
    scores, told = np.zeros(n_features), np.zeros(n_features)
    constant = np.ones(n_features, dtype=bool)
    constant[kept] = False
    scores[kept[best.live]] = best.saliency
    told[kept[best.live]] = information(best)
    details = {
        "n_clusters": len(best.weights),
        "n_iter": len(state.lengths),
        "message_length": state.best_length,
        "message_lengths": np.array(state.lengths),
        "sizes": np.array(state.sizes, dtype=np.int64),
        "information": told,
        "weights": best.weights,
        "labels": labels,
    }
    ranking = np.lexsort((np.arange(n_features), -told, -scores, constant)).astype(np.int64)
    return FeatureScores(scores, ranking, details)


def check_fsgmm(
    n_clusters: int, min_clusters: int, n_samples: int | None, n_features: int, limit: int
) -> None:
    """Raise unless the numbers of components are in range and their parameters fit."""
    most = "n_samples" if n_samples is None else f"{n_samples}"
    for name, value, above in (
        ("n_clusters", n_clusters, n_samples),
        ("min_clusters", min_clusters, n_clusters),
    ):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < 1 or (above is not None and value > above):
            top = most if name == "n_clusters" else f"n_clusters, which is {n_clusters}"
            raise InputError(f"{name} must be an int from 1 to {top}. Got {value!r}.")
    what = f"{n_clusters} components of {n_features:,} features"
    check_fits("fsgmm", fsgmm_parameter_bytes(n_clusters, n_features), limit, what)


class FSGMM(BaseSelector):
    """Simultaneous clustering and feature selection by a mixture with feature saliency.

    Each feature is drawn, with a probability that is its saliency, from a Gaussian of the row's
    component, and otherwise from one that all components share. Too small components, and
    features that need no component, drop out while the mixture is fitted.

    Parameters
    ----------
    n_features_to_select : int or None, default=None
        How many features to keep; None keeps half of them.
    n_clusters : int, default=30
        Components at the start: well above the number of clusters expected.
    min_clusters : int, default=1
        Fewest components tried. With ``n_clusters`` itself the number is fixed.
    max_iter : int, default=500
        Most passes over the data.
    tol : float, default=1e-5
        A number of components has settled when the message length changes by less than this
        share.
    preprocess : {"none", "standardize", "rescale", "minmax", "unit_norm", "log1p"}, \
default="none"
        Applied while reading. The scale of a feature makes no difference.
    random_state : int, default=0
        Seed of the rows that the components start at.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Saliency of each feature, in [0, 1]; constant features get 0.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first. Equal saliencies are ordered by ``information_``, then by
        index; constant features come last.
    information_ : ndarray of shape (n_features,), float64
        Mean divergence of the components' densities of a feature from that of all rows, in nats.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
        Most likely component of each row.
    n_clusters_ : int
        Components of the mixture of least message length.
    weights_ : ndarray of shape (n_clusters,), float64
        Their weights.
    message_length_ : float
        Of that mixture, in nats.
    message_lengths_, sizes_ : ndarray of shape (n_iter,)
        Message length and number of components at each pass.
    n_iter_ : int
        Passes of EM.

    Notes
    -----
    The algorithm of sections 3 and 4 of [1]_ (table 1: EM for the minimum message length
    criterion, eq. 15). E-step, with p and q Gaussian::

        a_ijl = rho_l p(x_il | theta_jl),  b_ijl = (1 - rho_l) q(x_il | lambda_l)
        w_ij ~ alpha_j prod_l (a_ijl + b_ijl),  u_ijl = w_ij a_ijl / (a_ijl + b_ijl),  v = w - u

    M-step: theta and lambda are the means and variances under u and v, and with R = S = 2
    parameters of a Gaussian, d features and k components::

        alpha_j ~ max(sum_i w_ij - d R / 2, 0)
        rho_l = max(sum u - k R / 2, 0) / (max(sum u - k R / 2, 0) + max(sum v - S / 2, 0))

    When the message length has settled the smallest component is removed, down to
    ``min_clusters``, and the mixture of least message length wins. Differs from the paper in:
    d counts the features whose saliency is not zero; of several components that would vanish in
    one step only the weakest does, as all would at once where d is near n / k; a variance is at
    least 1e-4 of the feature's. One pass over X per step of EM and one for the labels; in each
    step ``n_samples n_features k`` exponentials. A task holds a block, the parameters
    (k x n_features) and the relevances of a few rows.

    References
    ----------
    .. [1] M. H. C. Law, M. A. T. Figueiredo, A. K. Jain, "Simultaneous feature selection and
       clustering using mixture models", IEEE Transactions on Pattern Analysis and Machine
       Intelligence 26 (9), 2004, doi:10.1109/TPAMI.2004.71.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import FSGMM
    >>> FSGMM(n_features_to_select=2, n_clusters=6).fit_transform(load_iris().data).shape
    (150, 2)
    """

    def __init__(
        self,
        n_features_to_select: int | None = None,
        *,
        n_clusters: int = 30,
        min_clusters: int = 1,
        max_iter: int = 500,
        tol: float = 1e-5,
        preprocess: str = "none",
        random_state: int = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        self.n_features_to_select = n_features_to_select
        self.n_clusters = n_clusters
        self.min_clusters = min_clusters
        self.max_iter = max_iter
        self.tol = tol
        self.preprocess = preprocess
        self.random_state = random_state
        self.memory_limit = memory_limit

    def _score(self, blocks: RowBlocks, n_features_to_select: int) -> FeatureScores:
        return fsgmm_scores(
            blocks,
            self.n_clusters,
            min_clusters=self.min_clusters,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=self.random_state,
            memory_limit=self.memory_limit,
        )
