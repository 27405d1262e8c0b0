"""A finished run of the series is updated where its input only grew at its end."""

from __future__ import annotations

import importlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

import bigfs
from bigfs.cli import cli
from bigfs.core.errors import ConfigError, ConvergenceError, InputError, MemoryLimitError
from bigfs.graph import update
from bigfs.results.result import Result
from bigfs.selectors.mcfs.strategies import ForwardOnGram
from bigfs.stages.graph import GraphStrategy
from bigfs.stages.spectral import SpectralStrategy
from bigfs.store.scratch import ArrayRef

CENTERS = np.random.default_rng(9).normal(size=(5, 12))


def _rows(n: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    X = CENTERS[generator.integers(5, size=n)] + generator.normal(size=(n, 12))
    return X.astype(np.float32)


class _Series:
    """A store, and a night's run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "X.zarr"
        bigfs.ingest(_rows(600, 0), self.store, rows=100)

    def run(self, day: int, *, name: str = "n", **settings: Any) -> Result:
        return bigfs.run({**self.settings(day, name), **settings})

    def settings(self, day: int, name: str = "n") -> dict[str, Any]:
        return {
            "run": str(self.folder / f"{name}-{{date}}"), "date": f"2026-01-{day:02}",
            "input": {"uri": str(self.store)}, "method": "mcfs", "n_features_to_select": 4,
            "mcfs": {"n_clusters": 4}, "update": "auto", "curves": False, "report": None,
        }  # fmt: skip

    def grow(self, n: int, seed: int) -> None:
        bigfs.ingest(_rows(n, seed), self.store, append=True)


@pytest.fixture
def series(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> _Series:
    caplog.set_level(logging.INFO)
    return _Series(tmp_path)


def _updated_from(result: Result) -> Any:
    return json.loads((result.path / "manifest.json").read_text()).get("updated_from")


def test_a_chain_of_updates_gives_what_a_full_run_gives(
    series: _Series, caplog: pytest.LogCaptureFixture
) -> None:
    assert _updated_from(series.run(1)) is None
    for day in (2, 3):
        series.grow(20, day)
        caplog.clear()
        result = series.run(day)
        record = _updated_from(result)
        assert (record["run"], record["new_rows"]) == (f"n-2026-01-{day - 1:02}", 20)
        assert record["in_a_row"] == day - 1
        assert f"updated from n-2026-01-{day - 1:02}: 20 new rows; graph " in caplog.text
    full = series.run(3, name="full", update="never")
    assert _updated_from(full) is None
    np.testing.assert_array_equal(result.ranking, full.ranking)
    np.testing.assert_allclose(result.scores, full.scores, atol=1e-5)
    X = np.concatenate([_rows(600, 0), _rows(20, 2), _rows(20, 3)]).astype(np.float64)
    kept = ArrayRef.at(result.path / "result.zarr/gram").load()
    np.testing.assert_allclose(kept, (X - X.mean(axis=0)).T @ (X - X.mean(axis=0)), rtol=1e-10)
    caplog.clear()
    again = series.run(3)  # nothing is done again
    assert _updated_from(again) == record
    assert "stage graph: finished by an earlier run, kept" in caplog.text


def test_an_unchanged_input_uses_the_former_result_again(
    series: _Series, caplog: pytest.LogCaptureFixture
) -> None:
    first = series.run(1)
    caplog.clear()
    again = series.run(2)
    assert "no new rows since n-2026-01-01: its result reused" in caplog.text
    assert "stage graph" not in caplog.text
    np.testing.assert_array_equal(again.scores, first.scores)
    assert (again.path / "features.csv").read_bytes() == (first.path / "features.csv").read_bytes()
    shutil.rmtree(first.path)  # its files are links, and the other run keeps them
    series.grow(20, 1)
    assert _updated_from(series.run(3))["run"] == "n-2026-01-02"
    caplog.clear()
    repeated = series.run(4)  # after an update its base is that of the run that is used again
    assert "no new rows since n-2026-01-03: its result reused" in caplog.text
    assert _updated_from(repeated)["run"] == "n-2026-01-02"
    series.run(5, n_features_to_select=3)
    assert "no new rows since n-2026-01-04: graph, spectral reused" in caplog.text
    shutil.rmtree(again.path)
    caplog.clear()
    assert _updated_from(series.run(4)) == _updated_from(repeated)
    assert caplog.text.count("finished by an earlier run, kept") == 3


def test_rows_that_went_or_came_back_have_a_line(
    series: _Series, caplog: pytest.LogCaptureFixture
) -> None:
    series.run(1)
    series.grow(20, 1)
    series.run(2)
    bigfs.ingest(_rows(600, 0), series.store, rows=100, overwrite=True)
    series.run(3)
    assert "X.zarr has 600 rows, but had 620 in n-2026-01-02" in caplog.text
    bigfs.ingest(_rows(600, 0), series.store, rows=100, overwrite=True)
    series.run(4)
    assert "X.zarr differ from n-2026-01-03, or were rewritten" in caplog.text
    bigfs.ingest(_rows(600, 0), series.store, overwrite=True)
    series.run(5)
    bigfs.ingest(_rows(600, 0), series.store, overwrite=True)
    series.run(6)
    assert "X.zarr was rewritten since n-2026-01-05, with the same rows" in caplog.text


@pytest.mark.parametrize("method", ["mcfs", "max_variance"])
def test_unchanged_files_are_not_copied_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    caplog.set_level(logging.INFO)
    series = _Series(tmp_path)
    np.save(tmp_path / "x.npy", _rows(600, 1))
    settings: dict[str, Any] = {"input": {"uri": str(tmp_path / "x.npy")}, "method": method}
    settings["mcfs"] = {"n_clusters": 4} if method == "mcfs" else None
    first = series.run(1, **settings)
    chunk = first.path / "data.zarr/X/c/0/0"
    assert (series.run(2, **settings).path / "data.zarr/X/c/0/0").samefile(chunk)
    assert "no new rows since n-2026-01-01: its result reused" in caplog.text
    graph = next(first.path.with_name("n-2026-01-02").glob("result.zarr/scores/c.*"))
    graph.write_bytes(b"damaged")
    series.run(3, **settings)
    assert "stage result of n-2026-01-02 is not reused" in caplog.text


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "is_updated"),
    [("ndfs", True), ("laplacian_score", True), ("max_variance", True), ("pivoted_qr", False)],
)
def test_other_methods_are_those_of_a_full_run(
    series: _Series, caplog: pytest.LogCaptureFixture, method: str, is_updated: bool
) -> None:
    settings: dict[str, Any] = {"method": method, "mcfs": None}
    if method == "ndfs":
        settings["ndfs"] = {"n_clusters": 4}
    series.run(1, **settings)
    series.grow(20, 1)
    result = series.run(2, **settings)
    assert (_updated_from(result) is not None) == is_updated
    assert is_updated or "full run: no stage of the method can be updated" in caplog.text
    full = series.run(2, name="full", **{**settings, "update": "never"})
    np.testing.assert_array_equal(result.ranking, full.ranking)
    if method == "max_variance":
        assert result.manifest["stages"]["result"]["passes"] == 0
        np.testing.assert_allclose(result.scores, full.scores, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize(
    ("grown", "settings", "why"),
    [
        (100, {}, "17 % more rows than n-2026-01-01; the limit is 10 %"),
        (20, {"update": {"most_since_full": 0.01}}, "3 % more rows than the last full run"),
        (20, {"preprocess": "standardize"}, "new rows change the values of the old ones"),
        (20, {"graph": {"n_neighbors": 7}}, "stage graph of n-2026-01-01 had other settings"),
        (20, {"input": {"uri": "sklearn:iris"}}, "the input is neither a store that bigfs wrote"),
        (20, {"method": "laplacian_score", "mcfs": None}, "another method"),
    ],
)
def test_why_all_is_done(
    series: _Series,
    caplog: pytest.LogCaptureFixture,
    grown: int,
    settings: dict[str, Any],
    why: str,
) -> None:
    series.run(1)
    series.grow(grown, 1)
    assert _updated_from(series.run(2, **settings)) is None
    assert f"full run: {why}" in caplog.text or why in caplog.text


@pytest.mark.full
def test_updates_in_a_row_have_a_limit(series: _Series, caplog: pytest.LogCaptureFixture) -> None:
    for day in (1, 2, 3):
        result = series.run(day, update={"most_in_a_row": 1})
        assert (_updated_from(result) is not None) == (day == 2)
        series.grow(10, day)
    assert "full run: the limit of 1 updates in a row is reached" in caplog.text


@pytest.mark.full
def test_a_graph_of_low_recall_is_built_again(
    series: _Series, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "CELL_ROWS", 60)
    monkeypatch.setattr(update, "PROBES", 1)
    series.run(1)
    series.grow(50, 1)
    result = series.run(2, update={"least_recall": 0.999})
    message = "the graph is rebuilt instead of updated: the updated graph has recall 0.9"
    assert message in caplog.text
    assert result.recall is not None and result.recall["value"] == 1
    full = series.run(2, name="full", update="never")
    np.testing.assert_array_equal(result.ranking, full.ranking)


@pytest.mark.full
def test_a_finished_update_does_not_need_its_base(
    series: _Series, caplog: pytest.LogCaptureFixture
) -> None:
    base = series.run(1)
    series.grow(20, 1)
    record = _updated_from(series.run(2))
    shutil.rmtree(base.path)
    caplog.clear()
    assert _updated_from(series.run(2)) == record
    assert "stage result: finished by an earlier run, kept" in caplog.text


@pytest.mark.full
def test_the_selection_is_compared_with_the_former_one(
    series: _Series, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    series.run(1)
    series.grow(20, 1)
    result = series.run(2, n_features_to_select=3)
    assert "3 of 4 selected features are shared with n-2026-01-01; removed: " in caplog.text
    assert result.manifest["compared"]["share"] == 0.75
    settings = json.dumps(series.settings(2) | {"n_features_to_select": 3})
    (tmp_path / "p.yaml").write_text(settings)
    planned = click.testing.CliRunner().invoke(cli, ["plan", str(tmp_path / "p.yaml")]).output
    assert "These are the costs of a full run; an update of the former run" in planned
    for limit, code in (("0.7", 0), ("0.8", 6)):
        runner = click.testing.CliRunner()
        given = ["run", str(tmp_path / "p.yaml"), "--set", f"output.diff_below={limit}"]
        done = runner.invoke(cli, given, standalone_mode=False)
        assert done.return_value == code
        said = "the share in common, 0.75, is below output.diff_below, 0.8: "
        said += "the command ends with exit code 6"
        assert (said in done.output) == (code == 6)
    alone = ["run", str(tmp_path / "p.yaml"), "--set", "output.diff_below=0.8"]
    alone += ["--set", "update=null", "--set", "date=2026-01-03", "--set", "n_features_to_select=1"]
    assert click.testing.CliRunner().invoke(cli, alone, standalone_mode=False).return_value == 6
    # The table of features is written before the selections are compared.
    alone += ["--set", "date=2026-01-04", "--set", "stability={n_pairs: 2}"]
    alone += ["--set", "n_features_to_select=4"]
    assert click.testing.CliRunner().invoke(cli, alone, standalone_mode=False).return_value == 6
    settings = {**series.settings(5), "stability": {"n_pairs": 2}}
    assert bigfs.run(settings).manifest["status"] == "done"


@pytest.mark.full
def test_old_rows_that_changed_and_a_damaged_base_are_noticed(
    series: _Series, caplog: pytest.LogCaptureFixture
) -> None:
    base = series.run(1)
    graph = next((base.path / "graph.zarr").glob("indices/c.*"))
    content = graph.read_bytes()
    series.grow(20, 1)
    graph.write_bytes(content[:-1] + b"x")
    assert _updated_from(series.run(2)) is None
    assert "was changed" in caplog.text
    bigfs.ingest(np.concatenate([_rows(600, 5), _rows(40, 6)]), series.store, rows=100,
                 overwrite=True)  # fmt: skip
    assert _updated_from(series.run(3)) is None
    assert "the first rows of" in caplog.text


@pytest.mark.full
@pytest.mark.parametrize("strategy", [GraphStrategy, SpectralStrategy, ForwardOnGram])
def test_an_update_that_was_killed_goes_on(
    series: _Series, monkeypatch: pytest.MonkeyPatch, strategy: type
) -> None:
    series.run(1)
    series.grow(20, 1)
    original: Callable[..., None] = strategy.run  # type: ignore[attr-defined]

    def killed(*args: Any) -> None:
        original(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(strategy, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        series.run(2)
    monkeypatch.undo()
    resumed = series.run(2)
    assert _updated_from(resumed)["run"] == "n-2026-01-01"
    full = series.run(2, name="full", update="never")
    np.testing.assert_array_equal(resumed.ranking, full.ranking)


@pytest.mark.full
def test_the_base_is_kept(series: _Series) -> None:
    for day in (1, 2, 3):
        series.run(day, keep=1)
        series.grow(10, day)
    names = sorted(path.name for path in series.folder.glob("n-2026*"))
    assert names == ["n-2026-01-02", "n-2026-01-03"]


@pytest.mark.full
@pytest.mark.parametrize("method", ["mcfs", "max_variance"])
def test_files_that_are_added_are_new_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    caplog.set_level(logging.INFO)
    series, files = _Series(tmp_path), tmp_path / "files"
    files.mkdir()
    uri = files if method == "mcfs" else files / "*.npy"
    settings: dict[str, Any] = {"input": {"uri": str(uri), "missing": "mean"}, "method": method}
    settings["mcfs"] = {"n_clusters": 4} if method == "mcfs" else None
    for day in (1, 2, 3):
        np.save(files / f"{day}.npy", _rows({1: 600, 2: 20, 3: 1}[day], day))
        if day == 1:
            np.save(files / "0.npy", _rows(30, 0))
        result = series.run(day, **settings)
        assert (_updated_from(result) is not None) == (day > 1)
    assert result.n_samples == 651
    chunks = [tmp_path / f"n-2026-01-0{day}/data.zarr/X/c/0/0" for day in (2, 3)]
    assert result.manifest["stages"]["data"]["copied_from"] == "n-2026-01-02"
    full = series.run(3, name="full", **settings, update="never")
    np.testing.assert_array_equal(result.ranking, full.ranking)
    copies = [bigfs.open_matrix(run.path / "data.zarr") for run in (result, full)]
    np.testing.assert_array_equal(*(copy.read(0, 651) for copy in copies))
    assert all(chunk.is_file() for chunk in chunks)

    caplog.clear()
    np.save(files / "4.npy", _rows(20, 4))
    np.save(files / "2.npy", _rows(20, 9))
    assert _updated_from(series.run(4, **settings)) is None
    assert "2.npy was changed since n-2026-01-03" in caplog.text
    assert "full run: the first rows of" in caplog.text
    caplog.clear()
    (files / "0.npy").unlink()
    assert _updated_from(series.run(5, **settings)) is None
    assert "1.npy took the place of " in caplog.text


@pytest.mark.full
def test_files_that_are_added_to_a_series_in_a_bucket(tmp_path: Path, bucket: str) -> None:
    series, files = _Series(tmp_path), tmp_path / "files"
    files.mkdir()
    settings = {"run": f"{bucket}/n-{{date}}", "input": {"uri": str(files)}}
    for day, n_new in enumerate((600, 20, 0, 10), 1):
        if n_new:
            np.save(files / f"{day}.npy", _rows(n_new, day))
        result = series.run(day, **settings)
        updated = json.loads((result.path / "manifest.json").read_text()).get("updated_from")
        if day > 1 and n_new:
            assert (updated["run"], updated["new_rows"]) == (f"n-2026-01-{day - 1:02}", n_new)
    full = series.run(4, name="full", input=settings["input"], update="never")
    np.testing.assert_array_equal(result.ranking, full.ranking)


@pytest.mark.full
def test_files_of_a_table_are_added_on_links(tmp_path: Path) -> None:
    import pandas as pd

    series, files = _Series(tmp_path), tmp_path / "table"
    files.mkdir()
    names = [f"f{i}" for i in range(12)]
    for day in (1, 2):
        X = _rows(600 if day == 1 else 20, day)
        frame = pd.DataFrame(X, columns=names).assign(id=[f"{day}-{i}" for i in range(len(X))])
        frame.to_parquet(files / f"{day}.parquet")
        result = series.run(day, input={"uri": str(files), "index": "id"})
    assert _updated_from(result)["new_rows"] == 20
    stored = bigfs.open_matrix(result.path / "data.zarr")
    assert [name for part in stored.iter_index() for name in part][-1] == "2-19"


@pytest.mark.full
def test_a_damaged_copy_of_the_former_data_is_read_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    module = importlib.import_module("bigfs.store.ingest")
    monkeypatch.setattr(module, "chunk_rows", lambda *sizes: 100)
    series, files = _Series(tmp_path), tmp_path / "files"
    files.mkdir()
    settings = {"input": {"uri": str(files / "*.npy")}}
    np.save(files / "1.npy", _rows(600, 1))
    np.save(files / "2.npy", _rows(30, 2))
    base = series.run(1, **settings)
    np.save(files / "3.npy", _rows(20, 3))
    chunk = base.path / "data.zarr/X/c/2/0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-40] + bytes(40))
    result = series.run(2, **settings)
    assert "the data of n-2026-01-01 are damaged" in caplog.text
    assert _updated_from(result) is None
    full = series.run(2, name="full", **settings, update="never")
    np.testing.assert_array_equal(result.ranking, full.ranking)


@pytest.mark.full
@pytest.mark.parametrize("strategy", [GraphStrategy, SpectralStrategy])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_base_that_goes_meanwhile_leads_to_a_full_run(
    series: _Series,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    strategy: type,
    when: str,
) -> None:
    base = series.run(1)
    series.grow(20, 1)
    original: Callable[..., None] = strategy.run  # type: ignore[attr-defined]

    def losing(*args: Any) -> None:
        if when == "before":
            shutil.rmtree(base.path, ignore_errors=True)
        original(*args)
        shutil.rmtree(base.path, ignore_errors=True)

    monkeypatch.setattr(strategy, "run", losing)
    result = series.run(2)
    assert "full run: n-2026-01-01 is damaged or missing" in caplog.text
    assert _updated_from(result) is None
    full = series.run(2, name="full", update="never")
    np.testing.assert_array_equal(result.ranking, full.ranking)
    np.testing.assert_array_equal(result.scores, full.scores)


def test_metrics_of_a_run(series: _Series, tmp_path: Path) -> None:
    place = tmp_path / "bigfs.prom"
    settings = {"method": "max_variance", "mcfs": None, "output": {"metrics": str(place)}}
    series.run(1, **settings)
    series.grow(20, 1)
    series.run(2, **settings)
    lines = place.read_text().splitlines()
    assert 'bigfs_rows{run="n-{date}"} 620.0' in lines
    assert 'bigfs_new_rows{run="n-{date}"} 20.0' in lines
    assert 'bigfs_selection_kept{run="n-{date}"} 1.0' in lines
    assert 'bigfs_exit_code{run="n-{date}"} 0' in lines
    names = [line.split("{")[0] for line in lines if line[0] != "#"]
    assert [line.split()[2] for line in lines if "# TYPE" in line] == list(dict.fromkeys(names))
    series.run(3, **settings)  # without new rows
    assert 'bigfs_new_rows{run="n-{date}"} 0.0' in place.read_text().splitlines()
    place.write_text("mine")
    with pytest.raises(ConfigError, match="output.metrics: .*bigfs did not write it"):
        series.run(4, **settings)
    assert place.read_text() == "mine"


def test_metrics_in_a_folder_that_is_not_there_are_refused_before_any_work(
    series: _Series, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"output": {"metrics": str(tmp_path / "no" / "bigfs.prom")}}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="output.metrics: .*there is no folder .*no. Make it"):
        series.run(1, **settings)
    assert sorted(tmp_path.rglob("*")) == before


def test_metrics_say_how_a_run_stands_and_that_it_failed(
    series: _Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, seen = tmp_path / "bigfs.prom", []
    settings: dict[str, Any] = {"output": {"metrics": str(place)}}
    original: Callable[..., None] = SpectralStrategy.run

    def failing(*args: Any) -> None:
        seen.append(place.read_text())
        original(*args)
        raise ConvergenceError("it did not converge")

    monkeypatch.setattr(SpectralStrategy, "run", failing)
    with pytest.raises(ConvergenceError):
        series.run(1, **settings)
    assert 'bigfs_exit_code{run="n-{date}"} -1' in seen[0]
    assert 'bigfs_stage_seconds{run="n-{date}",stage="graph"}' in seen[0]
    assert 'bigfs_exit_code{run="n-{date}"} 5' in place.read_text()
    with pytest.raises(InputError):
        series.run(2, **settings, input={"uri": str(tmp_path / "gone.npy")})
    assert 'bigfs_exit_code{run="n-{date}"} 2' in place.read_text()
    assert "stage_seconds" not in place.read_text()
    with pytest.raises(MemoryLimitError):
        series.run(3, **settings, memory_limit="100 MiB")
    assert 'bigfs_exit_code{run="n-{date}"} 3' in place.read_text()
