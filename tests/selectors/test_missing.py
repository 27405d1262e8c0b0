"""Missing values in Python: every selector has the policies that a pipeline has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import bigfs
from bigfs.core.errors import ConfigError, InputError
from bigfs.selectors.registry import METHODS

POLICIES = ["mean", "zero", "drop_rows"]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix with missing values, and which rows have none."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)) * [1, 5, 2, 4, 3] + [0, 9, 0, -7, 3]
    X[rng.random(X.shape) < 0.06] = np.nan
    return X, ~np.isnan(X).any(axis=1)


def filled(X: np.ndarray, policy: str) -> np.ndarray:
    if policy == "drop_rows":
        return X[~np.isnan(X).any(axis=1)]
    return np.where(np.isnan(X), np.nanmean(X, axis=0) if policy == "mean" else 0, X)


def kinds(X: np.ndarray, folder: Path) -> dict[str, Any]:
    import dask.array as da

    np.save(folder / "X.npy", X)
    names = [f"g{j}" for j in range(5)]
    return {
        "array": X,
        "frame": pd.DataFrame(X, columns=names),
        "CSR": sp.csr_array(X),
        "dask": da.from_array(X, chunks=(17, 5)),
        "path": folder / "X.npy",
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_every_kind_of_input_is_filled_as_a_dense_matrix_would_be(
    policy: str, tmp_path: Path
) -> None:
    X, complete = data()
    expected = filled(X, policy).var(axis=0)
    for kind, given in kinds(X, tmp_path).items():
        fitted = bigfs.MaxVariance(2, missing=policy).fit(given)
        np.testing.assert_allclose(fitted.scores_, expected, rtol=1e-12, err_msg=kind)
        assert hasattr(fitted, "row_mask_") == (policy == "drop_rows")
        if policy == "drop_rows":
            np.testing.assert_array_equal(fitted.row_mask_, complete)
        kept = fitted.transform(given)
        kept = kept.compute() if hasattr(kept, "compute") else kept
        kept = kept.toarray() if hasattr(kept, "toarray") else np.asarray(kept)
        np.testing.assert_array_equal(kept, X[:, fitted.get_support()])


def test_missing_values_are_refused_with_the_parameter_that_cures() -> None:
    X, _ = data()
    with pytest.raises(InputError, match=r"X: row \d+, column \d is NaN.*missing = 'mean'"):
        bigfs.MaxVariance(2).fit(X)
    X[3, 1] = np.inf
    with pytest.raises(InputError, match="row 3, column 1 is inf"):
        bigfs.MaxVariance(2, missing="mean").fit(X)
    with pytest.raises(ConfigError, match="MaxVariance: missing must be .*'median'"):
        bigfs.MaxVariance(2, missing="median").fit(X)
    X[:, 4] = np.nan
    with pytest.raises(InputError, match="at least 2 samples are needed. Got 0 after 60 rows"):
        bigfs.MaxVariance(2, missing="drop_rows").fit(X[:, 4:])


def test_a_store_knows_which_rows_it_was_made_without(tmp_path: Path) -> None:
    X, complete = data()
    bigfs.ingest(X, tmp_path / "X.zarr", missing="drop_rows")
    fitted = bigfs.MaxVariance(2).fit(tmp_path / "X.zarr")
    np.testing.assert_array_equal(fitted.row_mask_, complete)
    some = bigfs.open_matrix(X[complete], rows={"every": 3})
    expected = np.arange(complete.sum()) % 3 == 0
    np.testing.assert_array_equal(bigfs.MaxVariance(2).fit(some).row_mask_, expected)


@pytest.mark.parametrize("name", METHODS)
def test_every_selector_has_the_parameter(name: str) -> None:
    selector = METHODS[name].estimator_class()(missing="zero")
    assert selector.get_params()["missing"] == "zero"
    assert selector.__sklearn_tags__().input_tags.allow_nan
    assert not type(selector)().__sklearn_tags__().input_tags.allow_nan


def test_samples_are_filled_as_the_selector_says() -> None:
    X, complete = data()
    fits = bigfs.StabilitySelection(bigfs.MaxVariance(2, missing="drop_rows"), n_pairs=2).fit(X)
    np.testing.assert_array_equal(fits.row_mask_, complete)
    expected = bigfs.StabilitySelection(bigfs.MaxVariance(2), n_pairs=2).fit(X[complete])
    np.testing.assert_array_equal(fits.rankings_, expected.rankings_)


@pytest.mark.full
@pytest.mark.parametrize(
    "selector",
    [
        bigfs.GFSKMeans(2, n_clusters=2),
        bigfs.LFS(2, n_clusters=2),
        bigfs.NDFS(2, n_clusters=2, n_neighbors=3),
        bigfs.M3FS(2, n_clusters=2, n_neighbors=3, n_init=1, C=1.0),
        bigfs.M3FS(2, n_clusters=2, n_neighbors=3, n_init=1, C=1.0, sample_size=30),
        bigfs.HighlyVariable(2, flavor="deviance"),
        bigfs.StabilitySelection(bigfs.GFSKMeans(2, n_clusters=2), n_pairs=2),
    ],
    ids=lambda selector: str(selector).partition("(")[0],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_labels_of_all_rows_lose_those_that_are_dropped(
    selector: Any, as_file: bool, tmp_path: Path
) -> None:
    X, complete = data()
    X = np.abs(X)
    y = np.arange(60) % 2
    inner = getattr(selector, "selector", selector)
    name = "batch_key" if "batch_key" in inner.get_params() else "init"
    expected = selector.__class__(**selector.get_params(deep=False))
    prefix = "" if inner is selector else "selector__"
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "kept.npy", y[complete])
    labels = [str(tmp_path / "y.npy"), str(tmp_path / "kept.npy")] if as_file else [y, y[complete]]
    expected.set_params(**{prefix + name: labels[1]}).fit(X[complete])
    selector.set_params(**{prefix + name: labels[0], prefix + "missing": "drop_rows"}).fit(X)
    np.testing.assert_array_equal(selector.scores_, expected.scores_)


def test_a_pipeline_starts_from_labels_of_all_rows(tmp_path: Path) -> None:
    X, complete = data()
    np.save(tmp_path / "X.npy", np.abs(X))
    np.save(tmp_path / "y.npy", np.arange(60) % 2)
    settings = {
        "run": str(tmp_path / "run"),
        "input": {"uri": str(tmp_path / "X.npy"), "missing": "drop_rows"},
        "method": "highly_variable",
        "highly_variable": {"flavor": "deviance", "batch_key": str(tmp_path / "y.npy")},
        "n_features_to_select": 2,
    }
    result = bigfs.run(settings)
    assert result.n_samples == complete.sum()
    expected = bigfs.HighlyVariable(2, flavor="deviance", batch_key=(np.arange(60) % 2)[complete])
    np.testing.assert_array_equal(result.scores, expected.fit(np.abs(X)[complete]).scores_)
