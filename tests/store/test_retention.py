"""Dated runs: the latest is linked, old ones go, and nothing else is ever touched."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.pipeline.inspect import inspect
from bigfs.pipeline.run import run
from bigfs.results.result import open_result
from bigfs.store.lease import Lease
from bigfs.store.location import Location, as_location
from bigfs.store.retention import finish_series, finished_runs
from bigfs.store.rundir import RunDirectory
from tests._canary import BESIDE, own
from tests.store._folder import MEASURED

SERIES = "nightly-{date}"


def _finished(place: Location, status: str = "done", series: str | None = SERIES) -> Location:
    """Leave what a finished run leaves."""
    with RunDirectory(place).open(outputs=("config.yaml",)) as directory:
        directory.write_file("config.yaml", "run: x")
        directory.stage_scratch("result").put("scores", np.arange(3.0))
        directory.commit("result", "key", MEASURED)
        directory.manifest.update(status=status, series=series)
        directory.write()
    return place


def test_a_run_in_a_bucket_is_read_by_the_name_of_the_latest(bucket: str) -> None:
    config: dict[str, Any] = {
        "run": f"{bucket}/{SERIES}",
        "input": {"uri": "sklearn:iris"},
        "method": "max_variance",
        "n_features_to_select": 2,
    }
    ranking = run(config).ranking.tolist()
    assert open_result(f"{bucket}/nightly-latest").ranking.tolist() == ranking
    assert inspect(f"{bucket}/nightly-latest").startswith(f"run {bucket}/nightly-20")


def _names(folder: Location) -> list[str]:
    """Return the names in a folder that are not those of a canary, nor of one all alone."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name != BESIDE and (path.is_file() or own(path) or not any(path.iterdir()))
    )


def test_in_a_bucket_an_object_names_the_latest_run(bucket: str) -> None:
    folder = as_location(f"{bucket}/runs")
    runs = [_finished(folder / f"nightly-2026-11-0{day}") for day in range(1, 5)]
    with Lease(runs[0]):
        assert finish_series(str(runs[3]), SERIES, 2) == ["nightly-2026-11-02"]
    kept = [run.name for run in (runs[0], runs[2], runs[3])]
    assert _names(folder) == [*kept, "nightly-latest"]
    assert (folder / "nightly-latest").read_text() == f"{runs[3]}\n"
    assert finish_series(runs[3], SERIES, 2) == ["nightly-2026-11-01"]
    assert not own(runs[0])


def test_the_oldest_finished_runs_go_and_the_latest_is_linked(tmp_path: Path) -> None:
    runs = [_finished(tmp_path / f"nightly-2026-11-{day:02d}") for day in range(1, 6)]
    assert finish_series(runs[4], SERIES, 3) == ["nightly-2026-11-01", "nightly-2026-11-02"]
    assert _names(tmp_path) == [
        *(f"nightly-2026-11-0{day}" for day in (3, 4, 5)),
        "nightly-latest",
    ]
    link = tmp_path / "nightly-latest"
    assert link.readlink() == Path("nightly-2026-11-05")
    # A night that is run again is not the latest, and is not removed under its own hands.
    again = _finished(tmp_path / "nightly-2026-10-31")
    assert finish_series(again, SERIES, 3) == []
    assert link.resolve() == runs[4]
    assert finish_series(runs[4], SERIES, None) == []
    assert finish_series(runs[4], SERIES, 1) == [
        "nightly-2026-10-31",
        "nightly-2026-11-03",
        "nightly-2026-11-04",
    ]


def test_nothing_but_finished_runs_of_the_series_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    latest = _finished(tmp_path / "nightly-2026-11-20")
    spared = [
        _finished(tmp_path / "nightly-2026-11-01", status="interrupted"),
        _finished(tmp_path / "nightly-2026-11-02", series="weekly-{date}"),
        _finished(tmp_path / "nightly-2026-11-03", series=None),
        _finished(tmp_path / "nightly-2026-11-04-copy"),
        _finished(tmp_path / "my-nightly-2026-11-05"),
        _finished(tmp_path / "nightly-07-11-2026"),
    ]
    (tmp_path / "nightly-2026-11-08").mkdir()
    (tmp_path / "nightly-2026-11-08" / "manifest.json").write_text("{half")
    (tmp_path / "nightly-2026-11-09").write_text("a file")
    elsewhere = _finished(tmp_path / "elsewhere" / "nightly-2026-11-10")
    (tmp_path / "nightly-2026-11-10").symlink_to(elsewhere)
    busy = _finished(tmp_path / "nightly-2026-11-11")
    (tmp_path / "nightly-latest").mkdir()
    before = _names(tmp_path)
    with Lease(busy):
        assert [run.path for run in finished_runs(latest, SERIES)] == [busy, latest]
        assert finish_series(latest, SERIES, 1) == []
    assert _names(tmp_path) == before
    for place in [*spared, elsewhere]:
        assert RunDirectory(place).read().is_intact("result"), place
    assert "nightly-latest is not a link" in caplog.text
    # What is left of a removal that was killed goes the next time.
    (busy / "config.yaml").unlink()
    assert finish_series(latest, SERIES, 1) == ["nightly-2026-11-11"]


def test_a_folder_that_cannot_be_tidied_up_is_no_failure_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert finish_series(tmp_path / "gone" / "nightly-2026-11-20", SERIES, 1) == []
    assert "could not be removed" in caplog.text


def test_a_pipeline_with_a_date(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "run": str(tmp_path / SERIES),
        "input": {"uri": "sklearn:iris"},
        "method": "max_variance",
        "n_features_to_select": 2,
        "keep": 2,
    }
    for date in ("2026-01-01", "2026-01-02"):
        run({**config, "date": date})
    result = run(config)
    today = f"nightly-{datetime.date.today().isoformat()}"
    assert Path(str(result.path)).name == today
    assert _names(tmp_path) == ["nightly-2026-01-02", today, "nightly-latest"]
    assert (tmp_path / "nightly-latest" / "features.csv").exists()
