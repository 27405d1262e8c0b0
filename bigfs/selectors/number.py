"""Choice of the number of features m: criteria, each a curve over m, and the rule applied to it.

The rule is the same for all criteria: choose the smallest m at which the curve reaches a share of
its plateau, or comes within one standard error of it. The plateau is the maximum of the curve after
subtracting a line through the origin with the slope of the curve's second half: gains as small as
those of the last features do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.config.sections import Auto
from bigfs.core.errors import InputError


@dataclass(frozen=True)
class Criterion:
    """A curve that determines the number of features."""

    title: str  # description used in sentences
    # ``curve(sizes, values, n_samples)`` returns the curve, shape (n_sizes,), from the values of
    # `Curves`.
    curve: Callable[[np.ndarray, dict[str, np.ndarray], int], np.ndarray]
    errors: str = ""  # name of its standard errors among those of `Curves`; empty if it has none
    stage: str = ""  # the stage that it reads in addition to the result


def _adjusted(sizes: np.ndarray, values: dict[str, np.ndarray], n_samples: int) -> np.ndarray:
    """Return the explained share of the eigenvectors, adjusted for that of noise features."""
    free = np.maximum(n_samples - 1 - sizes, 1)
    return 1 - (1 - values["explained_eigenvectors"]) * (n_samples - 1) / free


CRITERIA: dict[str, Criterion] = {
    "explained_variance": Criterion(
        "the variance of the other features that they explain",
        lambda sizes, values, n_samples: values["explained_others"],
    ),
    "explained_eigenvectors": Criterion(
        "the share of the eigenvectors that they explain", _adjusted, stage="spectral"
    ),
    "neighbors_kept": Criterion(
        "the share of nearest rows that they keep",
        lambda sizes, values, n_samples: values["neighbors_kept"],
        errors="neighbors_kept",
    ),
    # The share of common features itself is 1 at m = 1 if the same feature always comes first. The
    # number of common features instead peaks where the samples begin to disagree.
    "stability": Criterion(
        "the number of features that two samples have in common beyond chance",
        lambda sizes, values, n_samples: values["in_common"],
        stage="stability",
    ),
}


def is_by_fits(number: int | Auto) -> bool:
    """Return True if the number of features is chosen by the stability of fits on samples."""
    return isinstance(number, Auto) and CRITERIA[number.auto].stage == "stability"


def check_criterion(auto: Auto, method: str, stages: tuple[str, ...]) -> None:
    """Raise InputError if the method does not run the stage that the criterion needs."""
    # Fits on samples are available for every method.
    available = ("", "stability", *stages)
    if CRITERIA[auto.auto].stage not in available:
        others = [name for name, criterion in CRITERIA.items() if criterion.stage in available]
        raise InputError(
            f"n_features_to_select: {auto.auto} needs a method that uses eigenvectors of the "
            f"graph, and {method} uses none. Use {' or '.join(others)}."
        )


def largest_number(auto: Auto, n_samples: int, n_features: int) -> int:
    """Return the largest number of features considered.

    It is less than half of the number of rows, because regressions on the features need twice as
    many rows.
    """
    return min(auto.at_most, n_features, max(1, (n_samples - 1) // 2))


def choose_number(
    auto: Auto,
    sizes: np.ndarray,
    values: dict[str, np.ndarray],
    errors: dict[str, np.ndarray],
    n_samples: int,
) -> dict[str, Any]:
    """Return the number of features chosen by a criterion, as the field ``number`` of `Curves`."""
    criterion = CRITERIA[auto.auto]
    curve = criterion.curve(sizes, values, n_samples)
    m = smallest_enough(sizes, curve, errors.get(criterion.errors, 0.0 * curve), auto.share)
    return about_number(auto, m, int(sizes[-1]), rule_in_words(auto))


def about_number(auto: Auto, m: int, largest: int, rule: str) -> dict[str, Any]:
    """Return the record of a chosen number, as the field ``number`` of `Curves`.

    Parameters
    ----------
    auto : Auto
    m : int
        The number chosen; 0 if the curve has no plateau.
    largest : int
        Largest number considered.
    rule : str
        The rule in words; replaced if the curve has no plateau.
    """
    if not m:
        rule = f"{CRITERIA[auto.auto].title} has no plateau: set a number or another criterion"
    about = {"n_features_to_select": max(1, m), "largest": largest, "rule": rule}
    return {**auto.model_dump(), **about, "has_plateau": m > 0}


def smallest_enough(sizes: np.ndarray, values: np.ndarray, errors: np.ndarray, share: float) -> int:
    """Return the smallest m at which the curve is close enough to its plateau.

    The curve is interpolated linearly between sizes.

    Parameters
    ----------
    sizes : ndarray of shape (n_sizes,), int
        Numbers of features, ascending.
    values, errors : ndarray of shape (n_sizes,)
        The curve, which is 0 for no features, and its standard errors.
    share : float
        Share of the plateau to reach.

    Returns
    -------
    m : int
        0 if the curve nowhere exceeds the line with the slope of its second half, or by no more
        than its standard error.
    """
    if len(sizes) == 1:
        return int(sizes[0])
    m = np.concatenate([[0], sizes])
    curve, errors = np.concatenate([[0.0], values]), np.concatenate([[0.0], errors])
    middle = np.interp(m[-1] / 2, m, curve)
    slope = max(0.0, (curve[-1] - middle) / (m[-1] / 2))
    above = curve - slope * m
    best = int(above.argmax())
    enough = min(share * above[best], above[best] - errors[best])
    first = int((above >= enough).argmax())
    if first == 0:
        return 0
    step = (enough - above[first - 1]) / (above[first] - above[first - 1])
    # A rounding error must not add a feature.
    exact = m[first - 1] + step * (m[first] - m[first - 1])
    return max(1, int(np.ceil(exact - 1e-6)))


def at_least(chosen: dict[str, Any], least: int) -> dict[str, Any]:
    """Return the record of a chosen number, raised to the number of included features.

    Parameters
    ----------
    chosen : dict
        As returned by `about_number`.
    least : int
        Number of features to include.
    """
    if least <= chosen["n_features_to_select"]:
        return chosen
    rule = f"{chosen['rule']}; raised to the number of features in include"
    return {**chosen, "n_features_to_select": least, "rule": rule}


def rule_in_words(auto: Auto) -> str:
    """Return the rule in words, as stated in the result."""
    criterion = CRITERIA[auto.auto]
    within = ", or comes within one standard error of it" if criterion.errors else ""
    return (
        f"the smallest number of features at which {criterion.title} reaches "
        f"{100 * auto.share:g} % of its plateau{within}"
    )
