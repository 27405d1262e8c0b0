"""The estimator of stability: fits any selector of bigfs to many samples of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config import Selection, validated
from bigfs.config.fields import fresh_seed
from bigfs.config.sections import Auto, StabilityConfig
from bigfs.core.errors import InputError
from bigfs.core.seeds import check_seed
from bigfs.selectors.base import BaseSelector
from bigfs.selectors.curves import curves_stage
from bigfs.selectors.registry import method_of
from bigfs.selectors.stability.fits import check_stability, stability_stage
from bigfs.stages.stability import Stability
from bigfs.stages.stage import Stage
from bigfs.store.scratch import Scratch


class StabilitySelection(BaseSelector, kw_only=False):
    """Keep the features that a selector selects most often on samples of the rows.

    The samples are drawn in pairs that share no row. The agreement of the two selections of a pair
    is an unbiased estimate of the agreement of selections on two independent samples.

    Parameters
    ----------
    selector : estimator
        A selector of bigfs. It is not fitted itself. Its parameters determine the number of
        features to keep and the treatment of NaN (``missing``). If the number is "auto", it is the
        median of the numbers that the fits choose from their own rows; with the criterion
        "stability" it is chosen from the agreement of the fits.
    n_pairs : int, default=25
        Number of pairs of samples; the selector is fitted twice as often.
    sample_size : int or None, default=None
        Number of rows of a sample. None: half of all rows. A fit has to fit into the memory of one
        worker.
    threshold : float, default=0.6
        Features selected with at least this frequency are called stable; must be above 1/2.
    random_state : int or None, default=0
        Seed of the samples and of the random numbers of the fits.

    Attributes
    ----------
    frequencies_ : ndarray of shape (n_features,), float64
        The share of the fits that select each feature.
    stability_ : float
        The mean agreement within pairs: 1 for equal selections, 0 for agreement by chance.
    stability_interval_ : ndarray of shape (2,), float64
        Its 95 % interval, for other data of the same source; (-1, 1) for one pair.
    agreement_ : float
        The agreement of all fits. Samples of the same rows agree more than independent ones do.
    ranking_ : ndarray of shape (n_features,), int64
        Features sorted by frequency, ties by mean score, then by mean rank.
    scores_ : ndarray of shape (n_features,), float64
        Mean scores over the fits.
    stable_features_ : ndarray of int64
        Indices of the features with a frequency of at least ``threshold``, ascending.
    bound_ : float
        Upper bound of the expected number of stable features that a fit selects with a probability
        below q/d. It is not informative if it is not less than the number of stable features.
    rankings_ : ndarray of shape (2 * n_pairs, n_features), int32
        Ranking of each fit, best first; rows 2i and 2i + 1 are a pair.
    sample_size_ : int
        Number of rows of a sample.
    n_features_to_select_ : int
        Number of features that are kept.
    curves_ : Curves
        Measures of larger and smaller selections on all rows, and how the number of features was
        chosen; only with "auto".

    Raises
    ------
    InputError
        If ``selector`` is not a selector of bigfs, a sample has more than half of the rows, or the
        selector cannot be fitted to a sample.
    MemoryLimitError
        If a fit does not fit into the selector's ``memory_limit``; the message names the largest
        sample that does.

    Notes
    -----
    With z_ij = 1 if fit i selects feature j, the frequency is p_j = mean_i z_ij. The agreement of B
    fits of m features is Phi = 1 - mean_j [B/(B-1) p_j (1-p_j)] / [(m/d)(1 - m/d)] [2]_; that of a
    pair is the same with B = 2. Frequencies are those of ``n_features_to_select`` features: a fit
    with m features may select others than ``support(m)``. ``get_support`` returns the m most
    frequent features, with ``redundancy`` without those that are redundant with more frequent ones.
    ``bound_`` is q^2 / ((2t-1) d) with q = m and t the threshold [1]_. It bounds the number of
    features that are rarely selected, which does not mean that they are irrelevant. Cost: one pass
    over X, then every fit is one task in one process; one more pass with "auto".

    References
    ----------
    .. [1] R. Shah, R. Samworth, "Variable selection with error control: another look at stability
       selection", J. R. Stat. Soc. B 75, 2013.
    .. [2] S. Nogueira, K. Sechidis, G. Brown, "On the stability of feature selection algorithms",
       JMLR 18, 2018.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import MaxVariance, StabilitySelection
    >>> selector = StabilitySelection(MaxVariance(n_features_to_select=2), n_pairs=5)
    >>> selector.fit(load_iris().data).frequencies_
    array([0.9, 0. , 1. , 0.1])
    """

    selector: Any
    n_pairs: int = 25
    sample_size: int | None = None
    threshold: float = 0.6
    random_state: int | None = 0
    verbose: int = 1

    def _selection(self, X: Any = None) -> Selection:
        """Return the settings of the fits of the selector."""
        if not isinstance(self.selector, BaseSelector):
            raise InputError(
                "StabilitySelection: selector must be a selector of bigfs, such as "
                f"bigfs.MCFS(20). Got {self.selector!r}."
            )
        if isinstance(self.selector, StabilitySelection):
            raise InputError(
                "StabilitySelection: selector must not be a StabilitySelection itself."
            )
        seed = fresh_seed(self.random_state)
        check_seed(seed)
        selection = self.selector._selection(X)
        return selection.model_copy(update={"random_state": int(seed)})

    def _policy(self) -> Any:
        """Return the selector's parameter for the treatment of NaN."""
        return getattr(self.selector, "missing", "error")

    def _n_wanted(self) -> Any:
        """Return the number of features requested of the selector.

        Raises
        ------
        InputError
            If the selector would find the number itself, so that it may differ between fits.
        """
        number, name = self.selector.n_features_to_select, type(self.selector).__name__
        if number is None and method_of(type(self.selector)).finds_number:
            raise InputError(
                f"StabilitySelection: {name} needs n_features_to_select: without it, the fits "
                "could keep different numbers of features."
            )
        return number

    def _stages(self, selection: Selection, blocks: RowBlocks) -> list[Stage]:
        """Return the stage of the fits, followed by that of the curves with "auto"."""
        given = {name: getattr(self, name) for name in StabilityConfig.model_fields}
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        settings = validated(StabilityConfig, plain, type(self).__name__, nested=False)
        check_stability(selection, settings, blocks.n_samples, blocks.n_features)
        size = settings.sample_size or blocks.n_samples // 2
        settings = settings.model_copy(update={"sample_size": size})
        stages = [stability_stage(selection, settings, quick=True)]
        if isinstance(selection.n_features_to_select, Auto):
            stages.append(curves_stage(selection, quick=True))
        return stages

    def _keep_details(self, details: dict[str, Any], scratch: Scratch | None) -> None:
        """Store the stability of the selection as attributes."""
        stability = Stability.from_details(details)
        value = stability.stability
        self.frequencies_, self.rankings_ = stability.frequencies, stability.rankings
        self.stability_ = value.value
        self.stability_interval_ = np.array([value.low, value.high])
        self.agreement_ = stability.agreement.value
        self.stable_features_ = stability.stable_features(self.threshold)
        self.bound_ = stability.bound(self.threshold)
        self.sample_size_ = stability.sample_size
        if "redundant_with" in details:
            self.redundant_with_ = details["redundant_with"]
