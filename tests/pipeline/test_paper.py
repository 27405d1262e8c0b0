"""The tables of papers: every row is there, by the protocol, the same for any workers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris

from bigfs import MaxVariance
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.core.seeds import derive_seed
from bigfs.evaluate.protocols import kmeans_scores
from bigfs.metrics import nearest_neighbor_error
from bigfs.pipeline import compare
from bigfs.pipeline.inspect import inspect
from bigfs.selectors.registry import load_comparison
from pipelines.paper import table as papers
from pipelines.paper.datasets import localized_clusters
from pipelines.paper.protocols import _MARGIN
from pipelines.paper.settings import PaperTable
from pipelines.paper.trials import draw_classes
from tests.conftest import REPO

PAPERS = sorted((REPO / "pipelines" / "paper").glob("*.yaml"))


def _settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Iris twice over: from scikit-learn, and as a file that is not there."""
    rows = {"max_variance": {"nmi": [80.0, 74.2]}, "all_features": {"nmi": [80.0, 74.2]}}
    return {
        "run": str(folder / "run"),
        "title": "a paper",
        "protocol": "draws",
        "data": str(folder),
        "scores": ["nmi", "nearest_neighbor_error"],
        "n_features_to_select": [2, 1],
        "n_draws": 3,
        "n_init": 2,
        "methods": ["max_variance", "mcfs"],
        "sets": [
            {"name": "iris", "uri": "sklearn:iris", "n_classes": [2, 3], "paper": rows},
            {"name": "lost", "uri": "lost.npz", "n_classes": [2, 3], "paper": rows},
            {"name": "never", "unavailable": "nobody has it", "paper": {"mcfs": {"nmi": 1.0}}},
        ],
        **changes,
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compare(_settings(tmp_path_factory.mktemp("paper")))


def _row(table: Any, **wanted: Any) -> Any:
    [row] = [r for r in table.rows if all(getattr(r, k) == v for k, v in wanted.items())]
    return row


def test_draws_follow_the_protocol_of_mcfs(table: Any) -> None:
    X, y = load_iris(return_X_y=True)
    kept = MaxVariance(2).fit(X).get_support(indices=True)
    complete = kmeans_scores(
        X[:, kept].astype(np.float32), y, n_clusters=3, n_init=2, init="random",
        seed=derive_seed(0, "evaluation", 0),
    )  # fmt: skip
    row = _row(table, set="iris", case="3", method="max_variance", n_features=2, score="nmi")
    assert row.value == pytest.approx(100 * complete["nmi"])
    assert (row.std, row.paper) == (0.0, 74.2)
    error = _row(table, set="iris", method="all_features", score="nearest_neighbor_error")
    assert error.value == pytest.approx(100 * nearest_neighbor_error(X.astype(np.float32), y))
    drawn = [
        kmeans_scores(
            X[np.isin(y, classes)].astype(np.float32), y[np.isin(y, classes)], n_clusters=2,
            n_init=2, init="random", seed=derive_seed(0, "evaluation", 0),
        )["nmi"]
        for classes in (draw_classes(y, 2, draw, 0) for draw in range(3))
    ]  # fmt: skip
    row = _row(table, set="iris", case="2", method="all_features", score="nmi")
    assert (row.value, row.std) == (
        pytest.approx(100 * np.mean(drawn)), pytest.approx(100 * np.std(drawn))
    )  # fmt: skip
    average = _row(table, set="iris", case="average", method="all_features", score="nmi")
    assert average.paper == pytest.approx(77.1)
    assert average.std is None  # all classes are one test: it has no deviation


def test_draws_of_classes_differ_and_repeat() -> None:
    y = np.repeat(np.arange(10), 3)
    drawn = [draw_classes(y, 4, draw, 0) for draw in range(20)]
    assert len(set(drawn)) > 15
    assert all(len(set(item)) == 4 for item in drawn)
    assert drawn == [draw_classes(y, 4, draw, 0) for draw in range(20)]


def test_rows_without_data_are_listed_with_the_reason(table: Any) -> None:
    text = table.text()
    lost = [row for row in table.rows if row.set == "lost"]
    assert [row.case for row in lost] == ["2", "2", "3", "3", "average", "average"]
    assert all(row.value is None and row.paper is not None for row in lost)
    assert "No data for lost: lost.npz is not in the data folder." in text
    assert "No data for never: nobody has it." in text
    assert sum("no data" in line for line in text.splitlines()) == len(lost) + 1


def test_methods_that_are_not_run_are_listed_with_the_reason(tmp_path: Path) -> None:
    paper = {"max_variance": {"nmi": 80.0}, "theirs": {"nmi": 70.0}}
    sets = [{"name": "iris", "uri": "sklearn:iris", "paper": paper}]
    settings = _settings(tmp_path, sets=sets, methods=["max_variance"])
    text = compare({**settings, "not_run": {"theirs": "nobody has the program"}}).text()
    assert "Not run, theirs: nobody has the program." in text
    [line] = [line for line in text.splitlines() if line.startswith("iris  theirs")]
    assert line.split() == ["iris", "theirs", "2", "NMI", "not", "run", "70.0", "-"]


def test_the_paper_has_values_for_the_first_size_only(table: Any) -> None:
    other = [row for row in table.rows if row.set == "iris" and row.n_features == 1]
    assert other and all(row.paper is None for row in other)
    assert json.loads(table.json())["remarks"].keys() == {
        "No data for lost", "No data for never"
    }  # fmt: skip
    assert table.csv().splitlines()[0].startswith("set,case,method,n_features,score,value")
    assert "a paper" in inspect(table.path)


def test_orders_are_compared(tmp_path: Path) -> None:
    paper = {
        "max_variance": {"nearest_neighbor_error": 1.0},
        "mcfs": {"nearest_neighbor_error": 2.0},
    }
    sets = [{"name": "digits", "uri": "sklearn:digits", "paper": paper}]
    methods = ["max_variance", {"method": "mcfs", "mcfs": {"n_clusters": 2}}]
    settings = _settings(tmp_path, sets=sets, methods=methods, n_features_to_select=10, n_init=1)
    [(name, case, score, ours, theirs)] = compare(settings).orders()
    assert (name, case, score) == ("digits", "", "nearest_neighbor_error")
    assert theirs == ["max_variance", "mcfs"]
    X, y = load_digits(return_X_y=True)
    assert sorted(ours) == sorted(theirs)


def _grid(folder: Path, **changes: Any) -> dict[str, Any]:
    grid = {"ndfs.alpha": [0.1, 1.0], "ndfs.beta": [0.1, 1.0]}
    paper = {"ndfs": {"acc": 90.0, "nmi": 80.0}}
    return _settings(
        folder,
        protocol="grid",
        scale="maximum",
        scores=["acc", "nmi"],
        n_features_to_select=[1, 2, 3],
        n_repetitions=6,
        n_init=1,
        methods=[{"method": "ndfs", "grid": grid, "ndfs": {"max_iter": 5}}, "max_variance"],
        sets=[{"name": "iris", "uri": "sklearn:iris", "paper": paper}],
        **changes,
    )


@pytest.mark.full
def test_the_best_of_the_grid(tmp_path: Path) -> None:
    from bigfs import NDFS

    X, y = load_iris(return_X_y=True)
    X = X / X.max()
    table = compare(_grid(tmp_path))
    seen = {}
    for alpha in (0.1, 1.0):
        for beta in (0.1, 1.0):
            fitted = NDFS(3, n_clusters=3, alpha=alpha, beta=beta, max_iter=5).fit(X)
            for m in (1, 2, 3):
                part = X[:, fitted.support(m)].astype(np.float32)
                seen[alpha, beta, m] = [
                    kmeans_scores(part, y, n_clusters=3, n_init=1, init="random",
                                  seed=derive_seed(0, "evaluation", i))
                    for i in range(6)
                ]  # fmt: skip
    for score in ("acc", "nmi"):
        row = _row(table, method="ndfs", score=score)
        means = {key: 100 * np.mean([r[score] for r in each]) for key, each in seen.items()}
        assert row.value == pytest.approx(max(means.values()))
        assert row.paper == {"acc": 90.0, "nmi": 80.0}[score]
        assert "alpha" in row.detail and "features" in row.detail


def test_a_grid_of_words(tmp_path: Path) -> None:
    methods = [{"method": "spec", "grid": {"spec.ranking": ["phi1", "phi3"]}}]
    sets = [{"name": "iris", "uri": "sklearn:iris", "paper": {"spec": {"acc": 90.0}}}]
    settings = {**_grid(tmp_path), "methods": methods, "sets": sets}
    assert _row(compare(settings), method="spec", score="acc").detail.startswith("ranking phi")


def test_what_is_given_up_early_is_far_behind(tmp_path: Path, monkeypatch) -> None:
    from pipelines.paper import protocols

    quick = compare(_grid(tmp_path))
    monkeypatch.setattr(protocols, "_MARGIN", 1000.0)
    complete = compare(_grid(tmp_path), fresh=True)
    assert quick.rows == complete.rows
    assert _MARGIN > 0


def test_rows_are_drawn_several_times(tmp_path: Path) -> None:
    sets = [
        {
            "name": "digits",
            "uri": "sklearn:digits",
            "classes": [1, 7],
            "pool": {"height": 8, "width": 8, "by": 2},
            "sample": {"rows": 200, "draws": 2},
            "paper": {"max_variance": {"acc": 99.0}},
        }
    ]
    settings = _settings(
        tmp_path, protocol="grid", scores=["acc"], methods=["max_variance"], sets=sets
    )
    row = _row(compare(settings), method="max_variance")
    assert row.detail.startswith("mean of 2 draws")
    assert 80 < row.value <= 100


def test_the_generated_clusters_are_those_of_the_paper(tmp_path: Path) -> None:
    X, y = localized_clusters(np.random.default_rng(0))
    means = np.stack([X[y == c].mean(axis=0) for c in range(4)])
    np.testing.assert_allclose(means[1], [-0.5, -0.5, 0, 0], atol=0.2)
    np.testing.assert_allclose(X[y == 2].std(axis=0), [0.6, 0.2, 0.2, 0.6], rtol=0.25)
    sets = [
        {
            "name": "synthetic",
            "uri": "generated:localized",
            "sample": {"rows": 400, "draws": 3},
            "paper": {"all_features": {"error": 22.5}},
        }
    ]
    settings = _settings(
        tmp_path, protocol="labels", scores=["error"], methods=["max_variance"], sets=sets
    )
    row = _row(compare({**settings, "data": None}), method="all_features")
    assert row.detail.startswith("mean of 3 draws") and 0 < row.value < 50


def test_rows_of_a_method_that_has_changed_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, stages_of = _settings(tmp_path), papers.stages_of_selection

    def never(*given: Any) -> None:
        raise AssertionError("it is computed")

    def later(*given: Any) -> list[Any]:
        return [replace(stage, version=stage.version + 1) for stage in stages_of(*given)]

    compare(settings)
    monkeypatch.setattr(papers, "_PROTOCOLS", dict.fromkeys(papers._PROTOCOLS, never))
    compare(settings)
    monkeypatch.setattr(papers, "stages_of_selection", later)
    with pytest.raises(AssertionError, match="it is computed"):
        compare(settings)


def test_clusters_of_the_method_itself_or_of_k_means(tmp_path: Path) -> None:
    paper = {"ndfs": {"acc": 90.0}, "max_variance": {"error": 4.0}}
    settings = _settings(
        tmp_path,
        protocol="labels",
        scores=["acc", "error"],
        n_repetitions=2,
        methods=[{"method": "ndfs", "ndfs": {"max_iter": 5}}, "max_variance"],
        sets=[{"name": "iris", "uri": "sklearn:iris", "paper": paper}],
    )
    table = compare(settings)
    from bigfs import NDFS
    from bigfs.metrics import clustering_accuracy

    X, y = load_iris(return_X_y=True)
    labels = NDFS(2, n_clusters=3, max_iter=5).fit(X).labels_
    row = _row(table, method="ndfs", score="acc")
    assert row.value == pytest.approx(100 * clustering_accuracy(y, labels))
    assert _row(table, method="max_variance", score="error").value < 15
    assert _row(table, method="all_features", score="error").value < 20


@pytest.mark.full
@pytest.mark.cluster
@pytest.mark.parametrize("make", [_settings, _grid])
def test_workers_give_the_same_table(tmp_path: Path, client, make) -> None:
    from bigfs.runtime.scope import inline

    there = compare(make(tmp_path))
    with inline():
        here = compare({**make(tmp_path), "run": str(tmp_path / "here")})
    assert [vars(row) for row in there.rows] == [vars(row) for row in here.rows]


def test_the_best_of_a_grid_of_clusters(tmp_path: Path) -> None:
    """Larger accuracy, smaller error; a set's own setting stands above the grid."""
    single = {"name": "iris", "uri": "sklearn:iris", "paper": {"m3fs": {"acc": 90.0}}}
    sets = [single, {**single, "name": "fixed", "settings": {"m3fs.C": 1.0}}]
    grid = {"m3fs.C": [0.01, 1.0], "m3fs.smoothness": [0.0, 1.0]}
    m3fs = {"init": "kmeans", "n_init": 1}
    settings = _settings(
        tmp_path,
        protocol="labels",
        preprocess="standardize",
        scores=["acc", "error"],
        methods=[{"method": "m3fs", "grid": grid, "m3fs": m3fs}],
        sets=sets,
    )
    comparison = compare(settings)
    best = _row(comparison, set="iris", method="m3fs", score="acc")
    assert best.detail in {f"C {C}, smoothness {s}" for C in ("0.01", "1") for s in "01"}
    fixed = _row(comparison, set="fixed", method="m3fs", score="acc")
    assert fixed.detail.startswith("C 1, smoothness") and fixed.value <= best.value
    assert (
        _row(comparison, set="iris", method="m3fs", score="error").value <= 100 - best.value + 1e-9
    )


def test_a_set_has_settings_of_its_own_and_methods_may_start_from_the_classes(tmp_path) -> None:
    sets = [
        {
            "name": "iris",
            "uri": "sklearn:iris",
            "preprocess": "standardize",
            "settings": {"ndfs.max_iter": 1, "ndfs.init": "classes", "mcfs.n_clusters": 2},
            "paper": {"ndfs": {"acc": 90.0}},
        }
    ]
    methods = ["ndfs", {"method": "mcfs", "name": "m"}, "laplacian_score"]
    methods += [{"method": "ndfs", "name": "whole", "keep": "all"}]
    settings = _settings(tmp_path, protocol="labels", scores=["acc"], methods=methods, sets=sets)
    table = load_comparison(settings)
    ndfs, mcfs, _, _ = (entry.config for entry in table.entries(table.sets[0], n_clusters=7))
    assert (ndfs.ndfs.max_iter, ndfs.ndfs.n_clusters, mcfs.mcfs.n_clusters) == (1, 7, 2)
    comparison = compare(table)
    assert _row(comparison, method="ndfs").value > 90, "one step from the classes"
    assert _row(comparison, method="whole").n_features is None


def test_finished_cases_are_kept(tmp_path: Path, monkeypatch) -> None:
    first = compare(_settings(tmp_path))
    monkeypatch.setattr(papers, "_PROTOCOLS", {})
    assert compare(_settings(tmp_path)).rows == first.rows
    with pytest.raises(KeyError):
        compare(_settings(tmp_path, n_init=3))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"data": None}, "--set data=FOLDER"),
        ({"data": "nowhere"}, "not a folder"),
        ({"only": ["irsi"]}, "'irsi'"),
        ({"memory_limit": "1 MiB"}, "memory_limit"),
        ({"protocol": "guess"}, "protocol must be one of"),
        ({"n_features_to_select": [9]}, r"in \[1, 4\]"),
        ({"protocol": "grid", "scores": ["acc", "error"]}, "'grid' does not report 'error'"),
        ({"protocol": "labels", "scores": ["nearest_neighbor_error"]}, "does not report"),
    ],
)
def test_bad_tables_are_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((InputError, MemoryError), match=message):
        compare(_settings(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"paper": {"mfcs": {"nmi": 1.0}}}, "not one of the methods"),
        ({"paper": {"mcfs": {"nmi": [1.0, 2.0, 3.0]}}}, "each of the 2 cases"),
        ({"paper": {"mcfs": {"nmi": "high"}}}, "takes a number"),
        ({"unavailable": "why"}, "either uri"),
        ({"n_classes": [2, 30]}, "3 classes. Got 30"),
        ({"classes": [1, 3]}, "3 classes. Got 3"),
        ({"sample": {"rows": 151, "draws": 1}}, "has 150 rows"),
        ({"pool": {"height": 2, "width": 3, "by": 1}}, "have 4 values"),
        ({"settings": {"mfcs.n_clusters": 2}}, "belongs to no method"),
        ({"settings": {"mcfs.n_cluster": 2}}, "did you mean 'n_clusters'"),
        ({"pool": {"height": 2, "width": 2, "by": 3}}, "do not fill"),
        ({"pool": {"height": 2}}, "missing key 'width'"),
    ],
)
def test_bad_sets_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    single = {**_settings(tmp_path)["sets"][0], **changes}
    with pytest.raises(InputError, match=message):
        compare(_settings(tmp_path, sets=[single]))


def test_a_method_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    n = 2_000  # five matrices of 2,000 x 2,000 are 153 MiB, on either side
    X = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    np.savez(tmp_path / "wide.npz", X=X, y=np.arange(n) % 3)
    single = {"name": "wide", "uri": str(tmp_path / "wide.npz"), "n_classes": [2], "paper": {}}
    settings = _settings(tmp_path, sets=[single], methods=["q_alpha"], memory_limit="768 MiB")
    with pytest.raises(MemoryLimitError, match="q_alpha"):
        compare(settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.name)
def test_every_shipped_paper_follows_the_schema(path: Path) -> None:
    table = load_comparison(path)
    assert isinstance(table, PaperTable)
    assert table.run == f"runs/paper-{path.stem}"
    assert load_comparison(table.model_dump(mode="json", exclude_unset=True)) == table


@pytest.mark.full
def test_the_paper_of_mcfs_on_one_real_set(tmp_path: Path, data_dir: Path) -> None:
    path = REPO / "pipelines" / "paper" / "mcfs.yaml"
    settings = [
        f"run={tmp_path / 'run'}",
        f"data={data_dir}",
        "only=[ORL, Isolet]",
        "n_draws=1",
        "n_init=1",
    ]
    table = compare(path, overrides=settings)
    row = _row(table, set="ORL", case="40", method="mcfs", score="nearest_neighbor_error")
    assert row.value == pytest.approx(6.75)
    assert (
        "Isolet.npz is not in the data folder" in table.text()
        or data_dir.joinpath("Isolet.npz").exists()
    )
