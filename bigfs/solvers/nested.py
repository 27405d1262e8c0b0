"""Curves over nested selections: explained variance, and neighbors kept.

Everything follows from the products of the selected columns with all columns, or from the rows of a
sample; no I/O, no Dask.
"""

from __future__ import annotations

import numpy as np

# A column whose rest is a smaller share of it than this adds nothing but rounding.
_DEPENDENT = 1e-10
# Squared distances that differ by less, as a share of the largest, are equal.
_ROUNDING = 1e-12


def explained_by(cross: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the squares of all columns that each one of a path explains beyond those before it.

    Parameters
    ----------
    cross : ndarray of shape (n_order, n_columns), float64
        ``Z_S'Z``: products of the centered columns S of the path, in its order, with all columns.
        In C order it is overwritten by what is returned.
    order : ndarray of shape (n_order,), int
        Places of S among the columns.

    Returns
    -------
    gains : ndarray of shape (n_order, n_columns), float64
        Squares of the projections of the columns on the orthonormal basis of the path: their sums
        over the first m rows are what the first m explain. 0 for a column that depends on those
        before it.

    Notes
    -----
    With ``G = R'R`` the Cholesky factors of ``Z_S'Z_S``, these are the squares of
    ``R^-T Z_S'Z``, row after row.
    """
    cross = np.ascontiguousarray(cross)
    least = _DEPENDENT * cross[np.arange(len(order)), order]
    _explain(cross, order, least, 0, len(order))
    return np.square(cross, out=cross)


def _explain(cross: np.ndarray, order: np.ndarray, least: np.ndarray, begin: int, end: int) -> None:
    """Divide some rows by the factor of their columns: halves, so that most is one product."""
    from scipy.linalg.blas import dgemm

    if end - begin > 1:
        middle = (begin + end) // 2
        _explain(cross, order, least, begin, middle)
        before, rest = cross[begin:middle], cross[middle:end]
        # Rows in C order are columns in Fortran order: the product is added in place.
        dgemm(-1.0, before.T, before[:, order[middle:end]], beta=1.0, c=rest.T, overwrite_c=1)
        _explain(cross, order, least, middle, end)
    elif end > begin:
        row, left = cross[begin], cross[begin, order[begin]]
        row *= 1 / np.sqrt(left) if left > least[begin] else 0.0


def explained_others(
    gains: np.ndarray, order: np.ndarray, squares: np.ndarray, n: int
) -> np.ndarray:
    """Return the share of the other columns that the first 1, 2, ... explain, beyond chance.

    A column explains itself, whatever it carries, so that does not count; nor does what a column
    of noise over ``n`` rows would explain of the others.

    Parameters
    ----------
    gains : ndarray of shape (n_order, n_columns)
        As `explained_by` returns them.
    order : ndarray of shape (n_order,), int
    squares : ndarray of shape (n_columns,)
        Squared norms of the centered columns.
    n : int
        Rows.

    Returns
    -------
    shares : ndarray of shape (n_order,), float64
        Of the sum of ``squares``.
    """
    steps = np.arange(len(order))
    own = gains[steps, order]
    added = gains.sum(axis=1)
    left = squares.sum() - np.cumsum(added) + added - own
    chance = np.maximum(left, 0.0) / np.maximum(n - 2 - steps, 1)
    return np.cumsum(added - own - chance) / (float(squares.sum()) or 1.0)


def squared_distances(gram: np.ndarray) -> np.ndarray:
    """Return the squared distances of all pairs of rows from their products, (n_rows, n_rows)."""
    squares = gram.diagonal()
    distances = np.maximum(squares[:, None] + squares - 2 * gram, 0.0)
    np.fill_diagonal(distances, np.inf)
    return distances


def kth_smallest(distances: np.ndarray, k: int) -> np.ndarray:
    """Return the k-th smallest value of each row, a little enlarged, shape (n_rows, 1)."""
    finite = distances[np.isfinite(distances)]
    return np.partition(distances, k - 1, axis=1)[:, k - 1 : k] + _ROUNDING * finite.max(initial=0)


def neighbors_kept(distances: np.ndarray, near: np.ndarray, k: int) -> np.ndarray:
    """Return the share of its true neighbors that each row keeps among its k nearest.

    Parameters
    ----------
    distances : ndarray of shape (n_rows, n_rows), float64
        Squared distances in some columns, infinite on the diagonal.
    near : ndarray of shape (n_rows, n_rows), bool
        Rows that are as near as the k-th neighbor in all columns.
    k : int

    Returns
    -------
    shares : ndarray of shape (n_rows,), float64
        In the mean over the orders that rows of equal distance can have.
    """
    reach = kth_smallest(distances, k)
    within = distances <= reach
    slack = _ROUNDING * np.where(np.isfinite(distances), distances, 0.0).max(initial=0)
    nearer = distances < reach - 2 * slack
    tied = within & ~nearer
    places = (k - nearer.sum(axis=1)) / np.maximum(tied.sum(axis=1), 1)
    kept = (nearer & near).sum(axis=1) + places * (tied & near).sum(axis=1)
    return kept / k
