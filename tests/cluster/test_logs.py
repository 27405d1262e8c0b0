"""Logs for batch systems: JSON lines, and Dask's report of its workers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

from bigfs import run
from bigfs.core.errors import ClusterError, InputError
from bigfs.runtime.workers import workers_of
from tests.cluster._jobs import write_config
from tests.cluster._processes import scheduler


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:iris"},
        "method": "mcfs",
        "n_features_to_select": 2,
        "mcfs": {"n_clusters": 3},
        **changes,
    }


def _lines(message: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in message.splitlines()]


@pytest.mark.cluster
def test_json_lines_of_a_run_on_workers_and_its_report(tmp_path: Path) -> None:
    pytest.importorskip("bokeh", reason="the performance report needs bokeh")
    path = write_config(tmp_path, _config(tmp_path, cluster={"kind": "local", "n_workers": 1}))
    options = ["--log-format", "json", "--performance-report", str(tmp_path / "dask.html")]
    command = [sys.executable, "-m", "bigfs.cli", "run", str(path), *options]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    lines = _lines(completed.stderr)
    begun = [line["stage"] for line in lines if line["event"] == "begin"]
    assert begun == ["data", "graph", "spectral", "result", "curves"]
    done = [line for line in lines if line["event"] == "done"]
    assert {line["stage"] for line in done} == set(begun)
    assert all(line["done"] == line["total"] or line["total"] is None for line in done)
    assert "rank  feature" in completed.stdout, "the result is for people, on stdout"
    assert "Dask Performance Report" in (tmp_path / "dask.html").read_text()
    again = subprocess.run(
        [*command[:5], "--log-format", "json", "--set", "n_features_to_select=9"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    [line] = _lines(again.stderr)
    assert line.items() >= {"level": "error", "event": "error", "exit_code": 2}.items()


@pytest.mark.cluster
def test_a_scheduler_that_is_lost_between_tasks_is_a_failure_of_the_cluster(tmp_path: Path) -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        with scheduler(tmp_path) as file:
            client = Client(scheduler_file=str(file), set_as_default=False)
        deadline = time.monotonic() + 60
        with pytest.raises(ClusterError, match="The connection to the scheduler was lost"):
            while time.monotonic() < deadline:
                workers_of(client)
                time.sleep(0.2)
        client.close()


def test_a_report_without_a_cluster_is_refused(tmp_path: Path, bare: None) -> None:
    with pytest.raises(InputError, match="this run has none. Set cluster"):
        run(_config(tmp_path), performance_report=str(tmp_path / "dask.html"))
    assert not (tmp_path / "run").exists()


@pytest.mark.cluster
def test_a_report_without_bokeh_is_refused(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, bare: None
) -> None:
    # The scheduler of the tests' cluster is in this process.
    with pytest.raises(InputError, match="there is no folder .*nowhere"):
        run(_config(tmp_path), performance_report=str(tmp_path / "nowhere" / "dask.html"))
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(InputError, match="needs bokeh where the scheduler runs: pip install"):
        run(_config(tmp_path), performance_report=str(tmp_path / "dask.html"))
    assert not (tmp_path / "run").exists()
