"""The fits that a comparison needs: one may serve several numbers of features."""

from __future__ import annotations

from bigfs.config import Config
from bigfs.selectors.registry import METHODS


def fits_for(config: Config, sizes: list[int]) -> list[tuple[Config, list[int]]]:
    """Return the configurations to fit a method with, and the numbers of features each serves.

    Parameters
    ----------
    config : Config
    sizes : list of int
        Numbers of features to select.
    """
    sizes = sorted(set(sizes))
    up_to = METHODS[config.method].one_fit_up_to
    shared = [m for m in sizes if m <= up_to]
    groups = ([shared] if shared else []) + [[m] for m in sizes if m > up_to]
    return [(config.model_copy(update={"n_features_to_select": m[-1]}), m) for m in groups]
