"""Whole runs: the same ranking everywhere, and nothing lost or half-written."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

import bigfs
from bigfs.core.errors import ConfigError, InputError, MemoryLimitError
from bigfs.pipeline.finished import evaluate_result
from bigfs.pipeline.inspect import inspect
from bigfs.pipeline.run import run
from bigfs.plan import planning
from bigfs.results.result import open_result
from bigfs.selectors.mcfs.strategies import ForwardOnGram
from bigfs.selectors.one_pass.strategies import Variances
from bigfs.selectors.registry import load_config
from bigfs.stages.graph import GraphStrategy
from bigfs.stages.spectral import SpectralStrategy
from bigfs.store import opening


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:digits"},
        "n_features_to_select": 20,
        "mcfs": {"n_clusters": 10},
        **changes,
    }


def _irises(place: Path) -> dict[str, Any]:
    return {
        "run": str(place),
        "input": {"uri": "sklearn:iris"},
        "method": "max_variance",
        "n_features_to_select": 3,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    evaluate = {"labels": "sklearn:digits", "n_repetitions": 2, "n_init": 1}
    run(_config(folder, evaluate=evaluate))
    return folder / "run"


def test_overrides_hold_for_a_dict_and_not_for_a_finished_configuration(tmp_path: Path) -> None:
    given = _irises(tmp_path / "run")
    assert len(run(given, overrides=["n_features_to_select=1"]).selected) == 1
    assert len(run(given, overrides="n_features_to_select=1").selected) == 1
    assert given["n_features_to_select"] == 3
    with pytest.raises(ConfigError, match="overrides can only be used with a file or a dict"):
        run(load_config(given), overrides=["n_features_to_select=1"])
    with pytest.raises(ConfigError, match="unknown key '2' in 'graph'"):
        run({**given, "graph": {2: 3}})


def test_blocks_of_any_rows_are_those_of_the_copy(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(5000, 3)))
    config = {**_irises(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.npy")}}
    result = run({**config, "blocks": {"rows": 2000}})
    assert bigfs.open_matrix(result.path / "data.zarr").chunk_rows == 2000
    other = run({**config, "blocks": {"rows": 1250}})  # another copy
    assert bigfs.open_matrix(other.path / "data.zarr").chunk_rows == 1250
    assert result.ranking.tolist() == other.ranking.tolist()


def test_a_run_that_was_moved_is_judged_and_so_is_the_latest(tmp_path: Path) -> None:
    place = run(_irises(tmp_path / "run-{date}")).path
    latest = evaluate_result(tmp_path / "run-latest", labels="sklearn:iris").evaluation
    moved = place.rename(tmp_path / "moved")
    assert evaluate_result(moved, labels="sklearn:iris").evaluation == latest


def test_a_run_leaves_what_the_design_promises(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {
        ".bigfs-run", "config.yaml", "manifest.json", "features.csv", "data.zarr", "graph.zarr",
        "spectral.zarr", "result.zarr", "curves.zarr", "evaluation.zarr",
    }  # fmt: skip
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["versions"]["bigfs"] == bigfs.__version__
    for record in manifest["stages"].values():
        assert record["seconds"] >= 0
        assert record["measured_peak_bytes"] > 50 * 2**20


def test_features_csv_is_the_ranking(finished: Path) -> None:
    result = open_result(finished)
    with (finished / "features.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == result.ranking.tolist()
    assert [int(row["rank"]) for row in rows] == list(range(1, 65))
    scores = np.array([float(row["score"]) for row in rows])
    np.testing.assert_array_equal(scores, result.scores[result.ranking])
    assert (np.diff(scores) <= 0).all()
    kept = {int(row["index"]) for row in rows if row["selected"] == "1"}
    assert kept == set(result.selected.tolist())
    assert len(kept) == 20
    assert rows[0]["name"] == "pixel_" + rows[0]["name"].removeprefix("pixel_")


def test_the_run_equals_the_estimator(finished: Path) -> None:
    from sklearn.datasets import load_digits

    from bigfs import MCFS

    X = load_digits().data
    selector = MCFS(n_features_to_select=20, n_clusters=10).fit(X)
    result = open_result(finished)
    np.testing.assert_array_equal(selector.ranking_, result.ranking)
    np.testing.assert_array_equal(selector.scores_, result.scores)


def test_the_summary_reads_well(finished: Path) -> None:
    text = open_result(finished).summary()
    assert "mcfs: 20 of 64 features selected from 1,797 samples" in text
    assert "1-NN error" in text
    assert str(finished) in text
    assert text in inspect(finished)
    assert "Graph recall: 100.0 % of the true neighbors (100.0 to 100.0 %)." in text
    assert "Number of clusters: 10 (as given, or by default)." in text
    assert f"Export the selected columns: bigfs export {finished} DEST.parquet" in text
    # What a stage has warned about is said again.
    result = open_result(finished)
    result.manifest["notes"] = ["Scales of features differ."]
    assert "Scales of features differ." in result.summary().splitlines()


def test_a_second_run_of_the_same_takes_everything_over(finished: Path) -> None:
    before = json.loads((finished / "manifest.json").read_text())["stages"]
    run(finished / "config.yaml")
    after = json.loads((finished / "manifest.json").read_text())["stages"]
    assert after == before


def test_a_changed_setting_redoes_what_it_touches(tmp_path: Path) -> None:
    run(_config(tmp_path))
    path = tmp_path / "run" / "manifest.json"
    before = json.loads(path.read_text())["stages"]
    run(_config(tmp_path, mcfs={"n_clusters": 10, "fit_intercept": False}))
    after = json.loads(path.read_text())["stages"]
    redone = {name for name in after if after[name]["attempt"] != before[name]["attempt"]}
    assert redone == {"result", "curves"}
    run(_config(tmp_path, method="max_variance", mcfs=None), fresh=True)
    assert set(json.loads(path.read_text())["stages"]) == {"data", "result", "curves"}


def test_changed_data_are_seen(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 6))
    np.save(tmp_path / "X.npy", X)
    settings = _config(
        tmp_path,
        input={"uri": str(tmp_path / "X.npy")},
        method="max_variance",
        mcfs=None,
        n_features_to_select=2,
    )
    first = run(settings)
    X[:, 4] *= 10
    np.save(tmp_path / "X.npy", X)
    os.utime(tmp_path / "X.npy", ns=(1, 1))
    assert run(settings).ranking[0] == 4
    assert first.ranking[0] != 4


def _stages_redone(config: dict[str, Any], caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Run again; return the stages that were redone, with the reasons given."""
    caplog.clear()
    with caplog.at_level("INFO", logger="bigfs"):
        run(config)
    lines = [line for line in caplog.messages if line.startswith("stage ")]
    message = dict(line.removeprefix("stage ").split(": ", 1) for line in lines)
    return {name: why for name, why in message.items() if "kept" not in why}


@pytest.mark.full
def test_what_is_redone_is_what_changed_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    X, y = load_digits(return_X_y=True)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    evaluate = {"labels": str(tmp_path / "y.npy"), "n_repetitions": 1, "n_init": 1}
    config = _config(tmp_path, input={"uri": str(tmp_path / "X.npy")}, evaluate=evaluate)
    every = ["data", "graph", "spectral", "result", "curves", "evaluation"]
    assert _stages_redone(config, caplog) == dict.fromkeys(every, "not yet run")
    assert _stages_redone(config, caplog) == {}
    # What does not touch the result: where it runs, and what it is called.
    with dask.config.set(scheduler="synchronous"):
        assert _stages_redone(config, caplog) == {}
    later = "its input changed"
    config["spectral"] = {"tol": 1e-8}
    assert _stages_redone(config, caplog) == {
        "spectral": "tol is 1e-08, was 0.003",
        "result": later,
        "curves": later,
        "evaluation": later,
    }
    config["evaluate"] = {**evaluate, "n_init": 2}
    assert _stages_redone(config, caplog) == {"evaluation": "n_init is 2, was 1"}
    np.save(tmp_path / "y.npy", 9 - y)
    os.utime(tmp_path / "y.npy", ns=(1, 1))
    assert _stages_redone(config, caplog) == {"evaluation": "content of the labels changed"}
    config["memory_limit"] = "3 GiB"
    assert _stages_redone(config, caplog) == {
        "graph": f"memory_limit is {3 * 2**30}, was {4 * 2**30}",
        "spectral": f"memory_limit is {3 * 2**30}, was {4 * 2**30}",
        "result": f"memory_limit is {3 * 2**30}, was {4 * 2**30}",
        "curves": f"memory_limit is {3 * 2**30}, was {4 * 2**30}",
        "evaluation": later,
    }
    os.utime(tmp_path / "X.npy", ns=(1, 1))
    actual = _stages_redone(config, caplog)
    assert actual == dict.fromkeys(every, f"{tmp_path / 'X.npy'} changed")
    config |= {"input": {**config["input"], "rows": {"every": 2}}, "evaluate": None}
    actual = _stages_redone(config, caplog)
    assert actual.pop("data").startswith("rows is {'every': 2")
    assert {actual[name] for name in ("graph", "spectral", "result", "curves")} == {
        "settings of the input changed"
    }


@pytest.mark.parametrize("name", ["graph", "spectral", "result"])
def test_a_run_that_stopped_continues_at_the_last_finished_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = run(_config(tmp_path / "whole")).ranking

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    strategies = {"graph": GraphStrategy, "spectral": SpectralStrategy, "result": ForwardOnGram}
    with monkeypatch.context() as patch:
        patch.setattr(strategies[name], "run", stop)
        with pytest.raises(KeyboardInterrupt):
            run(_config(tmp_path))
    done = json.loads((tmp_path / "run" / "manifest.json").read_text())["stages"]
    assert name not in done
    assert not (tmp_path / "run" / "lease.json").exists()
    assert not (tmp_path / "run" / "attempts").exists()
    result = run(_config(tmp_path))
    np.testing.assert_array_equal(result.ranking, expected)
    for earlier, record in done.items():
        assert result.stages[earlier]["attempt"] == record["attempt"], f"{earlier} was redone"


def test_parts_of_a_run_that_were_deleted_are_redone(tmp_path: Path) -> None:
    import shutil

    expected = run(_config(tmp_path)).ranking
    shutil.rmtree(tmp_path / "run" / "graph.zarr" / "affinity")
    shutil.rmtree(tmp_path / "run" / "result.zarr" / "scores")
    with pytest.raises(InputError, match="no complete result"):
        open_result(tmp_path / "run")
    missing = "Files of these stages are missing: graph, result. Run again"
    assert missing in inspect(tmp_path / "run")
    np.testing.assert_array_equal(run(_config(tmp_path)).ranking, expected)


def test_evaluation_of_a_finished_run(finished: Path) -> None:
    settings = {"n_repetitions": 2, "n_init": 1}
    result = evaluate_result(finished, labels="sklearn:digits", **settings)
    other = evaluate_result(finished, labels="sklearn:digits", init="random", **settings)
    assert result.evaluation["all"]["nmi_mean"] != other.evaluation["all"]["nmi_mean"]
    assert result.evaluation == open_result(finished).evaluation
    with pytest.raises(InputError, match="150 labels.*1,?797"):
        evaluate_result(finished, labels="sklearn:iris")


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no manifest\.json"):
        open_result(tmp_path)
    with pytest.raises(InputError, match=r"nothing\.npy"):
        inspect(tmp_path / "nothing.npy")


def test_a_store_is_used_in_place_and_can_be_verified(tmp_path: Path) -> None:
    bigfs.ingest("sklearn:iris", tmp_path / "iris.zarr")
    settings = _config(
        tmp_path,
        input={"uri": str(tmp_path / "iris.zarr")},
        n_features_to_select=2,
        mcfs={"n_clusters": 3},
    )
    result = run(settings)
    assert "data" not in result.stages
    assert "checksums match" in inspect(tmp_path / "iris.zarr", verify=True)


def test_a_store_of_others_is_checked_before_any_work(tmp_path: Path) -> None:
    import zarr

    X = np.random.default_rng(0).normal(size=(50, 4)).astype("f4")
    X[31, 2] = np.nan
    zarr.create_array(store=str(tmp_path / "X.zarr"), data=X, chunks=(10, 4))
    with pytest.raises(InputError, match="row 31, column 2 is NaN"):
        run(_config(tmp_path, input={"uri": str(tmp_path / "X.zarr")}, n_features_to_select=2))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"n_features_to_select": 65}, r"must be an int in \[1, 64\].*Got 65"),
        ({"graph": {"n_neighbors": 1797}}, "n_neighbors"),
        ({"mcfs": {"n_clusters": 1797}}, "MCFS: n_clusters must be at most 1796, since X has 1797"),
        ({"evaluate": {"labels": "sklearn:iris"}}, "150 labels"),
        ({"evaluate": {"labels": "nothing.npy"}}, "does not exist"),
        ({"input": {"uri": "nothing.npy"}}, "does not exist"),
        ({"memory_limit": "500 MiB"}, "at least 768 MiB"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((InputError, MemoryLimitError), match=message):
        run(_config(tmp_path, **changes))
    assert not any(tmp_path.iterdir())


def test_a_bad_value_in_the_middle_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(50_000, 4)).astype("f4")
    X[31_007, 2] = np.nan
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(InputError, match="row 31007, column 2 is NaN"):
        run(_config(tmp_path, input={"uri": str(tmp_path / "X.npy")}, n_features_to_select=2))
    assert [path.name for path in tmp_path.iterdir()] == ["X.npy"]


@pytest.mark.parametrize("method", ["ndfs", "m3fs", "lfs", "gfs_kmeans"])
def test_missing_or_short_start_labels_are_refused_before_any_stage(
    method: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "short.npy", np.array([0, 1, 0, 1]))
    for name, word in [("nothing.npy", "nothing.npy does not exist"), ("short.npy", "4 labels")]:
        config = {
            "run": str(tmp_path / "run"),
            "method": method,
            "input": {"uri": "sklearn:iris"},
            "n_features_to_select": 2,
            method: {"init": str(tmp_path / name)},
        }
        with pytest.raises(InputError, match=word):
            run(config)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stored", [True, False])
def test_a_run_opens_its_input_once_and_plans_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Also where the input is copied into a store, which is opened once then."""
    X = load_digits().data
    np.save(tmp_path / "X.npy", X)
    bigfs.ingest(X, tmp_path / "X.zarr")
    source = tmp_path / ("X.zarr" if stored else "X.npy")
    opened: list[str] = []
    plans: list[int] = []
    open_uri, make_plan = opening._open_uri, planning.make_plan

    def counted_open(uri: str, *options: Any) -> Any:
        opened.append(uri)
        return open_uri(uri, *options)

    def counted_plan(*arguments: Any) -> Any:
        plans.append(1)
        return make_plan(*arguments)

    monkeypatch.setattr(opening, "_open_uri", counted_open)
    monkeypatch.setattr(planning, "make_plan", counted_plan)
    run(_config(tmp_path, input={"uri": str(source)}))
    assert opened.count(str(source)) == 1
    assert len(opened) == (1 if stored else 2)
    assert len(plans) == 1


def test_a_finished_run_is_not_overwritten_by_other_data_or_another_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        np.savetxt(f"{name}.csv", generator.normal(size=(20, 3)), delimiter=",")
    given = {
        "run": "runs/one",
        "input": {"uri": "a.csv", "header": False},
        "method": "max_variance",
        "n_features_to_select": 1,
    }
    first = run(given)
    for change in ("input.uri=b.csv", "method=random_selection"):
        with pytest.raises(InputError, match=r"holds a finished run of .*--fresh") as caught:
            run(given, overrides=[change])
        assert "--set run=runs/one-2" in str(caught.value)
        with pytest.raises(InputError, match="holds a finished run"):
            run(given, overrides=[f"input.uri={tmp_path}/b.csv"])
    assert open_result("runs/one").manifest == first.manifest, "nothing was touched"
    assert run(given, overrides=[f"input.uri={tmp_path}/a.csv"]).path == first.path
    with Path("a.csv").open("a") as file:
        file.write("1,2,3\n")
    with caplog.at_level("INFO", logger="bigfs"):
        assert run(given, overrides=["n_features_to_select=2"]).n_samples == 21
    assert "a.csv changed" in caplog.text
    with caplog.at_level("INFO", logger="bigfs"):
        assert run(given, overrides=["input.uri=b.csv"], fresh=True).n_samples == 20
    assert f"input.uri is {tmp_path / 'b.csv'}, was {tmp_path / 'a.csv'}" in caplog.text
    assert inspect("runs/one/result.zarr") == inspect("runs/one")
    other = run(given, overrides=["run=runs/{input}-{method}", "input.uri=b.csv"])
    assert other.path == tmp_path / "runs" / "b-max_variance"
    with pytest.raises(ConfigError, match=r"unknown placeholder \{inptu\}"):
        run(given, overrides=["run=runs/{inptu}"])


@pytest.mark.parametrize("changed", ["columns", "settings"])
def test_a_result_stays_that_of_its_own_settings_until_it_is_replaced(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).normal(size=(60, 6)) * np.arange(1, 7)
    table = pd.DataFrame(X, columns=list("abcdef"))
    table.to_parquet(tmp_path / "X.parquet")
    uri, place = str(tmp_path / "X.parquet"), str(tmp_path / "run")
    first = {"run": place, "input": {"uri": uri, "columns": ["a", "b", "c"]}, "curves": False,
             "method": "max_variance", "n_features_to_select": 2}  # fmt: skip
    run(first)
    other = {**first, "preprocess": "standardize"}
    if changed == "columns":
        other = {**first, "input": {"uri": uri, "columns": ["d", "e", "f"]}}

    def interrupted(self: Any, *inputs: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Variances, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(other)
    result = open_result(place)
    assert result.settings["input"]["columns"] == ["a", "b", "c"]
    assert result.settings["preprocess"] != "standardize"
    if changed == "columns":
        with pytest.raises(InputError, match="the data of the result are gone"):
            result.export(tmp_path / "out.csv")
    else:
        result.export(tmp_path / "out.csv")
        np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["c"], table["c"])
    run(first).export(tmp_path / "again.csv")
    assert "earlier" not in open_result(place).manifest
