"""Iterations of M3FS from its starts: rounds of a cone program and a pass, until convergence.

With the clusters in the outer loop, a pass looks for the most violated plane while the clusters are
fixed. Once none is violated, the next pass adopts the clusters of the best point and recomputes the
sums of the planes for them: a CCCP step. In the paper's nesting every pass does both, and planes
are drawn when the objective no longer changes.

With the clusters in the outer loop, a pass also draws a plane between the best point so far and the
solution: with few planes the solutions oscillate, and if planes are drawn at them alone, most of
the rounds are spent on undoing that (Franc, Sonnenburg, "Optimized cutting plane algorithm", JMLR
10, 2009). A phase ends when the objective at the best point, whose loss on all rows is known, is
within C epsilon of that of the last solution, which is a lower bound. If the best point is the last
solution itself, no plane is violated by more than epsilon.

The data are read once per round for all starts together. With an intercept the columns are
centered, so that an offset loses no digits: it changes nothing but the intercept (`uncentered`).

With two clusters V has one column and a row's cluster is 1 if ``f >= 0``; with more clusters it is
the column of the largest value. A plane assigns a rival to some rows: 0 for none, otherwise the
rival's cluster plus 1 (with two clusters just 1). One formula covers all cases: a row with cluster
z and rival r requires ``f_z - f_r >= 1``, where with two clusters ``f_z - f_r`` is ``f`` or ``-f``.

The clusters of a start, and each of its planes, are one small integer per row (one bit with two
clusters), stored by blocks under the round that made them: a task that runs twice writes the same
values again.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import float_tiles, tile_rows
from bigfs.blocks.rowblocks import BlockReader
from bigfs.core.threads import parsed
from bigfs.runtime.execute import at_most_at_once, map_reduce, run_tasks
from bigfs.runtime.progress import silenced, track
from bigfs.selectors.kept import discard, forget, hand_over, handed, load_state, memory, save_state
from bigfs.selectors.m3fs import M3FSParameters
from bigfs.solvers.cone import ConeProgram, ConeSolution, solve_cone, weights_of
from bigfs.store.location import Location, as_location, replaced_file
from bigfs.store.pages import open_own
from bigfs.store.scratch import ArrayRef


@dataclass
class PlaneSums:
    """Sums of one pass over the rows for one start; the sums of two sets of rows can be added."""

    hinge: float  # sum of ``max(0, 1 - margin)`` over the rows: the loss of the most violated plane
    chosen: int  # number of rows that have a rival in the new plane
    gradient: np.ndarray  # of shape (D, P), float64: sums of the new plane
    # Of shape (n_planes, D, P), float64: change of the sums of older planes by the new clusters;
    # empty unless requested.
    gradients: np.ndarray
    counts: np.ndarray  # of shape (n_planes,), int64: change of the number of rows they constrain
    changed: int  # number of rows whose cluster under V is not the stored one
    sizes: np.ndarray  # of shape (n_clusters,), int64: number of rows of each cluster under V

    def __add__(self, other: PlaneSums) -> PlaneSums:
        """Add the sums of two sets of rows."""
        return PlaneSums(*(mine + vars(other)[name] for name, mine in vars(self).items()))


def decisions(X: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return ``[X 1] V`` in float64; the last row of V are the intercepts, if it has them."""
    d = X.shape[1]
    F = np.empty((len(X), V.shape[1]))
    for part, rows in float_tiles(X):
        F[part] = rows @ V[:d]
    if len(V) > d:
        F += V[d]
    return F


def clusters_of(F: np.ndarray) -> np.ndarray:
    """Return the cluster of every row: by sign with one column, otherwise by largest value."""
    if F.shape[1] == 1:
        return (F[:, 0] >= 0).astype(np.uint8)
    return F.argmax(axis=1).astype(np.uint8)


def rivals(F: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the most violated plane for clusters z, and each row's loss ``max(0, 1 - margin)``."""
    if F.shape[1] == 1:
        short = 1.0 - np.where(z == 1, F[:, 0], -F[:, 0])
        return (short > 0).astype(np.uint8), np.maximum(0.0, short)
    rows = np.arange(len(F))
    others = F.copy()
    others[rows, z] = -np.inf
    second = others.argmax(axis=1)
    short = 1.0 - (F[rows, z] - F[rows, second])
    return np.where(short > 0, second + 1, 0).astype(np.uint8), np.maximum(0.0, short)


def plane_weights(plane: np.ndarray, z: np.ndarray, P: int) -> tuple[np.ndarray, int]:
    """Return the rows' weights in a plane's sums, (P, n_rows), and the number of rows with one."""
    named = plane > 0
    if P == 1:
        signs = np.where(z == 1, 1.0, -1.0)
        return (named * signs)[None, :], int(named.sum())
    # A row whose rival has become its own cluster is not constrained.
    named &= plane != z + 1
    clusters = np.arange(P)[:, None]
    weights = (z == clusters).astype(np.float64) - (plane == clusters + 1)
    return weights * named, int(named.sum())


def plane_sums(
    X: np.ndarray,
    planes: list[np.ndarray],
    z: np.ndarray,
    P: int,
    intercept: bool,
    before: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of planes for clusters z, (n_planes, D, P) in float64, and the row counts.

    If the former clusters ``before`` are given, return the changes of both since then.
    """
    d, J = X.shape[1], len(planes)
    sums, counts = np.zeros((J * P, d + intercept)), np.zeros(J, dtype=np.int64)
    step = tile_rows(max(d, J * P))
    for begin in range(0, len(X) if J else 0, step):
        part = slice(begin, begin + step)
        weights = np.empty((J, P, len(X[part])))
        for j, plane in enumerate(planes):
            weights[j], named = plane_weights(plane[part], z[part], P)
            counts[j] += named
            if before is not None:
                earlier, named = plane_weights(plane[part], before[part], P)
                weights[j] -= earlier
                counts[j] -= named
        rows = X[part].astype(np.float64, copy=False)
        # Often only a few rows are in cluster p, or have it as a rival in one of the planes; the
        # others have no weight in column p.
        for p in range(P):
            used = weights[:, p].any(axis=0)
            sums[p::P, :d] += weights[:, p, used] @ rows[used]
        if intercept:
            sums[:, d] += weights.reshape(J * P, -1).sum(axis=1)
    return np.ascontiguousarray(sums.reshape(J, P, d + intercept).transpose(0, 2, 1)), counts


def block_step(
    X: np.ndarray, V: np.ndarray, z: np.ndarray, older: list[np.ndarray], take_over: bool
) -> tuple[PlaneSums, np.ndarray, np.ndarray]:
    """Do one start's part of a pass on one block.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    V : ndarray of shape (D, P)
    z : ndarray of shape (n_rows,), uint8
        The current clusters.
    older : list of ndarray of shape (n_rows,)
        Older planes whose changes by the clusters of V are computed.
    take_over : bool
        Draw the plane for the clusters of V, not for the current ones.

    Returns
    -------
    sums : PlaneSums
    plane : ndarray of shape (n_rows,), uint8
        The most violated plane.
    labels : ndarray of shape (n_rows,), uint8
        The clusters of V.
    """
    intercept, P = len(V) > X.shape[1], V.shape[1]
    F = decisions(X, V)
    labels = clusters_of(F)
    moved = np.flatnonzero(labels != z)
    plane, short = rivals(F, labels if take_over else z)
    sums, counts = plane_sums(X, [plane], labels if take_over else z, P, intercept)
    changes, counts_changed = np.zeros((len(older), *V.shape)), np.zeros(len(older), np.int64)
    # Only a few rows change their cluster; the contributions of the others stay the same.
    step = tile_rows(X.shape[1])
    for begin in range(0, len(moved) if older else 0, step):
        part = moved[begin : begin + step]
        rows, planes = X[part], [older_plane[part] for older_plane in older]
        gathered, n_changed = plane_sums(rows, planes, labels[part], P, intercept, z[part])
        changes += gathered
        counts_changed += n_changed
    sizes = np.bincount(labels, minlength=max(2, P))
    hinge, chosen = float(short.sum()), int(counts[0])
    pass_sums = PlaneSums(hinge, chosen, sums[0], changes, counts_changed, len(moved), sizes)
    return pass_sums, plane, labels


@dataclass(frozen=True)
class Request:
    """Request of one start to a pass; small and picklable."""

    start: int  # number of the start
    plane: int  # number under which the new plane is stored
    round: int  # number under which the clusters of V are stored
    # Round of the current clusters, for which the plane is drawn; 0: the start's labels.
    version: int
    # Draw the plane for the clusters of V instead, and sum their changes of the older planes.
    take_over: bool
    ids: tuple[int, ...]  # numbers of the older planes


def _load(path: Location) -> np.ndarray:
    with open_own(path) as file:
        return np.asarray(np.load(file, allow_pickle=False))


@dataclass(frozen=True)
class StoredRows:
    """Clusters and planes of the rows of one block, in a folder shared by all processes."""

    folder: str
    first_row: int
    n_rows: int
    labels: ArrayRef  # of shape (n_samples, n_starts), uint8: the clusters of round 0
    bits: bool  # True if the values are 0 and 1, stored as bits
    keeps: tuple[str, int]  # as in `Rounds`

    def _path(self, start: int, kind: str, round_: int) -> Location:
        return as_location(self.folder) / f"{kind}-{start}-{round_}-{self.first_row}.npy"

    def _get(self, start: int, kind: str, round_: int) -> np.ndarray:
        values = parsed(_load, self._path(start, kind, round_))
        return np.unpackbits(values, count=self.n_rows) if self.bits else values

    def _plane(self, start: int, number: int) -> np.ndarray:
        """Return a plane, which is cached in this process if there is room."""
        (run, budget), key = self.keeps, ("plane", start, number, self.first_row)
        return memory.get(run, key, lambda: self._get(start, "plane", number), budget)

    def _put(self, start: int, kind: str, round_: int, values: np.ndarray) -> None:
        with replaced_file(self._path(start, kind, round_), sync=False, own=True) as file:
            np.save(file, np.packbits(values) if self.bits else values)

    def advance(self, X: np.ndarray, V: np.ndarray, request: Request) -> PlaneSums:
        """Do one start's part of a pass on these rows, and store the new plane and clusters."""
        start, older = request.start, []
        if request.take_over:
            older = [self._plane(start, number) for number in request.ids]
        if request.round == 0:
            labels = self.labels.read(self.first_row, self.first_row + self.n_rows)
            self._put(start, "clusters", 0, labels[:, start])
        z = self._get(start, "clusters", request.version)
        sums, plane, now = block_step(X, V, z, older, request.take_over)
        self._put(start, "plane", request.plane, plane)
        if request.take_over:
            self._put(start, "clusters", request.round, now)
        return sums


def uncentered(V: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Return V of the centered columns as that of the columns as they are read."""
    V, d = V.copy(), len(center)
    V[d:] -= center.astype(np.float64) @ V[:d]
    return V


def label_rows(blocks: RowBlocks, points: np.ndarray, out: ArrayRef) -> list[float]:
    """Write the cluster of every row under each V; return the sums of ``max(0, 1 - margin)``.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    points : ndarray of shape (n_points, D, P)
    out : ArrayRef of shape (n_samples, n_points), or (n_samples,) for one point
    """
    with blocks.scratch.temporary("labels") as folder:
        stored = folder.put("points", points)
        hinges = blocks.reduce(_label_kernel, np.add, stored, out, label="m3fs labels")
    return [float(value) for value in hinges]


def _label_kernel(X: np.ndarray, first_row: int, points: ArrayRef, out: ArrayRef) -> np.ndarray:
    of_points = points.load()
    labels, hinges = np.empty((len(X), len(of_points)), out.dtype), np.empty(len(of_points))
    for i, V in enumerate(of_points):
        F = decisions(X, V)
        labels[:, i] = clusters_of(F)
        hinges[i] = rivals(F, labels[:, i])[1].sum()
    out.write(first_row, labels.reshape(len(X), *out.shape[1:]))
    return hinges


# A plane whose multiplier is below this share of C is idle. With the clusters in the outer loop it
# is dropped when they change, or after it was idle in this many consecutive draws of planes. In the
# paper's nesting idle planes are kept, because they are needed again when the clusters change.
_IDLE = 1e-6
_IDLE_DRAWS = 10
# The second plane of a round is drawn at this fraction of the way from the best point to V.
_BETWEEN = 0.2
_CHECKPOINT_SECONDS = 30.0
# Up to this many unknowns, most of the time of a solver step is spent in Python code, which holds
# the interpreter lock: solving programs in several threads would be slower than one after another.
_INTERPRETED_UNKNOWNS = 2_048


@dataclass(frozen=True)
class Settings:
    """Parameters of eqs. (7) and (16) and of the iteration, and the dimensions of V."""

    parameters: M3FSParameters
    n_columns: int  # P: one for two clusters, otherwise the number of clusters
    n_selected: int  # m, the sum of sigma
    n_features: int

    @property
    def planes_outside(self) -> bool:
        """True for the paper's nesting."""
        return self.parameters.nesting == "planes_outside"

    @property
    def n_rows_of_v(self) -> int:
        """D: the number of features, plus one if there is an intercept."""
        return self.n_features + self.parameters.fit_intercept


@dataclass
class Trajectory:
    """State of one start."""

    number: int  # of the start
    V: np.ndarray  # of shape (D, P), float64
    sigma: np.ndarray  # of shape (n_features,), float64
    # Results of the last cone program.
    slack: float = 0.0
    objective: float = np.inf
    gap: float = 0.0
    # Of shape (n_kept, D, P), float64: mean sums of the planes for the current clusters.
    planes: np.ndarray = field(default_factory=lambda: np.empty(0))
    bounds: np.ndarray = field(default_factory=lambda: np.empty(0))  # of shape (n_kept,), float64
    # Of shape (n_kept,), float64.
    multipliers: np.ndarray = field(default_factory=lambda: np.empty(0))
    # Of shape (n_kept,), int64: number of draws of planes for which each has been idle in a row.
    idle: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # Of shape (n_features,), float64: slopes from the last program; empty before it.
    slopes: np.ndarray = field(default_factory=lambda: np.empty(0))
    # Numbers under which the planes are stored: twice that of their round, plus one if the plane
    # was drawn between the best point and the solution.
    ids: list[int] = field(default_factory=list)
    # Number of passes after the first one, each for a solution of the cone program or new clusters.
    n_rounds: int = 0
    n_planes: int = 0  # number of planes drawn
    n_steps: int = 0  # number of changes of the clusters
    version: int = 0  # the round that stored the current clusters; 0: those of the start
    refresh: bool = False  # True if the next pass adopts the clusters of V
    last: float = np.inf  # objective of the solution before the last change
    last_value: float = np.inf  # objective at the best point then, with its loss on all rows
    # Loss of the most violated plane minus the slack. With the clusters in the outer loop: loss at
    # the best point minus what the objective leaves for it.
    violation: float = np.inf
    # Of shape (D, P), float64: the point with the smallest objective on all rows for the current
    # clusters.
    best: np.ndarray = field(default_factory=lambda: np.empty(0))
    # Objective at the best point without the loss, and the mean loss there.
    best_rest: float = np.inf
    best_loss: float = np.inf
    best_changed: int = 0  # number of rows whose cluster under it is not the current one
    # Of shape (n_clusters,), int64: number of rows of each cluster under V; with the clusters in
    # the outer loop, under the best point.
    sizes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # Objective and violation of every round.
    history: list[tuple[float, float]] = field(default_factory=list)
    done: bool = False
    converged: bool = False

    @classmethod
    def first(cls, number: int, settings: Settings) -> Trajectory:
        """Return the state of a start before its first pass."""
        V = np.zeros((settings.n_rows_of_v, settings.n_columns))
        sigma = np.full(settings.n_features, settings.n_selected / settings.n_features)
        return cls(number, V, sigma, planes=np.empty((0, *V.shape)))

    def requests(self, settings: Settings) -> list[Request]:
        """Return the requests to the next pass, one for each of `points`."""
        take_over = self.refresh or (settings.planes_outside and self.n_rounds > 0)
        rest = (self.n_rounds, self.version, take_over, tuple(self.ids))
        n_points = len(self.points(settings))
        return [Request(self.number, 2 * self.n_rounds + i, *rest) for i in range(n_points)]

    def solved(self, solution: ConeSolution) -> None:
        """Store a solution of the cone program."""
        self.V, self.sigma, self.multipliers = solution.V, solution.sigma, solution.multipliers
        self.slack, self.objective, self.gap = solution.slack, solution.objective, solution.gap
        self.slopes = solution.slopes

    def points(self, settings: Settings) -> list[np.ndarray]:
        """Return the points at which the next pass draws planes: V, and one between best and V."""
        if not self.n_rounds or self.refresh or settings.planes_outside:
            return [self.V]
        return [self.V, self.best + _BETWEEN * (self.V - self.best)]

    def absorb(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Process the sums of a pass at each of its points, and decide what the next round does."""
        sums = pass_sums[0]
        if settings.planes_outside:
            self.sizes = sums.sizes
            self.violation = sums.hinge / n - self.slack
        else:
            self._compare(pass_sums, settings, n)
        if not self.n_rounds:
            # The first pass, at V = 0: every row is short of its margin for the start's clusters.
            self._append(pass_sums, settings, n)
            self.n_rounds = 1
            return
        if self.refresh or settings.planes_outside:
            self.planes = self.planes + sums.gradients / n
            self.bounds = self.bounds + sums.counts / n
            self.version = self.n_rounds
        self.history.append((self.objective, self.violation))
        if self.n_rounds >= settings.parameters.max_iter:
            self.done, self.converged = True, self.violation <= settings.parameters.epsilon
        elif settings.planes_outside:
            self._planes_outside(pass_sums, settings, n)
        else:
            self._clusters_outside(pass_sums, settings, n)
        if not self.done:
            self.n_rounds += 1
        elif not settings.planes_outside:
            self._take_best(settings)

    def _compare(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Update the best point; the slack is what the objective leaves for the loss there."""
        C = settings.parameters.C
        rest = self.objective - C * self.slack if self.n_rounds else 0.0
        if self.refresh:
            self.best_loss = np.inf  # the former value was for other clusters
        # The objective without the loss is convex: between two points it is at most the
        # interpolation of their values.
        between = self.best_rest + _BETWEEN * (rest - self.best_rest)
        for V, share, sums in zip(self.points(settings), (rest, between), pass_sums, strict=False):
            loss = sums.hinge / n
            if share + C * loss < self.best_rest + C * self.best_loss:
                self.best, self.best_rest, self.best_loss = V, share, loss
                self.best_changed, self.sizes = sums.changed, sums.sizes
        self.slack = max(0.0, (self.objective - self.best_rest) / C)
        self.violation = self.best_loss - self.slack

    def _take_best(self, settings: Settings) -> None:
        """Set V and sigma to those of the best point."""
        self.V = self.best
        norms = np.linalg.norm(self.V[: settings.n_features], axis=1)
        self.sigma = weights_of(norms, settings.n_selected)

    def _clusters_outside(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Draw planes until none is violated, then change the clusters, until they converge."""
        if self.violation > settings.parameters.epsilon:
            self._append(pass_sums, settings, n)
        if self.refresh:
            self.refresh = False
            self.n_steps += 1
            return
        if self.violation > settings.parameters.epsilon:
            return
        # The objectives of the solutions are lower by up to C epsilon than at the best points, so
        # that they alone may appear to rise.
        value = self.best_rest + settings.parameters.C * self.best_loss
        decrease = max(self.last - self.objective, self.last_value - value)
        self.last, self.last_value = self.objective, value
        if self.best_changed == 0 or decrease <= settings.parameters.tol * abs(self.objective):
            self.done = self.converged = True
            return
        self.refresh = True
        self._take_best(settings)
        self._keep(self.multipliers > _IDLE * settings.parameters.C)

    def _planes_outside(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Change the clusters until the objective converges, then draw a plane (algorithm 1)."""
        decrease = self.last - self.objective
        self.last = self.objective
        if decrease > settings.parameters.tol * abs(self.objective):
            self.n_steps += 1
            return
        if self.violation <= settings.parameters.epsilon:
            self.done = self.converged = True
            return
        self.last = np.inf
        self._append(pass_sums, settings, n)

    def _keep(self, kept: np.ndarray) -> None:
        """Keep the planes selected by the mask, and drop the others."""
        self.planes, self.bounds = self.planes[kept], self.bounds[kept]
        self.multipliers, self.idle = self.multipliers[kept], self.idle[kept]
        self.ids = [number for number, keep in zip(self.ids, kept, strict=True) if keep]

    def _append(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Add the planes of a pass, and drop those that have been idle for `_IDLE_DRAWS` draws."""
        if not settings.planes_outside:
            self.idle = np.where(self.multipliers > _IDLE * settings.parameters.C, 0, self.idle + 1)
            self._keep(self.idle < _IDLE_DRAWS)
        for i, sums in enumerate(pass_sums):
            self.planes = np.concatenate([self.planes, sums.gradient[None] / n])
            self.bounds = np.append(self.bounds, sums.chosen / n)
            self.idle = np.append(self.idle, 0)
            self.ids = [*self.ids, 2 * self.n_rounds + i]
            self.n_planes += 1


@dataclass(frozen=True)
class Rounds:
    """Data that the tasks of all rounds share; small and picklable."""

    settings: Settings
    labels: ArrayRef  # of shape (n_samples, n_starts), uint8: the initial clusters
    folder: str  # folder of the planes, the clusters, and the arrays passed to tasks
    # Of shape (n_features,): subtracted from every row; None without an intercept.
    center: ArrayRef | None
    mean: ArrayRef  # of shape (D,), float64: the column means of [X - center, 1]
    smooth: ArrayRef | None  # of shape (D, D), float64: smoothness times the form of the graph
    # Name under which a process caches blocks of X, planes, mean and form, and the size in bytes.
    keeps: tuple[str, int]

    def centered(self, X: np.ndarray) -> np.ndarray:
        """Return the rows of a block with the center subtracted, if there is one."""
        run, budget = self.keeps
        return X if self.center is None else X - memory.get(run, "center", self.center.load, budget)

    def program(self, stored: dict[str, np.ndarray]) -> ConeProgram:
        """Return the cone program for the planes that were passed to a task."""
        settings, (run, budget) = self.settings, self.keeps
        balance, C = settings.parameters.balance, settings.parameters.C
        mean = memory.get(run, "mean", self.mean.load, budget)
        smooth = None
        if self.smooth is not None:
            smooth = memory.get(run, "smooth", self.smooth.load, budget)
        balance = np.inf if balance is None else balance
        sizes = settings.n_selected, settings.n_features
        return ConeProgram(stored["planes"], stored["bounds"], mean, balance, smooth, C, *sizes)

    def solve(self, states: list[Trajectory]) -> None:
        """Solve the cone programs of the given starts, one task each."""
        names = ("planes", "bounds", "slopes")
        place = as_location(self.folder)
        items = [hand_over(place, {name: vars(s)[name] for name in names}) for s in states]
        # Small programs are solved one at a time in each process, which is faster.
        small = self.settings.n_rows_of_v * self.settings.n_columns <= _INTERPRETED_UNKNOWNS
        with at_most_at_once(1) if small else nullcontext():
            solutions = run_tasks(_solve_task, items, self, label="m3fs solve")
        for state, item, solution in zip(states, items, solutions, strict=True):
            state.solved(solution)
            discard(item)

    def step(self, states: list[Trajectory], blocks: RowBlocks) -> None:
        """Run one pass for the given starts, and update their states."""
        settings = self.settings
        requests = tuple(request for state in states for request in state.requests(settings))
        points = [point for state in states for point in state.points(settings)]
        shared = hand_over(as_location(self.folder), np.array(points))
        given = blocks.start_pass(), self, requests, shared
        sums = map_reduce(_step_task, blocks.bounds, _add_lists, *given, label="m3fs pass")
        discard(shared)
        for state in states:
            of_state = [s for s, r in zip(sums, requests, strict=True) if r.start == state.number]
            state.absorb(of_state, settings, blocks.n_samples)


def run_starts(blocks: RowBlocks, rounds: Rounds, checkpoint: Location | None) -> list[Trajectory]:
    """Run all starts in lock-step until each has converged or reached ``max_iter``.

    The checkpoint, if given, is a file that survives this process: it is read if it exists, and
    written every 30 seconds.
    """
    n_starts, settings = rounds.labels.shape[1], rounds.settings
    states = [Trajectory(**stored) for stored in load_state(checkpoint) or []]
    states = states or [Trajectory.first(number, settings) for number in range(n_starts)]
    saved = time.monotonic()
    try:
        with track("m3fs", settings.parameters.max_iter, "rounds") as progress:
            progress.resume(max(state.n_rounds for state in states))
            while active := [state for state in states if not state.done]:
                with silenced():
                    rounds.solve([state for state in active if state.ids and not state.refresh])
                    rounds.step(active, blocks)
                best = min(state.objective for state in states)
                progress.advance(1, f"objective {best:.6g}" if np.isfinite(best) else None)
                if checkpoint is not None and time.monotonic() - saved > _CHECKPOINT_SECONDS:
                    save_state(checkpoint, states)
                    saved = time.monotonic()
    finally:
        forget(rounds.keeps[0])
    return states


def _solve_task(shared: Any, rounds: Rounds) -> ConeSolution:
    stored = handed(shared)
    slopes = stored["slopes"]
    return solve_cone(rounds.program(stored), start=slopes if len(slopes) else None)


def _step_task(
    bounds: tuple[int, int],
    reader: BlockReader,
    rounds: Rounds,
    requests: tuple[Request, ...],
    shared: Any,
) -> list[PlaneSums]:
    """Do all starts' parts of a pass on one block, cached in this process if there is room."""
    start, stop = bounds
    (run, budget), key = rounds.keeps, (reader.token, start)
    X = memory.get(run, key, lambda: rounds.centered(reader.read(start, stop)), budget)
    two = rounds.settings.n_columns == 1
    rows = StoredRows(rounds.folder, start, stop - start, rounds.labels, two, rounds.keeps)
    points = handed(shared)
    return [rows.advance(X, V, request) for request, V in zip(requests, points, strict=True)]


def _add_lists(a: list[PlaneSums], b: list[PlaneSums]) -> list[PlaneSums]:
    return [mine + theirs for mine, theirs in zip(a, b, strict=True)]
