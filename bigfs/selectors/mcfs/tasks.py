"""Tasks of MCFS on workers; imports no scikit-learn."""

from __future__ import annotations

import numpy as np

from bigfs.selectors.mcfs import MAX_STOPS
from bigfs.solvers.lars import LarsPath, lars_path_gram
from bigfs.store.scratch import ArrayRef

# Indices, ascending, and values of the entries of a vector; and the share of its target, of norm
# one, that the regression with these coefficients explains.
SparseVector = tuple[np.ndarray, np.ndarray, float]


def lars_task(
    target: int, gram: ArrayRef, xty: ArrayRef, n_nonzero: int
) -> tuple[SparseVector, list[SparseVector]]:
    """Run the path of one target.

    Returns
    -------
    last : (indices, values, explained)
        The active set at the stop and its coefficients.
    stops : list of (indices, values, explained)
        The same of the paths that stop at 1, 2, ... features.
    """
    n_stops = min(n_nonzero, MAX_STOPS)
    xy = xty.load()[:, target]
    path = lars_path_gram(gram.load(), xy, n_nonzero, keep_knots=n_stops)
    return end_of(path, xy), stops_of(path, n_stops, xy)


def end_of(path: LarsPath, xty: np.ndarray) -> SparseVector:
    """Return where a path stops."""
    return _stop(path.lambda_, path.active, path.coef[path.active], xty)


def stops_of(path: LarsPath, n_stops: int, xty: np.ndarray) -> list[SparseVector]:
    """Return where paths to 1, ..., ``n_stops`` features stop: each is the beginning of this one.

    Where even the whole path has fewer, its end.
    """
    stops: list[SparseVector] = []
    for level, active, values in path.knots:
        # One knot serves several sizes where several features joined at once.
        stops += [_stop(level, active, values, xty)] * (min(len(active), n_stops) - len(stops))
    return stops + [end_of(path, xty)] * (n_stops - len(stops))


def _stop(level: float, active: np.ndarray, values: np.ndarray, xty: np.ndarray) -> SparseVector:
    """Return a knot of a path, its features ascending.

    ``|y|^2 - |y - Xa|^2 = a'X'y + lambda |a|_1``, since ``X_A'(y - Xa) = lambda sign(a)``.
    """
    order = np.argsort(active)
    explained = float(values @ xty[active] + level * np.abs(values).sum())
    return active[order], values[order], min(max(explained, 0.0), 1.0)
