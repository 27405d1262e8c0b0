"""One model tree behind the YAML file, ``--set a.b=c`` and Python keyword arguments.

Unknown keys are refused with the nearest known one, and so is a setting that the chosen method
would not use: nothing is silently ignored. Relative paths count from the current directory, as
in a shell, not from the folder of the YAML file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from bigfs.config.comparison import Comparison
from bigfs.config.messages import explain
from bigfs.config.paper import PaperTable
from bigfs.config.sections import Config
from bigfs.config.words import shown
from bigfs.core.errors import ConfigError
from bigfs.core.yamltext import read_yaml, write_yaml

_Model = TypeVar("_Model", bound=BaseModel)

__all__ = [
    "Comparison",
    "Config",
    "PaperTable",
    "dump_yaml",
    "json_schema",
    "load_comparison",
    "load_config",
    "make_comparison",
    "make_config",
]


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
    settings = _read(path, overrides)
    if "methods" in settings:
        what = "the table of a paper" if "protocol" in settings else "a comparison"
        raise ConfigError(f"{path} is {what} (it has 'methods'): bigfs compare {path}.")
    return _validated(Config, settings, str(path))


def load_comparison(path: str | Path, overrides: Iterable[str] = ()) -> Comparison | PaperTable:
    """Return the comparison of a YAML file; parameters and errors as in `load_config`.

    A file with a ``protocol`` is the table of a paper.
    """
    settings = _read(path, overrides)
    if "method" in settings and "methods" not in settings:
        raise ConfigError(
            f"{path} is the pipeline of one method (it has 'method'): bigfs run {path}; a "
            "comparison has 'methods', as pipelines/compare/digits.yaml."
        )
    return _validated(_kind(settings), settings, str(path))


def make_comparison(**settings: Any) -> Comparison | PaperTable:
    """Return the comparison of keyword arguments, with sections as dicts.

    Raises
    ------
    ConfigError
        If the settings do not follow the schema.
    """
    return _validated(_kind(settings), settings, "the comparison")


def _kind(settings: dict[str, Any]) -> type[Comparison] | type[PaperTable]:
    return PaperTable if "protocol" in settings else Comparison


def make_config(**settings: Any) -> Config:
    """Return the configuration of keyword arguments, with sections as dicts.

    Raises
    ------
    ConfigError
        If the settings do not follow the schema.

    Examples
    --------
    >>> from bigfs.config import make_config
    >>> config = make_config(
    ...     run="runs/digits", input={"uri": "sklearn:digits"}, n_features_to_select=20
    ... )
    >>> config.graph.n_neighbors
    5
    """
    return _validated(Config, settings, "the configuration")


def dump_yaml(config: BaseModel) -> str:
    """Return a resolved configuration or comparison as YAML that gives the same one when loaded."""
    return write_yaml(config.model_dump(mode="json"))


def json_schema(kind: str = "run") -> dict[str, Any]:
    """Return the JSON schema of a YAML file: of ``run``, ``compare`` or ``paper``."""
    models: dict[str, type[BaseModel]] = {
        "run": Config,
        "compare": Comparison,
        "paper": PaperTable,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **models[kind].model_json_schema(),
    }


def _read(path: str | Path, overrides: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a YAML file with the overrides in place."""
    if not isinstance(path, (str, Path)):
        raise ConfigError(
            f"a configuration is the path of a YAML file or a dict. Got {type(path).__name__}."
        )
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no pipeline file {path}. Give the path of one.") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"Cannot read the pipeline file {path}: it is no text. Start from "
            "pipelines/mcfs.yaml and name the data in it (input.uri)."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"Cannot read the pipeline file {path}: {reason}.") from None
    settings = read_yaml(text, str(path))
    if settings is None:
        raise ConfigError(f"{path} is empty. Start from pipelines/mcfs.yaml.")
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{path} must hold 'key: value' lines at its top level. Got {shown(settings)}."
        )
    for override in overrides:
        _override(settings, override)
    return settings


def _override(settings: dict[str, Any], override: str) -> None:
    """Put the value of ``a.b=value`` into the nested settings."""
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(
            f"--set takes KEY=VALUE with dots between sections, such as graph.n_neighbors=10. "
            f"Got {override!r}."
        )
    section = settings
    for depth, key in enumerate(keys[:-1], start=1):
        below = section.get(key)
        if below is None:
            below = section[key] = {}
        if not isinstance(below, dict):
            raise ConfigError(
                f"--set {override}: '{'.'.join(keys[:depth])}' is {shown(below)}, not a "
                "section with keys."
            )
        section = below
    section[keys[-1]] = read_yaml(text, f"--set {override}")


def _validated(model: type[_Model], settings: dict[str, Any], where: str) -> _Model:
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        problems = [explain(model, detail) for detail in error.errors(include_url=False)]
    if len(problems) == 1:
        raise ConfigError(f"{where}: {problems[0]}")
    lines = "\n".join(f"  {problem}" for problem in problems)
    raise ConfigError(f"{where}: {len(problems)} problems:\n{lines}")
