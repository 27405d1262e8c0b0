"""Feature selectors: one folder per method; each estimator is a scikit-learn transformer.

Estimators are imported lazily: scikit-learn takes 130 MiB, which workers do not need.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import an estimator class on first access."""
    from bigfs.selectors.registry import METHODS

    for method in METHODS.values():
        if method.estimator == name:
            return method.estimator_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
