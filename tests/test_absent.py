"""What is absent (masked, NaN, None, NaT, NA, null), in data and in labels: one rule everywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import bigfs
from bigfs import metrics
from bigfs.cli import main
from bigfs.core.errors import InputError

N = 30


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix of halves, and the places of values that are not there."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 40, (N, 4)) / 2
    absent = rng.random(X.shape) < 0.1
    absent[3, 2] = True
    absent[:3] = False
    return X, absent


def _arrow(X: np.ndarray, absent: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.table({f"g{j}": pa.array(X[:, j], mask=absent[:, j]) for j in range(X.shape[1])})


def _polars(X: np.ndarray, absent: np.ndarray) -> Any:
    import polars as pl

    return pl.from_arrow(_arrow(X, absent))


def _dask(X: np.ndarray, absent: np.ndarray) -> Any:
    import dask.array as da

    return da.from_array(np.ma.array(X, mask=absent), chunks=(7, 4))


def _frame(X: np.ndarray, absent: np.ndarray, dtype: Any) -> pd.DataFrame:
    names = [f"g{j}" for j in range(X.shape[1])]
    frame = pd.DataFrame(np.where(absent, np.nan, X), columns=names)
    if dtype is object:
        return frame.astype(object).where(~absent, pd.NA)
    return frame.astype(dtype)


MATRICES: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "masked": lambda X, absent: np.ma.array(np.where(absent, -9999, X), mask=absent),
    "masked float32": lambda X, a: np.ma.array(X.astype(np.float32), mask=a),
    "masked ints": lambda X, a: np.ma.array((2 * X).astype(int), mask=a),
    "masked 16 bits": lambda X, a: np.ma.array((2 * X).astype(np.int16), mask=a),
    "masked bools": lambda X, a: np.ma.array(X > 10, mask=a),
    "masked rows in a list": lambda X, a: list(np.ma.array(X, mask=a)),
    "masked Fortran order": lambda X, a: np.ma.array(np.asfortranarray(X), mask=a),
    "NA in a frame of objects": lambda X, a: _frame(X, a, object),
    "None in a frame of objects": lambda X, a: _frame(X, a, object).where(~a, None),
    "NA in an array of objects": lambda X, a: _frame(X, a, object).to_numpy(),
    "None in an array of objects": lambda X, a: np.where(a, None, X.astype(object)),
    "NA in a list": lambda X, a: _frame(X, a, object).to_numpy().tolist(),
    "Float64": lambda X, a: _frame(X, a, "Float64"),
    "Float32": lambda X, a: _frame(X, a, "Float32"),
    "Int64": lambda X, a: _frame(2 * X, a, "Int64"),
    "pyarrow in pandas": lambda X, a: _frame(X, a, "double[pyarrow]"),
    "one column of objects": lambda X, a: _frame(X, a, float).assign(
        g1=_frame(X, a, object)["g1"]
    ),
    "sparse columns": lambda X, a: _frame(X, a, pd.SparseDtype(float, np.nan)),
    "sparse columns of another value": lambda X, a: _frame(X, a, pd.SparseDtype(float, 1.0)),
    "one sparse column": lambda X, a: _frame(X, a, float).assign(
        g1=pd.arrays.SparseArray(_frame(X, a, float)["g1"])
    ),
    "polars": _polars,
    "arrow": _arrow,
    "dask of masked": _dask,
}  # fmt: skip


SINGLE = ("masked float32", "masked 16 bits", "masked bools")


def as_floats(kind: str) -> np.ndarray:
    X, absent = data()
    X = 2 * X if "nt" in kind or "16" in kind else X
    X = (X > 10).astype(float) if "bools" in kind else X
    return np.where(absent, np.nan, X)


@pytest.mark.parametrize("kind", MATRICES)
def test_what_is_absent_is_missing(kind: str) -> None:
    given, expected = MATRICES[kind](*data()), as_floats(kind)
    expected = expected.astype(np.float32) if kind in SINGLE else expected
    selector = bigfs.MaxVariance(2, preprocess="none")
    with pytest.raises(InputError, match=r"X: row 3, column 2.* is NaN\. .*missing = 'mean'"):
        selector.fit(given)
    for missing in ("mean", "zero", "drop_rows"):
        selector.set_params(missing=missing)
        fitted = selector.fit(given).scores_.copy()
        np.testing.assert_array_equal(fitted, selector.fit(expected).scores_, err_msg=missing)
    kept = selector.fit(given).transform(given)
    kept = kept.to_pandas() if hasattr(kept, "to_pandas") else kept
    kept = kept.compute() if hasattr(kept, "compute") else kept
    kept = np.asarray(kept.filled(np.nan) if np.ma.isMaskedArray(kept) else kept, dtype=float)
    np.testing.assert_array_equal(kept, expected[:, selector.get_support()])


@pytest.mark.parametrize("kind", MATRICES)
def test_a_graph_refuses_what_is_absent(kind: str) -> None:
    given = MATRICES[kind](*data())
    if not (isinstance(given, list) or "array of objects" in kind):
        with pytest.raises(InputError, match="row 3, column 2.* is NaN"):
            bigfs.knn_graph(given, 3)
    with pytest.raises(InputError, match="row 3, column 2.* is NaN"):
        bigfs.KNeighborsTransformer(3).fit(given)


def test_masks_of_nothing_change_nothing() -> None:
    X, _ = data()
    given = np.ma.array(X, mask=False)
    assert (bigfs.MaxVariance(2).fit(given).scores_ == bigfs.MaxVariance(2).fit(X).scores_).all()
    fitted = bigfs.MCFS(2, n_clusters=2).fit(np.ma.array(X))
    assert (fitted.scores_ == bigfs.MCFS(2, n_clusters=2).fit(X).scores_).all()


def test_masks_reach_what_a_fitted_object_is_given() -> None:
    X, absent = data()
    masked = np.ma.array(X, mask=absent)
    graph = bigfs.KNeighborsTransformer(3).fit(X)
    labeler = bigfs.MaximumMarginClustering(2, n_clusters=2).fit(X)
    for call in (graph.transform, labeler.predict, bigfs.MaxVariance(2).fit(X).transform):
        with pytest.raises(ValueError, match="NaN"):
            call(masked)
    inverse = bigfs.MaxVariance(2, missing="mean").fit(X)
    kept, restored = masked[:, :2], inverse.inverse_transform(masked[:, :2])
    np.testing.assert_array_equal(np.isnan(restored[:, inverse.selected]), np.ma.getmaskarray(kept))


def test_an_anndata_may_hold_a_masked_array() -> None:
    anndata = pytest.importorskip("anndata")
    X, absent = data()
    adata = anndata.AnnData(np.ma.array(X, mask=absent))
    with pytest.raises(InputError, match="row 3, column 2.* is NaN"):
        bigfs.MaxVariance(2).fit(adata)


def test_large_whole_numbers_behind_a_mask_are_no_values() -> None:
    X = np.ma.array(np.arange(12).reshape(6, 2), mask=False)
    X[2, 1] = 2**60
    with pytest.raises(InputError, match="row 2, column 1 is 1152921504606846976"):
        bigfs.knn_graph(X, 2)
    X[2, 1] = np.ma.masked
    with pytest.raises(InputError, match="row 2, column 1 is NaN"):
        bigfs.knn_graph(X, 2)


def _with_pandas(dtype: Any) -> Callable[[list[Any]], Any]:
    return lambda values: pd.Series(values, dtype=dtype)


def _of_polars(dtype: str | None) -> Callable[[list[Any]], Any]:
    def make(values: list[Any]) -> Any:
        import polars as pl

        return pl.Series(values, dtype=getattr(pl, dtype) if dtype else None)

    return make


def _of_arrow(values: list[Any]) -> Any:
    import pyarrow as pa

    return pa.chunked_array([values[:7], values[7:]])


def _of_dask(values: list[Any]) -> Any:
    import dask.array as da

    return da.from_array(np.array(values, dtype=float), chunks=9)


def _masked(values: list[Any]) -> Any:
    filled = [values[0] if value is None else value for value in values]
    return np.ma.array(filled, mask=[value is None for value in values])


TEXTS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "NaN in a list": lambda v: [float("nan") if value is None else value for value in v],
    "NA in a list": lambda v: [pd.NA if value is None else value for value in v],
    "masked in a list": lambda v: [np.ma.masked if value is None else value for value in v],
    "objects": lambda v: np.array(v, dtype=object),
    "NaN among objects": lambda v: np.array([np.nan if x is None else x for x in v], dtype=object),
    "masked": _masked,
    "masked objects": lambda v: _masked(v).astype(object),
    "categories": _with_pandas("category"),
    "a Categorical": lambda v: pd.Categorical(v),
    "string": _with_pandas("string"),
    "string of pyarrow": _with_pandas("string[pyarrow]"),
    "pandas objects": _with_pandas(object),
    "polars": _of_polars(None),
    "categories of polars": _of_polars("Categorical"),
    "arrow": _of_arrow,
    "NumPy's own strings": lambda v: np.array(v, dtype=np.dtypes.StringDType(na_object=None)),
}
NUMBERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "NaN": lambda v: np.array(v, dtype=float),
    "masked": _masked,
    "objects": lambda v: np.array(v, dtype=object),
    "Int64": _with_pandas("Int64"),
    "int64 of pyarrow": _with_pandas("int64[pyarrow]"),
    "categories": _with_pandas("category"),
    "polars": _of_polars(None),
    "arrow": _of_arrow,
    "dask": _of_dask,
}
OTHERS: dict[str, Callable[[list[Any]], Any]] = {
    "dates": lambda v: np.array([f"2020-01-0{x}" if x else "NaT" for x in v], dtype="M8[D]"),
    "differences": lambda v: np.array([x or "NaT" for x in v], dtype="m8[s]"),
    "dates of pandas": lambda v: pd.Series([pd.Timestamp(2020, 1, x) if x else None for x in v]),
    "booleans": lambda v: pd.Series([None if x is None else x > 1 for x in v], dtype="boolean"),
    "booleans in a list": lambda v: [None if x is None else x > 1 for x in v],
}
KINDS = {
    **{f"texts: {kind}": (make, ["a", "b"]) for kind, make in TEXTS.items()},
    **{f"numbers: {kind}": (make, [1, 2]) for kind, make in NUMBERS.items()},
    **{kind: (make, [1, 2]) for kind, make in OTHERS.items()},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_label_is_named_wherever_labels_are_taken(kind: str) -> None:
    make, pair = KINDS[kind]
    good: list[Any] = pair * (N // 2)
    bad = [None if i == 8 else value for i, value in enumerate(good)]
    plain = np.arange(N) % 2
    says = "the label of row 8 is missing"
    counts = sp.csr_array(np.random.default_rng(0).poisson(3, (N, 12)).astype(np.float32))
    X = np.random.default_rng(1).normal(size=(N, 3))
    for score in (
        metrics.clustering_accuracy,
        metrics.normalized_mutual_info,
        metrics.rand_index,
        metrics.adjusted_rand_index,
        metrics.majority_label_error,
    ):
        with pytest.raises(InputError, match=f"y_true: {says}"):
            score(make(bad), plain)
        with pytest.raises(InputError, match=f"y_pred: {says}"):
            score(plain, make(bad))
    assert metrics.clustering_accuracy(make(good), plain) == 1.0
    with pytest.raises(InputError, match=f"y: {says}"):
        metrics.nearest_neighbor_error(X, make(bad))
    batches = bigfs.HighlyVariable(4, flavor="deviance", batch_key=make(bad))
    with pytest.raises(InputError, match=f"HighlyVariable: batch_key: {says}"):
        batches.fit(counts)
    batches.set_params(batch_key=make(good))
    numbered = bigfs.HighlyVariable(4, flavor="deviance", batch_key=plain).fit(counts)
    assert (batches.fit(counts).scores_ == numbered.scores_).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("numbers")])
def test_a_missing_label_to_start_from_is_named(kind: str) -> None:
    make, _ = KINDS[kind]
    start = [None if i == 8 else i % 2 for i in range(N)]
    X = np.random.default_rng(1).normal(size=(N, 3))
    for selector in (
        bigfs.NDFS(2, n_clusters=2, init=make(start)),
        bigfs.LFS(2, n_clusters=2, init=make(start)),
        bigfs.GFSKMeans(2, n_clusters=2, init=make(start)),
        bigfs.M3FS(2, n_clusters=2, init=make(start)),
    ):
        with pytest.raises(InputError, match="init: the label of row 8 is missing"):
            selector.fit(X)


def test_a_masked_start_with_a_column_for_each_cluster_is_refused() -> None:
    F = np.ma.array(np.random.default_rng(0).random((N, 2)), mask=False)
    F[4, 1] = np.ma.masked
    with pytest.raises(InputError, match="init: the label of row 4 is missing"):
        bigfs.NDFS(2, n_clusters=2, init=F).fit(np.random.default_rng(1).normal(size=(N, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_label_stops_a_run_before_it_begins(kind: str, tmp_path: Path) -> None:
    make, pair = KINDS[kind]
    bad = [None if i == 8 else value for i, value in enumerate(pair * (N // 2))]
    settings = {
        "run": str(tmp_path / "run"),
        "method": "max_variance",
        "n_features_to_select": 2,
        "evaluate": {"labels": make(bad)},
    }
    X = np.random.default_rng(1).normal(size=(N, 3))
    with pytest.raises(InputError, match="the label of row 8 is missing"):
        bigfs.run(settings, data=X)
    assert not (tmp_path / "run").exists()


def test_an_infinite_label_is_refused() -> None:
    y = np.arange(N) % 3 + 0.0
    y[5] = np.inf
    with pytest.raises(InputError, match="y_true: the label of row 5 is infinite"):
        metrics.rand_index(y, y)


def test_metrics_of_a_matrix_see_its_mask() -> None:
    X, absent = data()
    masked, y = np.ma.array(X, mask=absent), np.arange(N) % 3
    with pytest.raises(InputError, match="finite real numbers"):
        metrics.nearest_neighbor_error(masked, y)
    with pytest.raises(InputError, match="finite real numbers"):
        metrics.redundancy(masked)
    with pytest.raises(InputError, match="first must hold at least one feature index"):
        metrics.selection_overlap(np.ma.masked_equal([1, 2, 3], 3), [1, 2], 5)


# Labels that are measured values.


def measured(n: int) -> dict[str, np.ndarray]:
    from sklearn.datasets import load_diabetes

    rng = np.random.default_rng(0)
    return {
        "normal": rng.normal(size=n),
        "float32": rng.random(n).astype(np.float32),
        "rounded": rng.normal(size=n).round(2),
        "ids": np.arange(n),
        "names": np.array([f"cell {i}" for i in range(n)]),
        "dates": np.datetime64("2020-01-01") + np.arange(n),
        "whole numbers with many values": load_diabetes().target,
    }


@pytest.mark.parametrize("kind", measured(90))
def test_measured_values_are_no_classes(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    y = measured(90)[kind]
    says = rf"\d+ of {len(y)} labels differ"
    if kind in ("normal", "float32", "rounded"):
        with pytest.raises(InputError, match=f"y_true: {says}"):
            metrics.normalized_mutual_info(y, y)
    else:
        metrics.normalized_mutual_info(y, y)
        assert "y_true: " in caplog.text and f"of {len(y)} labels differ" in caplog.text
    X = np.random.default_rng(1).normal(size=(len(y), 4))
    settings = {
        "run": str(tmp_path / "run"),
        "method": "max_variance",
        "n_features_to_select": 2,
    }
    caplog.clear()
    many = 2 * len(np.unique(y)) > len(y)
    if many:
        with pytest.raises(InputError, match=says):
            bigfs.run({**settings, "evaluate": {"labels": y}}, data=X)
        assert not (tmp_path / "run").exists()
    bigfs.run(settings, data=X)
    np.save(tmp_path / "y.npy", y if y.dtype.kind != "M" else y.astype(str))
    command = ["evaluate", str(tmp_path / "run"), "--labels", str(tmp_path / "y.npy")]
    with caplog.at_level(logging.WARNING, "bigfs"):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--n-repetitions", "1", "--n-init", "1"])
    assert ended.value.code == (2 if many else 0)


def test_few_rows_and_all_kinds_of_classes_are_taken_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for y in ([0, 1], [0, 1, 0, 1], [0.5, 1.5, 0.5, 1.5], np.repeat(np.arange(40), 10)):
        metrics.normalized_mutual_info(y, y)
    metrics.normalized_mutual_info(np.repeat(np.linspace(0, 1, 15), 3), np.arange(45) % 3)
    assert caplog.messages == []
