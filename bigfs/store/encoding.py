"""Columns that are no numbers, as features: booleans, dates, and categories or texts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.fingerprint import changed

Booleans: TypeAlias = Literal["numbers", "drop"]
Dates: TypeAlias = Literal["error", "numbers", "drop"]
Categories: TypeAlias = Literal["error", "numbers", "one_hot", "drop"]
Kind: TypeAlias = Literal["boolean", "date", "category"]
# A column with more values is no category, but an id or free text.
_MOST_VALUES = 1000
_MICROSECONDS_OF_A_DAY = 86_400 * 10**6
_AS = {
    "boolean": "1 for true and 0 for false",
    "date": "days since 1970-01-01",
    "category": "the number of the value in sorted order",
}


@dataclass(frozen=True)
class Encoding:
    """Treatment of columns that are not numbers."""

    booleans: str = "numbers"  # one of "numbers", "drop"
    dates: str = "error"  # one of "error", "numbers", "drop"
    categories: str = "error"  # one of "error", "numbers", "one_hot", "drop": also of texts
    # The values of columns, where they are known: all parts of a table have the same.
    known: Mapping[str, tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        """Raise InputError for a word that is none of the choices."""
        for name, words in (("booleans", Booleans), ("dates", Dates), ("categories", Categories)):
            if getattr(self, name) not in get_args(words):
                choices = ", ".join(map(repr, get_args(words)))
                raise InputError(f"{name} must be one of {choices}. Got {getattr(self, name)!r}.")

    def of(self, kind: str) -> str:
        """Return the rule for columns of a kind."""
        return {"boolean": self.booleans, "date": self.dates, "category": self.categories}[kind]


DEFAULT = Encoding()


@dataclass(frozen=True)
class Encoded:
    """A column that becomes one feature of numbers, or one of 0 and 1 for each of its values."""

    column: str
    kind: str  # one of "boolean", "date", "category"
    values: tuple[str, ...] = ()  # of a category, in order
    one_hot: bool = False

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        if not self.one_hot:
            return [self.column]
        return [f"{self.column}={value}" for value in self.values]

    @property
    def dtype(self) -> np.dtype:
        """The smallest type of floats that holds the numbers."""
        return np.dtype(np.float64 if self.kind == "date" else np.float32)

    @property
    def note(self) -> str:
        """Description of the encoding, in words."""
        how = f"{len(self.values)} columns of 0 and 1" if self.one_hot else _AS[self.kind]
        return f"{self.column!r} as {how}"

    def encode(self, values: Any, uri: str) -> np.ndarray:
        """Return values of the column as features; missing ones are NaN in all of them.

        Parameters
        ----------
        values : pandas Series of shape (n_rows,)
        uri : str
            What messages call the table.

        Returns
        -------
        numbers : ndarray of shape (n_rows, n_features), float64
        """
        import pandas as pd

        missing = values.isna().to_numpy()
        if self.kind == "date":
            try:
                dates = pd.to_datetime(values, utc=True, format="ISO8601")
            except (ValueError, TypeError) as error:
                raise InputError(f"{uri}: column {self.column!r}: {error}.") from None
            stamps = dates.dt.tz_localize(None).to_numpy().astype("datetime64[us]")
            numbers = stamps.astype(np.int64) / _MICROSECONDS_OF_A_DAY
            return np.where(missing, np.nan, numbers)[:, None]
        known = ("false", "true") if self.kind == "boolean" else self.values
        texts = values.astype(object).where(~missing, "").map(str)
        texts = texts.str.lower() if self.kind == "boolean" else texts
        places = pd.Index(known).get_indexer(texts)
        if (places[~missing] < 0).any():
            raise changed(uri)
        if not self.one_hot:
            return np.where(missing, np.nan, places)[:, None]
        hot = (places[:, None] == np.arange(len(known))).astype(np.float64)
        hot[missing] = np.nan
        return hot


def encode_columns(
    kinds: Mapping[str, str], encoding: Encoding, distinct: Callable[[str], Iterable[Any]], uri: str
) -> tuple[dict[str, Encoded], list[str], list[str]]:
    """Return which columns are encoded, which are dropped, and which are refused.

    Parameters
    ----------
    kinds : mapping of str to str
        The kind of each column that is no number.
    encoding : Encoding
    distinct : callable
        ``distinct(column)`` yields the different values of a category, some several times.
    uri : str

    Raises
    ------
    InputError
        If a category has more than 1,000 values.
    """
    encoded, dropped, refused = {}, [], []
    for column, kind in kinds.items():
        choice = encoding.of(kind)
        if choice == "error":
            refused.append(column)
        elif choice == "drop":
            dropped.append(column)
        else:
            values: tuple[str, ...] = ()
            if kind == "category":
                known = (encoding.known or {}).get(column)
                values = known if known is not None else _values(distinct(column), column, uri)
            encoded[column] = Encoded(column, kind, values, choice == "one_hot")
    return encoded, dropped, refused


def notes_of(
    encoded: Iterable[Encoded], dropped: Iterable[str], in_folders: Container[str] = ()
) -> list[str]:
    """Say in a sentence which columns are read as what; nothing where there are none.

    Parameters
    ----------
    encoded : iterable of Encoded
    dropped : iterable of str
    in_folders : container of str, default=()
        Columns whose values are names of folders: no row is read for them.
    """
    encoded = list(encoded)
    parts = [column.note for column in encoded]
    left = [repr(name) for name in dropped]
    notes = [f"read {', '.join(parts)}"] if parts else []
    notes += [f"left out {', '.join(left)}"] if left else []
    settings = "(input.booleans, input.dates, input.categories)"
    read = [
        repr(column.column)
        for column in encoded
        if column.values and column.column not in in_folders
    ]
    first = f"; all rows of {', '.join(read)} are read first, for their values" if read else ""
    return [f"columns that are not numbers: {'; '.join(notes)} {settings}{first}"] if notes else []


def in_order(values: Iterable[str]) -> tuple[str, ...]:
    """Return values in order: by number where all are numbers, else as texts."""
    values = set(values)
    try:
        return tuple(sorted(values, key=float))
    except ValueError:
        return tuple(sorted(values))


def _values(values: Iterable[Any], column: str, uri: str) -> tuple[str, ...]:
    """Return the different values of a column as texts, in order."""
    import pandas as pd

    texts: set[str] = set()
    for value in values:
        if not pd.isna(value):
            texts.add(str(value))
        if len(texts) > _MOST_VALUES:
            raise InputError(
                f"{uri}: column {column!r} has more than {_MOST_VALUES:,} different values, which "
                f'are no categories. Leave it out (input.columns: ["!{column}"]), or take it as '
                "ids (input.index)."
            )
    return in_order(texts)
