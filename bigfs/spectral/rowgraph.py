"""W as row blocks in partition order, each with the list of foreign rows its edges lead to.

Blocks are files in a scratch folder. A block's columns are local: its own rows come first, then
the rows of other blocks it has edges to, its halo. Each block also knows which of its rows every
other one asks for and keeps copies of them together (see `bigfs.spectral.rowblocks`), so that a
product takes one ranged read per neighboring block, of exactly the rows it needs.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.lib import format as npy

from bigfs.graph import AffinityMatrix, connected_components
from bigfs.graph.shuffle import Receipt, RunColumn, Runs, commit_runs, write_run
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.spectral.chebyshev import weight_type
from bigfs.spectral.problem import check_rows
from bigfs.store.chunking import block_bounds
from bigfs.store.location import Location, as_location, new_file
from bigfs.store.scratch import ArrayRef, Scratch

# Blocks wanted, and the rows one may have: enough to be worth a task, few enough for memory.
_BLOCKS = 16
LEAST_ROWS = 2048
_MOST_ROWS = 2**18
# Entries of W that one task sends to their blocks.
_ENTRIES = 2**22

_EDGES = (RunColumn("row", "int32"), RunColumn("column", "int32"), RunColumn("weight", "float64"))


@dataclass(frozen=True)
class RowGraph:
    """Addresses of the row blocks; pickles to a few hundred bytes."""

    folder: str
    n_samples: int
    nnz: int
    n_blocks: int
    n_connected: int  # connected components
    # Of shape (n_blocks, 5), int64: first row, one past the last, rows copied for others, and the
    # attempts that count of the files of the block's edges and links.
    tables: ArrayRef
    volumes: ArrayRef  # of shape (n_connected,), float64: sums of degrees
    # Of shape (n_samples,), int32: where each row of the graph is in the order of the blocks.
    place: ArrayRef
    halo_rows: int  # rows that all blocks together need of others

    def bounds(self, block: int) -> tuple[int, int]:
        """Return the first row of a block, and one past its last."""
        start, stop = _table(self.tables)[block, :2].tolist()
        return start, stop

    def extent(self, block: int) -> tuple[int, int]:
        """Return how many rows a block has, and how many of them it copies for others."""
        start, stop, copied, _, _ = _table(self.tables)[block].tolist()
        return stop - start, copied

    def locate(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the blocks of consecutive rows of the graph, and their places in these."""
        places, bounds = self.place.read(start, stop), _table(self.tables)[:, :2]
        blocks = np.searchsorted(bounds[:, 1], places, side="right")
        return blocks, places - bounds[blocks, 0]

    def edges(self, block: int) -> Edges:
        """Read a block's rows of W."""
        attempt = int(_table(self.tables)[block, 3])
        return Edges(*load_arrays(_path(self.folder, "edges", block, attempt)))

    def halo(self, block: int) -> np.ndarray:
        """Read the rows of other blocks that a block has edges to, in the order of its columns."""
        attempt = int(_table(self.tables)[block, 3])
        [halo] = load_arrays(_path(self.folder, "halo", block, attempt))
        return halo

    def links(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Read what a block gives and takes.

        Returns
        -------
        given : ndarray of shape (n_copied,), int32
            Its rows that others need, by who needs them.
        taken : ndarray of shape (n_neighbors, 3), int64
            Blocks it takes rows from, the first among their copies, and how many.
        """
        attempt = int(_table(self.tables)[block, 4])
        sent, received = load_arrays(_path(self.folder, "links", block, attempt))
        return sent, received


@dataclass(frozen=True)
class Edges:
    """A block's rows of W."""

    # CSR; columns are local: own rows, then the halo's in the order of the links.
    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray
    degrees: np.ndarray  # of shape (n_rows,), float64
    labels: np.ndarray  # of shape (n_rows,), int32: connected components, by their first row
    ids: np.ndarray  # of shape (n_rows,), int64: the rows' numbers in the graph


@lru_cache(maxsize=4)
def _table(ref: ArrayRef) -> np.ndarray:
    """Read a table once per process: it never changes."""
    return ref.load()


def wanted_rows(n_samples: int, most_rows: int) -> int:
    """Return how many rows a block is to have, before partitions are kept whole."""
    most = min(_MOST_ROWS, 2 * most_rows // 5)
    return max(1, min(max(-(-n_samples // _BLOCKS), LEAST_ROWS), most))


def block_starts(sizes: Sequence[int], most_rows: int = _MOST_ROWS) -> list[int]:
    """Return where blocks begin, and the number of rows: whole partitions where they fit.

    Parameters
    ----------
    sizes : sequence of int
        Rows of each partition, in order.
    most_rows : int
        Rows that fit one task.
    """
    n = sum(sizes)
    # A rest of up to 0.7 of a block and a partition of 1.5 come together, and 0.3 at the end.
    wanted = wanted_rows(n, most_rows)
    starts, filled = [0], 0
    for size in sizes:
        pieces = max(1, round(size / wanted))
        for piece in range(1, pieces + 1):
            edge = filled + size * piece // pieces
            if edge - starts[-1] >= 0.7 * wanted:
                starts.append(edge)
        filled += size
    if n - starts[-1] > 0.3 * wanted or len(starts) == 1:
        starts.append(n)
    starts[-1] = n
    return starts


def build_row_graph(W: AffinityMatrix, tol: float, most_rows: int, scratch: Scratch) -> RowGraph:
    """Bring W into row blocks: one pass over it, through the shuffle.

    Raises
    ------
    InputError
        If a weight is negative or a degree is not positive.
    """
    folder = str(scratch.child("graph").path)
    n_connected, labels = connected_components(W, scratch=scratch)
    order = scratch.create("order", (W.n_samples,), np.int64, 2**20)
    place = scratch.create("place", (W.n_samples,), np.int32, 2**20)
    [sizes] = run_tasks(_order_task, [W.partitions], order, place, label="partition order")
    starts = block_starts(sizes.tolist(), most_rows)
    blocks, bounds = range(len(starts) - 1), scratch.put("starts", np.array(starts))
    runs = _send_edges(W, bounds, place, scratch)
    built = run_tasks(
        _edges_task, blocks, bounds, runs, order, labels, tol, folder, label="row blocks"
    )
    runs.remove()
    # needs[c, a]: how many rows of block a block c needs.
    needs = np.stack([counts for _, counts in built])
    tables = np.zeros((len(blocks), 5), dtype=np.int64)
    tables[:, 0], tables[:, 1], tables[:, 2] = starts[:-1], starts[1:], needs.sum(axis=0)
    tables[:, 3] = [attempt for attempt, _ in built]
    links = (scratch.put("edges", tables), scratch.put("needs", needs))
    tables[:, 4] = run_tasks(_links_task, blocks, *links, folder, label="halos")
    graph = RowGraph(
        folder, W.n_samples, W.nnz, len(blocks), n_connected, scratch.put("tables", tables),
        scratch.create("volumes", (n_connected,), np.float64), place, int(needs.sum()),
    )  # fmt: skip
    graph.volumes.write(0, map_reduce(_volumes_task, blocks, np.add, graph, label="volumes"))
    scratch.remove(order, labels)
    return graph


def _order_task(partitions: ArrayRef | None, order: ArrayRef, place: ArrayRef) -> np.ndarray:
    """Sort the rows by partition, those of one by number; return the partitions' sizes."""
    n = order.shape[0]
    homes = np.zeros(n, dtype=np.int32) if partitions is None else partitions.load()
    sorted_rows = np.argsort(homes, kind="stable")
    order.write(0, sorted_rows)
    places = np.empty(n, dtype=np.int32)
    places[sorted_rows] = np.arange(n, dtype=np.int32)
    place.write(0, places)
    return np.bincount(homes)


def _send_edges(W: AffinityMatrix, starts: ArrayRef, place: ArrayRef, scratch: Scratch) -> Runs:
    """Send every row of W to its block."""
    rows = max(1, _ENTRIES * W.n_samples // W.nnz)
    folder = str(scratch.child("runs").path)
    receipts = run_tasks(
        _send_task, block_bounds(W.n_samples, rows), W, rows, starts, place, folder, label="edges"
    )
    return commit_runs(scratch, folder, _EDGES, receipts)


def _send_task(
    bounds: tuple[int, int], W: AffinityMatrix, rows: int, starts: ArrayRef, place: ArrayRef,
    folder: str,
) -> Receipt:  # fmt: skip
    start, stop = bounds
    indptr = W.indptr.read(start, stop + 1)
    first, last = int(indptr[0]), int(indptr[-1])
    weights = W.data.read(first, last)
    check_rows(indptr - first, weights, W.degrees.read(start, stop), np.arange(start, stop))
    heads = np.repeat(place.read(start, stop), np.diff(indptr))
    tails = place.take(W.indices.read(first, last)).astype(np.int32)
    edges = starts.load()
    targets = np.searchsorted(edges, heads, side="right") - 1
    values = {"row": heads, "column": tails, "weight": weights}
    return write_run(folder, start // rows, targets, len(edges) - 1, values)


def _edges_task(
    block: int, starts: ArrayRef, runs: Runs, order: ArrayRef, labels: ArrayRef, tol: float,
    folder: str,
) -> tuple[int, np.ndarray]:  # fmt: skip
    """Store a block's edges and its halo; return the attempt and the halo's rows by block."""
    bounds = starts.load()
    start, stop = int(bounds[block]), int(bounds[block + 1])
    heads, tails, weights = runs.read(block, "row", "column", "weight")
    sorted_edges = np.lexsort((tails, heads))
    heads, tails = heads[sorted_edges] - start, tails[sorted_edges]
    weights = weights[sorted_edges]
    own = (tails >= start) & (tails < stop)
    halo, positions = np.unique(tails[~own], return_inverse=True)
    tails[own] -= start
    tails[~own] = positions + (stop - start)
    counts = np.bincount(heads, minlength=stop - start)
    ids = order.read(start, stop)
    attempt = secrets.randbits(62)
    save_arrays(
        _path(folder, "edges", block, attempt),
        np.concatenate([[0], np.cumsum(counts)]),
        tails,
        weights.astype(weight_type(weights, tol)),
        np.bincount(heads, weights, stop - start),
        labels.take(ids).astype(np.int32),
        ids,
    )
    save_arrays(_path(folder, "halo", block, attempt), halo)
    owners = np.searchsorted(bounds, halo, side="right") - 1
    return attempt, np.bincount(owners, minlength=len(bounds) - 1)


def _links_task(block: int, edges: ArrayRef, needs: ArrayRef, folder: str) -> int:
    """Store what a block gives to others, and where it finds what it takes; return the attempt."""
    tables, wanted = edges.load(), needs.load()
    sent = [np.zeros(0, dtype=np.int32)]
    for other in np.flatnonzero(wanted[:, block]):
        [halo] = load_arrays(_path(folder, "halo", int(other), int(tables[other, 3])))
        first = int(wanted[other, :block].sum())
        sent.append(halo[first : first + wanted[other, block]] - np.int32(tables[block, 0]))
    received = [
        (owner, wanted[:block, owner].sum(), wanted[block, owner])
        for owner in np.flatnonzero(wanted[block])
    ]
    attempt = secrets.randbits(62)
    table = np.array(received, dtype=np.int64).reshape(-1, 3)
    save_arrays(_path(folder, "links", block, attempt), np.concatenate(sent), table)
    return attempt


def _volumes_task(block: int, graph: RowGraph) -> np.ndarray:
    edges = graph.edges(block)
    return np.bincount(edges.labels, edges.degrees, graph.n_connected)


def _path(folder: str, kind: str, block: int, attempt: int) -> Location:
    return as_location(folder) / f"{kind}-{block:05d}-{attempt:016x}"


def save_arrays(path: Location, *arrays: np.ndarray) -> None:
    """Write arrays one after the other."""
    with new_file(path) as file:
        for array in arrays:
            npy.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def load_arrays(path: Location) -> list[np.ndarray]:
    """Read the arrays of a file."""
    arrays = []
    with path.open("rb") as file:
        while file.read(1):
            file.seek(-1, 1)
            arrays.append(npy.read_array(file, allow_pickle=False))
    return arrays
