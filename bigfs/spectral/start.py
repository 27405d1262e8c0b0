"""Eigenvectors of a graph's first rows, from which those of the whole graph are found sooner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.spectral.problem import Problem
from bigfs.store.scratch import ArrayRef

# Sweeps over the rows that new ones are joined to, before a start is used.
SWEEPS = 8
# What a start lacks is still there: so much of the random block stays in its columns.
RANDOM_SHARE = 1e-3


@dataclass(frozen=True)
class StoredStart:
    """Addresses of a start.

    Attributes
    ----------
    embedding : ArrayRef of shape (n_old, n_components), float64
        Of the graph of the first rows.
    guards : ArrayRef of shape (n_old, n_guards), float32
        Vectors beyond them, known less exactly.
    n_known : int
        Leading vectors of the null space, which are left out.
    """

    embedding: ArrayRef
    guards: ArrayRef
    n_known: int

    @property
    def n_samples(self) -> int:
        """Rows that have vectors."""
        return self.embedding.shape[0]

    @property
    def width(self) -> int:
        """Number of vectors."""
        return self.embedding.shape[1] - self.n_known + self.guards.shape[1]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read consecutive rows, (stop - start, width) float32."""
        vectors = self.embedding.read(start, stop)[:, self.n_known :].astype(np.float32)
        return np.hstack([vectors, self.guards.read(start, stop)])


def start_panel(old: np.ndarray, problem: Problem) -> np.ndarray:
    """Return vectors of the first rows with rows for new ones, (n_samples, n_columns) float32.

    Each row that is joined to a new one is the mean of its neighbors, from some sweeps.
    """
    n_old, degrees = len(old), problem.root**2
    z = np.zeros((problem.n_samples, old.shape[1]), np.float32)
    z[:n_old] = old
    ends = problem.W.indptr[n_old:]
    joined = np.unique(problem.W.indices[ends[0] : ends[-1]])
    joined = np.union1d(joined, np.arange(n_old, problem.n_samples))
    rows, weights = problem.W[joined], degrees[joined, None]
    for _ in range(SWEEPS):
        z[joined] = (rows @ z) / weights
    return z
