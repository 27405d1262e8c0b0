"""Selectors keep scikit-learn's contract, and give one ranking for every kind of input."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray
from scipy.sparse import csr_array, csr_matrix, issparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.feature_selection import SelectorMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bigfs import (
    M3FS,
    MCFS,
    SPEC,
    LaplacianScore,
    MaximumMarginClustering,
    MaxVariance,
    StabilitySelection,
    ingest,
)
from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.selectors.registry import METHODS, method_of

# Settings with which a fit takes a moment; methods that are not here have such defaults.
CHEAP_SETTINGS: dict[str, dict[str, Any]] = {
    "spec": {"n_neighbors": 3},
    "laplacian_score": {"n_neighbors": 3},
    "q_alpha": {"n_clusters": 2},
    "udfs": {"n_clusters": 1, "n_neighbors": 3, "max_iter": 3},
    "fsgmm": {"n_clusters": 2, "max_iter": 5},
    "mcfs": {"n_clusters": 2, "n_neighbors": 3},
    "ndfs": {"n_clusters": 2, "n_neighbors": 3, "max_iter": 3},
    "m3fs": {"n_neighbors": 3, "init": "kmeans", "n_init": 1, "C": 1.0},
    "lfs": {"n_clusters": 2, "n_init": 1, "max_iter": 3, "drop": "many"},
    "gfs_kmeans": {"n_clusters": 2, "n_init": 1, "max_iter": 2},
    "maximum_margin_clustering": {"n_init": 1, "C": 1.0},
    "highly_variable": {"flavor": "deviance"},  # the others need the extra anndata
}
CHEAP = [
    method.estimator_class()(n_features_to_select=1, **CHEAP_SETTINGS.get(name, {}))
    for name, method in METHODS.items()
]


# scikit-learn sets n_clusters to 1 in these: nothing can be separated from nothing.
ONE_CLUSTER = (
    "check_dont_overwrite_parameters",
    "check_methods_subset_invariance",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_fit2d_predict1d",
)


def _expected_failures(estimator: Any) -> dict[str, str]:
    if isinstance(estimator, (M3FS, MaximumMarginClustering)):
        return dict.fromkeys(ONE_CLUSTER, "a margin needs two clusters, and the check asks for one")
    return {}


# One of each kind; all have the same base, and the others' turn is the slow tier.
OF_EACH_KIND = ("mcfs", "ndfs", "m3fs", "lfs", "column_subset", "highly_variable")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [e for e in CHEAP if method_of(type(e)).name in OF_EACH_KIND],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [e for e in CHEAP if method_of(type(e)).name not in OF_EACH_KIND],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_contract_of_the_others(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return load_digits().data[:400]


@pytest.fixture(params=CHEAP, ids=lambda e: type(e).__name__, scope="module")
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def selector(kind: Any) -> Any:
    return clone(kind).set_params(n_features_to_select=10)


@pytest.fixture(scope="module")
def fitted(kind: Any, digits: np.ndarray) -> Any:
    """The selector, fitted once for all tests that only look at it."""
    return clone(kind).set_params(n_features_to_select=10).fit(digits)


def _inputs(X: np.ndarray, folder: Path) -> dict[str, Any]:
    import dask.array as da
    import scipy.sparse as sp
    import zarr

    np.save(folder / "X.npy", X)
    ingest(X, folder / "X.zarr")
    frame = pd.DataFrame(X, columns=[f"p{i}" for i in range(X.shape[1])])
    frame.to_csv(folder / "X.csv", index=False)
    return {
        "pandas": frame,
        "csr": sp.csr_matrix(X),
        "csc": sp.csc_matrix(X),
        "dask": da.from_array(X, chunks=(70, 64)),
        "zarr": zarr.open_group(str(folder / "X.zarr"), mode="r")["X"],
        "path": folder / "X.zarr",
        "uri": str(folder / "X.npy"),
        "csv": folder / "X.csv",
    }


def test_every_kind_of_input_gives_the_same_ranking(
    selector: Any, digits: np.ndarray, tmp_path: Path
) -> None:
    if selector.get_params().get("preprocess") == "auto":  # sparse digits are counts
        selector.set_params(preprocess="none")
    expected = selector.fit(digits)
    ranking, scores = expected.ranking_, expected.scores_
    for kind, X in _inputs(digits, tmp_path).items():
        fitted_selector = selector.fit(X)
        has_unit = isinstance(selector, (M3FS, MaximumMarginClustering))
        if kind in ("csr", "csc") and (has_unit or method_of(type(selector)).sparse):
            # Sums over entries, a unit's too, are rounded elsewhere, which turns equal scores.
            near = {"rtol": 1e-12, "atol": 1e-14 if has_unit else 0.0}
            np.testing.assert_allclose(fitted_selector.scores_, scores, err_msg=kind, **near)
            np.testing.assert_allclose(scores[fitted_selector.ranking_], scores[ranking], **near)
            continue
        np.testing.assert_array_equal(fitted_selector.ranking_, ranking, err_msg=kind)
        np.testing.assert_array_equal(fitted_selector.scores_, scores, err_msg=kind)


def test_ranking_is_the_same_on_every_scheduler(
    selector: Any, fitted: Any, digits: np.ndarray, scheduler: str
) -> None:
    np.testing.assert_array_equal(selector.fit(digits).scores_, fitted.scores_)


def test_transform_is_lazy_for_lazy_input(fitted: Any, digits: np.ndarray, tmp_path: Path) -> None:
    import dask.array as da

    expected = digits[:, fitted.get_support()]
    inputs = _inputs(digits, tmp_path)
    for form in ("dask", "zarr", "path", "uri"):
        lazy = fitted.transform(inputs[form])
        assert isinstance(lazy, da.Array), form
        np.testing.assert_array_equal(lazy.compute(), expected)
    np.testing.assert_array_equal(fitted.transform(digits), expected)
    with pytest.raises(InputError, match="63 features.*64|64 features"):
        fitted.transform(inputs["dask"][:, :63])


def test_names_and_containers(selector: Any, digits: np.ndarray) -> None:
    frame = pd.DataFrame(digits, columns=[f"p{i}" for i in range(64)])
    selector.fit(frame)
    kept = [f"p{i}" for i in np.flatnonzero(selector.get_support())]
    assert selector.get_feature_names_out().tolist() == kept
    selector.set_output(transform="pandas")
    assert selector.transform(frame).columns.tolist() == kept


@pytest.mark.parametrize("output", ["pandas", "polars"])
def test_frames_of_lazy_data_are_loaded_with_their_index(output: str, digits: np.ndarray) -> None:
    frame = pd.DataFrame(digits[:60], columns=[f"p{i}" for i in range(64)])
    frame.index = 7 + 2 * np.arange(60)
    selector = MaxVariance(n_features_to_select=3).fit(frame).set_output(transform=output)
    expected = frame[selector.get_feature_names_out()]
    polars, array = pytest.importorskip("polars"), da.from_array(digits[:60], chunks=(20, 64))
    pixels = xarray.DataArray(
        digits[:60].reshape(6, 10, 64), {"band": frame.columns.to_numpy()}, ("y", "x", "band")
    )
    lazy = [dd.from_pandas(frame, npartitions=3), polars.from_pandas(frame).lazy(),
            pa.table(frame.reset_index(drop=True)), array, pixels]  # fmt: skip
    for i, X in enumerate(lazy):
        kept = selector.transform(X)
        assert type(kept) is {"pandas": pd, "polars": polars}[output].DataFrame
        assert list(kept.columns) == list(expected.columns)
        np.testing.assert_array_equal(kept.to_numpy(), expected.to_numpy())
        if output == "pandas":
            assert kept.index.equals(expected.index if i == 0 else pd.RangeIndex(60))


def test_the_methods_of_scikit_learns_selectors(digits: np.ndarray) -> None:
    """They answer as those of ``SelectorMixin``, whose package is not imported for them."""
    ours = MaxVariance(n_features_to_select=9)

    class Theirs(SelectorMixin, MaxVariance):
        def _get_support_mask(self) -> np.ndarray:
            return ours.get_support()

    frame = pd.DataFrame(digits, columns=[f"p{i}" for i in range(64)]).astype({"p3": np.int16})
    for X in (digits, frame, csr_array(digits), csr_matrix(digits), digits.tolist()):
        theirs = Theirs(9).fit(X)
        for output in ("default", "pandas") if not issparse(X) else ("default",):
            pairs = [s.set_output(transform=output).transform(X) for s in (ours.fit(X), theirs)]
            pairs += [selector.inverse_transform(pairs[0]) for selector in (ours, theirs)]
            for a, b in zip(pairs[::2], pairs[1::2], strict=True):
                if issparse(a):
                    assert a.format == b.format
                    a, b = a.toarray(), b.toarray()
                pd.testing.assert_frame_equal(pd.DataFrame(a), pd.DataFrame(b))
        np.testing.assert_array_equal(ours.get_support(True), theirs.get_support(True))
        names = [ours.get_feature_names_out(), theirs.get_feature_names_out()]
        np.testing.assert_array_equal(*names)
    given = [f"q{i}" for i in range(64)]
    names = [selector.get_feature_names_out(given) for selector in (ours, theirs)]
    np.testing.assert_array_equal(*names)
    for selector in (ours, theirs):
        with pytest.raises(ValueError, match="63|64"):
            selector.get_feature_names_out(given[:63])
        with pytest.raises(ValueError, match="X has"):
            selector.inverse_transform(digits)
        with pytest.raises(ValueError, match="NaN"):
            selector.transform(np.where(digits > 15, np.nan, digits))


def test_in_a_pipeline(digits: np.ndarray) -> None:
    pipe = make_pipeline(MinMaxScaler(), MCFS(n_features_to_select=7, n_clusters=3))
    assert pipe.fit_transform(digits).shape == (400, 7)


def test_support_serves_smaller_numbers(fitted: Any, digits: np.ndarray) -> None:
    smaller = clone(fitted).set_params(n_features_to_select=3).fit(digits)
    if not isinstance(fitted, M3FS):  # its order depends on the number, as its class says
        np.testing.assert_array_equal(fitted.support(3), smaller.get_support(indices=True))
    np.testing.assert_array_equal(fitted.support(10), np.flatnonzero(fitted.get_support()))
    with pytest.raises(InputError, match=r"int in \[1, 64\].*Got 65"):
        fitted.support(65)


@pytest.mark.parametrize("bad", [0, 65, -1, 2.5, True, "3"])
def test_number_of_features_is_checked(bad: Any, digits: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"must be an int in \[1, 64\], since X has 64 features"):
        MaxVariance(n_features_to_select=bad).fit(digits)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n_neighbors": 0}, "n_neighbors"),
        ({"n_neighbors": 400}, "n_neighbors"),
        ({"n_clusters": 0}, "MCFS: n_clusters must be a whole number of at least 1"),
        ({"n_clusters": 400}, "MCFS: n_clusters must be at most 399, since X has 400 rows"),
        ({"weight": "gauss"}, "weight"),
        ({"metric": "cityblock"}, "metric"),
        ({"preprocess": "zscore"}, "preprocess"),
        ({"sigma": -1.0, "weight": "heat"}, "sigma"),
        ({"memory_limit": "4 GX"}, "GX"),
    ],
)
def test_bad_parameters_are_named(
    options: dict[str, Any], message: str, digits: np.ndarray
) -> None:
    with pytest.raises(InputError, match=message):
        MCFS(n_features_to_select=5, **options).fit(digits)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("scale", ["none", "l1", "l2", "max", "explained"])
@pytest.mark.parametrize("n_clusters", [1, 5])
def test_mcfs_equals_the_dense_reference(
    digits: np.ndarray, intercept: bool, scale: str, n_clusters: int
) -> None:
    from tests.reference.mcfs import mcfs_scores

    selector = MCFS(
        n_features_to_select=15,
        n_clusters=n_clusters,
        n_neighbors=20,
        regression="lasso",
        fit_intercept=intercept,
        coef_scale=scale,
    ).fit(digits)
    assert selector.n_connected_components_ == 1, "the reference is for connected graphs"
    expected = mcfs_scores(digits, n_clusters, 15, k=20, intercept=intercept, scale=scale)
    np.testing.assert_allclose(selector.scores_, expected, atol=1e-8)


def test_laplacian_score_equals_the_dense_reference(digits: np.ndarray) -> None:
    from tests.reference.mcfs import laplacian_scores, neighbor_affinity

    X = digits[:, digits.std(axis=0) > 0]
    for weight in ("binary", "cosine"):
        scores = LaplacianScore(n_features_to_select=5, weight=weight).fit(X).scores_
        expected = laplacian_scores(X, neighbor_affinity(X, 5, weight))
        np.testing.assert_allclose(-scores, expected, rtol=1e-6)


def test_constant_features_come_last(digits: np.ndarray, selector: Any) -> None:
    X = np.hstack([np.full((400, 1), 7.0), digits])
    ranking = selector.fit(X).ranking_
    assert 0 not in ranking[:10]


def _awkward() -> dict[str, np.ndarray]:
    """Return small data with constant features: first, last, between and far from zero."""
    rng = np.random.default_rng(0)
    halves = rng.normal(size=(60, 8)) + 2 * (np.arange(60) < 30)[:, None]
    constants = np.column_stack([np.full(60, 7.0), halves, np.zeros(60)])
    few = np.zeros((60, 6))
    few[:, [1, 2, 5]] = rng.integers(0, 3, (60, 3)) + rng.normal(0, 0.3, (60, 3))
    wide = np.column_stack([np.full(12, 0.1), rng.normal(size=(12, 30)), np.full(12, -3.0)])
    return {
        "constants": constants,
        "duplicate rows": np.repeat(constants[:20], 3, axis=0),
        "duplicate features": np.column_stack([constants, constants]),
        "far from zero": np.column_stack([np.full(60, 1e8), np.abs(halves) + 1e4]),
        "half constant": few,
        "wide": wide,
    }


@pytest.mark.parametrize("name", _awkward())
@pytest.mark.parametrize(
    "selector",
    [*CHEAP, SPEC(ranking="phi1"), SPEC(ranking="phi3")],
    ids=lambda selector: str(selector).split("(", 1)[0],
)
def test_constant_features_rank_last_with_finite_scores(selector: Any, name: str) -> None:
    X = _awkward()[name]
    if selector.__sklearn_tags__().input_tags.positive_only:
        X = X - min(0.0, X.min())
    constant = np.flatnonzero(np.ptp(X, axis=0) == 0)
    for m, kind in ((1, np.float32), (4, np.float64)):
        fitted = clone(selector).set_params(n_features_to_select=m)
        fitted.fit(X.astype(kind))
        assert np.isfinite(fitted.scores_).all()
        last = fitted.ranking_[len(fitted.ranking_) - len(constant) :]
        np.testing.assert_array_equal(np.sort(last), constant)
        assert fitted.scores_[constant].max() <= np.delete(fitted.scores_, constant).min()


@pytest.mark.parametrize("memory_limit", ["768 MiB", "4 GiB"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_constant_features_rank_last_on_both_ways_of_mcfs(
    memory_limit: str, fit_intercept: bool
) -> None:
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(60, 6))
    X = factors @ rng.normal(size=(6, 6000)) + rng.normal(size=(60, 6000))
    X[:, [0, 17]] = 3.0
    fitted_selector = MCFS(
        20,
        n_clusters=3,
        regression="lasso",
        fit_intercept=fit_intercept,
        memory_limit=memory_limit,
    ).fit(X)
    assert hasattr(fitted_selector, "largest_violation_") == (memory_limit == "768 MiB")
    assert fitted_selector.ranking_[-2:].tolist() == [0, 17]


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_smaller_selections_of_mcfs_hold_no_constant_feature(fit_intercept: bool) -> None:
    X = _awkward()["wide"]
    fitted_selector = MCFS(30, n_clusters=2, n_neighbors=3, fit_intercept=fit_intercept).fit(X)
    assert np.count_nonzero(fitted_selector.scores_) < 30, (
        "paths that end early leave places to fill"
    )
    for m in range(1, 31):
        assert not np.isin([0, 31], fitted_selector.support(m)).any()


def test_values_too_large_to_be_squared_are_refused(selector: Any, digits: np.ndarray) -> None:
    X = digits.copy()
    X[321, 5] = 1e300
    with pytest.raises(InputError, match=r"row 321, column 5 is 1e\+300. Values beyond 1e\+140"):
        selector.fit(X)


def test_a_store_that_is_changed_in_place_is_refused(
    selector: Any, digits: np.ndarray, tmp_path: Path
) -> None:
    import zarr

    ingest(digits.astype(np.float32), tmp_path / "X.zarr", rows=100)
    zarr.open_group(tmp_path / "X.zarr", mode="r+")["X"][321, 5] = np.nan
    with pytest.raises(CorruptStoreError, match="row 321, column 5 is NaN, but was not"):
        selector.fit(tmp_path / "X.zarr")


def test_degenerate_data() -> None:
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(20, 50))
    selector = MCFS(n_features_to_select=30, n_clusters=3).fit(wide)
    assert (selector.n_active_ <= 19).all()
    assert np.isfinite(selector.scores_).all()
    everything = MCFS(n_features_to_select=50, n_clusters=1).fit(wide)
    assert everything.get_support().all()
    twice = np.repeat(rng.normal(size=(30, 4)), 2, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted_selector = MCFS(n_features_to_select=2, n_clusters=2, n_neighbors=4).fit(twice)
    assert np.isfinite(fitted_selector.scores_).all()


def test_a_fitted_selector_shows_its_answer_in_a_notebook() -> None:
    X = np.random.default_rng(0).normal(size=(60, 5)) * [1, 9, 1, 1, 1]
    frame = pd.DataFrame(X, columns=["<a>", *"bcde"])
    selector = MaxVariance(2)
    bare = selector._repr_mimebundle_()["text/html"]
    assert "features selected" not in bare and "<table" in bare
    selector.fit(frame)
    for shown in (selector._repr_mimebundle_()["text/html"], selector._repr_html_()):
        assert "2 of 5 features selected" in shown and "&lt;a&gt;" in shown
        assert "Scales differ" in shown or not selector._notes
        assert shown.count("features selected") == 1 and "MaxVariance" in shown
    sure = StabilitySelection(MaxVariance(2), n_pairs=4).fit(frame)
    assert "95 % interval" in sure._repr_html_()
    with config_context(display="text"):
        assert "text/html" not in selector._repr_mimebundle_()
