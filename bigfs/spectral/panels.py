"""Tasks on a panel: a few columns of all rows, so that many products are one task.

Chebyshev's recurrence takes every column by itself. A task reads W and its panel once, and
multiplies many times. W is held or read for each product (`bigfs.spectral.operator.Transition`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.core.seeds import rng
from bigfs.spectral.kernels import aligned
from bigfs.spectral.operator import StoredGraph, Transition
from bigfs.spectral.vectors import Vectors
from bigfs.store.chunking import block_bounds
from bigfs.store.scratch import ArrayRef

# Sweeps over the rows that new ones are joined to, before a start is used.
SWEEPS = 8
# What a start lacks is still there: so much of the random block stays in its columns.
_RANDOM_SHARE = 1e-3


@dataclass(frozen=True)
class StoredStart:
    """Eigenvectors of a graph's first rows, from which those of the graph are found sooner."""

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

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read consecutive rows, (stop - start, width) float32."""
        vectors = self.embedding.read(start, stop)[:, self.n_known :].astype(np.float32)
        return np.hstack([vectors, self.guards.read(start, stop)])


@dataclass(frozen=True)
class Begin:
    """The vectors that a block begins with; columns that are not near any are random."""

    random_state: int
    start: StoredStart | None = None  # eigenvectors of the first rows
    # Of shape (n_samples,), int32, and (n_groups, n_near), float32: vectors that are the same in
    # each group of rows.
    groups: ArrayRef | None = None
    vectors: ArrayRef | None = None
    n_near: int = 0  # leading columns that are near their end

    def without_start(self) -> Begin:
        """Return what is left once new rows are filled in."""
        return replace(self, start=None)


def begin_task(panel: int, graph: StoredGraph, begin: Begin, target: Vectors) -> int:
    """Write a panel of the block that an iteration begins with; return the attempt."""
    first, width = sum(target.widths[:panel]), target.widths[panel]
    root = np.sqrt(graph.W.degrees.load(), dtype=np.float32)
    X = np.empty((graph.n_samples, width), target.dtype)
    for j in range(width):
        generator = rng(begin.random_state, "spectral", first + j)
        X[:, j] = generator.standard_normal(len(X), dtype=np.float32) / root
    near = slice(0, max(0, min(begin.n_near - first, width)))
    X[:, near] *= np.float32(_RANDOM_SHARE)
    scale = np.float32(np.sqrt(graph.n_samples))
    columns = slice(first, first + near.stop)
    if begin.start is not None:
        for start, stop in block_bounds(begin.start.n_samples, begin.start.embedding.chunk_rows):
            X[start:stop, near] += scale * begin.start.read(start, stop)[:, columns]
    if begin.groups is not None and begin.vectors is not None and near.stop:
        vectors = np.empty((begin.vectors.shape[0], near.stop), np.float32)
        for start, stop in block_bounds(len(vectors), begin.vectors.chunk_rows):
            vectors[start:stop] = scale * begin.vectors.read(start, stop)[:, columns]
        for start, stop in target.bounds:
            X[start:stop, near] += vectors[begin.groups.read(start, stop)]
    return target.write(panel, [X])


def filter_task(
    panel: int,
    graph: StoredGraph,
    source: Vectors,
    state: Vectors | None,
    target: Vectors,
    steps: Sequence[tuple[float, float, float]],
    n_frozen: int,
    is_last: bool,
    begin: Begin,
) -> int:
    """Do some steps of the recurrence for a panel, from ``source`` on or where ``state`` ended.

    The first ``n_frozen`` panels stay as they are. The file gets the vectors and, after the last
    step, their products P z in float64, or else the vectors before them. Returns the attempt.
    """
    products, width, first = Transition(graph), target.widths[panel], sum(target.widths[:panel])
    X, Y = (aligned((graph.n_samples, width), target.dtype) for _ in range(2))
    frozen = panel < n_frozen
    for start, stop in target.bounds:
        where = products.where(start, stop)
        if state is not None and not frozen:
            X[where] = state.read(start, stop, panel)
            Y[where] = state.read(start, stop, panel, target.dtype)
        else:
            X[where] = source.rows(start, stop, columns=(first, first + width))
    if begin.start is not None and state is None:
        is_new = np.ones(graph.n_samples, bool)
        is_new[products.where(0, begin.start.n_samples)] = False
        products.smooth(X, is_new, SWEEPS)
    for scalars in () if frozen else steps:
        products.step(X, Y, *scalars)
        X, Y = Y, X
    if is_last:
        Y = X  # frees what rows of W need when they are read for the products

    def parts() -> Iterator[np.ndarray]:
        for start, stop in target.bounds:
            yield X[products.where(start, stop)]
        for start, stop in target.bounds:
            if is_last:
                yield products.product(X, start, stop)
            else:
                yield Y[products.where(start, stop)]

    return target.write(panel, parts())


def lanczos_task(steps: int, graph: StoredGraph, random_state: int) -> np.ndarray:
    """Return the diagonals of the tridiagonal matrix of some Lanczos steps, of shape (2, steps)."""
    products = Transition(graph)
    root = np.empty(graph.n_samples)
    root[products.where(0, graph.n_samples)] = np.sqrt(graph.W.degrees.load())
    alpha, beta = np.zeros((2, steps))
    v = np.empty_like(root)
    draw: Any = rng(random_state, "spectral bound").standard_normal(len(root))
    v[products.where(0, graph.n_samples)] = draw
    v /= np.linalg.norm(v)
    last, following = np.zeros_like(root), np.empty((len(root), 1))
    for j in range(steps):
        products.step((v / root)[:, None], following, 1.0, 0.0, 0.0)
        w = following[:, 0] * root
        w -= beta[j - 1] * last if j else 0.0
        alpha[j] = w @ v
        w -= alpha[j] * v
        beta[j] = np.linalg.norm(w)
        last, v = v, w / beta[j]
    return np.stack([alpha, beta])
