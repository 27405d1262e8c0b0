"""xarray objects, and files that follow xarray's conventions (extra ``bigfs[xarray]``).

These are NetCDF, HDF5 and zarr files whose arrays have named dimensions with coordinates, or
attributes that tell how numbers are encoded. The blocks are read like those of any other array, and
xarray decodes each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.threads import ignoring_warnings
from bigfs.runtime.scope import dask_get
from bigfs.store.formats.cube import CubeSource, Place, as_names, as_stacked, axes_of
from bigfs.store.formats.parts import open_here
from bigfs.store.location import Location
from bigfs.store.source import Options, Source, choose_member, no_column, positions_by_name
from bigfs.store.values import check_vector, decoding, installed, refusing

# Attributes that change the values of an array.
_PACKED = {"scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"}
# Attributes of times counted from a date, and the word by which their units are recognized.
_TIMES, _DATES = ("units", "calendar"), " since "
# Attributes that name other arrays which describe an array.
_REFERENCES = ("coordinates", "bounds", "grid_mapping")


class _Array:
    """DataArray whose slices are read, or computed by Dask, when they are requested."""

    def __init__(self, data: Any) -> None:
        self._data, self.shape, self.dtype = data, data.shape, data.dtype
        self.chunks = data.encoding.get("chunksizes")
        if data.chunks is not None:
            self.chunks = tuple(max(sizes) for sizes in data.chunks)

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        part = self._data[key]
        part = part if part.chunks is None else part.compute(scheduler=dask_get())
        return np.asarray(part.values)


@contextmanager
def _open_variable(path: Location, name: str) -> Iterator[_Array]:
    """Open a variable of a NetCDF 3 file, which is opened anew for every read."""
    with _classic(path) as dataset:
        yield _Array(dataset[name])


def open_object(X: Any, options: Options) -> Source:
    """Open a DataArray, or a variable of a Dataset, without loading it as a whole."""
    uri, variable = "X", options.variable
    if hasattr(X, "data_vars"):
        name = _chosen(X, variable, uri)
        uri, X = f"{uri}::{name}", X[name]
    elif variable is not None:
        raise InputError(f"{uri} is one array; variable must be None. Got {variable!r}.")
    dims = [str(dim) for dim in X.dims]
    along = [dims[axis] for axis in axes_of(options.settings.get("features"), dims, X.shape, uri)]
    names = X.coords[along[0]].values if len(along) == 1 and along[0] in X.coords else None
    cube = {**options.settings, "features": along}
    source = CubeSource(uri, partial(open_here, _Array(X)), dims, **cube, names=names)
    _with_axis(source, X, along)
    source.held_bytes += source.piece_bytes  # xarray's own copy
    return source


def open_file(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open a variable of a NetCDF 3 file.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, if given.
    """
    with _classic(path) as dataset:
        name = _chosen(dataset, variable, str(path))
        place = partial(_open_variable, path.absolute(), name)
        return _stored(dataset, name, str(path), place, cube)


def preview(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of every variable of a NetCDF 3 file."""
    with _classic(path) as dataset:
        return [(str(n), tuple(dataset[n].shape), str(dataset[n].dtype)) for n in dataset.data_vars]


def read_column(path: Location, name: str, rows: Collection[str] = ()) -> np.ndarray:
    """Return a variable of a NetCDF 3 file, decoded, in the order of the rows."""
    with _classic(path) as dataset:
        if name not in dataset.variables:
            raise no_column(str(path), name, dataset.variables)
        data = dataset[name]
        dims, *others = ([str(dim) for dim in other.dims]
                         for other in (data, *dataset.data_vars.values()))  # fmt: skip
        return read_labels(_Array(data), dims, data.attrs, others, rows, f"{path}::{name}")


def read_labels(
    array: Any,
    dims: list[str] | None,
    attributes: Mapping[str, Any],
    others: Iterable[Sequence[str] | None],
    rows: Collection[str],
    uri: str,
) -> np.ndarray:
    """Return labels, or values by which rows are chosen, as xarray decodes them.

    Missing values are NaN.

    Parameters
    ----------
    array : array-like with slices
    dims : list of str or None
        Names of the dimensions of the array.
    attributes : mapping
        Attributes of the array.
    others : iterable of (sequence of str or None)
        Names of the dimensions of the arrays next to it.
    rows : sequence of str
        Names of the dimensions of the rows, in order, if known.
    uri : str
    """
    with decoding(uri):
        check_vector(array.shape, array.dtype, uri, rows)
        values = np.asarray(array[tuple(slice(0, n) for n in array.shape)])
    kept = {name: value for name, value in _meaningful(attributes).items() if name in _PACKED}
    if kept:
        # HDF5 has arrays of one value instead of NetCDF's scalars.
        kept = {n: np.ravel(v)[0] if np.size(v) == 1 and n != "_Unsigned" else v
                for n, v in kept.items()}  # fmt: skip
        values = _unpacked(uri, values, kept)
    return as_stacked(values, dims, others, rows)


def is_described(attributes: Mapping[str, Any], has_coordinates: bool) -> bool:
    """Return True if an array follows xarray's conventions, which may change names or values."""
    return has_coordinates or bool(_meaningful(attributes))


def _meaningful(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that change the values of an array.

    Attributes that are NaN are left out, since NaN is a missing value in any case.
    """
    of_dates = _TIMES if _DATES in str(attributes.get("units")) else ()
    kept = {name: attributes[name] for name in (*_PACKED, *of_dates) if name in attributes}
    return {name: value for name, value in kept.items() if not _is_nan(value)}


def _is_nan(value: Any) -> bool:
    values = np.asarray(value)
    return values.dtype.kind == "f" and bool(np.isnan(values).all())


def named_beside(attributes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names of coordinates, bounds and grid mappings in the attributes of arrays."""
    texts = (str(about[key]) for about in attributes for key in _REFERENCES if key in about)
    return {name for text in texts for name in text.split()}


def open_described(
    uri: str,
    file: Any,
    name: str,
    place: Place,
    others: list[str],
    cube: Mapping[str, Any],
    **opening: Any,
) -> CubeSource:
    """Open an array of a file or store that follows xarray's conventions.

    Parameters
    ----------
    uri : str
    file : path, file or zarr store
        Object from which xarray reads the coordinates and attributes of the array.
    name : str
        Name of the array, after the names of the groups that contain it.
    place : Place
        Its context returns the array as it is stored.
    others : list of str
        Variables of its group that are neither the array nor its coordinates.
    cube : mapping
        ``features`` and ``no_data`` of a `CubeSource`, if given.
    **opening
        Further arguments of ``xarray.open_dataset``.
    """
    group, _, variable = name.rpartition("/")
    with _dataset(file, uri, group=group or None, drop_variables=others, **opening) as dataset:
        return _stored(dataset, variable, uri, place, cube)


def _stored(dataset: Any, name: str, uri: str, place: Place, cube: Mapping[str, Any]) -> CubeSource:
    """Return the source of an array in a dataset that was opened without decoding."""
    uri = uri if uri.endswith(f"::{name}") else f"{uri}::{name}"
    data = dataset[name]
    dims = [str(dim) for dim in data.dims]
    axes, names = axes_of(cube.get("features"), dims, data.shape, uri), None
    along = [dims[axis] for axis in axes]
    if len(along) == 1 and along[0] in data.coords:
        with _decoding(uri, data.coords[along[0]].attrs):
            import xarray

            names = xarray.decode_cf(dataset[along])[along[0]].values
    settings = {**cube, "features": along, "names": names}
    return _with_axis(decoded(uri, place, dims, data.attrs, **settings), data, along)


def _with_axis(source: CubeSource, data: Any, along: list[str]) -> CubeSource:
    """Store the label of the feature axis in ``grid``: its dimension, with the unit if any."""
    if len(along) == 1:
        unit = data.coords[along[0]].attrs.get("units") if along[0] in data.coords else None
        label = f"{along[0]}, {unit}" if unit else along[0]
        source.grid = {**(source.grid or {}), "axis": label}
    return source


def decoded(
    uri: str, place: Place, dims: list[str], attributes: Mapping[str, Any], **settings: Any
) -> CubeSource:
    """Return the source of an array whose blocks xarray decodes, if its attributes require it.

    ``settings`` are further parameters of `CubeSource`.
    """
    kept = _meaningful(attributes)
    decode = partial(_unpacked, uri, attributes=kept) if kept else None
    return CubeSource(uri, place, dims, **settings, decode=decode)


def _unpacked(uri: str, values: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """Return stored values as numbers or dates, decoded according to the attributes."""
    with _decoding(uri, attributes):
        import xarray

        stored = xarray.Variable([str(axis) for axis in range(values.ndim)], values, attributes)
        variable = xarray.conventions.decode_cf_variable("X", stored, decode_timedelta=False)
        return np.asarray(variable.values)


@contextmanager
def _decoding(uri: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors of xarray's decoding into InputError of one line, and ignore its warnings.

    The warnings are harmless, for instance about two different missing values.
    """
    what = f"{uri}: xarray cannot decode it using its {', '.join(attributes)}"
    # Attributes that were written by hand may raise any exception.
    with ignoring_warnings(), refusing(what, Exception):
        yield


def keep_features(X: Any, names: Any, kept: np.ndarray, n_features: int) -> Any:
    """Return the kept features of a DataArray, along the dimension of the features.

    They are selected by name if a dimension has all of their names as coordinates, which may be
    more than the fitted features. Otherwise they are selected by number along the only dimension
    with ``n_features`` values, which must not have other names.

    Raises
    ------
    InputError
        If the dimension of the features is ambiguous or missing, or has other names.
    """
    if names is not None:
        wanted = {str(names[feature]) for feature in kept}
        # A dimension of another size, such as that of the rows, only if none of this size fits.
        for dim in sorted(X.dims, key=lambda dim: X.sizes[dim] != n_features):
            texts = as_names(X.coords[dim].values, X.sizes[dim]) if dim in X.coords else None
            columns = positions_by_name(kept, names, texts) if set(texts or ()) >= wanted else None
            if columns is not None:
                return X.isel({dim: columns})
    dims = [dim for dim in X.dims if X.sizes[dim] == n_features]
    if len(dims) != 1:
        named = "" if names is None else ", and none has the names of the selected ones"
        raise InputError(
            f"X has {len(dims) or 'no'} dimensions of {n_features:,} features{named}: "
            f"{dict(X.sizes)}. Select along one of them by X.sel or X.isel."
        )
    if dims[0] in X.coords:  # raises if it has other names
        positions_by_name(kept, names, as_names(X.coords[dims[0]].values, n_features))
    return X.isel({dims[0]: kept})


def _chosen(dataset: Any, variable: str | None, uri: str) -> str:
    names = [str(name) for name in dataset.data_vars]
    large = [name for name in names if dataset[name].ndim > 1]
    return choose_member(uri, names, large, variable)


def _classic(path: Location) -> Any:
    if not isinstance(path, Path):
        raise InputError(f"{path}: NetCDF 3 is only read from a local disk. Copy the file there.")
    return _dataset(str(path), str(path), engine="scipy")


def _dataset(file: Any, uri: str, **opening: Any) -> Any:
    """Open a file or store with xarray, without decoding the values."""
    with installed(f"{uri}: reading its dimensions and attributes needs xarray", "'bigfs[xarray]'"):
        import h5netcdf  # noqa: F401  # xarray reads NetCDF 4 with it
        import xarray
    # It warns about missing consolidated metadata, and each of its engines raises its own errors.
    what = f"{uri} cannot be opened by xarray or is damaged"
    with ignoring_warnings(), refusing(what, Exception):
        return xarray.open_dataset(file, decode_times=False, mask_and_scale=False, **opening)
