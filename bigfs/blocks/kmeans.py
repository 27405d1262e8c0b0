"""K-means for large data: k-means++ on a fixed sample of rows, Lloyd's iteration in fused passes.

One pass per iteration computes everything at once: nearest centers, sums, counts, inertia and the
row farthest from its center. Partial sums are merged in a fixed tree order in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import float_tiles, row_tiles
from bigfs.blocks.rowblocks import gather_parts
from bigfs.core.cost import Shape, Step, pass_over, product_seconds, read_seconds
from bigfs.core.errors import InputError, check_count
from bigfs.core.seeds import rng
from bigfs.core.units import MIB
from bigfs.runtime.execute import TREE_ARITY, run_tasks
from bigfs.store.scratch import ArrayRef

SAMPLE_ROWS = 10_000
# Upper bound on the updates of the centers.
MAX_ITER = 100
# Iterations after which most clusterings have converged.
_USUAL_ITERATIONS = 20
# They have converged if their squared movement, summed over the centers, is at most this share of
# the variance summed over the features, divided by the number of clusters.
_TOLERANCE = 1e-4
# Candidates of k-means++ whose inertias differ by less than this share are ties.
_TIE = 1e-6
# Centers are equally near if squared distances differ by less than this relative amount: a few
# dozen roundings of the products that they are computed from, and more in float64.
_NEAR = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-12}


@dataclass(frozen=True)
class KMeansResult:
    """Centers, labels and the final state of the iteration."""

    centers: np.ndarray  # of shape (n_clusters, n_features), float64
    labels_ref: ArrayRef  # of shape (n_samples,), int32: nearest center of every row
    # Of shape (n_clusters,), int64: rows per cluster; none is empty unless rows are duplicates.
    counts: np.ndarray
    inertia: float  # sum of squared distances to the nearest center
    n_iter: int  # number of updates of the centers


def kmeans(
    blocks: RowBlocks,
    n_clusters: int,
    *,
    init: np.ndarray | None = None,
    random_state: int = 0,
) -> KMeansResult:
    """Cluster the rows of data that need not fit memory.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    n_clusters : int
        In [1, n_samples].
    init : ndarray of shape (n_clusters, n_features) or None, default=None
        Initial centers. None: k-means++ and Lloyd's iteration on 10,000 sampled rows.
    random_state : int, default=0
        Seed of the sample and of k-means++.

    Returns
    -------
    result : KMeansResult

    Raises
    ------
    InputError
        If ``n_clusters`` is out of range, or the sampled rows have fewer distinct values.

    Notes
    -----
    Cost: a pass for the sample, one per iteration, one for the labels. An empty cluster gets the
    row farthest from its center. The result is bit-identical whatever the workers.
    """
    reason = f"since X has {blocks.n_samples} rows"
    check_count("n_clusters", n_clusters, blocks.n_samples, reason)
    scratch = blocks.scratch.child(blocks.scratch.unique("kmeans"))
    centers = _start(blocks, n_clusters, random_state) if init is None else init.astype(np.float64)
    threshold, moved, n_iter = 0.0, np.inf, 0
    while n_iter < MAX_ITER and moved > threshold:
        sums = _pass(blocks, centers)
        if n_iter == 0:
            threshold = _TOLERANCE * sums.total_variance / n_clusters
        updated = sums.centers(centers)
        moved = float(((updated - centers) ** 2).sum())
        centers = updated
        n_iter += 1
    labels = scratch.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
    sums = _pass(blocks, centers, labels)
    return KMeansResult(centers, labels, sums.counts, sums.inertia, n_iter)


def _sampled_rows(n_samples: int, n_clusters: int) -> int:
    """Return the number of rows that k-means++ uses."""
    return min(n_samples, max(SAMPLE_ROWS, 20 * n_clusters))


def kmeans_steps(shape: Shape, n_clusters: int, times: int) -> tuple[Step, ...]:
    """Return the steps of ``times`` runs of `kmeans` without initial centers."""
    size = _sampled_rows(shape.n_samples, n_clusters)
    sample, centers = size * shape.n_features * shape.itemsize, 8 * n_clusters * shape.n_features
    folded, usual = min(shape.n_blocks, TREE_ARITY) + 2, _USUAL_ITERATIONS / MAX_ITER
    beside = 24 * shape.rows + folded * centers + 24 * MIB
    what, drawn = "a block and its rows sampled for k-means++", min(sample, shape.block_bytes)
    sampling = pass_over(shape, what, drawn, times=times)
    # The rows, and a copy relative to its own origin; temporarily the parts they are joined from.
    what, needed = f"k-means++ on {size:,} rows", 5 * sample // 2 + 24 * MIB
    first = Step(what, needed, requests=shape.n_blocks, times=times)
    what = f"a block and its nearest of {n_clusters} centers"
    passes = pass_over(shape, what, beside, times=times * (MAX_ITER + 1))
    seconds = usual * (read_seconds(shape) + product_seconds(shape.n_values, n_clusters))
    return sampling, first, replace(passes, seconds=seconds)


# Bounds on squared norms within which float32 neither overflows nor loses digits.
_LEAST_SQUARE, _LARGEST_SQUARE = 1e-25, 1e34


def cluster_rows(
    rows: np.ndarray, n_clusters: int, generator: np.random.Generator, max_iter: int = 25
) -> np.ndarray:
    """Return the centers of in-memory rows, by k-means++ and Lloyd's iteration.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float32 or float64
    n_clusters : int
    generator : numpy Generator
    max_iter : int, default=25

    Returns
    -------
    centers : ndarray of shape (at most n_clusters, n_features), type of ``rows``
        Fewer than requested if the rows have fewer distinct values.
    """
    centers = rows[plus_plus(rows, n_clusters, generator)].astype(rows.dtype)
    labels = np.full(len(rows), -1)
    for _ in range(max_iter):
        nearest, _ = nearest_centers(rows, centers)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        counts, sums, _ = _sum_by_label(rows, labels, len(centers))
        filled = counts > 0
        centers[filled] = sums[filled] / counts[filled, None]
    return centers


def plus_plus(rows: np.ndarray, n_clusters: int, generator: np.random.Generator) -> np.ndarray:
    """Return row numbers chosen by greedy k-means++, with several trials for each.

    Stops early when every row equals a chosen one.
    """
    chosen = [int(generator.integers(len(rows)))]
    nearest = _squared_to(rows, rows[chosen])[:, 0]
    trials = 2 + int(np.log(max(1, n_clusters)))
    while len(chosen) < n_clusters and nearest.max() > 0:
        cumulative = np.cumsum(nearest)
        draws = generator.random(trials) * cumulative[-1]
        places = np.minimum(np.searchsorted(cumulative, draws, side="right"), len(rows) - 1)
        places = places[nearest[places] > 0]
        if not len(places):
            places = np.array([int(nearest.argmax())])
        candidates = np.minimum(_squared_to(rows, rows[places]), nearest[:, None])
        totals = candidates.sum(axis=0)
        best = int((totals <= (1 + _TIE) * totals.min()).argmax())  # the first, up to rounding
        chosen.append(int(places[best]))
        nearest = candidates[:, best]
        # A product of rounded norms is not exactly zero for a row and its duplicates.
        nearest[(rows == rows[chosen[-1]]).all(axis=1)] = 0
    return np.array(chosen)


def nearest_centers(rows: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest center of every row, and the squared distance to it (float64).

    If several centers are equally near up to rounding, the first is returned: rows of small
    integers often have such ties, and the unit of the data would otherwise break them.
    """
    labels = np.empty(len(rows), dtype=np.int64)
    squared = np.empty(len(rows))
    for part in row_tiles(len(rows), max(rows.shape[1], len(centers))):
        tile = _squared_to(rows[part], centers)
        least = tile.min(axis=1)
        # Distances are computed from coordinates relative to the first center.
        level = least + _NEAR[tile.dtype] * (tile[:, 0] + least)
        labels[part] = (tile <= level[:, None]).argmax(axis=1)
        squared[part] = least
    return labels, squared


def _squared_to(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return squared distances (n_rows, n_centers), by a matrix product in the rows' dtype."""
    # Relative to the first center, so that a common offset does not cost digits.
    origin = centers[0].astype(rows.dtype)
    shifted = rows - origin
    others = centers.astype(rows.dtype) - origin
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.einsum("ij,ij->i", shifted, shifted)
    if rows.dtype == np.float32 and not _LEAST_SQUARE < norms.max(initial=0.0) < _LARGEST_SQUARE:
        # Squares out of the range of float32; also a tile of rows that all equal the first center.
        return _squared_to(rows.astype(np.float64), centers)
    squared = shifted @ (-2 * others.T)
    squared += norms[:, None]
    squared += np.einsum("ij,ij->i", others, others)
    return np.maximum(squared, 0)


def _sum_by_label(
    rows: np.ndarray, labels: np.ndarray, n_clusters: int, origin: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return counts (n_clusters,), sums (n_clusters, n_features) and the sum of squares, float64.

    Sums and squares are of the rows minus an origin, so that an offset does not cost digits.
    """
    from scipy.sparse import csr_array

    sums, squares = np.zeros((n_clusters, rows.shape[1])), 0.0
    for part, tile in float_tiles(rows, origin):
        tile_labels = labels[part]
        ones = (np.ones(len(tile_labels)), (tile_labels, np.arange(len(tile_labels))))
        sums += csr_array(ones, shape=(n_clusters, len(tile_labels))) @ tile
        squares += float(np.einsum("ij,ij->", tile, tile))
    return np.bincount(labels, minlength=n_clusters), sums, squares


@dataclass
class _Sums:
    """Sums over the rows of one pass; two of them can be merged."""

    counts: np.ndarray
    sums: np.ndarray
    squares: float
    inertia: float
    far: float
    far_row: np.ndarray

    @property
    def total_variance(self) -> float:
        """Variance of the data, summed over the features."""
        n = self.counts.sum()
        return max(0.0, self.squares / n - float(((self.sums.sum(axis=0) / n) ** 2).sum()))

    def centers(self, previous: np.ndarray) -> np.ndarray:
        """Return the means; one empty cluster per pass gets the farthest row."""
        filled = self.counts > 0
        updated = previous.copy()
        updated[filled] = previous[0] + self.sums[filled] / self.counts[filled, None]
        if not filled.all() and self.far > 0:
            updated[int(np.argmin(filled))] = self.far_row
        return updated


def _pass(blocks: RowBlocks, centers: np.ndarray, labels: ArrayRef | None = None) -> _Sums:
    """Run one fused pass over X; write the labels if an array for them is given."""
    shared = blocks.scratch.put(blocks.scratch.unique("centers"), centers)
    try:
        return blocks.reduce(_pass_kernel, _merge, shared, labels, label="k-means")
    finally:
        blocks.scratch.remove(shared)


def _pass_kernel(X: np.ndarray, first_row: int, shared: ArrayRef, labels: ArrayRef | None) -> _Sums:
    centers = shared.load()
    nearest, squared = nearest_centers(X, centers)
    if labels is not None:
        labels.write(first_row, nearest.astype(np.int32))
    far = int(squared.argmax())
    return _Sums(
        *_sum_by_label(X, nearest, len(centers), centers[0]),
        float(squared.sum()),
        float(squared[far]),
        X[far].astype(np.float64),
    )


def _merge(a: _Sums, b: _Sums) -> _Sums:
    squares, inertia = a.squares + b.squares, a.inertia + b.inertia
    farther = b if b.far > a.far else a
    far = farther.far, farther.far_row
    return _Sums(a.counts + b.counts, a.sums + b.sums, squares, inertia, *far)


def _start(blocks: RowBlocks, n_clusters: int, random_state: int) -> np.ndarray:
    """Return the initial centers: those of a sample of rows."""
    n = blocks.n_samples
    size = _sampled_rows(n, n_clusters)
    chosen = rng(random_state, "kmeans sample").choice(n, size, replace=False, shuffle=False)
    with blocks.scratch.temporary("sample") as folder:
        parts = gather_parts(blocks, np.sort(chosen), folder, "k-means sample")
        [centers] = run_tasks(_start_task, [parts], n_clusters, random_state, label="k-means++")
    if len(centers) == 1 < n_clusters:
        raise InputError(f"All {size} sampled rows are equal, so there are no clusters to find.")
    if len(centers) < n_clusters:
        raise InputError(
            f"n_clusters is {n_clusters}, but {size} sampled rows have only {len(centers)} "
            f"distinct values. Set n_clusters to at most {len(centers)}."
        )
    return centers.astype(np.float64)


def _start_task(parts: list[ArrayRef], n_clusters: int, random_state: int) -> np.ndarray:
    rows = np.concatenate([part.load() for part in parts])
    return cluster_rows(rows, n_clusters, rng(random_state, "kmeans"))
