"""The Chebyshev iteration on row blocks: workers are stateless, and every step is committed.

The client decides (`bigfs.spectral.iteration`) and sees sums of K x K only. A product is one
task per block, which reads the block of W, its own rows and, of other blocks, exactly the rows it
has edges to, and writes its rows of the result. Where W and a few columns fit a task, the filter
does many products of these columns as one task instead. A worker that dies costs the work
since the last commit: one product, or half a minute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError, InputError
from bigfs.graph import AffinityMatrix
from bigfs.graph.shuffle import RunColumn, commit_runs
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.progress import silenced, track
from bigfs.spectral import rowblocks as tasks
from bigfs.spectral.choice import row_block_bytes
from bigfs.spectral.components import add_pivot, contrast_levels, groups
from bigfs.spectral.iteration import Iteration, split_width
from bigfs.spectral.problem import GROUP, Goal
from bigfs.spectral.rowblocks import Measure, StoredIterate
from bigfs.spectral.rowgraph import build_row_graph, wanted_rows
from bigfs.spectral.start import StoredStart
from bigfs.spectral.storedblock import Record, StoredBlock, StripBlock
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch


def solve_distributed(
    W: AffinityMatrix,
    n_components: int,
    out: ArrayRef,
    scratch: Scratch,
    *,
    tol: float,
    random_state: int,
    most_rows: int,
    strip_row_bytes: int = 0,
    checkpoint: Location | None = None,
    start: StoredStart | None = None,
    guards_folder: str | None = None,
) -> dict[str, Any]:
    """Write the smallest eigenvectors of ``L y = lambda D y`` beyond the trivial one.

    The same iteration as `bigfs.spectral.chebyshev.solve_chebyshev`; the result is the same bits
    whatever the number of workers.

    Parameters
    ----------
    W : AffinityMatrix
    n_components : int
    out : ArrayRef of shape (n_samples, n_components), float64
        Gets the vectors.
    scratch : Scratch
        A folder for the row blocks and iterates, removed at the end.
    tol : float
        Largest residual accepted.
    random_state : int
        Seed of the start block.
    most_rows : int
        Rows of a block that fit one task.
    strip_row_bytes : int, default=0
        Not 0: the filter takes a few columns of all rows as one task (`bigfs.spectral.strips`)
        instead of one product of a block, as many as are so many bytes.
    checkpoint : Path, ObjectPath or None, default=None
        Folder that outlives an interrupted run: row blocks and iterates are kept there, and the
        next call goes on from the last product.
    start : StoredStart or None, default=None
        Eigenvectors of the graph's first rows, near which the block begins.
    guards_folder : str or None, default=None
        Gets the array ``guards`` of shape (n_samples, n_guards), float32: the vectors beyond
        those asked for, which a ``start`` needs. None: they are not kept.

    Returns
    -------
    solution : dict
        What `bigfs.spectral.embedding.SpectralEmbedding` says of a solution, and ``details``:
        ``n_blocks``; ``halo_rows`` that blocks need of others; ``fetched_bytes`` that the
        filter's products read of other blocks, and ``fetched_columns``, their number.

    Raises
    ------
    InputError
        If a weight is negative or a degree is not positive.
    ConvergenceError
        If the residual of a pair that is not of the bulk stays above ``tol``.
    """
    record = Record(checkpoint, strip_row_bytes)
    if checkpoint is not None:
        scratch.close()
        scratch = record.folder()
    try:
        with track("spectral", None, "products") as progress, silenced():
            graph = record.graph() or build_row_graph(W, tol, most_rows, scratch)
            goal = Goal(W.n_samples, graph.n_connected, n_components, tol)
            kind = StripBlock if strip_row_bytes else StoredBlock
            room = row_block_bytes(W.n_samples, W.nnz, n_components) * wanted_rows(
                W.n_samples, most_rows
            )
            block = kind(graph, scratch, progress, record, room)
            mu = np.zeros(0)
            if goal.n_missing:
                block.start(goal.n_missing, random_state, start)
                mu = Iteration(goal, block, block.n_near).run()
            finish = _Finish(goal, block)
            solution = finish.run(mu, out)
            if len(mu) and guards_folder is not None:
                solution["n_guards"] = finish.keep_guards(Scratch(guards_folder), out.chunk_rows)
    except BaseException as error:
        # An interrupted solve can be resumed; a failed one would fail again.
        if checkpoint is None or isinstance(error, (InputError, ConvergenceError)):
            record.forget()
            scratch.close()
        raise
    record.forget()
    scratch.close()
    return solution


class _Finish:
    """Steps from the converged block to the embedding: orthonormal basis, signs, residuals."""

    def __init__(self, goal: Goal, block: StoredBlock) -> None:
        self.goal, self.block = goal, block

    def run(self, mu: np.ndarray, out: ArrayRef) -> dict[str, Any]:
        """Write the embedding and return the small results."""
        goal, block = self.goal, self.block
        vectors = self._orthonormal(len(mu)) if len(mu) else ()
        turn = self._one_basis(vectors, mu)[:, : goal.n_missing]
        # Contrasts set components of falling volume apart, equal ones by their first row.
        rank = np.argsort(-block.volumes, kind="stable")
        levels = np.empty((goal.n_connected, goal.n_known))
        levels[rank] = contrast_levels(block.volumes[rank], goal.n_known)
        final = block.change(
            vectors, split_width(goal.n_components), dtype="float64", turn=turn, levels=levels
        )
        values = goal.eigenvalues(mu)
        residuals = np.sqrt(block.sums(tasks.squares_task, final, 1.0 - values))
        goal.edge = max(goal.edge, float(values.max()))
        goal.check(values, residuals)
        return {
            "eigenvalues": values,
            "edge": goal.edge,
            "norms": self._write(final, out, self._signs(final)),
            "residuals": residuals,
            "n_connected_components": goal.n_connected,
            "n_products": goal.n_products,
            "n_iterations": goal.n_iterations,
            "details": {
                "n_blocks": block.graph.n_blocks,
                "halo_rows": block.graph.halo_rows,
                "fetched_bytes": block.fetched_bytes,
                "fetched_columns": block.fetched_columns,
            },
        }

    def _orthonormal(self, count: int) -> tuple[StoredIterate]:
        """Make vectors that are orthonormal in float32 so in float64."""
        block, widths = self.block, split_width(count)
        sums = block.sums(tasks.shares_task, block.parts, ())
        means = sums / block.volumes[:, None]
        centered = block.change(block.parts, widths, dtype="float64", means=means)
        overlap, _, _ = block.sums(tasks.grams_task, centered)
        turn = np.linalg.inv(np.linalg.cholesky(overlap)).T
        return (block.change((centered,), widths, dtype="float64", turn=turn),)

    def _one_basis(self, vectors: tuple[StoredIterate, ...], mu: np.ndarray) -> np.ndarray:
        """Return the rotation that gives groups of equal eigenvalues the canonical basis."""
        turn = np.eye(len(mu))
        for begin, end in groups(mu, GROUP * self.goal.tol):
            part = np.zeros((end - begin, end - begin))
            for j in range(end - begin):
                [(_, row)] = self._first(vectors[0], Measure((begin, end), part[:, :j]))
                add_pivot(part, j, row)
            turn[begin:end, begin:end] = part
        return turn

    def _first(self, iterate: StoredIterate, measure: Measure) -> list[tuple[int, np.ndarray]]:
        """Return the first rows that are the largest by a measure."""
        largest = self.block.reduce(tasks.largest_task, np.maximum, iterate, measure)
        return self.block.reduce(tasks.first_task, tasks.earlier, iterate, measure, largest)

    def keep_guards(self, scratch: Scratch, chunk_rows: int) -> int:
        """Store the vectors beyond those asked for, and return how many."""
        block, missing = self.block, self.goal.n_missing
        width = sum(part.width for part in block.parts)
        known = block.n_near or width
        beyond, widths = np.eye(width)[:, missing:known], split_width(known - missing)
        guards = block.change(block.parts, widths, dtype="float32", turn=beyond)
        shape = (block.graph.n_samples, guards.width)
        out = scratch.create("guards", shape, np.float32, chunk_rows)
        self._write(guards, out, np.ones(guards.width))
        return guards.width

    def _signs(self, final: StoredIterate) -> np.ndarray:
        """Return the signs that make the first of the largest entries positive."""
        first = self._first(final, Measure((0, final.width)))
        return np.where([row[j] < 0 for j, (_, row) in enumerate(first)], -1.0, 1.0)

    def _write(self, iterate: StoredIterate, out: ArrayRef, signs: np.ndarray) -> np.ndarray:
        """Write vectors in the order of the graph's rows; return their norms."""
        block, graph, rows = self.block, self.block.graph, out.chunk_rows
        folder = str(block.scratch.child(block.scratch.unique("rows")).path)
        shared = (graph, iterate, signs, rows, folder)
        receipts = run_tasks(tasks.send_task, range(graph.n_blocks), *shared, label="embedding")
        columns = (RunColumn("row", "int64"), RunColumn("values", "float64", iterate.width))
        runs = commit_runs(block.scratch, folder, columns, receipts)
        chunks = range(-(-graph.n_samples // rows))
        squares = run_tasks(tasks.place_task, chunks, runs, out, label="embedding")
        return np.sqrt(np.sum(squares, axis=0))
