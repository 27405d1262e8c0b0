"""The Chebyshev iteration on row blocks: workers hold nothing, each product is committed.

The client decides (`bigfs.spectral.iteration`) and sees sums of K x K only. A product is one
task per block, which reads the block of W, its own rows and, of other blocks, exactly the rows it
has edges to, and writes its rows of the result. Once all blocks are there, their attempts become
the iterate: a worker that dies costs what it was doing within one product.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError, InputError
from bigfs.core.execute import map_reduce, run_tasks
from bigfs.core.progress import Reporter, silenced, track
from bigfs.graph import AffinityMatrix
from bigfs.graph.shuffle import Column, commit_runs
from bigfs.spectral import rowblocks as tasks
from bigfs.spectral.components import add_pivot, contrast_levels, groups
from bigfs.spectral.iteration import Iteration, Window, panel_widths, split_width
from bigfs.spectral.problem import GROUP, Goal, not_converged
from bigfs.spectral.rowblocks import Change, Iterate, Measure, select
from bigfs.spectral.rowgraph import RowGraph, build_row_graph
from bigfs.store.rundir import write_atomic
from bigfs.store.scratch import ArrayRef, Scratch

_RECORD = "spectral.json"


def solve_distributed(
    W: AffinityMatrix,
    n_components: int,
    out: ArrayRef,
    scratch: Scratch,
    *,
    tol: float,
    random_state: int,
    most_rows: int,
    checkpoint: Path | None = None,
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
    checkpoint : Path or None, default=None
        Folder that outlives an interrupted run: row blocks and iterates are kept there, and the
        next call goes on from the last product.

    Returns
    -------
    found : dict
        What `bigfs.spectral.embedding.SpectralEmbedding` says of a solution, and ``details``:
        ``n_blocks``; ``halo_rows`` that blocks need of others; ``fetched_bytes`` that the
        filter's products read of other blocks, and ``fetched_columns``, their number.

    Raises
    ------
    InputError
        If a weight is negative or a degree is not positive.
    ConvergenceError
        If a residual stays above ``tol``.
    """
    record = Record(checkpoint)
    if checkpoint is not None:
        scratch.close()
        scratch = record.folder()
    try:
        with track("spectral", None, "products") as progress, silenced():
            graph = record.graph() or build_row_graph(W, tol, most_rows, scratch)
            goal = Goal(W.n_samples, graph.n_connected, n_components, tol)
            block = StoredBlock(graph, scratch, progress, record)
            mu = np.zeros(0)
            if goal.n_missing:
                block.start(panel_widths(goal.n_missing), random_state)
                mu = Iteration(goal, block).run()
            found = _Finish(goal, block).run(mu, out)
    except BaseException as error:
        # What was interrupted goes on; what failed would fail again.
        if checkpoint is None or isinstance(error, (InputError, ConvergenceError)):
            record.forget()
            scratch.close()
        raise
    record.forget()
    scratch.close()
    return found


class Record:
    """The commit record of an iteration: one JSON file, replaced as a whole.

    Parameters
    ----------
    path : Path or None
        Folder it lives in, with what it names. None: nothing is recorded.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.state: dict[str, Any] | None = None
        if path is not None and (path / _RECORD).exists():
            state = json.loads((path / _RECORD).read_text())
            # Addresses are absolute: a run directory that was moved begins anew.
            self.state = state if Path(state["graph"]["folder"]).exists() else None

    def folder(self) -> Scratch:
        """Return a new folder beside what is recorded."""
        assert self.path is not None
        if self.state is None:
            self.forget()
        return Scratch(self.path / uuid.uuid4().hex[:12])

    def graph(self) -> RowGraph | None:
        """Return the recorded row blocks."""
        if self.state is None:
            return None
        stored = dict(self.state["graph"])
        for name in ("tables", "volumes"):
            stored[name] = ArrayRef.at(stored[name]["path"])
        return RowGraph(**stored)

    def write(self, graph: RowGraph, state: dict[str, Any]) -> None:
        """Replace what is recorded."""
        if self.path is not None:
            text = json.dumps({"graph": asdict(graph), **state}, default=asdict)
            write_atomic(self.path / _RECORD, text)

    def forget(self) -> None:
        """Remove the record and all it names."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)


def as_iterate(stored: dict[str, Any]) -> Iterate:
    """Return an iterate from its JSON values."""
    lists = {name: tuple(stored[name]) for name in ("widths", "panels", "attempts")}
    return Iterate(**{**stored, **lists})


class StoredBlock:
    """A `bigfs.spectral.iteration.Block` of files, by row blocks.

    Parameters
    ----------
    graph : RowGraph
    scratch : Scratch
    progress : Reporter
        Counts products.
    record : Record
        Where iterates are committed.
    """

    def __init__(
        self, graph: RowGraph, scratch: Scratch, progress: Reporter, record: Record
    ) -> None:
        self.graph, self.scratch, self.record = graph, scratch, record
        self._stale: list[Iterate] = []
        self._filtering: tuple[int, Iterate | None, Iterate] | None = None
        self._state: dict[str, Any] = {}
        self.volumes = graph.volumes.load()
        self.fetched_bytes = self.fetched_columns = 0
        self._progress, self._steps = progress, 0
        self._folder = str(scratch.child("iterates").path)
        self._locked: tuple[Iterate, ...] = ()
        self._active: Iterate

    def start(self, widths: list[int], random_state: int) -> None:
        """Draw the start of the block, or go on from what was committed."""
        self._random_state = random_state
        if self.record.state is None:
            self._active = self._draw("float32", widths, "spectral")
            return
        stored = self.record.state["block"]
        self._steps, self._active = stored["steps"], as_iterate(stored["active"])
        self._locked = tuple(as_iterate(part) for part in stored["locked"])
        self.fetched_bytes, self.fetched_columns = stored["fetched"]
        if stored["filtering"] is not None:
            done, before, current = stored["filtering"]
            self._filtering = (done, before and as_iterate(before), as_iterate(current))

    def saved(self) -> dict[str, Any] | None:
        """Return where the iteration was when it was last committed."""
        return None if self.record.state is None else self.record.state["iteration"]

    def commit(self, state: dict[str, Any]) -> None:
        """Record the iterates that count, then delete the others."""
        self._state = state
        block = {
            "steps": self._steps,
            "active": self._active,
            "locked": self._locked,
            "filtering": self._filtering,
            "fetched": [self.fetched_bytes, self.fetched_columns],
        }
        self.record.write(self.graph, {"iteration": state, "block": block})
        kept = {part.step for part in self._locked}
        for iterate in self._stale:
            if iterate.step not in kept:
                iterate.remove()
        self._stale = []

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the vectors."""
        return np.dtype(self._active.dtype)

    @property
    def n_locked(self) -> int:
        """Vectors that are locked."""
        return sum(part.width for part in self._locked)

    @property
    def width(self) -> int:
        """Vectors that are not."""
        return self._active.width

    @property
    def parts(self) -> tuple[Iterate, ...]:
        """All vectors, the locked ones first."""
        return (*self._locked, self._active)

    def lanczos(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the diagonals of the tridiagonal matrix of some Lanczos steps."""
        alpha, beta, scale = np.zeros(steps), np.zeros(steps + 1), np.zeros(steps + 1)
        before, current = None, self._draw("float64", [1], "spectral bound")
        for j in range(steps):
            overlap, energy, square = self.sums(tasks.grams_task, current).ravel()
            scale[j], alpha[j] = 1.0 / np.sqrt(overlap), energy / overlap
            beta[j] = np.sqrt(square / overlap - alpha[j] ** 2 - beta[j - 1] ** 2)
            step = np.array([scale[j], -alpha[j] * scale[j], -beta[j - 1] * scale[j - 1]]) / beta[j]
            following = self._product(current, before, tuple(step.tolist()))
            self._discard(before)
            before, current = current, following
        self._discard(before, current)
        return alpha, beta[:steps]

    def filter(self, window: Window, degree: int) -> None:
        """Replace the block by the filter's polynomial of P times it, product by product."""
        done, before, current = self._filtering or (0, None, self._active)
        for scalars in window.recurrence(degree)[done:]:
            following = self._product(current, before, scalars)
            self._discard(before)
            before, current, done = current, following, done + 1
            self._filtering = (done, before, current)
            self.commit(self._state)
        self._discard(before)
        self._active, self._filtering = current, None

    def project(self) -> None:
        """Remove the null space and the locked vectors."""
        sums = self.sums(tasks.shares_task, (self._active,), self._locked)
        count = len(self.volumes)
        means, shares = sums[:count] / self.volumes[:, None], sums[count:]
        self._change(means=means, shares=shares, locked=self._locked)

    def grams(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``Z'DZ`` and ``Z'DPZ``."""
        overlap, energy, _ = self.sums(tasks.grams_task, self._active)
        return overlap, energy

    def rotate(self, turn: np.ndarray) -> None:
        """Replace Z by ``Z turn``."""
        self._change(turn=turn)

    def squares(self, mu: np.ndarray) -> np.ndarray:
        """Return the squared residuals of the vectors."""
        return self.sums(tasks.squares_task, self._active, mu)

    def lock(self, count: int) -> int:
        """Lock leading panels: they stay in the files they are in."""
        panels = done = 0
        while done + self._active.own_widths[panels] <= count:
            done += self._active.own_widths[panels]
            panels += 1
        if panels:
            self._locked += (select(self._active, 0, panels),)
            self._active = select(self._active, panels)
        return done

    def refine(self) -> None:
        """Go on in float64."""
        old = self.parts
        *locked, self._active = [
            self.change((part,), part.own_widths, dtype="float64") for part in old
        ]
        self._locked = tuple(locked)
        self._discard(*old)

    def sums(self, task: Callable[..., Any], *shared: Any) -> Any:
        """Return what a task gives for every block, added up in a fixed order."""
        return self.reduce(task, np.add, *shared)

    def reduce(self, task: Callable[..., Any], combine: Callable[..., Any], *shared: Any) -> Any:
        """Return what a task gives for every block, combined in a fixed order."""
        blocks = range(self.graph.n_blocks)
        return map_reduce(task, blocks, combine, self.graph, *shared, label="spectral sums")

    def change(
        self,
        sources: tuple[Iterate, ...],
        widths: tuple[int, ...],
        *,
        dtype: str,
        locked: tuple[Iterate, ...] = (),
        **arrays: np.ndarray,
    ) -> Iterate:
        """Return an iterate made of the rows of others, changed by small arrays."""
        refs = {
            name: self.scratch.put(self.scratch.unique(name), values)
            for name, values in arrays.items()
            if values.size
        }
        change = Change(locked=locked, **refs)
        changed = self._run(tasks.change_task, self._target(dtype, widths), sources, change)
        self.scratch.remove(*refs.values())
        return changed

    def _change(self, **changes: Any) -> None:
        """Replace the active block by a changed one."""
        old = self._active
        self._active = self.change((old,), old.own_widths, dtype=old.dtype, **changes)
        self._discard(old)

    def _draw(self, dtype: str, widths: list[int], name: str) -> Iterate:
        target = self._target(dtype, tuple(widths))
        blocks = range(self.graph.n_blocks)
        attempts = run_tasks(
            tasks.start_task, blocks, self.graph, target, self._random_state, name, label="start"
        )
        return replace(target, attempts=tuple(attempts))

    def _product(
        self, current: Iterate, before: Iterate | None, scalars: tuple[float, ...]
    ) -> Iterate:
        """Return ``a P z + b z + c z_before``."""
        target = self._target(current.dtype, current.own_widths)
        blocks, shared = range(self.graph.n_blocks), (current, before, target, scalars)
        results = run_tasks(tasks.product_task, blocks, self.graph, *shared, label="product")
        if current.dtype == "float32":
            self.fetched_bytes += sum(fetched for _, fetched in results)
            self.fetched_columns += current.width
        self._progress.advance(current.width)
        return replace(target, attempts=tuple(attempt for attempt, _ in results))

    def _run(self, task: Callable[..., int], target: Iterate, sources: Any, change: Any) -> Iterate:
        blocks = range(self.graph.n_blocks)
        attempts = run_tasks(
            task, blocks, self.graph, sources, target, change, label="spectral rows"
        )
        return replace(target, attempts=tuple(attempts))

    def _target(self, dtype: str, widths: tuple[int, ...]) -> Iterate:
        self._steps += 1
        return Iterate(self._folder, self._steps, dtype, widths, tuple(range(len(widths))))

    def _discard(self, *iterates: Iterate | None) -> None:
        """Delete iterates at the next commit, except the files that hold locked vectors."""
        self._stale += [iterate for iterate in iterates if iterate is not None]


class _Finish:
    """From the converged block to the embedding: orthonormal, one basis, signs, residuals."""

    def __init__(self, goal: Goal, block: StoredBlock) -> None:
        self.goal, self.block = goal, block

    def run(self, mu: np.ndarray, out: ArrayRef) -> dict[str, Any]:
        """Write the embedding and return what is small."""
        goal, block = self.goal, self.block
        found = self._orthonormal(len(mu)) if len(mu) else ()
        turn = self._one_basis(found, mu)[:, : goal.n_missing]
        # Contrasts set components of falling volume apart, equal ones by their first row.
        rank = np.argsort(-block.volumes, kind="stable")
        levels = np.empty((goal.n_connected, goal.n_known))
        levels[rank] = contrast_levels(block.volumes[rank], goal.n_known)
        final = block.change(
            found, split_width(goal.n_components), dtype="float64", turn=turn, levels=levels
        )
        values = goal.eigenvalues(mu)
        residuals = np.sqrt(block.sums(tasks.squares_task, final, 1.0 - values))
        if residuals.max() > goal.tol:
            raise not_converged(residuals, goal.tol)
        return {
            "eigenvalues": values,
            "norms": self._write(final, out),
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

    def _orthonormal(self, count: int) -> tuple[Iterate]:
        """Make vectors that are orthonormal in float32 so in float64."""
        block, widths = self.block, split_width(count)
        sums = block.sums(tasks.shares_task, block.parts, ())
        means = sums / block.volumes[:, None]
        found = block.change(block.parts, widths, dtype="float64", means=means)
        overlap, _, _ = block.sums(tasks.grams_task, found)
        turn = np.linalg.inv(np.linalg.cholesky(overlap)).T
        return (block.change((found,), widths, dtype="float64", turn=turn),)

    def _one_basis(self, found: tuple[Iterate, ...], mu: np.ndarray) -> np.ndarray:
        """Return the rotation that gives groups of equal eigenvalues the canonical basis."""
        turn = np.eye(len(mu))
        for begin, end in groups(mu, GROUP * self.goal.tol):
            part = np.zeros((end - begin, end - begin))
            for j in range(end - begin):
                [(_, row)] = self._first(found[0], Measure((begin, end), part[:, :j]))
                add_pivot(part, j, row)
            turn[begin:end, begin:end] = part
        return turn

    def _first(self, iterate: Iterate, measure: Measure) -> list[tuple[int, np.ndarray]]:
        """Return the first rows that are the largest by a measure."""
        largest = self.block.reduce(tasks.largest_task, np.maximum, iterate, measure)
        return self.block.reduce(tasks.first_task, tasks.earlier, iterate, measure, largest)

    def _write(self, final: Iterate, out: ArrayRef) -> np.ndarray:
        """Write the vectors in the order of the graph's rows; return their norms."""
        block, graph, rows = self.block, self.block.graph, out.chunk_rows
        first = self._first(final, Measure((0, final.width)))
        signs = np.where([row[j] < 0 for j, (_, row) in enumerate(first)], -1.0, 1.0)
        folder = str(block.scratch.child("embedding").path)
        shared = (graph, final, signs, rows, folder)
        receipts = run_tasks(tasks.send_task, range(graph.n_blocks), *shared, label="embedding")
        columns = (Column("row", "int64"), Column("values", "float64", final.width))
        runs = commit_runs(block.scratch, folder, columns, receipts)
        chunks = range(-(-graph.n_samples // rows))
        squares = run_tasks(tasks.place_task, chunks, runs, out, label="embedding")
        return np.sqrt(np.sum(squares, axis=0))
