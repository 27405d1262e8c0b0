"""Opening by URI or object: which reader takes it, and with which settings."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError, InputTypeError, StorageError
from bigfs.core.uris import short_name
from bigfs.store.columns import Roles
from bigfs.store.encoding import in_order
from bigfs.store.fingerprint import Watch
from bigfs.store.location import Location
from bigfs.store.several import partition_columns, sources_of
from bigfs.store.source import (
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
    open_matrix,
)


def open_uris(
    uri: str, variable: str | None, header: Header, roles: Roles, layer: str | None
) -> Source:
    """Open what a URI stands for: one source, or several as one."""
    sources = sources_of(uri)
    if sources is None:
        return _open_uri(uri, variable, header, roles, layer)
    from bigfs.store.chain import chain

    watch = Watch(uri)
    parts = []
    for source in sources:
        of_part = replace(roles, partitions=partition_columns(uri, source))
        parts.append(open_uris(source, variable, header, of_part, layer))
    known: dict[str, set[str]] = {}
    for part in parts:
        for name, values in part.categories.items():
            known.setdefault(name, set()).update(values)
    if any(set(values) != known[name] for p in parts for name, values in p.categories.items()):
        # All parts have the columns of the values of all.
        united = {name: in_order(values) for name, values in known.items()}
        encoding = replace(roles.encoding, known=united)
        return open_uris(uri, variable, header, replace(roles, encoding=encoding), layer)
    chained = chain(parts, short_name(uri))
    chained.watch = watch
    return chained


def _open_uri(
    uri: str, variable: str | None, header: Header, roles: Roles, layer: str | None
) -> Source:
    path = as_path(uri)
    of_table = path is not None and is_reachable(path) and _reader_of(path) in READERS_OF_TABLES
    if roles.narrow and not of_table and (path is None or path.exists()):
        raise no_table(uri)
    if path is None:
        from bigfs.store.formats.sklearn_sets import open_set

        check_no_variable(Path(uri), variable)
        if header != "auto":
            raise no_header(uri, header)
        if layer is not None:
            raise no_layers(uri, layer)
        return open_set(uri)
    if not is_reachable(path):
        raise InputError(f"{uri} does not exist. Check the path.")
    name = _reader_of(path)
    options: dict[str, Any] = {} if header == "auto" else {"header": header}
    if "header" in options and name != "csv":
        raise no_header(uri, header)
    if of_table:
        options["roles"] = roles
    if layer is not None:
        if name not in LAYERED:
            raise no_layers(uri, layer)
        options["layer"] = layer
    reader = importlib.import_module(f"bigfs.store.formats.{name}")
    try:
        watch = Watch(path)
        source: Source = reader.open_file(path, variable, **options)
    except StorageError:
        raise
    except OSError as error:
        raise InputError(f"{uri} cannot be read: {error.strerror or error}.") from None
    source.watch = watch
    return source


def open_object(X: Any, variable: str | None, roles: Roles, layer: str | None) -> Source:
    """Open an object in memory, or one that reads when it is asked."""
    root = type(X).__module__.split(".")[0]
    if root == "zarr":
        from bigfs.store.formats.zarr_array import open_zarr

        return open_zarr(X, variable, layer=layer)
    if root == "anndata":
        from bigfs.store.formats.annotated import open_object

        return open_object(X, layer)
    if layer is not None:
        raise no_layers("X", layer)
    if root == "xarray" and X.chunks is not None:
        return open_matrix(X.data)
    if root == "h5py":
        from bigfs.store.formats.memory import ArraySource

        return ArraySource(X)  # read by slices, as an array in memory is
    if root == "dask" and hasattr(X, "iloc"):
        from bigfs.store.formats.dask_frame import DaskFrameSource

        return DaskFrameSource(X, roles)
    if root == "dask":
        from bigfs.store.formats.dask_array import open_dask

        return open_dask(X)
    if root != "pandas" and is_frame(X):
        from bigfs.store.formats.arrow import open_arrow

        return open_arrow(X, roles)
    from bigfs.store.formats.memory import open_memory

    source = open_memory(X, roles)
    if source is None:
        raise InputTypeError(
            "a matrix must be a path, a list of paths, a NumPy array, a frame of pandas, polars, "
            "Arrow or Dask, a scipy sparse matrix, or a Dask or zarr array. Got "
            f"{type(X).__name__}."
        )
    return source


def no_table(what: str) -> InputError:
    """Return the error for columns of what is no table."""
    return InputError(
        f"{what} is not a table with named columns (.csv, .tsv, .parquet, DataFrame), and only "
        "these take input.columns and input.index."
    )


def no_layers(what: str, layer: str) -> InputError:
    """Return the error for a layer of what is no AnnData."""
    return InputError(
        f"{what} is no AnnData (.h5ad, zarr, object), and only these have layers. Got layer "
        f"{layer!r}; leave it out (input.layer, --layer, layer=)."
    )


def no_header(what: str, header: Header) -> InputError:
    """Return the error for the header of what is no text table."""
    return InputError(
        f"{what} is not a .csv or .tsv file, and only these have a header line. Got header "
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
        f"{path}: the kind of file cannot be told from its name. Known endings: "
        f"{', '.join(ENDINGS)}; and zarr folders."
    )
