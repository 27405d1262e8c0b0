"""Which values can be worked with: finite ones whose sums of squares stay finite too."""

from __future__ import annotations

import numpy as np

# Sums of squares of smaller values, over any data set, are far below 1.8e308, the float64 maximum.
LARGEST = 1e140
TOO_LARGE = (
    f"Values beyond {LARGEST:.0e} overflow when they are squared and added up: divide the data by "
    "a power of ten, or correct the value."
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
