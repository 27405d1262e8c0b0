"""Methods ranked over several data sets: mean ranks, Friedman's test, Nemenyi's difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ALPHA = 0.05


@dataclass(frozen=True)
class Ranks:
    """Ranks of methods over several data sets, with their tests.

    Attributes
    ----------
    names : list of n_methods str
    mean_ranks : ndarray of shape (n_methods,), float64
        1 is the best; ties share their ranks.
    n_sets : int
    statistic : float
        Friedman's chi-square, corrected for ties.
    p_value : float
        Of Iman and Davenport's F, which is made of it: that methods differ by chance alone.
    critical_difference : float
        Nemenyi's: mean ranks of two methods that differ by less may do so by chance, at 5 % for
        all pairs together.

    Notes
    -----
    As in [1]_. With ``R_j`` the mean ranks of k methods on N sets::

        chi2 = 12 N / (k (k + 1)) (sum_j R_j^2 - k (k + 1)^2 / 4),
        F = (N - 1) chi2 / (N (k - 1) - chi2)  with k - 1 and (k - 1)(N - 1) degrees of freedom,
        CD = q sqrt(k (k + 1) / (6 N)),

    q the 0.95 quantile of the studentized range of k means over ``sqrt(2)``.

    References
    ----------
    .. [1] J. Demsar, "Statistical comparisons of classifiers over multiple data sets", Journal of
       Machine Learning Research 7, 2006.
    """

    names: list[str]
    mean_ranks: np.ndarray
    n_sets: int
    statistic: float
    p_value: float
    critical_difference: float

    @classmethod
    def of(cls, names: list[str], values: np.ndarray, *, larger_is_better: bool) -> Ranks:
        """Rank methods.

        Parameters
        ----------
        names : list of n_methods str
            At least two.
        values : ndarray of shape (n_sets, n_methods)
            At least two sets.
        larger_is_better : bool
        """
        from scipy.special import chdtrc, fdtrc
        from scipy.stats import rankdata, studentized_range

        n, k = values.shape
        ranks = rankdata(-values if larger_is_better else values, axis=1)
        means = ranks.mean(axis=0)
        spread = float(((means - (k + 1) / 2) ** 2).sum())
        # Without ties the sum of squares is n k (k + 1) (k - 1) / 12.
        squares = float(((ranks - (k + 1) / 2) ** 2).sum())
        statistic = n**2 * (k - 1) * spread / squares if squares else 0.0
        left = n * (k - 1) - statistic
        if left > 1e-9:
            F = (n - 1) * statistic / left
            p_value = float(fdtrc(k - 1, (k - 1) * (n - 1), F))
        else:  # the same order on all sets
            p_value = float(chdtrc(k - 1, statistic))
        q = float(studentized_range.ppf(1 - ALPHA, k, np.inf)) / np.sqrt(2)
        difference = q * float(np.sqrt(k * (k + 1) / (6 * n)))
        return cls(list(names), means, n, statistic, p_value, difference)

    def groups(self) -> list[list[str]]:
        """Return the largest groups of methods within the critical difference, best first."""
        order = np.argsort(self.mean_ranks, kind="stable")
        largest: list[list[str]] = []
        last = -1
        for i, first in enumerate(order):
            reach = self.mean_ranks[first] + self.critical_difference
            end = int((self.mean_ranks[order] <= reach).sum())
            if end > last and end > i + 1:
                largest.append([self.names[j] for j in order[i:end]])
            last = max(last, end)
        return largest
