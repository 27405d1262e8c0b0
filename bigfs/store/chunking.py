"""Chunks, blocks and their bounds, as integer arithmetic."""

from __future__ import annotations

from bigfs.core.errors import InputError

MB = 10**6
_CHUNK_BYTES = 16 * MB
_BLOCK_BYTES = 32 * MB


def chunk_rows(n_features: int, itemsize: int) -> int:
    """Return the rows of a stored chunk: 8 to 16 MB, or one row where that is longer.

    Parameters
    ----------
    n_features, itemsize : int
        Width of a row and bytes per value as stored.
    """
    return max(1, _CHUNK_BYTES // (n_features * itemsize))


_default_chunk_rows = chunk_rows  # block_rows has a parameter of this name


def block_rows(n_features: int, itemsize: int, chunk_rows: int | None = None) -> int:
    """Return the rows of a task's block: whole chunks, about 32 MB.

    A block is between 16 and 64 MB wherever the chunks are below 32 MB, and one chunk where
    they are larger.

    Parameters
    ----------
    n_features, itemsize : int
        Width of a row and bytes per value as the kernels see it.
    chunk_rows : int or None, default=None
        Rows of a stored chunk. None where rows can be read freely: the chunks that `ingest`
        would write, so that the blocks, and with them the sums, are the same bits either way.
    """
    unit = chunk_rows or _default_chunk_rows(n_features, itemsize)
    unit_bytes = unit * n_features * itemsize
    return unit * max(1, (_BLOCK_BYTES + unit_bytes // 2) // unit_bytes)


def copied_rows(n_samples: int | None, rows: int | None, usual: int) -> int:
    """Return the rows of a chunk of a copy: the usual ones, or a part of a block of ``rows``.

    If no chunk of about the usual size is one, `check_block_rows` says so.
    """
    if rows is None or rows % usual == 0 or (n_samples is not None and rows >= n_samples):
        return usual
    count = -(-rows // usual)
    return usual if rows % count else rows // count


def check_block_rows(rows: int, chunk_rows: int, n_samples: int) -> None:
    """Raise ``InputError`` if blocks of so many rows read chunks twice."""
    if rows % chunk_rows and rows < n_samples:
        raise InputError(
            f"blocks.rows must be a whole number of chunks of {chunk_rows} rows, or a chunk is "
            f"read twice. Got {rows}; set it to {-(-rows // chunk_rows) * chunk_rows}."
        )


def block_bounds(n_samples: int, rows: int) -> list[tuple[int, int]]:
    """Return first row and one past the last row of every block."""
    return [(start, min(start + rows, n_samples)) for start in range(0, n_samples, rows)]
