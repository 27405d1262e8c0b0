"""Positions of features: in an image, or along an axis such as wavelength."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError


def check_report(settings: Any, n_features: int) -> None:
    """Raise InputError if the report's image or axis does not go with the features."""
    if settings is not None:
        check_image(settings.image_shape, n_features)
        read_axis(settings.axis, n_features)


def check_image(shape: Sequence[int] | None, n_features: int) -> None:
    """Raise InputError unless an image of a shape has as many pixels as there are features."""
    if shape and shape[0] * shape[1] != n_features:
        raise InputError(
            f"report.image_shape: {shape[0]} x {shape[1]} is {shape[0] * shape[1]} pixels, and "
            f"the data have {n_features} features. Correct it, or remove it."
        )


def read_axis(file: str | None, n_features: int) -> np.ndarray | None:
    """Return the position of each feature, None without a file.

    Parameters
    ----------
    file : str or None
        A .npy file, or text with a number for each feature.
    n_features : int

    Raises
    ------
    InputError
        If it cannot be read, or does not hold a finite number for each feature.
    """
    if not file:
        return None
    try:
        if Path(file).suffix == ".npy":
            values = np.load(file, allow_pickle=False)
        else:
            values = np.loadtxt(file, delimiter=",", ndmin=1)
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
