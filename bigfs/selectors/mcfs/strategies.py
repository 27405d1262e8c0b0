"""The regressions of MCFS: forward selection (``omp``) and lasso paths.

Forward selection regresses all eigenvectors at once. Each pick is the feature that explains most of
what the picks before it leave of all eigenvectors. Both regressions use the same products: ``X'X``
and ``X'Y``, or columns of ``X'X`` computed as they are needed.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import centered_entries
from bigfs.blocks.rowblocks import fold_parts, gram_bytes, gram_step, waiting_folds
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
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.cross import GROUP, cross_pass, side_bytes
from bigfs.selectors.mcfs import MAX_STOPS, METHOD
from bigfs.selectors.mcfs.wide import (
    LassoPaths,
    SparseVector,
    columns_bytes,
    lars_task,
    wide_paths,
    wide_steps,
)
from bigfs.selectors.method import Strategy
from bigfs.solvers.greedy import (
    HELD,
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
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.stages.sums import read_gram, store_gram
from bigfs.store.scratch import Scratch


def n_targets_of(selection: Selection) -> int:
    """Return the number of eigenvectors that are regressed; with "auto", the largest number."""
    return largest_count(METHOD.n_components(selection.parameters))


class Regression(Strategy):
    """A regression of the eigenvectors on all features."""

    @property
    def n_targets(self) -> int:
        """Upper bound of the number of eigenvectors."""
        return n_targets_of(self.selection)

    @property
    def n_selected(self) -> int:
        """Size of the active set at which a path stops."""
        return self.selection.n_features_to_select

    def _gram(
        self, inputs: Inputs, out: Scratch
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return ``X'X``, ``X'Y``, the mask of constant features, and the means of Y.

        They need one pass. The products are also stored in the folder ``out``, for the curves and
        for an update (`add_rows`).
        """
        add_rows(inputs)
        gram = inputs.blocks.gram(inputs.spectral.embedding_ref, label="regression")
        store_gram(gram, out)
        constant = gram.gram.diagonal() <= 0
        centered = self.parameters.fit_intercept
        matrix, cross = (gram.gram, gram.xty) if centered else gram.uncentered()
        # Without an intercept, constant features would enter a path in place of the intercept.
        matrix[constant], matrix[:, constant], cross[constant] = 0.0, 0.0, 0.0
        return matrix, cross, constant, gram.y_mean


def add_rows(inputs: Inputs) -> None:
    """Let the blocks start from an existing Gram matrix, if there is one.

    This is either the matrix of all rows that the principal components of the graph were computed
    from, or a matrix of the first rows kept by an earlier run.
    """
    blocks = inputs.blocks
    if "components" in inputs.finished:
        blocks.former_gram = read_gram(inputs.finished["components"], blocks.n_samples)
    elif inputs.former is not None and inputs.base is not None:
        blocks.former_gram = read_gram(inputs.former, inputs.base.n_samples)
    blocks.keeps_gram = blocks.keeps_gram or blocks.former_gram is not None


def about_eigenvectors(spectral: SpectralEmbedding) -> dict[str, Any]:
    """Return the details of the result that describe the eigenvectors."""
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
    The eigenvectors are used as they are, with norm one in D: if each was scaled separately, the
    picks would depend on the choice of basis for a multiple eigenvalue.
    """

    @abstractmethod
    def _products(
        self, inputs: Inputs, out: Scratch
    ) -> tuple[ColumnProducts, np.ndarray, np.ndarray, np.ndarray]:
        """Return the products of X, ``X'Y``, the mask of constant features, and the means of Y."""

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; the details are the attributes of `MCFS`."""
        spectral = inputs.spectral
        products, cross, constant, y_mean = self._products(inputs, out)
        total = float((spectral.norms**2).sum())
        if self.parameters.fit_intercept:
            total -= self.shape.n_samples * float(y_mean @ y_mean)
        path = TargetPath(products, self.n_selected, cross)
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
    """Forward selection with ``X'X`` and ``X'Y`` from one pass; the client computes the path."""

    @property
    def leaves_products(self) -> bool:
        """True if X'X is small."""
        return gram_is_kept(self.shape.n_features)

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the matrices on the client."""
        d = self.shape.n_features
        matrices = 1 if self.parameters.fit_intercept else 3
        path = self._on_client(f"a path on the Gram matrix of {d:,} features", matrices * d)
        return StageCost((gram_step(self.shape, self.n_targets), path))

    def _products(
        self, inputs: Inputs, out: Scratch
    ) -> tuple[ColumnProducts, np.ndarray, np.ndarray, np.ndarray]:
        matrix, cross, constant, y_mean = self._gram(inputs, out)
        return GramProducts(matrix), cross, constant, y_mean


# With rows in memory, numbers of columns that are computed together and that are held. Computing
# what the picks leave of a column is slow, and a column that is held is not computed again.
_OF_ROWS = 24, 384
# Upper bound of the number of columns of a pass over wide dense data; many, so that passes are few.
_COLUMNS = 256


class ForwardOnColumns(Forward):
    """Forward selection on wide data.

    One pass computes ``X'Y``. Whenever a column of ``X'X`` is missing, a further pass computes a
    group of columns.
    """

    @property
    def _n_columns(self) -> int:
        """Number of columns of a pass: those of the features that explain most at that time."""
        shape = self.shape
        room = task_budget(self.selection.memory_limit) - shape.read_bytes
        each = 8 * shape.n_features * self._n_parts
        if shape.n_entries is not None:  # the columns of a block are also needed in dense form
            room -= side_bytes(shape, GROUP) + 8 * MIB
            each += 8 * shape.rows
        # Multiplying sparse entries takes longer than reading them, so that it does not pay to
        # compute more columns per pass.
        most = _COLUMNS if shape.n_entries is None else GROUP
        return max(1, min(most, room // each))

    @property
    def _n_parts(self) -> int:
        """Number of partial sums in a worker: those of a reduction, and one in transit.

        For sparse data, whose blocks are small compared to the sums, one more if no folds wait.
        """
        parts = fold_parts(self.shape.n_blocks) + 1
        none_waits = waiting_folds(self.shape.n_blocks) == 0
        return parts + 1 if none_waits and self.shape.n_entries is not None else parts

    def cost(self) -> StageCost:
        """Return the cost of the passes: at most one for each pick, and few in practice."""
        shape, d, columns = self.shape, self.shape.n_features, self._n_columns
        what = f"Gram columns of {columns:,} of {d:,} features"
        needed = shape.read_bytes + 8 * columns * d * self._n_parts + side_bytes(shape, columns)
        needed += 0 if shape.n_entries is None else 8 * MIB
        beside = 8 * d * self.n_targets + side_bytes(shape, self.n_targets)
        n_passes = 2 + -(-self.n_selected // columns)
        seconds = _seconds_of_columns(shape, columns) * n_passes / self.n_selected
        fetching = pass_over(shape, what, times=self.n_selected)
        steps = (
            pass_over(shape, "products of a block with the eigenvectors", beside),
            replace(fetching, task_bytes=needed, seconds=seconds),
            self._on_client(what, columns),
        )
        return StageCost(steps, at_most=True)

    def _products(
        self, inputs: Inputs, out: Scratch
    ) -> tuple[ColumnProducts, np.ndarray, np.ndarray, np.ndarray]:
        blocks, centered = inputs.blocks, self.parameters.fit_intercept
        first = cross_pass(blocks, centered, None, inputs.spectral.embedding_ref)
        constant = first.squares == 0
        norms = first.squares if centered else first.squares + first.count * first.mean**2
        norms = np.where(constant, 0.0, norms)
        return self._columns(blocks, norms), first.cross, constant, first.other_mean

    def _columns(self, blocks: RowBlocks, norms: np.ndarray) -> ColumnProducts:
        """Return the columns of ``X'X``, whose diagonal is known."""
        return _Fetched(blocks, self.parameters.fit_intercept, norms, self._n_columns)


class ForwardOnRows(ForwardOnColumns):
    """Forward selection on sparse data that fit into the client's memory.

    After the pass for ``X'Y`` the client reads all entries once; no further pass is needed.
    """

    @classmethod
    def needed_bytes(cls, shape: Shape) -> int:
        """Return the bytes of the entries: as read, in float64, by columns, and their copies."""
        return 48 * (shape.n_entries or 0)

    def cost(self) -> StageCost:
        """Return the cost of the passes and of the entries on the client."""
        shape, d, K = self.shape, self.shape.n_features, self.n_targets
        beside = 8 * d * K + side_bytes(shape, K)
        # If there are few rows, each pick keeps a vector with one value per row.
        n = shape.n_samples if shape.n_samples < d else 0
        entries, seconds = self.needed_bytes(shape), _seconds_of_columns(shape, self.n_selected)
        held = entries + 8 * n * min(self.n_selected, d)
        read = Step("all entries", entries, 1, 1, shape.n_chunks, by_client=True, seconds=seconds)
        steps = (
            pass_over(shape, "products of a block with the eigenvectors", beside),
            read,
            self._on_client(f"{shape.n_entries:,} entries", held // (8 * d)),
        )
        return StageCost(steps)

    def _columns(self, blocks: RowBlocks, norms: np.ndarray) -> ColumnProducts:
        rows = centered_entries(blocks.start_pass().read(0, blocks.n_samples))
        center = np.zeros(blocks.n_samples, dtype=np.intp)
        products = SparseRowProducts(SparseRows(rows, center), norms)
        products.fetched, products.held = _OF_ROWS
        return products


class _Fetched:
    """Columns of ``X'X``, computed in groups of ``n_columns``, each by a pass over X."""

    def __init__(
        self, blocks: RowBlocks, centered: bool, norms: np.ndarray, n_columns: int
    ) -> None:
        self._blocks, self._centered, self._norms = blocks, centered, norms
        self.fetched, self.held = n_columns, HELD

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns."""
        return self._norms.copy()

    def left(self, features: np.ndarray, picked: Picked) -> np.ndarray:
        """Return the given columns as rows, minus the part that the picks explain."""
        columns = cross_pass(self._blocks, self._centered, features, None).cross
        columns[self._norms == 0] = 0.0
        return less_picks(columns.T, features, picked)


def _seconds_of_columns(shape: Shape, n_columns: int) -> float:
    """Return the processor time of a pass for ``n_columns`` columns of ``X'X``."""
    products = loop_seconds if shape.n_entries is not None else product_seconds
    return read_seconds(shape) + products(shape.n_values, n_columns)


logger = logging.getLogger("bigfs")

# Lower bound of the variance of a vector of norm one: below it, the vector is constant up to
# rounding.
_LEAST_VARIANCE = 1e-12


def choose(shape: Shape, selection: Selection) -> Regression:
    """Return a strategy that fits into memory: all Gram columns if a worker can fold them."""
    n_targets, budget = n_targets_of(selection), task_budget(selection.memory_limit)
    # For sparse data the Gram matrix would be dense, although few of its columns are needed.
    fits = shape.n_entries is None and gram_bytes(shape, n_targets) <= budget
    if selection.parameters.regression == "lasso":
        return (FullGram if fits else ScreenedColumns)(shape, selection)
    if fits:
        return ForwardOnGram(shape, selection)
    few_entries = shape.n_entries is not None and 4 * ForwardOnRows.needed_bytes(shape) <= budget
    on_rows = few_entries and selection.parameters.fit_intercept
    return (ForwardOnRows if on_rows else ForwardOnColumns)(shape, selection)


class Paths(Regression):
    """Separate sparse regressions of each eigenvector on all features.

    Notes
    -----
    Solves eq. (3) in Gram form and scores by eq. (4), ``max_k |a_kj|``. A path to fewer features
    is a prefix of this one, so every path also gives the selections of 1, 2, ... features.
    """

    @abstractmethod
    def _paths(self, inputs: Inputs, out: Scratch) -> LassoPaths:
        """Return the paths of all targets."""

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; the details are the attributes of `MCFS`."""
        if self.n_selected > MAX_STOPS:
            logger.warning(
                f"MCFS: a lasso path to {self.n_selected:,} features takes minutes to hours; the "
                "time grows with the cube of their number. Set regression to 'omp', which ranks "
                "them in seconds."
            )
        spectral, paths = inputs.spectral, self._paths(inputs, out)
        last, stops = paths.last, paths.stops
        if self.parameters.fit_intercept:  # the intercept explains the means of the vectors
            left = 1.0 - self.shape.n_samples * (paths.y_mean / spectral.norms) ** 2
            last = [_of_variance(vector, of) for vector, of in zip(last, left, strict=True)]
            stops = [
                [_of_variance(vector, of) for vector in vectors]
                for vectors, of in zip(stops, left, strict=True)
            ]
        scale = self.parameters.coef_scale
        return FeatureScores.from_scores(
            _scores(last, scale, self.shape),
            constant=paths.constant,
            supports=_supports(stops, scale, self.shape, paths.constant),
            coef=_as_rows(last, self.shape.n_features),
            n_active=np.array([len(indices) for indices, _, _ in last]),
            explained=np.array([explained for _, _, explained in last]),
            **about_eigenvectors(spectral),
            **paths.details,
        )


class FullGram(Paths):
    """Lasso paths with ``X'X`` and ``X'Y`` from one pass.

    The paths run in parallel, and their cost does not depend on the number of rows.
    """

    @property
    def leaves_products(self) -> bool:
        """True if X'X is small."""
        return gram_is_kept(self.shape.n_features)

    def cost(self) -> StageCost:
        """Return the cost of the pass, and of one path in each task."""
        K, d = self.n_targets, self.shape.n_features
        # The matrix, read in place, and the arrays of a path for each of its active features.
        needed = 8 * d * (d + 3 * min(self.n_selected, d)) + 24 * MIB
        seconds = loop_seconds(K, d, self.n_selected, self.n_selected)
        what = f"a path on the Gram matrix of {d:,} features"
        paths = Step(what, needed, K, 0, 2 * K, seconds=seconds)
        return StageCost((gram_step(self.shape, K, "the regressions' Gram matrix"), paths))

    def _paths(self, inputs: Inputs, out: Scratch) -> LassoPaths:
        matrix, xty, constant, y_mean = self._gram(inputs, out)
        spectral, m = inputs.spectral, self.n_selected
        targets = range(len(spectral.eigenvalues))
        with inputs.blocks.scratch.temporary("paths") as folder:
            shared = folder.put("gram", matrix), folder.put("xty", xty / spectral.norms)
            paths = run_tasks(lars_task, targets, *shared, m, label="paths", unit="eigenvectors")
        last, stops = map(list, zip(*paths, strict=True))
        return LassoPaths(last, stops, constant, y_mean)


class ScreenedColumns(Paths):
    """The same lasso paths from the Gram columns of screened features, certified at every knot."""

    def cost(self) -> StageCost:
        """Return the cost of the passes of each round of screening, and of the paths."""
        steps = wide_steps(self.shape, self.n_targets, self.n_selected, self.selection.memory_limit)
        stored = columns_bytes(self.shape, self.n_targets, self.n_selected)
        return StageCost(steps, stored, at_most=True)

    def _paths(self, inputs: Inputs, out: Scratch) -> LassoPaths:
        return wide_paths(inputs.blocks, inputs.spectral, self.selection)


def _of_variance(vector: SparseVector, variance: float) -> SparseVector:
    """Return a stop whose explained share refers to the target's variance, not to its norm."""
    indices, values, explained = vector
    return indices, values, min(1.0, explained / max(float(variance), _LEAST_VARIANCE))


def _scores(vectors: list[SparseVector], scale: str, shape: Shape) -> np.ndarray:
    """Return the scores of eq. (4), from coefficient vectors that are each scaled."""
    scores = np.zeros(shape.n_features)
    for indices, values, explained in vectors:
        size = np.abs(values)
        weight = _weight(explained, len(indices), shape.n_samples) if scale == "explained" else 1.0
        scores[indices] = np.maximum(scores[indices], weight * size / _norm(size, scale))
    return scores


def _weight(explained: float, n_active: int, n_samples: int) -> float:
    """Return the square root of the explained share, adjusted for the number of active features.

    The share that ``n_active`` noise features would explain is subtracted (adjusted R squared). At
    least a millionth of the explained share is left, so that an eigenvector with no other share
    still orders features.
    """
    free = max(n_samples - 1 - n_active, 1)
    adjusted = 1.0 - (1.0 - explained) * (n_samples - 1) / free
    return float(np.sqrt(max(adjusted, 1e-6 * explained)))


def _norm(size: np.ndarray, scale: str) -> float:
    """Return the norm by which a vector of absolute coefficients is divided."""
    if scale == "none" or not size.any():
        return 1.0
    order = {"l1": 1, "l2": 2, "explained": 2, "max": np.inf}[scale]
    return float(np.linalg.norm(size, order))


def _supports(
    stops: list[list[SparseVector]], scale: str, shape: Shape, constant: np.ndarray
) -> np.ndarray:
    """Return the selections of 1, 2, ... features, concatenated, each in ascending order.

    For a selection of m features, each path stops when it first has m active features.
    """
    supports = []
    for n_selected, vectors in enumerate(zip(*stops, strict=True), start=1):
        scores = _scores(list(vectors), scale, shape)
        supports.append(np.sort(rank(scores, constant)[:n_selected]))
    return np.concatenate(supports).astype(np.int32)


def _as_rows(vectors: list[SparseVector], n_features: int) -> csr_array:
    """Return sparse vectors as the rows of a CSR matrix."""
    indices = np.concatenate([part for part, _, _ in vectors])
    values = np.concatenate([part for _, part, _ in vectors])
    starts = np.cumsum([0, *(len(part) for part, _, _ in vectors)])
    return csr_array((values, indices, starts), shape=(len(vectors), n_features))
