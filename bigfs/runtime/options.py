"""Options of commands that are settings of an input, as its section declares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import click

from bigfs.config.loading import validated
from bigfs.config.sections import InputConfig
from bigfs.core.yamltext import read_yaml

# Settings that are texts even where they look like numbers.
_TEXTS = ("variable", "layer", "index", "labels")


def settings_of_input(*names: str) -> Callable[[Any], Any]:
    """Add an option to a command for each of some settings of the input, as they are declared."""

    def add(command: Any) -> Any:
        for name in reversed(names):
            field = InputConfig.model_fields[name]
            choices = [str(value).lower() for value in get_args(field.annotation)]
            is_choice = get_origin(field.annotation) is Literal
            option = click.option(
                f"--{name.replace('_', '-')}",
                type=click.Choice(choices) if is_choice else str,
                metavar=None if is_choice else "NAME" if name in _TEXTS else "VALUE",
                help=(field.description or "").replace("null:", "Default:"),
            )
            command = option(command)
        return command

    return add


def read_input(uri: str, settings: dict[str, str | None]) -> InputConfig:
    """Return the settings of an input that options give; values are read as in --set."""
    given = {
        name: text if name in _TEXTS else read_yaml(text, f"--{name}")
        for name, text in settings.items()
        if text is not None
    }
    return validated(InputConfig, {"uri": uri, **given}, "the options", nested=False)
