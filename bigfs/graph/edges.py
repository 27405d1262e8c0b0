"""Edge passes: sums over the edges of a graph of what their two rows of X say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks.kernels import tile_rows
from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.cost import Shape, Step, pass_over
from bigfs.core.units import MIB
from bigfs.graph.affinity import AffinityMatrix
from bigfs.runtime.execute import map_reduce


@dataclass
class EdgeMoments:
    """Per-feature sums over edges and degree-weighted moments of some rows.

    Attributes
    ----------
    smoothness : ndarray of shape (n_features,), float64
        ``f'Lf``: the sum of ``w_ij (f_i - f_j)^2`` over edges, each counted once.
    weight : float
        Sum of the degrees.
    mean : ndarray of shape (n_features,), float64
        Degree-weighted mean.
    spread : ndarray of shape (n_features,), float64
        ``f'Df - (f'D1)^2 / 1'D1``: degree-weighted squared deviations.
    """

    smoothness: np.ndarray
    weight: float
    mean: np.ndarray
    spread: np.ndarray


def edge_moments(blocks: RowBlocks, W: AffinityMatrix) -> EdgeMoments:
    """Return ``f'Lf`` and the degree-weighted spread of every feature.

    Each block is one task, which also reads the rows its edges lead to, one other block at a
    time; an edge is counted where its smaller end lives.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    W : AffinityMatrix
        Over the same rows.
    """
    reader = blocks.start_pass()
    return map_reduce(_edge_task, blocks.bounds, _merge, reader, W, blocks.rows, label="edges")


def edges_step(shape: Shape, n_neighbors: int) -> Step:
    """Return the step of `edge_moments`: each block with one other at a time."""
    edges = 2 * shape.rows * n_neighbors
    needed = shape.read_bytes + 40 * edges + 32 * MIB
    # Rows of one neighborhood lie in few blocks where rows are in order, in all where they are not.
    return pass_over(shape, "a block, one that its edges lead to", needed)


def _edge_task(
    bounds: tuple[int, int], reader: BlockReader, W: AffinityMatrix, rows: int
) -> EdgeMoments:
    """Sum over the edges whose smaller end is in one block."""
    start, stop = bounds
    X = reader.read(start, stop)
    indptr = W.indptr.read(start, stop + 1)
    first, last = int(indptr[0]), int(indptr[-1])
    heads = np.repeat(np.arange(start, stop), np.diff(indptr))
    tails = W.indices.read(first, last)
    weights = W.data.read(first, last).astype(np.float64)
    once = heads < tails
    heads, tails, weights = heads[once], tails[once], weights[once]
    smoothness = np.zeros(X.shape[1])
    home = tails // rows
    for other in np.unique(home):
        here = home == other
        base = int(other) * rows
        if base == start:
            Z = X
        else:
            low, high = int(tails[here].min()), int(tails[here].max())
            base, Z = low, reader.read(low, high + 1)
        smoothness += _edge_sum(X, heads[here] - start, Z, tails[here] - base, weights[here])
    return _with_spread(X, W.degrees.read(start, stop), smoothness)


def _edge_sum(
    X: np.ndarray, i: np.ndarray, Z: np.ndarray, j: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return the sum of ``w (x_i - z_j)^2`` per feature, in tiles of edges."""
    total = np.zeros(X.shape[1])
    step = tile_rows(X.shape[1])
    for begin in range(0, len(i), step):
        part = slice(begin, begin + step)
        gap = X[i[part]].astype(np.float64)
        gap -= Z[j[part]]
        total += np.einsum("e,ef,ef->f", weights[part], gap, gap)
    return total


def _with_spread(X: np.ndarray, degrees: np.ndarray, smoothness: np.ndarray) -> EdgeMoments:
    """Add the degree-weighted moments of a block to its edge sums."""
    weight = float(degrees.sum())
    mean = np.zeros(X.shape[1])
    step = tile_rows(X.shape[1])
    for begin in range(0, len(X), step):
        mean += degrees[begin : begin + step] @ X[begin : begin + step].astype(np.float64)
    mean /= weight
    # The rounded mean of equal values can differ from them in the last bit.
    constant = (X == X[0]).all(axis=0)
    mean[constant] = X[0, constant]
    spread = np.zeros(X.shape[1])
    for begin in range(0, len(X), step):
        tile = X[begin : begin + step] - mean
        spread += np.einsum("i,ij,ij->j", degrees[begin : begin + step], tile, tile)
    return EdgeMoments(smoothness, weight, mean, spread)


def _merge(a: EdgeMoments, b: EdgeMoments) -> EdgeMoments:
    weight = a.weight + b.weight
    delta = b.mean - a.mean
    return EdgeMoments(
        a.smoothness + b.smoothness,
        weight,
        a.mean + delta * (b.weight / weight),
        a.spread + b.spread + delta**2 * (a.weight * b.weight / weight),
    )
