"""Build the docstrings of selectors from shared text, so that it is written only once."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

_EXAMPLE = """>>> from sklearn.datasets import load_iris
>>> from bigfs import {name}
>>> {name}({settings}).fit_transform(load_iris().data).shape
(150, 2)"""


def by_nearest(selector: type) -> None:
    """Order the parameters of a selector's signature: own fields first, then those of its bases."""
    taken = inspect.signature(selector.__init__)  # type: ignore[misc]
    fields = [name for base in selector.__mro__ for name in inspect.get_annotations(base)]
    names = dict.fromkeys(["self", "n_features_to_select", *fields])
    ordered = [taken.parameters[name] for name in names if name in taken.parameters]
    selector.__init__.__signature__ = taken.replace(parameters=ordered)  # type: ignore[misc]


def described(selector: type, model: type[BaseModel]) -> str:
    """Return a "Parameters" section made from the field descriptions of a settings model.

    Parameters
    ----------
    selector : type
        Selector whose signature determines the parameters, their types and defaults.
    model : type of BaseModel
        Settings model of the method.

    Returns
    -------
    section : str
        Empty if the model describes none of the parameters.
    """
    entries = []
    for name, taken in inspect.signature(selector.__init__).parameters.items():  # type: ignore[misc]
        field = model.model_fields.get(name)
        if field is None or not field.description:
            continue
        kind = str(taken.annotation).replace(" | ", " or ")
        if get_origin(field.annotation) is Literal:
            kind = "{" + ", ".join(f'"{choice}"' for choice in get_args(field.annotation)) + "}"
        default = f'"{taken.default}"' if isinstance(taken.default, str) else taken.default
        # Descriptions are written for YAML pipelines, where None is spelled null.
        text = re.sub(r"\bnull\b", "None", field.description)
        entries.append(f"{name} : {kind}, default={default}")
        entries += textwrap.wrap(text, 92, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(["Parameters", "-" * 10, *entries]) if entries else ""


def completed(selector: type, bases: Sequence[str]) -> str:
    """Return the docstring of a selector, completed with inherited descriptions.

    All parameters of the signature are listed, in its order. Attributes that all selectors share
    are inserted after the first of them that the bases describe, or at the beginning if the class
    does not describe that one. The "Raises" section is inherited if the class has none. A selector
    of bigfs without an example gets one.

    Parameters
    ----------
    selector : type
        Class with a numpydoc docstring. Its own descriptions take precedence.
    bases : sequence of str
        Docstrings of its bases, which provide missing descriptions; the nearest base comes last.
    """
    sections, shared = _sections(selector.__doc__ or ""), [_sections(base) for base in bases]
    own, known = _entries("Parameters", sections), _entries("Parameters", *shared)
    taken = inspect.signature(selector.__init__).parameters  # type: ignore[misc]
    parameters = [(known | own)[name] for name in taken if name in known | own]
    own, known = _entries("Attributes", sections), _entries("Attributes", *shared)
    attributes = list(own.values())
    first = own.get(next(iter(known), ""))
    position = 0 if first is None else attributes.index(first) + 1
    attributes[position:position] = [known[name] for name in known if name not in own]
    merged = {
        "": sections.pop(""),
        "Parameters": "\n".join(dict.fromkeys(parameters)),
        "Attributes": "\n".join(dict.fromkeys(attributes)),
        "Raises": (reduce(or_, shared, {}) | sections).get("Raises", ""),
    }
    merged |= {title: text for title, text in sections.items() if title not in merged}
    if selector.__module__.startswith("bigfs."):
        settings = "n_features_to_select=2" + ", n_clusters=3" * ("n_clusters" in taken)
        merged.setdefault("Examples", _EXAMPLE.format(name=selector.__name__, settings=settings))
    return "\n\n".join(
        f"{title}\n{'-' * len(title)}\n{text}" if title else text
        for title, text in merged.items()
        if text
    )


def _sections(docstring: str) -> dict[str, str]:
    """Return the text of each section by title; the title of the summary is empty."""
    summary, *rest = re.split(r"(?:\n\n|^)(?=[A-Z][\w ]+\n-+\n)", inspect.cleandoc(docstring))
    return {"": summary} | {part.split("\n", 1)[0]: part.split("\n", 2)[2] for part in rest}


def _entries(title: str, *docstrings: dict[str, str]) -> dict[str, str]:
    """Return the entry of each name in the sections with a title; later docstrings override."""
    entries = [
        e for d in docstrings if title in d for e in re.split(r"\n(?=\w)", d[title].rstrip())
    ]
    return {name: entry for entry in entries for name in entry.partition(" :")[0].split(", ")}
