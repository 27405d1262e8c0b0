"""MATLAB's .mat, version 5 and before, read whole by scipy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.formats.memory import ArraySource, SparseSource
from bigfs.store.source import RandomAccessSource

_USUAL = ("X", "fea")


def open_file(path: Path, variable: str | None) -> RandomAccessSource:
    """Open ``variable``, ``X``, ``fea``, or the only matrix of the file."""
    arrays = _load(path)
    if variable is not None and variable not in arrays:
        raise InputError(f"{path} has no array {variable!r}. It has {', '.join(arrays)}.")
    name = variable or next((usual for usual in _USUAL if usual in arrays), None)
    if name is None:
        matrices = [n for n, a in arrays.items() if a.ndim == 2 and min(a.shape) > 1]
        if len(matrices) != 1:
            raise InputError(
                f"{path} holds {len(matrices)} matrices ({', '.join(arrays) or 'nothing'}). Name "
                "one with input.variable (--variable)."
            )
        name = matrices[0]
    found = arrays[name]
    uri = f"{path}::{name}"
    return ArraySource(found, uri) if isinstance(found, np.ndarray) else SparseSource(found, uri)


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path)
    except NotImplementedError:
        raise InputError(
            f"{path} is a version 7.3 file (HDF5), which is not read. Save it in MATLAB with "
            "save(..., '-v7')."
        ) from None
    except (ValueError, TypeError, MatReadError, OSError, EOFError, MemoryError) as error:
        raise InputError(f"{path} is not a .mat file: {error}.") from None
    return {name: value for name, value in content.items() if not name.startswith("__")}
