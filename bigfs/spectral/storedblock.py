"""The block of the Chebyshev iteration as files, and the record for resuming it.

Tasks read and write files of row blocks (`bigfs.spectral.rowblocks`) or, within the filter, of
strips (`bigfs.spectral.strips`). Once all of a step are there, their attempts become the iterate.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.runtime.progress import Work
from bigfs.spectral import rowblocks as tasks
from bigfs.spectral.coarse import n_near
from bigfs.spectral.iteration import Window, panel_widths
from bigfs.spectral.rowblocks import Change, StoredIterate, select
from bigfs.spectral.rowcoarse import coarse_start, coarse_task
from bigfs.spectral.rowgraph import RowGraph
from bigfs.spectral.rowstart import mark_task, near_task, send_start, sweep_task
from bigfs.spectral.start import SWEEPS, StoredStart
from bigfs.spectral.strips import (
    Strips,
    WholeGraph,
    products_of_a_task,
    regroup_task,
    strip_columns,
    strip_task,
    whole_task,
)
from bigfs.store.location import Location, as_location, is_within, remove_tree, write_atomic
from bigfs.store.scratch import ArrayRef, Scratch

_RECORD = "spectral.json"


class Record:
    """The commit record of an iteration: one JSON file, replaced as a whole.

    Parameters
    ----------
    path : Path, ObjectPath or None
        Folder it lives in, with what it names. None: nothing is recorded.
    strip_row_bytes : int
        Of a row of the filter's strips, 0 without: what was recorded with another does not count.
    """

    def __init__(self, path: Location | None, strip_row_bytes: int) -> None:
        self.path, self.strip_row_bytes = path, strip_row_bytes
        self.state: dict[str, Any] | None = None
        if path is not None and (path / _RECORD).exists():
            state = json.loads((path / _RECORD).read_text())
            # Addresses are absolute: a run directory that was moved begins anew, and nothing
            # elsewhere is read, written or removed.
            usable = all(is_within(as_location(place), path) for place in _places(state))
            usable = usable and as_location(state["graph"]["folder"]).exists()
            usable = usable and state["strip_row_bytes"] == strip_row_bytes
            self.state = state if usable else None

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
        for name in ("tables", "volumes", "place"):
            stored[name] = ArrayRef.at(stored[name]["path"])
        return RowGraph(**stored)

    def write(self, graph: RowGraph, state: dict[str, Any]) -> None:
        """Replace what is recorded."""
        if self.path is not None:
            strips = {"strip_row_bytes": self.strip_row_bytes}
            state = {"graph": asdict(graph), **strips, **state}
            text = json.dumps(state, default=asdict)
            write_atomic(self.path / _RECORD, text)

    def forget(self) -> None:
        """Remove the record and all it names."""
        if self.path is not None:
            remove_tree(self.path)


def _places(stored: Any) -> Iterator[str]:
    """Yield all addresses in a record."""
    if isinstance(stored, dict):
        for name, value in stored.items():
            if name in ("folder", "path"):
                yield str(value)
            yield from _places(value)
    elif isinstance(stored, list):
        for value in stored:
            yield from _places(value)


def as_iterate(stored: dict[str, Any]) -> StoredIterate:
    """Return an iterate from its JSON values."""
    lists = {name: tuple(stored[name]) for name in ("widths", "panels", "attempts")}
    return StoredIterate(**{**stored, **lists})


class StoredBlock:
    """A `bigfs.spectral.iteration.Block` of files, by row blocks.

    Parameters
    ----------
    graph : RowGraph
    scratch : Scratch
    progress : Work
        Counts products.
    record : Record
        Where iterates are committed.
    room : int
        Bytes that a task may take for a coarse graph, to begin near its eigenvectors.
    """

    def __init__(
        self, graph: RowGraph, scratch: Scratch, progress: Work, record: Record, room: int
    ) -> None:
        self.graph, self.scratch, self.record, self._room = graph, scratch, record, room
        self._stale: list[StoredIterate | Strips] = []
        self._filtering: Any = None
        self._state: dict[str, Any] = {}
        self.volumes = graph.volumes.load()
        self.fetched_bytes = self.fetched_columns = 0
        self._progress, self._steps = progress, 0
        self._folder = str(scratch.child("iterates").path)
        self._locked: tuple[StoredIterate, ...] = ()
        self.n_near = 0  # columns that began near their end
        self._active: StoredIterate

    def start(self, n_missing: int, random_state: int, near: StoredStart | None) -> None:
        """Let the block begin near another or a coarse graph's, or go on from the record."""
        self._random_state = random_state
        if self.record.state is None:
            widths = panel_widths(n_missing)
            if near is None:
                self._active = self._begin(widths, n_near(n_missing))
            else:
                self.n_near = min(near.width, sum(widths))
                self._active = self._near(near, widths)
            return
        stored = self.record.state["block"]
        self._steps, self._active = stored["steps"], as_iterate(stored["active"])
        self._locked = tuple(as_iterate(part) for part in stored["locked"])
        self.fetched_bytes, self.fetched_columns = stored["fetched"]
        self.n_near = stored["n_near"]
        if stored["filtering"] is not None:
            self._filtering = self._resumed(stored["filtering"])

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
            "n_near": self.n_near,
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
    def parts(self) -> tuple[StoredIterate, ...]:
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

    def _resumed(self, stored: Any) -> Any:
        """Return where within a filter the recorded run was."""
        done, before, current = stored
        return done, before and as_iterate(before), as_iterate(current)

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
        """Return the results of a task for all blocks, added up in a fixed order."""
        return self.reduce(task, np.add, *shared)

    def reduce(self, task: Callable[..., Any], combine: Callable[..., Any], *shared: Any) -> Any:
        """Return the results of a task for all blocks, combined in a fixed order."""
        blocks = range(self.graph.n_blocks)
        return map_reduce(task, blocks, combine, self.graph, *shared, label="spectral sums")

    def change(
        self,
        sources: tuple[StoredIterate, ...],
        widths: tuple[int, ...],
        *,
        dtype: str,
        locked: tuple[StoredIterate, ...] = (),
        **arrays: np.ndarray,
    ) -> StoredIterate:
        """Return an iterate made of the rows of others, changed by small arrays."""
        refs = {
            name: self.scratch.put(self.scratch.unique(name), values)
            for name, values in arrays.items()
            if values.size
        }
        change = Change(locked=locked, **refs)
        changed = self._each(tasks.change_task, self._target(dtype, widths), sources, change)
        self.scratch.remove(*refs.values())
        return changed

    def _change(self, **changes: Any) -> None:
        """Replace the active block by a changed one."""
        old = self._active
        self._active = self.change((old,), old.own_widths, dtype=old.dtype, **changes)
        self._discard(old)

    def _draw(self, dtype: str, widths: list[int], name: str) -> StoredIterate:
        target = self._target(dtype, tuple(widths))
        return self._each(tasks.start_task, target, self._random_state, name)

    def _begin(self, widths: list[int], n_near: int) -> StoredIterate:
        """Return vectors that begin near those of a coarse graph, or anywhere."""
        groups = self._target("float64", (1,))
        coarse = coarse_start(
            self.graph, groups, n_near, self.scratch, self._random_state, self._room
        )
        if coarse is None:
            return self._draw("float32", widths, "spectral")
        self.n_near = n_near
        target = self._target("float32", tuple(widths))
        z = self._each(coarse_task, target, self._random_state, coarse)
        coarse.groups.remove()
        self.scratch.remove(coarse.offsets, coarse.vectors)
        return z

    def _near(self, near: StoredStart, widths: list[int]) -> StoredIterate:
        """Return vectors of the first rows with means of neighbors at those joined to new ones."""
        runs, drawn = send_start(self.graph, near, self.scratch), ("float32", tuple(widths))
        z = self._each(near_task, self._target(*drawn), self._random_state, runs)
        runs.remove()
        new = self._each(mark_task, self._target("float32", (1,)), near.n_samples)
        marked = (new, self._product(new, None, (1.0, 0.0, 0.0)))
        for _ in range(SWEEPS):
            before, z = z, self._each(sweep_task, self._target(*drawn), z, marked)
            before.remove()
        self._discard(*marked)
        return z

    def _product(
        self, current: StoredIterate, before: StoredIterate | None, scalars: tuple[float, ...]
    ) -> StoredIterate:
        """Return ``a P z + b z + c z_before``."""
        target = self._target(current.dtype, current.own_widths)
        blocks, shared = range(self.graph.n_blocks), (current, before, target, scalars)
        results = run_tasks(tasks.product_task, blocks, self.graph, *shared, label="product")
        if current.dtype == "float32":
            self.fetched_bytes += sum(fetched for _, fetched in results)
            self.fetched_columns += current.width
        self._progress.advance(current.width)
        return target.with_attempts(attempt for attempt, _ in results)

    def _each(self, task: Callable[..., int], target: StoredIterate, *shared: Any) -> StoredIterate:
        """Return an iterate that a task writes block by block."""
        blocks = range(self.graph.n_blocks)
        attempts = run_tasks(task, blocks, self.graph, target, *shared, label="spectral rows")
        return target.with_attempts(attempts)

    def _target(self, dtype: str, widths: tuple[int, ...]) -> StoredIterate:
        self._steps += 1
        return StoredIterate(self._folder, self._steps, dtype, widths, tuple(range(len(widths))))

    def _discard(self, *iterates: StoredIterate | Strips | None) -> None:
        """Delete iterates at the next commit, except the files that hold locked vectors."""
        self._stale += [iterate for iterate in iterates if iterate is not None]


class StripBlock(StoredBlock):
    """A block whose filter takes a few columns of all rows as one task, for many products."""

    _whole: WholeGraph | None = None

    def filter(self, window: Window, degree: int) -> None:
        """Replace the block by the filter's polynomial of P times it, strip by strip."""
        steps, old = window.recurrence(degree), self._active
        row_bytes = self.record.strip_row_bytes
        columns = strip_columns(old, row_bytes)
        most = products_of_a_task(self.graph.nnz, old.dtype, row_bytes)
        state: Strips | None = self._filtering
        while state is None or state.done < degree:
            done = 0 if state is None else state.done
            part = steps[done : done + most]
            self._steps += 1
            target = Strips(self._folder, self._steps, old.dtype, columns, done + len(part))
            shared = (self._in_order(), old, state, target, part, target.done == degree)
            strips = range(len(columns))
            attempts = run_tasks(strip_task, strips, self.graph, *shared, label="filter")
            self._progress.advance(len(part) * old.width)
            self._discard(state)
            self._filtering = state = replace(target, attempts=tuple(attempts))
            self.commit(self._state)
        self._active, self._filtering = self._regroup(state), None
        self._discard(old, state)

    def _in_order(self) -> WholeGraph:
        """Return all of W in the order of the strips, made by one task."""
        if self._whole is None:
            [attempt] = run_tasks(whole_task, [self._folder], self.graph, label="order of rows")
            self._whole = WholeGraph(self._folder, attempt)
        return self._whole

    def _regroup(self, strips: Strips) -> StoredIterate:
        """Return the vectors of the strips as an iterate of row blocks."""
        target = self._target(self._active.dtype, self._active.own_widths)
        return self._each(regroup_task, target, strips)

    def _resumed(self, stored: Any) -> Any:
        """Return where within a filter the recorded run was."""
        columns = tuple(tuple(strip) for strip in stored["columns"])
        return Strips(**{**stored, "columns": columns, "attempts": tuple(stored["attempts"])})
