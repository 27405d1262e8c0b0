"""The backward search of GFS-k-means: fewer features, one or several at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks.kernels import Gram
from bigfs.core.units import MIB
from bigfs.runtime.progress import Work
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.gfs_kmeans.compare import CandidateComparison, variances_within
from bigfs.selectors.gfs_kmeans.nested import log_ratios
from bigfs.selectors.lfs.held import HeldRows
from bigfs.selectors.lfs.kernels import Clusterings, Rules, Sweep, least_separate
from bigfs.selectors.lfs.passes import RowPasses
from bigfs.selectors.lfs.search import converge
from bigfs.solvers.separability import feature_separability
from bigfs.stages.scores import rank

# Centers and sums of the candidates that are tried at a time on rows in memory.
HELD_BYTES = 16 * MIB


@dataclass(frozen=True)
class SearchedRows:
    """The rows of a search, and what it knows of all of them."""

    passes: RowPasses
    variances: np.ndarray  # of shape (n_features,), float64
    # Of shape (n_features, n_features), float64: their covariance. None: that of some features is
    # made when it is asked for.
    total: np.ndarray | None

    @classmethod
    def of(cls, passes: RowPasses, gram: Gram | None) -> SearchedRows:
        """Return what moments say, and the covariance if there is a Gram matrix."""
        moments = passes.blocks.moments()
        total = None if gram is None else gram.gram / gram.count
        variances = moments.variance if total is None else total.diagonal()
        return cls(passes, variances, total)

    def covariance(self, features: np.ndarray) -> np.ndarray:
        """Return the covariance of all rows in some features."""
        if self.total is not None:
            return self.total[np.ix_(features, features)]
        assert isinstance(self.passes, HeldRows)
        n = self.passes.blocks.n_samples
        products = self.passes.products(np.ones(n, dtype=bool), features)
        products /= n
        return products


@dataclass(frozen=True)
class _Clustered:
    """Clusters in a subset of the features."""

    current: Clusterings
    swept: Sweep
    dropped: np.ndarray  # the features that went last, first dropped first
    ratio: float = 0.0  # log of their criterion over that of the clusters before

    @property
    def means(self) -> np.ndarray:
        """Means of the clusters; an empty one keeps its center."""
        counts = self.swept.counts[0][:, None]
        means = self.swept.sums[0] / np.maximum(counts, 1)
        return np.where(counts > 0, means, self.current.centers[0])


def search(
    rows: SearchedRows,
    centers: np.ndarray,
    usable: np.ndarray,
    parameters: GFSKMeansParameters,
    progress: Work,
) -> tuple[Clusterings, list[int], int]:
    """Drop the features without which the clusters are most separate, while they are no less so.

    Returns clusters and their features, those dropped in their order, and the number of subsets.
    """
    k, d = centers.shape
    rules = Rules(Clusterings(np.zeros((k, k, d)), np.zeros((k, d), dtype=bool)), np.full(k, -1))
    first = Clusterings(centers[None], usable[None])
    now = _Clustered(*converge(rows.passes, first, rules, parameters), np.empty(0, np.int64))
    step = _without_several if parameters.drops_many(d) else _without_one
    order: list[int] = []
    n_subsets = 1
    while now.current.masks[0].sum() > 1:
        kept = np.flatnonzero(now.current.masks[0])
        variances = variances_within(now.swept.counts[0], now.means, rows.variances)
        alone = feature_separability(now.swept.counts[0], now.means, variances)[kept]
        after = step(rows, now, kept, alone, rules, parameters)
        if after is None:
            break
        now = after
        n_subsets += 1
        order += now.dropped.tolist()
        progress.advance(len(now.dropped), f"log ratio of the criterion {now.ratio:.3g}")
    return Clusterings(now.means[None], now.current.masks), order, n_subsets


def _without_one(
    rows: SearchedRows,
    now: _Clustered,
    kept: np.ndarray,
    alone: np.ndarray,
    rules: Rules,
    parameters: GFSKMeansParameters,
) -> _Clustered | None:
    """Return the best clusters without a feature; None if all are less separate than before."""
    passes, means, mask = rows.passes, now.means, now.current.masks[0]
    # Without the others the clusters stay the same: the ratio is one.
    moving = np.flatnonzero(passes.moving(means, kept, now.current.labels))
    values, best_of = np.zeros(len(kept)), {}
    assert rows.total is not None
    comparison = CandidateComparison(now.swept, kept, rows.total)
    together = max(1, HELD_BYTES // (2 * means.nbytes)) if passes.held else len(mask)
    for begin in range(0, len(moving), together):
        some = moving[begin : begin + together]
        start = _without(now, kept[some, None])
        candidates, tried = converge(passes, start, rules, parameters)
        values[some] = comparison.log_ratios(tried, some)
        place = _best(values[some], alone[some])
        best_of[int(some[place])] = candidates.take([place]), tried.take([place])
    best = _best(values, alone)
    if not values[best] >= 0:
        return None
    dropped = kept[[best]]
    if best in best_of:
        return _Clustered(*best_of[best], dropped, values[best])
    same = Clusterings(means[None], _without(now, dropped[None]).masks, now.current.labels)
    return _Clustered(same, now.swept, dropped, values[best])


def _without_several(
    rows: SearchedRows,
    now: _Clustered,
    kept: np.ndarray,
    alone: np.ndarray,
    rules: Rules,
    parameters: GFSKMeansParameters,
) -> _Clustered | None:
    """Return clusters without the most features that may go; None if they are less separate."""
    dropped = least_separate(kept, alone)
    candidates, tried = converge(rows.passes, _without(now, dropped), rules, parameters)
    order = kept[np.argsort(alone, kind="stable")[::-1]]
    sizes = np.array([len(kept) - len(some) for some in dropped])
    variances = rows.variances[order]
    values = log_ratios(now.swept, tried, order, sizes, variances, rows.covariance)
    for place in np.flatnonzero(values >= 0)[:1].tolist():
        some = candidates.take([place]), tried.take([place])
        return _Clustered(*some, dropped[place], values[place])
    return None


def _without(now: _Clustered, dropped: list[np.ndarray] | np.ndarray) -> Clusterings:
    """Return starts at the present means, each without some features."""
    masks = np.tile(now.current.masks[0], (len(dropped), 1))
    for mask, some in zip(masks, dropped, strict=True):
        mask[some] = False
    return Clusterings(np.broadcast_to(now.means, (len(masks), *now.means.shape)), masks)


def _best(values: np.ndarray, alone: np.ndarray) -> int:
    """Return the place of the largest value; of equal ones, of the least separate feature."""
    return int(rank(values, np.zeros(len(values), dtype=bool), -alone)[0])
