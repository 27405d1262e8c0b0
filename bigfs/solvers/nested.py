"""Curves over nested selections: explained variance and preserved neighbors.

They are computed from the products of the selected columns with all columns, or from the rows of a
sample; no I/O, no Dask.
"""

from __future__ import annotations

import numpy as np

# A column whose squared residual is at most this share of its squared norm is considered dependent
# on the previous ones, because the residual may be only rounding error.
_DEPENDENT = 1e-10
# Squared distances that differ by less than this share of the largest are ties.
_ROUNDING = 1e-12


def explained_by(cross: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the sum of squares of every column that each step of a path explains additionally.

    Parameters
    ----------
    cross : ndarray of shape (n_order, n_columns), float64
        ``Z_S'Z``: products of the centered columns S of the path, in its order, with all columns.
        A C-ordered array is overwritten with the result.
    order : ndarray of shape (n_order,), int
        Indices of S among the columns.

    Returns
    -------
    gains : ndarray of shape (n_order, n_columns), float64
        Squared projections of the columns onto the orthonormal basis of the path: the sum over the
        first m rows is what the first m columns of the path explain. Rows of path columns that
        depend on the previous ones are 0.

    Notes
    -----
    With ``G = R'R`` the Cholesky factorization of ``Z_S'Z_S``, these are the squares of
    ``R^-T Z_S'Z``.
    """
    cross = np.ascontiguousarray(cross)
    least = _DEPENDENT * cross[np.arange(len(order)), order]
    _explain(cross, order, least, 0, len(order))
    return np.square(cross, out=cross)


def _explain(cross: np.ndarray, order: np.ndarray, least: np.ndarray, begin: int, end: int) -> None:
    """Solve with the Cholesky factor for the rows ``begin`` to ``end``, in place.

    The rows are halved recursively, so that most of the work is matrix products.
    """
    from scipy.linalg.blas import dgemm

    if end - begin > 1:
        middle = (begin + end) // 2
        _explain(cross, order, least, begin, middle)
        before, rest = cross[begin:middle], cross[middle:end]
        # The transpose of C-ordered rows is in Fortran order: BLAS adds the product in place.
        dgemm(-1.0, before.T, before[:, order[middle:end]], beta=1.0, c=rest.T, overwrite_c=1)
        _explain(cross, order, least, middle, end)
    elif end > begin:
        row, left = cross[begin], cross[begin, order[begin]]
        row *= 1 / np.sqrt(left) if left > least[begin] else 0.0


def explained_others(
    gains: np.ndarray, order: np.ndarray, squares: np.ndarray, n: int
) -> np.ndarray:
    """Return the share of the other columns that the first 1, 2, ... columns explain beyond chance.

    The variance of the selected columns themselves is not counted, because a column always
    explains itself; the variance that a column of noise over ``n`` rows would explain of the
    others is subtracted.

    Parameters
    ----------
    gains : ndarray of shape (n_order, n_columns)
        Gains returned by `explained_by`.
    order : ndarray of shape (n_order,), int
    squares : ndarray of shape (n_columns,)
        Squared norms of the centered columns.
    n : int
        Number of rows.

    Returns
    -------
    shares : ndarray of shape (n_order,), float64
        Cumulative shares of the sum of ``squares``.
    """
    steps = np.arange(len(order))
    own = gains[steps, order]
    added = gains.sum(axis=1)
    left = squares.sum() - np.cumsum(added) + added - own
    chance = np.maximum(left, 0.0) / np.maximum(n - 2 - steps, 1)
    return np.cumsum(added - own - chance) / (float(squares.sum()) or 1.0)


def squared_distances(gram: np.ndarray) -> np.ndarray:
    """Return the squared distances of all pairs of rows, (n_rows, n_rows), from their products.

    The diagonal is infinite.
    """
    squares = gram.diagonal()
    distances = np.maximum(squares[:, None] + squares - 2 * gram, 0.0)
    np.fill_diagonal(distances, np.inf)
    return distances


def kth_smallest(distances: np.ndarray, k: int) -> np.ndarray:
    """Return the k-th smallest value of each row plus a rounding tolerance, shape (n_rows, 1)."""
    finite = distances[np.isfinite(distances)]
    return np.partition(distances, k - 1, axis=1)[:, k - 1 : k] + _ROUNDING * finite.max(initial=0)


def neighbors_kept(distances: np.ndarray, near: np.ndarray, k: int) -> np.ndarray:
    """Return the share of the true neighbors of each row that are among its k nearest rows.

    Parameters
    ----------
    distances : ndarray of shape (n_rows, n_rows), float64
        Squared distances in the selected columns, infinite on the diagonal.
    near : ndarray of shape (n_rows, n_rows), bool
        True neighbors: rows at most as far as the k-th neighbor in all columns.
    k : int

    Returns
    -------
    shares : ndarray of shape (n_rows,), float64
        Shares, averaged over all orders of rows with equal distance.
    """
    reach = kth_smallest(distances, k)
    within = distances <= reach
    slack = _ROUNDING * np.where(np.isfinite(distances), distances, 0.0).max(initial=0)
    nearer = distances < reach - 2 * slack
    tied = within & ~nearer
    places = (k - nearer.sum(axis=1)) / np.maximum(tied.sum(axis=1), 1)
    kept = (nearer & near).sum(axis=1) + places * (tied & near).sum(axis=1)
    return kept / k
