"""M3FS from its starts: rounds of a cone program and a pass, until the clusters stand.

With the clusters outside, a pass looks for the most violated plane while the clusters stand still;
once none is violated, the next pass takes the clusters of the best point over and sums the planes
for them again: a CCCP step. In the paper's nesting every pass does both, and planes are drawn when
the objective stands still.

With the clusters outside a pass also draws a plane between the best point so far and the solution:
solutions of few planes jump from side to side, and planes at them alone leave most of the rounds
to undo that (Franc, Sonnenburg, "Optimized cutting plane algorithm", JMLR 10, 2009). Phases end
when the best point, whose loss on all rows is known, is within C epsilon of the last solution,
which no point is below: where that is the last solution itself, no plane is violated by more than
epsilon.

Data of several blocks are read once in a round for all starts together. Of data of one block each
start is a task, in which the same rounds run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.runtime.execute import at_most_at_once, map_reduce, run_tasks
from bigfs.runtime.progress import Work, say_where, silenced, track
from bigfs.runtime.scope import inline
from bigfs.selectors.checkpoint import discard, hand_over, handed, load_state, save_state
from bigfs.selectors.m3fs import M3FSParameters
from bigfs.selectors.m3fs.planes import (
    PlaneSums,
    Request,
    StoredRows,
)
from bigfs.selectors.memory import forget, memory
from bigfs.solvers.cone import ConeProgram, ConeSolution, solve_cone, weights_of
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef

# A plane whose multiplier is below this share of C is idle. With the clusters outside it is dropped
# when they change, or after it was idle in this many draws of planes in a row; in the
# paper's nesting an idle plane is needed again when they change.
_IDLE = 1e-6
_IDLE_DRAWS = 10
# The second plane of a round is drawn at this share of the way from the best point.
_BETWEEN = 0.2
_CHECKPOINT_SECONDS = 30.0
# Up to this many unknowns, most of a step of a program is Python's, whose lock only one thread of a
# process has: several that solve programs take longer than one after another.
_INTERPRETED_UNKNOWNS = 2_048


@dataclass(frozen=True)
class Settings:
    """The parameters of eq. (7) and (16) and of the iteration; see `bigfs.M3FS`.

    ``n_columns`` is P: one for two clusters, else their number. ``planes_outside`` is the
    paper's nesting.
    """

    n_selected: int
    n_features: int
    n_columns: int
    C: float
    smoothness: float
    balance: float
    epsilon: float
    planes_outside: bool
    fit_intercept: bool
    tol: float
    max_iter: int

    @classmethod
    def of(
        cls, parameters: M3FSParameters, n_clusters: int, n_selected: int, n_features: int
    ) -> Settings:
        """Return the settings for data of ``n_features`` features; "auto" has become a number."""
        names = ("C", "smoothness", "epsilon", "fit_intercept", "tol", "max_iter")
        return cls(
            n_selected=n_selected,
            n_features=n_features,
            n_columns=1 if n_clusters == 2 else n_clusters,
            balance=np.inf if parameters.balance is None else parameters.balance,
            planes_outside=parameters.nesting == "planes_outside",
            **{name: getattr(parameters, name) for name in names},
        )

    @property
    def n_rows_of_v(self) -> int:
        """D: the features, and the intercept where there is one."""
        return self.n_features + self.fit_intercept


@dataclass
class Trajectory:
    """State of one start."""

    number: int  # of the start
    V: np.ndarray  # of shape (D, P), float64
    sigma: np.ndarray  # of shape (n_features,), float64
    # Of the last cone program.
    slack: float = 0.0
    objective: float = np.inf
    gap: float = 0.0
    # Of shape (n_kept, D, P), float64: mean sums of the planes for the present clusters.
    planes: np.ndarray = field(default_factory=lambda: np.empty(0))
    bounds: np.ndarray = field(default_factory=lambda: np.empty(0))  # of shape (n_kept,), float64
    # Of shape (n_kept,), float64.
    multipliers: np.ndarray = field(default_factory=lambda: np.empty(0))
    # Of shape (n_kept,), int64: how many times planes were drawn since each was last not idle.
    idle: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # Of shape (n_features,), float64: those of the last program; empty before it.
    slopes: np.ndarray = field(default_factory=lambda: np.empty(0))
    # The numbers that the planes are stored under: twice that of their round, and one more where a
    # plane was drawn between the best point and the solution.
    ids: list[int] = field(default_factory=list)
    # Passes after the first one, each for a solution of the cone program or for new clusters.
    n_rounds: int = 0
    n_planes: int = 0  # planes drawn
    n_steps: int = 0  # changes of the clusters
    version: int = 0  # the round that stored the present clusters; 0: those of the start
    refresh: bool = False  # the next pass takes over the clusters of V
    last: float = np.inf
    # Loss of the most violated plane beyond the slack; with the clusters outside that of the best
    # point beyond what its share of the objective leaves.
    violation: float = np.inf
    # Of shape (D, P), float64: the point of the least objective over all rows for the present
    # clusters.
    best: np.ndarray = field(default_factory=lambda: np.empty(0))
    # The objective there without the loss, and the mean loss.
    best_rest: float = np.inf
    best_loss: float = np.inf
    best_changed: int = 0  # rows whose cluster under it is not the present one
    # Of shape (n_clusters,), int64: rows of each cluster under V; with the clusters outside under
    # the best point.
    sizes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # Objective and violation of every round.
    history: list[tuple[float, float]] = field(default_factory=list)
    done: bool = False
    converged: bool = False

    @classmethod
    def first(cls, number: int, settings: Settings) -> Trajectory:
        """Return a start before its first pass."""
        V = np.zeros((settings.n_rows_of_v, settings.n_columns))
        share = settings.n_selected / settings.n_features
        return cls(number, V, np.full(settings.n_features, share))

    def requests(self, settings: Settings) -> list[Request]:
        """Return what the next pass is asked for, one for each of `points`."""
        take_over = self.refresh or (settings.planes_outside and self.n_rounds > 0)
        rest = (self.n_rounds, self.version, take_over, tuple(self.ids))
        n_points = len(self.points(settings))
        return [Request(self.number, 2 * self.n_rounds + i, *rest) for i in range(n_points)]

    def solved(self, solution: ConeSolution) -> None:
        """Take over a solution."""
        self.V, self.sigma, self.multipliers = solution.V, solution.sigma, solution.multipliers
        self.slack, self.objective, self.gap = solution.slack, solution.objective, solution.gap
        self.slopes = solution.slopes

    def points(self, settings: Settings) -> list[np.ndarray]:
        """Return where the next pass draws planes: at V, and between the best point and V."""
        if not self.n_rounds or self.refresh or settings.planes_outside:
            return [self.V]
        return [self.V, self.best + _BETWEEN * (self.V - self.best)]

    def absorb(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Take what a pass found at each of its points, and decide what the next round does."""
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
        if self.n_rounds >= settings.max_iter:
            self.done, self.converged = True, self.violation <= settings.epsilon
        elif settings.planes_outside:
            self._planes_outside(pass_sums, settings, n)
        else:
            self._clusters_outside(pass_sums, settings, n)
        if not self.done:
            self.n_rounds += 1
        elif not settings.planes_outside:
            self._take_best(settings)

    def _compare(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Keep the best point; the slack is what the objective leaves for the loss there."""
        rest = self.objective - settings.C * self.slack if self.n_rounds else 0.0
        if self.refresh:
            self.best_loss = np.inf  # it was that of other clusters
        # The objective is convex: between two points it is at most between their values.
        between = self.best_rest + _BETWEEN * (rest - self.best_rest)
        for V, share, sums in zip(self.points(settings), (rest, between), pass_sums, strict=False):
            loss = sums.hinge / n
            if share + settings.C * loss < self.best_rest + settings.C * self.best_loss:
                self.best, self.best_rest, self.best_loss = V, share, loss
                self.best_changed, self.sizes = sums.changed, sums.sizes
        self.slack = max(0.0, (self.objective - self.best_rest) / settings.C)
        self.violation = self.best_loss - self.slack

    def _take_best(self, settings: Settings) -> None:
        """Go to the best point."""
        self.V = self.best
        norms = np.linalg.norm(self.V[: settings.n_features], axis=1)
        self.sigma = weights_of(norms, settings.n_selected)

    def _clusters_outside(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Draw planes until none is violated, then change the clusters, until they stay."""
        if self.violation > settings.epsilon:
            self._append(pass_sums, settings, n)
        if self.refresh:
            self.refresh = False
            self.n_steps += 1
            return
        if self.violation > settings.epsilon:
            return
        fell = self.last - self.objective
        self.last = self.objective
        if self.best_changed == 0 or fell <= settings.tol * abs(self.objective):
            self.done = self.converged = True
            return
        self.refresh = True
        self._take_best(settings)
        self._keep(self.multipliers > _IDLE * settings.C)

    def _planes_outside(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Change the clusters until the objective stays, then draw a plane (algorithm 1)."""
        fell = self.last - self.objective
        self.last = self.objective
        if fell > settings.tol * abs(self.objective):
            self.n_steps += 1
            return
        if self.violation <= settings.epsilon:
            self.done = self.converged = True
            return
        self.last = np.inf
        self._append(pass_sums, settings, n)

    def _keep(self, kept: np.ndarray) -> None:
        """Drop the other planes."""
        self.planes, self.bounds = self.planes[kept], self.bounds[kept]
        self.multipliers, self.idle = self.multipliers[kept], self.idle[kept]
        self.ids = [number for number, keep in zip(self.ids, kept, strict=True) if keep]

    def _append(self, pass_sums: list[PlaneSums], settings: Settings, n: int) -> None:
        """Add the planes of a pass, and drop those that have long been idle."""
        if not settings.planes_outside:
            self.idle = np.where(self.multipliers > _IDLE * settings.C, 0, self.idle + 1)
            self._keep(self.idle < _IDLE_DRAWS)
        for i, sums in enumerate(pass_sums):
            gradient, bound = sums.gradient[None] / n, np.array([sums.chosen / n])
            self.planes = np.concatenate([self.planes, gradient]) if self.ids else gradient
            self.bounds = np.concatenate([self.bounds, bound]) if self.ids else bound
            self.idle = np.append(self.idle, 0)
            self.ids = [*self.ids, 2 * self.n_rounds + i]
            self.n_planes += 1


@dataclass(frozen=True)
class Rounds:
    """The data that the tasks of all rounds share: small and picklable."""

    settings: Settings
    labels: ArrayRef  # of shape (n_samples, n_starts), uint8: the clusters to start from
    folder: str  # of planes, clusters, and the arrays that tasks are handed
    mean: ArrayRef  # of shape (D,), float64: the column means of [X 1]
    smooth: ArrayRef | None  # of shape (D, D), float64: smoothness times the form of the graph
    # Name under which a process keeps blocks of X, mean and form, and how many bytes of them.
    keeps: tuple[str, int]

    def program(self, stored: dict[str, np.ndarray]) -> ConeProgram:
        """Return the cone program of planes that were handed over."""
        settings, (run, budget) = self.settings, self.keeps
        mean = memory.get(run, "mean", self.mean.load, budget)
        smooth = None
        if self.smooth is not None:
            smooth = memory.get(run, "smooth", self.smooth.load, budget)
        return ConeProgram(
            stored["planes"],
            stored["bounds"],
            mean,
            settings.balance,
            smooth,
            settings.C,
            settings.n_selected,
            settings.n_features,
        )

    def solve(self, states: list[Trajectory]) -> None:
        """Solve the cone programs of starts, one task each."""
        names = ("planes", "bounds", "slopes")
        place = as_location(self.folder)
        items = [hand_over(place, {name: vars(s)[name] for name in names}) for s in states]
        with self.in_turn():
            solutions = run_tasks(_solve_task, items, self, label="m3fs solve")
        for state, item, solution in zip(states, items, solutions, strict=True):
            state.solved(solution)
            discard(item)

    def in_turn(self) -> AbstractContextManager[None]:
        """Let the threads of a process solve programs in turn, where that takes less time."""
        small = self.settings.n_rows_of_v * self.settings.n_columns <= _INTERPRETED_UNKNOWNS
        return at_most_at_once(1) if small else nullcontext()

    def step(
        self, states: list[Trajectory], bounds: list[tuple[int, int]], reader: BlockReader
    ) -> None:
        """Run one pass for starts, and have them take what it found."""
        settings = self.settings
        requests = tuple(request for state in states for request in state.requests(settings))
        points = [point for state in states for point in state.points(settings)]
        shared = hand_over(as_location(self.folder), np.array(points))
        sums = map_reduce(
            _step_task, bounds, _add_lists, reader, self, requests, shared, label="m3fs pass"
        )
        discard(shared)
        for state in states:
            of_state = [s for s, r in zip(sums, requests, strict=True) if r.start == state.number]
            state.absorb(of_state, settings, bounds[-1][1])

    def run(
        self,
        states: list[Trajectory],
        bounds: list[tuple[int, int]],
        start_pass: Callable[[], BlockReader],
        progress: Work | None = None,
        checkpoint: Location | None = None,
    ) -> None:
        """Run starts to their ends, in lock-step.

        Parameters
        ----------
        states : list of Trajectory
            They are changed.
        bounds : list of (int, int)
            First row and one past the last row of every block.
        start_pass : callable
            Returns what the tasks of a pass read rows with.
        progress : Work, optional
            Counts the rounds. None: this is a task itself.
        checkpoint : Path or ObjectPath, optional
            File that outlives this process, written every half minute.
        """
        saved = time.monotonic()
        while active := [state for state in states if not state.done]:
            with silenced():
                self.solve([state for state in active if state.ids and not state.refresh])
                self.step(active, bounds, start_pass())
            best = min(state.objective for state in states)
            note = f"objective {best:.6g}" if np.isfinite(best) else None
            if progress is not None:
                progress.advance(1, note)
            elif note:
                say_where(f"start {states[0].number}: round {states[0].n_rounds}, {note}")
            if checkpoint is not None and time.monotonic() - saved > _CHECKPOINT_SECONDS:
                save_state(checkpoint, states)
                saved = time.monotonic()


def run_starts(blocks: RowBlocks, rounds: Rounds, checkpoint: Location | None) -> list[Trajectory]:
    """Run all starts to their ends, from a checkpoint if there is one."""
    n_starts, settings = rounds.labels.shape[1], rounds.settings
    try:
        if len(blocks.bounds) == 1:
            with rounds.in_turn():
                return run_tasks(
                    _run_task,
                    list(range(n_starts)),
                    blocks.start_pass(n_starts),
                    blocks.n_samples,
                    rounds,
                    label="m3fs",
                    unit="starts",
                    notes=True,
                )
        states = [Trajectory(**stored) for stored in load_state(checkpoint) or []]
        states = states or [Trajectory.first(number, settings) for number in range(n_starts)]
        with track("m3fs", settings.max_iter, "rounds") as progress:
            progress.resume(max(state.n_rounds for state in states))
            rounds.run(states, blocks.bounds, blocks.start_pass, progress, checkpoint)
        return states
    finally:
        forget(rounds.keeps[0])


def _run_task(number: int, reader: BlockReader, n: int, rounds: Rounds) -> Trajectory:
    """Run one start on data of one block."""
    state = Trajectory.first(number, rounds.settings)
    with inline():
        rounds.run([state], [(0, n)], lambda: reader)
    state.planes = np.empty(0)
    return state


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
    """Do all starts' parts on one block, which stays in this process if there is room."""
    start, stop = bounds
    (run, budget), key = rounds.keeps, (reader.token, start)
    X = memory.get(run, key, lambda: reader.read(start, stop), budget)
    two = rounds.settings.n_columns == 1
    rows = StoredRows(rounds.folder, start, stop - start, rounds.labels, two)
    points = handed(shared)
    return [rows.advance(X, V, request) for request, V in zip(requests, points, strict=True)]


def _add_lists(a: list[PlaneSums], b: list[PlaneSums]) -> list[PlaneSums]:
    return [mine + theirs for mine, theirs in zip(a, b, strict=True)]
