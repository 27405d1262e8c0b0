"""Types of settings, and the base class of all sections."""

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
    """Return a seed unchanged, or a random one for None."""
    return secrets.randbits(31) if random_state is None else random_state


def as_section(value: Any) -> Any:
    """Return an empty section, which gets its defaults, for null; other values are unchanged."""
    return {} if value is None else value


def as_list(value: Any) -> Any:
    """Return a list of one for a single value; lists and null are unchanged."""
    return value if isinstance(value, list) or value is None else [value]


def _dump_bytes(size: int) -> int | str:
    """Return a size as readable text if that is exact, otherwise as a number of bytes."""
    text = format_bytes(size).replace(",", "")
    return text if parse_bytes(text) == size else size


def any_of(*schemas: dict[str, Any]) -> WithJsonSchema:
    """Return the JSON schema of a type that accepts any of several schemas."""
    return WithJsonSchema({"anyOf": [*schemas]})


PositiveInt = Annotated[int, Field(ge=1)]
# null is replaced by a random seed, which is recorded as if it had been given.
Seed = Annotated[
    int,
    BeforeValidator(fresh_seed),
    Field(ge=0),
    any_of({"type": "integer", "minimum": 0}, {"type": "null"}),
]
NonEmpty = Annotated[str, Field(min_length=1)]
# A non-empty list, or a single value as a list of one.
Names = Annotated[list[NonEmpty], BeforeValidator(as_list), Field(min_length=1)]
Values = Annotated[list[Any], BeforeValidator(as_list), Field(min_length=1)]
# Squares and products of larger numbers overflow.
PositiveFloat = Annotated[float, Field(gt=0, le=1e100)]
NotNegative = Annotated[float, Field(ge=0, le=1e100)]
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
    Field(description="Maximum resident size of one worker process, such as 4 GiB."),
]


def count_or_auto(least: int = 1, most: int | None = None) -> Any:
    """Return the type of a setting that is an integer within bounds, or ``auto``."""
    bounds = f"of at least {least}" if most is None else f"in [{least}, {most}]"
    integer = {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})}

    def check(value: Any) -> Any:
        if value == "auto" or (type(value) is int and least <= value <= (most or value)):
            return value
        raise ValueError(f"must be a whole number {bounds}, or auto. Got {shown(value)}")

    return Annotated[int | str, PlainValidator(check), any_of({"const": "auto"}, integer)]


CountOrAuto = count_or_auto()


def _check_width(value: Any) -> float | str:
    """Return a positive number as a float, or ``median``; raise ValueError for other values."""
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
    """Return a non-empty string or an array-like unchanged; raise ValueError for other values."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (list, tuple, LabelValues)) or hasattr(value, "__array__"):
        return value
    raise ValueError(f"must be a non-empty string, or an array. Got {shown(value)}")


def _check_labels(value: Any) -> Any:
    """Return null or a valid start; an array is wrapped as `LabelValues` with a name."""
    if value is None or isinstance(_check_start(value), (str, LabelValues)):
        return value
    return LabelValues(f"{OBJECT}{type(value).__name__}", value)


TEXT = {"type": "string", "minLength": 1}
_NAMED = PlainSerializer(lambda value: value.name if isinstance(value, LabelValues) else value)
# Initial values of an iteration: the name of a method, the URI of labels, or (in Python) an array.
Start = Annotated[Any, PlainValidator(_check_start), _NAMED, WithJsonSchema(TEXT)]
# URI of labels, or (in Python) an array of them.
Labels = Annotated[Any, PlainValidator(_check_labels), _NAMED, any_of(TEXT, {"type": "null"})]


class Section(BaseModel):
    """Base of all sections: strict (no ``true`` for 1, no "5" for 5), frozen, no unknown keys.

    The descriptions that users see of the settings come from the docstring of their section, below
    "Attributes".
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        defer_build=True,  # validators are built when a model is first used, not on import
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Move the descriptions of settings from the docstring to the fields."""
        summary, _, entries = cleandoc(cls.__doc__ or "").partition("\n\nAttributes\n----------\n")
        for name, text in re.findall(r"^(\w+)\n((?: +.+\n?)+)", entries, re.M):
            cls.model_fields[name].description = " ".join(text.split())
        cls.__doc__ = summary


def fill(section: BaseModel, name: str, value: Any) -> None:
    """Set a setting that is null, bypassing the freezing of its section (for validators)."""
    if getattr(section, name) is None:
        object.__setattr__(section, name, value)
