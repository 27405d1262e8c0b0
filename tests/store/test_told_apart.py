"""What was read as something else in silence, found by probing: each case failed before."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from bigfs.core.errors import InputError
from bigfs.store.labels import load_labels, read_values
from bigfs.store.source import open_matrix


def rows_of(path: Any, **settings: Any) -> np.ndarray:
    return np.concatenate(list(open_matrix(path, **settings).iter_blocks(10**6)))


def ids_of(path: Any, **settings: Any) -> list[str]:
    return [text for piece in open_matrix(path, **settings).iter_index() for text in piece]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_quote_within_a_name_takes_no_rows() -> None:
    lines = "".join(f"r{i},{i},{i + 1}\n" for i in range(150))
    Path("X.csv").write_text(f'sample,length 5",w\n{lines}')
    assert open_matrix("X.csv", index="sample").feature_names == ['length 5"', "w"]
    assert rows_of("X.csv", index="sample").shape == (150, 2)
    assert ids_of("X.csv", index="sample")[0] == "r0"


def test_a_quote_within_a_cell_holds_nothing_together() -> None:
    cells = "".join(f"pipe {i}{'' if i != 7 else chr(34)},{i},2\n" for i in range(200_000))
    Path("X.csv").write_text(f"n,a,b\n{cells}")
    assert rows_of("X.csv", index="n").shape == (200_000, 2)
    Path("Y.txt").write_text('a b\n5" 1\n6" 2\n7 3\n')
    settings = {"csv": {"delimiter": " "}, "index": "a"}
    assert ids_of("Y.txt", **settings) == ['5"', '6"', "7"]
    Path("Z.csv").write_text("n,a\n" + "".join(f'"line {i}\nmore",{i}\n' for i in range(100_000)))
    np.testing.assert_array_equal(rows_of("Z.csv", index="n")[:, 0], np.arange(100_000))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("a, b\n1, -9999\n2, 3.5\n", {}),
        ("a,b\n1,-9.999e+03\n2,3.5\n", {}),
        ("a,b\n1,-9999.00000000\n2,3.5\n", {}),
        ("a;b\n1,0;-9999,0\n2,0;3,5\n", {"delimiter": ";", "decimal": ","}),
    ],
)
def test_numbers_for_missing_values_are_compared_as_numbers(
    text: str, given: dict[str, Any]
) -> None:
    Path("X.csv").write_text(text)
    rows = rows_of("X.csv", csv={"na_values": [-9999], **given})
    np.testing.assert_array_equal(rows, [[1, np.nan], [2, 3.5]])


def test_comments_are_none_in_quotes_and_leave_no_rows() -> None:
    Path("X.csv").write_text('id,a,b\n"x # 1",1,2\n"y",3,4 # seen\n"z",5,6\n')
    assert ids_of("X.csv", index="id", csv={"comment": "#"}) == ["x # 1", "y", "z"]
    np.testing.assert_array_equal(
        rows_of("X.csv", index="id", csv={"comment": "#"}), [[1, 2], [3, 4], [5, 6]]
    )
    Path("Y.csv").write_text("a\n1\n2\n# c\n3\n")
    np.testing.assert_array_equal(rows_of("Y.csv", csv={"comment": "#"})[:, 0], [1, 2, 3])


def test_wave_numbers_that_fall_may_be_names() -> None:
    Path("X.csv").write_text("4000,3998,3996\n0.1,0.2,0.15\n0.3,0.1,0.2\n")
    with pytest.raises(InputError, match="strictly decreasing"):
        open_matrix("X.csv")
    assert open_matrix("X.csv", header=True).feature_names == ["4000", "3998", "3996"]


@pytest.mark.parametrize("other", ["3,1\n7,2\n", "2020-01-01,1\n2020-01-02,2\n"])
def test_parts_of_different_kinds_are_refused(other: str) -> None:
    Path("p").mkdir()
    Path("p/a.csv").write_text("f,x\nTrue,1\nFalse,2\n")
    Path("p/b.csv").write_text(f"f,x\n{other}")
    with pytest.raises(
        InputError, match=r"b\.csv: column 'f' holds \w+ values, but boolean values in p/a.csv"
    ):
        open_matrix("p", dates="numbers")


def test_the_order_of_categories_is_that_of_their_texts_where_numbers_are_equal() -> None:
    pq.write_table(
        pa.table({"k": ["1", "01", "1.0", "2", "nan", "10", "001"], "x": range(7)}), "X.parquet"
    )
    code = (
        "import bigfs, numpy; s = bigfs.open_matrix('X.parquet', categories='numbers');"
        "print(next(s.iter_blocks(9))[:, 0].tolist())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout.strip()
        for seed in (0, 1)
    }  # fmt: skip
    assert printed == {"[2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 0.0]"}


def test_filters_of_a_table_read_it_as_it_is_opened() -> None:
    lines = "".join(f"r{i},{-9999 if i == 150 else i % 7},{i},{i + 1}\n" for i in range(200))
    Path("X.csv").write_text(f"id,q,a,b\n{lines}")
    settings = {"index": "id", "rows": {"column": "q", "at_most": 3}}
    assert "r150" not in ids_of("X.csv", csv={"na_values": [-9999]}, **settings)
    lines = "".join(f"r{i},{-9999 if i == 3 else -i - 1},{i},{i + 1}\n" for i in range(8))
    Path("Y.csv").write_text(f"id,q,a,b\n{lines}")
    below = {"index": "id", "rows": {"column": "q", "at_most": 0}}
    assert len(ids_of("Y.csv", **below)) == 8, "nothing says that -9999 is missing"


def test_labels_of_parts_are_written_as_in_one_file() -> None:
    Path("p").mkdir()
    Path("p/a.csv").write_text("y,x\n01,1\n02,2\n")
    Path("p/b.csv").write_text("y,x\n01,1\nX9,2\n")
    assert read_values("p::y").tolist() == ["01", "02", "01", "X9"]


@pytest.mark.parametrize("beyond", [2**53 + 1, -(2**63) - 1, 10**25])
def test_whole_numbers_beyond_those_of_floats_are_refused_in_every_type(beyond: int) -> None:
    large = [Decimal(2**53), Decimal(beyond)]
    exact = pa.array([Decimal("0.35"), Decimal("0.41")], pa.decimal128(10, 2))
    table = pa.table({"a": pa.array(large, pa.decimal128(38, 0)), "b": exact})
    pq.write_table(table, "X.parquet")
    with pytest.raises(InputError, match=f"row 1, column 'a' is {beyond}"):
        rows_of("X.parquet")
    assert rows_of("X.parquet", columns="b")[:, 0].tolist() == [0.35, 0.41]
    lists = pa.array([[1, 2**53 + 1], [3, 4]], pa.list_(pa.int64(), 2))
    pq.write_table(pa.table({"a": lists}), "Y.parquet")
    with pytest.raises(InputError, match=r"row 0, column 'a\[1\]' is 9007199254740993"):
        rows_of("Y.parquet")


def test_pictures_of_large_whole_numbers_are_refused() -> None:
    rasterio = pytest.importorskip("rasterio", reason="the extra bigfs[geo] is not installed")
    profile = {"driver": "GTiff", "height": 2, "width": 2, "count": 2, "dtype": "int64"}
    with pytest.warns(rasterio.errors.NotGeoreferencedWarning):
        with rasterio.open("X.tif", "w", **profile) as file:
            file.write(np.arange(8).reshape(2, 2, 2) + 2**53)
    with pytest.raises(InputError, match="band .* Whole numbers beyond 2"):
        rows_of("X.tif")


@pytest.mark.parametrize("words", [["a", None, "c"], ["a", "b", "a"]])
def test_dictionaries_may_hold_nothing_and_a_value_twice(words: list[str | None]) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0]), pa.array(words))
    pyarrow.feather.write_feather(pa.table({"k": codes, "x": [1.0, 2, 3, 4]}), "X.feather")
    texts = [words[code] for code in (0, 1, 2, 0)]
    order = sorted({text for text in texts if text})
    expected = [order.index(text) if text else np.nan for text in texts]
    np.testing.assert_array_equal(rows_of("X.feather", categories="numbers")[:, 0], expected)


def test_names_of_genes_that_are_no_utf8_are_refused() -> None:
    scipy_io = pytest.importorskip("scipy.io")
    from scipy.sparse import csc_matrix

    Path("tx").mkdir()
    scipy_io.mmwrite("tx/matrix.mtx", csc_matrix([[1, 0], [0, 2], [3, 4]]))
    Path("tx/genes.tsv").write_bytes("E1\tA\nE2\tB\xe9\nE3\tC\n".encode("latin-1"))
    Path("tx/barcodes.tsv").write_text("AA-1\nCC-1\n")
    with pytest.raises(InputError, match="line 2 is not readable text"):
        open_matrix("tx")


@pytest.mark.parametrize("kind", ["beside", "NetCDF", "NetCDF 3", "zarr"])
def test_a_mask_of_another_order_is_turned(kind: str) -> None:
    xr = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    cube = np.arange(36.0).reshape(3, 3, 4)
    mask = xr.Dataset({"m": (("x", "y"), np.arange(9).reshape(3, 3))})
    both = xr.Dataset({"u": (("x", "y", "band"), cube), "v": (("y", "x", "band"), cube)})
    if kind == "beside":
        both = both.merge(mask)
    both.to_netcdf("X.nc", engine="h5netcdf")
    if kind == "zarr":
        mask.to_zarr("m.zarr", zarr_format=2, consolidated=False)
    elif kind != "beside":
        engine: Any = "h5netcdf" if kind == "NetCDF" else "scipy"
        mask.to_netcdf("m.nc", engine=engine)
    place = {"beside": "X.nc", "zarr": "m.zarr"}.get(kind, "m.nc")
    source = open_matrix("X.nc::v", features="band", rows={"column": f"{place}::m", "keep": [1]})
    expected = both.v.where(mask.m == 1, drop=True).values.ravel()
    np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(9)))[0], expected)
    turned = load_labels(f"{place}::m", 9, rows={"y": 3, "x": 3})
    np.testing.assert_array_equal(turned, mask.m.transpose("y", "x").values.ravel())


@pytest.mark.parametrize("kind", ["NetCDF", "NetCDF 3", "zarr 2", "zarr 3"])
def test_labels_and_filters_are_decoded_as_the_data_are(kind: str) -> None:
    xr = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    values = {"v": (("row", "band"), np.arange(12.0).reshape(4, 3))}
    data = xr.Dataset({**values, "q": (("row",), [0, 0.5, np.nan, 0.5])})
    encoding: Any = {"q": {"dtype": "i2", "_FillValue": -1, "scale_factor": 0.5}}
    if kind.startswith("zarr"):
        place = "X.zarr"
        data.to_zarr(place, zarr_format=int(kind[-1]), encoding=encoding, consolidated=False)
    else:
        place = "X.nc"
        engine: Any = "h5netcdf" if kind == "NetCDF" else "scipy"
        data.to_netcdf(place, engine=engine, encoding=encoding)
    np.testing.assert_array_equal(read_values(f"{place}::q"), data.q.values)
    kept = rows_of(f"{place}::v", features="band", rows={"column": f"{place}::q", "at_most": 0.6})
    np.testing.assert_array_equal(kept, data.v.values[[0, 1, 3]])
    with pytest.raises(InputError, match="label of row 2 is missing"):
        load_labels(f"{place}::q")


@pytest.mark.parametrize("version", [2, 3])
def test_an_array_of_xarray_is_decoded_by_its_own_address_too(version: Any) -> None:
    xr = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    data = xr.Dataset({"v": (("row", "band"), np.arange(12.0).reshape(4, 3))})
    encoding = {"v": {"_FillValue": 5.0}}
    data.to_zarr("X.zarr", zarr_format=version, encoding=encoding, consolidated=False)
    for place in ("X.zarr", "X.zarr/v"):
        np.testing.assert_array_equal(rows_of(place)[1], [3, 4, np.nan])
    assert pd.isna(xr.open_zarr("X.zarr", consolidated=False).v.values[1, 2])
