"""Workers as jobs of Slurm, submitted and ended by the run itself (extra ``slurm``)."""

from __future__ import annotations

import shutil
from typing import Any

from bigfs.core.errors import ClusterError, InputError
from bigfs.core.memory import job_bytes
from bigfs.core.units import MIB


def slurm_cluster(cluster: Any, memory_limit_bytes: int) -> Any:
    """Start a scheduler in this process and submit one job for each worker.

    Parameters
    ----------
    cluster : ClusterConfig
        Of kind ``slurm``.
    memory_limit_bytes : int
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
    if shutil.which("sbatch") is None:
        raise InputError(
            "cluster.kind 'slurm' submits jobs by 'sbatch', which is not here. Run bigfs on a "
            "machine that can submit jobs, or use another kind of cluster."
        )
    protocol, security = _tls()
    try:
        started = SLURMCluster(
            cores=cluster.threads_per_worker,
            processes=1,
            memory=str(memory_limit_bytes),
            job_mem=f"{-(-job_bytes(memory_limit_bytes) // MIB)}M",
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
    except ValueError as error:
        raise InputError(
            f"cluster.interface: {error}. 'ip -brief address' lists those of this machine."
        ) from error
    try:
        started.scale(jobs=cluster.n_workers)
    except RuntimeError as error:
        started.close()
        raise ClusterError(f"Slurm does not take the workers' jobs: {error}.") from error
    return started


def _tls() -> tuple[str, Any]:
    """Return the protocol, and what it needs, that Dask's own configuration asks for."""
    import dask.config
    from distributed.security import Security

    if not dask.config.get("distributed.comm.require-encryption", False):
        return "tcp://", None
    return "tls://", Security()
