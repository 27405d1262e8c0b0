"""The regression of eigenvectors on features: what its strategies share, and ``regression: omp``.

Forward regression takes all eigenvectors at once. Each pick is the feature that explains most of
what those before it leave of all of them, from the products that the lasso paths take: ``X'X`` and
``X'Y``, or columns of ``X'X`` as they are needed.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import centered_entries
from bigfs.blocks.rowblocks import fold_parts, gram_step, waiting_folds
from bigfs.config import Selection
from bigfs.core.cost import (
    Shape,
    StageCost,
    Step,
    loop_seconds,
    pass_over,
    product_seconds,
    read_seconds,
)
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB
from bigfs.graph.representation import gram_is_kept
from bigfs.selectors.cross import GROUP, cross_pass, side_bytes
from bigfs.selectors.mcfs import METHOD
from bigfs.selectors.method import Strategy
from bigfs.solvers.greedy import (
    ColumnProducts,
    GramProducts,
    Picked,
    SparseRowProducts,
    TargetPath,
    candidates_bytes,
    less_picks,
)
from bigfs.solvers.sparserows import SparseRows
from bigfs.spectral.choice import largest_count
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.stages.sums import read_gram, store_gram
from bigfs.store.scratch import Scratch


def n_targets_of(selection: Selection) -> int:
    """Return how many eigenvectors are regressed; the most that "auto" keeps."""
    return largest_count(METHOD.n_components(selection.parameters))


class Regression(Strategy):
    """A regression of the eigenvectors on all features."""

    @property
    def n_targets(self) -> int:
        """Largest number of eigenvectors."""
        return n_targets_of(self.selection)

    @property
    def n_selected(self) -> int:
        """Size of the active set at which a path stops."""
        return self.selection.n_features_to_select

    def _gram(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return ``X'X``, ``X'Y``, what is constant, and the means of Y, from one pass.

        The folder ``kept`` gets the products, for the curves and for an update (`add_rows`).
        """
        gram = blocks.gram(spectral.embedding_ref, label="regression")
        if kept is not None:
            store_gram(gram, kept)
        constant = gram.gram.diagonal() <= 0
        centered = self.parameters.fit_intercept
        matrix, cross = (gram.gram, gram.xty) if centered else gram.uncentered()
        return matrix, cross, constant, gram.y_mean


def add_rows(inputs: Inputs) -> None:
    """Let the blocks begin with the Gram matrix that is there, if there is one.

    It is that of all rows, from which the graph's components were taken, or one of the first rows
    that a former run kept.
    """
    blocks = inputs.blocks
    if "components" in inputs.finished:
        blocks.former_gram = read_gram(inputs.finished["components"], blocks.n_samples)
    elif inputs.former is not None and inputs.base is not None:
        blocks.former_gram = read_gram(inputs.former, inputs.base.n_samples)
    blocks.keeps_gram = blocks.keeps_gram or blocks.former_gram is not None


def about_eigenvectors(spectral: SpectralEmbedding) -> dict[str, Any]:
    """Return the details of the eigenvectors for the result."""
    return {
        "n_clusters": len(spectral.eigenvalues),
        "eigenvalues": spectral.eigenvalues,
        "residuals": spectral.residuals,
        "spectrum": spectral.spectrum,
        "n_connected_components": spectral.n_connected_components,
    }


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
        products, cross, constant, y_mean = self._products(blocks, spectral, out)
        total = float((spectral.norms**2).sum())
        if self.parameters.fit_intercept:
            total -= blocks.n_samples * float(y_mean @ y_mean)
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
        needed += candidates_bytes(d, _COLUMNS)
        seconds = product_seconds(d, min(self.n_selected, d), self.n_selected + self.n_targets)
        return Step(what, needed, by_client=True, seconds=seconds)


class ForwardOnGram(Forward):
    """One pass gives ``X'X`` and ``X'Y``; the client follows the path."""

    @property
    def leaves_products(self) -> bool:
        """True if X'X is small."""
        return gram_is_kept(self.shape.n_features)

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


# Columns of a pass over wide dense data, where there is room for them: few passes.
_COLUMNS = 256


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
        # Entries take longer to multiply than to read.
        most = _COLUMNS if shape.n_entries is None else GROUP
        return max(1, min(most, room // each))

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
        usual = 2 + -(-self.n_selected // columns)
        steps = (
            pass_over(shape, "products of a block with the eigenvectors", beside),
            Step(
                what,
                needed,
                shape.n_blocks,
                1,
                shape.n_chunks,
                self.n_selected,
                seconds=_seconds_of_columns(shape, columns) * usual / self.n_selected,
            ),  # fmt: skip
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
        return self._columns(blocks, norms), first.cross, constant, first.other_mean

    def _columns(self, blocks: RowBlocks, norms: np.ndarray) -> ColumnProducts:
        """Return the columns of ``X'X``, whose diagonal is known."""
        return _Fetched(blocks, self.parameters.fit_intercept, norms, self._n_columns)


class ForwardOnRows(ForwardOnColumns):
    """Sparse data that fit the client: it reads the entries once more, and no pass follows."""

    @classmethod
    def needed_bytes(cls, shape: Shape) -> int:
        """Return the bytes of the entries: as read, in float64, by columns, and copies of them."""
        return 48 * (shape.n_entries or 0)

    def cost(self) -> StageCost:
        """Return the cost of the passes and of the entries on the client."""
        shape, d, K = self.shape, self.shape.n_features, self.n_targets
        beside = 8 * d * K + side_bytes(shape, K)
        # Of few rows, each pick has a vector with a value for each row.
        n = shape.n_samples if shape.n_samples < d else 0
        held = self.needed_bytes(shape) + 8 * n * min(self.n_selected, d)
        steps = (
            pass_over(shape, "products of a block with the eigenvectors", beside),
            Step(
                "all entries",
                self.needed_bytes(shape),
                1,
                1,
                shape.n_chunks,
                by_client=True,
                seconds=_seconds_of_columns(shape, self.n_selected),
            ),  # fmt: skip
            self._on_client(f"{shape.n_entries:,} entries", held // (8 * d)),
        )
        return StageCost(steps)

    def _columns(self, blocks: RowBlocks, norms: np.ndarray) -> ColumnProducts:
        rows = centered_entries(blocks.start_pass().read(0, blocks.n_samples))
        center = np.zeros(blocks.n_samples, dtype=np.intp)
        return SparseRowProducts(SparseRows(rows, center), norms)


class _Fetched:
    """Columns of ``X'X`` from passes over X, as many at a time as there is room for."""

    def __init__(
        self, blocks: RowBlocks, centered: bool, norms: np.ndarray, n_columns: int
    ) -> None:
        self._blocks, self._centered, self._norms = blocks, centered, norms
        self.fetched = n_columns

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns."""
        return self._norms.copy()

    def left(self, features: np.ndarray, picked: Picked) -> np.ndarray:
        """Return some columns as rows, less what the picks explain."""
        columns = cross_pass(self._blocks, self._centered, features, None).cross
        columns[self._norms == 0] = 0.0
        return less_picks(columns.T, features, picked)


def _seconds_of_columns(shape: Shape, n_columns: int) -> float:
    """Return the processor time of a pass for some columns of X'X."""
    products = loop_seconds if shape.n_entries is not None else product_seconds
    return read_seconds(shape) + products(shape.n_values, n_columns)
