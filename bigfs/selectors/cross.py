"""Centered cross-products of all features with other columns, from one pass over the data.

The other columns are a subset of the features, or dense columns with the same rows. Runs on
workers; imports no scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import centered_entries, csr_moments, kernel_bytes
from bigfs.blocks.kernels import as_dense, column_means, tile_rows
from bigfs.core.cost import Shape
from bigfs.store.scratch import ArrayRef

# Number of columns of a dense array that are multiplied with CSR rows at a time.
GROUP = 128


@dataclass
class Cross:
    """Centered cross-products of all features with other columns, over a set of rows."""

    count: int
    mean: np.ndarray  # of shape (n_features,), float64
    other_mean: np.ndarray  # of shape (n_others,), float64
    cross: np.ndarray  # of shape (n_features, n_others), float64, Fortran order: ``X'Z - n x z'``
    squares: np.ndarray  # of shape (n_features,), float64: sums of squared deviations from the mean


def side_bytes(shape: Shape, n_columns: int) -> int:
    """Return the bytes that `sparse_cross` needs in addition to a CSR block and its result."""
    if shape.n_entries is None:
        return 0
    group = min(GROUP, n_columns)
    thin = 8 * (shape.rows * (n_columns + group) + 2 * shape.n_features * group)
    return kernel_bytes(shape) + thin


def own_bytes(shape: Shape, n_columns: int) -> int:
    """Return the bytes that `sparse_own_cross` needs in addition to a CSR block and its result."""
    if shape.n_entries is None:
        return 0
    # The centered entries and their transpose, and the products of a group, sparse and dense.
    return 2 * kernel_bytes(shape) + 4 * 8 * shape.n_features * min(GROUP, n_columns)


def cross_pass(
    blocks: RowBlocks,
    centered: bool,
    features: np.ndarray | None,
    Y: ArrayRef | None,
    label: str = "regression",
) -> Cross:
    """Return ``X'X_C`` or ``X'Y`` from one pass.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    centered : bool
        True for the products of centered columns, False for those of the columns themselves.
    features : ndarray of int or None
        The features C. None if ``Y`` is given.
    Y : ArrayRef of shape (n_samples, n_others) or None
    label : str, default="regression"
        Name of the pass in progress reports.
    """
    total: Cross = blocks.reduce(_cross_kernel, merge_cross, features, Y, label=label)
    if blocks.offset is not None:
        total.mean = total.mean + blocks.offset
        if features is not None:
            total.other_mean = total.other_mean + blocks.offset[features]
    if not centered:
        total.cross += total.count * np.multiply.outer(total.mean, total.other_mean)
    return total


def _cross_kernel(
    X: np.ndarray, first_row: int, features: np.ndarray | None, Y: ArrayRef | None
) -> Cross:
    rows = None if Y is None else Y.read(first_row, first_row + X.shape[0])
    if hasattr(X, "indptr"):
        return sparse_cross(X, as_dense(X[:, features]) if rows is None else rows)
    return dense_cross([X], features if rows is None else rows)


def dense_cross(parts: list[np.ndarray], others: Any) -> Cross:
    """Return the products of dense columns with other columns or with a subset of themselves.

    Parameters
    ----------
    parts : list of ndarray of shape (n_rows, any)
        Columns; the arrays are concatenated side by side.
    others : ndarray of shape (n_rows, n_others), or of shape (n_others,), int
        Other columns, or the indices of a subset of the columns.
    """
    from scipy.linalg.blas import dgemm

    n, mean = len(parts[0]), np.concatenate([column_means(part) for part in parts])
    other_mean = mean[others] if others.ndim == 1 else others.mean(axis=0, dtype=np.float64)
    cross = np.zeros((len(mean), len(other_mean)), order="F")
    squares = np.zeros(len(mean))
    step = tile_rows(len(mean))
    for begin in range(0, n, step):
        tile = np.hstack([part[begin : begin + step] for part in parts], dtype=np.float64)
        tile -= mean
        if others.ndim == 1:
            side = np.ascontiguousarray(tile[:, others])
        else:
            side = others[begin : begin + step] - other_mean
        # The transpose of a C-ordered tile is in Fortran order, so that BLAS makes no copies.
        cross = dgemm(1.0, tile.T, side.T, trans_b=1, beta=1.0, c=cross, overwrite_c=1)
        squares += np.einsum("ij,ij->j", tile, tile)
    return Cross(n, mean, other_mean, cross, squares)


def sparse_cross(X: Any, side: np.ndarray) -> Cross:
    """Return the products of a CSR block with dense columns.

    The products are exactly zero for features that are constant in these rows.
    """
    side = side.astype(np.float64)
    mean, moments = column_means(side), csr_moments(X)
    side -= mean
    transposed = X.astype(np.float64).T
    cross = np.empty((X.shape[1], side.shape[1]), order="F")
    for begin in range(0, side.shape[1], GROUP):
        part = np.ascontiguousarray(side[:, begin : begin + GROUP])
        products = transposed @ part
        products -= np.multiply.outer(moments.mean, part.sum(axis=0))
        cross[:, begin : begin + GROUP] = products
    cross[moments.constant] = 0.0
    return Cross(moments.count, moments.mean, mean, cross, moments.squares)


def sparse_own_cross(X: Any, features: np.ndarray) -> Cross:
    """Return the products of a CSR block with a subset of its columns, which stay sparse.

    The products are exactly zero for features that are constant in these rows.
    """
    from scipy.linalg.blas import dger

    moments, n = csr_moments(X), X.shape[0]
    entries = centered_entries(X)
    mean = np.asarray(entries.sum(axis=0)) / n  # the remaining mean of the entries
    side = entries[:, features].T.tocsr()
    cross = np.empty((len(features), X.shape[1]))
    for begin in range(0, len(features), GROUP):
        group = slice(begin, begin + GROUP)
        (side[group] @ entries).toarray(out=cross[group])
        dger(-n, mean, mean[features[group]], a=cross[group].T, overwrite_a=1)
    cross[:, moments.constant] = 0.0
    cross[moments.constant[features]] = 0.0
    return Cross(moments.count, moments.mean, moments.mean[features], cross.T, moments.squares)


def merge_cross(a: Cross, b: Cross) -> Cross:
    """Merge the products of two sets of rows (Chan, Golub, LeVeque 1979).

    The memory of the first is reused.
    """
    from scipy.linalg.blas import dger

    count = a.count + b.count
    weight, share = a.count * b.count / count, b.count / count
    delta, other_delta = b.mean - a.mean, b.other_mean - a.other_mean
    a.cross += b.cross
    cross = dger(weight, delta, other_delta, a=a.cross, overwrite_a=1)
    return Cross(
        count,
        a.mean + share * delta,
        a.other_mean + share * other_delta,
        cross,
        a.squares + b.squares + weight * delta**2,
    )
