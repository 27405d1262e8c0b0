"""Silence of Dask's logging while a cluster is stopped: its messages look like failures."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOGGERS = ("distributed", "tornado.application", "asyncio")


@contextmanager
def quiet_end() -> Iterator[Any]:
    """Restore at the end of the block the logging that it may turn off by what this yields."""
    import distributed  # noqa: F401  (sets up its logging)

    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    dask = logging.getLogger("distributed")
    handlers = list(dask.handlers)
    if logging.getLogger("bigfs").handlers:
        # Until then Dask speaks as we do: a time and a message, or JSON.
        dask.handlers[:] = [_AsOurs(logging.WARNING)]
    try:
        yield _turn_off
    finally:
        dask.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class _AsOurs(logging.Handler):
    """Shows records as those of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        for handler in logging.getLogger("bigfs").handlers:
            handler.handle(record)


def quieten_workers(client: Any) -> None:
    """Let worker processes log nothing, those too that are started later.

    What goes wrong in them reaches the client: errors with the task, deaths from their nannies.
    """
    from distributed import WorkerPlugin

    class Quiet(WorkerPlugin):
        name = "bigfs-quiet"

        def setup(self, worker: Any) -> None:
            _turn_off()

    client.register_plugin(Quiet())


def _turn_off() -> None:
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
