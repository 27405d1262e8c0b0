"""UDFS by one pass over blocks and neighborhoods, or on few rows; the client iterates."""

from __future__ import annotations

import numpy as np

from bigfs.blocks.csr_kernels import mostly_zeros
from bigfs.blocks.rowblocks import moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, product_seconds
from bigfs.runtime.progress import track
from bigfs.selectors.method import Strategy
from bigfs.selectors.udfs.kernels import (
    local_scatter,
    product_form,
    scatter_step,
    sparse_form,
)
from bigfs.solvers.sparserows import LOADS
from bigfs.solvers.udfs import (
    N_MATRICES,
    N_ROW_MATRICES,
    DenseForm,
    Form,
    SparseBasis,
    product_form_bytes,
    sparse_basis,
    sparse_basis_bytes,
)
from bigfs.spectral.choice import largest_count
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch

# Measured: the eigenvectors of an iteration take as long as a product with so many columns.
_COLUMNS = 600


def choose(shape: Shape, selection: Selection) -> SparseProjection:
    """Return the strategy: M as a product where rows are so few that it vanishes on a basis."""
    parameters = selection.parameters
    kind = SparseProjection
    if parameters.gamma != 0 and _is_product(shape, shape.n_features, parameters.n_clusters):
        kind = ProjectionOfFewRows
    return kind(shape, selection)


def _is_product(shape: Shape, n_varying: int, n_clusters: int | str) -> bool:
    """Return whether the null space of M has more dimensions than the basis."""
    return shape.n_samples - 1 + largest_count(n_clusters) < n_varying


class SparseProjection(Strategy):
    """One pass sums up the neighborhoods; the client iterates on matrices of n_features^2."""

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        d = self.shape.n_features
        what = f"{N_MATRICES} matrices of {d:,} x {d:,} features"
        seconds = _iterations_seconds(self.parameters.max_iter, d, d)
        iteration = Step(what, sparse_basis_bytes(d), by_client=True, seconds=seconds)
        scatter = scatter_step(self.shape, self.selection.used_graph.n_neighbors)
        steps = (*self._unit_steps(), scatter, iteration)
        return StageCost(steps, at_most=self.parameters.unit == "rms")

    def _unit_steps(self) -> tuple[Step, ...]:
        """Return the pass that finds the unit."""
        return (moments_step(self.shape),) if self.parameters.unit == "rms" else ()

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the projection's row norms; details are the attributes of `UDFS`."""
        parameters, d = self.parameters, self.shape.n_features
        n_clusters, chosen = inputs.n_clusters(parameters.n_clusters)
        # X/s with ridge and gamma has the solution of X with ``ridge s^2`` and gamma.
        unit, n_rows = 1.0, 1
        if parameters.unit == "rms":
            unit, n_rows = inputs.blocks.moments().unit, self.shape.n_samples
        chosen["unit"] = unit
        form, varies = self._form(inputs, parameters.ridge * unit**2)
        gamma = parameters.gamma
        if gamma is None:  # any, where no neighborhood has a scatter
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
        """Return M of the features that vary, and which do."""
        M, varies = local_scatter(inputs.blocks, inputs.graph.indices_ref, ridge)
        if not varies.all():
            kept = np.flatnonzero(varies)
            M = M[np.ix_(kept, kept)]
        return DenseForm(M), varies


class ProjectionOfFewRows(SparseProjection):
    """Fewer rows than features: the client holds them, which takes less than n_features^2."""

    def cost(self) -> StageCost:
        """Return the cost of reading the rows and of the client's matrices."""
        n, d = self.shape.n_samples, self.shape.n_features
        what = f"{N_ROW_MATRICES} matrices of {n:,} x {d:,}: all rows"
        needed = n * d * self.shape.itemsize + product_form_bytes(n, d) + 32 * 10**6
        seconds = _iterations_seconds(self.parameters.max_iter, n, d)
        rows = Step(what, needed, 1, 1, self.shape.n_chunks, by_client=True, seconds=seconds)
        steps, at_most = (*self._unit_steps(), rows), self.parameters.unit == "rms"
        return StageCost(steps, loads=LOADS, at_most=at_most)

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
    """Return the processor time of the iterations: products with matrices of the smaller size."""
    return max_iter * product_seconds(min(n, d), d, _COLUMNS)
