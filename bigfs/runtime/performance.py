"""Dask's own report of what the workers did, saved beside a run on request."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError
from bigfs.runtime.execute import active_client

logger = logging.getLogger("bigfs")


@contextmanager
def reporting_performance(file: str | None) -> Iterator[None]:
    """Save Dask's performance report of the block; None: do not.

    It is also saved where the block fails, but not where it is interrupted.

    Raises
    ------
    InputError
        If there is no cluster, no bokeh or no folder for it: before the block runs.
    """
    if file is None:
        yield
        return
    _check(file)
    from distributed import performance_report

    report = performance_report(filename=file)
    report.__enter__()
    try:
        yield
    except Exception:
        _save(report, file)
        raise
    _save(report, file)


def _save(report: Any, file: str) -> None:
    """Write the report; a run that is done does not fail for it."""
    try:
        report.__exit__(None, None, None)
    except Exception as error:
        logger.warning(
            "The performance report %s was not saved: %s: %s", file, type(error).__name__, error
        )


def _check(file: str) -> None:
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
    folder = Path(file).absolute().parent
    if not folder.is_dir():
        raise InputError(f"The performance report {file} has no folder: {folder} does not exist.")


def _has_bokeh() -> bool:
    try:
        import bokeh  # noqa: F401
    except ImportError:
        return False
    return True
