"""A start from a coarse graph, whose rows are groups of neighbors.

Eigenvectors that belong to small eigenvalues hardly change along an edge: those of a graph with a
row for each group of neighbors, some dozen times smaller, are near them. Only the first columns of
a block begin with them. The others stay random, so that a vector that the coarse graph lacks is
found as it is from a random start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bigfs.core.compiling import compiled
from bigfs.spectral.iteration import block_width

# Fewer rows are not worth it.
LEAST_ROWS = 2**17
# A coarse graph must be at most this share of the rows, and have at most so many entries a row of
# the fine one: others gain too little for what they cost.
_MOST_ROWS, _MOST_ENTRIES = 1 / 4, 8
# One of so many vectors beyond those wanted stays random.
_GUARDS_PER_RANDOM = 3
# Rows whose edges are gathered at a time.
_ROWS = 2**16
_ENTRY = ("data", "row", "col")
# Of an entry of a coarse graph while it is made: twice with its row, and in order.
_ENTRY_BYTES = 44


def n_near(n_missing: int) -> int:
    """Return the columns of a block that begin near their end, more than those wanted."""
    guards = block_width(n_missing) - n_missing
    return n_missing + guards - max(1, guards // _GUARDS_PER_RANDOM)


def group_rows(indptr: np.ndarray, indices: np.ndarray, n_rows: int) -> tuple[np.ndarray, int]:
    """Return the group of each of the first rows of a CSR matrix, int32, and their number.

    A group is a row with its neighbors, or a few more that are left between such groups. Columns
    beyond the rows are other blocks' rows and are left out.
    """
    labels, count = _compiled_groups()(indptr, indices, n_rows)
    return labels, int(count)


@cache
def _compiled_groups() -> Callable[..., tuple[np.ndarray, int]]:
    """Return the compiled loop; numba is imported here."""
    return compiled(_groups)


def _groups(indptr: Any, indices: Any, n_rows: int) -> Any:
    """Do the work of `group_rows`; compiled by numba."""
    labels = np.full(n_rows, -1, np.int32)
    count = 0
    for i in range(n_rows):
        is_free = labels[i] < 0
        for entry in range(indptr[i], indptr[i + 1]):
            j = indices[entry]
            if j < n_rows and labels[j] >= 0:
                is_free = False
        if is_free:
            labels[i] = count
            for entry in range(indptr[i], indptr[i + 1]):
                if indices[entry] < n_rows:
                    labels[indices[entry]] = count
            count += 1
    joined = labels.copy()
    for i in range(n_rows):
        if labels[i] >= 0:
            continue
        for entry in range(indptr[i], indptr[i + 1]):
            j = indices[entry]
            if j < n_rows and labels[j] >= 0:
                joined[i] = labels[j]
                break
        if joined[i] < 0:
            joined[i] = count
            count += 1
    return joined, count


def is_worth(n_samples: int, n_coarse: int) -> bool:
    """Say whether a graph has rows enough, and a coarse one few enough."""
    return n_samples >= LEAST_ROWS and n_coarse <= _MOST_ROWS * n_samples


def coarse_rows(
    edges: tuple[np.ndarray, np.ndarray, np.ndarray],
    of_rows: np.ndarray,
    of_columns: np.ndarray,
    shape: tuple[int, int],
    room: int,
) -> Any:
    """Return the sums of W over groups as scipy CSR, float64, or None: they are too many.

    Parameters
    ----------
    edges : tuple of ndarray (indptr, indices, weights)
        Rows of W.
    of_rows, of_columns : ndarray of int32
        The groups of these rows, and of all columns.
    shape : tuple of int
        Numbers of groups of rows and of columns.
    room : int
        Bytes that this may take.
    """
    from scipy.sparse import coo_array, csc_array, csr_array

    indptr, indices, weights = edges
    parts: list[Any] = []
    for start in range(0, len(of_rows), _ROWS):
        count = min(start + _ROWS, len(of_rows)) - start
        begin, end = int(indptr[start]), int(indptr[start + count])
        pointers = (indptr[start : start + count + 1] - begin).astype(np.int32)
        part = slice(begin, end)
        values = (weights[part].astype(np.float64), of_columns[indices[part]])
        to_groups = csr_array((*values, pointers), (count, shape[1]))
        each = np.arange(count + 1, dtype=np.int32)
        ones = (np.ones(count), of_rows[start : start + count], each)
        members = csc_array(ones, (shape[0], count)).tocsr()
        parts.append((members @ to_groups).tocoo())
        n_entries = sum(part.nnz for part in parts)
        if n_entries > _MOST_ENTRIES * len(of_rows) or _ENTRY_BYTES * n_entries > room:
            return None
    entries = [np.concatenate([getattr(part, name) for part in parts]) for name in _ENTRY]
    return coo_array((entries[0], entries[1:]), shape).tocsr()


def coarse_bytes(n_coarse: int, n_entries: int, n_vectors: int) -> int:
    """Return the bytes of a coarse graph, while it is made or brought in order, and its vectors.

    Parameters
    ----------
    n_coarse, n_entries : int
        Rows and stored entries.
    n_vectors : int
        As `n_near` gives them.
    """
    return _ENTRY_BYTES * n_entries + n_coarse * (24 * block_width(n_vectors) + 64)
