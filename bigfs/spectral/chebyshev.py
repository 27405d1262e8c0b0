"""The Chebyshev-filtered subspace iteration: the client decides, tasks multiply.

The client only handles K x K matrices (`bigfs.spectral.iteration`). Workers are stateless, and
every step is committed: if a worker dies, the work since the last commit is lost, half a minute.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError, InputError
from bigfs.graph import AffinityMatrix
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.runtime.progress import Work, silenced, track
from bigfs.spectral import tasks
from bigfs.spectral.block import Record, StoredBlock
from bigfs.spectral.coarse import coarse_start
from bigfs.spectral.iteration import Iteration, block_width
from bigfs.spectral.operator import PIECE_ROWS, Storage, StoredGraph, store_graph
from bigfs.spectral.problem import (
    Goal,
    add_pivot,
    contrast_levels,
    groups,
    warn_of_cut_group,
)
from bigfs.spectral.tasks import Begin, Final, Measure, StoredStart
from bigfs.spectral.thin import inverse
from bigfs.store.location import Location, remove_tree
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds


class ThinGraph(Exception):  # noqa: N818
    """The graph has a sparse factor, with which its eigenvectors are found faster."""

    instead = "eigsh", "the graph is long and thin"  # the solver to use, and the reason


def solve_chebyshev(
    W: AffinityMatrix,
    n_components: int,
    out: ArrayRef,
    scratch: Scratch,
    storage: Storage,
    *,
    tol: float,
    random_state: int,
    checkpoint: Location | None = None,
    start: StoredStart | None = None,
    guards_folder: str | None = None,
    refuses_thin: bool = False,
) -> dict[str, Any]:
    """Write the smallest eigenvectors of ``L y = lambda D y`` beyond the trivial one.

    The result is bit-identical for any number of workers.

    Parameters
    ----------
    W : AffinityMatrix
    n_components : int
    out : ArrayRef of shape (n_samples, n_components), float64
        Receives the vectors.
    scratch : Scratch
        A folder for the reordered W and the iterates, removed at the end.
    storage : Storage
    tol : float
        Determines the accepted residuals, see `bigfs.spectral.problem.Goal.accepted`.
    random_state : int
        Seed of the start block.
    checkpoint : Path, ObjectPath or None, default=None
        Folder that is kept when a run is interrupted: it is used instead of ``scratch``, and the
        next call continues from the last commit.
    start : StoredStart or None, default=None
        Eigenvectors of the graph's first rows, from which the block starts.
    guards_folder : str or None, default=None
        Receives the array ``guards`` of shape (n_samples, n_guards), float32: the vectors beyond
        the requested ones, which a ``start`` needs. None: they are not stored.
    refuses_thin : bool, default=False
        If True, graphs with a sparse factor are left to another solver.

    Returns
    -------
    solution : dict
        Fields of `bigfs.spectral.embedding.SpectralEmbedding` that describe a solution.

    Raises
    ------
    InputError
        If a weight is negative or a degree is not positive.
    ConvergenceError
        If the residual of a pair outside the bulk exceeds the accepted one.
    ThinGraph
        If ``refuses_thin`` and the graph has a sparse factor.

    Notes
    -----
    Follows [1]_. Degree and cut are chosen before every round from the Ritz values and residuals of
    the previous one, and leading vectors that have converged are no longer filtered. Rows are in an
    order (reverse Cuthill-McKee within partitions) that keeps neighbors near each other in memory.
    If residuals below 5e-5 are needed, the last rounds run in float64.

    References
    ----------
    .. [1] Y. Zhou, Y. Saad, M. L. Tiago, J. R. Chelikowsky, "Self-consistent-field calculations
       using Chebyshev-filtered subspace iteration", J. Comput. Phys. 219, 2006,
       doi:10.1016/j.jcp.2006.03.017.
    """
    recorded = _recorded(checkpoint, scratch, storage.row_bytes)
    with recorded as (record, folder), track("spectral", None, "products") as progress:
        with silenced():
            if record.state is not None:
                graph = StoredGraph.open(W, record.state["graph"])
            else:
                graph = store_graph(W, folder, storage)
                if refuses_thin and graph.fill >= 0:
                    raise ThinGraph
        goal = Goal(W.n_samples, graph.n_connected, n_components, tol)
        solve = _Solve(goal, graph, folder)
        if goal.n_missing:
            solve.iterate(storage, Begin(random_state, start), record, progress)
        with silenced():
            return solve.finish(out, guards_folder)


@contextmanager
def _recorded(
    checkpoint: Location | None, scratch: Scratch, row_bytes: int
) -> Iterator[tuple[Record, Scratch]]:
    """Yield the record of an iteration, and a folder for it; both are removed at the end.

    An interrupted solve can be resumed; a failed one would fail again.
    """
    record, removed = Record(checkpoint, row_bytes), scratch.path
    if checkpoint is not None:
        scratch.close()
        if record.state is None:
            remove_tree(checkpoint)
        # A new folder beside the recorded one.
        removed, scratch = checkpoint, Scratch(checkpoint / uuid.uuid4().hex[:12])
    try:
        yield record, scratch
    except BaseException as error:
        if checkpoint is None or isinstance(error, (InputError, ConvergenceError, ThinGraph)):
            remove_tree(removed)
        raise
    remove_tree(removed)


@dataclass
class _Solve:
    """One solution: the block of vectors beyond the null space, and the embedding from it."""

    goal: Goal
    graph: StoredGraph
    scratch: Scratch
    iteration: Iteration | None = None  # None if the null space provides all vectors

    def iterate(self, storage: Storage, begin: Begin, record: Record, progress: Work) -> None:
        """Find the vectors beyond the null space."""
        goal, graph, scratch = self.goal, self.graph, self.scratch
        width = block_width(goal.n_missing)
        with silenced():
            if record.state is None:
                if begin.start is not None and begin.start.width > goal.n_missing:
                    begin = replace(begin, n_near=min(begin.start.width, width))
                else:
                    begin = replace(begin, start=None)
                    begin = coarse_start(graph, begin, goal.n_missing, scratch, storage)
            block = StoredBlock(graph, scratch, width, begin, record, progress)
            self.iteration = Iteration(goal, block)
            self.iteration.run()
        if self.iteration.is_cut:
            warn_of_cut_group(goal.edge, width - goal.n_missing)

    def finish(self, out: ArrayRef, guards_folder: str | None) -> dict[str, Any]:
        """Write the embedding and return the small results."""
        goal, iteration = self.goal, self.iteration
        eigenvalues = residuals = np.zeros(0)
        turn, guards = np.zeros((0, 0)), None
        if iteration is not None:
            eigenvalues, residuals = iteration.eigenvalues, iteration.residuals
            goal.check(eigenvalues, residuals)
            turn = self._one_basis(eigenvalues, residuals)
            known = iteration.block.n_near or iteration.block.width
            if guards_folder is not None and known > goal.n_missing:
                shape = (out.shape[0], known - goal.n_missing)
                guards = Scratch(guards_folder).create("guards", shape, "float32", out.chunk_rows)
        final = self._final(turn)
        summary = goal.summary(eigenvalues, residuals)
        values = summary["eigenvalues"]
        # The sign makes the first of the largest entries positive.
        first = self._first(final, [Measure((0, len(values)))])
        signs = np.where([row[j] < 0 for j, row in enumerate(first)], -1.0, 1.0)
        chunks = block_bounds(out.shape[0], out.chunk_rows)
        shared = (self.graph, final, signs, values, out, guards)
        sums = run_tasks(tasks.write_task, chunks, *shared, label="embedding")
        norms, written = np.sqrt(np.sum(sums, axis=0))
        n_guards = 0 if guards is None else guards.shape[1]
        return {**summary, "norms": norms, "residuals": written, "n_guards": n_guards}

    def _final(self, turn: np.ndarray) -> Final:
        """Return the vectors of the null space followed by those of the block, rotated."""
        volumes = self.graph.volumes.load()
        # Contrasts order components by decreasing volume, ties by their first row.
        order = np.argsort(-volumes, kind="stable")
        levels = contrast_levels(volumes[order], self.goal.n_known)[inverse(order)]
        levels_ref = self.scratch.put(self.scratch.unique("levels"), levels)
        turn_ref = self.scratch.put(self.scratch.unique("turn"), turn)
        z = self.iteration.block.turned if self.iteration else None
        return Final(z, levels_ref, turn_ref)

    def _one_basis(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return the rotation that gives groups of equal eigenvalues the canonical basis."""
        turn = np.eye(len(eigenvalues))
        plain, known = self._final(turn), self.goal.n_known
        near = groups(eigenvalues, self.goal.group_widths(eigenvalues, residuals))
        # The block of each group in the rotation, which is filled column by column.
        parts = {(known + begin, known + end): turn[begin:end, begin:end]
                 for begin, end in near if begin < self.goal.n_missing}  # fmt: skip
        for j in range(max((len(part) for part in parts.values()), default=0)):
            # The next pivots of all groups, from one pass over the rows.
            longer = {columns: part for columns, part in parts.items() if j < len(part)}
            measures = [Measure(columns, part[:, :j]) for columns, part in longer.items()]
            for part, row in zip(longer.values(), self._first(plain, measures), strict=True):
                add_pivot(part, j, row)
        return turn

    def _first(self, final: Final, measures: list[Measure]) -> list[np.ndarray]:
        """Return, for each column of each measure, the first row of the largest size."""
        n, shared = self.graph.n_samples, (self.graph, final, measures)
        blocks = self.iteration.block.z.bounds if self.iteration else block_bounds(n, PIECE_ROWS)
        pivots = map_reduce(tasks.pivots_task, blocks, tasks.join_pivots, *shared, label="spectral")
        return [pivot.rows[0][2] for pivot in pivots]
