"""zarr arrays and groups, versions 2 and 3: in folders, .zip files and buckets, and as objects."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bigfs.core.context import ignoring_warnings
from bigfs.core.errors import InputError
from bigfs.core.uris import SOURCE
from bigfs.store.formats.csr_store import StoredCSR
from bigfs.store.formats.cube import CubeSource, Place, names_of_dimensions
from bigfs.store.formats.parts import open_here
from bigfs.store.formats.xarrays import (
    decoded,
    is_described,
    named_beside,
    open_described,
    read_labels,
)
from bigfs.store.formats.zarr_files import METADATA, checked_store, expect
from bigfs.store.formats.zarr_rows import ZarrSource, check_chunks, folder_of, open_rows
from bigfs.store.location import METADATA_BYTES, Location
from bigfs.store.objects import ObjectPath
from bigfs.store.records import UNFINISHED
from bigfs.store.source import Source, choose_member, no_column
from bigfs.store.values import refusing

# The largest band of whole chunks that is decoded at once.
_BAND_BYTES = 256 * 10**6


def preview(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of the arrays of a group; none where it is no group."""
    try:
        return [(name, a.shape, str(a.dtype)) for name, a in _arrays(open_node(path)).items()]
    except Exception:  # zarr has no one error for what it cannot open
        return []


def read_column(path: Location, name: str, rows: Sequence[str] = ()) -> Any:
    """Return an array by its name, ``y`` if it has none; a column of ``obs`` of an AnnData.

    ``rows`` are the dimensions of the rows that it belongs to, where they are known.
    """
    node = open_node(path)
    if _is_annotated(node):
        from bigfs.store.formats import annotated

        return annotated.read_column(path, name)
    is_group = hasattr(node, "group_keys")
    if is_group and name == SOURCE and "sources" in node.attrs:
        counts = [count for _, count in node.attrs["sources"]]
        return np.repeat(np.arange(len(counts)), np.array(counts, dtype=np.int64))
    arrays = _arrays(node) if is_group else {}
    if is_group and (name or "y") not in arrays:
        raise no_column(str(path), name or "y", arrays)
    array = arrays[name or "y"] if is_group else node
    expect(array)
    others = [names_of_dimensions(other) for other in arrays.values()]
    dims, uri = names_of_dimensions(array), f"{path}::{name}" if name else str(path)
    return read_labels(array, dims, _attributes(array) if dims else {}, others, rows, uri)


def open_zarr(
    node: Any,
    variable: str | None,
    uri: str | None = None,
    layer: str | None = None,
    **cube: Any,
) -> Source:
    """Open a zarr array, ``X`` (or ``variable``) of a group, a store of CSR blocks, an AnnData.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, where they are given.
    """
    import zarr

    uri = uri or str(node.store_path).removeprefix("file://")
    if isinstance(node, zarr.Array):
        if variable is not None:
            raise InputError(f"{uri} holds one matrix; variable must be None. Got {variable!r}.")
        with refusing(f"{uri} is a damaged zarr folder", Exception):
            attributes = dict(node.attrs)
        return open_array(node, uri, attributes=attributes, **cube)
    if not isinstance(node, zarr.Group):
        raise InputError(f"{uri}: only zarr arrays and groups are read. Got {type(node).__name__}.")
    with refusing(f"{uri} is a damaged zarr folder", Exception):
        attributes = dict(node.attrs)
        if _is_annotated(node):
            from bigfs.store.formats.annotated import AnnotatedTree, open_stored

            folder = folder_of(node)
            tree = AnnotatedTree(node, None if folder is None else str(folder), uri)
            return open_stored(tree, variable, layer)
        if layer is not None:
            raise InputError(f"{uri} is no AnnData, which has layers. Leave out layer {layer!r}.")
        if variable in (None, "X") and "bigfs_store" in attributes and "csr" in attributes:
            place = folder_of(node)
            if place is None:
                raise InputError(f"{uri}: a sparse store is read from a folder. Give its path.")
            return StoredCSR(place, attributes)
        arrays = _arrays(node)
        beside = named_beside(array.attrs for array in arrays.values())
        large = [n for n, array in arrays.items() if array.ndim > 1 and n not in beside]
        name = choose_member(Path(uri), sorted(arrays), large, variable)
        group = node[name.rpartition("/")[0]] if "/" in name else node
        return open_array(arrays[name], uri, name, attributes, group, **cube)


def open_array(
    array: Any,
    uri: str,
    member: str = "",
    attributes: Mapping[str, Any] = MappingProxyType({}),
    group: Any = None,
    **cube: Any,
) -> Source:
    """Open an array, with the names that its group has for its features.

    Parameters
    ----------
    array : zarr.Array
    uri : str
    member : str, default=""
        Its name in the store.
    attributes : mapping, default={}
        Of the store.
    group : zarr.Group or None, default=None
        The group that it is in, if that is known.
    **cube
        ``features`` and ``no_data`` of a `CubeSource`, where they are given.
    """
    dims, folder = names_of_dimensions(array), folder_of(array)
    as_matrix = array.ndim < 3 and not cube
    ours = "bigfs_store" in attributes and member == "X"
    place: Place = partial(open_here, array)
    if folder is not None:
        place = partial(open_rows, str(folder))
    source: CubeSource | None = None
    if dims is not None and not ours and as_matrix <= (array.ndim > 1):
        source = _described(array, uri, member, group, dims, place, cube)
    if as_matrix and (source is None or source.is_plain):
        names = None if source is None else source.feature_names
        with_names = attributes if names is None else {**attributes, "feature_names": names}
        matrix = ZarrSource(array, uri, member, dict(with_names))
        if ours or matrix.chunk_rows == 1 or matrix.band_bytes <= _BAND_BYTES:
            return matrix
    if folder is not None:
        expect(array)
        check_chunks(array, uri)
    return source or CubeSource(uri, place, dims, **cube)


def _described(
    array: Any, uri: str, member: str, group: Any, dims: list[str], place: Place,
    cube: Mapping[str, Any],
) -> CubeSource | None:  # fmt: skip
    """Open an array of xarray's conventions; None if it is of none."""
    attributes, name = _attributes(array), member.rpartition("/")[2]
    beside = {} if group is None else dict(group.arrays())
    along = [d for d in dims if d in beside and beside[d].nbytes <= METADATA_BYTES]
    if not is_described(attributes, bool(along)):
        return None
    if not beside:
        return decoded(uri, place, dims, attributes, **cube)
    for dim in along:
        expect(beside[dim])
    others = [other for other in beside if other != name and other not in along]
    return open_described(
        uri, array.store_path.store, array.path, place, others, cube,
        engine="zarr", consolidated=False,
    )  # fmt: skip


def _attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of an array that xarray has written."""
    attributes = dict(array.attrs)
    filled = attributes.get("_FillValue")
    # xarray takes the fill value of version 2 for that of missing values, and packs that of
    # floats in version 3.
    if array.metadata.zarr_format == 2 and array.fill_value is not None:
        attributes["_FillValue"] = array.fill_value
    elif isinstance(filled, str) and array.dtype.kind == "f":
        with suppress(ValueError):
            attributes["_FillValue"] = np.frombuffer(b64decode(filled), "<f8")[0]
    return attributes


def _arrays(group: Any) -> dict[str, Any]:
    """Return the arrays of a group, and of those in it, by name; empty for an array."""
    if not hasattr(group, "group_keys"):
        return {}
    with ignoring_warnings():  # zarr warns of other files in the folder
        arrays = dict(group.arrays())
        for name, inner in group.groups():
            arrays |= {f"{name}/{key}": array for key, array in _arrays(inner).items()}
    return arrays


def _is_annotated(node: Any) -> bool:
    """Say whether a node is the group of an AnnData or a MuData."""
    if not hasattr(node, "group_keys"):
        return False
    kind = node.attrs.get("encoding-type")
    return kind in ("anndata", "MuData") or kind is None and "obs" in node and "var" in node


def open_node(path: Location) -> Any:
    """Open an array or group at a place: a folder, a .zip of it, or one in a bucket.

    Raises
    ------
    InputError
        If there is none, or its metadata are damaged.
    """
    import zarr

    store, inside = checked_store(path)
    with refusing(f"{path} is a damaged zarr folder", Exception):
        if not inside and isinstance(store, zarr.storage.ZipStore):
            tops = {name.partition("/")[0] for name in store._zf.namelist()}
            inside = "" if not tops.isdisjoint(METADATA) else min(tops, default="")
        try:
            return zarr.open(store, path=inside, mode="r")
        except FileNotFoundError:
            raise InputError(f"{path} is a folder, but no zarr array or group.") from None


def open_file(
    path: Location, variable: str | None, layer: str | None = None, **cube: Any
) -> Source:
    """Open a zarr folder."""
    if isinstance(path, ObjectPath) and (path / UNFINISHED).is_file():
        raise InputError(
            f"{path} is not finished: its ingest still runs, or was cut off. Wait for it, or "
            "ingest again with --overwrite."
        )
    return open_zarr(open_node(path), variable, str(path), layer, **cube)
