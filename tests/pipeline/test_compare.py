"""`bigfs compare`: shared work is done once, finished work is kept, bad settings are refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import yaml

import bigfs
from bigfs import cli
from bigfs.blocks import kernels
from bigfs.core.errors import ConfigError, InputError, MemoryLimitError
from bigfs.evaluate import selection
from bigfs.pipeline import compare, data
from bigfs.pipeline.compare import fits_for
from bigfs.pipeline.inspect import inspect
from bigfs.selectors.one_pass.strategies import Variances
from bigfs.selectors.registry import load_comparison, make_config
from bigfs.stages import graph, spectral
from tests.conftest import REPO

METHODS: list[Any] = [
    {"method": "mcfs", "mcfs": {"n_clusters": 10}},
    {
        "method": "mcfs",
        "name": "mcfs, not scaled",
        "mcfs": {"n_clusters": 10, "regression": "lasso", "coef_scale": "none"},
    },
    {"method": "ndfs", "ndfs": {"n_clusters": 10, "max_iter": 3}},
    "laplacian_score",
    "max_variance",
]


def _settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:digits"},
        "methods": METHODS,
        "n_features_to_select": [5, 10],
        "evaluate": {"labels": "sklearn:digits", "n_repetitions": 2, "n_init": 1},
        "compare": {"chance": False},
        **changes,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    compare(_settings(folder))
    return folder / "run"


class Counts(dict[str, int]):
    """Counts the calls of functions that it wraps."""

    def wrap(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        original = getattr(module, name)

        def counted(*args: Any, **settings: Any) -> Any:
            self[name] = self.get(name, 0) + 1
            return original(*args, **settings)

        monkeypatch.setattr(module, name, counted)


def test_what_methods_share_is_computed_once(tmp_path: Path, monkeypatch) -> None:
    counts = Counts()
    for module, name in (
        (data, "ingest"),
        (graph, "knn_graph"),
        (graph, "affinity"),
        (spectral, "spectral_embedding"),
    ):
        counts.wrap(monkeypatch, module, name)
    counts.wrap(monkeypatch, kernels, "block_gram")
    result = compare(_settings(tmp_path, blocks={"rows": 5000}))
    assert counts == {
        "ingest": 1,
        "knn_graph": 1,  # under binary and heat weights
        "affinity": 2,
        "spectral_embedding": 2,  # of both graphs; the two settings of MCFS share one
        "block_gram": 1,  # of MCFS twice and of NDFS
    }
    names = list(dict.fromkeys(row.name for row in result.rows))
    assert names == [
        "all features", "mcfs", "mcfs, not scaled", "ndfs", "laplacian_score", "max_variance"
    ]  # fmt: skip


@pytest.mark.full
def test_selections_are_those_of_single_runs(finished: Path, tmp_path: Path) -> None:
    record = json.loads((finished / "table.json").read_text())
    for entry in METHODS:
        given = {"method": entry} if isinstance(entry, str) else dict(entry)
        name = given.pop("name", given["method"])
        for m in (5, 10):
            run = bigfs.run(
                {
                    "run": str(tmp_path / f"{name}-{m}"),
                    "input": {"uri": "sklearn:digits"},
                    "n_features_to_select": m,
                    **given,
                }
            )
            [row] = [r for r in record["rows"] if (r["name"], r["n_features"]) == (name, m)]
            assert row["selected"] == run.selected.tolist(), (name, m)


def test_the_table_in_three_forms_and_the_figure(finished: Path) -> None:
    text = (finished / "table.txt").read_text()
    assert "1,797 samples x 64 features, 10 classes" in text
    assert "by chance" in text
    rows = list(csv.DictReader(io.StringIO((finished / "table.csv").read_text())))
    assert len(rows) == 1 + 2 * len(METHODS)
    assert rows[0]["name"] == "all features" and rows[0]["n_features"] == "64"
    assert all(0 <= float(row["nmi_mean"]) <= 1 for row in rows)
    record = json.loads((finished / "table.json").read_text())
    assert len(record["overlaps"]) == 2 * 10
    assert record["overlaps"][0]["chance"] == 5 / 64
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    svg = (finished / "curves.svg").read_text()
    assert svg.count("NMI (%)") >= 1 and "all features" in svg
    assert inspect(finished).splitlines()[1] == text.splitlines()[0]


def test_a_second_run_takes_everything_over(finished: Path, monkeypatch) -> None:
    before = (finished / "table.json").read_bytes()
    monkeypatch.setattr(graph, "knn_graph", None)
    monkeypatch.setattr(selection, "run_tasks", None)
    compare(_settings(finished.parent))
    assert (finished / "table.json").read_bytes() == before


@pytest.mark.full
def test_an_interrupted_run_continues_and_dropped_methods_go(tmp_path: Path, monkeypatch) -> None:
    original = Variances.run

    def interrupt(self: Any, *inputs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Variances, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare(_settings(tmp_path))
    assert not (tmp_path / "run" / "table.txt").exists()
    with pytest.raises(InputError, match=r"'bigfs compare \S*/config.yaml --set run="):
        bigfs.open_result(tmp_path / "run")
    kept = {path.name for path in (tmp_path / "run").glob("*.zarr")}
    assert sum(name.startswith("evaluation-") for name in kept) >= 8
    monkeypatch.setattr(Variances, "run", original)
    monkeypatch.setattr(graph, "knn_graph", None)  # nothing finished is done again
    compare(_settings(tmp_path))
    assert kept < {path.name for path in (tmp_path / "run").glob("*.zarr")}
    compare(_settings(tmp_path, methods=["max_variance"]))
    assert len(list((tmp_path / "run").glob("*.zarr"))) == 1 + 1 + 3


@pytest.mark.full
@pytest.mark.cluster
def test_workers_give_the_same_table(finished: Path, tmp_path: Path, client) -> None:
    ours = compare(_settings(tmp_path, methods=METHODS[:1] + METHODS[3:]))
    there = {
        (row["name"], row["n_features"]): row["scores"]
        for row in json.loads((finished / "table.json").read_text())["rows"]
    }
    for row in ours.rows:
        assert there[row.name, row.n_features] == row.scores


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"methods": ["mcf"]}, "did you mean 'mcfs'"),
        ({"methods": []}, "methods"),
        ({"methods": ["mcfs", "mcfs"]}, "a 'name' of its own"),
        ({"methods": [{"method": "mcfs", "preprocess": "none"}]}, "top level"),
        ({"methods": [{"method": "mcfs", "mcfs": {"n_cluster": 3}}]}, "did you mean 'n_clusters'"),
        ({"methods": [{"method": "max_variance", "mcfs": {}, "graph": {}}]}, "does not use"),
        ({"methods": [{"method": "mcfs", "mcfs": 3}]}, "must be a section"),
        ({"methods": [{"method": "mcfs", "grid": {"mcfs.n_clusters": 3}}]}, "grid takes lists"),
        ({"methods": [3]}, "takes names, or sections"),
        ({"methods": [{"method": "ndfs", "keep": "all"}]}, "only for tables of papers"),
        ({"methods": [{"method": "ndfs", "keep": 3}]}, "keep must be all"),
        ({"n_features_to_select": [5, 0]}, "at least 1"),
        ({"n_features_to_select": 65}, r"in \[1, 64\]"),
        ({"graph": {"n_neighbors": 2000}}, "n_neighbors"),
        ({"evaluate": {"labels": "sklearn:iris"}}, "150 labels"),
        ({"evaluate": {"labels": "sklearn:digits", "init": "best"}}, "k-means"),
        ({"memory_limit": "100 MiB"}, "memory_limit"),
        ({"method": "mcfs"}, "unknown key 'method'"),
        (
            {"methods": [{"method": "mcfs", "name": "chance"}]},
            "is reserved for a row of every table",
        ),
        ({"compare": {"n_draws": 1}}, "n_draws"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((InputError, MemoryError), match=message):
        compare(_settings(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


def test_sizes_that_one_fit_serves() -> None:
    base = {"run": "r", "input": {"uri": "x.npy"}, "n_features_to_select": 1}

    def sizes(method: str, wanted: list[int], **own: Any) -> list[tuple[int, list[int]]]:
        fits = fits_for(make_config(**base, method=method, **own), wanted)
        return [(config.n_features_to_select, served) for config, served in fits]

    assert sizes("mcfs", [600, 50, 500, 700]) == [(500, [50, 500]), (600, [600]), (700, [700])]
    assert sizes("max_variance", [600, 50]) == [(600, [50, 600])]
    assert sizes("m3fs", [600, 50]) == [(50, [50]), (600, [600])]
    assert sizes("highly_variable", [600, 50]) == [(600, [50, 600])]
    batches = {"highly_variable": {"batch_key": "b.npy"}}
    assert sizes("highly_variable", [600, 50], **batches) == [(50, [50]), (600, [600])]


def test_a_grid_gives_one_configuration_for_each_point() -> None:
    grid = {"ndfs.alpha": [1.0, 2.0], "ndfs.beta": [3.0]}
    entry = {"method": "ndfs", "ndfs": {"n_clusters": 3}, "grid": grid}
    actual = load_comparison(_settings(Path("x"), methods=[entry])).entries(5)
    assert [item.choice for item in actual] == [
        {"ndfs.alpha": alpha, "ndfs.beta": 3.0} for alpha in (1.0, 2.0)
    ]
    assert [(c.ndfs.alpha, c.ndfs.n_clusters) for c in (item.config for item in actual)] == [
        (1.0, 3), (2.0, 3)
    ]  # fmt: skip
    assert [item.name for item in actual] == ["ndfs (alpha 1, beta 3)", "ndfs (alpha 2, beta 3)"]


def test_no_two_rows_have_the_same_name_and_an_error_says_which_method(tmp_path: Path) -> None:
    X = np.random.default_rng(5).normal(size=(60, 5)) + 3
    X[7] = 0
    explained = [{"auto": "explained_variance", "share": share} for share in (0.5, 0.9)]
    grid = {"method": "laplacian_score", "grid": {"graph.n_neighbors": [3, 4]}}
    settings = {"run": str(tmp_path / "run"), "compare": {"chance": False}, "preprocess": "none"}
    settings |= {"methods": ["max_variance", grid]}
    result = compare({**settings, "n_features_to_select": [*explained, explained[0]]}, data=X)
    names = [row.name for row in result.rows]
    assert len(set(names)) == len(names) == 7
    assert names[1] == "max_variance (auto explained_variance, share 0.5)"
    cosine = {"method": "laplacian_score", "name": "mine", "graph": {"metric": "cosine"}}
    settings |= {"methods": ["max_variance", cosine], "n_features_to_select": 2}
    with pytest.raises(InputError, match="Row 7 is zero") as caught:
        compare(settings, data=X, fresh=True)
    assert "The error is from method 'mine' of the comparison" in caught.value.__notes__[0]


def test_a_refusal_of_memory_says_which_method(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(1500, 4000)).astype(np.float32)
    settings = {"run": str(tmp_path / "run"), "methods": ["max_variance", "udfs"]}
    settings |= {"n_features_to_select": 5, "memory_limit": "768 MiB"}
    with pytest.raises(MemoryLimitError, match="matrices of 1,500 x 4,000") as caught:
        compare(settings, data=X)
    assert "The error is from method 'udfs' of the comparison" in caught.value.__notes__[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("grid", [{3: [4]}, {"input.uri": ["x"]}, {"ndfs": [1]}, {"ndfs.alpha": 1}])
def test_keys_of_a_grid_are_settings_of_sections(grid: dict[Any, Any]) -> None:
    entry = {"method": "ndfs", "ndfs": {"n_clusters": 3}, "grid": grid}
    with pytest.raises(ConfigError, match="grid takes lists of values by dotted names"):
        load_comparison(_settings(Path("x"), methods=[entry]))


def test_the_command_prints_and_exits_as_run_does(tmp_path: Path, capsys) -> None:
    path = tmp_path / "compare.yaml"
    path.write_text(yaml.safe_dump(_settings(tmp_path, methods=["max_variance"])))

    def call(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            cli.main(["compare", str(path), "--quiet", *arguments])
        return int(ended.value.code or 0)

    assert call() == 0
    assert "max_variance" in capsys.readouterr().out
    assert call("--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["n_samples"] == 1797
    assert call("--set", "n_features_to_select=100") == 2
    assert "has 64 features. Got 100" in capsys.readouterr().err
    assert call("--set", "memory_limit=1 MiB") == 3


@pytest.mark.parametrize("path", sorted((REPO / "pipelines" / "compare").glob("*.yaml")))
def test_every_shipped_comparison_follows_the_schema(path: Path) -> None:
    config = load_comparison(path)
    assert config.run == f"runs/compare-{path.stem}"
    with pytest.raises(ConfigError, match="unknown key"):
        load_comparison(path, ["evaluat=3"])


def test_columns_of_one_figure_have_the_same_bytes() -> None:
    from bigfs.report.curves import Curve, draw_panels, drawn

    curves = [Curve("a", [1, 2], [3.0, 4.0], [0.0, 0.0]), Curve("all", [9], [5.0], [0.1], True)]
    panels = [("NMI", curves), ("error", curves[:1])]
    first, second = (
        drawn(lambda figure: draw_panels(figure, panels, "title"), ["svg", "png"]) for _ in range(2)
    )
    assert first == second
    assert b"title" in first[0] and first[1].startswith(b"\x89PNG")


def test_names_in_the_figure_are_no_formulas_and_none_is_hidden() -> None:
    from bigfs.report.curves import Curve, draw_panels, drawn

    curves = [Curve(name, [1, 2], [3.0, 4.0], [0.0, 0.0]) for name in ("$a_{$", "_under")]
    shown: list[str] = []

    def draw(figure: Any) -> None:
        draw_panels(figure, [("NMI", curves)], "a$b^{$<b>.csv")
        shown.extend(text.get_text() for text in figure.legends[0].get_texts())

    assert drawn(draw, ["svg"])[0]
    assert shown == [r"\$a_{\$", " _under"]


def test_the_schema_of_comparisons_describes_every_setting(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["schema", "compare"])
    assert not ended.value.code
    schema = json.loads(capsys.readouterr().out)
    for name, about in schema["properties"].items():
        assert about.get("description"), name


@pytest.mark.parametrize("chance", [True, False])
def test_a_run_and_a_comparison_judge_counts_in_the_same_space(
    tmp_path: Path, chance: bool
) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    means = np.where(np.arange(40) % 4 == y[:, None], 3.0, 0.4) * rng.gamma(2, 0.5, (150, 1))
    scipy.sparse.save_npz(tmp_path / "X.npz", scipy.sparse.csr_array(rng.poisson(means)))
    np.save(tmp_path / "y.npy", y)
    shared = {"input": {"uri": str(tmp_path / "X.npz")},
              "evaluate": {"labels": str(tmp_path / "y.npy"), "n_repetitions": 3}}  # fmt: skip
    method = {"method": "highly_variable", "highly_variable": {"flavor": "deviance"}}
    result = bigfs.run({**shared, **method, "run": str(tmp_path / "run"),
                        "n_features_to_select": 8})  # fmt: skip
    table = compare({**shared, "run": str(tmp_path / "compared"), "n_features_to_select": [8],
                     "methods": [method], "compare": {"chance": chance}})  # fmt: skip
    row = next(row for row in table.rows if row.method == "highly_variable")
    assert result.evaluation is not None
    for score in ("nmi_mean", "nearest_neighbor_error"):
        assert row.scores[score] == result.evaluation["selected"][score]


@pytest.mark.full
def test_data_and_labels_in_memory_give_the_table_of_files(tmp_path: Path) -> None:
    X = np.random.default_rng(3).normal(size=(60, 5)).round(3)
    y = np.repeat(["a", "b", "c"], 20)
    X[:, 0] += np.repeat([0.0, 5.0, 9.0], 20)
    frame = pd.DataFrame(X, columns=list("pqrst"))
    frame.assign(kind=y).to_csv(tmp_path / "table.csv", index=False)
    table = f"{tmp_path}/table.csv"
    settings = {"methods": ["max_variance", "laplacian_score"], "n_features_to_select": [1, 2]}
    of_file = compare(
        {**settings, "run": f"{tmp_path}/file", "input": {"uri": table, "labels": "kind"}}
    )
    given = {
        "array": {"data": frame, "labels": y},
        "column": {"data": frame.assign(kind=y), "labels": "kind"},
    }
    for name, objects in given.items():
        result = compare({**settings, "run": f"{tmp_path}/{name}"}, **objects)
        for row, expected in zip(result.rows, of_file.rows, strict=True):
            assert (row.name, row.n_features) == (expected.name, expected.n_features)
            assert row.scores["nmi_mean"] == expected.scores["nmi_mean"], name
    with pytest.raises(InputError, match="has no column 'nothing'"):
        compare({**settings, "run": f"{tmp_path}/x"}, data=frame, labels="nothing")
    labels, X = pd.Series(y, index=[f"row {i}" for i in range(60)]), frame
    compare({**settings, "run": f"{tmp_path}/same"}, data=X.set_axis(labels.index), labels=labels)
    with pytest.raises(InputError, match="of label 0 is row 0, but the data have row 59"):
        falling = X.set_axis(labels.index[::-1])
        compare({**settings, "run": f"{tmp_path}/x"}, data=falling, labels=labels)
    with pytest.raises(ConfigError, match="overrides can only be used with"):
        compare(load_comparison({**settings, "run": "x", "input": {"uri": table}}), labels=y)
    assert not (tmp_path / "x").exists()
