"""Agreement of two labelings, nearest-neighbor error, and redundancy of a set of features."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks.kernels import ROUNDING, correlations_of, slices
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
_STRIP_BYTES = 32 * 1024**2
_PAIRS_BYTES = 16 * 1024**2
# With more pairs of classes than this, labels are taken for continuous values.
_MOST_PAIRS = 10**8


def confusion_matrix(y_true: Any, y_pred: Any) -> np.ndarray:
    """Count the rows of each pair of classes.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
        Labels of any kind; classes are taken in sorted order.

    Returns
    -------
    counts : ndarray of shape (n_true, n_pred), int64

    Raises
    ------
    InputError
        If the labelings are empty, not one-dimensional, of different lengths, lack the label of a
        row, or hold continuous values.

    Notes
    -----
    Whole numbers or texts with more classes than half of the rows are taken, with a warning: if
    every row is a class of its own, any labeling that tells all rows apart agrees with it.
    """
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
    """Return the mutual information of two labelings over a mean of their entropies.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
    average : {"max", "min", "arithmetic", "geometric"}, default="max"
        ``max`` is what the MCFS paper uses.

    Returns
    -------
    nmi : float
        In [0, 1], larger is better; 1 if both labelings have one class.
    """
    check_choice("average", average, AVERAGES)
    counts = confusion_matrix(y_true, y_pred)
    joint = counts / counts.sum()
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)
    positive = joint > 0
    expected = np.multiply.outer(rows, columns)[positive]
    information = float((joint[positive] * np.log(joint[positive] / expected)).sum())
    h_true, h_pred = _entropy(rows), _entropy(columns)
    norm = {
        "max": max(h_true, h_pred),
        "min": min(h_true, h_pred),
        "arithmetic": (h_true + h_pred) / 2,
        "geometric": float(np.sqrt(h_true * h_pred)),
    }[average]
    if norm <= 0:
        return 1.0 if h_true == h_pred == 0 else 0.0
    return float(min(max(information / norm, 0.0), 1.0))


def rand_index(y_true: Any, y_pred: Any) -> float:
    """Return the share of pairs of rows that both labelings treat alike, in [0, 1]."""
    together, true, pred, pairs = _pair_counts(confusion_matrix(y_true, y_pred))
    return (pairs + 2 * together - true - pred) / pairs if pairs else 1.0


def adjusted_rand_index(y_true: Any, y_pred: Any) -> float:
    """Return the Rand index corrected for chance: 0 expected at random, 1 for equal labelings."""
    together, true, pred, pairs = _pair_counts(confusion_matrix(y_true, y_pred))
    if not pairs:
        return 1.0
    expected = true * pred / pairs
    largest = (true + pred) / 2
    return 1.0 if largest == expected else (together - expected) / (largest - expected)


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
        In [0, 1], smaller is better. Exact; of equally near rows the lowest one counts.

    Raises
    ------
    InputError
        If X and y do not fit each other.
    """
    X, labels = _matrix(X), _labels(y, "y")
    if X.ndim != 2 or X.shape[1] == 0 or len(X) != len(labels) or len(X) < 2:
        raise InputError(
            "X must be a matrix with a row for each of at least 2 labels and at least one "
            f"column. Got shape {X.shape} and {len(labels)} labels."
        )
    rows = _comparable(_finite_matrix(X))
    return count_nearest_errors(rows, labels, 0, len(rows)) / len(rows)


def count_nearest_errors(X: np.ndarray, y: np.ndarray, start: int, stop: int) -> int:
    """Return how many rows from start to stop have a nearest other row of another class."""
    # Shifted by a median, which no outlier moves: errors grow with a row's distance from it.
    center = np.median(X[:: max(1, len(X) // 1000)].astype(np.float64), axis=0)
    rows = PreparedRows.of(X, center, scale_around(center, float(X.min()), float(X.max())))
    return count_wrong(rows.part(start, stop), start, y, [(0, rows)])


def count_wrong(
    queries: PreparedRows, start: int, y: np.ndarray, parts: Iterable[tuple[int, PreparedRows]]
) -> int:
    """Return how many rows have a nearest other row of another class, which any part may hold.

    Parameters
    ----------
    queries : PreparedRows
        Those from row ``start`` on.
    start : int
    y : ndarray of shape (n_samples,)
        Of all rows.
    parts : iterable of (int, PreparedRows)
        All rows in order, each part with the number of its first row. The queries are within one.
    """
    n = len(queries.X)
    nearest, squared = np.zeros(n, dtype=np.int64), np.full(n, np.inf)
    for first, part in parts:
        step = max(1, _STRIP_BYTES // (4 * len(part.X)))
        for begin in range(0, n, step):
            end, own = min(begin + step, n), start + begin - first
            is_own = 0 <= own < len(part.X)
            candidates, distance = nearest_rows(
                queries.part(begin, end), part, own if is_own else None
            )
            # Parts come in order: a tie stays with the lower row.
            closer = distance < squared[begin:end]
            nearest[begin:end][closer] = candidates[closer] + first
            squared[begin:end][closer] = distance[closer]
    return int((y[nearest] != y[start : start + n]).sum())


def scale_around(center: np.ndarray, minimum: float, maximum: float) -> float:
    """Return the scale of values in a range for single precision: nothing overflows."""
    largest = max(maximum - float(center.min()), float(center.max()) - minimum)
    # A power of two: scaling is exact.
    return float(2.0 ** -np.floor(np.log2(largest))) if largest > 0 else 1.0


@dataclass(frozen=True)
class PreparedRows:
    """Rows with what a search needs of them: single precision, squared norms, their lower bound."""

    X: np.ndarray
    Z: np.ndarray
    norms: np.ndarray
    below: np.ndarray
    scale: float

    @classmethod
    def of(cls, X: np.ndarray, center: np.ndarray, scale: float) -> PreparedRows:
        """Prepare rows of shape (n_rows, n_features), as ``(x - center) * scale``."""
        Z = np.empty(X.shape, dtype=np.float32)
        step = max(1, _STRIP_BYTES // (8 * X.shape[1]))
        for part in slices(len(X), step):
            Z[part] = (X[part] - center) * scale
        norms = np.einsum("ij,ij->i", Z, Z, dtype=np.float64)
        below = ((1.0 - _share(X.shape[1])) * norms).astype(np.float32)
        return cls(X, Z, norms, below, scale)

    def part(self, start: int, stop: int) -> PreparedRows:
        """Return some of the rows."""
        rows = slice(start, stop)
        return PreparedRows(
            self.X[rows], self.Z[rows], self.norms[rows], self.below[rows], self.scale
        )


def _share(n_features: int) -> float:
    """Return the bound of a squared distance's error, as a share of the two squared norms."""
    return float(np.finfo(np.float32).eps * (16 + min(n_features, 1024) / 2))


def nearest_rows(
    queries: PreparedRows, base: PreparedRows, own: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest row of the base for every query, exactly; of equal ones the lowest.

    Single precision finds the candidates, differences in double precision decide.

    Parameters
    ----------
    queries, base : PreparedRows
        With the same center and scale.
    own : int or None, default=None
        Where in the base the queries themselves begin: a row is not its own neighbor.

    Returns
    -------
    nearest : ndarray of shape (n_queries,), int64
    squared : ndarray of shape (n_queries,), float64
        Squared distances, in their scale; infinite where the base has only the row
        itself.
    """
    rows = np.arange(len(queries.X))
    # Lower bounds of the squared distances, up to the row's own norm.
    lower = (-2.0 * queries.Z) @ base.Z.T
    lower += base.below
    if own is not None:
        lower[rows, rows + own] = np.inf
        if len(base.X) == 1:
            return np.zeros(len(rows), dtype=np.int64), np.full(len(rows), np.inf)
    first = lower.argmin(axis=1)
    share = _share(base.X.shape[1])
    reach = lower[rows, first] + 2.0 * share * (base.norms[first] + queries.norms)
    reach = np.nextafter((reach + np.finfo(np.float32).tiny).astype(np.float32), np.inf)
    i, j = np.divmod(np.flatnonzero(lower <= reach[:, None]), len(base.X))
    squared = _squared(queries.X, base.X, i, j, base.scale)
    begins = np.flatnonzero(np.diff(i, prepend=-1))
    smallest = np.minimum.reduceat(squared, begins)
    hits = np.flatnonzero(squared == np.repeat(smallest, np.diff(begins, append=len(i))))
    return j[hits[np.searchsorted(hits, begins)]], smallest


def _squared(Q: np.ndarray, X: np.ndarray, i: np.ndarray, j: np.ndarray, scale: float) -> Any:
    """Return the squared distances of the pairs (i, j), float64."""
    squared = np.empty(len(i))
    step = max(1, _STRIP_BYTES // (8 * X.shape[1]))
    for part in slices(len(i), step):
        gap = (Q[i[part]].astype(np.float64) - X[j[part]]) * scale
        squared[part] = np.einsum("ef,ef->e", gap, gap)
    return squared


def redundancy(X: Any) -> float:
    """Return the mean absolute correlation of the pairs of columns.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The selected features.

    Returns
    -------
    redundancy : float
        In [0, 1], smaller is better; 0 for a single feature. A constant column is correlated
        with none.

    Raises
    ------
    InputError
        If X is not a matrix of finite numbers.
    """
    X = _finite_matrix(X)
    n_features = X.shape[1]
    if n_features == 1:
        return 0.0
    step = max(1, _STRIP_BYTES // (8 * n_features))
    least, most = X.min(axis=0).astype(np.float64), X.max(axis=0).astype(np.float64)
    size = np.maximum(np.abs(least), np.abs(most))
    exponents = -np.frexp(size)[1]  # by powers of two: no square overflows or vanishes

    def strip(begin: int, first: int = 0) -> np.ndarray:
        rows = X[begin : begin + step, first:].astype(np.float64)
        return np.ldexp(rows, exponents[first:])

    shift = strip(0)[0]
    sums, squares = np.zeros(n_features), np.zeros(n_features)
    # Means first: products are then of centered columns, and nothing cancels.
    for begin in range(0, len(X), step):
        sums += (strip(begin) - shift).sum(axis=0)
    center = shift + sums / len(X)
    for begin in range(0, len(X), step):
        tile = strip(begin) - center
        squares += np.einsum("ij,ij->j", tile, tile)
    eps = np.finfo(X.dtype).eps if X.dtype.kind == "f" else 0.0
    varies = (most / 2 - least / 2 > ROUNDING * eps * size / 2) & (squares > 0)
    inverse = np.divide(1.0, np.sqrt(squares), out=np.zeros(n_features), where=varies)
    # Some columns at a time with those from them on: all products would be d x d.
    total, width = 0.0, max(1, _PAIRS_BYTES // (8 * n_features))
    for first in range(0, n_features, width):
        last = min(first + width, n_features)
        products = np.zeros((n_features - first, last - first))
        for begin in range(0, len(X), step):
            tile = strip(begin, first) - center[first:]
            products += tile.T @ tile[:, : last - first]
        products *= inverse[first:last]
        products *= inverse[first:, None]
        np.abs(products, out=products)
        total += 2 * products[last - first :].sum()
        total += products[: last - first].sum() - products.diagonal().sum()
    return float(min(1.0, total / (n_features * (n_features - 1))))


def redundancy_of_products(products: np.ndarray) -> float:
    """Return the mean absolute correlation, from the centered columns' products."""
    n_features = len(products)
    if n_features == 1:
        return 0.0
    correlation = correlations_of(products)
    off_diagonal = correlation.sum() - correlation.diagonal().sum()
    return float(min(1.0, off_diagonal / (n_features * (n_features - 1))))


@dataclass(frozen=True)
class Overlap:
    """The overlap of two selections.

    Attributes
    ----------
    count : int
        Features in both.
    share : float
        As a share of the smaller selection.
    chance : float
        The share expected of two random selections of these sizes.
    """

    count: int
    share: float
    chance: float


def selection_overlap(first: Any, second: Any, n_features: int) -> Overlap:
    """Return the features that two selections share, and the number expected by chance.

    Parameters
    ----------
    first, second : array-like of int
        Indices of the selected features, without repetition.
    n_features : int
        Features that were chosen from.

    Returns
    -------
    overlap : Overlap
        ``share`` in [0, 1]; ``chance`` is the larger size over ``n_features``.

    Raises
    ------
    InputError
        If a selection is empty, repeats a feature or leaves the range.
    """
    sets = []
    for name, chosen in (("first", first), ("second", second)):
        values = np.asarray(without_mask(chosen))
        kept = set(values.tolist()) if values.ndim == 1 and values.dtype.kind in "iu" else set()
        if not kept or len(kept) < len(values) or min(kept) < 0 or max(kept) >= n_features:
            raise InputError(
                f"{name} must be different feature indices from 0 to {n_features - 1}, at least "
                f"one. Got an array of {values.dtype} with shape {values.shape}."
            )
        sets.append(kept)
    count, sizes = len(sets[0] & sets[1]), sorted(len(kept) for kept in sets)
    return Overlap(count, count / sizes[0], sizes[1] / n_features)


def _matrix(X: Any) -> np.ndarray:
    """Return what a user has as an array; what is missing is NaN."""
    X = plain(computed(X))
    array: np.ndarray = X.toarray() if hasattr(X, "tocsr") else np.asarray(X)
    with suppress(TypeError, ValueError):  # objects that are no numbers are refused by their type
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


# Rows whose values are below this share of the largest value have squares that vanish.
_VANISHING = 1e-150


def _comparable(X: np.ndarray) -> np.ndarray:
    """Return rows near one by a power of two, which rounds nothing; refuse one far from all."""
    sizes = np.abs(X).max(axis=1)
    largest = float(sizes.max())
    if not largest:
        return X
    if sizes[sizes > 0].min() < _VANISHING * largest:
        raise InputError(
            f"X has a value of {largest:.3g} in row {int(sizes.argmax())}: beside it the distances "
            "of other rows vanish. Leave the row out, or scale the features."
        )
    is_float = X.dtype.kind == "f"
    return np.ldexp(X, -int(np.frexp(largest)[1])) if is_float and largest < 1e-100 else X


def _labels(y: Any, name: str) -> np.ndarray:
    """Return class numbers in sorted order of the labels."""
    try:
        values = check_present(plain_values(y, name), name)
    except InputError:
        raise
    except (IndexError, TypeError, ValueError) as error:  # None, ragged lists, bytes of no text
        raise InputError(f"{name} must be one label for each row. Got others: {error}.") from None
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"{name} must be one label for each row. Got shape {values.shape}.")
    classes, numbers = np.unique(values, return_inverse=True)
    check_classes(classes, len(values), name, refuse=is_continuous(classes))
    return numbers.astype(np.int64)


def _entropy(p: np.ndarray) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum()) if len(p) > 1 else 0.0


def _pair_counts(counts: np.ndarray) -> tuple[float, float, float, float]:
    """Return pairs together in both, in the first, in the second, and all pairs."""

    def pairs(x: np.ndarray) -> float:
        x = x.astype(np.float64)
        return float((x * (x - 1)).sum() / 2)

    return (
        pairs(counts),
        pairs(counts.sum(axis=1)),
        pairs(counts.sum(axis=0)),
        pairs(counts.sum(keepdims=True)),
    )
