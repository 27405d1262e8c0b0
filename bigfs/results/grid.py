"""Arrays with a row for each sample, put back into the dimensions that were stacked as rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.results.export import open_run_data
from bigfs.store.formats.raster import write_map
from bigfs.store.location import as_location, unnamed_file
from bigfs.store.records import MANIFEST, check_new_file
from bigfs.store.source import Source, open_matrix


def to_grid(
    data: Any, values: Any, row_mask: Any = None, fill: Any = None, dest: str | Path | None = None
) -> np.ndarray:
    """Put values of rows back into the dimensions that were stacked, such as y and x.

    Parameters
    ----------
    data : str, Path, Source or Result
        The run, or the store or opened array that the rows are of.
    values : array-like of shape (n_rows, ...)
        Labels, coordinates of an embedding, or selected columns.
    row_mask : array of bool or None, default=None
        Which rows there are, the attribute ``row_mask_`` of a fitted estimator. None: those that
        the run or store has kept.
    fill : scalar, default=None
        For rows that are not there. None: -1 in whole numbers, else NaN.
    dest : str, Path or None, default=None
        A new GeoTIFF to write the grid to, on the map of the picture that the data are of.

    Returns
    -------
    grid : ndarray
        Of shape (sizes of the dimensions, ...).

    Raises
    ------
    InputError
        If the data are no array of several dimensions, or there is not one value for each row.

    Examples
    --------
    >>> import bigfs
    >>> bigfs.to_grid("runs/scene", labels).shape  # doctest: +SKIP
    (2000, 2000)
    """
    source = _opened(getattr(data, "path", data))
    if source.grid is None:
        raise InputError(f"{source.uri} is not an array of several dimensions (input.features).")
    shape, values = tuple(source.grid["shape"]), np.asarray(values)
    n = math.prod(shape)
    places = np.delete(np.arange(n), source.dropped)
    places = places if row_mask is None else np.flatnonzero(row_mask)
    if len(values) != len(places):
        raise InputError(
            f"There are {len(values):,} values for {len(places):,} rows of {source.uri}."
        )
    if fill is None:
        fill = -1 if values.dtype.kind in "iu" else np.nan
    dtype = np.result_type(values.dtype, np.min_scalar_type(fill))
    grid = np.full((n, *values.shape[1:]), fill, dtype)
    grid[places] = values
    if dest is not None:
        bands = grid.reshape(n, -1)
        with unnamed_file(check_new_file(Path(dest))) as file:
            names = [""] * bands.shape[1]
            write_map(file, source.grid, np.ones(n, dtype=bool), [bands], bands.dtype, names)
    return grid.reshape(*shape, *values.shape[1:])


def _opened(data: Any) -> Source:
    if isinstance(data, (str, Path)) and (as_location(data) / MANIFEST).is_file():
        return open_run_data(as_location(data))
    return data if isinstance(data, Source) else open_matrix(data)
