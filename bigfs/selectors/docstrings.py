"""Docstrings of selectors: what several have in common, or a model describes, is said once."""

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
    """Bring the parameters of a signature into order: its own fields, then those of its bases."""
    taken = inspect.signature(selector.__init__)  # type: ignore[misc]
    fields = [name for base in selector.__mro__ for name in inspect.get_annotations(base)]
    names = dict.fromkeys(["self", "n_features_to_select", *fields])
    ordered = [taken.parameters[name] for name in names if name in taken.parameters]
    selector.__init__.__signature__ = taken.replace(parameters=ordered)  # type: ignore[misc]


def described(selector: type, model: type[BaseModel]) -> str:
    """Return a section of parameters, as a model of a method's settings describes them.

    Parameters
    ----------
    selector : type
        Its signature has the parameters.
    model : type of BaseModel
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
        # A pipeline's null is None here.
        text = re.sub(r"\bnull\b", "None", field.description)
        entries.append(f"{name} : {kind}, default={default}")
        entries += textwrap.wrap(text, 92, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(["Parameters", "-" * 10, *entries]) if entries else ""


def completed(selector: type, bases: Sequence[str]) -> str:
    """Return a class's docstring with all parameters, as in the signature, and what all have.

    Attributes of all selectors stand behind the first of them. What a fit raises is inherited as
    well. A selector of bigfs without an example gets one.

    Parameters
    ----------
    selector : type
        Its docstring is in numpydoc's form; a description in it is kept.
    bases : sequence of str
        Docstrings of its bases, with descriptions that it may lack, the nearest last.
    """
    sections, shared = _sections(selector.__doc__ or ""), [_sections(base) for base in bases]
    own, known = _entries("Parameters", sections), _entries("Parameters", *shared)
    taken = inspect.signature(selector.__init__).parameters  # type: ignore[misc]
    parameters = [(known | own)[name] for name in taken if name in known | own]
    own, known = _entries("Attributes", sections), _entries("Attributes", *shared)
    attributes = list(own.values())
    first = own.get(next(iter(known), ""))
    behind = 0 if first is None else attributes.index(first) + 1
    attributes[behind:behind] = [known[name] for name in known if name not in own]
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
    """Return the text of each section by its title; the summary has none."""
    summary, *rest = re.split(r"(?:\n\n|^)(?=[A-Z][\w ]+\n-+\n)", inspect.cleandoc(docstring))
    return {"": summary} | {part.split("\n", 1)[0]: part.split("\n", 2)[2] for part in rest}


def _entries(title: str, *docstrings: dict[str, str]) -> dict[str, str]:
    """Return what the sections of a title say of each of their names, the last one first."""
    entries = [
        e for d in docstrings if title in d for e in re.split(r"\n(?=\w)", d[title].rstrip())
    ]
    return {name: entry for entry in entries for name in entry.partition(" :")[0].split(", ")}
