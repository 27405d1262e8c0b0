"""Forward regression of all eigenvectors at once: ``regression: omp``.

Each pick is the feature that explains most of what those before it leave of all eigenvectors,
from the products that the lasso paths take: ``X'X`` and ``X'Y``, or columns of ``X'X`` as they are
needed.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import GROUP
from bigfs.blocks.rowblocks import fold_parts, gram_step, waiting_folds
from bigfs.core.cost import StageCost, Step, pass_over
from bigfs.core.memory import task_budget
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB
from bigfs.selectors.mcfs.regression import Regression, about_eigenvectors, add_rows
from bigfs.selectors.mcfs.wide import cross_pass, side_bytes
from bigfs.solvers.greedy import ColumnProducts, GramProducts, TargetPath
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch

# Columns of a pass over wide data, where there is room for them: few passes, little memory.
_COLUMNS = 1000


class Forward(Regression):
    """Forward orthogonal least squares on the eigenvectors.

    Notes
    -----
    The eigenvectors enter as they are, of norm one in D: scaled one by one, the picks would
    depend on the basis of an eigenvalue that comes several times.
    """

    @abstractmethod
    def _products(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None
    ) -> tuple[ColumnProducts, np.ndarray, np.ndarray, np.ndarray]:
        """Return the products of X, ``X'Y``, what is constant, and the means of Y."""

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; details are the attributes of `MCFS`."""
        add_rows(inputs)
        blocks, spectral = inputs.blocks, inputs.spectral
        products, cross, constant, y_mean = self._products(
            blocks, spectral, out if inputs.keeps_start else None
        )
        total = float((spectral.norms**2).sum())
        if self.parameters.fit_intercept:
            total -= blocks.n_samples * float(y_mean @ y_mean)
        with single_thread():
            path = TargetPath(products, self.n_selected, cross.copy())
            coef = path.coefficients(cross) / spectral.norms
        n_targets, n_picks = len(spectral.eigenvalues), len(path.order)
        order = np.argsort(path.order)
        indices = np.tile(np.array(path.order, dtype=np.int64)[order], n_targets)
        starts = n_picks * np.arange(n_targets + 1)
        ratio = np.array(path.gains) / (total or 1.0)
        return FeatureScores.from_path(
            path.order,
            ratio,
            path.left / (total or 1.0),
            constant=constant,
            coef=csr_array(
                (coef[order].T.ravel(), indices, starts), shape=(n_targets, len(constant))
            ),
            n_active=np.full(n_targets, n_picks),
            explained_ratio=ratio,
            **about_eigenvectors(spectral),
        )

    def _on_client(self, what: str, n_columns: int) -> Step:
        d = self.shape.n_features
        needed = 8 * d * (n_columns + min(self.n_selected, d) + 2 * self.n_targets) + 16 * MIB
        return Step(what, needed, by_client=True)


class ForwardOnGram(Forward):
    """One pass gives ``X'X`` and ``X'Y``; the client follows the path."""

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        d = self.shape.n_features
        matrices = 1 if self.parameters.fit_intercept else 3
        path = self._on_client(f"a path on the Gram matrix of {d:,} features", matrices * d)
        return StageCost((gram_step(self.shape, self.n_targets), path))

    def _products(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None
    ) -> tuple[ColumnProducts, np.ndarray, np.ndarray, np.ndarray]:
        matrix, cross, constant, y_mean = self._gram(blocks, spectral, kept)
        matrix[constant], matrix[:, constant] = 0.0, 0.0
        return GramProducts(matrix), cross, constant, y_mean


class ForwardOnColumns(Forward):
    """Wide data: a pass for ``X'Y``, then one for columns of ``X'X`` whenever one is missing."""

    @property
    def _n_columns(self) -> int:
        """Columns of a pass: those of the features that explain most at that time."""
        shape = self.shape
        room = task_budget(self.selection.memory_limit) - shape.read_bytes
        each = 8 * shape.n_features * self._n_parts
        if shape.n_entries is not None:  # the columns of a block are dense beside it
            room -= side_bytes(shape, GROUP) + 8 * MIB
            each += 8 * shape.rows
        return max(1, min(_COLUMNS, room // each))

    @property
    def _n_parts(self) -> int:
        """Partial sums in a worker: those of a reduction, and one that is on its way.

        Of sparse data, whose blocks are small beside them, one more where no folds wait.
        """
        parts = fold_parts(self.shape.n_blocks) + 1
        none_waits = waiting_folds(self.shape.n_blocks) == 0
        return parts + 1 if none_waits and self.shape.n_entries is not None else parts

    def cost(self) -> StageCost:
        """Return the cost of the passes: one for each pick at most, and a few in practice."""
        shape, d, columns = self.shape, self.shape.n_features, self._n_columns
        what = f"Gram columns of {columns:,} of {d:,} features"
        needed = shape.read_bytes + 8 * columns * d * self._n_parts + side_bytes(shape, columns)
        needed += 0 if shape.n_entries is None else 8 * MIB
        beside = 8 * d * self.n_targets + side_bytes(shape, self.n_targets)
        steps = (
            pass_over(shape, "products of a block with the eigenvectors", beside),
            Step(what, needed, shape.n_blocks, 1, shape.n_chunks, self.n_selected),
            self._on_client(what, columns),
        )
        return StageCost(steps, at_most=True)

    def _products(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None
    ) -> tuple[ColumnProducts, np.ndarray, np.ndarray, np.ndarray]:
        centered = self.parameters.fit_intercept
        first = cross_pass(blocks, centered, None, spectral.embedding_ref)
        constant = first.squares == 0
        norms = first.squares if centered else first.squares + first.count * first.mean**2
        norms = np.where(constant, 0.0, norms)
        products = _Fetched(blocks, centered, norms, self._n_columns)
        return products, first.cross, constant, first.other_mean


class _Fetched:
    """Columns of ``X'X`` from passes over X, as many at a time as there is room for."""

    def __init__(
        self, blocks: RowBlocks, centered: bool, norms: np.ndarray, n_columns: int
    ) -> None:
        self._blocks, self._centered, self._norms = blocks, centered, norms
        self._n_columns = n_columns
        self._held: dict[int, np.ndarray] = {}

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns."""
        return self._norms.copy()

    def column(self, feature: int, worth: np.ndarray) -> np.ndarray:
        """Return a column; if it is not here, take a pass for those that are worth most now."""
        if feature not in self._held:
            order = np.lexsort((np.arange(len(worth)), -worth))[: self._n_columns]
            order = np.union1d([feature], order[order != feature][: self._n_columns - 1])
            order = order[(worth > 0)[order]]
            self._held = {}
            columns = cross_pass(self._blocks, self._centered, order, None).cross
            columns[self._norms == 0] = 0.0
            self._held = {int(j): columns[:, i] for i, j in enumerate(order)}
        return self._held[feature]
