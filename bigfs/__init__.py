"""Unsupervised feature selection on data larger than memory.

The public names are imported when they are first used: ``import bigfs`` costs nothing and
changes nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "GFSKMeans": "bigfs.selectors",
    "FSGMM": "bigfs.selectors",
    "KNeighborsTransformer": "bigfs.graph.transformer",
    "LFS": "bigfs.selectors",
    "LaplacianScore": "bigfs.selectors",
    "M3FS": "bigfs.selectors",
    "MCFS": "bigfs.selectors",
    "MaxVariance": "bigfs.selectors",
    "MaximumMarginClustering": "bigfs.selectors",
    "NDFS": "bigfs.selectors",
    "QAlpha": "bigfs.selectors",
    "SPEC": "bigfs.selectors",
    "UDFS": "bigfs.selectors",
    "compare": "bigfs.pipeline",
    "ingest": "bigfs.store.ingest",
    "knn_graph": "bigfs.graph",
    "open_matrix": "bigfs.store.source",
    "open_result": "bigfs.results.result",
    "run": "bigfs.pipeline.run",
    "spectral_embedding": "bigfs.spectral",
}

__all__ = ["__version__", "metrics", *_HOMES]  # noqa: F822 (found by __getattr__)


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first asked for (PEP 562)."""
    if name == "metrics":
        return importlib.import_module("bigfs.metrics")
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module 'bigfs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
