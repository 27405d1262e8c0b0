"""Quadratic form of the smoothness from one edge pass: ``Z'Ln Z / n``, ``Z = [X - center, 1]``.

``Ln = I - D^-1/2 W D^-1/2``. Each task sums over the rows of its block, and reads their neighbors
from the other blocks, one block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf

from bigfs.blocks.kernels import tile_rows
from bigfs.blocks.rowblocks import BlockReader, RowBlocks, fold_parts
from bigfs.core.cost import Shape, Step, pass_over
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.core.units import MIB
from bigfs.graph import AffinityMatrix
from bigfs.graph.edges import by_block
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.store.scratch import ArrayRef

# Every pair of rows is visited twice: minutes at this number.
MAX_FULL_ROWS = 50_000
_TILE = 2048
# Matrices of n_features^2 in memory at once while the form is clipped.
_CLIPPED = 6
# Share of itself that is added to every diagonal entry, because a form may be singular. It is far
# below the tolerance of the cone programs.
_DEFINITE = 1e-12


def smooth_form(blocks: RowBlocks, W: AffinityMatrix, center: ArrayRef) -> np.ndarray:
    """Return the form for a stored graph, positive semidefinite.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    W : AffinityMatrix
        Graph over the same rows.
    center : ArrayRef of shape (n_features,)
        Subtracted from every row.

    Returns
    -------
    form : ndarray of shape (n_features + 1, n_features + 1), float64
    """
    reader = blocks.start_pass()
    total = map_reduce(
        _edge_task, blocks.bounds, np.add, reader, W, blocks.rows, center, label="smoothness"
    )
    return _finished(total, blocks.n_samples)


def full_form(blocks: RowBlocks, sigma: float, center: ArrayRef) -> np.ndarray:
    """Return the form for the complete graph with weights ``exp(-|x_i - x_j|^2 / sigma)``.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    sigma : float
        The paper's ``2 rho^2``.
    center : ArrayRef of shape (n_features,)
        Subtracted from every row.

    Raises
    ------
    InputError
        If all weights of a row are zero.
    """
    n = blocks.n_samples
    degrees = blocks.scratch.create(blocks.scratch.unique("degrees"), (n,), np.float64, blocks.rows)
    pairs = _AllPairs(blocks.start_pass(2), blocks.bounds, sigma, center, degrees)
    run_tasks(_degree_task, blocks.bounds, pairs, label="degrees", unit="blocks")
    lowest = float(degrees.load().min())
    if not lowest > 0:
        raise InputError(
            f"graph 'full': all weights of a row are zero for sigma {sigma:.3g}. Raise sigma, or "
            "scale the features."
        )
    total = map_reduce(_full_task, blocks.bounds, np.add, pairs, label="smoothness")
    blocks.scratch.remove(degrees)
    return _finished(total, n)


def check_full(n_samples: int, weight: str) -> None:
    """Raise if a complete graph does not support these weights or ``n_samples`` rows.

    Raises
    ------
    InputError
        If the weights are not heat weights.
    MemoryLimitError
        If there are more than `MAX_FULL_ROWS` rows.
    """
    if weight != "heat":
        raise InputError(
            f"graph 'full' needs heat weights, but graph.weight is '{weight}'. Set it to 'heat', "
            "or m3fs.graph to 'knn'."
        )
    if n_samples > MAX_FULL_ROWS:
        raise MemoryLimitError(
            f"graph 'full' compares all pairs of rows and supports at most {MAX_FULL_ROWS:,} rows. "
            f"X has {n_samples:,}. Set graph to 'knn', or set sample_size."
        )


def uncentered_form(form: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Return the form of the columns before ``center`` was subtracted from them."""
    form = form.copy()
    form[:-1] += np.outer(center, form[-1])
    form[:, :-1] += np.outer(form[:, -1], center)
    return form


def smooth_steps(shape: Shape, n_neighbors: int) -> tuple[Step, ...]:
    """Return the steps of `smooth_form`."""
    edges = 2 * shape.rows * n_neighbors
    # The second block, the edges, and tiles in float64.
    needed = shape.block_bytes + 56 * edges + 24 * MIB
    return _form_steps(shape, "a block, a block of its neighbors", needed)


def full_steps(shape: Shape) -> tuple[Step, ...]:
    """Return the steps of `full_form`."""
    rows = min(_TILE, shape.rows)
    # Two tiles in float64 with their products, four copies of the weights between them, degrees.
    needed = 8 * rows * (4 * shape.n_features + 4 * rows) + 8 * shape.n_samples + 32 * MIB
    return _form_steps(shape, "two tiles of rows, their weights", needed, times=2)


def _form_steps(shape: Shape, what: str, needed: int, times: int = 1) -> tuple[Step, ...]:
    """Return the steps of the passes, and of the final transformation on the client.

    A task of a pass needs ``needed`` bytes in addition to the sums of a fold.
    """
    width, parts = shape.n_features + 1, fold_parts(shape.n_blocks) + 1
    size = f"{width:,} x {width:,}"
    summed, needed = f"{what}, and {parts} sums of {size}", needed + 8 * parts * width**2
    clipped = f"{_CLIPPED} matrices of {size} for smoothness"
    return (
        pass_over(shape, summed, needed, times=times),
        Step(clipped, 8 * _CLIPPED * width**2, by_client=True),
    )


def _finished(total: np.ndarray, n: int) -> np.ndarray:
    """Return the form of a sum over all edges, made positive semidefinite.

    This is done in units in which the diagonal is 1: else the entries of the intercept, or of
    features in a small unit, would drown in the rounding errors of the others.
    """
    form = (total + total.T) / (2 * n)
    units = np.sqrt(np.abs(form.diagonal()))
    units[units == 0] = 1.0
    form /= units
    form /= units[:, None]
    form.flat[:: len(form) + 1] += _DEFINITE
    if dpotrf(form)[1]:  # rounding errors exceed what was added, or weights have both signs
        values, vectors = np.linalg.eigh(form)
        form = (vectors * np.maximum(values, 0.0)) @ vectors.T
    form *= units
    form *= units[:, None]
    return np.asarray(form)


def _rows(X: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Return ``[X - center, 1]`` in float64."""
    Z = np.ones((len(X), X.shape[1] + 1))
    np.subtract(X, center, out=Z[:, :-1])
    return Z


def _edge_task(
    bounds: tuple[int, int], reader: BlockReader, W: AffinityMatrix, rows: int, center: ArrayRef
) -> np.ndarray:
    """Return ``Z'(Z - D^-1/2 W D^-1/2 Z)``, with the left factor restricted to one block's rows."""
    from scipy.sparse import csr_array

    start, stop = bounds
    mean = center.load()
    X = reader.read(start, stop)
    indptr, tails, weights = W.read(start, stop)
    heads = np.repeat(np.arange(stop - start), np.diff(indptr))
    weights = weights / np.sqrt(W.degrees.read(start, stop)[heads] * W.degrees.take(tails))
    step = tile_rows(X.shape[1])
    total = np.zeros((X.shape[1] + 1, X.shape[1] + 1))
    for begin in range(0, len(X), step):
        Z = _rows(X[begin : begin + step], mean)
        total += Z.T @ Z
    for entries, low, others in by_block(tails, reader, X, start, rows):
        shape = (stop - start, len(others))
        part = csr_array((weights[entries], (heads[entries], tails[entries] - low)), shape=shape)
        for begin in range(0, len(others), step):
            columns = part[:, begin : begin + step]
            touched = np.flatnonzero(np.diff(columns.indptr))
            if not len(touched):
                continue
            Z = _rows(others[begin : begin + step], mean)
            for inner in range(0, len(touched), step):
                own = touched[inner : inner + step]
                total -= _rows(X[own], mean).T @ (columns[own] @ Z)
    return total


def _weights(A: np.ndarray, B: np.ndarray, sigma: float, same: bool) -> np.ndarray:
    """Return the heat weights between centered rows, zero between a row and itself."""
    squared = A @ (-2 * B.T)
    squared += np.einsum("ij,ij->i", A, A)[:, None]
    squared += np.einsum("ij,ij->i", B, B)
    weights = np.exp(-np.maximum(squared, 0.0) / sigma)
    if same:
        np.fill_diagonal(weights, 0.0)
    return weights


def _tiles(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [
        (begin, min(stop, begin + _TILE))
        for start, stop in bounds
        for begin in range(start, stop, _TILE)
    ]


@dataclass(frozen=True)
class _AllPairs:
    """Input of the tasks over all pairs of rows, and the array that stores the degrees."""

    reader: BlockReader
    bounds: list[tuple[int, int]]
    sigma: float
    center: ArrayRef
    degrees: ArrayRef


def _smoothed(
    block: tuple[int, int], pairs: _AllPairs, right: Callable[[slice, np.ndarray], np.ndarray]
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield tiles of a block's rows Z, and their rows of ``W R``, where ``R = right(rows, Z)``.

    Each tile is a tuple of the row slice, Z and ``W R``; R is computed from the tiles of all rows.
    """
    read, mean = pairs.reader.read, pairs.center.load()
    for begin, end in _tiles([block]):
        own, total = _rows(read(begin, end), mean), 0.0
        for low, high in _tiles(pairs.bounds):
            others = _rows(read(low, high), mean)
            weights = _weights(own[:, :-1], others[:, :-1], pairs.sigma, begin == low)
            total = total + weights @ right(slice(low, high), others)
        yield slice(begin, end), own, np.asarray(total)


def _degree_task(block: tuple[int, int], pairs: _AllPairs) -> None:
    """Store the degrees of one block's rows."""
    sums = [total for _, _, total in _smoothed(block, pairs, lambda _, Z: Z[:, -1])]
    pairs.degrees.write(block[0], np.concatenate(sums))


def _full_task(block: tuple[int, int], pairs: _AllPairs) -> np.ndarray:
    """Return the part of the form with the left factor restricted to one block's rows."""
    root = 1 / np.sqrt(pairs.degrees.load())[:, None]
    tiles = _smoothed(block, pairs, lambda rows, Z: root[rows] * Z)
    return np.asarray(sum(Z.T @ (Z - root[rows] * moved) for rows, Z, moved in tiles))
