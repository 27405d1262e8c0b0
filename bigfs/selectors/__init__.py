"""Feature selectors: a folder for each method, its estimator a scikit-learn transformer.

Estimators are loaded when asked: scikit-learn costs 130 MiB that workers do without.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import an estimator when it is first asked for."""
    from bigfs.selectors.registry import METHODS

    for method in METHODS.values():
        if method.estimator == name:
            return method.estimator_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
