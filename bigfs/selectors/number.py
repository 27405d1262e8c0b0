"""Choice of the number of features: criteria, each a curve over m, and the rule that reads it.

The rule is the same for all: the smallest m at which the curve reaches a share of its plateau, or
comes within one standard error of it. The plateau is the most that the curve reaches above the line
on which it ends: features that add as little as those of its last half do not count.
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
    """A curve that the number of features is read off."""

    title: str  # in prose
    # ``curve(sizes, values, n_samples)`` returns the curve, shape (n_sizes,), from the values of
    # `Curves`.
    curve: Callable[[np.ndarray, dict[str, np.ndarray], int], np.ndarray]
    errors: str = ""  # name of its standard errors among those of `Curves`, where it has some
    stage: str = ""  # the stage that it reads, besides the result


def _adjusted(sizes: np.ndarray, values: dict[str, np.ndarray], n_samples: int) -> np.ndarray:
    """Return the explained share of the eigenvectors, less that of features of noise."""
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
    # The share in common itself is 1 where one feature always comes first: its number peaks where
    # the features begin that samples do not agree on.
    "stability": Criterion(
        "the number of features that two samples have in common beyond chance",
        lambda sizes, values, n_samples: values["in_common"],
        stage="stability",
    ),
}


def is_by_fits(number: int | Auto) -> bool:
    """Return whether the number of features is chosen by the stability of fits on samples."""
    return isinstance(number, Auto) and CRITERIA[number.auto].stage == "stability"


def check_criterion(auto: Auto, method: str, stages: tuple[str, ...]) -> None:
    """Raise InputError if a method does not take what the criterion is computed from."""
    # Fits on samples are there for every method.
    available = ("", "stability", *stages)
    if CRITERIA[auto.auto].stage not in available:
        others = [name for name, criterion in CRITERIA.items() if criterion.stage in available]
        raise InputError(
            f"n_features_to_select: {auto.auto} is for methods that take eigenvectors of the "
            f"graph, and {method} takes none. Use {' or '.join(others)}."
        )


def largest_number(auto: Auto, n_samples: int, n_features: int) -> int:
    """Return the most features that are looked at: regressions on them need twice as many rows."""
    return min(auto.at_most, n_features, max(1, (n_samples - 1) // 2))


def choose_number(
    auto: Auto,
    sizes: np.ndarray,
    values: dict[str, np.ndarray],
    errors: dict[str, np.ndarray],
    n_samples: int,
) -> dict[str, Any]:
    """Return the number of features by a criterion, and how it was chosen: see `Curves`."""
    criterion = CRITERIA[auto.auto]
    curve = criterion.curve(sizes, values, n_samples)
    m = smallest_enough(sizes, curve, errors.get(criterion.errors, 0.0 * curve), auto.share)
    return about_number(auto, m, int(sizes[-1]), rule_in_words(auto))


def about_number(auto: Auto, m: int, largest: int, rule: str) -> dict[str, Any]:
    """Return how a number was chosen, as `Curves` has it; of a curve without a plateau m is 0."""
    if not m:
        rule = f"{CRITERIA[auto.auto].title} has no plateau: give a number, or another criterion"
    about = {"n_features_to_select": max(1, m), "largest": largest, "rule": rule}
    return {**auto.model_dump(), **about, "has_plateau": m > 0}


def smallest_enough(sizes: np.ndarray, values: np.ndarray, errors: np.ndarray, share: float) -> int:
    """Return the smallest m whose curve, read linearly between sizes, is near enough its plateau.

    Parameters
    ----------
    sizes : ndarray of shape (n_sizes,), int
        Ascending.
    values, errors : ndarray of shape (n_sizes,)
        The curve, which starts at 0 for no feature, and its standard errors.
    share : float
        Of the plateau.

    Returns
    -------
    m : int
        0 where the curve is nowhere above the line on which it ends, or not by its error.
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
    # What is rounding must not make one feature more of it.
    exact = m[first - 1] + step * (m[first] - m[first - 1])
    return max(1, int(np.ceil(exact - 1e-6)))


def at_least(chosen: dict[str, Any], least: int) -> dict[str, Any]:
    """Return a chosen number of features, as `Curves` has it, that has room for those included."""
    if least <= chosen["n_features_to_select"]:
        return chosen
    rule = f"{chosen['rule']}; here as many as include names"
    return {**chosen, "n_features_to_select": least, "rule": rule}


def rule_in_words(auto: Auto) -> str:
    """Return the rule as the result states it."""
    criterion = CRITERIA[auto.auto]
    within = ", or comes within one standard error of it" if criterion.errors else ""
    return (
        f"the smallest number of features at which {criterion.title} reaches "
        f"{100 * auto.share:g} % of its plateau{within}"
    )
