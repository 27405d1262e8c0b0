"""The scripts of deploy/slurm on a Slurm of one node, started here from Debian's packages."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bigfs.core.errors import ClusterError, InputError
from bigfs.core.memory import job_bytes
from bigfs.core.units import GIB, MIB, parse_bytes
from bigfs.pipeline.run import run
from bigfs.results.result import Result, open_result

REPO = Path(__file__).parents[2]
SCRIPTS = REPO / "deploy" / "slurm"
SERVERS = f"{os.environ['PATH']}:/usr/sbin:/sbin"
needs_slurm = pytest.mark.skipif(
    not all(shutil.which(name, path=SERVERS) for name in ("slurmctld", "slurmd", "munged")),
    reason="Slurm is not here (Debian: apt-get install slurm-wlm munge)",
)


class Slurm:
    """Commands of a running Slurm, with this bigfs on the path."""

    def __init__(self, folder: Path) -> None:
        here = Path(sys.executable).parent
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{here}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPO),
            "OMP_NUM_THREADS": "1",
            "BIGFS_MEMORY_LIMIT": "2GiB",
        }

    def __call__(self, *command: str | Path, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm says of a job."""
        (actual,) = self.jobs(number)
        return actual

    def jobs(self, *number: str) -> list[dict[str, str]]:
        """Return what Slurm says of a job, or of all."""
        lines = self("scontrol", "--oneliner", "show", "job", *number).splitlines()
        return [dict(w.split("=", 1) for w in line.split() if "=" in w) for line in lines]

    def start_again(self, number: str, log: Path) -> None:
        """Wait until a job is back in the queue, and start it without the two minutes' wait."""
        self.wait(number, "PENDING", log)
        # In the second in which its credential was revoked it would not start.
        time.sleep(2)
        self("scontrol", "update", f"jobid={number}", "StartTime=now")

    def wait(self, number: str, state: str, log: Path) -> dict[str, str]:
        """Wait until a job is in a state."""
        deadline = time.monotonic() + 120
        while (job := self.job(number))["JobState"] != state:
            log_text = log.read_text() if log.exists() else ""
            assert time.monotonic() < deadline, f"{job}\n{log_text}"
            assert job["JobState"] not in {"FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}, log_text
            time.sleep(0.2)
        return job


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    # Paths of Unix sockets are short.
    folder = tmp_path_factory.mktemp("slurm")
    script = REPO / "tests" / "deploy" / "one_node_slurm.sh"
    started = subprocess.run(
        [script, "start", folder, "4", "16000"], capture_output=True, text=True, timeout=120
    )
    if started.returncode != 0:
        pytest.skip(f"Slurm is installed but does not start here: {started.stderr}")
    try:
        yield Slurm(folder)
    finally:
        subprocess.run([script, "stop", folder], capture_output=True, timeout=60, check=True)


def _wait_for(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def _config(**changes: Any) -> dict[str, Any]:
    return {
        "run": "run",
        "input": {"uri": "sklearn:digits"},
        "n_features_to_select": 20,
        "mcfs": {"n_clusters": 10},
        "memory_limit": "2 GiB",
        **changes,
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(_config(run=str(tmp_path_factory.mktemp("threads") / "run")))


def _assert_same(folder: Path, expected: Result) -> Result:
    result = open_result(folder / "run")
    assert result.ranking.tolist() == expected.ranking.tolist()
    assert result.scores.tobytes() == expected.scores.tobytes()
    assert not (folder / "run" / "lease.json").exists()
    assert not (folder / "run" / "attempts").exists()
    return result


@needs_slurm
@pytest.mark.cluster
def test_a_job_that_is_requeued_goes_on_and_gives_the_same_ranking(
    slurm: Slurm, tmp_path: Path, expected: Result
) -> None:
    """Scheduler, worker and run in one allocation, taken away in the middle of a stage."""
    evaluate = {"labels": "sklearn:digits", "n_repetitions": 8, "n_init": 10}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(_config(evaluate=evaluate)))
    smaller = ("--ntasks=2", f"--mem-per-cpu={job_bytes(2 * GIB) // MIB}M")
    script = SCRIPTS / "bigfs.sbatch"
    number = slurm("sbatch", "--parsable", *smaller, script, "my.yaml", cwd=tmp_path)
    log = tmp_path / f"bigfs-{number}.log"
    manifest = tmp_path / "run" / "manifest.json"
    _wait_for(
        lambda: manifest.exists() and "result" in json.loads(manifest.read_text())["stages"], log
    )
    slurm("scontrol", "requeue", number)
    slurm.wait(number, "PENDING", log)
    before = json.loads(manifest.read_text())["stages"]
    assert "evaluation" not in before
    assert not (tmp_path / "run" / "lease.json").exists()
    log_text = log.read_text()
    assert "bigfs: interrupted; finished stages are kept" in log_text
    assert "bigfs ended with exit code 130" in log_text
    slurm.start_again(number, log)
    job = slurm.wait(number, "COMPLETED", log)
    assert job["Restarts"] == "1"
    result = _assert_same(tmp_path, expected)
    assert {name: result.stages[name]["attempt"] for name in before} == {
        name: record["attempt"] for name, record in before.items()
    }
    assert not [*tmp_path.glob("scheduler-*.json")]


@needs_slurm
@pytest.mark.cluster
def test_a_run_that_submits_its_workers_gives_the_same_ranking(
    slurm: Slurm, tmp_path: Path, expected: Result
) -> None:
    cluster = {
        "kind": "slurm",
        "n_workers": 2,
        "interface": "lo",
        "walltime": "00:10:00",
        "local_directory": str(tmp_path),
        "log_directory": str(tmp_path / "logs"),
        "job_script_prologue": ["export BIGFS_PROLOGUE=seen"],
        "job_extra_directives": ["--comment=ours"],
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(_config(cluster=cluster)))
    script = SCRIPTS / "jobqueue.sbatch"
    number = slurm("sbatch", "--parsable", "--mem=1G", script, "my.yaml", cwd=tmp_path)
    log = tmp_path / f"bigfs-{number}.log"
    manifest = tmp_path / "run" / "manifest.json"
    # The workers are there once the run says that it is running.
    _wait_for(lambda: manifest.exists() and '"running"' in manifest.read_text(), log)
    # What Slurm sends to the script two minutes before the end of a job's time.
    slurm("scancel", "--batch", "--signal=USR1", number)
    slurm.start_again(number, log)
    assert "bigfs ended with exit code 130" in log.read_text()
    assert slurm.wait(number, "COMPLETED", log)["Restarts"] == "1"
    _assert_same(tmp_path, expected)
    workers = [job for job in slurm.jobs() if job["JobName"] == "bigfs-worker"]
    assert len(workers) == 4
    for worker in workers:
        job = slurm.wait(worker["JobId"], "CANCELLED", log)
        assert (job["JobName"], job["Comment"], job["TimeLimit"]) == (
            "bigfs-worker",
            "ours",
            "00:10:00",
        )
        assert job["MinMemoryNode"] == f"{job_bytes(2 * GIB) // MIB}M"


@needs_slurm
@pytest.mark.cluster
def test_the_nightly_entry_submits_the_night(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "bigfs").symlink_to(REPO)
    (line,) = re.findall(r"^0 1 \* \* \* (.+)$", (SCRIPTS / "scrontab").read_text(), re.MULTILINE)
    # Held, so that this folder stays as it is: what it would run is tested above.
    line = line.replace("sbatch ", f"sbatch --hold --chdir={tmp_path} ", 1)
    message = slurm("env", f"HOME={tmp_path}", "bash", "-c", line)
    job = slurm.job(message.split()[-1])
    assert (job["JobName"], job["JobState"]) == ("bigfs-nightly", "PENDING")
    today = datetime.date.today().isoformat()
    assert job["Command"].endswith("deploy/slurm/bigfs.sbatch")
    held = slurm("scontrol", "--oneliner", "show", "job", message.split()[-1])
    assert f"pipelines/nightly.yaml --set date={today}" in held
    assert "Dependency=singleton" in held
    slurm("scancel", message.split()[-1])


@needs_slurm
@pytest.mark.cluster
def test_jobs_that_slurm_would_not_take_are_refused_at_once(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    config = _config(run=str(tmp_path / "run"), cluster={"kind": "slurm", "interface": "lo"})
    config["cluster"]["queue"] = "nope"
    with pytest.raises(InputError, match="rejects the workers' jobs .*partition.*queue"):
        run(config)
    gone = tmp_path / "gone.conf"
    lines = Path(slurm.environment["SLURM_CONF"]).read_text()
    gone.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1\nMessageTimeout=2", lines))
    monkeypatch.setenv("SLURM_CONF", str(gone))
    with pytest.raises(ClusterError, match="Slurm does not answer .*Unable to contact"):
        run(config)
    assert not (tmp_path / "run").exists()


def test_what_slurm_workers_need_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"kind": "slurm", "interface": "nope0"}
    config = _config(run=str(tmp_path / "run"), cluster=cluster)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="submits jobs with 'sbatch', which is not here"):
        run(config)
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    with pytest.raises(InputError, match="cluster.interface: .*'nope0' is not a valid network"):
        run(config)
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(InputError, match=r"needs the extra 'slurm': pip install 'bigfs\[slurm\]'"):
        run(config)
    assert not (tmp_path / "run").exists()


def _options(script: Path) -> dict[str, str]:
    lines = re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", script.read_text(), flags=re.MULTILINE)
    return dict(lines)


def test_the_scripts_ask_for_what_a_worker_may_have() -> None:
    script = SCRIPTS / "bigfs.sbatch"
    limit = re.search(r"BIGFS_MEMORY_LIMIT:-(\w+)}", script.read_text())
    assert limit is not None
    asked = parse_bytes(_options(script)["mem-per-cpu"].replace("M", "MiB"))
    assert asked == job_bytes(parse_bytes(limit.group(1)))


@pytest.mark.parametrize("name", ["bigfs.sbatch", "jobqueue.sbatch"])
def test_the_scripts_are_requeued_and_hear_of_the_end_of_their_time(name: str) -> None:
    options = _options(SCRIPTS / name)
    assert "requeue" in options
    assert options["signal"] == "B:USR1@120"
    assert options["open-mode"] == "append"
    subprocess.run(["bash", "-n", SCRIPTS / name], check=True, timeout=200)
