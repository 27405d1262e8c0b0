"""Strategies of a method on blocks of any size, without a fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.core.cost import Shape
from bigfs.selectors.registry import METHODS, selection_model
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs


def selection_of(
    method: str, m: int = 1, memory_limit: int | str = "4 GiB", **parameters: Any
) -> Selection:
    """Return the settings of a method with these parameters."""
    settings = {"method": method, "n_features_to_select": m, "memory_limit": memory_limit}
    return selection_model()(**settings, **({method: parameters} if parameters else {}))


def strategy_of(method: str, shape: Shape, **settings: Any) -> Any:
    """Return the strategy for data of a shape."""
    return METHODS[method].choose(shape, selection_of(method, **settings))


def result_of(method: str, blocks: RowBlocks, **settings: Any) -> FeatureScores:
    """Run a method on blocks."""
    out = blocks.scratch.child(blocks.scratch.unique("result"))
    return strategy_of(method, blocks.layout, **settings).run(Inputs(blocks), out)


def inputs_of(blocks: RowBlocks, **stored: Any) -> Any:
    """Return the inputs of a stage, with what earlier ones left."""
    return SimpleNamespace(blocks=blocks, finished={}, former=None, base=None, **stored)
