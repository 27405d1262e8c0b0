"""Settings of an input: its address, its missing values, and the rows that are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from bigfs.config.fields import NonEmpty, PositiveInt, Section, as_list
from bigfs.core.checks import check_rows
from bigfs.core.uris import as_text


def _as_uri(value: Any) -> Any:
    """Return a list of sources as one text."""
    is_list = isinstance(value, list) and all(isinstance(entry, str) and entry for entry in value)
    return as_text(value) if is_list and value else value


Uri = Annotated[
    str,
    BeforeValidator(_as_uri),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ]
        }
    ),
]


Missing = Annotated[
    Literal["error", "mean", "zero", "drop_rows"],
    Field(
        description="NaN: stop and name the first, replace by the column's mean or by zero, or "
        "drop the row. Infinities always stop.",
    ),
]


class MissingConfig(Section):
    """Policy for missing values, where there is no input section."""

    missing: Missing = "error"


class CsvConfig(Section):
    """Spelling of a text table; bigfs inspect proposes what a file needs."""

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = Field(
        None,
        description="Character between cells; a blank: one blank or more. null: a comma, in "
        ".tsv and .tab a tab.",
    )
    decimal: Literal[".", ","] = Field(".", description="Character before decimals.")
    comment: Annotated[str, Field(min_length=1, max_length=1)] | None = Field(
        None, description="Character that begins a comment, to the end of the line."
    )
    na_values: Annotated[list[str | int | float], BeforeValidator(as_list)] | None = Field(
        None, description="More cells that stand for a missing value, such as ? or -9999."
    )
    encoding: NonEmpty = Field("utf-8", description="Encoding of the texts, such as latin-1.")
    skip_rows: Annotated[int, Field(ge=0)] = Field(0, description="Lines before the table.")


class RowsConfig(Section):
    """Rows of the input that are read."""

    every: PositiveInt | None = Field(None, description="Every k-th row, from the first on.")
    column: NonEmpty | None = Field(
        None,
        description="Ids, known classes or a measure of quality: a column (or array) of the input, "
        "or FILE::COLUMN. It is not a feature.",
    )
    keep: Annotated[list[Any], BeforeValidator(as_list), Field(min_length=1)] | None = Field(
        None, description="Values of the column: rows with one of them are read."
    )
    drop: Annotated[list[Any], BeforeValidator(as_list), Field(min_length=1)] | None = Field(
        None, description="Values of the column: rows with one of them are left out."
    )
    at_least: float | None = Field(None, description="Smallest value of the column that is read.")
    at_most: float | None = Field(None, description="Largest value of the column that is read.")

    @model_validator(mode="after")
    def _conditions_go_with_a_column(self) -> RowsConfig:
        check_rows(self.model_dump(exclude_none=True))
        return self
