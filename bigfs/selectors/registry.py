"""The methods: a line each. Names, sections, templates and tests follow from this table."""

from __future__ import annotations

import importlib

from bigfs.selectors.method import Method

# Modules below bigfs.selectors, each with a METHOD.
_MODULES = (
    "mcfs",
    "ndfs",
    "m3fs",
    "laplacian_score",
    "max_variance",
    "spec",
    "q_alpha",
    "udfs",
    "fsgmm",
    "maximum_margin_clustering",
    "lfs",
    "gfs_kmeans",
    "column_subset",
    "pivoted_qr",
    "random_selection",
    "highly_variable",
)

METHODS: dict[str, Method] = {}


def register(method: Method) -> None:
    """Add a method to the table."""
    METHODS[method.name] = method


def method_of(estimator: type) -> Method:
    """Return the method of an estimator's class, or of the class that it is derived from."""
    by_name = {method.estimator: method for method in METHODS.values()}
    return next(by_name[cls.__name__] for cls in estimator.__mro__ if cls.__name__ in by_name)


for _name in _MODULES:
    register(importlib.import_module(f"bigfs.selectors.{_name}").METHOD)
