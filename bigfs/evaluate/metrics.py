"""Agreement of two labelings, nearest-neighbor error, and redundancy of a set of features."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bigfs.blocks.kernels import block_moments, float_tiles, level_columns, slices
from bigfs.core.errors import InputError, check_choice
from bigfs.store.formats.memory import plain
from bigfs.store.values import (
    check_classes,
    check_exact,
    check_present,
    computed,
    is_continuous,
    plain_values,
    without_mask,
)

AVERAGES = ("max", "min", "arithmetic", "geometric")
_PAIRS_BYTES = 16 * 1024**2
# Number of rows in the first piece of a nearest-neighbor search, which is done in double precision,
# and in all further pieces.
_FIRST_ROWS, _PIECE_ROWS = 512, 4096
# With more pairs of classes than this, labels are assumed to be continuous values.
_MOST_PAIRS = 10**8


def confusion_matrix(y_true: Any, y_pred: Any) -> np.ndarray:
    """Count the rows of each pair of classes.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
        Labels of any kind; classes are in sorted order.

    Returns
    -------
    counts : ndarray of shape (n_true, n_pred), int64

    Raises
    ------
    InputError
        If the labelings are empty, not one-dimensional, of different lengths, have missing labels,
        or hold continuous values (fractions, in ten rows or more).

    Notes
    -----
    Integers or strings with more classes than half of the rows are accepted with a warning: if each
    row is a class of its own, any labeling that distinguishes all rows agrees with it perfectly.
    """
    true, pred = _two_labelings(y_true, y_pred)
    n_true, n_pred = int(true.max()) + 1, int(pred.max()) + 1
    return np.bincount(true * n_pred + pred, minlength=n_true * n_pred).reshape(n_true, n_pred)


def clustering_accuracy(y_true: Any, y_pred: Any) -> float:
    """Return the share of rows that agree under the best one-to-one matching of labels.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)

    Returns
    -------
    accuracy : float
        In [0, 1], larger is better (ACC; matched by the Hungarian method).
    """
    from scipy.optimize import linear_sum_assignment

    counts = confusion_matrix(y_true, y_pred)
    return float(counts[linear_sum_assignment(-counts)].sum() / counts.sum())


def normalized_mutual_info(y_true: Any, y_pred: Any, *, average: str = "max") -> float:
    """Return the mutual information of two labelings, divided by a mean of their entropies.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
    average : {"max", "min", "arithmetic", "geometric"}, default="max"
        Mean of the entropies. The MCFS paper uses ``max``.

    Returns
    -------
    nmi : float
        In [0, 1], larger is better; 1 if both labelings have one class.
    """
    from sklearn.metrics import normalized_mutual_info_score

    check_choice("average", average, AVERAGES)
    labelings = _two_labelings(y_true, y_pred)
    return min(1.0, float(normalized_mutual_info_score(*labelings, average_method=average)))


def rand_index(y_true: Any, y_pred: Any) -> float:
    """Return the Rand index: the share of pairs of rows on which both labelings agree, in [0, 1].

    They agree on a pair if both put it into one class, or both into different classes.
    """
    from sklearn.metrics import rand_score

    return float(rand_score(*_two_labelings(y_true, y_pred)))


def adjusted_rand_index(y_true: Any, y_pred: Any) -> float:
    """Return the Rand index adjusted for chance: 0 expected at random, 1 for equal labelings."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_two_labelings(y_true, y_pred)))


def majority_label_error(y_true: Any, y_pred: Any) -> float:
    """Return the share of rows outside the majority class of their cluster, in [0, 1]."""
    counts = confusion_matrix(y_true, y_pred)
    return float(1.0 - counts.max(axis=0).sum() / counts.sum())


def nearest_neighbor_error(X: Any, y: Any) -> float:
    """Return the leave-one-out error of the nearest-neighbor classifier (MCFS paper, eq. 6).

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,)

    Returns
    -------
    error : float
        In [0, 1], smaller is better. Exact; among equally near rows the one with the lowest index
        counts.

    Raises
    ------
    InputError
        If the shapes of X and y do not match, or their values cannot be used.
    """
    X, labels = _matrix(X), _labels(y, "y")
    if X.ndim != 2 or X.shape[1] == 0 or len(X) != len(labels) or len(X) < 2:
        raise InputError(
            "X must be a matrix with a row for each of at least 2 labels and at least one "
            f"column. Got shape {X.shape} and {len(labels)} labels."
        )
    rows = _comparable(_finite_matrix(X))
    return count_nearest_errors(rows, 0, labels, [(0, rows)]) / len(rows)


def count_nearest_errors(
    queries: np.ndarray, start: int, y: np.ndarray, parts: Iterable[tuple[int, np.ndarray]]
) -> int:
    """Return the number of query rows whose nearest other row belongs to another class.

    Parameters
    ----------
    queries : ndarray of shape (n_queries, n_features), float32 or float64
        Consecutive rows of the data.
    start : int
        Index of the first query row.
    y : ndarray of shape (n_samples,)
        Classes of all rows.
    parts : iterable of (int, ndarray)
        All rows in order, in parts, each with the index of its first row.
    """
    # Imported lazily, since the module takes longer to import than everything else here.
    from bigfs.graph.local import search_exact

    n = len(queries)
    nearest, squared = np.zeros(n, dtype=np.int64), np.full(n, np.inf)
    for first, part in parts:
        # The first piece gives upper bounds of the distances, so that single precision is enough
        # for the other pieces.
        few = _FIRST_ROWS if len(part) > _PIECE_ROWS else _PIECE_ROWS
        edges = [0, *range(few, len(part), _PIECE_ROWS), len(part)]
        for begin, end in pairwise(edges):
            rows, own = part[begin:end], np.arange(start, start + n) - first - begin
            own[(own < 0) | (own >= len(rows))] = -1
            candidates, distances = search_exact(rows, 1, queries, own, squared, rounded=False)
            # Rows come in order, so that ties go to the row with the lower index.
            closer = distances[:, 0] < squared
            nearest[closer] = candidates[closer, 0] + first + begin
            squared[closer] = distances[closer, 0]
    return int((y[nearest] != y[start : start + n]).sum())


def redundancy(X: Any) -> float:
    """Return the mean absolute correlation over all pairs of columns.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The selected features.

    Returns
    -------
    redundancy : float
        In [0, 1], smaller is better; 0 for a single feature. The correlation with a constant column
        counts as 0.

    Raises
    ------
    InputError
        If X is not a matrix of finite numbers.
    """
    X = _finite_matrix(X)
    dtype, n_features = X.dtype if X.dtype.kind == "f" else np.dtype(np.float64), X.shape[1]
    X = X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)
    # Columns are scaled by powers of two, so that squares neither overflow nor underflow.
    sizes = np.maximum(X.max(axis=0), -X.min(axis=0))
    X = np.ldexp(X, -np.frexp(sizes)[1])
    moments = block_moments(X)
    varies = ~moments.constant & ~level_columns(moments, dtype)
    inverse = np.divide(1.0, np.sqrt(moments.squares), out=np.zeros(n_features), where=varies)
    # A few columns at a time are multiplied with themselves and all later ones, since the matrix of
    # all products would be d x d.
    total, width = 0.0, max(1, _PAIRS_BYTES // (8 * n_features))
    for columns in slices(n_features, width):
        others, count = slice(columns.start, None), len(inverse[columns])
        products = np.zeros((n_features - columns.start, count))
        for _, tile in float_tiles(X[:, others], moments.mean[others]):
            products += tile.T @ tile[:, :count]
        products *= inverse[columns]
        products *= inverse[others, None]
        np.abs(products, out=products)
        total += 2 * products[count:].sum()
        total += products[:count].sum() - products.diagonal().sum()
    return float(min(1.0, total / max(1, n_features * (n_features - 1))))


def redundancy_of(correlations: np.ndarray) -> float:
    """Return the mean of the absolute correlations of all pairs of features."""
    n_pairs = len(correlations) * (len(correlations) - 1)
    total = correlations.sum() - correlations.diagonal().sum()
    return float(min(1.0, total / max(1, n_pairs)))


@dataclass(frozen=True)
class Overlap:
    """The overlap of two selections.

    Attributes
    ----------
    count : int
        Number of features in both selections.
    share : float
        The count as a share of the smaller selection; in `bigfs diff` of the larger one.
    chance : float
        The share expected for two random selections of these sizes.
    """

    count: int
    share: float
    chance: float


def selection_overlap(first: Any, second: Any, n_features: int) -> Overlap:
    """Return the number of features that two selections share, and the share expected by chance.

    Parameters
    ----------
    first, second : array-like of int
        Indices of the selected features, without duplicates.
    n_features : int
        Number of features that were selected from.

    Returns
    -------
    overlap : Overlap
        ``share`` in [0, 1]; ``chance`` is the larger size over ``n_features``.

    Raises
    ------
    InputError
        If a selection is empty, has duplicates or indices out of range.
    """
    sets = []
    for name, chosen in (("first", first), ("second", second)):
        values = np.asarray(without_mask(chosen))
        kept = set(values.tolist()) if values.ndim == 1 and values.dtype.kind in "iu" else set()
        if not kept or len(kept) < len(values) or min(kept) < 0 or max(kept) >= n_features:
            raise InputError(
                f"{name} must hold at least one feature index, from 0 to {n_features - 1}, and no "
                f"duplicates. Got an array of {values.dtype} with shape {values.shape}."
            )
        sets.append(kept)
    count, sizes = len(sets[0] & sets[1]), sorted(len(kept) for kept in sets)
    return Overlap(count, count / sizes[0], sizes[1] / n_features)


def _matrix(X: Any) -> np.ndarray:
    """Return a user's matrix-like object as an array, with NaN for missing values."""
    X = plain(computed(X))
    array: np.ndarray = X.toarray() if hasattr(X, "tocsr") else np.asarray(X)
    with suppress(TypeError, ValueError):  # other objects keep their dtype, which is refused later
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    return array


def _finite_matrix(X: Any) -> np.ndarray:
    """Return X as a matrix of finite real numbers, or raise InputError."""
    X = _matrix(X)
    if X.ndim != 2 or 0 in X.shape:
        raise InputError(f"X must be a matrix with rows and columns. Got shape {X.shape}.")
    if X.dtype.kind not in "fiub" or not np.isfinite(X).all():
        raise InputError(f"X must hold finite real numbers. Got other values of {X.dtype}.")
    check_exact(X, "X")
    if X.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # refused below
            X = X.astype(np.float64)
    if not np.isfinite(X).all():
        raise InputError("X must hold finite real numbers: some are too large for float64.")
    return X


# Squares of rows whose values are below this share of the largest value underflow.
_VANISHING = 1e-150


def _comparable(X: np.ndarray) -> np.ndarray:
    """Return X; if its values are extreme, scaled to near one by a power of two, which is exact.

    Raises InputError if one row is so large that distances between other rows would vanish.
    """
    X = X if X.dtype.kind == "f" else X.astype(np.float64)
    sizes = np.abs(X).max(axis=1)
    largest = float(sizes.max())
    if largest and sizes[sizes > 0].min() < _VANISHING * largest:
        raise InputError(
            f"X has a value of {largest:.3g} in row {int(sizes.argmax())}, relative to which the "
            "distances of other rows vanish. Leave the row out, or scale the features."
        )
    is_near_one = not largest or 1e-100 < largest < 1e100
    return X if is_near_one else np.asarray(np.ldexp(X, -int(np.frexp(largest)[1])))


def _two_labelings(y_true: Any, y_pred: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the class numbers of two labelings of the same rows; see `confusion_matrix`."""
    true, pred = _labels(y_true, "y_true"), _labels(y_pred, "y_pred")
    if len(true) != len(pred):
        raise InputError(
            f"y_true and y_pred must label the same rows. Got {len(true)} and {len(pred)} labels."
        )
    n_true, n_pred = int(true.max()) + 1, int(pred.max()) + 1
    if n_true * n_pred > _MOST_PAIRS:
        raise InputError(
            f"y_true and y_pred must be classes, not continuous values. Got {n_true:,} and "
            f"{n_pred:,} different ones."
        )
    return true, pred


def _labels(y: Any, name: str) -> np.ndarray:
    """Return class numbers from 0, assigned in sorted order of the labels."""
    try:
        values = check_present(plain_values(y, name), name)
    except InputError:
        raise
    except (IndexError, TypeError, ValueError) as error:  # None, ragged lists, undecodable bytes
        raise InputError(f"{name} must hold one label for each row: {error}.") from None
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"{name} must hold one label for each row. Got shape {values.shape}.")
    classes, numbers = np.unique(values, return_inverse=True)
    check_classes(classes, len(values), name, refuse=is_continuous(classes))
    return numbers.astype(np.int64)
