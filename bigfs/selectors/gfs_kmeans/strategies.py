"""Backward search of GFS-k-means on rows in memory: drops one or several features at a time.

Clusterings are compared by ``tr(S_w^-1 S_b)`` with cross-projection: the clusterings of two subsets
are both evaluated in both subsets, and the products are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks.lloyd import label_sums, lloyd
from bigfs.selectors.clusters import ROWS_PER_FEATURE, ClusterRule, SearchedRows, least_separate
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.sampled import SampledSearch, SearchState, batch_size
from bigfs.solvers.separability import (
    DIGITS,
    ROUNDING,
    feature_separability,
    is_singular,
    log_separability,
)
from bigfs.stages.scores import rank

# Number of covariance entries that are processed at a time.
TOGETHER = 2**18


@dataclass
class GlobalClusters(SearchState):
    """Clusters in one subset of the features, and the state of the search."""

    name = "gfs"

    mask: np.ndarray  # of shape (n_features,), bool: the features that are kept
    centers: np.ndarray  # of shape (n_clusters, n_features), float64: of the last clustering
    labels: np.ndarray  # of shape (n_rows,), int32
    dropped: np.ndarray  # of int64: the dropped features, in the order of dropping
    n_subsets: int = 1
    done: bool = False
    ratio: float = 0.0  # log ratio of the criterion to that of the previous clusters

    @classmethod
    def begin(cls, rows: SearchedRows, centers: np.ndarray, parameters: Any) -> GlobalClusters:
        """Return the state after clustering in all usable features."""
        at_most = parameters.max_iter, parameters.tol
        ends, labels = lloyd(rows.X, centers, rows.usable[None], *at_most)
        return cls(rows.usable, ends[0], labels[0], np.empty(0, np.int64))

    @property
    def finished(self) -> bool:
        """True if every candidate lowered the criterion, or only one feature is left."""
        return self.done or int(self.mask.sum()) == 1

    @property
    def note(self) -> str:
        """Number of remaining features, and the last ratio, as text."""
        return f"{int(self.mask.sum())} features, log ratio of the criterion {self.ratio:.3g}"

    def rule(self, rows: SearchedRows) -> ClusterRule:
        """Return the rule that labels all rows."""
        means, k = self._clusters(rows)[1], len(self.centers)
        return ClusterRule(
            rows.origin, means[None], self.mask[None], np.zeros(k, np.int64), np.arange(k),
            means, np.tile(self.mask, (k, 1)), np.ones(k),
        )  # fmt: skip

    def _clusters(self, rows: SearchedRows) -> tuple[np.ndarray, np.ndarray]:
        """Return counts and means of the clusters; the mean of an empty one is its center."""
        [counts], [sums], _ = label_sums(rows.X, self.labels[None], len(self.centers))
        means = sums / np.maximum(counts, 1)[:, None]
        return counts, np.where(counts[:, None] > 0, means, self.centers)

    def step(self, rows: SearchedRows, parameters: GFSKMeansParameters) -> None:
        """Drop the best candidate features, or stop if every candidate lowers the criterion."""
        kept, (counts, means) = np.flatnonzero(self.mask), self._clusters(rows)
        pooled = variances_within(counts, means, rows.variances)
        separability = feature_separability(counts, means, pooled)[kept]
        many = parameters.drops_many(len(self.mask))
        dropped: Any = least_separate(kept, separability) if many else kept[:, None]
        criterion = CrossProjection(rows, kept, counts, means, ROWS_PER_FEATURE if many else 1)
        # With several at a time, take the first acceptable group, which is the largest; with single
        # features, the best one.
        together = 1 if many else batch_size(len(rows.X), len(self.mask), len(means))
        values, best = np.full(len(dropped), -np.inf), -1
        for begin in range(0, len(dropped), together):
            some = slice(begin, begin + together)
            masks = np.tile(self.mask, (len(dropped[some]), 1))
            for mask, features in zip(masks, dropped[some], strict=True):
                mask[features] = False
            ends, labels = lloyd(rows.X, means, masks, parameters.max_iter, parameters.tol)
            values[some] = criterion.log_ratios(self.labels, labels, masks[:, kept])
            # Take the largest value; ties go to the feature with the lowest separability.
            before = best
            best = (
                begin if many else int(rank(values, np.zeros(len(values), bool), -separability)[0])
            )
            if best != before and (begin <= best < begin + together):
                chosen = ends[best - begin].copy(), labels[best - begin].copy()
            if many and values[best] >= 0:
                break
        if not values[best] >= 0:
            self.done = True
            return
        self.mask = self.mask.copy()
        self.mask[dropped[best]] = False
        self.centers, self.labels = chosen
        self.dropped = np.append(self.dropped, dropped[best])
        self.ratio = float(values[best])
        self.n_subsets += 1


class CrossProjection:
    """Compare candidate clusterings with the current one, in the features of the latter.

    Parameters
    ----------
    rows : SearchedRows
    kept : ndarray of int
        Indices of the current features.
    counts, means : ndarray of shape (n_clusters,), (n_clusters, n_features), float64
        Row counts and means of the current clusters.
    rows_per_feature : int
        With at most this many rows per feature, traces are compared instead.
    """

    def __init__(
        self,
        rows: SearchedRows,
        kept: np.ndarray,
        counts: np.ndarray,
        means: np.ndarray,
        rows_per_feature: int,
    ) -> None:
        self._rows, self._kept, self._counts, self._means = rows, kept, counts, means[:, kept]
        self._variances = rows.variances[kept]
        self._total: np.ndarray | None = None
        inner = variances_within(counts, self._means, self._variances)
        if len(rows.X) > rows_per_feature * len(kept):
            X = rows.X if len(kept) == rows.X.shape[1] else rows.X[:, kept]
            self._total = X.T @ X / len(X)
            inner = self._within(counts, self._means)
        self._old = inner

    def _within(self, counts: np.ndarray, means: np.ndarray) -> np.ndarray:
        """Return the pooled covariances within clusters: that of all rows minus that between."""
        assert self._total is not None
        weighted = means * (counts / len(self._rows.X))[..., None]
        inner = self._total - np.swapaxes(weighted, -1, -2) @ means
        np.einsum("...ii->...i", inner)[:] = variances_within(counts, means, self._variances)
        return inner

    def log_ratios(self, old: np.ndarray, new: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Return the log ratios of the criterion of the new clusters to that of the old ones.

        Parameters
        ----------
        old : ndarray of shape (n_rows,), int
            Current labels.
        new : ndarray of shape (n_candidates, n_rows), int
        masks : ndarray of shape (n_candidates, n_kept), bool

        Returns
        -------
        ratios : ndarray of shape (n_candidates,), float64
            0 for the same clusters; -inf if a criterion is not defined.
        """
        ratios, others = np.zeros(len(new)), np.flatnonzero((new != old).any(axis=1))
        side = len(self._kept) + len(self._counts)
        step = max(1, TOGETHER // (len(self._kept) * side))
        for begin in range(0, len(others), step):
            some = others[begin : begin + step]
            ratios[some] = self._of(new[some], masks[some])
        return np.round(np.where(np.isfinite(ratios), ratios, -np.inf), DIGITS)

    def _of(self, new: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Return the log ratios of clusterings that differ from the current one."""
        n, n_rows = new.shape
        counts, sums, _ = label_sums(self._rows.X, new, len(self._counts))
        means = sums[..., self._kept] / np.maximum(counts, 1)[..., None]
        every = np.arange(len(self._kept))
        traced, full = np.ones(n, dtype=bool), self._old.ndim == 2
        if full and not is_singular(self._old, n_rows, every):
            within = self._within(counts, means)
            traced = np.array([is_singular(inner, n_rows, every) for inner in within])
        values = np.empty(n)
        for use_trace in np.unique(traced).tolist():
            at = traced == use_trace
            if use_trace:
                fresh = variances_within(counts[at], means[at], self._variances)
                before = np.diagonal(self._old) if full else self._old
            else:
                fresh, before = within[at], self._old
            with np.errstate(invalid="ignore"):  # all means may be equal in both
                values[at] = sum(
                    log_separability(counts[at], means[at], fresh, subset)
                    - log_separability(self._counts, self._means, before, subset)
                    for subset in (np.ones(len(every), dtype=bool), masks[at])
                )
        return values


def variances_within(counts: np.ndarray, means: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the pooled variances within clusters, shape (..., n_features).

    Parameters
    ----------
    counts : ndarray of shape (..., n_clusters)
    means : ndarray of shape (..., n_clusters, n_features)
        Cluster means, relative to the mean of all rows.
    total : ndarray of shape (n_features,)
        Variances of all rows.
    """
    share = counts / counts.sum(axis=-1, keepdims=True)
    variances = total - (share[..., None, :] @ means**2)[..., 0, :]
    # If the values are equal within the clusters, the variance is set to exactly zero: the
    # difference would leave a rounding error.
    return np.where(variances <= ROUNDING * total, 0.0, variances)


class GlobalSearch(SampledSearch):
    """Backward search with one subset for all clusters."""

    kind = GlobalClusters

    def compared_bytes(self, n_rows: int, n_clusters: int) -> int:
        """Return the bytes of the covariance of all rows and of those within clusters."""
        d, many = self.shape.n_features, self.parameters.drops_many(self.shape.n_features)
        side = min(d, n_rows // (ROWS_PER_FEATURE if many else 1))
        square = 8 * side**2
        return 3 * square + 6 * max(8 * TOGETHER, square) + 8 * n_rows * side

    def scores(self, solution: dict[str, Any], counts: np.ndarray) -> np.ndarray:
        """Return scores that rise with the order of dropping; kept features get 1."""
        order, scores = solution["dropped"], solution["mask"].astype(np.float64)
        scores[order] = (np.arange(len(order)) + 1) / (len(order) + 1)
        return np.asarray(scores)

    def details(self, solution: dict[str, Any], rule: ClusterRule) -> dict[str, Any]:
        """Return the subset and the course of the search."""
        return {
            "support": solution["mask"],
            "dropped": solution["dropped"],
            "n_iter": solution["n_subsets"],
        }
