"""AnnData and MuData in HDF5 (.h5ad, .h5mu), in zarr of both versions, and as objects.

anndata (extra ``bigfs[anndata]``) reads the columns of data frames. bigfs itself reads the blocks
of a matrix, because `anndata.io.sparse_dataset` loads all row pointers for each block (8 bytes per
row of the matrix), and decompresses chunks of any size. So no task imports anndata, which takes
86 MB and 1.2 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError, InputTypeError
from bigfs.core.threads import ignoring_warnings
from bigfs.core.units import GIB
from bigfs.store.csr import CSRSource
from bigfs.store.formats import HDF5, ZARR, format_of, parts, zarr_array
from bigfs.store.formats.cube import Place
from bigfs.store.formats.hdf5 import H5Rows, find, open_h5, open_member
from bigfs.store.formats.memory import ArraySource, DaskSource
from bigfs.store.formats.zarr_stores import expect
from bigfs.store.location import Location
from bigfs.store.source import (
    Options,
    RandomAccessSource,
    Source,
    check_names,
    check_no_variable,
    listed,
    no_column,
    open_matrix,
)
from bigfs.store.values import decoding, installed, plain_values

ENCODING = "encoding-type"
SPARSE = {"csr_matrix": parts.CSRParts, "csc_matrix": parts.CSCParts}
# Upper bounds of the values and the bytes of a column, which is read as a whole.
_MOST_ROWS, _MOST_BYTES = 2**28, 2 * GIB
OBS_NAMES = "obs_names"  # anndata's name of the row ids


@dataclass(frozen=True)
class AnnotatedTree:
    """Access to the parts of an AnnData by name, in an open file or store.

    Attributes
    ----------
    root : h5py or zarr group
    path : str or None
        Path by which other processes can open it; None if only this process can.
    uri : str
    prefix : str, default=""
        Prefix of the names, for a modality of a MuData: ``"mod/rna/"``.
    """

    root: Any
    path: str | None
    uri: str
    prefix: str = ""

    @property
    def is_zarr(self) -> bool:
        """True if it is stored in zarr."""
        return type(self.root).__module__.startswith("zarr")

    def find(self, name: str) -> Any:
        """Return an open array or group, or None if it does not exist."""
        name = self.prefix + name
        return self.root.get(name) if self.is_zarr else find(self.root, name, self.uri)

    def place(self, name: str) -> Place:
        """Return the callable that opens an array, or the parts of a sparse matrix."""
        name = self.prefix + name
        if self.path is None:
            return partial(parts.open_here, self.root[name])
        if not self.is_zarr:
            return partial(open_member, self.path, name)
        is_array = hasattr(self.root[name], "shape")
        opening = zarr_array.open_rows if is_array else zarr_array.open_parts
        return partial(opening, f"{self.path}/{name}")

    def read(self, name: str) -> Any:
        """Return a column of a data frame, or a whole frame of records, as anndata reads it.

        Raises
        ------
        InputError
            If it is too large to be read as a whole.
        """
        node = self.find(name)
        held = [node] if hasattr(node, "shape") else [self.find(f"{name}/{key}") for key in node]
        for part in held:
            array = part if self.is_zarr else H5Rows(part, f"{self.uri}::{name}")
            size = math.prod(array.shape)
            if size > _MOST_ROWS or size * array.dtype.itemsize > _MOST_BYTES:
                raise InputError(f"{self.uri}: {name} of shape {array.shape} is too large.")
            if self.is_zarr:
                expect(array)
            elif array.chunks is not None:
                array.check_packed(tuple(slice(0, n) for n in array.shape))
        with decoding(f"{self.uri}::{name}"), ignoring_warnings():  # about old layouts
            with installed(f"{self.uri} is read by anndata", "'bigfs[anndata]'"):
                import anndata  # never in a task
            return anndata.io.read_elem(node)

    def frame(self, name: str) -> Any:
        """Return an open data frame: a group, or before version 0.7 an array of records."""
        node = self.find(name)
        if not hasattr(node, "attrs") or hasattr(node, "shape") and not node.dtype.names:
            raise InputError(
                f"{self.uri} is not an AnnData: it has no frame {name!r}. Write it again."
            )
        return node

    def index(self, frame: str, n_rows: int) -> parts.StoredTexts:
        """Return the index of a data frame, which can be read in pieces."""
        node = self.frame(frame)
        if hasattr(node, "shape"):
            return parts.held_texts(self.read(frame)[node.dtype.names[0]])
        name = f"{frame}/{node.attrs.get('_index', '_index')}"
        values = self.find(name)
        is_array = hasattr(values, "shape")
        values = values if is_array else self.read(name)
        parts.check_length(values.shape, n_rows, frame, self.uri)
        return parts.StoredTexts(self.place(name)) if is_array else parts.held_texts(values)


def open_file(path: Location, variable: str | None, layer: str | None = None) -> Source:
    """Open ``X``, a layer or ``raw``; ``variable`` is the modality of a MuData."""
    with on_disk(path) as tree:
        return open_stored(tree, variable, layer)


def read_column(path: Location, name: str) -> np.ndarray:
    """Return a column of ``obs``, or for a MuData that of a modality: ``"rna:COLUMN"``.

    Raises
    ------
    InputError
        If there is no such column, or its type is not supported.
    """
    import pandas as pd

    with on_disk(path) as tree:
        if tree.find("mod") is not None:
            modality, _, name = name.rpartition(":")
            tree = _modality(tree, modality or None, "as FILE::MODALITY:COLUMN")
        obs = tree.frame("obs")
        is_old = hasattr(obs, "shape")
        known = obs.dtype.names[1:] if is_old else obs.attrs.get("column-order", ())
        if name not in known:
            raise no_column(f"obs of {path}", name, known)
        values = tree.read("obs")[name] if is_old else tree.read(f"obs/{name}")
        # Location of the categories in anndata 0.7 and before.
        categories = f"uns/{name}_categories" if is_old else f"obs/__categories/{name}"
        if tree.find(categories) is not None:
            values = pd.Categorical.from_codes(values, tree.read(categories))
    return plain_values(values, f"{path}::{name}")


def contents(path: Location, variable: str | None = None) -> dict[str, list[str]]:
    """Return the names of the members of an AnnData other than X, by group.

    Columns of obs are followed by their type in brackets. ``variable`` is the modality of a MuData.
    """
    with on_disk(path) as tree:
        tree = tree if tree.find("mod") is None else _modality(tree, variable)
        obs = tree.frame("obs")
        held = {group: sorted(tree.find(group) or ()) for group in ("layers", "obsm", "obsp")}
        if hasattr(obs, "shape"):  # anndata before 0.7
            return {"obs": list(obs.dtype.names[1:]), **held}
        columns = [str(name) for name in obs.attrs.get("column-order", ())]
        return {"obs": [f"{name}{_kind(tree.find(f'obs/{name}'))}" for name in columns], **held}


def _kind(column: Any) -> str:
    """Return the type of a column of obs, in brackets."""
    if hasattr(column, "shape"):
        return " (text)" if column.dtype.kind in "OTSU" else f" ({column.dtype})"
    if column is not None and "categories" in column:
        return f" ({column['categories'].shape[0]:,} categories)"
    return ""


def member_on_disk(path: Location, name: str) -> Any:
    """Open an array of ``obsm`` or a graph of ``obsp`` of a .h5ad file or an AnnData zarr store.

    Parameters
    ----------
    path : Path or ObjectPath
    name : str
        "obsm/NAME" or "obsp/NAME".

    Raises
    ------
    InputError
        If there is no such member, or it is not dense (``obsm``) or not a graph stored by rows
        (``obsp``).
    """
    group, _, _ = name.partition("/")
    if format_of(path) not in (HDF5, ZARR):
        raise InputError(
            f"{path} is not an AnnData; only an AnnData has {name}. Remove graph.representation."
        )
    with on_disk(path) as tree:
        node = tree.find(name)
        if node is None:
            held = listed(sorted(tree.find(group) or ()))
            raise InputError(f"{path} has no {name}. It has {held}.")
        source = _checked(open_element(node, tree.place(name), f"{path}::{name}"), group)
        source.index, source.ids = OBS_NAMES, tree.index("obs", source.n_samples)
        return source


def member_of(adata: Any, name: str) -> Any:
    """Open an array of ``obsm`` or a graph of ``obsp`` of an AnnData object.

    ``name`` is "obsm/NAME" or "obsp/NAME". A lazy member, or one on disk, is loaded, since it has
    only a few values per row.

    Raises
    ------
    InputError
        If there is no such member, or it is not dense (``obsm``) or not a graph (``obsp``).
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
    return _checked(source, group)


def _checked(source: Any, group: str) -> Any:
    """Return the source, or raise InputError if it is not valid for its group.

    ``obsp`` needs a square sparse matrix stored by rows, and ``obsm`` a dense array.
    """
    uri = source.uri
    if group == "obsm" and (source.sparse or not isinstance(source, RandomAccessSource)):
        raise InputError(f"{uri} is sparse; rows can only be compared by dense arrays.")
    if group == "obsp" and not isinstance(source, (parts.CSRParts, CSRSource)):
        raise InputError(f"{uri} is not a sparse matrix by rows. Store it as csr_matrix.")
    if group == "obsp" and source.n_samples != source.n_features:
        shape = (source.n_samples, source.n_features)
        raise InputError(f"{uri} is not a graph: its shape {shape} is not square.")
    return source


def read_var_names(path: Location, n_features: int) -> list[str]:
    """Return the feature names of a .h5ad file or an AnnData zarr store.

    Raises
    ------
    InputError
        If their number is not ``n_features``.
    """
    with on_disk(path) as tree:
        return _names(tree, "var", n_features)


@contextmanager
def on_disk(path: Location) -> Iterator[AnnotatedTree]:
    """Open an AnnData or MuData file or zarr store."""
    place = str(path.absolute())
    if not path.is_dir() and not path.name.endswith(".zip"):
        with open_h5(path) as file, decoding(str(path)):
            yield AnnotatedTree(file, place, str(path))
        return
    with decoding(str(path)):
        yield AnnotatedTree(zarr_array.open_node(path), place, str(path))


def _modality(
    tree: AnnotatedTree, name: str | None, how: str = "by input.variable"
) -> AnnotatedTree:
    """Return the AnnData of one modality of a MuData.

    ``how`` says in the error message how a modality is named.
    """
    known = sorted(tree.find("mod"))
    if name is None and len(known) == 1:
        name = known[0]
    if name not in known:
        what = "several modalities" if name is None else f"no modality {name!r}"
        raise InputError(f"{tree.uri} has {what}. Name one of {listed(known)} {how}.")
    return AnnotatedTree(tree.root, tree.path, tree.uri, f"mod/{name}/")


def open_stored(tree: AnnotatedTree, variable: str | None, layer: str | None) -> Source:
    """Open a matrix of an AnnData on disk.

    Parameters
    ----------
    tree : AnnotatedTree
    variable : str or None
        Modality of a MuData.
    layer : str or None
        Name of a layer, or "raw". None: ``X``.
    """
    if tree.find("mod") is not None:
        tree = _modality(tree, variable)
    elif variable is not None and variable.startswith(("obsm/", "obsp/")):
        raise InputError(
            f"{tree.uri}: features are read from X or a layer (input.layer). To compare rows by "
            f"{variable}, set graph.representation={variable}."
        )
    else:
        check_no_variable(tree.uri, variable)
    tree.frame("obs"), tree.frame("var")
    X, frame = tree.find("X"), "var"
    has_X = X is not None and X.attrs.get(ENCODING) != "null"
    raws = [name for name in ("raw/X", "raw.X") if tree.find(name) is not None]
    name = _chosen(layer, sorted(tree.find("layers") or ()), has_X, bool(raws), tree.uri)
    if name == "raw":
        name, frame = raws[0], raws[0].replace("X", "var")
    uri = f"{tree.uri}::{tree.prefix}{name}" if tree.prefix or name != "X" else tree.uri
    source = open_element(tree.find(name), tree.place(name), uri)
    source.index, source.ids = OBS_NAMES, tree.index("obs", source.n_samples or 0)
    return with_names(source, _names(tree, frame, source.n_features))


def _chosen(layer: str | None, layers: list[str], has_X: bool, has_raw: bool, uri: str) -> str:
    """Return the name of the matrix to read: ``X``, ``raw``, or ``layers/NAME`` for a layer."""
    if layer is None and has_X:
        return "X"
    known = [*layers, *(["raw"] if has_raw else [])]
    has = f"It has {listed(known)}" if known else "It has no layers"
    if layer is None:
        cure = "; name one with input.layer (--layer, layer=)" if known else ""
        raise InputError(f"{uri} has no X. {has}{cure}.")
    if layer == "raw" and has_raw:
        if "raw" in layers:
            raise InputError(f"{uri} has both raw and a layer named 'raw'. Rename the layer.")
        return "raw"
    if layer in layers:
        return f"layers/{layer}"
    raise InputError(f"{uri} has no layer {layer!r}. {has}; without a layer X is read.")


def open_element(node: Any, place: Place, uri: str) -> Source:
    """Open one dense array or sparse matrix of an AnnData on disk.

    Parameters
    ----------
    node : h5py or zarr array or group
        Open array or group, whose attributes tell its kind.
    place : Place
    uri : str

    Raises
    ------
    InputError
        If its kind, which is named in the message, is not supported.
    """
    kind = node.attrs.get(ENCODING)
    if "h5sparse_format" in node.attrs:  # anndata before 0.7
        kind = f"{node.attrs['h5sparse_format']}_matrix"
    if kind in SPARSE:
        if type(node).__module__.startswith("zarr"):
            for part in parts.PARTS:
                zarr_array.check_chunks(node[part], f"{uri}::{part}")
        return SPARSE[kind](place, node.attrs.get("shape", node.attrs.get("h5sparse_shape")), uri)
    if kind in (None, "array") and hasattr(node, "shape"):
        if type(node).__module__.startswith("zarr"):
            return zarr_array.open_array(node, uri)
        return parts.open_dense(place, uri)
    raise InputError(
        f"{uri} is stored as {kind or 'a group of an unknown kind'}, which is not supported: only "
        "dense arrays, csr_matrix and csc_matrix are."
    )


def _names(tree: AnnotatedTree, frame: str, n_features: int) -> list[str]:
    """Return the feature names: the index of ``var`` or ``raw/var``."""
    return parts.all_texts(tree.index(frame, n_features), n_features, tree.uri)


def with_names(source: Source, names: list[str]) -> Source:
    """Return the source with its feature names set."""
    repeated = len(set(names)) < len(names)
    cure = "Make them unique: adata.var_names_make_unique()." if repeated else ""
    try:
        check_names(names, source.n_features, source.uri)
    except InputError as error:
        raise InputError(f"{error} {cure}".rstrip()) from None
    source.feature_names = names
    return source


def open_object(adata: Any, options: Options) -> Source:
    """Open an AnnData object that is in memory, backed by a file, or lazy.

    A backed matrix is read from its file in blocks, and a lazy one is computed in blocks.
    """
    if hasattr(adata, "group") or hasattr(adata, "shape") and not hasattr(adata, "var_names"):
        return _matrix(adata, "X")
    if not hasattr(adata, "layers"):
        raise InputTypeError(
            f"X is an anndata {type(adata).__name__}, which is not supported. Pass the AnnData "
            "(and layer='raw' for its raw), or a matrix of it."
        )
    uri = "AnnData"
    # anndata 0.13 lists X among the layers, as None.
    layers = sorted(name for name in adata.layers if name is not None)
    if adata.is_view and adata.isbacked:
        raise InputError(
            "X is a view of a backed AnnData, which would be loaded as a whole. Write it first "
            "(.copy(filename)), or load it yourself (.to_memory())."
        )
    layer = options.settings.get("layer")
    X = adata.X if layer is None else None  # for a view, X is a copy
    name = _chosen(layer, layers, X is not None, adata.raw is not None, uri)
    names = (adata.raw if name == "raw" else adata).var_names
    if name.startswith("layers/"):
        matrix = _matrix(adata.layers[layer], f"{uri}::{layer}")
    else:
        matrix = _matrix(adata.raw.X if name == "raw" else X, uri)
    matrix.index, matrix.ids = OBS_NAMES, parts.held_texts(adata.obs_names)
    return with_names(matrix, [str(name) for name in names])


def _matrix(X: Any, uri: str) -> Source:
    """Open a matrix of an AnnData object."""
    stored = getattr(X, "group", X)  # the group of a sparse matrix on disk
    if type(stored).__module__.startswith(("h5py", "zarr")):
        return open_element(stored, partial(parts.open_here, stored), uri)
    if hasattr(X, "tocsr"):
        return CSRSource(X)
    if hasattr(X, "dask"):
        return DaskSource(X)
    # A view of an array is an instance of anndata's own subclass.
    is_view = isinstance(X, np.ndarray) and not np.ma.isMaskedArray(X)
    return open_matrix(np.asarray(X) if is_view else X)


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns in AnnData's layout on disk, version 0.1.0."""
    from scipy.sparse import csr_matrix

    with installed("this format needs h5py", "'bigfs[anndata]'"):
        import h5py
    columns = selected.columns
    shape = (columns.n_samples, columns.n_features)
    with h5py.File(file, "w") as root:
        _encode(root, "anndata", "0.1.0")
        if not columns.of_sparse:
            X = root.create_dataset("X", shape=shape, dtype=columns.dtype)
            _encode(X, "array", "0.2.0")
        for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
            _encode(root.create_group(name), "dict", "0.1.0")
        rows = _index(h5py, root, "obs", columns.n_samples)
        _index(h5py, root, "var", columns.n_features)[:] = selected.names
        first, ids = 0, columns.row_ids()
        for block in selected.blocks:
            last = first + len(block)
            if not columns.of_sparse:
                X[first:last] = block
            else:
                append_lines(root, "X", csr_matrix(block), is_first=first == 0)
            rows[first:last] = [str(row) for row in islice(ids, len(block))]
            first = last


def append_lines(root: Any, name: str, lines: Any, *, is_first: bool, **options: Any) -> None:
    """Append rows to a stored CSR matrix, or columns to a CSC one; create it for the first ones."""
    from anndata.io import sparse_dataset, write_elem

    if is_first:
        write_elem(root, name, lines, dataset_kwargs=options)
    else:
        sparse_dataset(root[name]).append(lines)


def _index(h5py: Any, root: Any, name: str, length: int) -> Any:
    """Create a data frame that has only an index, and return the index."""
    frame = root.create_group(name)
    _encode(frame, "dataframe", "0.2.0")
    frame.attrs["_index"] = "_index"
    frame.attrs["column-order"] = np.empty(0, dtype="S1")
    index = frame.create_dataset("_index", shape=(length,), dtype=h5py.string_dtype())
    _encode(index, "string-array", "0.2.0")
    return index


def _encode(item: Any, kind: str, version: str) -> None:
    item.attrs["encoding-type"], item.attrs["encoding-version"] = kind, version
