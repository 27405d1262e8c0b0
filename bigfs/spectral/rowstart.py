"""A start for row blocks: eigenvectors of a graph's first rows are sent to the blocks."""

from __future__ import annotations

import numpy as np

from bigfs.core.seeds import rng
from bigfs.graph.shuffle import Receipt, RunColumn, Runs, commit_runs, write_run
from bigfs.runtime.execute import run_tasks
from bigfs.spectral.rowblocks import GraphBlockReader, StoredIterate
from bigfs.spectral.rowgraph import RowGraph
from bigfs.spectral.start import RANDOM_SHARE, StoredStart
from bigfs.store.chunking import block_bounds
from bigfs.store.scratch import Scratch


def send_start(graph: RowGraph, start: StoredStart, scratch: Scratch) -> Runs:
    """Send the rows of a start to their blocks."""
    folder = str(scratch.child(scratch.unique("start")).path)
    runs = list(enumerate(block_bounds(start.n_samples, start.task_rows)))
    receipts = run_tasks(_send_task, runs, graph, start, folder, label="start")
    columns = (RunColumn("row", "int32"), RunColumn("values", "float32", start.width))
    return commit_runs(scratch, folder, columns, receipts)


def _send_task(
    run: tuple[int, tuple[int, int]], graph: RowGraph, start: StoredStart, folder: str
) -> Receipt:
    """Send consecutive rows of a start."""
    number, (first, last) = run
    blocks, rows = graph.locate(first, last)
    values = {"row": rows.astype(np.int32), "values": start.read(first, last)}
    return write_run(folder, number, blocks, graph.n_blocks, values)


def near_task(
    block: int, graph: RowGraph, target: StoredIterate, random_state: int, runs: Runs
) -> int:
    """Write a block's rows of a start, with a little of the random block; return the attempt."""
    rows, values = runs.read(block, "row", "values")
    return write_near(GraphBlockReader(graph, block), target, random_state, rows, values)


def write_near(
    reader: GraphBlockReader,
    target: StoredIterate,
    random_state: int,
    rows: np.ndarray | slice,
    values: np.ndarray,
) -> int:
    """Write a random block whose first columns are near some values; return the attempt.

    Parameters
    ----------
    reader : GraphBlockReader
    target : StoredIterate
    random_state : int
    rows : ndarray or slice
        The block's rows that have values.
    values : ndarray of shape (n_rows, n_near), float32
        Columns of unit D-norm over all blocks.
    """
    generator = rng(random_state, "spectral", reader.block)
    root, scale = np.sqrt(reader.edges.degrees)[:, None], np.sqrt(reader.graph.n_samples)
    panels, first = [], 0
    for width in target.widths:
        panel = generator.standard_normal((reader.n_rows, width)) / root
        part = values[:, first : first + width]
        columns = panel[:, : part.shape[1]]
        columns *= RANDOM_SHARE
        columns[rows] += part * scale
        panels.append(panel)
        first += width
    return reader.write(target, panels)


def mark_task(block: int, graph: RowGraph, target: StoredIterate, n_old: int) -> int:
    """Write one at new rows and zero elsewhere; return the attempt."""
    reader = GraphBlockReader(graph, block)
    return reader.write(target, [(reader.edges.ids >= n_old)[:, None]])


def sweep_task(
    block: int, graph: RowGraph, target: StoredIterate, source: StoredIterate,
    marked: tuple[StoredIterate, StoredIterate],
) -> int:  # fmt: skip
    """Make each row that is new, or joined to a new one, the mean of its neighbors.

    ``marked`` are new rows and the means of these marks over neighbors. Returns the attempt.
    """
    from scipy.sparse import csr_array

    reader = GraphBlockReader(graph, block)
    edges, panels = reader.edges, []
    joined = np.flatnonzero(reader.rows(*marked).any(axis=1))
    shape = (reader.n_rows, reader.n_rows + int(reader.links[1][:, 2].sum()))
    rows = csr_array((edges.weights, edges.indices, edges.indptr), shape=shape)[joined]
    for panel in source.panels:
        z = reader.wide(source, panel)
        z[joined] = (rows @ z) / edges.degrees[joined, None]
        panels.append(z[: reader.n_rows])
    return reader.write(target, panels)
