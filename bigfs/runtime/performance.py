"""Dask's own report of what the workers did, saved beside a run on request."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError
from bigfs.runtime.scope import active_client

logger = logging.getLogger("bigfs")


# What Dask's reports have near their beginning.
REPORT_TITLE = b"<title>Dask Performance Report</title>"


@contextmanager
def reporting_performance(file: Path | None) -> Iterator[None]:
    """Save Dask's performance report of the block; None: do not.

    It is also saved where the block fails, but not where it is interrupted. It gets its name when
    it is complete.

    Raises
    ------
    InputError
        If there is no cluster or no bokeh for it: before the block runs.
    """
    if file is None:
        yield
        return
    _check()
    from distributed import performance_report

    partial = file.with_name(f"{file.name}.partial-{uuid.uuid4().hex[:8]}")
    report = performance_report(filename=str(partial))
    report.__enter__()
    try:
        yield
    except Exception:
        _save(report, partial, file)
        raise
    _save(report, partial, file)


def _save(report: Any, partial: Path, file: Path) -> None:
    """Write the report; a run that is done does not fail for it."""
    try:
        report.__exit__(None, None, None)
        partial.replace(file)
    except Exception as error:
        partial.unlink(missing_ok=True)
        logger.warning(
            "The performance report %s was not saved: %s: %s", file, type(error).__name__, error
        )


def _check() -> None:
    client = active_client()
    if client is None:
        raise InputError(
            "The performance report is Dask's report of its workers, and this run has none. Set "
            "cluster in the pipeline or give --scheduler, or leave --performance-report out."
        )
    if not client.run_on_scheduler(_has_bokeh):
        raise InputError(
            "The performance report needs bokeh where the scheduler runs: "
            "pip install 'bigfs[performance]' there."
        )


def _has_bokeh() -> bool:
    try:
        import bokeh  # noqa: F401
    except ImportError:
        return False
    return True
