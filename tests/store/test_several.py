"""Several sources as one matrix: lists, patterns, and folders with the parts of a table."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bigfs
from bigfs.core.errors import ConfigError, InputError
from bigfs.pipeline.inspect import describe
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import load_config
from bigfs.store.fingerprint import fingerprint
from bigfs.store.ingest import ingest
from bigfs.store.labels import load_labels
from bigfs.store.several import sources_of
from bigfs.store.source import open_matrix

ROWS = 48
FEATURES = ["g0", "g1", "g2"]


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.poisson(4, (ROWS, 3)).astype(float), columns=FEATURES)
    frame.insert(0, "id", [f"s{i}" for i in range(ROWS)])
    return frame.assign(kind=np.where(np.arange(ROWS) % 3 == 0, "t", "b"))


def spark_like(folder: Path, form: str = "parquet") -> str:
    """Write the table as Spark does: by partition columns, with markers and checksums."""
    frame = table()
    for i, (year, city) in enumerate([(2020, "New%20York"), (2020, "Ulm"), (2021, "Ulm")]):
        place = folder / "table" / f"year={year}" / f"city={city}"
        place.mkdir(parents=True)
        getattr(frame[i * 16 : (i + 1) * 16], f"to_{form}")(place / f"part-0.{form}", index=False)
        (place / f".part-0.{form}.crc").write_bytes(b"crc")
    (folder / "table" / "_SUCCESS").touch()
    (folder / "table" / "_metadata").write_bytes(b"PAR1")
    return str(folder / "table")


def csv_parts(folder: Path) -> list[str]:
    frame, places = table(), [str(folder / name) for name in ("b.csv", "a.csv")]
    frame[:20].to_csv(places[0], index=False)
    frame[20:][frame.columns[::-1]].to_csv(places[1], index=False)
    return places


def settings(folder: Path, uri: Any, **source: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": uri, **source},
        "method": "max_variance",
        "n_features_to_select": 2,
    }


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_partition_columns_are_columns(form: str, tmp_path: Path) -> None:
    uri = spark_like(tmp_path, form)
    source = open_matrix(uri, columns=["g*", "year"], index="id", labels="city")
    assert source.feature_names == [*FEATURES, "year"]
    assert source.n_samples == (ROWS if form == "parquet" else None)
    X = np.concatenate(list(source.iter_blocks(7)))
    np.testing.assert_array_equal(X[:, :3], table()[FEATURES])
    np.testing.assert_array_equal(X[:, 3], np.repeat([2020, 2020, 2021], 16))
    assert [text for piece in source.iter_index() for text in piece] == list(table()["id"])
    np.testing.assert_array_equal(load_labels(f"{uri}::city", ROWS), np.repeat([0, 1, 1], 16))
    np.testing.assert_array_equal(load_labels(f"{uri}::year"), np.repeat([0, 0, 1], 16))
    kinds = np.unique(table()["kind"], return_inverse=True)[1]
    np.testing.assert_array_equal(load_labels(f"{uri}::kind"), kinds)
    np.testing.assert_array_equal(load_labels(f"{uri}::source"), np.repeat([0, 1, 2], 16))


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_texts_and_dates_in_folder_names_are_encoded(form: str, tmp_path: Path) -> None:
    uri = Path(spark_like(tmp_path, form))
    places = ["year=2020/city=New%20York", "year=2020/city=Ulm", "year=2021/city=Ulm"]
    for i, city in enumerate(["New%20York", "__HIVE_DEFAULT_PARTITION__", "Ulm"]):
        place = uri.parent / "days" / f"day=1970-01-0{i + 1}" / f"city={city}"
        place.mkdir(parents=True)
        (uri / places[i] / f"part-0.{form}").rename(place / f"part-0.{form}")
    uri = uri.parent / "days"
    with pytest.raises(InputError, match="'day' holds text .its folder is 'day=1970-01-01'."):
        open_matrix(uri)
    options = {"dates": "numbers", "categories": "one_hot"}
    source = open_matrix(uri, columns=["g*", "day", "city"], **options)
    assert source.feature_names == [*FEATURES, "day", "city=New York", "city=Ulm"]
    X = np.concatenate(list(source.iter_blocks(7)))[[0, 16, 32], 3:]
    np.testing.assert_array_equal(X, [[0, 1, 0], [1, np.nan, np.nan], [2, 0, 1]])
    source = open_matrix(uri, dates="drop", categories="drop", index="day")
    assert source.feature_names == FEATURES
    ids = [text for piece in source.iter_index() for text in piece]
    assert ids == np.repeat(["1970-01-01", "1970-01-02", "1970-01-03"], 16).tolist()


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_column_without_a_value_in_a_part_goes_with_any_kind(
    form: str, order: list[int], tmp_path: Path
) -> None:
    kinds = {"text": ["b", "a"], "day": ["1970-01-02", "1970-01-03"], "flag": [True, False]}
    full = pd.DataFrame({"g0": [1.0, 2.0], **kinds}).assign(day=lambda X: pd.to_datetime(X["day"]))
    places = []
    for i, part in enumerate((full, full.assign(**dict.fromkeys(kinds)))):
        places.append(tmp_path / f"{i}.{form}")
        part.to_csv(places[i], index=False) if form == "csv" else part.to_parquet(places[i])
    options = {"categories": "numbers", "dates": "numbers"}
    source = open_matrix([places[i] for i in order], **options)
    values = np.array([[1, 1, 1, 1], [2, 0, 2, 0]]), np.array([[1, *[np.nan] * 3]] * 2)
    values[1][1, 0] = 2
    np.testing.assert_array_equal(
        np.concatenate(list(source.iter_blocks(9))), np.concatenate([values[i] for i in order])
    )
    assert source.encoded == {"text": "category", "day": "date", "flag": "boolean"}


@pytest.mark.full
def test_a_folder_of_parts_from_end_to_end(tmp_path: Path) -> None:
    uri = spark_like(tmp_path)
    config = settings(tmp_path, uri, columns=["g*"], index="id", labels="kind")
    result = bigfs.run(config)
    assert result.feature_names == FEATURES and result.evaluation is not None
    written = pd.read_csv(result.export(tmp_path / "out.csv", ids=True))
    assert list(written["id"]) == list(table()["id"])
    again = bigfs.run(str(tmp_path / "run" / "config.yaml"))
    assert again.stages["data"]["attempt"] == result.stages["data"]["attempt"]
    lazy = result.transform(uri).compute()
    names = [FEATURES[j] for j in result.selected]
    np.testing.assert_array_equal(lazy, table()[names])


def test_a_plan_reads_only_footers_unless_first_rows_decide_the_preprocessing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bigfs.store.formats.parquet import ParquetTable

    def read(self: Any, columns: list[str], rows: int) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(ParquetTable, "batches", read)
    given = settings(tmp_path, spark_like(tmp_path), columns=["g*"])
    with pytest.raises(AssertionError, match="rows were read"):
        plan_pipeline(load_config(given, []))
    plan = plan_pipeline(load_config({**given, "preprocess": "none"}, []))
    assert plan.shape is not None and (plan.shape.n_samples, plan.shape.n_features) == (ROWS, 3)
    assert not plan.unknown


def test_the_order_of_features_is_that_of_the_first(tmp_path: Path) -> None:
    places = csv_parts(tmp_path)
    result = bigfs.run(settings(tmp_path, places, columns=["g*"], index="id", labels="source"))
    assert result.feature_names == FEATURES and result.evaluation is not None
    stored = open_matrix(
        json.loads((tmp_path / "run" / "manifest.json").read_text())["data"]["path"]
    )
    np.testing.assert_array_equal(stored.read(0, ROWS), table()[FEATURES])  # type: ignore[attr-defined]
    assert [list(pair) for pair in stored.sources] == [[places[0], 20], [places[1], 28]]
    again = bigfs.run(str(tmp_path / "run" / "config.yaml"))
    assert again.stages["data"]["attempt"] == result.stages["data"]["attempt"]
    with pytest.raises(InputError, match="is the input of the run"):
        result.export(places[1], overwrite=True)


def test_the_source_of_a_row_is_its_batch(tmp_path: Path) -> None:
    frame, places = table()[FEATURES], [tmp_path / "a.npy", tmp_path / "b.npy"]
    np.save(places[0], frame[:20])
    np.save(places[1], frame[20:])
    batch = np.repeat([0, 1], [20, 28])
    expected = bigfs.HighlyVariable(2, flavor="deviance", batch_key=batch).fit(frame.to_numpy())
    fitted = bigfs.HighlyVariable(2, flavor="deviance", batch_key="source").fit(places)
    np.testing.assert_array_equal(fitted.scores_, expected.scores_)
    np.testing.assert_array_equal(fitted.transform(places), frame.iloc[:, fitted.get_support()])
    config = settings(tmp_path, [str(place) for place in places])
    config |= {
        "method": "highly_variable",
        "highly_variable": {"flavor": "deviance", "batch_key": "source"},
    }
    result = bigfs.run(config)
    np.testing.assert_array_equal(result.scores, expected.scores_)
    assert bigfs.run(str(tmp_path / "run" / "config.yaml")).scores.tolist() == list(result.scores)


def test_rows_that_are_dropped_are_counted_in_their_source(tmp_path: Path) -> None:
    X = table()[FEATURES].to_numpy(copy=True)
    X[[3, 19, 20], 1] = np.nan
    np.save(tmp_path / "a.npy", X[:20])
    np.save(tmp_path / "b.npy", X[20:])
    uri = [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]
    with pytest.raises(InputError, match=r"b.npy: row 0, column 1 is NaN.*missing = .mean"):
        ingest([uri[1], uri[0]], tmp_path / "out.zarr")
    with pytest.raises(InputError, match=r"b.npy: row 0, column 1 is NaN"):
        X[[3, 19], 1] = 1
        np.save(tmp_path / "a.npy", X[:20])
        ingest(uri, tmp_path / "out.zarr")
    ingest(uri, tmp_path / "out.zarr", missing="drop_rows")
    assert [n for _, n in open_matrix(tmp_path / "out.zarr").sources] == [20, 27]
    labels = load_labels(f"{tmp_path / 'out.zarr'}::source", 47)
    np.testing.assert_array_equal(labels, np.repeat([0, 1], [20, 27]))
    assert "a.npy (20)" in describe(str(tmp_path / "out.zarr"))[1]


def test_a_file_that_is_changed_added_or_removed_is_noticed(tmp_path: Path) -> None:
    uri = spark_like(tmp_path)
    source, known = open_matrix(uri, columns=["g*"]), [fingerprint(uri)]
    source.begin()
    part = tmp_path / "table" / "year=2021" / "city=Ulm" / "part-0.parquet"
    other = part.with_name("part-1.parquet")
    other.write_bytes(part.read_bytes())
    known.append(fingerprint(uri))
    with pytest.raises(InputError, match="changed while it was read"):
        source.check_unchanged()
    table()[:5].to_parquet(other)
    known.append(fingerprint(uri))
    part.unlink()
    known.append(fingerprint(uri))
    assert len(set(known)) == 4
    pattern, places = str(tmp_path / "*.csv"), csv_parts(tmp_path)
    known = [fingerprint(pattern), fingerprint(json.dumps(places)), fingerprint(places[0])]
    assert fingerprint(json.dumps(places[::-1])) not in known[1:]
    Path(places[1]).write_text(Path(places[1]).read_text().replace("s47", "s99"))
    changed = [fingerprint(pattern), fingerprint(json.dumps(places)), fingerprint(places[0])]
    assert [a == b for a, b in zip(known, changed, strict=True)] == [False, False, True]


def test_what_is_wrong_is_one_line_with_a_cure(tmp_path: Path) -> None:
    uri = spark_like(tmp_path)
    with pytest.raises(InputError) as caught:
        open_matrix(uri)
    assert "its folder is 'city=New York'" in str(caught.value)
    given = shlex.split(str(caught.value).partition("--set ")[2])[0].rstrip(",")
    patterns = json.loads(given.partition("=")[2])
    assert open_matrix(uri, columns=patterns).feature_names == [*FEATURES, "year"]
    pd.DataFrame({"g0": [1.0], "g9": [2.0]}).to_csv(tmp_path / "a.csv", index=False)
    table()[FEATURES].to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(InputError, match="b.csv has other features than .*a.csv: it has no g9 and"):
        open_matrix([tmp_path / "a.csv", tmp_path / "b.csv"])
    np.save(tmp_path / "X.npy", np.ones((4, 3)))
    with pytest.raises(InputError, match="X.npy has no feature names, but .*b.csv has"):
        open_matrix([tmp_path / "b.csv", tmp_path / "X.npy"])
    with pytest.raises(InputError, match=r"\*.h5ad matches no file. Check the pattern"):
        open_matrix(str(tmp_path / "*.h5ad"))
    with pytest.raises(InputError, match=r"gone.csv does not exist"):
        open_matrix([tmp_path / "b.csv", tmp_path / "gone.csv"])
    (tmp_path / "table" / "b.csv").write_bytes((tmp_path / "b.csv").read_bytes())
    with pytest.raises(InputError, match=r"several kinds \(.csv, .parquet\). Select one kind"):
        open_matrix(uri)
    for bad in ([], [3], ["a.csv", ""]):
        with pytest.raises(ConfigError, match="input.uri"):
            load_config(settings(tmp_path, bad), [])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "X.csv").write_text("a\n1\n2\n")
    with pytest.raises(ConfigError, match="X.csv lies in the run directory"):
        bigfs.run(settings(tmp_path, [str(tmp_path / "b.csv"), str(tmp_path / "run" / "X.csv")]))


def test_several_sources_are_described(tmp_path: Path) -> None:
    lines = describe(spark_like(tmp_path))
    assert lines[1].startswith("3 sources, from ") or lines[0].startswith("3 sources, from ")
    row = next(line for line in lines if line.strip().startswith("city"))
    assert row.split()[:4] == ["city", "folder", "-", "2"]
    command = next(line for line in lines if line.startswith("Proposed command: "))
    assert """'input.columns=["!kind", "!city"]'""" in command and "input.index=id" in command
    places = csv_parts(tmp_path)
    assert any("bigfs run would refuse this input" in line for line in describe(json.dumps(places)))
    lines = describe(json.dumps(places), index="id", categories="drop")
    assert "--set input.index=id --set input.categories=drop" in lines[-1]
    lines = describe(json.dumps(places), index="id")
    assert "column 'kind' holds" in lines[-1] and "--set 'input.columns=" in lines[-1]
    table().set_index("id").to_parquet(tmp_path / "X.parquet")
    row = next(line for line in describe(tmp_path / "X.parquet") if line.startswith("  id"))
    assert row.split()[1:3] == ["row", "index"]


def test_what_a_uri_stands_for(tmp_path: Path) -> None:
    for name in ("part-10.npy", "part-9.npy", "[x].npy", "_part.csv"):
        (tmp_path / name).touch()
    actual = sources_of(str(tmp_path / "part-*.npy"))
    assert [Path(part).name for part in actual or ()] == ["part-9.npy", "part-10.npy"]
    assert sources_of(str(tmp_path / "[x].npy")) is None
    actual = sources_of(str(tmp_path))  # where there is no part of a table
    assert [Path(part).name for part in actual or ()] == ["[x].npy", "part-9.npy", "part-10.npy"]
    (tmp_path / "a.csv").touch()
    assert sources_of(str(tmp_path)) == [str(tmp_path / "a.csv")]
    assert sources_of("sklearn:iris") is None
    assert load_config(settings(tmp_path, ["x/a.csv", "b.csv"]) | {"run": "r/{input}"}, []).run == (
        "r/a"
    )
