"""The rest of a start that has drawn many planes: programs of all rows, where these are few.

A start whose least objective is far above that of others takes hundreds of rounds, each a program
of up to 70 planes. With two clusters and few rows the program with a slack for every row costs
what a few rounds do, and is solved once for each change of the clusters.
"""

from __future__ import annotations

import logging

import numpy as np

from bigfs.core.errors import ConvergenceError
from bigfs.runtime.progress import say_where
from bigfs.selectors.m3fs.kernels import clusters_of, decisions
from bigfs.selectors.m3fs.state import Settings, Trajectory
from bigfs.selectors.m3fs.weighted import TOLERANCE
from bigfs.solvers.msupport import weights_of
from bigfs.solvers.rowslack import solve_with_row_slacks

logger = logging.getLogger("bigfs")

# Rounds by planes before that. Starts of pairs of digits that end near the least objective are done
# after 11 to 34, the others take up to 290.
_ROUNDS_OF_PLANES = 20
# The most rows, and the most multiplications of a step: a tenth of a second.
_MOST_ROWS = 4096
_MOST_PRODUCTS = 2**24


def may_use_rows(n_rows: int, settings: Settings) -> bool:
    """Say whether programs of all rows are possible, and no dearer than planes."""
    two_of_many = settings.n_columns == 1 and settings.n_selected < settings.n_features
    few = n_rows <= _MOST_ROWS and n_rows * settings.n_rows_of_v**2 <= _MOST_PRODUCTS
    return two_of_many and few and not settings.planes_outside


def is_long(state: Trajectory) -> bool:
    """Say whether a start whose clusters stand still has had its rounds by planes."""
    return state.n_rounds >= _ROUNDS_OF_PLANES and not state.refresh


def end_by_rows(
    state: Trajectory,
    X: np.ndarray,
    z: np.ndarray,
    settings: Settings,
    mean: np.ndarray,
    smooth: np.ndarray | None,
) -> bool:
    """Change the clusters until they stay, or the objective does: each time one exact program.

    Parameters
    ----------
    state : Trajectory
        Its rounds by planes are counted on, a program being one.
    X : ndarray of shape (n_rows, n_features), float64
    z : ndarray of shape (n_rows,), uint8
        The present clusters.
    settings : Settings
    mean : ndarray of shape (D,)
    smooth : ndarray of shape (D, D) or None

    Returns
    -------
    ended : bool
        False where a program is not solved; then the state is as it was.
    """
    # The round that is about to begin is the first program's.
    last, history, n_steps, n_before = state.last, [], 0, state.n_rounds - 1
    while True:
        try:
            solution = solve_with_row_slacks(
                X,
                z,
                mean,
                settings.balance,
                smooth,
                settings.C,
                settings.n_selected,
                tol=TOLERANCE,
            )
        except ConvergenceError as error:
            logger.info("%s Planes are drawn instead.", error)
            return False
        history.append((solution.objective, 0.0))
        n_rounds = n_before + len(history)
        say_where(f"start {state.number}: round {n_rounds}, objective {solution.objective:.6g}")
        now = clusters_of(decisions(X, solution.V))
        fell, last = last - solution.objective, solution.objective
        stays = not (now != z).any() or fell <= settings.tol * abs(last)
        if stays or n_rounds >= settings.max_iter:
            break
        z, n_steps = now, n_steps + 1
    state.history += history
    state.n_rounds, state.n_steps, state.last = n_rounds, state.n_steps + n_steps, last
    state.V, state.objective, state.gap = solution.V, solution.objective, solution.gap
    state.sigma = weights_of(np.abs(solution.V[: settings.n_features, 0]), settings.n_selected)
    # No plane exceeds the mean of the rows' slacks.
    state.slack, state.violation = solution.loss, 0.0
    state.sizes = np.bincount(now, minlength=2)
    state.done, state.converged = True, bool(stays)
    return True
