"""AnnData from end to end: runs, labels, batches, representations, and results written back."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

from bigfs import HighlyVariable, MaxVariance, open_matrix, run, select
from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.errors import ConfigError, InputError
from bigfs.graph import affinity, knn_graph
from bigfs.pipeline.inspect import describe
from bigfs.results import annotate, export
from bigfs.results.annotate import write_annotated
from bigfs.selectors.one_pass.strategies import EdgeScores
from bigfs.selectors.registry import load_comparison, load_config
from bigfs.store.labels import load_labels
from tests.selectors._local import inputs_of
from tests.store._anndata import COUNTS, GENES, D, N, ad, annotated, h5py, kept_as
from tests.store._folder import call


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


def test_inspect_lists_obs_and_layers_and_the_command_that_fits(tmp_path: Path) -> None:
    adata = annotated()
    adata.obs["type"] = pd.Categorical(np.where(np.arange(N) % 2, "a", "b"))
    adata.obsm["X_pca"] = np.ones((N, 2))
    adata.write_h5ad(tmp_path / "X.h5ad")
    uri = str(tmp_path / "X.h5ad")
    lines = describe(uri)
    assert lines[-6:-3] == ["obs: type (2 categories)", "layers: columns, dense", "obsm: X_pca"]
    command = f"bigfs run highly_variable --set input.uri={uri} --set n_features_to_select=4"
    assert lines[-2] == f"For counts: {command}"
    assert lines[-1].endswith("add --set input.labels=type.")
    labelled = describe(uri, labels="type")[-1]
    assert labelled.startswith("For counts: bigfs run highly_variable ")
    assert "--set input.labels=type --set n_features_to_select=4" in labelled
    adata.X = sp.csr_matrix(np.log1p(COUNTS))
    adata.write_h5ad(tmp_path / "X.h5ad")
    assert "--set input.layer=dense" in describe(uri)[-2]
    del adata.layers["columns"], adata.layers["dense"]
    adata.write_h5ad(tmp_path / "X.h5ad")
    assert describe(uri)[-2].startswith("Proposed command: bigfs run mcfs ")


def test_the_command_line_takes_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    annotated().write_h5ad("X.h5ad")
    assert call(capsys, "ingest", "X.h5ad", "X.zarr", "--layer", "raw")[0] == 0
    assert open_matrix("X.zarr").n_features == 2 * D
    code, shown = call(capsys, "inspect", "X.zarr")
    assert code == 0 and "Proposed command" not in shown
    code, shown = call(capsys, "inspect", "X.h5ad", "--layer", "dense")
    assert code == 0 and "60 samples x 8 features" in shown
    code, shown = call(capsys, "inspect", "X.h5ad", "--layer", "x")
    assert code == 0 and "would refuse this input" in shown and "has no layer 'x'" in shown


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_columns_of_obs_are_labels(kind: str, tmp_path: Path) -> None:
    adata, batch = annotated(), np.arange(N) % 3
    adata.obs["batch"] = pd.Categorical.from_codes(batch, ["c", "b", "a"])
    adata.obs["number"] = batch * 2
    adata.obs["text"] = [f"t{i}" for i in batch]
    adata.obs["gap"] = pd.array([1, None] * (N // 2), dtype="Int64")
    adata.obs["gaps"] = pd.Categorical.from_codes(batch - 1, ["a", "b"])
    path = kept_as(kind, tmp_path, adata)
    assert load_labels(f"{path}::batch", N).tolist() == (2 - batch).tolist()
    for name in ("number", "text"):
        assert load_labels(f"{path}::{name}", N).tolist() == batch.tolist()
    refused = {"gap": "row 1 is missing", "gaps": "row 0 is missing", "x": "It has batch, number"}
    for name, message in refused.items():
        with pytest.raises(InputError, match=message):
            load_labels(f"{path}::{name}", N)
    expected = HighlyVariable(3, flavor="deviance", batch_key=batch).fit(COUNTS)
    for X, key in ((path, f"{path}::batch"), (adata, "batch")):
        fitted = HighlyVariable(3, flavor="deviance", batch_key=key).fit(X)
        np.testing.assert_allclose(fitted.scores_, expected.scores_, rtol=1e-12)


def test_columns_of_a_modality_are_labels_rows_and_batches(tmp_path: Path) -> None:
    """MuData's layout on disk: the modalities are AnnData in a group, whose rows may differ."""
    place = str(tmp_path / "m.h5mu")
    with h5py.File(place, "w") as file:
        for name, n in (("rna", N), ("prot", N // 2)):
            obs = pd.DataFrame({"kind": list("ab") * (n // 2), "q": np.arange(n) / n})
            adata = ad.AnnData(COUNTS[:n], obs=obs.set_index(obs.index.astype(str)))
            ad.io.write_elem(file, f"mod/{name}", adata)
        ad.io.write_elem(file, "obs", pd.DataFrame(index=obs.index.astype(str)))
        ad.io.write_elem(file, "var", pd.DataFrame(index=["g"]))
    chosen = {"uri": place, "variable": "rna", "labels": "kind", "batch_key": "kind"}
    chosen |= {"rows": {"column": "q", "at_least": 0.5}}
    settings = {
        "run": str(tmp_path / "run"), "method": "highly_variable", "n_features_to_select": 3,
        "highly_variable": {"flavor": "deviance"}, "input": chosen,
    }  # fmt: skip
    result = run(settings)
    assert result.n_samples == N // 2
    assert result.evaluation is not None
    assert result.evaluation["labels"] == f"{place}::rna:kind"
    lines = describe(place, variable="rna")
    assert any(line.startswith("obs: kind") for line in lines)
    with pytest.raises(InputError, match="Name one of prot, rna as FILE::MODALITY:COLUMN"):
        load_labels(f"{place}::kind")


@pytest.mark.parametrize("kind", ["memory", "backed"])
def test_select_writes_columns_of_var(kind: str, tmp_path: Path) -> None:
    adata = kept_as(kind, tmp_path, annotated())
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
        with pytest.raises(InputError, match="copy=True .* are in a file.* adata.to_memory"):
            select(adata, 2, method="highly_variable", copy=True, **settings)
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
    for given, message in (
        ({"method": "nope"}, "method must be one of mcfs"),
        ({"method": "max_variance", "n_clusters": 3}, "has no parameter 'n_clusters'. It has"),
        ({"method": "max_variance", "layer": "raw"}, "layer 'raw' has other features than var"),
        ({"method": "max_variance", "key_added": ""}, "key_added must be a non-empty string"),
    ):
        with pytest.raises(InputError, match=message):
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
    source = kept_as(kind, tmp_path, adata)
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
        actual = read(dest)
    assert actual.var.columns.tolist() == ["symbol", "bigfs_rank", "bigfs_score", "bigfs_selected"]
    assert (actual.var["bigfs_rank"] == np.argsort(expected.ranking_) + 1).all()
    assert (actual.var["bigfs_score"] == result.scores).all()
    np.testing.assert_array_equal(actual.var["bigfs_selected"], expected.get_support())
    assert actual.var["bigfs_selected"].dtype == bool and actual.var_names.tolist() == GENES
    np.testing.assert_array_equal(actual.X.toarray(), COUNTS)
    assert {"dense", "columns"} == set(actual.layers) - {None} and actual.raw is not None
    assert actual.uns["bigfs"]["method"] == result.method
    assert json.loads(actual.uns["bigfs"]["parameters"])["n_features_to_select"] == 3
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
        pd.testing.assert_frame_equal(again.var, actual.var)
        np.testing.assert_array_equal(again.layers["dense"], COUNTS * 2)
    names = sorted(p.name for p in tmp_path.iterdir() if p.name != "canary")
    assert names == sorted(["run", source.name, dest.name])
    assert run(settings).ranking.tolist() == result.ranking.tolist()


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_an_export_keeps_everything_but_the_columns_left_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_PIECE", 3 * D)  # several pieces of every matrix
    adata = annotated()
    adata.obs["type"] = pd.Categorical(np.where(np.arange(N) % 2, "a", "b"))
    adata.obsm["X_pca"] = np.random.default_rng(1).normal(size=(N, 3))
    adata.varm["loadings"] = np.random.default_rng(2).normal(size=(D, 2))
    adata.varp["graph"] = sp.csr_matrix(np.random.default_rng(3).random((D, D)))
    adata.layers["whole"] = sp.csc_matrix(COUNTS.astype(np.int64))
    adata.uns["note"] = "kept"
    settings = {"method": "max_variance", "n_features_to_select": 3, "curves": False,
                "run": str(tmp_path / "run"),
                "input": {"uri": str(kept_as(kind, tmp_path, adata))}}  # fmt: skip
    result = run(settings)
    for by_rank in (False, True):
        kept = result.ranking[:3] if by_rank else np.sort(result.ranking[:3])
        actual = ad.read_h5ad(result.export(tmp_path / f"{by_rank}.h5ad", by_rank=by_rank))
        expected = adata[:, kept].copy()
        pd.testing.assert_frame_equal(actual.obs, expected.obs)
        pd.testing.assert_frame_equal(actual.var, expected.var)
        assert actual.uns == {"note": "kept"} and actual.raw.shape == adata.raw.shape
        for group in ("layers", "obsm", "varm", "varp"):
            assert set(getattr(actual, group)) == set(getattr(expected, group))
        matrices = [(actual.X, expected.X)]
        matrices += [(actual.layers[k], expected.layers[k]) for k in expected.layers if k]
        matrices += [(actual.varp["graph"], expected.varp["graph"])]
        for ours, theirs in matrices:
            assert getattr(ours, "format", "") == getattr(theirs, "format", "")
            assert ours.dtype == theirs.dtype
            ours, theirs = (getattr(x, "toarray", lambda x=x: x)() for x in (ours, theirs))
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(actual.obsm["X_pca"], expected.obsm["X_pca"])
        np.testing.assert_array_equal(actual.varm["loadings"], expected.varm["loadings"])


def test_an_export_keeps_all_else_of_what_the_run_read_or_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With columns left out, from another directory, and of an AnnData that changed since."""
    for name in ("one", "two"):  # the same genes in both
        (tmp_path / name).mkdir()
        adata = annotated(sp.csr_matrix(COUNTS * (1 if name == "one" else 2)))
        adata.obs["of"] = name
        adata.write_h5ad(tmp_path / name / "X.h5ad")
    monkeypatch.chdir(tmp_path / "one")
    given = {"method": "max_variance", "n_features_to_select": 3, "curves": False,
             "input": {"uri": "X.h5ad", "columns": [f"!{adata.var_names[0]}"]}}  # fmt: skip
    some = run({**given, "run": str(tmp_path / "some")})
    half = run({**given, "run": str(tmp_path / "half"), "input": {
        "uri": "X.h5ad", "rows": {"every": 2}}})  # fmt: skip
    every = run({**given, "run": str(tmp_path / "every"), "input": {"uri": "X.h5ad"}})
    monkeypatch.chdir(tmp_path / "two")
    actual = ad.read_h5ad(some.export("some.h5ad"))
    names = [some.name_of(feature) for feature in some.selected.tolist()]
    assert list(actual.var_names) == names and set(actual.obs["of"]) == {"one"}
    read = ad.read_h5ad("../one/X.h5ad")
    np.testing.assert_array_equal(actual.X.toarray(), read[:, names].X.toarray())
    assert not caplog.records or "only the selected columns" not in caplog.text
    half.export("half.h5ad")
    assert "half.h5ad has only the selected columns" in caplog.text
    with pytest.raises(InputError, match=r"more features than the run read .input.columns"):
        write_annotated(some, "annotated.h5ad")
    assert set(ad.read_h5ad(write_annotated(every, "annotated.h5ad")).obs["of"]) == {"one"}
    gap = read.copy()
    gap.X.data[0] = np.nan
    given["input"] = {"uri": "../one/X.h5ad", "missing": "zero"}
    for changed in (adata, gap):
        changed.write_h5ad("../one/X.h5ad")
        with pytest.raises(InputError, match="X.h5ad has other values than the run read"):
            every.export("every.h5ad")
    assert not Path("every.h5ad").exists()
    filled = run({**given, "run": str(tmp_path / "filled")})
    assert np.isnan(gap.X.data).sum() == 1 and filled.export("filled.h5ad").exists()
    assert "filled.h5ad keeps missing values, which the run filled" in caplog.text


def test_sparse_data_of_another_format_are_exported_sparse(tmp_path: Path) -> None:
    X = sp.csr_matrix(COUNTS.astype(np.float32))
    sp.save_npz(tmp_path / "X.npz", X)
    settings = {"method": "max_variance", "n_features_to_select": 3, "curves": False,
                "run": str(tmp_path / "run"),
                "input": {"uri": str(tmp_path / "X.npz")}}  # fmt: skip
    result = run(settings)
    actual = ad.read_h5ad(result.export(tmp_path / "out.h5ad"))
    assert actual.X.format == "csr" and actual.X.dtype == np.float32
    np.testing.assert_array_equal(actual.X.toarray(), COUNTS[:, np.sort(result.ranking[:3])])


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_what_is_replaced_hands_on_its_rights_and_links(kind: str, tmp_path: Path) -> None:
    source = kept_as(kind, tmp_path, annotated())
    source.chmod(0o700 if source.is_dir() else 0o600)
    settings = {"method": "max_variance", "n_features_to_select": 3, "curves": False,
                "run": str(tmp_path / "run"), "input": {"uri": str(source)}}  # fmt: skip
    result = run(settings)
    link = tmp_path / f"link.{kind}"
    link.symlink_to(source)
    group = os.getgid() if os.getuid() else 4321
    os.chown(source, -1, group)
    mode = source.stat().st_mode
    write_annotated(result, link, overwrite=True)
    assert link.is_symlink() and link.resolve() == source
    assert (source.stat().st_mode, source.stat().st_gid) == (mode, group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "bigfs_rank" in (ad.read_h5ad if kind == "h5ad" else ad.read_zarr)(source).var
    assert not list(tmp_path.glob("*partial*"))


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_an_anndata_that_another_program_changes_meanwhile_is_left_to_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = kept_as(kind, tmp_path, annotated())
    settings = {"method": "max_variance", "n_features_to_select": 3, "curves": False,
                "run": str(tmp_path / "run"), "input": {"uri": str(source)}}  # fmt: skip
    result = run(settings)
    write = annotate._write_result

    def beside(*args: Any) -> None:
        root = h5py.File(source, "r+") if kind == "h5ad" else zarr.open_group(source)
        root["obs"].attrs["theirs"] = 1
        if kind == "h5ad":
            root.close()
        write(*args)

    monkeypatch.setattr(annotate, "_write_result", beside)
    with pytest.raises(InputError, match="changed while it was read"):
        write_annotated(result, source, overwrite=True)
    monkeypatch.undo()
    root = (
        h5py.File(source, "r")
        if kind == "h5ad"
        else zarr.open_group(source, mode="r", use_consolidated=False)
    )
    assert root["obs"].attrs["theirs"] == 1 and "bigfs_rank" not in root["var"]
    assert not list(tmp_path.glob("*partial*"))


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
    source = kept_as(kind, tmp_path, adata)
    settings: dict[str, Any] = {
        "run": str(tmp_path / "run"), "input": {"uri": str(source), "missing": missing},
        "method": "laplacian_score", "n_features_to_select": 3, "preprocess": "none",
        "graph": {"representation": "obsm/X_pca", "n_neighbors": 4},
    }  # fmt: skip
    result = run(settings)
    assert list(result.stages)[1] == "components" and "components" in result.stages
    graph = knn_graph(adata.obsm["X_pca"][kept].astype(np.float32), 4)
    scores = EdgeScores(Shape(len(kept), D, 4, 16, 16), load_config(settings))
    blocks = RowBlocks.from_any(COUNTS[kept])
    expected = scores.run(inputs_of(blocks, affinity=affinity(graph)), blocks.scratch)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6)
    for name, message in (
        ("X_umap", "no obsm/X_umap. It has X_pca"),
        ("frame", "is not supported"),
    ):
        wrong = {**settings, "run": str(tmp_path / "other")}
        wrong["graph"] = {"representation": f"obsm/{name}"}
        with pytest.raises(InputError, match=message):
            run(wrong)
        assert not (tmp_path / "other").exists()
    several = {**settings, "run": str(tmp_path / "other"), "input": {"uri": [str(source)] * 2}}
    with pytest.raises(InputError, match="obsm/X_pca is a part of one AnnData, and .* is several"):
        run(several)
    with pytest.raises(InputError, match="stability fits samples of the rows"):
        run({**settings, "run": str(tmp_path / "other"), "stability": {"n_pairs": 2}})
    if missing == "drop_rows":
        fitted = MaxVariance(3).fit(tmp_path / "run" / "data.zarr")
        np.testing.assert_array_equal(np.flatnonzero(fitted.row_mask_), kept)
        assert not hasattr(fitted.fit(COUNTS), "row_mask_")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_a_run_leaves_an_annotated_copy(kind: str, tmp_path: Path) -> None:
    source = kept_as(kind, tmp_path, annotated())
    settings = {
        "run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 3,
        "preprocess": "none", "input": {"uri": str(source)}, "output": {"anndata": True},
    }  # fmt: skip
    result = run(settings)
    place = tmp_path / "run" / "annotated.zarr" / source.name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = ad.read_h5ad(place) if kind == "h5ad" else ad.read_zarr(place)
    assert (actual.var["bigfs_score"] == result.scores).all()
    assert np.flatnonzero(actual.var["bigfs_selected"]).tolist() == sorted(result.selected.tolist())
    np.testing.assert_array_equal(actual.X.toarray(), COUNTS)
    written = place.stat().st_mtime_ns
    run(settings)
    assert place.stat().st_mtime_ns == written, "it is finished"
    np.save(tmp_path / "X.npy", COUNTS)
    other = {**settings, "run": str(tmp_path / "other"), "input": {"uri": str(tmp_path / "X.npy")}}
    with pytest.raises(InputError, match=r"X.npy is not a .h5ad file or AnnData .zarr"):
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
    with pytest.raises(
        ConfigError, match="method 'max_variance' does not score batches separately"
    ):
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
    result = run(settings, data=annotated())
    first = attempt()
    for data in (annotated(), backed):  # the same content
        np.testing.assert_array_equal(run(settings, data=data).ranking, expected.ranking_)
        assert attempt() == first
    assert result.to_frame()["name"].tolist() == [GENES[j] for j in expected.ranking_]
    result.export(tmp_path / "out.h5ad")
    np.testing.assert_array_equal(
        ad.read_h5ad(tmp_path / "out.h5ad").X.toarray(), COUNTS[:, np.sort(result.selected)]
    )
    other = run(settings, data=annotated()[10:], overrides=["input.layer=dense"])
    assert attempt() != first
    np.testing.assert_allclose(
        other.scores, 4 * MaxVariance(3, preprocess="none").fit(COUNTS[10:]).scores_
    )
    with pytest.raises(InputError, match="is an object of the Python session"):
        run(tmp_path / "run" / "config.yaml", overrides=["input.layer=null"])
    with pytest.raises(InputError, match="X has no column 'batch'"):
        run(settings, data=annotated(), overrides=["input.labels=batch"])
