"""Opening a matrix: one reader per format, all with the same interface."""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import stat
from abc import ABC, abstractmethod
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

# Larger shapes are taken for a damaged header.
_MOST_VALUES = 2**56
# Names that a message shows.
_LISTED = 12
Opening = TypeVar("Opening", bound=Callable[..., "Source"])
# Whether the first line of a text table names the columns.
Header: TypeAlias = Literal["auto"] | bool
_for_task: ContextVar[bool] = ContextVar("bigfs_for_task", default=False)


def pickled_for_task(source: Source | None) -> bytes:
    """Return the pickle of a source from which a task reads rows, and no more."""
    with set_within(_for_task, True):
        return pickle.dumps(source)


@dataclass(frozen=True)
class CSRLayout:
    """Blocks of a sparse matrix, and the entries they hold."""

    rows: int  # rows per block
    n_entries: int  # of the matrix
    block_entries: int  # of the largest block


class Source(ABC):
    """A matrix that can be read from its first row to its last.

    Attributes
    ----------
    uri : str
        What messages call it; never holds credentials.
    n_samples : int or None
        Rows; None where only reading to the end tells.
    n_features : int
    dtype : numpy.dtype
        float32 or float64: the type of the rows that are handed out.
    feature_names : list of str or None
    checked : bool
        Whether every value is known to be finite.
    is_table : bool
        Whether columns can be read by name as the table has them.
    sparse : bool
        Whether its blocks are CSR ones, as `bigfs.store.csr` describes them.
    watch : Watch or None
        Over the file or folder it was opened from.
    index : str or None
        Name of the column with the rows' ids.
    ids : object or None
        Where they are not columns of a table: ``ids.pieces(start, stop)`` yields them.
    dropped : sequence of int
        Rows of the original that an ingest left out.
    sources : sequence of (str, int)
        Where there were several: each, and how many consecutive rows are of it.
    notes : sequence of str
        What is said once when it is opened.
    categories : mapping of str to tuple of str
        The values of columns that are encoded.
    encoded : mapping of str to str
        These columns: "boolean", "date" or "category".
    empty : set of str
        Columns of a table that hold no value, as far as its type or its first rows say.
    column_types : mapping of str to str
        Arrow's types of the columns of a table that says them, for its export.
    grid : mapping or None
        Of an array of several dimensions: ``dims`` and ``shape`` of those that are stacked as rows.
    starts_quickly : bool
        Whether its first rows are read without the others.
    read_once : bool
        Whether its rows cannot be read again.
    held_bytes : int
        What this process holds while rows are read, beyond blocks of them: the file, if its format
        cannot be read by rows.
    temporary_bytes : int
        The largest file without a name that reading writes, to bring values into order of rows.
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
    _stored: np.dtype | None = None  # where it is another type than that of the rows

    def set_matrix(self, uri: str, shape: tuple[int, ...], stored: Any) -> None:
        """Set name, sizes and types, or raise InputError if it is no matrix of real numbers."""
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
        """Dimensions that the rows are of, in order, with their sizes; empty without any."""
        grid = self.grid or {"dims": (), "shape": ()}
        return dict(zip(grid["dims"], grid["shape"], strict=True))

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the values as they are stored; ``dtype`` holds all of them."""
        return self.dtype if self._stored is None else self._stored

    @property
    def estimated_samples(self) -> int | None:
        """Rows, or about as many where only reading to the end tells; None if nothing tells."""
        return self.n_samples

    @property
    def counted_samples(self) -> int | None:
        """As ``estimated_samples``, but a filter reads its column, and counts."""
        return self.estimated_samples

    @property
    def layout(self) -> CSRLayout | None:
        """Blocks of a sparse matrix; None where only reading tells how many entries there are."""
        return None

    @property
    def planned_layout(self) -> CSRLayout | None:
        """As ``layout``, or about what it will be."""
        return self.layout

    @abstractmethod
    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive blocks of at most ``rows`` rows, CSR ones where it is sparse.

        Callers must not write into them.
        """

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Return the same blocks, dense."""
        blocks = self.iter_rows(rows)
        return map(methodcaller("toarray"), blocks) if self.sparse else blocks

    def holds_counts(self) -> bool:
        """Say whether it is sparse and the first 1,000 rows that have entries are counts."""
        if not self.sparse:
            return False
        blocks = (block.data for block in self.iter_rows(HEAD_ROWS) if block.nnz)
        return are_counts(next(blocks, np.empty(0)))

    def locate(self, row: int) -> tuple[str, int]:
        """Return which source a row of those read so far is of, and its number there."""
        return self.uri, row

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the rows' ids as texts, piece by piece; nothing where there are none."""
        if self.ids is not None:
            with decoding(f"{self.uri}: an id of a row"):
                yield from self.ids.pieces(0, self.n_samples)

    def read_column(self, name: str) -> Any:
        """Return the values of a column of an object, by its name: an array-like of all rows.

        Raises
        ------
        InputError
            If there is none of the name.
        """
        raise no_column(self.uri, name, ())

    @contextmanager
    def numbering_rows(self) -> Iterator[None]:
        """Have errors give the number of a row in the original."""
        try:
            yield
        except RowError as error:
            raise error.in_the_original(self.dropped) from None

    def left_out(self, dropped: list[int]) -> Any:
        """Return which rows of the original are not there if some of these are dropped."""
        return dropped

    def begin(self) -> None:
        """Record the state of the file before its rows are read."""
        if self.watch is not None:
            self.watch.begin()

    def check_unchanged(self) -> None:
        """Raise InputError if the file has changed since it was opened."""
        if self.watch is not None:
            self.watch.check()

    # Attributes that grow with the matrix and that no task needs, and what a task has instead.
    beside_tasks: ClassVar[Mapping[str, Any]] = MappingProxyType({"feature_names": None})

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        return state | dict(self.beside_tasks) if _for_task.get() else state


class RandomAccessSource(Source):
    """A matrix whose rows can be read by range.

    Attributes
    ----------
    chunk_rows : int or None
        Rows per stored chunk; None where rows can be read freely.
    shareable : bool
        Whether a pickle of it is small and works in another process.
    """

    n_samples: int
    chunk_rows: int | None = None
    shareable: bool = True

    @abstractmethod
    def read_rows(self, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop``, in CSR form where it is sparse.

        Callers must not write into them.
        """

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``, dense."""
        return self._dense(self.read_rows(start, stop))

    def read_columns(self, start: int, stop: int, columns: np.ndarray) -> np.ndarray:
        """Return some columns of rows ``start`` to ``stop``, dense."""
        return self._dense(self.read_rows(start, stop)[:, columns])

    def _dense(self, rows: Any) -> np.ndarray:
        return np.ascontiguousarray(rows.toarray()) if self.sparse else rows

    def block_entries(self, rows: int) -> int:
        """Return the entries of the largest block of so many rows, or a bound; of sparse ones."""
        raise NotImplementedError

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive blocks of at most ``rows`` rows."""
        for start in range(0, self.n_samples, rows):
            yield self.read_rows(start, min(start + rows, self.n_samples))


def work_dtype(dtype: Any, uri: str) -> np.dtype:
    """Return the type the kernels see: float32 where it holds every value, else float64.

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
    """Open sources within the block as parts of something larger, which may have one row."""
    return set_within(_least_rows, 1)


def check_shape(shape: tuple[int, ...], uri: str) -> None:
    """Raise InputError unless a shape is that of at least 2 samples by 1 feature."""
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
        # A whole number of 400 digits is no float.
        sizes = " x ".join(f"{min(size, 10**300):.3g}" for size in shape)
        raise InputError(f"{uri}: its shape is implausible: no disk can hold {sizes} values.")


def check_names(names: list[str] | None, n_features: int, uri: str) -> None:
    """Raise InputError unless there is one name for each feature and no name twice."""
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
    """Raise InputError if an array is named in a file that holds only one."""
    if variable is not None:
        raise InputError(f"{path} holds one matrix; variable must be None. Got {variable!r}.")


# Arrow's names of booleans, whole numbers and floats.
PLAIN_TYPES = ("bool", "halffloat", "float", "double",
               *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))  # fmt: skip


def common_types(sources: Sequence[Source]) -> dict[str, str]:
    """Return the types that a column has in all sources."""
    first, *others = [source.column_types for source in sources]
    return {n: t for n, t in first.items() if all(types.get(n) == t for types in others)}


def check_fitted_names(source: Source, fitted: Any) -> None:
    """Raise InputError if data have their features in another order than those of a fit.

    ``fitted`` are the names of those, or None; data without names are taken as they are.
    """
    differing = first_difference(source.feature_names, fitted)
    if differing is not None:
        place, own, former = differing
        raise InputError(
            f"{source.uri}: the features are not those of fit, in their order: number {place} is "
            f"{own!r}, and was {former!r}. Select or order them by name (columns=)."
        )


def first_difference(names: Any, others: Any) -> tuple[int, str, str] | None:
    """Return the first number at which names of features differ, and both names; None if none."""
    if names is None or others is None:
        return None
    pairs = enumerate(zip_longest(names, others, fillvalue="missing"))
    return next(((j, own, other) for j, (own, other) in pairs if own != other), None)


def no_column(uri: str, name: str, names: Iterable[Any]) -> InputError:
    """Return the error for a column that is not there."""
    return InputError(f"{uri} has no column {name!r}. It has {listed([str(n) for n in names])}.")


def listed(names: list[str]) -> str:
    """Return names for a message: a table may have thousands."""
    shown = ", ".join(names[:_LISTED]) or "nothing"
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED:,} more"


def choose_member(
    path: Location | str, names: list[str], matrices: list[str], variable: str | None
) -> str:
    """Return which array of a file to read: ``variable``, ``X``, or the only matrix.

    Raises
    ------
    InputError
        If it is not there, or several could be meant.
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
            "samples x features (numpy.save), a sparse one by scipy.sparse.save_npz; an array of "
            "one column is named by input.variable (--variable, variable=)."
        )
    if len(matrices) != 1:
        raise InputError(
            f"{path} holds {len(matrices)} matrices (it has {choices}). Name one with "
            "input.variable (--variable, variable=)."
        )
    return matrices[0]


@dataclass(frozen=True)
class Options:
    """The settings that say what is read of a source.

    Settings
    --------
    variable : str or None, default=None
        Array to read where a file or group holds several. None: ``X``, or the only one.
    header : {"auto", True, False}, default="auto"
        Whether the first line of a .csv or .tsv names the columns. ``"auto"``: text does, and
        numbers are a sample; numbers that may be either (wavelengths, years) are refused.
    csv : dict or None, default=None
        Spelling of a text table (.csv, .tsv, .txt, .data, .tab, packed or not): ``delimiter``
        (``" "``: one blank or more), ``decimal``, ``comment``, ``na_values``,
        ``encoding``, ``skip_rows``, as ``{"delimiter": ";", "decimal": ",", "na_values": ["?"]}``.
        None: cells between commas, of .tsv and .tab between tabs. `bigfs inspect` proposes them.
    columns : str, list of str or None, default=None
        Features: names, globs, or ranges where names are numbers, and behind a ``!`` those to leave
        out: ``["gene_*", "!gene_7"]`` or ``["400..900", "!650..700"]``. A matrix without names has
        the numbers of its columns, from 0. None: all, of a table all other columns.
    index : str or None, default=None
        Column of a table with the rows' ids, which are kept beside the rows.
    labels : str, list of str or None, default=None
        Columns of a table with known classes. They are never features.
    layer : str or None, default=None
        Layer of an AnnData (object, .h5ad or zarr), or ``"raw"``, or of loom. None: its ``X``.
    feature_types : str, list of str or None, default=None
        Of counts of 10x: the types of features to read, such as ``"Antibody Capture"``. None:
        genes where there are several types.
    booleans : {"numbers", "drop"}, default="numbers"
        Columns of a table that are true or false: read as 1 and 0, or left out.
    dates : {"error", "numbers", "drop"}, default="error"
        Columns of dates: refused, read as days since 1970-01-01, or left out.
    categories : {"error", "numbers", "one_hot", "drop"}, default="error"
        Columns of categories or texts: refused, numbered in sorted order, one feature of 0 and 1
        for each of up to 1,000 values (``city=Ulm``), or left out. The values are read first.
    rows : dict or None, default=None
        Which rows to read: ``{"every": 10}``, or those with some values in a column, which is no
        feature then: ``{"column": "quality", "at_least": 0.8}`` (or ``at_most``), ``{"column":
        "kind", "keep": ["a", "b"]}`` (or ``drop``). The column is named as labels are. None: all.
    features : str, int, list of them or None, default=None
        Of an array of several dimensions: name or number of the one of the features, or of several
        (``[1, 2]``); the others are stacked into rows, and `bigfs.to_grid` puts what has a row each
        back. Coordinates are the names of the features.
    no_data : float or None, default=None
        A value of such an array that stands for a missing one.
    transpose : bool, default=False
        Whether the table or matrix lies on its side, such as genes by cells: its columns are the
        rows, and their names the ids; the ids of its rows (``index``) are the names of the
        features. ``columns`` are then those of the file.
    """

    variable: str | None
    roles: Roles
    settings: Mapping[str, Any]  # the others that are given, by name
    transpose: bool = False

    def check(self, what: str, takes: Container[str]) -> None:
        """Raise InputError for a setting that a kind of source does not have."""
        from bigfs.store.formats import taken_by

        given = dict(self.settings) if "roles" in takes else {**self.roles.given, **self.settings}
        for name, value in given.items():
            if name in takes or name == "columns":  # of a matrix, they are chosen when it is open
                continue
            known = taken_by("roles" if name in self.roles.given else name)
            raise InputError(
                f"{what} takes no {name}: only {known} and objects of their kind do. Got "
                f"{name} {json.dumps(value, default=str)}; leave it out (input.{name}, "
                f"--{name.replace('_', '-')}, {name}=)."
            )


def _with_settings(function: Opening) -> Opening:
    """Put the settings, which `Options` describes, into the docstring of a function."""
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
        A path (or ``s3://`` URI) to .npy, .npz, .csv, .tsv, .parquet, .mat, .h5ad, the .h5 or the
        folder of Cell Ranger, or a zarr array or group with ``X``, such as an AnnData;
        ``sklearn:NAME`` for a set that scikit-learn ships; or an object. A list of them, a glob
        (``parts/*.csv``) or a folder of .parquet, .csv or .tsv parts is one matrix: rows one after
        the other, features matched by name, in the order of the first.
    {settings}

    Returns
    -------
    source : Source

    Raises
    ------
    InputError
        If it is not there, is not what its name says, or is no matrix of real numbers.
    InputTypeError
        If the object is of a kind that cannot be read.

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
    for note in source.notes if source is not X else ():  # they were said
        logger.info("%s: %s", source.uri, note)
    if of_rows is None:
        return source
    return FilteredSource(source, of_rows, of_rows.labels(uri or X, source, variable))


def _uri_of(X: Any, variable: str | None) -> tuple[str | None, str | None]:
    """Return the URI of a path or a list of them, None for an object; and the array to read."""
    uri = as_text(X) if is_list_of_uris(X) else X
    if not isinstance(uri, (str, Path, ObjectPath)):
        return None, variable
    uri = str(uri)
    if not uri:
        raise InputError("The path of the input is empty. Name a file or a folder.")
    if listed_in(uri) is not None or "::" not in uri:
        return uri, variable
    if variable is not None:
        raise InputError(f"{uri} names an array, and variable another: {variable!r}.")
    return column_of(uri)


def is_frame(X: Any) -> bool:
    """Say whether X is a frame or table with named columns: of pandas, Dask, polars or Arrow."""
    lazy = type(X).__module__.startswith("polars") and hasattr(X, "collect_schema")
    return hasattr(X, "iloc") or hasattr(X, "__arrow_c_stream__") or lazy


def is_list_of_uris(X: Any) -> bool:
    """Say whether X is a list of paths or URIs, which is one matrix."""
    is_list = isinstance(X, (list, tuple)) and len(X) > 0
    return is_list and all(isinstance(entry, (str, Path, ObjectPath)) for entry in X)


def is_store(uri: str | Location) -> bool:
    """Say whether a path is a store that `ingest` wrote: checked, with checksums."""
    path = as_path(str(uri))
    try:
        return path is not None and "bigfs_store" in read_metadata(path)["attributes"]
    except StorageError:
        raise
    except (OSError, ValueError, LookupError, TypeError):
        return False


def as_path(uri: str) -> Location | None:
    """Return the place of a URI, None for a set of scikit-learn's and an object of a session."""
    return None if uri.startswith(("sklearn:", OBJECT)) else as_location(uri)


def is_reachable(path: Location) -> bool:
    """Say whether data are at a path; raise InputError if it is a pipe, or cannot be read."""
    if isinstance(path, ObjectPath):
        return path.exists()
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path} cannot be reached: {reason}. Check the path.") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # which would be waited for
        raise InputError(
            f"{path} is a pipe or a device, and data are read several times. Save them as a file."
        )
    if path.is_file() and not os.access(path, os.R_OK):  # some libraries would call it damaged
        raise InputError(f"{path} cannot be read: permission denied. Allow it: chmod u+r.")
    return True
