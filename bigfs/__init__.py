"""Unsupervised feature selection on data larger than memory.

Public names are imported lazily, so that ``import bigfs`` is fast and has no side effects. The
selectors are those of the registry (`bigfs.selectors.registry`). Type checkers read the names from
``__init__.pyi``.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "KNeighborsTransformer": "bigfs.graph.transformer",
    "compare": "bigfs.pipeline.compare",
    "ingest": "bigfs.store.ingest",
    "knn_graph": "bigfs.graph",
    "open_matrix": "bigfs.store.source",
    "RankSummary": "bigfs.pipeline.table",
    "StabilitySelection": "bigfs.selectors.stability.estimator",
    "open_result": "bigfs.results.result",
    "plot": "bigfs.results.plots",
    "run": "bigfs.pipeline.run",
    "select": "bigfs.selectors.annotate",
    "spectral_embedding": "bigfs.spectral",
    "to_grid": "bigfs.results.export",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first access (PEP 562)."""
    if name == "metrics":
        return importlib.import_module("bigfs.metrics")
    if name == "__all__":
        return ["__version__", "metrics", *_HOMES, *_selectors()]
    if name.startswith("_"):
        raise AttributeError(f"module 'bigfs' has no attribute {name!r}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _selectors():
        value = getattr(importlib.import_module("bigfs.selectors"), name)
    else:
        raise AttributeError(f"module 'bigfs' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return sorted(names)


def _selectors() -> list[str]:
    """Return the names of the estimators of all registered methods."""
    methods = importlib.import_module("bigfs.selectors.registry").METHODS
    return [method.estimator for method in methods.values()]
