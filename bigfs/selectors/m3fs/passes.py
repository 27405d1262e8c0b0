"""The passes of M3FS over X: in this process, or fused for all starts by row blocks on workers.

What a start keeps for every row, its clusters and its planes, is one small integer per row (one
bit with two clusters), stored by blocks under the round that made it: a task that runs twice
writes the same values again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.cost import Shape
from bigfs.runtime.execute import active_client, map_reduce
from bigfs.selectors.m3fs.kernels import PlaneSums, block_step, clusters_of, decisions, rivals
from bigfs.selectors.m3fs.state import Settings, Trajectory
from bigfs.selectors.ndfs.memory import forget, memory
from bigfs.store.location import Location, as_location, replaced_file
from bigfs.store.scratch import ArrayRef

# Planes that a task may have to hold at once, as far as the memory plan goes: a byte for a row.
_PLANES = 200


def round_bytes(shape: Shape, n_columns: int) -> int:
    """Return the bytes of a task of a round: a block with its planes."""
    # A block and its copy while it is read, decision values, planes and their weights.
    per_row = 2 * shape.n_features * shape.itemsize + 32 * n_columns + _PLANES
    return shape.rows * per_row + 48 * 10**6


@dataclass(frozen=True)
class Request:
    """The request of one start to a pass; small and picklable."""

    start: int  # number of the start
    plane: int  # number under which the new plane is stored
    round: int  # under which the clusters of V are stored
    # Round of the present clusters, which the plane is drawn for; 0: the start's labels.
    version: int
    # Draw it for the clusters of V instead, and sum what they change of the older planes.
    take_over: bool
    ids: tuple[int, ...]  # numbers of the older planes

    @classmethod
    def of(cls, now: Trajectory, settings: Settings) -> list[tuple[Request, np.ndarray]]:
        """Return the requests of a start for the next pass, with the point V of each."""
        every = settings.planes_outside and now.n_rounds > 0
        take_over = now.refresh or every
        rest = (now.n_rounds, now.version, take_over, tuple(now.ids))
        return [
            (cls(now.number, 2 * now.n_rounds + i, *rest), V)
            for i, V in enumerate(now.points(settings))
        ]


class RowStore(Protocol):
    """Storage of small integers of some rows."""

    def get(self, start: int, kind: str, round_: int) -> np.ndarray:
        """Return the arrays that a round stored."""

    def put(self, start: int, kind: str, round_: int, values: np.ndarray) -> None:
        """Store it."""


def advance(X: np.ndarray, V: np.ndarray, request: Request, rows: RowStore) -> PlaneSums:
    """Do one start's part of a pass on some rows, and store what it leaves behind."""
    older = []
    if request.take_over:
        older = [rows.get(request.start, "plane", number) for number in request.ids]
    z = rows.get(request.start, "clusters", request.version)
    sums, plane, now = block_step(X, V, z, older, request.take_over)
    rows.put(request.start, "plane", request.plane, plane)
    if request.take_over:
        rows.put(request.start, "clusters", request.round, now)
    return sums


@dataclass
class MemoryRows:
    """Rows of this process."""

    kept: dict[tuple[int, str, int], np.ndarray] = field(default_factory=dict)

    def get(self, start: int, kind: str, round_: int) -> np.ndarray:
        """Return the arrays that a round stored."""
        return self.kept[start, kind, round_]

    def put(self, start: int, kind: str, round_: int, values: np.ndarray) -> None:
        """Store it."""
        self.kept[start, kind, round_] = values


@dataclass(frozen=True)
class FileRows:
    """Rows of one block in a folder that all processes reach."""

    folder: str
    first_row: int
    n_rows: int
    bits: bool  # values are 0 and 1: eight of them in a byte
    labels: ArrayRef  # of shape (n_samples, n_starts), uint8: the clusters of round 0

    def _path(self, start: int, kind: str, round_: int) -> Location:
        return as_location(self.folder) / f"{kind}-{start}-{round_}-{self.first_row}.npy"

    def get(self, start: int, kind: str, round_: int) -> np.ndarray:
        """Return the arrays that a round stored."""
        if kind == "clusters" and round_ == 0:
            return self.labels.read(self.first_row, self.first_row + self.n_rows)[:, start]
        with self._path(start, kind, round_).open("rb") as file:
            values = np.load(file, allow_pickle=False)
        return np.unpackbits(values, count=self.n_rows) if self.bits else values

    def put(self, start: int, kind: str, round_: int, values: np.ndarray) -> None:
        """Store it beside its name and rename: a reader never sees half of it."""
        with replaced_file(self._path(start, kind, round_), sync=False) as file:
            np.save(file, np.packbits(values) if self.bits else values)


def write_arrays(path: Location, **arrays: np.ndarray) -> str:
    """Write small arrays for the tasks to read; return the path."""
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # none is called allow_pickle
    return str(path)


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote."""
    with as_location(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


class PlanePasses:
    """Passes over stored data, one for all starts at a time.

    Parameters
    ----------
    blocks : RowBlocks
    labels : ArrayRef of shape (n_samples, n_starts), uint8
    folder : Path or ObjectPath
        Where planes, clusters and what the tasks share are stored.
    bits : bool
        There are two clusters.
    keep_bytes : int
        Bytes of X that a worker process may keep between passes.
    """

    def __init__(
        self, blocks: RowBlocks, labels: ArrayRef, folder: Location, bits: bool, keep_bytes: int
    ) -> None:
        self.blocks, self.labels, self.folder = blocks, labels, folder
        self.bits, self._keep = bits, (f"m3fs-{uuid.uuid4().hex[:8]}", keep_bytes)

    def step(self, requests: Sequence[Request], Vs: Sequence[np.ndarray]) -> list[PlaneSums]:
        """Run one fused pass."""
        shared = self._share(Vs)
        sums: list[PlaneSums] = map_reduce(
            _step_task,
            self.blocks.bounds,
            _add_lists,
            self.blocks.start_pass(),
            self._keep,
            tuple(requests),
            shared,
            str(self.folder),
            self.bits,
            self.labels,
            label="m3fs pass",
        )
        as_location(shared).unlink()
        return sums

    def finish(self, Vs: list[np.ndarray], clusters: ArrayRef) -> list[float]:
        """Write every start's clusters; return what the rows are short of their margins."""
        shared = self._share(Vs)
        hinges = self.blocks.reduce(_finish_kernel, np.add, shared, clusters, label="m3fs labels")
        as_location(shared).unlink()
        return [float(value) for value in hinges]

    def close(self) -> None:
        """Let the workers forget the blocks they keep."""
        client = active_client()
        if client is not None:
            client.run(forget, self._keep[0])
        forget(self._keep[0])

    def _share(self, Vs: Sequence[np.ndarray]) -> str:
        named = {f"v{i}": V for i, V in enumerate(Vs)}
        return write_arrays(self.folder / f"v-{uuid.uuid4().hex[:12]}.npz", **named)


def finish_block(X: np.ndarray, Vs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return every start's clusters (n_rows, n_starts), and its sum of losses."""
    clusters = np.empty((len(X), len(Vs)), dtype=np.uint8)
    hinges = np.empty(len(Vs))
    for i, V in enumerate(Vs):
        F = decisions(X, V)
        clusters[:, i] = clusters_of(F)
        hinges[i] = rivals(F, clusters[:, i])[1].sum()
    return clusters, hinges


def _load_all(shared: str) -> list[np.ndarray]:
    stored = read_arrays(shared)
    return [stored[f"v{i}"] for i in range(len(stored))]


def _finish_kernel(X: np.ndarray, first_row: int, shared: str, clusters: ArrayRef) -> np.ndarray:
    rows, hinges = finish_block(X, _load_all(shared))
    clusters.write(first_row, rows)
    return hinges


def _step_task(
    bounds: tuple[int, int],
    reader: BlockReader,
    keep: tuple[str, int],
    requests: tuple[Request, ...],
    shared: str,
    folder: str,
    bits: bool,
    labels: ArrayRef,
) -> list[PlaneSums]:
    """Do all starts' parts on one block, which stays in this process if there is room."""
    start, stop = bounds
    run, budget = keep
    X = memory.get(run, (reader.token, start), lambda: reader.read(start, stop), budget)
    rows = FileRows(folder, start, stop - start, bits, labels)
    Vs = _load_all(shared)
    return [advance(X, V, request, rows) for request, V in zip(requests, Vs, strict=True)]


def _add_lists(a: list[PlaneSums], b: list[PlaneSums]) -> list[PlaneSums]:
    return [mine + theirs for mine, theirs in zip(a, b, strict=True)]
