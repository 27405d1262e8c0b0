"""Choice among the solutions of M3FS: the one whose clusters describe the rows best.

Every cluster is taken for a Gaussian with a mean and a covariance of its own, and every ending for
the mixture of its clusters, rows counted where they were put. The objective cannot compare endings
so: it prefers even halves and knows of each feature only what the rule makes of it.

With many features and clusters a start takes long, and ends near where it began: there only the
starts that describe the rows best are run. On the shared sets with more than two clusters and more
than 2,000 unknowns the chosen start was the likeliest one from the beginning (correlation of both
likelihoods 0.91 to 1). With few features, and with two clusters of text, the order of the
beginnings says little of that of the ends.
"""

from __future__ import annotations

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.sample import gather_rows, gather_steps
from bigfs.core.cost import Shape, Step
from bigfs.core.seeds import rng
from bigfs.core.units import MIB
from bigfs.runtime.execute import run_tasks
from bigfs.store.scratch import ArrayRef

# Added to the variance of every direction, as a share of the features' mean variance: a cluster
# may have fewer rows than there are features.
RIDGE = 0.2
# Figures that differ by less are equal, whatever their last bits.
DIGITS = 9
# With more than two clusters and so many unknowns, the likeliest starts are run to their ends.
_MANY_UNKNOWNS = 4096
_FEW_STARTS = 3


def starts_to_run(n_starts: int, size: tuple[int, int], criterion: str) -> int:
    """Return how many starts are run to their ends, with V of a size."""
    many = size[1] > 1 and size[0] * size[1] > _MANY_UNKNOWNS
    return min(n_starts, _FEW_STARTS) if many and criterion == "likelihood" else n_starts


def likeliest(likely: np.ndarray, count: int) -> list[int]:
    """Return the numbers of the likeliest starts, in their order; ties go to the first."""
    ranked = np.argsort(-np.round(likely, DIGITS), kind="stable")
    return [int(number) for number in np.sort(ranked[:count])]


def compared_rows(shape: Shape) -> int:
    """Return on how many rows of data the endings are compared."""
    return min(shape.n_samples, 10_000, max(100, 2**22 // shape.n_features))


def choice_bytes(shape: Shape) -> int:
    """Return the bytes of a task that compares endings.

    The rows as stored, in float64 and a cluster's; a matrix of rows or features and its workspace.
    """
    rows, d = compared_rows(shape), shape.n_features
    return rows * d * (shape.itemsize + 16) + 24 * min(rows, d) ** 2 + 8 * MIB


def choice_steps(shape: Shape, n_starts: int) -> tuple[Step, ...]:
    """Return the steps of `likelihoods`."""
    size, what = compared_rows(shape), "the rows that starts are compared on"
    return (
        *gather_steps(shape, size),
        Step(what, choice_bytes(shape), n_starts),
        Step(what, 16 * shape.n_samples, by_client=True),
    )


def likelihoods(blocks: RowBlocks, clusters: ArrayRef, random_state: int) -> np.ndarray:
    """Return how well each column of labels describes the rows: one pass.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    clusters : ArrayRef of shape (n_samples, n_starts), uint8
    random_state : int
        Of the rows that are drawn where there are many.

    Returns
    -------
    likelihoods : ndarray of shape (n_starts,), float64
        Mean log-likelihood of a row, see `mean_log_likelihood`.
    """
    n = blocks.n_samples
    size = compared_rows(blocks.layout)
    ids = np.arange(n)
    if size < n:
        ids = np.sort(rng(random_state, "m3fs compared").choice(n, size, replace=False))
    rows = gather_rows(blocks, ids, "m3fs sample")
    labels = blocks.scratch.put(blocks.scratch.unique("compared"), clusters.take(ids))
    starts = list(range(clusters.shape[1]))
    values = run_tasks(_likelihood_task, starts, rows, labels, label="m3fs choice")
    blocks.scratch.remove(rows, labels)
    return np.array(values)


def _likelihood_task(number: int, rows: ArrayRef, labels: ArrayRef) -> float:
    return mean_log_likelihood(rows.load(), labels.load()[:, number])


def mean_log_likelihood(X: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean log-likelihood of rows, each under the Gaussian of its own cluster.

    With n_c rows in cluster c, S_c their covariance, and r `RIDGE` of the mean variance::

        sum_c n_c / n (log n_c / n - 1/2 log |2 pi (S_c + r I)| - 1/2 tr (S_c + r I)^-1 S_c)

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
    labels : ndarray of shape (n_samples,), int

    Returns
    -------
    likelihood : float
        0 where no feature varies.
    """
    X = X.astype(np.float64)
    n, d = X.shape
    ridge = RIDGE * float(X.var(axis=0).mean())
    if ridge == 0:
        return 0.0
    total = 0.0
    for c in np.unique(labels):
        Z = X[labels == c]
        Z -= Z.mean(axis=0)
        # The smaller of the two has the eigenvalues; the others are zero.
        moments = Z @ Z.T if len(Z) < d else Z.T @ Z
        values = np.maximum(np.linalg.eigvalsh(moments) / len(Z), 0.0)
        entropy = d * np.log(2 * np.pi * ridge) + np.log1p(values / ridge).sum()
        entropy += (values / (values + ridge)).sum()
        total += len(Z) * (np.log(len(Z) / n) - entropy / 2)
    return float(total / n)
