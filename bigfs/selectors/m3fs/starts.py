"""Starts of M3FS: labels by k-means on the rows and on the eigenvectors of their graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kmeans import SAMPLE_ROWS, cluster_rows, kmeans, kmeans_steps, nearest_centers
from bigfs.core.cost import Shape, Step
from bigfs.core.errors import InputError
from bigfs.core.seeds import derive_seed, rng
from bigfs.core.units import MIB
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.selectors.m3fs import EXTRA_EIGENVECTORS, M3FSParameters
from bigfs.spectral.choice import largest_count
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.store.scratch import ArrayRef, Scratch

_RESTARTS = 10


def most_starts(parameters: M3FSParameters) -> int:
    """Return how many starts there are at most."""
    of_rows = parameters.n_init if parameters.starts_at("kmeans") else 0
    # Each width as it is, and with rows scaled.
    of_eigenvectors = 2 * len(EXTRA_EIGENVECTORS) if parameters.starts_at("spectral") else 0
    return of_rows + of_eigenvectors or 1


def start_steps(shape: Shape, parameters: M3FSParameters) -> tuple[Step, ...]:
    """Return the steps of `start_labels`."""
    n_starts, n_clusters = most_starts(parameters), largest_count(parameters.n_clusters)
    width = n_clusters + max(EXTRA_EIGENVECTORS)
    needed = shape.rows * (8 * width + 24 * n_starts)
    steps = [
        Step("the labels of a block under every start", needed, shape.n_blocks, times=2),
        Step(f"{shape.n_samples:,} row numbers", 16 * shape.n_samples, by_client=True),
    ]
    if parameters.starts_at("kmeans"):
        steps += kmeans_steps(shape, n_clusters, times=parameters.n_init)
    if parameters.starts_at("spectral"):
        size = min(shape.n_samples, SAMPLE_ROWS)
        what = f"k-means of {size:,} rows of eigenvectors"
        steps.append(Step(what, 32 * size * width + 16 * MIB, 2 * len(EXTRA_EIGENVECTORS)))
    return tuple(steps)


def given_labels(init: Any, n_samples: int, n_clusters: int) -> np.ndarray:
    """Return given labels, checked, shape (n_samples,), uint8.

    Raises
    ------
    InputError
        If they are not one whole number below ``n_clusters`` for each row.
    """
    labels = np.asarray(init)
    fits = labels.shape == (n_samples,) and labels.dtype.kind in "iu"
    if not fits or labels.min() < 0 or labels.max() >= n_clusters:
        raise InputError(
            f"labels to start from must be {n_samples} whole numbers in [0, {n_clusters - 1}], "
            f"one for each row. Got {labels.dtype} of shape {labels.shape}."
        )
    return labels.astype(np.uint8)


def start_labels(
    blocks: RowBlocks,
    n_clusters: int,
    init: Any,
    n_init: int,
    random_state: int,
    spectral: SpectralEmbedding | None,
    scratch: Scratch,
) -> tuple[list[str], ArrayRef]:
    """Return the starts' names, and their labels: an array (n_samples, n_starts), uint8.

    Starts that are the same clusters count once.

    Parameters
    ----------
    blocks : RowBlocks
    n_clusters : int
    init : {"auto", "kmeans", "spectral"} or array-like of shape (n_samples,)
    n_init : int
        Restarts of k-means.
    random_state : int
    spectral : SpectralEmbedding or None
        For the spectral starts; not used by others.
    scratch : Scratch
        Where the labels are stored.
    """
    n = blocks.n_samples
    if not isinstance(init, str):
        labels = given_labels(init, n, n_clusters)
        stored = scratch.create("starts", (n, 1), np.uint8, blocks.rows)
        for first, end in blocks.bounds:
            stored.write(first, labels[first:end, None])
        return ["given"], stored
    names, sources = [], []
    if init != "spectral":
        for restart in range(n_init):
            seed = derive_seed(random_state, "m3fs start", restart)
            result = kmeans(blocks, n_clusters, random_state=seed)
            names.append(f"kmeans {restart}")
            sources.append(result.labels_ref)
    if init != "kmeans":
        assert spectral is not None
        kinds, labels_ref = _spectral_labels(spectral, blocks, n_clusters, random_state, scratch)
        names += [name for name, _, _ in kinds]
        sources.append(labels_ref)
    shared = map_reduce(
        _overlap_task, blocks.bounds, np.add, sources, n_clusters, label="m3fs starts"
    )
    kept = _distinct(shared)
    out = scratch.create("starts", (n, len(kept)), np.uint8, blocks.rows)
    run_tasks(_collect_task, blocks.bounds, sources, kept, out, label="m3fs starts", unit="blocks")
    return [names[i] for i in kept], out


def _together(bounds: tuple[int, int], sources: list[ArrayRef]) -> np.ndarray:
    """Return all labels of one block, (n_rows, n_starts), uint8."""
    parts = [source.read(*bounds).reshape(bounds[1] - bounds[0], -1) for source in sources]
    return np.concatenate(parts, axis=1).astype(np.uint8)


def _overlap_task(bounds: tuple[int, int], sources: list[ArrayRef], n_clusters: int) -> np.ndarray:
    """Count how often two clusters of two starts meet, (n_starts, n_starts, c, c)."""
    labels = _together(bounds, sources).astype(np.int64)
    S, c = labels.shape[1], n_clusters
    out = np.zeros((S, S, c, c), dtype=np.int64)
    for i in range(S):
        for j in range(i):
            met = np.bincount(labels[:, i] * c + labels[:, j], minlength=c * c)
            out[i, j] = met.reshape(c, c)
    return out


def _distinct(overlap: np.ndarray) -> list[int]:
    """Return the starts that are not an earlier one under other cluster numbers."""
    kept: list[int] = []
    for i in range(len(overlap)):
        met = overlap[i, kept] > 0
        same = (met.sum(axis=1) <= 1).all(axis=1) & (met.sum(axis=2) <= 1).all(axis=1)
        if not same.any():
            kept.append(i)
    return kept


def _collect_task(
    bounds: tuple[int, int], sources: list[ArrayRef], kept: list[int], out: ArrayRef
) -> None:
    """Bring the labels of one block together."""
    out.write(bounds[0], np.ascontiguousarray(_together(bounds, sources)[:, kept]))


def kept_starts(blocks: RowBlocks, labels: ArrayRef, kept: list[int], scratch: Scratch) -> ArrayRef:
    """Return the labels of some starts."""
    out = scratch.create("kept_starts", (blocks.n_samples, len(kept)), np.uint8, blocks.rows)
    run_tasks(_collect_task, blocks.bounds, [labels], kept, out, label="m3fs starts", unit="blocks")
    return out


def _spectral_labels(
    spectral: SpectralEmbedding,
    blocks: RowBlocks,
    n_clusters: int,
    random_state: int,
    scratch: Scratch,
) -> tuple[list[tuple[str, int, bool]], ArrayRef]:
    """Cluster the rows of the embedding, of several widths, as they are and scaled to norm one."""
    n = blocks.n_samples
    width = min(spectral.embedding_ref.shape[1], n - 2)
    widths = sorted({min(max(1, n_clusters + extra), width) for extra in EXTRA_EIGENVECTORS})
    kinds = [(f"spectral {q}", q, False) for q in widths]
    kinds += [(f"spectral {q}, rows scaled", q, True) for q in widths if q > 1]
    chosen = np.arange(n)
    if n > SAMPLE_ROWS:
        draw = rng(random_state, "m3fs sample").choice(n, SAMPLE_ROWS, replace=False)
        chosen = np.sort(draw)
    wanted = scratch.put("chosen", chosen)
    centers = run_tasks(
        _centers_task,
        kinds,
        spectral.embedding_ref,
        wanted,
        n_clusters,
        random_state,
        label="m3fs spectral starts",
    )
    kept = [
        (kind, cluster_centers)
        for kind, cluster_centers in zip(kinds, centers, strict=True)
        if len(cluster_centers) > 1
    ]
    out = scratch.create("spectral", (n, len(kept)), np.uint8, blocks.rows)
    run_tasks(
        _nearest_task,
        blocks.bounds,
        spectral.embedding_ref,
        kept,
        out,
        label="m3fs spectral starts",
        unit="blocks",
    )
    return [kind for kind, _ in kept], out


def _view(rows: np.ndarray, width: int, scaled: bool) -> np.ndarray:
    """Return the first columns of embedded rows, scaled to norm one if asked."""
    rows = rows[:, :width]
    if not scaled:
        return rows
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)


def _centers_task(
    kind: tuple[str, int, bool],
    embedding: ArrayRef,
    wanted: ArrayRef,
    n_clusters: int,
    random_state: int,
) -> np.ndarray:
    """Return the centers of the best of ten restarts on the chosen rows."""
    name, width, scaled = kind
    rows = _view(embedding.take(wanted.load()), width, scaled)
    best, least = rows[:1], np.inf
    for restart in range(_RESTARTS):
        centers = cluster_rows(rows, n_clusters, rng(random_state, name, restart), max_iter=100)
        inertia = float(nearest_centers(rows, centers)[1].sum())
        if inertia < least:
            best, least = centers, inertia
    return best


def _nearest_task(
    bounds: tuple[int, int],
    embedding: ArrayRef,
    kept: list[tuple[tuple[str, int, bool], np.ndarray]],
    out: ArrayRef,
) -> None:
    """Write the labels of one block's rows under every kind of centers."""
    rows = embedding.read(*bounds)
    labels = np.empty((len(rows), len(kept)), dtype=np.uint8)
    for i, ((_, width, scaled), centers) in enumerate(kept):
        labels[:, i] = nearest_centers(_view(rows, width, scaled), centers)[0]
    out.write(bounds[0], labels)
