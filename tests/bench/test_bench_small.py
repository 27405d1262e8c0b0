"""The bench of small data at toy size: a fit that is timed, one that is stopped, and paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.bench_small import large, margins, paths, seconds, settings_of, small_sets


def test_paths_end_at_the_same_coefficients() -> None:
    X, n_classes = small_sets(None, ["wine"])["wine"]()
    assert (X.shape, n_classes) == ((178, 13), 3)
    assert settings_of("MCFS", X, n_classes) == {"n_clusters": 3, "n_features_to_select": 6}
    measured = paths(X, 6, n_paths=2, repeats=1)
    assert measured["apart"] < 1e-10
    assert min(measured["bigfs"], measured["scikit-learn"]) > 0


@pytest.mark.slow
def test_paths_of_many_more_features_than_rows_end_at_the_same_coefficients(data_dir: Path) -> None:
    X, _ = small_sets(data_dir, ["Prostate_GE"])["Prostate_GE"]()
    measured = paths(X, 200, repeats=1)
    assert measured["apart"] < 1e-9, "in the unit of the eigenvectors scikit-learn ends one early"


@pytest.mark.full
def test_m3fs_on_digits_is_timed_at_every_smoothness() -> None:
    assert all(0 < value < 60 for value in margins((1, 7), 5, 1.0))


@pytest.mark.slow
def test_more_rows_give_the_same_bits_again() -> None:
    first, second = large(scale=20), large(scale=20)
    assert {name: checksum for name, (_, checksum) in first.items()} == {
        name: checksum for name, (_, checksum) in second.items()
    }


@pytest.mark.full
def test_fits_are_timed_in_processes_of_their_own() -> None:
    X, n_classes = small_sets(None, ["digits"])["digits"]()
    assert 0 < float(seconds("MaxVariance", X, n_classes, 5)) < 5
    assert seconds("MaxVariance", X[:, :1] * float("nan"), n_classes, 5) == "Input"
