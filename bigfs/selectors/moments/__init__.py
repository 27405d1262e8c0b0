"""MaxVariance, and RandomSelection, which is what chance gives: both take the moments only."""

from __future__ import annotations

from pydantic import Field

from bigfs.config.fields import PositiveInt, Section
from bigfs.selectors.method import Method


class RandomSelectionParameters(Section):
    """Features at random: what every other method is held against."""

    n_draws: PositiveInt = Field(10, description="Rankings drawn; the first is the result's.")


MAX_VARIANCE = Method(
    "max_variance",
    "MaxVariance",
    __name__,
    sparse=True,
    keeps_sums=True,
    choose_by="choose_max_variance",
)
RANDOM_SELECTION = Method(
    "random_selection",
    "RandomSelection",
    __name__,
    RandomSelectionParameters,
    choose_by="choose_random_selection",
    scale_free=True,
    sparse=True,
)
