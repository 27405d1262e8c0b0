"""Long thin graphs: their eigenvectors by a sparse factorization, whose size is known in advance.

The eigenvalues of such graphs are tiny and close together, so that iterations with products of W
separate them only slowly. Long thin graphs have small cuts, and so a sparse Cholesky factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bigfs.core.threads import compiled

# Upper bound on the entries of the factor per row, for which it is used.
MOST_FILL = 60
# A part with at most this many rows is not divided further.
_LEAF_ROWS = 200


def level_order(W: Any) -> np.ndarray:
    """Return the reverse Cuthill-McKee order of the rows of a symmetric CSR matrix."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    return np.asarray(reverse_cuthill_mckee(W, symmetric_mode=True))


def inverse(order: np.ndarray) -> np.ndarray:
    """Return the position of each row in an order."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=order.dtype)
    return place


def sparse_order(W: Any) -> np.ndarray | None:
    """Return an elimination order for which the factor is sparse, None if none is found.

    It is the order by levels, or one by nested dissection.

    Parameters
    ----------
    W : scipy CSR matrix of shape (n_samples, n_samples)
    """
    order = level_order(W)
    if fill_of(W.indptr, W.indices, order) >= 0:
        return order
    cut = _dissection_order(W, MOST_FILL * W.shape[0])
    return None if cut is None or fill_of(W.indptr, W.indices, cut) < 0 else cut


def _dissection_order(W: Any, most: int) -> np.ndarray | None:
    """Return a nested dissection order: both sides of a cut, then the cut itself.

    The cut is in the middle of the order by levels. None if cuts alone fill more than ``most``.
    """
    order = level_order(W)
    if len(order) <= _LEAF_ROWS:
        return order
    side, rest = np.split(order, [len(order) // 2])
    in_cut = np.diff(W[rest][:, side].indptr) > 0
    if in_cut.sum() ** 2 > 2 * most:
        return None
    parts = []
    for part in (side, rest[~in_cut]):
        inner = _dissection_order(W[part][:, part], most) if len(part) else part
        if inner is None:
            return None
        parts.append(part[inner])
    return np.concatenate([*parts, rest[in_cut]])


def fill_of(indptr: np.ndarray, indices: np.ndarray, order: np.ndarray) -> int:
    """Return the number of entries below the diagonal of the Cholesky factor, -1 if too many.

    Parameters
    ----------
    indptr, indices : ndarray
        Pattern of a symmetric matrix in CSR form.
    order : ndarray of shape (n_samples,)
        The rows in elimination order.
    """
    most = MOST_FILL * len(order)
    return int(compiled(_count_fill)(indptr, indices, order, inverse(order), most))


def _count_fill(indptr: Any, indices: Any, order: Any, place: Any, most: int) -> int:
    """Count, row by row, the part of the elimination tree that each row reaches (Liu 1986)."""
    n = len(order)
    parent, mark = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    count = 0
    for i in range(n):
        mark[i] = i
        for entry in range(indptr[order[i]], indptr[order[i] + 1]):
            k = place[indices[entry]]
            while k < i and mark[k] != i:
                if parent[k] == -1:
                    parent[k] = i
                mark[k] = i
                count += 1
                k = parent[k]
        if count > most:
            return -1
    return count


def factor_bytes(n_samples: int) -> int:
    """Return the bytes of the factors L and U with the largest fill that is used."""
    return 2 * 12 * (MOST_FILL + 1) * n_samples


def pseudo_inverse(
    W: Any, root: np.ndarray, ground: np.ndarray, order: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Return ``v -> L^+ v`` of the normalized Laplacian, for v orthogonal to the null space.

    Parameters
    ----------
    W : scipy CSR matrix of shape (n_samples, n_samples)
    root : ndarray of shape (n_samples,)
        Square roots of the degrees.
    ground : ndarray of int
        One row of each connected component.
    order : ndarray of shape (n_samples,)
        The rows in elimination order.

    Notes
    -----
    ``D - W`` becomes regular if the degree of one row of each component is doubled. If the right
    side sums to zero on a component, the solution is zero at that row, and so it solves the
    original equations. The result has a component in the null space, which the caller removes.
    """
    from scipy.sparse import csc_matrix, diags_array
    from scipy.sparse.linalg import splu

    diagonal = root**2
    diagonal[ground] *= 2.0
    laplacian = (diags_array(diagonal, format="csr") - W)[order][:, order]
    # The matrix is diagonally dominant and needs no pivoting, so the fill is the counted one.
    factors = splu(
        csc_matrix(laplacian), permc_spec="NATURAL", diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )  # fmt: skip
    scale = root[order]

    def solve(v: np.ndarray) -> np.ndarray:
        out = np.empty_like(v)
        out[order] = scale * factors.solve(scale * v[order])
        return out

    return solve
