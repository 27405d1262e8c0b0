"""The command that tries again, and the workflows that use it, on a program of every exit code."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy.test_codes import DEPLOY, TABLE

WORKFLOWS = DEPLOY / "workflows"


def _place(folder: Path, *codes: int, seconds: float = 0.0) -> dict[str, str]:
    """Make a folder with the files, and a program that ends with one code after the other."""
    shutil.copytree(DEPLOY, folder / "deploy")
    (folder / "pipelines").mkdir()
    for name in ("pipelines/mcfs.yaml", "pipelines/nightly.yaml", "cells.zarr"):
        (folder / name).touch()
    (folder / "runs" / "cells").mkdir(parents=True)
    (folder / "runs" / "cells" / "features.csv").write_text("rank\n")
    program = folder / "bigfs"
    program.write_text(
        f'#!/bin/bash\necho "$@" >>started\ncodes=({" ".join(map(str, codes))})\n'
        f"trap 'exit 130' TERM\nsleep {seconds} & wait $!\n"
        "exit ${codes[$(wc -l <started)-1]}\n"
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "BIGFS_PAUSE": "0"}


def _started(folder: Path) -> list[str]:
    return (folder / "started").read_text().splitlines()


def test_it_is_tried_again_as_the_table_says(tmp_path: Path) -> None:
    for code, row in TABLE.items():
        folder = tmp_path / str(code)
        environment = _place(folder, code, 0)
        done = subprocess.run(["deploy/again.sh", "a b.yaml"], cwd=folder, env=environment)
        assert done.returncode == (0 if row[0] == "again" else code)
        assert _started(folder) == ["run a b.yaml"] * (2 if row[0] == "again" else 1)
    environment = _place(tmp_path / "x", *[4] * 9)
    assert subprocess.run(["deploy/again.sh"], cwd=tmp_path / "x", env=environment).returncode == 4
    assert len(_started(tmp_path / "x")) == 6


def test_it_stops_when_it_is_told_to(tmp_path: Path) -> None:
    environment = _place(tmp_path / "x", 0, seconds=20)
    with subprocess.Popen(["deploy/again.sh"], cwd=tmp_path / "x", env=environment) as job:
        while not (tmp_path / "x" / "started").exists():
            time.sleep(0.02)
        time.sleep(0.3)
        job.send_signal(signal.SIGTERM)
    assert job.returncode == 130
    assert len(_started(tmp_path / "x")) == 1


@pytest.mark.skipif(shutil.which("snakemake") is None, reason="Snakemake is not installed")
def test_snakemake(tmp_path: Path) -> None:
    environment = _place(tmp_path / "x", 4, 130, 0)
    command = ["snakemake", "--cores", "1", "--snakefile", "deploy/workflows/Snakefile"]
    done = subprocess.run(command, cwd=tmp_path / "x", env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    expected = "run pipelines/mcfs.yaml --set input.uri=cells.zarr --set run=runs/cells"
    assert _started(tmp_path / "x") == [expected] * 3
    assert (tmp_path / "x" / "selected.csv").read_text() == "rank\n"


@pytest.mark.skipif(importlib.util.find_spec("prefect") is None, reason="needs Prefect")
@pytest.mark.parametrize(("codes", "n_starts"), [((4, 0), 2), ((2, 0), 1)])
def test_prefect(tmp_path: Path, codes: tuple[int, ...], n_starts: int) -> None:
    environment = _place(tmp_path / "x", *codes) | {
        "PREFECT_HOME": str(tmp_path / "home"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }
    code = "import sys; sys.path.append('deploy/workflows'); import prefect_nightly as flow; "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}flow.night()"], cwd=tmp_path / "x", env=environment
    )
    assert (done.returncode == 0) == (codes[0] == 4)
    assert len(_started(tmp_path / "x")) == n_starts


@pytest.mark.skipif(importlib.util.find_spec("airflow") is None, reason="needs Airflow")
def test_airflow(tmp_path: Path) -> None:
    from airflow.models import DagBag

    bag = DagBag(str(WORKFLOWS / "airflow_nightly.py"), include_examples=False)
    assert bag.import_errors == {} and [*bag.dags] == ["bigfs_nightly"]
    task = bag.dags["bigfs_nightly"].get_task("select")
    assert f"'{Path.home() / 'bigfs'}'" in task.cwd  # Airflow expands no ~
