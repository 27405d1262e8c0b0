"""Strategy of FSGMM: feature saliency from EM passes, and the resulting ranking."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigfs.blocks.rowblocks import RowBlocks, moments_step
from bigfs.core.cost import StageCost, Step, loop_seconds, pass_over
from bigfs.core.errors import InputError
from bigfs.core.seeds import rng
from bigfs.runtime.progress import silenced, track
from bigfs.selectors.fsgmm import FSGMMParameters
from bigfs.selectors.kept import discard, hand_over, handed, load_state, save_state
from bigfs.selectors.method import Strategy
from bigfs.solvers.saliency import (
    Expectations,
    Mixture,
    expectation,
    information,
    maximization,
    message_length,
    tile_rows,
)
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef, Scratch


@dataclass
class MixtureState:
    """State of a fit, as stored in a checkpoint."""

    # The mixture that the next pass evaluates, and the one with the smallest message length so far.
    current: Mixture
    best: Mixture
    best_length: float = np.inf
    # Message length at the previous pass; NaN if a component or feature was removed since.
    last_length: float = np.nan
    # Message length and number of components of each pass.
    lengths: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    finished: bool = False


@dataclass(frozen=True)
class VaryingColumns:
    """Indices of the features that vary, and their shifts and scales, as stored arrays."""

    kept: ArrayRef
    scaling: ArrayRef

    def standardized(self, X: np.ndarray, live: np.ndarray) -> np.ndarray:
        """Return the ``live`` ones of these features, standardized, for the rows X, in float64."""
        columns = self.kept.load()[live]
        shift, scale = self.scaling.load()[:, live]
        Z = X[:, columns].astype(np.float64)
        Z -= shift
        Z *= scale
        return Z


def expectation_bytes(n_clusters: int, n_features: int) -> int:
    """Return the bytes that the E-step needs in addition to a block.

    These are the parameters with two partial sums, and the relevances of a tile.
    """
    sizes = 8 * n_features * (10 * n_clusters + 20)
    return sizes + 16 * n_clusters * n_features * 8 + 24 * 10**6


def maximization_bytes(n_clusters: int, n_features: int) -> int:
    """Return the bytes of the M-step: the sums, temporaries of their size, and three mixtures."""
    return 8 * n_features * (20 * n_clusters + 40)


def begin(
    blocks: RowBlocks, columns: VaryingColumns, n_clusters: int, random_state: int
) -> MixtureState:
    """Return the initial state: random rows as means, all other parameters equal."""
    d = columns.kept.shape[0]
    chosen = rng(random_state, "fsgmm").choice(blocks.n_samples, n_clusters, replace=False)
    reader = blocks.start_pass(0)  # a few rows do not count as a pass
    rows = np.concatenate([reader.read(row, row + 1) for row in np.sort(chosen).tolist()])
    mean = columns.standardized(rows, np.arange(d))
    start = Mixture(
        np.full(n_clusters, 1 / n_clusters),
        mean,
        np.ones((n_clusters, d)),
        np.zeros(d),
        np.ones(d),
        np.full(d, 0.5),
        np.arange(d),
    )
    return MixtureState(start, start)


def _advance(
    state: MixtureState,
    sums: Expectations,
    n_samples: int,
    n_features: int,
    parameters: FSGMMParameters,
) -> None:
    """Record the message length of the current mixture, and replace it by the next one."""
    current, min_clusters = state.current, parameters.min_clusters
    length = message_length(sums.log_likelihood, current, n_samples, n_features)
    state.lengths.append(length)
    state.sizes.append(len(current.weights))
    if length < state.best_length:
        state.best, state.best_length = current, length
    converged = abs(state.last_length - length) <= parameters.tol * abs(length)
    if converged and len(current.weights) <= min_clusters:
        state.finished = True
        return
    if converged:
        after = current.without(int(current.weights.argmin()))
    else:
        after = maximization(sums, current, min_clusters, parameters.least_variance)
    same = len(after.weights) == len(current.weights) and len(after.live) == len(current.live)
    state.last_length = length if same else np.nan
    state.current = after
    # If no feature distinguishes the components, nothing is left to fit.
    state.finished = len(after.live) == 0
    if state.finished:
        nothing = replace(
            after, weights=np.ones(1), mean=after.mean[:1], variance=after.variance[:1]
        )
        length = message_length(0.0, nothing, n_samples, n_features)
        if length < state.best_length:
            state.best, state.best_length = nothing, length


def one_pass(
    blocks: RowBlocks,
    columns: VaryingColumns,
    mixture: Mixture,
    folder: Scratch,
    labels: ArrayRef | None = None,
) -> Expectations:
    """Return the E-step's sums over all rows, and write the labels if ``labels`` is given."""
    stored = hand_over(folder.path, vars(mixture))
    shared = columns, stored, labels
    sums: Expectations = blocks.reduce(
        _expectation_kernel, Expectations.add, *shared, label="fsgmm"
    )
    discard(stored)
    return sums


def _expectation_kernel(
    X: np.ndarray,
    first_row: int,
    columns: VaryingColumns,
    stored: Any,
    labels: ArrayRef | None,
) -> Expectations:
    """Run the E-step on one block, tile by tile."""
    mixture = Mixture(**handed(stored))
    total: Expectations | None = None
    nearest = np.empty(len(X), dtype=np.int32)
    step = tile_rows(mixture)
    for at in range(0, len(X), step):
        Z = columns.standardized(X[at : at + step], mixture.live)
        sums, nearest[at : at + step] = expectation(Z, mixture)
        total = sums if total is None else total.add(sums)
    if labels is not None:
        labels.write(first_row, nearest)
    assert total is not None
    return total


# Measured: loop steps per value and component.
_LOOPS = 8


class MixtureFit(Strategy):
    """One pass over X for each EM step, and one for the labels."""

    def cost(self) -> StageCost:
        """Return the cost of the moments, of at most ``max_iter`` steps and of the labels."""
        k, d, n = self.parameters.n_clusters, self.shape.n_features, self.shape.n_samples
        what = f"a block of {self.shape.rows:,} rows and {k} components of {d:,} features"
        times, seconds = self.parameters.max_iter, loop_seconds(n, d, k, _LOOPS)
        beside, on_client = expectation_bytes(k, d), maximization_bytes(k, d)
        steps = (
            moments_step(self.shape),
            Step(f"{k} rows to start from", 32 * k * d, 1, 0, k, by_client=True),
            pass_over(self.shape, what, beside, times=times + 1, seconds=seconds),
            Step(f"{k} components of {d:,} features", on_client, times=times, by_client=True),
        )
        return StageCost(steps, 4 * n, 4 * n, at_most=True)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the saliencies; constant features get 0 and rank last; see `FSGMM`."""
        blocks, checkpoint = inputs.blocks, inputs.checkpoint
        folder = blocks.scratch.child(blocks.scratch.unique("mixtures"))
        labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        moments = blocks.moments()
        kept = np.flatnonzero(moments.maximum > moments.minimum)
        if not len(kept):
            raise InputError(
                f"{blocks.source.uri}: all {blocks.n_features} features are constant. They "
                "cannot distinguish clusters."
            )
        scaling = np.stack([moments.mean[kept], 1 / np.sqrt(moments.variance[kept])])
        columns = VaryingColumns(folder.put("kept", kept), folder.put("scaling", scaling))
        file = Scratch(checkpoint).path / "state.npz" if checkpoint else None
        if stored := load_state(file):
            stored |= {name: Mixture(**stored[name]) for name in ("current", "best")}
            state = MixtureState(**stored)
        else:
            state = begin(blocks, columns, self.parameters.n_clusters, self.selection.random_state)
        max_iter = self.parameters.max_iter
        with track("fsgmm", max_iter, "passes") as progress, silenced():
            progress.resume(len(state.lengths))
            while not state.finished and len(state.lengths) < max_iter:
                sums = one_pass(blocks, columns, state.current, folder)
                _advance(state, sums, blocks.n_samples, len(kept), self.parameters)
                progress.advance(1, f"message length {state.lengths[-1]:.6g}")
                if file is not None:
                    save_state(file, state)
        one_pass(blocks, columns, state.best, folder, labels)
        folder.close()
        return _ranked(state, kept, blocks.n_features, labels)


def _ranked(
    state: MixtureState, kept: np.ndarray, n_features: int, labels: ArrayRef
) -> FeatureScores:
    """Rank the features by saliency, ties (many saliencies are 0 or 1) by information."""
    best = state.best
    scores, divergence = np.zeros(n_features), np.zeros(n_features)
    constant = np.ones(n_features, dtype=bool)
    constant[kept] = False
    scores[kept[best.live]] = best.saliency
    divergence[kept[best.live]] = information(best)
    details = {
        "n_clusters": len(best.weights),
        "n_iter": len(state.lengths),
        "converged": state.finished,
        "message_length": state.best_length,
        "message_lengths": np.array(state.lengths),
        "sizes": np.array(state.sizes, dtype=np.int64),
        "information": divergence,
        "weights": best.weights,
        "labels": labels,
    }
    ranking = rank(scores, constant, divergence)
    return FeatureScores(scores, ranking, details, constant=constant)
