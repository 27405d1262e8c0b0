"""K-means on the rows of an embedding: restarts on a sample of the rows, then labels for all rows.

Imports no scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks.kmeans import MAX_ITER, SAMPLE_ROWS, cluster_rows, nearest_centers
from bigfs.core.cost import Step
from bigfs.core.seeds import rng
from bigfs.core.units import MIB
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.store.scratch import ArrayRef, Scratch


@dataclass(frozen=True)
class View:
    """The leading columns of embedded rows, optionally with rows scaled to norm one."""

    name: str  # names the stream of random numbers
    width: int  # number of columns
    scaled: bool  # True if rows are scaled to norm one
    restarts: int  # number of k-means restarts

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the view of the given rows."""
        rows = rows[:, : self.width]
        if not self.scaled:
            return rows
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        # Rows of a graph component on which all eigenvectors vanish are zero.
        return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def view_centers(
    views: list[View],
    embedding: ArrayRef,
    n_clusters: int,
    random_state: int,
    scratch: Scratch,
    label: str,
) -> list[np.ndarray]:
    """Return the centers of the best k-means restart on each view, from a sample of the rows.

    Parameters
    ----------
    views : list of View
    embedding : ArrayRef of shape (n_samples, n_components)
    n_clusters : int
    random_state : int
    scratch : Scratch
    label : str
        Label of the tasks; its first word also names the random numbers of the sample.

    Returns
    -------
    centers : list of ndarray of shape (n_centers, width)
        ``n_centers`` is less than ``n_clusters`` if there are too few distinct rows.
    """
    n, generator = embedding.shape[0], rng(random_state, f"{label.split()[0]} sample")
    chosen = generator.choice(n, min(n, SAMPLE_ROWS), replace=False)
    sample = scratch.put("chosen", np.sort(chosen))
    shared = embedding, sample, n_clusters, random_state
    return run_tasks(_centers_task, views, *shared, label=label, unit="samples")


def centers_step(n_samples: int, n_clusters: int, width: int, tasks: int) -> Step:
    """Return the cost of `view_centers`."""
    size = min(n_samples, SAMPLE_ROWS)
    needed = 32 * size * (n_clusters + width) + 16 * MIB
    return Step(f"k-means of {size:,} rows of eigenvectors", needed, tasks)


def label_views(
    bounds: list[tuple[int, int]],
    views: list[View],
    embedding: ArrayRef,
    centers: list[np.ndarray],
    out: ArrayRef,
    label: str,
) -> np.ndarray:
    """Write the nearest center of every row in each view, and return the counts of the clusters.

    Parameters
    ----------
    bounds : list of (int, int)
        First row and one past the last row of every block.
    views : list of View
    embedding : ArrayRef of shape (n_samples, n_components)
    centers : list of ndarray
        Centers of each view.
    out : ArrayRef of shape (n_samples, n_views), or (n_samples,) for one view
        Array that the indices of the nearest centers are written to.
    label : str
        Label of the tasks.

    Returns
    -------
    counts : ndarray of shape (n_views, n_clusters), int64
    """
    shared = views, embedding, centers, out
    return np.asarray(map_reduce(_label_task, bounds, np.add, *shared, label=label))


def _centers_task(
    view: View, embedding: ArrayRef, sample: ArrayRef, n_clusters: int, random_state: int
) -> np.ndarray:
    rows = view.of(embedding.take(sample.load()))
    trials = (
        cluster_rows(rows, n_clusters, rng(random_state, view.name, restart), max_iter=MAX_ITER)
        for restart in range(view.restarts)
    )
    return min(trials, key=lambda centers: float(nearest_centers(rows, centers)[1].sum()))


def _label_task(
    bounds: tuple[int, int],
    views: list[View],
    embedding: ArrayRef,
    centers: list[np.ndarray],
    out: ArrayRef,
) -> np.ndarray:
    rows = embedding.read(*bounds)
    pairs = zip(views, centers, strict=True)
    labels = [nearest_centers(view.of(rows), of_view)[0] for view, of_view in pairs]
    together = np.stack(labels, axis=1).astype(out.dtype)
    out.write(bounds[0], together.reshape(len(rows), *out.shape[1:]))
    width = max(len(of_view) for of_view in centers)
    return np.stack([np.bincount(of_view, minlength=width) for of_view in labels])
