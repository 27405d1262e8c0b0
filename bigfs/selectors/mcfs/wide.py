"""Lasso paths on wide data, for which the Gram matrix of all features does not fit into a worker.

A path uses only the Gram columns of features that become active. Therefore columns are computed for
candidates C only, ``X'X_C`` (n_features x n_candidates), with one pass over X for each group of
them. The paths run among the candidates. Because the columns cover all features, every knot is then
checked against all of them: ``|x_j'(y - X a)| <= lambda``. Between knots both sides are linear in
lambda, so a path that satisfies the condition at its knots is the exact path of the full problem.
Features that violate it at a knot are added to the candidates, until there are no violations.

Runs on workers; imports no scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import fold_parts
from bigfs.config import Selection
from bigfs.core.cost import Shape, Step, loop_seconds, pass_over, product_seconds
from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import format_limit, limit_for, task_budget
from bigfs.core.units import format_bytes
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.cross import GROUP, cross_pass, side_bytes
from bigfs.selectors.mcfs import MAX_STOPS
from bigfs.solvers.lars import LarsPath, lars_path_gram
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.store.scratch import ArrayRef

# Indices, ascending, and values of the entries of a coefficient vector; and the share of its
# target, of norm one, that the regression with these coefficients explains.
SparseVector = tuple[np.ndarray, np.ndarray, float]


def lars_task(
    target: int, gram: ArrayRef, xty: ArrayRef, n_nonzero: int
) -> tuple[SparseVector, list[SparseVector]]:
    """Run the path of one target.

    Returns
    -------
    last : (indices, values, explained)
        The active set at the stop, its coefficients and the share that they explain.
    stops : list of (indices, values, explained)
        The same for the paths that stop at 1, 2, ... features.
    """
    n_stops = min(n_nonzero, MAX_STOPS)
    xy = xty.load()[:, target]
    path = lars_path_gram(gram.load(), xy, n_nonzero, keep_knots=n_stops)
    return end_of(path, xy), stops_of(path, n_stops, xy)


def end_of(path: LarsPath, xty: np.ndarray) -> SparseVector:
    """Return the coefficients at the end of a path."""
    return _stop(path.lambda_, path.active, path.coef[path.active], xty)


def stops_of(path: LarsPath, n_stops: int, xty: np.ndarray) -> list[SparseVector]:
    """Return the stops of the paths to 1, ..., ``n_stops`` features, all prefixes of this path.

    For sizes that the complete path does not reach, the stop is its end.
    """
    stops: list[SparseVector] = []
    for level, active, values in path.knots:
        # A knot is the stop for several sizes if several features became active at once.
        stops += [_stop(level, active, values, xty)] * (min(len(active), n_stops) - len(stops))
    return stops + [end_of(path, xty)] * (n_stops - len(stops))


def _stop(level: float, active: np.ndarray, values: np.ndarray, xty: np.ndarray) -> SparseVector:
    """Return a knot of a path with its features in ascending order, and the explained share.

    The share is ``|y|^2 - |y - Xa|^2 = a'X'y + lambda |a|_1``, since
    ``X_A'(y - Xa) = lambda sign(a)``.
    """
    order = np.argsort(active)
    explained = float(values @ xty[active] + level * np.abs(values).sum())
    return active[order], values[order], min(max(explained, 0.0), 1.0)


# Tolerance by which a correlation may exceed lambda, as a share of the largest correlation at the
# start.
_ROUNDING = 1e-9
# Features whose squared norm is below this share of the largest are treated as constant.
_CONSTANT = 1e-20
# Initial candidates per target, as a multiple of the number of features to select.
_FIRST = 2
# Upper bound of the Gram columns of sparse data in one pass. Multiplying sparse entries takes
# longer than reading them, so that it does not pay to compute more columns per pass.
_COLUMNS = 4 * GROUP


@dataclass(frozen=True)
class LassoPaths:
    """The paths of all targets."""

    # List of n_targets (indices, values, explained): active features at the stop, ascending, their
    # coefficients, and the explained share.
    last: list[SparseVector]
    # List of n_targets lists of (indices, values, explained): the same for the paths to 1, 2, ...
    # features.
    stops: list[list[SparseVector]]
    constant: np.ndarray  # of shape (n_features,), bool: features that are constant
    y_mean: np.ndarray  # of shape (n_targets,), float64: means of the vectors as they are stored
    details: dict[str, Any] = field(default_factory=dict)  # additional details of the result


@dataclass(frozen=True)
class _Checked:
    """The path of one target among the candidates, checked against all features."""

    last: SparseVector
    stops: list[SparseVector]
    violation: float  # the largest excess over lambda, relative to the largest correlation
    violators: np.ndarray  # features to add to the candidates


def wide_paths(blocks: RowBlocks, spectral: SpectralEmbedding, selection: Selection) -> LassoPaths:
    """Return the exact paths of all targets, computed from the Gram columns of few features.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    spectral : SpectralEmbedding of shape (n_samples, n_targets)
        Eigenvectors; they are scaled to Euclidean norm one.
    selection : Selection
        Each path stops when the active set has ``n_features_to_select`` features.

    Returns
    -------
    paths : LassoPaths

    Raises
    ------
    MemoryLimitError
        If the columns of the candidates do not fit into a worker's memory.
    """
    n_targets = len(spectral.eigenvalues)
    n_nonzero, memory_limit = selection.n_features_to_select, selection.memory_limit
    fit_intercept = selection.parameters.fit_intercept
    room = wide_room(blocks.layout, n_targets, memory_limit)
    most = _most_candidates(blocks.layout, room, n_nonzero, memory_limit)
    first = cross_pass(blocks, fit_intercept, None, spectral.embedding_ref)
    xty = first.cross / spectral.norms
    squares = first.squares if fit_intercept else first.squares + first.count * first.mean**2
    usable = (squares > _CONSTANT * squares.max(initial=0.0)) & (first.squares > 0)
    xty[~usable] = 0.0
    columns: list[tuple[np.ndarray, ArrayRef]] = []
    screened: list[int] = []
    n_first = max(1, min(_FIRST * n_nonzero, most // n_targets))
    fresh = _first_candidates(np.abs(xty), usable, n_first)
    with blocks.scratch.temporary("paths") as folder:
        shared = folder.put("xty", xty)
        while True:
            _check_room(len(fresh) + sum(screened[-1:]), most, blocks, memory_limit)
            for begin in range(0, len(fresh), room):
                group, name = fresh[begin : begin + room], folder.unique("columns")
                products = folder.put(name, cross_pass(blocks, fit_intercept, group, None).cross.T)
                columns.append((group, products))
            screened.append(sum(len(group) for group, _ in columns))
            paths = run_tasks(
                path_task, range(n_targets), columns, shared, usable, n_nonzero,
                label="paths", unit="eigenvectors",
            )  # fmt: skip
            fresh = np.unique(np.concatenate([path.violators for path in paths]))
            if not len(fresh):
                break
    # For each target, the largest amount by which a correlation exceeds lambda at any knot, as a
    # share of the largest correlation at the start. Only rounding errors remain, because features
    # with larger violations were added to the candidates.
    violations = np.array([path.violation for path in paths])
    return LassoPaths(
        [path.last for path in paths],
        [path.stops for path in paths],
        first.squares == 0,
        first.other_mean,
        {"largest_violation": violations, "n_screened": np.array(screened)},
    )


def wide_room(shape: Shape, n_targets: int, memory_limit: int) -> int:
    """Return the largest number of Gram columns of a pass; a fold holds several partial sums."""
    column = 8 * fold_parts(shape.n_blocks) * shape.n_features
    budget = task_budget(memory_limit) - shape.read_bytes - column * n_targets
    if shape.n_entries is not None:  # the columns of a block are also needed in dense form
        budget -= side_bytes(shape, GROUP)
        column += 8 * shape.rows
    most = shape.n_features if shape.n_entries is None else _COLUMNS
    return max(0, min(shape.n_features, most, budget // column))


def _most_candidates(shape: Shape, room: int, n_nonzero: int, memory_limit: int) -> int:
    """Return the largest number of candidates, whose Gram matrix a path holds in memory."""
    budget = task_budget(memory_limit) - _check_bytes(shape, room, n_nonzero)
    return min(shape.n_features, int((max(0, budget) / 8) ** 0.5)) if room else 0


def _check_bytes(shape: Shape, room: int, n_nonzero: int) -> int:
    """Return the bytes of a path without its Gram matrix: columns of a pass, and all knots."""
    return 8 * shape.n_features * (room + 3 * n_nonzero)


def wide_steps(shape: Shape, n_targets: int, n_nonzero: int, memory_limit: int) -> tuple[Step, ...]:
    """Return the steps of `wide_paths`, for four rounds: the most in all data that were tried."""
    d, room = shape.n_features, wide_room(shape, n_targets, memory_limit)
    most = _most_candidates(shape, room, n_nonzero, memory_limit)
    candidates = min(most, max(1, min(_FIRST * n_nonzero, most // n_targets)) * n_targets)
    columns = min(room, candidates)
    needed = shape.read_bytes + 8 * fold_parts(shape.n_blocks) * d * max(n_targets, columns)
    needed += side_bytes(shape, columns)
    what = f"Gram columns of {columns:,} of {d:,} features"
    rate = product_seconds if shape.n_entries is None else loop_seconds
    times, products = 4 * -(-candidates // max(1, columns)), rate(shape.n_values, columns)
    beside = 8 * d * n_targets + side_bytes(shape, n_targets)
    first = pass_over(shape, "products of a block with the eigenvectors", beside)
    fetching = pass_over(shape, what, times=times, seconds=products)
    what = f"a path on {candidates:,} of {d:,} features"
    of_path = _check_bytes(shape, columns, n_nonzero) + 8 * candidates**2
    seconds = loop_seconds(n_targets, d, n_nonzero, n_nonzero)
    path = Step(what, of_path, n_targets, 0, 2 * n_targets, 4, seconds=seconds)
    return first, replace(fetching, task_bytes=needed), path


def columns_bytes(shape: Shape, n_targets: int, n_nonzero: int) -> int:
    """Return the bytes of the stored Gram columns if no two targets share candidates."""
    return 8 * shape.n_features * min(shape.n_features, _FIRST * n_nonzero * n_targets)


def _check_room(n_columns: int, most: int, blocks: RowBlocks, memory_limit: int) -> None:
    if 0 < n_columns <= most:
        return
    needed = task_budget(memory_limit) + 8 * max(blocks.n_features, n_columns**2 - most**2)
    raise MemoryLimitError(
        f"Stage 'regression' needs the Gram columns of {n_columns:,} of {blocks.n_features:,} "
        f"features; a memory_limit of {format_bytes(memory_limit)} has room for {most:,}. "
        f"Set memory_limit to '{format_limit(limit_for(needed))}' or more, or select fewer "
        "features."
    )


def _first_candidates(size: np.ndarray, usable: np.ndarray, count: int) -> np.ndarray:
    """Return the ``count`` features of largest correlation of each target, merged and ascending."""
    order = np.argsort(np.where(usable[:, None], -size, np.inf), axis=0, kind="stable")
    return np.unique(order[:count])


def path_task(
    target: int,
    columns: list[tuple[np.ndarray, ArrayRef]],
    xty: ArrayRef,
    usable: np.ndarray,
    n_nonzero: int,
) -> _Checked:
    """Run the path of one target among the candidates and check it against all features.

    Parameters
    ----------
    target : int
    columns : list of (ndarray of shape (n_group,), ArrayRef of shape (n_group, n_features))
        Candidates and the rows ``X_C'X`` of each group.
    xty : ArrayRef of shape (n_features, n_targets)
    usable : ndarray of shape (n_features,), bool
        Features that are not constant.
    n_nonzero : int
        Size of the active set at which the path stops.
    """
    # Sorted, so that ties go to the lower feature index.
    ascending = np.sort(np.concatenate([features for features, _ in columns]))
    gram = np.empty((len(ascending), len(ascending)))
    for features, ref in columns:
        gram[np.searchsorted(ascending, features)] = ref.load()[:, ascending]
    full = xty.load()[:, target]
    path = lars_path_gram(gram, full[ascending], n_nonzero, keep_knots=n_nonzero)
    scale = float(np.abs(full).max(initial=0.0)) or 1.0
    del gram
    weights = np.zeros((len(path.knots), len(ascending)))
    for weight, (_, active, values) in zip(weights, path.knots, strict=True):
        weight[active] = values
    excess = np.tile(full, (len(path.knots), 1))
    for features, ref in columns:
        places = np.searchsorted(ascending, features)
        used = weights[:, places].any(axis=0)
        if used.any():
            excess -= weights[:, places[used]] @ ref.load()[used]
    np.abs(excess, out=excess)
    excess -= np.array([level for level, _, _ in path.knots])[:, None]
    excess[:, ~usable] = -np.inf
    excess /= scale
    indices, values, explained = end_of(path, full[ascending])
    stops = stops_of(path, min(n_nonzero, MAX_STOPS), full[ascending])
    return _Checked(
        (ascending[indices], values, explained),
        [(ascending[stop], values, share) for stop, values, share in stops],
        max(0.0, float(excess.max(initial=0.0))),
        _violators(excess, ascending, n_nonzero),
    )


def _violators(excess: np.ndarray, candidates: np.ndarray, count: int) -> np.ndarray:
    """Return at most ``count`` features that violate a knot, sorted by the first such knot."""
    broken = excess > _ROUNDING
    broken[:, candidates] = False
    violators = np.flatnonzero(broken.any(axis=0))
    # After the first violated knot the path is not the true one, so features that violate only
    # later knots may never become active.
    order = np.argsort(broken[:, violators].argmax(axis=0), kind="stable")
    return violators[order[:count]]
