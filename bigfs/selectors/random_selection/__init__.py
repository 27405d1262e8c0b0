"""RandomSelection: features at random, several times: what chance gives."""

from __future__ import annotations

from pydantic import Field

from bigfs.config.fields import PositiveInt, Section
from bigfs.selectors.method import Method


class RandomSelectionParameters(Section):
    """Features at random: what every other method is held against."""

    n_draws: PositiveInt = Field(10, description="Rankings drawn; the first is the result's.")


METHOD = Method(
    "random_selection",
    "RandomSelection",
    __name__,
    RandomSelectionParameters,
    scale_free=True,
    sparse=True,
)
