"""Eigenvectors of a graph's first rows, from which those of the whole graph are found sooner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.store.scratch import ArrayRef

# Sweeps over the rows that new ones are joined to, before a start is used.
SWEEPS = 8
# What a start lacks is still there: so much of the random block stays in its columns.
RANDOM_SHARE = 1e-3
# Rows that are read at a time, at the most, but for one chunk.
_ROWS = 2**17


@dataclass(frozen=True)
class StoredStart:
    """Addresses of a start."""

    embedding: ArrayRef  # of shape (n_old, n_components), float64: of the graph of the first rows
    guards: ArrayRef  # of shape (n_old, n_guards), float32: vectors beyond them, known less exactly
    n_known: int  # leading vectors of the null space, which are left out

    @property
    def n_samples(self) -> int:
        """Rows that have vectors."""
        return self.embedding.shape[0]

    @property
    def width(self) -> int:
        """Number of vectors."""
        return self.embedding.shape[1] - self.n_known + self.guards.shape[1]

    @property
    def task_rows(self) -> int:
        """Rows to read at a time: whole chunks."""
        chunk = self.embedding.chunk_rows
        return chunk * max(1, _ROWS // chunk)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read consecutive rows, (stop - start, width) float32."""
        vectors = self.embedding.read(start, stop)[:, self.n_known :].astype(np.float32)
        return np.hstack([vectors, self.guards.read(start, stop)])
