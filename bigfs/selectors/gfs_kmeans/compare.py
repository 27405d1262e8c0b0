"""Comparison of clusterings in GFS-k-means by the cross-projected criterion.

Candidates are compared from one inverse. With T the covariance of all rows and ``A A'`` its part
between clusters, ``S_w = T - A A'``, so that ``tr(S_w^-1 S_b) = tr((I - G)^-1 G)``, where
``G = A' T^-1 A`` has a row for each cluster. Without feature f it is ``G - y y' / (T^-1)_ff``, with
y the row of ``T^-1 A`` of f.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from bigfs.core.units import MIB
from bigfs.selectors.lfs.kernels import Sweep
from bigfs.solvers.separability import DIGITS, ROUNDING, is_singular, pair_separability

# What candidates compared at a time take.
_TILE_BYTES = 8 * MIB
# Where clusters, and then the other features, leave at least this share of every variance
# unexplained, S_w is far from singular, and its inverse has more digits than count.
_CLEAR = 1e-6


class CandidateComparison:
    """Compares candidates with the present clustering; what they share is made once.

    Parameters
    ----------
    old : Sweep
        Of the present clustering alone.
    kept : ndarray of shape (n_kept,), int
        Its features.
    total : ndarray of shape (n_features, n_features), float64
        Covariance of all rows.
    """

    def __init__(self, old: Sweep, kept: np.ndarray, total: np.ndarray) -> None:
        self._old, self._kept, self._total = old, kept, total
        self._n, self._variances = old.counts[0].sum(), total.diagonal()[kept]
        self._first = _parts(old.counts[0], old.sums[0], kept, self._n)[None]

    @cached_property
    def _before(self) -> _Compared:
        known = self._n > len(self._kept)
        inverse = _inverse(self._total, self._kept) if known else None
        return _Compared(self._first, inverse, self._variances)

    @cached_property
    def _is_singular(self) -> bool:
        counts, sums = self._old.counts[0], self._old.sums[0]
        return is_singular(within(counts, sums, self._total), self._n, self._kept)

    def log_ratios(self, new: Sweep, dropped: np.ndarray) -> np.ndarray:
        """Return the logs of the criterion of new clusters over that of the old ones.

        Parameters
        ----------
        new : Sweep
            Of the candidates.
        dropped : ndarray of shape (n_candidates,), int
            Places in ``kept`` of the feature that each candidate lacks.

        Returns
        -------
        ratios : ndarray of shape (n_candidates,), float64
            0 of the same clusters; -inf where a criterion is not defined.
        """
        old, kept, total = self._old, self._kept, self._total
        ratios = np.zeros(len(dropped))
        changed = (new.counts != old.counts) | (new.sums != old.sums).any(axis=2)
        others = np.flatnonzero(changed.any(axis=1))
        if not len(others):
            return ratios
        dropping = dropped[others]

        def parts_of(some: np.ndarray) -> np.ndarray:
            """Return A' of some candidates: most of its rows are those of the old clusters."""
            parts = np.repeat(self._first, len(some), axis=0)
            at = np.nonzero(changed[some])
            moved = some[at[0]], at[1]
            parts[at] = _parts(new.counts[moved], new.sums[moved], kept, self._n)
            return parts

        # A covariance that is not singular is not so without a feature either.
        if self._before.is_clear.all():
            values = -self._before.log_criteria(dropping)
            together = max(1, _TILE_BYTES // self._first.nbytes)
            for begin in range(0, len(others), together):
                chosen = slice(begin, begin + together)
                some = others[chosen]
                after = self._before.replaced(parts_of(some), changed[some])
                values[chosen] += after.log_criteria(dropping[chosen])
                for i in (begin + np.flatnonzero(~after.is_clear)).tolist():
                    values[i] = log_ratio(old, new, int(others[i]), kept, int(dropping[i]), total)
        elif self._is_singular:
            rest = np.ones((len(others), len(kept)), dtype=bool)
            rest[np.arange(len(others)), dropping] = False
            values = ratios_of_traces(parts_of(others), rest, self._variances)
            values -= ratios_of_traces(self._first, rest, self._variances)
        else:
            values = np.array(
                [log_ratio(old, new, i, kept, int(dropped[i]), total) for i in others.tolist()]
            )
        known = np.isfinite(values)
        ratios[others] = np.where(known, np.round(np.where(known, values, 0.0), DIGITS), -np.inf)
        return ratios


def log_ratio(
    old: Sweep, new: Sweep, place: int, kept: np.ndarray, feature: int, total: np.ndarray
) -> float:
    """Return the log ratio of one candidate, from the covariances within the clusters."""
    subsets, n = (kept, np.delete(kept, feature)), old.counts[0].sum()
    clusters = [(old.counts[0], old.sums[0]), (new.counts[place], new.sums[place])]
    inner = [within(counts, sums, total) for counts, sums in clusters]
    use_trace = any(is_singular(matrix, n, subset) for matrix in inner for subset in subsets)
    values = [
        pair_separability(
            counts, sums / np.maximum(counts, 1)[:, None], matrix, *subsets, use_trace
        )
        for (counts, sums), matrix in zip(clusters, inner, strict=True)
    ]
    return float(values[1] - values[0])


def within(counts: np.ndarray, sums: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the pooled covariance within the clusters: that of all rows less that between."""
    means = sums / np.maximum(counts, 1)[:, None]
    weighted = means * (counts / counts.sum())[:, None]
    inner = np.asarray(total - weighted.T @ means)
    np.einsum("ii->i", inner)[:] = variances_within(counts, means, total.diagonal())
    return inner


def variances_within(counts: np.ndarray, means: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the diagonal of `within`, from means and the variances of all rows."""
    variances = np.asarray(total - (counts / counts.sum()) @ means**2)
    # Values that are equal within the clusters have no variance, whatever rounding leaves of it.
    variances[variances <= ROUNDING * total] = 0.0
    return variances


def _parts(counts: np.ndarray, sums: np.ndarray, kept: np.ndarray, n: float) -> np.ndarray:
    """Return rows of A', shape (n_rows, n_kept), of a cluster each: all rows have mean zero."""
    return np.asarray(sums[:, kept] / np.sqrt(np.maximum(counts, 1) * n)[:, None])


def ratios_of_traces(parts: np.ndarray, masks: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return logs of ratios of traces, eq. (5) of LFS, in all features and in some, added up.

    Parameters
    ----------
    parts : ndarray of shape (1 or n_masks, n_clusters, n_kept), float64
        A' of clusterings.
    masks : ndarray of shape (n_masks, n_kept), bool
    variances : ndarray of shape (n_kept,), float64
        Of all rows.
    """
    values = np.zeros(len(masks))
    between = np.einsum("cjf,cjf->cf", parts, parts)
    inner = variances - between
    inner[inner <= ROUNDING * variances] = 0.0
    for mask in (np.ones_like(masks), masks):
        extent = (inner * mask).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (between * mask).sum(axis=1) / np.where(extent > 0, extent, np.nan)
            values += np.log(ratio)
    return values


def _inverse(total: np.ndarray, kept: np.ndarray) -> np.ndarray | None:
    """Return ``T^-1`` in some features; None where Cholesky's pivots end."""
    from scipy.linalg.lapack import dpotrf, dpotri

    scale = 1 / np.sqrt(total.diagonal()[kept])
    factor, failed = dpotrf(total[np.ix_(kept, kept)] * scale * scale[:, None])
    if failed:
        return None
    upper = np.triu(dpotri(factor)[0])
    return np.asarray((upper + np.triu(upper, 1).T) * scale * scale[:, None])


class _Compared:
    """Clusterings that are valued from ``T^-1``.

    Parameters
    ----------
    parts : ndarray of shape (n_clusterings, n_clusters, n_kept), float64
        A' of each.
    inverse : ndarray of shape (n_kept, n_kept), float64, or None
        ``T^-1``; None where T is singular: then nothing is clear.
    variances : ndarray of shape (n_kept,), float64
        The diagonal of T.
    solved : ndarray of the shape of parts, or None, default=None
        ``A' T^-1``; None: not yet known.
    """

    def __init__(
        self,
        parts: np.ndarray,
        inverse: np.ndarray | None,
        variances: np.ndarray,
        solved: np.ndarray | None = None,
    ) -> None:
        self._inverse, self._variances = inverse, variances
        # Says for each clustering whether S_w is far from singular, by the diagonal of its inverse.
        self.is_clear = np.zeros(len(parts), dtype=bool)
        if inverse is None:
            return
        self._own = inverse.diagonal()
        self._solved = parts @ inverse if solved is None else solved
        self._grams = parts @ self._solved.transpose(0, 2, 1)
        self._middle = _middle(self._grams)
        inner = variances - np.einsum("cjf,cjf->cf", parts, parts)
        diagonal = self._own + np.einsum("cjf,cjf->cf", self._solved, self._middle @ self._solved)
        # The share of each variance that the other features do not explain is one over the product;
        # of a small difference of T and A A' few digits count.
        product = inner * diagonal
        clear = (inner >= _CLEAR * variances) & (product > 0) & (product <= 1 / _CLEAR)
        self.is_clear = clear.all(axis=1)

    def replaced(self, parts: np.ndarray, changed: np.ndarray) -> _Compared:
        """Return candidates of which only the changed clusters differ from this clustering."""
        assert self._inverse is not None
        solved = np.repeat(self._solved, len(parts), axis=0)
        solved[changed] = parts[changed] @ self._inverse
        return _Compared(parts, self._inverse, self._variances, solved)

    def log_criteria(self, dropped: np.ndarray) -> np.ndarray:
        """Return the logs of both criteria, without a feature and with it, added up."""
        y = self._solved[np.arange(len(dropped)) % len(self._solved), :, dropped]
        z = (self._middle @ y[:, :, None])[:, :, 0]
        every = np.einsum("cij,cji->c", self._middle, self._grams)
        # By Sherman and Morrison, of I - G with the feature's share added.
        length = np.einsum("ci,ci->c", y, z)
        less = length + np.einsum("ci,ci->c", z, (self._grams @ z[:, :, None])[:, :, 0])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(every) + np.log(every - less / (self._own[dropped] + length))


def _middle(grams: np.ndarray) -> np.ndarray:
    """Return ``(I - G)^-1`` of each G; NaN if one of them has none."""
    try:
        return np.linalg.inv(np.eye(grams.shape[-1]) - grams)
    except np.linalg.LinAlgError:
        return np.full_like(grams, np.nan)
