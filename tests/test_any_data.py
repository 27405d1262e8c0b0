"""Every method, with its defaults, on data that people bring: results, or words with a cure."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs import MCFS, ingest, run
from bigfs.core.errors import InputError
from bigfs.selectors.registry import METHODS
from tests._tables import shared

N_PLANTED, N_FEATURES = 4, 10


def groups(n: int = 60, d: int = N_FEATURES, seed: int = 0) -> np.ndarray:
    """Return three groups of rows that the first four features tell apart."""
    rng = np.random.default_rng(seed)
    centers = 5.0 * np.array([[1, 0, 0, 1], [0, 1, 0, -1], [0, 0, 1, 0]])
    X = rng.standard_normal((n, d))
    X[:, :N_PLANTED] += centers[np.arange(n) % 3]
    return X


def _rng() -> np.random.Generator:
    return np.random.default_rng(1)


def _with_outliers() -> np.ndarray:
    X = groups()
    X[:3] = 1e4 * _rng().standard_normal((3, N_FEATURES))
    return X


def _with_a_far_row() -> np.ndarray:
    X = groups()
    X[7] *= 1e6
    return X


def _with_heavy_tails() -> np.ndarray:
    X = groups()
    X[:, N_PLANTED:] = _rng().standard_t(1.5, size=(60, N_FEATURES - N_PLANTED))
    return X


def _with_constants() -> np.ndarray:
    almost = 1e6 + 1e-3 * _rng().standard_normal((60, 1))
    return np.hstack([groups(), almost, np.full((60, 2), 7.0)])


def _counts() -> np.ndarray:
    rate = np.full((60, N_FEATURES), 0.3)
    rate[:, :N_PLANTED] = 0.2
    rate[np.arange(60), np.arange(60) % 3] = 9.0
    rate[:, 3] = np.where(np.arange(60) % 3 == 0, 9.0, 0.2)
    return np.asarray(_rng().poisson(rate) * (_rng().random(rate.shape) > 0.1))


# Plain data in another form or unit: what was planted must be found.
PLANTED: dict[str, Callable[[], np.ndarray]] = {
    "as it is": groups,
    "float16": lambda: groups().astype(np.float16),
    "integers": lambda: np.round(10 * groups()).astype(np.int64),
    "tiny float32": lambda: (1e-30 * groups()).astype(np.float32),
    "huge float32": lambda: (1e30 * groups()).astype(np.float32),
    "far from zero": lambda: groups() + 1000.0,
    "ten copies": lambda: np.tile(groups(), (10, 1)),
    "constant and almost constant": _with_constants,
    "heavy tails": _with_heavy_tails,
    "counts": _counts,
}
# Data on which nothing can be expected but a result.
OTHERS: dict[str, Callable[[], np.ndarray]] = {
    "outliers": _with_outliers,
    "a far row": _with_a_far_row,
    "mixed units": lambda: groups() * 10.0 ** np.arange(-5, 5),
    "booleans": lambda: groups() > 1,
    "one-hot": lambda: np.eye(4)[_rng().integers(4, size=60)],
    "random walks": lambda: np.cumsum(_rng().standard_normal((60, N_FEATURES)), axis=0),
    "one feature": lambda: groups()[:, :1],
    "many features": lambda: np.hstack([groups(20), _rng().standard_normal((20, 60))]),
    "two values": lambda: np.repeat([[0.0, 1.0], [1.0, 1.5]], [20, 40], axis=0),
    "as many rows as neighbors and one": lambda: groups(6),
    "two rows": lambda: np.array([[0.0, 1, 2], [1, 1, 5]]),
}
# Where a method refuses, the sentence has a cure, or there is nothing that it could say.
REFUSED = {
    ("m3fs", "two rows"): "M3FS needs at least 3 rows. X has 2",
    ("maximum_margin_clustering", "two rows"): "needs at least 3 rows. X has 2",
}
# Who finds fewer than three of the four planted features with its defaults, why, and the settings
# with which it finds them; None where the method, as it is defined, looks for something else.
GROUPS = {"n_clusters": 3}
FEWER: dict[tuple[str, str], tuple[str, dict[str, Any] | None]] = {
    ("udfs", ""): ("it sees neighborhoods only, where what tells groups apart is noise", None),
    ("random_selection", ""): ("it is chance", None),
    ("max_variance", "heavy tails"): ("heavy tails have the largest variance", None),
    ("column_subset", "heavy tails"): ("heavy tails have the largest variance", None),
    ("pivoted_qr", "heavy tails"): ("heavy tails have the largest variance", None),
    ("lfs", "heavy tails"): ("the most separate cluster is a few far rows", None),
    ("gfs_kmeans", "heavy tails"): ("the most separate clusters are a few far rows", None),
    ("lfs", "counts"): ("the most separate cluster is one of rows with equal small counts", None),
    ("gfs_kmeans", "counts"): ("the same", None),
    ("ndfs", "heavy tails"): ("five of eight clusters are a few far rows", GROUPS),
    ("lfs", ""): ("eight clusters of sixty rows, three of which are there", GROUPS),
    ("gfs_kmeans", ""): ("eight clusters of sixty rows, three of which are there", GROUPS),
    ("mcfs", ""): (
        "noise explains eigenvectors that are noise, and a pick passes over those like it",
        {**GROUPS, "regression": "lasso"},
    ),
}
# Of these, features that are alike.
ALIKE = ("booleans", "one-hot", "as many rows as neighbors and one", "a far row", "two rows")
# Methods for counts refuse other data.
NAMES = [
    name
    for name, method in METHODS.items()
    if not method.estimator_class()(1).__sklearn_tags__().input_tags.positive_only
]


def fit(name: str, X: Any, m: int | None = None, **options: Any) -> Any:
    """Fit a method with its defaults; any warning of Python is an error."""
    m = m or min(N_PLANTED, X.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return METHODS[name].estimator_class()(n_features_to_select=m, **options).fit(X)


def check(name: str, kind: str, X: np.ndarray) -> Any:
    """Fit, and check that the result can be used."""
    fitted = fit(name, X)
    assert np.isfinite(fitted.scores_).all()
    assert sorted(fitted.ranking_) == list(range(X.shape[1]))
    constant = (X == X[0]).all(axis=0)
    assert constant[fitted.ranking_[len(constant) - constant.sum() :]].all(), (
        f"{name}, {kind}: constant features must come last. Got {fitted.ranking_}"
    )
    return fitted


@pytest.mark.full
@pytest.mark.parametrize("kind", [*PLANTED, *OTHERS])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_on_any_data(name: str, kind: str) -> None:
    X = {**PLANTED, **OTHERS}[kind]()
    if (name, kind) in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name, kind]):
            fit(name, X)
        return
    actual = check(name, kind, X)
    _, settings = FEWER.get((name, kind), FEWER.get((name, ""), ("", {})))
    if kind in PLANTED and settings is not None:
        actual = fit(name, X, **settings) if settings else actual
        n_found = np.isin(actual.get_support(indices=True), range(N_PLANTED)).sum()
        assert n_found >= 3, f"{n_found} of 4 planted features; ranking {actual.ranking_}"


def test_udfs_finds_what_scatters_little_in_neighborhoods() -> None:
    X = groups()
    X[:, :N_PLANTED] *= 0.3
    assert np.isin(fit("udfs", X).ranking_[:N_PLANTED], range(N_PLANTED)).sum() >= 3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_columns_does_not_decide_what_a_search_drops(seed: int, order: int) -> None:
    # Most features can go without a change of the clusters: the first of them went before.
    X = groups(seed=seed)[:, ::order]
    fitted = fit("gfs_kmeans", X, **GROUPS).get_support(indices=True)
    assert set(fitted) == (set(range(4)) if order == 1 else set(range(6, 10)))


@pytest.mark.parametrize("kind", ["ten copies", "outliers", "two rows"])
def test_graph_methods_on_data_that_used_to_fail(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    X = {**PLANTED, **OTHERS}[kind]()
    for name in ("mcfs", "ndfs"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            check(name, kind, X)
        if kind == "ten copies":
            assert "600 of 600 rows have at least 5 duplicates" in caplog.text
        if kind == "two rows":
            assert "n_neighbors is reduced from 5 to 1" in caplog.text


@pytest.mark.parametrize("kind", ["as it is", "ten copies"])
def test_mcfs_finds_what_was_planted(kind: str) -> None:
    X = groups(240)
    X = np.tile(X, (10, 1)) if kind == "ten copies" else X
    for regression, n_found in (("omp", 2), ("lasso", N_PLANTED)):
        fitted = MCFS(N_PLANTED, regression=regression).fit(X)
        # Two features tell three groups apart: forward regression has no use for the others.
        first = fitted.ranking_[:n_found]
        assert set(first) <= set(range(N_PLANTED)) and len(first) == n_found


def _overlapping() -> np.ndarray:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((90, 60)) * (1 + rng.random(60))
    X[:, :20] += 2.5 * rng.standard_normal((4, 20))[np.arange(90) % 4]
    return X


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_neither_the_unit_nor_a_shift_of_the_data_matters(name: str) -> None:
    # Searches over subsets take time: a part of the data does for them.
    X, m = (_overlapping()[:30, :20], 10) if name in ("lfs", "gfs_kmeans") else (_overlapping(), 30)
    expected = fit(name, X, m)
    selected = expected.get_support()
    for factor in (2.0**10, 2.0**-20):
        np.testing.assert_array_equal(fit(name, X * factor, m).ranking_, expected.ranking_)
    for factor, shift in ((255.0, 0.0), (1e-6, 0.0), (1e6, 0.0), (1.0, 1000.0)):
        n_others = (fit(name, X * factor + shift, m).get_support() & ~selected).sum()
        assert n_others <= m // 30, f"times {factor:g} plus {shift:g}: {n_others} other features"


@pytest.mark.full
@pytest.mark.parametrize(("name", "kind"), shared(NAMES, ALIKE))
def test_rounding_does_not_order_features_that_are_alike(name: str, kind: str) -> None:
    if (name, kind) in REFUSED:
        pytest.skip("refused, as the test above says")
    X = np.asarray(OTHERS[kind](), dtype=np.float64)
    m = X.shape[1] // 2
    selected = fit(name, X, m).get_support()
    for factor, shift in ((255.0, 0.0), (1e-6, 0.0), (1e6, 0.0), (1.0, 10 * X.std())):
        np.testing.assert_array_equal(fit(name, X * factor + shift, m).get_support(), selected)


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [line for line in lines if "Scales differ" in line]


def test_scales_that_differ_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    X = np.hstack([groups(), np.ones((60, 1))])
    X[:, 2] *= 1e-5
    fit("mcfs", X)
    [line] = _said(caplog)
    assert "standard deviation of feature 2 is" in line
    # Means alone were taken away and all divided by one number: scales still differ.
    fit("mcfs", X, preprocess="rescale")
    assert len(_said(caplog)) == 1
    fit("mcfs", X, preprocess="standardize")
    fit("mcfs", groups())
    fit("q_alpha", X)
    assert not _said(caplog)


def test_variances_that_are_all_alike_are_said_to_rank_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    X = np.hstack([groups(), np.ones((60, 1))]).astype(np.float32)
    X[:, 2] *= 1e-5
    for kind, n_lines in (("none", 0), ("standardize", 1)):
        caplog.clear()
        fit("max_variance", X, preprocess=kind)
        lines = [line for line in caplog.messages if "the same variance up to rounding" in line]
        assert len(lines) == n_lines, kind


def test_a_run_says_that_scales_differ_and_keeps_the_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    X = groups()
    X[:, 2] *= 1e-5
    ingest(X, tmp_path / "X.zarr")
    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.zarr")},
                "method": "mcfs", "n_features_to_select": 2, "report": None}  # fmt: skip
    caplog.set_level(logging.WARNING, "bigfs")
    result = run(settings)
    [line] = _said(caplog)
    assert "(of 60 rows) of feature 2 is" in line and "preprocess 'standardize'" in line
    assert line in result.summary() and result.stages["result"]["passes"] == 1
    run({**settings, "run": str(tmp_path / "other")}, overrides=["preprocess=standardize"])
    assert not _said(caplog)
    MCFS(2).fit(str(tmp_path / "X.zarr"))
    assert _said(caplog) == [line]


def test_an_hdf5_dataset_and_a_lazy_xarray_are_read_by_blocks(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask.array as da

    h5py, xr = pytest.importorskip("h5py"), pytest.importorskip("xarray")
    X = groups(240)
    expected = fit("mcfs", X)
    lazy_array = xr.DataArray(da.from_array(X, chunks=(60, N_FEATURES)))

    with h5py.File(tmp_path / "X.h5", "w") as file:
        stored = file.create_dataset("X", data=X, chunks=(60, N_FEATURES))
        monkeypatch.setattr(
            h5py.Dataset, "__array__", lambda *_: pytest.fail("read whole"), raising=False
        )
        monkeypatch.setattr(xr.DataArray, "__array__", lambda *_: pytest.fail("read whole"))
        for lazy in (stored, lazy_array):
            fitted = fit("mcfs", lazy)
            np.testing.assert_array_equal(fitted.scores_, expected.scores_)
            chosen = fitted.transform(lazy)
            chosen = chosen.data if lazy is lazy_array else chosen
            assert isinstance(chosen, da.Array)
            np.testing.assert_array_equal(chosen.compute(), expected.transform(X))


def test_a_part_of_an_anndata_is_refused_in_words() -> None:
    class Raw:
        __module__ = "anndata._core.raw"

    with pytest.raises(InputError, match="X is an anndata Raw, which is not supported. Pass the"):
        fit("max_variance", Raw(), 1)
