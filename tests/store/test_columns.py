"""Columns of tables: features by name, ids beside the rows, labels that are no features."""

from __future__ import annotations

import csv
import json
import logging
import shlex
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import bigfs
from bigfs.core.errors import ConfigError, InputError
from bigfs.pipeline.inspect import describe
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import make_config
from bigfs.store.columns import in_order
from bigfs.store.ingest import ingest
from bigfs.store.labels import read_values
from bigfs.store.source import open_matrix

ROWS = 30
FORMATS = ["csv", "parquet", "frame"]


def table() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    kind = np.arange(ROWS) % 3
    frame = pd.DataFrame({"id": [f"s{i}" for i in range(ROWS)]})
    frame["city"] = ["Rome, Lazio" if i % 2 else "Ulm" for i in range(ROWS)]
    frame["kind"] = kind
    for j in range(4):
        frame[f"g{j}"] = generator.normal(size=ROWS) + 3 * kind * (j < 2)
    frame["day"] = pd.date_range("2026-01-01", periods=ROWS)
    return frame


def write(kind: str, folder: Path, frame: pd.DataFrame | None = None) -> object:
    frame = table() if frame is None else frame
    if kind == "frame":
        return frame
    path = folder / f"cells.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return str(path)


def settings(folder: Path, **changes: object) -> dict[str, object]:
    source = {"uri": write("csv", folder), "columns": ["!city", "!day"], "index": "id"}
    return {
        "run": str(folder / "run"),
        "input": source | changes,
        "method": "max_variance",
        "n_features_to_select": 2,
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_features_are_chosen_by_name_and_ids_stay_beside_the_rows(
    kind: str, tmp_path: Path
) -> None:
    source = open_matrix(write(kind, tmp_path), columns=["g*", "!g3"], index="id", labels="kind")
    assert source.feature_names == ["g0", "g1", "g2"]
    ingest(source, tmp_path / "out.zarr")
    stored = open_matrix(tmp_path / "out.zarr")
    np.testing.assert_allclose(stored.read(0, ROWS), table()[["g0", "g1", "g2"]], rtol=1e-15)
    assert [text for piece in stored.iter_index() for text in piece] == list(table()["id"])
    excluded = open_matrix(
        write(kind, tmp_path), columns=["!city", "!day"], index="id", labels="kind"
    )
    assert excluded.feature_names == ["g0", "g1", "g2", "g3"]


@pytest.mark.parametrize("kind", FORMATS)
def test_all_columns_without_numbers_are_named_with_the_setting_that_cures(
    kind: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        open_matrix(write(kind, tmp_path))
    message = str(caught.value)
    assert "3 columns do not hold numbers" in message
    if kind == "frame":
        assert "X.drop(columns=['id', 'city', 'day'])" in message
        return
    setting = next(part for part in shlex.split(message) if part.startswith("input.columns="))
    patterns = json.loads(setting.partition("=")[2])
    assert patterns == ["!id", "!city", "!day"]
    assert open_matrix(write(kind, tmp_path), columns=patterns).n_features == 5


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"columns": ["g9"]}, "no column 'g9'. It has id, city"),
        ({"index": "cityy"}, "no column 'cityy'; did you mean 'city'"),
        ({"columns": ["!*"]}, "none is left as a feature"),
        ({"columns": 3}, "columns must be column names, as texts. Got 3"),
    ],
)
def test_names_that_are_not_there(roles: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        open_matrix(write("csv", tmp_path), **roles)  # type: ignore[arg-type]


def test_what_is_no_table_has_columns_by_number_and_no_index(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.ones((3, 2)))
    assert open_matrix(tmp_path / "X.npy", columns=["!0"]).feature_names == ["1"]
    with pytest.raises(InputError, match="has no column 'a'. It has 0, 1"):
        open_matrix(tmp_path / "X.npy", columns=["a"])
    with pytest.raises(InputError, match="does not support index; only .csv"):
        open_matrix(tmp_path / "X.npy", index="a")


def test_the_text_of_a_later_piece_is_named_with_all_others(tmp_path: Path) -> None:
    """A column that begins with gaps is known for text only once text comes."""
    with (tmp_path / "late.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "note", "mood"])
        rows.writerows([[1.5, "", ""]] * 200_000)
        rows.writerows([[2.5, "warm", "good"]] * 200_000)
    with pytest.raises(
        InputError, match="2 columns do not hold numbers: column 'note' holds 'warm' in"
    ):
        ingest(tmp_path / "late.csv", tmp_path / "out.zarr", missing="zero")
    with pytest.raises(InputError, match="line 4, column 0 .'a'. is 'x'"):
        (tmp_path / "slip.csv").write_text("a,b\n1,2\n2,3\nx,4\n")
        open_matrix(tmp_path / "slip.csv")


@pytest.mark.parametrize(
    "named",
    [
        {"input": {"labels": "kind"}},
        {"evaluate": {"labels": "{uri}::kind"}},
        pytest.param(
            {"method": "lfs", "lfs": {"init": "{uri}::kind", "n_clusters": 3}},
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_column_that_is_named_as_labels_is_no_feature(
    named: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    config = settings(tmp_path)
    uri = config["input"]["uri"]  # type: ignore[index]
    for section, keys in named.items():
        if isinstance(keys, str):
            config[section] = keys
            continue
        given = {k: v.format(uri=uri) if isinstance(v, str) else v for k, v in keys.items()}
        config[section] = {**config.get(section, {}), **given}  # type: ignore[dict-item]
    result = bigfs.run(config)
    assert result.feature_names == ["g0", "g1", "g2", "g3"]
    assert (result.evaluation is not None) == ("method" not in named)
    again = bigfs.run(str(tmp_path / "run" / "config.yaml"))
    assert again.stages["result"]["attempt"] == result.stages["result"]["attempt"]


def test_rows_that_are_dropped_take_their_ids_and_labels_along(tmp_path: Path) -> None:
    frame = table()
    frame.loc[[3, 17], "g1"] = np.nan
    write("csv", tmp_path, frame)
    config = settings(tmp_path, missing="drop_rows", labels="kind")
    config["input"]["uri"] = write("csv", tmp_path, frame)  # type: ignore[index]
    result = bigfs.run(config)
    assert result.evaluation is not None and result.n_samples == ROWS - 2
    written = pd.read_csv(result.export(tmp_path / "out.csv", ids=True))
    kept = frame.drop(index=[3, 17])
    assert list(written["id"]) == list(kept["id"])
    np.testing.assert_allclose(written["g0"], kept["g0"])


def test_an_evaluation_needs_labels(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing key 'labels' in 'evaluate'"):
        bigfs.run({**settings(tmp_path), "evaluate": {"n_init": 1}})


def test_columns_that_look_like_ids_or_labels_are_warned_about_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path)
    frame = table().assign(number=np.random.default_rng(1).permutation(ROWS) + 100)
    config["input"]["uri"] = write("csv", tmp_path, frame)  # type: ignore[index]
    config["evaluate"] = {"labels": str(tmp_path / "y.npy")}
    np.save(tmp_path / "y.npy", 7 - frame["kind"].to_numpy())
    with caplog.at_level(logging.WARNING, logger="bigfs"):
        result = bigfs.run(config)
    assert "'number' looks like an id" in caplog.text
    assert "'kind' equals the labels" in caplog.text
    assert """'input.columns=["!number", "!kind"]'""" in result.summary()
    with caplog.at_level(logging.WARNING, logger="bigfs"):
        caplog.clear()
        bigfs.MaxVariance(n_features_to_select=1).fit(frame[["g0", "g1", "number"]])
    assert "'number' looks like an id" in caplog.text and "'g0'" not in caplog.text


def test_estimators_name_the_columns_of_a_frame_that_are_no_numbers() -> None:
    with pytest.raises(
        InputError, match="3 columns do not hold numbers: column 'id'.*'city'.*'day'"
    ):
        bigfs.MaxVariance(n_features_to_select=1).fit(table())


def test_columns_are_kept_by_name_from_every_input(tmp_path: Path) -> None:
    """A text table has columns that are no numbers, and others in another order."""
    frame = table()
    selector = bigfs.MaxVariance(n_features_to_select=2).fit(frame[["g0", "g1", "g2", "g3"]])
    kept = list(selector.get_feature_names_out())
    other = frame[["day", "g3", "g2", "city", "g1", "g0"]]
    for kind in ("csv", "parquet"):
        actual = selector.transform(write(kind, tmp_path, other))
        np.testing.assert_allclose(actual.compute(), frame[kept], rtol=1e-15)
    result = bigfs.run(settings(tmp_path, labels="kind"))
    actual = result.transform(write("parquet", tmp_path, other)).compute()
    names = [result.feature_names[feature] for feature in result.selected]  # type: ignore[index]
    np.testing.assert_allclose(actual, frame[names], rtol=1e-15)
    assert "<table" in result._repr_html_() and len(repr(result)) < 300
    assert "Graph recall" not in result.summary() and "bigfs export" in result.summary()


def test_a_seed_of_none_is_drawn_and_recorded(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20, 50))
    fits = [bigfs.RandomSelection(9, random_state=None).fit(X) for _ in range(2)]
    assert fits[0].random_state_ != fits[1].random_state_ and fits[0].random_state is None
    again = bigfs.RandomSelection(9, random_state=fits[0].random_state_).fit(X)
    np.testing.assert_array_equal(again.ranking_, fits[0].ranking_)
    given = {**settings(tmp_path), "random_state": None, "method": "random_selection"}
    first = bigfs.run(given)
    assert isinstance(first.settings["random_state"], int)
    again = bigfs.run(first.settings)
    assert again.stages["result"]["attempt"] == first.stages["result"]["attempt"]


def test_constant_data_are_said_in_words(caplog: pytest.LogCaptureFixture) -> None:
    bigfs.MaxVariance(n_features_to_select=1).fit(np.ones((20, 3)))
    assert "All scores are 0: no feature varies" in caplog.text


def test_a_description_ends_with_a_command_that_runs(tmp_path: Path) -> None:
    frame = table()
    frame.loc[3, "g1"] = np.nan
    lines = describe(str(write("csv", tmp_path, frame)))
    command = next(line for line in lines if line.startswith("Proposed command: "))
    words = shlex.split(command.partition(": ")[2])
    overrides = [setting for before, setting in pairwise(words) if before == "--set"]
    overrides += [f"run={tmp_path / 'run'}", "method=max_variance", "n_features_to_select=1"]
    overrides += ["mcfs=null", "graph=null", "spectral=null"]
    assert bigfs.run("mcfs", overrides=overrides).n_features == 5
    row = next(line for line in lines if line.strip().startswith("city"))
    assert row.split()[:4] == ["city", "string", "-", "2"]
    assert any("input.labels=city" in line for line in lines)


def test_the_index_that_pandas_writes_is_taken_as_ids(tmp_path: Path) -> None:
    table()[["g0", "g1"]].set_axis(range(100, 130)).to_csv(tmp_path / "indexed.csv")
    uri = str(tmp_path / "indexed.csv")
    with pytest.raises(InputError, match=r"column 0 has no name.*input.index=.Unnamed: 0"):
        open_matrix(uri)
    source = open_matrix(uri, index="Unnamed: 0")
    assert source.feature_names == ["g0", "g1"]
    assert next(source.iter_index())[:2] == ["100", "101"]
    assert any('input.index="Unnamed: 0"' in line for line in describe(uri)[-2:])


def test_the_arrays_of_a_file_with_several_are_listed(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.ones((4, 3)), b=np.zeros((3, 3)))
    message = describe(str(tmp_path / "two.npz"))
    assert message[1:3] == ["  a: 4 x 3 float64", "  b: 3 x 3 float64"]
    assert "input.variable" in message[-1]
    assert "4 samples x 3 features" in describe(str(tmp_path / "two.npz"), variable="a")[0]


def test_dates_that_all_differ_are_not_proposed_as_ids(tmp_path: Path) -> None:
    rows = [f"2026-01-{day:02d},{1000 + day},{day / 7}" for day in range(1, 31)]
    (tmp_path / "X.csv").write_text("\n".join(["day,sample,g", *rows]) + "\n")
    text = "\n".join(describe(str(tmp_path / "X.csv")))
    assert "input.index=sample" in text and "input.index=day" not in text


def test_a_table_without_rows_is_described(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("a,b\n")
    message = describe(str(tmp_path / "empty.csv"))
    assert message[-1] == "bigfs run would refuse this input: at least 2 samples are needed. Got 0."


@pytest.mark.parametrize("kind", ["polars", "Arrow"])
def test_the_call_that_drops_columns_is_one_that_the_frame_has(kind: str) -> None:
    if kind == "polars":
        X = pytest.importorskip("polars", reason="polars is not installed").from_pandas(table())
    else:
        X = pytest.importorskip("pyarrow", reason="pyarrow is not installed").table(table())
    with pytest.raises(InputError) as caught:
        open_matrix(X)
    call = str(caught.value).partition("Leave them out with ")[2].partition(" or bigfs")[0]
    assert call == "X.drop(['id', 'city', 'day'])"
    assert open_matrix(X.drop(["id", "city", "day"])).n_features == 5


def test_bytes_that_are_no_utf8_are_refused_by_row_and_column(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.feather as pf
    import pyarrow.parquet as pq

    places, content = np.arange(4, dtype="i4"), "rüö".encode("latin-1")
    texts = pa.StringArray.from_buffers(3, pa.py_buffer(places), pa.py_buffer(content))
    X = pa.table({"id": texts, "a": [1.0, 2.0, 3.0]})
    pq.write_table(X, tmp_path / "X.parquet")
    pf.write_feather(X, str(tmp_path / "X.feather"))
    for given in (X, tmp_path / "X.parquet", tmp_path / "X.feather"):
        for settings in ({"categories": "one_hot"}, {"index": "id"}):
            with pytest.raises(InputError, match=r"row 1, column 'id'.*b'\\xfc' are not UTF-8"):
                list(open_matrix(given, **settings).iter_index())
        assert next(open_matrix(given, columns="a").iter_blocks(3)).ravel().tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="row 1, column 'id'"):
        read_values(f"{tmp_path / 'X.parquet'}::id")


def test_whole_numbers_of_a_frame_are_never_rounded() -> None:
    ids = [1, None, 2**53 + 1]
    frames = [
        pd.DataFrame({"id": pd.array(ids, "Int64"), "a": [1.0, 2.0, 3.0]}),
        pd.DataFrame({"id": [1, 2, 2**53 + 1], "u": np.ones(3, "u8"), "a": ["x", "y", "z"]}),
    ]
    for frame in frames:
        source = open_matrix(frame, categories="one_hot")
        with pytest.raises(InputError, match=rf"row 2, column 'id' is {2**53 + 1}.*2\^53"):
            source.read(0, 3)


def test_names_of_float32_have_their_own_digits() -> None:
    bands = np.array([400.1, 400.2], np.float32)
    source = open_matrix(pd.DataFrame(np.eye(2), columns=bands))
    assert source.feature_names == ["400.1", "400.2"]
    assert source.read_column("400.1").tolist() == [1, 0]


def _proposed(lines: list[str]) -> list[str]:
    command = next(line for line in lines if line.startswith("Proposed command: "))
    words = shlex.split(command.partition(": ")[2])
    return [setting for before, setting in pairwise(words) if before == "--set"]


def test_a_header_of_wavelengths_is_proposed_as_one_and_what_is_none_of_them_left_out(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    spectra = pd.DataFrame(rng.random((60, 30)), columns=[str(400 + 10 * i) for i in range(30)])
    spectra.to_csv(tmp_path / "plain.csv", index=False)
    overrides = _proposed(describe(str(tmp_path / "plain.csv")))
    assert "input.header=true" in overrides
    spectra.insert(0, "moisture", rng.random(60))
    spectra.iloc[[3, 7]] = np.nan
    spectra.insert(0, "sample", [f"s{i}" for i in range(60)])
    spectra.to_csv(tmp_path / "X.csv", index=False)
    lines = describe(str(tmp_path / "X.csv"))
    assert any("named unlike the others may not be features: moisture." in x for x in lines)
    assert any("2 of the first 60 rows have no values at all" in line for line in lines)
    overrides = _proposed(lines)
    assert "input.missing=drop_rows" in overrides
    overrides += [f"run={tmp_path / 'run'}", "mcfs.n_clusters=3", "evaluate=null"]
    result = bigfs.run("mcfs", overrides=overrides)
    assert (result.n_samples, result.n_features) == (58, 30)


def test_a_proposal_that_would_be_refused_is_not_proposed(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).random((40, 3)), columns=["a", "b", "c"])
    frame["b"] = "text"
    frame.to_csv(tmp_path / "few.csv", index=False)
    overrides = _proposed(describe(str(tmp_path / "few.csv")))
    assert "n_features_to_select=1" in overrides  # the template's 20 are more than there are
    frame[["b"]].to_csv(tmp_path / "texts.csv", index=False)
    lines = describe(str(tmp_path / "texts.csv"))
    assert not any(line.startswith("Proposed command") for line in lines)
    assert " would be refused: " in lines[-1] and "none is left as a feature" in lines[-1]


BANDS = [str(400 + 10 * i) for i in range(60)]


@pytest.mark.parametrize("kind", ["csv", "frame", "zarr store", "xarray", "sparse", "no names"])
def test_bands_are_chosen_by_ranges_of_numbers(kind: str, tmp_path: Path) -> None:
    X = np.random.default_rng(0).random((30, 60))
    frame, columns = pd.DataFrame(X, columns=BANDS), ["500..700", "!600..620", "!690"]
    expected = [j for j in range(10, 31) if j not in (20, 21, 22, 29)]
    given: Any = frame
    if kind == "csv":
        frame.to_csv(tmp_path / "X.csv", index=False)
        given = tmp_path / "X.csv"
    elif kind == "zarr store":
        bigfs.ingest(frame, tmp_path / "X.zarr")
        given = tmp_path / "X.zarr"
    elif kind == "xarray":
        xarray = pytest.importorskip("xarray", reason="xarray is not installed")
        coords = {"band": [float(band) for band in BANDS]}
        given = xarray.DataArray(X.reshape(5, 6, 60), dims=("y", "x", "band"), coords=coords)
    elif kind in ("sparse", "no names"):
        given = sp.csr_matrix(X) if kind == "sparse" else X
        columns = ["10..30", "!20..22", "!29"]
    more = {"features": "band"} if kind == "xarray" else {}
    header = {"header": True} if kind == "csv" else {}
    source = open_matrix(given, columns=columns, **more, **header)
    assert source.n_features == len(expected)
    actual = np.concatenate([np.asarray(block) for block in source.iter_blocks(7)])
    np.testing.assert_array_equal(actual, X[:, expected])
    names = [float(name) for name in source.feature_names or ()]
    first = 0 if kind in ("sparse", "no names") else 400
    assert names == [first + (10 if first else 1) * j for j in expected]
    for none in ("5000..", "!20-25"):
        with pytest.raises(InputError, match="names run from .* A range is written 'LOW..HIGH'"):
            open_matrix(given, columns=[none], **more, **header)


def test_numbers_with_other_names_than_the_features_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    spectra = pd.DataFrame(rng.random((60, 30)), columns=BANDS[:30])
    bigfs.MaxVariance(2).fit(spectra)
    assert not caplog.messages
    spectra.insert(0, "moisture", 9 * rng.random(60))
    note = "differ from the others and which may not be features: moisture. To leave them out"
    bigfs.MaxVariance(2).fit(spectra)
    assert any(note in message for message in caplog.messages)
    spectra.to_csv(tmp_path / "X.csv", index=False)
    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.csv")}}
    settings |= {"method": "max_variance", "n_features_to_select": 2}
    assert note in plan_pipeline(make_config(**settings)).text()
    assert any(note in line for line in bigfs.run(settings).notes)


def test_a_run_on_a_store_reads_the_columns_that_are_chosen(tmp_path: Path) -> None:
    X = np.random.default_rng(0).random((30, 60))
    bigfs.ingest(pd.DataFrame(X, columns=BANDS), tmp_path / "X.zarr")
    settings = {"run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 2,
                "input": {"uri": str(tmp_path / "X.zarr"), "columns": ["..590"]}}  # fmt: skip
    result = bigfs.run(settings)
    assert result.feature_names == BANDS[:20]
    np.testing.assert_allclose(result.scores, X[:, :20].var(axis=0))


def test_values_without_a_number_are_last_in_the_order_of_their_texts() -> None:
    for values in permutations(["nan", "NaN", "2", "10", "-nan"]):
        assert in_order(values) == ("2", "10", "-nan", "NaN", "nan")


def test_names_with_underscores_are_no_numbers(tmp_path: Path) -> None:
    """float() takes 1_5 as 15."""
    from bigfs.results.plots import positions_of

    pd.DataFrame(np.eye(4), columns=["1_5", "2_5", "30", "x"]).to_csv(tmp_path / "X.csv")
    source = open_matrix(tmp_path / "X.csv", index="Unnamed: 0", columns=["10..40"])
    assert source.feature_names == ["30"]
    assert positions_of(["1_0", "1_1", "2_0"]) is None
    assert positions_of(["400", "410.5", "1e3"]).tolist() == [400, 410.5, 1000]
