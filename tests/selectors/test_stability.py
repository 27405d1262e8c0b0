"""Stability: samples in pairs, fits on their own rows, a consensus, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks

from bigfs import NDFS, MaxVariance, RandomSelection, StabilitySelection, ingest, open_matrix, run
from bigfs.config.sections import StabilityConfig
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError, MemoryLimitError, NumericalError
from bigfs.core.seeds import derive_seed
from bigfs.pipeline.diff import diff_runs
from bigfs.plan.planning import place_of, plan_pipeline, whole_if_cheaper
from bigfs.report.page import run_page
from bigfs.selectors.registry import make_config
from bigfs.selectors.stability import fits, rows
from bigfs.selectors.stability.fits import choose_fits
from bigfs.selectors.stability.rows import Draw
from bigfs.stages.stability import Stability
from tests.reference.agreement import kuncheva, phi
from tests.test_estimators import CHEAP


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return load_digits().data[:400]


def _samples(draw: Draw, step: int) -> dict[int, np.ndarray]:
    """Return the rows of all samples, asked for by so many rows at a time."""
    counts, everyone = draw.counts(), range(2 * draw.n_pairs)
    parts = [
        draw.rows_of(start, min(start + step, draw.n_samples), counts, everyone)
        for start in range(0, draw.n_samples, step)
    ]
    return {fit: np.concatenate([part[fit] for part in parts]) for fit in everyone}


@pytest.mark.parametrize("size, n_pairs", [(50, 3), (20, 2), (7, 11), (1, 4)])
def test_samples_of_a_pair_share_no_row(
    size: int, n_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_RUN_ROWS", 16)
    draw = Draw(101, size, n_pairs, random_state=3)
    samples = _samples(draw, 101)
    for fit, found in samples.items():
        assert len(np.unique(found)) == size == len(found)
        assert not np.isin(found, samples[fit ^ 1]).any()
    for fit, found in _samples(draw, 13).items():
        np.testing.assert_array_equal(found, samples[fit])
    together = np.concatenate(list(samples.values()))
    assert (len(np.unique(together)) == len(together)) == (draw.shared_rows == 0)
    others = _samples(Draw(101, size, n_pairs, random_state=4), 101)
    assert any((others[fit] != found).any() for fit, found in samples.items())


def test_every_row_is_drawn_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_RUN_ROWS", 8)
    counts = np.zeros(30)
    for seed in range(300):
        counts[_samples(Draw(30, 10, 1, seed), 30)[0]] += 1
    # Binomial, 300 draws at 1/3: the deviation is 8.2.
    assert np.abs(counts - 100).max() < 4 * 8.2


def test_fits_are_those_of_the_selector_on_its_samples(digits: np.ndarray) -> None:
    found = StabilitySelection(
        RandomSelection(5, preprocess="minmax"), n_pairs=2, sample_size=40, random_state=2
    ).fit(digits)
    variances = StabilitySelection(
        MaxVariance(5, preprocess="standardize"), n_pairs=2, sample_size=40, random_state=2
    ).fit(digits)
    samples = _samples(Draw(400, 40, 2, 2), 400)
    selections, scores = [], []
    for fit, numbers in samples.items():
        seed = derive_seed(2, "stability fit", fit)
        alone = RandomSelection(5, random_state=seed).fit(digits[numbers])
        np.testing.assert_array_equal(found.rankings_[fit], alone.ranking_)
        selections.append(set(alone.get_support(indices=True).tolist()))
        scores.append(alone.scores_)
        own = MaxVariance(5, preprocess="standardize").fit(digits[numbers])
        np.testing.assert_array_equal(variances.rankings_[fit], own.ranking_)
    often = [sum(j in one for one in selections) / 4 for j in range(64)]
    np.testing.assert_allclose(found.frequencies_, often)
    np.testing.assert_allclose(found.scores_, np.mean(scores, axis=0))
    assert found.agreement_ == pytest.approx(phi(selections, 64))
    pairs = [kuncheva(*selections[i : i + 2], 64) for i in (0, 2)]
    assert found.stability_ == pytest.approx(np.mean(pairs))
    order = sorted(range(64), key=lambda j: (-often[j], -found.scores_[j]))
    assert found.ranking_[:10].tolist() == order[:10]
    assert found.stable_features_.tolist() == [j for j in range(64) if often[j] >= 0.6]


def test_samples_of_sparse_rows_are_never_dense() -> None:
    n, d, rng = 40_000, 20_000, np.random.default_rng(0)  # 3 GiB dense
    columns = rng.integers(d, size=4 * n)
    content = (np.ones(4 * n, np.float32), (np.repeat(np.arange(n), 4), columns))
    X = csr_array(content, shape=(n, d))
    found = StabilitySelection(MaxVariance(5), n_pairs=2, sample_size=60).fit(X)
    for fit, numbers in _samples(Draw(n, 60, 2, 0), n).items():
        alone = MaxVariance(5).fit(X[numbers])
        np.testing.assert_array_equal(found.rankings_[fit], alone.ranking_)


def test_chance_has_no_stability_and_clear_data_have_all(digits: np.ndarray) -> None:
    chance = StabilitySelection(RandomSelection(10), n_pairs=6).fit(digits[:, 1:60])
    assert chance.stability_interval_[0] < 0 < chance.stability_interval_[1]
    assert abs(chance.stability_) < 0.25
    spread = np.random.default_rng(0).normal(size=(80, 12)) * np.repeat([1, 9], [8, 4])
    clear = StabilitySelection(MaxVariance(4), n_pairs=2).fit(spread)
    assert clear.stability_ == clear.agreement_ == 1.0
    assert clear.get_support(indices=True).tolist() == [8, 9, 10, 11]
    assert clear.stable_features_.tolist() == [8, 9, 10, 11]
    assert clear.bound_ == pytest.approx(16 / (0.2 * 12))


def _first(rankings: np.ndarray, m: int) -> list[set[int]]:
    return [set(ranking[:m].tolist()) for ranking in rankings]


@pytest.mark.parametrize("own", [False, True], ids=["one order", "a selection for each number"])
def test_selections_of_other_numbers_of_features(own: bool) -> None:
    rng, d = np.random.default_rng(0), 12
    rankings = np.array([np.argsort(np.arange(d) + 4 * rng.random(d)) for _ in range(6)])
    others = np.array([rng.permutation(d) for _ in range(6)])
    supports = np.array([np.concatenate([np.sort(o[:m]) for m in range(1, 6)]) for o in others])
    found = Stability.of_fits(3, rankings, supports if own else None, 40, 0.5)
    values, errors = found.curves(np.arange(1, d + 1))
    for m in range(1, d):
        selections = _first(others if own and m <= 5 else rankings, m)
        at = found.at(m)
        often = [sum(j in one for one in selections) / 6 for j in range(d)]
        np.testing.assert_allclose(at.frequencies, often)
        assert at.n_selected == m
        pairs = [kuncheva(*selections[i : i + 2], d) for i in (0, 2, 4)]
        assert values["stability"][m - 1] == pytest.approx(np.mean(pairs))
        assert at.stability.value == pytest.approx(np.mean(pairs))
        assert errors["stability"][m - 1] == pytest.approx(np.std(pairs) / 3**0.5)
        common = np.mean([len(selections[i] & selections[i + 1]) for i in (0, 2, 4)])
        assert values["in_common"][m - 1] == pytest.approx((common - m * m / d) / d)
    assert (values["stability"][-1], values["in_common"][-1]) == (1, 0)
    restored = Stability.from_details(found.at(4).as_details())
    assert restored.n_selected == 4 and (restored.fit_supports is None) == (not own)


def test_features_that_are_included_do_not_lift_the_agreement() -> None:
    rng, d, included = np.random.default_rng(0), 64, np.arange(3, 12)
    others = np.setdiff1d(np.arange(d), included)
    rankings = np.array([[*included, *rng.permutation(others)] for _ in range(60)])
    sure = Stability.of_fits(20, rankings, None, 40, 0.5, included)
    assert abs(sure.agreement.value) < 0.03 and abs(sure.stability.value) < 0.05
    pairs = [set(a[:20]) & set(b[:20]) for a, b in zip(rankings[::2], rankings[1::2], strict=True)]
    common = np.mean([len(pair) for pair in pairs])
    assert 20 * sure.in_common(sure.stability.value) == pytest.approx(common)
    values, _ = sure.curves(np.array([20]))
    assert 55 * (values["in_common"][0] + 11**2 / 55**2) == pytest.approx(common - 9)
    assert f"{100 * (9 + 11**2 / 55) / 20:.0f} % by chance" in sure.lines(0.6)[0]
    assert sure.lines(0.6)[2].startswith("0 features besides the included ones are")
    restored = Stability.from_details(sure.at(30).as_details())
    np.testing.assert_array_equal(restored.included, included)


def _clusters(m: int, n: int = 300, d: int = 40) -> np.ndarray:
    """Return groups that differ in the first m features."""
    rng = np.random.default_rng(m)
    X = rng.normal(size=(n, d))
    X[:, :m] += rng.normal(scale=3.0, size=(6, m))[rng.integers(6, size=n)]
    return X


@pytest.mark.full
def test_the_number_is_where_samples_stop_to_agree() -> None:
    X = _clusters(12)
    number = {"auto": "stability"}
    alone = MaxVariance(number).fit(X)
    assert abs(alone.n_features_to_select_ - 12) <= 2
    assert alone.get_support().sum() == alone.n_features_to_select_
    assert {"stability", "in_common"} <= set(alone.curves_.values)
    assert "two samples have in common beyond chance" in alone.curves_.number["rule"]
    sure = StabilitySelection(MaxVariance(number), n_pairs=5).fit(X)
    assert abs(sure.n_features_to_select_ - 12) <= 2
    assert {"stability", "in_common"} <= set(sure.curves_.values)
    fixed = StabilitySelection(MaxVariance(sure.n_features_to_select_), n_pairs=5).fit(X)
    np.testing.assert_array_equal(sure.frequencies_, fixed.frequencies_)
    np.testing.assert_array_equal(sure.get_support(), fixed.get_support())
    assert sure.stability_ == fixed.stability_
    with pytest.raises(InputError, match="stability needs at least 4 rows"):
        MaxVariance(number).fit(X[:3])


def test_fits_choose_the_number_from_their_own_rows() -> None:
    X = _clusters(12)
    sure = StabilitySelection(MaxVariance("auto"), n_pairs=2).fit(X)
    own = [
        MaxVariance("auto").fit(X[numbers]).n_features_to_select_
        for numbers in _samples(Draw(300, 150, 2, 0), 300).values()
    ]
    chosen = sure.n_features_to_select_
    assert chosen == int(np.median(own)) == sure.get_support().sum()
    assert f"(range {min(own)} to {max(own)}) of" in sure.curves_.number["rule"]
    assert set(sure.ranking_[:chosen]) == set(sure.get_support(indices=True))
    assert np.isfinite(sure.curves_.adds).all()


def test_settings_that_do_not_go_with_the_rows_are_refused(digits: np.ndarray) -> None:
    def fit(selector: Any = None, n: int = 400, **settings: Any) -> None:
        StabilitySelection(selector or MaxVariance(5), **settings).fit(digits[:n])

    with pytest.raises(InputError, match="sample_size must be at most 200, half of the 400 rows"):
        fit(sample_size=201)
    with pytest.raises(InputError, match="stability needs at least 4 rows"):
        fit(n=3)
    with pytest.raises(InputError, match="n_neighbors") as refused:
        fit(CHEAP[0].__class__(5, n_neighbors=40), sample_size=30)
    assert "one sample of 30 rows (stability.sample_size)" in refused.value.__notes__[0]
    with pytest.raises(InputError, match="StabilitySelection: threshold"):
        fit(threshold=0.5)
    with pytest.raises(InputError, match="StabilitySelection: n_pairs"):
        fit(n_pairs=0)
    with pytest.raises(InputError, match="selector must be a selector of bigfs"):
        fit("mcfs")
    with pytest.raises(InputError, match="must not be a StabilitySelection itself"):
        fit(StabilitySelection(MaxVariance(5)))
    with pytest.raises(InputError, match=r"int in \[1, 64\]"):
        fit(MaxVariance(65))


def test_degenerate_data() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([np.full(40, 3.0), rng.normal(size=(40, 3)) * [1, 2, 3]])
    everything = StabilitySelection(MaxVariance(4), n_pairs=2).fit(X)
    assert everything.stability_ == everything.agreement_ == 1.0
    assert everything.ranking_[-1] == 0, "a constant feature comes last"
    alone = StabilitySelection(MaxVariance(1), n_pairs=1, sample_size=2).fit(X[:4, 1:2])
    assert alone.stability_interval_.tolist() == [1.0, 1.0] or alone.n_features_in_ == 1
    one_pair = StabilitySelection(MaxVariance(1), n_pairs=1).fit(X)
    assert one_pair.stability_interval_.tolist() == [-1.0, 1.0]
    twice = StabilitySelection(MaxVariance(2), n_pairs=2).fit(np.repeat(X, 2, axis=0))
    assert np.isfinite(twice.scores_).all()


def test_labels_to_start_from_are_those_of_the_sample(digits: np.ndarray) -> None:
    labels = np.arange(400) % 3
    start = NDFS(5, n_clusters=3, n_neighbors=3, init=labels, max_iter=2)
    found = StabilitySelection(start, n_pairs=1, sample_size=30).fit(digits)
    for fit, numbers in _samples(Draw(400, 30, 1, 0), 400).items():
        seed = derive_seed(0, "stability fit", fit)
        own = clone(start).set_params(init=labels[numbers], random_state=seed)
        np.testing.assert_array_equal(found.rankings_[fit], own.fit(digits[numbers]).ranking_)


def test_a_fit_that_fails_says_which(digits: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise NumericalError("The result is not finite.")

    monkeypatch.setattr(fits, "_fitted", fail)
    with pytest.raises(NumericalError) as failed:
        StabilitySelection(MaxVariance(5), n_pairs=2).fit(digits)
    assert "of 4, on 200 of 400 rows" in failed.value.__notes__[0]


def test_a_sample_that_does_not_fit_is_refused_with_one_that_does(tmp_path: Path) -> None:
    X = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (4_000_000, 300))
    del X  # sparse: nothing is on the disk but its header
    settings: dict[str, Any] = {
        "run": str(tmp_path / "run"),
        "input": {"uri": str(tmp_path / "X.npy")},
        "method": "max_variance",
        "n_features_to_select": 10,
        "memory_limit": "1 GiB",
    }
    plan = plan_pipeline(make_config(**settings, stability={"n_pairs": 2}))
    assert "for a fit on 2,000,000 rows" in plan.refusals[0]
    assert "stability.sample_size" in plan.cures[0]
    most = int(plan.cures[0].split()[-1].replace(",", ""))
    assert plan_pipeline(make_config(**settings, stability={"sample_size": most})).fits
    assert not plan_pipeline(make_config(**settings, stability={"sample_size": 2 * most})).fits
    assert most > 100_000
    quick = plan_pipeline(make_config(**settings, quick=True))
    assert quick.fits and [stage.name for stage in quick.stages] == ["data", "result", "curves"]
    with pytest.raises(MemoryLimitError, match=r"stability.sample_size to [\d,]+ or less"):
        choose_fits(Shape(4_000_000, 300, 4, 20_000, 20_000), make_config(**settings), 2, None)


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": str(folder / "X.zarr")},
        "method": "max_variance",
        "n_features_to_select": 5,
        "stability": {"n_pairs": 3, "sample_size": 50},
        **changes,
    }


@pytest.fixture
def stored(digits: np.ndarray, tmp_path: Path) -> Path:
    ingest(digits, tmp_path / "X.zarr", rows=100)
    return tmp_path


def test_a_run_that_failed_goes_on_with_the_fits_that_are_there(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(_config(stored, run=str(stored / "whole")))
    once, done = fits._fitted, []

    def until_the_fourth(X: np.ndarray, selection: Any, *others: Any) -> Any:
        done.append(selection.random_state)
        if len(done) == 4:
            raise NumericalError("stop")
        return once(X, selection, *others)

    import dask

    monkeypatch.setattr(fits, "_fitted", until_the_fourth)
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(NumericalError):
            run(_config(stored))
        damaged = next((stored / "run" / "checkpoints").glob("stability-*/fit-*.npz"))
        damaged.write_bytes(b"PK")
        found = run(_config(stored))
    assert len(done) == 4 + 6 - 2, "three fits were there, and one of them is damaged"
    assert found.features_csv() == whole.features_csv()
    assert not (stored / "run" / "checkpoints").exists()


def test_stability_stands_beside_the_selection(stored: Path) -> None:
    plain = run(_config(stored, stability=None))
    assert plain.stability is None and "frequency" not in plain.to_frame()
    found = run(_config(stored))
    attempts = {name: record["attempt"] for name, record in found.stages.items()}
    assert attempts["result"] != attempts["stability"], "the result was taken over"
    np.testing.assert_array_equal(found.ranking, plain.ranking)
    assert found.stability is not None
    table = pd.read_csv(stored / "run" / "features.csv")
    np.testing.assert_allclose(
        table["frequency"], found.stability.frequencies[table["index"].to_numpy()]
    )
    consensus = run(_config(stored, run=str(stored / "quick"), quick=True)).ranking
    np.testing.assert_array_equal(found.consensus_ranking, consensus)
    assert table.sort_values("consensus_rank")["index"].tolist() == consensus.tolist()
    said = found.summary()
    assert "6 fits on 50 rows each: two samples without a common row share" in said
    assert "is not informative" in said or "expected to be rarely" in said
    assert found.stages["stability"]["passes"] == 1
    values, errors = found.stability.curves(np.array([1, 5]))
    assert values["stability"][1] == pytest.approx(found.stability.stability.value)
    assert errors["stability"][1] == pytest.approx(found.stability.pair_agreements.std() / 3**0.5)


def test_a_run_says_that_it_was_a_quick_one(stored: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bigfs")
    for quick, reason in ((True, "not yet run"), (False, "it was a quick run"),
                          (True, "it was a full run")):  # fmt: skip
        caplog.clear()
        run(_config(stored, quick=quick, curves=False))
        assert f"stage result: {reason}" in caplog.messages


def test_more_rows_than_samples_are_drawn_from_are_refused() -> None:
    config = make_config(**_config(Path("folder")))
    with pytest.raises(InputError, match="fewer than 1,000,000,000 rows. Got 1,000,000,000"):
        fits.check_stability(config, StabilityConfig(), 10**9, 20)


def test_a_quick_run_is_the_consensus(stored: Path) -> None:
    import zarr

    found = run(_config(stored, quick=True))
    X = zarr.open_group(stored / "X.zarr", mode="r")["X"]
    alone = StabilitySelection(MaxVariance(5), n_pairs=3, sample_size=50).fit(X)
    np.testing.assert_array_equal(found.ranking, alone.ranking_)
    np.testing.assert_array_equal(found.selected, alone.get_support(indices=True))
    assert list(found.stages) == ["result", "curves"]
    assert found.to_frame()["closest_selected"].iloc[5:].ne("").any(), "why the others are not in"
    bare = run(_config(stored, run=str(stored / "bare"), quick=True, curves=False))
    assert list(bare.stages) == ["result"] and bare.curves is None
    np.testing.assert_array_equal(bare.ranking, found.ranking)
    assert "no graph of all rows was built" in found.summary()
    default = make_config(**_config(stored, stability=None, quick=True))
    assert default.stability is not None and default.stability.n_pairs == 25


def test_the_most_frequent_are_kept_whatever_fits_select(stored: Path) -> None:
    settings: dict[str, Any] = {"method": "mcfs", "quick": True}
    settings["mcfs"] = {"n_clusters": 3, "regression": "lasso"}
    found = run(_config(stored, n_features_to_select=2, curves=False, **settings))
    np.testing.assert_array_equal(found.selected, np.sort(found.ranking[:2]))
    assert found.stability is not None and found.stability.fit_supports is not None
    assert found.stability.frequencies.sum() == pytest.approx(2)


@pytest.mark.full
@pytest.mark.parametrize("criterion", ["explained_variance", "neighbors_kept", "stability"])
def test_runs_that_choose_the_number(stored: Path, criterion: str) -> None:
    number = {"auto": criterion, "at_most": 30}
    quick = run(_config(stored, n_features_to_select=number, quick=True))
    assert list(quick.stages) == ["result", "curves"]
    assert quick.stages["result"]["passes"] == quick.stages["curves"]["passes"] == 1
    chosen = len(quick.selected)
    assert quick.curves is not None and quick.curves.number is not None
    assert quick.curves.number["n_features_to_select"] == chosen
    assert quick.stability is not None and quick.stability.n_selected == chosen
    assert set(quick.selected) == set(quick.ranking[:chosen])
    assert "Stability in percent" in run_page(quick)
    assert quick.stability.frequencies.sum() == pytest.approx(chosen)
    alone = StabilitySelection(MaxVariance(number), n_pairs=3, sample_size=50)
    alone.fit(stored / "X.zarr")
    np.testing.assert_array_equal(quick.ranking, alone.ranking_)
    np.testing.assert_array_equal(quick.selected, alone.get_support(indices=True))

    beside = run(_config(stored, run=str(stored / "beside"), n_features_to_select=number))
    assert beside.stability is not None and beside.curves is not None
    assert beside.stability.n_selected == len(beside.selected)
    given = run(
        _config(stored, run=str(stored / "given"), n_features_to_select=len(beside.selected))
    )
    assert given.stability is not None
    np.testing.assert_array_equal(beside.stability.frequencies, given.stability.frequencies)
    # The criterion alone changes: fits and scores stay.
    before = {name: record["attempt"] for name, record in beside.stages.items()}
    number["auto"] = "neighbors_kept" if criterion == "stability" else "stability"
    again = run(_config(stored, run=str(stored / "beside"), n_features_to_select=number))
    now = {name: record["attempt"] for name, record in again.stages.items()}
    assert {name for name in now if now[name] != before[name]} == {"curves"}


def test_a_difference_is_held_against_the_stability(stored: Path, digits: np.ndarray) -> None:
    stability = {"n_pairs": 8, "sample_size": 200}
    first = run(_config(stored, stability=stability))
    again = run(_config(stored, run=str(stored / "again"), stability=None))
    found = diff_runs(first.path, again.path)
    assert "no more change than other rows would cause" in found.text()
    changed = digits.copy()
    changed[:, first.selected] = 0.0
    ingest(changed, stored / "Y.zarr")
    other = _config(stored, run=str(stored / "other"), input={"uri": str(stored / "Y.zarr")})
    text = diff_runs(first.path, run({**other, "stability": stability}).path).text()
    assert "more change than other rows would cause" in text and "no more change" not in text
    assert text.count("stability of") == 2


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([StabilitySelection(MaxVariance(1), n_pairs=2)])
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.full
@pytest.mark.parametrize("selector", CHEAP, ids=lambda one: type(one).__name__)
def test_every_method(selector: Any, digits: np.ndarray, tmp_path: Path) -> None:
    selector = clone(selector).set_params(n_features_to_select=10)
    found = StabilitySelection(selector, n_pairs=2, sample_size=60).fit(digits)
    assert found.get_support().sum() == 10
    assert np.isfinite(found.scores_).all()
    ingest(digits, tmp_path / "X.zarr", rows=70)
    stored = clone(found).fit(tmp_path / "X.zarr")
    np.testing.assert_array_equal(found.ranking_, stored.ranking_)
    np.testing.assert_array_equal(found.scores_, stored.scores_)


@pytest.mark.full
def test_the_same_bits_on_every_scheduler(scheduler: str, stored: Path) -> None:
    import dask

    config = _config(stored, method="mcfs", mcfs={"n_clusters": 3})
    found = run(config)
    with dask.config.set(scheduler="synchronous"):
        alone = run({**config, "run": str(stored / "alone")})
    assert found.features_csv() == alone.features_csv()


def test_beside_an_automatic_number_fits_have_as_many_as_it_may_choose(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(40, 30))
    settings = {"method": "column_subset", "stability": {"n_pairs": 4}, "report": None}
    criterion = {"auto": "explained_variance", "share": 1.0}
    auto = {**settings, "run": str(tmp_path / "auto"), "n_features_to_select": criterion}
    chosen = run(auto, data=X)
    m = len(chosen.selected)
    assert m > 9  # half of the rows of a fit
    assert chosen.stability.n_selected == m
    given = run({**settings, "run": str(tmp_path / "own"), "n_features_to_select": m}, data=X)
    np.testing.assert_array_equal(chosen.stability.frequencies, given.stability.frequencies)
    assert chosen.stability.stability == given.stability.stability


def test_what_is_said_of_the_data_is_said_once_and_by_names(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 5)) * [1, 1e4, 1, 1, 1]
    frame = pd.DataFrame(X, columns=[*"abcde"])
    settings = {"method": "max_variance", "n_features_to_select": 2, "preprocess": "none",
                "stability": {"n_pairs": 2}, "report": None}  # fmt: skip
    for quick in (False, True):
        changes = {"run": str(tmp_path / f"{quick}"), "quick": quick}
        notes = run({**settings, **changes}, data=frame).notes
        assert not any("stability fits reported notes" in note for note in notes), notes
        assert sum("that of b " in note for note in notes) == 1, notes


@pytest.mark.parametrize("kind", ["csv", "filter"])
def test_quick_is_the_whole_run_where_rows_are_counted_later(
    kind: str, digits: np.ndarray, tmp_path: Path
) -> None:
    np.savetxt(tmp_path / "X.csv", digits, fmt="%g", delimiter=",")
    np.save(tmp_path / "X.npy", digits)
    np.save(tmp_path / "q.npy", np.arange(len(digits)))
    given: dict[str, Any] = {"uri": str(tmp_path / "X.csv")}
    if kind == "filter":
        rows = {"column": str(tmp_path / "q.npy"), "at_least": 1}
        given = {"uri": str(tmp_path / "X.npy"), "rows": rows}
    settings = _config(tmp_path, stability=None, input=given, quick=True)
    [note] = [n for n in plan_pipeline(make_config(**settings)).notes if "it is run instead" in n]
    assert ("only about" in note) == (kind == "csv")
    quick = run(settings)
    assert quick.stability is None and not quick.is_quick
    assert quick.n_samples == len(digits) - (kind == "filter")


def test_quick_is_the_whole_run_where_that_is_cheaper_and_says_so(
    stored: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _config(stored, stability=None)
    whole = run({**settings, "run": str(stored / "whole")})
    quick = run({**settings, "run": str(stored / "quick")}, overrides=["quick=true"])
    np.testing.assert_array_equal(quick.ranking, whole.ranking)
    assert quick.stability is None and not quick.is_quick
    assert "the full run reads only" in caplog.text and "it is run instead" in caplog.text
    plan = plan_pipeline(make_config(**settings, quick=True))
    assert any("it is run instead" in note for note in plan.notes)
    assert plan.by_stage["result"].cost.passes == 1
    # Beyond the rows that fits read together it is as it was.
    source = open_matrix(settings["input"]["uri"])
    source.n_samples = 200_000
    config = make_config(**settings, quick=True)
    assert whole_if_cheaper(config, source, place_of(config)) == (config, "")
