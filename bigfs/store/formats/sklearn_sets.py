"""The data sets that come with scikit-learn, by name; it is loaded when rows are read."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.fingerprint import refuse_object
from bigfs.store.source import RandomAccessSource

# Their shapes: a run that has nothing to do needs no more of them.
_SETS = {"breast_cancer": (569, 30), "digits": (1797, 64), "iris": (150, 4), "wine": (178, 13)}


class SklearnSource(RandomAccessSource):
    """The set of ``sklearn:NAME``.

    Raises
    ------
    InputError
        If there is no such set.
    """

    shareable = False

    def __init__(self, uri: str) -> None:
        self.uri, self.dtype = uri, np.dtype(np.float64)
        self.n_samples, self.n_features = _SETS[_name_of(uri)]

    @cached_property
    def _set(self) -> Any:
        from sklearn import datasets

        return getattr(datasets, f"load_{_name_of(self.uri)}")()

    @property
    def classes(self) -> np.ndarray:
        """The known class of each row."""
        return np.asarray(self._set.target)

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
