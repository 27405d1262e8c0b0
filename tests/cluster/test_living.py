"""Workers that live on: nothing that they keep of one run shows in the next."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from bigfs.core.units import MIB
from bigfs.pipeline.run import run

pytestmark = pytest.mark.cluster

_RNG = np.random.default_rng(0)
_CENTERS = 4 * _RNG.normal(size=(4, 9))
_ROWS = _CENTERS[np.arange(420) % 4] + _RNG.normal(size=(420, 9))
_INPUTS = {
    "wide": _ROWS,
    "few": _ROWS[:260],
    "single": _ROWS[:300].astype(np.float32),
    "whole": np.round(10 * _ROWS[:350, :6]).astype(np.int16),
}
_MCFS = {"n_clusters": 4}
# In turn in two run directories: stages with other shapes, chunks and types at the same paths.
_RUNS: list[tuple[str, dict[str, Any]]] = [
    ("wide", {"method": "mcfs", "mcfs": _MCFS}),
    ("wide", {"method": "mcfs", "mcfs": _MCFS, "graph": {"n_neighbors": 9}}),
    ("wide", {"method": "mcfs", "mcfs": {"n_clusters": 3}}),
    ("few", {"method": "mcfs", "mcfs": _MCFS}),
    ("few", {"method": "ndfs", "ndfs": {"n_clusters": 4}}),
    ("whole", {"method": "laplacian_score"}),
    ("whole", {"method": "mcfs", "mcfs": {"n_clusters": 2}}),
    ("single", {"method": "mcfs", "mcfs": _MCFS}),
    ("single", {"method": "m3fs", "m3fs": {"n_clusters": 3}}),
    ("wide", {"method": "max_variance"}),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(place: str, i: int) -> tuple[bytes, bytes]:
    """Run a pipeline on an input that takes the place of the former one; return the bits."""
    name, changes = _RUNS[i]
    source = Path(f"{place.replace('/', '-')}.npy").absolute()
    np.save(source, _INPUTS[name])
    before = json.loads(Path(place, "manifest.json").read_text()) if Path(place).exists() else {}
    fresh = before.get("method", changes["method"]) != changes["method"]
    base = {"run": place, "n_features_to_select": 3, "curves": False, "report": None}
    config = {**base, "input": {"uri": str(source)}, **changes}
    result = run(config, fresh=fresh)
    return result.scores.tobytes(), result.ranking.tobytes()


def _open_files(folder: str) -> list[str]:
    """Return the files below a folder that this process has open or mapped."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    opened = [os.readlink(link) for link in links if os.path.lexists(link)]
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [name for name in opened + mapped if name.startswith(folder)]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_runs_in_a_row_are_as_fresh_ones(cluster: str, folder: Path) -> None:
    expected = [_run(f"fresh-{i}", i) for i in range(len(_RUNS))]
    order = [i for turn in range(4) for i in range(len(_RUNS))[:: (-1) ** turn]]
    sizes = []
    with Client(cluster) as client:
        for turn, i in enumerate(order):
            assert _run(f"runs/{'ab'[turn % 3 == 0]}", i) == expected[i], (turn, _RUNS[i])
            sizes.append(max(client.run(_resident).values()))
        assert not any(client.run(_open_files, str(folder)).values())
        assert _open_files(str(folder)) == []
    assert len(order) == 40
    settled = sizes[len(_RUNS) - 1]  # when each method has run once
    assert max(sizes[len(_RUNS) :]) - settled < 32 * MIB, sizes


def test_two_clients_at_once_get_what_each_gets_alone(cluster: str, folder: Path) -> None:
    turns = {"runs/a": [0, 5, 2], "runs/b": [3, 7, 9]}
    expected = {i: _run(f"fresh-{i}", i) for turn in turns.values() for i in turn}

    def run_all(place: str) -> list[tuple[bytes, bytes]]:
        with Client(cluster, set_as_default=False) as client, client.as_current():
            return [_run(place, i) for i in turns[place]]

    with ThreadPoolExecutor(2) as pool:
        for place, results in zip(turns, pool.map(run_all, turns), strict=True):
            assert results == [expected[i] for i in turns[place]], place
