"""Calls to every process of the cluster, all with a time limit, and checks before long work.

Dask's ``client.get_versions(check=True)`` only warns and never raises, so versions are compared
here. Workers that join later are checked when the next stage starts.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from bigfs.core.errors import ClusterError, InputError, MemoryLimitError
from bigfs.core.memory import SMALLEST_LIMIT_BYTES, machine_bytes
from bigfs.core.paths import is_plain
from bigfs.core.threads import blas_kernels, set_within
from bigfs.core.units import format_bytes
from bigfs.runtime.interrupt import check_interrupt
from bigfs.runtime.scope import active_client

WAIT_SECONDS = 60.0
ANSWER_SECONDS = 60.0
_patience: ContextVar[float] = ContextVar("bigfs_patience", default=WAIT_SECONDS)
LOST_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
# Packages that must also match on the scheduler, which unpickles their objects; the others only
# affect what workers compute.
_PROTOCOL = ("python", "bigfs", "dask", "distributed", "cloudpickle")
_RESULTS = (
    *("numpy", "scipy", "zarr", "numcodecs", "scikit-learn", "pynndescent", "numba", "llvmlite"),
    "dask-ml",
)
_CODE = "the code of bigfs"  # may differ for one version number in editable installations
_SHOWN = 3
logger = logging.getLogger("bigfs")
# For each client, the workers (address, id) that passed the checks for a folder.
_checked: WeakKeyDictionary[Any, set[tuple[str, str, str]]] = WeakKeyDictionary()


def patience(seconds: float | None) -> AbstractContextManager[None]:
    """Set the time in seconds that the block waits for workers (None: a minute)."""
    return set_within(_patience, WAIT_SECONDS if seconds is None else seconds)


def workers_of(client: Any) -> dict[str, dict[str, Any]]:
    """Return the scheduler's record of each of its workers, by address.

    Raises
    ------
    ClusterError
        If Dask has given up the connection to the scheduler.
    """
    known = client.scheduler_info(n_workers=-1)
    if "workers" not in known and client.status == "closed":
        raise ClusterError(
            "The connection to the scheduler was lost. Finished stages are kept: run again when it "
            "answers."
        )
    workers: dict[str, dict[str, Any]] = known.get("workers", {})
    return workers


def wait_for_workers(client: Any) -> None:
    """Wait until the cluster has a worker.

    Raises
    ------
    ClusterError
        If it has none for a minute, or for the time set by `patience`.
    """
    seconds = _patience.get()
    deadline = time.monotonic() + seconds
    while not workers_of(client):
        if time.monotonic() > deadline:
            address = client.scheduler.address
            raise ClusterError(
                f"The scheduler at {address} has had no worker for {seconds:.0f} s. Start one "
                f"with 'dask worker {address}', or see why the batch system starts none, then "
                "run again."
            )
        if client.status != "running":
            raise ClusterError(
                "The scheduler stopped before any worker connected. Start it, then run again."
            )
        time.sleep(0.2)


def ask_workers(
    client: Any, fn: Callable[..., Any], *args: Any, workers: Sequence[str] | None = None
) -> dict[str, Any]:
    """Call a function on workers; return its value, or the exception it raised, by worker.

    Workers that leave during the call are omitted. ``workers`` of None: all workers.

    Raises
    ------
    ClusterError
        If a worker that is still connected does not answer within a minute.
    """
    ask = partial(client.run, fn, *args, workers=workers, on_error="return")
    answers = bounded(client, ask, "Not all workers answer")
    present = workers_of(client)
    return {worker: answer for worker, answer in answers.items() if worker in present}


def bounded(client: Any, ask: Callable[[], Any], what: str) -> Any:
    """Run a coroutine function in the client's event loop and return its value.

    Raises ClusterError, whose message starts with ``what``, if the cluster does not answer.
    """
    try:
        return client.sync(ask, callback_timeout=ANSWER_SECONDS)
    except TimeoutError as error:
        raise ClusterError(
            f"{what} within {ANSWER_SECONDS:.0f} s. Restart processes that hang, then run again."
        ) from error
    except OSError as error:
        raise ClusterError(
            f"{what} ({type(error).__name__}: {error}). Check that the cluster is up, then run "
            "again."
        ) from error


def on_every_process(fn: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Run a function in every worker process, or in this process if there is no cluster.

    Raises
    ------
    ClusterError
        If the cluster has no worker, or a worker does not answer.
    """
    client = active_client()
    if client is None:
        return {"this process": fn(*args)}
    from distributed.comm import CommClosedError

    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        wait_for_workers(client)
        answers = ask_workers(client, fn, *args)
        # A dying worker closes the connection instead of answering.
        dying = [a for a in answers.values() if isinstance(a, (CommClosedError, ConnectionError))]
        if (answers and not dying) or time.monotonic() > deadline:
            break
        # One or all workers have just died; replacements are being started.
        check_interrupt()
        time.sleep(0.5)
    for worker, answer in answers.items():
        if isinstance(answer, OSError):
            raise ClusterError(
                f"Worker {worker} does not answer ({type(answer).__name__}: {answer}). Restart "
                "it, then run again."
            )
        if isinstance(answer, BaseException):
            raise answer
    if not answers:
        raise ClusterError("All workers disconnected. Run again when the cluster has workers.")
    return answers


def worker_limits() -> dict[str, int]:
    """Return the memory limit of each worker process in bytes, by its address.

    For a worker without a limit of its own, it is that of its machine or container. Without a
    cluster, the only entry is "this process".
    """
    client = active_client()
    if client is None:
        return {"this process": machine_bytes()}
    limits = {worker: int(w["memory_limit"] or 0) for worker, w in workers_of(client).items()}
    unlimited = [worker for worker, limit in limits.items() if not limit]
    if unlimited:
        machine_limits = ask_workers(client, machine_bytes, workers=unlimited)
        limits.update({w: n for w, n in machine_limits.items() if isinstance(n, int)})
    return {worker: limit for worker, limit in limits.items() if limit}


def watch_cluster(cluster: Any = None) -> Callable[[], None] | None:
    """Return a check to call every few seconds while the cluster works; None without a cluster.

    Parameters
    ----------
    cluster : ClusterConfig or None, default=None
        The cluster may be without workers for its ``wait_seconds``, but at least a minute.
    """
    client = active_client()
    if client is None:
        return None
    ours = client.cluster if cluster is not None and cluster.kind == "local" else None
    patience = max(LOST_SECONDS, getattr(cluster, "wait_seconds", None) or 0.0)
    last_healthy = time.monotonic()

    def check() -> None:
        """Raise ClusterError when the cluster has been without workers for too long."""
        nonlocal last_healthy
        trouble = _trouble(client, ours)
        if trouble is None:
            last_healthy = time.monotonic()
        elif time.monotonic() - last_healthy > patience:
            raise ClusterError(
                f"{trouble} for {patience:.0f} s. Finished stages are kept: run again when the "
                "cluster is up."
            )

    return check


def _trouble(client: Any, ours: Any) -> str | None:
    """Return the current problem of a cluster as the start of a sentence; None if there is none.

    ``ours`` is a local cluster that this process started, or None. Its dead workers are restarted.
    """
    try:
        identity, seconds = client.scheduler.identity, _ANSWER_SECONDS
        answer = client.sync(identity, n_workers=-1, callback_timeout=seconds)
    except Exception:  # whatever the cause, the scheduler has not answered
        return "The scheduler has not answered"
    if ours is not None and len(answer["workers"]) < len(ours.worker_spec):
        # Dask restarts a dead worker only once, and not if it dies during its start.
        ours.scale(len(ours.worker_spec))
    return None if answer["workers"] else f"The scheduler at {answer['address']} has had no worker"


def preflight(folder: Any) -> None:
    """Check the cluster in scope, if there is one, before any long work.

    Parameters
    ----------
    folder : Path or ObjectPath
        Folder that the run's tasks will write to.

    Raises
    ------
    ClusterError
        If there is no worker within a minute, or versions differ.
    InputError
        If a worker cannot read and write the folder.
    MemoryLimitError
        If a worker is too small for any work.
    """
    client = active_client()
    if client is None:
        return
    wait_for_workers(client)
    _check_scheduler(client)
    check_workers(folder)


def check_workers(folder: Any) -> None:
    """Check the workers that have joined since the last check of this folder.

    Raises the errors of `preflight`. If all workers are gone, it waits for new ones.
    """
    client = active_client()
    if client is None:
        return
    wait_for_workers(client)
    known = _checked.setdefault(client, set())
    keys = [(w, str(info["id"]), str(folder)) for w, info in workers_of(client).items()]
    new = [worker for worker, *of_place in keys if (worker, *of_place) not in known]
    if not new:
        return
    _compare(_versions(), ask_workers(client, _versions, workers=new))
    check_sizes({w: limit for w, limit in worker_limits().items() if w in new})
    _check_shared(folder, new)
    _compare_kernels(ask_workers(client, blas_kernels, workers=new))
    known.update(keys)


def _check_scheduler(client: Any) -> None:
    ask = partial(client.run_on_scheduler, _versions)
    try:
        answer = bounded(client, ask, "The scheduler does not answer")
    except ClusterError:
        raise
    except Exception as error:
        answer = error
    own = {name: version for name, version in _versions().items() if name in (*_PROTOCOL, _CODE)}
    _compare(own, {"the scheduler": answer})


def _compare(own: dict[str, str], answers: dict[str, Any]) -> None:
    """Raise ClusterError if the versions of other processes differ from those of this one."""
    wrong = []
    for process, answer in answers.items():
        if isinstance(answer, OSError):
            wrong.append(f"{process} does not answer ({type(answer).__name__}: {answer})")
        elif isinstance(answer, Exception):  # some exceptions arrive only as their text
            wrong.append(f"{process} cannot import this bigfs ({answer})")
        else:
            differing = [
                f"{name} {answer.get(name, 'missing')} (here {version})"
                for name, version in own.items()
                if answer.get(name) != version
            ]
            if differing:
                wrong.append(f"{process} has {', '.join(differing)}")
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ClusterError(
            "The cluster and this client have different versions, and results could differ: "
            f"{'; '.join(wrong[:_SHOWN])}{more}. Install the same versions everywhere, restart "
            "the cluster, then run again."
        )


def _compare_kernels(answers: dict[str, Any]) -> None:
    """Warn about workers whose BLAS kernels, and so the rounding of sums, differ from ours.

    This is not an error, since a cluster may have processors of several types.
    """
    own = blas_kernels()
    other = {w: name for w, name in answers.items() if isinstance(name, str) and name != own}
    if other:
        worker, kernels = next(iter(other.items()))
        logger.warning(
            "BLAS uses its %s kernels here, but others on %d of %d workers (%s: %s): the last "
            "digits of scores may differ from run to run. If the processors are of one type, set "
            "OPENBLAS_CORETYPE to the same value everywhere, or nowhere.",
            own, len(other), len(answers), worker, kernels,
        )  # fmt: skip


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect the result."""
    from importlib.metadata import PackageNotFoundError, version

    # Bug-fix releases of Python give the same results and read the same pickles.
    versions = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in (*_PROTOCOL[1:], *_RESULTS):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions


@cache
def _versions() -> dict[str, str]:
    """Return the versions of packages, and a digest of the code of bigfs."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return {**package_versions(), _CODE: digest.hexdigest()[:12]}


def check_sizes(limits: dict[str, int]) -> None:
    """Raise MemoryLimitError if a worker's limit (bytes by address) is too small for any stage."""
    for worker, limit in limits.items():
        if limit < SMALLEST_LIMIT_BYTES:
            raise MemoryLimitError(
                f"Worker {worker} has a memory limit of {format_bytes(limit)}; no stage fits "
                f"into less than {format_bytes(SMALLEST_LIMIT_BYTES)}. Start it with "
                "--memory-limit 4GiB."
            )


def _check_shared(folder: Any, workers: Sequence[str]) -> None:
    """Raise InputError if workers do not see the client's folder or cannot write there."""
    token = uuid.uuid4().hex
    ours = folder / f"token-{token}"
    ours.write_text(token)
    try:
        question = (_answer_token, folder, token)
        for worker, answer in ask_workers(active_client(), *question, workers=workers).items():
            named = str(answer)
            written = folder / named
            is_answer = is_plain(named) and named.startswith(f"{ours.name}-")
            if not is_answer or not written.exists():
                raise InputError(
                    f"Worker {worker} and this client do not share {folder} ({answer}). Put the "
                    "run directory on storage that all of them can read and write."
                )
            written.unlink()
    finally:
        ours.unlink(missing_ok=True)


def _answer_token(folder: Any, token: str) -> str:
    """Read the client's token and write one back; return its file name, or the problem."""
    try:
        if (folder / f"token-{token}").read_text() != token:
            return "it read a different token"
        answer = folder / f"token-{token}-{uuid.uuid4().hex[:8]}"
        answer.write_text(token)
        return str(answer.name)
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror or error}"
