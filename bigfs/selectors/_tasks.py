"""What the selectors' tasks run on workers; imports no scikit-learn."""

from __future__ import annotations

import numpy as np

from bigfs.solvers.lars import lars_path_gram
from bigfs.store.scratch import ArrayRef


def lars_task(
    target: int, gram: ArrayRef, xty: ArrayRef, n_nonzero: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Run the path of one target.

    Returns
    -------
    active, values, n_active
        Indices and coefficients of the active set, and its size.
    """
    path = lars_path_gram(gram.load(), xty.load()[:, target], n_nonzero)
    active = np.sort(np.asarray(path.active, dtype=np.int64))
    return active, path.coef[active], path.n_active
