"""Settings from YAML files, ``--set`` and Python, validated against a model.

Unknown keys are refused with a suggestion of the closest known one. Relative paths are relative to
the current directory, as in a shell, not to the folder of the YAML file.
"""

from __future__ import annotations

import copy
import errno
import os
import re
from collections.abc import Iterable
from numbers import Number
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from bigfs.config.messages import explained
from bigfs.core.errors import ConfigError, StorageError
from bigfs.core.paths import read_small
from bigfs.core.text import aligned, shown
from bigfs.core.yamltext import read_yaml, write_yaml

_SHOWN = 100
_Model = TypeVar("_Model", bound=BaseModel)


def read_settings(source: Any, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the settings of a YAML file or a copy of a dict, with overrides applied.

    Parameters
    ----------
    source : str, Path or dict
    overrides : iterable of str, default=()
        ``"a.b=value"`` sets key b of section a; the value is parsed as YAML.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not YAML with keys at its top level.
    """
    if not isinstance(source, (str, Path, dict)):
        raise ConfigError(
            f"a configuration is the path of a YAML file or a dict. Got {type(source).__name__}."
        )
    settings = _plain(source) if isinstance(source, dict) else _read_file(source)
    for override in overrides:
        _override(settings, override)
    return settings


def _plain(value: Any) -> Any:
    """Return a copy of settings from Python, with paths and NumPy scalars as plain values."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Number) and hasattr(value, "item"):
        return value.item()
    return copy.deepcopy(value)


def _read_file(path: str | Path) -> dict[str, Any]:
    """Return the settings of a file, or of the template of that name if there is no such file."""
    try:
        file = Path(path) if os.path.lexists(path) else find_template(path) or Path(path)
        text = read_small(file)
    except FileNotFoundError:
        raise ConfigError(
            f"There is no pipeline file {path}, and no template of that name. Give the path of a "
            f"file, or one of {', '.join(template_names())}."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"Cannot read the pipeline file {path}: it is not a text file. If it holds data, "
            f"'bigfs inspect {path}' proposes a command that reads them."
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
    return settings


def _override(settings: dict[str, Any], override: str) -> None:
    """Set the value of ``a.b=value`` in the nested settings, in place."""
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
        if below is None or (isinstance(below, str) and below == "auto"):  # it may be an array
            below = section[key] = {}
        if not isinstance(below, dict):
            raise ConfigError(
                f"--set {override}: '{'.'.join(keys[:depth])}' is {shown(below)}, not a "
                "section with keys."
            )
        section = below
    section[keys[-1]] = read_yaml(text, f"--set {override[:_SHOWN]}")


def validated(
    model: type[_Model], settings: dict[str, Any], where: str, *, nested: bool = True
) -> _Model:
    """Return an instance of a model, validated from settings.

    Parameters
    ----------
    model : type of BaseModel
    settings : dict
    where : str
        Origin of the settings, for the message.
    nested : bool, default=True
        Whether messages name a setting with its section, as in a YAML file.

    Raises
    ------
    ConfigError
        If the settings do not follow the schema; the message lists all problems, one per line.
    """
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        problems = explained(model, error, nested)
    if len(problems) == 1:
        raise ConfigError(f"{where}: {problems[0]}")
    lines = "\n".join(f"  {problem}" for problem in problems)
    raise ConfigError(f"{where}: {len(problems)} problems:\n{lines}")


def dump_yaml(config: BaseModel) -> str:
    """Return a resolved configuration or comparison as YAML, from which it can be loaded again."""
    return write_yaml(config.model_dump(mode="json"))


def template_names() -> list[str]:
    """Return the names of the templates, such as "mcfs" and "compare/digits"."""
    folder = _folder()
    return sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml"))


def described_templates() -> list[str]:
    """Return one line per template: its name, and the first sentence of its leading comment."""
    names, folder = template_names(), _folder()
    lines = []
    for name in names:
        text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
        lines_of_text = [line for line in text.splitlines() if "$schema=" not in line]
        comment = " ".join(line.removeprefix("#").strip() for line in lines_of_text[:4])
        # The dot after an initial does not end the sentence.
        sentence = re.split(r"(?<=[a-z0-9)])[.?](?:\s|$)", comment, maxsplit=1)[0]
        lines.append([name, sentence])
    return aligned(lines, "<<")


def find_template(name: str | Path) -> Path | None:
    """Return the file of a template; None if there is no template of that name.

    Parameters
    ----------
    name : str or Path
        Name such as "mcfs"; "mcfs.yaml" and "pipelines/mcfs.yaml" are equivalent.
    """
    plain = str(name).removeprefix("pipelines/").removesuffix(".yaml")
    return _folder() / f"{plain}.yaml" if plain in template_names() else None


def write_template(name: str, output: str | None = None) -> tuple[Path, str]:
    """Copy a template to a new file.

    Parameters
    ----------
    name : str
    output : str or None, default=None
        The file to write. None: the file name of the template, in the current folder.

    Returns
    -------
    file : Path
    command : {"run", "compare"}
        The command that accepts the file.

    Raises
    ------
    ConfigError
        If there is no such template, or the file exists or cannot be written.
    StorageError
        If the disk is full; no partial file is left.
    """
    template = find_template(name)
    if template is None:
        raise ConfigError(
            f"There is no template {name!r}. Templates: {', '.join(template_names())}."
        )
    text, file = template.read_text(encoding="utf-8"), Path(output or template.name)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise ConfigError(f"{file} exists. Give another name (-o FILE).") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            file.unlink(missing_ok=True)
            raise StorageError(f"Cannot write {file}: {reason}. Free space.") from None
        raise ConfigError(f"Cannot write {file}: {reason}. Give another name (-o FILE).") from None
    return file, "compare" if "\nmethods:" in text else "run"


def _folder() -> Path:
    """Return the folder of the templates, in the installed package or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "pipelines"
    return installed if installed.is_dir() else package.parent / "pipelines"
