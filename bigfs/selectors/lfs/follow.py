"""Lloyd's iteration in some features, followed for all candidates that lack one of them each.

Bounds tell without which features no row changes its label: there the iteration goes the same way.
A search drops a feature at a time and most often keeps its clusters: distances of rows to centers
lose that feature, and sums of rows stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.solvers.separability import without_each

# A share of squared distances above their rounding, and above what counts as a tie.
_MARGIN = 1e-9
# Entries of a product that stay in a core's cache.
_TILE_ENTRIES = 2**17
# Features that leave distances one by one before these are computed anew.
_MOST_LEFT = 64
# Where a smaller share of candidates is alike, following them is in vain: so many steps go without.
_FEW, _LONGEST_PAUSE = 0.25, 15
# Distances and sums that are kept: those of the iterations of a step, and of clusters whose subsets
# differ.
_KEPT_GAPS, _KEPT_SUMS = 6, 4


@dataclass
class SharedEnding:
    """End of Lloyd's iteration that several candidates share."""

    candidates: np.ndarray  # of int: places of the features that these candidates lack
    centers: np.ndarray  # of shape (n_clusters, n_features), float64
    labels: np.ndarray  # of shape (n_rows,), int64


@dataclass
class LabelSums:
    """Counts, sums and sums of squares of each label's rows."""

    labels: np.ndarray  # of shape (n_rows,), int64
    counts: np.ndarray  # of shape (n_clusters,), float64
    sums: np.ndarray  # of shape (n_clusters, n_features), float64
    squares: np.ndarray  # of the shape of sums, float64


@dataclass
class _Gaps:
    """Margins by which other centers are farther from rows than the nearest one."""

    centers: np.ndarray  # of shape (n_clusters, n_features), float64
    mask: np.ndarray  # of shape (n_features,), bool: features of the distances
    n_left: int  # features that were taken out of the gaps since they were computed
    labels: np.ndarray  # of shape (n_rows,), int64
    # Of shape (n_rows, n_clusters), float64: differences of squared distances; inf of the nearest
    # center.
    gaps: np.ndarray
    margin: np.ndarray  # of shape (n_rows, 1), float64: what counts as a difference


class Followed:
    """Rows in memory, and what was last found out about them.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float64
    """

    def __init__(self, rows: np.ndarray) -> None:
        self._rows, self._low, self._high = rows, rows.min(axis=0), rows.max(axis=0)
        self._squared = rows**2
        self._sums: list[LabelSums] = []
        self._gaps: list[_Gaps] = []
        # How many steps go without, since it was in vain before, and how many of these are left.
        self._pause, self._wait = 0, 0

    def moving(
        self, centers: np.ndarray, kept: np.ndarray, asked: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest centers of rows, and without which features a row may have another.

        Parameters
        ----------
        centers : ndarray of shape (n_clusters, n_features), float64
        kept : ndarray of int
            The features of distances.
        asked : ndarray of int or None, default=None
            Those of them to tell about. None: all.

        Returns
        -------
        labels : ndarray of shape (n_rows,), int64
            Of rows that are as near to several centers one of these: then all features move.
        moving : ndarray of the shape of asked, bool
            False where the nearest centers without the feature are these labels.
        """
        known = self._gaps_in(centers, kept)
        kept = kept if asked is None else asked
        labels, gaps = known.labels, known.gaps - known.margin
        if not (gaps > 0).all():
            return labels, np.ones(len(kept), dtype=bool)
        inner = centers[:, kept]
        # Without feature f the gap of a row to cluster j is less by (c - c_j)(2 x - c - c_j) in f.
        widest = 2 * np.maximum(
            self._high[kept] - inner.min(axis=0), inner.max(axis=0) - self._low[kept]
        )
        most = np.array([(np.abs(inner - center) * widest).max(axis=1) for center in inner])
        which, others = np.nonzero(gaps <= most[labels])
        moving = np.zeros(len(kept), dtype=bool)
        step = max(1, _TILE_ENTRIES // len(kept))
        for begin in range(0, len(which), step):
            chosen, other = which[begin : begin + step], others[begin : begin + step]
            here, there = inner[labels[chosen]], inner[other]
            less = here - there
            less *= 2 * self._rows[np.ix_(chosen, kept)] - here - there
            moving |= (less >= gaps[chosen, other, None]).any(axis=0)
        return labels, moving

    def _gaps_in(self, centers: np.ndarray, kept: np.ndarray) -> _Gaps:
        """Return the gaps in some features: those of more features without the others, or new."""
        mask = np.zeros(self._rows.shape[1], dtype=bool)
        mask[kept] = True
        rows, every = self._rows, np.arange(len(self._rows))
        fitting = [
            (int((known.mask & ~mask).sum()), place)
            for place, known in enumerate(self._gaps)
            if not (mask & ~known.mask).any() and np.array_equal(centers, known.centers)
        ]
        n_left, place = min(fitting, default=(_MOST_LEFT + 1, 0))
        if n_left <= _MOST_LEFT:
            known = self._gaps.pop(place)
            known.n_left += n_left
            for f in np.flatnonzero(known.mask & ~mask).tolist():
                here, there = centers[known.labels, f, None], centers[:, f]
                known.gaps -= (here - there) * (2 * rows[:, f, None] - here - there)
            known.mask = mask
            if known.n_left <= _MOST_LEFT and (known.gaps > known.margin).all():
                self._gaps.insert(0, known)
                return known
        masked = centers * mask
        norms = np.einsum("jf,jf->j", masked, masked)
        gaps = rows @ (-2 * masked.T)
        gaps += norms
        labels = gaps.argmin(axis=1)
        gaps -= gaps[every, labels, None]
        gaps[every, labels] = np.inf
        margin = _MARGIN * (self._squared @ mask.astype(np.float64) + norms.sum())[:, None]
        known = _Gaps(centers.copy(), mask, 0, labels, gaps, margin)
        self._gaps = [known, *self._gaps[: _KEPT_GAPS - 1]]
        return known

    def sums(self, labels: np.ndarray, n_clusters: int) -> LabelSums:
        """Return the sums of each label's rows."""
        for place, known in enumerate(self._sums):
            if len(known.counts) == n_clusters and np.array_equal(known.labels, labels):
                self._sums.insert(0, self._sums.pop(place))
                return known
        marks = (labels == np.arange(n_clusters)[:, None]).astype(np.float64)
        known = LabelSums(labels, marks.sum(axis=1), marks @ self._rows, marks @ self._squared)
        self._sums = [known, *self._sums[: _KEPT_SUMS - 1]]
        return known

    def endings(
        self, centers: np.ndarray, kept: np.ndarray, max_iter: int, tol: float
    ) -> tuple[list[SharedEnding], np.ndarray]:
        """Follow the iteration in the kept features as long as it is that of candidates.

        Parameters
        ----------
        centers : ndarray of shape (n_clusters, n_features), float64
        kept : ndarray of int
        max_iter, tol
            As in `lloyd.lloyd`.

        Returns
        -------
        ends : list of SharedEnding
            Candidates stop after one iteration or another.
        others : ndarray of int
            Candidates whose rows may go elsewhere: `lloyd.lloyd` says where.
        """
        ends: list[SharedEnding] = []
        followed, done = np.ones(len(kept), dtype=bool), np.zeros(len(kept), dtype=bool)
        limits = np.zeros(len(kept))
        if self._wait:
            self._wait -= 1
            return [], np.arange(len(kept))
        for iteration in range(max_iter):
            at = np.flatnonzero(followed)
            labels, moving = self.moving(centers, kept, kept[at])
            followed[at[moving]] = False
            if followed.sum() < len(kept) * _FEW:
                break
            of_labels = self.sums(labels, len(centers))
            counts = of_labels.counts[:, None]
            updated = np.where(counts > 0, of_labels.sums / np.maximum(counts, 1), centers)
            inner = updated[:, kept]
            if iteration == 0:
                limits = tol**2 * without_each((inner**2).sum(axis=0))
            change = without_each(((inner - centers[:, kept]) ** 2).sum(axis=0))
            last = iteration == max_iter - 1
            if not last:
                # What rounding decides is decided by the loop that sees each feature.
                unsure = (np.abs(change - limits) <= _MARGIN * limits) & (change != limits)
                followed &= ~unsure
            stopped = followed & ((change <= limits) | last)
            if stopped.any():
                # Centers keep their place in other features.
                ended = centers.copy()
                ends.append(SharedEnding(np.flatnonzero(stopped), ended, labels))
                done |= stopped
                followed &= ~stopped
                if followed.sum() < len(kept) * _FEW:
                    break
            centers = centers.copy()
            centers[:, kept] = inner
        vain = done.sum() < len(kept) * _FEW
        self._pause = min(2 * self._pause + 1, _LONGEST_PAUSE) if vain else 0
        self._wait = self._pause
        return ends, np.flatnonzero(~done)
