"""Strategies of the greedy methods that pick one column at a time, from products of the features.

The methods differ by their `Rule`. The strategies differ by the source of the products: the Gram
matrix from one pass, all rows, or a sketch, that is, a few rows that represent all.

For the sketch every row of X is added, with random signs, to eight rows. With S such a matrix of
signs divided by ``sqrt(8)`` (Clarkson, Woodruff 2013; Nelson, Nguyen 2013), ``(S X)'(S X)``
approximates ``X'X``, and one pass gives ``S (X - 1 mean')`` in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import centered_entries, is_mostly_zeros
from bigfs.blocks.kernels import column_means
from bigfs.blocks.rowblocks import fold_parts, gram_bytes, gram_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds, product_seconds
from bigfs.core.memory import task_budget
from bigfs.core.seeds import rng
from bigfs.core.units import MIB
from bigfs.selectors.cross import cross_pass
from bigfs.selectors.method import Strategy
from bigfs.solvers.greedy import (
    GramProducts,
    GreedyPath,
    NormPath,
    Products,
    RowProducts,
    SparseRowProducts,
    VariancePath,
    candidates_bytes,
)
from bigfs.solvers.nested import explained_by
from bigfs.solvers.sparserows import LOADS, SparseRows
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch, block_bounds

_SIGNS = 8
_LEAST_ROWS = 1000
# Bytes of a strip of columns that is converted to float64 at a time.
_STRIP_BYTES = 8 * MIB


@dataclass
class Partial:
    """Sketch of a set of rows, restricted to a range of columns."""

    count: int
    mean: np.ndarray  # of shape (n_columns,), float64
    rows: np.ndarray  # of shape (n_rows, n_columns), float64: ``S (X - 1 mean')``
    ones: np.ndarray  # of shape (n_rows,), float64: ``S 1``


@dataclass(frozen=True)
class RowSketch:
    """Number of rows of a sketch, and number of its columns that are computed per pass."""

    shape: Shape
    n_rows: int
    n_columns: int  # columns per pass: if not all fit in a worker, X is read once for each group

    @classmethod
    def of(cls, shape: Shape, n_selected: int, memory_limit: int) -> RowSketch:
        """Return the dimensions of the sketch for ``n_selected`` features to select."""
        n_rows = min(max(4 * n_selected, _LEAST_ROWS), shape.n_samples)
        room = task_budget(memory_limit) - shape.read_bytes - 2 * _STRIP_BYTES
        columns = room // (8 * n_rows * fold_parts(shape.n_blocks))
        return cls(shape, n_rows, max(1, min(shape.n_features, columns)))

    def step(self) -> Step:
        """Return the step of `read`."""
        partial = 8 * self.n_rows * self.n_columns
        needed = partial * fold_parts(self.shape.n_blocks) + 2 * _STRIP_BYTES
        what = f"sums of {self.n_rows:,} rows x {self.n_columns:,} features in a fold"
        shape, times = self.shape, -(-self.shape.n_features // self.n_columns)
        return Step(what, needed + shape.read_bytes, shape.n_blocks, 1, shape.n_chunks, times)

    def read(self, blocks: RowBlocks, random_state: int) -> np.ndarray:
        """Return the sketch, shape (n_rows, n_features), float64."""
        sketch = np.empty((self.n_rows, self.shape.n_features))
        for columns in block_bounds(self.shape.n_features, self.n_columns):
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
    # The transpose of a C-ordered array is in Fortran order, so BLAS works in place.
    rows = dger(1.0, a.mean - mean, a.ones, a=a.rows.T, overwrite_a=1)
    rows = dger(1.0, b.mean - mean, b.ones, a=rows, overwrite_a=1)
    return Partial(count, mean, rows.T, a.ones + b.ones)


# Measured: loop steps per value that is read, converted to float64 and centered.
_COPY_LOOPS = 50


class Rule(ABC):
    """Rule by which a greedy method picks features."""

    # True if the result does not change when all features are multiplied by one factor.
    scale_free: ClassVar[bool] = False

    def matrices(self, n_features: int, n_rows: int | None) -> int:
        """Return the bytes needed in addition to the products.

        ``n_rows`` is the number of rows that give the products; None for a Gram matrix.
        """
        return 0

    @abstractmethod
    def path(self, products: Products, n_picks: int) -> GreedyPath:
        """Return the path of ``n_picks`` picks."""

    def sketch_steps(self, shape: Shape, n_picks: int) -> tuple[Step, ...]:
        """Return the steps of the passes that follow the path on a sketch."""
        return ()

    @abstractmethod
    def result(
        self, path: GreedyPath, norms: np.ndarray, blocks: RowBlocks | None
    ) -> FeatureScores:
        """Return the scores.

        Parameters
        ----------
        path : GreedyPath
        norms : ndarray of shape (n_features,)
            Squared norms of the columns; 0 if a feature is constant.
        blocks : RowBlocks or None
            The data if the path was computed on a sketch; None if the path is exact.
        """


@dataclass(frozen=True)
class Picks(Strategy):
    """Base of the strategies: the client computes a path from the products of one pass."""

    rule: Rule

    @property
    def n_selected(self) -> int:
        """Number of features to pick."""
        return self.selection.n_features_to_select

    @property
    def sketch(self) -> RowSketch:
        """Dimensions of the sketch that represents all rows."""
        return RowSketch.of(self.shape, self.n_selected, self.selection.memory_limit)

    def _on_client(self, what: str, n_rows: int | None) -> Step:
        d = self.shape.n_features
        products = 8 * (n_rows or d) * d + self.rule.matrices(d, n_rows)
        # The picks' vectors, of length d and of the number of rows; the columns of the candidates;
        # some strips.
        m = min(self.n_selected, d)
        needed = products + 8 * (d + (n_rows or 0)) * m + candidates_bytes(d) + 16 * MIB
        seconds = product_seconds(m, d, (n_rows or d) + m)
        return Step(what, needed, by_client=True, seconds=seconds)

    def _result(self, products: Products, blocks: RowBlocks | None = None) -> FeatureScores:
        norms = products.norms()
        scores = self.rule.result(self.rule.path(products, self.n_selected), norms, blocks)
        scores.details["n_sketch_rows"] = 0 if blocks is None else self.sketch.n_rows
        return scores


class PicksOnGram(Picks):
    """Path on the Gram matrix ``X'X`` of the centered columns, from one pass."""

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        d = self.shape.n_features
        path = self._on_client(f"the Gram matrix of {d:,} features", None)
        return StageCost((gram_step(self.shape, 0), path))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; details are the attributes of the method's class."""
        gram = inputs.blocks.gram().gram
        gram = in_range(gram, 2) if self.rule.scale_free else gram
        return self._result(GramProducts(gram))


class PicksOnRows(Picks):
    """Path on all rows, held by the client: for wide data that fit in memory."""

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        shape, d = self.shape, self.shape.n_features
        needed, seconds = rows_bytes(shape), loop_seconds(shape.n_samples, d, _COPY_LOOPS)
        read = Step("all rows", needed, 1, 1, shape.n_chunks, by_client=True, seconds=seconds)
        what = f"{shape.n_samples:,} rows x {d:,} features"
        return StageCost((read, self._on_client(what, shape.n_samples)), loads=LOADS)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; details are the attributes of the method's class."""
        rows = inputs.blocks.start_pass().read(0, self.shape.n_samples)
        is_sparse = is_mostly_zeros(np.count_nonzero(rows, axis=0), len(rows))
        entries = centered_entries(csr_array(rows)) if is_sparse else rows.astype(np.float64)
        del rows
        if self.rule.scale_free:
            in_range(entries.data if is_sparse else entries, 1)
        if is_sparse:
            center = np.zeros(self.shape.n_samples, dtype=np.intp)
            products: Products = SparseRowProducts(SparseRows(entries, center))
        else:
            entries -= column_means(entries)
            products = RowProducts(entries)
        return self._result(products)


class PicksOnSketch(Picks):
    """Path on a sketch from one pass: for wide data with many rows."""

    def cost(self) -> StageCost:
        """Return the cost of the passes and of the client's matrices."""
        sketch, d = self.sketch, self.shape.n_features
        what = f"{sketch.n_rows:,} rows x {d:,} features"
        later = self.rule.sketch_steps(self.shape, self.n_selected)
        return StageCost((sketch.step(), self._on_client(what, sketch.n_rows), *later))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; details are the attributes of the method's class."""
        rows = self.sketch.read(inputs.blocks, self.selection.random_state)
        rows = in_range(rows, 1) if self.rule.scale_free else rows
        return self._result(RowProducts(rows), inputs.blocks)


def rows_bytes(shape: Shape) -> int:
    """Return the bytes of all rows as they are read, in float64, and centered or as CSR."""
    return shape.n_samples * shape.n_features * (shape.itemsize + 16) + 16 * MIB


def in_range(values: np.ndarray, power: int) -> np.ndarray:
    """Divide values in place by a power of two near the largest, so that their squares are finite.

    Nothing is rounded, and relative shares do not change. ``power`` is 1 for values of X, and 2
    for products of two values: the exponent is then a multiple of 2, so that the corresponding
    factor of X is a power of two as well.
    """
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    exponent = np.frexp(largest)[1] // power * power
    return np.ldexp(values, -exponent, out=values)


def choose_picks(shape: Shape, selection: Selection, rule: Rule) -> Picks:
    """Return the strategy: on rows if these are few, the Gram matrix if it fits, else a sketch."""
    budget = task_budget(selection.memory_limit)
    if shape.n_samples < shape.n_features:
        on_rows = PicksOnRows(shape, selection, rule)
        if shape.n_samples <= on_rows.sketch.n_rows or on_rows.cost().client_bytes <= budget:
            return on_rows
    fits = gram_bytes(shape, 0) <= budget
    return (PicksOnGram if fits else PicksOnSketch)(shape, selection, rule)


def choose_column_subset(shape: Shape, selection: Selection) -> Picks:
    """Return the strategy of ColumnSubset: on the Gram matrix, on all rows or on a sketch."""
    return choose_picks(shape, selection, MostExplained())


@dataclass(frozen=True)
class MostExplained(Rule):
    """Picks the column that most reduces ``|X - P X|_F^2``."""

    scale_free = True

    def matrices(self, n_features: int, n_rows: int | None) -> int:
        """Return the bytes of the products of all pairs of rows."""
        return 0 if n_rows is None else 8 * n_rows**2

    def path(self, products: Products, n_picks: int) -> GreedyPath:
        """Return the path of ``n_picks`` picks."""
        return VariancePath(products, n_picks)

    def sketch_steps(self, shape: Shape, n_picks: int) -> tuple[Step, ...]:
        """Return the step of the pass that measures the variance explained by the picks."""
        d = shape.n_features
        needed = shape.read_bytes + 8 * (fold_parts(shape.n_blocks) + 1) * d * n_picks
        what = f"products of {n_picks:,} features with all"
        return (Step(what, needed, shape.n_blocks, 1, shape.n_chunks),)

    def result(
        self, path: GreedyPath, norms: np.ndarray, blocks: RowBlocks | None
    ) -> FeatureScores:
        """Return the scores; for a sketch, the explained variance is measured on the data."""
        gains, total = np.array(path.gains), float(norms.sum()) or 1.0
        left = path.left / total
        if blocks is not None and path.order:
            pass_sums = cross_pass(blocks, True, np.array(path.order), None)
            gains = explained_by(pass_sums.cross.T, np.array(path.order)).sum(axis=1)
            total = float(pass_sums.squares.sum())
        ratio = gains / total
        return FeatureScores.from_path(
            path.order, ratio, left, constant=norms == 0, explained_variance_ratio=ratio
        )


def choose_pivoted_qr(shape: Shape, selection: Selection) -> Picks:
    """Return the strategy of PivotedQR: on the Gram matrix, on all rows or on a sketch."""
    return choose_picks(shape, selection, LargestNorm(selection.parameters.n_components))


@dataclass(frozen=True)
class LargestNorm(Rule):
    """Picks the column of largest residual norm, of X or of the loadings of leading components."""

    n_components: int | None

    def matrices(self, n_features: int, n_rows: int | None) -> int:
        """Return the bytes of the components and of the matrix they are computed from."""
        if self.n_components is None:
            return 0
        return 8 * (2 * (n_rows or n_features) ** 2 + 3 * self.n_components * n_features)

    def path(self, products: Products, n_picks: int) -> GreedyPath:
        """Return the path of ``n_picks`` picks."""
        if self.n_components is not None:
            loadings = products.components(self.n_components)
            loadings[:, products.norms() == 0] = 0.0  # constant features have rounding errors here
            products = RowProducts(loadings)
        return NormPath(products, n_picks)

    def result(
        self, path: GreedyPath, norms: np.ndarray, blocks: RowBlocks | None
    ) -> FeatureScores:
        """Return the scores."""
        squares = np.array(path.gains)
        total = float(path.start.sum()) or 1.0
        return FeatureScores.from_path(
            path.order,
            squares / total,
            path.left / total,
            constant=norms == 0,
            pivots=np.sqrt(squares),
            n_certain=len(path.order),
        )
