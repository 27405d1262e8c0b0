"""Strategies of the methods that pick one column after the other, from products of the features.

What differs between the methods is a `Rule`; what differs between the strategies is where the
products come from: the Gram matrix of one pass, or few rows that stand for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import gram_bytes, gram_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step
from bigfs.core.memory import task_budget
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB
from bigfs.selectors.method import Strategy
from bigfs.selectors.sketch import RowSketch
from bigfs.solvers.greedy import GramProducts, GreedyPath, Products, RowProducts
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


class Rule(ABC):
    """The rule by which a greedy method picks features."""

    def matrices(self, n_features: int, n_rows: int | None) -> int:
        """Return the bytes it needs beside the products of so many rows; None: a Gram matrix."""
        return 0

    @abstractmethod
    def path(self, products: Products, n_picks: int) -> GreedyPath:
        """Return the path."""

    def sketch_steps(self, shape: Shape, n_picks: int) -> tuple[Step, ...]:
        """Return the passes that follow the path on a sketch which is not exact."""
        return ()

    @abstractmethod
    def result(
        self, path: GreedyPath, norms: np.ndarray, blocks: RowBlocks | None
    ) -> FeatureScores:
        """Return the scores.

        Parameters
        ----------
        path : GreedyPath
        norms : ndarray of shape (n_features,)
            Squared norms of the columns; 0 where a feature is constant.
        blocks : RowBlocks or None
            The data, where the path is that of a sketch which is not exact.
        """


@dataclass(frozen=True)
class Picks(Strategy):
    """A path on the client, on products that a pass over the data gives."""

    rule: Rule

    @property
    def n_selected(self) -> int:
        """Number of features to pick."""
        return self.selection.n_features_to_select

    @property
    def sketch(self) -> RowSketch:
        """The rows that stand for all."""
        return RowSketch.of(self.shape, self.n_selected, self.selection.memory_limit)

    def _on_client(self, what: str, n_rows: int | None) -> Step:
        d = self.shape.n_features
        products = 8 * (n_rows or d) * d + self.rule.matrices(d, n_rows)
        # The vectors of the picks, and some strips.
        needed = products + 8 * d * min(self.n_selected, d) + 16 * MIB
        return Step(what, needed, by_client=True)

    def _result(
        self, products: Products, norms: np.ndarray, blocks: RowBlocks | None
    ) -> FeatureScores:
        with single_thread():
            path = self.rule.path(products, self.n_selected)
            scores = self.rule.result(path, norms, blocks)
        scores.details["n_sketch_rows"] = 0 if blocks is None else self.sketch.n_rows
        return scores


class PicksOnGram(Picks):
    """One pass gives ``X'X`` of the centered columns."""

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        d = self.shape.n_features
        path = self._on_client(f"the Gram matrix of {d:,} features", None)
        return StageCost((gram_step(self.shape, 0), path))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; details are the attributes of the method's class."""
        gram = inputs.blocks.gram().gram
        return self._result(GramProducts(gram), gram.diagonal().copy(), None)


class PicksOnRows(Picks):
    """Wide data: one pass gives all rows where they are few, and else a sketch of them."""

    def cost(self) -> StageCost:
        """Return the cost of the passes and of the client's matrices."""
        sketch, d = self.sketch, self.shape.n_features
        what = f"{sketch.n_rows:,} rows x {d:,} features"
        later = () if sketch.is_exact else self.rule.sketch_steps(self.shape, self.n_selected)
        return StageCost((sketch.step(), self._on_client(what, sketch.n_rows), *later))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; details are the attributes of the method's class."""
        sketch = self.sketch
        products = RowProducts(sketch.read(inputs.blocks, self.selection.random_state))
        blocks = None if sketch.is_exact else inputs.blocks
        return self._result(products, products.norms(), blocks)


def choose_picks(shape: Shape, selection: Selection, rule: Rule) -> Picks:
    """Return the strategy: the Gram matrix where a worker can fold it, unless rows are few."""
    n_selected, limit = selection.n_features_to_select, selection.memory_limit
    few = shape.n_samples < shape.n_features and RowSketch.of(shape, n_selected, limit).is_exact
    fits = gram_bytes(shape, 0) <= task_budget(limit)
    kind = PicksOnGram if fits and not few else PicksOnRows
    return kind(shape, selection, rule)
