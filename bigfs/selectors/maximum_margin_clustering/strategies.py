"""The ways of M3FS, with every weight at 1; features are ranked by the norms of the rule."""

from __future__ import annotations

import numpy as np

from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost
from bigfs.selectors.m3fs import M3FSParameters, MarginParameters
from bigfs.selectors.m3fs.sample import SampledRows
from bigfs.selectors.m3fs.strategies import MarginSearch, search_of_all_rows
from bigfs.selectors.method import Strategy
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


def choose(shape: Shape, selection: Selection) -> Strategy:
    """Return the strategy: on a sample where one is asked for, else as M3FS on all rows."""
    sampled = selection.parameters.sample_size is not None
    return (SampledRows if sampled else NormsOfRule)(shape, selection)


class NormsOfRule(Strategy):
    """The search of M3FS for clusters; a feature's score is the norm of its coefficients."""

    @property
    def search(self) -> MarginSearch:
        """The search, with every weight at 1."""
        shared = {name: getattr(self.parameters, name) for name in MarginParameters.model_fields}
        parameters = M3FSParameters(**shared, smoothness=0.0, criterion="objective")
        n_features = self.shape.n_features
        return search_of_all_rows(self.shape, self.selection, parameters, n_features)

    def cost(self) -> StageCost:
        """Return the cost of the search."""
        return self.search.cost()

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the norms; details are the attributes of `MaximumMarginClustering`."""
        result = self.search.run(inputs, out)
        norms = np.linalg.norm(result.details["coef"], axis=1)
        return FeatureScores.from_scores(norms, constant=result.constant, **result.details)
