"""The configurations of pipelines, comparisons and papers' tables, with the registered methods."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bigfs.config import Comparison, Config, PaperTable, Selection, read_settings, validated
from bigfs.config.comparison import with_pipeline
from bigfs.config.selection import with_methods
from bigfs.core.errors import ConfigError
from bigfs.selectors.registry import METHODS


def pipeline_model() -> type[Config]:
    """Return the model of a pipeline with all registered methods."""
    return _pipeline_model(tuple(METHODS))


def selection_model() -> type[Selection]:
    """Return the model of what an estimator is told, with all registered methods."""
    return _selection_model(tuple(METHODS))


# Models are made once for each set of registered methods.
@lru_cache(maxsize=4)
def _pipeline_model(names: tuple[str, ...]) -> type[Config]:
    return with_methods(Config, METHODS)


@lru_cache(maxsize=4)
def _selection_model(names: tuple[str, ...]) -> type[Selection]:
    return with_methods(Selection, METHODS)


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Return the configuration of a YAML file.

    Parameters
    ----------
    path : str or Path
        The file.
    overrides : iterable of str, default=()
        ``"a.b=value"``: sets key b of section a; the value is read as YAML.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or does not follow the schema; the message
        lists every problem, one a line.
    """
    settings = read_settings(path, overrides)
    if "methods" in settings:
        what = "the table of a paper" if "protocol" in settings else "a comparison"
        raise ConfigError(f"{path} is {what} (it has 'methods'): bigfs compare {path}.")
    return validated(pipeline_model(), settings, str(path))


def make_config(**settings: Any) -> Config:
    """Return the configuration of keyword arguments, with sections as dicts.

    Raises
    ------
    ConfigError
        If the settings do not follow the schema.

    Examples
    --------
    >>> from bigfs.selectors.configs import make_config
    >>> config = make_config(
    ...     run="runs/digits", input={"uri": "sklearn:digits"}, n_features_to_select=20
    ... )
    >>> config.graph.n_neighbors
    5
    """
    return validated(pipeline_model(), settings, "the configuration")


def load_comparison(path: str | Path, overrides: Iterable[str] = ()) -> Comparison | PaperTable:
    """Return the comparison of a YAML file; parameters and errors as in `load_config`.

    A file with a ``protocol`` is the table of a paper.
    """
    settings = read_settings(path, overrides)
    if "method" in settings and "methods" not in settings:
        raise ConfigError(
            f"{path} is the pipeline of one method (it has 'method'): bigfs run {path}; a "
            "comparison has 'methods', as pipelines/compare/digits.yaml."
        )
    return validated(_comparison_model(settings), settings, str(path))


def make_comparison(**settings: Any) -> Comparison | PaperTable:
    """Return the comparison of keyword arguments, with sections as dicts.

    Raises
    ------
    ConfigError
        If the settings do not follow the schema.
    """
    return validated(_comparison_model(settings), settings, "the comparison")


def _comparison_model(settings: dict[str, Any]) -> type[Comparison] | type[PaperTable]:
    return _model_of("paper" if "protocol" in settings else "compare", tuple(METHODS))


@lru_cache(maxsize=8)
def _model_of(kind: str, names: tuple[str, ...]) -> Any:
    return with_pipeline(PaperTable if kind == "paper" else Comparison, pipeline_model())


def json_schema(kind: str = "run") -> dict[str, Any]:
    """Return the JSON schema of a YAML file: of ``run``, ``compare`` or ``paper``."""
    models: dict[str, type[BaseModel]] = {
        "run": pipeline_model(),
        "compare": Comparison,
        "paper": PaperTable,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **models[kind].model_json_schema(),
    }
