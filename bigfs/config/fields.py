"""Types of settings, and what all sections have in common."""

from __future__ import annotations

import re
import secrets
from inspect import cleandoc
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from bigfs.core.paths import OBJECT, LabelValues
from bigfs.core.text import shown
from bigfs.core.units import format_bytes, parse_bytes


def fresh_seed(random_state: Any) -> Any:
    """Return a seed as it is, and a new one for None."""
    return secrets.randbits(31) if random_state is None else random_state


def as_section(value: Any) -> Any:
    """Accept null for a section with its defaults."""
    return {} if value is None else value


def as_list(value: Any) -> Any:
    """Accept a single value for a list of one."""
    return value if isinstance(value, list) or value is None else [value]


def _dump_bytes(size: int) -> int | str:
    """Return a readable size where it means the same number of bytes."""
    text = format_bytes(size).replace(",", "")
    return text if parse_bytes(text) == size else size


def any_of(*schemas: dict[str, Any]) -> WithJsonSchema:
    """Return what a type is in the schema of the files: one of several."""
    return WithJsonSchema({"anyOf": [*schemas]})


PositiveInt = Annotated[int, Field(ge=1)]
# null is a fresh seed, which is recorded as if it had been given.
Seed = Annotated[
    int,
    BeforeValidator(fresh_seed),
    Field(ge=0),
    any_of({"type": "integer", "minimum": 0}, {"type": "null"}),
]
NonEmpty = Annotated[str, Field(min_length=1)]
# A list with something in it, or a single value for a list of one.
Names = Annotated[list[NonEmpty], BeforeValidator(as_list), Field(min_length=1)]
Values = Annotated[list[Any], BeforeValidator(as_list), Field(min_length=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Tolerance = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(_dump_bytes),
    any_of({"type": "string"}, {"type": "integer", "minimum": 1}),
]
MemoryLimit = Annotated[
    Bytes,
    Field(description="Resident size promised for one worker process, such as 4 GiB."),
]


def count_or_auto(least: int = 1, most: int | None = None) -> Any:
    """Return the type of a whole number within bounds, or ``auto``."""
    bounds = f"of at least {least}" if most is None else f"in [{least}, {most}]"
    integer = {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})}

    def check(value: Any) -> Any:
        if value == "auto" or (type(value) is int and least <= value <= (most or value)):
            return value
        raise ValueError(f"must be a whole number {bounds}, or auto. Got {shown(value)}")

    return Annotated[int | str, PlainValidator(check), any_of({"const": "auto"}, integer)]


CountOrAuto = count_or_auto()


def _check_width(value: Any) -> float | str:
    """Accept a positive number, or ``median``."""
    if isinstance(value, str) and value == "median":
        return value
    if type(value) in (int, float) and 0 < value < float("inf"):
        return float(value)
    raise ValueError(f"must be a positive number, or median. Got {shown(value)}")


# Width of a heat kernel.
Width = Annotated[
    float | str,
    PlainValidator(_check_width),
    any_of({"const": "median"}, {"type": "number", "exclusiveMinimum": 0}),
]


def _check_start(value: Any) -> Any:
    """Accept a non-empty text, or an array-like."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (list, tuple, LabelValues)) or hasattr(value, "__array__"):
        return value
    raise ValueError(f"must be a non-empty text, or an array. Got {shown(value)}")


def _check_labels(value: Any) -> Any:
    """Accept null, and what a start may be; an array gets a name."""
    if value is None or isinstance(_check_start(value), (str, LabelValues)):
        return value
    return LabelValues(f"{OBJECT}{type(value).__name__}", value)


TEXT = {"type": "string", "minLength": 1}
_NAMED = PlainSerializer(lambda value: value.name if isinstance(value, LabelValues) else value)
# Where an iteration begins: the name of a start, where labels are, or (in Python) an array.
Start = Annotated[Any, PlainValidator(_check_start), _NAMED, WithJsonSchema(TEXT)]
# Where labels are, or (in Python) an array of them.
Labels = Annotated[Any, PlainValidator(_check_labels), _NAMED, any_of(TEXT, {"type": "null"})]


class Section(BaseModel):
    """Strict (no ``true`` for 1, no "5" for 5), frozen, and closed to unknown keys.

    What users read about a setting is said in the docstring of its section, below "Attributes".
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        defer_build=True,  # when a model is first used, not at the start
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Take the descriptions of settings out of the docstring."""
        summary, _, entries = cleandoc(cls.__doc__ or "").partition("\n\nAttributes\n----------\n")
        for name, text in re.findall(r"^(\w+)\n((?: +.+\n?)+)", entries, re.M):
            cls.model_fields[name].description = " ".join(text.split())
        cls.__doc__ = summary


def fill(section: BaseModel, name: str, value: Any) -> None:
    """Resolve a null; a section is frozen only once its validators are through."""
    if getattr(section, name) is None:
        object.__setattr__(section, name, value)
