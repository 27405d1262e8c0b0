"""Opening by URI or object: which reader takes it, and with which settings."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bigfs.core.errors import InputError, InputTypeError, StorageError
from bigfs.core.uris import short_name
from bigfs.store.columns import Roles
from bigfs.store.encoding import in_order
from bigfs.store.fingerprint import Watch
from bigfs.store.location import Location
from bigfs.store.several import partition_columns, sources_of
from bigfs.store.source import (
    CUBES,
    ENDINGS,
    LAYERED,
    MARKET,
    READERS_OF_TABLES,
    Header,
    Source,
    as_path,
    check_no_variable,
    is_frame,
    is_reachable,
)


@dataclass(frozen=True)
class Options:
    """The settings that say what is read of a source; see `open_matrix`."""

    variable: str | None
    header: Header
    roles: Roles
    layer: str | None
    features: str | int | None
    no_data: float | None

    @property
    def of_cube(self) -> dict[str, Any]:
        """Those that only arrays of several dimensions have, where they are given."""
        given = {"features": self.features, "no_data": self.no_data}
        return {name: value for name, value in given.items() if value is not None}


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
        parts.append(open_uris(file, of_part))
    known: dict[str, set[str]] = {}
    for part in parts:
        for name, values in part.categories.items():
            known.setdefault(name, set()).update(values)
    if any(set(values) != known[name] for p in parts for name, values in p.categories.items()):
        # All parts have the columns of the values of all.
        united = {name: in_order(values) for name, values in known.items()}
        roles = replace(roles, encoding=replace(roles.encoding, known=united))
        return open_uris(uri, replace(options, roles=roles))
    chained = chain(parts, short_name(uri))
    chained.watch = watch
    return chained


def _partitions(uri: str, sources: list[str]) -> list[dict[str, tuple[str | None, str | None]]]:
    """Return the columns in the folder names of each source, with the kind of their values."""
    rows = [partition_columns(uri, source) for source in sources]
    if not any(rows):
        return [{} for _ in rows]
    from bigfs.store.formats.csv import kind_of

    names = {name for row in rows for name in row}
    kinds = {name: kind_of([row.get(name) or "" for row in rows]) for name in names}
    return [{name: (value, kinds[name]) for name, value in row.items()} for row in rows]


def _open_uri(uri: str, options: Options) -> Source:
    path = as_path(uri)
    if path is not None and not is_reachable(path):
        raise InputError(f"{uri} does not exist. Check the path.")
    name = "sklearn_sets" if path is None else _reader_of(path)
    _check_options(uri, options, name)
    given: dict[str, Any] = options.of_cube
    if name == "csv" and options.header != "auto":
        given["header"] = options.header
    if name in READERS_OF_TABLES:
        given["roles"] = options.roles
    if options.layer is not None:
        given["layer"] = options.layer
    reader = importlib.import_module(f"bigfs.store.formats.{name}")
    if path is None:
        check_no_variable(Path(uri), options.variable)
        return cast(Source, reader.open_set(uri))
    try:
        watch = Watch(path)
        source: Source = reader.open_file(path, options.variable, **given)
    except StorageError:
        raise
    except OSError as error:
        raise InputError(f"{uri} cannot be read: {error.strerror or error}.") from None
    source.watch = watch
    return source


def _check_options(uri: str, options: Options, reader: str) -> None:
    """Raise InputError for settings that a kind of source does not have."""
    if options.roles.narrow and reader not in READERS_OF_TABLES:
        raise no_table(uri)
    if options.header != "auto" and reader != "csv":
        raise no_header(uri, options.header)
    if options.layer is not None and reader not in LAYERED:
        raise no_layers(uri, options.layer)
    if options.of_cube and reader not in CUBES:
        raise _no_cube(uri, options)


def open_object(X: Any, options: Options) -> Source:
    """Open an object in memory, or one that reads when it is asked."""
    uri = X.uri if isinstance(X, Source) else "X"
    roles, layer = options.roles, options.layer
    if roles.narrow and not is_frame(X):
        raise no_table(uri)
    if options.header != "auto":
        raise no_header(uri, options.header)
    root = type(X).__module__.split(".")[0]
    if options.of_cube and root not in ("zarr", "xarray"):
        raise _no_cube(uri, options)
    if layer is not None and root not in ("zarr", "anndata"):
        raise no_layers(uri, layer)
    if isinstance(X, Source):
        return X
    frame = is_frame(X) and root not in ("pandas", "xarray")
    source = _open_frame(X, root, roles) if frame else _open_array(X, root, options)
    if source is None:
        raise InputTypeError(
            "a matrix must be a path, a list of paths, a NumPy array, a frame of pandas, polars, "
            "Arrow or Dask, a scipy sparse matrix, or an array of Dask, zarr or xarray. Got "
            f"{type(X).__name__}."
        )
    return source


def _open_frame(X: Any, root: str, roles: Roles) -> Source:
    if root == "dask":
        from bigfs.store.formats.dask_frame import DaskFrameSource

        return DaskFrameSource(X, roles)
    from bigfs.store.formats.arrow import open_arrow

    return open_arrow(X, roles)


def _open_array(X: Any, root: str, options: Options) -> Source | None:
    """Open an array, a frame of pandas, or an AnnData; None if it is of another kind."""
    if root == "zarr":
        from bigfs.store.formats.zarr_array import open_zarr

        return open_zarr(X, options.variable, layer=options.layer, **options.of_cube)
    if root == "anndata":
        from bigfs.store.formats import annotated

        return annotated.open_object(X, options.layer)
    if root == "xarray":
        from bigfs.store.formats.xarrays import open_xarray

        return open_xarray(X, options.variable, **options.of_cube)
    if root == "dask":
        from bigfs.store.formats.dask_array import open_dask

        return open_dask(X)
    from bigfs.store.formats.memory import ArraySource, open_memory

    # An array of HDF5 is read by slices, as one in memory is.
    return ArraySource(X) if root == "h5py" else open_memory(X, options.roles)


def _no_cube(what: str, options: Options) -> InputError:
    given = ", ".join(f"{name} {value!r}" for name, value in options.of_cube.items())
    return InputError(
        f"{what} is not an array of several dimensions (zarr, .h5, .nc, .mat, xarray); only these "
        f"take features and no_data. Got {given}; leave it out (input.features, input.no_data)."
    )


def no_table(what: str) -> InputError:
    """Return the error for columns of what is no table."""
    return InputError(
        f"{what} is not a table with named columns (.csv, .tsv, .parquet, DataFrame); only "
        "these take input.columns and input.index."
    )


def no_layers(what: str, layer: str) -> InputError:
    """Return the error for a layer of what is no AnnData."""
    return InputError(
        f"{what} is not an AnnData (.h5ad, zarr, object); only these have layers. Got layer "
        f"{layer!r}; leave it out (input.layer, --layer, layer=)."
    )


def no_header(what: str, header: Header) -> InputError:
    """Return the error for the header of what is no text table."""
    return InputError(
        f"{what} is not a .csv or .tsv file; only these have a header line. Got header "
        f"{str(header).lower()}; leave it out (input.header, --header, header=)."
    )


def _reader_of(path: Location) -> str:
    """Return the name of the module that reads a file or folder."""
    if path.is_dir():
        return "market" if any((path / name).is_file() for name in MARKET) else "zarr_array"
    for ending, module in ENDINGS.items():
        if path.name.lower().endswith(ending):
            return module
    raise InputError(
        f"{path}: the name does not show the kind of file. Known endings: "
        f"{', '.join(ENDINGS)}; and zarr folders."
    )
