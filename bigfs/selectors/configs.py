"""The configurations of pipelines, comparisons and papers' tables, with the registered methods."""

from __future__ import annotations

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


def load_config(source: Config | str | Path | dict[str, Any], overrides: Any = ()) -> Config:
    """Return the configuration of a YAML file or a dict.

    Parameters
    ----------
    source : Config, str, Path or dict
        A Config is returned as it is.
    overrides : iterable of str, default=()
        ``"a.b=value"``: sets key b of section a; the value is read as YAML.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or does not follow the schema; the message
        lists every problem, one a line. If there are overrides for a Config.
    """
    if isinstance(source, Config):
        return _unchanged(source, overrides)
    settings = read_settings(source, overrides)
    if "methods" in settings:
        what = "the table of a paper" if "protocol" in settings else "a comparison"
        raise ConfigError(
            f"{_name(source)} is {what} (it has 'methods'): {_call('compare', source)}."
        )
    return validated(pipeline_model(), settings, _name(source))


def make_config(**settings: Any) -> Config:
    """Return the configuration of keyword arguments, with sections as dicts; see `load_config`.

    Examples
    --------
    >>> from bigfs.selectors.configs import make_config
    >>> config = make_config(
    ...     run="runs/digits", input={"uri": "sklearn:digits"}, n_features_to_select=20
    ... )
    >>> config.graph.n_neighbors
    5
    """
    return load_config(settings)


def load_comparison(
    source: Comparison | PaperTable | str | Path | dict[str, Any], overrides: Any = ()
) -> Comparison | PaperTable:
    """Return the comparison of a YAML file or a dict; parameters and errors as in `load_config`.

    With a ``protocol`` it is the table of a paper.
    """
    if isinstance(source, (Comparison, PaperTable)):
        return _unchanged(source, overrides)
    settings = read_settings(source, overrides)
    if "method" in settings and "methods" not in settings:
        raise ConfigError(
            f"{_name(source)} is the pipeline of one method (it has 'method'): "
            f"{_call('run', source)}; a comparison has 'methods', as pipelines/compare/digits.yaml."
        )
    return validated(_comparison_model(settings), settings, _name(source))


def _unchanged(config: Any, overrides: Any) -> Any:
    if list(overrides):
        raise ConfigError("overrides go with a file or a dict, not with a finished configuration.")
    return config


def _name(source: Any) -> str:
    return "the configuration" if isinstance(source, dict) else str(source)


def _call(command: str, source: Any) -> str:
    return f"bigfs.{command}" if isinstance(source, dict) else f"bigfs {command} {source}"


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
