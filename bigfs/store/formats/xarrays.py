"""xarray's DataArray and Dataset, and NetCDF files, which it opens (extra ``bigfs[xarray]``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.runtime.execute import dask_get
from bigfs.store.formats.cube import CubeSource
from bigfs.store.location import Location
from bigfs.store.source import Source, choose_member


class _Array:
    """A DataArray whose slices are read, or computed, when they are asked for."""

    def __init__(self, data: Any) -> None:
        self._data, self.shape, self.dtype = data, data.shape, data.dtype
        self.chunks = data.encoding.get("chunksizes")
        if data.chunks is not None:
            self.chunks = tuple(max(sizes) for sizes in data.chunks)

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        part = self._data[key]
        part = part if part.chunks is None else part.compute(scheduler=dask_get())
        return np.asarray(part.values)


@dataclass(frozen=True)
class _OpenArray:
    """The place of a DataArray in this process."""

    data: Any

    @contextmanager
    def open(self) -> Iterator[_Array]:
        """Return the array."""
        yield _Array(self.data)


@dataclass(frozen=True)
class _NetCDF:
    """The place of a variable of a file; opened anew for every read."""

    path: str
    name: str

    @contextmanager
    def open(self) -> Iterator[_Array]:
        """Open the file, and return the variable."""
        with _dataset(Path(self.path)) as dataset:
            yield _Array(dataset[self.name])


def open_xarray(
    X: Any,
    variable: str | None,
    features: str | int | None = None,
    no_data: float | None = None,
    uri: str = "X",
    place: Any = None,
) -> Source:
    """Open a DataArray, or a variable of a Dataset; neither is loaded as a whole."""
    if hasattr(X, "data_vars"):
        names = [str(name) for name in X.data_vars]
        large = [name for name in names if X[name].ndim > 1]
        name = choose_member(Path(uri), names, large, variable)
        uri, X = f"{uri}::{name}", X[name]
        place = _NetCDF(place, name) if place is not None else None
    elif variable is not None:
        raise InputError(f"{uri} is one array; variable must be None. Got {variable!r}.")
    dims = [str(dim) for dim in X.dims]
    coordinates = {dim: X.coords[dim].values for dim in dims if dim in X.coords}
    # Of a file xarray leaves missing values and packed numbers to the reader, which copies less.
    attributes = {} if place is None else X.attrs
    source = CubeSource(
        uri, place or _OpenArray(X), dims, features, coordinates, attributes, no_data=no_data
    )
    source.held_bytes += source.piece_bytes  # xarray's own copy
    return source


def open_file(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open a variable of a NetCDF file; missing values and packed numbers are decoded.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, where they are given.
    """
    if not isinstance(path, Path):
        raise InputError(f"{path}: NetCDF is read from a local disk only. Copy the file there.")
    with _dataset(path) as dataset:
        return open_xarray(dataset, variable, uri=str(path), place=str(path.absolute()), **cube)


def list_arrays(path: Path) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of every variable of a file."""
    with _dataset(path) as dataset:
        return [(str(n), tuple(dataset[n].shape), str(dataset[n].dtype)) for n in dataset.data_vars]


def keep_features(X: Any, names: Any, kept: np.ndarray, n_features: int) -> Any:
    """Return some features of a DataArray, along the dimension that has them.

    Raises
    ------
    InputError
        If no dimension, or several, can be meant.
    """
    dims = [dim for dim in X.dims if X.sizes[dim] == n_features]
    if len(dims) > 1 and names is not None:
        texts = {dim: [str(v) for v in X.coords[dim].values] for dim in dims if dim in X.coords}
        dims = [dim for dim in dims if texts.get(dim) == list(names)] or dims
    if len(dims) != 1:
        raise InputError(
            f"X has {len(dims) or 'no'} dimensions of {n_features:,} features: "
            f"{dict(X.sizes)}. Select with isel(DIMENSION=selector.get_support(indices=True))."
        )
    return X.isel({dims[0]: kept})


def _dataset(path: Path) -> Any:
    try:
        import h5netcdf  # noqa: F401  # by which xarray reads NetCDF 4
        import xarray
    except ImportError:
        raise InputError(
            f"{path}: NetCDF is read by xarray. Install it with: pip install 'bigfs[xarray]'."
        ) from None
    try:
        # By one reader wherever that can: that of the C library keeps 64 MB of chunks.
        with path.open("rb") as file:
            engine = "h5netcdf" if file.read(4) == b"\x89HDF" else None
        return xarray.open_dataset(path, engine=engine, decode_times=False, mask_and_scale=False)
    except Exception as error:  # each of its engines has errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". Consider")[0]
        raise InputError(
            f"{path} is not a NetCDF file, or is damaged: {reason.rstrip('.')}. Write it again."
        ) from None
