"""One table of exit codes: what sbatch, the unit and the CronJob do is what it says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from bigfs.core import errors

DEPLOY = Path(__file__).parents[2] / "deploy"
CODES = {value for name, value in vars(errors).items() if name.startswith("EXIT_")} | {1}
_TEXT = (DEPLOY / "README.md").read_text()
# By code: what Slurm, systemd and Kubernetes do.
TABLE = {
    int(cells[1]): [cell.split()[0].rstrip(",") for cell in cells[3:6]]
    for cells in (
        [cell.strip() for cell in line.split("|")] for line in _TEXT.splitlines()
        if re.match(r"\| \d+ \|", line)
    )
}  # fmt: skip


def test_the_table_has_every_code() -> None:
    assert TABLE.keys() == CODES
    assert {word for row in TABLE.values() for word in row} == {"ends", "stops", "again"}
    assert all(len(set(row)) == 1 for row in TABLE.values())  # one policy


def test_systemd_does_what_the_table_says() -> None:
    text = (DEPLOY / "systemd" / "bigfs-nightly.service").read_text()
    (prevented,) = re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
    stops = {int(code) for code in prevented.split()}
    assert stops == {code for code, row in TABLE.items() if row[1] == "stops"}
    assert "\nRestart=on-failure\n" in text  # which leaves 0 alone


def test_kubernetes_does_what_the_table_says() -> None:
    manifests = yaml.safe_load_all((DEPLOY / "kubernetes" / "nightly.yaml").read_text())
    (cron,) = [manifest for manifest in manifests if manifest["kind"] == "CronJob"]
    rule, _ = cron["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["operator"]) == ("FailJob", "In")
    assert set(rule["onExitCodes"]["values"]) == {
        code for code, row in TABLE.items() if row[2] == "stops"
    }


def _requeued(
    folder: Path, script: str, code: int, *, signalled: bool, restarts: int = 0, before: str = ""
) -> bool:
    """Run a batch script on programs that end with a code, and say whether it asks to be queued."""
    programs = {
        "bigfs": f"#!/bin/bash\nprintf '%s\\n' \"$@\" >arguments\ntrap 'exit {code}' TERM\n"
        + (
            "/bin/sleep 0.4; kill -USR1 $PPID\nfor _ in {1..100}; do sleep 0.05; done\n"
            if signalled
            else ""
        )
        + f"{before}exit {code}\n",
        "scontrol": "#!/bin/bash\n[[ $1 == requeue ]] && touch requeued\n",
        "sleep": "#!/bin/bash\n[[ $1 == 120 ]] || /bin/sleep $1\n",
        "dask": "#!/bin/bash\n",
        "srun": "#!/bin/bash\n",
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    job = {"JOB_ID": "7", "JOB_NUM_NODES": "1", "NTASKS": "2", "CPUS_PER_TASK": "1"}
    environment = {f"SLURM_{name}": value for name, value in job.items()} | {
        "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_RESTART_COUNT": str(restarts),
        "SLURM_ARRAY_TASK_ID": "12",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", DEPLOY / "slurm" / script, "my.yaml", "--set", "run=a b-$SLURM_ARRAY_TASK_ID"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert f"bigfs ended with exit code {code}" in done.stdout
    assert (folder / "arguments").read_text().split("\n")[1:4] == ["my.yaml", "--set", "run=a b-12"]
    asked = (folder / "requeued").exists()
    (folder / "requeued").unlink(missing_ok=True)
    return asked


@pytest.mark.parametrize("script", ["bigfs.sbatch", "jobqueue.sbatch"])
def test_slurm_does_what_the_table_says(tmp_path: Path, script: str) -> None:
    for code, row in TABLE.items():
        # The signal two minutes before the end of the time came while the run was closing.
        assert _requeued(tmp_path, script, code, signalled=True) == (row[0] == "again"), code
        without = row[0] == "again" and code != errors.EXIT_INTERRUPTED
        assert _requeued(tmp_path, script, code, signalled=False) == without, code
    assert not _requeued(tmp_path, script, 4, signalled=True, restarts=5)
    # Slurm ends the job, by the user's wish or to queue it again by itself.
    ended = "/bin/sleep 0.4; kill -TERM $PPID; /bin/sleep 0.1\n"
    assert not _requeued(tmp_path, script, 4, signalled=False, before=ended)
