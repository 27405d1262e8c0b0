"""Output of Cell Ranger: HDF5 files, and folders with a Matrix Market file."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite

from bigfs import MaxVariance, ingest, open_matrix
from bigfs.core.errors import InputError
from bigfs.store.formats import parts
from tests.store._formats import write_tenx

N, D = 40, 9
COUNTS = np.random.default_rng(0).poisson(0.5, (N, D))
SYMBOLS = [f"gene {j}" for j in range(D - 1)] + ["gene 3"]  # one twice
IDS = [f"ENSG{j}" for j in range(D)]
NAMES = [*SYMBOLS[:3], "gene 3 (ENSG3)", *SYMBOLS[4:-1], "gene 3 (ENSG8)"]


def _folder(path: Path, *, packed: bool = True, order: str = "csc", version: int = 3) -> Path:
    path.mkdir()
    cells = sp.coo_array(sp.csc_array(COUNTS.T) if order == "csc" else sp.csr_array(COUNTS.T))
    mmwrite(path / "matrix.mtx", cells, comment="\nmetadata_json: {}", field="integer")
    lines = [f"{i}\t{s}\tGene Expression" for i, s in zip(IDS, SYMBOLS, strict=True)]
    name = "features.tsv" if version == 3 else "genes.tsv"
    (path / name).write_text("\n".join(lines) + "\n")
    (path / "barcodes.tsv").write_text("\n".join(f"AAC{i}-1" for i in range(N)) + "\n")
    for file in list(path.iterdir()) if packed else []:
        (path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    return path


def _h5(path: Path) -> Path:
    pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
    return write_tenx(path, sp.csr_array(COUNTS), IDS, SYMBOLS)


MAKERS: dict[str, Callable[[Path], Path]] = {
    "h5": lambda folder: _h5(folder / "filtered_feature_bc_matrix.h5"),
    "folder": lambda folder: _folder(folder / "counts"),
    "folder by genes": lambda folder: _folder(folder / "counts", order="csr"),
    "folder of version 2": lambda folder: _folder(folder / "counts", packed=False, version=2),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_counts_are_read_by_cells(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_BAND_ENTRIES", 50)
    path = MAKERS[kind](tmp_path)
    source = open_matrix(path)
    assert source.sparse and (source.n_samples, source.n_features) == (N, D)
    assert source.feature_names == NAMES
    for rows in (1, 7, 100):
        blocks = np.concatenate(list(open_matrix(path).iter_blocks(rows)))
        np.testing.assert_array_equal(blocks, COUNTS)
    ingest(path, tmp_path / "X.zarr")
    np.testing.assert_array_equal(open_matrix(tmp_path / "X.zarr").read(0, N), COUNTS)
    fitted, expected = (
        MaxVariance(3, preprocess="none").fit(path),
        MaxVariance(3, preprocess="none").fit(COUNTS),
    )
    np.testing.assert_array_equal(fitted.ranking_, expected.ranking_)


BROKEN: dict[str, tuple[str, str, str]] = {
    "a word": ("matrix.mtx", "one two three\n", "not a row, a column and a value"),
    "two numbers": ("matrix.mtx", "1 2\n", "not a row, a column and a value"),
    "a zero byte": ("matrix.mtx", "1 1 5\x000\n", "a line is not a row"),
    "a number of Fortran": ("matrix.mtx", "1 1 1D3\n", "a line is not a row"),
    "hexadecimal": ("matrix.mtx", "1 1 0x10\n", "a line is not a row"),
    "outside": ("matrix.mtx", "10 1 5\n", "out of bounds"),
    "a zero": ("matrix.mtx", "0 1 5\n", "out of bounds"),
    "one more": ("matrix.mtx", "1 1 5\n", "entries, but it has a different number"),
    "more names": ("features.tsv", "a\tb\n", "10 lines for 9 features"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_folder_that_is_damaged_is_refused(case: str, tmp_path: Path) -> None:
    name, added, message = BROKEN[case]
    path = _folder(tmp_path / "counts", packed=False)
    with (path / name).open("a") as file:
        file.write(added)
    with pytest.raises(InputError, match=message):
        ingest(path, tmp_path / "X.zarr")
    assert not (tmp_path / "X.zarr").exists()


@pytest.mark.parametrize(
    ("stored", "old", "new", "message"),
    [
        ("S9", b"AAC7-1", b"AAC\xe9-1", "an id of a row cannot be decoded .'utf-8' codec"),
        ("text", b"GCOL", b"GCOX", "an id of a row cannot be decoded .Can't"),
        (
            "chunks",
            b"TREE\1",
            b"TREX\1",
            "matrix/barcodes cannot be decoded .Unable to get storage",
        ),
    ],
)
def test_ids_that_cannot_be_decoded_are_damage_of_what_is_read(
    tmp_path: Path, stored: str, old: bytes, new: bytes, message: str
) -> None:
    h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
    path = _h5(tmp_path / "X.h5")
    with h5py.File(path, "a") as file:
        names = [f"AAC{i}-1" for i in range(N)]
        del file["matrix/barcodes"]
        kind = h5py.string_dtype() if stored == "text" else "S9"
        chunks = (N,) if stored == "chunks" else None
        file["matrix"].create_dataset("barcodes", data=names, dtype=kind, chunks=chunks)
    content = path.read_bytes()
    place = content.rindex(old)
    path.write_bytes(content[:place] + new + content[place + len(old) :])
    with pytest.raises(InputError, match=message):
        ingest(path, tmp_path / "X.zarr")


def test_a_count_that_was_interrupted_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_matrix(_folder(tmp_path / "counts", packed=False))
    pieces = type(source).pieces

    def interrupted(self: Any) -> Iterator[np.ndarray]:
        yield from pieces(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(source), "pieces", interrupted)
        source.begin()
    source.begin()
    np.testing.assert_array_equal(np.concatenate(list(source.iter_blocks(100))), COUNTS)


@pytest.mark.parametrize(
    "first, expected",
    [
        ("%%MatrixMarket matrix array real general", "2 whole numbers"),
        ("%%MatrixMarket matrix coordinate real hermitian", "real hermitian is not supported"),
        ("hello", "not a Matrix Market file"),
        ("%%MatrixMarket matrix coordinate integer general\n9 40", "3 whole numbers"),
        (
            "%%MatrixMarket matrix coordinate integer general\n9 99999999999999999 5",
            "implausible|large",
        ),
    ],
)
def test_headers_that_cannot_be(first: str, expected: str, tmp_path: Path) -> None:
    path = _folder(tmp_path / "counts", packed=False)
    (path / "matrix.mtx").write_text(first + "\n1 1 1\n")
    with pytest.raises(InputError, match=expected):
        open_matrix(path)


def test_files_that_are_cut_off_or_missing(tmp_path: Path) -> None:
    path = _folder(tmp_path / "counts")
    content = (path / "matrix.mtx.gz").read_bytes()
    (path / "matrix.mtx.gz").write_bytes(content[:-20])
    with pytest.raises(InputError, match="damaged"):
        ingest(path, tmp_path / "X.zarr")
    (path / "features.tsv.gz").unlink()
    (path / "matrix.mtx.gz").write_bytes(content)
    with pytest.raises(InputError, match="has no features.tsv.gz"):
        open_matrix(path)
    shutil.rmtree(path)
    os.mkdir(path)
    with pytest.raises(InputError, match="not a zarr array or group"):
        open_matrix(path)
    h5 = _h5(tmp_path / "X.h5")
    import h5py

    with h5py.File(h5, "r+") as file:
        del file["matrix/features"]
    with pytest.raises(InputError, match="matrix has no feature names"):
        open_matrix(h5)


def test_settings_that_a_file_does_not_have_are_refused(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "cells.loom"
    with h5py.File(path, "w") as file:
        file["matrix"] = np.arange(12.0).reshape(4, 3)
        file["row_attrs/Gene"] = [f"g{i}" for i in range(4)]
        file["col_attrs/CellID"] = [f"c{i}" for i in range(3)]
    assert open_matrix(path).n_samples == 3
    with pytest.raises(InputError, match="variable must be None"):
        open_matrix(path, variable="other")
    with pytest.raises(InputError, match="has no feature_types"):
        open_matrix(path, feature_types=["Gene Expression"])
    counts = write_tenx(tmp_path / "counts.h5", sp.csr_matrix(COUNTS), IDS, SYMBOLS)
    with h5py.File(counts, "a") as file:
        file["other"] = np.ones((3, 4))
    with pytest.raises(InputError, match="counts.h5::other has no feature types"):
        open_matrix(counts, variable="other", feature_types=["Gene Expression"])
    with pytest.raises(InputError, match="no layer 'spliced'. It has no layers"):
        open_matrix(path, layer="spliced")
