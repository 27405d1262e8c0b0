"""HighlyVariable: the scores of the papers, batch by batch, on dense and sparse counts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp

import bigfs
from bigfs import HighlyVariable, ingest
from bigfs.core.errors import InputError
from bigfs.selectors.highly_variable import strategies
from tests._counts import counts
from tests.reference import highly_variable as reference

FLAVORS = ("seurat_v3", "seurat_v3_paper")
NEEDS_TREND = "scikit-misc, of the extra bigfs[anndata], is not installed"


@pytest.fixture
def parabola(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trend of one parabola instead of the local regression, which needs a package."""

    def trend(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        varies = variance > 0
        expected = np.zeros(len(mean))
        x = np.log10(mean[varies])
        expected[varies] = np.polyval(np.polyfit(x, np.log10(variance[varies]), 2), x)
        return np.sqrt(10**expected)

    spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: spec("numpy" if name == "skmisc" else name)
    )
    monkeypatch.setattr(strategies, "trend_deviations", trend)
    return trend


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("batched", [False, True])
def test_scores_and_selection_are_those_of_the_paper(
    flavor: str, batched: bool, parabola: Any
) -> None:
    X, batches = counts()
    key = batches if batched else None
    expected = reference.standardized_variances(
        X.toarray(), batches if batched else np.zeros(len(batches)), parabola
    )
    for given in (X, X.toarray()):
        for m in (10, 50):
            fitted = HighlyVariable(m, flavor=flavor, batch_key=key).fit(given)
            np.testing.assert_allclose(fitted.scores_, expected.mean(axis=0), rtol=1e-9)
            chosen = reference.selected(expected, m, flavor)
            np.testing.assert_array_equal(np.sort(fitted.ranking_[:m]), np.sort(chosen))
            assert (fitted.n_batches_[chosen] > 0).all()
            np.testing.assert_allclose(fitted.means_, X.toarray().mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_without_batches_one_fit_ranks_for_all_numbers(flavor: str, parabola: Any) -> None:
    X = counts()[0]
    X = sp.hstack([X, X[:, ::-1], 0 * X[:, :3]]).tocsr()  # equal scores, and constant features
    rankings = {m: HighlyVariable(m, flavor=flavor).fit(X).ranking_ for m in (1, 7, 40, 90)}
    for m, ranking in rankings.items():
        np.testing.assert_array_equal(ranking[:m], rankings[90][:m])


def test_flavors_differ_in_the_order_of_batches(parabola: Any) -> None:
    X, batches = counts()
    fitted, other = (HighlyVariable(30, flavor=f, batch_key=batches).fit(X) for f in FLAVORS)
    np.testing.assert_array_equal(fitted.scores_, other.scores_)
    assert set(fitted.ranking_[:30]) != set(other.ranking_[:30])
    assert (np.diff(other.n_batches_[other.ranking_]) <= 0).all()


def test_ties_go_to_the_lower_index() -> None:
    scores = np.array([[3.0, 3.0, 1.0, 2.0, 0.0], [3.0, 3.0, 2.0, 1.0, 0.0]])
    constant = np.array([False] * 4 + [True])
    ranking, n_high = strategies.rank_over_batches(scores, 3, constant, paper=False)
    assert ranking.tolist() == [0, 1, 2, 3, 4]
    assert n_high.tolist() == [2, 2, 1, 1, 0]


def test_the_trend_is_that_of_scikit_misc() -> None:
    pytest.importorskip("skmisc", reason=NEEDS_TREND)
    from skmisc.loess import loess

    X, batches = counts(600, 800)
    dense = X.toarray().astype(np.float64)
    mean, variance = dense.mean(axis=0), dense.var(axis=0, ddof=1)
    kept = variance > 0
    model = loess(np.log10(mean[kept]), np.log10(variance[kept]), span=0.3, degree=2)
    model.fit()
    actual = strategies.trend_deviations(mean, variance)
    np.testing.assert_array_equal(actual[kept], np.sqrt(10**model.outputs.fitted_values))
    selector = HighlyVariable(50, batch_key=batches).fit(X)
    expected = reference.standardized_variances(dense, batches, strategies.trend_deviations)
    np.testing.assert_allclose(selector.scores_, expected.mean(axis=0), rtol=1e-9)
    chosen = reference.selected(expected, 50, "seurat_v3")
    np.testing.assert_array_equal(np.sort(selector.ranking_[:50]), np.sort(chosen))


@pytest.mark.full
@pytest.mark.parametrize("flavor", FLAVORS)
def test_the_features_are_those_of_scanpy(flavor: str) -> None:
    """Many features are in a few cells of a batch only, where scores tie."""
    scanpy = pytest.importorskip("scanpy", reason="scanpy is not installed")
    anndata = pytest.importorskip("anndata")
    for seed in range(3):
        X, batches = counts(600, 3000, seed)
        X = sp.csr_matrix(X[:, np.flatnonzero(np.bincount(X.indices, minlength=3000) > 2)])
        adata = anndata.AnnData(X, obs={"batch": batches})
        for m, key in ((500, "batch"), (2000, "batch"), (500, None), (2000, None)):
            scanpy.pp.highly_variable_genes(adata, n_top_genes=m, flavor=flavor, batch_key=key)
            fitted = HighlyVariable(m, flavor=flavor, batch_key=key).fit(adata)
            np.testing.assert_allclose(fitted.scores_, adata.var["variances_norm"], rtol=1e-5)
            np.testing.assert_array_equal(fitted.get_support(), adata.var["highly_variable"])


@pytest.mark.parametrize(
    "X",
    [
        counts()[0][:, 4:7],
        sp.csr_array(
            np.random.default_rng(0).permuted(np.eye(40, 30) * 2, axis=1) + np.eye(40, 30)
        ),
    ],
    ids=["three features", "two means"],
)
def test_what_has_no_trend_is_refused(X: Any) -> None:
    pytest.importorskip("skmisc", reason=NEEDS_TREND)
    with pytest.raises(InputError, match="no variance trend can be fitted.* flavor 'deviance'"):
        HighlyVariable(1).fit(X)


@pytest.mark.parametrize(
    ("scale", "in_order", "passes"),
    [(1, False, 1), (1, True, 1), (2**-13, False, 2), (2**40, False, 2)],
)
def test_counts_are_read_once_and_values_of_other_sizes_twice(
    scale: float, in_order: bool, passes: int, parabola: Any, tmp_path: Path
) -> None:
    X = counts()[0].toarray().astype(np.float64)
    X[7, 3] = X[8, 4] = X[9, 4] = 1000  # above the clip
    X[:, 7] = 40
    X = scale * (X[X[:, 4].argsort(kind="stable")] if in_order else X)
    bigfs.ingest(sp.csr_array(X), tmp_path / "X.zarr", rows=50)
    settings = {
        "run": str(tmp_path / "run"),
        "input": {"uri": str(tmp_path / "X.zarr")},
        "method": "highly_variable",
        "n_features_to_select": 20,
    }
    result = bigfs.run(settings)
    expected = reference.standardized_variances(X, np.zeros(len(X)), parabola)
    np.testing.assert_allclose(result.scores, expected[0], rtol=1e-9)
    assert result.stages["result"]["passes"] == passes


@pytest.mark.full
def test_real_cells_have_scores_though_many_genes_share_a_mean(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("skmisc", reason=NEEDS_TREND)
    fitted = HighlyVariable(500).fit(str(data_dir / "worm_neuron.npz"))
    assert "less accurate there (reciprocal condition number" in caplog.text
    assert fitted.scores_.argmax() == fitted.ranking_[0]


def test_deviance_is_that_of_the_paper() -> None:
    X, batches = counts(120, 60)
    dense = X.toarray()
    for given in (X, dense, X.tocsc()):
        fitted = HighlyVariable(5, flavor="deviance").fit(given)
        np.testing.assert_allclose(fitted.scores_, reference.deviance(dense), rtol=1e-9)
    fitted = HighlyVariable(5, flavor="deviance", batch_key=batches).fit(X)
    parts = sum(reference.deviance(dense[batches == batch]) for batch in "abc")
    varied = dense.max(axis=0) > 0
    np.testing.assert_allclose(fitted.scores_[varied], np.nan_to_num(parts)[varied], rtol=1e-9)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_absent_feature_in_a_batch_counts_nothing() -> None:
    X = sp.csr_array(np.array([[1.0, 0, 3], [2, 0, 1], [0, 4, 1], [1, 5, 0]]))
    fitted = HighlyVariable(2, flavor="deviance", batch_key=[0, 0, 1, 1]).fit(X)
    assert np.isfinite(fitted.scores_).all() and (fitted.scores_ >= 0).all()


@pytest.mark.parametrize("flavor", ["seurat_v3", "deviance"])
@pytest.mark.parametrize(
    "X",
    [
        np.zeros((4, 3)),
        np.ones((4, 3)),
        np.repeat([[1.0, 0, 3, 7, 2]], 6, axis=0),
        np.array([[0.0, 1], [2, 1]]),
        np.arange(6.0)[:, None],
        np.eye(4, 30),
    ],
    ids=["zeros", "ones", "equal rows", "two rows", "one feature", "wide"],
)
def test_degenerate_counts(
    X: np.ndarray, flavor: str, parabola: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def level(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return np.sqrt(np.where(variance > 0, variance.mean(), 1.0))

    monkeypatch.setattr(strategies, "trend_deviations", level)
    m = X.shape[1]
    for given in (X, sp.csr_array(X)):
        fitted = HighlyVariable(m, flavor=flavor).fit(given)
        constant = X.min(axis=0) == X.max(axis=0)
        assert sorted(fitted.ranking_) == list(range(m))
        assert constant[fitted.ranking_].tolist() == sorted(constant)
        assert np.isfinite(fitted.scores_).all() and (fitted.scores_ >= 0).all()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "measured": ({"batch_key": np.linspace(0, 1, 300)}, "batch_key: 300 of 300 labels differ"),
    "few batches": ({"batch_key": [0, 1]}, "a batch for each of the 300 rows"),
    "no such file": ({"batch_key": "plate"}, "batch_key must be a file of labels. Got 'plate'"),
    "one row": ({"batch_key": [0] * 299 + [1]}, r"batch 1 \(in sorted order\), 1 rows.*deviance"),
    "mixed": ({"batch_key": [0, "a", None] * 100}, "batch_key: the label of row 2 is missing"),
    "flavor": ({"flavor": "seurat"}, "flavor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused(case: str, parabola: Any) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        HighlyVariable(5, **settings).fit(counts()[0])


def test_negative_values_are_named() -> None:
    X = counts()[0].toarray()
    X[40, 7] = -1
    for given in (X, sp.csr_array(X)):
        with pytest.raises(InputError, match="Negative values in data: row 40, column 7 is -1"):
            HighlyVariable(5, flavor="deviance").fit(given)


def test_fractions_are_said(caplog: pytest.LogCaptureFixture) -> None:
    HighlyVariable(5, flavor="deviance").fit(counts()[0] * 0.5)
    assert "values are not integers" in caplog.text


def test_the_package_of_the_trend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs scikit-misc.*bigfs\[anndata\]"):
        HighlyVariable(5).fit(counts()[0])


def test_a_wrong_column_of_obs_is_answered_with_those_that_are_there() -> None:
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    X, batches = counts()
    adata = anndata.AnnData(sp.csr_matrix(X), obs={"batch": batches, "donor": batches})
    says = "a column of obs or a file of labels. Got 'bach'; obs has batch, donor"
    with pytest.raises(InputError, match=f"batch_key must be {says}"):
        HighlyVariable(5, flavor="deviance", batch_key="bach").fit(adata)
    with pytest.raises(InputError, match=says):
        bigfs.select(adata, 5, method="highly_variable", flavor="deviance", batch_key="bach")
    with pytest.raises(InputError, match=f"init must be 'spectral', {says}"):
        bigfs.NDFS(5, n_clusters=2, init="bach").fit(adata)


def test_a_pipeline_takes_batches_from_a_file(tmp_path: Path, parabola: Any) -> None:
    X, batches = counts()
    sp.save_npz(tmp_path / "X.npz", sp.csr_matrix(X))
    np.save(tmp_path / "batches.npy", batches)
    settings = {
        "run": str(tmp_path / "run"),
        "input": {"uri": str(tmp_path / "X.npz")},
        "method": "highly_variable",
        "n_features_to_select": 20,
        "highly_variable": {"batch_key": str(tmp_path / "batches.npy")},
    }
    result = bigfs.run(settings)
    expected = HighlyVariable(20, batch_key=batches).fit(X)
    np.testing.assert_array_equal(result.ranking, expected.ranking_)
    np.testing.assert_array_equal(result.scores, expected.scores_)
    assert result.stages["result"]["passes"] == 1  # values above the clip are kept
    # Rows that are left out may be all of a batch.
    settings["input"]["rows"] = {"column": str(tmp_path / "batches.npy"), "drop": "a"}
    some = bigfs.run({**settings, "run": str(tmp_path / "some")})
    kept = np.asarray(batches) != "a"
    expected = HighlyVariable(20, batch_key=batches[kept]).fit(X[kept])
    np.testing.assert_array_equal(some.ranking, expected.ranking_)


@pytest.mark.full
def test_every_scheduler_gives_the_same_bits(tmp_path: Path, scheduler: str) -> None:
    X, batches = counts(400, 50)
    ingest(X, tmp_path / "X.zarr", rows=30)
    for settings in ({"flavor": "deviance"}, {"flavor": "deviance", "batch_key": batches}):
        fitted = HighlyVariable(5, **settings).fit(tmp_path / "X.zarr")
        with dask.config.set(scheduler="synchronous"):
            expected = HighlyVariable(5, **settings).fit(tmp_path / "X.zarr")
        np.testing.assert_array_equal(fitted.scores_, expected.scores_)
        np.testing.assert_array_equal(fitted.variances_, expected.variances_)


@pytest.mark.parametrize("batched", [False, True])
def test_blocks_and_forms_of_counts_change_no_bit(
    batched: bool, parabola: Any, tmp_path: Path
) -> None:
    """The trend is a local regression, which jumps where a mean moves in its last bit."""
    X, batches = counts()
    key, scores = batches if batched else None, []
    for rows in (7, 50, X.shape[0]):
        for form in (X, X.toarray()):
            store = tmp_path / f"{rows}-{form is X}.zarr"
            ingest(form, store, rows=rows)
            scores.append(HighlyVariable(10, batch_key=key).fit(store).scores_)
    for other in scores[1:]:
        np.testing.assert_array_equal(other, scores[0])


def test_scaled_counts_are_refused_in_both_forms() -> None:
    X, _ = counts()
    for form, words in ((X, "preprocess 'standardize' turns zero"), (X.toarray(), "Negative")):
        with pytest.raises(InputError, match=words):
            HighlyVariable(10, preprocess="standardize").fit(form)
