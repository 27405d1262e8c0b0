"""Five nights of a series by the command line, with faults: codes, logs, metrics, bits."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigfs
from bigfs.core import errors
from bigfs.store.location import as_location
from tests._s3 import Proxy, environment

pytestmark = pytest.mark.slow

CENTERS = np.random.default_rng(9).normal(size=(5, 12))
AGAIN = (errors.EXIT_CLUSTER_OR_STORAGE, errors.EXIT_LOCKED, errors.EXIT_INTERRUPTED)
# What happens while the graph is built, and rows that come before the night.
FAULTS = ("", "", "kill", "storage", "time")
NEW_ROWS = (0, 0, 20, 1, 15)


def _rows(n: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    X = CENTERS[generator.integers(5, size=n)] + generator.normal(size=(n, 12))
    return X.astype(np.float32)


def _settings(root: str, day: int, metrics: Path | None) -> dict[str, Any]:
    return {
        "run": f"{root}/n-{{date}}", "date": f"2026-01-{day:02}",
        "input": {"uri": f"{root}/X.zarr"},
        "method": "mcfs", "n_features_to_select": 4, "mcfs": {"n_clusters": 4}, "update": "auto",
        "keep": 14, "output": {"metrics": None if metrics is None else str(metrics)},
    }  # fmt: skip


def _start(pipeline: Path, fault: str, proxy: Proxy | None) -> tuple[int, list[dict[str, Any]]]:
    """Run the command once, with a fault in its graph stage; return its code and its log."""
    limits = (resource.RLIMIT_FSIZE, (16_000, 16_000))
    on_disk = fault == "storage" and proxy is None
    # -B: a limited process would leave compiled modules that end early.
    command = [sys.executable, "-B", "-m", "bigfs", "run", str(pipeline), "--log-format", "json"]
    log = []
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "BIGFS_STORAGE_RETRY_SECONDS": "1"},
        preexec_fn=(lambda: resource.setrlimit(*limits)) if on_disk else None,
    ) as job:  # fmt: skip
        assert job.stderr is not None
        for line in job.stderr:
            log.append(json.loads(line))
            if (log[-1].get("event"), log[-1].get("stage")) != ("begin", "graph"):
                continue
            if fault in ("kill", "time"):
                job.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            elif fault == "storage" and proxy is not None:
                proxy.is_gone = True
    if proxy is not None:
        proxy.is_gone = False
    return job.returncode, log


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_five_nights(
    where: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, root = None, str(tmp_path / "lab")
    if where == "bucket":
        root = f"{request.getfixturevalue('bucket')}/lab"
        proxy = Proxy(request.getfixturevalue("s3_endpoint"))
        request.addfinalizer(lambda: proxy.__exit__())
        for name, value in environment(proxy.__enter__().endpoint).items():
            monkeypatch.setenv(name, value)
    calm, metrics = str(tmp_path / "calm"), tmp_path / "bigfs.prom"
    for place in (root, calm):
        bigfs.ingest(_rows(600, 0), f"{place}/X.zarr", rows=100)
    for day, (fault, n_new) in enumerate(zip(FAULTS, NEW_ROWS, strict=True), 1):
        for place in (root, calm) if n_new else ():
            bigfs.ingest(_rows(n_new, day), f"{place}/X.zarr", append=True)
        pipeline, codes = tmp_path / "night.json", []
        pipeline.write_text(json.dumps(_settings(root, day, metrics)))
        while not codes or codes[-1] in (*AGAIN, -signal.SIGKILL):
            code, log = _start(pipeline, "" if codes else fault, proxy)
            codes.append(code)
            assert len(codes) < 4, log
        expected = bigfs.run(_settings(calm, day, None))
        result = bigfs.open_result(f"{root}/n-2026-01-{day:02}")
        print(where, day, fault or "-", codes, [entry["message"] for entry in log][-1])
        assert codes == {"": [0], "kill": [-9, 0], "storage": [4, 0], "time": [130, 0]}[fault]
        np.testing.assert_array_equal(result.ranking, expected.ranking)
        np.testing.assert_array_equal(result.scores, expected.scores)
        lines = metrics.read_text().splitlines()
        assert any(x.startswith("bigfs_exit_code{") and x.endswith(" 0") for x in lines)
        assert f'bigfs_rows{{run="n-{{date}}"}} {600 + sum(NEW_ROWS[:day])}.0' in lines
        if day == 2:
            assert any("no new rows since n-2026-01-01" in entry["message"] for entry in log)
    latest = as_location(f"{root}/n-latest")
    assert latest.exists()
