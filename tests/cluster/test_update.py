"""Updates on workers and beside kills: the bits of a chain do not depend on them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigfs
from bigfs.runtime.connection import local_cluster
from bigfs.stages.spectral import SpectralStrategy

N, NEW = 9_000, 180  # more than one cell of the search for new rows, and than the sample of recall
# A process that kills itself before it writes, or moves, the n-th file with a text in its path.
_KILLED = """
import os, signal, sys
import bigfs
text, number, command, *given = sys.argv[1:]
seen = 0
def count(event, details):
    global seen
    written = event == "open" and isinstance(details[1], str) and set(details[1]) & set("wxa+")
    place = details[0] if written else details[1] if event == "os.rename" else ""
    is_one = text in str(place)
    seen += is_one
    if is_one and seen == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
if command == "run":
    bigfs.run(given[0])
else:
    bigfs.ingest(*given, append=True)
"""


def _killed(text: str, number: int, *command: str) -> None:
    """Run something in a process that is killed at a file."""
    arguments = [sys.executable, "-c", _KILLED, text, str(number), *command]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def _few(n: int, seed: int) -> np.ndarray:
    centers = np.random.default_rng(0).normal(size=(6, 6)) * 1.5
    generator = np.random.default_rng([seed, n])
    X = centers[generator.integers(6, size=n)] + generator.normal(size=(n, 6))
    return X.astype(np.float32)


def _settings(folder: Path, day: int, uri: Path, name: str = "n") -> dict[str, Any]:
    return {
        "run": str(folder / f"{name}-{{date}}"), "date": f"2026-01-{day:02}", "method": "mcfs",
        "input": {"uri": str(uri)}, "n_features_to_select": 3, "mcfs": {"n_clusters": 5},
        "spectral": {"solver": "chebyshev"}, "update": "auto", "curves": False, "report": None,
    }  # fmt: skip


def _chain(folder: Path, store: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Run three nights on a store that grows; return the last result's arrays and its recall."""
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(6, 6)) * 1.5
    for day in (1, 2, 3):
        n = N if day == 1 else NEW
        X = centers[generator.integers(6, size=n)] + generator.normal(size=(n, 6))
        if not store.exists():
            bigfs.ingest(X.astype(np.float32), store, rows=1300)
        elif bigfs.open_matrix(store).n_samples < N + NEW * (day - 1):
            bigfs.ingest(X.astype(np.float32), store, append=True)
        result = bigfs.run({
            "run": str(folder / "n-{date}"), "date": f"2026-01-{day:02}", "method": "mcfs",
            "input": {"uri": str(store)}, "n_features_to_select": 3, "mcfs": {"n_clusters": 5},
            "spectral": {"solver": "chebyshev"}, "graph": {"algorithm": "exact"},
            "update": "auto", "curves": False, "report": None, "memory_limit": "2 GiB",
        })  # fmt: skip
        assert ("updated_from" in result.manifest) == (day > 1)
        assert result.recall is not None
    return np.concatenate([result.scores, result.ranking]), result.recall


@pytest.mark.full
def test_a_chain_has_the_same_bits_on_any_number_of_workers(tmp_path: Path) -> None:
    from distributed import Client

    stores = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    alone = _chain(tmp_path / "threads", stores[0])
    assert alone[1]["value"] > 0.97 and not alone[1]["exact"]
    for n_workers in (1, 2, 4):
        with local_cluster(n_workers, 1, 2 * 2**30) as cluster, Client(cluster):
            shared = _chain(tmp_path / f"workers-{n_workers}", stores[1])
        np.testing.assert_array_equal(alone[0], shared[0])
        assert alone[1] == shared[1]
        shutil.rmtree(stores[1])


@pytest.mark.full
def test_an_update_that_is_killed_in_every_stage_gives_the_same_bits(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    uri = files / "*.npy"
    np.save(files / "0.npy", _few(100, 0))
    np.save(files / "1.npy", _few(2900, 1))
    for name in ("n", "calm"):
        bigfs.run(_settings(tmp_path, 1, uri, name))
    np.save(files / "2.npy", _few(60, 2))
    calm = bigfs.run(_settings(tmp_path, 2, uri, "calm"))
    path = tmp_path / "pipeline.yaml"
    path.write_text(json.dumps(_settings(tmp_path, 2, uri)))
    for stage in ("data", "graph", "spectral", "result"):
        _killed(f"/{stage}.zarr", 3, "run", str(path))
    result = bigfs.run(path)
    record = result.manifest["updated_from"]
    assert (record["run"], record["new_rows"]) == ("n-2026-01-01", 60)
    np.testing.assert_array_equal(result.scores, calm.scores)
    np.testing.assert_array_equal(result.ranking, calm.ranking)


@pytest.mark.full
@pytest.mark.parametrize("place", ["X.zarr/X/c/", "X.zarr/zarr.json"])
def test_an_append_that_is_killed_during_an_update_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    store, rows = tmp_path / "X.zarr", tmp_path / "more.npy"
    bigfs.ingest(_few(3000, 1), store, rows=700)
    np.save(rows, _few(60, 3))
    for name in ("n", "calm"):
        bigfs.run(_settings(tmp_path, 1, store, name))
    bigfs.ingest(_few(60, 2), store, append=True)
    calm = bigfs.run(_settings(tmp_path, 2, store, "calm"))
    original = SpectralStrategy.run

    def beside_an_append(*given: Any) -> None:
        _killed(place, 1, "append", str(rows), str(store))
        original(*given)

    monkeypatch.setattr(SpectralStrategy, "run", beside_an_append)
    result = bigfs.run(_settings(tmp_path, 2, store))
    monkeypatch.undo()
    assert (result.n_samples, result.manifest["updated_from"]["rows"]) == (3060, 3000)
    np.testing.assert_array_equal(result.scores, calm.scores)
    bigfs.ingest(rows, store, append=True)
    after = [bigfs.run(_settings(tmp_path, 3, store, name)) for name in ("n", "calm")]
    assert [run.manifest["updated_from"]["rows"] for run in after] == [3060, 3060]
    assert after[0].n_samples == 3120
    np.testing.assert_array_equal(after[0].scores, after[1].scores)
