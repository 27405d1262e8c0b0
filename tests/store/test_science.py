"""Files of single-cell and Earth science: what the set of `_conformance` does not show.

Ids of cells on their way into a run and out of it, types of features, what is refused without a
package, and files that announce more than they hold.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import bigfs
from bigfs.core.errors import InputError
from bigfs.store.formats import cube
from bigfs.store.formats.cube import CubeSource
from bigfs.store.labels import read_values
from bigfs.store.source import open_matrix
from tests.store._anndata import COUNTS, GENES, N, ad, annotated, h5py
from tests.store._formats import write_tenx

CELLS = [f"AAC{i}-1" for i in range(N)]


def _ids(source: Any) -> list[str]:
    return [text for piece in source.iter_index() for text in piece]


def _tenx(path: Path, kinds: list[str] | None = None) -> Path:
    write_tenx(path, sp.csr_array(COUNTS), [f"ENSG{j}" for j in range(8)], GENES)
    if kinds is not None:
        with h5py.File(path, "r+") as file:
            file["matrix/features/feature_type"] = np.array(kinds, dtype="S")
    return path


def _annotated(path: Path, sparse: bool) -> Path:
    adata = ad.AnnData(sp.csr_matrix(COUNTS) if sparse else COUNTS)
    adata.obs_names, adata.var_names = CELLS, GENES
    (adata.write_zarr if path.suffix == ".zarr" else adata.write_h5ad)(path)
    return path


INPUTS = {
    "h5ad": lambda folder: _annotated(folder / "X.h5ad", sparse=True),
    "h5ad, dense": lambda folder: _annotated(folder / "X.h5ad", sparse=False),
    "zarr": lambda folder: _annotated(folder / "X.zarr", sparse=True),
    "10x": lambda folder: _tenx(folder / "X.h5"),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_cells_keep_their_names_through_a_run(kind: str, tmp_path: Path) -> None:
    result = bigfs.run(
        {
            "run": str(tmp_path / "run"),
            "input": {"uri": str(INPUTS[kind](tmp_path)), "rows": {"every": 2}},
            "method": "max_variance", "preprocess": "none", "n_features_to_select": 3,
        }
    )  # fmt: skip
    result.export(tmp_path / "out.h5ad")
    exported = ad.read_h5ad(tmp_path / "out.h5ad")
    assert exported.obs_names.tolist() == CELLS[::2]
    chosen = [GENES[j] for j in result.selected]
    assert exported.var_names.tolist() == chosen
    kept = exported.X.toarray() if hasattr(exported.X, "toarray") else exported.X
    np.testing.assert_array_equal(kept, COUNTS[::2][:, result.selected])


@pytest.mark.parametrize("sparse", [True, False])
def test_an_anndata_in_memory_has_ids(sparse: bool) -> None:
    adata = ad.AnnData(sp.csr_matrix(COUNTS) if sparse else COUNTS)
    adata.obs_names = CELLS
    assert _ids(open_matrix(adata)) == CELLS


def test_xarray_opens_what_is_exported(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    result = bigfs.run(
        {
            "run": str(tmp_path / "run"), "input": {"uri": "sklearn:iris"},
            "method": "max_variance", "n_features_to_select": 2,
        }
    )  # fmt: skip
    result.export(tmp_path / "out.zarr")
    with xarray.open_zarr(tmp_path / "out.zarr", consolidated=False) as data:
        assert data["X"].dims == ("sample", "feature")
        rows = open_matrix(tmp_path / "out.zarr").read(0, 150)
        np.testing.assert_array_equal(data["X"].values, rows)


def test_only_genes_are_read_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    kinds = ["Gene Expression"] * 5 + ["Antibody Capture"] * 3
    path = _tenx(tmp_path / "X.h5", kinds)
    source = open_matrix(path)
    assert source.feature_names == GENES[:5]
    assert "3 of Antibody Capture (input.feature_types)" in source.notes[0]
    np.testing.assert_array_equal(source.read(3, 20), COUNTS[3:20, :5])
    antibodies = open_matrix(path, feature_types="Antibody Capture")
    np.testing.assert_array_equal(antibodies.read(0, N), COUNTS[:, 5:])
    with pytest.raises(InputError, match="no features of type 'CRISPR'. It has Antibody Capture"):
        open_matrix(path, feature_types=["CRISPR"])
    _tenx(tmp_path / "Y.h5", ["Peaks"] * 8)
    assert open_matrix(tmp_path / "Y.h5").n_features == 8
    _tenx(tmp_path / "Z.h5", ["Peaks"] * 4 + ["Custom"] * 4)
    with pytest.raises(InputError, match="several types, Custom, Peaks. Choose"):
        open_matrix(tmp_path / "Z.h5")
    with pytest.raises(InputError, match="X.npy does not support feature_types"):
        np.save(tmp_path / "X.npy", COUNTS)
        open_matrix(tmp_path / "X.npy", feature_types=["Peaks"])


def test_settings_go_with_what_a_file_holds(tmp_path: Path) -> None:
    path = _annotated(tmp_path / "X.h5", sparse=True)
    with pytest.raises(InputError, match="X.h5 holds AnnData, which has no features. Got 'band'"):
        open_matrix(path, features="band")
    with pytest.raises(InputError, match="has no layer. Got 'raw'"):
        open_matrix(_tenx(tmp_path / "counts.h5"), layer="raw")


def test_genomes_of_version_2_are_named(tmp_path: Path) -> None:
    path = tmp_path / "X.h5"
    with h5py.File(path, "w") as file:
        for genome, factor in (("hg19", 1), ("mm10", 2)):
            group, cells = file.create_group(genome), sp.csr_array(COUNTS * factor)
            for name in ("data", "indices", "indptr"):
                group[name] = getattr(cells, name)
            group["shape"] = np.array([8, N])
            group["barcodes"] = np.array(CELLS, dtype="S")
            group["genes"] = group["gene_names"] = np.array(GENES, dtype="S")
    with pytest.raises(InputError, match="several genomes, hg19, mm10. Name one"):
        open_matrix(path)
    np.testing.assert_array_equal(open_matrix(path, variable="mm10").read(0, N), COUNTS * 2)


def _described(folder: Path, kind: str) -> Path:
    xarray = pytest.importorskip("xarray", reason="the extra bigfs[xarray] is not installed")
    data = xarray.Dataset({"X": (("y", "band"), COUNTS)}, {"band": np.arange(8.0)})
    data["X"].encoding = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -999}
    if kind == "h5":
        data.to_netcdf(folder / "X.h5", engine="h5netcdf")
    else:
        data.to_zarr(folder / "X.zarr", zarr_format=int(kind), consolidated=False)
    return folder / ("X.h5" if kind == "h5" else "X.zarr")


@pytest.mark.parametrize("kind", ["h5", "2", "3"])
def test_without_xarray_its_files_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _described(tmp_path, kind)
    np.testing.assert_array_equal(next(open_matrix(path).iter_blocks(99)), COUNTS)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InputError, match="Install it with: pip install 'bigfs.xarray.'"):
        open_matrix(path)


def test_without_anndata_columns_of_its_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adata = annotated()
    adata.obs["kind"] = "a"
    adata.write_h5ad(tmp_path / "X.h5ad")
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(InputError, match="Install it with: pip install 'bigfs.anndata.'"):
        read_values(f"{tmp_path / 'X.h5ad'}::kind")


@pytest.mark.parametrize("kind", ["h5", "zarr"])
def test_chunks_of_whole_columns_are_decoded_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bigfs.store.formats import parts, zarr_array

    monkeypatch.setattr(parts, "_USUAL_BYTES", 10_000)
    monkeypatch.setattr(zarr_array, "_BAND_BYTES", 10_000)
    monkeypatch.setattr(cube, "_PIECE_BYTES", 5_000)
    values = np.random.default_rng(0).normal(size=(1000, 6))
    if kind == "h5":
        path = tmp_path / "X.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("X", data=values, chunks=(1000, 1), compression="gzip")
    else:
        path = tmp_path / "X.zarr"
        zarr.create_array(store=str(path), data=values, chunks=(1000, 1))
    source = open_matrix(path)
    assert isinstance(source, CubeSource)
    blocks = list(source.iter_blocks(64))
    assert max(map(len, blocks)) == 64
    np.testing.assert_array_equal(np.concatenate(blocks), values)


def _announced(path: Path, what: str) -> Path:
    """Write a few kilobytes that announce terabytes."""
    annotated().write_h5ad(path)
    with h5py.File(path, "r+") as file:
        n = 10**12
        if what == "rows":
            del file["layers/dense"]
            file.create_dataset("layers/dense", (n, 8), "f4", chunks=(1000, 8))
        else:
            name = "X/data" if what == "entries" else "obs/c"
            if what == "labels":
                file["obs"].attrs["column-order"] = np.array(["c"], dtype=h5py.string_dtype())
            else:
                del file[name]
            file.create_dataset(name, (n,), "f8", chunks=(1000,))
    return path


@pytest.mark.parametrize("what", ["rows", "entries", "labels"])
def test_sizes_are_compared_with_the_file(what: str, tmp_path: Path) -> None:
    path = _announced(tmp_path / "X.h5ad", what)
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match="TiB but stores 0 B"):
        if what == "labels":
            read_values(f"{path}::c")
        else:
            open_matrix(path, layer="dense" if what == "rows" else None)


def test_links_that_lead_outside_by_another_link(tmp_path: Path) -> None:
    path = tmp_path / "X.h5ad"
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["X"] = COUNTS
    annotated().write_h5ad(path)
    with h5py.File(path, "r+") as file:
        del file["X"]
        file["away"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "X")
        file["X"], file["circle"] = h5py.SoftLink("/away"), h5py.SoftLink("/circle/circle")
    with pytest.raises(InputError, match="away links to another file, which is not supported"):
        open_matrix(path)
    with pytest.raises(InputError, match="away links to another file"):
        read_values(f"{tmp_path / 'X.h5ad'}::X")


def test_nothing_beside_data_of_xarray_leads_outside(tmp_path: Path) -> None:
    path = _described(tmp_path, "h5")
    with h5py.File(path, "r+") as file:
        file["beside"] = h5py.ExternalLink(str(tmp_path / "pipe"), "X")
    with pytest.raises(InputError, match="beside links to another file"):
        open_matrix(path)


def test_shards_of_very_many_chunks_are_refused(tmp_path: Path) -> None:
    shape = (10**10, 1)
    zarr.create_array(
        store=str(tmp_path / "X.zarr"), shape=shape, dtype="u1", chunks=(1, 1), shards=shape
    )
    with pytest.raises(InputError, match="10,000,000,000 chunks of 1 x 1 values are too many"):
        open_matrix(tmp_path / "X.zarr")
