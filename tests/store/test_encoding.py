"""Columns that are not numbers, as features: the same from every kind of table."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bigfs
from bigfs.core.errors import ConfigError, InputError
from bigfs.store.ingest import ingest
from bigfs.store.source import open_matrix

FULL = ("dask", "csv", "parquet parts", "lazy")
KINDS = ["frame", "parquet", "csv parts", "arrow", "polars"]
KINDS += [pytest.param(kind, marks=pytest.mark.full) for kind in FULL]  # type: ignore[misc]


def table() -> pd.DataFrame:
    texts = ["2020-01-01", "2020-01-02 12:00", None, "1969-12-31"] * 5
    days = pd.to_datetime(texts, format="ISO8601")
    return pd.DataFrame(
        {
            "a": np.arange(20) + 0.5,
            "ok": pd.array([True, False, None, True] * 5, dtype="boolean"),
            "day": days,
            "city": ["Ulm", "Bonn", None, "Ulm"] * 4 + ["Aalen"] * 4,
            "size": pd.Categorical(["S", "L", "S", "L"] * 5),
            "b": np.arange(20),
        }
    )


def make(kind: str, folder: Path) -> Any:
    frame = table()
    if kind in ("csv", "parquet"):
        write = frame.to_csv if kind == "csv" else frame.to_parquet
        write(folder / f"X.{kind}", index=False)
        return folder / f"X.{kind}"
    if kind.endswith("parts"):
        for i in range(2):  # the second alone has Aalen
            part = frame[i * 10 : i * 10 + 10]
            write = part.to_csv if kind.startswith("csv") else part.to_parquet
            write(folder / f"{i}.{kind.split()[0]}", index=False)
        return str(folder / f"*.{kind.split()[0]}")
    if kind == "dask":
        import dask.dataframe as dd

        return dd.from_pandas(frame, npartitions=3)
    if kind == "arrow":
        import pyarrow as pa

        return pa.Table.from_pandas(frame)
    if kind in ("polars", "lazy"):
        pl = pytest.importorskip("polars", reason="polars is not installed")
        return pl.from_pandas(frame).lazy() if kind == "lazy" else pl.from_pandas(frame)
    return frame


def expected() -> tuple[list[str], np.ndarray]:
    nan, frame = np.nan, table()
    city = frame["city"]
    hot = [np.where(city.isna(), nan, city == value) for value in ("Aalen", "Bonn", "Ulm")]
    columns = {
        "a": frame["a"],
        "ok": [1, 0, nan, 1] * 5,
        "day": [18262, 18263.5, nan, -1] * 5,
        **{f"city={v}": h for v, h in zip(("Aalen", "Bonn", "Ulm"), hot, strict=True)},
        "size=L": [0, 1, 0, 1] * 5,
        "size=S": [1, 0, 1, 0] * 5,
        "b": frame["b"],
    }
    return list(columns), np.column_stack([np.array(c, dtype=float) for c in columns.values()])


def rows_of(source: Any) -> np.ndarray:
    return np.concatenate(list(source.iter_blocks(7)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_gives_the_same_features(kind: str, tmp_path: Path) -> None:
    names, X = expected()
    source = open_matrix(make(kind, tmp_path), dates="numbers", categories="one_hot")
    assert source.feature_names == names
    np.testing.assert_array_equal(rows_of(source), X)
    options = {"booleans": "drop", "dates": "drop", "categories": "numbers"}
    source = open_matrix(make(kind, tmp_path), **options)
    assert source.feature_names == ["a", "city", "size", "b"]
    codes = np.array([2, 1, np.nan, 2] * 4 + [0] * 4)
    np.testing.assert_array_equal(rows_of(source)[:, 1], codes)
    np.testing.assert_array_equal(rows_of(source)[:, 2], [1, 0] * 10)
    source = open_matrix(make(kind, tmp_path), dates="drop", categories="drop", index="city")
    assert source.feature_names == ["a", "ok", "b"]
    ids = [text for piece in source.iter_index() for text in piece]
    assert ids[:2] == ["Ulm", "Bonn"] and len(ids) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_encoded_or_left_out_in_silence(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    X = make(kind, tmp_path)
    with pytest.raises(InputError, match="3 columns do not hold numbers: column 'day' holds"):
        open_matrix(X)
    with caplog.at_level(logging.INFO, logger="bigfs"):
        source = open_matrix(X, dates="drop", categories="one_hot")
    log_text = caplog.text + " ".join(source.notes)
    assert "'ok' as 1 for true and 0 for false" in log_text and "left out 'day'" in log_text


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_fitted_and_transformed_to_their_kind(kind: str, tmp_path: Path) -> None:
    X = make(kind, tmp_path)
    frame = table()[["a", "b"]]
    source = open_matrix(X, columns=["a", "b"])
    selector = bigfs.MaxVariance(n_features_to_select=1).fit(source)
    np.testing.assert_array_equal(selector.scores_, bigfs.MaxVariance(1).fit(frame).scores_)
    if kind == "frame":  # as scikit-learn has it, a frame needs the features of the fit
        X = X[["a", "b"]]
    kept = selector.transform(X)
    name = selector.get_feature_names_out()[0]
    kept = kept.collect() if hasattr(kept, "collect") else kept
    kept = kept.compute() if hasattr(kept, "compute") else kept
    np.testing.assert_array_equal(np.asarray(kept).ravel(), table()[name])
    if kind in ("dask", "arrow", "polars", "lazy"):
        numbers = X[["a", "b"]] if kind == "dask" else X.select(["a", "b"])
        again = bigfs.MaxVariance(n_features_to_select=1).fit(numbers)
        np.testing.assert_array_equal(again.scores_, selector.scores_)
        assert list(again.feature_names_in_) == ["a", "b"]
        other = X[["b", "day"]] if kind == "dask" else X.select(["b", "day"])
        if name == "a":
            with pytest.raises(InputError, match="X has no column a"):
                selector.transform(other)


def test_numbers_in_texts_are_in_the_order_of_numbers() -> None:
    frame = pd.DataFrame({"size": ["10", "9", "100"]})
    source = open_matrix(frame, categories="numbers")
    np.testing.assert_array_equal(rows_of(source)[:, 0], [1, 0, 2])


def test_a_stream_is_read_once(tmp_path: Path) -> None:
    import pyarrow as pa

    stream = pa.Table.from_pandas(table()[["a", "b"]]).to_reader(max_chunksize=6)
    assert ingest(stream, tmp_path / "X.zarr").n_samples == 20
    stream = pa.Table.from_pandas(table()[["a", "city"]]).to_reader()
    with pytest.raises(InputError, match="stream that can be read once"):
        open_matrix(stream, categories="one_hot")


def test_what_is_no_category_is_named(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(1500.0), "id": [f"s{i}" for i in range(1500)]})
    frame.to_csv(tmp_path / "X.csv", index=False)
    for X in (frame, tmp_path / "X.csv"):
        with pytest.raises(InputError, match=r"'id' has more than 1,000 different values.*!id"):
            open_matrix(X, categories="numbers")
    with pytest.raises(InputError, match="categories must be one of error, .*Got 'onehot'"):
        open_matrix(frame, categories="onehot")
    with pytest.raises(InputError, match="does not support categories"):
        open_matrix(np.ones((3, 2)), categories="drop")


@pytest.mark.full
def test_a_pipeline_keeps_the_names_and_notices_the_setting(tmp_path: Path) -> None:
    uri = make("csv parts", tmp_path)
    settings = {
        "run": str(tmp_path / "run"),
        "input": {"uri": uri, "categories": "one_hot", "dates": "drop", "missing": "mean"},
        "method": "max_variance",
        "n_features_to_select": 3,
    }
    result = bigfs.run(settings)
    assert result.feature_names == [name for name in expected()[0] if name != "day"]
    other = bigfs.run(settings, overrides=["input.categories=numbers"])
    assert other.feature_names == ["a", "ok", "city", "size", "b"]
    with pytest.raises(ConfigError, match="input.dates"):
        bigfs.run(settings, overrides=["input.dates=days"])


@pytest.mark.parametrize(
    "column",
    [
        pd.array(["01000", "02000", "03000"], dtype="string"),
        pd.Categorical([1, 2, 3]),
        np.array(["1", "2", "3"], dtype=object),
    ],
    ids=["string", "category", "object"],
)
def test_texts_that_look_like_numbers_are_none_in_a_fit_too(column: Any) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 4.0], "zip": column})
    for use in (bigfs.MaxVariance(1).fit, bigfs.open_matrix):
        with pytest.raises(InputError, match="column 'zip' holds"):
            use(frame)
