"""Arrays of HDF5 files that are neither AnnData nor counts: MATLAB's of version 7.3 too."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.formats.cube import CubeSource, Transposed
from bigfs.store.formats.hdf5 import H5Place, member, open_h5
from bigfs.store.formats.parts import ArrayByRows
from bigfs.store.location import Location
from bigfs.store.source import Source, choose_member
from bigfs.store.values import decoding

# The usual name of a matrix of features in MATLAB's files.
_FEATURES = "fea"


def open_file(
    path: Location,
    variable: str | None,
    features: str | int | None = None,
    no_data: float | None = None,
    *,
    matlab: bool = False,
) -> Source:
    """Open an array of a file: the one that is named, or the only one of two dimensions or more.

    Parameters
    ----------
    path : Path or ObjectPath
    variable : str or None
    features : str, int or None
        Name or number of the dimension of features.
    no_data : float or None
        A value that stands for a missing one.
    matlab : bool, default=False
        Whether dimensions are in reverse order.
    """
    with open_h5(path) as file, decoding(str(path)):
        arrays = {name: shape for name, shape, _ in _arrays(file)}
        matrices = [name for name, shape in arrays.items() if len(shape) > 1 and min(shape) > 1]
        if matlab and variable is None and "X" not in arrays and _FEATURES in arrays:
            variable = _FEATURES
        named = None if variable is None else variable.strip("/")
        name = choose_member(path, list(arrays), matrices, named)
        uri, place = f"{path}::{name}", H5Place(str(path.absolute()), name)
        array = member(file, name, str(path))
        if array.dtype.kind not in "fiub":
            raise InputError(f"{uri} holds {array.dtype}, not numbers. Name another array.")
        if len(array.shape) == 2 and features is None and no_data is None and not matlab:
            return ArrayByRows(place, uri)
        dims, coordinates = (None, {}) if matlab else dimensions(array)
        attributes = {} if matlab else dict(array.attrs)
    where: Any = Transposed(place) if matlab else place
    return CubeSource(uri, where, dims, features, coordinates, attributes, no_data)


def list_arrays(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of every array of a file."""
    with open_h5(path) as file, decoding(str(path)):
        return _arrays(file)


def _arrays(file: Any) -> list[tuple[str, tuple[int, ...], str]]:
    arrays: list[tuple[str, tuple[int, ...], str]] = []

    def note(name: str, node: Any) -> None:
        if hasattr(node, "shape") and node.shape and not name.startswith("#"):  # MATLAB's own
            arrays.append((name, tuple(node.shape), str(node.dtype)))

    file.visititems(note)  # does not follow links to other files
    return arrays


def dimensions(array: Any) -> tuple[list[str] | None, dict[str, Any]]:
    """Return names and coordinates of the dimensions that have scales or labels."""
    names, coordinates = [], {}
    for i, dim in enumerate(array.dims):
        scale = dim[0] if len(dim) else None
        name = dim.label or ("" if scale is None else scale.name.rpartition("/")[2]) or str(i)
        names.append(name)
        if scale is not None and scale.ndim == 1 and scale.shape[0] == array.shape[i]:
            if scale.dtype.kind in "fiuS":
                coordinates[name] = np.asarray(scale[:])
    return (names if len(set(names)) == len(names) else None), coordinates


def is_hdf5(path: Location) -> bool:
    """Say whether a .mat file is one of version 7.3."""
    with path.open("rb") as file:
        return bool(file.read(16).startswith(b"MATLAB 7.3"))
