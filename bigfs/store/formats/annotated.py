"""AnnData: in HDF5 (.h5ad), in zarr of both versions, and as objects.

On disk every matrix has an attribute ``encoding-type`` that says how it is stored; ``var`` (and
``raw/var``) have the features' names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, InputTypeError
from bigfs.store.csr import CSRSource
from bigfs.store.formats.dask_array import open_dask
from bigfs.store.formats.hdf5 import H5Place, find, open_h5
from bigfs.store.formats.memory import ArraySource
from bigfs.store.formats.parts import PARTS, ArrayByRows, CSCParts, CSRParts, OpenPlace
from bigfs.store.formats.zarr_array import ZarrPlace, ZarrSource
from bigfs.store.formats.zarr_files import CheckedFiles
from bigfs.store.location import METADATA_BYTES, Location, zarr_store
from bigfs.store.source import (
    RandomAccessSource,
    Source,
    check_names,
    check_no_variable,
    listed,
    open_matrix,
)
from bigfs.store.values import decoding

ENCODING = "encoding-type"
SPARSE = {"csr_matrix": CSRParts, "csc_matrix": CSCParts}
_NAMES_AT_ONCE = 4096
_MOST_ROWS = 2**28


def open_file(path: Location, variable: str | None, layer: str | None = None) -> Source:
    """Open ``X``, a layer or ``raw`` of a .h5ad file."""
    check_no_variable(path, variable)
    with _on_disk(path) as (find, place):
        return open_stored(find, place, str(path), layer)


def _parts_of(file: Any, path: Location) -> tuple[Callable[[str], Any], Callable[[str], Any]]:
    """Return a function that finds the parts of an open file, and one that names their places."""
    place = str(path.absolute())
    return lambda name: find(file, name, str(path)), lambda name: H5Place(place, name)


def read_obs(path: Location, column: str) -> np.ndarray:
    """Return a column of ``obs`` of a .h5ad file or an AnnData zarr store.

    Raises
    ------
    InputError
        If there is no such column, it has missing values, or is of a kind that is not read.
    """
    with _on_disk(path) as (find, place):
        return _column(find, place, column, str(path))


def open_obsm(path: Location, name: str) -> RandomAccessSource:
    """Open an array of ``obsm`` of a .h5ad file or an AnnData zarr store; name is "obsm/NAME".

    Raises
    ------
    InputError
        If there is no such array, or it is not dense.
    """
    return _as_representation(_open_named(path, name), f"{path}::{name}")


def open_obsp(path: Location, name: str) -> CSRParts:
    """Open a graph of ``obsp`` of a .h5ad file or an AnnData zarr store; name is "obsp/NAME".

    Raises
    ------
    InputError
        If there is no such graph, or it is not square or not stored by rows.
    """
    graph: CSRParts = _as_graph(_open_named(path, name), f"{path}::{name}")
    return graph


def _open_named(path: Location, name: str) -> Source:
    """Open a member of a group of the AnnData; the name has both."""
    with _on_disk(path) as (find, place):
        node = find(name)
        if node is None:
            group, _, _ = name.partition("/")
            raise InputError(f"{path} has no {name}. It has {listed(sorted(find(group) or ()))}.")
        return open_element(node, place(name), f"{path}::{name}")


def member_of(adata: Any, name: str) -> Any:
    """Open an array of ``obsm`` or a graph of ``obsp`` of an AnnData object; name is "obsm/NAME".

    What is lazy, or on disk, is loaded: it has a few values for each row.

    Raises
    ------
    InputError
        If there is no such member, or it is not dense (``obsm``) or no graph (``obsp``).
    """
    group, _, key = name.partition("/")
    members = getattr(adata, group)
    if key not in members:
        raise InputError(f"AnnData has no {name}. It has {listed(sorted(members))}.")
    held, uri = members[key], f"AnnData::{name}"
    for load in ("to_memory", "compute"):
        held = getattr(held, load)() if hasattr(held, load) else held
    is_sparse = hasattr(held, "tocsr")
    source = CSRSource(held, uri) if is_sparse else ArraySource(np.asarray(held), uri)
    return (_as_graph if group == "obsp" else _as_representation)(source, uri)


def _as_representation(source: Source, uri: str) -> RandomAccessSource:
    """Return an array that rows are compared by, or raise InputError."""
    if source.sparse or not isinstance(source, RandomAccessSource):
        raise InputError(f"{uri} is sparse; rows are compared by dense arrays only.")
    return source


def _as_graph(source: Any, uri: str) -> Any:
    """Return a square sparse matrix by rows, or raise InputError."""
    if not isinstance(source, (CSRParts, CSRSource)):
        raise InputError(f"{uri} is no sparse matrix by rows. Store it as csr_matrix.")
    if source.n_samples != source.n_features:
        shape = (source.n_samples, source.n_features)
        raise InputError(f"{uri} is no graph: its shape {shape} is not square.")
    return source


def read_var_names(path: Location, n_features: int) -> list[str]:
    """Return the features' names of a .h5ad file or an AnnData zarr store.

    Raises
    ------
    InputError
        If there is not one for each feature.
    """
    with _on_disk(path) as (find, place):
        return names_of(find("var"), place("var"), n_features)


@contextmanager
def _on_disk(path: Location) -> Iterator[tuple[Callable[[str], Any], Callable[[str], Any]]]:
    """Open a file or store; return what finds its parts, and what says their places."""
    if not path.is_dir():
        with open_h5(path) as file, decoding(str(path)):
            yield _parts_of(file, path)
        return
    import zarr

    store = CheckedFiles(path) if isinstance(path, Path) else zarr_store(path)
    with decoding(str(path)):
        group = zarr.open_group(store, mode="r")
        place = path.absolute()
        yield group.get, lambda name: ZarrPlace(str(place / name))


def _column(
    find: Callable[[str], Any], place: Callable[[str], Any], column: str, uri: str
) -> np.ndarray:
    obs = find("obs")
    known = [str(name) for name in getattr(obs, "attrs", {}).get("column-order", ())]
    if column not in known:
        raise InputError(
            f"{uri} has no obs column {column!r} (it has {listed(known)}). Name one as "
            f"{uri}::COLUMN."
        )
    node = obs[column]
    kind = node.attrs.get(ENCODING)
    with place("obs").open() as frame:

        def values(name: str) -> np.ndarray:
            part = frame[name]
            if len(part.shape) != 1 or part.shape[0] > _MOST_ROWS:
                raise InputError(f"{uri}: {name} of obs has the shape {part.shape}.")
            column_values = np.asarray(part[0 : part.shape[0]])
            is_number = column_values.dtype.kind in "fiub"
            return column_values if is_number else np.array([str(value) for value in column_values])

        if kind == "categorical":
            codes = values(f"{column}/codes")
            _refuse_missing(codes < 0, column, uri)
            result: np.ndarray = values(f"{column}/categories")[codes]
        elif hasattr(node, "shape"):
            result = values(column)
        elif str(kind).startswith("nullable"):
            _refuse_missing(values(f"{column}/mask"), column, uri)
            result = values(f"{column}/values")
        else:
            raise InputError(f"{uri}: obs column {column!r} is a {kind}, which is not read.")
    return result


def _refuse_missing(missing: np.ndarray, column: str, uri: str) -> None:
    if missing.any():
        row = int(missing.argmax())
        raise InputError(f"{uri}: obs column {column!r} has no value in row {row}.")


def open_stored(
    find: Callable[[str], Any], place: Callable[[str], Any], uri: str, layer: str | None
) -> Source:
    """Open a matrix of an AnnData on disk.

    Parameters
    ----------
    find : callable
        ``find(name)`` returns an open array or group, or None.
    place : callable
        ``place(name)`` returns its place.
    uri : str
    layer : str or None
        A layer, or "raw". None: ``X``.
    """
    var = find("var")
    if not hasattr(var, "attrs") or ENCODING not in var.attrs:
        raise InputError(
            f"{uri} is not an AnnData of version 0.7 or later: it has no frame 'var'. If anndata "
            "reads it, let it write it again."
        )
    name, names = _chosen(find, layer, uri)
    source = open_element(find(name), place(name), uri if name == "X" else f"{uri}::{name}")
    return with_names(source, names_of(find(names), place(names), source.n_features))


def _chosen(find: Callable[[str], Any], layer: str | None, uri: str) -> tuple[str, str]:
    """Return the names of a matrix and of the frame that describes its features."""
    layers = find("layers")
    known = [] if layers is None else sorted(layers)
    if layer is None:
        X = find("X")
        if X is None or X.attrs.get(ENCODING) == "null":
            has = f"It has layers {listed(known)}" if known else "It has no layers"
            raise InputError(f"{uri} has no X. {has}; name one with input.layer (--layer, layer=).")
        return "X", "var"
    if layer in known and "/" not in layer and not (layer == "raw" and find("raw/X") is not None):
        return f"layers/{layer}", "var"
    if layer == "raw":
        if "raw" in known:
            raise InputError(f"{uri} has a layer 'raw' beside its raw. Rename the layer.")
        if find("raw/X") is not None:
            return "raw/X", "raw/var"
    there = [*known, *(["raw"] if find("raw/X") is not None else [])]
    raise InputError(f"{uri} has no layer {layer!r}. It has {listed(there)}; null reads X.")


def open_element(node: Any, place: Any, uri: str) -> Source:
    """Open a matrix of an AnnData on disk.

    Parameters
    ----------
    node : h5py or zarr array or group
        Open, for its attributes.
    place : H5Place, ZarrPlace or OpenPlace
    uri : str

    Raises
    ------
    InputError
        If it is of a kind that is not read, which is named.
    """
    kind = node.attrs.get(ENCODING)
    if kind in SPARSE:
        if isinstance(place, ZarrPlace):
            place.warn_of_missing(PARTS)
        return SPARSE[kind](place, node.attrs.get("shape"), uri)
    if kind in (None, "array") and hasattr(node, "shape"):
        if type(node).__module__.startswith("zarr"):
            return ZarrSource(node, uri, "", {})
        return ArrayByRows(place, uri)
    raise InputError(
        f"{uri} is stored as {kind or 'a group of an unknown kind'}, which is not read: only "
        "dense arrays, csr_matrix and csc_matrix are."
    )


def names_of(var: Any, place: Any, n_features: int) -> list[str]:
    """Return the index of a frame, ``var`` or ``raw/var``.

    Raises
    ------
    InputError
        If there is none, of one name for each feature.
    """
    name = str(var.attrs.get("_index", "_index"))
    with place.open() as frame:
        index = frame[name if hasattr(var[name], "shape") else f"{name}/values"]
        if index.shape != (n_features,):
            raise InputError(
                f"{place.path}: var has {index.shape} names for {n_features} features. Write it "
                "again."
            )
        names: list[str] = []
        size = 0
        for start in range(0, n_features, _NAMES_AT_ONCE):
            piece = np.asarray(index[start : min(start + _NAMES_AT_ONCE, n_features)])
            names += [text.decode() if isinstance(text, bytes) else str(text) for text in piece]
            size += sum(map(len, names[start:]))
            if size > METADATA_BYTES:
                raise InputError(f"{place.path}: the names of the features are too long.")
    return names


def with_names(source: Source, names: list[str]) -> Source:
    """Return a source with names for its features."""
    repeated = len(set(names)) < len(names)
    cure = "Make them so: adata.var_names_make_unique()." if repeated else ""
    try:
        check_names(names, source.n_features, source.uri)
    except InputError as error:
        raise InputError(f"{error} {cure}".rstrip()) from None
    source.feature_names = names
    return source


def open_object(adata: Any, layer: str | None = None) -> Source:
    """Open an AnnData: in memory, backed by a file, or lazy.

    A backed matrix is read from its file by blocks, a lazy one is computed by blocks.
    """
    if hasattr(adata, "group") or hasattr(adata, "shape") and not hasattr(adata, "var_names"):
        return _matrix(adata, "X")
    if not hasattr(adata, "layers"):
        raise InputTypeError(
            f"X is an {type(adata).__name__} of anndata, which is not read. Pass the AnnData (and "
            "layer='raw' for its raw), or a matrix of it."
        )
    uri = "AnnData"
    # anndata 0.13 lists X among them, as None.
    layers = sorted(name for name in adata.layers if name is not None)
    if adata.is_view and adata.isbacked:
        raise InputError(
            "X is a view of a backed AnnData, which would be loaded as a whole. Write it first "
            "(.copy(filename)), or load it yourself (.to_memory())."
        )
    raw = adata.raw if layer == "raw" and "raw" not in layers else None
    if layer is None or raw is not None:
        holder = adata if raw is None else raw
        if holder.X is None:
            raise InputError(f"{uri} has no X. Name a layer (layer=): it has {listed(layers)}.")
        return with_names(_matrix(holder.X, uri), [str(name) for name in holder.var_names])
    if layer not in layers:
        raise InputError(f"{uri} has no layer {layer!r}. It has {listed(layers)}.")
    matrix = _matrix(adata.layers[layer], f"{uri}::{layer}")
    return with_names(matrix, [str(name) for name in adata.var_names])


def _matrix(X: Any, uri: str) -> Source:
    """Open a matrix of an AnnData in memory."""
    group = getattr(X, "group", None)
    if group is not None:  # a sparse matrix on disk
        return open_element(group, OpenPlace(group), uri)
    if type(X).__module__.startswith(("h5py", "zarr")):
        return open_element(X, OpenPlace(X), uri)
    if hasattr(X, "tocsr"):
        return CSRSource(X)
    if hasattr(X, "dask"):
        return open_dask(X)
    # The view of an array is one of its own kind.
    return open_matrix(np.asarray(X) if isinstance(X, np.ndarray) else X)
