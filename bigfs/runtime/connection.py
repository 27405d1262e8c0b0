"""Connections to Dask: a running scheduler, a cluster started here, or the client in scope.

Workers may be Slurm jobs, submitted and ended by the run itself (extra ``slurm``). Dask's
performance report is saved on request.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from bigfs.core.errors import BigfsError, ClusterError, InputError
from bigfs.core.memory import job_bytes
from bigfs.core.paths import check_address, is_scheduler_file
from bigfs.core.threads import ignoring_warnings
from bigfs.core.units import MIB
from bigfs.runtime.scope import active_client
from bigfs.runtime.workers import WAIT_SECONDS, patience, wait_for_workers

logger = logging.getLogger("bigfs")
LOOPBACK = "127.0.0.1"
_DASK_SETTINGS = {
    # Intervals of Dask's self-monitoring. Its defaults of 10 and 20 ms cost a tenth of a core.
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.tick.interval": "500ms",
    # Blocks are read into huge pages of 2 MiB if the system has them. With pages of 4 KiB, an
    # update of 1,000,000 rows spent a tenth of its processor time on allocating them.
    "distributed.nanny.pre-spawn-environ.GLIBC_TUNABLES": os.environ.get(
        "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
    ),
}
# The first two are the loggers to which Dask attaches handlers.
_DASK_LOGGERS = ("distributed", "distributed.client")
_LOGGERS = (*_DASK_LOGGERS, "tornado.application", "asyncio")


def scheduler_address(given: str | None, cluster: Any) -> str | None:
    """Return the address of a running scheduler to connect to, or None if there is none.

    Parameters
    ----------
    given : str or None
        Value of ``--scheduler``; it takes precedence over the configuration.
    cluster : ClusterConfig or None
        Cluster section of the configuration.

    Raises
    ------
    InputError
        If ``given`` is neither the address of a scheduler nor a scheduler file.
    """
    if given is None:
        return cluster.address if cluster is not None else None
    try:
        return check_address(given)
    except InputError as error:
        raise InputError(f"--scheduler: {error}") from None


@contextmanager
def connect(address: str | None, cluster: Any, memory_limit: int) -> Iterator[None]:
    """Make a scheduler the active one within the block.

    Parameters
    ----------
    address : str or None
        Address of a running scheduler, or the file that it wrote.
    cluster : ClusterConfig or None
        Says how long to wait for workers and, if there is no address, describes a cluster that is
        started before the block and stopped after it. None: use the client in scope.
    memory_limit : int
        Memory limit of each worker that is started here.

    Raises
    ------
    ClusterError
        If the scheduler does not answer or no worker appears in time.
    InputError
        If TLS is not set up, or the batch system is not available.
    """
    import dask.config

    with patience(None if cluster is None else cluster.wait_seconds), ExitStack() as stack:
        if address is not None or cluster is not None:
            # This imports distributed. Importing it later would reset the setting below to its
            # default.
            stack.enter_context(quiet_end())
            if address is not None:
                client = stack.enter_context(_client(address))
            else:
                # On a busy machine, restarting a worker takes longer than Dask's default of 15 s.
                lost = {"distributed.deploy.lost-worker-timeout": "30s"}
                stack.enter_context(dask.config.set(lost))
                running = stack.enter_context(_started(cluster, memory_limit))
                client = stack.enter_context(running.get_client())
                # Also runs on workers that are started later. Nothing is lost: errors reach the
                # client with the task, and nannies report deaths.
                client.register_worker_callbacks(turn_off_logging)
            wait_for_workers(client)
            stack.callback(turn_off_logging)
        yield


def _started(cluster: Any, memory_limit: int) -> Any:
    """Start and return the cluster that a configuration describes."""
    if cluster.kind == "slurm":
        return slurm_cluster(cluster, memory_limit)
    return local_cluster(cluster.n_workers, cluster.threads_per_worker, memory_limit)


def local_cluster(n_workers: int, threads_per_worker: int, memory_limit: int) -> Any:
    """Start worker processes on this machine that listen on 127.0.0.1, without a dashboard.

    Raises
    ------
    ClusterError
        If a worker dies during its start.
    """
    import dask.config
    from distributed import LocalCluster

    try:
        with dask.config.set(_DASK_SETTINGS), _blocking_signals():
            return LocalCluster(
                n_workers=n_workers,
                threads_per_worker=threads_per_worker,
                processes=True,
                host=LOOPBACK,
                # None would still open the default port 8787, and warn if it is in use.
                dashboard_address=f"{LOOPBACK}:0",
                worker_dashboard_address=None,
                scheduler_kwargs={"dashboard": False},
                memory_limit=memory_limit,
            )
    except RuntimeError as error:
        raise ClusterError(
            f"Cannot start {n_workers} worker processes here: {error.__cause__ or error}. Guard "
            "scripts with \"if __name__ == '__main__':\", since workers import them. Otherwise "
            "close other programs if memory is short, or lower cluster.n_workers, and run again."
        ) from error


@contextmanager
def _blocking_signals() -> Iterator[None]:
    """Block SIGINT and SIGHUP in threads that start in this block, and in their child processes.

    A terminal sends them to all processes; only this one reacts, and ends the others. A signal that
    arrives within the block is handled at its end.
    """
    # Otherwise Python would start the tracker later and unblock the signals in the thread that does
    # so.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _client(scheduler: str) -> Iterator[Any]:
    """Connect to the scheduler at an address, or to the one that wrote a file."""
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    class ClosingClient(Client):
        """A client that is closed if it cannot start; Dask closes it only for some errors.

        A client that is not closed remains Dask's default client until it is garbage collected,
        and then changes Dask's configuration.
        """

        def start(self, **kwargs: Any) -> None:
            try:
                super().start(**kwargs)
            except BaseException:
                self.close()
                raise

    address = _address_in(Path(scheduler)) if is_scheduler_file(scheduler) else scheduler
    try:
        # `preflight` compares versions and names the remedy, so Dask's warning is redundant.
        with ignoring_warnings(VersionMismatchWarning):
            client = ClosingClient(address, timeout=WAIT_SECONDS / 2)
    except BaseException as error:
        if reason := _no_client(address, error):
            raise reason from error
        raise
    with client:
        yield client


def _no_client(address: str, error: BaseException) -> BigfsError | None:
    """Return the error to raise for a failed connection; None if the cause is not known."""
    if isinstance(error, TypeError) and "ssl_context" in str(error):
        return InputError(
            f"{address} is encrypted, but Dask has no certificates here: set "
            "distributed.comm.tls.ca-file, .client.cert and .client.key in ~/.config/dask, or "
            "environment variables such as DASK_DISTRIBUTED__COMM__TLS__CA_FILE."
        )
    if "TLS certificate" in str(error):
        return InputError(
            f"{address} and this client do not trust each other's certificates ({error}). Give "
            "both the same distributed.comm.tls.ca-file and certificates signed by it."
        )
    if isinstance(error, (OSError, TimeoutError, ValueError)):
        return ClusterError(
            f"No Dask scheduler answers at {address} ({type(error).__name__}: {error}). Check "
            "the address and that the scheduler is running, then run again."
        )
    return None


def _address_in(path: Path) -> str:
    """Return the address in a scheduler file; wait if the file is not complete yet."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return str(json.loads(path.read_text())["address"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{path} does not name a Dask scheduler ({type(error).__name__}: {error}) "
                    f"after {WAIT_SECONDS:.0f} s. Start one with 'dask scheduler --scheduler-file "
                    f"{path}' on storage that this process sees, then run again."
                ) from error
        time.sleep(0.2)


@contextmanager
def quiet_end() -> Iterator[None]:
    """Show Dask's warnings as bigfs's own within the block; restore its logging at the end.

    The block may call `turn_off_logging`.
    """
    import distributed  # noqa: F401  (sets up its logging)

    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    loggers = [logging.getLogger(name) for name in _DASK_LOGGERS]
    former = [(logger, list(logger.handlers), logger.propagate) for logger in loggers]
    for logger in loggers if logging.getLogger("bigfs").handlers else ():
        # Within the block, Dask's messages have the format of bigfs: time and message, or JSON.
        logger.handlers[:], logger.propagate = [_ForwardingHandler(logging.WARNING)], False
    try:
        yield
    finally:
        for logger, handlers, propagate in former:
            logger.handlers[:], logger.propagate = handlers, propagate
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class _ForwardingHandler(logging.Handler):
    """Handler that passes records to bigfs's handlers, without tracebacks from within Dask."""

    def emit(self, record: logging.LogRecord) -> None:
        record = copy.copy(record)
        record.exc_info = record.exc_text = record.stack_info = None
        for handler in logging.getLogger("bigfs").handlers:
            handler.handle(record)


def turn_off_logging() -> None:
    """Turn off Dask's logging in this process, except for critical messages."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


# Text near the start of Dask's performance reports, by which they are recognized.
REPORT_TITLE = b"<title>Dask Performance Report</title>"


@contextmanager
def reporting_performance(file: Path | None) -> Iterator[None]:
    """Save Dask's performance report of the block to a file; None: do nothing.

    The report is also saved if the block fails, but not if it is interrupted. The file appears
    under its name when it is complete.

    Raises
    ------
    InputError
        If there is no cluster, or bokeh is missing; raised before the block runs.
    """
    if file is None:
        yield
        return
    client = active_client()
    if client is None:
        raise InputError(
            "The performance report covers Dask's workers, and this run has none. Set cluster in "
            "the pipeline or give --scheduler, or omit --performance-report."
        )
    if not client.run_on_scheduler(_has_bokeh):
        raise InputError(
            "The performance report needs bokeh where the scheduler runs: "
            "pip install 'bigfs[performance]' there."
        )
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
    """Write the report; log a warning if that fails, since the run itself has finished."""
    try:
        report.__exit__(None, None, None)
        partial.replace(file)
    except Exception as error:
        partial.unlink(missing_ok=True)
        logger.warning(
            "The performance report %s was not saved: %s: %s", file, type(error).__name__, error
        )


def _has_bokeh() -> bool:
    try:
        import bokeh  # noqa: F401
    except ImportError:
        return False
    return True


_NO_ANSWER = ("Unable to contact", "timed out", "connect failure", "Connection refused")


def slurm_cluster(cluster: Any, memory_limit: int) -> Any:
    """Start a scheduler in this process and submit one job for each worker.

    Parameters
    ----------
    cluster : ClusterConfig
        Configuration of kind ``slurm``.
    memory_limit : int
        Memory limit of each worker; its job requests additional memory for the worker's nanny.

    Raises
    ------
    InputError
        If dask-jobqueue or Slurm's commands are not installed, the network interface does not
        exist, or Slurm rejects the jobs.
    ClusterError
        If Slurm does not answer.
    """
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise InputError(
            "cluster.kind 'slurm' needs the extra 'slurm': pip install 'bigfs[slurm]'."
        ) from None
    import dask.config
    from distributed.security import Security
    from distributed.utils import get_ip_interface

    if shutil.which("sbatch") is None:
        raise InputError(
            "cluster.kind 'slurm' submits jobs with 'sbatch', which is not here. Run bigfs on a "
            "machine that can submit jobs, or use another kind of cluster."
        )
    try:
        get_ip_interface(cluster.interface)
    except ValueError as error:
        raise InputError(f"cluster.interface: {error}.") from error
    # Encryption follows Dask's own configuration.
    encrypted = dask.config.get("distributed.comm.require-encryption", False)
    same = "queue", "account", "walltime", "interface", "local_directory", "log_directory"
    more = "job_script_prologue", "job_extra_directives"
    started = SLURMCluster(
        **cluster.model_dump(include={*same, *more}),
        cores=cluster.threads_per_worker,
        processes=1,
        memory=str(memory_limit),
        job_mem=f"{-(-job_bytes(memory_limit) // MIB)}M",
        job_name="bigfs-worker",
        # Workers end themselves if the run has gone, and do not open a dashboard.
        death_timeout=60,
        worker_extra_args=["--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
        scheduler_options={"dashboard_address": "127.0.0.1:0", "dashboard": False},
        protocol="tls://" if encrypted else "tcp://",
        security=Security() if encrypted else None,
    )
    try:
        _check_job(started.job_script())
        started.scale(jobs=cluster.n_workers)
    except BaseException:
        started.close()
        raise
    return started


def _check_job(script: str) -> None:
    """Have Slurm validate a worker's job, since a later rejection would only be logged."""
    completed = subprocess.run(
        ["sbatch", "--test-only"], input=script, capture_output=True, text=True
    )
    if completed.returncode == 0:
        return
    answer = " ".join(completed.stderr.replace("sbatch: error: ", "").split())
    if any(words in answer for words in _NO_ANSWER):
        raise ClusterError(f"Slurm does not answer ({answer}). Run again when it does.")
    raise InputError(
        f"Slurm rejects the workers' jobs ({answer}). Change queue, account, walltime or "
        "job_extra_directives in 'cluster', or memory_limit; 'sinfo' shows the partitions."
    )
