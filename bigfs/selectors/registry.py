"""The methods: a line each. Names, sections, templates and tests follow from this table."""

from __future__ import annotations

import importlib

from bigfs.selectors.method import Method

# The declaration of each method, below bigfs.selectors.
_DECLARED = (
    "mcfs.METHOD",
    "ndfs.METHOD",
    "m3fs.M3FS",
    "one_pass.LAPLACIAN_SCORE",
    "one_pass.MAX_VARIANCE",
    "one_pass.SPEC",
    "one_pass.Q_ALPHA",
    "udfs.METHOD",
    "fsgmm.METHOD",
    "m3fs.MAXIMUM_MARGIN_CLUSTERING",
    "lfs.METHOD",
    "gfs_kmeans.METHOD",
    "picks.COLUMN_SUBSET",
    "picks.PIVOTED_QR",
    "one_pass.RANDOM_SELECTION",
    "highly_variable.METHOD",
)

METHODS: dict[str, Method] = {}


def register(method: Method) -> None:
    """Add a method to the table."""
    METHODS[method.name] = method


def method_of(estimator: type) -> Method:
    """Return the method of an estimator's class, or of the class that it is derived from."""
    by_name = {method.estimator: method for method in METHODS.values()}
    return next(by_name[cls.__name__] for cls in estimator.__mro__ if cls.__name__ in by_name)


for _place in _DECLARED:
    _module, _, _name = _place.partition(".")
    register(getattr(importlib.import_module(f"bigfs.selectors.{_module}"), _name))
