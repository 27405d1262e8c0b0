"""Maximum margin clustering of few rows: products of rows give what planes give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bigfs import MaximumMarginClustering
from bigfs.selectors.m3fs import weighted
from bigfs.selectors.m3fs.kernels import plane_sums
from bigfs.selectors.m3fs.state import Settings, Trajectory
from bigfs.selectors.m3fs.weighted import WeightedPlanes, weighted_bytes


def _fitted(parameters: dict[str, Any]) -> MaximumMarginClustering:
    """Fit few rows: of two clusters as many as there are half as many unknowns."""
    X, _ = load_digits(return_X_y=True)
    n = 32 if parameters["n_clusters"] == 2 else 100
    return MaximumMarginClustering(n_init=1, **parameters).fit(X[:n])


def _no_solution(
    products: np.ndarray, free: np.ndarray, *_: Any, **__: Any
) -> tuple[np.ndarray, np.ndarray, int, float]:
    return np.zeros(len(products)), np.zeros(free.shape[1]), 60, 1.0


@pytest.mark.parametrize(
    "parameters",
    [
        {"n_clusters": 4},
        {"n_clusters": 4, "balance": None},
        {"n_clusters": 5, "fit_intercept": False},
        {"n_clusters": 10, "C": 100.0},
        {"n_clusters": 2},
        {"n_clusters": 2, "C": 100.0},
        {"n_clusters": 2, "balance": 0.5},
    ],
    ids=str,
)
def test_products_of_rows_end_where_planes_do(
    parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, move = [], WeightedPlanes._move

    def counted(self: WeightedPlanes, now: np.ndarray, rows: np.ndarray) -> None:
        moved.append(len(rows))
        move(self, now, rows)

    monkeypatch.setattr(WeightedPlanes, "_move", counted)
    # Rows that move in several parts.
    monkeypatch.setattr(weighted, "_MOVED_BYTES", 8 * 140 * 3)
    of_rows = _fitted(parameters)
    assert sum(moved) > 0
    rounds = len(moved)
    monkeypatch.setattr(weighted, "_MOST_ROWS", 0)
    of_planes = _fitted(parameters)
    assert len(moved) == rounds
    assert of_rows.n_iter_ == of_planes.n_iter_
    np.testing.assert_array_equal(of_rows.labels_, of_planes.labels_)
    scale = np.abs(of_planes.coef_).max()
    np.testing.assert_allclose(of_rows.coef_, of_planes.coef_, rtol=0, atol=1e-9 * scale)
    np.testing.assert_allclose(of_rows.violation_, of_planes.violation_, atol=1e-9)


@pytest.mark.parametrize("P", [1, 4])
def test_products_stay_those_of_the_planes_as_clusters_change(P: int) -> None:
    c = max(2, P)
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30, 40))
    X -= X.mean(axis=0) - 0.1
    settings = Settings(40, 40, P, 10.0, 0.0, 0.1, 0.01, True, True, 0.01, 100)
    planes = WeightedPlanes(
        X, generator.integers(0, c, 30).astype(np.uint8), settings, np.append(X.mean(axis=0), 1.0)
    )
    state = Trajectory(0, np.zeros((41, P)), np.ones(40))
    for number in range(5):
        planes._drawn = generator.integers(0, P + 1, 30).astype(np.uint8)
        if P > 1:
            planes._drawn[planes._drawn == planes._z + 1] = 0
        state.ids.append(number)
        planes.keep(state)
        now = planes._z.copy()
        now[generator.choice(30, 6, replace=False)] = generator.integers(0, c, 6)
        planes._move(now, np.flatnonzero(now != planes._z))
    sums, _ = plane_sums(X, list(planes._planes), planes._z, P, True)
    flat = sums[:, :40].reshape(5, -1) / 30
    np.testing.assert_allclose(planes._products, flat @ flat.T, atol=1e-12)
    np.testing.assert_allclose(
        planes._sums[:, :, 0], X.mean(axis=0) @ sums[:, :40] / 30, atol=1e-12
    )
    np.testing.assert_allclose(planes._sums[:, :, 1], sums[:, 40] / 30, atol=1e-12)


def test_a_program_without_a_solution_is_solved_from_planes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = {"n_clusters": 4, "max_iter": 6}
    wanted = _fitted(parameters)
    monkeypatch.setattr(weighted, "row_multipliers", _no_solution)
    found = _fitted(parameters)
    np.testing.assert_allclose(found.objective_, wanted.objective_, rtol=1e-4)


def test_many_rows_keep_planes() -> None:
    assert weighted_bytes(1_000, 1_025, 1) == 0
    assert weighted_bytes(500, 1_025, 1) > 8 * 500**2
    assert weighted_bytes(2_000, 17, 20) == 0
    assert weighted_bytes(1_440, 1_025, 20) > 8 * 1_440**2
