"""The data sets that come with scikit-learn, by name; it is loaded when rows are read."""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.fingerprint import refuse_object
from bigfs.store.source import RandomAccessSource

# Their shapes: a run that has nothing to do needs no more of them.
_SETS = {"breast_cancer": (569, 30), "digits": (1797, 64), "iris": (150, 4), "wine": (178, 13)}


def load_set(uri: str) -> Any:
    """Return the set of ``sklearn:NAME`` with data, target and feature names.

    Raises
    ------
    InputError
        If there is no such set.
    """
    name = _name_of(uri)
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")()


def load_classes_of(uri: str) -> np.ndarray:
    """Return the classes of a set, as numbers: the last column of scikit-learn's own file.

    scikit-learn itself, which takes a second to load, reads them where its files are others.
    """
    name, spec = _name_of(uri), find_spec("sklearn")
    for file in sorted(
        Path(spec.origin or "").parent.glob(f"datasets/data/{name}*.csv*") if spec else ()
    ):
        classes = np.genfromtxt(file, delimiter=",", skip_header=name != "digits", usecols=[-1])
        if len(classes) == _SETS[name][0] and np.isfinite(classes).all():
            return classes.astype(np.int64)
    return np.asarray(load_set(uri).target)


def open_set(uri: str) -> SklearnSource:
    """Open a set by its URI.

    Raises
    ------
    InputError
        If there is no such set.
    """
    return SklearnSource(uri)


class SklearnSource(RandomAccessSource):
    """A set of scikit-learn's."""

    shareable = False

    def __init__(self, uri: str) -> None:
        self.uri, self.dtype = uri, np.dtype(np.float64)
        self.n_samples, self.n_features = _SETS[_name_of(uri)]

    @cached_property
    def _set(self) -> Any:
        return load_set(self.uri)

    @cached_property
    def feature_names(self) -> list[str]:  # type: ignore[override]
        """Names of the columns."""
        return [str(name) for name in self._set.feature_names]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        rows: np.ndarray = self._set.data[start:stop]
        return rows


def _name_of(uri: str) -> str:
    """Return the name of a set that there is."""
    refuse_object(uri)
    name = uri.removeprefix("sklearn:")
    if name not in _SETS:
        known = ", ".join(f"sklearn:{known}" for known in _SETS)
        raise InputError(f"{uri} is not a set that scikit-learn ships. Known: {known}.")
    return name
