"""Describe what a path holds: a run, a comparison, a store, or data.

For data the description says whether a run would accept them. Each command that is proposed is
checked against the input first, without running it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.paths import listed_in
from bigfs.core.text import aligned, cut, first_of
from bigfs.core.yamltext import as_setting
from bigfs.plan.planning import check_config
from bigfs.results.result import open_result
from bigfs.selectors.registry import load_config
from bigfs.selectors.scoring import resolved
from bigfs.store.columns import different_units, suspicious_columns, unlike_others
from bigfs.store.formats import Format, format_named, format_of
from bigfs.store.formats.annotated import OBS_NAMES, contents
from bigfs.store.lease import LEASE, is_left
from bigfs.store.location import Location, as_location, read_output
from bigfs.store.records import MANIFEST, TABLE, read_stamp
from bigfs.store.retention import followed
from bigfs.store.rundir import RunDirectory
from bigfs.store.several import flattened, partition_columns, sources_of
from bigfs.store.source import (
    RandomAccessSource,
    Source,
    as_path,
    is_reachable,
    is_store,
    listed,
    open_matrix,
)
from bigfs.store.tables import kind_of, typed
from bigfs.store.values import LARGEST, usable

_LOOKED_AT_ROWS, _LOOKED_AT_VALUES = 10_000, 2 * 10**6
# The units of columns are compared only if the source holds at most this besides its blocks.
_HELD_BYTES = 2**29
_SHOWN_COLUMNS, _SHOWN_MEMBERS, _EXAMPLES, _WIDEST, _WIDEST_NAME = 30, 20, 3, 24, 40
# Largest share of distinct values (of the rows) for which a text column counts as a category.
# A column whose values are all distinct counts as an id.
_FEW = 0.2
_FEWEST_ROWS, _MOST_IDS = 20, 3


def inspect(
    path: str | Location,
    *,
    verify: bool = False,
    **opening: Any,
) -> str:
    """Describe in words what a run directory, a store or a data file holds.

    Parameters
    ----------
    path : str or Path
        The folder of a stage is treated as its run directory.
    verify : bool, default=False
        Recompute the checksums of a store's chunks.
    **opening
        Settings of `bigfs.open_matrix`, such as ``variable`` or ``features``. The description is
        of the data that a run with these settings would read.

    Raises
    ------
    InputError
        If the path is none of these.
    CorruptStoreError
        If ``verify`` finds missing or changed chunks.
    """
    uri = str(path)
    single = sources_of(uri) is None and uri.partition(":")[0] != "sklearn"
    if single and is_reachable(folder := followed(path)):
        if isinstance(folder, Path) and not is_store(folder) and read_stamp(folder) is not None:
            folder = folder.parent
        if (folder / MANIFEST).is_file():
            return _inspect_run(folder, verify)
    verified = [_verified(as_location(path))] if verify else []
    return "\n".join([*describe(path, **opening), *verified])


def _inspect_run(path: Location, verify: bool) -> str:
    directory = RunDirectory(path).read()
    manifest = directory.manifest
    status = manifest.get("status", "not started")
    is_gone = not (path / LEASE).exists() or isinstance(path, Path) and is_left(path)
    if status == "running" and is_gone:
        status = "stopped before it finished"
    if status not in ("running", "done"):
        status += "; run it again to continue"
    lines = [f"run {directory.path}: {status}"]
    if "error" in manifest:
        lines.append(f"error: {manifest['error']}")
    if verify:
        lines += [_verified_stage(directory, name) for name in manifest["stages"]]
    damaged = [name for name in manifest["stages"] if not directory.is_intact(name)]
    if damaged:
        lines.append(
            f"Files of these stages are missing: {', '.join(damaged)}. Run again to recreate them."
        )
    if "result" in manifest["stages"] and not damaged:
        text = open_result(path).summary()
    elif status == "done" and (path / TABLE).exists():  # of a comparison
        text = read_output(path / TABLE).rstrip()
    else:
        text = f"finished stages: {', '.join(manifest['stages']) or 'none'}"
    return "\n".join([*lines, text])


def _verified_stage(directory: RunDirectory, name: str) -> str:
    if name == "data":
        return _verified(directory.stage_path(name))
    directory.check_unchanged(name)
    return f"{name}: all files are present and unchanged"


def _verified(path: Location) -> str:
    from bigfs.store.verify import verify

    report = verify(path)
    report.check()
    return f"{path.name}: {report.n_chunks} chunks, all checksums match"


@dataclass(frozen=True)
class TableColumn:
    """Description of a column of a table, based on its first rows."""

    # The Arrow type of the values ("category" for a dictionary type), "row index", or "folder" for
    # values that come from names of folders.
    name: str
    kind: str
    is_number: bool = False
    missing: int = 0
    infinite: int = 0
    distinct: int = 0
    shown: str = ""  # range of numbers, or examples
    is_id: bool = False  # True for texts or whole numbers that differ in every row
    is_feature: bool = True


def describe(path: str | Location, **opening: Any) -> list[str]:
    """Return lines on the content of data, a run's refusal, and the settings that a run needs.

    Parameters
    ----------
    path : str or Path
    **opening
        Settings of `open_matrix`.

    Raises
    ------
    InputError
        If the path holds nothing that can be described.
    """
    refusal, source, lines = "", None, []
    try:
        source = open_matrix(path, **opening)
        rows = "an unknown number of" if source.n_samples is None else f"{source.n_samples:,}"
        lines.append(
            f"{source.uri}: {rows} samples x {source.n_features:,} features, {source.dtype}"
        )
        if source.layout is not None:
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
    first, is_open = sources[0] if sources else str(path), source is not None
    names = None if source is None else source.feature_names
    # If values are not stored by rows, all of them are read to get the first rows.
    is_light = source is not None and source.held_bytes + source.temporary_bytes <= _HELD_BYTES
    units = [note] if is_light and (note := different_units(source)) else []
    if is_open and _table_at(first) is not None:
        source = None  # so that the metadata of a file with many columns are not held twice
    proposed = _proposed(first, refusal, opening)
    columns, n_rows, n_empty = _columns(first, {**proposed, **opening}, names)
    columns += _partitions(str(path), sources) if columns else []
    if not is_open and not columns:
        members = _members(path)
        if not members:
            raise InputError(refusal)
        return [f"{path}:", *members, "", f"bigfs run would refuse this input: {refusal}"]
    if columns:
        if not is_open:
            lines.append(f"{path}: {len(columns):,} columns")
        verdict = _verdict(path, columns, (n_rows, n_empty), refusal, opening, proposed)
        return [*lines, *_table(columns, n_rows), *units, "", *verdict]
    source = open_matrix(path, **opening) if source is None else source
    if not source.starts_quickly:
        order = "The array is not stored row by row; a run rewrites it in row order first."
        return [*lines, order, *units]
    lines += [*_values(source), *units]
    return [*lines, *annotated_lines(path, source, opening)]


def _table_at(path: str) -> tuple[Format, Location] | None:
    """Return the format and location of a table; None if the path is not a table."""
    place = as_path(path)
    there = place is not None and place.is_file() and is_reachable(place)
    kind = format_named(place.name) if place is not None and there else None
    return None if place is None or kind is None or not kind.is_table else (kind, place)


def _proposed(path: str, refusal: str, opening: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a table seems to need in order to be read as intended."""
    at = None if "csv" in opening else _table_at(path)
    proposed = {} if at is None else at[0].proposed(at[1])
    if "input.header" in refusal and not opening:
        proposed["header"] = True  # a first row is more often names than a sample
    return proposed


def _columns(
    path: str, opening: Mapping[str, Any], names: Sequence[str] | None
) -> tuple[list[TableColumn], int, int]:
    """Return the columns of a table by its first rows, the number of these, and of empty ones.

    A row is empty if all columns of numbers lack a value in it. ``names`` are the names of the
    features.
    """
    at = _table_at(path)
    if at is None:
        return [], 0, 0
    kind, place = at
    try:
        given = {name: value for name, value in opening.items() if name in kind.takes}
        table = kind.reader.open_table(place, **given)
        count = max(2, min(_LOOKED_AT_ROWS, _LOOKED_AT_VALUES // max(1, len(table.schema))))
        columns, n_rows, empty = {}, 0, np.zeros(0, dtype=bool)
        for field in table.schema:
            kind_name = str(field.type).partition("<")[0].replace("dictionary", "category")
            kind_name = "row index" if field.name in table.row_ids else kind_name
            columns[field.name] = TableColumn(field.name, kind_name)
        if len(columns) < len(table.schema):  # a duplicate name, which is refused on opening
            return [], 0, 0
        for batch in table.first_rows(count):
            n_rows, empty = batch.num_rows, np.ones(batch.num_rows, dtype=bool)
            for name, values in zip(batch.schema.names, batch.columns, strict=True):
                columns[name] = _column(name, columns[name].kind, values)
                if kind_of(values.type) == "number":
                    empty &= np.asarray(values.is_null(nan_is_null=True))
    except InputError:  # opening the input reports the reason
        return [], 0, 0
    # Without rows, reading them reports the reason.
    if not n_rows and table.n_rows is None:
        return [], 0, 0
    # A column of lists contributes several features, named with an index in brackets.
    features = {name.removesuffix("[0]") for name in names or columns}
    described = [replace(c, is_feature=c.name in features) for c in columns.values()]
    return described, n_rows, int(empty.sum())


def _partitions(uri: str, sources: list[str]) -> list[TableColumn]:
    """Return the columns of a partitioned table that are encoded in the names of its folders."""
    rows = [partition_columns(uri, source) for source in sources]
    columns = []
    for name in rows[0] if rows else ():
        column = _column(name, "folder", typed([row.get(name) for row in rows]))
        columns.append(replace(column, is_id=False))
    return columns


def _column(name: str, kind: str, array: Any) -> TableColumn:
    """Return the description of a column of Arrow values."""
    content, rows = kind_of(array.type), len(array)
    is_number = content in ("number", "boolean", "list")
    values = [value for value in array.to_pylist() if value is not None and value == value]
    distinct = dict.fromkeys(values if content == "number" else map(str, values))
    if content == "number":
        shown = f"{float(min(values)):.4g} .. {float(max(values)):.4g}" if values else ""
        # Only whole numbers are taken for ids: measurements and dates may all differ as well.
        may_be_id = rows >= _FEWEST_ROWS and all(float(v).is_integer() for v in values)
    else:
        shown = ", ".join(value[:_WIDEST] for value in list(distinct)[:_EXAMPLES])
        may_be_id = content == "category"
    is_id = may_be_id and rows > 2 and len(distinct) == rows
    n_inf = sum(abs(value) > LARGEST for value in values) if content == "number" else 0
    return TableColumn(
        name, kind, is_number, rows - len(values), n_inf, len(distinct), shown, is_id
    )


def _table(columns: list[TableColumn], n_rows: int) -> list[str]:
    """Return the columns as a text table; if there are many, the non-numeric ones come first."""
    shown = columns
    if len(columns) > _SHOWN_COLUMNS:
        shown = sorted(columns, key=lambda column: (column.is_number, not column.missing))
        shown = shown[: max(_SHOWN_COLUMNS, sum(not column.is_number for column in columns))]
    cells = [("column", "type", "missing", "distinct", "range or examples")]
    for column in shown:
        share = f"{column.missing / max(1, n_rows):.1%}" if column.missing else "-"
        name, distinct = cut(column.name, _WIDEST_NAME), f"{column.distinct:,}"
        cells.append((name, column.kind, share, distinct, column.shown))
    lines = [f"the first {n_rows:,} rows:", *aligned(cells, "<<  <", "  ")]
    if len(columns) > len(shown):
        lines.append(f"  and {len(columns) - len(shown):,} more columns of numbers")
    return lines


def _verdict(
    path: str | Location,
    columns: list[TableColumn],
    rows: tuple[int, int],
    refusal: str,
    opening: Mapping[str, Any],
    proposed: Mapping[str, Any],
) -> list[str]:
    """Return a run's refusal of the table and the settings with which it would be accepted."""
    n_rows, n_empty = rows
    numbers = [column for column in columns if column.is_number]
    empty = [c.name for c in numbers if c.is_feature and c.missing == n_rows > 1]
    gaps = [c for c in numbers if c.missing and c.is_feature and c.name not in empty]
    begin = _without(opening, empty) if opening else proposed
    settings = [f"input.{name}={as_setting(v)}" for name, v in begin.items()]
    classes, unlike = [], []
    if not opening:  # otherwise the refusal says what else is needed
        # Texts come first: if many columns of whole numbers have only distinct values, these are
        # measurements rather than ids.
        candidates = sorted((c for c in columns if c.is_id), key=lambda column: column.is_number)
        is_clear = candidates and (not candidates[0].is_number or len(candidates) <= _MOST_IDS)
        ids = candidates[0].name if is_clear else None
        settings += [] if ids is None else [f"input.index={as_setting(ids)}"]
        others = [column for column in columns if not column.is_number and column.name != ids]
        classes = [c.name for c in others if 1 < c.distinct <= _FEW * n_rows and not c.missing]
        unlike = unlike_others(column.name for column in numbers if column.name != ids)
        if left_out := [*(column.name for column in others), *unlike, *empty]:
            patterns = as_setting([f"!{name}" for name in left_out])
            settings.append(f"input.columns={patterns}")
    if gaps:
        all_empty = all(column.missing == n_empty for column in gaps)
        settings.append(f"input.missing={'drop_rows' if all_empty else 'mean'}")
    lines = [f"bigfs run would refuse this input: {refusal}"] if refusal else []
    if gaps:
        what = "column of numbers has" if len(gaps) == 1 else "columns of numbers have"
        lines.append(f"{len(gaps):,} {what} missing values, which a run refuses.")
    if empty:
        named = first_of(empty, _EXAMPLES)
        lines.append(f"None of the first {n_rows:,} rows has a value in {named}.")
    n_inf = sum(column.infinite for column in numbers if column.is_feature)
    if n_inf:
        lines.append(_infinite(n_inf))
    if n_empty:
        lines.append(
            f"{n_empty:,} of the first {n_rows:,} rows have no values at all; input.missing: "
            "drop_rows leaves out every row with a missing value."
        )
    if unlike:
        named = first_of(unlike, _EXAMPLES)
        lines.append(f"Columns of numbers named unlike the others may not be features: {named}.")
    if opening and refusal:
        return lines
    command, remains = proposal(path, settings)
    if remains:
        return [*lines, f"{command} would be refused: {remains}"]
    if not settings:
        return lines or ["bigfs run accepts this input as it is."]
    return [*lines, f"Proposed command: {command}", *_known_classes(classes)]


def _without(opening: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return settings that also leave out the given columns."""
    chosen = opening.get("columns") or ()
    columns = [*([chosen] if isinstance(chosen, str) else chosen), *(f"!{name}" for name in names)]
    return {**opening, "columns": columns} if names else opening


def _infinite(count: int) -> str:
    return (
        f"{count:,} values are infinite or beyond {LARGEST:g}, which a run refuses: correct the "
        "data."
    )


def _known_classes(columns: Sequence[str]) -> list[str]:
    """Return a line on how to evaluate a selection by columns that may be known classes.

    Empty if there are no such columns.
    """
    some = (shlex.quote(f"input.labels={as_setting(name)}") for name in columns[:_EXAMPLES])
    named = " or ".join(some)
    return [f"To compare the selection with known classes, add --set {named}."] if named else []


def _members(path: str | Location) -> list[str]:
    """Return a line for each array of a file that holds several."""
    place = as_path(str(path))
    if place is None or not place.exists():
        return []
    kind = format_of(place) if place.is_dir() or format_named(place.name) else None
    preview = None if kind is None else getattr(kind.reader, "preview", None)
    arrays = [] if preview is None else preview(place)
    lines = [f"  {name}: {' x '.join(map(str, shape))} {what}" for name, shape, what in arrays]
    more = len(lines) - _SHOWN_MEMBERS
    return lines if more <= 0 else [*lines[:_SHOWN_MEMBERS], f"  and {more:,} more"]


def _values(source: Source) -> list[str]:
    """Return a description of the values in the first rows of a matrix."""
    rows = max(1, min(_LOOKED_AT_ROWS, _LOOKED_AT_VALUES // source.n_features))
    X = next(source.iter_blocks(rows), None)
    if X is None or len(X) == 0:
        return ["bigfs run would refuse this input: at least 2 samples are needed. Got 0."]
    lines = []
    if source.feature_names:
        lines.append(f"features: {first_of(source.feature_names, 5)}")
    present = X[np.isfinite(X)]
    if len(present):
        kind = "whole numbers" if (present == np.rint(present)).all() else "numbers"
        text = f"the first {len(X):,} rows: {kind} from {present.min():.4g} to {present.max():.4g}"
        zeros = float((present == 0).mean())
        text += f", {zeros:.0%} zeros" if zeros > 0.01 else ""
        constant = int((X == X[0]).all(axis=0).sum())
        lines.append(text + (f", {constant:,} constant features" if constant else ""))
    n_nan = int(np.isnan(X).sum())
    n_inf = X.size - n_nan - int(usable(X).sum())
    if n_nan:
        n_empty = int(np.isnan(X).all(axis=1).sum())
        cure = "drop_rows" if n_nan == n_empty * X.shape[1] else "mean"
        empty = f", including {n_empty:,} whole rows" if n_empty else ""
        lines.append(
            f"{n_nan:,} values are missing ({n_nan / X.size:.1%}{empty}), which a run refuses "
            f"without --set input.missing={cure}."
        )
    if n_inf:
        lines.append(_infinite(n_inf))
    if isinstance(source, RandomAccessSource) and not n_nan and not n_inf:
        lines += suspicious_columns(source)
    return lines


# Number of highly variable genes that is usually kept in single-cell analysis.
_GENES = 2000
_HEAD_ROWS, _SHOWN = 1000, 20


def proposal(
    path: str | Location, settings: Sequence[str], method: str = "mcfs"
) -> tuple[str, str]:
    """Return the command of a run with the given settings, and the reason if it would be refused.

    The input is opened, its first rows are read, and the settings are checked against it. The
    number of features to select is reduced if the template would keep at least as many as the
    input has.
    """
    uri = str(path) if listed_in(str(path)) is not None else as_setting(str(path))
    given = [f"input.uri={uri}", *settings]
    refusal = ""
    try:
        config = load_config(method, given)
        source = open_matrix(config.input.uri, **config.opening)
        n_rows = sum(len(block) for block in islice(source.iter_blocks(_HEAD_ROWS), 2))
        if n_rows < 2:
            raise InputError(f"{source.uri}: at least 2 samples are needed. Got {n_rows}.")
        if config.n_features_to_select >= source.n_features:
            given.append(f"n_features_to_select={max(1, source.n_features // 2)}")
            config = load_config(method, given)
        check_config(resolved(config, source), source)
    except InputError as error:
        refusal = str(error)
    words = [word for setting in given for word in ("--set", setting)]
    return shlex.join(["bigfs", "run", method, *words]), refusal


def annotated_lines(path: str | Location, source: Source, opening: Mapping[str, Any]) -> list[str]:
    """Return lines on the other contents of an AnnData and the command that fits it.

    Empty for other data.
    """
    place = as_path(str(path))
    if source.index != OBS_NAMES or source.checked or place is None:
        return []
    if (sources := sources_of(str(path))) is not None:
        place = as_location(sources[0])
    members = contents(place, opening.get("variable"))
    lines = [f"{group}: {first_of(names, _SHOWN)}" for group, names in members.items() if names]
    settings = [f"input.{name}={as_setting(value)}" for name, value in opening.items()]
    layer = None if "layer" in opening else _layer_of_counts(path, source, opening, members)
    settings += [f"input.layer={as_setting(layer)}"] if layer else []
    method, what = "mcfs", "Proposed command"
    if layer is not None:
        method, what = "highly_variable", "For counts"
        settings.append(f"n_features_to_select={min(_GENES, max(1, source.n_features // 2))}")
    columns = () if "labels" in opening else members["obs"]
    classes = [name.partition(" (")[0] for name in columns if "categories" in name]
    command, refusal = proposal(path, settings, method)
    verdict = f"{command} would be refused: {refusal}" if refusal else f"{what}: {command}"
    return [*lines, "", verdict, *_known_classes(classes)]


def _layer_of_counts(
    path: str | Location,
    source: Source,
    opening: Mapping[str, Any],
    members: Mapping[str, list[str]],
) -> str | None:
    """Return the layer that holds counts; "" for X itself, None if there is no such layer."""
    if _holds_counts(source):
        return ""
    for layer in members["layers"]:
        with suppress(InputError):
            if _holds_counts(open_matrix(path, **{**opening, "layer": layer})):
                return layer
    return None


def _holds_counts(source: Source) -> bool:
    """Return True if the first rows hold non-negative whole numbers, mostly zeros."""
    if source.sparse:
        return source.starts_quickly and source.holds_counts()
    X = next(source.iter_blocks(_HEAD_ROWS), np.zeros((0, 1)))[:_HEAD_ROWS]
    return bool((X >= 0).all() and (X == np.floor(X)).all() and (X == 0).mean() > 0.5)
