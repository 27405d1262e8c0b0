"""Cheaper candidates for wide rows: search a few principal components, then compare all features.

Where rows have hundreds of features, computing distances is most of an index's work, and a few
components already rank the neighbors almost rightly. Whether they do is measured on the rows at
hand: the projection is used only if true neighbors of test rows are among its candidates.
"""

from __future__ import annotations

import numpy as np

from bigfs.core.seeds import rng

# Narrower rows gain nothing, their distances are cheap; in wider ones finding components is not.
WIDE_FEATURES = range(192, 4097)
# Among projected rows pynndescent looks for more than are wanted: all features decide.
PROJECTED_WIDTH = 1.4
_SHARES = (5, 4, 3)
_MOST_COMPONENTS = 400
_FITTED_ROWS = 1500
_TEST_ROWS = 200
# pynndescent itself misses more than this leaves out.
_ENOUGH = 0.994
_TILE_BYTES = 16 * 1024**2


def most_components(n_features: int) -> int:
    """Return how many components rows of a width may be projected on; 0 if never."""
    if n_features not in WIDE_FEATURES:
        return 0
    return min(_MOST_COMPONENTS, n_features // min(_SHARES))


def projected_rows(rows: np.ndarray, n_neighbors: int, width: int, seed: int) -> np.ndarray | None:
    """Return projected rows whose ``width`` nearest hold the ``n_neighbors`` true ones.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float32 or float64
    n_neighbors, width : int
    seed : int

    Returns
    -------
    projected : ndarray of shape (n_rows, n_components), float32
        A fifth to a third of the features. None instead if the rows are narrow, few or very
        wide, or if not even a third is enough.
    """
    n, d = rows.shape
    most = most_components(d)
    if most == 0 or n <= 4 * _FITTED_ROWS:
        return None
    generator = rng(seed, "projection")
    sample = rows[np.sort(generator.choice(n, _FITTED_ROWS, replace=False))]
    mean = sample.mean(axis=0, dtype=np.float64)
    components = _leading(sample - mean, most, generator)
    tests = np.sort(generator.choice(n, _TEST_ROWS, replace=False))
    true = _nearest(rows, tests, mean, n_neighbors)
    projected = _project(rows, mean, components)
    for share in _SHARES:
        p = min(most, d // share)
        candidates = _nearest(projected[:, :p], tests, np.zeros(p), width)
        held = np.mean([np.isin(t, f).mean() for t, f in zip(true, candidates, strict=True)])
        if held >= _ENOUGH:
            return np.ascontiguousarray(projected[:, :p])
    return None


def _project(rows: np.ndarray, mean: np.ndarray, components: np.ndarray) -> np.ndarray:
    """Return the components of rows, float32."""
    out = np.empty((len(rows), components.shape[1]), np.float32)
    step = max(1, _TILE_BYTES // (8 * rows.shape[1]))
    origin = mean.astype(rows.dtype)
    for begin in range(0, len(rows), step):
        tile = (rows[begin : begin + step] - origin).astype(np.float32, copy=False)
        np.matmul(tile, components, out=out[begin : begin + step])
    return out


def _leading(sample: np.ndarray, n_components: int, generator: np.random.Generator) -> np.ndarray:
    """Return the leading right singular vectors of centered rows, float32, by a random start."""
    sample = sample.astype(np.float32)
    start = generator.normal(size=(len(sample), n_components + 10)).astype(np.float32)
    Q, _ = np.linalg.qr(sample.T @ start)
    Q, _ = np.linalg.qr(sample.T @ (sample @ Q))
    scores = sample @ Q
    values, vectors = np.linalg.eigh(scores.T @ scores)
    order = np.argsort(-values, kind="stable")[:n_components]
    return np.ascontiguousarray(Q @ vectors[:, order])


def _nearest(rows: np.ndarray, tests: np.ndarray, mean: np.ndarray, count: int) -> np.ndarray:
    """Return the nearest rows of some rows, unordered, in float32."""
    origin = mean.astype(rows.dtype)
    queries = (rows[tests] - origin).astype(np.float32) * -2
    near = np.empty((len(tests), 0), np.int64)
    reach = np.empty((len(tests), 0), np.float32)
    step = max(count, _TILE_BYTES // (8 * rows.shape[1]))
    for begin in range(0, len(rows), step):
        tile = (rows[begin : begin + step] - origin).astype(np.float32, copy=False)
        squared = queries @ tile.T
        squared += np.einsum("ij,ij->i", tile, tile)
        in_tile = np.flatnonzero((tests >= begin) & (tests < begin + len(tile)))
        squared[in_tile, tests[in_tile] - begin] = np.inf
        ids = np.broadcast_to(np.arange(begin, begin + len(tile)), squared.shape)
        near, reach = np.hstack([near, ids]), np.hstack([reach, squared])
        if near.shape[1] > count:
            kept = np.argpartition(reach, count - 1, axis=1)[:, :count]
            near = np.take_along_axis(near, kept, axis=1)
            reach = np.take_along_axis(reach, kept, axis=1)
    return near
