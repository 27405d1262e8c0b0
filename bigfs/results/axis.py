"""Positions of features: in an image, or along an axis such as wavelength."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.results.plots import check_image
from bigfs.store.labels import read_values


def check_report(settings: Any, n_features: int) -> None:
    """Raise InputError if the report's image or axis does not go with the features."""
    if settings is not None:
        check_image(settings.image_shape, n_features)
        read_axis(settings.axis, n_features)


def read_axis(file: str | None, n_features: int) -> np.ndarray | None:
    """Return the position of each feature, None without a file.

    Parameters
    ----------
    file : str or None
        Text with a number for each feature; or an array or column, named as labels are:
        ``FILE.npy``, ``FILE.nc::wavelength``, ``FILE.csv::COLUMN``.
    n_features : int

    Raises
    ------
    InputError
        If it cannot be read, or does not hold a finite number for each feature.
    """
    if not file:
        return None
    is_text = Path(file).suffix in (".txt", ".csv")  # of no column, which has :: in its name
    try:
        values = np.loadtxt(file, delimiter=",", ndmin=1) if is_text else read_values(file)
    except InputError as error:
        raise InputError(f"report.axis: {error}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"report.axis: {file} cannot be read: {reason}.") from None
    values = np.ravel(values)
    if values.dtype.kind not in "iuf" or len(values) != n_features or not np.isfinite(values).all():
        raise InputError(
            f"report.axis: {file} must hold a finite number for each of the {n_features} features. "
            f"Got {len(values)} values of {values.dtype}."
        )
    return np.asarray(values, dtype=np.float64)
