"""M3FS from one start: what a round solves, what its pass has to find, and when it is done.

A round is one cone program and one pass over the rows. With the clusters outside, the pass looks
for the most violated plane while the clusters stand still; once none is violated, the next pass
takes the clusters of the best point over and sums the planes for them again: a CCCP step. In
the paper's nesting every pass does both, and planes are drawn when the objective stands still.

With the clusters outside a pass also draws a plane between the best point so far and the solution:
solutions of few planes jump from side to side, and planes at them alone leave most of the rounds
to undo that (Franc, Sonnenburg, "Optimized cutting plane algorithm", JMLR 10, 2009). Phases end
when the best point, whose loss on all rows is known, is within C epsilon of the last solution,
which no point is below: where that is the last solution itself, no plane is violated by more than
epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bigfs.selectors.m3fs import M3FSParameters
from bigfs.selectors.m3fs.kernels import PlaneSums
from bigfs.solvers.cone import ConeProgram
from bigfs.solvers.msupport import ConeSolution, weights_of

# A plane whose multiplier is below this share of C is idle. With the clusters outside it is dropped
# when they change, or when it was idle the last so many times that planes were drawn; in the
# paper's nesting an idle plane is needed again when they change.
_IDLE = 1e-6
_IDLE_DRAWS = 10
# The second plane of a round is drawn at this share of the way from the best point.
_BETWEEN = 0.2


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
        """Return the settings for data of so many features; "auto" has become a number."""
        return cls(
            n_selected,
            n_features,
            1 if n_clusters == 2 else n_clusters,
            float(parameters.C),
            float(parameters.smoothness),
            np.inf if parameters.balance is None else float(parameters.balance),
            float(parameters.epsilon),
            parameters.nesting == "planes_outside",
            parameters.fit_intercept,
            float(parameters.tol),
            parameters.max_iter,
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

    def program(
        self, settings: Settings, mean: np.ndarray, smooth: np.ndarray | None
    ) -> ConeProgram:
        """Return the cone program of the next round."""
        return ConeProgram(
            self.planes,
            self.bounds,
            mean,
            settings.balance,
            smooth,
            settings.C,
            settings.n_selected,
            settings.n_features,
        )

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
            self.planes, self.bounds = (
                self.planes + sums.gradients / n,
                self.bounds + sums.counts / n,
            )
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
