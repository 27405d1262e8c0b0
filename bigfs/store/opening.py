"""Opening by URI or object: choice of the reader and its settings.

Several sources are concatenated by rows into one matrix.
"""

from __future__ import annotations

import json
import logging
import shlex
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from itertools import accumulate
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, InputTypeError
from bigfs.core.paths import short_name
from bigfs.store.columns import in_order
from bigfs.store.csr import as_block
from bigfs.store.fingerprint import Watch, refuse_object
from bigfs.store.formats import Format, format_of
from bigfs.store.location import Location
from bigfs.store.several import partition_columns, sources_of
from bigfs.store.source import (
    CSRLayout,
    Options,
    RandomAccessSource,
    Source,
    as_part,
    as_path,
    check_no_variable,
    check_shape,
    common_types,
    is_frame,
    is_reachable,
    listed,
)
from bigfs.store.tables import TableSource, typed
from bigfs.store.values import refusing
from bigfs.store.views import chosen_columns, transposed

logger = logging.getLogger("bigfs")
# Reader module for objects of each package, and the settings it supports in addition to those of
# frames.
_OBJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "zarr": ("zarr_array", ("layer", "features", "no_data")),
    "anndata": ("annotated", ("layer",)),
    "xarray": ("xarrays", ("features", "no_data")),
    "dask": ("memory", ()),
}
# Datasets of scikit-learn and their shapes, so that a run with nothing left to do need not load
# them.
_SETS = {"breast_cancer": (569, 30), "digits": (1797, 64), "iris": (150, 4), "wine": (178, 13)}


def open_uris(uri: str, options: Options) -> Source:
    """Open the source, or several as one, that a URI refers to."""
    sources = sources_of(uri)
    if sources is None:
        return _open_uri(uri, options)
    watch, parts, roles = Watch(uri), [], options.roles
    for source, partitions in zip(sources, _partitions(uri, sources), strict=True):
        file, _, variable = source.partition("::")
        of_part = replace(
            options,
            roles=replace(roles, partitions=partitions),
            variable=variable or options.variable,
        )
        with as_part():
            parts.append(open_uris(file, of_part))
    kinds = _kinds(parts)
    # All parts are encoded with the distinct values of all of them.
    known = {n: in_order(v for p in parts for v in p.categories.get(n, ())) for n in kinds}
    if any(len(p.categories.get(n, "")) < len(known[n]) or n not in p.encoded
           for p in parts for n in kinds):  # fmt: skip
        roles = replace(roles, encoding=replace(roles.encoding, known=known, kinds=kinds))
        return open_uris(uri, replace(options, roles=roles))
    chained = ChainedSource(parts, short_name(uri))
    chained.watch = watch
    return chained


def _kinds(parts: Sequence[Source]) -> dict[str, str]:
    """Return the kinds of the encoded columns; a column without values matches any kind.

    Raises
    ------
    InputError
        If a column has different kinds in different parts, such as strings and numbers.
    """
    kinds = {}
    for name in sorted({name for part in parts for name in part.encoded}):
        first, *others = [p for p in parts if name not in p.empty] or parts
        kinds[name] = first.encoded.get(name, "number")
        for part in others:
            kind = part.encoded.get(name, "number")
            if kind != kinds[name]:
                raise InputError(
                    f"{part.uri}: column {name!r} holds {kind} values, but {kinds[name]} values "
                    f"in {first.uri}. Write them in the same form, or leave it out: "
                    f'input.columns: ["!{name}"].'
                )
    return kinds


def _partitions(uri: str, sources: list[str]) -> list[dict[str, Any]]:
    """Return the columns given by the folder names of each source, as Arrow scalars."""
    rows = [partition_columns(uri, source) for source in sources]
    names = {name for row in rows for name in row}
    columns = {name: typed([row.get(name) for row in rows]) for name in names}
    return [{name: columns[name][i] for name in row} for i, row in enumerate(rows)]


def _open_uri(uri: str, options: Options) -> Source:
    path = as_path(uri)
    if path is None:
        options.check(uri, ())
        check_no_variable(uri, options.variable)
        known: Source = SklearnSource(uri)
        known = chosen_columns(known, options.roles)
        return transposed(known) if options.transpose else known
    if not is_reachable(path):
        raise InputError(f"{uri} does not exist. Check the path.")
    with refusing(f"{uri} cannot be read", OSError, cure=""):
        kind = format_of(path)
        options.check(uri, kind.takes)
        watch = Watch(path)
        source = _open_path(path, kind, options)
    if not kind.is_table:
        source = chosen_columns(source, options.roles)
    if options.transpose:
        source = transposed(source)
    source.watch = watch
    return source


def _open_path(path: Location, kind: Format, options: Options) -> Source:
    if not kind.is_table:
        source: Source = kind.reader.open_file(path, options.variable, **options.settings)
        return source
    check_no_variable(path, options.variable)
    try:
        return TableSource(kind.reader.open_table(path, **options.settings), options.roles)
    except InputError as error:
        better = kind.proposed(path)
        if not better or better.keys() & options.settings.keys():
            raise
        [(name, value)] = better.items()
        given = shlex.quote(f"input.{name}={json.dumps(value, ensure_ascii=False)}")
        raise InputError(f"{error} Try --set {given} (--{name}, {name}=).") from None


def open_object(X: Any, options: Options) -> Source:
    """Open an in-memory or lazy object."""
    uri = X.uri if isinstance(X, Source) else "X"
    roles, root = options.roles, type(X).__module__.split(".")[0]
    module, takes = _OBJECTS.get(root, ("memory", ()))
    takes = takes or (("roles",) if is_frame(X) else ())
    options.check(uri, takes)
    if isinstance(X, Source):
        source = chosen_columns(X, roles)
        return transposed(source) if options.transpose else source
    reader = import_module(f"bigfs.store.formats.{module}")
    opened: Source | None = reader.open_object(X, options)
    if opened is None:
        raise InputTypeError(
            "a matrix must be a path, a list of paths, a NumPy array, a frame of pandas, polars, "
            "Arrow or Dask, a scipy sparse matrix, or an array of Dask, zarr or xarray. Got "
            f"{type(X).__name__}."
        )
    source = opened if "roles" in takes else chosen_columns(opened, roles)
    return transposed(source) if options.transpose else source


class SklearnSource(RandomAccessSource):
    """The dataset ``sklearn:NAME``, loaded when rows are read.

    Raises
    ------
    InputError
        If there is no such dataset.
    """

    shareable = False

    def __init__(self, uri: str) -> None:
        self.uri, self.dtype = uri, np.dtype(np.float64)
        self.n_samples, self.n_features = _SETS[_name_of(uri)]

    @cached_property
    def _set(self) -> Any:
        from sklearn import datasets

        return getattr(datasets, f"load_{_name_of(self.uri)}")()

    @property
    def classes(self) -> np.ndarray:
        """The known class of each row."""
        return np.asarray(self._set.target)

    @cached_property
    def feature_names(self) -> list[str]:  # type: ignore[override]
        """Names of the columns."""
        return [str(name) for name in self._set.feature_names]

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        rows: np.ndarray = self._set.data[start:stop]
        return rows


def _name_of(uri: str) -> str:
    """Return the dataset name in a URI; raise InputError if it is unknown."""
    refuse_object(uri)
    name = uri.removeprefix("sklearn:")
    if name not in _SETS:
        known = ", ".join(f"sklearn:{known}" for known in _SETS)
        raise InputError(f"{uri} is not a dataset that ships with scikit-learn. Known: {known}.")
    return name


class ChainedSource(Source):
    """Sources concatenated by rows, with the features of the first one, matched by name.

    Parameters
    ----------
    parts : sequence of Source
        At least one.
    uri : str
        Name of the whole used in error messages.

    Raises
    ------
    InputError
        If a part has other features than the first, or some parts are sparse and others not.
    """

    def __init__(self, parts: Sequence[Source], uri: str) -> None:
        self.parts, self.uri = list(parts), uri
        first, forms = self.parts[0], [part.sparse for part in self.parts]
        if len(set(forms)) > 1:
            a, b = self.parts[forms.index(True)].uri, self.parts[forms.index(False)].uri
            raise InputError(f"{uri}: {a} is sparse and {b} is not. Convert them to the same form.")
        self.sparse = first.sparse
        self.n_features, self.feature_names = first.n_features, first.feature_names
        self._orders = [_order(part, first) for part in self.parts]
        self.dtype = np.result_type(*(part.dtype for part in self.parts))
        self._stored = np.result_type(*(part.stored_dtype for part in self.parts))
        counts = [part.n_samples for part in self.parts]
        self.n_samples = None if None in counts else sum(counts)  # type: ignore[arg-type]
        if self.n_samples is not None:
            check_shape((self.n_samples, self.n_features), uri)
        self.notes, self.categories = first.notes, dict(first.categories)
        self.encoded = dict(first.encoded)
        self.empty = set.intersection(*(set(part.empty) for part in self.parts))
        self.column_types = common_types(self.parts)
        self.index = first.index if len({part.index for part in self.parts}) == 1 else None
        self.starts_quickly, self.read_once = first.starts_quickly, first.read_once
        self.held_bytes = max(part.held_bytes for part in self.parts)
        self.temporary_bytes = max(part.temporary_bytes for part in self.parts)
        self._read_rows = [0] * len(self.parts)

    @property
    def estimated_samples(self) -> int | None:
        """The sum of the parts' estimates; None if one of them is unknown."""
        counts = [part.estimated_samples for part in self.parts]
        return None if None in counts else sum(counts)  # type: ignore[arg-type]

    def holds_counts(self) -> bool:
        """Return True if the first part holds counts; warn once if the last part differs."""
        return self._are_counts

    @cached_property
    def _are_counts(self) -> bool:
        first = super().holds_counts()
        # A part without entries is compatible with both.
        parts = [p for p in self.parts if p.sparse and (p.layout is None or p.layout.n_entries)]
        if len(parts) > 1 and first != parts[-1].holds_counts():
            ends = (parts[0].uri, parts[-1].uri)[:: 1 if first else -1]
            logger.warning("%s holds counts, but %s does not. Convert them to one form.", *ends)
        return first

    @property
    def sources(self) -> list[tuple[str, int]]:  # type: ignore[override]
        """Name and number of rows of every part, valid once all rows were read."""
        return [(p.uri, n) for p, n in zip(self.parts, self._read_rows, strict=True)]

    def locate(self, row: int) -> tuple[str, int]:
        """Return the source of a row among those read so far, and its row number there."""
        ends = list(accumulate(self._read_rows))
        i = min(bisect_right(ends, row), len(ends) - 1)
        # Rows are counted before they are yielded.
        return self.parts[i].locate(row - (ends[i - 1] if i else 0))

    @property
    def layout(self) -> CSRLayout | None:
        """Layout with the fewest rows per block of all parts; None if that of one is unknown."""
        layouts = [part.layout for part in self.parts]
        known = [layout for layout in layouts if layout is not None]
        if len(known) < len(layouts):
            return None
        return CSRLayout(
            min(layout.rows for layout in known),
            sum(layout.n_entries for layout in known),
            max(layout.block_entries for layout in known),
        )

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive blocks of at most ``rows`` rows, counting the rows of each part."""
        self._read_rows = [0] * len(self.parts)
        for i, (part, order) in enumerate(zip(self.parts, self._orders, strict=True)):
            for block in part.iter_rows(rows):
                self._read_rows[i] += block.shape[0]
                block = block if order is None else block[:, order]
                if self.sparse:
                    yield as_block(block, self.dtype)
                else:
                    yield np.ascontiguousarray(block, self.dtype)

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self.index is not None:
            for part in self.parts:
                yield from part.iter_index()


def _order(part: Source, first: Source) -> np.ndarray | None:
    """Return the column order that aligns a part with the first one; None if already aligned."""
    names, expected = part.feature_names, first.feature_names
    if names is None or expected is None:
        if (names is None) != (expected is None):
            without, named = (part, first) if names is None else (first, part)
            raise InputError(
                f"{without.uri} has no feature names, but {named.uri} has. Either all sources "
                "must have them, or none."
            )
        if part.n_features != first.n_features:
            raise InputError(
                f"{part.uri} has {part.n_features:,} features, but {first.uri} has "
                f"{first.n_features:,}. All sources need the same number."
            )
        return None
    if names == expected:
        return None
    places = {name: j for j, name in enumerate(names)}
    missing = [name for name in expected if name not in places]
    new = sorted(places.keys() - set(expected))
    if missing or new:
        differ = [f"it has no {listed(missing)}"] if missing else []
        differ += [f"only it has {listed(new)}"] if new else []
        raise InputError(
            f"{part.uri} has other features than {first.uri}: {' and '.join(differ)}. All sources "
            "need the same; for tables, choose common ones by input.columns (--columns, columns=)."
        )
    return np.array([places[name] for name in expected])
