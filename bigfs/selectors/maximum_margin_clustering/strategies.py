"""The ways of M3FS, with every weight at 1; features are ranked by the norms of the rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost
from bigfs.selectors.m3fs import M3FSParameters, MarginParameters
from bigfs.selectors.m3fs.sample import SampledRows
from bigfs.selectors.m3fs.strategies import MarginSearch, search_of_all_rows
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


def choose(shape: Shape, selection: Selection) -> NormsOfRule | SampledRows:
    """Return the strategy: on a sample where one is asked for, else as M3FS on all rows."""
    own = selection.parameters
    if own.sample_size is not None:
        return SampledRows(shape, selection)
    shared = {name: getattr(own, name) for name in MarginParameters.model_fields}
    parameters = M3FSParameters(**shared, smoothness=0.0, criterion="objective")
    return NormsOfRule(search_of_all_rows(shape, selection, parameters, shape.n_features))


@dataclass(frozen=True)
class NormsOfRule:
    """The search of M3FS for clusters; a feature's score is the norm of its coefficients."""

    search: MarginSearch

    def cost(self) -> StageCost:
        """Return the cost of the search."""
        return self.search.cost()

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the norms; details are the attributes of `MaximumMarginClustering`."""
        result = self.search.run(inputs, out)
        norms = np.linalg.norm(result.details["coef"], axis=1)
        return FeatureScores.from_scores(norms, constant=result.constant, **result.details)
