"""Opening by URI or object: which reader takes it, and with which settings."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, InputTypeError, StorageError
from bigfs.core.uris import short_name
from bigfs.store.columns import in_order
from bigfs.store.fingerprint import Watch, refuse_object
from bigfs.store.formats import Format, format_of
from bigfs.store.location import Location
from bigfs.store.several import partition_columns, sources_of
from bigfs.store.source import (
    Options,
    RandomAccessSource,
    Source,
    as_part,
    as_path,
    check_no_variable,
    is_frame,
    is_reachable,
)
from bigfs.store.tables import TableSource, typed
from bigfs.store.views import chosen_columns, transposed

# What opens objects of a package, and the settings that they take beside those of frames.
_OBJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "zarr": ("zarr_array", ("layer", "features", "no_data")),
    "anndata": ("annotated", ("layer",)),
    "xarray": ("xarrays", ("features", "no_data")),
    "dask": ("memory", ()),
}
# The sets of scikit-learn, and their shapes: a run that has nothing to do needs no more of them.
_SETS = {"breast_cancer": (569, 30), "digits": (1797, 64), "iris": (150, 4), "wine": (178, 13)}


def open_uris(uri: str, options: Options) -> Source:
    """Open what a URI stands for: one source, or several as one."""
    sources = sources_of(uri)
    if sources is None:
        return _open_uri(uri, options)
    from bigfs.store.chain import chain

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
    known: dict[str, set[str]] = {}
    for part in parts:
        _check_kinds(part, parts[0])
        for name, values in part.categories.items():
            known.setdefault(name, set()).update(values)
    of_parts = ({name: set(values) for name, values in p.categories.items()} for p in parts)
    if any(categories != known for categories in of_parts):
        # All parts have the columns of the values of all.
        united = {name: in_order(values) for name, values in known.items()}
        roles = replace(roles, encoding=replace(roles.encoding, known=united))
        return open_uris(uri, replace(options, roles=roles))
    chained = chain(parts, short_name(uri))
    chained.watch = watch
    return chained


def _check_kinds(part: Source, first: Source) -> None:
    """Raise InputError if a column of a part holds texts or dates, and another's numbers."""
    other = sorted(n for n, _ in part.encoded.items() ^ first.encoded.items())
    if other:
        kinds = [p.encoded.get(other[0], "number") for p in (part, first)]
        raise InputError(
            f"{part.uri}: column {other[0]!r} holds {kinds[0]} values, and {first.uri} {kinds[1]} "
            f'ones. Write them in one form, or leave it out: input.columns: ["!{other[0]}"].'
        )


def _partitions(uri: str, sources: list[str]) -> list[dict[str, Any]]:
    """Return the columns in the folder names of each source, as Arrow scalars."""
    rows = [partition_columns(uri, source) for source in sources]
    if not any(rows):
        return [{} for _ in rows]
    names = {name for row in rows for name in row}
    columns = {name: typed([row.get(name) for row in rows]) for name in names}
    return [{name: columns[name][i] for name in row} for i, row in enumerate(rows)]


def _open_uri(uri: str, options: Options) -> Source:
    path = as_path(uri)
    if path is None:
        options.check(uri, ())
        check_no_variable(Path(uri), options.variable)
        return chosen_columns(SklearnSource(uri), options.roles)
    if not is_reachable(path):
        raise InputError(f"{uri} does not exist. Check the path.")
    try:
        kind = format_of(path)
        options.check(uri, kind.takes)
        watch = Watch(path)
        source = _open_path(path, kind, options)
    except StorageError:
        raise
    except OSError as error:
        raise InputError(f"{uri} cannot be read: {error.strerror or error}.") from None
    if options.transpose:
        source = transposed(source)
    if not kind.is_table:
        source = chosen_columns(source, options.roles)
    source.watch = watch
    return source


def _open_path(path: Location, kind: Format, options: Options) -> Source:
    source: Source
    if not kind.is_table:
        source = kind.reader.open_file(path, options.variable, **options.settings)
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
        raise InputError(
            f"{error} Its spelling may need --set {given} (--{name}, {name}=)."
        ) from None


def open_object(X: Any, options: Options) -> Source:
    """Open an object in memory, or one that reads when it is asked."""
    uri = X.uri if isinstance(X, Source) else "X"
    roles, root = options.roles, type(X).__module__.split(".")[0]
    module, takes = _OBJECTS.get(root, ("memory", ()))
    takes = takes or (("roles",) if is_frame(X) else ())
    options.check(uri, takes)
    if isinstance(X, Source):
        return chosen_columns(transposed(X) if options.transpose else X, roles)
    reader = import_module(f"bigfs.store.formats.{module}")
    source: Source | None = reader.open_object(X, options)
    if source is None:
        raise InputTypeError(
            "a matrix must be a path, a list of paths, a NumPy array, a frame of pandas, polars, "
            "Arrow or Dask, a scipy sparse matrix, or an array of Dask, zarr or xarray. Got "
            f"{type(X).__name__}."
        )
    source = transposed(source) if options.transpose else source
    return source if "roles" in takes else chosen_columns(source, roles)


class SklearnSource(RandomAccessSource):
    """The set of ``sklearn:NAME``, which is loaded when rows are read.

    Raises
    ------
    InputError
        If there is no such set.
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

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        rows: np.ndarray = self._set.data[start:stop]
        return rows


def _name_of(uri: str) -> str:
    """Return the name of a set that there is."""
    refuse_object(uri)
    name = uri.removeprefix("sklearn:")
    if name not in _SETS:
        known = ", ".join(f"sklearn:{known}" for known in _SETS)
        raise InputError(f"{uri} is not a set that scikit-learn ships. Known: {known}.")
    return name
