"""AnnData on disk and in memory: layers, raw, names, and what is refused by name.

That it is read as every other format is, is in test_formats.py.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from bigfs import HighlyVariable, MaxVariance, ingest, open_matrix, run, select
from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.errors import ConfigError, CorruptStoreError, InputError, MemoryLimitError
from bigfs.graph import affinity, knn_graph
from bigfs.pipeline.inspect import inspect
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.configs import load_comparison, load_config
from bigfs.selectors.laplacian_score.strategies import choose
from bigfs.store.formats import hdf5, parts
from bigfs.store.labels import load_labels
from tests.store._folder import call

ad = pytest.importorskip("anndata", reason="anndata is not installed")
h5py = pytest.importorskip("h5py", reason="the extra bigfs[h5ad] is not installed")

N, D = 60, 8
COUNTS = np.random.default_rng(0).poisson(0.4, (N, D)).astype(np.float32)
GENES = [f"gene {j}" for j in range(D)]


def annotated(X: Any = None) -> Any:
    """Return an AnnData whose X, layers and raw all differ."""
    X = sp.csr_matrix(COUNTS) if X is None else X
    adata = ad.AnnData(X, var=pd.DataFrame(index=GENES))
    adata.raw = ad.AnnData(sp.csr_matrix(np.c_[COUNTS, COUNTS] * 5), var=_frame(2 * D))
    adata.layers["dense"] = COUNTS * 2
    adata.layers["columns"] = sp.csc_matrix(COUNTS * 3)
    return adata


def _frame(d: int) -> Any:
    return pd.DataFrame(index=[f"raw {j}" for j in range(d)])


def _rows(source: Any) -> np.ndarray:
    return np.concatenate(list(source.iter_blocks(25)))


def _stored(kind: str, folder: Path, adata: Any) -> Any:
    if kind == "zarr":
        adata.write_zarr(folder / "X.zarr")
        return folder / "X.zarr"
    if kind == "memory":
        return adata
    adata.write_h5ad(folder / "X.h5ad")
    return folder / "X.h5ad" if kind == "h5ad" else ad.read_h5ad(folder / "X.h5ad", backed="r")


@pytest.mark.parametrize("kind", ["h5ad", "zarr", "memory", "backed"])
def test_layers_and_raw(kind: str, tmp_path: Path) -> None:
    X = _stored(kind, tmp_path, annotated())
    for layer, factor in ((None, 1), ("dense", 2), ("columns", 3)):
        source = open_matrix(X, layer=layer)
        np.testing.assert_array_equal(_rows(source), COUNTS * factor)
        assert source.feature_names == GENES
        assert source.sparse == (layer != "dense")
    raw = open_matrix(X, layer="raw")
    np.testing.assert_array_equal(_rows(raw), np.c_[COUNTS, COUNTS] * 5)
    assert raw.feature_names == list(_frame(2 * D).index)
    with pytest.raises(InputError, match="has no layer 'spliced'. It has columns, dense"):
        open_matrix(X, layer="spliced")


def test_what_is_no_anndata_has_no_layers(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", COUNTS)
    for X in (tmp_path / "X.npy", COUNTS, "sklearn:iris", open_matrix(COUNTS)):
        with pytest.raises(InputError, match="is no AnnData.*only these have layers"):
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
    plist.set_filter(307, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((N, D))
    h5py.h5d.create(file["layers"].id, b"dense", h5py.h5t.NATIVE_FLOAT, space, plist)


CASES: dict[str, tuple[Callable[[Any], Any], str | None, str]] = {
    "no X": (lambda f: f.__delitem__("X"), None, "has no X. It has layers columns, dense; name"),
    "a frame": (
        lambda f: f["X"].attrs.__setitem__("encoding-type", "dataframe"), None,
        "stored as dataframe, which is not read",
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
    "link outside": (_lead_outside, None, "X/data|data leads to another file"),
    "values outside": (_external, "dense", "keeps its values in other files"),
    "virtual": (_virtual, "dense", "keeps its values in other files"),
    "packing": (_unpacked, "dense", "packed by .*cannot unpack"),
    "row outside": (
        lambda f: f["layers/columns/indices"].__setitem__(0, N), "columns",
        "indices lead outside of the matrix",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_read_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    change, layer, said = CASES[case]
    path = _h5ad(tmp_path, change)
    with pytest.raises(InputError, match=said) as raised:
        ingest(path, tmp_path / "out.zarr", layer=layer)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out.zarr").exists()


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
    with pytest.raises(InputError, match="is no file"):
        open_matrix(path)


def test_a_chunk_that_unpacks_to_more_than_a_chunk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zlib

    monkeypatch.setattr(hdf5, "_UNCOUNTED_BYTES", 0)
    path = _h5ad(tmp_path, lambda f: None, compression="gzip")
    np.testing.assert_array_equal(_rows(open_matrix(path, layer="dense")), COUNTS * 2)
    with h5py.File(path, "r+") as file:
        file["layers/dense"].id.write_direct_chunk((0, 0), zlib.compress(bytes(2**23)))
    with pytest.raises(CorruptStoreError, match="holds more than a chunk can"):
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


def test_columns_are_brought_into_order_by_bands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_BAND_ENTRIES", 40)
    monkeypatch.setattr(parts, "_PIECE_ENTRIES", 17)
    dense = np.random.default_rng(1).poisson(0.4, (103, 9)).astype(float)
    dense[50:60] = 0
    X = sp.csc_array(dense)
    path = tmp_path / "X.h5ad"
    ad.AnnData(X).write_h5ad(path)
    for rows in (1, 7, 20, 500):
        blocks = list(open_matrix(path).iter_csr(rows))
        assert [block.shape[0] for block in blocks[:-1]] == [rows] * (len(blocks) - 1)
        np.testing.assert_array_equal(sp.vstack(blocks).toarray(), X.toarray())
    ingest(path, tmp_path / "X.zarr")
    np.testing.assert_array_equal(open_matrix(tmp_path / "X.zarr").read(0, 103), X.toarray())


def test_the_header_is_enough_for_inspect_and_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotated().write_h5ad(tmp_path / "X.h5ad")
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 2,
        "preprocess": "none", "input": {"uri": str(tmp_path / "X.h5ad"), "layer": "columns"},
    }  # fmt: skip
    monkeypatch.setattr(parts.ByBands, "_row_pointers", lambda self: pytest.fail("rows are read"))
    assert plan_pipeline(load_config(settings, [])).fits
    lines = inspect(tmp_path / "X.h5ad", layer="columns")
    assert f"60 samples x 8 features, float32, sparse: {np.count_nonzero(COUNTS)} ent" in lines
    assert "brings it into order of rows" in lines
    shown = inspect(tmp_path / "X.h5ad")
    assert "features: gene 0, gene 1" in shown and "whole numbers from 0" in shown


def test_a_chunk_that_does_not_fit_is_priced(tmp_path: Path) -> None:
    """A terabyte in one chunk, of which nothing is stored."""
    path = _h5ad(tmp_path, lambda f: None)
    with h5py.File(path, "r+") as file:
        del file["layers/dense"]
        file.create_dataset("layers/dense", (10**6, D), "f8", chunks=(5 * 10**7 // D, D),
                            maxshape=(None, D), compression="gzip")  # fmt: skip
    with pytest.raises(MemoryLimitError, match="reading the input"):
        ingest(path, tmp_path / "X.zarr", layer="dense", memory_limit="768 MiB")


@pytest.mark.parametrize("kind", ["h5ad", "zarr", "memory", "backed"])
def test_fit_and_transform(kind: str, tmp_path: Path) -> None:
    adata = annotated()
    X = _stored(kind, tmp_path, adata)
    expected = MaxVariance(3, preprocess="none").fit(COUNTS)
    found = MaxVariance(3, preprocess="none").fit(X)
    np.testing.assert_array_equal(found.ranking_, expected.ranking_)
    kept = found.get_support(indices=True)
    assert found.get_feature_names_out().tolist() == [GENES[j] for j in kept]
    chosen = found.transform(X)
    if kind in ("memory", "backed"):
        assert type(chosen).__name__ == "AnnData"
        assert chosen.var_names.tolist() == [GENES[j] for j in kept]
        chosen = chosen.to_memory() if kind == "backed" else chosen
        np.testing.assert_array_equal(chosen.X.toarray(), COUNTS[:, kept])
        other = found.transform(adata[:, GENES[::-1]])  # by name
        assert other.var_names.tolist() == [GENES[j] for j in kept]
    else:
        np.testing.assert_array_equal(np.asarray(chosen), COUNTS[:, kept])


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
    expected, found = (
        MaxVariance(3, preprocess="none").fit(COUNTS),
        MaxVariance(3, preprocess="none").fit(adata),
    )
    np.testing.assert_array_equal(found.ranking_, expected.ranking_)
    assert found.transform(adata).shape == (N, 3)


@pytest.mark.full
def test_a_run_reads_a_layer_and_goes_on(tmp_path: Path) -> None:
    annotated().write_h5ad(tmp_path / "X.h5ad")
    settings = {
        "run": str(tmp_path / "run"), "method": "highly_variable", "n_features_to_select": 3,
        "input": {"uri": str(tmp_path / "X.h5ad")}, "highly_variable": {"flavor": "deviance"},
    }  # fmt: skip
    expected = HighlyVariable(3, flavor="deviance").fit(sp.csr_matrix(COUNTS))
    np.testing.assert_array_equal(run(settings).ranking, expected.ranking_)
    table = pd.read_csv(tmp_path / "run" / "features.csv")
    assert table["name"].tolist() == [GENES[j] for j in expected.ranking_]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    again = run(settings)
    np.testing.assert_array_equal(again.ranking, expected.ranking_)
    now = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert {k: v["attempt"] for k, v in now["stages"].items()} == {
        k: v["attempt"] for k, v in manifest["stages"].items()
    }
    other = run(settings, overrides=["input.layer=raw"])
    assert other.to_frame()["name"].str.startswith("raw ").all()


def test_the_command_line_takes_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    annotated().write_h5ad("X.h5ad")
    assert call(capsys, "ingest", "X.h5ad", "X.zarr", "--layer", "raw")[0] == 0
    assert open_matrix("X.zarr").n_features == 2 * D
    code, shown = call(capsys, "inspect", "X.h5ad", "--layer", "dense")
    assert code == 0 and "60 samples x 8 features" in shown
    code, shown = call(capsys, "inspect", "X.h5ad", "--layer", "x")
    assert code == 2 and "has no layer 'x'" in shown


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_columns_of_obs_are_labels(kind: str, tmp_path: Path) -> None:
    adata, batch = annotated(), np.arange(N) % 3
    adata.obs["batch"] = pd.Categorical.from_codes(batch, ["c", "b", "a"])
    adata.obs["number"] = batch * 2
    adata.obs["text"] = [f"t{i}" for i in batch]
    adata.obs["gap"] = pd.array([1, None] * (N // 2), dtype="Int64")
    adata.obs["gaps"] = pd.Categorical.from_codes(batch - 1, ["a", "b"])
    path = _stored(kind, tmp_path, adata)
    assert load_labels(f"{path}::batch", N).tolist() == (2 - batch).tolist()
    for name in ("number", "text"):
        assert load_labels(f"{path}::{name}", N).tolist() == batch.tolist()
    refused = {"gap": "no value in row 1", "gaps": "no value in row 0", "x": "it has batch, number"}
    for name, said in refused.items():
        with pytest.raises(InputError, match=said):
            load_labels(f"{path}::{name}", N)
    expected = HighlyVariable(3, flavor="deviance", batch_key=batch).fit(COUNTS)
    for X, key in ((path, f"{path}::batch"), (adata, "batch")):
        found = HighlyVariable(3, flavor="deviance", batch_key=key).fit(X)
        np.testing.assert_allclose(found.scores_, expected.scores_, rtol=1e-12)


@pytest.mark.parametrize("kind", ["memory", "backed"])
def test_select_writes_columns_of_var(kind: str, tmp_path: Path) -> None:
    adata = _stored(kind, tmp_path, annotated())
    adata.obs["batch"] = np.arange(N) % 3
    expected = MaxVariance(3, preprocess="none").fit(COUNTS)
    assert select(adata, 3, method="max_variance", preprocess="none") is None
    assert adata.var["bigfs_rank"].tolist() == (np.argsort(expected.ranking_) + 1).tolist()
    np.testing.assert_allclose(adata.var["bigfs_score"], expected.scores_)
    np.testing.assert_array_equal(adata.var["bigfs_selected"], expected.get_support())
    assert adata.uns["bigfs"]["method"] == "max_variance"
    assert json.loads(adata.uns["bigfs"]["parameters"])["n_features_to_select"] == 3
    settings = {"flavor": "deviance", "batch_key": "batch", "layer": "dense", "key_added": "hv"}
    by_batch = HighlyVariable(2, flavor="deviance", batch_key=np.arange(N) % 3).fit(COUNTS * 2)
    copied = adata
    if kind == "memory":
        copied = select(adata, 2, method="highly_variable", copy=True, **settings)
        assert not any(name.startswith("hv") for name in adata.var)
    else:
        select(adata, 2, method="highly_variable", **settings)
    np.testing.assert_allclose(copied.var["hv_score"], by_batch.scores_)
    if kind == "memory":
        copied.write_h5ad(tmp_path / "out.h5ad")
        again = ad.read_h5ad(tmp_path / "out.h5ad")
        assert (
            again.var["hv_selected"].sum() == 2 and again.uns["hv"]["method"] == "highly_variable"
        )


def test_select_refuses_in_words() -> None:
    adata = annotated()
    for given, said in (
        ({"method": "nope"}, "method must be one of mcfs"),
        ({"method": "max_variance", "n_clusters": 3}, "unexpected keyword argument 'n_clusters'"),
        ({"method": "max_variance", "layer": "raw"}, "features of its own"),
        ({"method": "max_variance", "key_added": ""}, "key_added must be a text"),
    ):
        with pytest.raises(InputError, match=said):
            select(adata, 2, **given)
    with pytest.raises(InputError, match="select takes an AnnData. Got ndarray"):
        select(COUNTS, 2)
    assert not len(adata.var.columns)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_the_result_is_written_into_a_copy_or_in_place(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adata = annotated()
    adata.var["symbol"] = [f"s{j}" for j in range(D)]
    source = _stored(kind, tmp_path, adata)
    read = ad.read_h5ad if kind == "h5ad" else ad.read_zarr
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 3,
        "preprocess": "none", "input": {"uri": str(source)}, "curves": False,
    }  # fmt: skip
    result, expected = run(settings), MaxVariance(3, preprocess="none").fit(COUNTS)
    dest = tmp_path / f"out.{kind}"
    before = source.read_bytes() if kind == "h5ad" else None
    code, shown = call(capsys, "export", str(tmp_path / "run"), str(dest), "--annotate")
    assert code == 0, shown
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read(dest)
    assert found.var.columns.tolist() == ["symbol", "bigfs_rank", "bigfs_score", "bigfs_selected"]
    assert (found.var["bigfs_rank"] == np.argsort(expected.ranking_) + 1).all()
    assert (found.var["bigfs_score"] == result.scores).all()
    np.testing.assert_array_equal(found.var["bigfs_selected"], expected.get_support())
    assert found.var["bigfs_selected"].dtype == bool and found.var_names.tolist() == GENES
    np.testing.assert_array_equal(found.X.toarray(), COUNTS)
    assert {"dense", "columns"} == set(found.layers) - {None} and found.raw is not None
    code, shown = call(capsys, "export", str(tmp_path / "run"), str(dest), "--annotate")
    assert code == 2 and "already exists" in shown
    code, shown = call(capsys, "export", str(tmp_path / "run"), str(dest), "--annotate", "--m", "2")
    assert code == 2 and "writes all features" in shown
    if kind == "h5ad":
        assert source.read_bytes() == before
    in_place = [str(tmp_path / "run"), str(source), "--annotate", "--overwrite"]
    for _ in range(2):  # the second time the columns are there
        code, shown = call(capsys, "export", *in_place)
        assert code == 0, shown
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = read(source)
        pd.testing.assert_frame_equal(again.var, found.var)
        np.testing.assert_array_equal(again.layers["dense"], COUNTS * 2)
    names = sorted(p.name for p in tmp_path.iterdir() if p.name != "canary")
    assert names == sorted(["run", source.name, dest.name])
    assert run(settings).ranking.tolist() == result.ranking.tolist()


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
@pytest.mark.parametrize("missing", ["error", "drop_rows"])
def test_rows_are_compared_by_an_array_of_obsm(kind: str, missing: str, tmp_path: Path) -> None:
    X, kept = COUNTS.copy(), np.arange(N)
    if missing == "drop_rows":
        X[[0, 17, 30], 2] = np.nan
        kept = np.delete(kept, [0, 17, 30])
    adata = ad.AnnData(sp.csr_matrix(X), var=pd.DataFrame(index=GENES))
    adata.obsm["X_pca"] = np.random.default_rng(1).normal(size=(N, 3))
    adata.obsm["frame"] = pd.DataFrame(adata.obsm["X_pca"], index=adata.obs_names).add_prefix("c")
    source = _stored(kind, tmp_path, adata)
    settings: dict[str, Any] = {
        "run": str(tmp_path / "run"), "input": {"uri": str(source), "missing": missing},
        "method": "laplacian_score", "n_features_to_select": 3, "preprocess": "none",
        "graph": {"representation": "obsm/X_pca", "n_neighbors": 4},
    }  # fmt: skip
    result = run(settings)
    assert list(result.stages)[1] == "components" and "components" in result.stages
    graph = knn_graph(adata.obsm["X_pca"][kept].astype(np.float32), 4)
    score = choose(Shape(len(kept), D, 4, 16, 16), load_config(settings)).score
    expected = score(RowBlocks.from_any(COUNTS[kept]), affinity(graph))
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6)
    for name, said in (("X_umap", "has no obsm/X_umap. It has X_pca"), ("frame", "is not read")):
        wrong = {**settings, "run": str(tmp_path / "other")}
        wrong["graph"] = {"representation": f"obsm/{name}"}
        with pytest.raises(InputError, match=said):
            run(wrong)
        assert not (tmp_path / "other").exists()
    with pytest.raises(InputError, match="stability fits samples of the rows"):
        run({**settings, "run": str(tmp_path / "other"), "stability": {"n_pairs": 2}})
    if missing == "drop_rows":
        fitted = MaxVariance(3).fit(tmp_path / "run" / "data.zarr")
        np.testing.assert_array_equal(np.flatnonzero(fitted.row_mask_), kept)
        assert not hasattr(fitted.fit(COUNTS), "row_mask_")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_a_run_leaves_an_annotated_copy(kind: str, tmp_path: Path) -> None:
    source = _stored(kind, tmp_path, annotated())
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 3,
        "preprocess": "none", "input": {"uri": str(source)}, "output": {"anndata": True},
    }  # fmt: skip
    result = run(settings)
    place = tmp_path / "run" / "annotated.zarr" / source.name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ad.read_h5ad(place) if kind == "h5ad" else ad.read_zarr(place)
    assert (found.var["bigfs_score"] == result.scores).all()
    assert np.flatnonzero(found.var["bigfs_selected"]).tolist() == sorted(result.selected.tolist())
    np.testing.assert_array_equal(found.X.toarray(), COUNTS)
    written = place.stat().st_mtime_ns
    run(settings)
    assert place.stat().st_mtime_ns == written, "it is finished"
    np.save(tmp_path / "X.npy", COUNTS)
    other = {**settings, "run": str(tmp_path / "other"), "input": {"uri": str(tmp_path / "X.npy")}}
    with pytest.raises(InputError, match=r"X.npy is no .h5ad file or AnnData .zarr"):
        run(other)
    assert not (tmp_path / "other").exists()


def test_the_batches_of_an_input_are_a_setting(tmp_path: Path) -> None:
    adata = annotated()
    batches = np.arange(N) % 3
    adata.obs["batch"] = pd.Categorical([f"b{i}" for i in batches])
    adata.write_h5ad(tmp_path / "X.h5ad")
    settings: dict[str, Any] = {
        "run": str(tmp_path / "run"), "method": "highly_variable", "n_features_to_select": 3,
        "input": {"uri": str(tmp_path / "X.h5ad"), "batch_key": "batch"}, "curves": False,
        "highly_variable": {"flavor": "deviance"},
    }  # fmt: skip
    expected = HighlyVariable(3, flavor="deviance", batch_key=batches).fit(COUNTS)
    np.testing.assert_array_equal(run(settings).scores, expected.scores_)
    adata.X = adata.X.astype(np.float32)
    adata.X.data[0] = np.nan
    [lost], kept = np.flatnonzero(np.isnan(adata.X.toarray()).any(axis=1)), np.arange(N)
    kept = np.delete(kept, lost)
    adata.write_h5ad(tmp_path / "X.h5ad")
    settings["input"]["missing"] = "drop_rows"
    expected = HighlyVariable(3, flavor="deviance", batch_key=batches[kept]).fit(COUNTS[kept])
    np.testing.assert_array_equal(run(settings).scores, expected.scores_)
    other = {name: value for name, value in settings.items() if name != "highly_variable"}
    with pytest.raises(ConfigError, match="method 'max_variance' does not score batches apart"):
        run({**other, "method": "max_variance"})
    methods = [{"method": "highly_variable", **{"highly_variable": {"flavor": "deviance"}}}]
    comparison = load_comparison({
        "run": str(tmp_path / "compared"), "input": settings["input"],
        "methods": [*methods, "max_variance"], "n_features_to_select": 3,
    })  # fmt: skip
    first, second = (entry.config for entry in comparison.entries(3))
    assert first.parameters.batch_key == f"{tmp_path / 'X.h5ad'}::batch"
    assert second.input.batch_key is None


@pytest.mark.full
def test_a_run_on_an_object(tmp_path: Path) -> None:
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 3,
        "curves": False, "preprocess": "none",
    }  # fmt: skip
    expected = MaxVariance(3, preprocess="none").fit(COUNTS)

    def attempt() -> str:
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
        return str(manifest["stages"]["data"]["attempt"])

    annotated().write_h5ad(tmp_path / "X.h5ad")
    backed = ad.read_h5ad(tmp_path / "X.h5ad", backed="r")
    found = run(settings, data=annotated())
    first = attempt()
    for data in (annotated(), backed):  # the same content
        np.testing.assert_array_equal(run(settings, data=data).ranking, expected.ranking_)
        assert attempt() == first
    assert found.to_frame()["name"].tolist() == [GENES[j] for j in expected.ranking_]
    found.export(tmp_path / "out.h5ad")
    np.testing.assert_array_equal(
        np.asarray(ad.read_h5ad(tmp_path / "out.h5ad").X), COUNTS[:, np.sort(found.selected)]
    )
    other = run(settings, data=annotated()[10:], overrides=["input.layer=dense"])
    assert attempt() != first
    np.testing.assert_allclose(
        other.scores, 4 * MaxVariance(3, preprocess="none").fit(COUNTS[10:]).scores_
    )
    with pytest.raises(InputError, match="is an object of the Python session"):
        run(tmp_path / "run" / "config.yaml", overrides=["input.layer=null"])
    with pytest.raises(InputError, match="neither data nor labels"):
        run(settings, data=annotated(), overrides=["input.labels=batch"])
