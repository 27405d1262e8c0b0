"""Connecting to Dask: an address, a cluster of our own on this machine, or what is in scope."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigfs.core.errors import ClusterError, InputError
from bigfs.core.execute import active_client

WAIT_SECONDS = 60.0


@contextmanager
def connect(address: str | None, local: Any, memory_limit_bytes: int) -> Iterator[None]:
    """Make a scheduler the active one within the block.

    Parameters
    ----------
    address : str or None
        Address of a running Dask scheduler.
    local : object with ``n_workers`` and ``threads_per_worker``, or None
        A cluster to start on this machine, on 127.0.0.1 and without a dashboard.
    memory_limit_bytes : int
        Limit of each worker that is started here.

    Raises
    ------
    ClusterError
        If the scheduler does not answer or no worker appears in time.
    """
    if address is None and local is None:
        yield
        return
    if address is not None:
        with _client(address) as client:
            _wait_for_workers(client, address)
            yield
        return
    with (
        local_cluster(local.n_workers, local.threads_per_worker, memory_limit_bytes) as cluster,
        _client(cluster.scheduler_address),
    ):
        yield


def local_cluster(n_workers: int, threads_per_worker: int, memory_limit_bytes: int) -> Any:
    """Start worker processes on this machine that listen on 127.0.0.1, without a dashboard."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=threads_per_worker,
        processes=True,
        host="127.0.0.1",
        # None would still open the well-known port 8787, and warn if it is taken.
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address=None,
        scheduler_kwargs={"dashboard": False},
        memory_limit=memory_limit_bytes,
    )


@contextmanager
def _client(address: str) -> Iterator[Any]:
    from distributed import Client

    try:
        client = Client(address, timeout=WAIT_SECONDS / 2)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"No Dask scheduler answers at {address} ({type(error).__name__}: {error}). Check "
            "the address and that the scheduler is running, then run again."
        ) from error
    with client:
        yield client


def _wait_for_workers(client: Any, address: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not client.scheduler_info(n_workers=-1)["workers"]:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"The scheduler at {address} has had no worker for {WAIT_SECONDS:.0f} s. Start "
                f"one with 'dask worker {address}', then run again."
            )
        time.sleep(0.2)


def on_every_process(fn: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Run a function in every worker process, or in this one if there are none."""
    client = active_client()
    if client is None:
        return {"this process": fn(*args)}
    results: dict[str, Any] = client.run(fn, *args)
    return results


def check_shared_folder(folder: Path) -> None:
    """Check that every worker sees the run directory of this client and can write there.

    Raises
    ------
    InputError
        Naming the worker and the path.
    """
    if active_client() is None:
        return
    token = uuid.uuid4().hex
    ours = folder / f"token-{token}"
    ours.write_text(token)
    try:
        answers = on_every_process(_answer_token, str(folder), token)
        for worker, answer in answers.items():
            theirs = Path(answer)
            if not theirs.is_absolute() or not theirs.exists():
                raise InputError(
                    f"Worker {worker} and this client do not share {folder} ({answer}). Put the "
                    "run directory on storage that all of them can read and write."
                )
            theirs.unlink()
    finally:
        ours.unlink(missing_ok=True)


def _answer_token(folder: str, token: str) -> str:
    """Read the client's token and write one back; return its path, or what went wrong."""
    try:
        if (Path(folder) / f"token-{token}").read_text() != token:
            return "the token it read is another one"
        answer = Path(folder) / f"token-{token}-{uuid.uuid4().hex[:8]}"
        answer.write_text(token)
        return str(answer)
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}"


def check_versions() -> None:
    """Check that client and workers run the same bigfs, dask, numpy and zarr.

    Raises
    ------
    ClusterError
        Naming the worker, the package and both versions.
    """
    here = package_versions()
    for worker, theirs in on_every_process(package_versions).items():
        for package, version in here.items():
            if theirs.get(package) != version:
                raise ClusterError(
                    f"Worker {worker} has {package} {theirs.get(package, 'missing')}, this "
                    f"client has {version}: results could differ. Install the same versions "
                    "on both, then run again."
                )


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that decide the result."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("bigfs", "dask", "distributed", "numpy", "scipy", "zarr", "pynndescent"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found
