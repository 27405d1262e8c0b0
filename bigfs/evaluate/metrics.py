"""Agreement of two labelings, and the nearest-neighbor error of a set of features."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.errors import InputError

AVERAGES = ("max", "min", "arithmetic", "geometric")
_STRIP_BYTES = 32 * 1024**2


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
        If the labelings are empty, not one-dimensional, or of different lengths.
    """
    true, pred = _labels(y_true, "y_true"), _labels(y_pred, "y_pred")
    if len(true) != len(pred):
        raise InputError(
            f"y_true and y_pred must label the same rows. Got {len(true)} and {len(pred)} labels."
        )
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
    if average not in AVERAGES:
        raise InputError(f"average must be one of {', '.join(AVERAGES)}. Got {average!r}.")
    counts = confusion_matrix(y_true, y_pred)
    joint = counts / counts.sum()
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)
    there = joint > 0
    expected = np.multiply.outer(rows, columns)[there]
    information = float((joint[there] * np.log(joint[there] / expected)).sum())
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
    X, labels = np.asarray(X), _labels(y, "y")
    if X.ndim != 2 or len(X) != len(labels) or len(X) < 2:
        raise InputError(
            f"X must be a matrix with a row for each of at least 2 labels. Got shape {X.shape} "
            f"and {len(labels)} labels."
        )
    return count_nearest_errors(X, labels, 0, len(X)) / len(X)


def count_nearest_errors(X: np.ndarray, y: np.ndarray, start: int, stop: int) -> int:
    """Return how many rows from start to stop have a nearest other row of another class."""
    # Single precision finds the candidates, differences in double precision decide.
    Z = (X - X.mean(axis=0, dtype=np.float64)).astype(np.float32)
    norms = np.einsum("ij,ij->i", Z, Z)
    slack = 64 * np.finfo(np.float32).eps * float(norms.max())
    step = max(1, _STRIP_BYTES // (4 * len(Z)))
    wrong = 0
    for begin in range(start, stop, step):
        end = min(begin + step, stop)
        # Up to the row's own norm, these are squared distances.
        distances = Z[begin:end] @ Z.T
        distances *= -2.0
        distances += norms
        rows = np.arange(end - begin)
        distances[rows, rows + begin] = np.inf
        near = distances <= distances.min(axis=1, keepdims=True) + slack
        i, j = np.nonzero(near)
        wrong += int((y[_nearest(X, i + begin, j, begin, end)] != y[begin:end]).sum())
    return wrong


def _nearest(X: np.ndarray, i: np.ndarray, j: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Return the nearest candidate j of each row begin..end, of several the lowest."""
    squared = np.empty(len(i))
    step = max(1, _STRIP_BYTES // (8 * X.shape[1]))
    for at in range(0, len(i), step):
        part = slice(at, at + step)
        gap = X[i[part]].astype(np.float64) - X[j[part]]
        squared[part] = np.einsum("ef,ef->e", gap, gap)
    order = np.lexsort((j, squared, i))
    first = np.searchsorted(i[order], np.arange(begin, end))
    return j[order[first]]


def _labels(y: Any, name: str) -> np.ndarray:
    """Return class numbers in sorted order of the labels."""
    values = np.asarray(y)
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"{name} must be one label for each row. Got shape {values.shape}.")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


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
