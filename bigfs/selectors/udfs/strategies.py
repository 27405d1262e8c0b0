"""UDFS by one pass over blocks and neighborhoods, and an eigenproblem of the client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step
from bigfs.core.threads import single_thread
from bigfs.selectors.udfs import UDFSParameters
from bigfs.selectors.udfs.kernels import local_scatter, scatter_step
from bigfs.solvers.udfs import N_MATRICES, sparse_basis, sparse_basis_bytes
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


def choose(shape: Shape, selection: Selection) -> SparseProjection:
    """Return the only strategy."""
    assert selection.graph is not None
    return SparseProjection(shape, selection.graph.n_neighbors, selection.parameters)


@dataclass(frozen=True)
class SparseProjection:
    """One pass sums up the neighborhoods; the client iterates on matrices of n_features^2.

    Attributes
    ----------
    shape : Shape
    n_neighbors : int
    parameters : UDFSParameters
    """

    shape: Shape
    n_neighbors: int
    parameters: UDFSParameters

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        d = self.shape.n_features
        what = f"{N_MATRICES} matrices of {d:,} x {d:,} features"
        iteration = Step(what, sparse_basis_bytes(d), by_client=True)
        return StageCost((scatter_step(self.shape, self.n_neighbors), iteration))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the projection's row norms; details are the attributes of `UDFS`."""
        parameters, d = self.parameters, self.shape.n_features
        n_clusters, chosen = inputs.n_clusters(parameters.n_clusters)
        M, varies = local_scatter(inputs.blocks, inputs.graph.indices_ref, parameters.ridge)
        kept = np.flatnonzero(varies)
        scores = np.zeros(d)
        coef = np.zeros((d, min(n_clusters, len(kept))))
        if not len(kept):
            return FeatureScores.from_scores(
                scores,
                constant=~varies,
                n_iter=0,
                converged=True,
                objective=np.empty(0),
                coef=coef,
                **chosen,
            )
        if len(kept) < d:
            M = M[np.ix_(kept, kept)]
        with single_thread():
            basis = sparse_basis(
                M, coef.shape[1], parameters.gamma, max_iter=parameters.max_iter, tol=parameters.tol
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
