"""Units and rounding: small values, columns that are constant up to rounding, accurate moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_iris, load_wine

import bigfs
from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import csr_moments
from bigfs.blocks.kernels import block_moments, merge_moments
from bigfs.core.errors import InputError
from bigfs.pipeline.inspect import inspect
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import METHODS, load_config
from bigfs.store.columns import different_units
from bigfs.store.source import open_matrix

IRIS, DIGITS = load_iris().data, load_digits().data[:300]
# Settings with which a fit of iris takes a moment, and what a method needs.
SETTINGS: dict[str, dict[str, Any]] = {
    "highly_variable": {"flavor": "deviance"},
    "fsgmm": {"max_iter": 5},
    "m3fs": {"n_init": 1, "C": 1.0},
    "maximum_margin_clustering": {"n_init": 1, "C": 1.0},
}
NAMES = [name for name in METHODS if name != "highly_variable"]
GRAPHS = [name for name in NAMES if METHODS[name].needs(METHODS[name].parameters())]


def read(X: np.ndarray, kind: str) -> np.ndarray:
    blocks = RowBlocks.from_any(X, transform=kind)
    return np.asarray(blocks.start_pass().read(0, len(X)))


def fitted(name: str, X: Any, m: int = 2, **settings: Any) -> Any:
    return METHODS[name].estimator_class()(m, **SETTINGS.get(name, {}), **settings).fit(X)


@pytest.mark.parametrize(
    "exponent", [-455, *(pytest.param(e, marks=pytest.mark.full) for e in (-150, 455))]
)
@pytest.mark.parametrize("name", NAMES)
def test_powers_of_two_change_no_ranking_or_are_refused(name: str, exponent: int) -> None:
    try:
        scaled = fitted(name, np.ldexp(IRIS, exponent))
    except InputError as error:
        assert name in GRAPHS, "only distances in float32 have less room"
        assert abs(exponent) > 100
        assert "ow " in str(error) and "column " in str(error) and "float32" in str(error)
        return
    np.testing.assert_array_equal(scaled.ranking_, _ranking_of_iris(name))


@cache
def _ranking_of_iris(name: str) -> np.ndarray:
    return np.asarray(fitted(name, IRIS).ranking_)


def test_columns_are_picked_alike_in_every_unit() -> None:
    for X in (DIGITS, DIGITS[:40]):  # on the Gram matrix, and on rows
        for name in ("column_subset", "pivoted_qr"):
            expected = fitted(name, X, 8)
            for exponent in (-450, -350, 350, 450):
                scaled = fitted(name, np.ldexp(X, exponent), 8)
                np.testing.assert_array_equal(scaled.scores_, expected.scores_)


@pytest.mark.parametrize("factor", [3e-157, 2.0**-1060])
@pytest.mark.parametrize("name", NAMES)
def test_values_whose_squares_vanish_are_refused_with_their_place(name: str, factor: float) -> None:
    with pytest.raises(InputError, match=r"X: row \d+, column 2 is .*Multiply the data by a power"):
        fitted(name, IRIS * factor)


@pytest.mark.parametrize("form", ["path", "store", "CSR", "frame", "float32"])
def test_small_values_are_refused_wherever_they_come_from(form: str, tmp_path: Path) -> None:
    X = np.ldexp(IRIS, -520)
    given: Any = {"CSR": sp.csr_array(X), "frame": pd.DataFrame(X, columns=list("abcd"))}.get(form)
    if form == "path":
        np.save(tmp_path / "X.npy", X)
        given = tmp_path / "X.npy"
    if form == "store":
        given = bigfs.ingest(X, tmp_path / "X.zarr")
        given = tmp_path / "X.zarr"
    if form == "float32":
        with pytest.raises(InputError, match=r"row \d+, column 2 is 5.*e-39.*float32"):
            bigfs.knn_graph(np.ldexp(IRIS, -130).astype(np.float32), 3)
        return
    with pytest.raises(InputError, match=r"row \d+, column 2.* is 2.01e-156"):
        bigfs.MaxVariance(2).fit(given)
    with pytest.raises(InputError, match=r"row \d+, column 2.* is 2.01e-156"):
        bigfs.knn_graph(given, 3)


def test_cosine_and_standardized_data_have_no_unit() -> None:
    expected = bigfs.knn_graph(IRIS, 5, metric="cosine")
    for exponent in (-450, -150):
        graph = bigfs.knn_graph(np.ldexp(IRIS, exponent), 5, metric="cosine")
        np.testing.assert_array_equal(graph.indices[:], expected.indices[:])
    for dtype, exponent in ((np.float64, -450), (np.float32, -120)):
        X = np.ldexp(IRIS, exponent).astype(dtype)
        scores = fitted("mcfs", X, preprocess="standardize").scores_
        same = fitted("mcfs", IRIS.astype(dtype), preprocess="standardize").scores_
        np.testing.assert_allclose(scores, same, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "exponent"),
    [*((name, -600) for name in NAMES), ("max_variance", -1060), ("mcfs", -1060)],
)
def test_a_tiny_column_beside_normal_ones_is_constant(
    name: str, exponent: int, caplog: pytest.LogCaptureFixture
) -> None:
    X = np.column_stack([np.ldexp(IRIS[:, 0], exponent), IRIS])
    expected = fitted(name, np.column_stack([np.full(len(X), X[0, 0] * 0), IRIS]), 3)
    actual = fitted(name, X, 3)
    assert "column 0 varies by less than 1e-140" in caplog.text
    np.testing.assert_array_equal(actual.ranking_, expected.ranking_)
    assert np.isfinite(actual.scores_).all()


@pytest.mark.parametrize("kind", ["standardize", "minmax"])
def test_a_small_column_beside_normal_ones_has_its_say_once_scaled(kind: str) -> None:
    X = IRIS * [1, 1e-130, 1, 1]
    scaled = read(X, kind)
    plain = read(IRIS, kind)
    np.testing.assert_allclose(scaled, plain, rtol=1e-10, atol=1e-10)


# Columns that are constant up to rounding.


def _mixed(n: int, *values: float) -> np.ndarray:
    return np.resize(np.array(values), n)


LEVEL: dict[str, Callable[[int], np.ndarray]] = {
    "0.3 and 0.1 + 0.2": lambda n: _mixed(n, 0.3, 0.1 + 0.2),
    "one row differs": lambda n: np.concatenate([[0.1 + 0.2], np.full(n - 1, 0.3)]),
    "last row differs": lambda n: np.concatenate([np.full(n - 1, 0.3), [0.1 + 0.2]]),
    "negative": lambda n: -_mixed(n, 0.3, 0.1 + 0.2),
    "large": lambda n: 1e9 * _mixed(n, 0.3, 0.1 + 0.2),
    "small": lambda n: 1e-9 * _mixed(n, 0.3, 0.1 + 0.2),
    "thirds": lambda n: _mixed(n, 1.1, 1.1 / 3 * 3, 1.1 / 7 * 7, 1.1 / 49 * 49),
    "around 1": lambda n: 1 + np.finfo(float).eps * np.array([-0.5, 0, 1])[np.arange(n) % 3],
    "sums in two orders": lambda n: _mixed(n, sum([0.1] * 10), 1.0),
    "squares of sine and cosine": lambda n: np.sin(np.arange(n)) ** 2 + np.cos(np.arange(n)) ** 2,
    "a square root squared": lambda n: _mixed(n, math.sqrt(2) ** 2, 2.0),
}


def _with(kind: str, X: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    column = LEVEL[kind](len(X))
    if dtype == np.float32:
        near = np.float32(column[0])
        column = _mixed(len(X), near, np.nextafter(near, np.float32(np.inf)))
    return np.column_stack([column, X]).astype(dtype)


@pytest.mark.parametrize("preprocess", ["none", "standardize", "rescale", "minmax"])
@pytest.mark.parametrize("kind", LEVEL)
def test_what_is_constant_up_to_rounding_comes_last(kind: str, preprocess: str) -> None:
    for dtype in (np.float64, np.float32):
        X = _with(kind, IRIS, dtype)
        for given in (X, sp.csr_array(X)):
            blocks = RowBlocks.from_any(given, transform=preprocess, sparse=True)
            moments = blocks.moments()
            assert moments.constant.tolist() == [True] + [False] * 4
            assert moments.squares[0] == 0
    # Every method goes by these moments, as the next test shows.
    assert fitted("max_variance", _with(kind, IRIS), preprocess=preprocess).ranking_[-1] == 0


@pytest.mark.parametrize("preprocess", ["none", pytest.param("minmax", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_puts_it_last(name: str, preprocess: str) -> None:
    X = _with("0.3 and 0.1 + 0.2", IRIS)
    exact = np.column_stack([np.full(len(X), 0.3), IRIS])
    actual = fitted(name, X, preprocess=preprocess)
    expected = fitted(name, exact, preprocess=preprocess)
    np.testing.assert_array_equal(actual.ranking_, expected.ranking_)
    np.testing.assert_allclose(actual.scores_, expected.scores_, rtol=1e-9)


def test_a_store_and_a_run_know_it_too(tmp_path: Path) -> None:
    X = _with("0.3 and 0.1 + 0.2", IRIS)
    bigfs.ingest(X, tmp_path / "X.zarr")
    for method in ("max_variance", "mcfs"):
        for preprocess in ("none", "minmax"):
            settings = {
                "run": str(tmp_path / f"{method}-{preprocess}"),
                "input": {"uri": str(tmp_path / "X.zarr")},
                "method": method,
                "n_features_to_select": 2,
                "preprocess": preprocess,
            }
            assert bigfs.run(settings).ranking[-1] == 0


def test_few_digits_are_still_values() -> None:
    """A large offset leaves columns that vary by more than rounding as they are."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(500, 3))
    for offset in (1e3, 1e9, 1e12):
        moments = RowBlocks.from_any(noise + offset).moments()
        assert not moments.constant.any()
        np.testing.assert_allclose(moments.variance, noise.var(axis=0), rtol=4e-16 * offset + 1e-9)
    ids = np.column_stack([np.arange(500) + 2.0**52, noise[:, 0]])
    assert not RowBlocks.from_any(ids).moments().constant.any()


def test_unit_norm_keeps_the_value_of_a_column_that_is_level() -> None:
    X = _with("0.3 and 0.1 + 0.2", IRIS)
    rows = read(X, "unit_norm")
    np.testing.assert_allclose(rows, X / np.linalg.norm(X, axis=1)[:, None], rtol=1e-12)


def test_deviations_are_those_of_exact_sums(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    n = 3001
    steps = rng.integers(0, 40, n)
    column = 0.3 + steps * np.spacing(0.3)
    exact = [Fraction(float(value)) for value in column]
    mean = sum(exact) / n
    expected = float(sum((value - mean) ** 2 for value in exact)) / n
    for X in (column[:, None], sp.csr_array(column[:, None])):
        kernel = csr_moments if sp.issparse(X) else block_moments
        one = kernel(X)
        two = merge_moments(kernel(X[:1000]), kernel(X[1000:]))
        for moments in (one, two):
            assert math.isclose(moments.variance[0], expected, rel_tol=1e-2)
            assert abs(Fraction(moments.mean[0]) - mean) <= 2 * np.spacing(0.3)
    X = np.column_stack([column, rng.normal(size=n)])
    fitted("mcfs", X, 1, n_clusters=2)
    shown = f"{math.sqrt(expected):.3g}"
    assert f"standard deviation of feature 0 is {shown}" in caplog.text


# Features of different units.

WINE = load_wine().data


def _decided(X: Any, **settings: Any) -> str:
    return str(bigfs.MaxVariance(2, verbose=0, **settings).fit(X).preprocess_)


@pytest.mark.parametrize("name", ["mcfs", "ndfs", "column_subset", "max_variance"])
def test_no_selection_depends_on_units_that_differ(name: str) -> None:
    expected = fitted(name, WINE, 6)
    assert expected.preprocess_ == "minmax"
    factors = 10.0 ** np.random.default_rng(0).integers(-3, 4, WINE.shape[1])
    other = fitted(name, WINE * factors + factors, 6)  # as metres in millimetres, and C in K
    np.testing.assert_array_equal(other.get_support(), expected.get_support())


def test_auto_scales_features_of_different_units_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    time = np.linspace(0, 1, 50)
    counts = rng.poisson(10 ** rng.uniform(-1, 5, 30), (200, 30)).astype(float)
    one_hot = np.eye(7)[rng.integers(7, size=90)]
    spectra = np.sin(9 * time + rng.random((80, 1))) * np.exp(3 * time)
    for X in (IRIS, load_digits().data, counts, one_hot, spectra, counts * 0, sp.csr_array(WINE)):
        assert _decided(X) == "none"
    counts[3, 4] = np.nan
    assert _decided(counts, missing="mean") == "none"
    sparse = sp.csr_array(rng.poisson(0.3, (90, 20)).astype(float))
    sparse.data[:2] = np.nan, 0.0
    assert _decided(sparse, missing="zero") == "normalize_log1p"
    for X in (WINE, -WINE, np.hstack([one_hot, 1e4 * rng.random((90, 1))])):
        assert _decided(X) == "minmax"
    since_1970 = np.hstack([rng.random((300, 4)), 1.7e9 + np.arange(300.0)[:, None]])
    assert _decided(since_1970) == _decided(since_1970 - [0, 0, 0, 0, 1.7e9]) == "minmax"
    rounded = np.hstack([rng.random((300, 4)), 0.3 + 1e-9 * rng.random((300, 1))])
    assert _decided(rounded) == "none"
    wide = np.hstack([rng.random((60, 99)), 1e6 * rng.random((60, 1))])
    assert _decided(wide) == "minmax"  # a single one decides all distances
    assert _decided(WINE, preprocess="none") == "none"
    assert bigfs.M3FS(2, n_init=1, C=1.0).fit(WINE).preprocess_ == "rescale"  # its own default


def test_first_rows_decide_whatever_holds_them(tmp_path: Path) -> None:
    frame = pd.DataFrame(WINE, columns=load_wine().feature_names)
    frame.to_csv(tmp_path / "X.csv", index=False)
    frame.to_parquet(tmp_path / "X.parquet", row_group_size=7)
    bigfs.ingest(WINE, tmp_path / "X.zarr")
    gap = WINE.copy()
    gap[:5, 3] = np.nan
    # By columns: all is read before the first row is there.
    np.savez(tmp_path / "X.npz", X=np.asfortranarray(WINE))
    endings = ("csv", "parquet", "zarr", "npz")
    chunks = da.from_array(WINE, chunks=(20, 13))
    for X in (frame, *(tmp_path / f"X.{ending}" for ending in endings), chunks):
        assert _decided(X) == "minmax"
    assert all("Units differ" in inspect(tmp_path / f"X.{ending}") for ending in endings)
    frame.T.to_csv(tmp_path / "side.csv")
    on_its_side = open_matrix(tmp_path / "side.csv", index="Unnamed: 0", transpose=True)
    assert different_units(on_its_side) == different_units(open_matrix(frame)) != ""
    assert _decided(gap, missing="mean") == "minmax"
    with pytest.raises(InputError, match="NaN"):
        _decided(gap)
    # Rows that are added change nothing.
    assert _decided(np.vstack([np.resize(IRIS, (1000, 4)), 1e6 * IRIS * [1, 0, 0, 0]])) == "none"
    table = pa.Table.from_pandas(frame)
    assert _decided(table) == "minmax"
    assert _decided(table.to_reader()) == "none"  # read once: no rows to look at


def test_what_was_done_about_units_is_logged_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pd.DataFrame(WINE, columns=load_wine().feature_names).to_csv(tmp_path / "X.csv", index=False)
    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.csv")}}
    settings |= {"method": "max_variance", "n_features_to_select": 3}
    result = bigfs.run(settings)
    words = "nonflavanoid_phenols has a range of 0.53, proline of 1.4e+03. preprocess 'auto' and "
    assert words in caplog.text and "Scales differ" not in caplog.text
    assert words in result.summary() and words in inspect(tmp_path / "run")
    assert words in inspect(tmp_path / "X.csv")
    assert "Units differ" not in inspect("sklearn:digits")
    assert "preprocess: minmax" in (tmp_path / "run" / "config.yaml").read_text()
    undone = bigfs.run({**settings, "preprocess": "none"})
    assert "Scales differ" in undone.summary() and "Units differ" not in undone.summary()
    plan = {name: plan_pipeline(load_config({**settings, "preprocess": name})) for name in
            ("auto", "minmax", "none")}  # fmt: skip
    assert plan["auto"].stages == plan["minmax"].stages != plan["none"].stages
