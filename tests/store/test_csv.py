"""Tables of text: missing cells, quotes, and whether the first line holds names."""

from __future__ import annotations

import gzip
import json
import re
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bigfs import MaxVariance, run
from bigfs.core.errors import InputError
from bigfs.store.ingest import ingest
from bigfs.store.labels import load_labels
from bigfs.store.source import open_matrix


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,NaN\n,4\n", "1,na\nN/A,4", "a,b\r\n 1 , null\r\n\"\",\"4\"\r\n\r\n",
        "a,b\n1,None\nnan,4\n\n\n", "1,\n,4\n",
    ],
)  # fmt: skip
def test_missing_cells_are_nan(tmp_path: Path, text: str) -> None:
    (tmp_path / "X.csv").write_text(text, newline="")
    rows = np.concatenate(list(open_matrix(tmp_path / "X.csv").iter_blocks(1)))
    np.testing.assert_array_equal(rows, [[1, np.nan], [np.nan, 4]])


def test_missing_cells_of_a_single_column(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text("a\n1\n\n\n2\n\n")
    rows = np.concatenate(list(open_matrix(tmp_path / "X.csv").iter_blocks(10)))
    np.testing.assert_array_equal(rows[:, 0], [1, np.nan, np.nan, 2])


def test_a_quoted_name_may_hold_a_line_break(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text('"a\nb",c\n1,2\n3,4\n')
    source = open_matrix(tmp_path / "X.csv")
    assert source.feature_names == ["a\nb", "c"]
    np.testing.assert_array_equal(next(source.iter_blocks(9)), [[1, 2], [3, 4]])


def test_text_is_read_to_the_last_bit_and_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bigfs.store.formats import csv

    monkeypatch.setattr(csv, "_TEXT_BYTES", 500)
    X = np.random.default_rng(0).normal(size=(300, 20)) * 10.0 ** np.arange(-10, 10)
    lines = [",".join(map(repr, row)) for row in X.tolist()]
    with gzip.open(tmp_path / "X.csv.gz", "wt") as file:
        file.write("\n".join(lines))
    rows = np.concatenate(list(open_matrix(tmp_path / "X.csv.gz").iter_blocks(7)))
    np.testing.assert_array_equal(rows, X)


SPECTRA = "400.5,401.0,401.5\n0.3,0.1,0.2\n1,2,3\n0.5,0.5,0.25\n"
YEARS = "2001,2002,2003\n7,7,8\n9,9,9\n"


def _rows(source: Any) -> list[list[float]]:
    return np.concatenate(list(source.iter_blocks(2))).tolist()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("X.csv", SPECTRA), ("X.tsv", SPECTRA.replace(",", "\t")), ("X.csv.gz", SPECTRA),
        ("X.csv", YEARS), ("X.csv", '\ufeff"2001","2002","2003"\r\n7,7,8\r\n9,9,9\r\n'),
        ("X.csv", "1990,1991\n3,\n4,2\n"), ("X.csv", ",10,20\n0,0.3,0.1\n1,7,8\n"),
    ],
)  # fmt: skip
def test_a_first_line_of_numbers_that_may_be_names_is_refused(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    first = text.splitlines()[0].strip('\ufeff"').replace('","', ",").replace("\t", ",")
    shown = (
        f"the first line ({first.replace(',', ', ')}) is strictly increasing, but the lines below"
    )
    by_number = partial(open_matrix, columns=["400..3000"])
    for use in (open_matrix, by_number, lambda path: ingest(path, tmp_path / "out.zarr")):
        with pytest.raises(InputError) as refused:
            use(path)
        assert shown in str(refused.value)
        assert "Set input.header (--header, header=): true reads it as names" in str(refused.value)
        assert "false as a sample" in str(refused.value)
    assert not (tmp_path / "out.zarr").exists()
    n_lines = len(text.splitlines())
    assert len(_rows(open_matrix(path, header=False))) == n_lines
    if first.startswith(","):  # the index that pandas writes
        with pytest.raises(InputError, match=r"column 0 has no name.*index=False"):
            open_matrix(path, header=True)
        return
    source = open_matrix(path, header=True)
    assert source.feature_names == first.split(",")
    assert len(_rows(source)) == n_lines - 1


def test_the_line_of_a_wide_table_is_shown_shortened(tmp_path: Path) -> None:
    wavelengths = ",".join(f"{400 + j / 2}" for j in range(2000))
    (tmp_path / "X.csv").write_text(wavelengths + 2 * ("\n" + ",".join(["1"] * 2000)))
    shown = r"first line \(400\.0, 400\.5, 401\.0, 401\.5, \.\.\., 1399\.5\) is"
    with pytest.raises(InputError, match=shown):
        open_matrix(tmp_path / "X.csv")
    assert len(open_matrix(tmp_path / "X.csv", header=True).feature_names or []) == 2000


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3\n4,5,6\n0.1,0.2,7\n",  # cumulative curves: all rows increase
        "3,2,9\n1,2,3\n4,5,6\n", "1,1,2\n2,1,1\n", "5\n3\n4\n", "1,nan\n3,2\n",
    ],
)  # fmt: skip
def test_a_first_line_of_other_numbers_is_a_sample_and_the_log_says_so(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "X.csv").write_text(text)
    with caplog.at_level("INFO", logger="bigfs"):
        report = ingest(tmp_path / "X.csv", tmp_path / "out.zarr", missing="mean")
    assert report.n_samples == len(text.splitlines())
    log_text = [line for line in caplog.messages if "no header" in line]
    assert len(log_text) == 1 and "X.csv: no header, the first line is a sample" in log_text[0]


def test_columns_that_were_exported_by_rank_without_names_are_refused_until_said_what_they_are(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(30, 4)) * [1, 5, 2, 7])
    settings = {"run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 3}
    result = run({**settings, "input": {"uri": str(tmp_path / "X.npy")}})
    own = result.export(tmp_path / "own.csv", by_rank=True)
    with pytest.raises(
        InputError, match=r"first line \(3, 1, 2\) has whole numbers, but the lines"
    ):
        open_matrix(own)
    assert open_matrix(own, header=True).feature_names == ["3", "1", "2"]
    (tmp_path / "sample.csv").write_text("3,1,2\n0.5,1,2.5\n")
    assert len(next(open_matrix(tmp_path / "sample.csv").iter_blocks(9))) == 2


def test_numbers_that_pandas_gives_to_columns_are_refused_until_said_what_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "X.csv").write_text("0,1,2\n5,4,3\n8,6,7\n")
    with pytest.raises(InputError, match=r"first line \(0, 1, 2\) is strictly increasing"):
        open_matrix(tmp_path / "X.csv")
    for header, names in ((False, None), (True, ["0", "1", "2"])):
        source = open_matrix(tmp_path / "X.csv", header=header)
        assert source.feature_names == names
        assert _rows(source) == [[0, 1, 2], [5, 4, 3], [8, 6, 7]][header:]
    assert caplog.text == ""


def test_what_header_does_not_allow(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text("a,b\n1,2\n3,4\n")
    assert open_matrix(tmp_path / "X.csv", header=True).feature_names == ["a", "b"]
    with pytest.raises(InputError, match="line 1, column 0 is 'a', which is not a number"):
        open_matrix(tmp_path / "X.csv", header=False)
    (tmp_path / "twice.csv").write_text("7,7\n1,2\n3,4\n")
    with pytest.raises(InputError, match="name '7' appears twice"):
        open_matrix(tmp_path / "twice.csv", header=True)
    np.save(tmp_path / "X.npy", np.ones((3, 2)))
    for X in (tmp_path / "X.npy", "sklearn:iris", np.ones((3, 2)), open_matrix(tmp_path / "X.csv")):
        for header in (True, False):
            with pytest.raises(
                InputError,
                match=r"not support header; only \.csv.*input\.header, --header, header=",
            ):
                open_matrix(X, header=header)
            with pytest.raises(InputError, match="header"):
                ingest(X, tmp_path / "out.zarr", header=header)
    for wrong in ("true", 1, None):
        with pytest.raises(InputError, match="header must be 'auto', True or False. Got"):
            open_matrix(tmp_path / "X.csv", header=wrong)  # type: ignore[arg-type]


def test_estimators_take_a_table_that_was_opened_with_its_header(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text(SPECTRA)
    with pytest.raises(InputError, match=r"header="):
        MaxVariance(n_features_to_select=1).fit(tmp_path / "X.csv")
    selector = MaxVariance(n_features_to_select=1)
    selector.fit(open_matrix(tmp_path / "X.csv", header=True))
    assert selector.get_feature_names_out().tolist() == ["401.5"]
    X = np.array([[0.3, 0.1, 0.2], [1, 2, 3], [0.5, 0.5, 0.25]])
    np.testing.assert_allclose(selector.scores_, X.var(axis=0))
    selector.fit(open_matrix(tmp_path / "X.csv", header=False))
    np.testing.assert_allclose(
        selector.scores_, np.vstack([[400.5, 401, 401.5], X]).var(axis=0), rtol=1e-12
    )


@pytest.mark.parametrize("line", [1, 60])
@pytest.mark.parametrize(
    ("name", "cell", "settings"),
    [
        ("X.csv", '"1,000"', {}),
        ("X.csv", '"1,000"', {"columns": ["!b"]}),
        ("X.tsv", "1,000", {}),
        ("X.tsv", "1,000", {"columns": ["!b"]}),
    ],
)
def test_a_thousands_comma_is_not_a_number(
    name: str, cell: str, settings: dict[str, Any], line: int, tmp_path: Path
) -> None:
    separator = "\t" if name.endswith("tsv") else ","
    rows = [["a", "b", "mass"], *(["1", "2", "3"] for _ in range(80))]
    rows[line][2] = cell
    (tmp_path / name).write_text("".join(separator.join(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=f"line {line + 1}, column 2 .'mass'. is '1,000'"):
        list(open_matrix(tmp_path / name, **settings).iter_blocks(100))


def test_bytes_that_are_no_utf8_are_refused_by_line_and_column_unless_they_are_told(
    tmp_path: Path,
) -> None:
    path = tmp_path / "X.csv"
    path.write_bytes("id,a,b\nr,1,2\nü,3,4\nö,5,6\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"line 3, column 0 .*not UTF-8.*latin-1"):
        open_matrix(path, index="id")
    source = open_matrix(path, index="id", csv={"encoding": "latin-1"})
    assert list(source.iter_index()) == [["r", "ü", "ö"]]
    path.write_bytes("a,b\n1,2\n3,4\n".encode("utf-16"))
    with pytest.raises(InputError, match=r"line 1, column 0 .*csv.encoding=utf-16"):
        open_matrix(path)


@pytest.mark.parametrize("line", [1, 70_000])
def test_whole_numbers_that_would_be_rounded_are_refused_in_a_later_piece_too(
    tmp_path: Path, line: int
) -> None:
    rows = [f"{i + 0.5},{i}" for i in range(100_000)]
    rows[line] = f"1.5,{2**53 + 1}"
    (tmp_path / "X.csv").write_text("\n".join(["a,b", *rows]))
    with pytest.raises(InputError, match=rf"line {line + 2}, column 'b' is {2**53 + 1}.*2\^53"):
        list(open_matrix(tmp_path / "X.csv").iter_blocks(1000))


@pytest.mark.parametrize(("first", "options"), [("true", {}), ("2024-01-01", {"dates": "numbers"})])
def test_a_column_that_goes_on_with_other_cells_is_named(
    tmp_path: Path, first: str, options: dict[str, Any]
) -> None:
    lines = ["a,b,c", *(f"{i},{first},{first}" for i in range(60_000)), f"1,{first},maybe"]
    (tmp_path / "X.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match="'c' begins with .* other cells .* value 'maybe'"):
        list(open_matrix(tmp_path / "X.csv", **options).iter_blocks(1000))


@pytest.mark.parametrize("rows", [3, 200_000])
@pytest.mark.parametrize(
    ("cell", "options", "reason"),
    [
        ("NA  ", {}, "as a missing value because of its blanks"),
        ("   ", {}, "as a missing value because of its blanks"),
        ("nA", {}, "as a missing value because of its blanks or spelling"),
        ("3.5", {"decimal": ",", "delimiter": ";"}, "digits 0 to 9 and the decimal separator ','"),
        ("\u0663", {}, "digits 0 to 9 and the decimal separator '.'"),
    ],
)
def test_a_cell_that_is_nearly_a_number_is_named_with_its_line(
    cell: str, options: dict[str, Any], reason: str, rows: int, tmp_path: Path
) -> None:
    mark = options.get("delimiter", ",")
    lines = ["a,c", *(f"{i},1" for i in range(rows)), f"7,{cell}", "8,2"]
    (tmp_path / "X.csv").write_text("\n".join(lines).replace(",", mark), encoding="utf-8")
    place = re.escape(f"line {rows + 2}, column 1 ('c') is {cell!r}, which ")
    with pytest.raises(InputError, match=place + f".*{reason}"):
        list(open_matrix(tmp_path / "X.csv", csv=options).iter_blocks(1000))
    if "missing" in reason:
        blocks = open_matrix(tmp_path / "X.csv", csv={"na_values": [cell]}).iter_blocks(1000)
        np.testing.assert_array_equal(np.concatenate(list(blocks))[-2], [7, np.nan])


def test_a_column_that_begins_with_empty_cells_may_hold_numbers_but_no_text(tmp_path: Path) -> None:
    for last in ("7", "b"):
        lines = ["a,c", *(f"{i}," for i in range(200_000)), f"1,{last}"]
        (tmp_path / f"{last}.csv").write_text("\n".join(lines))
    *_, block = open_matrix(tmp_path / "7.csv").iter_blocks(1000)
    assert block[-1].tolist() == [1, 7]
    with pytest.raises(
        InputError, match="'c' has no value .* text later: 'b' in line 200002.* Parquet"
    ):
        list(open_matrix(tmp_path / "b.csv", categories="numbers").iter_blocks(1000))


def test_a_carriage_return_alone_ends_a_line_and_empty_lines_are_none(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text("1,2\n3,4\r5,3\n\n7,8\n", newline="")
    assert _rows(open_matrix(tmp_path / "X.csv", header=False)) == [[1, 2], [3, 4], [5, 3], [7, 8]]
    # As old Macs wrote them, names and all.
    (tmp_path / "X.csv").write_text("a,b\r1,2\r3,4\r", newline="")
    source = open_matrix(tmp_path / "X.csv")
    assert source.feature_names == ["a", "b"] and _rows(source) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "names"),
    [('a,id\r1,"y\nq"\r2,z\r', ["y\nq", "z"]), ('a,"n\nl"\r1,x\r2,y\r', ["x", "y"])],
)
def test_a_line_feed_in_quotes_is_none_that_ends_a_line(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    (tmp_path / "X.csv").write_text(text, newline="")
    own = pd.read_csv(tmp_path / "X.csv")
    source = open_matrix(tmp_path / "X.csv", index=own.columns[1])
    assert _rows(source) == [[1], [2]]
    assert [*chain.from_iterable(source.iter_index())] == list(own.iloc[:, 1]) == names


def test_a_number_for_a_missing_value_may_have_a_decimal_comma(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text("a;b\n1,5;-9,50\n-9,5;2\n")
    csv = {"delimiter": ";", "decimal": ",", "na_values": ["-9,5"]}
    rows = _rows(open_matrix(tmp_path / "X.csv", csv=csv))
    np.testing.assert_array_equal(rows, [[1.5, np.nan], [np.nan, 2]])


def test_lines_of_a_title_are_proposed_to_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text("Report\nof 2020\na,b\n1,2\n3,4\n5,6\n")
    with pytest.raises(InputError, match=r'csv=\{"skip_rows": 2\}'):
        open_matrix(tmp_path / "X.csv")
    source = open_matrix(tmp_path / "X.csv", csv={"skip_rows": 2})
    assert source.feature_names == ["a", "b"] and _rows(source) == [[1, 2], [3, 4], [5, 6]]


def test_a_table_of_numbers_and_classes_without_names_loses_no_row(tmp_path: Path) -> None:
    """UCI's iris.data; what may be either is refused."""
    lines = ["5.1,3.5,setosa", "4.9,3.0,setosa", "6.2,2.9,virginica"]
    (tmp_path / "iris.data").write_text("\n".join(lines))
    source = open_matrix(tmp_path / "iris.data", labels="2")
    assert _rows(source) == [[5.1, 3.5], [4.9, 3.0], [6.2, 2.9]]
    assert load_labels(f"{tmp_path / 'iris.data'}::2").tolist() == [0, 0, 1]
    (tmp_path / "X.csv").write_text("s1,0.3,0.1\ns2,1,7\ns3,2,3\n")
    with pytest.raises(InputError, match="holds texts and numbers, like the lines below"):
        open_matrix(tmp_path / "X.csv", categories="drop")


@pytest.mark.parametrize(
    ("text", "csv"),
    [
        ("a;b\n1,5;2\n3;4,25\n", {"delimiter": ";", "decimal": ","}),
        ("a b  c\n1   2 3\n 4 5 6\n", {"delimiter": " "}),
        ("# made by hand\n# twice\na,b\n1,2\n3,4\n", {"comment": "#"}),
        ("Spectrometer 4\na,b,c\n1,2,3\n4,5,6\n", {"skip_rows": 1}),
        ("a,b\n1,?\n3,4\n5,6\n", {"na_values": ["?"]}),
        ("größe,b\n1,2\n3,4\n", {"encoding": "latin-1"}),
        ("a,b\n1,-9999\n3,4\n5,6\n", {"na_values": ["-9999"]}),
    ],
)
def test_inspect_proposes_the_spelling_and_a_run_takes_it(
    tmp_path: Path, text: str, csv: dict[str, Any]
) -> None:
    from bigfs.pipeline.inspect import describe

    (tmp_path / "X.csv").write_bytes(text.encode("latin-1"))
    told = " ".join(describe(tmp_path / "X.csv"))
    assert f"'input.csv={json.dumps(csv, ensure_ascii=False)}'" in told
    rows = np.concatenate(list(open_matrix(tmp_path / "X.csv", csv=csv).iter_blocks(5)))
    own = pd.read_csv(
        tmp_path / "X.csv",
        sep=r"\s+" if csv.get("delimiter") == " " else csv.get("delimiter", ","),
        decimal=csv.get("decimal", "."),
        comment=csv.get("comment"),
        skiprows=csv.get("skip_rows", 0),
        na_values=csv.get("na_values"),
        encoding="latin-1",
    )
    np.testing.assert_array_equal(rows, own)


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        ({"separator": ";"}, "keys of delimiter, decimal.*'separator'"),
        ({"delimiter": ";;"}, "one character each"),
        ({"decimal": ","}, "not the delimiter"),
        ({"encoding": "latin-99"}, "no encoding 'latin-99'"),
        ({"encoding": "hex"}, "no encoding 'hex'"),
        ({"encoding": "undefined"}, "no encoding 'undefined'"),
    ],
)
def test_a_spelling_that_cannot_be_is_refused(
    tmp_path: Path, csv: dict[str, Any], message: str
) -> None:
    (tmp_path / "X.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(InputError, match=message):
        open_matrix(tmp_path / "X.csv", csv=csv)


def test_a_missing_class_among_numbers_is_missing_and_among_texts_a_text(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text("a,y,z\n1,1,u\n2,NA,NA\n3,1,u\n")
    with pytest.raises(InputError, match="row 1 is"):
        load_labels(f"{tmp_path / 'X.csv'}::y")
    assert load_labels(f"{tmp_path / 'X.csv'}::z").tolist() == [1, 0, 1]


def test_pyarrow_gets_the_words_that_a_piece_may_hold() -> None:
    """It builds a search tree of them for each column: all took 14 GB for 350,000 columns."""
    from bigfs.store.formats.csv import _possible
    from bigfs.store.formats.texts import SPELLED

    assert _possible(SPELLED, b"1.5,-2e-3,3E4\n,7,8\n") == [""]
    assert _possible(["-999", "none"], b"1.5,8,-1\n") == []
    assert {"", "NaN"} <= set(_possible(SPELLED, b"1.5,NaN\n")) < set(SPELLED)


def test_rows_that_begin_with_a_missing_value_are_no_comments(tmp_path: Path) -> None:
    from bigfs.pipeline.inspect import describe

    cells = ["#N/A" if i % 10 == 5 else str(i) for i in range(60)]
    (tmp_path / "X.csv").write_text("a,b\n" + "".join(f"{cell},{7}\n" for cell in cells))
    shown = " ".join(describe(tmp_path / "X.csv"))
    assert "the first 60 rows" in shown and "input.csv" not in shown
    assert "input.missing=mean" in shown


@pytest.mark.parametrize("columns", [None, ["a", "b"]])
def test_a_delimiter_behind_every_row_moves_no_column(tmp_path: Path, columns: Any) -> None:
    (tmp_path / "X.csv").write_text("a,b,c\n" + "".join(f"{i},{2 * i},7,\n" for i in range(60)))
    source = open_matrix(tmp_path / "X.csv", columns=columns)
    assert source.feature_names == (columns or ["a", "b", "c"])
    own = pd.read_csv(tmp_path / "X.csv", index_col=False)[source.feature_names]
    np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(7))), own)


def test_classes_that_differ_by_a_leading_zero_stay_apart(tmp_path: Path) -> None:
    rows = "".join(f"{i},0{i % 2},{['1', '01', '2'][i % 3]}\n" for i in range(6))
    (tmp_path / "X.csv").write_text("a,padded,mixed\n" + rows)
    assert load_labels(f"{tmp_path / 'X.csv'}::mixed").tolist() == [1, 0, 2] * 2
    source = open_matrix(tmp_path / "X.csv")
    assert source.read_column("mixed").tolist() == ["1", "01", "2"] * 2
    assert source.read_column("padded").tolist() == [0, 1] * 3
    (tmp_path / "X.csv").write_text("a,y\n0,1\n1,1.0\n2,007\n")
    assert load_labels(f"{tmp_path / 'X.csv'}::y").tolist() == [0, 0, 1]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_rows_are_estimated_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "X.csv"
    path.write_text("a,b\n" + "10,20\n" * 1000, encoding=encoding)
    estimated = open_matrix(path, csv={"encoding": encoding}).estimated_samples
    assert abs(estimated - 1000) < 20
