"""Tables for `_conformance`: CSV and its dialects, Parquet, Feather, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.store._conformance import Own, case

_PYARROW = ("pyarrow",)


def _frame(rows: int = 23, ids: bool = False, kinds: bool = False) -> Any:
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"g{j}": rng.normal(0, 40, rows) for j in range(4)})
    if ids:
        frame.insert(0, "id", [f"s{i}" for i in range(rows)])
    if kinds:
        frame["kind"] = np.array(["b", "a", "c"])[np.arange(rows) % 3]
    return frame


def _own(frame: Any, *, named: bool = True, **options: Any) -> Own:
    """Return what pandas read."""
    names = [str(name) for name in frame.columns] if named else None
    return Own(frame.to_numpy(np.float64), names, **options)


def _text(name: str, text: str | bytes, **options: Any) -> Any:
    """Return what writes a text, which pandas reads with some settings."""

    def make(folder: Path) -> tuple[Path, Own]:
        import pandas as pd

        content = text if isinstance(text, bytes) else text.encode()
        (folder / name).write_bytes(content)
        settings: dict[str, Any] = {"header": "infer", **options}
        if "engine" not in options:
            settings["float_precision"] = "round_trip"
        frame = pd.read_csv(folder / name, **settings)
        return folder / name, _own(frame, named=settings["header"] is not None)

    return make


def _refused(name: str, text: str | bytes) -> Any:
    def make(folder: Path) -> tuple[Path, None]:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder / name, None

    return make


def _csv(**options: Any) -> str:
    return str(_frame().to_csv(index=False, **options))


# CSV as pandas writes it

case("csv")(_text("X.csv", _csv()))
case("csv without header")(_text("X.csv", _csv(header=False), header=None))
case("csv of full precision")(_text("X.csv", _csv(float_format="%.17g")))
case("csv in exponents")(_text("X.csv", _csv(float_format="%.6e")))
case("csv quoted, CRLF, BOM")(
    _text("X.csv", b"\xef\xbb\xbf" + _csv(quoting=1, lineterminator="\r\n").encode())
)
case("csv with blank lines at the end")(_text("X.csv", _csv() + "\n\n"))
case("csv with blanks around the cells")(
    _text("X.csv", _csv(float_format="%.3f").replace(",", " , "), sep=r"\s*,\s*", engine="python")
)
case("csv with missing values")(
    _text("X.csv", "a,b,c\n1,NA,3\n4,,6\nnan,8,NaN\n10,NULL,12\n13,n/a,15\n")
)
case("csv of -inf and inf")(_text("X.csv", "a,b\n1,inf\n-inf,2\n3,4\n"))
case("csv with quoted commas in names")(_text("X.csv", '"a, b","c ""d"""\n1,2\n3,4\n'))
case("csv with quoted line breaks in names")(_text("X.csv", '"a\nb",c\n1,2\n3,4\n'))
case("csv with quoted line breaks in ids", index="id")(lambda folder: _broken_ids(folder))


def _broken_ids(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    (folder / "X.csv").write_text('id,a,b\n"x\ny",1,2\nz,3,4\n"u, v",5,6\n')
    frame = pd.read_csv(folder / "X.csv", index_col="id")
    return folder / "X.csv", _own(frame, ids=list(frame.index))


@case("csv with ids and classes", index="id", labels="kind")
def _ids(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    _frame(ids=True, kinds=True).to_csv(folder / "X.csv", index=False)
    read = pd.read_csv(folder / "X.csv", index_col="id", float_precision="round_trip")
    own = _own(read.drop(columns="kind"), ids=list(read.index), labels={"{}::kind": read["kind"]})
    return folder / "X.csv", own


@case("csv with the index of pandas", index="Unnamed: 0")
def _pandas_index(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    _frame().to_csv(folder / "X.csv")
    read = pd.read_csv(folder / "X.csv", index_col="Unnamed: 0", float_precision="round_trip")
    return folder / "X.csv", _own(read, ids=list(map(str, read.index)))


@case("csv with the index of pandas, unsaid", refused="index")
def _pandas_index_unsaid(folder: Path) -> tuple[Path, None]:
    _frame().to_csv(folder / "X.csv")
    return folder / "X.csv", None


@case("csv of R's write.csv", index="Unnamed: 0")
def _r_csv(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    (folder / "X.csv").write_text('"","a","b"\n"r 1",1.5,2\n"r 2",3,NA\n"r 3",5,6\n')
    read = pd.read_csv(folder / "X.csv", index_col=0)
    return folder / "X.csv", _own(read, ids=list(read.index))


@case("text of R's write.table", csv={"delimiter": " "})
def _r_table(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    (folder / "X.txt").write_text('"a" "b"\n"r 1" 1.5 2\n"r 2" 3 NA\n"r 3" 5 6\n')
    read = pd.read_csv(folder / "X.txt", sep=" ")
    return folder / "X.txt", _own(read, ids=list(read.index))


@case("csv of whole numbers beyond 2^53", refused="2^53")
def _large(folder: Path) -> tuple[Path, None]:
    (folder / "X.csv").write_text(f"a,b\n1,{2**53 + 1}\n2,3\n")
    return folder / "X.csv", None


@case("csv of numbers as classes", labels="y")
def _number_labels(folder: Path) -> tuple[Path, Own]:
    (folder / "X.csv").write_text("a,y\n1,1\n2,2\n3,1\n")
    return folder / "X.csv", Own([[1], [2], [3]], ["a"], labels={"{}::y": [1, 2, 1]})


@case("csv of texts alone as classes")
def _text_labels(folder: Path) -> tuple[Path, Own]:
    np.save(folder / "X.npy", np.eye(4))
    (folder / "y.csv").write_text("setosa\nsetosa\nvirginica\nsetosa\n")
    labels = {str(folder / "y.csv"): ["setosa", "setosa", "virginica", "setosa"]}
    return folder / "X.npy", Own(np.eye(4), labels=labels)


# Other bytes than UTF-8

_LATIN = "größe,länge\n1,2\n3,4\n".encode("latin-1")
case("csv in latin-1", refused="encoding")(_refused("X.csv", _LATIN))
case("csv in latin-1, said", csv={"encoding": "latin-1"})(
    _text("X.csv", _LATIN, encoding="latin-1")
)
case("csv in UTF-16", csv={"encoding": "utf-16"})(
    _text("X.csv", "a,b\n1,2\n3,4\n".encode("utf-16"), encoding="utf-16")
)
case("csv with ids in latin-1", index="id", refused="UTF-8")(
    _refused("X.csv", "id,a,b\nü,1,2\nö,3,4\n".encode("latin-1"))
)

# Dialects

case("csv with semicolons and decimal commas", csv={"delimiter": ";", "decimal": ","})(
    _text("X.csv", _csv(sep=";", decimal=","), sep=";", decimal=",")
)
case("csv with semicolons, unsaid", refused="delimiter")(_refused("X.csv", _csv(sep=";")))
case("csv with bars", csv={"delimiter": "|"})(_text("X.csv", _csv(sep="|"), sep="|"))
case("csv with comments", csv={"comment": "#"})(
    _text("X.csv", "# made by hand\n" + _csv() + "# the end\n", comment="#")
)
case("csv with lines to skip", csv={"skip_rows": 2})(
    _text("X.csv", "Spectrometer 4\nserial;77\n" + _csv(), skiprows=2)
)
case("csv with ? for missing", csv={"na_values": ["?"]})(
    _text("X.csv", "a,b,c\n1,?,3\n4,5,6\n7,8,?\n", na_values=["?"])
)
case("csv with -9999 for missing", csv={"na_values": ["-9999"]})(
    _text("X.csv", "a,b,c\n1,-9999,3\n4,5,6\n7,8,-9999.0\n", na_values=["-9999"])
)
case("csv with a comma behind the header (wdbc of Kaggle)", index="id", labels="diagnosis")(
    lambda folder: _kaggle(folder)
)


def _kaggle(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    (folder / "X.csv").write_text(
        '"id","diagnosis","radius","texture",\n842302,"M",17.99,10.38\n'
        '842517,"M",20.57,17.77\n843009,"B",13.54,14.36\n'
    )
    read = pd.read_csv(folder / "X.csv", index_col="id").dropna(axis=1, how="all")
    labels = {"{}::diagnosis": read["diagnosis"]}
    return folder / "X.csv", _own(
        read.drop(columns="diagnosis"), ids=list(map(str, read.index)), labels=labels
    )


def _savetxt(name: str, **options: Any) -> Any:
    def make(folder: Path) -> tuple[Path, Own]:
        np.savetxt(folder / name, _frame().to_numpy(), **options)
        delimiter = options.get("delimiter")
        return folder / name, Own(np.loadtxt(folder / name, delimiter=delimiter))

    return make


case("text of savetxt", csv={"delimiter": " "})(_savetxt("X.txt"))
case("text of savetxt, unsaid", refused="delimiter")(
    lambda folder: (_savetxt("X.txt")(folder)[0], None)
)
case("csv of savetxt")(_savetxt("X.csv", delimiter=","))


@case("csv of savetxt with a header")
def _savetxt_header(folder: Path) -> tuple[Path, Own]:
    np.savetxt(folder / "X.csv", _frame().to_numpy(), delimiter=",", header="a,b,c,d")
    read = np.genfromtxt(folder / "X.csv", delimiter=",", names=True)
    return folder / "X.csv", Own(
        np.column_stack([read[name] for name in read.dtype.names]), list(read.dtype.names)
    )


case("text in aligned columns (UCI housing)", csv={"delimiter": " "})(
    _text("housing.data", _frame().to_string(index=False, header=False), sep=r"\s+", header=None)
)
for _name, _separator in (("X.tsv", "\t"), ("X.tab", "\t")):
    case(f"table as {_name}")(_text(_name, _csv(sep=_separator), sep=_separator))
for _name in ("X.txt", "X.data"):
    case(f"table as {_name}", csv={"delimiter": ","})(_text(_name, _csv()))


def _zip(text: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("X.csv", text)
    return held.getvalue()


def _zstd(text: str) -> bytes:
    import pyarrow as pa

    held = pa.BufferOutputStream()
    with pa.CompressedOutputStream(held, "zstd") as file:
        file.write(text.encode())
    return bytes(held.getvalue())


_PACKED: dict[str, Callable[[str], bytes]] = {
    "gz": lambda text: gzip.compress(text.encode()),
    "bz2": lambda text: bz2.compress(text.encode()),
    "xz": lambda text: lzma.compress(text.encode()),
    "zip": _zip,
}
for _kind, _pack in _PACKED.items():
    case(f"csv.{_kind}")(_text(f"X.csv.{_kind}", _pack(_csv())))


@case("csv.zst", needs=_PYARROW)
def _zst(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    (folder / "X.csv.zst").write_bytes(_zstd(_csv()))
    return folder / "X.csv.zst", _own(
        pd.read_csv(io.StringIO(_csv()), float_precision="round_trip")
    )


# Parquet, Feather and Arrow


def _table(name: str, table: Any, read: Any = None, **options: Any) -> Any:
    """Return what writes an Arrow table, in the way that the ending says."""

    def make(folder: Path) -> tuple[Path, Own]:
        import pyarrow.feather as feather
        import pyarrow.parquet as pq

        content = table()
        if name.endswith(".parquet"):
            pq.write_table(content, folder / name, **options)
            own = pq.read_table(folder / name)
        else:
            feather.write_feather(content, folder / name, **options)
            own = feather.read_table(folder / name)
        return folder / name, (read or _numbers)(own)

    return make


def _numbers(table: Any) -> Own:
    return _own(table.to_pandas().astype(np.float64))


def _arrow(**columns: Any) -> Any:
    def make() -> Any:
        import pyarrow as pa

        given = columns or {name: _frame()[name] for name in _frame()}
        return pa.table({n: c() if callable(c) else c for n, c in given.items()})

    return make


case("Parquet", needs=_PYARROW)(_table("X.parquet", _arrow(), row_group_size=7))
case("Parquet of nullable numbers", needs=_PYARROW)(
    _table("X.parquet", _arrow(a=[1.5, None, 3.0], b=[1, 2, None], c=[True, None, False]))
)
case("Parquet of whole numbers beyond 2^53", needs=_PYARROW, refused="2^53")(
    lambda folder: (_table("X.parquet", _arrow(a=[2**53 + 1, 2], b=[1, 2]))(folder)[0], None)
)
case("Parquet of nulls and numbers beyond 2^53", needs=_PYARROW, refused="2^53")(
    lambda folder: (_table("X.parquet", _arrow(a=[2**53 + 1, None], b=[1, 2]))(folder)[0], None)
)


def _decimals() -> Any:
    import decimal

    import pyarrow as pa

    values = [decimal.Decimal("1.50"), None, decimal.Decimal("-3.25")]
    return pa.array(values, pa.decimal128(9, 2))


case("Parquet of decimals", needs=_PYARROW)(
    _table("X.parquet", _arrow(a=_decimals, b=[1.0, 2.0, 3.0]))
)


def _embeddings() -> Any:
    import pyarrow as pa

    values = np.random.default_rng(0).normal(size=23 * 8).astype(np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(values), 8)


def _own_lists(table: Any) -> Own:
    values = np.stack(table.column("embedding").to_pylist()).astype(np.float32)
    names = [f"embedding[{i}]" for i in range(8)]
    return Own(values, names, ids=table.column("id").to_pylist())


for _name in ("X.parquet", "X.feather"):
    case(f"embeddings as {_name}", needs=_PYARROW, index="id")(
        _table(_name, _arrow(id=[f"s{i}" for i in range(23)], embedding=_embeddings), _own_lists)
    )
for _name in ("X.feather", "X.arrow", "X.ipc"):
    case(f"Arrow as {_name}", needs=_PYARROW)(_table(_name, _arrow()))
case("Feather, packed", needs=_PYARROW)(
    _table("X.feather", _arrow(), compression="zstd", chunksize=7)
)


@case("Arrow stream in a file", needs=_PYARROW)
def _stream(folder: Path) -> tuple[Path, Own]:
    import pyarrow as pa

    table = _arrow()()
    with pa.ipc.new_stream(folder / "X.arrows", table.schema) as file:
        file.write_table(table, max_chunksize=7)
    with pa.ipc.open_stream(folder / "X.arrows") as read:
        return folder / "X.arrows", _numbers(read.read_all())


@case("Parquet with the index of pandas", needs=_PYARROW, index="cell", labels="kind")
def _parquet_index(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    frame = _frame(kinds=True)
    frame.index = pd.Index([f"AAC{i}" for i in range(23)], name="cell")
    frame["kind"] = frame["kind"].astype("category")
    frame.to_parquet(folder / "X.parquet")
    read = pd.read_parquet(folder / "X.parquet")
    labels = {"{}::kind": read["kind"].astype(str)}
    return folder / "X.parquet", _own(
        read.drop(columns="kind"), ids=list(read.index), labels=labels
    )


@case("Parquet parts, one of nulls", needs=_PYARROW)
def _null_part(folder: Path) -> tuple[Path, Own]:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    (folder / "parts").mkdir()
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [1.5, 2.5]}), folder / "parts" / "0.parquet")
    nulls = pa.table({"a": [3.0, 4.0], "b": pa.nulls(2)})
    pq.write_table(nulls, folder / "parts" / "1.parquet")
    return folder / "parts", _numbers(ds.dataset(folder / "parts").to_table())


@case("Parquet parts by folders", needs=_PYARROW, labels="site")
def _partitions(folder: Path) -> tuple[Path, Own]:
    import pandas as pd

    frame = _frame().assign(site=np.array(["x", "y"])[np.arange(23) % 2])
    frame.to_parquet(folder / "parts", partition_cols=["site"])
    read = pd.read_parquet(folder / "parts")
    labels = {"{}::site": read["site"].astype(str)}
    return folder / "parts", _own(read.drop(columns="site"), labels=labels)


for _name in ("csv", "feather"):

    @case(f"{_name} parts", needs=_PYARROW)
    def _parts(folder: Path, kind: str = _name) -> tuple[Path, Own]:
        import pandas as pd

        (folder / "parts").mkdir()
        for i in range(3):
            piece = _frame()[8 * i : 8 * i + 8].reset_index(drop=True)
            place = folder / "parts" / f"{i}.{kind}"
            piece.to_csv(place, index=False) if kind == "csv" else piece.to_feather(place)
        own = pd.concat(
            pd.read_csv(place, float_precision="round_trip")
            if kind == "csv"
            else pd.read_feather(place)
            for place in sorted((folder / "parts").iterdir())
        )
        return folder / "parts", _own(own)


# What stays refused, and says what converts it

_REFUSED = {
    "Excel": ("X.xlsx", b"PK\x03\x04 workbook"),
    "SPSS": ("X.sav", b"$FL2@(#) SPSS"),
    "Stata": ("X.dta", b"<stata_dta>"),
    "SQLite": ("X.sqlite", b"SQLite format 3\0"),
    "ARFF": ("X.arff", b"@relation x\n@attribute a numeric\n@data\n1\n2\n"),
    "RDS": ("X.rds", b"\x1f\x8b\x08"),
    "pickle": ("X.pkl", b"\x80\x04N."),
}
for _kind, (_name, _content) in _REFUSED.items():
    case(_kind, refused="onvert")(_refused(_name, _content))
