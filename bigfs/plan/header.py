"""The inputs of a plan: the header of the data, and the place of the run.

Nothing is read of the data but their shape, and the values of columns of categories; nothing is
written and no cluster is started.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigfs.config import Config
from bigfs.core.cost import Shape
from bigfs.plan.plan import Place
from bigfs.runtime import connect, scheduler_address, worker_limits
from bigfs.runtime.execute import worker_slots
from bigfs.store.chunking import block_rows, check_block_rows, chunk_rows
from bigfs.store.csr import CSRLayout, SparseSource
from bigfs.store.location import as_location, files_below, free_bytes
from bigfs.store.records import MARK
from bigfs.store.source import RandomAccessSource, Source, is_store


@dataclass(frozen=True)
class Header:
    """The header of an input."""

    n_samples: int | None  # None where nothing tells, not even the size of the file
    n_features: int
    itemsize: int
    chunk_rows: int  # of the store that the stages read
    stored: bool  # whether the input is a store already; else it is brought into one first
    exact: bool  # whether ``n_samples`` is the true number
    # How a sparse input is cut. None: it is dense.
    csr: CSRLayout | None = None
    held_bytes: int = 0  # what reading the input takes beyond blocks of it
    temporary_bytes: int = 0  # what reading the input writes to disk

    def shape(self, rows: int | None, *, sparse: bool = False) -> Shape | None:
        """Return the shape with so many rows in a block; None: as many as the stages choose.

        Parameters
        ----------
        rows : int or None
        sparse : bool, default=False
            Whether blocks are in CSR form where the input is sparse; else they are made dense.

        Raises
        ------
        InputError
            If blocks of so many rows would read chunks of the input, or of its copy, twice.
        """
        if self.n_samples is None:
            return None
        if self.csr is not None and sparse:
            csr, rows = self.csr, rows or self.csr.rows
            check_block_rows(rows, csr.rows, self.n_samples)
            largest = min(csr.n_entries, -(-rows // csr.rows) * csr.block_entries)
            sizes = (self.n_samples, self.n_features, self.itemsize, rows)
            return Shape(*sizes, csr.rows, csr.n_entries, largest)
        chunk = self.chunk_rows
        rows = rows or block_rows(self.n_features, self.itemsize, chunk)
        if self.csr is None:  # a sparse input is read dense by any rows
            check_block_rows(rows, chunk, self.n_samples)
        return Shape(self.n_samples, self.n_features, self.itemsize, rows, chunk)


def header_of(source: Source, uri: str, missing: str = "error") -> Header:
    """Return the header of an opened input."""
    stored = source.checked and is_store(uri)
    itemsize = source.dtype.itemsize
    chunk = None
    if stored and isinstance(source, RandomAccessSource) and not source.sparse:
        chunk = source.chunk_rows
    return Header(
        source.estimated_samples,
        source.n_features,
        itemsize,
        chunk or chunk_rows(source.n_features, itemsize),
        stored,
        source.n_samples is not None and missing != "drop_rows",
        source.layout if isinstance(source, SparseSource) else None,
        source.held_bytes,
        source.temporary_bytes,
    )


def place_of(config: Config, scheduler: str | None = None) -> Place:
    """Return where a run would take place, and what there is."""
    limit, free = config.memory_limit, free_scratch(config.run)
    address = scheduler_address(scheduler, config.cluster)
    if address is not None:
        with connect(address, config.cluster, limit):
            return _connected(limit, free)
    if config.cluster is not None:
        n_workers, threads = config.cluster.n_workers or 1, config.cluster.threads_per_worker or 1
        if config.cluster.kind != "local":
            return Place(limit, threads, free_scratch_bytes=free)
        return Place(limit, threads, _machine_bytes(), n_workers, free)
    return _connected(limit, free)


def _machine_bytes() -> dict[str, int]:
    from distributed.system import MEMORY_LIMIT

    return {"this machine": int(MEMORY_LIMIT)}


def _connected(limit: int, free: int | None) -> Place:
    """Return the place of the scheduler in scope, or of the threads of this process."""
    _, threads = worker_slots()
    return Place(limit, threads, worker_limits(), 1, free)


def free_scratch(run: str) -> int | None:
    """Return the bytes that a run directory may take: what is free, and what it has already."""
    place = as_location(run)
    folder: Any = place
    # Of os.path: a name that no file can have is only not there.
    while isinstance(folder, Path) and not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    free = free_bytes(folder)
    if free is None or folder != place or not (place / MARK).is_file():
        return free
    return free + sum(size for size, _ in files_below(place).values())
