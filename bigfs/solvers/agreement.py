"""Agreement of selections: Nogueira's measure, pairs of disjoint samples, rankings and a bound.

A selection is a row of a boolean array with a column for each feature. Adjacent selections, rows
2i and 2i + 1, form a pair: they come from two disjoint samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_LEVEL = 0.975
# Agreement is at most 1, and for two selections of few among many features at least -1.
_LOWEST, _HIGHEST = -1.0, 1.0


@dataclass(frozen=True)
class Agreement:
    """A measure of agreement: 1 for equal selections, 0 for agreement by chance.

    Attributes
    ----------
    value : float
    low, high : float
        Limits of its 95 % interval.
    """

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, half_width: float) -> Agreement:
        """Return an agreement with the interval ``value +- half_width``, clipped to [-1, 1]."""
        low, high = max(_LOWEST, value - half_width), min(_HIGHEST, value + half_width)
        return cls(float(value), float(low), float(high))


def agreement_of_all(masks: np.ndarray) -> Agreement:
    """Return Nogueira's agreement of several selections.

    The agreement is conditional on the data that the selections come from: samples of the same
    rows agree more than independent samples would.

    Parameters
    ----------
    masks : ndarray of shape (n_selections, n_features), bool

    Returns
    -------
    agreement : Agreement
        1 with an interval of zero width if all features or none are selected every time.

    Notes
    -----
    With B selections, p_j the share of them that contain feature j, k_i their sizes and k the mean
    size: Phi = 1 - mean_j [B/(B-1) p_j (1-p_j)] / D with D = (k/d)(1 - k/d), and Var(Phi) =
    (4/B^2) sum_i (phi_i - mean phi)^2 with phi_i = (1/D) [mean_j z_ij p_j - k_i k/d^2 +
    (Phi/2) (2 k_i k/d^2 - k_i/d - k/d + 1)]. Nogueira, Sechidis, Brown (2018), "On the stability
    of feature selection algorithms", JMLR 18.
    """
    n, d = masks.shape
    p, sizes = masks.mean(axis=0), masks.sum(axis=1)
    k = float(sizes.mean())
    chance = k / d * (1 - k / d)
    if chance == 0:
        return Agreement(1.0, 1.0, 1.0)
    value = 1 - n / (n - 1) * float((p * (1 - p)).mean()) / chance
    each = masks @ p / d - sizes * k / d**2
    each += value / 2 * (2 * sizes * k / d**2 - sizes / d - k / d + 1)
    each /= chance
    variance = 4 / n**2 * float(((each - each.mean()) ** 2).sum())
    return Agreement.around(value, 1.959964 * variance**0.5)


def agreement_of_pairs(masks: np.ndarray) -> np.ndarray:
    """Return the agreement within each pair: Nogueira's measure of two selections.

    Parameters
    ----------
    masks : ndarray of shape (2 * n_pairs, n_features), bool

    Returns
    -------
    agreements : ndarray of shape (n_pairs,), float64
    """
    first, second = masks[::2], masks[1::2]
    d = masks.shape[1]
    k = (first.sum(axis=1) + second.sum(axis=1)) / 2
    # Half the number of features that only one of the two selections has: the unbiased variance of
    # each of these over the two selections is 1/2.
    apart = (first != second).sum(axis=1) / 2
    chance = k / d * (1 - k / d)  # 0 if all or no features are selected; agreement is then 1
    return 1 - apart / d / np.where(chance > 0, chance, 1.0)


def step_of(n_selected: float, n_features: int) -> float:
    """Return the change of the agreement of two selections per additional common feature."""
    varying = n_selected * (1 - n_selected / n_features)
    return 1 / varying if varying > 0 else 0.0


def stability_of(agreements: np.ndarray, shared_rows: float, step: float) -> Agreement:
    """Return the mean agreement of pairs, with an interval for new data from the same source.

    The mean is an unbiased estimate of the agreement of selections on two independent samples.

    Parameters
    ----------
    agreements : ndarray of shape (n_pairs,)
    shared_rows : float
        The share of the rows that a pair uses, if different pairs use the same rows; 0 if every
        row is used once.
    step : float
        Resolution of the agreements, from `step_of`.

    Notes
    -----
    The half width is t s sqrt(1/B + shared_rows/2), with s the standard deviation over B pairs and
    t Student's quantile. Agreements are discrete: step^2/12 is added to the observed variance in
    s^2, because a few pairs that happen to be equal would otherwise give an interval of zero
    width. The term shared_rows/2 is for pairs that are not independent, like that of Nadeau and
    Bengio (2003) for repeated splits: without it the interval covers only the uncertainty given
    these rows, and contains the true value in 4 of 10 data sets if pairs are halves. The factor 1/2
    was chosen on simulated data. The deviation cannot be estimated from a single pair: the
    interval is then [-1, 1].
    """
    n = len(agreements)
    if n == 1:
        return Agreement(float(agreements[0]), _LOWEST, _HIGHEST)
    half = _reach(agreements, step) * (1 / n + shared_rows / 2) ** 0.5
    return Agreement.around(float(agreements.mean()), half)


def _reach(agreements: np.ndarray, step: float) -> float:
    """Return t s for discrete agreements, as defined in `stability_of`."""
    from scipy.special import stdtrit

    variance = float(agreements.var(ddof=1)) + step**2 / 12
    return float(stdtrit(len(agreements) - 1, _LEVEL)) * variance**0.5


def rarely_selected_bound(n_selected: float, n_features: int, threshold: float) -> float:
    """Return an upper bound of the number of rarely selected features above a threshold.

    The bound is q^2 / ((2t - 1) d): the largest expected number, over data sets, of features with
    a frequency of at least t that a single fit selects with a probability of at most q/d (Shah,
    Samworth 2013). It is uninformative if it is not below the number of features with a frequency
    of at least t.

    Parameters
    ----------
    n_selected : float
        q, the mean number of features that a fit selects.
    n_features : int
    threshold : float
        t, above 1/2.
    """
    return n_selected**2 / ((2 * threshold - 1) * n_features)


def consensus_ranking(
    frequencies: np.ndarray, scores: np.ndarray, rankings: np.ndarray
) -> np.ndarray:
    """Return the features sorted by frequency, ties by mean score, then mean rank, then index.

    Parameters
    ----------
    frequencies, scores : ndarray of shape (n_features,)
    rankings : ndarray of shape (n_selections, n_features), int
        Ranking of each fit, best first.

    Returns
    -------
    ranking : ndarray of shape (n_features,), int64
        Best first.
    """
    ranks = np.zeros(len(scores), dtype=np.int64)
    for ranking in rankings:
        ranks[ranking] += np.arange(len(ranking))
    return np.lexsort((ranks, -scores, -frequencies)).astype(np.int64)


def difference_limit(agreements: np.ndarray, step: float) -> float:
    """Return the agreement below which that of one further pair falls in 2.5 % of all cases.

    This is the prediction limit mean - t s sqrt(1 + 1/B), with s as in `stability_of`; -1 if there
    is only one pair.
    """
    n = len(agreements)
    if n == 1:
        return _LOWEST
    half = _reach(agreements, step) * (1 + 1 / n) ** 0.5
    return max(_LOWEST, float(agreements.mean()) - half)
