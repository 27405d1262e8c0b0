"""Start of NDFS: k-means on the spectral embedding, made into indicators.

The restarts of k-means run on a sample of rows, in one task; the best of them by inertia goes on
with all rows. No scikit-learn here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kmeans import SAMPLE_ROWS, kmeans
from bigfs.core.cost import Shape, Step
from bigfs.core.errors import InputError
from bigfs.core.units import MIB
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.embedded import MAX_ITER, View, centers_step, label_views, view_centers
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.store.scratch import ArrayRef, Scratch

RESTARTS = 20


def check_init(init: Any, n_samples: int, n_clusters: int) -> np.ndarray:
    """Return a given start as F, shape (n_samples, n_clusters), float64.

    Parameters
    ----------
    init : array-like of shape (n_samples,) or (n_samples, n_clusters)
        Labels in [0, n_clusters), which become indicators plus 0.2 with columns of norm one; or
        an F, taken as it is.
    n_samples, n_clusters : int

    Raises
    ------
    InputError
        If it is neither.
    """
    given = np.asarray(init)
    if given.ndim == 1:
        is_one_each = given.dtype.kind in "iu" and len(given) == n_samples
        if not is_one_each or given.min() < 0 or given.max() >= n_clusters:
            raise InputError(
                f"init: labels must be {n_samples} whole numbers in [0, {n_clusters - 1}], one "
                f"for each row. Got {_described(given)}."
            )
        return normalized_indicators(given, np.bincount(given, minlength=n_clusters))
    fits = given.shape == (n_samples, n_clusters) and given.dtype.kind in "fiub"
    if not fits or not np.isfinite(given).all() or (given < 0).any():
        raise InputError(
            f"init must be 'spectral', labels of {n_samples} rows or an F of shape "
            f"({n_samples}, {n_clusters}) with finite values of at least 0. "
            f"Got {_described(given)}."
        )
    return given.astype(np.float64)


def _described(given: np.ndarray) -> str:
    """Describe what was given in a few words."""
    if given.ndim == 0:
        return repr(given.item())
    span = f", values {given.min()} to {given.max()}" if given.dtype.kind in "fiub" else ""
    return f"{given.dtype} of shape {given.shape}{span if given.size else ''}"


def normalized_indicators(labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return indicators plus 0.2, with columns of norm one over all rows.

    Parameters
    ----------
    labels : ndarray of shape (rows,)
        Of some rows.
    counts : ndarray of shape (n_clusters,)
        Rows of each cluster, of all rows.
    """
    F = np.full((len(labels), len(counts)), 0.2)
    F[np.arange(len(labels)), labels] += 1.0
    squares = 1.2**2 * counts + 0.2**2 * (counts.sum() - counts)
    return np.asarray(F / np.sqrt(squares))


def spectral_labels(
    spectral: SpectralEmbedding,
    blocks: RowBlocks,
    n_clusters: int,
    random_state: int,
    scratch: Scratch,
) -> tuple[ArrayRef, np.ndarray]:
    """Cluster the rows of an embedding, each scaled to norm one.

    Parameters
    ----------
    spectral : SpectralEmbedding of shape (n_samples, n_components)
    blocks : RowBlocks
        The data, for its rows' bounds.
    n_clusters : int
    random_state : int
    scratch : Scratch
        Where the labels are stored.

    Returns
    -------
    labels : ArrayRef of shape (n_samples,), int32
    counts : ndarray of shape (n_clusters,), int64
        Zero for a cluster that the rows have too few different values for.
    """
    source, n, bounds = spectral.embedding_ref, blocks.n_samples, blocks.bounds
    view = View("ndfs start", source.shape[1], scaled=True, restarts=RESTARTS)
    label = "ndfs start"
    centers = view_centers([view], source, n_clusters, random_state, scratch, label)
    if n > SAMPLE_ROWS and len(centers[0]) == n_clusters:
        unit = scratch.create("unit.zarr", source.shape, np.float64, blocks.rows)
        run_tasks(_unit_task, bounds, source, unit, view, label=label, unit="blocks")
        rows = RowBlocks.from_any(unit.path, scratch=scratch.child("rows"), rows=blocks.rows)
        clusters = kmeans(
            rows, n_clusters, init=centers[0], max_iter=MAX_ITER, scratch=scratch.child("labels")
        )
        return clusters.labels_ref, clusters.counts
    labels = scratch.create("labels", (n,), np.int32, blocks.rows)
    counts = label_views(bounds, [view], source, centers, labels, label)[0]
    return labels, np.pad(counts, (0, n_clusters - len(counts)))


def start_steps(shape: Shape, n_clusters: int) -> tuple[Step, ...]:
    """Return the steps of `spectral_labels` and of storing F; none of them reads X."""
    n, c = shape.n_samples, n_clusters
    # Rows of norm one, their labels, F; and k-means on all rows, where the restarts had a sample.
    times = 3 if n <= SAMPLE_ROWS else 2 + MAX_ITER + 1
    by_block = shape.rows * (32 * c + 64) + 16 * MIB
    return (
        centers_step(n, c, c, 1),
        Step(
            f"{shape.rows:,} rows of the eigenvectors and their clusters",
            by_block, shape.n_blocks, 0, 2 * shape.n_blocks, times,
        ),
    )  # fmt: skip


def _unit_task(bounds: tuple[int, int], source: ArrayRef, unit: ArrayRef, view: View) -> None:
    unit.write(bounds[0], view.of(source.read(*bounds)))


def store_given(F: np.ndarray, blocks: RowBlocks, folder: Scratch) -> ArrayRef:
    """Store a given F by row blocks."""
    stored = folder.create(folder.unique("F"), F.shape, np.float64, blocks.rows)
    for first, end in blocks.bounds:
        stored.write(first, F[first:end])
    return stored


def store_indicators(
    labels: ArrayRef, counts: np.ndarray, blocks: RowBlocks, folder: Scratch
) -> ArrayRef:
    """Store the F of labels by row blocks."""
    shape = (blocks.n_samples, len(counts))
    F = folder.create(folder.unique("F"), shape, np.float64, blocks.rows)
    run_tasks(_indicators_task, blocks.bounds, labels, counts.tolist(), F, label="ndfs start")
    return F


def _indicators_task(
    bounds: tuple[int, int], labels: ArrayRef, counts: list[int], F: ArrayRef
) -> None:
    F.write(bounds[0], normalized_indicators(labels.read(*bounds), np.array(counts)))
