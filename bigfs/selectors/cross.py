"""Products of all features with some companions, centered, from one pass over the data.

Runs on workers; imports no scikit-learn.
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

# Columns of a thin dense array that are multiplied with CSR rows at a time.
GROUP = 128


@dataclass
class Cross:
    """Centered second moments of all features with some companions, of some rows."""

    count: int
    mean: np.ndarray  # of shape (n_features,), float64
    other_mean: np.ndarray  # of shape (n_others,), float64
    cross: np.ndarray  # of shape (n_features, n_others), float64, Fortran order: ``X'Z - n x z'``
    squares: np.ndarray  # of shape (n_features,), float64: sums of squared deviations from the mean


def side_bytes(shape: Shape, n_columns: int) -> int:
    """Return the bytes that `sparse_cross` needs beside a CSR block and its result."""
    if shape.n_entries is None:
        return 0
    group = min(GROUP, n_columns)
    thin = 8 * (shape.rows * (n_columns + group) + 2 * shape.n_features * group)
    return kernel_bytes(shape) + thin


def own_bytes(shape: Shape, n_columns: int) -> int:
    """Return the bytes that `sparse_own_cross` needs beside a CSR block and its result."""
    if shape.n_entries is None:
        return 0
    # Entries as they are, centered and transposed; a group as sparse and as dense products.
    return 2 * kernel_bytes(shape) + 4 * 8 * shape.n_features * min(GROUP, n_columns)


def cross_pass(
    blocks: RowBlocks,
    centered: bool,
    features: np.ndarray | None,
    Y: ArrayRef | None,
    label: str = "regression",
) -> Cross:
    """Return X'X_C or X'Y in one pass; of centered columns, or as they are."""
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
    """Return the products of dense columns, side by side, with others or with some of themselves.

    Parameters
    ----------
    parts : list of ndarray of shape (n_rows, any)
    others : ndarray of shape (n_rows, n_others), or of shape (n_others,), int
        Columns, or the places of some.
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
        # C-ordered tiles are their own transposes in Fortran order: no copies are made.
        cross = dgemm(1.0, tile.T, side.T, trans_b=1, beta=1.0, c=cross, overwrite_c=1)
        squares += np.einsum("ij,ij->j", tile, tile)
    return Cross(n, mean, other_mean, cross, squares)


def sparse_cross(X: Any, side: np.ndarray) -> Cross:
    """Return the products of a CSR block with dense columns.

    They are exactly zero for features that are constant in these rows.
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
    """Return the products of a CSR block with some of its columns, which stay sparse.

    They are exactly zero for features that are constant in these rows.
    """
    from scipy.linalg.blas import dger

    moments, n = csr_moments(X), X.shape[0]
    entries = centered_entries(X)
    mean = np.asarray(entries.sum(axis=0)) / n  # of what is not centered yet
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
    """Merge two sets of rows (Chan, Golub, LeVeque 1979), using the memory of the first."""
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
