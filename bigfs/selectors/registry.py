"""The table of methods, one line each, and the configuration models with their sections.

Names, sections, templates and tests are derived from this table.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from bigfs.config import Comparison, Config, Methods, Selection, read_settings, validated
from bigfs.config.comparison import with_pipeline
from bigfs.config.selection import with_methods
from bigfs.core.errors import ConfigError
from bigfs.selectors.method import Method

# The declaration of each method, as module and attribute relative to bigfs.selectors.
_DECLARED = (
    "mcfs.METHOD",
    "ndfs.METHOD",
    "m3fs.M3FS",
    "one_pass.LAPLACIAN_SCORE",
    "one_pass.MAX_VARIANCE",
    "one_pass.SPEC",
    "one_pass.Q_ALPHA",
    "udfs.METHOD",
    "fsgmm.METHOD",
    "m3fs.MAXIMUM_MARGIN_CLUSTERING",
    "lfs.METHOD",
    "gfs_kmeans.METHOD",
    "picks.COLUMN_SUBSET",
    "picks.PIVOTED_QR",
    "one_pass.RANDOM_SELECTION",
    "highly_variable.METHOD",
)

METHODS: dict[str, Method] = {}


def register(method: Method) -> None:
    """Add a method to the table."""
    METHODS[method.name] = method


def method_of(estimator: type) -> Method:
    """Return the method of an estimator class or of the nearest base that is an estimator."""
    by_name = {method.estimator: method for method in METHODS.values()}
    return next(by_name[cls.__name__] for cls in estimator.__mro__ if cls.__name__ in by_name)


def pipeline_model() -> type[Config]:
    """Return the model of a pipeline with all registered methods."""
    return _with_methods(Config, tuple(METHODS))


def selection_model() -> type[Selection]:
    """Return the model of an estimator's settings, with all registered methods."""
    return _with_methods(Selection, tuple(METHODS))


# Models are built once for each set of registered methods.
@lru_cache(maxsize=8)
def _with_methods(model: Any, names: tuple[str, ...]) -> Any:
    if issubclass(model, Methods):
        return with_pipeline(model, pipeline_model())
    return with_methods(model, METHODS)


def load_config(source: Config | str | Path | dict[str, Any], overrides: Any = ()) -> Config:
    """Return the configuration read from a YAML file or a dict.

    Parameters
    ----------
    source : Config, str, Path or dict
        A Config is returned unchanged.
    overrides : iterable of str, default=()
        Each ``"a.b=value"`` sets key b of section a; the value is parsed as YAML.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or does not follow the schema; the message
        lists every problem on its own line. If overrides are given for a Config.
    """
    if isinstance(source, Config):
        return _unchanged(source, overrides)
    settings = read_settings(source, overrides)
    if "methods" in settings:
        what = "the table of a paper" if "protocol" in settings else "a comparison"
        raise ConfigError(
            f"{_name(source)} is {what} (it has 'methods'): use {_call('compare', source)}."
        )
    return validated(pipeline_model(), settings, _name(source))


def make_config(**settings: Any) -> Config:
    """Return the configuration given by keyword arguments; see `load_config`.

    Sections are given as dicts.

    Examples
    --------
    >>> from bigfs.selectors.registry import make_config
    >>> config = make_config(
    ...     run="runs/digits", input={"uri": "sklearn:digits"}, n_features_to_select=20
    ... )
    >>> config.graph.n_neighbors
    5
    """
    return load_config(settings)


def load_comparison(
    source: Methods | str | Path | dict[str, Any], overrides: Any = (), labels: Any = None
) -> Methods:
    """Return the comparison read from a YAML file or a dict.

    Parameters and errors are those of `load_config`. If the settings have a ``protocol``, the
    result is the table of a paper. If given, ``labels`` replace the labels of the evaluation.
    """
    if isinstance(source, Methods):
        return _unchanged(source, overrides if labels is None else ["evaluate.labels"])
    settings = read_settings(source, overrides)
    if "method" in settings and "methods" not in settings:
        raise ConfigError(
            f"{_name(source)} is the pipeline of one method (it has 'method'): "
            f"use {_call('run', source)}. A comparison has 'methods', as in "
            "pipelines/compare/digits.yaml."
        )
    if labels is not None:
        settings["evaluate"] = {**dict(settings.get("evaluate") or {}), "labels": labels}
    model = paper_tables().PaperTable if "protocol" in settings else Comparison
    return validated(_with_methods(model, tuple(METHODS)), settings, _name(source))


def paper_tables() -> Any:
    """Return the module ``pipelines.paper.table``, which exists only in a checkout.

    Raises
    ------
    ConfigError
        If bigfs does not run from a checkout.
    """
    checkout = Path(__file__).parents[2]
    if not (checkout / "pipelines" / "paper" / "table.py").is_file():
        raise ConfigError(
            "Tables of papers can only be run from a checkout of bigfs, which this installation is "
            "not. Install a checkout in place (pip install -e .) and run this again."
        )
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))  # inherited by processes that are started from here
    return importlib.import_module("pipelines.paper.table")


def _unchanged(config: Any, overrides: Any) -> Any:
    if list(overrides):
        raise ConfigError(
            "overrides can only be used with a file or a dict, not with a configuration object."
        )
    return config


def _name(source: Any) -> str:
    return "the configuration" if isinstance(source, dict) else str(source)


def _call(command: str, source: Any) -> str:
    return f"bigfs.{command}" if isinstance(source, dict) else f"bigfs {command} {source}"


def json_schema(kind: str = "run") -> dict[str, Any]:
    """Return the JSON schema of the YAML files of ``bigfs run`` or ``bigfs compare``.

    Parameters
    ----------
    kind : {"run", "compare"}, default="run"
    """
    model: Any = {"run": pipeline_model(), "compare": Comparison}[kind]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
        "title": f"bigfs {kind}",
    }


def write_schema(pipeline: Path, kind: str) -> None:
    """Write the schema that a template references for editors to the template's folder.

    An existing file is replaced only if bigfs wrote it. Failures are ignored: the schema is
    optional.
    """
    file = pipeline.with_name(f"bigfs{'' if kind == 'run' else f'-{kind}'}.schema.json")
    text = json.dumps(json_schema(kind), indent=2)
    with suppress(OSError, ValueError):
        if not file.exists() or json.loads(file.read_text()).get("title") == f"bigfs {kind}":
            file.write_text(text)


for _place in _DECLARED:
    _module, _, _attribute = _place.partition(".")
    register(getattr(importlib.import_module(f"bigfs.selectors.{_module}"), _attribute))
