"""The edge pass of UDFS: the neighborhoods' discriminative matrices, summed over all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks.kernels import tile_rows
from bigfs.blocks.rowblocks import BlockReader, RowBlocks, fold_parts
from bigfs.core.cost import Shape, Step
from bigfs.runtime.execute import map_reduce
from bigfs.solvers.sparserows import SparseRows
from bigfs.solvers.udfs import ProductForm, SparseForm, local_factors
from bigfs.store.chunking import block_bounds
from bigfs.store.scratch import ArrayRef

# Neighborhoods whose rows a task gathers at once: beyond it, other blocks are read again.
GATHERED_BYTES = 256 * 1024**2
# Eigenvalues of M below this share of the largest are rounding.
_RANK_TOL = 1e-12
# A ridge below this share of a row's squared norm asks for distances that are not rounded.
_RIDGE_TOL = 1e-6


@dataclass
class LocalScatter:
    """The sum over some rows, and the range of the features there."""

    M: np.ndarray  # of shape (n_features, n_features), float64, Fortran order: upper triangle only
    # Of shape (n_features,).
    minimum: np.ndarray
    maximum: np.ndarray


def local_scatter(
    blocks: RowBlocks, neighbors: ArrayRef, ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``X'MX`` of UDFS in one edge pass, and which features vary.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    neighbors : ArrayRef of shape (n_samples, n_neighbors)
    ridge : float
        The paper's lambda.

    Returns
    -------
    M : ndarray of shape (n_features, n_features), float64
    varies : ndarray of shape (n_features,), bool
    """
    reader = blocks.start_pass()
    total = map_reduce(
        _scatter_task, blocks.bounds, _merge, reader, neighbors, blocks.rows, ridge,
        label="neighborhoods",
    )  # fmt: skip
    return _mirrored(total.M), total.maximum > total.minimum


def product_form(rows: np.ndarray, neighbors: np.ndarray, ridge: float) -> ProductForm:
    """Return the same M of few rows as a product, from their coordinates in their own span.

    Parameters
    ----------
    rows : ndarray of shape (n_samples, n_features), float64
        Of features that vary; they may be fewer than the rows.
    neighbors : ndarray of shape (n_samples, n_neighbors)
    ridge : float
    """
    from scipy.linalg import qr

    n = len(rows)
    # Against the first row: a span of one dimension less, and no mean that rounding blurs.
    basis, factor = qr((rows[1:] - rows[0]).T, mode="economic", overwrite_a=True)
    width = len(factor)
    table = np.zeros((n, width))
    table[1:] = factor.T
    M = np.zeros((width, width), order="F")
    M = _add_scatter(M, table, np.column_stack([np.arange(n), neighbors]), ridge)
    values, vectors = np.linalg.eigh(_mirrored(M))
    kept = values > _RANK_TOL * values[-1]
    basis = basis @ vectors[:, kept]
    outside = np.maximum(1 - np.einsum("ij,ij->i", basis, basis), 0.0)
    basis *= np.sqrt(values[kept])
    return ProductForm(basis, outside)


def sparse_form(entries: Any, neighbors: np.ndarray, ridge: float) -> SparseForm | None:
    """Return `product_form` of rows that are mostly zeros; None where that would lose digits.

    Parameters
    ----------
    entries : csr_array of shape (n_samples, n_features), float64
    neighbors : ndarray of shape (n_samples, n_neighbors)
    ridge : float
    """
    from scipy.linalg import LinAlgError, inv
    from scipy.sparse import csgraph, csr_array

    n, d = entries.shape
    members = np.column_stack([np.arange(n), neighbors])
    size = members.shape[1]
    places = np.repeat(members, size, axis=1).ravel(), np.tile(members, size).ravel()
    ones = csr_array((np.ones(n * size**2), places), shape=(n, n))
    # S adds neighborhoods up, each less its mean: it takes the mean of a component for zero.
    rows = SparseRows(entries, csgraph.connected_components(ones, directed=False)[1])
    gram = rows.products(np.ones(d))
    if ridge < _RIDGE_TOL * gram.diagonal().max():
        return None  # rounding of these products is not small beside it
    center = np.eye(size) - 1 / size
    local = center @ gram[members[:, :, None], members[:, None, :]] @ center
    values, vectors = np.linalg.eigh(local)
    local = (vectors / (np.maximum(values, 0) + ridge)[:, None, :]) @ vectors.transpose(0, 2, 1)
    S = csr_array(((center @ local @ center).ravel(), places), shape=(n, n))
    full = S.toarray() + S.trace() / n * (rows.members @ rows.members.T)
    try:
        inverse = inv(full, assume_a="pos", overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    values, vectors = np.linalg.eigh(gram)
    kept = values > _RANK_TOL * values[-1]
    basis = rows.transposed_times(vectors[:, kept])
    outside = np.maximum(1 - np.square(basis, out=basis) @ (1 / values[kept]), 0.0)
    return SparseForm(rows, S, inverse, outside)


def _mirrored(M: np.ndarray) -> np.ndarray:
    """Fill in the lower triangle."""
    for row in range(len(M) - 1):
        M[row + 1 :, row] = M[row, row + 1 :]
    return M


def scatter_step(shape: Shape, n_neighbors: int) -> Step:
    """Return the step of `local_scatter`.

    A task needs its block, the one read beside it and the gathered rows, each of them once. A
    process also holds sums of n_features^2: those of a fold, and one that is being made.
    """
    d, n_sums = shape.n_features, fold_parts(shape.n_blocks) + 1
    at_once = min(shape.rows, gathered_rows(d, shape.itemsize, n_neighbors))
    rows = 2 * shape.rows + min(shape.n_samples, at_once * (n_neighbors + 1))
    needed = rows * d * shape.itemsize + 8 * n_sums * d**2 + 32 * 10**6
    what = f"a block with its neighbors' rows, and {n_sums} sums of {d:,} x {d:,}"
    return Step(what, needed, shape.n_blocks, 1, shape.n_chunks)


def gathered_rows(n_features: int, itemsize: int, n_neighbors: int) -> int:
    """Return how many rows have their neighborhoods gathered at once."""
    return max(1, GATHERED_BYTES // ((n_neighbors + 1) * n_features * itemsize))


def _scatter_task(
    bounds: tuple[int, int], reader: BlockReader, neighbors: ArrayRef, rows: int, ridge: float
) -> LocalScatter:
    """Sum over the neighborhoods of one block's rows."""
    start, stop = bounds
    X = reader.read(start, stop)
    d = X.shape[1]
    listed = neighbors.read(start, stop)
    size = listed.shape[1] + 1
    M = np.zeros((d, d), order="F")
    for first, end in block_bounds(stop - start, gathered_rows(d, X.itemsize, size - 1)):
        members = np.column_stack([np.arange(start + first, start + end), listed[first:end]])
        wanted, places = np.unique(members, return_inverse=True)
        table = _gather(wanted, X, start, reader, rows)
        places = places.reshape(members.shape)
        M = _add_scatter(M, table, places, ridge)
    return LocalScatter(M, X.min(axis=0), X.max(axis=0))


def _add_scatter(M: np.ndarray, table: np.ndarray, places: np.ndarray, ridge: float) -> np.ndarray:
    """Add the neighborhoods whose rows are at some places of a table to the upper triangle."""
    from scipy.linalg.blas import dsyrk

    d = table.shape[1]
    step = max(1, tile_rows(d) // places.shape[1])
    for begin in range(0, len(places), step):
        group = places[begin : begin + step]
        Z = table[group].astype(np.float64)
        # Against the row itself first: a value that all share leaves nothing, not rounding.
        Z -= Z[:, :1].copy()
        Z -= Z.mean(axis=1, keepdims=True)
        R = local_factors(Z, ridge).reshape(-1, d)
        M = dsyrk(1.0, R.T, beta=1.0, c=M, overwrite_c=1)
    return M


def _gather(
    wanted: np.ndarray, X: np.ndarray, start: int, reader: BlockReader, rows: int
) -> np.ndarray:
    """Return scattered rows, ascending, reading one other block at a time."""
    table = np.empty((len(wanted), X.shape[1]), dtype=X.dtype)
    home = wanted // rows
    for other in np.unique(home):
        in_block = home == other
        if other * rows == start:
            table[in_block] = X[wanted[in_block] - start]
        else:
            low = int(wanted[in_block][0])
            table[in_block] = reader.read(low, int(wanted[in_block][-1]) + 1)[
                wanted[in_block] - low
            ]
    return table


def _merge(a: LocalScatter, b: LocalScatter) -> LocalScatter:
    a.M += b.M
    return LocalScatter(a.M, np.minimum(a.minimum, b.minimum), np.maximum(a.maximum, b.maximum))
