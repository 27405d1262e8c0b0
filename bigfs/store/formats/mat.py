"""MATLAB's .mat, version 5 and before: one variable, read whole by scipy."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.store.csr import CSRSource
from bigfs.store.formats.memory import ArraySource
from bigfs.store.location import Location
from bigfs.store.source import RandomAccessSource, choose_member

_NUMERIC = {"double", "single", "logical", "sparse"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def open_file(path: Location, variable: str | None) -> RandomAccessSource:
    """Open ``variable``, ``X``, ``fea`` (the usual name of features), or the only matrix."""
    from scipy.io import loadmat, whosmat

    content = _scipy(whosmat, path)
    names = [name for name, _, _ in content]
    if variable is None and "X" not in names and "fea" in names:
        variable = "fea"
    matrices = [
        name
        for name, shape, kind in content
        if kind in _NUMERIC and len(shape) == 2 and min(shape) > 1
    ]
    name = choose_member(path, names, matrices, variable)
    kind = next(kind for found, _, kind in content if found == name)
    if kind not in _NUMERIC:
        raise InputError(f"{path}: {name!r} is a {kind}, not a matrix of numbers.")
    found = _scipy(loadmat, path, variable_names=[name], spmatrix=False)[name]
    uri = f"{path}::{name}"
    return ArraySource(found, uri) if isinstance(found, np.ndarray) else CSRSource(found, uri)


def list_variables(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and kind of every variable of a file."""
    from scipy.io import whosmat

    return list(_scipy(whosmat, path))


def _scipy(read: Any, path: Location, **options: Any) -> Any:
    try:
        with path.open("rb") as file:
            return read(file, **options)
    except StorageError:
        raise
    except NotImplementedError:
        raise InputError(
            f"{path} is a version 7.3 file (HDF5), which is not read. Save it in MATLAB with "
            "save(..., '-v7')."
        ) from None
    except Exception as error:  # scipy documents none of what a damaged file makes it raise
        raise InputError(f"{path} is not a .mat file, or damaged: {error}.") from None
