"""The order of neighbors: by distance, and by index where distances are equal but for rounding.

Rounded distances would not do as a key. Seen from a row far outside, all others are about equally
far: which of them are rounded to the same number depends on the unit of the data.
"""

from __future__ import annotations

import numpy as np

# Distances that differ by no more than this share are equal: it is the last bit of float32.
_EQUAL = 2.0**-23


def differs(nearer: np.ndarray, farther: np.ndarray, power: int = 1) -> np.ndarray:
    """Say where distances, to a power of 1 or 2, are farther than others by more than rounding."""
    with np.errstate(over="ignore"):
        return np.asarray(farther > nearer * (1 + power * _EQUAL))


def nearest(
    ids: np.ndarray, distances: np.ndarray, n_neighbors: int, power: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of each row by (distance, id), and their distances, ascending.

    Parameters
    ----------
    ids : ndarray of shape (n_rows, width), int
    distances : ndarray of shape (n_rows, width), float32 or float64
        Infinite where there is no row.
    n_neighbors : int
    power : {1, 2}, default=1
        2: distances are squared.
    """
    order = np.argsort(distances, axis=1, kind="stable")
    ids = np.take_along_axis(ids, order, axis=1)
    distances = np.take_along_axis(distances, order, axis=1)
    beyond = differs(distances[:, :-1], distances[:, 1:], power)
    tied = np.flatnonzero(~beyond[:, :n_neighbors].all(axis=1))
    if len(tied):
        group = np.zeros((len(tied), ids.shape[1]), dtype=np.int64)
        np.cumsum(beyond[tied], axis=1, out=group[:, 1:])
        ids[tied] = np.take_along_axis(ids[tied], np.lexsort((ids[tied], group), axis=1), axis=1)
    return ids[:, :n_neighbors], distances[:, :n_neighbors]
