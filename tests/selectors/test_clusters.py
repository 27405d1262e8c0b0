"""The number of clusters from the graph's eigengap, for every method that takes a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_blobs

import bigfs
from bigfs.core.errors import InputError
from bigfs.store.scratch import read_attributes

METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "m3fs": (bigfs.M3FS, {"n_init": 1, "max_iter": 3}),
    "lfs": (bigfs.LFS, {"n_init": 1, "max_iter": 2}),
    "gfs_kmeans": (bigfs.GFSKMeans, {"n_init": 1, "max_iter": 2}),
    "udfs": (bigfs.UDFS, {}),
    "q_alpha": (bigfs.QAlpha, {}),
    "ndfs": (bigfs.NDFS, {}),
    "mcfs": (bigfs.MCFS, {}),
}


def groups_of_four() -> np.ndarray:
    X, _ = make_blobs(400, 6, centers=4, cluster_std=0.7, random_state=3)
    return X


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_the_number(name: str) -> None:
    kind, settings = METHODS[name]
    X = groups_of_four()
    chosen = kind(3, n_clusters="auto", **settings).fit(X)
    assert chosen.n_clusters_ == 4
    assert (np.diff(chosen.spectrum_) >= 0).all() and len(chosen.spectrum_) >= 4
    fixed = kind(3, n_clusters=4, **settings).fit(X)
    np.testing.assert_allclose(chosen.scores_, fixed.scores_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_the_number_in_a_pipeline(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", groups_of_four())
    _, settings = METHODS[name]
    config = {
        "run": str(tmp_path / "run"),
        "method": name,
        "input": {"uri": str(tmp_path / "X.npy")},
        "n_features_to_select": 3,
        name: {"n_clusters": "auto", **settings},
    }
    bigfs.run(config)
    folder = tmp_path / "run"
    group = "spectral.zarr" if name == "mcfs" else "result.zarr"
    stored = read_attributes(folder / group)
    actual = len(stored["eigenvalues"]) if name == "mcfs" else stored["details"]["n_clusters"]
    assert actual == 4


def test_too_few_rows_for_a_gap() -> None:
    with pytest.raises(InputError, match="at least 4 rows to find a gap"):
        bigfs.LFS(1, n_clusters="auto").fit(groups_of_four()[:3])


@pytest.mark.parametrize("name", ["lfs", "gfs_kmeans", "q_alpha"])
def test_few_rows_are_all_neighbors_unless_a_number_is_given(name: str, tmp_path: Path) -> None:
    kind, settings = METHODS[name]
    X = groups_of_four()[:5]
    assert kind(2, n_clusters="auto", **settings).fit(X).n_clusters_ < 5
    np.save(tmp_path / "X.npy", X)
    config = {
        "run": str(tmp_path / "run"),
        "method": name,
        "input": {"uri": str(tmp_path / "X.npy")},
        "n_features_to_select": 2,
        name: {"n_clusters": "auto", **settings},
    }
    assert set(bigfs.run(config).stages) >= {"graph", "spectral", "result"}
    with pytest.raises(InputError, match=r"n_neighbors must be an int in \[1, 4\]"):
        bigfs.run({**config, "graph": {"n_neighbors": 6}})


def test_other_settings_are_checked_before_the_graph() -> None:
    X = groups_of_four()
    for kind, wrong, word in [
        (bigfs.LFS, {"alpha": -1.0}, "alpha"),
        (bigfs.GFSKMeans, {"n_init": 0}, "n_init"),
        (bigfs.QAlpha, {"max_iter": 0}, "max_iter"),
        (bigfs.M3FS, {"C": -1.0}, "C must"),
    ]:
        with pytest.raises(InputError, match=word):
            kind(3, n_clusters="auto", **wrong).fit(X)
    with pytest.raises(InputError, match=r"whole number in \[2, 254\], or auto. Got 1"):
        bigfs.run({"method": "m3fs", "input": {"uri": "x.npy"}, "m3fs": {"n_clusters": 1}})
    with pytest.raises(InputError, match=r"whole number in \[1, 60\], or auto. Got 61"):
        bigfs.run({"method": "lfs", "input": {"uri": "x.npy"}, "lfs": {"n_clusters": 61}})
