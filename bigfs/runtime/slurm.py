"""Workers as jobs of Slurm, submitted and ended by the run itself (extra ``slurm``)."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from bigfs.core.errors import ClusterError, InputError
from bigfs.core.memory import job_bytes
from bigfs.core.units import MIB

_AWAY = ("Unable to contact", "timed out", "connect failure", "Connection refused")


def slurm_cluster(cluster: Any, memory_limit: int) -> Any:
    """Start a scheduler in this process and submit one job for each worker.

    Parameters
    ----------
    cluster : ClusterConfig
        Of kind ``slurm``.
    memory_limit : int
        Limit of each worker; its job gets what the worker's nanny needs on top.

    Raises
    ------
    InputError
        If dask-jobqueue or Slurm's commands are not installed, or the interface is not there.
    ClusterError
        If Slurm does not take the jobs.
    """
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise InputError(
            "cluster.kind 'slurm' needs the extra 'slurm': pip install 'bigfs[slurm]'."
        ) from None
    from distributed.utils import get_ip_interface

    if shutil.which("sbatch") is None:
        raise InputError(
            "cluster.kind 'slurm' submits jobs by 'sbatch', which is not here. Run bigfs on a "
            "machine that can submit jobs, or use another kind of cluster."
        )
    try:
        get_ip_interface(cluster.interface)
    except ValueError as error:
        raise InputError(f"cluster.interface: {error}.") from error
    protocol, security = _tls()
    started = SLURMCluster(
        cores=cluster.threads_per_worker,
        processes=1,
        memory=str(memory_limit),
        job_mem=f"{-(-job_bytes(memory_limit) // MIB)}M",
        queue=cluster.queue,
        account=cluster.account,
        walltime=cluster.walltime,
        interface=cluster.interface,
        local_directory=cluster.local_directory,
        log_directory=cluster.log_directory,
        job_name="bigfs-worker",
        job_script_prologue=list(cluster.job_script_prologue),
        job_extra_directives=list(cluster.job_extra_directives),
        # Workers of a run that is gone end themselves, and none opens a dashboard.
        death_timeout=60,
        worker_extra_args=["--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
        scheduler_options={"dashboard_address": "127.0.0.1:0", "dashboard": False},
        protocol=protocol,
        security=security,
    )
    try:
        _check_job(started.job_script())
        started.scale(jobs=cluster.n_workers)
    except BaseException:
        started.close()
        raise
    return started


def _check_job(script: str) -> None:
    """Test a worker's job with Slurm first: later on a refusal would only be logged."""
    completed = subprocess.run(
        ["sbatch", "--test-only"], input=script, capture_output=True, text=True
    )
    if completed.returncode == 0:
        return
    answer = " ".join(completed.stderr.replace("sbatch: error: ", "").split())
    if any(words in answer for words in _AWAY):
        raise ClusterError(f"Slurm does not answer ({answer}). Run again when it does.")
    raise InputError(
        f"Slurm does not take the workers' jobs ({answer}). Change queue, account, walltime or "
        "job_extra_directives in 'cluster', or memory_limit; 'sinfo' shows what there is."
    )


def _tls() -> tuple[str, Any]:
    """Return the protocol, and what it needs, that Dask's own configuration asks for."""
    import dask.config
    from distributed.security import Security

    if not dask.config.get("distributed.comm.require-encryption", False):
        return "tcp://", None
    return "tls://", Security()
