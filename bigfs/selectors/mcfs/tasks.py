"""What the selectors' tasks run on workers; imports no scikit-learn."""

from __future__ import annotations

import numpy as np

from bigfs.selectors.mcfs import MAX_STOPS
from bigfs.solvers.lars import LarsPath, lars_path_gram
from bigfs.store.scratch import ArrayRef

# Indices, ascending, and values of the entries of a vector.
SparseVector = tuple[np.ndarray, np.ndarray]


def lars_task(
    target: int, gram: ArrayRef, xty: ArrayRef, n_nonzero: int
) -> tuple[SparseVector, list[SparseVector]]:
    """Run the path of one target.

    Returns
    -------
    last : (indices, values)
        The active set at the stop and its coefficients.
    stops : list of (indices, values)
        The same of the paths that stop at 1, 2, ... features.
    """
    n_stops = min(n_nonzero, MAX_STOPS)
    path = lars_path_gram(gram.load(), xty.load()[:, target], n_nonzero, keep_knots=n_stops)
    active = np.sort(path.active)
    return (active, path.coef[active]), stops_of(path, n_stops)


def stops_of(path: LarsPath, n_stops: int) -> list[SparseVector]:
    """Return where paths to 1, ..., ``n_stops`` features stop: each is the beginning of this one.

    Where even the whole path has fewer, its end.
    """
    stops: list[SparseVector] = []
    for _, active, values in path.knots:
        order = np.argsort(active)
        # One knot serves several sizes where several features joined at once.
        stops += [(active[order], values[order])] * (min(len(active), n_stops) - len(stops))
    last = np.sort(path.active)
    return stops + [(last, path.coef[last])] * (n_stops - len(stops))
