"""QR with column pivoting, by Cholesky of the Gram matrix or on few rows that stand for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.core.cost import Shape
from bigfs.selectors.picks import Picks, Rule, choose_picks
from bigfs.selectors.picks import PicksOnGram as PicksOnGram  # the strategies of this method
from bigfs.selectors.picks import PicksOnRows as PicksOnRows
from bigfs.solvers.greedy import GreedyPath, NormPath, Products, RowProducts
from bigfs.stages.scores import FeatureScores


def choose(shape: Shape, selection: Selection) -> Picks:
    """Return the strategy: on the Gram matrix, or on few rows."""
    return choose_picks(shape, selection, LargestNorm(selection.parameters.n_components))


@dataclass(frozen=True)
class LargestNorm(Rule):
    """The column of largest residual norm, of X or of the loadings of its leading components."""

    n_components: int | None

    def matrices(self, n_features: int, n_rows: int | None) -> int:
        """Return the bytes of the components and of what they are computed from."""
        if self.n_components is None:
            return 0
        return 8 * (2 * (n_rows or n_features) ** 2 + 3 * self.n_components * n_features)

    def path(self, products: Products, n_picks: int) -> GreedyPath:
        """Return the path."""
        if self.n_components is not None:
            loadings = products.components(self.n_components)
            loadings[:, products.norms() == 0] = 0.0  # of constant features: rounding
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
