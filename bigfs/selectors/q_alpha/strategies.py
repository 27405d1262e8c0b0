"""Q-alpha on the Gram matrix, which one pass gives and the client works on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks.rowblocks import gram_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step
from bigfs.core.threads import single_thread
from bigfs.selectors.q_alpha import QAlphaParameters
from bigfs.solvers.qalpha import N_MATRICES, q_alpha, q_alpha_bytes
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


def choose(shape: Shape, selection: Selection) -> FeatureWeights:
    """Return the only strategy."""
    return FeatureWeights(shape, selection.parameters)


@dataclass(frozen=True)
class FeatureWeights:
    """One pass for the Gram matrix; the client iterates on matrices of n_features^2.

    Attributes
    ----------
    shape : Shape
    parameters : QAlphaParameters
    """

    shape: Shape
    parameters: QAlphaParameters

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        d = self.shape.n_features
        what = f"{N_MATRICES} matrices of {d:,} x {d:,} features"
        iteration = Step(what, q_alpha_bytes(d), by_client=True)
        return StageCost((gram_step(self.shape, 0), iteration))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the weight of every feature; details are the attributes of `QAlpha`."""
        parameters = self.parameters
        n_clusters, chosen = inputs.n_clusters(parameters.n_clusters)
        total = inputs.blocks.gram()
        norms = np.sqrt(total.gram.diagonal())
        varies = np.flatnonzero(norms > 0)
        scores = np.zeros(self.shape.n_features)
        if not len(varies):
            return FeatureScores.from_scores(
                scores,
                constant=norms == 0,
                n_iter=0,
                converged=True,
                objective=np.empty(0),
                **chosen,
            )
        gram = total.gram[np.ix_(varies, varies)]
        del total  # as large as the copy that the iteration works on
        gram /= norms[varies]
        gram /= norms[varies][:, None]
        with single_thread():
            result = q_alpha(gram, n_clusters, max_iter=parameters.max_iter, tol=parameters.tol)
        scores[varies] = result.alpha
        return FeatureScores.from_scores(
            scores,
            constant=norms == 0,
            n_iter=len(result.objective),
            converged=result.converged,
            objective=result.objective,
            **chosen,
        )
