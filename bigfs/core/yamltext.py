"""YAML with 1.2 scalars and merge keys, without duplicate keys; errors name line and column."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import yaml

from bigfs.core.errors import ConfigError

_MOST_DIGITS = 100
# Start of a tag or alias in YAML, where users often mean a pattern of names.
_MARKS = re.compile(r"(?:^|[\s\[{,:])[!*]")
# Pipelines are a few kilobytes, and a megabyte takes about ten seconds to parse.
_MOST_CHARACTERS = 500_000
# Aliases are expanded wherever they occur: nine levels of nine aliases give 400 million values.
_MOST_VALUES = 100_000


def read_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML text: plain values, lists and dicts.

    Parameters
    ----------
    text : str
        The text. Scalars are those of YAML 1.2: ``no`` is a text and ``1e-6`` a number.
    where : str
        Name of the text in error messages.

    Raises
    ------
    ConfigError
        If it is not valid YAML, has a duplicate key or requests Python objects.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            f"{where} has {len(text):,} characters, but a pipeline file has at most "
            f"{_MOST_CHARACTERS:,}. Give the path of a pipeline file."
        )
    try:
        # The class derives from SafeLoader, which does not construct Python objects.
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context
        if "'\\t'" in str(problem):
            problem = "a tab; YAML is indented with spaces"
        lines = text.splitlines()[(error.context_mark or mark).line : mark.line + 1] if mark else []
        if any(_MARKS.search(line.partition("#")[0]) for line in lines):
            problem = f"{problem}. Write names that begin with ! or * in quotes"
        raise ConfigError(f"{where}{at}: {problem}.") from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        raise ConfigError(
            f"{where}, line {line}, column {column}: the character #x{error.character:04x} is "
            "not allowed in a YAML text; remove it."
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not a YAML text: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply to be read; close its brackets.") from None


def write_yaml(value: Any) -> str:
    """Return a YAML text that `read_yaml` reads back as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def as_setting(value: Any) -> str:
    """Return a value for ``--set KEY=VALUE`` on one line, quoted if it is read differently."""
    with suppress(ConfigError):
        if isinstance(value, str) and read_yaml(value, "a setting") == value:
            return value
    return json.dumps(value, ensure_ascii=False)


class _Loader(yaml.SafeLoader):
    """Loader for YAML 1.2 scalars (``no`` is a text, ``1e-6`` a number) without duplicate keys."""

    def get_single_node(self) -> yaml.Node | None:
        """Return the single document; raise an error if its aliases expand to too many values."""
        node = super().get_single_node()
        if node is not None and _n_values(node, {}) > _MOST_VALUES:
            raise _refusal(f"its aliases (*name) stand for more than {_MOST_VALUES:,} values", node)
        return node


def _refusal(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    """Return an error that points to the position of a node."""
    return yaml.MarkedYAMLError(None, None, problem, node.start_mark)


def _n_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values in a node when all aliases are expanded."""
    if id(node) not in known:
        known[id(node)] = 1  # a node that contains itself is refused when it is constructed
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = (part for pair in below for part in (pair if isinstance(pair, tuple) else (pair,)))
        known[id(node)] = 1 + sum(_n_values(part, known) for part in parts)
    return known[id(node)]


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes any text that `_Loader` or another YAML reader would not read as text."""


# tag, pattern, first characters ("" represents an empty value)
_SCALARS: tuple[tuple[str, str, list[str]], ...] = (
    ("null", r"~|null|Null|NULL|", ["", *"~nN"]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
)
_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("<<$"), ["<"])
for _class in (_Loader, _Dumper):
    for _tag, _pattern, _first in _SCALARS:
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first
        )


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    """Construct a mapping and refuse duplicate keys."""
    keys: set[Any] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _refusal("a key must be a plain name", key)
        if key.value in keys:
            raise _refusal(f"the key '{key.value}' appears twice", key)
        keys.add(key.value)
    return loader.construct_mapping(node, deep=True)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Construct an integer of at most 100 digits; Python takes minutes for a million digits."""
    if len(node.value) > _MOST_DIGITS:
        raise _refusal(f"a number has {len(node.value):,} digits", node)
    return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
