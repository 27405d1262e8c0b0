"""Opening a matrix: one reader per format, all with the same interface."""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import stat
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from bigfs.core.errors import InputError, RowError, StorageError
from bigfs.core.paths import OBJECT, as_text, column_of, listed_in
from bigfs.core.threads import set_within
from bigfs.store.columns import Encoding, Roles, roles_of
from bigfs.store.fingerprint import Watch
from bigfs.store.grown import read_metadata
from bigfs.store.location import Location, as_location
from bigfs.store.objects import ObjectPath
from bigfs.store.values import HEAD_ROWS, are_counts, decoding

logger = logging.getLogger("bigfs")

# A shape with more values than this is treated as a damaged header.
_MOST_VALUES = 2**56
# Maximum number of names listed in an error message.
_LISTED = 12
Opening = TypeVar("Opening", bound=Callable[..., "Source"])
# Whether the first line of a text table names the columns.
Header: TypeAlias = Literal["auto"] | bool
_for_task: ContextVar[bool] = ContextVar("bigfs_for_task", default=False)


def pickled_for_task(source: Source | None) -> bytes:
    """Return a pickle of a source that holds only what a task needs to read rows."""
    with set_within(_for_task, True):
        return pickle.dumps(source)


@dataclass(frozen=True)
class CSRLayout:
    """Block size of a sparse matrix, and the number of stored entries."""

    rows: int  # rows per block
    n_entries: int  # in the whole matrix
    block_entries: int  # in the largest block


class Source(ABC):
    """A matrix whose rows can be read sequentially, from first to last.

    Attributes
    ----------
    uri : str
        Name used in error messages; never contains credentials.
    n_samples : int or None
        Number of rows; None if it is only known after reading to the end.
    n_features : int
    dtype : numpy.dtype
        Type of the rows that are returned: float32 or float64.
    feature_names : list of str or None
    checked : bool
        Whether every value is known to be finite.
    is_table : bool
        Whether columns can be read by name with the values they have in the table.
    sparse : bool
        Whether its blocks are CSR blocks as described in `bigfs.store.csr`.
    watch : Watch or None
        Detects changes of the file or folder that the matrix was opened from.
    index : str or None
        Name of the column that holds the row ids.
    ids : object or None
        Row ids that are not a column of a table; ``ids.pieces(start, stop)`` yields them.
    dropped : sequence of int
        Row numbers of the original source that an ingest left out.
    sources : sequence of (str, int)
        The sources that were concatenated, each with its number of consecutive rows; empty if there
        was only one.
    notes : sequence of str
        Messages logged once when the source is opened.
    categories : mapping of str to tuple of str
        Distinct values of the encoded columns, by column name.
    encoded : mapping of str to str
        Kind of each encoded column: "boolean", "date" or "category".
    empty : set of str
        Columns of a table that hold no values, judging by their type or the first rows.
    column_types : mapping of str to str
        Arrow types of the columns, if the table declares them; used when it is exported.
    grid : mapping or None
        For a multidimensional array: ``dims`` and ``shape`` of the dimensions stacked into rows.
    starts_quickly : bool
        Whether the first rows can be read without reading the rest.
    read_once : bool
        Whether the rows can be read only once.
    held_bytes : int
        Memory this process holds while rows are read, in addition to the blocks: the whole file, if
        its format cannot be read by rows.
    temporary_bytes : int
        Size of the largest unnamed temporary file written while reading, to sort values by row.
    """

    uri: str
    n_samples: int | None
    n_features: int
    dtype: np.dtype
    feature_names: list[str] | None = None
    checked: bool = False
    is_table: bool = False
    sparse: bool = False
    watch: Watch | None = None
    index: str | None = None
    ids: Any = None
    dropped: Sequence[int] = ()
    sources: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()
    categories: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    encoded: Mapping[str, str] = MappingProxyType({})
    empty: Set[str] = frozenset()
    column_types: Mapping[str, str] = MappingProxyType({})
    grid: Mapping[str, Any] | None = None
    starts_quickly: bool = True
    read_once: bool = False
    held_bytes: int = 0
    temporary_bytes: int = 0
    _stored: np.dtype | None = None  # if it differs from the type of the returned rows

    def set_matrix(self, uri: str, shape: tuple[int, ...], stored: Any) -> None:
        """Set name, shape and dtypes; raise InputError if it is not a matrix of real numbers."""
        self.uri, self._stored = uri, np.dtype(stored)
        self.dtype = work_dtype(stored, uri)
        check_shape(shape, uri)
        self.n_samples, self.n_features = (int(size) for size in shape)

    def __repr__(self) -> str:
        """Return a line such as ``<scene.nc::X: 44,000 x 205, float32>``."""
        rows = "?" if self.n_samples is None else f"{self.n_samples:,}"
        return f"<{self.uri}: {rows} x {self.n_features:,}, {self.dtype}>"

    @property
    def row_dimensions(self) -> Mapping[str, int]:
        """Dimensions stacked into the rows, in order, with their sizes; empty if there are none."""
        grid = self.grid or {"dims": (), "shape": ()}
        return dict(zip(grid["dims"], grid["shape"], strict=True))

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the values as stored; ``dtype`` can represent all of them."""
        return self.dtype if self._stored is None else self._stored

    @property
    def estimated_samples(self) -> int | None:
        """Number of rows, or an estimate if only a full read gives it; None if unknown."""
        return self.n_samples

    @property
    def counted_samples(self) -> int | None:
        """Like ``estimated_samples``, but exact for a row filter.

        A filter reads its column and counts the rows that it keeps.
        """
        return self.estimated_samples

    @property
    def layout(self) -> CSRLayout | None:
        """Blocks of a sparse matrix; None if the number of entries is only known after reading."""
        return None

    @property
    def planned_layout(self) -> CSRLayout | None:
        """Like ``layout``, or an estimate of it."""
        return self.layout

    @abstractmethod
    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive blocks of at most ``rows`` rows, as CSR blocks if the matrix is sparse.

        Callers must not modify the blocks.
        """

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Return the blocks of `iter_rows` as dense arrays."""
        blocks = self.iter_rows(rows)
        return map(methodcaller("toarray"), blocks) if self.sparse else blocks

    def holds_counts(self) -> bool:
        """Return True if the matrix is sparse and its first values are counts.

        Only the first block of 1,000 rows that has entries is checked.
        """
        if not self.sparse:
            return False
        blocks = (block.data for block in self.iter_rows(HEAD_ROWS) if block.nnz)
        return are_counts(next(blocks, np.empty(0)))

    def locate(self, row: int) -> tuple[str, int]:
        """Return the source of a row that was read, and the row's number in that source."""
        return self.uri, row

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the row ids as lists of strings, piece by piece; nothing if there are no ids."""
        if self.ids is not None:
            with decoding(f"{self.uri}: an id of a row"):
                yield from self.ids.pieces(0, self.n_samples)

    def read_column(self, name: str) -> Any:
        """Return the values of a named column for all rows, as an array-like.

        Raises
        ------
        InputError
            If there is no column of this name.
        """
        raise no_column(self.uri, name, ())

    @contextmanager
    def numbering_rows(self) -> Iterator[None]:
        """Make row errors report the row number in the original source."""
        try:
            yield
        except RowError as error:
            raise error.in_the_original(self.dropped) from None

    def left_out(self, dropped: list[int]) -> Any:
        """Return the rows of the original source that are left out once some are dropped."""
        return dropped

    def begin(self) -> None:
        """Record the state of the file before its rows are read."""
        if self.watch is not None:
            self.watch.begin()

    def check_unchanged(self) -> None:
        """Raise InputError if the file has changed since it was opened."""
        if self.watch is not None:
            self.watch.check()

    # Attributes whose size grows with the matrix and that tasks do not need, with the values that
    # replace them in the pickle for a task.
    beside_tasks: ClassVar[Mapping[str, Any]] = MappingProxyType({"feature_names": None})

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        return state | dict(self.beside_tasks) if _for_task.get() else state


class RandomAccessSource(Source):
    """A matrix that supports reading any range of rows.

    Attributes
    ----------
    chunk_rows : int or None
        Rows per stored chunk; None if any row range can be read efficiently.
    shareable : bool
        Whether its pickle is small and can be used in another process.
    """

    n_samples: int
    chunk_rows: int | None = None
    shareable: bool = True

    @abstractmethod
    def read_rows(self, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop``, as a CSR block if the matrix is sparse.

        Callers must not modify them.
        """

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop`` as a dense array."""
        return self._dense(self.read_rows(start, stop))

    def read_columns(self, start: int, stop: int, columns: np.ndarray) -> np.ndarray:
        """Return the given columns of rows ``start`` to ``stop`` as a dense array."""
        return self._dense(self.read_rows(start, stop)[:, columns])

    def _dense(self, rows: Any) -> np.ndarray:
        return np.ascontiguousarray(rows.toarray()) if self.sparse else rows

    def block_entries(self, rows: int) -> int:
        """Return the number of entries in the largest block of ``rows`` rows, or an upper bound.

        Sparse matrices only.
        """
        raise NotImplementedError

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive blocks of at most ``rows`` rows."""
        for start in range(0, self.n_samples, rows):
            yield self.read_rows(start, min(start + rows, self.n_samples))


def work_dtype(dtype: Any, uri: str) -> np.dtype:
    """Return the dtype that the kernels use: float32 if it can represent every value, else float64.

    Raises
    ------
    InputError
        If the values are not real numbers.
    """
    dtype = np.dtype(dtype)
    if dtype.kind not in "fiub":
        raise InputError(
            f"{uri}: values must be real numbers. Got {dtype.name}; convert or drop such columns."
        )
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32) else np.float64)


_least_rows: ContextVar[int] = ContextVar("fewest rows of a source", default=2)


def as_part() -> AbstractContextManager[None]:
    """Open sources within the context as parts of a larger matrix, which may have a single row."""
    return set_within(_least_rows, 1)


def check_shape(shape: tuple[int, ...], uri: str) -> None:
    """Raise InputError unless a shape has at least 2 samples (of a part: 1) and 1 feature."""
    if len(shape) != 2:
        raise InputError(
            f"{uri}: a matrix of samples x features must have 2 dimensions. Got shape "
            f"{tuple(shape)}; reshape it first."
        )
    if shape[0] < (least := _least_rows.get()) or shape[1] < 1:
        samples = "2 samples" if least == 2 else "1 sample"
        raise InputError(
            f"{uri}: at least {samples} and 1 feature are needed. Got shape {tuple(shape)}."
        )
    if shape[0] * shape[1] > _MOST_VALUES:
        # An integer of 400 digits cannot be converted to float.
        sizes = " x ".join(f"{min(size, 10**300):.3g}" for size in shape)
        raise InputError(f"{uri}: its shape is implausible: no disk can hold {sizes} values.")


def check_names(names: list[str] | None, n_features: int, uri: str) -> None:
    """Raise InputError unless there is one name per feature and all names are unique."""
    if names is None:
        return
    if len(names) != n_features:
        raise InputError(
            f"{uri}: there are {len(names)} feature names for {n_features} features. "
            "Give one name for each."
        )
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            raise InputError(
                f"{uri}: the feature name {name!r} appears twice. Names must be unique; rename one."
            )
        earlier.add(name)


def check_no_variable(path: Location | str, variable: str | None) -> None:
    """Raise InputError if a variable is given for a file that holds a single array."""
    if variable is not None:
        raise InputError(f"{path} holds one matrix; variable must be None. Got {variable!r}.")


# Arrow's type names of booleans, integers and floats.
PLAIN_TYPES = ("bool", "halffloat", "float", "double",
               *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))  # fmt: skip


def common_types(sources: Sequence[Source]) -> dict[str, str]:
    """Return the types of the columns that have the same type in all sources."""
    first, *others = [source.column_types for source in sources]
    return {n: t for n, t in first.items() if all(types.get(n) == t for types in others)}


def positions_by_name(
    kept: np.ndarray, fitted: Sequence[str] | None, names: Sequence[str] | None
) -> np.ndarray | None:
    """Return the positions of selected features in other data, or None if one has no names.

    Parameters
    ----------
    kept : ndarray of int
        Positions of the selected features in the data that they were selected from.
    fitted, names : sequence of str or None
        Names of the features of these data, and of the other data. Names that only number the
        features from 0 or 1, such as the default ones of AnnData, need not match.

    Raises
    ------
    InputError
        If both have names, and one of a selected feature is missing or not unique.
    """
    if fitted is None or names is None:
        return None
    numbered = any(
        list(own) == [str(j) for j in range(first, first + len(own))]
        for own in (fitted, names) for first in (0, 1)
    )  # fmt: skip
    if numbered and not (set(fitted) <= set(names) or set(names) <= set(fitted)):
        return None
    counts = Counter(names)
    bad = next((fitted[j] for j in kept if counts[fitted[j]] != 1), None)
    if bad is None:
        places = {name: j for j, name in enumerate(names)}
        return np.array([places[fitted[j]] for j in kept], dtype=np.int64)
    problem = "several columns" if counts[bad] else "no column"
    raise InputError(f"X has {problem} {bad!r}, which was selected. X must have the same features.")


def check_fitted_names(source: Source, fitted: Any) -> None:
    """Raise InputError if the feature names, or their order, differ from those seen in fit.

    ``fitted`` holds the feature names seen in fit, or None. Nothing is checked if either has no
    names.
    """
    differing = first_difference(source.feature_names, fitted)
    if differing is not None:
        place, own, former = differing
        raise InputError(
            f"{source.uri}: the features or their order differ from those of fit: number {place} "
            f"is {own!r}, but was {former!r}. Select or order them by name (columns=)."
        )


def first_difference(names: Any, others: Any) -> tuple[int, str, str] | None:
    """Return the first position at which two lists of feature names differ, and both names there.

    None if they are equal, or if either is None.
    """
    if names is None or others is None:
        return None
    pairs = enumerate(zip_longest(names, others, fillvalue="missing"))
    return next(((j, own, other) for j, (own, other) in pairs if own != other), None)


def no_column(uri: str, name: str, names: Iterable[Any]) -> InputError:
    """Return the error for a column that does not exist."""
    return InputError(f"{uri} has no column {name!r}. It has {listed([str(n) for n in names])}.")


def listed(names: list[str]) -> str:
    """Return names for a message, shortened if there are many: a table may have thousands."""
    shown = ", ".join(names[:_LISTED]) or "nothing"
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED:,} more"


def choose_member(
    path: Location | str, names: list[str], matrices: list[str], variable: str | None
) -> str:
    """Return the name of the array to read from a file: ``variable``, ``X``, or the only matrix.

    Raises
    ------
    InputError
        If there is no such array, or the choice is ambiguous.
    """
    choices = listed(names)
    if variable is not None:
        if variable not in names:
            raise InputError(f"{path} has no array {variable!r}. It has {choices}.")
        return variable
    if "X" in names:
        return "X"
    if not matrices:
        raise InputError(
            f"{path} holds no matrix of numbers (it has {choices}). Save one as an array of "
            "samples x features (numpy.save; if sparse, scipy.sparse.save_npz); name an array of "
            "one column with input.variable (--variable, variable=)."
        )
    if len(matrices) != 1:
        raise InputError(
            f"{path} holds {len(matrices)} matrices (it has {choices}). Name one with "
            "input.variable (--variable, variable=)."
        )
    return matrices[0]


@dataclass(frozen=True)
class Options:
    """Settings that select what is read from a source.

    Settings
    --------
    variable : str or None, default=None
        Array to read if a file or group holds several. None: ``X``, or the only one.
    header : {"auto", True, False}, default="auto"
        Whether the first line of a .csv or .tsv holds the column names. ``"auto"``: yes if it is
        text, no if it is numbers; numbers that may be either (wavelengths, years) are an error.
    csv : dict or None, default=None
        Format of a text table (.csv, .tsv, .txt, .data, .tab, compressed or not): ``delimiter``
        (``" "``: one or more blanks), ``decimal``, ``comment``, ``na_values``, ``encoding``,
        ``skip_rows``, such as ``{"delimiter": ";", "decimal": ",", "na_values": ["?"]}``. None:
        separated by commas, or by tabs for .tsv and .tab. `bigfs inspect` proposes settings.
    columns : str, list of str or None, default=None
        Features to use: names, globs, or ranges if names are numbers; the prefix ``!`` excludes:
        ``["gene_*", "!gene_7"]`` or ``["400..900", "!650..700"]``. Columns of a matrix without
        names are numbered from 0. None: all, or all columns of a table that have no other role.
    index : str or None, default=None
        Column of a table with the row ids, which are kept with the rows.
    labels : str, list of str or None, default=None
        Columns of a table with known classes. They are never features.
    layer : str or None, default=None
        Layer of an AnnData (object, .h5ad or zarr), or ``"raw"``, or layer of a loom file. None:
        its ``X``.
    feature_types : str, list of str or None, default=None
        Feature types to read from 10x counts, such as ``"Antibody Capture"``. None: genes, if there
        are several types.
    booleans : {"numbers", "drop"}, default="numbers"
        Boolean columns of a table: read as 1 and 0, or dropped.
    dates : {"error", "numbers", "drop"}, default="error"
        Date columns of a table: rejected with an error, read as days since 1970-01-01, or dropped.
    categories : {"error", "numbers", "one_hot", "drop"}, default="error"
        Categorical or string columns of a table: rejected with an error, numbered in sorted order,
        replaced by one 0/1 feature per value (``city=Ulm``), or dropped. A column may have up to
        1,000 distinct values, which are read first.
    rows : dict or None, default=None
        Rows to read: ``{"every": 10}``, or those with certain values in a column, which is then not
        a feature: ``{"column": "quality", "at_least": 0.8}`` (or ``at_most``), ``{"column": "kind",
        "keep": ["a", "b"]}`` (or ``drop``). The column is named like labels. None: all.
    features : str, int, list of them or None, default=None
        For an array of several dimensions: name or number of the feature dimension, or several
        (``[1, 2]``). The others are stacked into rows, and `bigfs.to_grid` unstacks results with
        one value per row. Coordinates of the feature dimension become the feature names.
    no_data : float or None, default=None
        Value of such an array that represents missing data.
    transpose : bool, default=False
        Whether the table or matrix is transposed, such as genes by cells: its columns are read as
        rows, with the column names as row ids, and its row ids (``index``) are the feature names.
        ``columns`` then refers to columns of the file.
    """

    variable: str | None
    roles: Roles
    settings: Mapping[str, Any]  # other settings that were given, by name
    transpose: bool = False

    def check(self, what: str, takes: Container[str]) -> None:
        """Raise InputError if a setting was given that this kind of source does not support."""
        from bigfs.store.formats import taken_by

        given = dict(self.settings) if "roles" in takes else {**self.roles.given, **self.settings}
        for name, value in given.items():
            if name in takes or name == "columns":  # columns of a matrix are selected after opening
                continue
            known = taken_by("roles" if name in self.roles.given else name)
            raise InputError(
                f"{what} does not support {name}; only {known} and objects of their kind do. Got "
                f"{name} {json.dumps(value, default=str)}; remove it (input.{name}, "
                f"--{name.replace('_', '-')}, {name}=)."
            )


def _with_settings(function: Opening) -> Opening:
    """Insert the settings documented in `Options` into the docstring of a function."""
    described = inspect.cleandoc(Options.__doc__ or "").partition("Settings\n--------\n")[2]
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("{settings}", described)
    return function


@_with_settings
def open_matrix(
    X: Any,
    *,
    variable: str | None = None,
    header: Header = "auto",
    csv: Mapping[str, Any] | None = None,
    columns: str | Sequence[str] | None = None,
    index: str | None = None,
    labels: str | Sequence[str] | None = None,
    layer: str | None = None,
    feature_types: str | Sequence[str] | None = None,
    booleans: str = "numbers",
    dates: str = "error",
    categories: str = "error",
    rows: Mapping[str, Any] | None = None,
    features: str | int | Sequence[str | int] | None = None,
    no_data: float | None = None,
    transpose: bool = False,
) -> Source:
    """Open a matrix by path, URI or object.

    Parameters
    ----------
    X : str, Path, list of them, ndarray, DataFrame, sparse matrix, AnnData, Dask, zarr or HDF5 \
array, or Source
        A path (or ``s3://`` URI) to .npy, .npz, .csv, .tsv, .parquet, .mat, .h5ad, the .h5 file or
        folder of Cell Ranger, or a zarr array or group with ``X``, such as an AnnData;
        ``sklearn:NAME`` for a dataset that scikit-learn ships; or an object. A list of them, a glob
        (``parts/*.csv``) or a folder of .parquet, .csv or .tsv parts is read as one matrix: rows
        are concatenated, features matched by name, in the order of the first.
    {settings}

    Returns
    -------
    source : Source

    Raises
    ------
    InputError
        If it does not exist, is not of the format its name suggests, or is not a matrix of real
        numbers.
    InputTypeError
        If objects of this type cannot be read.

    Examples
    --------
    >>> from bigfs import open_matrix
    >>> open_matrix("sklearn:iris").n_features
    4
    """
    if header != "auto" and not isinstance(header, bool):
        raise InputError(f"header must be 'auto', True or False. Got {header!r}.")
    from bigfs.store.opening import open_object, open_uris
    from bigfs.store.views import FilteredSource, row_filter

    uri, variable = _uri_of(X, variable)
    of_rows = None if rows is None else row_filter(rows)
    roles = roles_of(columns, index, labels, Encoding(booleans, dates, categories))
    if of_rows is not None:
        roles = replace(roles, labels=(*roles.labels, *of_rows.of_table))
    settings = {
        "header": None if header == "auto" else header,
        "csv": csv,
        "layer": layer,
        "feature_types": [feature_types] if isinstance(feature_types, str) else feature_types,
        "features": features,
        "no_data": no_data,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    options = Options(variable, roles, given, transpose)
    source = open_object(X, options) if uri is None else open_uris(uri, options)
    for note in source.notes if source is not X else ():  # already logged
        logger.info("%s: %s", source.uri, note)
    if of_rows is None:
        return source
    return FilteredSource(source, of_rows, of_rows.labels(uri or X, source, variable))


def _uri_of(X: Any, variable: str | None) -> tuple[str | None, str | None]:
    """Return the URI of a path or list of paths (None for an object), and the array to read."""
    uri = as_text(X) if is_list_of_uris(X) else X
    if not isinstance(uri, (str, Path, ObjectPath)):
        return None, variable
    uri = str(uri)
    if not uri:
        raise InputError("The path of the input is empty. Name a file or a folder.")
    if listed_in(uri) is not None or "::" not in uri:
        return uri, variable
    if variable is not None:
        raise InputError(
            f"{uri} names an array, but variable = {variable!r} names another. Give only one."
        )
    return column_of(uri)


def is_frame(X: Any) -> bool:
    """Return True if X is a frame or table with named columns: pandas, Dask, polars or Arrow."""
    lazy = type(X).__module__.startswith("polars") and hasattr(X, "collect_schema")
    return hasattr(X, "iloc") or hasattr(X, "__arrow_c_stream__") or lazy


def is_list_of_uris(X: Any) -> bool:
    """Return True if X is a non-empty list of paths or URIs, which together form one matrix."""
    is_list = isinstance(X, (list, tuple)) and len(X) > 0
    return is_list and all(isinstance(entry, (str, Path, ObjectPath)) for entry in X)


def is_store(uri: str | Location) -> bool:
    """Return True if a path is a store written by `ingest`, with checked values and checksums."""
    path = as_path(str(uri))
    try:
        return path is not None and "bigfs_store" in read_metadata(path)["attributes"]
    except StorageError:
        raise
    except (OSError, ValueError, LookupError, TypeError):
        return False


def as_path(uri: str) -> Location | None:
    """Return the location of a URI; None for scikit-learn datasets and in-memory objects."""
    return None if uri.startswith(("sklearn:", OBJECT)) else as_location(uri)


def is_reachable(path: Location) -> bool:
    """Return True if there is data at a path; raise InputError if it is a pipe or unreadable."""
    if isinstance(path, ObjectPath):
        return path.exists()
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path} cannot be reached: {reason}. Check the path.") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe would block
        raise InputError(
            f"{path} is a pipe or a device, but data are read several times. Save them to a file."
        )
    if path.is_file() and not os.access(path, os.R_OK):  # some libraries would report it as damaged
        raise InputError(f"{path} cannot be read: permission denied. Allow it: chmod u+r.")
    return True
