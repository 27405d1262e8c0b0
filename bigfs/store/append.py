"""Append rows to a store: written and checked beside it, then committed by one file.

The new chunks, including the former last one if it was not full, are written to a folder beside the
store. Then their files are moved into the store, which changes none of its rows. Its metadata,
which give the number of committed rows, are replaced last, atomically.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.core.memory import check_fits
from bigfs.store.formats.csr_store import read_dropped
from bigfs.store.formats.zarr_array import ZarrSource
from bigfs.store.grown import read_metadata
from bigfs.store.ingest import (
    IngestReport,
    holding,
    ingest_bytes,
    sources_in,
    write_left_out,
    write_store,
    writing_to,
)
from bigfs.store.lease import Lease
from bigfs.store.location import (
    Location,
    files_below,
    is_within,
    remove_tree,
    sync_path,
    sync_tree,
    write_atomic,
)
from bigfs.store.source import (
    Source,
    as_path,
    common_types,
    first_difference,
    is_store,
    open_matrix,
)
from bigfs.store.values import checksum


def append_rows(matrix: Source, store: Location, missing: str, memory_limit: int) -> IngestReport:
    """Append the rows of a matrix to a dense store of ours.

    Parameters
    ----------
    matrix : Source
    store : Path or ObjectPath
    missing : {"error", "zero", "drop_rows"}
    memory_limit : int
        Maximum resident size of this process, in bytes.

    Returns
    -------
    report : IngestReport
        Report on the whole store, with the values filled and rows dropped among the new rows.

    Raises
    ------
    InputError
        If the rows do not match those of the store, which then keeps its former rows.
    StorageError
        If writing fails; the store then keeps its former rows.
    MemoryLimitError
        If a chunk of the store, or what the source holds in memory, exceeds the limit.
    RunLockedError
        If another process is appending to the store.
    """
    if not is_store(store):
        raise InputError(
            f"{store} is not a store that bigfs wrote; rows can only be appended to such a store. "
            "Ingest without --append (append=True) first."
        )
    if missing == "mean":
        raise InputError(
            f"{store}: missing = mean would use the means of the new rows alone. Append with "
            "missing = zero or drop_rows, or ingest everything again."
        )
    partial = store.with_name(f"{store.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        with Lease(store) as lease, holding(partial, store, grows=True):
            return _append(matrix, store, partial, missing, memory_limit, lease)
    finally:
        remove_tree(partial)


def _append(
    matrix: Source,
    store: Location,
    partial: Location,
    missing: str,
    memory_limit: int,
    lease: Lease,
) -> IngestReport:
    stored = open_matrix(store)
    _check_alike(matrix, stored, store)
    assert isinstance(stored, ZarrSource)
    group, array = read_metadata(store), read_metadata(store / "X")
    attributes, n = group["attributes"], stored.n_samples
    rows = int(array["chunk_grid"]["configuration"]["chunk_shape"][0])
    needed = ingest_bytes(rows * stored.n_features * stored.dtype.itemsize, matrix.held_bytes)
    check_fits("data", needed, memory_limit, "reading the input")
    n_full, former = n // rows, attributes["checksums"]
    last = stored.read(n_full * rows, n)
    if len(last) and checksum(last) != former[n_full]:
        raise CorruptStoreError(
            f"{store}: its last chunk is damaged. Run 'bigfs inspect --verify' on it."
        )
    report = write_store(matrix, partial, store, missing, rows, stored)
    total, added = n + report.n_samples, read_metadata(partial)["attributes"]
    if total == n:
        raise InputError(f"{matrix.uri}: none of its rows are left. Nothing was appended.")
    kept = {
        **attributes,
        "n_samples": total,
        "checksums": [*former[:n_full], *added["checksums"]],
        "appends": [*attributes.get("appends", ()), [n, former[n_full] if len(last) else ""]],
        "stored_dtype": np.result_type(attributes["stored_dtype"], added["stored_dtype"]).str,
        "sources": [*_sources(attributes, n), *_sources(added, total - n)],
        "filled_values": attributes["filled_values"] + report.filled_values,
        "dropped_rows": attributes["dropped_rows"] + report.dropped_rows,
    }
    if "column_types" in attributes:
        kept["column_types"] = {} if report.filled_values else common_types([stored, matrix])
    left_out = np.asarray(read_dropped(added.get("dropped", ()), partial), dtype=np.int64)
    if len(left_out):
        before = np.asarray(stored.dropped, dtype=np.int64)
        joined = np.concatenate([before, left_out + n + len(before)])
        kept |= write_left_out(partial, joined, *_chunk_of(store / "dropped"))
    with writing_to(store, grows=True):
        if isinstance(partial, Path):
            sync_tree(partial)
        lease.check()
        for name in ("X",) if stored.index is None else ("X", "index"):
            _move_chunks(partial / name / "c", store / name / "c", n_full)
            about = read_metadata(store / name)
            _write_metadata(store / name, {**about, "shape": [total, *about["shape"][1:]]})
        if len(left_out):  # the old numbers come first
            _move_chunks(partial / "dropped" / "c", store / "dropped" / "c", 0)
            _write_metadata(store / "dropped", read_metadata(partial / "dropped"))
        lease.check()
        group.pop("consolidated_metadata", None)  # it would hold the former shapes
        _write_metadata(store, {**group, "attributes": kept})
    return replace(
        report,
        n_samples=total,
        n_chunks=len(kept["checksums"]),
        nbytes=total * stored.n_features * stored.dtype.itemsize,
        appended_rows=total - n,
    )


def _chunk_of(array: Location) -> list[int]:
    """Return the rows per chunk of an array in a list, which is empty if there is no array."""
    with suppress(FileNotFoundError):
        return [int(read_metadata(array)["chunk_grid"]["configuration"]["chunk_shape"][0])]
    return []


def _sources(attributes: dict[str, Any], n_samples: int) -> list[Any]:
    """Return the sources recorded in a store's attributes, with the number of rows of each."""
    return attributes.get("sources") or [[attributes["source"], n_samples]]


def _check_alike(matrix: Source, stored: Source, store: Location) -> None:
    """Raise InputError unless the rows of a matrix can be appended to a store."""
    why, cure, uris = "", "", [part.uri for part in sources_in(matrix)]
    if matrix.sparse or stored.sparse:
        why, cure = "sparse rows cannot be appended", "Ingest all sources as a list"
    elif matrix.grid is not None or stored.grid is not None:
        why, cure = "pixels of a cube cannot be appended", "Ingest all cubes as a list"
    elif matrix.n_features != stored.n_features:
        why = f"it has {matrix.n_features} features, but the store has {stored.n_features}"
    elif differing := first_difference(matrix.feature_names, stored.feature_names):
        why = f"its feature {differing[0]} is {differing[1]!r}, but {differing[2]!r} in the store"
    elif not np.can_cast(matrix.dtype, stored.dtype):
        why = f"its values are {matrix.dtype.name}, but {stored.dtype.name} in the store"
    elif (matrix.index is None) != (stored.index is None):
        which = "the store has" if matrix.index is None else "it has"
        why, cure = f"only {which} row ids", "Give the --index with which the store was written"
    elif any(place and is_within(place, store) for place in map(as_path, uris)):
        why = "it is the store itself"
    if why:
        cure = cure or "Convert it to the form of the store, or ingest everything again"
        raise InputError(f"{matrix.uri} cannot be appended to {store}: {why}. {cure}.")


def _move_chunks(new: Location, old: Location, first: int) -> None:
    """Move chunk files into the store; the old last chunk is replaced atomically."""
    for name in files_below(new):
        number, _, rest = name.partition("/")
        place = old / str(int(number) + first)
        place = place / rest if rest else place
        if isinstance(old, Path) and isinstance(new, Path) and isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(place)
            sync_path(place.parent)
            sync_path(old)
        else:
            write_atomic(place, (new / name).read_bytes())


def _write_metadata(node: Location, metadata: dict[str, Any]) -> None:
    write_atomic(node / "zarr.json", json.dumps(metadata, indent=2))
