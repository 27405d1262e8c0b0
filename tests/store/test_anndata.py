"""AnnData on disk and in memory: layers, raw, names, and what is refused by name.

That it is read as every other format is, is in test_formats.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from bigfs import MaxVariance, ingest, open_matrix
from bigfs.core.errors import CorruptStoreError, InputError, MemoryLimitError
from bigfs.pipeline.inspect import inspect
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import load_config
from bigfs.store.formats import hdf5, parts
from tests.store._anndata import (
    COUNTS,
    GENES,
    D,
    N,
    ad,
    annotated,
    frame_of_genes,
    h5py,
    kept_as,
    rows_of,
)


@pytest.mark.parametrize("kind", ["h5ad", "zarr", "memory", "backed"])
def test_layers_and_raw(kind: str, tmp_path: Path) -> None:
    X = kept_as(kind, tmp_path, annotated())
    for layer, factor in ((None, 1), ("dense", 2), ("columns", 3)):
        source = open_matrix(X, layer=layer)
        np.testing.assert_array_equal(rows_of(source), COUNTS * factor)
        assert source.feature_names == GENES
        assert source.sparse == (layer != "dense")
    raw = open_matrix(X, layer="raw")
    np.testing.assert_array_equal(rows_of(raw), np.c_[COUNTS, COUNTS] * 5)
    assert raw.feature_names == list(frame_of_genes(2 * D).index)
    with pytest.raises(InputError, match="has no layer 'spliced'. It has columns, dense"):
        open_matrix(X, layer="spliced")


def test_what_is_no_anndata_has_no_layers(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", COUNTS)
    for X in (tmp_path / "X.npy", COUNTS, "sklearn:iris", open_matrix(COUNTS)):
        with pytest.raises(InputError, match="does not support layer; only .*h5ad"):
            open_matrix(X, layer="counts")


def _h5ad(folder: Path, change: Callable[[Any], Any], **options: Any) -> Path:
    path = folder / "X.h5ad"
    annotated().write_h5ad(path, **options)
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def _replace(name: str, values: Any) -> Callable[[Any], Any]:
    def change(file: Any) -> None:
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = values
        file[name].attrs.update(attributes)

    return change


def _lead_outside(file: Any) -> None:
    del file["X/data"]
    file["X/data"] = h5py.ExternalLink("/etc/other.h5", "X")


def _external(file: Any) -> None:
    del file["layers/dense"]
    file.create_dataset("layers/dense", (N, D), "f4", external=[("/dev/zero", 0, 4 * N * D)])


def _virtual(file: Any) -> None:
    del file["layers/dense"]
    layout = h5py.VirtualLayout((N, D), "f4")
    file.create_virtual_dataset("layers/dense", layout)


def _unpacked(file: Any) -> None:
    """A layer whose packing no HDF5 knows."""
    del file["layers/dense"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((N, D))
    plist.set_filter(32_767, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((N, D))
    h5py.h5d.create(file["layers"].id, b"dense", h5py.h5t.NATIVE_FLOAT, space, plist)


CASES: dict[str, tuple[Callable[[Any], Any], str | None, str]] = {
    "no X": (lambda f: f.__delitem__("X"), None, "has no X. It has columns, dense"),
    "a frame": (
        lambda f: f["X"].attrs.__setitem__("encoding-type", "dataframe"), None,
        "stored as dataframe, which is not supported",
    ),
    "no var": (lambda f: f.__delitem__("var"), None, "no frame 'var'"),
    "names": (_replace("var/_index", ["a"] * 3), None, "3,. names for 8 features"),
    "names twice": (_replace("var/_index", ["a"] * D), None, "twice.*var_names_make_unique"),
    "column outside": (lambda f: f["X/indices"].__setitem__(3, 99), None, "indices|index"),
    "negative column": (lambda f: f["X/indices"].__setitem__(3, -1), None, "indices|index"),
    "fewer values": (_replace("X/data", [1.0, 2.0]), None, "have shapes"),
    "a long row": (
        lambda f: f["X/indptr"].__setitem__(slice(1, 3), f["X/indptr"][3]), None,
        "more entries than there are features",
    ),
    "pointers fall": (_replace("X/indptr", np.arange(N, -1, -1)), None, "indptr"),
    "pointers are few": (_replace("X/indptr", np.arange(5)), None, "have shapes"),
    "pointers of fractions": (_replace("X/indptr", np.zeros(N + 1)), None, "whole numbers"),
    "shape": (lambda f: f["X"].attrs.__setitem__("shape", "wide"), None, "its shape is"),
    "sizes": (lambda f: f["X"].attrs.__setitem__("shape", [2**62, 9]), None, "implausible"),
    "texts": (_replace("X/data", ["a"]), None, "real numbers"),
    "link outside": (_lead_outside, None, "X/data|data links to another file"),
    "values outside": (_external, "dense", "keeps its values in other files"),
    "virtual": (_virtual, "dense", "keeps its values in other files"),
    "packing": (_unpacked, "dense", "compressed by .*cannot decompress"),
    "row outside": (
        lambda f: f["layers/columns/indices"].__setitem__(0, N), "columns",
        "indices are out of bounds",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_read_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    change, layer, message = CASES[case]
    path = _h5ad(tmp_path, change)
    with pytest.raises(InputError, match=message) as raised:
        ingest(path, tmp_path / "out.zarr", layer=layer)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out.zarr").exists()


def test_an_array_of_rows_is_no_matrix_of_features(tmp_path: Path) -> None:
    annotated().write_h5ad(tmp_path / "X.h5ad")
    with pytest.raises(InputError, match="graph.representation=obsm/X_pca"):
        open_matrix(f"{tmp_path}/X.h5ad::obsm/X_pca")
    with pytest.raises(InputError, match="holds one matrix"):
        open_matrix(tmp_path / "X.h5ad", variable="X")


def test_files_that_are_no_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "X.h5ad"
    path.write_bytes(b"garbage" * 100)
    with pytest.raises(InputError, match="cannot be opened as an HDF5 file"):
        open_matrix(path)
    path.write_bytes(_h5ad(tmp_path, lambda f: None).read_bytes()[:3000])
    with pytest.raises(InputError, match="cannot be opened as an HDF5 file|damaged"):
        open_matrix(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is a pipe or a device"):
        open_matrix(path)


def test_a_chunk_that_unpacks_to_more_than_a_chunk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zlib

    monkeypatch.setattr(hdf5, "UNCOUNTED_BYTES", 0)
    path = _h5ad(tmp_path, lambda f: None, compression="gzip")
    np.testing.assert_array_equal(rows_of(open_matrix(path, layer="dense")), COUNTS * 2)
    with h5py.File(path, "r+") as file:
        file["layers/dense"].id.write_direct_chunk((0, 0), zlib.compress(bytes(2**23)))
    with pytest.raises(CorruptStoreError, match="is larger than its shape allows"):
        open_matrix(path, layer="dense").read(0, 5)


def test_damaged_bytes_are_never_read_as_values(tmp_path: Path) -> None:
    path = _h5ad(tmp_path, lambda f: None, compression="gzip")
    with h5py.File(path, "r+") as file:
        chunk = file["X/data"].id.get_chunk_info(0)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + chunk.size // 2)
        raw.write(b"\xff" * 9)
    with pytest.raises(CorruptStoreError, match="rows 0 to 60 cannot be decoded"):
        open_matrix(path).read(0, N)


def test_counts_by_columns_are_told_by_the_rows_that_tell_those_by_rows(tmp_path: Path) -> None:
    dense = np.random.default_rng(1).poisson(0.4, (1200, 9)).astype(float)
    dense[1100:] *= 0.5  # beyond the rows that are looked at
    X = sp.csc_array(dense)
    X.data[:2] = 0.0, np.nan
    for form in (X, X.tocsr()):
        ad.AnnData(form).write_h5ad(tmp_path / "X.h5ad")
        assert open_matrix(tmp_path / "X.h5ad").holds_counts()


@pytest.mark.parametrize("groups", [1, 3, 2**12])
def test_columns_are_brought_into_order_by_bands(
    groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_MOST_GROUPS", groups)
    monkeypatch.setattr(parts, "_BAND_ENTRIES", 40)
    monkeypatch.setattr(parts, "_PIECE_ENTRIES", 17)
    dense = np.random.default_rng(1).poisson(0.4, (103, 9)).astype(float)
    dense[50:60] = 0
    X = sp.csc_array(dense)
    path = tmp_path / "X.h5ad"
    ad.AnnData(X).write_h5ad(path)
    for rows in (1, 7, 20, 500):
        blocks = list(open_matrix(path).iter_rows(rows))
        assert [block.shape[0] for block in blocks[:-1]] == [rows] * (len(blocks) - 1)
        np.testing.assert_array_equal(sp.vstack(blocks).toarray(), X.toarray())
    ingest(path, tmp_path / "X.zarr")
    np.testing.assert_array_equal(open_matrix(tmp_path / "X.zarr").read(0, 103), X.toarray())


def test_row_numbers_of_one_byte(tmp_path: Path) -> None:
    X = sp.csc_array(np.random.default_rng(1).poisson(0.4, (256, 9)).astype(np.float32))
    ad.AnnData(X).write_h5ad(tmp_path / "X.h5ad")
    with h5py.File(tmp_path / "X.h5ad", "r+") as file:
        del file["X/indices"]
        file["X/indices"] = X.indices.astype(np.uint8)
    blocks = list(open_matrix(tmp_path / "X.h5ad").iter_rows(100))
    np.testing.assert_array_equal(sp.vstack(blocks).toarray(), X.toarray())


def test_the_header_is_enough_for_inspect_and_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotated().write_h5ad(tmp_path / "X.h5ad")
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 2,
        "preprocess": "none", "input": {"uri": str(tmp_path / "X.h5ad"), "layer": "columns"},
    }  # fmt: skip
    monkeypatch.setattr(parts.ByBands, "_count", lambda self: pytest.fail("rows are read"))
    assert plan_pipeline(load_config(settings, [])).fits
    lines = inspect(tmp_path / "X.h5ad", layer="columns")
    assert f"60 samples x 8 features, float32, sparse: {np.count_nonzero(COUNTS)} ent" in lines
    assert "a run rewrites it in row order first" in lines
    shown = inspect(tmp_path / "X.h5ad")
    assert "features: gene 0, gene 1" in shown and "whole numbers from 0" in shown


def test_a_chunk_that_does_not_fit_is_priced(tmp_path: Path) -> None:
    """A terabyte in one chunk, of which nothing is stored."""
    path = _h5ad(tmp_path, lambda f: None)
    with h5py.File(path, "r+") as file:
        del file["layers/dense"]
        file.create_dataset("layers/dense", (N, D), "f8", chunks=(5 * 10**7 // D, D),
                            maxshape=(None, D), compression="gzip")  # fmt: skip
    with pytest.raises(MemoryLimitError, match="reading the input"):
        ingest(path, tmp_path / "X.zarr", layer="dense", memory_limit="768 MiB")


@pytest.mark.parametrize("kind", ["h5ad", "zarr", "memory", "backed"])
def test_fit_and_transform(kind: str, tmp_path: Path) -> None:
    adata = annotated()
    X = kept_as(kind, tmp_path, adata)
    expected = MaxVariance(3, preprocess="none").fit(COUNTS)
    fitted = MaxVariance(3, preprocess="none").fit(X)
    np.testing.assert_array_equal(fitted.ranking_, expected.ranking_)
    kept = fitted.get_support(indices=True)
    assert fitted.get_feature_names_out().tolist() == [GENES[j] for j in kept]
    chosen = fitted.transform(X)
    if kind in ("memory", "backed"):
        assert type(chosen).__name__ == "AnnData"
        assert chosen.var_names.tolist() == [GENES[j] for j in kept]
        chosen = chosen.to_memory() if kind == "backed" else chosen
        np.testing.assert_array_equal(chosen.X.toarray(), COUNTS[:, kept])
        other = fitted.transform(adata[:, GENES[::-1]])  # by name
        assert other.var_names.tolist() == [GENES[j] for j in kept]
    else:
        np.testing.assert_array_equal(np.asarray(chosen), COUNTS[:, kept])


@pytest.mark.parametrize("kind", ["memory", "backed"])
def test_an_anndata_becomes_a_frame_where_frames_are_wanted(kind: str, tmp_path: Path) -> None:
    X = kept_as(kind, tmp_path, annotated())
    fitted = MaxVariance(3, preprocess="none").set_output(transform="pandas").fit(X)
    frame = fitted.transform(X)
    assert frame.index.tolist() == X.obs_names.tolist()
    assert frame.columns.tolist() == fitted.get_feature_names_out().tolist()
    np.testing.assert_array_equal(frame, COUNTS[:, fitted.get_support()])


def test_a_view_and_a_lazy_anndata(tmp_path: Path) -> None:
    import dask.array as da

    adata = annotated()
    expected = MaxVariance(3, preprocess="none").fit(COUNTS[10:])
    lazy = adata.copy()
    lazy.X = da.from_array(COUNTS, chunks=(20, D)).map_blocks(sp.csr_matrix)
    for X in (adata[10:], lazy[10:]):
        np.testing.assert_allclose(
            MaxVariance(3, preprocess="none").fit(X).scores_, expected.scores_, rtol=1e-12
        )
    dense = MaxVariance(3, preprocess="none").fit(open_matrix(adata[10:], layer="dense"))
    np.testing.assert_array_equal(dense.ranking_, expected.ranking_)
    adata.write_h5ad(tmp_path / "X.h5ad")
    with pytest.raises(InputError, match="view of a backed AnnData"):
        MaxVariance(3, preprocess="none").fit(ad.read_h5ad(tmp_path / "X.h5ad", backed="r")[10:])


def test_an_anndata_read_lazily(tmp_path: Path) -> None:
    pytest.importorskip("xarray", reason="xarray, of anndata's lazy reading, is not installed")
    annotated().write_zarr(tmp_path / "X.zarr")
    adata = ad.experimental.read_lazy(tmp_path / "X.zarr")
    expected, fitted = (
        MaxVariance(3, preprocess="none").fit(COUNTS),
        MaxVariance(3, preprocess="none").fit(adata),
    )
    np.testing.assert_array_equal(fitted.ranking_, expected.ranking_)
    assert fitted.transform(adata).shape == (N, 3)
