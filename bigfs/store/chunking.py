"""Chunks, blocks and their bounds, as integer arithmetic."""

from __future__ import annotations

MB = 10**6
_CHUNK_BYTES = 16 * MB
_BLOCK_BYTES = 32 * MB


def chunk_rows(n_features: int, itemsize: int) -> int:
    """Return the rows of a stored chunk of about 16 MB (8 to 32 where rows allow), at least 1."""
    row = max(1, n_features * itemsize)
    return max(1, _CHUNK_BYTES // row)


def block_rows(n_features: int, itemsize: int, chunk_rows: int | None = None) -> int:
    """Return the rows of a task's block: whole chunks, about 32 MB.

    Parameters
    ----------
    n_features, itemsize : int
        Width of a row as the kernels see it.
    chunk_rows : int or None
        Rows of a stored chunk; None where rows can be read freely.
    """
    unit = chunk_rows or globals()["chunk_rows"](n_features, itemsize)
    row = max(1, n_features * itemsize)
    return unit * max(1, round(_BLOCK_BYTES / (row * unit)))


def block_bounds(n_samples: int, rows: int) -> list[tuple[int, int]]:
    """Return first row and one past the last row of every block."""
    return [(start, min(start + rows, n_samples)) for start in range(0, n_samples, rows)]
