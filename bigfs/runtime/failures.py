"""Translation of storage and cluster errors into errors that name the remedy."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bigfs.core.errors import BigfsError, ClusterError, StorageError

# What a file system says when it is full, over quota, over a limit, read-only or broken.
_STORAGE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)
)
_AGAIN = "Finished stages are kept: fix the cause and run again."


@contextmanager
def storage_failures(place: str) -> Iterator[None]:
    """Turn a full or broken file system into StorageError, wherever below it was met.

    Parameters
    ----------
    place : str
        What to name where the failure does not say which file it was.
    """
    try:
        yield
    except BigfsError as error:
        if isinstance(error, StorageError) and " again" not in str(error):
            error.add_note(_AGAIN)
        raise
    except OSError as error:
        if error.errno not in _STORAGE:
            raise
        where = error.filename or place
        raise StorageError(
            f"Cannot write {where}: {os.strerror(error.errno)}. {_remedy(error.errno)} {_AGAIN}"
        ) from error


def _remedy(number: int) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "Free space there, or put the run directory on a larger disk."
    if number == errno.EFBIG:
        return "Raise the limit on the size of a file (ulimit -f)."
    return "Check that file system, or put the run directory on another."


@contextmanager
def cluster_failures(what: str) -> Iterator[None]:
    """Turn the cluster's own failures into ClusterError; errors of tasks pass unchanged.

    Parameters
    ----------
    what : str
        What was going on.
    """
    try:
        yield
    except BigfsError:
        raise
    except Exception as error:
        # Without a cluster there is nothing of its kind, and its import takes half a second.
        if "distributed" not in sys.modules:
            raise
        reason = _of_the_cluster(error)
        if reason is None:
            raise
        raise ClusterError(f"{what}: {reason}") from error


def _of_the_cluster(error: Exception) -> str | None:
    """Return a description of a cluster failure, or None for other errors."""
    from concurrent.futures import CancelledError as FutureCancelledError

    from distributed import CancelledError, KilledWorker
    from distributed.client import ClosedClientError
    from distributed.comm import CommClosedError

    if isinstance(error, KilledWorker):
        return (
            f"a task was lost with {error.allowed_failures + 1} workers in a row, most often "
            "because they ran out of memory. Finished stages are kept: give the workers more "
            "memory or lower memory_limit, and run again."
        )
    lost = (CancelledError, ClosedClientError, CommClosedError, FutureCancelledError, TimeoutError)
    if isinstance(error, lost):
        return (
            f"the connection to the cluster was lost ({type(error).__name__}: {error}). "
            "Finished stages are kept: run again when the scheduler answers."
        )
    return None
