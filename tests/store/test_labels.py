"""Labels from every place, numbered in sorted order."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn import datasets

import bigfs
from bigfs.core.errors import InputError
from bigfs.pipeline.finished import evaluate_result
from bigfs.store.labels import check_order, load_labels
from bigfs.store.opening import _SETS, SklearnSource
from bigfs.store.records import MANIFEST
from bigfs.store.source import open_matrix

TEXT = ["cat", "NA", "dog", "cat"]
EXPECTED = [1, 0, 2, 1]
NUMBERS = np.array([20, 3, 100, 20])
AS_NUMBERS = [1, 0, 2, 1]


def _zarr(path: Path, values: Any) -> Path:
    zarr.create_array(store=str(path), data=np.asarray(values))
    return path


def test_numbers_and_texts_from_npy(tmp_path: Path) -> None:
    for name, values in (("n", NUMBERS), ("t", np.array(TEXT)), ("c", NUMBERS[:, None])):
        np.save(tmp_path / f"{name}.npy", values)
        labels = load_labels(str(tmp_path / f"{name}.npy"), 4)
        assert labels.dtype == np.int64
        assert labels.tolist() == EXPECTED


@pytest.mark.parametrize("values", [[True, False], [1.5, -1.0], [2, 1], ["b", "a"], [b"b", b"a"]])
def test_classes_are_numbered_in_sorted_order(tmp_path: Path, values: list[Any]) -> None:
    np.save(tmp_path / "y.npy", np.array(values))
    assert load_labels(f"file://{tmp_path}/y.npy").tolist() == [1, 0]


def test_members_of_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "X.npz", X=np.zeros((4, 3)), y=NUMBERS, kind=np.array(TEXT[::-1]))
    assert load_labels(f"{tmp_path}/X.npz").tolist() == AS_NUMBERS
    assert load_labels(f"{tmp_path}/X.npz::kind").tolist() == EXPECTED[::-1]


def test_columns_of_tables(tmp_path: Path) -> None:
    lines = [f"{number},{text},1.5" for number, text in zip(NUMBERS, TEXT, strict=True)]
    text = "\n".join(["n,kind,x", *lines])
    (tmp_path / "y.csv").write_text(text)
    (tmp_path / "y.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "y.tsv").write_text(text.replace(",", "\t"))
    for name in ("y.csv", "y.csv.gz", "y.tsv"):
        assert load_labels(f"{tmp_path / name}::n").tolist() == AS_NUMBERS, "10 comes after 9"
        assert load_labels(f"{tmp_path / name}::kind").tolist() == EXPECTED, "NA is a class"


def test_a_table_of_one_column_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("kind\n" + "\n".join(TEXT))
    assert load_labels(f"{tmp_path}/y.csv").tolist() == EXPECTED
    (tmp_path / "y.csv").write_text("\n".join(map(str, NUMBERS)))
    assert load_labels(f"{tmp_path}/y.csv", 4).tolist() == AS_NUMBERS


def test_zarr_arrays_and_groups(tmp_path: Path) -> None:
    assert load_labels(str(_zarr(tmp_path / "y.zarr", NUMBERS))).tolist() == AS_NUMBERS
    zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    _zarr(tmp_path / "g.zarr" / "kind", NUMBERS)
    assert load_labels(f"{tmp_path}/g.zarr::kind").tolist() == AS_NUMBERS


def test_targets_of_scikit_learn() -> None:
    labels = load_labels("sklearn:digits", 1797)
    assert sorted(set(labels.tolist())) == list(range(10))


def _save(path: Path, values: Any) -> None:
    (np.savez if path.suffix == ".npz" else np.save)(path, values)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "no.npy",
            "no.npy does not exist. Give the file of the labels",
        ),
        ("y.mtx", "labels are read from .npy, .npz"),
        ("four.npy", "has 4 labels, but the data have 3 samples"),
        ("matrix.npy", r"Got an array of float64 with shape \(4, 3\)"),
        ("nan.npy", "the label of row 1 is missing"),
        ("empty.npy", r"shape \(0,\)"),
        ("objects.npy", "pickled"),
        ("complex.npy", "Got an array of complex128"),
        ("bad.npy", "not in NumPy's .npy format"),
        ("cut.npy", "the labels cannot be read"),
        ("X.npz", r"has no array 'y' \(it has arr_0\). Name one as .*X.npz::NAME"),
        ("X.npz::z", "has no array 'z'"),
        ("X.npz::arr_0", r"shape \(4, 3\)"),
        ("y.csv", "has 2 columns .it has a, b.. Name the one with the labels: .*y.csv::COLUMN"),
        ("y.csv::c", "has no column 'c'"),
        ("y.csv::b", "the label of row 1 is missing"),
        ("ragged.csv::a", "line 3 has 3 cells"),
        ("headless.csv::a", "it has 0, 1"),
        ("g.zarr", "g.zarr has no column 'y'. It has nothing"),
        ("m.zarr", r"shape \(4, 3\)"),
        ("folder", "not a zarr array or group"),
        ("sklearn:mnist", "is not a dataset that ships with scikit-learn"),
    ],
)
def test_bad_labels_are_refused_in_words(tmp_path: Path, uri: str, message: str) -> None:
    X = np.zeros((4, 3))
    for name, values in {
        "four.npy": NUMBERS, "matrix.npy": X, "nan.npy": [1, np.nan, 2], "empty.npy": [],
        "objects.npy": np.array([None, 1]), "complex.npy": [1j, 2], "X.npz": X, "cut.npy": NUMBERS,
    }.items():  # fmt: skip
        _save(tmp_path / name, values)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-9])
    for name, text in {
        "y.mtx": "?", "bad.npy": "?", "y.csv": "a,b\n1,2\n3,\n4,5\n",
        "ragged.csv": "a,b\n1,2\n3,4,5\n",
        "headless.csv": "1,2\n3,4\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    _zarr(tmp_path / "m.zarr", X)
    (tmp_path / "folder").mkdir()
    where = uri if uri.startswith("sklearn:") else f"{tmp_path}/{uri}"
    with pytest.raises(InputError, match=message):
        load_labels(where, 3)


@pytest.mark.parametrize("name", sorted(_SETS))
def test_sets_of_scikit_learn_are_known_before_it_is_loaded(name: str) -> None:
    """Their shapes are in a table."""
    expected = getattr(datasets, f"load_{name}")()
    source = SklearnSource(f"sklearn:{name}")
    assert (source.n_samples, source.n_features) == expected.data.shape
    assert source.dtype == expected.data.dtype
    np.testing.assert_array_equal(source.read(0, source.n_samples), expected.data)
    assert source.feature_names == [str(feature) for feature in expected.feature_names]
    np.testing.assert_array_equal(source.classes, expected.target)


def frame(kinds: Sequence[Any] = ("a", "b", "c")) -> pd.DataFrame:
    X = np.random.default_rng(0).normal(size=(60, 3)) + np.arange(60)[:, None] % 3 * [3, 2, 0]
    of_rows = [kinds[i % 3] for i in range(60)]
    return pd.DataFrame(X, columns=["g0", "g1", "g2"]).assign(kind=of_rows, quality=np.arange(60))


def as_object(kind: str, table: pd.DataFrame) -> Any:
    if kind == "polars":
        return pytest.importorskip("polars").from_pandas(table)
    if kind == "lazy polars":
        return pytest.importorskip("polars").from_pandas(table).lazy()
    if kind == "Arrow":
        return pytest.importorskip("pyarrow").Table.from_pandas(table)
    if kind == "Dask":
        return pytest.importorskip("dask.dataframe").from_pandas(table, npartitions=3)
    if kind == "AnnData":
        genes = table[["g0", "g1", "g2"]].set_axis(table.index.astype(str))
        obs = table[["kind", "quality"]].set_axis(genes.index)
        return pytest.importorskip("anndata").AnnData(genes, obs=obs)
    if kind == "xarray":
        genes = ("row", "gene"), table[["g0", "g1", "g2"]].to_numpy()
        arrays = {"X": genes, "kind": ("row", table["kind"]), "quality": ("row", table["quality"])}
        return pytest.importorskip("xarray").Dataset(arrays)
    if kind == "zarr group":
        group = zarr.group()
        group.create_array("X", data=table[["g0", "g1", "g2"]].to_numpy())
        for name in ("kind", "quality"):
            group.create_array(name, data=pd.factorize(table[name], sort=True)[0])
        return group
    return table


def settings_of(folder: Path, **sections: Any) -> dict[str, Any]:
    chosen = {"method": "max_variance", "n_features_to_select": 2, "memory_limit": "2GiB"}
    judged = {"n_repetitions": 1, "n_init": 1, **sections.pop("evaluate", {})}
    return {"run": str(folder / "run"), **chosen, "evaluate": judged, **sections}


OTHERS = ["polars", "lazy polars", "Arrow", "Dask", "AnnData", "xarray", "zarr group"]


@pytest.mark.parametrize(
    "kind", ["pandas", *(pytest.param(kind, marks=pytest.mark.full) for kind in OTHERS)]
)
def test_a_column_of_an_object_judges_as_that_of_a_file(kind: str, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "X.csv", index=False)
    source: dict[str, Any] = {"labels": "kind", "rows": {"column": "quality", "at_least": 6}}
    of_file = bigfs.run(
        settings_of(tmp_path / "file", input={"uri": str(tmp_path / "X.csv"), **source})
    )
    source |= {"features": "gene", "variable": "X"} if kind == "xarray" else {}
    source |= {"variable": "X"} if kind == "zarr group" else {}
    of_object = bigfs.run(
        settings_of(tmp_path / "object", input=source), data=as_object(kind, frame())
    )
    figures, expected = of_object.evaluation, of_file.evaluation
    assert figures is not None and expected is not None
    assert figures.pop("labels").startswith("object:")
    expected.pop("labels")
    assert figures == expected
    assert figures["selected"]["nmi_mean"] > 0.5


@pytest.mark.parametrize("kind", ["pandas", pytest.param("Dask", marks=pytest.mark.full)])
def test_another_column_of_labels_is_noticed(kind: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, input={"labels": "kind", "columns": "g*"})
    attempts = []
    for kinds in ("abc", "abc", "aab"):
        bigfs.run(settings, data=as_object(kind, frame(kinds)))
        stages = json.loads((tmp_path / "run" / MANIFEST).read_text())["stages"]
        attempts.append(
            {name: stages[name]["attempt"] for name in ("data", "result", "evaluation")}
        )
    assert attempts[0] == attempts[1]
    assert {n for n in attempts[0] if attempts[0][n] != attempts[2][n]} == {"evaluation"}


@pytest.mark.parametrize(
    "of", [np.array, *(pytest.param(of, marks=pytest.mark.full) for of in (pd.Series, list))]
)
def test_labels_may_be_an_array(of: Callable[[Any], Any], tmp_path: Path) -> None:
    X, kinds = frame().iloc[:, :3].to_numpy(), list(frame()["kind"])
    result = bigfs.run(settings_of(tmp_path, evaluate={"labels": of(kinds)}), data=X)
    assert result.evaluation is not None and result.evaluation["n_clusters"] == 3
    assert result.evaluation["labels"] == f"object:{type(of(kinds)).__name__}"


def test_a_comparison_judges_by_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", frame().iloc[:, :3].to_numpy())
    settings = settings_of(tmp_path, evaluate={"labels": frame()["kind"]})
    del settings["method"]
    settings |= {"methods": ["max_variance"], "input": {"uri": str(tmp_path / "X.npy")}}
    assert bigfs.compare(settings).n_classes == 3


def test_classes_of_two_words_are_one_column(tmp_path: Path) -> None:
    """Blanks part columns only where numbers, quotes or the first line say so."""
    for number, text in enumerate((
        "cell_type\nT cell\nB cell\nT cell\n",
        "kind,cell_type\nx,T cell\ny y,B cell\nx,T cell\n",
        "id,cell_type\n1,T cell\n2,B cell\n3,T cell\n",
        "cell_type\n1 T\n2 B\n3 T\n",
        "n a,cell_type\nr 1,2,T\nr 2,2,B\nr 3,2,T\n",
        "a;cell_type;\nx;T;\ny;B;\nx;T;\n",
        '"cell_type"\n"a" "T cell"\n"b" "B cell"\n"c" "T cell"\n',
    )):  # fmt: skip
        (tmp_path / f"{number}.csv").write_text(text)
        labels = load_labels(f"{tmp_path}/{number}.csv::cell_type")
        assert labels.tolist() == [1, 0, 1], text


@pytest.mark.parametrize("ids", [[f"s{i:02}" for i in range(60)], list(range(60, 0, -1))])
def test_labels_in_another_order_are_told_by_their_ids(ids: list[Any], tmp_path: Path) -> None:
    X, labels = frame().iloc[:, :3].assign(id=ids), frame()[["kind"]].assign(id=ids)
    X.to_csv(tmp_path / "X.csv", index=False)
    labels.to_csv(tmp_path / "y.csv", index=False)
    labels[::-1].to_csv(tmp_path / "turned.csv", index=False)
    settings = settings_of(tmp_path, evaluate={"labels": f"{tmp_path}/y.csv::kind"})
    settings["input"] = {"uri": str(tmp_path / "X.csv"), "index": "id"}
    result = bigfs.run(settings)
    assert result.evaluation is not None
    message = f"'id' of label 0 is {ids[-1]}.*, but the data have {ids[0]}. Give the labels"
    with pytest.raises(InputError, match=message):
        evaluate_result(tmp_path / "run", labels=f"{tmp_path}/turned.csv::kind")
    settings["run"] += "2"
    with pytest.raises(InputError, match=message):
        bigfs.run({**settings, "evaluate": {"labels": f"{tmp_path}/turned.csv::kind"}})
    several = {key: value for key, value in settings.items() if key != "method"}
    several |= {"methods": ["max_variance"], "evaluate": {"labels": f"{tmp_path}/turned.csv::kind"}}
    with pytest.raises(InputError, match=message):
        bigfs.compare(several)
    start = {"method": "lfs", "lfs": {"init": f"{tmp_path}/turned.csv::kind"}, "evaluate": None}
    rows = {"column": f"{tmp_path}/turned.csv::kind", "keep": ["a"]}
    batches = {"flavor": "deviance", "batch_key": f"{tmp_path}/turned.csv::kind"}
    genes = {"method": "highly_variable", "highly_variable": batches, "evaluate": None}
    for others in (start, genes, {"input": {**settings["input"], "rows": rows}}):
        with pytest.raises(InputError, match=message):
            bigfs.run({**settings, **others})
    assert not Path(settings["run"]).exists()
    X.loc[3, X.columns[0]] = np.nan
    X.to_csv(tmp_path / "X.csv", index=False)
    settings["input"]["missing"] = "drop_rows"
    assert bigfs.run(settings).evaluation is not None


@pytest.mark.full
@pytest.mark.parametrize("kind", ["h5ad", "csv", "named csv", "parquet"])
def test_ids_of_any_file_tell_the_order_of_labels(kind: str, tmp_path: Path) -> None:
    def write(frame: pd.DataFrame, name: str) -> str:
        path = tmp_path / f"{name}.{kind.split()[-1]}"
        if kind == "h5ad":
            ad.AnnData(np.eye(len(frame)), obs=frame.astype(str)).write_h5ad(path)
        elif kind == "parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index_label="cell" if " " in kind else None)
        return f"{path}::kind"

    ids = [f"s{i:02}" for i in range(60)]
    X, labels = frame().iloc[:, :3].assign(id=ids), frame()[["kind"]].set_axis(ids)
    X.to_csv(tmp_path / "X.csv", index=False)
    source = open_matrix(tmp_path / "X.csv", index="id")
    check_order(write(labels, "same"), source)
    check_order(write(labels[::-1].set_axis([f"t{i}" for i in ids]), "others"), source)
    with pytest.raises(InputError, match="of label 0 is s59, but the data have s00"):
        check_order(write(labels[::-1], "turned"), source)


def test_a_method_starts_from_an_array_in_a_run(tmp_path: Path) -> None:
    X, kinds = frame().iloc[:, :3].to_numpy(), np.arange(60) % 3
    sections: dict[str, Any] = {"method": "gfs_kmeans", "n_features_to_select": 2}
    given = []
    for init in (kinds, kinds[::-1].copy(), kinds):
        own = {"init": init, "n_clusters": 3, "max_iter": 1}
        settings = {**settings_of(tmp_path), **sections, "gfs_kmeans": own, "evaluate": None}
        bigfs.run(settings, data=X)
        stages = json.loads((tmp_path / "run" / MANIFEST).read_text())["stages"]
        given.append(stages["result"]["attempt"])
    assert len(set(given)) == 3


@pytest.mark.parametrize(
    ("data", "evaluate", "source", "message"),
    [
        ("pandas", {"labels": [1, 2]}, {}, "object:list has 2 labels, but the data"),
        ("array", {}, {"labels": "kind"}, "X has no column 'kind'"),
        ("AnnData", {}, {"labels": "cell_type"}, "has no column 'cell_type'. It has kind, quality"),
        ("missing", {}, {"labels": "kind"}, "DataFrame::kind: the label of row 1 is missing"),
        ("pandas", {}, {"labels": "y.csv::kind"}, "Set evaluate.labels for classes in another f"),
        ("stream", {}, {"labels": "kind"}, "X is a stream that can be read once"),
        ("pandas", {"labels": 5}, {}, "labels must be a non-empty string, or an array. Got 5"),
        ("pandas", {"labels": np.ones((60, 2))}, {}, "one number or text for each sample"),
    ],
)  # fmt: skip
def test_labels_of_objects_that_do_not_go_with_them(
    data: str, evaluate: Any, source: Any, message: str, tmp_path: Path
) -> None:
    X: Any = as_object(data, frame(("a", None, "c") if data == "missing" else "abc"))
    if data == "array":
        X = X.iloc[:, :3].to_numpy()
    if data == "stream":
        X = pytest.importorskip("pyarrow").Table.from_pandas(X).to_reader()
    source = source or {"columns": "g*"}
    with pytest.raises(InputError, match=re.escape(message)):
        bigfs.run(settings_of(tmp_path, input=source, evaluate=evaluate), data=X)
    assert not (tmp_path / "run").exists()


def test_labels_of_a_template_for_other_data_may_be_left_out(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(50, 6)))
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 2,
        "input": {"uri": str(tmp_path / "X.npy")}, "evaluate": {"labels": "sklearn:digits"},
    }  # fmt: skip
    with pytest.raises(InputError, match=r"same order, or omit the evaluation \(--set evalu"):
        bigfs.run(settings)
