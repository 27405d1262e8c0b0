"""The block of the Chebyshev iteration in storage, and the record for resuming it.

Tasks process a panel of all rows in the filter, and a block of rows of all panels everywhere else
(`bigfs.spectral.tasks`). Once all files of a step are written, their attempts become the iterate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.runtime.progress import Work
from bigfs.spectral import tasks
from bigfs.spectral.kernels import CACHE_LINE
from bigfs.spectral.operator import StoredGraph
from bigfs.spectral.tasks import Begin, Vectors
from bigfs.store.location import Location, as_location, is_within, write_atomic
from bigfs.store.scratch import Scratch

Steps: TypeAlias = Sequence[tuple[float, float, float]]

_RECORD = "spectral.json"
# Fields of a block in the record.
_COUNTED = ("steps", "dtype", "n_near", "z", "filtering", "turned")
# Multiplications of one task, about half a minute: the work lost if a worker dies.
MULTIPLICATIONS = 2e10
_LEAST_PRODUCTS = 4
# Columns are skipped by the filter in multiples of this, the number in the widest panels.
_LOT = CACHE_LINE // 4
# Values of a block of rows, which is read and from which results are written, in float64.
BLOCK_VALUES = 2**21
# Relative rounding error of a sum of squares.
_ROUNDING = 1e-15


class Record:
    """The commit record of an iteration: one JSON file, replaced as a whole.

    Parameters
    ----------
    path : Path, ObjectPath or None
        Folder of the record and of the files that it refers to. None: nothing is recorded.
    row_bytes : int
        Bytes of a row of a panel; a record with another value is ignored.
    """

    def __init__(self, path: Location | None, row_bytes: int) -> None:
        self.path, self.row_bytes = path, row_bytes
        self.state: dict[str, Any] | None = None
        if path is not None and (path / _RECORD).exists():
            state = json.loads((path / _RECORD).read_text())
            # Addresses are absolute: a run directory that was moved starts from scratch, and
            # nothing elsewhere is read, written or removed.
            usable = all(is_within(as_location(place), path) for place in _places(state))
            usable = usable and as_location(state["folder"]).exists()
            self.state = state if usable and state["row_bytes"] == row_bytes else None

    def write(self, graph: StoredGraph, state: dict[str, Any]) -> None:
        """Replace the record."""
        if self.path is not None:
            folder = str(as_location(graph.labels.path).parent)
            about = {"folder": folder, "graph": graph.describe(), "row_bytes": self.row_bytes}
            write_atomic(self.path / _RECORD, json.dumps({**about, **state}, default=asdict))


def _places(stored: Any) -> Iterator[str]:
    """Yield all addresses in a part of a record."""
    for name, value in stored.items() if isinstance(stored, dict) else enumerate(stored):
        if name in ("folder", "path", "labels", "volumes") or (name == "in_order" and value):
            yield str(value)
        if isinstance(value, (dict, list)):
            yield from _places(value)


@dataclass
class StoredBlock:
    """Vectors z, processed by panels in the filter and by blocks of rows everywhere else.

    Attributes
    ----------
    graph : StoredGraph
    scratch : Scratch
        Receives the files.
    width : int
        Number of vectors.
    begin : Begin
        Initial vectors.
    record : Record
        Record to which iterates are committed; it also defines the size of a panel's row.
    progress : Work or None, default=None
        Counts products.
    """

    graph: StoredGraph
    scratch: Scratch
    width: int
    begin: Begin
    record: Record
    progress: Work | None = None

    def __post_init__(self) -> None:
        self._volumes = self.graph.volumes.load()
        self._stale: list[Vectors] = []
        self._state: dict[str, Any] = {}
        # During the filter: the vectors and the previous ones.
        self.filtering: Vectors | None = None
        self.turned: tasks.RitzVectors | None = None
        self._folder, self.steps = str(self.scratch.child("iterates").path), 0
        self.dtype, self.n_near = "float32", self.begin.n_near
        if self.record.state is not None:
            for name in _COUNTED:
                value = self.record.state["block"][name]
                kind: Any = tasks.RitzVectors.open if name == "turned" else Vectors
                setattr(self, name, kind(**value) if isinstance(value, dict) else value)
            self.begin = replace(self.begin, start=None)  # already used before the first commit
        else:
            self.z = self._target(by_panel=True)
            shared = (self.graph, self.begin, self.z)
            written = run_tasks(tasks.begin_task, range(len(self.z.widths)), *shared, label="start")
            self.z = replace(self.z, attempts=written)

    def commit(self, state: dict[str, Any], *, is_last: bool = False) -> None:
        """Record the current vectors and, as JSON values, the state of the iteration.

        Other vectors are then deleted. With ``is_last`` those that ``turned`` consists of are kept.
        """
        self._state = state
        if self.turned is not None and not is_last:  # not part of any record
            self.turned.filtered.remove()
            self.scratch.remove(self.turned.means, self.turned.turn)
            self.turned = None
        block = {name: getattr(self, name) for name in _COUNTED}
        self.record.write(self.graph, {"iteration": state, "block": block})
        for vectors in self._stale:
            vectors.remove()
        self._stale = []

    def lanczos(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the diagonals, ``steps`` entries each, of the Lanczos process for S."""
        shared = (self.graph, self.begin.random_state)
        [diagonals] = run_tasks(tasks.lanczos_task, [steps], *shared, label="spectral bound")
        return diagonals[0], diagonals[1]

    def _filter(self, steps: Steps, n_done: int) -> tuple[Vectors, int]:
        """Apply the steps of the recurrence to z, except to leading panels that are done.

        Products P z are computed for all panels. Also returns the number of products with one
        vector.
        """
        source, state = self.z, self.filtering
        widths = self._target(by_panel=True).widths
        # Columns are frozen in fixed lots, so that the width of panels does not affect any bit.
        n_frozen = int((np.cumsum(widths) <= n_done // _LOT * _LOT).sum())
        columns = sum(widths[n_frozen:])
        most = max(_LEAST_PRODUCTS, int(MULTIPLICATIONS / (self.graph.W.nnz * widths[0])))
        while True:
            done = 0 if state is None else state.done
            part = steps[done : done + most]
            is_last = done + len(part) == len(steps)
            target = self._target(by_panel=True, done=done + len(part))
            taken = range(0 if is_last else n_frozen, len(widths))
            shared = (self.graph, source, state, target, part, n_frozen, is_last, self.begin)
            written = run_tasks(tasks.filter_task, taken, *shared, label="filter")
            if self.progress is not None:
                self.progress.advance(len(part) * columns)
            if state is not None:
                self._stale.append(state)
            state = replace(target, attempts=[*[None] * taken.start, *written])
            if is_last:
                self.filtering = None
                self.begin = replace(self.begin, start=None)  # new rows are filled in by now
                return state, len(steps) * columns + self.width
            self.filtering = state
            self.commit(self._state)

    def ritz(self, steps: Steps, n_done: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Filter the vectors and rotate them to Ritz vectors orthogonal to the null space.

        They are stored in the dtype of the block; ``turned`` computes them in float64.

        Parameters
        ----------
        steps : sequence of (float, float, float)
            Steps of the recurrence; if empty, the vectors are used as stored.
        n_done : int
            Number of leading vectors that need not be filtered.

        Returns
        -------
        eigenvalues : ndarray of shape (width,)
            Eigenvalues of L, ascending.
        residuals : ndarray of shape (width,)
        n_products : int
            Number of products of W with one vector.
        """
        from scipy.linalg import eigh

        filtered, n_products = self._filter(steps, n_done)
        blocks, n_connected = filtered.bounds, self.graph.n_connected
        sums = map_reduce(tasks.sums_task, blocks, np.add, self.graph, filtered, label="sums")
        means = sums[:n_connected] / self._volumes[:, None]
        # The null space is removed from Z'DZ and Z'DPZ in the same way: P is the identity on it.
        null = means.T @ (self._volumes[:, None] * means)
        overlap, energy = (part - null for part in np.split(sums[n_connected:], 2))
        # Vectors damped to the rounding error of the null space are noise, as the last guards may
        # be: they get the largest eigenvalue, and the next filter makes guards of them again.
        noise = np.maximum(_ROUNDING * np.diag(null), np.finfo(np.float64).tiny)
        lost = np.flatnonzero(np.diag(overlap) <= noise)
        for products, value in ((overlap, noise[lost]), (energy, 0.0)):
            products[lost], products[:, lost] = 0.0, 0.0
            products[lost, lost] = value
        basis = _whitening(overlap)
        mu, turn = eigh(basis.T @ (energy + energy.T) @ basis / 2)
        turn = basis @ turn[:, ::-1]
        means_ref = self.scratch.put(self.scratch.unique("means"), means)
        turn_ref = self.scratch.put(self.scratch.unique("turn"), turn)
        self.turned = tasks.RitzVectors(filtered, means_ref, turn_ref)
        target = self._target(by_panel=False)
        shared = (self.graph, self.turned, target, mu[::-1])
        results = run_tasks(tasks.turn_task, blocks, *shared, label="spectral rows")
        self._stale.append(self.z)
        self.z = replace(target, attempts=[attempt for attempt, _ in results])
        squares = np.sum([part for _, part in results], axis=0)
        return 1.0 - mu[::-1], np.sqrt(squares), n_products

    def _target(self, *, by_panel: bool, done: int = 0) -> Vectors:
        """Return an address for vectors that are to be written."""
        self.steps += 1
        most = max(1, self.record.row_bytes // np.dtype(self.dtype).itemsize)
        n, width = self.graph.n_samples, self.width
        widths = [min(most, width - first) for first in range(0, width, most)]
        return Vectors(
            self._folder, self.steps, n, block_rows(self.width, n), self.dtype, widths,
            by_panel, done,
        )  # fmt: skip


def block_rows(width: int, n_samples: int) -> int:
    """Return the number of rows of a block of ``width`` vectors."""
    return min(n_samples, max(1, BLOCK_VALUES // width))


def _whitening(overlap: np.ndarray) -> np.ndarray:
    """Return a matrix B with ``B' overlap B = 1``; directions lost to rounding stay small."""
    from scipy.linalg import eigh

    scale = 1.0 / np.sqrt(np.diag(overlap))
    values, vectors = eigh(overlap * np.multiply.outer(scale, scale))
    return scale[:, None] * vectors / np.sqrt(np.maximum(values, 1e-14 * values[-1]))
