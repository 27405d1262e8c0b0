"""Agreement of selections equals the formulas, and is what it says on simulated selections."""

from __future__ import annotations

import numpy as np
import pytest

from bigfs.solvers.agreement import (
    agreement_of_all,
    agreement_of_pairs,
    consensus_ranking,
    rarely_selected_bound,
    stability_of,
    step_of,
)
from tests.reference.agreement import phi, phi_deviation


def _masks(n: int, d: int, sizes: list[int], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    masks = np.zeros((n, d), dtype=bool)
    for i, mask in enumerate(masks):
        weights = 1.0 / np.arange(1, d + 1)
        mask[rng.choice(d, sizes[i % len(sizes)], replace=False, p=weights / weights.sum())] = True
    return masks


@pytest.mark.parametrize("sizes", [[4], [3, 7, 5]])
def test_agreement_equals_the_reference(sizes: list[int]) -> None:
    masks = _masks(14, 20, sizes)
    sets = [set(np.flatnonzero(mask).tolist()) for mask in masks]
    actual, half = agreement_of_all(masks), 1.959964 * phi_deviation(sets, 20)
    assert actual.value == pytest.approx(phi(sets, 20), abs=1e-12)
    assert actual.high - actual.low == pytest.approx(2 * half, abs=1e-12)
    pairs = [phi(sets[i : i + 2], 20) for i in range(0, 14, 2)]
    np.testing.assert_allclose(agreement_of_pairs(masks), pairs, atol=1e-12)


def test_equal_selections_agree_fully_and_random_ones_by_chance() -> None:
    same = np.tile(np.arange(30) < 6, (10, 1))
    assert agreement_of_all(same).value == agreement_of_pairs(same).mean() == 1.0
    rng = np.random.default_rng(0)
    rankings = np.array([rng.permutation(30) for _ in range(2000)])
    masks = np.zeros(rankings.shape, dtype=bool)
    np.put_along_axis(masks, rankings[:, :6], True, axis=1)
    assert abs(agreement_of_all(masks).value) < 0.01
    assert abs(agreement_of_pairs(masks).mean()) < 0.02


@pytest.mark.parametrize("size", [0, 8])
def test_all_features_or_none_agree(size: int) -> None:
    masks = np.tile(np.arange(8) < size, (4, 1))
    assert agreement_of_all(masks).value == 1.0
    assert agreement_of_pairs(masks).tolist() == [1.0, 1.0]


def test_interval_of_the_stability() -> None:
    values = np.array([0.2, 0.4, 0.6])
    alone = stability_of(values, 0.0, 0.0)
    # Student's quantile of 2 degrees of freedom is 4.302653.
    assert alone.high - alone.value == pytest.approx(4.302653 * 0.2 / 3**0.5, rel=1e-6)
    shared = stability_of(values, 1.0, 0.0)
    assert shared.low == pytest.approx(0.4 - 4.302653 * 0.2 * (1 / 3 + 1 / 2) ** 0.5, rel=1e-6)
    assert shared.high == 1.0
    assert stability_of(values[:1], 1.0, 0.0).low == -1.0
    # Equal pairs: what is known is no finer than one feature.
    equal = stability_of(np.full(3, 0.5), 0.0, step_of(5, 10))
    assert equal.high - equal.value == pytest.approx(4.302653 * 0.4 / 6, rel=1e-6)


def test_consensus_goes_by_frequency_score_and_rank() -> None:
    rankings = np.array([[3, 0, 1, 2], [3, 1, 0, 2], [0, 3, 1, 2]])
    actual = consensus_ranking(
        np.array([0.5, 0.5, 0.5, 1.0]), np.array([1.0, 1.0, 2.0, 0.0]), rankings
    )
    assert actual.tolist() == [3, 2, 0, 1]


def test_bound_on_rarely_selected_features() -> None:
    assert rarely_selected_bound(10, 1000, 0.6) == pytest.approx(0.5)
