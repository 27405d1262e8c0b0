"""Translation of storage and cluster errors into errors that name the remedy."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bigfs.core.errors import BigfsError, ClusterError, StorageError

_FULL = "Free space there, or put the run directory on a larger disk."
_BROKEN = "Check that file system, or put the run directory on another."
# What a file system says when it is full, over quota, over a limit, read-only or broken.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
    errno.EFBIG: "Raise the limit on the size of a file (ulimit -f).",
    **dict.fromkeys((errno.EROFS, errno.EIO, errno.ESTALE), _BROKEN),
}
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
        remedy = _REMEDIES.get(error.errno or 0)
        if error.errno is None or remedy is None:
            raise
        where = error.filename or place
        raise StorageError(
            f"Cannot write {where}: {os.strerror(error.errno)}. {remedy} {_AGAIN}"
        ) from error


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
        from concurrent.futures import CancelledError as FutureCancelledError

        from distributed import CancelledError, KilledWorker
        from distributed.client import ClosedClientError
        from distributed.comm import CommClosedError

        lost = (CancelledError, ClosedClientError, CommClosedError, FutureCancelledError)
        if isinstance(error, KilledWorker):
            reason = (
                f"a task was lost with {error.allowed_failures + 1} workers in a row, most often "
                "because they ran out of memory. Finished stages are kept: give the workers more "
                "memory or lower memory_limit, and run again."
            )
        elif isinstance(error, (*lost, TimeoutError)):
            reason = (
                f"the connection to the cluster was lost ({type(error).__name__}: {error}). "
                "Finished stages are kept: run again when the scheduler answers."
            )
        else:
            raise
        raise ClusterError(f"{what}: {reason}") from error
