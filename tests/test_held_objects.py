"""What users hold lives on: pickled to another process, copied while the original goes."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

import bigfs
from bigfs.core.errors import InputError, StorageError
from bigfs.graph.affinity import affinity
from bigfs.selectors.registry import METHODS
from bigfs.store.source import Source
from tests._tables import shared
from tests.test_estimators import CHEAP_SETTINGS

X = load_iris().data
KINDS = ("memory", "path", "zarr", "dask", "sparse", "frame", "csv")


def as_kind(kind: str, folder: Path) -> Any:
    """Return iris as a user may have it."""
    import dask.array as da
    import zarr
    from scipy.sparse import csr_array

    if kind == "memory":
        return X.copy()
    if kind == "dask":
        return da.from_array(X, chunks=(40, 4))
    if kind == "sparse":
        return csr_array(X)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    if kind == "frame":
        return frame
    if kind == "zarr":
        array = zarr.open_array(folder / "raw.zarr", mode="w", shape=X.shape, chunks=(40, 4),
                                dtype="f8")  # fmt: skip
        array[:] = X
        return array
    if kind == "csv":
        frame.to_csv(folder / "iris.csv", index=False)
        return folder / "iris.csv"
    np.save(folder / "iris.npy", X)
    return str(folder / "iris.npy")


def content(held: Any) -> Any:
    """Return what an object says, as values that can be compared."""
    if isinstance(held, (np.ndarray, np.generic)):
        return held.dtype.str, held.tolist()
    if isinstance(held, (bool, int, float, str, type(None), Path)):
        return str(held)
    if isinstance(held, dict):
        return {str(name): content(value) for name, value in held.items()}
    if isinstance(held, (list, tuple)):
        return [content(value) for value in held]
    return content(_parts(held))


def _parts(held: Any) -> Any:
    """Return what an object is made of, everything that is stored read."""
    if type(held).__module__.startswith("zarr"):
        return held[...]
    if hasattr(held, "toarray"):
        return held.toarray()
    if isinstance(held, Source):
        blocks = [np.asarray(block) for block in held.iter_blocks(7)]
        return [held.uri, held.feature_names, held.n_samples, np.concatenate(blocks)]
    if hasattr(held, "row_array"):  # a result
        arrays = [held.row_array(name) for name in ("labels", "embedding")]
        return [held.to_frame().to_csv(), held.summary(), held.details, arrays]
    if hasattr(held, "get_params"):
        learned = {n: v for n, v in vars(held).items() if n.endswith("_") and n[0] != "_"}
        rows: Any = X[:5]
        if "feature_names_in_" in learned:
            rows = pd.DataFrame(rows, columns=learned["feature_names_in_"])
        return [learned, held.transform(rows)]
    if hasattr(held, "load"):  # an address, or an affinity matrix
        return held.load()
    parts = {name: value for name, value in vars(held).items() if name != "scratch"}
    return [parts, *(getattr(held, name, None) for name in ("indices", "distances", "embedding"))]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bytes], Any]]:
    """Unpickles in another process with another working directory, and returns the content."""
    place = tmp_path_factory.mktemp("elsewhere")
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=os.chdir, initargs=(place,)) as pool:
        yield lambda data: pool.submit(content_of_pickle, data).result(timeout=120)


def content_of_pickle(data: bytes) -> Any:
    """Return the content of a pickled object."""
    return content(pickle.loads(data))


def check_lives_on(make: Callable[[], Any], elsewhere: Callable[[bytes], Any]) -> None:
    """Check that an object is the same in another process, and that copies need no original."""
    held = make()
    expected = content(held)
    data = pickle.dumps(held)
    assert elsewhere(data) == expected
    copies = [copy.deepcopy(held), copy.copy(held), pickle.loads(data)]
    del held
    gc.collect()
    for each in copies:
        assert content(each) == expected
    assert elsewhere(data) == expected  # its temporary files are gone
    again = pickle.dumps(copies[0])  # a copy of a copy
    copies.clear()
    gc.collect()
    assert elsewhere(again) == expected


@pytest.mark.parametrize(("name", "kind"), shared(METHODS, KINDS))
def test_selectors(name: str, kind: str, tmp_path: Path, elsewhere: Callable[[bytes], Any]) -> None:
    settings = {**CHEAP_SETTINGS.get(name, {}), "n_features_to_select": 2}
    data = as_kind(kind, tmp_path)
    check_lives_on(lambda: METHODS[name].estimator_class()(**settings).fit(data), elsewhere)


@pytest.mark.parametrize("kind", KINDS)
def test_stability_selection(kind: str, tmp_path: Path, elsewhere: Callable[[bytes], Any]) -> None:
    data = as_kind(kind, tmp_path)
    selector = bigfs.StabilitySelection(bigfs.NDFS(2, n_clusters=2, max_iter=3), n_pairs=2)
    check_lives_on(lambda: copy.copy(selector).fit(data), elsewhere)


@pytest.mark.parametrize("mode", ["distance", "connectivity"])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbors_transformer(
    kind: str, mode: str, tmp_path: Path, elsewhere: Callable[[bytes], Any]
) -> None:
    data = as_kind(kind, tmp_path)
    check_lives_on(lambda: bigfs.KNeighborsTransformer(3, mode=mode).fit(data), elsewhere)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_and_embeddings(
    kind: str, tmp_path: Path, elsewhere: Callable[[bytes], Any]
) -> None:
    data = as_kind(kind, tmp_path)
    check_lives_on(lambda: bigfs.knn_graph(data, 3), elsewhere)
    check_lives_on(lambda: affinity(bigfs.knn_graph(data, 3)), elsewhere)
    graph = bigfs.knn_graph(data, 3)
    check_lives_on(lambda: bigfs.spectral_embedding(graph, 2), elsewhere)
    check_lives_on(lambda: graph.indices, elsewhere)
    check_lives_on(lambda: bigfs.spectral_embedding(graph, 2).embedding, elsewhere)


@pytest.mark.parametrize("kind", KINDS)
def test_opened_matrices(kind: str, tmp_path: Path, elsewhere: Callable[[bytes], Any]) -> None:
    data = as_kind(kind, tmp_path)
    check_lives_on(lambda: bigfs.open_matrix(data), elsewhere)


@pytest.mark.parametrize(
    "uri",
    [
        "s.zarr",
        "sparse.zarr",
        "X.npy",
        "X.npz",
        "csr.npz",
        "X.csv",
        "X.parquet",
        "X*.csv",
        "X?.npy",
    ],
)
def test_opened_files(
    uri: str, tmp_path: Path, elsewhere: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy.sparse import csr_array, save_npz

    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    frame.to_csv("X.csv", index=False)
    frame.to_parquet("X.parquet")
    np.save("X.npy", X)
    np.savez("X.npz", X=X)
    save_npz("csr.npz", csr_array(X))
    np.save("X1.npy", X)
    np.save("X2.npy", X)
    with_gap = frame.copy()
    with_gap.iloc[3, 1] = np.nan
    bigfs.ingest(with_gap, "s.zarr", missing="drop_rows")
    bigfs.ingest(csr_array(X), "sparse.zarr")
    dropped = list(bigfs.open_matrix(uri).dropped)
    check_lives_on(lambda: bigfs.open_matrix(uri), elsewhere)
    assert list(pickle.loads(pickle.dumps(bigfs.open_matrix(uri))).dropped) == dropped


def test_what_is_open_in_this_process_only_is_refused(tmp_path: Path) -> None:
    import h5py
    import polars as pl

    with h5py.File(tmp_path / "X.h5", "w") as file:
        file["X"] = X
        with pytest.raises(TypeError, match="h5py objects cannot be pickled"):
            pickle.dumps(bigfs.open_matrix(file["X"]))
    lazy = bigfs.open_matrix(pl.LazyFrame(X))
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(InputError, match="a temporary folder that is removed with it"):
            copied(lazy)


def test_rows_that_changed_since_a_fit_are_no_neighbors(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    fitted = bigfs.KNeighborsTransformer(3).fit(tmp_path / "X.npy")
    data = pickle.dumps(fitted)
    np.save(tmp_path / "X.npy", X[::-1])
    for each in (fitted, pickle.loads(data)):
        with pytest.raises(InputError, match="changed"):
            each.transform(X[:5])


def test_a_result_of_a_run_that_was_done_again_is_not_mixed_with_it(tmp_path: Path) -> None:
    config = {"run": str(tmp_path / "a"), "input": {"uri": "sklearn:iris"}, "method": "ndfs",
              "n_features_to_select": 2, "ndfs": {"n_clusters": 3}}  # fmt: skip
    first = bigfs.run(config)
    bigfs.run({**config, "ndfs": {"n_clusters": 2}})
    for each in (first, pickle.loads(pickle.dumps(first))):
        with pytest.raises(InputError, match="was run again since this result was opened"):
            each.row_array("labels")


@pytest.mark.parametrize("gone", ["files", "a chunk"])
def test_stored_labels_whose_files_go_are_an_error_and_not_zeros(gone: str, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    fitted = bigfs.NDFS(2, n_clusters=3).fit(tmp_path / "X.npy")
    folder = Path(fitted.labels_.store.root)
    if gone == "files":
        shutil.rmtree(folder)
    else:
        (folder / "c.0").unlink()
    for use in (lambda: fitted.labels_[:], lambda: pickle.dumps(fitted)):
        with pytest.raises(StorageError, match="missing|removed"):
            use()


def test_results_and_comparisons(
    tmp_path: Path, elsewhere: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("iris.npy", X)
    config = {"run": "runs/a", "input": {"uri": "iris.npy"}, "method": "ndfs",
              "n_features_to_select": 2, "ndfs": {"n_clusters": 3}}  # fmt: skip
    check_lives_on(lambda: bigfs.run(config), elsewhere)
    check_lives_on(lambda: bigfs.open_result("runs/a"), elsewhere)
    methods = {"run": "runs/c", "input": {"uri": "iris.npy"}, "n_features_to_select": 2,
               "methods": ["max_variance", "laplacian_score"]}  # fmt: skip
    check_lives_on(lambda: bigfs.compare(methods), elsewhere)
