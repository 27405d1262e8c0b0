"""Makers of bad inputs; everything is written into the working folder."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

X = np.random.default_rng(0).normal(size=(20, 4))
NAMES = "height,width,depth,mass"
PIPELINE = "run: out\ninput: {uri: X.npy}\nmethod: max_variance\nn_features_to_select: 2\n"
COMPARISON = (
    "run: out\ninput: {uri: X.npy}\nn_features_to_select: [1, 2]\nevaluate: {labels: y.npy}\n"
    "methods: [max_variance, laplacian_score]\n"
)
TABLE = (
    "run: out\ntitle: t\nprotocol: draws\nscores: [nmi]\nn_features_to_select: 2\n"
    "methods: [max_variance]\nsets: [{name: one, uri: one.npz, paper: {max_variance: {nmi: 5}}}]\n"
)

Make = Callable[[], Any]


def write_good() -> None:
    """Write a good matrix, its labels, a pipeline, a comparison and a paper's table."""
    np.save("X.npy", X)
    np.save("y.npy", np.arange(20) % 3)
    Path("p.yaml").write_text(PIPELINE)
    Path("c.yaml").write_text(COMPARISON)
    Path("t.yaml").write_text(TABLE)


class Payload:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.path.abspath("unpickled"),)


def npy_file(value: Any, name: str = "X.npy") -> Make:
    return lambda: np.save(name, np.asarray(value))


def with_value(value: float, row: int, column: int, dtype: str = "f8") -> np.ndarray:
    changed = X.astype(dtype)
    changed[row, column] = value
    return changed


def text_file(name: str, content: str | bytes) -> Make:
    data = content.encode() if isinstance(content, str) else content
    return lambda: Path(name).write_bytes(data)


def yaml_file(content: str) -> Make:
    return text_file("p.yaml", content)


def csv_file(*lines: str, header: str = NAMES) -> Make:
    return text_file("X.csv", "\n".join([header, *lines, ""]))


def cut_off(name: str, write: Make, keep: float = 0.6) -> Make:
    def cut() -> None:
        write()
        content = Path(name).read_bytes()
        Path(name).write_bytes(content[: int(len(content) * keep)])

    return cut


def objects() -> np.ndarray:
    values = np.empty((3, 2), dtype=object)
    values[:] = Payload()
    return values


def pickled_npy(name: str) -> Make:
    return lambda: np.save(name, objects(), allow_pickle=True)


def pickled_npz(**more: Any) -> Make:
    return lambda: np.savez("X.npz", X=objects(), **more)


def pickled_file(name: str) -> Make:
    return lambda: Path(name).write_bytes(pickle.dumps(Payload()))


def sparse_with_pickles() -> None:
    np.savez("X.npz", data=objects()[:, 0], indices=[0, 1, 0], indptr=[0, 1, 2, 3], shape=[3, 2])


def parquet_file(name: str = "X.parquet", **columns: Any) -> Make:
    def write() -> None:
        import pandas as pd

        pd.DataFrame(columns).to_parquet(name)

    return write


def mat_file(**variables: Any) -> Make:
    def write() -> None:
        from scipy.io import savemat

        savemat("X.mat", variables)

    return write


def zarr_array(value: Any, **options: Any) -> Make:
    def write() -> None:
        import zarr

        value_ = np.asarray(value)
        array = zarr.create_array(store="X.zarr", shape=value_.shape, dtype=value_.dtype, **options)
        array[...] = value_

    return write


def zarr_store(damage: Callable[[Path], Any] | None = None) -> Make:
    """Write a store with five chunks, and damage it."""

    def write() -> None:
        from bigfs.store.ingest import ingest

        ingest("X.npy", "S.zarr", rows=4)
        if damage is not None:
            damage(Path("S.zarr"))

    return write


def flip(path: Path) -> None:
    chunk = path / "X/c/3/0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 0xFF
    chunk.write_bytes(content)


def finished() -> None:
    """Finish a good run in the folder ``done``."""
    import bigfs

    settings = {"input": {"uri": "X.npy"}, "method": "max_variance", "n_features_to_select": 2}
    bigfs.run({"run": "done", **settings})


def compared() -> None:
    """Finish a good comparison in the folder ``done``."""
    import bigfs

    bigfs.compare("c.yaml", overrides=["run=done", "evaluate.n_repetitions=1"])


def spoiled_run(name: str, content: str) -> Make:
    def write() -> None:
        finished()
        Path("done", name).write_text(content)

    return write


def some_folder(name: str, *files: str) -> Make:
    def write() -> None:
        Path(name).mkdir()
        for file in files:
            Path(name, file).write_text("mine")

    return write


def bomb() -> None:
    """Write a zip whose member is encrypted: zipfile asks for a password."""
    with zipfile.ZipFile("X.npz", "w") as archive:
        archive.writestr("X.npy", b"0" * 99)
    content = bytearray(Path("X.npz").read_bytes())
    content[6] |= 1
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    Path("X.npz").write_bytes(content)


def png() -> bytes:
    def part(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = part(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + part(b"IDAT", zlib.compress(b"\0\0")) + part(b"IEND", b"")
    )


HTML = (
    "<!DOCTYPE html>\n<html><head><title>404, not found</title></head>\n<body>sorry</body></html>\n"
)
HEADER = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\0" * 999
