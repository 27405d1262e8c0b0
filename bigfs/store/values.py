"""Checks of values: present, finite, and small enough for sums of squares."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from bigfs.core.errors import BigfsError, CorruptStoreError, InputError, StorageError
from bigfs.core.text import FROM_0
from bigfs.core.units import GIB, format_bytes

logger = logging.getLogger("bigfs")

# Sums of squares of values up to this, over any data set, are far below 1.8e308, the float64
# maximum.
LARGEST = 1e140
TOO_LARGE = (
    f"Values beyond {LARGEST:.0e} overflow when they are squared and added up: divide the data by "
    "a power of ten, or correct the value."
)

# Squares of smaller differences underflow: below 2.2e-308, float64 loses precision.
SMALLEST = 1e-140
# Dtype kinds of labels, and their maximum size.
_LABELS, _MOST_LABEL_BYTES = "fiubUS", 2 * GIB
INFINITE = "Infinity cannot be filled: correct the data."
MISSING = (
    "Remove or fill it, or choose a policy for NaN: missing = 'mean', 'zero' or 'drop_rows' (a "
    "parameter of every selector, whose predict supports 'zero'; bigfs run --set "
    "input.missing=mean; bigfs ingest --missing mean)."
)
# Labels of fewer rows are not checked for having too many classes.
_FEW_ROWS = 10
# Up to this many classes may have few rows each without a warning.
_MANY_CLASSES = 20
# Number of rows checked to determine whether a matrix holds counts.
HEAD_ROWS = 1000
# Not all integers beyond this can be represented in float64.
EXACT = 2**53
# Maximum length of a library's message about a damaged file.
_REASON_LENGTH = 200


@contextmanager
def decoding(what: str, cure: str = "Write it again.") -> Iterator[None]:
    """Convert any exception that a codec raises for damaged bytes into CorruptStoreError.

    Parameters
    ----------
    what : str
        Description of what is read, as the start of a sentence.
    cure : str

    Raises
    ------
    StorageError
        If the operating system reports a read error.
    """
    try:
        yield
    except BigfsError:
        raise
    except Exception as error:
        # System errors have an errno; gzip's own error for damaged data has none.
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{what} cannot be read: {error}.") from error
        raise CorruptStoreError(f"{what} cannot be decoded ({error}). {cure}") from error


@contextmanager
def refusing(what: str, *faults: type[Exception], cure: str = "Write it again.") -> Iterator[None]:
    """Convert exceptions that a library raises for an unreadable file into InputError.

    Parameters
    ----------
    what : str
        Description of the problem, as the start of a sentence.
    *faults : type
        Exception types raised by the library.
    cure : str
    """
    try:
        yield
    except BigfsError:
        raise
    except faults as error:
        kind = type(error).__name__
        message = str(getattr(error, "strerror", None) or error) or kind
        text = f"{kind} {error}" if isinstance(error, KeyError) else message
        # Further sentences of a library's message are about its own settings.
        reason = text.splitlines()[0].partition(". ")[0][:_REASON_LENGTH].rstrip(".")
        raise InputError(f"{what}: {reason}. {cure}".rstrip()) from None


@contextmanager
def storing(what: str, cure: str = "") -> Iterator[None]:
    """Convert operating system errors into StorageError.

    Parameters
    ----------
    what : str
        Description of what failed, as the start of a sentence.
    cure : str, default=""
    """
    try:
        yield
    except BigfsError:
        raise
    except OSError as error:
        raise StorageError(f"{what}: {error}. {cure}".rstrip()) from error


@contextmanager
def installed(why: str, name: str) -> Iterator[None]:
    """Explain how to install a package if importing it within the context fails."""
    try:
        yield
    except ImportError:
        raise InputError(f"{why}. Install it with: pip install {name}.") from None


def as_floats(X: Any, dtype: Any, uri: str, first_row: int = 0) -> np.ndarray:
    """Return values in the dtype of the kernels, with masked values as NaN.

    Raises InputError for integers beyond 2^53.
    """
    mask = np.ma.getmask(X)
    values = np.asarray(X if mask is np.ma.nomask else X.filled(0))
    check_exact(values, uri, first_row)
    rows = np.ascontiguousarray(values, dtype=dtype)
    if mask is not np.ma.nomask:  # filled() made a copy
        rows[mask] = np.nan
    return rows


def without_mask(X: Any) -> Any:
    """Return a masked array with NaN for masked values, as floats if numeric; else X unchanged."""
    if not isinstance(X, np.ma.MaskedArray) or X.dtype.kind not in "fiubO":
        return X
    if X.dtype.kind == "O":
        return np.where(np.ma.getmaskarray(X), np.nan, X.data)
    return as_floats(X, np.result_type(X.dtype, np.float32), "X")


def computed(X: Any) -> Any:
    """Return Dask objects computed, since NumPy's conversion would lose a mask; others as is."""
    return X.compute() if hasattr(X, "__dask_graph__") else X


def plain_values(values: Any, name: str) -> np.ndarray:
    """Return labels, or other values with one entry per row, as numbers or strings.

    Missing values (NaN, None, NaT, NA, nulls, masked) are NaN among numbers, and None among
    strings, which then have dtype object.

    Parameters
    ----------
    values : array-like
    name : str
        Name used in error messages.

    Raises
    ------
    InputError
        If values are neither numbers nor strings.
    """
    values = computed(values)
    # NumPy would convert the NaN in a list of strings to a string.
    given = np.array(values, dtype=object) if isinstance(values, (list, tuple)) else values
    mask, array = np.ma.getmask(given), np.asarray(given)
    if array.dtype.kind not in "fiubUSOTmM":
        raise InputError(f"{name} must be numbers or texts. Got {array.dtype}.")
    missing = np.zeros(array.shape, dtype=bool) | mask
    if array.dtype.kind in "OTmM":
        import pandas as pd

        array = array.astype(object) if array.dtype.kind == "T" else array
        missing |= pd.isna(array)
    if array.dtype.kind == "O":
        masked = np.fromiter((value is np.ma.masked for value in array.flat), bool, array.size)
        missing |= masked.reshape(array.shape)
        present = array[~missing]
        if all(isinstance(value, (int, float, np.number, np.bool_)) for value in present):
            array = np.array(np.where(missing, np.nan, array).tolist())
    if array.dtype.kind in "fiub":
        return np.where(missing, np.nan, array) if missing.any() else array
    texts = array.astype(np.str_)
    return np.where(missing, np.array(None), texts) if missing.any() else texts


def check_present(values: np.ndarray, name: str) -> np.ndarray:
    """Return the values unchanged; raise InputError if any is missing or infinite."""
    if values.dtype.kind == "O":  # strings with missing values
        raise _missing_label(name, np.array([text is None for text in values.flat]))
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = ~np.isfinite(values)
        raise _missing_label(name, bad, "missing" if np.isnan(values[bad][0]) else "infinite")
    return values


def is_continuous(classes: np.ndarray) -> bool:
    """Return True if labels are floats that are not all integers."""
    return classes.dtype.kind == "f" and bool((classes != np.floor(classes)).any())


def check_classes(classes: np.ndarray, n_rows: int, name: str, *, refuse: bool) -> None:
    """Warn if there are so many classes that the labels may be measured values.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        The distinct labels.
    n_rows : int
    name : str
        Name of the labels used in messages.
    refuse : bool
        Whether to raise an error if there are more classes than half of the rows.

    Raises
    ------
    InputError
        If ``refuse`` is True and there are.
    """
    n = len(classes)
    share = 1 / 10 if is_continuous(classes) else 1 / 3
    if n_rows < _FEW_ROWS or not (2 * n > n_rows or (n > _MANY_CLASSES and n > share * n_rows)):
        return
    message = (
        f"{name}: {n:,} of {n_rows:,} labels differ, so few rows share one. Measured values or "
        "ids are not classes, so agreement with them is meaningless: use class labels, or bin the "
        "values."
    )
    if refuse and 2 * n > n_rows:
        raise InputError(message)
    logger.warning(message)


def _missing_label(name: str, missing: np.ndarray, what: str = "missing") -> InputError:
    row = int(np.argwhere(missing)[0, 0])
    return InputError(f"{name}: the label of row {row} is {what}. Every row needs one. {FROM_0}")


def values_of(block: Any) -> np.ndarray:
    """Return the values of a block: all of a dense block, the stored entries of a CSR block."""
    values: np.ndarray = block.data if hasattr(block, "indptr") else block
    return values


def place_of(block: Any, number: int) -> tuple[int, int]:
    """Return the row and column of a value in a block, given its position in `values_of`."""
    if not hasattr(block, "indptr"):
        return divmod(number, block.shape[1])
    row = int(np.searchsorted(block.indptr, number, side="right")) - 1
    return row, int(block.indices[number])


def check_exact(
    X: Any, uri: str, first_row: int = 0, columns: Sequence[object] | None = None
) -> None:
    """Raise InputError for integers beyond 2^53, since distinct ones may be equal in float64.

    Parameters
    ----------
    X : ndarray or CSR block of shape (n_rows, n_columns)
    uri : str
    first_row : int, default=0
        Row number of the first row, for the error message.
    columns : sequence or None, default=None
        Names of the columns. None: 0, 1, 2...
    """
    values = values_of(X)
    if values.dtype.kind not in "iu" or values.itemsize < 8 or not values.size:
        return
    if -EXACT <= values.min() and values.max() <= EXACT:
        return
    bad = (values > EXACT) | (values < -EXACT) if values.dtype.kind == "i" else values > EXACT
    number = int(bad.argmax())
    row, column = place_of(X, number)
    name = column if columns is None else repr(columns[column])
    raise beyond_exact(f"{uri}: row {first_row + row}, column {name}", values.flat[number])


def beyond_exact(where: str, value: object) -> InputError:
    """Return the error for an integer beyond 2^53."""
    return InputError(
        f"{where} is {value}. Whole numbers beyond 2^53 would be rounded. Drop such columns (ids), "
        f"subtract an offset (times), or convert them to float64 yourself. {FROM_0}"
    )


def all_usable(X: np.ndarray) -> bool:
    """Return True if every value is finite and at most `LARGEST` in absolute value."""
    flat = X.ravel(order="K")
    # A single fast dot product decides this, unless values are bad or very large.
    with np.errstate(over="ignore", invalid="ignore"):
        if float(np.dot(flat, flat)) <= LARGEST**2:
            return True
    return bool(usable(X).all())


def are_counts(values: np.ndarray) -> bool:
    """Return True if there are nonzero values, all of them positive integers; NaN is ignored."""
    values = values[(values != 0) & ~np.isnan(values)]
    return bool(len(values) and values.min() > 0 and (values == np.floor(values)).all())


def usable(X: np.ndarray) -> np.ndarray:
    """Return a mask of the values that are finite and at most `LARGEST` in absolute value."""
    good = np.isfinite(X)
    if X.dtype == np.float64:
        good &= np.abs(X) <= LARGEST
    return good


def checksum(chunk: Any) -> str:
    """Return the CRC-32 of a chunk's values as little-endian bytes.

    For a CSR block, the column indices and row pointers follow the values.
    """
    crc, is_sparse = 0, hasattr(chunk, "indptr")
    for part in (chunk.data, chunk.indices, chunk.indptr) if is_sparse else (chunk,):
        values = np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<"))
        crc = zlib.crc32(values.view(np.uint8).data, crc)
    return f"{crc:08x}"


def check_vector(shape: tuple[int, ...], dtype: Any, uri: str, rows: Collection[str] = ()) -> None:
    """Raise InputError before reading if labels are not a vector, such as the matrix itself.

    ``rows`` are the dimensions stacked into the rows, if known.
    """
    if math.prod(shape) * np.dtype(dtype).itemsize > _MOST_LABEL_BYTES:
        raise InputError(
            f"{uri}: labels of shape {tuple(shape)} and type {dtype} exceed "
            f"{format_bytes(_MOST_LABEL_BYTES)}. Give one label for each sample."
        )
    vector = len(shape) == 1 or (len(shape) == 2 and 1 in shape)
    # An image of classes, or a mask, for stacked rows: its size is checked later.
    vector |= len(shape) > 1 and np.dtype(dtype).kind in "iub"
    # So may a float image of a quality measure; but its number of dimensions must match, to
    # distinguish it from a data matrix.
    vector |= len(shape) == len(rows) > 1 and np.dtype(dtype).kind == "f"
    if not vector or np.dtype(dtype).kind not in _LABELS or 0 in shape:
        raise InputError(
            f"{uri}: labels must be one number or text for each sample. Got an array of "
            f"{dtype} with shape {tuple(shape)}."
        )
