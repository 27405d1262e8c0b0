"""Describe data, whether or not a run would take them: columns, values, and the settings needed."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.columns import ALL_FEATURES, Roles, suspicious_columns
from bigfs.store.csr import SparseSource
from bigfs.store.formats.csv import as_number, kind_of
from bigfs.store.location import Location
from bigfs.store.several import flattened, partition_columns
from bigfs.store.source import (
    RandomAccessSource,
    Source,
    as_path,
    is_reachable,
    listed,
    open_matrix,
)

_LOOKED_AT_ROWS, _LOOKED_AT_VALUES = 10_000, 2 * 10**6
_SHOWN_COLUMNS, _SHOWN_MEMBERS, _EXAMPLES, _WIDEST = 30, 20, 3, 24
# A text with at most this share of different values is a category, one with all different an id.
_FEW = 0.2
_FEWEST_ROWS, _MOST_IDS = 20, 3


@dataclass(frozen=True)
class TableColumn:
    """A column of a table, by its first rows."""

    # The kind is "number", "text", or the type that the file names.
    name: str
    kind: str
    is_number: bool
    missing: int
    distinct: int
    shown: str  # range of numbers, or examples
    is_id: bool  # whether it holds texts or whole numbers, another one in every row


def describe(path: str | Location, **opening: Any) -> list[str]:
    """Return lines on data: what they hold, what a run would say, and the settings it needs.

    Parameters
    ----------
    path : str or Path
    **opening
        Settings of `open_matrix`.

    Raises
    ------
    InputError
        If nothing can be said about what is at the path.
    """
    refusal, source, lines = "", None, []
    try:
        source = open_matrix(path, **opening)
        rows = "an unknown number of" if source.n_samples is None else f"{source.n_samples:,}"
        lines.append(
            f"{source.uri}: {rows} samples x {source.n_features:,} features, {source.dtype}"
        )
        if isinstance(source, SparseSource) and source.layout is not None:
            entries, values = source.layout.n_entries, (source.n_samples or 0) * source.n_features
            lines[0] += f", sparse: {entries:,} entries ({100 * entries / values:.2g} %)"
    except InputError as error:
        refusal = str(error)
    if source is not None and source.grid is not None:
        sizes = zip(source.grid["dims"], source.grid["shape"], strict=True)
        lines.append(f"rows are {' x '.join(f'{name} ({size:,})' for name, size in sizes)}")
    lines += [] if source is None else source.notes
    sources = [uri for uri in flattened(str(path)) if uri != str(path)]
    if sources:
        lines.append(f"{len(sources):,} sources, from {sources[0]} to {sources[-1]}")
    elif source is not None and source.sources:
        lines.append("rows of " + listed([f"{uri} ({n:,})" for uri, n in source.sources]))
    columns, n_rows = _columns(sources[0] if sources else path)
    columns += _partitions(str(path), sources) if columns else []
    if source is None and not columns:
        members = _members(path)
        if not members:
            raise InputError(refusal)
        return [f"{path}:", *members, "", f"bigfs run would say: {refusal}"]
    if columns:
        if source is None:
            lines.append(f"{path}: {len(columns):,} columns")
        verdict = _verdict(path, columns, n_rows, refusal, opening)
        return [*lines, *_table(columns, n_rows), "", *verdict]
    assert source is not None
    if not source.starts_quickly:
        return [*lines, "not stored by rows: a run brings it into order of rows first."]
    return [*lines, *_values(source)]


def _columns(path: str | Location) -> tuple[list[TableColumn], int]:
    """Return the columns of a table by its first rows, and how many these are."""
    place = as_path(str(path))
    name = "" if place is None or not is_reachable(place) or place.is_dir() else place.name.lower()
    try:
        if name.endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz")):
            return _columns_of_text(place)
        if name.endswith(".parquet"):
            return _columns_of_parquet(place)
    except InputError:  # what is wrong is said where it is opened
        pass
    return [], 0


def _partitions(uri: str, sources: list[str]) -> list[TableColumn]:
    """Return the columns that the names of folders hold, of all parts of a table."""
    rows = [partition_columns(uri, source) for source in sources]
    columns = []
    for name in rows[0] if rows else ():
        texts = [row.get(name) for row in rows]
        numbers = [as_number(text or "") for text in texts]
        is_number = None not in numbers
        values: list[Any] = [
            number if is_number else text
            for text, number in zip(texts, numbers, strict=True)
            if text is not None
        ]
        column = _column(name, "folder", is_number, values, len(rows))
        columns.append(replace(column, is_id=False))
    return columns


def _columns_of_text(place: Any) -> tuple[list[TableColumn], int]:
    from bigfs.store.formats.csv import UNNAMED, CsvSource, as_number

    try:
        table = CsvSource(place, "auto", ALL_FEATURES)
    except InputError:
        table = CsvSource(place, "auto", Roles(index=UNNAMED))
    count = max(2, min(_LOOKED_AT_ROWS, _LOOKED_AT_VALUES // len(table.names)))
    rows = table.first_rows(count)
    if not rows:
        return [], 0
    columns = []
    for name, cells in zip(table.names, zip(*rows, strict=True), strict=True):
        numbers = [as_number(cell) for cell in cells]
        is_number = None not in numbers
        values = [
            number if is_number else cell.strip()
            for number, cell in zip(numbers, cells, strict=True)
            if number is None or not math.isnan(number) or not is_number and cell.strip()
        ]
        columns.append(
            _column(name, "number" if is_number else "text", is_number, values, len(rows))
        )
    return columns, len(rows)


def _columns_of_parquet(place: Any) -> tuple[list[TableColumn], int]:
    from bigfs.store.formats.arrow import is_usable
    from bigfs.store.formats.parquet import open_parquet

    with open_parquet(place) as file:
        schema = file.schema_arrow
        count = max(2, min(_LOOKED_AT_ROWS, _LOOKED_AT_VALUES // max(1, len(schema))))
        batch = next(file.iter_batches(count, use_threads=False), None)
        columns = []
        for i, field in enumerate(schema):
            values = [] if batch is None else batch.column(i).to_pylist()
            present = [value for value in values if value is not None and value == value]
            kind = str(field.type).partition("<")[0].replace("dictionary", "category")
            if field.name in (schema.pandas_metadata or {}).get("index_columns", []):
                kind = "row index"  # of pandas, which is no feature
            columns.append(_column(field.name, kind, is_usable(field), present, len(values)))
    return columns, 0 if batch is None else batch.num_rows


def _column(name: str, kind: str, is_number: bool, values: Sequence[Any], rows: int) -> TableColumn:
    distinct = dict.fromkeys(map(str, values) if not is_number else values)
    if is_number:
        shown = f"{float(min(values)):.4g} .. {float(max(values)):.4g}" if values else ""
    else:
        shown = ", ".join(str(value)[:_WIDEST] for value in list(distinct)[:_EXAMPLES])
    # Measurements may all differ, unless they are whole numbers, and so may dates.
    if is_number:
        alike = rows >= _FEWEST_ROWS and all(float(v).is_integer() for v in values)
    else:
        alike = kind_of(list(distinct)) != "date"
    is_id = alike and rows > 2 and len(distinct) == rows
    return TableColumn(name, kind, is_number, rows - len(values), len(distinct), shown, is_id)


def _table(columns: list[TableColumn], n_rows: int) -> list[str]:
    """Return the columns as a table: those that are no numbers first where they are many."""
    shown = columns
    if len(columns) > _SHOWN_COLUMNS:
        shown = sorted(columns, key=lambda column: (column.is_number, not column.missing))
        shown = shown[: max(_SHOWN_COLUMNS, sum(not column.is_number for column in columns))]
    cells = [("column", "type", "missing", "distinct", "range or examples")]
    for column in shown:
        share = f"{column.missing / max(1, n_rows):.1%}" if column.missing else "-"
        name = column.name if len(column.name) <= 40 else f"{column.name[:37]}..."
        cells.append((name, column.kind, share, f"{column.distinct:,}", column.shown))
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = [f"the first {n_rows:,} rows:"]
    for row in cells:
        padded = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row[:4], widths, strict=True))
        ]
        lines.append("  " + "  ".join([*padded, row[4]]).rstrip())
    if len(columns) > len(shown):
        lines.append(f"  and {len(columns) - len(shown):,} more columns of numbers")
    return lines


def _verdict(
    path: str | Location,
    columns: list[TableColumn],
    n_rows: int,
    refusal: str,
    opening: Mapping[str, Any],
) -> list[str]:
    """Return a run's refusal of the table, and the settings with which it would take it."""
    others = [column for column in columns if not column.is_number]
    gaps = sum(column.missing > 0 for column in columns if column.is_number)
    settings: list[str] = []
    alike = [column.name for column in columns if column.is_id]
    texts = [column.name for column in others if column.is_id]
    ids = next(iter(texts or (alike if len(alike) <= _MOST_IDS else [])), None)
    if ids is not None:
        settings.append(f"input.index={ids}")
    classes = [
        column.name
        for column in others
        if column.name != ids and 1 < column.distinct <= _FEW * n_rows and not column.missing
    ]
    left_out = [column.name for column in others if column.name != ids]
    if left_out:
        patterns = json.dumps([f"!{name}" for name in left_out], ensure_ascii=False)
        settings.append(f"input.columns={patterns}")
    if opening:  # a refusal says what else is needed
        settings = [f"input.{name}={_as_yaml(value)}" for name, value in opening.items()]
        classes = []
    if gaps:
        settings.append("input.missing=mean")
    lines = []
    if refusal:
        lines.append(f"bigfs run would say: {refusal}")
    if gaps:
        what = "column of numbers has" if gaps == 1 else "columns of numbers have"
        lines.append(f"{gaps:,} {what} missing values, which a run refuses.")
    if opening and refusal:
        return lines
    if not settings:
        return lines or ["bigfs run would take it as it is."]
    lines.append(f"It would take: {_command(path, settings)}")
    if classes:
        named = " or ".join(f"input.labels={name}" for name in classes[:_EXAMPLES])
        lines.append(f"To compare the selection with known classes, add --set {named}.")
    return lines


def _command(path: str | Location, settings: list[str]) -> str:
    """Return the command of a run with some settings."""
    given = [word for s in (f"input.uri={path}", *settings) for word in ("--set", s)]
    return shlex.join(["bigfs", "run", "mcfs", *given])


def _as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _members(path: str | Location) -> list[str]:
    """Return the arrays of a file that holds several."""
    place = as_path(str(path))
    if place is None or not place.exists():
        return []
    lower, arrays = place.name.lower(), []
    if place.is_dir():
        from bigfs.store.formats.zarr_array import list_arrays

        arrays = list_arrays(place)
    elif lower.endswith(".npz"):
        from bigfs.store.formats.npz import member_header, member_names

        for name in member_names(place):
            try:
                shape, _, dtype = member_header(place, name)
                arrays.append((name, shape, str(dtype)))
            except InputError as error:
                arrays.append((name, (), str(error)))
    elif lower.endswith((".h5", ".hdf5")):
        from bigfs.store.formats.h5 import list_arrays as list_datasets

        arrays = list_datasets(place)
    elif lower.endswith(".nc"):
        from bigfs.store.formats import xarrays

        arrays = xarrays.list_arrays(place)  # type: ignore[arg-type]
    elif lower.endswith(".mat"):
        from bigfs.store.formats.mat import list_variables

        arrays = list_variables(place)
    lines = [f"  {name}: {' x '.join(map(str, shape))} {what}" for name, shape, what in arrays]
    more = len(lines) - _SHOWN_MEMBERS
    return lines if more <= 0 else [*lines[:_SHOWN_MEMBERS], f"  and {more:,} more"]


def _values(source: Source) -> list[str]:
    """Return a description of the values in the first rows of a matrix."""
    rows = max(1, min(_LOOKED_AT_ROWS, _LOOKED_AT_VALUES // source.n_features))
    block: Any = next(source.iter_blocks(rows), None)
    if block is None or block.shape[0] == 0:
        return ["bigfs run would say: at least 2 samples are needed. Got 0."]
    X = block if isinstance(block, np.ndarray) else block.toarray()
    finite = np.isfinite(X)
    lines = []
    if source.feature_names:
        shown = ", ".join(source.feature_names[:5])
        lines.append(f"features: {shown}{', ...' if source.n_features > 5 else ''}")
    present = X[finite]
    if len(present):
        kind = "whole numbers" if (present == np.rint(present)).all() else "numbers"
        text = f"the first {len(X):,} rows: {kind} from {present.min():.4g} to {present.max():.4g}"
        zeros = float((present == 0).mean())
        text += f", {zeros:.0%} zeros" if zeros > 0.01 else ""
        constant = int((X == X[0]).all(axis=0).sum())
        lines.append(text + (f", {constant:,} constant features" if constant else ""))
    n_nan, n_inf = int(np.isnan(X).sum()), int(np.isinf(X).sum())
    if n_nan:
        lines.append(
            f"{n_nan:,} values are missing ({n_nan / X.size:.1%}), which a run refuses; it would "
            "take them with --set input.missing=mean."
        )
    if n_inf:
        lines.append(f"{n_inf:,} values are infinite, which a run refuses: correct the data.")
    if isinstance(source, RandomAccessSource) and not n_nan and not n_inf:
        lines += suspicious_columns(source)
    return lines
