"""Strategies of UDFS: one pass over blocks and neighborhoods, or few rows; the client iterates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bigfs.blocks.csr_kernels import mostly_zeros
from bigfs.blocks.kernels import tile_rows
from bigfs.blocks.rowblocks import BlockReader, RowBlocks, fold_parts, moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, product_seconds
from bigfs.graph.edges import by_block
from bigfs.runtime.execute import map_reduce
from bigfs.runtime.progress import track
from bigfs.selectors.method import Strategy
from bigfs.solvers.sparserows import LOADS, SparseRows
from bigfs.solvers.udfs import (
    N_MATRICES,
    N_ROW_MATRICES,
    DenseForm,
    Form,
    ProductForm,
    SparseBasis,
    SparseForm,
    local_factors,
    product_form_bytes,
    sparse_basis,
    sparse_basis_bytes,
)
from bigfs.spectral.choice import largest_count
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

# Upper bound of the bytes of neighborhoods that a task gathers at once; if a block needs more, it
# takes several steps, and each reads the other blocks again.
GATHERED_BYTES = 256 * 1024**2
# Eigenvalues of M below this share of the largest are rounding errors.
_RANK_TOL = 1e-12
# With a ridge below this share of the largest squared row norm, rounding errors of the rows'
# products would matter.
_RIDGE_TOL = 1e-6


@dataclass
class LocalScatter:
    """Sum over the neighborhoods of a set of rows, and the range of the features in these rows."""

    M: np.ndarray  # of shape (n_features, n_features), float64, Fortran order: upper triangle only
    # Of shape (n_features,).
    minimum: np.ndarray
    maximum: np.ndarray


def local_scatter(
    blocks: RowBlocks, neighbors: ArrayRef, ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix M of UDFS from one edge pass, and the mask of the features that vary.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    neighbors : ArrayRef of shape (n_samples, n_neighbors)
    ridge : float
        The paper's lambda.

    Returns
    -------
    M : ndarray of shape (n_features, n_features), float64
    varies : ndarray of shape (n_features,), bool
    """
    reader = blocks.start_pass()
    total = map_reduce(
        _scatter_task, blocks.bounds, _merge, reader, neighbors, blocks.rows, ridge,
        label="neighborhoods",
    )  # fmt: skip
    return _mirrored(total.M), total.maximum > total.minimum


def product_form(rows: np.ndarray, neighbors: np.ndarray, ridge: float) -> ProductForm:
    """Return M of few rows in product form, from the rows' coordinates in their own span.

    Parameters
    ----------
    rows : ndarray of shape (n_samples, n_features), float64
        Values of the features that vary; these may be fewer than the rows.
    neighbors : ndarray of shape (n_samples, n_neighbors)
    ridge : float
    """
    from scipy.linalg import qr

    n = len(rows)
    # Subtracting the first row reduces the span by one dimension, and avoids the rounding errors of
    # a mean.
    basis, factor = qr((rows[1:] - rows[0]).T, mode="economic", overwrite_a=True)
    width = len(factor)
    table = np.vstack([np.zeros(width), factor.T])
    M = np.zeros((width, width), order="F")
    M = _add_scatter(M, table, np.column_stack([np.arange(n), neighbors]), ridge)
    values, vectors = np.linalg.eigh(_mirrored(M))
    kept = values > _RANK_TOL * values[-1]
    basis = basis @ vectors[:, kept]
    outside = np.maximum(1 - np.einsum("ij,ij->i", basis, basis), 0.0)
    basis *= np.sqrt(values[kept])
    return ProductForm(basis, outside)


def sparse_form(entries: Any, neighbors: np.ndarray, ridge: float) -> SparseForm | None:
    """Return the form of `product_form` for rows that are mostly zeros; None if inaccurate.

    Parameters
    ----------
    entries : csr_array of shape (n_samples, n_features), float64
    neighbors : ndarray of shape (n_samples, n_neighbors)
    ridge : float
    """
    from scipy.linalg import LinAlgError, inv
    from scipy.sparse import csgraph, csr_array

    n, d = entries.shape
    members = np.column_stack([np.arange(n), neighbors])
    size = members.shape[1]
    places = np.repeat(members, size, axis=1).ravel(), np.tile(members, size).ravel()
    ones = csr_array((np.ones(n * size**2), places), shape=(n, n))
    # S sums over neighborhoods, each minus its mean, so the mean of a connected component does not
    # matter and can be subtracted.
    rows = SparseRows(entries, csgraph.connected_components(ones, directed=False)[1])
    gram = rows.products(np.ones(d))
    if ridge < _RIDGE_TOL * gram.diagonal().max():
        return None  # the ridge is not large compared with the rounding errors of these products
    center = np.eye(size) - 1 / size
    local = center @ gram[members[:, :, None], members[:, None, :]] @ center
    values, vectors = np.linalg.eigh(local)
    local = (vectors / (np.maximum(values, 0) + ridge)[:, None, :]) @ vectors.transpose(0, 2, 1)
    S = csr_array(((center @ local @ center).ravel(), places), shape=(n, n))
    full = S.toarray() + S.trace() / n * (rows.members @ rows.members.T)
    try:
        inverse = inv(full, assume_a="pos", overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    values, vectors = np.linalg.eigh(gram)
    kept = values > _RANK_TOL * values[-1]
    basis = rows.transposed_times(vectors[:, kept])
    outside = np.maximum(1 - np.square(basis, out=basis) @ (1 / values[kept]), 0.0)
    return SparseForm(rows, S, inverse, outside)


def _mirrored(M: np.ndarray) -> np.ndarray:
    """Copy the upper triangle to the lower one, in place."""
    for row in range(len(M) - 1):
        M[row + 1 :, row] = M[row, row + 1 :]
    return M


def scatter_step(shape: Shape, n_neighbors: int) -> Step:
    """Return the step of `local_scatter`.

    A task needs its block, one other block and the gathered rows, each of them once. A process
    also holds sums of n_features^2 values: those of a fold, and the one being computed.
    """
    d, n_sums = shape.n_features, fold_parts(shape.n_blocks) + 1
    at_once = min(shape.rows, gathered_rows(d, shape.itemsize, n_neighbors))
    rows = 2 * shape.rows + min(shape.n_samples, at_once * (n_neighbors + 1))
    needed = rows * d * shape.itemsize + 8 * n_sums * d**2 + 32 * 10**6
    what = f"a block with its neighbors' rows, and {n_sums} sums of {d:,} x {d:,}"
    return Step(what, needed, shape.n_blocks, 1, shape.n_chunks)


def gathered_rows(n_features: int, itemsize: int, n_neighbors: int) -> int:
    """Return the number of rows whose neighborhoods are gathered at once."""
    return max(1, GATHERED_BYTES // ((n_neighbors + 1) * n_features * itemsize))


def _scatter_task(
    bounds: tuple[int, int], reader: BlockReader, neighbors: ArrayRef, rows: int, ridge: float
) -> LocalScatter:
    """Return the sum over the neighborhoods of one block's rows."""
    start, stop = bounds
    X = reader.read(start, stop)
    d = X.shape[1]
    listed = neighbors.read(start, stop)
    size = listed.shape[1] + 1
    M = np.zeros((d, d), order="F")
    for first, end in block_bounds(stop - start, gathered_rows(d, X.itemsize, size - 1)):
        members = np.column_stack([np.arange(start + first, start + end), listed[first:end]])
        wanted, places = np.unique(members, return_inverse=True)
        table = np.empty((len(wanted), d), dtype=X.dtype)
        for in_block, low, theirs in by_block(wanted, reader, X, start, rows):
            table[in_block] = theirs[wanted[in_block] - low]
        M = _add_scatter(M, table, places.reshape(members.shape), ridge)
    return LocalScatter(M, X.min(axis=0), X.max(axis=0))


def _add_scatter(M: np.ndarray, table: np.ndarray, places: np.ndarray, ridge: float) -> np.ndarray:
    """Add neighborhoods to the upper triangle of M; ``places`` are their rows in ``table``."""
    from scipy.linalg.blas import dsyrk

    d = table.shape[1]
    step = max(1, tile_rows(d) // places.shape[1])
    for begin in range(0, len(places), step):
        group = places[begin : begin + step]
        Z = table[group].astype(np.float64)
        # Subtracting the row itself first makes a value that all rows share exactly zero.
        Z -= Z[:, :1].copy()
        Z -= Z.mean(axis=1, keepdims=True)
        R = local_factors(Z, ridge).reshape(-1, d)
        M = dsyrk(1.0, R.T, beta=1.0, c=M, overwrite_c=1)
    return M


def _merge(a: LocalScatter, b: LocalScatter) -> LocalScatter:
    a.M += b.M
    return LocalScatter(a.M, np.minimum(a.minimum, b.minimum), np.maximum(a.maximum, b.maximum))


# Measured: the eigenvectors of an iteration take as long as a product with this many columns.
_COLUMNS = 600


def choose(shape: Shape, selection: Selection) -> SparseProjection:
    """Return the strategy: M in product form if its null space can hold the whole basis."""
    parameters = selection.parameters
    few = parameters.gamma != 0 and _is_product(shape, shape.n_features, parameters.n_clusters)
    return (ProjectionOfFewRows if few else SparseProjection)(shape, selection)


def _is_product(shape: Shape, n_varying: int, n_clusters: int | str) -> bool:
    """Return True if the null space of M has more dimensions than the basis."""
    return shape.n_samples - 1 + largest_count(n_clusters) < n_varying


class SparseProjection(Strategy):
    """One pass sums over the neighborhoods; the client iterates on matrices of n_features^2."""

    loads: ClassVar[tuple[str, ...]] = ()

    def cost(self) -> StageCost:
        """Return the cost of the pass that computes the unit, if needed, and of the other steps."""
        by_unit, steps = self.parameters.unit == "rms", self._steps()
        steps = (moments_step(self.shape), *steps) if by_unit else steps
        return StageCost(steps, loads=self.loads, at_most=by_unit)

    def _steps(self) -> tuple[Step, ...]:
        """Return the steps of the pass over the neighborhoods and of the client's iterations."""
        d = self.shape.n_features
        what = f"{N_MATRICES} matrices of {d:,} x {d:,} features"
        seconds = _iterations_seconds(self.parameters.max_iter, d, d)
        iteration = Step(what, sparse_basis_bytes(d), by_client=True, seconds=seconds)
        return scatter_step(self.shape, self.selection.used_graph.n_neighbors), iteration

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the row norms of the projection; details are the attributes of `UDFS`."""
        parameters, d = self.parameters, self.shape.n_features
        n_clusters, chosen = inputs.n_clusters(parameters.n_clusters)
        # X / s with ridge and gamma has the same solution as X with ``ridge s^2`` and gamma.
        unit, n_rows = 1.0, 1
        if parameters.unit == "rms":
            unit, n_rows = inputs.blocks.moments().unit, self.shape.n_samples
        chosen["unit"] = unit
        form, varies = self._form(inputs, parameters.ridge * unit**2)
        gamma = parameters.gamma
        if gamma is None:  # any value will do if no neighborhood has scatter
            gamma = parameters.sparsity * form.trace() / max(1, int(varies.sum())) or 1.0
        else:
            gamma *= n_rows
        chosen["gamma"] = gamma
        kept = np.flatnonzero(varies)
        scores = np.zeros(d)
        coef = np.zeros((d, min(n_clusters, len(kept))))
        basis = SparseBasis(np.empty((0, 0)), np.empty(0), converged=True)
        if len(kept):
            with track("udfs", parameters.max_iter, "iterations") as progress:
                basis = sparse_basis(
                    form,
                    coef.shape[1],
                    gamma,
                    max_iter=parameters.max_iter,
                    tol=parameters.tol,
                    on_iteration=lambda value: progress.advance(1, f"objective {value:.6g}"),
                )
        coef[kept] = basis.B
        scores[kept] = np.linalg.norm(basis.B, axis=1)
        return FeatureScores.from_scores(
            scores,
            constant=~varies,
            n_iter=len(basis.objective),
            converged=basis.converged,
            objective=basis.objective,
            coef=coef,
            **chosen,
        )

    def _form(self, inputs: Inputs, ridge: float) -> tuple[Form, np.ndarray]:
        """Return M restricted to the features that vary, and their mask."""
        M, varies = local_scatter(inputs.blocks, inputs.graph.indices_ref, ridge)
        if not varies.all():
            kept = np.flatnonzero(varies)
            M = M[np.ix_(kept, kept)]
        return DenseForm(M), varies


class ProjectionOfFewRows(SparseProjection):
    """Variant for fewer rows than features: the client holds the rows, not n_features^2 values."""

    loads = LOADS

    def _steps(self) -> tuple[Step, ...]:
        """Return the step that reads the rows and iterates on the client."""
        n, d = self.shape.n_samples, self.shape.n_features
        what = f"{N_ROW_MATRICES} matrices of {n:,} x {d:,}: all rows"
        needed = n * d * self.shape.itemsize + product_form_bytes(n, d) + 32 * 10**6
        seconds = _iterations_seconds(self.parameters.max_iter, n, d)
        step = Step(what, needed, 1, 1, self.shape.n_chunks, by_client=True, seconds=seconds)
        return (step,)

    def _form(self, inputs: Inputs, ridge: float) -> tuple[Form, np.ndarray]:
        rows = inputs.blocks.start_pass().read(0, self.shape.n_samples)
        varies = rows.min(axis=0) < rows.max(axis=0)
        if not varies.any():
            return DenseForm(np.empty((0, 0))), varies
        rows, neighbors = rows[:, varies], inputs.graph.indices[:]
        is_product = _is_product(self.shape, rows.shape[1], self.parameters.n_clusters)
        entries = mostly_zeros(rows, centered=True) if is_product else None
        sparse = entries and sparse_form(entries[0], neighbors, ridge)
        if sparse:
            return sparse, varies
        form = product_form(rows.astype(np.float64), neighbors, ridge)
        return form if is_product else DenseForm(form.F @ form.F.T), varies


def _iterations_seconds(max_iter: int, n: int, d: int) -> float:
    """Return the processor time of the iterations, whose products have size min(n, d) x d."""
    return max_iter * product_seconds(min(n, d), d, _COLUMNS)
