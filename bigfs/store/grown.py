"""Stores that rows are appended to: committed rows, and proof that old rows are unchanged.

Writing the attributes of a store is its commit: ``n_samples`` is the number of committed rows of
``X``, and ``appends`` holds, for every append, the number of rows before it and the former checksum
of the last chunk if that was not full. So the checksums of any former state are known.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bigfs.core.errors import StorageError
from bigfs.core.paths import parse_json
from bigfs.store.location import METADATA_BYTES, Location, files_below, read_small, zarr_store
from bigfs.store.values import checksum

# Attributes that change when rows are appended.
_GROWING = (
    "checksums", "n_samples", "appends", "sources", "dropped", "filled_values", "dropped_rows",
)  # fmt: skip


def read_metadata(node: Location) -> dict[str, Any]:
    """Return the metadata of a zarr group or array of version 3.

    Raises
    ------
    ValueError, OSError
        If the metadata are missing or invalid.
    """
    metadata = parse_json(read_small(node / "zarr.json", METADATA_BYTES))
    if not isinstance(metadata, dict):
        raise ValueError("its metadata are not a mapping")
    return metadata


def count_rows(store: Location) -> int | None:
    """Return the number of committed rows of a dense store of ours; None for anything else.

    Raises
    ------
    StorageError
        If the storage does not respond.
    """
    try:
        read_metadata(store / "X")
        return _rows_of(read_metadata(store)["attributes"])
    except StorageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def key_of_rows(
    store: Location, n_samples: int, times: Literal["none", "modified", "all"] = "none"
) -> str | None:
    """Return a key of a dense store of ours in its former state with ``n_samples`` rows.

    The key is the same before and after rows are appended.

    Parameters
    ----------
    store : Path or ObjectPath
    n_samples : int
    times : {"none", "modified", "all"}, default="none"
        Whether the key also depends on sizes and modification times of the files of full chunks
        ("modified"), or on their status change times too ("all").

    Returns
    -------
    key : str or None
        None if the store never had exactly this number of rows, or is not a dense store of ours.
    """
    try:
        group, array = read_metadata(store), read_metadata(store / "X")
        attributes = group["attributes"]
        rows = int(array["chunk_grid"]["configuration"]["chunk_shape"][0])
        sums = _sums_at(attributes, _rows_of(attributes), n_samples, rows)
        files = _times_of_chunks(store / "X", n_samples // rows) if times != "none" else []
        known = {name: array[name] for name in ("data_type", "chunk_grid", "codecs")}
        shape = [n_samples, array["shape"][1]]
    except StorageError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if sums is None:
        return None
    record = {
        "attributes": {k: v for k, v in sorted(attributes.items()) if k not in _GROWING},
        "array": known,
        "shape": shape,
        "checksums": sums,
    }
    if times != "none":
        record["files"] = [file[: 2 if times == "modified" else 3] for file in files]
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16]


def has_last_rows(store: Location, n_samples: int) -> bool:
    """Return True if the last, partial chunk of a former state still has the same values.

    Appending rows replaces the file of this chunk, so its values are compared with their former
    checksum.
    """
    import zarr

    array = zarr.open_array(zarr_store(store / "X"), mode="r")
    rows, attributes = int(array.chunks[0]), read_metadata(store)["attributes"]
    sums = _sums_at(attributes, _rows_of(attributes), n_samples, rows)
    last = np.asarray(array[n_samples // rows * rows : n_samples])
    return not len(last) or (sums is not None and checksum(last) == sums[-1])


def uncommitted(name: str, n_chunks: int | None) -> bool:
    """Return True if a file below a store belongs to an uncommitted append.

    Parameters
    ----------
    name : str
        Path relative to the store.
    n_chunks : int or None
        Number of committed chunks; None if unknown.
    """
    parts = name.split("/")
    if n_chunks is None or parts[0] not in ("X", "index", "lease.json"):
        return False
    is_chunk = len(parts) > 2 and parts[1] == "c" and parts[2].isdigit()
    return parts[0] == "lease.json" or (is_chunk and int(parts[2]) >= n_chunks)


def count_chunks(store: Location) -> int | None:
    """Return the number of committed chunks of a dense store of ours; None for anything else."""
    rows = count_rows(store)
    if rows is None:
        return None
    step = read_metadata(store / "X")["chunk_grid"]["configuration"]["chunk_shape"][0]
    return -(-rows // int(step))


def _rows_of(attributes: dict[str, Any]) -> int:
    """Return the number of committed rows."""
    if "bigfs_store" not in attributes:
        raise ValueError("not a store that bigfs wrote")
    return int(attributes["n_samples"])


def _sums_at(attributes: dict[str, Any], n_now: int, n_samples: int, rows: int) -> list[str] | None:
    """Return the checksums of a store's state with ``n_samples`` rows; None if there was none."""
    sums = list(attributes["checksums"])
    if n_samples == n_now:
        return sums
    for before, last in attributes.get("appends", ()):
        if before == n_samples:
            return sums[: n_samples // rows] + ([last] if n_samples % rows else [])
    return None


def _times_of_chunks(array: Location, count: int) -> list[tuple[Any, ...]]:
    """Return sizes and times of the files of the first ``count`` chunks."""
    if isinstance(array, Path):
        statuses = [(array / "c" / str(i) / "0").stat() for i in range(count)]
        return [(s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in statuses]
    there = files_below(array)
    return [there[f"c/{i}/0"] for i in range(count)]
