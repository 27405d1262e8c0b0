"""Some rows of the input: every k-th, or by a column; labels, ids and sources go along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

import bigfs
from bigfs.core.errors import ConfigError, InputError
from bigfs.pipeline.inspect import describe
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import load_config
from bigfs.store.ingest import ingest
from bigfs.store.source import open_matrix

ROWS = 60


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.poisson(4, (ROWS, 3)).astype(float), columns=["g0", "g1", "g2"])
    kinds = np.array(["a", "b", "c"])[np.arange(ROWS) % 3]
    return frame.assign(id=[f"s{i}" for i in range(ROWS)], kind=kinds, quality=np.arange(ROWS) / 60)


def settings(folder: Path, **source: Any) -> dict[str, Any]:
    table().to_csv(folder / "X.csv", index=False)
    return {
        "run": str(folder / "run"),
        "input": {"uri": str(folder / "X.csv"), "index": "id", "labels": "kind", **source},
        "method": "max_variance",
        "n_features_to_select": 2,
    }


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ({"every": 7}, np.arange(ROWS) % 7 == 0),
        pytest.param(
            {"column": "kind", "keep": ["a", "c"]}, np.arange(ROWS) % 3 != 1, marks=pytest.mark.full
        ),
        pytest.param(
            {"column": "kind", "drop": "a", "every": 2},
            np.isin(np.arange(ROWS) % 6, [2, 4]),
            marks=pytest.mark.full,
        ),
        pytest.param(
            {"column": "quality", "at_least": 0.25, "at_most": 0.5}, None, marks=pytest.mark.full
        ),
        pytest.param(
            {"column": "id", "keep": ["s3", "s4", "s50"]},
            np.isin(np.arange(ROWS), [3, 4, 50]),
            marks=pytest.mark.full,
        ),
    ],
)
def test_ids_and_labels_are_those_of_the_rows(
    rows: dict[str, Any], kept: np.ndarray | None, tmp_path: Path
) -> None:
    frame = table()
    kept = frame["quality"].between(0.25, 0.5).to_numpy() if kept is None else kept
    features = ["g0", "g1", "g2"] + ([] if rows.get("column") == "quality" else ["quality"])
    config = settings(tmp_path, rows=rows)
    if "id" in rows.values():
        config["input"].pop("labels")  # a class each
        config["input"]["columns"] = ["g*", "quality"]
    result = bigfs.run(config)
    assert result.n_samples == kept.sum() and result.feature_names == features
    np.testing.assert_allclose(result.scores, frame[kept][features].var(ddof=0), rtol=1e-12)
    written = pd.read_csv(result.export(tmp_path / "out.csv", ids=True))
    assert list(written["id"]) == list(frame["id"][kept])
    again = bigfs.run(str(tmp_path / "run" / "config.yaml"))
    assert again.stages["data"]["attempt"] == result.stages["data"]["attempt"]


@pytest.mark.parametrize("command", ["run", "compare"])
def test_labels_of_all_rows_of_a_file_that_says_how_many_it_has(
    command: str, tmp_path: Path
) -> None:
    frame = table()
    np.savez(tmp_path / "X.npz", X=frame[["g0", "g1", "g2"]], y=np.arange(ROWS) // 30)
    config = settings(tmp_path, rows={"every": 3}, missing="error")
    del config["input"]["index"]
    config["input"] |= {"uri": str(tmp_path / "X.npz"), "labels": "y"}
    if command == "run":
        result = bigfs.run(config)
        assert result.n_samples == 20 and result.evaluation is not None
        config["input"].pop("labels")
        config["evaluate"] = {"labels": f"{tmp_path}/X.npz::y"}
        assert bigfs.run(config, fresh=True).evaluation == result.evaluation
    else:
        config["methods"] = [config.pop("method")]
        assert bigfs.compare(config).rows


def test_rows_and_missing_values_together(tmp_path: Path) -> None:
    frame = table()
    frame.loc[[4, 6, 7], "g1"] = np.nan
    config = settings(tmp_path, rows={"every": 2}, missing="drop_rows")
    frame.to_csv(tmp_path / "X.csv", index=False)
    result = bigfs.run(config)
    kept = frame[::2].drop(index=[4, 6])
    assert result.n_samples == 28 and result.evaluation is not None
    np.testing.assert_allclose(result.scores[0], kept["g0"].var(ddof=0), rtol=1e-12)
    with pytest.raises(InputError, match="row 4, column 1 .'g1'. is NaN"):
        source = open_matrix(
            config["input"]["uri"], columns=["g*"], rows={"column": "kind", "keep": "b"}
        )
        ingest(source, tmp_path / "out.zarr")


@pytest.mark.parametrize("way", ["rows", "missing", "estimator"])
@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"preprocess": "unit_norm"}, "row 20 is all zeros"),
        ({"preprocess": "log1p"}, "row 30, column 2 is -5"),
        ({"preprocess": "normalize_total"}, "row 30, column 2 is -5"),
        ({"method": "laplacian_score", "graph": {"metric": "cosine"}}, "Row 20 is zero"),
        ({"method": "highly_variable"}, "row 30, column 2 is -5"),
    ],
)
def test_a_row_that_is_refused_is_named_by_its_number_in_the_file(
    way: str, changed: dict[str, Any], place: str, tmp_path: Path
) -> None:
    X = np.abs(np.random.default_rng(0).normal(size=(50, 4))) + 0.1
    X[20], X[30, 2] = 0.0, -5.0
    left_out = np.isin(np.arange(50), [0, 1, 2, 3, 4, 5, 6, 7, 8, 25])
    frame = pd.DataFrame(X, columns=list("abcd"))
    if way == "rows":
        frame["kind"] = np.where(left_out, "bad", "good")
    else:
        frame.loc[left_out, "b"] = np.nan
    frame.to_csv(tmp_path / "X.csv", index=False)
    source = {"rows": {"column": "kind", "keep": "good"}} if way == "rows" else {}
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 2,
        "input": {"uri": str(tmp_path / "X.csv"), "missing": "drop_rows", **source}, **changed,
    }  # fmt: skip
    with pytest.raises(InputError, match=place):
        if way == "estimator":
            given = {**changed, **changed.get("graph", {}), "missing": "drop_rows"}
            given.pop("graph", None)
            kinds = {
                "laplacian_score": bigfs.LaplacianScore, "highly_variable": bigfs.HighlyVariable
            }  # fmt: skip
            kinds.get(given.pop("method", ""), bigfs.MaxVariance)(2, **given).fit(frame)
        else:
            bigfs.run(settings)


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "h5ad", "AnnData"])
def test_rows_without_a_value_are_not_kept(kind: str, tmp_path: Path) -> None:
    X: Any = pd.DataFrame({"g0": [1.0, 2, 3, 4]}, index=list("rstu"))
    columns = {
        "text": ["a", None, "b", "a"],
        "class": pd.Categorical(["a", None, "b", "a"]),
        "whole": pd.array([1, None, 0, 1], dtype="Int64"),
        "bool": pd.array([True, None, False, True], dtype="boolean"),
    }
    place: Any = tmp_path / f"X.{kind}"
    table, obs = X.assign(**columns), pd.DataFrame(columns, index=X.index)
    if kind in ("h5ad", "AnnData"):
        adata = pytest.importorskip("anndata").AnnData(X, obs=obs)
        place = adata if kind == "AnnData" else adata.write_h5ad(place) or place
    elif kind == "frame":
        place = table
    else:
        table.to_csv(place, index=False) if kind == "csv" else table.to_parquet(place)
    for name, keep in {"text": "a", "class": "a", "whole": 1, "bool": True}.items():
        keep = "True" if (kind, name) == ("csv", "bool") else keep  # as it is written
        source = open_matrix(place, columns="g*", rows={"column": name, "keep": keep})
        assert np.concatenate(list(source.iter_blocks(9))).ravel().tolist() == [1, 4], name
    with pytest.raises(InputError, match="no row has 'c' in 'text' .* It holds a, b"):
        list(open_matrix(place, columns="g*", rows={"column": "text", "keep": "c"}).iter_blocks(9))


@pytest.mark.full
def test_a_changed_filter_reads_again_and_a_plan_reads_no_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", table()[["g0", "g1", "g2"]])
    config = settings(tmp_path, rows={"every": 3})
    config["input"] = {"uri": str(tmp_path / "X.npy"), "rows": {"every": 3}}
    plan = plan_pipeline(load_config(config, []))
    assert plan.shape is not None and plan.shape.n_samples == 20 and not plan.unknown
    first = bigfs.run(config)
    second = bigfs.run(config, overrides=["input.rows.every=4"])
    assert (first.n_samples, second.n_samples) == (20, 15)
    np.save(tmp_path / "q.npy", np.arange(ROWS))
    config["input"]["rows"] = {"column": str(tmp_path / "q.npy"), "at_most": 9}
    plan = plan_pipeline(load_config(config, []))
    assert plan.unknown and bigfs.run(config).n_samples == 10


def test_a_changed_mask_reads_again(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", table()[["g0", "g1", "g2"]])
    np.save(tmp_path / "q.npy", np.arange(ROWS))
    rows = {"column": str(tmp_path / "q.npy"), "at_most": 9}
    config = settings(tmp_path) | {"input": {"uri": str(tmp_path / "X.npy"), "rows": rows}}
    first = bigfs.run(config)
    assert bigfs.run(config).stages["data"]["attempt"] == first.stages["data"]["attempt"]
    np.save(tmp_path / "q.npy", np.arange(ROWS)[::-1])
    again = bigfs.run(config)
    assert again.stages["data"]["attempt"] != first.stages["data"]["attempt"]
    X = table()[["g0", "g1", "g2"]].to_numpy()
    np.testing.assert_allclose(again.scores, X[-10:].var(axis=0), rtol=1e-12)


def test_a_store_and_sparse_data_are_filtered(tmp_path: Path) -> None:
    import scipy.sparse as sp

    X = table()[["g0", "g1", "g2"]].to_numpy()
    sp.save_npz(tmp_path / "a.npz", sp.csr_array(X[:40]))
    sp.save_npz(tmp_path / "b.npz", sp.csr_array(X[40:]))
    source = open_matrix([tmp_path / "a.npz", tmp_path / "b.npz"], rows={"every": 3})
    ingest(source, tmp_path / "out.zarr")
    stored = open_matrix(tmp_path / "out.zarr")
    assert stored.sparse and [n for _, n in stored.sources] == [14, 6]
    np.testing.assert_array_equal(stored.read(0, 20), X[::3])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.delete(np.arange(60), stored.dropped), np.arange(0, 60, 3))
    ingest(X, tmp_path / "X.zarr")
    config = settings(tmp_path, rows={"every": 2})
    config["input"] = {"uri": str(tmp_path / "X.zarr"), "rows": {"every": 2}}
    result = bigfs.run(config)
    np.testing.assert_allclose(result.scores, X[::2].var(axis=0), rtol=1e-14)
    fitted = bigfs.MaxVariance(2).fit(open_matrix(X, rows={"every": 2}))
    np.testing.assert_array_equal(fitted.scores_, result.scores)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"column": "kind", "keep": ["z"]}, "no row has 'z' in 'kind' .* It holds a, b, c"),
        ({"column": "kind", "at_least": 1}, "bounds for 'kind', which holds texts"),
        ({"column": "nosuch", "keep": ["z"]}, "no column 'nosuch'"),
    ],
)
def test_a_filter_that_does_not_go_with_the_data(
    rows: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        bigfs.run(settings(tmp_path, rows=rows))


def test_a_filter_that_says_nothing_is_refused(tmp_path: Path) -> None:
    for rows in ({}, {"column": "kind"}, {"keep": ["a"]}, {"every": 0}, {"wrong": 1}):
        with pytest.raises(ConfigError, match="input.rows"):
            load_config(settings(tmp_path, rows=rows), [])
        with pytest.raises(InputError, match="rows"):
            open_matrix(np.ones((4, 2)), rows=rows)
    for rows in ({"every": 1.5}, {"every": 10**30}, {"column": "a", "at_least": "x"}):
        with pytest.raises(InputError, match="rows: (every must be an int|at_least must be a num)"):
            open_matrix(np.ones((4, 2)), rows=rows)
    with pytest.raises(InputError, match="X has no column 'a'"):
        open_matrix(np.ones((4, 2)), rows={"column": "a", "keep": 1})


def test_inspect_looks_at_the_features_and_the_rows_that_are_kept(tmp_path: Path) -> None:
    place = tmp_path / "X.csv"
    pd.DataFrame({"a": range(5), "q": [np.nan, 0.5, 0.9, np.nan, 1]}).to_csv(place, index=False)
    rows = {"column": "q", "at_least": 0.4}
    lines = describe(place, columns=["a"], rows=rows)
    assert lines[-1].startswith("Proposed command: ") and "input.missing" not in lines[-1]
    assert "--set input.missing=mean" in describe(place)[-1]
    lines = describe(place, columns=["a"], rows={**rows, "at_least": 4})
    assert " would be refused: " in lines[-1]
    assert "at least 2 samples are needed. Got 0" in lines[-1]


@pytest.mark.parametrize("kind", ["csv", "dense", "sparse"])
def test_rows_of_which_none_is_left_are_refused_in_words(kind: str, tmp_path: Path) -> None:
    config = settings(tmp_path)
    if kind != "csv":
        frame = table().set_index("id")
        X = frame[["g0", "g1", "g2"]].to_numpy(np.float32)
        cells = ad.AnnData(csr_matrix(X) if kind == "sparse" else X, obs=frame[["quality"]])
        cells.write_h5ad(tmp_path / "X.h5ad")
        config["input"] = {"uri": str(tmp_path / "X.h5ad")}
    config["input"]["rows"] = {"column": "quality", "at_least": 5}
    with pytest.raises(InputError, match=f"2 samples.* Got 0; input.rows leaves out {ROWS}"):
        bigfs.run(config)
