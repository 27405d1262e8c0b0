"""A start from a coarse graph, whose rows are groups of neighbors.

Eigenvectors that belong to small eigenvalues hardly change along an edge: those of a graph with a
row for each group of neighbors, some dozen times smaller, are near them. Only the first columns of
a block begin with them. The others stay random, so that a vector that the coarse graph lacks is
found as it is from a random start. Where a coarse graph is too large for one task, its rows are
grouped once more, by their heavier edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from bigfs.core.compiling import compiled
from bigfs.spectral.iteration import block_width

# Fewer rows are not worth it.
LEAST_ROWS = 2**17
# A coarse graph must be at most this share of the rows, and have at most so many entries a row of
# the fine one: others gain too little for what they cost.
_MOST_ROWS, _MOST_ENTRIES = 1 / 4, 12
# One of so many vectors beyond those wanted stays random.
_GUARDS_PER_RANDOM = 3
# Rows whose edges are gathered at a time.
_ROWS = 2**16
_ENTRY = ("data", "row", "col")
# Of an entry of a coarse graph while it is made: twice with its row, and in order.
ENTRY_BYTES = 44


def n_near(n_missing: int) -> int:
    """Return the columns of a block that begin near their end, more than those wanted."""
    guards = block_width(n_missing) - n_missing
    return n_missing + guards - max(1, guards // _GUARDS_PER_RANDOM)


def group_rows(indptr: np.ndarray, indices: np.ndarray, n_rows: int) -> tuple[np.ndarray, int]:
    """Return the group of each of the first rows of a CSR matrix, int32, and their number.

    A group is a row with its neighbors, or a few more that are left between such groups. Columns
    beyond the rows are other blocks' rows and are left out.
    """
    return group_parts(lambda: [(0, indptr, indices)], n_rows)


def group_parts(
    parts: Callable[[], Iterable[tuple[int, np.ndarray, np.ndarray]]], n_rows: int
) -> tuple[np.ndarray, int]:
    """Return the groups of rows that come part by part: (first row, indptr, indices), in order.

    The parts are asked for twice.
    """
    seed, join = _compiled_groups()
    labels, count = np.full(n_rows, -1, np.int32), 0
    for first, indptr, indices in parts():
        count = int(seed(indptr, indices, first, labels, count))
    joined = labels.copy()
    for first, indptr, indices in parts():
        count = int(join(indptr, indices, first, labels, joined, count))
    return joined, count


@cache
def _compiled_groups() -> tuple[Callable[..., int], Callable[..., int]]:
    """Return the compiled loops; numba is imported here."""
    return compiled(_seed_groups), compiled(_join_groups)


def _seed_groups(indptr: Any, indices: Any, first: int, labels: Any, count: int) -> int:
    """Give rows whose neighbors are in no group a group with these; return the next number."""
    for i in range(len(indptr) - 1):
        is_free = labels[first + i] < 0
        for entry in range(indptr[i], indptr[i + 1]):
            j = indices[entry]
            if j < len(labels) and labels[j] >= 0:
                is_free = False
        if is_free:
            labels[first + i] = count
            for entry in range(indptr[i], indptr[i + 1]):
                if indices[entry] < len(labels):
                    labels[indices[entry]] = count
            count += 1
    return count


def _join_groups(
    indptr: Any, indices: Any, first: int, labels: Any, joined: Any, count: int
) -> int:
    """Give rows without a group that of a neighbor, or their own; return the next number."""
    for i in range(len(indptr) - 1):
        if labels[first + i] >= 0:
            continue
        for entry in range(indptr[i], indptr[i + 1]):
            j = indices[entry]
            if j < len(labels) and labels[j] >= 0:
                joined[first + i] = labels[j]
                break
        if joined[first + i] < 0:
            joined[first + i] = count
            count += 1
    return count


def strong_edges(W: Any, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of at least the mean weight of their row, as indptr and indices.

    Parameters
    ----------
    W : scipy CSR matrix of shape (n_part, n_rows)
        Consecutive rows of a coarse graph, whose diagonal is left out.
    first : int
        The first of them.
    """
    n = W.shape[0]
    rows = np.repeat(np.arange(n), np.diff(W.indptr))
    others = W.indices != rows + first
    sums = np.bincount(rows, W.data * others, n)
    counts = np.bincount(rows[others], minlength=n)
    strong = others & (W.data * counts[rows] >= sums[rows])
    lengths = np.bincount(rows[strong], minlength=n)
    return np.concatenate([[0], np.cumsum(lengths)]), W.indices[strong]


def is_worth(n_samples: int, n_coarse: int) -> bool:
    """Say whether a graph has rows enough, and a coarse one few enough."""
    return n_samples >= LEAST_ROWS and n_coarse <= _MOST_ROWS * n_samples


def most_entries(n_rows: int, room: int) -> int:
    """Return how many entries of a coarse graph, of some rows of W, are worth it and fit."""
    return min(_MOST_ENTRIES * n_rows, room // ENTRY_BYTES)


def coarse_rows(
    edges: tuple[np.ndarray, np.ndarray, np.ndarray],
    of_rows: np.ndarray,
    of_columns: np.ndarray,
    shape: tuple[int, int],
    most: int,
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
    most : int
        Entries that are not too many, before those of different parts of the rows are added up.
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
        if sum(part.nnz for part in parts) > most:
            return None
    entries = [np.concatenate([getattr(part, name) for part in parts]) for name in _ENTRY]
    return coo_array((entries[0], entries[1:]), shape).tocsr()


def coarse_bytes(
    n_coarse: int, n_entries: int, n_vectors: int, entry_bytes: int = ENTRY_BYTES
) -> int:
    """Return the bytes of a coarse graph, while it is made or brought in order, and its vectors.

    Parameters
    ----------
    n_coarse, n_entries : int
        Rows and stored entries.
    n_vectors : int
        As `n_near` gives them.
    entry_bytes : int
        Of an entry: where the graph is made, by default, or read.
    """
    return entry_bytes * n_entries + n_coarse * (24 * block_width(n_vectors) + 64)
