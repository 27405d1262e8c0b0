"""Known classes, used to evaluate a selection; never an input to a selector."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.paths import SOURCE, LabelValues, column_of
from bigfs.core.text import FROM_0
from bigfs.store.fingerprint import fingerprint, fingerprint_of_rows
from bigfs.store.formats import FORMATS, format_of, shown
from bigfs.store.several import partition_columns, sources_of
from bigfs.store.source import Source, as_path, is_reachable, listed, no_column, open_matrix
from bigfs.store.tables import kind_of, typed
from bigfs.store.values import check_classes, check_present, check_vector, plain_values, refusing

# Number of first rows used to recognize row ids among string columns: ids are all distinct.
_HEAD_ROWS = 100


def load_labels(
    uri: str | LabelValues,
    n_samples: int | None = None,
    dropped: Sequence[int] = (),
    otherwise: str = "",
    *,
    to_judge_by: bool = False,
    rows: Mapping[str, int] = MappingProxyType({}),
) -> np.ndarray:
    """Read labels as class numbers, assigned in sorted order of the classes.

    Parameters
    ----------
    uri : str or LabelValues
        ``FILE.npy``, ``FILE.npz`` (its ``y``), ``FILE.npz::NAME``, ``FILE.csv::COLUMN``, a zarr
        array (or ``GROUP.zarr::NAME``), a column of an AnnData's ``obs`` (``FILE.h5ad::COLUMN``,
        ``STORE.zarr::COLUMN``), or ``sklearn:NAME``. Values are numbers or strings. For several
        sources, ``source`` names the source of each row.
    n_samples : int or None, default=None
        Expected number of labels. None: not checked.
    dropped : sequence of int, default=()
        Rows left out of the data. The labels may be those of the remaining rows or of all rows.
    otherwise : str, default=""
        Alternative to suggest in the error message if the number of labels does not match.
    to_judge_by : bool, default=False
        Whether to require at least two classes, and at most half as many classes as rows.
    rows : mapping of str to int, optional
        Dimensions that are stacked into the rows, in order, with their sizes. An image of labels is
        read in this order.

    Returns
    -------
    y : ndarray of shape (n_samples,), int64
        0 to c-1.

    Raises
    ------
    InputError
        If the labels cannot be read, do not match the number of rows, have missing values, or have
        too few or too many classes for ``to_judge_by``.
    """
    values = read_values(uri, rows)
    uri = name_of(uri)
    if len(dropped) and n_samples is not None and len(values) == n_samples + len(dropped):
        values = np.delete(values, dropped)
    if n_samples is not None and len(values) != n_samples:
        raise InputError(
            f"{uri} has {len(values)} labels, but the data have {n_samples} samples. "
            f"Give the labels of the same rows in the same order{otherwise}."
        )
    classes, y = np.unique(check_present(values, uri), return_inverse=True)
    if to_judge_by and len(classes) < 2:
        raise InputError(f"{uri} has only one class; at least two are needed. Use other labels.")
    if to_judge_by:
        check_classes(classes, len(y), uri, refuse=True)
    return y.astype(np.int64)


def check_order(uri: str | LabelValues, source: Source) -> None:
    """Raise InputError if row ids show that labels are of other rows or in another order.

    A table of labels may have a column with the name of the source's id column, or a string column
    with the same ids; an AnnData has its obs_names. Labels are not checked if there are no such
    ids, if a column of another name or the obs_names hold other ids, or if the column of that name
    is numeric while the source's ids are not.
    """
    if source.index is None or isinstance(uri, LabelValues):
        return
    name, part = column_of(uri)
    if name == source.uri:  # labels and data are in the same file
        return
    for column, n_ids, ids in _ids_beside(name, part, source.index):
        is_whole = n_ids == source.n_samples
        dropped = set() if is_whole else {row for row in source.dropped if row < n_ids}
        left = (value for row, value in enumerate(ids) if row not in dropped)
        is_column = column == source.index and isinstance(ids, np.ndarray)
        is_number = is_column and np.asarray(ids).dtype.kind in "iuf"
        first, other = 0, ""
        data_hash = label_hash = 0  # sums of hashes, which do not depend on the order
        for piece in source.iter_index():
            own_ids: Any = np.array(piece)
            values: Any = np.array(list(islice(left, len(piece))), dtype=object).astype(np.str_)
            if is_number:
                try:
                    own_ids, values = own_ids.astype(np.float64), values.astype(np.float64)
                except ValueError:
                    return
            unlike = np.flatnonzero(values != own_ids[: len(values)])
            if len(unlike) and not other:
                i = int(unlike[0])
                other = f"label {first + i} is {values[i]}, but the data have {piece[i]}"
            if not is_column:
                data_hash += sum(map(hash, piece))
                label_hash += sum(map(hash, values.tolist()))
            first += len(piece)
        # A differing number of ids is either rejected elsewhere or due to rows left out.
        if other and first == n_ids - len(dropped) and (is_column or data_hash == label_hash):
            raise InputError(
                f"{name}: {column!r} of {other}. Give the labels of the same rows in the same "
                f"order. {FROM_0}"
            )


def _ids_beside(name: str, part: str, index: str) -> Iterator[tuple[str, int, Iterable[Any]]]:
    """Yield possible row ids stored with the labels: their name, their count and the ids.

    The ids are an array if they are a column of a table.
    """
    import pyarrow.compute as pc

    path = as_path(name) if sources_of(name) is None else None
    if path is None:
        return
    table = _table(name)
    if table is None and "layer" in format_of(path).takes:  # possibly an AnnData
        with suppress(InputError):
            labeled = open_matrix(name, variable=part.rpartition(":")[0] or None)
            if labeled.index is not None and labeled.n_samples is not None:
                yield labeled.index, labeled.n_samples, chain.from_iterable(labeled.iter_index())
    elif table is not None and index in table.schema.names:
        ids = plain_values(table.values(index), name)
        yield index, len(ids), ids
    elif table is not None:
        kinds = {field.name: kind_of(field.type) for field in table.schema if field.name != part}
        texts = [column for column, kind in kinds.items() if kind == "category"]
        with suppress(InputError):  # errors of a column that was not requested
            for head in islice(table.read(texts, _HEAD_ROWS), 1 if texts else 0):
                for column, values in zip(texts, head.columns, strict=True):
                    values = values[:_HEAD_ROWS]
                    if len(pc.unique(values)) == len(values):
                        ids = plain_values(table.values(column), name)
                        yield column, len(ids), ids


def check_index(labels: Any, X: Any) -> None:
    """Raise InputError if labels have the pandas index of a frame or AnnData in another order.

    A RangeIndex, or an index with other ids, is ignored.
    """
    of_labels: Any = getattr(labels, "index", None)
    of_data: Any = getattr(getattr(X, "obs", X), "index", None)
    for index in (of_labels, of_data):
        kind = type(index)
        if kind.__module__.split(".")[0] != "pandas" or kind.__name__ == "RangeIndex":
            return
    if len(of_labels) != len(of_data) or of_labels.equals(of_data):
        return
    if {*of_labels} != {*of_data}:
        return
    i = next((i for i in range(len(of_data)) if of_labels[i] != of_data[i]), None)
    if i is None:  # equal values of different types
        return
    raise InputError(
        f"labels: the index of label {i} is {of_labels[i]}, but the data have {of_data[i]}. Give "
        f"the labels in the order of the rows (labels.loc[X.index]). {FROM_0}"
    )


def read_values(
    uri: str | LabelValues, rows: Mapping[str, int] = MappingProxyType({})
) -> np.ndarray:
    """Read numbers or strings, one per row, from a label URI; ``rows`` is that of `load_labels`."""
    if isinstance(uri, LabelValues):
        values = plain_values(_in_order(uri.values, rows), uri.name)
    else:
        with refusing(f"{uri}: the labels cannot be read", OSError, zlib.error):
            values = _read(uri, rows)
    # Strings with missing values are objects.
    kind = "U1" if values.dtype.kind == "O" else values.dtype
    check_vector(values.shape, kind, name_of(uri), rows)
    is_image = values.ndim > 1 and 1 not in values.shape and len(rows) > 1
    if is_image and values.shape != tuple(rows.values()):
        pixels = " x ".join(f"{name} {size:,}" for name, size in rows.items())
        raise InputError(
            f"{name_of(uri)} has shape {values.shape}, but the rows are pixels of {pixels}. Give "
            "one label for each pixel in this order."
        )
    return values.ravel()


def _in_order(values: Any, rows: Mapping[str, int]) -> Any:
    """Return an array with named dimensions transposed to the order of the row dimensions.

    Arrays with other dimensions, or none, are returned unchanged.
    """
    is_stacked = bool(rows) and set(getattr(values, "dims", ())) == set(rows)
    return values.transpose(*rows) if is_stacked else values


def labels_in(X: Any, source: Source, name: str) -> Any:
    """Return the values of a column or member array of an object.

    Parameters
    ----------
    X : object
        A frame, an AnnData (its ``obs`` is used), or a container of named arrays.
    source : Source
        The source opened from the object.
    name : str

    Raises
    ------
    InputError
        If there is no column of this name, or the object can be read only once.
    """
    holder, grid = X, source.row_dimensions
    if hasattr(X, "obs"):
        holder = X.obs
    elif hasattr(X, "coords"):
        holder = X if hasattr(X, "data_vars") else X.coords
    elif not hasattr(X, "group_keys"):  # of zarr
        return source.read_column(name)
    if name not in holder:
        raise no_column(source.uri, name, holder)
    return _in_order(holder[name], grid)


def digest_of(labels: str | LabelValues) -> str:
    """Return a key of the content of labels, whether from a file or in memory."""
    if isinstance(labels, LabelValues):
        values = check_present(read_values(labels), labels.name)
        return fingerprint_of_rows([values.view(np.uint8)], [str(values.dtype)])
    name = column_of(labels)[0]
    path = as_path(name) if sources_of(name) is None else None
    if path is not None and not is_reachable(path):
        raise _not_there(name)
    return fingerprint(name)


def _not_there(name: str) -> InputError:
    return InputError(
        f"{name} does not exist. Give the file of the labels, and a column of it as FILE::COLUMN, "
        "such as cells.h5ad::cell_type."
    )


def name_of(labels: str | LabelValues) -> str:
    """Return the name of labels used in messages and records."""
    return labels.name if isinstance(labels, LabelValues) else str(labels)


def _read(uri: str, rows: Collection[str] = ()) -> np.ndarray:
    name, part = column_of(uri)
    sources = sources_of(name)
    if sources is not None:
        return _read_several(name, sources, part)
    path = as_path(name)
    if path is None:
        from bigfs.store.opening import SklearnSource

        return SklearnSource(name).classes
    if not is_reachable(path):
        raise _not_there(name)
    kind = format_of(path)
    if not kind.has_labels:
        known = shown(entry for entry in FORMATS if entry.has_labels)
        raise InputError(f"{name}: labels are read from {known} and folders of them.")
    if not kind.is_table:
        order = (rows,) if kind.takes_dimensions else ()
        return cast(np.ndarray, kind.reader.read_column(path, part, *order))
    table = _table(name)
    names = table.schema.names
    if not part and len(names) == 1:
        part = names[0]
    if part not in names:
        raise InputError(
            f"{name} has {f'no column {part!r}' if part else f'{len(names)} columns'} (it has "
            f"{listed(names)}). Name the one with the labels: {name}::COLUMN."
        )
    return plain_values(table.values(part), name)


def _read_several(uri: str, sources: list[str], name: str) -> np.ndarray:
    """Read the labels of several sources; all are strings if those of any source are."""
    pieces, tables = [], []
    for i, source in enumerate(sources):
        partitions = partition_columns(uri, source)
        if name != SOURCE and name not in partitions:
            pieces.append(_read(f"{source}::{name}"))
            tables.append(source)
            continue
        value = partitions.get(name, i)
        if value is None:
            raise InputError(f"{source}: the labels of its rows are missing. {FROM_0}")
        number = typed([str(value)])[0].as_py()
        constant = number if isinstance(number, (int, float)) else str(value)
        pieces.append(np.full(_count_rows(source), constant))
        tables.append("")
    if any(piece.dtype.kind in "OUS" for piece in pieces):  # as in a single file
        pieces = [
            piece if piece.dtype.kind in "OUS" else _written(source, name, piece)
            for source, piece in zip(tables, pieces, strict=True)
        ]
    return np.concatenate(pieces)


def _written(source: str, name: str, numbers: np.ndarray) -> np.ndarray:
    """Return numbers as strings: as written in a text table, or else as Python formats them."""
    table = _table(source) if source else None
    if table is None:
        return numbers.astype(np.str_)
    return np.array([text for piece in table.written(name) for text in piece])


def _count_rows(uri: str) -> int:
    """Return the number of rows of a source, from its header or by reading a text table."""
    sources = sources_of(uri)
    if sources is not None:
        return sum(map(_count_rows, sources))
    table = _table(uri)
    return (open_matrix(uri).n_samples or 0) if table is None else int(table.count_rows())


def _table(uri: str) -> Any:
    """Open a single source as a table; None if it is not one."""
    path = as_path(uri)
    if path is None or not (kind := format_of(path)).is_table:
        return None
    return kind.reader.open_table(path, **kind.proposed(path))
