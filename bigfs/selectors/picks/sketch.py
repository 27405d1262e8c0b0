"""Few rows that stand for all: every row of X is added, with random signs, to eight of them.

With S such a matrix of signs over ``sqrt(8)`` (Clarkson, Woodruff 2013; Nelson, Nguyen 2013),
``(S X)'(S X)`` is close to ``X'X``, and one pass gives ``S (X - 1 mean')`` in float64.

Runs on workers; imports no scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import column_means
from bigfs.blocks.rowblocks import fold_parts
from bigfs.core.cost import Shape, Step
from bigfs.core.memory import task_budget
from bigfs.core.seeds import rng
from bigfs.core.units import MIB

_SIGNS = 8
_LEAST_ROWS = 1000
# Converted to float64 at a time.
_STRIP_BYTES = 8 * MIB


@dataclass
class Partial:
    """The sketch of some rows, of some columns."""

    count: int
    mean: np.ndarray  # of shape (n_columns,), float64
    rows: np.ndarray  # of shape (n_rows, n_columns), float64: ``S (X - 1 mean')``
    ones: np.ndarray  # of shape (n_rows,), float64: ``S 1``


@dataclass(frozen=True)
class RowSketch:
    """Rows of a sketch, and the columns of it that are made in a pass."""

    shape: Shape
    n_rows: int
    n_columns: int  # columns of a pass: where not all fit a worker, X is read once for each group

    @classmethod
    def of(cls, shape: Shape, n_selected: int, memory_limit: int) -> RowSketch:
        """Return the sketch for a number of features to select."""
        n_rows = min(max(4 * n_selected, _LEAST_ROWS), shape.n_samples)
        room = task_budget(memory_limit) - shape.read_bytes - 2 * _STRIP_BYTES
        columns = room // (8 * n_rows * fold_parts(shape.n_blocks))
        return cls(shape, n_rows, max(1, min(shape.n_features, columns)))

    @property
    def nbytes(self) -> int:
        """Size of the sketch, in bytes."""
        return 8 * self.n_rows * self.shape.n_features

    @property
    def _groups(self) -> list[tuple[int, int]]:
        d = self.shape.n_features
        return [(a, min(a + self.n_columns, d)) for a in range(0, d, self.n_columns)]

    def step(self) -> Step:
        """Return the step of `read`."""
        partial = 8 * self.n_rows * self.n_columns
        needed = partial * fold_parts(self.shape.n_blocks) + 2 * _STRIP_BYTES
        what = f"sums of {self.n_rows:,} rows x {self.n_columns:,} features in a fold"
        shape = self.shape
        return Step(
            what, needed + shape.read_bytes, shape.n_blocks, 1, shape.n_chunks, len(self._groups)
        )

    def read(self, blocks: RowBlocks, random_state: int) -> np.ndarray:
        """Return the sketch, shape (n_rows, n_features), float64."""
        sketch = np.empty((self.n_rows, self.shape.n_features))
        for columns in self._groups:
            shared = (self, columns, random_state)
            total: Partial = blocks.reduce(_sketch_kernel, _merge_partials, *shared, label="sketch")
            sketch[:, columns[0] : columns[1]] = total.rows
        return sketch


def _sketch_kernel(
    X: np.ndarray, first_row: int, sketch: RowSketch, columns: tuple[int, int], random_state: int
) -> Partial:
    X = X[:, columns[0] : columns[1]]
    S = _signs(sketch, len(X), first_row, random_state)
    mean = column_means(X)
    rows = np.empty((sketch.n_rows, X.shape[1]))
    step = max(1, _STRIP_BYTES // (8 * max(len(X), sketch.n_rows)))
    for begin in range(0, X.shape[1], step):
        end = begin + step
        rows[:, begin:end] = S @ (X[:, begin:end] - mean[begin:end])
    return Partial(len(X), mean, rows, S @ np.ones(len(X)))


def _signs(sketch: RowSketch, n: int, first_row: int, random_state: int) -> csr_array:
    """Return the columns of S for a block, shape (n_rows, n)."""
    generator = rng(random_state, "row sketch", first_row)
    slots = generator.integers(sketch.n_rows, size=(n, _SIGNS))
    signs = generator.choice([-1.0, 1.0], size=(n, _SIGNS)) / np.sqrt(_SIGNS)
    rows = np.repeat(np.arange(n), _SIGNS)
    return csr_array((signs.ravel(), (slots.ravel(), rows)), (sketch.n_rows, n))


def _merge_partials(a: Partial, b: Partial) -> Partial:
    """Merge the sketches of two sets of rows, using the memory of the first."""
    from scipy.linalg.blas import dger

    count = a.count + b.count
    mean = a.mean + (b.count / count) * (b.mean - a.mean)
    a.rows += b.rows
    # A C-ordered sketch is its own transpose in Fortran order: no copy is made.
    rows = dger(1.0, a.mean - mean, a.ones, a=a.rows.T, overwrite_a=1)
    rows = dger(1.0, b.mean - mean, b.ones, a=rows, overwrite_a=1)
    return Partial(count, mean, rows.T, a.ones + b.ones)
