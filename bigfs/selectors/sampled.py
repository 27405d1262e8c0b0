"""Searches on rows in memory, all or a sample of them; one pass applies the solution to all rows.

LFS and GFS-k-means start from k-means++ on a few thousand rows; several restarts are run, each as a
task. Their solutions are compared by how well a normal distribution per cluster, in the features
that the cluster keeps, describes its rows (BIC). If the sample has more rows, the search continues
from the best solution on the whole sample.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kmeans import plus_plus
from bigfs.blocks.rowblocks import gather_rows, gather_steps, moments_step
from bigfs.core.cost import StageCost, Step, loop_seconds
from bigfs.core.errors import InputError, StorageError
from bigfs.core.memory import task_budget
from bigfs.core.seeds import rng
from bigfs.core.units import MIB
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.progress import say_where
from bigfs.selectors.clusters import (
    ClusterRule,
    Clusters,
    SearchedRows,
    label_all,
    labels_step,
    moments_of,
    most_candidates,
)
from bigfs.selectors.kept import load_state, save_state
from bigfs.selectors.method import Strategy
from bigfs.selectors.scoring import start_of
from bigfs.solvers.separability import DIGITS, evidence, feature_separability
from bigfs.spectral.choice import largest_count
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef, Scratch

# Largest numbers of rows of the searches from k-means++, and of a search if ``sample_size`` is not
# set.
START_ROWS, SEARCH_ROWS = 5_000, 20_000
# Smallest number of rows of a search if memory is scarce and ``sample_size`` is not set.
LEAST_ROWS = 1_250
CHECKPOINT_SECONDS = 10.0
# Modules that tasks of a search import in addition to those of all stages: a compiled loop.
LOADS = ("bigfs.blocks.lloyd",)

# Memory for the centers and labels of the candidates that are tried at a time.
_BATCH_BYTES = 32 * MIB


def batch_size(n_rows: int, n_features: int, n_clusters: int) -> int:
    """Return the number of candidates that are clustered at a time."""
    return max(1, _BATCH_BYTES // (32 * n_clusters * n_features + 16 * n_rows))


@dataclass
class SearchState(ABC):
    """A solution on rows in memory and the state of its search: arrays, numbers and lists."""

    name: ClassVar[str]  # names the stream of random numbers

    @classmethod
    @abstractmethod
    def begin(cls, rows: SearchedRows, centers: np.ndarray, parameters: Any) -> Self:
        """Return the first solution: clusters in all usable features, started from centers."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True if the search has ended."""

    @abstractmethod
    def step(self, rows: SearchedRows, parameters: Any) -> None:
        """Advance the search by one step."""

    @property
    @abstractmethod
    def note(self) -> str:
        """The state of the search in words, for progress reports."""

    @abstractmethod
    def rule(self, rows: SearchedRows) -> ClusterRule:
        """Return the rule that labels all rows."""


def check_start(init: Any, n_clusters: int, n_samples: int, n_features: int) -> np.ndarray | None:
    """Return the given start as an array, or None for k-means++.

    Parameters
    ----------
    init : str or array-like
        "k-means++", centroids of shape (n_clusters, n_features) or labels of shape (n_samples,).
    n_clusters, n_samples, n_features : int

    Returns
    -------
    start : ndarray or None
        Centroids as float64, or labels as int64.

    Raises
    ------
    InputError
        If ``init`` is none of these.
    """
    if isinstance(init, str):
        return None
    given = np.asarray(init)
    numbers = given.dtype.kind in "fiu" and bool(np.isfinite(given).all())
    if numbers and given.shape == (n_clusters, n_features):
        return given.astype(np.float64)
    if numbers and given.shape == (n_samples,) and given.dtype.kind in "iu":
        present = np.unique(given)
        if len(present) == n_clusters and present[0] == 0 and present[-1] == n_clusters - 1:
            return given.astype(np.int64)
    raise InputError(
        f"init must be 'k-means++', finite centroids of shape ({n_clusters}, {n_features}), or "
        f"{n_samples} labels in which each of 0 to {n_clusters - 1} occurs. Got {given.dtype} of "
        f"shape {given.shape}."
    )


class SampledSearch(Strategy):
    """A search on rows in memory, followed by one pass that labels all rows."""

    kind: type[SearchState]
    keeps_members = False  # True if the result has the memberships of all rows
    loops = 3  # loop steps per value and cluster, measured over complete searches

    @abstractmethod
    def compared_bytes(self, n_rows: int, n_clusters: int) -> int:
        """Return the bytes for comparing candidates, without the rows and their clusterings."""

    @abstractmethod
    def scores(self, solution: Any, counts: np.ndarray) -> np.ndarray:
        """Return the scores of the features from a solution and the row counts of the labels."""

    @abstractmethod
    def details(self, solution: Any, rule: ClusterRule) -> dict[str, Any]:
        """Return further details of the result."""

    @property
    def n_rows(self) -> int:
        """Number of rows that are searched.

        At most ``sample_size`` if it is set; else at most `SEARCH_ROWS`, halved until the search
        fits into memory, but not below `LEAST_ROWS`.
        """
        n, size = self.shape.n_samples, self.parameters.sample_size
        if size is not None:
            return min(n, size)
        size, budget = min(n, SEARCH_ROWS), task_budget(self.selection.memory_limit)
        while size > LEAST_ROWS and self._search_step(size, 1).task_bytes > budget:
            size = max(LEAST_ROWS, size // 2)
        return size

    def cost(self) -> StageCost:
        """Return the cost of the sample, the searches and the labels."""
        shape, parameters, n_rows = self.shape, self.parameters, self.n_rows
        few, k = min(START_ROWS, n_rows), largest_count(parameters.n_clusters)
        restarts = isinstance(parameters.init, str) and parameters.init == "k-means++"
        steps = [moments_step(shape), *gather_steps(shape, n_rows)]
        if restarts:
            steps.append(self._search_step(few, parameters.n_init))
        if not restarts or few < n_rows:
            steps.append(self._search_step(n_rows, 1))
        steps.append(labels_step(shape, k))
        stored = shape.n_samples * (4 + self.keeps_members * k)
        drawn = (2 * n_rows + few) * shape.n_features * shape.itemsize
        return StageCost(tuple(steps), drawn + stored, stored, loads=LOADS)

    def _search_step(self, n_rows: int, tasks: int) -> Step:
        d, k = self.shape.n_features, largest_count(self.parameters.n_clusters)
        n_candidates = most_candidates(d, self.parameters.drops_many(d))
        what = f"a search for {k} clusters on {n_rows:,} rows in {d:,} features"
        together = min(n_candidates, batch_size(n_rows, d, k))
        # The rows as stored and sorted by group; then the centered rows, with the memberships and
        # sums of candidates, and the rows in a subset of the features or the arrays compared.
        loaded = n_rows * d * (2 * self.shape.itemsize + 8)
        tried = n_rows * (16 * k + 20 * together + 24) + 32 * (together + 2) * k * d + 8 * k**2 * d
        searched = 8 * n_rows * d + tried + max(8 * n_rows * d, self.compared_bytes(n_rows, k))
        needed = max(loaded, searched) + 16 * MIB
        # Features are tried one after the other, each by k-means of a few iterations.
        seconds = tasks * loop_seconds(self.loops, n_rows, k, d, n_candidates)
        return Step(what, needed, tasks, requests=2 * tasks, seconds=seconds)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; the details are the attributes of the estimator."""
        blocks, parameters = inputs.blocks, self.parameters
        n_clusters, gap = inputs.n_clusters(parameters.n_clusters)
        parameters.check_sample_size(n_clusters)
        start = start_of(
            self.selection, blocks.n_samples, blocks.source.dropped, blocks.source.row_dimensions
        )
        given = check_start(start, n_clusters, blocks.n_samples, blocks.n_features)
        before, moments = blocks.passes, blocks.moments()
        if moments.constant.all():
            raise InputError(
                f"{blocks.source.uri}: every feature is constant, so there are no clusters to find."
            )
        solution, rule = self._best(blocks, n_clusters, given, inputs.checkpoint)
        k = len(rule.means)
        labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        inside = None
        if self.keeps_members:
            inside = out.create("membership", (blocks.n_samples, k), np.bool_, blocks.rows)
        leave = getattr(parameters, "unassigned", "nearest") == "leave"
        counts, means, variances = moments_of(label_all(blocks, rule, leave, labels, inside))
        value = evidence(counts, variances, moments.variance, rule.subsets)
        separability = feature_separability(counts, means, counts @ variances / counts.sum())
        scores = self.scores(solution, counts)
        details = {
            "labels": labels,
            **({} if inside is None else {"membership": inside}),
            "cluster_centers": rule.means + rule.origin,
            "evidence": value if np.isfinite(value) else None,
            "n_rows": self.n_rows,
            "n_passes": blocks.passes - before,
            **self.details(solution, rule),
            **gap,
        }
        fewer = f"n_clusters is {k}, not {n_clusters}: X has only {k} distinct rows."
        empty = f"{int((counts == 0).sum())} of {k} clusters have no rows."
        possible = ((fewer, k < n_clusters), (empty, not counts.all()))
        notes = tuple(note for note, is_so in possible if is_so)
        ranking = rank(scores, moments.constant, separability)
        return FeatureScores(scores, ranking, details, constant=moments.constant, notes=notes)

    def _best(
        self,
        blocks: RowBlocks,
        n_clusters: int,
        given: np.ndarray | None,
        checkpoint: Location | None,
    ) -> tuple[dict[str, Any], ClusterRule]:
        """Return the state of the best solution as a dict, and its rule."""
        scratch, seed, n_rows = blocks.scratch, self.selection.random_state, self.n_rows
        ids = _drawn(blocks.n_samples, n_rows, seed)
        sample = gather_rows(blocks, ids, "sample")
        folder = scratch.child(scratch.unique("searches"))
        place = folder.path if checkpoint is None else Scratch(checkpoint).path
        searches = _Searches(sample, self.kind, self.parameters, n_clusters, seed, str(place))
        stored: Any = None
        if given is None:
            restarts = list(range(self.parameters.n_init))
            values = run_tasks(_search_task, restarts, searches, label="searches", unit="searches")
            stored = load_state(searches.place(int(np.argmax(np.round(values, DIGITS)))))
            if stored is not None and START_ROWS < n_rows:
                given = stored["rule"]["means"] + stored["rule"]["origin"]
        elif given.ndim == 1:
            given = given[ids]
        if given is not None:
            start = folder.put("start", given)
            run_tasks(_search_task, [start], searches, label="search", unit="searches")
            stored = load_state(searches.place(start))
        if stored is None:
            raise StorageError(f"{place}: the solution of a search cannot be read. Run again.")
        scratch.remove(sample)
        folder.close()
        return stored["state"], ClusterRule(**stored["rule"])


def _drawn(n_samples: int, size: int, random_state: int) -> np.ndarray:
    """Return the row indices of a random sample, ascending."""
    chosen = rng(random_state, "lfs sample").choice(n_samples, size, replace=False)
    return np.sort(chosen)


@dataclass(frozen=True)
class _Searches:
    """Inputs shared by the searches of a fit; small and picklable."""

    sample: ArrayRef
    kind: type[SearchState]
    parameters: Any
    n_clusters: int
    random_state: int
    folder: str  # where solutions are stored

    def place(self, start: int | ArrayRef) -> Location:
        """Return the file for the solution of a search."""
        name = f"restart-{start}" if isinstance(start, int) else "search"
        return as_location(self.folder) / f"{name}.npz"

    def begin(self, start: int | ArrayRef) -> tuple[SearchedRows, np.ndarray]:
        """Return the rows that are searched and the initial centers.

        Parameters
        ----------
        start : int or ArrayRef
            Number of a k-means++ restart, or centroids or labels. If k-means++ finds fewer distinct
            rows than clusters, each of them is a center.
        """
        if isinstance(start, int):
            n_rows = self.sample.shape[0]
            X = self.sample.take(_drawn(n_rows, min(START_ROWS, n_rows), self.random_state))
            rows = SearchedRows.of(X)
            generator = rng(self.random_state, f"{self.kind.name} restart", start)
            return rows, X[plus_plus(X[:, rows.usable], self.n_clusters, generator)] - rows.origin
        rows, given = SearchedRows.of(self.sample.load()), start.load()
        if given.ndim > 1:
            return rows, given - rows.origin
        marks = given[rows.order] == np.arange(self.n_clusters)[:, None]
        if not marks.any(axis=1).all():
            raise InputError(
                f"init: at least one label does not occur among the {len(given):,} rows that are "
                "searched. Increase sample_size, or pass centroids."
            )
        return rows, Clusters.of(rows, marks).means


def _search_task(start: int | ArrayRef, searches: _Searches) -> float:
    """Run a search, or resume a saved one; save the solution and return its evidence."""
    rows, centers = searches.begin(start)
    if not rows.usable.any():
        raise InputError(
            f"Every feature is constant in the {len(rows.X):,} rows that are searched, so there "
            "are no clusters to find. Increase sample_size."
        )
    place, kind, parameters = searches.place(start), searches.kind, searches.parameters
    values = load_state(place)
    state = kind(**values["state"]) if values else kind.begin(rows, centers, parameters)
    saved = time.monotonic()
    while not state.finished:
        state.step(rows, parameters)
        say_where(state.note)
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            save_state(place, {"state": state})
            saved = time.monotonic()
    rule = state.rule(rows)
    save_state(place, {"state": state, "rule": rule})
    sums = replace(rule, origin=np.zeros_like(rows.origin)).label(rows.X, False)[2]
    counts, _, variances = moments_of(sums)
    return evidence(counts, variances, rows.variances, rule.subsets)
