"""Which fits a comparison needs: one may serve several numbers of features."""

from __future__ import annotations

from bigfs.config import Config
from bigfs.selectors.mcfs.tasks import MAX_STOPS
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
    serves = METHODS[config.method].one_fit_serves
    if serves == "its size":
        groups = [[m] for m in sizes]
    elif serves == "smaller sizes":
        small = [m for m in sizes if m <= MAX_STOPS]
        groups = ([small] if small else []) + [[m] for m in sizes if m > MAX_STOPS]
    else:
        groups = [sizes]
    return [(config.model_copy(update={"n_features_to_select": m[-1]}), m) for m in groups]
