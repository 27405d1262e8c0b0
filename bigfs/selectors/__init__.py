"""Feature selectors: one file per method, each a scikit-learn transformer.

Names are loaded when asked: scikit-learn costs 130 MiB that workers do without.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "MCFS": "bigfs.selectors.mcfs.estimator",
    "LaplacianScore": "bigfs.selectors.laplacian_score.estimator",
    "MaxVariance": "bigfs.selectors.max_variance.estimator",
    "NDFS": "bigfs.selectors.ndfs.estimator",
    "QAlpha": "bigfs.selectors.q_alpha.estimator",
    "SPEC": "bigfs.selectors.spec.estimator",
    "UDFS": "bigfs.selectors.udfs.estimator",
    "FSGMM": "bigfs.selectors.fsgmm.estimator",
    "GFSKMeans": "bigfs.selectors.gfs_kmeans.estimator",
    "LFS": "bigfs.selectors.lfs.estimator",
    "M3FS": "bigfs.selectors.m3fs.estimator",
    "MaximumMarginClustering": "bigfs.selectors.m3fs.maximum_margin_clustering",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a selector when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
