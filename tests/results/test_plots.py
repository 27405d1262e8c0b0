"""Pictures of results and of fitted selectors: the same ones, and they show what is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

import bigfs
from bigfs.core.errors import InputError
from bigfs.results.plots import positions_of

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return load_digits().data[:300]


@pytest.fixture(scope="module")
def result(digits: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("plots")
    np.save(folder / "X.npy", digits)
    return bigfs.run({
        "run": str(folder / "run"), "input": {"uri": str(folder / "X.npy")}, "method": "ndfs",
        "n_features_to_select": 12, "ndfs": {"n_clusters": 4, "max_iter": 5}, "report": None,
    })  # fmt: skip


def test_scores_are_those_of_the_ranking(result: Any) -> None:
    ax = result.plot.scores(n_features=20)
    widths = [bar.get_width() for bar in ax.patches]
    np.testing.assert_array_equal(widths, result.scores[result.ranking[:20]])
    colors = [bar.get_facecolor() for bar in ax.patches]
    assert len(set(colors[:12])) == len(set(colors[12:])) == 1 and colors[0] != colors[12]


def test_pictures_are_drawn_on_given_axes(result: Any) -> None:
    import matplotlib.pyplot as plt

    for name in ("scores", "curves", "map", "heatmap", "correlation"):
        ax = plt.figure().add_subplot()
        assert getattr(result.plot, name)(ax) is ax
        assert ax.has_data()


def test_the_mask_has_the_selected_pixels(result: Any) -> None:
    drawn = result.plot.mask((8, 8)).images[0].get_array()
    np.testing.assert_array_equal(np.flatnonzero(~drawn.mask.ravel()), result.selected)
    assert drawn.ravel()[result.ranking[0]] == drawn.max()
    with pytest.raises(InputError, match="8 x 9 is 72 pixels"):
        result.plot.mask((8, 9))


def test_the_heat_map_has_means_by_cluster(result: Any, digits: np.ndarray) -> None:
    labels = result.row_array("labels").load()
    best = result.ranking[0]
    x = (digits[:, best] - digits[:, best].mean()) / digits[:, best].std()
    drawn = result.plot.heatmap().images[0].get_array()
    expected = [x[labels == group].mean() for group in np.unique(labels)]
    np.testing.assert_allclose(drawn[0], expected)


def test_a_spectrum_takes_its_axis_from_names_that_are_numbers(digits: np.ndarray) -> None:
    bands = [f"{400 + 2.5 * j:g}" for j in range(64)]
    selector = bigfs.MaxVariance(5).fit(pd.DataFrame(digits, columns=bands))
    ax = bigfs.plot(selector, digits).spectrum(unit="nm")
    assert ax.get_xlabel() == "position, nm"
    places = ax.collections[0].get_offsets()[:, 0]
    np.testing.assert_array_equal(sorted(places), 400 + 2.5 * selector.selected)
    with pytest.raises(InputError, match="position of each feature"):
        bigfs.plot(bigfs.MaxVariance(5).fit(digits)).spectrum()
    falling = bigfs.MaxVariance(5).fit(pd.DataFrame(digits, columns=bands[::-1]))
    line = bigfs.plot(falling).spectrum().lines[0]
    np.testing.assert_array_equal(line.get_xdata(), sorted(map(float, bands)))
    np.testing.assert_array_equal(line.get_ydata(), falling.scores_[::-1])
    assert positions_of(bands[::-1]) is not None and positions_of(["3", "1", "2"]) is None
    with pytest.raises(InputError, match="finite number for each"):
        bigfs.plot(falling).spectrum([*range(63), np.nan])
    with pytest.raises(InputError, match="shape of an image is .rows, columns., both at least 1"):
        bigfs.plot(falling).mask((64,))


def test_a_selector_has_the_pictures_of_a_result(digits: np.ndarray) -> None:
    selector = bigfs.NDFS(12, n_clusters=4, max_iter=5).fit(digits)
    plots = bigfs.plot(selector, digits)
    for draw in (plots.scores, plots.map, plots.heatmap, plots.correlation):
        assert draw().has_data()
    assert plots.map(labels=np.arange(300) % 3).get_legend() is not None
    alone = bigfs.plot(selector)
    assert alone.scores().has_data() and alone.mask((8, 8)).has_data()
    with pytest.raises(InputError, match="needs the data"):
        alone.map()
    with pytest.raises(InputError, match="has no curves"):
        alone.curves()
    automatic = bigfs.MaxVariance("auto").fit(digits)
    assert bigfs.plot(automatic).curves().has_data()


def test_names_that_matplotlib_would_typeset_are_text(digits: np.ndarray) -> None:
    names = [r"$\alpha$", "$x", "a_b^c", *map(str, range(61))]
    plots = bigfs.plot(bigfs.MaxVariance(64).fit(pd.DataFrame(digits, columns=names)))
    ax = plots.scores(n_features=64)
    ax.figure.canvas.draw()
    assert {label.get_text() for label in ax.get_yticklabels()} >= {r"$\alpha$", "$x", "a_b^c"}
    plots = bigfs.plot(bigfs.MaxVariance(5).fit(digits), digits)
    ax = plots.map(labels=np.array(["$a_{$", "_b"])[np.arange(300) % 2])
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [r"\$a_{\$", " _b"]


@pytest.mark.parametrize("settings", [
    {"n_features_to_select": "auto", "regression": "lasso"},
    {"n_features_to_select": 10, "redundancy": 0.5},
    {"n_features_to_select": "auto", "redundancy": 0.5},
])  # fmt: skip
def test_scores_never_rise_with_the_rank(settings: dict[str, Any], tmp_path: Path) -> None:
    X = load_digits().data[:200]
    selector = bigfs.MCFS(**settings, n_clusters=4).fit(X)
    frame = selector.to_frame()
    assert (np.diff(frame["score"]) <= 1e-12).all()
    np.testing.assert_array_equal(frame["index"], selector.ranking_)
    np.testing.assert_array_equal(np.sort(frame["index"][frame["selected"]]), selector.selected)
    np.save(tmp_path / "X.npy", X)
    shared = {name: value for name, value in settings.items() if name != "regression"}
    own = {"n_clusters": 4, "regression": settings.get("regression", "omp")}
    result = bigfs.run({"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.npy")},
                        "method": "mcfs", "mcfs": own, "report": None, **shared})  # fmt: skip
    assert (np.diff(result.to_frame()["score"]) <= 1e-12).all()
    np.testing.assert_array_equal(result.ranking_, selector.ranking_)
    np.testing.assert_array_equal(result.scores_, selector.scores_)


def test_rows_of_a_file_in_order_are_those_of_the_array(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(5001, 4))
    pd.DataFrame(X, columns=list("abcd")).to_csv(tmp_path / "X.csv", index=False)
    selector = bigfs.MaxVariance(2).fit(X)
    kept, of_file = (bigfs.plot(selector, given).sample() for given in (X, tmp_path / "X.csv"))
    assert len(kept.rows) == 2000
    np.testing.assert_array_equal(of_file.rows, kept.rows)
    np.testing.assert_allclose(of_file.mean, X[kept.rows].mean(axis=0))


def test_columns_are_found_by_their_names(digits: np.ndarray) -> None:
    frame = pd.DataFrame(digits, columns=[f"p{i}" for i in range(digits.shape[1])])
    selector = bigfs.MaxVariance(9, verbose=0).fit(frame)
    expected = bigfs.plot(selector, frame).sample().correlation
    turned = bigfs.plot(selector, frame[frame.columns[::-1]]).sample().correlation
    np.testing.assert_allclose(turned, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("others", "error"),
    [
        (lambda X: X[:, :5], "X has 5 features, but the selector was fitted to 64"),
        (lambda X: np.hstack([X, X]), "X has 128 features"),
        (lambda X: pd.DataFrame(X).add_prefix("z"), "X has no column p0, p1"),
    ],
)
def test_data_with_other_features_are_refused(digits: np.ndarray, others: Any, error: str) -> None:
    frame = pd.DataFrame(digits).add_prefix("p")
    selector = bigfs.MaxVariance(9, verbose=0).fit(frame)
    with pytest.raises(InputError, match=error):
        bigfs.plot(selector, others(digits)).map()


def test_labels_are_one_for_each_row(digits: np.ndarray) -> None:
    plots = bigfs.plot(bigfs.MaxVariance(9, verbose=0).fit(digits), digits)
    assert plots.map(labels=np.arange(len(digits)) % 3)
    with pytest.raises(InputError, match=f"one label for each of the {len(digits):,} rows"):
        plots.map(labels=np.zeros(len(digits) + 1))


def test_a_selector_that_is_not_fitted_is_named() -> None:
    with pytest.raises(NotFittedError, match="MaxVariance"):
        bigfs.plot(bigfs.MaxVariance(9))
