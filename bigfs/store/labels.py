"""Known classes, for judging a selection; never an input to a selector."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.formats.csv import CsvSource
from bigfs.store.formats.npy import read_header
from bigfs.store.source import as_path


def load_labels(uri: str, n_samples: int | None = None) -> np.ndarray:
    """Read labels and number the classes in sorted order.

    Parameters
    ----------
    uri : str
        ``FILE.npy``, ``FILE.npz`` (its ``y``), ``FILE.npz::NAME``, ``FILE.csv::COLUMN``, a
        zarr array, or ``sklearn:NAME``.
    n_samples : int or None, default=None
        How many there must be.

    Returns
    -------
    y : ndarray of shape (n_samples,), int64
        0 to c-1.

    Raises
    ------
    InputError
        If they cannot be read, are not one a row, or are missing somewhere.
    """
    values = np.asarray(_read(uri))
    if values.ndim == 2 and 1 in values.shape:
        values = values.ravel()
    if values.ndim != 1 or values.dtype.kind not in "fiubUS":
        raise InputError(
            f"{uri}: labels must be one number or text for each sample. Got an array of "
            f"{values.dtype} with shape {values.shape}."
        )
    if n_samples is not None and len(values) != n_samples:
        raise InputError(
            f"{uri} has {len(values)} labels, but the data have {n_samples} samples. "
            "Give the labels of the same rows in the same order."
        )
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise InputError(f"{uri}: label {int(np.isnan(values).argmax())} is NaN.")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _read(uri: str) -> np.ndarray:
    name, _, part = uri.partition("::")
    path = as_path(name)
    if path is None:
        from bigfs.store.formats.sklearn_sets import load_set

        return np.asarray(load_set(name).target)
    if not path.exists():
        raise InputError(f"{name} does not exist. Check the path of the labels.")
    if path.is_dir():
        return _read_zarr(path, part)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _read_npy(path)
    if suffix == ".npz":
        return _read_npz(path, part or "y")
    if suffix in (".csv", ".tsv", ".gz"):
        return _read_csv(path, part)
    raise InputError(f"{name}: labels are read from .npy, .npz, .csv, .tsv and zarr arrays.")


def _read_npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        read_header(file, str(path))
    return np.asarray(np.load(path, allow_pickle=False))


def _read_npz(path: Path, name: str) -> np.ndarray:
    from bigfs.store.formats.npz import member_names

    names = member_names(path)
    if name not in names:
        raise InputError(
            f"{path} has no array {name!r} (it has {', '.join(names)}). Name one as {path}::NAME."
        )
    try:
        with np.load(path, allow_pickle=False) as content:
            return np.asarray(content[name])
    except ValueError as error:
        raise InputError(f"{path}::{name} cannot be read: {error}.") from None


def _read_csv(path: Path, column: str) -> np.ndarray:
    import pandas as pd

    names = CsvSource(path).feature_names or []
    if not column and len(names) == 1:
        column = names[0]
    if column not in names:
        raise InputError(
            f"{path} has no column {column!r} (it has {', '.join(names) or 'no header'}). "
            f"Name one as {path}::COLUMN."
        )
    separator = "\t" if ".tsv" in path.name.lower() else ","
    values = pd.read_csv(path, sep=separator, usecols=[names.index(column)]).iloc[:, 0]
    if values.isna().any():
        raise InputError(f"{path}::{column}: label {int(values.isna().argmax())} is missing.")
    if values.dtype.kind in "fiub":
        return values.to_numpy()
    return values.to_numpy().astype(str)


def _read_zarr(path: Path, name: str) -> np.ndarray:
    import zarr

    try:
        node = zarr.open(str(path), mode="r")
        array = node[name or "y"] if isinstance(node, zarr.Group) else node
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: labels cannot be read ({type(error).__name__}).") from None
    return np.asarray(array[...])
