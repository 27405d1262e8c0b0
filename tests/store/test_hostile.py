"""Files and settings made to break a command: one line, an exit code of ours, bounded memory."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from bigfs import MCFS, ingest
from bigfs.core.errors import ConfigError, InputError, MemoryLimitError
from bigfs.core.units import MIB, parse_bytes
from bigfs.core.yamltext import read_yaml
from bigfs.store.formats import csv, parquet, zarr_array
from bigfs.store.formats.zarr_stores import MOST_CHUNKS, _unpacks_beyond
from bigfs.store.source import open_matrix
from tests.store._folder import call

_DIGITS = "9" * 5000
_NESTED = "a0: &a0 [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    "change, message",
    [
        ("memory_limit=1e308 GiB", "below 8 EiB"),
        ("memory_limit=1e30", "below 8 EiB"),
        (f"random_state={_DIGITS}", "a number has 5,000 digits"),
        ("run=/", "the run directory /"),
    ],
)
def test_a_setting_that_cannot_be(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    change: str,
    message: str,
) -> None:
    for command in ("plan", "run"):
        if (command, change) == ("plan", "run=/"):
            continue
        code, shown = call(capsys, command, "base.yaml", "--set", change)
        assert code == 2 and message in shown and len(shown) < 400, shown


def test_a_run_in_a_folder_of_the_system(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, shown = call(
        capsys, "run", "base.yaml", "--set", "run=/", "--set", "input.uri=sklearn:iris"
    )
    assert code == 2 and "not a bigfs run" in shown


@pytest.mark.parametrize(
    "text, message",
    [
        (f"a: {_DIGITS}", "5,000 digits"),
        (_NESTED, "aliases"),
        ("a: &a [*a]", "recursive"),
        ("a: 1\n" * 200_000, "characters"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=["digits", "aliases", "of itself", "long", "deep"],
)
def test_yaml_that_would_take_for_ever(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_yaml(text, "it")


def test_aliases_are_fine_where_they_save_words() -> None:
    assert read_yaml("a: &a [1, 2]\nb: *a\nc: {d: *a}", "it")["c"] == {"d": [1, 2]}


def test_a_pipeline_that_never_ends(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = call(capsys, "plan", "/dev/zero")
    assert code == 2 and "it is not a regular file" in shown


@pytest.mark.parametrize("name", ["pipe.csv", "pipe.npy", "pipe.parquet", "/dev/zero"])
def test_data_that_never_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if name != "/dev/zero":
        os.mkfifo(name)
    np.save("X.npy", np.ones((4, 2)))
    labels = ("plan", "mcfs", "--set", "input.uri=X.npy", "--set", f"evaluate.labels={name}")
    for command in (("inspect", name), labels):
        code, shown = call(capsys, *command)
        assert code == 2 and f"{name} is a pipe or a device" in shown and "to a file" in shown


@pytest.mark.parametrize("size", ["1e308 GiB", "9e99", 10**30, "0.1", -1, "1e-300 GiB"])
def test_a_size_that_cannot_be(size: Any) -> None:
    with pytest.raises(InputError):
        parse_bytes(size)


def _store(path: Path, change: Callable[[dict[str, Any]], Any], form: int = 3) -> Path:
    """Write a small array, with metadata that are changed afterwards."""
    codec: Any = zarr.codecs.GzipCodec()
    if form == 2:
        import numcodecs

        codec = numcodecs.GZip()
    array = zarr.create_array(
        path, shape=(10, 3), dtype="f8", chunks=(5, 3), compressors=codec, zarr_format=form
    )
    array[:] = np.arange(30.0).reshape(10, 3)
    file = path / ("zarr.json" if form == 3 else ".zarray")
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))
    return path


@pytest.mark.parametrize(
    "form, change, message",
    [
        (3, lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[0, 0]), "chunk"),
        (2, lambda m: m.update(chunks=[0, 3]), "chunk"),
        (3, lambda m: m["codecs"].append({"name": "nope", "configuration": {}}), "nope"),
        (2, lambda m: m.update(compressor={"id": "nope"}), "nope"),
        (3, lambda m: m.update(shape=[10**30, 3]), "no disk can hold"),
        (3, lambda m: m.update(shape=[10**400, 3]), "no disk can hold"),
        (3, lambda m: m.update(shape=[-5, 3]), "damaged"),
        (3, lambda m: m.update(data_type="complex128", fill_value=[0, 0]), "real numbers"),
        (3, lambda m: m.update(attributes={"feature_names": 5}), "feature_names"),
    ],
)
def test_zarr_metadata_that_cannot_be(
    tmp_path: Path, form: int, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        open_matrix(_store(tmp_path / "X.zarr", change, form))


@pytest.mark.parametrize("form", [2, 3])
def test_a_chunk_that_is_no_gzip_is_bad_input(tmp_path: Path, form: int) -> None:
    store = _store(tmp_path / "X.zarr", lambda m: None, form)
    (store / ("c/0/0" if form == 3 else "0.0")).write_bytes(b"garbage")
    with pytest.raises(InputError, match="rows 0 to 10 cannot be decoded"):
        open_matrix(store).read(0, 10)


@pytest.mark.full
@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["stages"].update(result=5),
        lambda m: m["stages"]["result"].pop("stored"),
        lambda m: m["stages"]["result"].update(stored=7),
        lambda m: m["stages"]["result"].update(seconds="x"),
        lambda m: m["stages"]["result"].update(settings=[1]),
        lambda m: m["stages"]["result"].update(measured_peak_bytes=10**400),
        lambda m: m["stages"]["result"].update(notes=5),
        lambda m: m.update(data=5),
        lambda m: m.update(versions=[]),
        lambda m: m.update(status=5),
        lambda m: m.update(error={}),
        lambda m: m.update(files={"a": 1}),
        lambda m: m.update(stages=[1]),
        lambda m: m.update(notes=5),
        lambda m: "[" * 100_000,
        lambda m: m.update(checkpoints={"result": {"key": "a", "folder": f"result-{_DIGITS}"}}),
        lambda m: m["stages"]["result"].update(notes=[5]),
        lambda m: m["stages"]["result"].pop("seconds"),
    ],
)
def test_a_damaged_manifest_is_named_and_fresh_starts_over(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Any], Any],
) -> None:
    assert call(capsys, "run", "base.yaml")[0] == 0
    place = folder / "runs" / "a" / "manifest.json"
    manifest = json.loads(place.read_text())
    text = change(manifest)
    place.write_text(text if isinstance(text, str) and "[[" in text else json.dumps(manifest))
    for command in (["inspect", "runs/a"], ["report", "runs/a"], ["run", "base.yaml"]):
        code, shown = call(capsys, *command)
        assert code == 2 and "manifest.json is not a manifest" in shown, shown
    shutil.rmtree(folder / "runs" / "a" / "data.zarr")
    assert call(capsys, "run", "base.yaml", "--fresh")[0] == 0


def test_a_configuration_in_a_run_that_is_no_text(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(capsys, "run", "base.yaml")[0] == 0
    place = folder / "runs" / "a" / "config.yaml"
    complete = place.read_bytes()
    place.write_bytes(b"\xa9" + complete)
    for command in (["report", "runs/a"], ["evaluate", "runs/a", "--labels", "y.npy"]):
        code, shown = call(capsys, *command)
        assert code == 2 and "config.yaml cannot be read" in shown, shown
    assert call(capsys, "run", "base.yaml")[0] == 0
    assert place.read_bytes() == complete


@pytest.mark.parametrize("text", ["5", "[1]"])
@pytest.mark.parametrize("kind", ["array", "group"])
def test_attributes_that_are_none(tmp_path: Path, kind: str, text: str) -> None:
    place = tmp_path / "v2.zarr"
    inside = {"name": "X"} if kind == "group" else {}
    zarr.create_array(place, data=np.ones((4, 3)), zarr_format=2, **inside)
    (place / ".zattrs").write_text(text)
    with pytest.raises(InputError, match="damaged zarr folder"):
        open_matrix(str(place))


def test_a_type_of_5000_digits(tmp_path: Path) -> None:
    ingest(np.ones((4, 3)), tmp_path / "X.zarr")
    place = tmp_path / "X.zarr" / "zarr.json"
    metadata = json.loads(place.read_text())
    metadata["attributes"]["stored_dtype"] = _DIGITS
    place.write_text(json.dumps(metadata))
    assert open_matrix(tmp_path / "X.zarr").stored_dtype == np.float64


@pytest.mark.parametrize("shape", [5, [], [4], {}])
def test_a_shape_of_a_store_that_is_none(tmp_path: Path, shape: Any) -> None:
    ingest(np.ones((4, 3)), tmp_path / "X.zarr")
    place = tmp_path / "X.zarr" / "X" / "zarr.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "shape": shape}))
    with pytest.raises(InputError):
        open_matrix(tmp_path / "X.zarr")


def test_a_member_whose_name_is_no_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "X.npz", X=np.ones((4, 3)))
    content = bytearray((tmp_path / "X.npz").read_bytes())
    content[6:8] = (1 << 11).to_bytes(2, "little")  # names are UTF-8, says the local header
    content[30] = 0xA6
    (tmp_path / "X.npz").write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        open_matrix(str(tmp_path / "X.npz"))


def _codec(name: str) -> Any:
    import numcodecs

    known = {"gzip": "GZip", "zlib": "Zlib", "bz2": "BZ2", "lzma": "LZMA", "lz4": "LZ4"}
    return getattr(numcodecs, known.get(name, name.title()))()


@pytest.mark.parametrize("name", ["gzip", "zlib", "bz2", "lzma", "lz4", "blosc", "zstd", None])
@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_chunks_of_every_codec_are_read(tmp_path: Path, name: str | None, kind: str) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 40))
    X = X if kind == "random" else np.zeros_like(X)
    array = zarr.create_array(
        tmp_path / "X.zarr", shape=X.shape, dtype=X.dtype, chunks=(400, 23), zarr_format=2,
        compressors=None if name is None else _codec(name), config={"write_empty_chunks": True},
    )  # fmt: skip
    array[:] = X
    np.testing.assert_array_equal(open_matrix(tmp_path / "X.zarr").read(100, 1000), X[100:])


def _write_ones(place: Path, codec: str) -> None:
    """Write an array of two chunks of 120 bytes."""
    array = zarr.create_array(
        place, shape=(10, 3), dtype="f8", chunks=(5, 3), zarr_format=2, compressors=_codec(codec)
    )
    array[:] = 1.0


@pytest.mark.parametrize("name", ["gzip", "zlib", "bz2", "lzma", "lz4", "blosc", "zstd"])
def test_a_chunk_that_unpacks_to_more_than_a_chunk_is_refused(tmp_path: Path, name: str) -> None:
    _write_ones(tmp_path / "X.zarr", name)
    bomb = _codec(name).encode(np.zeros(20 * 2**20, np.uint8))
    (tmp_path / "X.zarr" / "0.0").write_bytes(bomb)
    with pytest.raises(InputError, match=r"0\.0 holds more than the 1 MiB of a chunk"):
        open_matrix(tmp_path / "X.zarr").read(0, 10)


def test_what_a_packed_chunk_gives_is_counted_without_holding_it() -> None:
    zeros = bytes(2**22)
    streamed = {"gzip": gzip.compress, "zlib": zlib.compress, "bz2": bz2.compress}
    for name, pack in (*streamed.items(), ("lzma", lzma.compress)):
        packed = memoryview(pack(zeros))
        assert _unpacks_beyond(packed, name, 2**22 - 1)
        assert not _unpacks_beyond(packed, name, 2**22)


@pytest.mark.parametrize("name", ["gzip", "bz2", "lzma", "zstd"])
def test_streams_in_a_chunk_are_counted_together(tmp_path: Path, name: str) -> None:
    _write_ones(tmp_path / "X.zarr", name)
    chunk, bomb = tmp_path / "X.zarr" / "0.0", np.zeros(20 * 2**20, np.uint8)
    halves = np.full((2, 60), 63, np.uint8)  # of a chunk of 120 bytes
    chunk.write_bytes(b"".join(bytes(_codec(name).encode(half)) for half in halves))
    assert (open_matrix(tmp_path / "X.zarr").read(0, 5) > 0).all()
    chunk.write_bytes(chunk.read_bytes() + bytes(_codec(name).encode(bomb)))
    with pytest.raises(InputError, match=r"0\.0 holds more than the 1 MiB of a chunk"):
        open_matrix(tmp_path / "X.zarr").read(0, 10)


def test_chunks_are_read_in_groups_and_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zarr_array, "_CHUNKS_AT_ONCE", 30)
    array = zarr.create_array(tmp_path / "X.zarr", shape=(100, 1), dtype="u1", chunks=(1, 1))
    array[:] = np.arange(100)[:, None]
    assert open_matrix(tmp_path / "X.zarr").read(4, 98).ravel().tolist() == list(range(4, 98))
    for form in (2, 3):
        place = tmp_path / f"{form}.zarr"
        shape = (MOST_CHUNKS * 1000, 1)
        zarr.create_array(place, shape=shape, dtype="u1", chunks=(1, 1), zarr_format=form)
        with pytest.raises(InputError, match="1,000,000,000 chunks of 1 x 1 values are too many"):
            open_matrix(place)


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "large"])
def test_a_chunk_that_is_no_file_or_too_large_is_not_read(tmp_path: Path, target: str) -> None:
    store = _store(tmp_path / "X.zarr", lambda m: None)
    chunk = store / "c" / "0" / "0"
    chunk.unlink()
    if target == "/dev/zero":
        chunk.symlink_to(target)
    elif target == "pipe":
        os.mkfifo(chunk)
    else:
        with chunk.open("wb") as file:
            file.truncate(10**12)
    with pytest.raises(InputError, match="is not a file|holds more than"):
        open_matrix(store).read(0, 10)


def test_metadata_that_never_end(tmp_path: Path) -> None:
    store = _store(tmp_path / "X.zarr", lambda m: None)
    (store / "zarr.json").unlink()
    (store / "zarr.json").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="zarr.json is not a file"):
        open_matrix(store)


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "LINE_BYTES", 2**21)
    for name, begin in (("first", b""), ("later", b"a,b\n1,2\n")):
        path = tmp_path / f"{name}.csv.gz"
        path.write_bytes(gzip.compress(begin + b"1," * 2**22))
        with pytest.raises(InputError, match="is longer than 2 MiB"):
            source = open_matrix(path)
            list(source.iter_blocks(10))


@pytest.mark.full
def test_lines_longer_than_a_piece_of_text_are_read(tmp_path: Path) -> None:
    X = np.sqrt(np.arange(2.0, 50_002.0)).reshape(2, 25_000)[:, ::-1]
    path = tmp_path / "X.csv"
    path.write_text("\n".join(",".join(f"{x:.40f}" for x in row) for row in X))
    np.testing.assert_array_equal(np.concatenate(list(open_matrix(path).iter_blocks(10))), X)


def _mat(path: Path, X: np.ndarray) -> Path:
    from scipy.io import savemat

    savemat(path, {"fea": X, "gnd": np.arange(len(X))}, do_compression=True)
    return path


@pytest.mark.full
def test_a_file_that_is_read_as_a_whole_is_planned_and_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few kilobytes that are 64 MB once they are unpacked, and another 64 as an array."""
    _mat(folder / "X.mat", np.zeros((4_000, 2_000)))
    small = ["--set", "input.uri=X.mat", "--set", "memory_limit=768MiB"]
    code, shown = call(capsys, "plan", "base.yaml", *small)
    assert code == 3 and "data" in shown and "memory_limit to '1 GiB'" in shown, shown
    assert call(capsys, "run", "base.yaml", *small)[0] == 3
    with pytest.raises(MemoryLimitError, match="Stage 'data' needs .* for reading the input"):
        ingest("X.mat", "X.zarr", memory_limit="768 MiB")
    with pytest.raises(MemoryLimitError, match="Stage 'data' needs .* for reading the input"):
        MCFS(n_features_to_select=2, memory_limit="768 MiB").fit("X.mat")
    code, shown = call(capsys, "ingest", "X.mat", "X.zarr", "--memory-limit", "768MiB")
    assert code == 3 and "for reading the input" in shown


def test_a_matlab_variable_that_unpacks_to_more_than_it_announces(tmp_path: Path) -> None:
    """Its header says 10 x 3, and 4 MB follow."""
    path = _mat(tmp_path / "X.mat", np.zeros((10, 3)))
    content = path.read_bytes()
    size = int.from_bytes(content[132:136], "little")
    variable = zlib.decompress(content[136 : 136 + size]) + bytes(2**22)
    packed = zlib.compress(variable)
    head = content[:132] + len(packed).to_bytes(4, "little")
    path.write_bytes(head + packed + content[136 + size :])
    with pytest.raises(InputError, match="unpacks to more than"):
        ingest(path, tmp_path / "X.zarr")


def test_names_that_a_terminal_or_a_spreadsheet_would_act_upon(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["\x1b[2Jgene", "=cmd|' /C calc'!A0", "@a", "+x", "-5.5", "plain"]
    X = np.random.default_rng(0).normal(size=(20, 6))
    lines = [",".join(names), *(",".join(map(repr, row)) for row in X.tolist())]
    Path("X.csv").write_text("\n".join(lines))
    for command in (["run", "base.yaml", "--set", "input.uri=X.csv"], ["inspect", "runs/a"]):
        code, shown = call(capsys, *command)
        assert code == 0 and "\x1b" not in shown and "\\x1b[2Jgene" in shown
    actual = (folder / "runs" / "a" / "features.csv").read_text()
    cells = {line.split(",")[2] for line in actual.splitlines()[1:]}
    assert cells == {names[0], "'=cmd|' /C calc'!A0", "'@a", "'+x", "-5.5", "plain"}
    Path("X.csv").write_text(Path("X.csv").read_text().replace("plain", "\x1b[2Jgene"))
    code, shown = call(capsys, "ingest", "X.csv", "X.zarr")
    assert code == 2 and "\x1b" not in shown and "appears twice" in shown


def _sharded() -> None:
    shape = (10**5, 10**5)
    zarr.create_array("bad.zarr", shape=shape, dtype="u1", chunks=(1, 1), shards=shape)
    Path("bad.zarr/c/0").mkdir(parents=True)
    Path("bad.zarr/c/0/0").write_bytes(b"\xff" * 1000)


def _dictionary() -> None:
    """10 texts of 4 MB in 1,000 rows, and a column of numbers: 5 KB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.array(["x" * 2**22 + str(i) for i in range(10)])
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(1000) % 10), texts)
    table = pa.table({"a": np.arange(1000.0), "t": column})
    pq.write_table(table, "bad.parquet", compression="zstd")


def _blank_lines() -> None:
    begin, blank = gzip.compress(b"a,b\n1,2\n3,4\n"), gzip.compress(b"\n" * 10**7)
    Path("bad.csv.gz").write_bytes(begin + 100 * blank + gzip.compress(b"5,6\n"))


def _annotated(rows: int, name: str, form: str = "array") -> None:
    import h5py

    with h5py.File("bad.h5ad", "w") as file:
        file.attrs["encoding-type"], file.attrs["encoding-version"] = "anndata", "0.1.0"
        chunks = (min(rows, 10**6), 3)
        X = file.create_dataset("X", (rows, 3), "f4", chunks=chunks, compression="gzip")
        X.attrs["encoding-type"], X.attrs["encoding-version"] = "array", "0.2.0"
        if rows < 10**6:
            X[:] = np.arange(3.0 * rows).reshape(rows, 3)
        for key, size in (("obs", rows), ("var", 3)):
            group = file.create_group(key)
            group.attrs["encoding-type"], group.attrs["encoding-version"] = "dataframe", "0.2.0"
            group.attrs["_index"], text = "_index", h5py.string_dtype()
            group.attrs.create("column-order", [], dtype=text)
            large = {"chunks": (10**5,), "compression": "gzip"} if size > 10**6 else {}
            names = group.create_dataset("_index", (size,), text, **large)
            names.attrs["encoding-type"], names.attrs["encoding-version"] = "string-array", "0.2.0"
            if size < 10**6:
                for i in range(size):
                    names[i] = f"{name}{i}"


def _never_filled() -> None:
    shape = (10**12, 3)
    zarr.create_array("bad.zarr", shape=shape, dtype="f4", chunks=(10**7, 3))


def _wide() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({f"gene {j}": np.arange(8, dtype="f4") for j in range(25_000)})
    pq.write_table(table, "bad.parquet", row_group_size=1)


_BOUNDED: dict[str, tuple[Callable[[], None], str, str]] = {
    "sharded": (_sharded, "bad.zarr", "10,000,000,000 chunks of 1 x 1 values are too many"),
    "dictionary": (_dictionary, "bad.parquet", "does not hold numbers|GiB of texts in 1,000 rows"),
    "blank lines": (_blank_lines, "bad.csv.gz", "line 4 begins empty lines of more than 32 MiB"),
    "rows": (lambda: _annotated(10**12, ""), "bad.h5ad", "announces 10.9 TiB but stores 0 B"),
    "never filled": (_never_filled, "bad.zarr", "announces 10.9 TiB but stores 0 of 100,000"),
    "names": (
        lambda: _annotated(3, "x" * 5 * 10**7),
        "bad.h5ad",
        "holds 143 MiB in 3 texts, which are too long",
    ),
    "wide": (_wide, "bad.parquet", "for reading the input"),
}


def _measured(*command: str) -> tuple[int, str, int]:
    """Return exit code, output and peak memory of a command in a process of its own.

    The peak that `wait4` knows of a child is never below the size of this process.
    """
    script = (
        "import atexit, runpy, sys; from bigfs.core.memory import peak_bytes;"
        "atexit.register(lambda: open('../peak', 'w').write(str(peak_bytes())));"
        "runpy.run_module('bigfs', run_name='__main__', alter_sys=True)"
    )
    Path("../peak").unlink(missing_ok=True)
    with Path("said.txt").open("w") as said:
        child = subprocess.run([sys.executable, "-c", script, *command], stdout=said, stderr=said)
    peak = int(Path("../peak").read_text()) if Path("../peak").exists() else 2**62
    return child.returncode, Path("said.txt").read_text(), peak


@pytest.mark.full
@pytest.mark.parametrize("case", list(_BOUNDED))
def test_what_a_file_announces_is_compared_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make, name, message = _BOUNDED[case]
    make()
    more = ["--memory-limit", "768MiB"]
    more += ["--categories", "numbers"] if case == "dictionary" else []
    code, shown, peak = _measured("ingest", name, "out.zarr", *more)
    assert code in (2, 3) and re.search(message, shown) and peak < 768 * MIB, (shown, peak / MIB)
    code, shown, peak = _measured("inspect", name)
    # It describes what there is, and says what a run would say.
    assert code in (0, 2) and "Traceback" not in shown and peak < 768 * MIB, (shown, peak / MIB)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "said.txt"])


def test_texts_that_pack_well_are_refused_before_each_row_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _dictionary()
    with pytest.raises(InputError, match=r"column 't' holds 3.91 GiB of texts in 1,000 rows"):
        open_matrix("bad.parquet", categories="numbers")
    assert open_matrix("bad.parquet", columns="a").n_features == 1


def test_damaged_names_of_parquet_are_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.chdir(tmp_path)
    column = pa.array(np.arange(30.0))
    pq.write_table(pa.Table.from_arrays([column] * 3, names=["g0", "g0", "h"]), "twice.parquet")
    pq.write_table(pa.table({"lonelyname": column, "h": column}), "bytes.parquet")
    damaged = Path("bytes.parquet").read_bytes().replace(b"lonelyname", b"\xaaonelyname")
    Path("bytes.parquet").write_bytes(damaged)
    for name, words in (("twice", "appears twice"), ("bytes", "not a Parquet file|not UTF-8")):
        with pytest.raises(InputError, match=words):
            open_matrix(f"{name}.parquet")
        code, shown = call(capsys, "inspect", f"{name}.parquet")
        assert code == 2 and re.search(words, shown), shown


def test_texts_of_every_type_are_read_from_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = ["a", "b", None]
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), "string")]
    table = pa.table({"x": [1.0, 2.0, 3.0]} | {str(k): pa.array(texts, k) for k in kinds})
    pq.write_table(table, tmp_path / "X.parquet")
    X = open_matrix(tmp_path / "X.parquet", categories="one_hot", rows=None)
    block = np.concatenate(list(X.iter_blocks(2)))
    np.testing.assert_array_equal(block[:2, 1:], np.tile(np.eye(2), 4))


def test_a_footer_that_is_too_large_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1.0, 2.0]}), tmp_path / "X.parquet")
    monkeypatch.setattr(parquet, "_FOOTER_BYTES", 100)
    with pytest.raises(InputError, match="at most 100 B is supported. Write it again with larg"):
        open_matrix(tmp_path / "X.parquet")


@pytest.mark.parametrize("size", [0, 99])
def test_a_cut_zip_of_a_zarr_folder_is_refused(tmp_path: Path, size: int) -> None:
    with zarr.storage.ZipStore(tmp_path / "X.zarr.zip", mode="w") as store:
        zarr.create_array(store, data=np.ones((4, 2)))
    os.truncate(tmp_path / "X.zarr.zip", size)
    with pytest.raises(InputError, match="X.zarr.zip cannot be decoded .*not a zip file"):
        open_matrix(tmp_path / "X.zarr.zip")


def test_a_footer_at_which_arrow_would_abort_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", "20")  # before, it did not look at this
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [1.0, 2.0]}), tmp_path / "X.parquet")
    content = (tmp_path / "X.parquet").read_bytes()
    damaged = content.replace(b"\x25\x02\x18\x01a", b"\x25\x00\x18\x01a")  # a may have no null
    (tmp_path / "X.parquet").write_bytes(damaged)
    command = (sys.executable, "-m", "bigfs", "inspect", str(tmp_path / "X.parquet"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "X.parquet is damaged: Definition level" in done.stderr


@pytest.mark.parametrize("kind", ["texts", "lists", "numbers"])
def test_damaged_values_of_arrow_are_refused_before_they_are_used(
    tmp_path: Path, kind: str
) -> None:
    import pyarrow as pa

    texts = pa.array(["a text of a few words", "b"], pa.string_view()).dictionary_encode()
    lists = pa.FixedSizeListArray.from_arrays(np.ones(2 * 12345), 12345)
    values, old, new = {
        "texts": (texts, b"a te\0\0\0\0", b"a te\x09\0\0\0"),  # the place of the text
        "lists": (lists, b"\x39\x30\0\0", b"\xc7\xcf\xff\xff"),  # their size, below 0
        "numbers": (np.ones(12345), b"\x90\3\3" + bytes(5), b"\xff" * 7 + b"\x0f"),  # bytes
    }[kind]
    table = pa.table({"x": values, "y": np.ones(len(values))})
    with pa.ipc.new_stream(tmp_path / "X.arrows", table.schema) as file:
        file.write_table(table)
    head, _, tail = (tmp_path / "X.arrows").read_bytes().rpartition(old)
    (tmp_path / "X.arrows").write_bytes(head + new + tail)
    code = f"list(bigfs.open_matrix({str(tmp_path / 'X.arrows')!r}, categories='numbers')"
    done = subprocess.run(
        (sys.executable, "-c", f"import bigfs; {code}.iter_blocks(9))"), capture_output=True
    )
    assert re.search(b"InputError: .*damaged", done.stderr), done.stderr


@pytest.mark.parametrize("note", [b"\xaf", b"{", b"[1]", b'{"index_columns": 5}'])
def test_a_damaged_note_of_pandas_is_named(tmp_path: Path, note: bytes) -> None:
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    table = pa.table({"a": [1.0, 2.0]}).replace_schema_metadata({b"pandas": note})
    pq.write_table(table, tmp_path / "X.parquet")
    feather.write_feather(table, tmp_path / "X.feather")
    for name in ("X.parquet", "X.feather"):
        with pytest.raises(InputError, match="has damaged pandas metadata"):
            open_matrix(tmp_path / name)


def test_a_matrix_that_no_disk_here_can_hold_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["bigfs.store.ingest"], "free_bytes", lambda place: 4)
    with pytest.raises(
        MemoryLimitError, match="would hold 960 B, but the file system has only 4 B"
    ):
        ingest(np.ones((40, 3)), tmp_path / "X.zarr")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["1" * 5000, "-" + "1" * 5000])
def test_a_whole_number_of_5000_digits_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "X.csv").write_text(f"a,b\n1,2\n3,{content}\n")
    with pytest.raises(InputError, match="line 3, column 'b' is"):
        list(open_matrix(tmp_path / "X.csv").iter_blocks(2))


def _formats_of(X: np.ndarray, folder: Path) -> dict[str, Any]:
    import dask.array
    import pandas
    from scipy.io import savemat

    np.save(folder / "X.npy", X)
    np.savez(folder / "X.npz", X=X)
    savemat(folder / "X.mat", {"X": X})
    frame = pandas.DataFrame(X, columns=["a", "b"])
    frame.to_parquet(folder / "X.parquet")
    zarr.create_array(folder / "X.zarr", shape=X.shape, dtype=X.dtype, chunks=(2, 2))[:] = X
    paths = {name: folder / f"X.{name}" for name in ("npy", "npz", "mat", "parquet", "zarr")}
    lazy = dask.array.from_array(X, chunks=(2, 2))
    return {**paths, "array": X, "frame": frame, "dask": lazy}


def test_whole_numbers_that_would_be_rounded_are_refused(tmp_path: Path) -> None:
    import dask.array
    from scipy.sparse import csr_array

    X = np.array([[1, 2], [3, 4], [5, 2**53 + 1]])
    for given in _formats_of(X, tmp_path).values():
        with pytest.raises(InputError, match=r"row 2, column (1|'b') is 9007199254740993.*rounded"):
            list(open_matrix(given).iter_blocks(2))
    rows = csr_array(X)
    lazy = dask.array.from_array(X, chunks=(2, 2)).map_blocks(csr_array)
    for sparse in (rows, rows.tocsc(), csr_array(X.astype("u8")), lazy):
        with pytest.raises(InputError, match="row 2, column 1 is 9007199254740993.*rounded"):
            list(open_matrix(sparse).iter_blocks(2))
    X[2, 1] -= 1
    (tmp_path / "exact").mkdir()
    for given in _formats_of(X, tmp_path / "exact").values():
        assert np.concatenate(list(open_matrix(given).iter_blocks(2)))[2, 1] == 2.0**53
