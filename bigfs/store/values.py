"""Checks of values: they must be finite, and small enough for sums of squares."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from bigfs.core.errors import BigfsError, CorruptStoreError, InputError, StorageError
from bigfs.core.text import FROM_0

# Sums of squares of smaller values, over any data set, are far below 1.8e308, the float64 maximum.
LARGEST = 1e140
TOO_LARGE = (
    f"Values beyond {LARGEST:.0e} overflow when they are squared and added up: divide the data by "
    "a power of ten, or correct the value."
)

# Whole numbers beyond it are not all there in float64.
EXACT = 2**53


@contextmanager
def decoding(what: str, cure: str = "Write it again.") -> Iterator[None]:
    """Turn whatever a codec raises for bytes that it never wrote into CorruptStoreError.

    Parameters
    ----------
    what : str
        What is read, as the beginning of a sentence.
    cure : str

    Raises
    ------
    StorageError
        If the system says that it cannot read.
    """
    try:
        yield
    except BigfsError:
        raise
    except Exception as error:
        # An error of the system has a number; gzip's own for damage is one without.
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{what} cannot be read: {error}.") from error
        raise CorruptStoreError(f"{what} cannot be decoded ({error}). {cure}") from error


def as_floats(X: np.ndarray, dtype: Any, uri: str, first_row: int = 0) -> np.ndarray:
    """Return values in the type of the kernels, which must hold all of them."""
    check_exact(X, uri, first_row)
    return np.ascontiguousarray(X, dtype=dtype)


def check_exact(
    X: np.ndarray, uri: str, first_row: int = 0, columns: Sequence[object] | None = None
) -> None:
    """Raise InputError for whole numbers beyond 2^53: in float64 different ones become the same.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    uri : str
    first_row : int, default=0
        The number of its first row, for the message.
    columns : sequence or None, default=None
        Names of the columns. None: 0, 1, 2...
    """
    if X.dtype.kind not in "iu" or X.itemsize < 8 or not X.size:
        return
    if -EXACT <= X.min() and X.max() <= EXACT:
        return
    bad = (X > EXACT) | (X < -EXACT) if X.dtype.kind == "i" else X > EXACT
    row, column = (int(i) for i in np.unravel_index(int(bad.argmax()), X.shape))
    name = column if columns is None else repr(columns[column])
    raise InputError(
        f"{uri}: row {first_row + row}, column {name} is {X[row, column]}. Whole numbers beyond "
        "2^53 would be rounded. Drop such columns (ids), subtract an offset (times), or convert "
        f"them to float64 yourself. {FROM_0}"
    )


def all_usable(X: np.ndarray) -> bool:
    """Say whether every value is finite and at most `LARGEST` in size."""
    flat = X.ravel(order="K")
    # One fast product settles it, unless values are bad or very large.
    with np.errstate(over="ignore", invalid="ignore"):
        if float(np.dot(flat, flat)) <= LARGEST**2:
            return True
    return bool(usable(X).all())


def usable(X: np.ndarray) -> np.ndarray:
    """Return which values are finite and at most `LARGEST` in size, of the shape of X."""
    good = np.isfinite(X)
    if X.dtype == np.float64:
        good &= np.abs(X) <= LARGEST
    return good


def first_unusable(X: np.ndarray) -> tuple[int, int] | None:
    """Return (row, column) of the first value in reading order that is not usable, or None."""
    if all_usable(X):
        return None
    bad = ~usable(X)
    row = int(bad.any(axis=1).argmax())
    return row, int(bad[row].argmax())


def checksum(chunk: np.ndarray) -> str:
    """Return the CRC-32 of a chunk's values as little-endian bytes."""
    values = np.ascontiguousarray(chunk, dtype=chunk.dtype.newbyteorder("<"))
    return f"{zlib.crc32(values.view(np.uint8).data):08x}"
