"""Export of the selected columns of a run's data to a file or a store, block by block.

The annotations of an AnnData are kept. `to_grid` puts rows back into the dimensions that were
stacked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.paths import column_of, is_there, listed_in
from bigfs.core.text import FROM_0
from bigfs.runtime.progress import track
from bigfs.store.fingerprint import changed, fingerprint
from bigfs.store.formats import FORMATS, ZARR, format_named
from bigfs.store.formats.annotated import ENCODING, SPARSE, append_lines, on_disk
from bigfs.store.formats.raster import write_map
from bigfs.store.ingest import ingest
from bigfs.store.location import Location, as_location, is_within, unnamed_file
from bigfs.store.records import MANIFEST, check_new_file, refuse_inside_ours
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import ArrayRef, block_bounds, block_rows
from bigfs.store.several import flattened, sources_of
from bigfs.store.source import RandomAccessSource, Source, as_path, open_matrix
from bigfs.store.values import storing

# Number of blocks to read ahead, since decompression takes longer than writing a few columns.
_READ_AHEAD = 2
_LARGEST_WHOLE = 2.0**53


def open_run_data(path: Location) -> RandomAccessSource:
    """Open the data that a run read: its own copy, or the store that was its input.

    Raises
    ------
    InputError
        If the store is gone or has changed since the run, or if a later, unfinished run has
        replaced the data of the result.
    """
    directory = RunDirectory(path).read()
    stages = directory.manifest["stages"]
    made_of = stages.get("result", {}).get("data_key")
    if made_of and made_of != stages.get("data", directory.manifest["data"])["key"]:
        raise InputError(
            f"{path} was run again on other data, or other columns or rows of them, and that run "
            "did not finish: the data of the result are gone. Run it again."
        )
    if "data" in stages:
        matrix = open_matrix(str(directory.stage_path("data")))
    else:
        data = directory.manifest["data"]
        if fingerprint(data["path"]) != data["key"]:
            raise InputError(
                f"{data['path']} has changed since the run {path} read it. Run it again."
            )
        matrix = open_matrix(data["path"])
    assert isinstance(matrix, RandomAccessSource)
    return matrix


class SelectedColumns(RandomAccessSource):
    """The given columns of a matrix, in the dtype that its values were stored in.

    Parameters
    ----------
    source : RandomAccessSource
    columns : ndarray of shape (n_columns,), int64
    names : list of str or None
        Names of these columns.
    """

    def __init__(
        self, source: RandomAccessSource, columns: np.ndarray, names: list[str] | None
    ) -> None:
        self.uri, self.watch = source.uri, source.watch
        self.n_samples, self.n_features = source.n_samples, len(columns)
        self.feature_names, self.index = names, source.index
        self.grid, self.dropped = source.grid, source.dropped
        self.column_types = dict(source.column_types)
        stored = source.stored_dtype.newbyteorder("=")
        # Values are read as float64 at most, so wider types cannot be restored.
        self.dtype = source.dtype if stored.itemsize > 8 else stored
        self._source, self.places = source, columns

    @property
    def of_sparse(self) -> bool:
        """True if the data are sparse; the columns that are read here are always dense."""
        return self._source.sparse

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop`` of the columns.

        Raises
        ------
        InputError
            If an integer is too large to be represented exactly by float64, in which data are read.
        """
        rows = self._source.read_columns(start, stop, self.places)
        if self.dtype.kind in "iu" and self.dtype.itemsize == 8:
            beyond = np.abs(rows) >= _LARGEST_WHOLE
            if beyond.any():
                row = start + int(beyond.any(axis=1).argmax())
                raise InputError(
                    f"{self.uri}: row {row} has a whole number beyond 2^53, which was read as "
                    f"float64 and may be rounded. Save the data as float64 to export it as such. "
                    f"{FROM_0}"
                )
        return rows.astype(self.dtype, copy=False)

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows, in lists."""
        return self._source.iter_index()

    def row_ids(self) -> Iterator[Any]:
        """Return an iterator over the ids of the rows, or their numbers if there are no ids."""
        return count() if self.index is None else chain.from_iterable(self.iter_index())

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays, whose number of rows is chosen for the width of the source.

        ``rows`` is ignored.
        """
        source = self._source
        step = block_rows(source.n_features, source.dtype.itemsize, source.chunk_rows)
        waiting: deque[Any] = deque()
        with ThreadPoolExecutor(_READ_AHEAD) as pool:
            for bounds in block_bounds(self.n_samples, step):
                waiting.append(pool.submit(self.read_rows, *bounds))
                if len(waiting) > _READ_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


def refuse_input(dest: str | Location, uri: str) -> None:
    """Raise InputError if a destination is, contains or would become a source of a URI."""
    uri, place = column_of(uri)[0], as_location(dest)
    try:
        sources = flattened(uri)
        several = [entry for entry in listed_in(uri) or [uri] if sources_of(entry) is not None]
    except InputError:  # the sources are gone
        return
    for path in [path for path in map(as_path, sources) if path is not None]:
        if is_within(path, place):
            raise InputError(f"{dest} is the input of the run. Give another name.")
    # Folders and globs, which would include the new file.
    for path in [path for path in map(as_path, several) if path is not None]:
        if is_within(place, path) or fnmatch(str(place.absolute()), str(path.absolute())):
            raise InputError(f"{dest} would be a part of the input, {path}. Give another place.")


def export_columns(
    columns: SelectedColumns,
    dest: str | Location,
    *,
    ids: bool = False,
    overwrite: bool = False,
    original: Original | None = None,
) -> Location:
    """Write columns to a file or store whose format is given by its name.

    Parameters
    ----------
    columns : SelectedColumns
    dest : str, Path or ObjectPath
        NAME.zarr, .parquet, .feather, .npy, .csv or .h5ad. It appears when it is complete.
    ids : bool, default=False
        Add a column with the ids of the rows under their name, or a column ``row`` that numbers
        the rows from 0 (.csv, .parquet; .h5ad always has them).
    overwrite : bool, default=False
        Replace an existing file, or a store that bigfs wrote.
    original : Original or None, default=None
        The AnnData that the columns come from; a .h5ad file gets everything else from it.

    Returns
    -------
    dest : Path or ObjectPath

    Raises
    ------
    InputError
        If the format is not known, ``dest`` exists or is the input, or the data change meanwhile.
    StorageError
        If writing fails.
    """
    place = as_location(dest)
    kind = format_named(str(dest))
    if kind is None or not str(dest).lower().endswith(kind.writes):
        known = ", ".join(ending for entry in FORMATS for ending in entry.writes)
        raise InputError(f"{dest}: the name determines the format, and must end in {known}.")
    if ids and not kind.keeps_ids:
        known = ", ".join(e for entry in FORMATS if entry.keeps_ids for e in entry.writes)
        raise InputError(f"{dest}: {kind.writes[0]} cannot hold ids. Use {known}.")
    read = as_location(columns.uri)
    if is_within(read, place) or is_within(place, read):
        raise InputError(f"{dest} is the input, and cannot be replaced. Give another name.")
    name = columns.index or "row"
    if ids and name in (columns.feature_names or ()):
        raise InputError(f"{dest}: a feature is named {name!r}, like the column of ids.")
    refuse_inside_ours(place)
    if kind is ZARR:
        return ingest(columns, place, overwrite=overwrite).path
    if not isinstance(place, Path):
        raise InputError(
            f"{dest}: only .zarr can be written to a bucket. Give a local path, or NAME.zarr."
        )
    _check_file(place, overwrite)
    if original is not None and ".h5ad" in kind.writes:
        before = fingerprint(str(original.path))
        original.check(columns)
        with creating(place), unnamed_file(place, overwrite=overwrite) as file:
            write_subset(file, original.path, original.places[columns.places])
            if fingerprint(str(original.path)) != before:
                raise changed(str(original.path))
        return place
    total = columns.n_samples
    columns.begin()
    with (
        creating(place),
        unnamed_file(place, overwrite=overwrite) as file,
        track("export", total, "rows") as progress,
    ):

        def blocks() -> Iterator[np.ndarray]:
            first = 0
            for block in columns.iter_blocks(total):
                first += len(block)
                progress.advance(len(block))
                yield block
            if first != total:
                raise changed(columns.uri)

        kind.reader.write(file, Columns(columns, blocks(), ids))
        columns.check_unchanged()
    return place


@dataclass(frozen=True)
class Columns:
    """The selected columns in the form that is passed to the writer of a format."""

    columns: SelectedColumns
    blocks: Iterator[np.ndarray]
    ids: bool

    @property
    def names(self) -> list[str]:
        """Names of the columns, or their numbers if they have no names."""
        return self.columns.feature_names or [str(i) for i in range(self.columns.n_features)]

    def batches(self) -> Iterator[Any]:
        """Yield the blocks as Arrow record batches; a column of ids, if any, comes first."""
        import pyarrow as pa

        ids, types = self.columns.row_ids(), self.columns.column_types
        for block in self.blocks:
            names = self.names
            arrays = [
                pa.array(column).cast(pa.type_for_alias(types[name])) if name in types
                else pa.array(column)
                for name, column in zip(names, block.T, strict=True)
            ]  # fmt: skip
            if self.ids:
                arrays.insert(0, pa.array(list(islice(ids, len(block)))))
                names = [self.columns.index or "row", *names]
            yield pa.record_batch(arrays, names=names)


def _check_file(place: Path, overwrite: bool) -> None:
    """Raise InputError if the path exists and must not be replaced."""
    if not is_there(place, "the file"):
        return
    if not overwrite:
        raise InputError(f"{place} already exists. Give another name, or --overwrite.")
    if not place.is_file() or place.is_symlink():
        raise InputError(
            f"{place} is a folder or a link, and is not overwritten. Give another name."
        )


@contextmanager
def creating(place: Path) -> Iterator[None]:
    """Create the folder of a new file or store; disk failures in the block become StorageError."""
    with storing(f"Cannot write {place}", "Nothing was left there."):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            yield
        except FileExistsError:
            raise InputError(
                f"{place} was created by another program meanwhile, and is not replaced. "
                "Give another name."
            ) from None


def to_grid(
    data: Any, values: Any, row_mask: Any = None, fill: Any = None, dest: str | Path | None = None
) -> np.ndarray:
    """Put values of rows back into the dimensions that were stacked, such as y and x.

    Parameters
    ----------
    data : str, Path, Source or Result
        The run, store or opened array that the rows belong to.
    values : array-like of shape (n_rows, ...)
        Labels, coordinates of an embedding, or selected columns.
    row_mask : array of bool or None, default=None
        Mask of the rows that have values, such as the attribute ``row_mask_`` of a fitted
        estimator. None: the rows that the run or store has kept.
    fill : scalar, default=None
        Value for the other rows. None: -1 for integers, NaN otherwise.
    dest : str, Path or None, default=None
        A new GeoTIFF to write the grid to, georeferenced like the image that the data come from.

    Returns
    -------
    grid : ndarray
        Array of shape (sizes of the dimensions, ...).

    Raises
    ------
    InputError
        If the data are not an array of several dimensions, or there is not one value per row.

    Examples
    --------
    >>> import bigfs
    >>> bigfs.to_grid("runs/scene", labels).shape  # doctest: +SKIP
    (2000, 2000)
    """
    source = _opened(getattr(data, "path", data))
    if source.grid is None:
        raise InputError(f"{source.uri} is not an array of several dimensions (input.features).")
    shape = tuple(source.grid["shape"])
    values = np.atleast_1d(values.load() if isinstance(values, ArrayRef) else np.asarray(values))
    n = math.prod(shape)
    places = np.delete(np.arange(n), source.dropped)
    if row_mask is not None:
        if np.shape(row_mask) != (n,):
            raise InputError(f"row_mask must have {n:,} rows. Got shape {np.shape(row_mask)}.")
        places = np.flatnonzero(row_mask)
    if len(values) != len(places) or values.dtype.kind not in "biuf":
        raise InputError(
            f"values must hold a number for each of the {len(places):,} rows of {source.uri}. Got "
            f"{len(values):,} values of type {values.dtype}."
        )
    if fill is None:
        fill = -1 if values.dtype.kind in "iu" else np.nan
    dtype = np.result_type(values.dtype, np.min_scalar_type(fill))
    grid = np.full((n, *values.shape[1:]), fill, dtype)
    grid[places] = values
    if dest is not None:
        bands = grid.reshape(n, -1)
        if bands.dtype == np.int64 and np.abs(bands).max(initial=0) < 2**31:  # all readers have it
            bands = bands.astype(np.int32)
        with unnamed_file(check_new_file(Path(dest))) as file:
            names = [""] * bands.shape[1]
            every, missing = np.ones(n, dtype=bool), fill if len(places) < n else None
            write_map(file, source.grid, every, [bands], bands.dtype, names, missing=missing)
    return grid.reshape(*shape, *values.shape[1:])


def _opened(data: Any) -> Source:
    if isinstance(data, (str, Path)) and (as_location(data) / MANIFEST).is_file():
        return open_run_data(as_location(data))
    return data if isinstance(data, Source) else open_matrix(data)


# Number of values of a matrix that are copied at a time.
_PIECE = 2**21


@dataclass(frozen=True)
class Original:
    """The AnnData that a run read.

    Attributes
    ----------
    path : Path
    source : Source
        Its matrix, opened as in the run but with all columns.
    places : ndarray of shape (n_features,), int64
        Positions of the run's features among these columns.
    has_missing : bool
        Whether the run filled missing values, which are still missing in the AnnData.
    """

    path: Path
    source: Source
    places: np.ndarray
    has_missing: bool

    def check(self, columns: SelectedColumns) -> None:
        """Raise InputError if the values of the AnnData differ from those that the run read."""
        places, first, source = self.places[columns.places], 0, self.source
        rows = block_rows(source.n_features, source.dtype.itemsize, None)
        source.begin()
        with track("compare values", columns.n_samples, "rows") as progress:
            for block in source.iter_rows(rows):
                values = block[:, places].toarray() if source.sparse else block[:, places]
                read = columns.read(first, first + len(values))
                same = (values == read) | (self.has_missing & np.isnan(values))
                if not same.all():
                    raise InputError(
                        f"{self.path} has other values than the run read. Run it again, or export "
                        "to another format, which takes the values from the run."
                    )
                first += len(values)
                progress.advance(len(values))


def original_of(
    uri: str, layer: str | None, n_samples: int, names: list[str] | None, has_missing: bool
) -> Original | None:
    """Return the AnnData that a run read, if it is on a local disk with its rows and features.

    None otherwise, and if the result cannot be mapped to it (layer ``raw``, old file formats).
    """
    place = as_path(uri)
    if names is None or not isinstance(place, Path):
        return None
    if place.suffix.lower() not in (".h5ad", ".zarr"):
        return None
    try:
        source = open_matrix(place, layer=layer)
        with on_disk(place) as tree:
            is_old = any(hasattr(tree.frame(name), "shape") for name in ("obs", "var"))
    except InputError:
        return None
    known = {name: i for i, name in enumerate(source.feature_names or ())}
    same = known.keys() >= set(names) and source.n_samples == n_samples
    if not same or layer == "raw" or is_old:
        return None
    return Original(place, source, np.array([known[name] for name in names]), has_missing)


def write_subset(file: IO[bytes], original: Path, kept: np.ndarray) -> None:
    """Write an AnnData with a subset of its columns; everything else is copied.

    Sparse matrices stay sparse.

    Parameters
    ----------
    file : file open for writing and reading
    original : Path
        A .h5ad file or an AnnData zarr store. Its matrices are read piece by piece.
    kept : ndarray of shape (n_kept,), int64
        The columns to write, in this order.
    """
    import h5py
    from anndata.io import read_elem, write_elem

    with on_disk(original) as tree, h5py.File(file, "w") as root:
        root.attrs.update({ENCODING: "anndata", "encoding-version": "0.1.0"})
        source = tree.root

        def copy(name: str) -> None:
            if tree.is_zarr:
                write_elem(root, name, read_elem(source[name]))
            else:
                source.copy(source[name], root, name)

        def of_columns(group: str, take: Callable[[Any], Any]) -> None:
            taken = {key: take(read_elem(source[group][key])) for key in source[group]}
            write_elem(root, group, taken)

        for name in source:
            if name == "var":
                write_elem(root, name, read_elem(source[name]).iloc[kept])
            elif name == "varm":
                of_columns(name, lambda values: getattr(values, "iloc", values)[kept])
            elif name == "varp":
                of_columns(name, lambda values: values[kept][:, kept])
            elif name not in ("X", "layers"):
                copy(name)
        matrices = [name for name in ("X",) if name in source]
        if "layers" in source:
            write_elem(root, "layers", {})
            matrices += [f"layers/{name}" for name in source["layers"]]
        for name in matrices:
            if source[name].attrs.get(ENCODING) == "null":
                copy(name)
            else:
                _write_matrix(root, name, source[name], kept)


def _write_matrix(root: Any, name: str, node: Any, kept: np.ndarray) -> None:
    """Write the given columns of a dense or sparse matrix, piece by piece."""
    from anndata.io import sparse_dataset

    kind, matrix, packed = node.attrs.get(ENCODING), node, node
    if kind in SPARSE:
        matrix, packed = sparse_dataset(node), node["data"]
    elif not hasattr(node, "shape"):
        raise InputError(f"{name} is stored as {kind}, which cannot be written. Export to .zarr.")
    by_column = kind == "csc_matrix"
    options = {"compression": packed.compression} if hasattr(packed, "id") else {}
    if kind not in SPARSE:
        shape = (node.shape[0], len(kept))
        target = root.create_dataset(name, shape, node.dtype, **(options if min(shape) else {}))
        target.attrs.update({ENCODING: "array", "encoding-version": "0.2.0"})
    entries = packed.shape[0] if kind in SPARSE else node.shape[0] * node.shape[1]
    total = len(kept) if by_column else matrix.shape[0]
    per_line = entries // max(1, matrix.shape[1 if by_column else 0])
    with track(f"export {name}", total, "columns" if by_column else "rows") as progress:
        for start, stop in block_bounds(total, max(1, _PIECE // max(1, per_line))):
            if kind not in SPARSE:
                target[start:stop] = matrix[start:stop][:, kept]
            else:
                lines = matrix[:, kept[start:stop]] if by_column else matrix[start:stop][:, kept]
                lines = lines.asformat(kind[:3])
                lines.sort_indices()
                append_lines(root, name, lines, is_first=start == 0, **options)
            progress.advance(stop - start)
