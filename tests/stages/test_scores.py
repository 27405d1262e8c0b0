"""Scores: the order that follows from them, and that nothing in a result is NaN or infinite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from bigfs import MCFS
from bigfs.cli import main
from bigfs.core.errors import InputError, NumericalError
from bigfs.stages.scores import FeatureScores


def test_constant_features_get_the_lowest_score_and_rank_last() -> None:
    constant = np.array([True, False, False, True, False])
    actual = FeatureScores.from_scores(np.array([9.0, -3, 2, -4, -3]), constant=constant)
    assert actual.scores.tolist() == [-3, -3, 2, -4, -3]
    assert actual.ranking.tolist() == [2, 1, 4, 0, 3]
    actual = FeatureScores.from_scores(np.array([0.0, 3, 2, 0, 0]), constant=constant)
    assert actual.scores.tolist() == [0, 3, 2, 0, 0]
    assert actual.ranking.tolist() == [1, 2, 4, 0, 3]
    nothing = FeatureScores.from_scores(np.zeros(3), constant=np.ones(3, dtype=bool))
    assert nothing.scores.tolist() == [0, 0, 0]
    assert nothing.ranking.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("objective", np.array([1.0, np.nan])),
        ("message_length", np.inf),
        ("evidence", np.float64(np.nan)),
        ("coef", sparse.csr_array(np.array([[0, np.inf], [1, 0]]))),
    ],
)
def test_a_detail_that_is_not_finite_is_an_error(name: str, value: object) -> None:
    with pytest.raises(NumericalError, match=f"1 of . values of '{name}' are NaN or infinite"):
        FeatureScores.from_scores(np.ones(2), **{name: value})
    FeatureScores.from_scores(np.ones(2), names=["a"], n_iter=3, sigma=None, kept=np.array([0]))


def _vanishing() -> np.ndarray:
    """Return data whose squares are so small that regressions would divide by zero."""
    X = np.random.default_rng(0).normal(size=(60, 8))
    X[:30] += 2
    return X * 1e-160


def test_an_estimator_refuses_what_would_not_be_finite() -> None:
    selector = MCFS(3, n_clusters=2, n_neighbors=3)
    with pytest.raises(InputError, match="differences below 1e-140 are too small"):
        selector.fit(_vanishing())
    assert not hasattr(selector, "scores_")


def test_a_run_refuses_what_would_not_be_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "X.npy", _vanishing())
    (tmp_path / "p.yaml").write_text(
        f"run: {tmp_path}/run\ninput: {{uri: {tmp_path}/X.npy}}\nmethod: mcfs\n"
        "n_features_to_select: 3\nmcfs: {n_clusters: 2}\ngraph: {n_neighbors: 3}\n"
    )
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--quiet", str(tmp_path / "p.yaml")])
    assert stopped.value.code == 2
    assert "differences below 1e-140 are too small" in capsys.readouterr().err
    assert not (tmp_path / "run" / "features.csv").exists()


def test_scores_that_differ_by_rounding_are_ties() -> None:
    noise = 1 + np.finfo(float).eps * np.random.default_rng(0).integers(-4, 5, size=50)
    for value in (1.2, -1.2e-20, 0.3, -7e30):
        assert (FeatureScores.from_scores(value * noise).ranking == np.arange(50)).all()
    scores = np.array([1.0, 1.0 + 1e-11, 1e-300, -1.0, 0.0])
    assert FeatureScores.from_scores(scores).ranking.tolist() == [1, 0, 2, 4, 3]
