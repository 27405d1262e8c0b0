"""Results of M3FS: the best start, and its diagnostics."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.m3fs.choice import DIGITS
from bigfs.selectors.m3fs.state import Settings, Trajectory
from bigfs.store.scratch import ArrayRef

logger = logging.getLogger("bigfs")

# A cluster with fewer rows than this share of an even one is as good as empty.
_TINY = 0.1


def chosen_start(states: list[Trajectory], likely: np.ndarray | None) -> int:
    """Return the start to believe.

    One that converged and kept all its clusters; of those the one whose clusters describe the
    rows best, or without likelihoods the least objective.
    """
    sound = [s for s in states if s.converged and s.sizes.min() >= _TINY * s.sizes.mean()]

    def order(state: Trajectory) -> tuple[float, float, int]:
        described = 0.0 if likely is None else round(float(likely[state.number]), DIGITS)
        return -described, round(state.objective, DIGITS), state.number

    return min(sound or states, key=order).number


def details_of(
    state: Trajectory, settings: Settings, smooth: np.ndarray | None, loss: float
) -> dict[str, Any]:
    """Return the details of the chosen start."""
    d = settings.n_features
    history = np.array(state.history)
    if (state.sizes == 0).any():
        logger.warning(
            "m3fs: %d of %d clusters are empty. Raise C, loosen balance, or begin elsewhere.",
            int((state.sizes == 0).sum()),
            len(state.sizes),
        )
    intercept = state.V[d] if settings.fit_intercept else np.zeros(settings.n_columns)
    quadratic = 0.0
    if smooth is not None:
        quadratic = float(np.einsum("dp,de,ep->", state.V, smooth, state.V))
    return {
        "coef": np.ascontiguousarray(state.V[:d]),
        "intercept": np.ascontiguousarray(intercept),
        "n_planes": state.n_planes,
        "n_cccp_steps": state.n_steps,
        "n_iter": state.n_rounds,
        "objective": state.objective,
        "objective_history": history[:, 0],
        "violation_history": history[:, 1],
        "slack": state.slack,
        "violation": loss - state.slack,
        "smoothness_term": quadratic,
        "gap": state.gap,
        "converged": bool(state.converged),
    }


def about_start(
    state: Trajectory, name: str, loss: float, likelihood: float | None
) -> dict[str, Any]:
    """Return a start's line of the report."""
    return {
        "start": name,
        "objective": state.objective,
        "loss": loss,
        "slack": state.slack,
        "likelihood": likelihood,
        "sizes": [int(size) for size in state.sizes],
        "n_planes": state.n_planes,
        "n_cccp_steps": state.n_steps,
        "n_iter": state.n_rounds,
        "converged": bool(state.converged),
    }


def write_labels(blocks: RowBlocks, clusters: ArrayRef, chosen: int, labels: ArrayRef) -> None:
    """Write the clusters of the chosen start as the labels of all rows."""
    run_tasks(_column_task, blocks.bounds, clusters, chosen, labels, label="m3fs labels")


def _column_task(
    bounds: tuple[int, int], clusters: ArrayRef, chosen: int, labels: ArrayRef
) -> None:
    labels.write(bounds[0], clusters.read(*bounds)[:, chosen].astype(np.int32))
