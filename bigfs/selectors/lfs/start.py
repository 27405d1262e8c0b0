"""Starts of LFS: given centroids or labels, or the best of several searches on a sample.

Restarts run each in one task, on rows in memory, and are compared as whole solutions: by how
well each cluster's normal law, in the features the cluster keeps, describes its rows (BIC).
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import Moments
from bigfs.blocks.kmeans import plus_plus
from bigfs.blocks.sample import gather_rows, gather_steps
from bigfs.core.cost import Shape, Step
from bigfs.core.errors import InputError, StorageError
from bigfs.core.seeds import rng
from bigfs.runtime.execute import inline, run_tasks
from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.held import HeldRows
from bigfs.selectors.lfs.kernels import Assignment
from bigfs.selectors.lfs.passes import RowPasses
from bigfs.selectors.lfs.search import begin, search
from bigfs.selectors.lfs.state import SearchState, load_state, save_state
from bigfs.solvers.separability import DIGITS, evidence
from bigfs.store.location import as_location
from bigfs.store.scratch import ArrayRef

# Rows that the restarts see.
START_ROWS = 5_000


def check_start(init: Any, n_clusters: int, n_samples: int, n_features: int) -> np.ndarray | None:
    """Return given centroids (n_clusters, n_features) or labels (n_samples,); None: k-means++.

    Raises
    ------
    InputError
        If it is none of them.
    """
    if isinstance(init, str):
        return None
    given = np.asarray(init)
    numbers = given.dtype.kind in "fiu" and bool(np.isfinite(given).all())
    if numbers and given.shape == (n_clusters, n_features):
        return given.astype(np.float64)
    if numbers and given.shape == (n_samples,) and given.dtype.kind in "iu":
        present = np.unique(given)
        if len(present) == n_clusters and present[0] == 0 and present[-1] == n_clusters - 1:
            return given.astype(np.int64)
    raise InputError(
        f"init must be 'k-means++', finite centroids of shape ({n_clusters}, {n_features}), or "
        f"{n_samples} labels in which each of 0 to {n_clusters - 1} occurs. Got {given.dtype} of "
        f"shape {given.shape}."
    )


def given_centers(given: np.ndarray, passes: RowPasses, n_clusters: int) -> np.ndarray:
    """Return first centers about the data's origin, from centroids or labels."""
    if given.ndim == 2:
        return np.asarray(given - passes.origin)
    blocks = passes.blocks
    name = blocks.scratch.unique("labels")
    stored = blocks.scratch.create(name, (blocks.n_samples,), np.int32, blocks.rows)
    for first, end in blocks.bounds:
        stored.write(first, given[first:end].astype(np.int32))
    centers = passes.label_means(stored, n_clusters)
    blocks.scratch.remove(stored)
    return centers


def draw_rows(blocks: RowBlocks, size: int, random_state: int) -> ArrayRef:
    """Return a random sample of the rows, in their order: one pass."""
    return gather_rows(blocks, _drawn(blocks.n_samples, size, random_state), "lfs sample")


def sample_shape(shape: Shape, size: int) -> Shape:
    """Return the shape of rows that `draw_rows` draws: one block, stored as one chunk."""
    return replace(shape, n_samples=size, block_rows=size, chunk_rows=size)


def _drawn(n_samples: int, size: int, random_state: int) -> np.ndarray:
    """Return the row numbers of a sample, ascending."""
    chosen = rng(random_state, "lfs sample").choice(n_samples, size, replace=False)
    return np.sort(chosen)


def rows_of_restarts(passes: RowPasses, random_state: int) -> ArrayRef:
    """Return the rows that restarts see, stored: all, or a sample of 5,000."""
    blocks = passes.blocks
    size = min(START_ROWS, blocks.n_samples)
    if not isinstance(passes, HeldRows):
        return draw_rows(blocks, size, random_state)
    rows = passes.rows[_drawn(blocks.n_samples, size, random_state)]
    return blocks.scratch.put(blocks.scratch.unique("start"), rows)


def restart_steps(
    shape: Shape, passes: type[RowPasses], restart: Step, n_init: int
) -> tuple[Step, ...]:
    """Return the steps of restarts over data of a shape, of which ``restart`` is one."""
    size = min(START_ROWS, shape.n_samples)
    drawn = () if passes.held else gather_steps(shape, size)
    what = f"a search on {size:,} rows: {restart.what}"
    return (*drawn, Step(what, restart.task_bytes, n_init, 0, 2 * n_init))


def best_restart(
    passes: RowPasses, n_clusters: int, parameters: LFSParameters, seed: int
) -> SearchState:
    """Return the best of several searches from k-means++ on all rows or a sample of them."""
    scratch = passes.blocks.scratch
    rows = rows_of_restarts(passes, seed)
    folder = scratch.child(scratch.unique("restarts"))
    restarts = run_tasks(
        _restart_task, list(range(parameters.n_init)), rows, str(folder.path), n_clusters,
        parameters, seed, label="lfs restarts", unit="restarts",
    )  # fmt: skip
    scores = np.round([score for score, _ in restarts], DIGITS)
    state = load_state(as_location(restarts[int(scores.argmax())][1]))
    folder.close()
    scratch.remove(rows)
    if state is None:
        raise StorageError(f"{folder.path}: the best restart cannot be read. Run again.")
    return state


def _restart_task(
    restart: int,
    data: ArrayRef,
    folder: str,
    n_clusters: int,
    parameters: LFSParameters,
    random_state: int,
) -> tuple[float, str]:
    """Search from one draw of k-means++; return the score, and where the solution is.

    Fewer distinct rows than clusters are a cluster each.
    """
    X = data.load()
    generator = rng(random_state, "lfs restart", restart)
    with inline():
        blocks = RowBlocks.from_any(X, rows=len(X))
        moments = blocks.moments()
        usable = usable_features(moments, "init")
        chosen = plus_plus(X[:, usable], n_clusters, generator)
        passes = HeldRows(blocks, moments.mean, rows=X)
        state = begin(passes, X[chosen] - moments.mean, usable, parameters)
        search(passes, state, parameters)
        score = score_of(passes.assign(assignment(state), False), state, moments.variance)
    path = as_location(folder) / f"{restart}-{uuid.uuid4().hex[:8]}.npz"
    save_state(path, state)
    return score, str(path)


def usable_features(moments: Moments, uri: str) -> np.ndarray:
    """Say which features vary.

    Raises
    ------
    InputError
        If none does.
    """
    usable = np.asarray(moments.minimum < moments.maximum)
    if not usable.any():
        raise InputError(f"{uri}: every feature is constant, so there are no clusters to find.")
    return usable


def assignment(state: SearchState) -> Assignment:
    """Return how rows are labeled once the search is over."""
    variances = [
        variance[subset].mean()
        for variance, subset in zip(state.sums.variances, state.subsets, strict=True)
    ]
    # A cluster of equal rows has no variance: only equal rows are near to it.
    floor = 1e-12 * max(variances) or 1.0
    return Assignment(state.rules, state.sums.means, state.subsets, np.maximum(variances, floor))


def score_of(label_sums: np.ndarray, state: SearchState, total: np.ndarray) -> float:
    """Return the evidence of a solution from the sums of its labels' rows."""
    d = state.subsets.shape[1]
    counts = label_sums[:, 0]
    n = np.maximum(counts, 1)[:, None]
    means, squares = label_sums[:, 1 : 1 + d] / n, label_sums[:, 1 + d :] / n
    return evidence(counts, squares - means**2, total, state.subsets)
