"""Docstrings of selectors: parameters that several have are described once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_PARAMETERS = "Parameters\n----------\n"
_ATTRIBUTES = "Attributes\n----------\n"


def completed(docstring: str, init: Callable[..., Any], common: str) -> str:
    """Return a class's docstring with a description of every parameter, as in the signature.

    Parameters
    ----------
    docstring : str
        In numpydoc's form; a description in it is kept.
    init : callable
        The ``__init__`` of the class.
    common : str
        A docstring with the descriptions that may be missing in the first.
    """
    before, own, after = _parts(docstring)
    known = _parts(common)[1] | own
    names = [name for name in inspect.signature(init).parameters if name in known]
    entries = dict.fromkeys(known[name] for name in names)
    return "\n\n".join(filter(None, [before, _PARAMETERS + "\n".join(entries), after]))


def _parts(docstring: str) -> tuple[str, dict[str, str], str]:
    """Return the text before the parameters, their descriptions by name, and the text after."""
    head, mark, rest = inspect.cleandoc(docstring).partition(_ATTRIBUTES)
    before, _, section = head.partition(_PARAMETERS)
    entries = re.split(r"\n(?=\w)", section.rstrip())
    named = {name: entry for entry in entries for name in entry.partition(" :")[0].split(", ")}
    return before.rstrip(), named, mark + rest
