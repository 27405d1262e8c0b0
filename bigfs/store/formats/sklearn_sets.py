"""The data sets that come with scikit-learn, by name."""

from __future__ import annotations

from typing import Any

from bigfs.core.errors import InputError
from bigfs.store.formats.memory import ArraySource

_SETS = ("breast_cancer", "digits", "iris", "wine")


def load_set(uri: str) -> Any:
    """Return the set of ``sklearn:NAME`` with data, target and feature names.

    Raises
    ------
    InputError
        If there is no such set.
    """
    name = uri.removeprefix("sklearn:")
    if name not in _SETS:
        known = ", ".join(f"sklearn:{known}" for known in _SETS)
        raise InputError(f"{uri} is not a set that scikit-learn ships. Known: {known}.")
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")()


def open_set(uri: str) -> ArraySource:
    """Open a set by its URI."""
    found = load_set(uri)
    return ArraySource(found.data, uri, [str(name) for name in found.feature_names])
