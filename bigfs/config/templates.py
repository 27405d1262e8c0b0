"""The pipeline files that come with bigfs, found by name."""

from __future__ import annotations

from pathlib import Path

from bigfs.core.errors import ConfigError


def template_names() -> list[str]:
    """Return the names of the templates, such as "mcfs" and "compare/digits"."""
    folder = _folder()
    return sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml"))


def find_template(name: str | Path) -> Path | None:
    """Return the file of a template, None if there is none of that name.

    Parameters
    ----------
    name : str or Path
        Such as "mcfs"; "mcfs.yaml" and "pipelines/mcfs.yaml" name the same one.
    """
    plain = str(name).removeprefix("pipelines/").removesuffix(".yaml")
    return _folder() / f"{plain}.yaml" if plain in template_names() else None


def write_template(name: str, output: str | None = None) -> tuple[Path, str]:
    """Copy a template.

    Parameters
    ----------
    name : str
    output : str or None, default=None
        The file to write. None: the template's own name, in the current folder.

    Returns
    -------
    file : Path
    command : {"run", "compare"}
        The command that takes it.

    Raises
    ------
    ConfigError
        If there is no such template, or the file is there or cannot be written.
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
        raise ConfigError(f"Cannot write {file}: {reason}. Give another name (-o FILE).") from None
    return file, "compare" if "\nmethods:" in text else "run"


def _folder() -> Path:
    """Return the folder of the templates: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "pipelines"
    return installed if installed.is_dir() else package.parent / "pipelines"
