"""Curves over m, the number that they choose, and why each feature is in or out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import bigfs
from bigfs.blocks import RowBlocks
from bigfs.config.sections import Auto
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.selectors.cross import sparse_own_cross
from bigfs.selectors.curves import OnePass
from bigfs.selectors.mcfs.strategies import ForwardOnGram
from bigfs.selectors.number import choose_number, smallest_enough
from bigfs.selectors.registry import make_config, selection_model
from bigfs.solvers import nested
from bigfs.stages.curves import Curves, curve_sizes
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch
from tests.reference import curves as reference

CHOSEN = {"auto": "explained_variance", "share": 0.95, "at_most": 200}


def _data(n: int = 90, d: int = 9, seed: int = 0) -> np.ndarray:
    """Return correlated features, one of them twice, one constant, one of whole numbers."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ rng.normal(size=(d, d))
    X[:, 2] = X[:, 0]
    X[:, 4] = 7.0
    X[:, 5] = rng.integers(3, size=n)
    return X


def _measure(
    X: np.ndarray,
    number: int | str,
    *,
    targets: np.ndarray | None = None,
    supports: np.ndarray | None = None,
    rows: int | None = None,
    memory_limit: str = "4 GiB",
) -> Curves:
    """Return the curves of a random ranking."""
    scratch = Scratch()
    blocks = RowBlocks.from_any(X, scratch=scratch, rows=rows)
    order = np.random.default_rng(1).permutation(X.shape[1])
    selection = selection_model().model_validate(
        {"method": "max_variance", "n_features_to_select": number, "memory_limit": memory_limit}
    )
    strategy = OnePass.of(blocks.layout, selection)
    result = FeatureScores(np.zeros(len(order)), order, {}, supports)
    ref = None if targets is None else scratch.create("Y", targets.shape, np.float64, blocks.rows)
    if ref is not None:
        for start, stop in blocks.bounds:
            ref.write(start, targets[start:stop])
    before = blocks.passes
    curves = strategy.measure(Inputs(blocks), result, ref)
    assert blocks.passes - before == strategy.cost().passes == 1
    return curves


@pytest.mark.parametrize("rows", [None, 16])
def test_curves_are_those_of_regressions_and_sorted_distances(rows: int | None) -> None:
    X = _data()
    Y = np.column_stack([X[:, 1] + X[:, 3], np.sin(X[:, 0]), np.ones(len(X))])
    curves = _measure(X, 3, targets=Y, rows=rows)
    order = np.random.default_rng(1).permutation(9).tolist()
    assert curves.sizes.tolist() == list(range(1, 7)) + [8, 9]
    for i, m in enumerate(curves.sizes.tolist()):
        first = order[:m]
        expected = {
            "explained_variance": reference.explained_variance(X, first),
            "explained_others": reference.explained_others(X, first),
            "explained_eigenvectors": reference.explained(X, first, Y)[:3].mean() if m else 0,
            "neighbors_kept": reference.neighbors_kept(X, first, 5).mean(),
        }
        for name, value in expected.items():
            assert curves.values[name][i] == pytest.approx(value, abs=1e-9), (name, m)
    assert curves.values["neighbors_kept"][-1] == 1
    assert curves.values["explained_variance"][-1] == pytest.approx(1)
    assert curves.adds.sum() == pytest.approx(curves.values["explained_variance"][2])


def test_the_closest_selected_feature_and_their_correlation() -> None:
    X = _data()
    X[:, 6] = -2 * X[:, 3] + 1
    curves = _measure(X, 4, rows=20)
    selected = curves.order.tolist()
    assert selected == np.random.default_rng(1).permutation(9)[:4].tolist()
    for feature in range(9):
        expected = (-1, 0.0)
        if feature not in selected:
            expected = reference.closest_selected(X, selected, feature)
        assert curves.closest[feature] == expected[0], feature
        assert curves.correlation[feature] == pytest.approx(expected[1], abs=1e-9)
    assert np.isin([4], selected).all() or curves.closest[4] == -1  # constant


def test_selections_that_do_not_continue_each_other_are_measured_as_they_are() -> None:
    X = _data()
    supports = np.array([1, 0, 3, 0, 1, 5, 1, 3, 5, 7])
    curves = _measure(X, 4, supports=supports)
    for i, features in enumerate([[1], [0, 3], [0, 1, 5], [1, 3, 5, 7]]):
        value = reference.explained_variance(X, features)
        assert curves.values["explained_variance"][i] == pytest.approx(value)
    assert sorted(curves.order.tolist()) == [1, 3, 5, 7]


def test_sparse_blocks_have_the_curves_of_dense_ones() -> None:
    X = np.maximum(np.round(_data()), 0.0)
    X[:, 2] += 1e6 * (X[:, 2] > 0)  # large values with zeros between them
    X[:, 5] += 1e6  # no zeros
    dense, sparse = (
        bigfs.MaxVariance("auto", preprocess="none").fit(data).curves_
        for data in (X, scipy.sparse.csr_array(X))
    )
    for name, curve in dense.values.items():
        np.testing.assert_allclose(sparse.values[name], curve, atol=1e-12)
    np.testing.assert_allclose(sparse.correlation, dense.correlation, atol=1e-12)


def test_sparse_products_keep_the_digits_of_columns_far_from_zero() -> None:
    X = np.maximum(np.round(_data()), 0.0)
    X[:, 5] += 1e6  # no zeros
    entries, features = scipy.sparse.csr_array(X), np.array([5, 1, 0])
    products = sparse_own_cross(entries, features)
    centered = X - X.mean(axis=0)
    np.testing.assert_allclose(products.cross, centered.T @ centered[:, features], atol=1e-6)
    np.testing.assert_array_equal(entries.toarray(), X)


@pytest.mark.parametrize(
    "X",
    [
        np.arange(6.0)[:, None],
        np.zeros((5, 3)),
        np.repeat([[1.0, 2.0], [3.0, 5.0]], 4, axis=0),
        np.random.default_rng(0).normal(size=(4, 30)),
        np.ones((2, 1)),
    ],
    ids=["one feature", "all constant", "duplicate rows", "n < d", "two rows"],
)
@pytest.mark.parametrize("number", [1, "auto"])
def test_degenerate_data_have_curves(X: np.ndarray, number: int | str) -> None:
    curves = _measure(X, number)
    for name, curve in curves.values.items():
        assert np.isfinite(curve).all(), name
    assert 1 <= len(curves.order) <= X.shape[1]
    assert (np.diff(curves.values["explained_variance"]) > -1e-12).all()


@pytest.mark.parametrize(
    ("method", "number", "n_leading"),
    [("mcfs", 300, 600), ("mcfs", 700, 700), ("m3fs", 300, 300), ("highly_variable", 300, 300)],
)
def test_as_many_features_are_planned_as_selections_have(
    method: str, number: int, n_leading: int
) -> None:
    selection = selection_model().model_validate(
        {"method": method, "n_features_to_select": number, "memory_limit": "2 GiB"}
    )
    assert OnePass.of(Shape(10**4, 2_000, 4, 10, 10), selection).n_leading == n_leading


def test_wide_data_look_at_as_many_features_as_a_worker_has_room_for() -> None:
    shape = Shape(10**6, 200_000, 4, 40, 40)
    selection = selection_model().model_validate(
        {"method": "max_variance", "n_features_to_select": 500, "memory_limit": "2 GiB"}
    )
    strategy = OnePass.of(shape, selection)
    assert 1 <= strategy.n_leading < 500
    assert strategy.cost().task_bytes < 2**30
    assert f"gain of features is known for the first {strategy.n_leading} only" in strategy.notes[0]
    auto = selection.model_copy(update={"n_features_to_select": Auto(at_most=500)})
    note = OnePass.of(shape, auto).notes[0]
    assert "Not all numbers of features up to 500 were considered" in note
    few = _measure(np.random.default_rng(0).normal(size=(30, 400)), 50)
    assert len(few.adds) == 50 and np.isfinite(few.adds).all()


def test_the_rule_takes_the_smallest_number_near_enough_the_plateau() -> None:
    sizes, none = np.arange(1, 101), np.zeros(100)
    curve = np.minimum(sizes / 20, 1.0)
    assert smallest_enough(sizes, curve, none, 0.95) == 19
    assert smallest_enough(sizes, curve, none, 1.0) == 20
    assert smallest_enough(sizes, curve + 0.001 * sizes, none, 0.95) == 19  # above its last line
    assert smallest_enough(sizes, curve, none + 0.1, 0.95) == 18  # one standard error
    grid = curve_sizes(100)
    assert smallest_enough(grid, np.interp(grid, sizes, curve), np.zeros(len(grid)), 0.95) == 19
    assert smallest_enough(sizes, none, none, 0.95) == 0
    assert smallest_enough(sizes, sizes / 40, none, 0.95) == 0
    assert smallest_enough(np.array([1]), np.array([1.0]), np.zeros(1), 0.95) == 1


def test_a_curve_without_a_plateau_is_said_to_have_none() -> None:
    sizes = np.arange(1, 41)
    curves = {"neighbors_kept": sizes / 40, "explained_others": np.minimum(sizes / 10, 1)}
    about = choose_number(Auto(auto="neighbors_kept"), sizes, curves, {}, 100)
    assert about["n_features_to_select"] == 1 and not about["has_plateau"]
    assert "has no plateau" in about["rule"]
    about = choose_number(Auto(auto="explained_variance"), sizes, curves, {}, 100)
    assert about["n_features_to_select"] == 10 and "95 % of its plateau" in about["rule"]


def _planted(m: int, n: int = 400, d: int = 60) -> np.ndarray:
    rng = np.random.default_rng(m)
    sources = rng.normal(size=(n, m))
    mixtures = sources @ rng.normal(size=(m, d - m)) / np.sqrt(m)
    return np.hstack([sources, mixtures + 0.2 * rng.normal(size=mixtures.shape)])


@pytest.mark.parametrize("m", [5, 15])
def test_auto_finds_the_number_of_sources(m: int) -> None:
    fitted = bigfs.ColumnSubset("auto").fit(_planted(m))
    assert abs(fitted.n_features_to_select_ - m) <= 0.2 * m
    assert fitted.get_support().sum() == fitted.n_features_to_select_
    assert fitted.curves_.number["auto"] == "explained_variance"
    fixed = fitted.set_params(n_features_to_select=3).fit(_planted(m))
    assert fixed.n_features_to_select_ == 3 and not hasattr(fixed, "curves_")


def test_a_run_chooses_as_the_estimator_does_and_says_why(tmp_path: Path) -> None:
    X = _planted(8)
    np.save(tmp_path / "X.npy", X)
    settings = {
        "run": str(tmp_path / "run"),
        "input": {"uri": str(tmp_path / "X.npy")},
        "method": "mcfs",
        "n_features_to_select": {"auto": "explained_eigenvectors", "share": 0.9},
    }
    result = bigfs.run(settings)
    fitted = bigfs.MCFS(settings["n_features_to_select"]).fit(X)
    np.testing.assert_array_equal(result.selected, np.flatnonzero(fitted.get_support()))
    np.testing.assert_array_equal(result.ranking, fitted.ranking_)
    chosen = len(result.selected)
    assert result.curves.number["n_features_to_select"] == chosen
    assert f"{chosen} features by explained_eigenvectors" in result.summary()
    np.testing.assert_array_equal(result.support(chosen), result.selected)
    text = (tmp_path / "run/features.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert [int(row["selected"]) for row in rows] == [1] * chosen + [0] * (60 - chosen)
    assert all(row["adds"] and row["explains"].startswith("eigenvector") for row in rows[:chosen])
    kept = {row["name"] for row in rows[:chosen]}
    assert all(row["closest_selected"] in kept for row in rows[chosen:])
    assert list(result.to_frame().columns) == list(rows[0])
    # The criterion alone changes: the scores stay.
    attempt = result.stages["result"]["attempt"]
    again = bigfs.run({**settings, "n_features_to_select": "auto"})
    assert again.stages["result"]["attempt"] == attempt
    assert again.settings["n_features_to_select"] == CHOSEN


def test_a_run_without_curves_opens(tmp_path: Path) -> None:
    settings = {
        "run": str(tmp_path / "run"),
        "input": {"uri": "sklearn:iris"},
        "method": "max_variance",
        "n_features_to_select": 2,
    }
    result = bigfs.run({**settings, "curves": False})
    assert result.curves is None and set(result.stages) == {"data", "result"}
    header = (tmp_path / "run/features.csv").read_text().splitlines()[0]
    assert header == "rank,index,name,score,selected"
    result = bigfs.run(settings)
    assert result.curves.order.tolist() == result.ranking[:2].tolist()
    auto = bigfs.run({**settings, "n_features_to_select": "auto"})
    assert auto.curves.number["largest"] == 4
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    del manifest["stages"]["curves"]
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="has not chosen the number"):
        bigfs.open_result(tmp_path / "run")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ({"auto": "explained_varianc"}, "did you mean 'explained_variance'"),
        ({"auto": "explained_variance", "share": 2.0}, "share must be a number of at most 1"),
        ({"share": 0.9, "atmost": 3}, "did you mean 'at_most'"),
        ({"auto": "explained_eigenvectors"}, "MaxVariance uses none"),
    ],
)
def test_what_cannot_be_a_number_is_refused(number: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bigfs.MaxVariance(number).fit(np.eye(4))
    if "none" not in message:
        with pytest.raises(InputError, match=message):
            make_config(run="r", input={"uri": "x.npy"}, n_features_to_select=number)


def test_a_word_is_no_number() -> None:
    with pytest.raises(InputError, match=r"must be an int in \[1, 4\], since X has 4.*Got 'many'"):
        bigfs.MaxVariance("many").fit(np.eye(4))
    with pytest.raises(InputError, match="must be a whole number. Got 'many'"):
        make_config(run="r", input={"uri": "x.npy"}, n_features_to_select="many")


def test_auto_is_a_setting_that_is_written_in_full() -> None:
    config = make_config(run="r", input={"uri": "x.npy"}, n_features_to_select="auto")
    assert config.n_features_to_select == Auto()
    assert config.model_dump()["n_features_to_select"] == CHOSEN


@pytest.mark.full
@pytest.mark.cluster
def test_curves_have_the_same_bits_on_workers(tmp_path: Path, cluster: str) -> None:
    bigfs.ingest(_data(400, 30), tmp_path / "X.zarr", rows=50)
    results = []
    for name, scheduler in (("threads", None), ("workers", cluster)):
        settings = {
            "run": str(tmp_path / name),
            "input": {"uri": str(tmp_path / "X.zarr")},
            "n_features_to_select": "auto",
        }
        results.append(bigfs.run(settings, scheduler=scheduler).curves)
    for name, curve in results[0].values.items():
        assert curve.tobytes() == results[1].values[name].tobytes(), name
    assert results[0].correlation.tobytes() == results[1].correlation.tobytes()
    assert results[0].adds.tobytes() == results[1].adds.tobytes()


def test_what_a_long_path_explains_is_what_projections_are() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 40)) @ rng.normal(size=(40, 90))
    X -= X.mean(axis=0)
    order = rng.permutation(90)[:80]
    gains = nested.explained_by(X[:, order].T @ X, order)
    assert np.abs(gains[41:]).max() < 1e-8 * gains.max(), "40 columns explain the others"
    for m in (1, 17, 40):
        Q = np.linalg.qr(X[:, order[:m]])[0]
        np.testing.assert_allclose(gains[:m].sum(axis=0), ((Q.T @ X) ** 2).sum(axis=0), rtol=1e-8)
    for layout in ("C", "F"):
        products = np.array(X[:, [7, 7, 2]].T @ X, order=layout)
        gains = nested.explained_by(products, np.array([7, 7, 2]))
        assert not gains[1].any() and gains[2].any()


def test_auto_says_of_counts_that_it_is_not_for_them(caplog: pytest.LogCaptureFixture) -> None:
    X = scipy.sparse.csr_array(
        np.random.default_rng(0).poisson(0.5, size=(60, 20)).astype(np.float32)
    )
    bigfs.MaxVariance("auto").fit(X)
    assert "auto chooses the number at which the selected features explain" in caplog.text
    caplog.clear()
    bigfs.MaxVariance(5).fit(X)
    bigfs.MaxVariance("auto").fit(X.toarray() + 0.5)
    assert "auto chooses the number" not in caplog.text


@pytest.mark.parametrize("rows", [None, 40])
def test_products_that_the_method_left_give_the_curves_of_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int | None
) -> None:
    np.save(tmp_path / "X.npy", _data(400, 30).astype(np.float32))
    settings = {
        "run": f"{tmp_path}/left",
        "input": {"uri": f"{tmp_path}/X.npy"},
        "mcfs": {"n_clusters": 3},
        "n_features_to_select": 4,
        "blocks": {"rows": rows},
    }
    left = bigfs.run(settings)
    monkeypatch.setattr(ForwardOnGram, "leaves_products", False)
    passed = bigfs.run({**settings, "run": f"{tmp_path}/passed"})
    assert [result.stages["curves"]["passes"] for result in (left, passed)] == [0, 1]
    assert set(left.curves.values) == set(passed.curves.values)
    for name, values in passed.curves.values.items():
        atol = 0.1 if name == "neighbors_kept" else 1e-6  # of other rows
        np.testing.assert_allclose(left.curves.values[name], values, atol=atol, err_msg=name)
    assert left.curves.n_rows == passed.curves.n_rows
    np.testing.assert_allclose(left.curves.correlation, passed.curves.correlation, atol=1e-6)
    np.testing.assert_allclose(left.curves.adds, passed.curves.adds, atol=1e-9)
    assert left.curves.explains == passed.curves.explains
