"""The iteration of NDFS on any passes and regression, with its record and its checkpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.core.errors import StorageError
from bigfs.runtime.progress import Work
from bigfs.selectors.checkpoint import load_state, save_state
from bigfs.selectors.ndfs import NDFSParameters
from bigfs.selectors.ndfs.passes import FactorPasses, FactorSums, Update, inverse_norms
from bigfs.selectors.ndfs.solve import RegressionSolver
from bigfs.solvers.l21 import smoothed_l21
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef

# Iterations between checkpoints; after this many seconds the next iteration writes one.
CHECKPOINT_ITERATIONS = 5
CHECKPOINT_SECONDS = 30.0


@dataclass
class IterationState:
    """State of the iteration, beside F."""

    done: int  # iterations made
    # Of shape (n_features, n_clusters), float64: the weights of eq. (12), before the first
    # iteration those of the ridge regression.
    B: np.ndarray
    # Of shape (n_features + 1, n_clusters), float64: the same with the next Delta, and the
    # intercept: what enters ``MF``.
    coef: np.ndarray
    delta: np.ndarray  # of shape (n_features,), float64
    # ``X'F``, with the sums of F's columns as its last row, and ``F'F``.
    xtf: np.ndarray
    ftf: np.ndarray
    # The three parts of eq. (10) after each iteration; the first of the last one is not yet known.
    parts: list[tuple[float, float, float]] = field(default_factory=list)
    movement: list[float] = field(default_factory=list)  # ``|F_t - F_t-1|``
    orthogonality: list[float] = field(default_factory=list)  # ``|F'F - I|``

    @property
    def totals(self) -> np.ndarray:
        """The objective after each iteration."""
        return np.array(self.parts).sum(axis=1)


def iterate(
    passes: FactorPasses,
    regression: RegressionSolver,
    xtf: np.ndarray,
    ftf: np.ndarray,
    parameters: NDFSParameters,
    checkpoint: Location | None = None,
    progress: Work | None = None,
) -> IterationState:
    """Run algorithm 1 and return where it ended; F stays with the passes.

    Parameters
    ----------
    passes : FactorPasses
        Hold the start F.
    regression : RegressionSolver
    xtf, ftf : ndarray
        ``X'F`` with the sums of F's columns, and ``F'F``, of the start.
    parameters : NDFSParameters
    checkpoint : Path, ObjectPath or None, default=None
        File of the checkpoint: read if it is there, written every few iterations.
    progress : Work or None, default=None
        Told of every iteration, and of those that a checkpoint saved.
    """
    update = Update(parameters.update, parameters.alpha, parameters.gamma)
    state = _resumed(checkpoint, passes)
    if state is None:
        first = regression.first(regression.centered(xtf))
        delta = np.full(len(first), regression.weights.delta)
        state = IterationState(0, first, regression.with_intercept(first, xtf), delta, xtf, ftf)
    if progress is not None:
        progress.resume(state.done)
    saved = time.monotonic()
    while state.done < parameters.max_iter and not _converged(state, parameters.tol):
        sums = passes.step(state.coef, state.ftf, update)
        _advance(state, sums, passes, regression, parameters)
        if progress is not None:
            # The last value known is one iteration old.
            known = state.totals[-2:-1]
            progress.advance(1, f"objective {known[0]:.6g}" if len(known) else None)
        late = time.monotonic() - saved > CHECKPOINT_SECONDS
        if checkpoint is not None and (state.done % CHECKPOINT_ITERATIONS == 0 or late):
            save_state(checkpoint, {"iteration": state, "passes": passes.state()})
            saved = time.monotonic()
    return state


def _advance(
    state: IterationState,
    sums: FactorSums,
    passes: FactorPasses,
    regression: RegressionSolver,
    parameters: NDFSParameters,
) -> None:
    """Take what a pass found: normalize, solve, and record the objective."""
    if state.parts:
        state.parts[-1] = (sums.smoothness, *state.parts[-1][1:])
    if parameters.update == "printed":
        passes.scale = inverse_norms(sums.ftf.diagonal())
        sums.xtf *= passes.scale
        sums.ftf *= np.multiply.outer(passes.scale, passes.scale)
        sums.overlap *= passes.scale
    squared = np.trace(sums.ftf) + np.trace(state.ftf) - 2 * sums.overlap.sum()
    state.movement.append(float(np.sqrt(max(0.0, squared))))
    state.xtf, state.ftf = sums.xtf, sums.ftf
    before, beta = state.delta, regression.weights.beta
    xtf = regression.centered(state.xtf)
    state.B, state.delta, coef = regression.advance(before, xtf)
    state.coef = regression.with_intercept(coef, state.xtf)
    # |XB - F|^2, since X'X B = X'F - beta Delta B: no pass is needed.
    residual = (
        np.trace(state.ftf)
        - regression.explained_by_intercept(state.xtf)
        - np.einsum("ij,ij->", state.B, xtf)
        - beta * np.einsum("i,ij,ij->", before, state.B, state.B)
    )
    fit = parameters.alpha * (max(0.0, residual) + beta * smoothed_l21(state.B, regression.epsilon))
    off = float(((state.ftf - np.eye(len(state.ftf))) ** 2).sum())
    state.parts.append((np.nan, float(fit), parameters.gamma / 2 * off))
    state.orthogonality.append(float(np.sqrt(off)))
    state.done += 1


def _converged(state: IterationState, tol: float) -> bool:
    """Return whether the objective stands still: the last value known is one iteration old."""
    if state.done < 3:
        return False
    before, after = state.totals[-3:-1]
    return bool(abs(before - after) <= tol * abs(before))


def finish(state: IterationState, passes: FactorPasses, labels: ArrayRef) -> dict[str, Any]:
    """Complete the record with a pass over the graph; return the details of the result."""
    ending = passes.finish(labels)
    state.parts[-1] = (ending.smoothness, *state.parts[-1][1:])
    return {
        "coef": state.B,
        "n_iter": state.done,
        "objective": state.totals,
        "objective_parts": np.array(state.parts),
        "orthogonality": np.array(state.orthogonality),
        "movement": np.array(state.movement),
        "distance_from_start": ending.distance,
        "n_labels_changed": ending.changed,
    }


def _resumed(path: Location | None, passes: FactorPasses) -> IterationState | None:
    """Return the stored iterate, or None where there is none that can be read."""
    stored = load_state(path)
    if stored is None:
        return None
    try:
        passes.restore(stored["passes"])
    except StorageError:
        return None
    return IterationState(**stored["iteration"])
