"""Greedy column subset selection, on the Gram matrix or on few rows that stand for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import fold_parts
from bigfs.config import Selection
from bigfs.core.cost import Shape, Step
from bigfs.selectors.mcfs.wide import cross_pass
from bigfs.selectors.picks import Picks, Rule, choose_picks
from bigfs.selectors.picks import PicksOnGram as PicksOnGram  # the strategies of this method
from bigfs.selectors.picks import PicksOnRows as PicksOnRows
from bigfs.solvers.greedy import GreedyPath, Products, VariancePath, explained_by
from bigfs.stages.scores import FeatureScores


def choose(shape: Shape, selection: Selection) -> Picks:
    """Return the strategy: on the Gram matrix, or on few rows."""
    return choose_picks(shape, selection, MostExplained())


@dataclass(frozen=True)
class MostExplained(Rule):
    """The column that most reduces ``|X - P X|_F^2``."""

    def matrices(self, n_features: int, n_rows: int | None) -> int:
        """Return the bytes of the sketch's own products."""
        return 0 if n_rows is None else 8 * n_rows**2

    def path(self, products: Products, n_picks: int) -> GreedyPath:
        """Return the path."""
        return VariancePath(products, n_picks)

    def sketch_steps(self, shape: Shape, n_picks: int) -> tuple[Step, ...]:
        """Return the pass that measures what the picks explain."""
        d = shape.n_features
        needed = shape.read_bytes + 8 * (fold_parts(shape.n_blocks) + 1) * d * n_picks
        what = f"products of {n_picks:,} features with all"
        return (Step(what, needed, shape.n_blocks, 1, shape.n_chunks),)

    def result(
        self, path: GreedyPath, norms: np.ndarray, blocks: RowBlocks | None
    ) -> FeatureScores:
        """Return the scores; what the picks of a sketch explain is measured on the data."""
        gains, total = np.array(path.gains), float(norms.sum()) or 1.0
        left = path.left / total
        if blocks is not None and path.order:
            pass_sums = cross_pass(blocks, True, np.array(path.order), None)
            gains, total = explained_by(pass_sums.cross, path.order), float(pass_sums.squares.sum())
        ratio = gains / total
        return FeatureScores.from_path(
            path.order, ratio, left, constant=norms == 0, explained_variance_ratio=ratio
        )
