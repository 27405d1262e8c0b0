"""Columns that are no numbers, as features: booleans, dates, and categories or texts."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.fingerprint import changed
from bigfs.store.values import refusing

Booleans: TypeAlias = Literal["numbers", "drop"]
Dates: TypeAlias = Literal["error", "numbers", "drop"]
Categories: TypeAlias = Literal["error", "numbers", "one_hot", "drop"]
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

    def of(self, kind: str | None) -> str:
        """Return the rule for columns of a kind."""
        rules = {"boolean": self.booleans, "date": self.dates, "category": self.categories}
        return rules.get(kind or "", "error")


DEFAULT = Encoding()


@dataclass(frozen=True)
class Column:
    """A column of a table, which becomes one feature or several."""

    name: str
    # "number", "list" (of `size` numbers), "boolean", "date" or "category"; None: of no such kind.
    kind: str | None
    dtype: np.dtype = np.dtype(np.float32)  # the smallest type of floats that holds the numbers
    size: int = 1
    values: tuple[str, ...] = ()  # of a category that is encoded, in order
    one_hot: bool = False

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        if self.kind == "list":
            return [f"{self.name}[{i}]" for i in range(self.size)]
        return [f"{self.name}={v}" for v in self.values] if self.one_hot else [self.name]

    @property
    def is_plain(self) -> bool:
        """True if its values are numbers as they are."""
        return self.kind in ("number", "boolean")

    @property
    def note(self) -> str:
        """Description of the encoding, in words."""
        how = f"{len(self.values)} columns of 0 and 1" if self.one_hot else _AS[str(self.kind)]
        return f"{self.name!r} as {how}"

    def encode(self, values: Any, uri: str) -> np.ndarray:
        """Return dates or categories as features; missing ones are NaN in all of them.

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
            with refusing(f"{uri}: column {self.name!r}", ValueError, TypeError):
                dates = pd.to_datetime(values, utc=True, format="ISO8601")
            stamps = dates.dt.tz_localize(None).to_numpy().astype("datetime64[us]")
            numbers = stamps.astype(np.int64) / _MICROSECONDS_OF_A_DAY
            return np.where(missing, np.nan, numbers)[:, None]
        texts = values.astype(object).where(~missing, "").map(str)
        places = pd.Index(self.values).get_indexer(texts)
        if (places[~missing] < 0).any():
            raise changed(uri)
        if not self.one_hot:
            return np.where(missing, np.nan, places)[:, None]
        hot = (places[:, None] == np.arange(len(self.values))).astype(np.float64)
        hot[missing] = np.nan
        return hot


def notes_of(
    encoded: Iterable[Column], dropped: Iterable[str], in_folders: Container[str] = ()
) -> list[str]:
    """Say in a sentence which columns are read as what; nothing where there are none.

    Parameters
    ----------
    encoded : iterable of Column
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
        repr(column.name) for column in encoded if column.values and column.name not in in_folders
    ]
    first = f"; all rows of {', '.join(read)} are read first, for their values" if read else ""
    return [f"columns that are not numbers: {'; '.join(notes)} {settings}{first}"] if notes else []


def in_order(values: Iterable[str]) -> tuple[str, ...]:
    """Return values in order: by number where all are numbers, else as texts."""
    values = set(values)
    try:
        # Of texts of one number, such as 1 and 01, and of nan the text decides.
        return tuple(sorted(values, key=lambda v: (isnan(float(v)), float(v), v)))
    except ValueError:
        return tuple(sorted(values))


def distinct_values(values: Iterable[Any], column: str, uri: str) -> tuple[str, ...]:
    """Return the different values of a column as texts, in order.

    Raises
    ------
    InputError
        If there are more than 1,000.
    """
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
