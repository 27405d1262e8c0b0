"""A finished graph of ``obsp`` in the place of the search for neighbors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from bigfs import MCFS, NDFS, SPEC, UDFS, LaplacianScore, run, select
from bigfs.blocks import RowBlocks
from bigfs.config.sections import GraphConfig
from bigfs.core.cost import Shape
from bigfs.core.errors import ConfigError, InputError
from bigfs.graph import affinity, affinity_from_csr, knn_graph
from bigfs.graph.representation import with_member
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.one_pass.strategies import EdgeScores
from bigfs.selectors.registry import load_config
from bigfs.spectral.embedding import SpectralEmbedding, spectral_embedding
from bigfs.stages import graph as graph_stage
from bigfs.stages.graph import finished_affinity
from bigfs.store.scratch import Scratch
from tests.selectors._local import inputs_of
from tests.store._anndata import COUNTS, D, N, ad, annotated, kept_as


def weights(seed: int = 1) -> Any:
    """Return random symmetric weights, a few in each row."""
    half = sp.random_array((N, N), density=0.08, rng=np.random.default_rng(seed), dtype=float)
    ring = sp.eye_array(N, k=1) * 0.25
    W = sp.csr_array(sp.triu(half + ring, 1))
    return sp.csr_matrix(W + W.T)


def stored(folder: Path, kind: str = "h5ad", **graphs: Any) -> Path:
    """Keep an AnnData with graphs in ``obsp``."""
    adata = annotated()
    for name, graph in graphs.items():
        adata.obsp[name] = graph
    path: Path = kept_as(kind, folder, adata)
    return path


def settings_of(path: Path, folder: Path, **graph: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"), "input": {"uri": str(path)}, "method": "laplacian_score",
        "n_features_to_select": 3, "preprocess": "none", "curves": False,
        "graph": {"representation": "obsp/connectivities", **graph},
    }  # fmt: skip


def repeated(W: Any) -> Any:
    """Return a matrix with every entry in two parts, of which the second comes out of order."""
    W = sp.csr_matrix(W)
    indptr = 2 * W.indptr
    data, indices = np.empty(2 * W.nnz), np.empty(2 * W.nnz, W.indices.dtype)
    for first, last in zip(W.indptr[:-1], W.indptr[1:], strict=True):
        data[2 * first : 2 * last] = np.tile(W.data[first:last] / 2, 2)
        indices[2 * first : 2 * last] = np.tile(W.indices[first:last], 2)
    return sp.csr_matrix((data, indices, indptr), shape=W.shape)


@pytest.mark.parametrize("weight", ["stored", "heat"])
def test_repeated_entries_are_summed(weight: str, tmp_path: Path) -> None:
    name = "distances" if weight == "heat" else "connectivities"
    scores = []
    for graph in (weights(), repeated(weights())):
        adata = annotated()
        adata.obsp[name] = graph
        settings = {"representation": f"obsp/{name}", "preprocess": "none"}
        scores += [LaplacianScore(3, weight=weight, **settings).fit(adata).scores_]
        folder = tmp_path / str(len(scores))
        folder.mkdir()
        path = stored(folder, **{name: graph})
        scores += [LaplacianScore(3, weight=weight, **settings).fit(path).scores_]
    for others in scores[1:]:
        np.testing.assert_allclose(others, scores[0], rtol=1e-12)


FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("kind", "dropped"),
    [
        ("h5ad", [0, 17, 59]),
        pytest.param("h5ad", [], marks=FULL),
        pytest.param("zarr", [], marks=FULL),
        pytest.param("zarr", [3], marks=FULL),
    ],
)
def test_scores_equal_those_of_the_matrix(kind: str, dropped: list[int], tmp_path: Path) -> None:
    X, kept = COUNTS.copy(), np.delete(np.arange(N), dropped)
    X[dropped, 2] = np.nan
    adata = annotated(sp.csr_matrix(X))
    adata.obsp["connectivities"] = weights() + 3 * sp.eye_array(N)  # its diagonal is left out
    settings = settings_of(kept_as(kind, tmp_path, adata), tmp_path)
    settings["input"]["missing"] = "drop_rows"
    result = run(settings)
    assert result.settings["graph"]["weight"] == "stored" and "binary" not in str(result.notes)
    assert result.recall is None and "obsp/connectivities" in result.notes[0]
    W = affinity_from_csr(weights()[kept][:, kept])
    scores = EdgeScores(Shape(len(kept), D, 4, 16, 16), load_config(settings))
    blocks = RowBlocks.from_any(COUNTS[kept])
    expected = scores.run(inputs_of(blocks, affinity=W), blocks.scratch)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-12)
    of_object = LaplacianScore(
        3, representation="obsp/connectivities", preprocess="none", missing="drop_rows"
    ).fit(adata)
    np.testing.assert_array_equal(of_object.scores_, result.scores)
    again = load_config(dict(result.settings)).graph  # as it was written out
    assert again is not None and again.model_dump() == result.settings["graph"]


@pytest.mark.parametrize("graph", [{}, {"weight": "heat"}, {"weight": "heat", "sigma": 2.0}])
def test_distances_are_weighted_as_our_own(
    graph: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_stage, "graph_block_rows", lambda n_neighbors: 7)
    X = np.repeat(COUNTS, 2, axis=0)[:N]  # rows come in pairs of copies, at distance 0
    own = knn_graph(X, 4)
    path = stored(tmp_path, distances=own.to_csr())
    used = load_config(settings_of(path, tmp_path, representation="obsp/distances", **graph)).graph
    assert used is not None and used.weight == graph.get("weight", "binary")
    options = {"weight": used.weight, "sigma": used.sigma}
    adata = annotated()
    adata.obsp["distances"] = own.to_csr()
    in_memory = with_member(GraphConfig(representation="obsp/distances"), adata)
    expected = affinity(own, **options)
    for number, settings in enumerate((used, in_memory)):
        finished = settings.model_copy(update=options)
        W = finished_affinity(finished, RowBlocks.from_any(X), Scratch(tmp_path / f"{number}"))
        assert abs(W.load() - expected.load()).max() == 0
        np.testing.assert_array_equal(W.degrees.load(), expected.degrees.load())


def given_parts() -> Any:
    """Return an AnnData with an array and a graph of its rows."""
    adata = annotated()
    adata.obsm["X_pca"] = np.random.default_rng(0).normal(size=(N, 4))
    adata.obsp["connectivities"] = weights()
    return adata


@pytest.mark.full
@pytest.mark.parametrize("name", ["obsp/connectivities", "obsm/X_pca"])
def test_objects_and_estimators_take_what_a_file_has(name: str, tmp_path: Path) -> None:
    adata, path = given_parts(), tmp_path / "X.h5ad"
    adata.write_h5ad(path)
    settings = settings_of(path, tmp_path / "file", representation=name)
    expected = run(settings).scores
    backed = ad.read_h5ad(path, backed="r")
    for X in (adata, backed, path):
        fitted = LaplacianScore(3, representation=name, preprocess="none").fit(X)
        np.testing.assert_array_equal(fitted.scores_, expected)
    select(adata, 3, method="laplacian_score", layer="dense", representation=name, key_added="two")
    np.testing.assert_allclose(adata.var["two_score"], expected, rtol=1e-6)
    of_object = {**settings, "run": str(tmp_path / "object")}
    del of_object["input"]

    def attempt(data: Any) -> str:
        result = run(of_object, data=data)
        np.testing.assert_array_equal(result.scores[:3] == expected[:3], data is not other)
        manifest = json.loads((tmp_path / "object" / "manifest.json").read_text())
        return str(manifest["stages"]["result"]["attempt"])

    other = given_parts()
    other.obsm["X_pca"] = other.obsm["X_pca"][::-1].copy()
    other.obsp["connectivities"] = weights(2)
    first = attempt(adata)
    assert attempt(backed) == first, "the same content"
    assert attempt(other) != first, "the graph is another one"
    assert plan_pipeline(load_config(settings)).fits


@pytest.mark.parametrize("name", ["obsp/connectivities", "obsm/X_pca"])
def test_samples_of_another_file_in_another_order_are_refused(name: str, tmp_path: Path) -> None:
    adata, path, other = given_parts(), tmp_path / "X.h5ad", tmp_path / "other.h5ad"
    adata.write_h5ad(path)
    adata[::-1].copy().write_h5ad(other)
    settings = settings_of(path, tmp_path, representation=f"{other}::{name}")
    first, last = adata.obs_names[[0, -1]]
    with pytest.raises(InputError, match=f"row 0 is {last}, but {first} in the data"):
        run(settings)
    adata.obs_names = [f"other {i}" for i in range(N)]  # ids of their own say nothing
    adata.write_h5ad(other)
    assert run(settings, fresh=True).n_samples == N


def test_what_an_object_has_not_is_refused(tmp_path: Path) -> None:
    adata = given_parts()
    adata.obsp["dense"], adata.obsm["sparse"] = np.eye(N), sp.csr_matrix(np.eye(N))
    for X, name, words in (
        (COUNTS, "obsm/X_pca", "is 'obsm/X_pca', which is a part of an AnnData, but the data are"),
        (adata, "obsm/X_umap", "AnnData has no obsm/X_umap. It has X_pca, sparse"),
        (adata, "obsp/dense", "obsp/dense is not a sparse matrix by rows"),
        (adata, "obsm/sparse", "obsm/sparse is sparse"),
    ):
        with pytest.raises(InputError, match=words):
            LaplacianScore(3, representation=name).fit(X)
        settings = settings_of(tmp_path / "X.h5ad", tmp_path, representation=name)
        with pytest.raises(InputError, match=words):
            run(settings, data=X)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="UDFS reads lists of neighbors"):
        UDFS(3, representation="obsp/connectivities").fit(adata)


@pytest.mark.full
@pytest.mark.cluster
def test_tasks_in_other_processes_read_the_graph_of_an_object(
    request: pytest.FixtureRequest,
) -> None:
    adata = given_parts()
    own = NDFS(3, n_clusters=3, representation="obsp/connectivities").fit(adata)
    request.getfixturevalue("client")  # from here on
    other = NDFS(3, n_clusters=3, representation="obsp/connectivities").fit(adata)
    np.testing.assert_array_equal(other.scores_, own.scores_)


@pytest.mark.full
@pytest.mark.parametrize("method", ["mcfs", "ndfs", "spec"])
def test_methods_take_it(method: str, tmp_path: Path) -> None:
    path = stored(tmp_path, connectivities=weights())
    settings = {**settings_of(path, tmp_path), "method": method}
    if method != "spec":
        settings[method] = {"n_clusters": 3}
    result = run(settings)
    assert result.settings["graph"]["weight"] == "stored" and len(result.selected) == 3
    if method == "mcfs":
        expected = spectral_embedding(affinity_from_csr(weights()), 3)
        found = SpectralEmbedding.open(tmp_path / "run" / "spectral.zarr")
        np.testing.assert_allclose(found.eigenvalues, expected.eigenvalues, atol=1e-6)
    assert plan_pipeline(load_config(settings)).stages[1].name == "graph"


def test_directed_weights_are_united(tmp_path: Path) -> None:
    directed = sp.csr_matrix(sp.triu(weights()))
    path = stored(tmp_path, directed=directed)
    blocks, scratch = RowBlocks.from_any(COUNTS), Scratch(tmp_path / "W")
    settings = GraphConfig(representation=f"{path}::obsp/directed", weight="stored")
    W = finished_affinity(settings, blocks, scratch)
    assert abs(W.load() - weights()).max() == 0


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    negative, alone, missing = weights(), weights().tolil(), weights()
    negative.data[5] = -0.5
    missing.data[3] = np.nan
    alone[7], alone[:, 7] = 0, 0
    path = stored(
        tmp_path, connectivities=weights(), negative=negative, dense=np.eye(N), nan=missing,
        alone=sp.csr_matrix(alone), columns=sp.csc_matrix(weights()), empty=sp.csr_matrix((N, N)),
    )  # fmt: skip
    import h5py

    with h5py.File(path, "r+") as file:
        file.copy("obsp/connectivities", "obsp/wide")
        file["obsp/wide"].attrs["shape"] = (N, N + 1)
    for name, words in {
        "else": "has no obsp/else. It has alone, columns",
        "wide": r"obsp/wide is not a graph: its shape \(60, 61\) is not square",
        "negative": r"obsp/negative: row \d+, column \d+ is -0.5",
        "nan": "is nan. Weights and distances must be finite",
        "alone": "Row 7 of the graph has degree 0: .*obsp/alone has no edge",
        "empty": "Row 0 of the graph has degree 0",
        "dense": "obsp/dense is not a sparse matrix by rows",
        "columns": "Store it as csr_matrix",
    }.items():
        with pytest.raises(InputError, match=words):
            run(settings_of(path, tmp_path, representation=f"obsp/{name}"))
    other = settings_of(path, tmp_path)
    with pytest.raises(InputError, match="stability fits samples of the rows"):
        run({**other, "stability": {"n_pairs": 2}})
    with pytest.raises(InputError, match="UDFS reads lists of neighbors"):
        run({**other, "method": "udfs"})
    np.save(tmp_path / "X.npy", COUNTS[:-1])
    elsewhere = f"{path}::obsp/connectivities"
    with pytest.raises(InputError, match="has 60 rows, but the data have 59"):
        run(settings_of(tmp_path / "X.npy", tmp_path / "b", representation=elsewhere))
    for graph, words in (
        ({"weight": "dot"}, "remove 'weight', which cannot be used"),
        ({"metric": "cosine", "eps": 0.2}, "remove 'metric', 'eps', which cannot be used"),
        ({"weight": "heat", "sigma": "median"}, "remove 'sigma', which cannot be used"),
        ({"representation": "raw", "weight": "stored"}, "needs a graph in obsp"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config(settings_of(path, tmp_path, **graph))


@pytest.mark.full
@pytest.mark.parametrize("selector", [LaplacianScore, MCFS, NDFS, SPEC, UDFS])
def test_every_selector_with_a_graph_takes_the_rows_of_obsm(selector: Any) -> None:
    adata = given_parts()
    other = given_parts()
    other.obsm["X_pca"] = adata.X.toarray()

    def scores(data: Any, representation: str) -> np.ndarray:
        fitted = selector(3, representation=representation, preprocess="none").fit(data)
        return np.asarray(fitted.scores_)

    raw = scores(adata, "raw")
    np.testing.assert_array_equal(scores(other, "obsm/X_pca"), raw)
    assert (scores(adata, "obsm/X_pca") != raw).any()
    if selector is UDFS:
        with pytest.raises(InputError, match="reads lists of neighbors"):
            scores(adata, "obsp/connectivities")
    else:
        assert (scores(adata, "obsp/connectivities") != raw).any()
