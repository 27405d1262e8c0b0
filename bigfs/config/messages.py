"""Messages about an invalid configuration, one line each: key, allowed values, given value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from bigfs.core.text import quoted, shown

_EXPECTED = {
    "bool_type": "true or false",
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "string_type": "a string",
    "string_too_short": "a non-empty string",
    "model_type": "a section with keys",
    "dict_type": "a section with keys",
    "list_type": "a list",
    "too_short": "a non-empty list",
    "string_pattern_mismatch": "auto, raw, pca:p with a number p, obsm/NAME or obsp/NAME",
}
# Names of bigfs's settings in scanpy, Seurat and scikit-learn.
OTHER_NAMES = {
    "n_top_genes": "n_features_to_select",
    "nfeatures": "n_features_to_select",
    "n_selected_features": "n_features_to_select",
    "max_features": "n_features_to_select",
    "n_pcs": "representation",
    "use_rep": "representation",
    "batch": "batch_key",
    "seed": "random_state",
}
_BOUNDS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}


def explained(root: type[BaseModel], error: ValidationError, nested: bool = True) -> list[str]:
    """Return a line for each problem of a validation error of the model ``root``."""
    return [explain(root, detail, nested) for detail in error.errors(include_url=False)]


def explain(root: type[BaseModel], detail: Any, nested: bool = True) -> str:
    """Return one line with the key, the allowed values, the given value and a suggestion.

    ``detail`` is one of pydantic's errors about the model ``root``. If ``nested``, the key is named
    with its section.
    """
    location = [str(part) for part in detail["loc"]]
    name, value, context = ".".join(location), detail["input"], detail.get("ctx", {})
    if not nested and location:
        name = (
            "" if _model_at(root, location) is not _model_at(root, location[:-1]) else location[-1]
        )
    kind = detail["type"]
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown_key(root, location)
    if kind == "missing":
        described = _model_at(root, location[:-1]).model_fields[location[-1]].description
        return f"missing key '{location[-1]}'{_inside(location)}. {described}"
    if kind == "value_error":
        message = str(context["error"]).rstrip(".")
        joint = " " if message.startswith("must ") else ": "
        end = "" if message.endswith("?") else "."
        return f"{name}{joint}{message}{end}" if name else f"{message}{end}"
    if kind == "literal_error":
        groups = re.findall(r"'([^']*)'|(True|False)", context["expected"])
        choices = [text or truth.lower() for text, truth in groups]
        near = nearest(str(value), choices)
        hint = f"; did you mean '{near}'?" if near else "."
        return f"{name} must be one of {', '.join(choices)}. Got {shown(value)}{hint}"
    bounds = [f"{word} {context[key]:g}" for key, word in _BOUNDS.items() if key in context]
    expected = f"a number {bounds[0]}" if bounds else _EXPECTED.get(kind)
    if expected is None:
        return f"{name}: {detail['msg']}. Got {shown(value)}."
    return f"{name} must be {expected}. Got {shown(value)}."


def _unknown_key(root: type[BaseModel], location: Sequence[str]) -> str:
    key, known = location[-1], list(_model_at(root, location[:-1]).model_fields)
    near = nearest(key, known)
    key = OTHER_NAMES.get(key, key)
    elsewhere = [path for path in paths(root) if path[-1] == key]
    if elsewhere and (near is None or key == location[-1]):
        sections = quoted(".".join(path[:-1]) or "the top level" for path in elsewhere)
        hint = f"it belongs in {sections}"
        hint += f", as '{key}'" if key != location[-1] else ""
    else:
        hint = f"did you mean '{near}'?" if near else ""
    text = f"unknown key '{location[-1]}'{_inside(location)}"
    text += f"; {hint}" if hint else ""
    text += "" if text.endswith("?") else "."
    return f"{text} Known: {', '.join(known)}."


def paths(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each setting of a model and of its sections."""
    for name, field in model.model_fields.items():
        yield (*above, name)
        section = _section_of(field.annotation)
        if section is not None:
            yield from paths(section, (*above, name))


def _model_at(root: type[BaseModel], location: Sequence[str]) -> type[BaseModel]:
    model = root
    for name in location:
        field = model.model_fields.get(name)  # None for a position in a list
        model = (field and _section_of(field.annotation)) or model
    return model


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation ``Section`` or ``Section | None``; otherwise None."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, or None.

    That is bigfs's name for a setting of another package, or else the closest spelling.
    """
    known = list(known)
    if OTHER_NAMES.get(word) in known:
        return OTHER_NAMES[word]
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.6)), None)


def _inside(location: Sequence[str]) -> str:
    return f" in '{'.'.join(location[:-1])}'" if len(location) > 1 else " at the top level"
