"""Known classes, for judging a selection; never an input to a selector."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.core.text import FROM_0
from bigfs.core.units import GIB
from bigfs.core.uris import SOURCE, LabelValues, column_of
from bigfs.store.columns import Roles
from bigfs.store.fingerprint import fingerprint, fingerprint_of_rows
from bigfs.store.formats.csv import CsvSource, as_number
from bigfs.store.formats.npy import read_header
from bigfs.store.formats.npz import member_header, member_names
from bigfs.store.location import Location, as_location, zarr_store
from bigfs.store.several import partition_columns, sources_of
from bigfs.store.source import Source, as_path, is_reachable, listed, no_column, open_matrix

_KINDS = "fiubUS"
_MOST_BYTES = 2 * GIB


def load_labels(
    uri: str | LabelValues,
    n_samples: int | None = None,
    dropped: Sequence[int] = (),
    otherwise: str = "",
    *,
    to_judge_by: bool = False,
) -> np.ndarray:
    """Read labels and number the classes in sorted order.

    Parameters
    ----------
    uri : str or LabelValues
        ``FILE.npy``, ``FILE.npz`` (its ``y``), ``FILE.npz::NAME``, ``FILE.csv::COLUMN``, a
        zarr array (or ``GROUP.zarr::NAME``), a column of an AnnData's ``obs``
        (``FILE.h5ad::COLUMN``, ``STORE.zarr::COLUMN``), or ``sklearn:NAME``. Numbers or texts.
        Of several sources, ``source`` names the one that a row is of.
    n_samples : int or None, default=None
        How many there must be.
    dropped : sequence of int, default=()
        Rows that the data were read without: labels may also be those of all rows.
    otherwise : str, default=""
        What else may be done where they are of other rows.
    to_judge_by : bool, default=False
        Whether there must be two classes at least.

    Returns
    -------
    y : ndarray of shape (n_samples,), int64
        0 to c-1.

    Raises
    ------
    InputError
        If they cannot be read, are not one a row, are missing somewhere, or are too few.
    """
    values = read_values(uri)
    uri = name_of(uri)
    if len(dropped) and n_samples is not None and len(values) == n_samples + len(dropped):
        values = np.delete(values, dropped)
    if n_samples is not None and len(values) != n_samples:
        raise InputError(
            f"{uri} has {len(values)} labels, but the data have {n_samples} samples. "
            f"Give the labels of the same rows in the same order{otherwise}."
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        raise InputError(
            f"{uri}: the label of row {row} is {values[row]}. Every row needs one. {FROM_0}"
        )
    classes, y = np.unique(values, return_inverse=True)
    if to_judge_by and len(classes) < 2:
        raise InputError(f"{uri} has one class only, and nothing can be told by it. Give others.")
    return y.astype(np.int64)


def read_values(uri: str | LabelValues) -> np.ndarray:
    """Read numbers or texts, one for each row, named as labels are."""
    if isinstance(uri, LabelValues):
        values = _in_memory(uri)
        _check_shape(values.shape, values.dtype, uri.name)
        return values.ravel()
    try:
        values = _read(uri)
    except StorageError:
        raise
    except (OSError, zlib.error) as error:
        raise InputError(f"{uri}: the labels cannot be read: {error}.") from None
    _check_shape(values.shape, values.dtype, uri)
    return values.ravel()


def labels_in(X: Any, source: Source, name: str) -> Any:
    """Return values that are a column of an object, or an array of it.

    Parameters
    ----------
    X : object
        A frame; an AnnData, of whose ``obs``; or what holds arrays by name.
    source : Source
        As which it is open.
    name : str

    Raises
    ------
    InputError
        If there is none of the name, or the object can be read only once.
    """
    holder, grid = X, (source.grid or {}).get("dims", ())
    if hasattr(X, "obs"):
        holder = X.obs
    elif hasattr(X, "coords"):
        holder = X if hasattr(X, "data_vars") else X.coords
    elif not hasattr(X, "group_keys"):  # of zarr
        return source.read_column(name)
    if name not in holder:
        raise no_column(source.uri, name, holder)
    values = holder[name]
    is_stacked = bool(grid) and set(getattr(values, "dims", ())) == set(grid)
    return values.transpose(*grid) if is_stacked else values  # in the order of the rows


def digest_of(labels: str | LabelValues) -> str:
    """Return a key of the content of labels, wherever they are."""
    if isinstance(labels, LabelValues):
        values = read_values(labels)
        return fingerprint_of_rows([values.view(np.uint8)], [str(values.dtype)])
    return fingerprint(column_of(labels)[0])


def name_of(labels: str | LabelValues) -> str:
    """Return what messages and records call labels."""
    return labels.name if isinstance(labels, LabelValues) else str(labels)


def _in_memory(labels: LabelValues) -> np.ndarray:
    values = np.asarray(labels.values)
    if values.dtype.kind not in "OT":
        return values
    import pandas as pd

    missing = pd.isna(values)
    if missing.any():
        row = int(missing.ravel().argmax())
        raise InputError(f"{labels.name}: the label of row {row} is missing. {FROM_0}")
    is_number = all(isinstance(value, (int, float, np.number)) for value in values.ravel())
    return np.array(values.tolist() if is_number else values.astype(np.str_))


def _check_shape(shape: tuple[int, ...], dtype: Any, uri: str) -> None:
    """Refuse what is no vector before it is read: somebody may name the matrix itself."""
    if math.prod(shape) * np.dtype(dtype).itemsize > _MOST_BYTES:
        raise InputError(f"{uri}: labels of shape {tuple(shape)} and type {dtype} are too many.")
    vector = len(shape) == 1 or (len(shape) == 2 and 1 in shape)
    # An image of classes, or a mask, of rows that are stacked: their number is checked later.
    vector |= len(shape) > 1 and np.dtype(dtype).kind in "iub"
    if not vector or np.dtype(dtype).kind not in _KINDS or 0 in shape:
        raise InputError(
            f"{uri}: labels must be one number or text for each sample. Got an array of "
            f"{dtype} with shape {tuple(shape)}."
        )


def _read(uri: str) -> np.ndarray:
    name, part = column_of(uri)
    sources = sources_of(name)
    if sources is not None:
        return _read_several(name, sources, part)
    path = as_path(name)
    if path is None:
        from bigfs.store.formats.sklearn_sets import load_classes_of

        return load_classes_of(name)
    if not is_reachable(path):
        raise InputError(f"{name} does not exist. Check the path of the labels.")
    lower = path.name.lower()
    if path.is_dir():
        return _read_zarr(path, part)
    if lower.endswith(".npy"):
        return _read_npy(path)
    if lower.endswith(".npz"):
        return _read_npz(path, part or "y")
    if lower.endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz")):
        return _read_csv(path, part)
    if lower.endswith(".parquet"):
        return _read_parquet(path, part)
    if lower.endswith((".h5", ".hdf5", ".nc")) and isinstance(path, Path):
        return _read_member(path, part)
    if lower.endswith(".h5ad"):
        from bigfs.store.formats.annotated import read_obs

        return read_obs(path, part)
    raise InputError(
        f"{name}: labels are read from .npy, .npz, .csv, .tsv, .parquet, .h5ad, .h5, .nc and zarr "
        "arrays."
    )


def _read_several(uri: str, sources: list[str], name: str) -> np.ndarray:
    """Read the labels of all sources; texts if those of one are."""
    pieces = []
    for i, source in enumerate(sources):
        partitions = partition_columns(uri, source)
        if name != SOURCE and name not in partitions:
            pieces.append(_read(f"{source}::{name}"))
            continue
        value = partitions.get(name, i)
        if value is None:
            raise InputError(f"{source}: the labels of its rows are missing. {FROM_0}")
        number = as_number(str(value))
        pieces.append(np.full(_count_rows(source), value if number is None else number))
    if any(piece.dtype.kind in "US" for piece in pieces):
        pieces = [piece.astype(np.str_) for piece in pieces]
    return np.concatenate(pieces)


def _count_rows(uri: str) -> int:
    """Return the rows of a source: by its header, or by reading a text table."""
    if uri.lower().endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz")) and sources_of(uri) is None:
        return CsvSource(as_location(uri), roles=Roles(columns=("*",))).count_rows()
    if uri.lower().endswith(".parquet") and sources_of(uri) is None:
        from bigfs.store.formats.parquet import open_parquet

        with open_parquet(as_location(uri)) as file:
            return int(file.metadata.num_rows)
    return sum(map(_count_rows, sources_of(uri) or ())) or open_matrix(uri).n_samples or 0


def _read_npy(path: Location) -> np.ndarray:
    with path.open("rb") as file:
        shape, _, dtype = read_header(file, str(path))
    _check_shape(shape, dtype, str(path))
    return _load(path)


def _read_npz(path: Location, name: str) -> np.ndarray:
    names = member_names(path)
    if name not in names:
        raise InputError(
            f"{path} has no array {name!r} (it has {listed(names)}). Name one as {path}::NAME."
        )
    shape, _, dtype = member_header(path, name)
    _check_shape(shape, dtype, f"{path}::{name}")
    return _load(path, name)


def _load(path: Location, member: str | None = None) -> np.ndarray:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if member is None:
                return np.asarray(loaded)
            with loaded:
                return np.asarray(loaded[member])
    except ValueError as error:
        raise InputError(f"{path}: the labels cannot be read: {error}.") from None


def _read_csv(path: Location, column: str) -> np.ndarray:
    """Read one column, as numbers if all of it is numbers and as texts if not."""
    table = CsvSource(path)
    names = table.names if table.has_header else None
    if names is None and table.n_features == 1 and not column:
        position = 0
    elif names is not None and (column in names or (not column and len(names) == 1)):
        position = names.index(column) if column else 0
    else:
        raise InputError(
            f"{path} has "
            + (f"no column {column!r}" if column else f"{table.n_features} columns")
            + f" (it has {listed(names) if names else 'no header'}). "
            f"Name the one with the labels: {path}::COLUMN."
        )
    texts = table.read_texts(position)
    if "" in texts:
        raise InputError(f"{path}: the label of row {texts.index('')} is missing. {FROM_0}")
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError:  # "NA" and "None" may be names of classes
        return np.array(texts, dtype=np.str_)


def _read_parquet(path: Location, column: str) -> np.ndarray:
    """Read one column; the others are not touched."""
    from bigfs.store.formats.parquet import open_parquet

    with open_parquet(path) as file:
        names = file.schema_arrow.names
        if column not in names:
            raise InputError(
                f"{path} has no column {column!r} (it has {listed(names)}). Name the one with the "
                f"labels: {path}::COLUMN."
            )
        values = file.read(columns=[column]).column(0).to_pylist()
    if None in values:
        raise InputError(f"{path}: the label of row {values.index(None)} is missing. {FROM_0}")
    is_number = all(isinstance(value, (int, float)) for value in values)
    return np.array(values if is_number else [str(value) for value in values])


def _read_member(path: Path, name: str) -> np.ndarray:
    """Read an array of an HDF5 or NetCDF file, which is one too."""
    from bigfs.store.formats.cube import as_stacked
    from bigfs.store.formats.h5 import dimensions, list_arrays
    from bigfs.store.formats.hdf5 import find, open_h5

    with open_h5(path) as file:
        node = find(file, name.strip("/"), str(path)) if name else None
        if node is None or not hasattr(node, "shape"):
            names = [entry for entry, _, _ in list_arrays(path)]
            raise InputError(f"{path} has no array {name!r}. It has {listed(names)}.")
        _check_shape(node.shape, node.dtype, f"{path}::{name}")
        arrays = (find(file, entry, str(path)) for entry, _, _ in list_arrays(path))
        others = (dimensions(array)[0] for array in arrays)
        return as_stacked(np.asarray(node[...]), dimensions(node)[0], others)


def _read_zarr(path: Location, name: str) -> np.ndarray:
    import zarr

    from bigfs.store.formats.cube import as_stacked, names_of_dimensions
    from bigfs.store.formats.zarr_files import CheckedFiles

    try:
        files = CheckedFiles(path) if isinstance(path, Path) else zarr_store(path)
        node = zarr.open(files, mode="r")
        if isinstance(node, zarr.Group) and node.attrs.get("encoding-type") == "anndata":
            from bigfs.store.formats.annotated import read_obs

            return read_obs(path, name)
        if isinstance(node, zarr.Group) and name == SOURCE and "sources" in node.attrs:
            counts = [count for _, count in node.attrs["sources"]]  # type: ignore[union-attr,misc]
            return np.repeat(np.arange(len(counts)), np.array(counts, dtype=np.int64))
        array = node[name or "y"] if isinstance(node, zarr.Group) else node
        if isinstance(array, zarr.Group):
            raise TypeError(f"{array.name} is a group, not an array")
        shape, dtype = array.shape, array.dtype
        if isinstance(files, CheckedFiles):
            files.expect(array)
    except (InputError, StorageError):
        raise
    except Exception as error:  # zarr has no one error for what it cannot open
        raise InputError(
            f"{path}: labels cannot be read ({type(error).__name__}: {error}). Name the array as "
            f"{path}::NAME."
        ) from None
    _check_shape(shape, dtype, str(path))
    beside = (other for _, other in node.arrays()) if isinstance(node, zarr.Group) else ()
    names = (names_of_dimensions(other) for other in beside)
    return as_stacked(np.asarray(array[...]), names_of_dimensions(array), names)
