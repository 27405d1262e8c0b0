"""Columns of a table: features, row ids and labels, and the encoding of non-numeric columns.

Booleans, dates, categories and strings can be used as features. Labels never are.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, check_choice
from bigfs.core.paths import SOURCE
from bigfs.store.fingerprint import changed
from bigfs.store.values import refusing

# Maximum number of columns named in one message; a file that is not a numeric table may have
# thousands.
_NAMED = 100
# Maximum number of first rows, and of values in them, checked for columns that are not
# measurements, and the minimum number of rows for this check. Then the number of such columns up to
# which they are taken for ids.
_LOOKED_AT_ROWS, _LOOKED_AT_VALUES, _FEWEST_ROWS = 10_000, 10**6, 20
_MOST_IDS = 3
# Names have a common form if at least this many, and this share of all, match it. Then the number
# of deviating names that are shown.
_FEWEST_ALIKE, _ALIKE, _SHOWN_NAMES = 5, 0.8, 5
# Number of first rows used to detect features with different units, and the minimum ratio of their
# ranges: over all rows, and over the central 95 % of the rows.
_UNIT_ROWS, _UNITS, _INNER_UNITS = 1000, 100, 30
# A range below this fraction of the values may be due to rounding.
_ROUNDING = 1e-6
# Supported encodings of non-numeric columns.
_CHOICES = {
    "booleans": ("numbers", "drop"),
    "dates": ("error", "numbers", "drop"),
    "categories": ("error", "numbers", "one_hot", "drop"),
}
# A column with more distinct values is not a category, but an id or free text.
_MOST_VALUES = 1000
_MICROSECONDS_OF_A_DAY = 86_400 * 10**6
_CODES = {
    "boolean": "1 for true and 0 for false",
    "date": "days since 1970-01-01",
    "category": "the number of the value in sorted order",
}


@dataclass(frozen=True)
class Encoding:
    """Encoding of non-numeric columns."""

    booleans: str = "numbers"
    dates: str = "error"
    categories: str = "error"  # also applies to strings
    # Distinct values of columns if already known, so that all parts of a table use the same.
    known: Mapping[str, tuple[str, ...]] | None = None
    kinds: Mapping[str, str] | None = None  # their kinds, for parts where they have no value

    def __post_init__(self) -> None:
        """Raise InputError if an option is not one of its choices."""
        for name, words in _CHOICES.items():
            check_choice(name, getattr(self, name), words)

    def of(self, kind: str | None) -> str | None:
        """Return the rule for columns of a kind; None for numbers, which need no encoding."""
        rules = {"boolean": self.booleans, "date": self.dates, "category": self.categories}
        return None if kind in ("number", "list") else rules.get(kind or "", "error")


DEFAULT = Encoding()


@dataclass(frozen=True)
class Column:
    """A column of a table, which yields one or more features."""

    name: str
    # "number", "list" (of `size` numbers), "boolean", "date" or "category"; None for any other
    # kind.
    kind: str | None
    dtype: np.dtype = np.dtype(np.float32)  # the smallest float type that can represent the numbers
    size: int = 1
    values: tuple[str, ...] = ()  # sorted values of an encoded category
    one_hot: bool = False

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        if self.kind == "list":
            return [f"{self.name}[{i}]" for i in range(self.size)]
        return [f"{self.name}={v}" for v in self.values] if self.one_hot else [self.name]

    @property
    def is_plain(self) -> bool:
        """True if its values can be used as numbers without encoding."""
        return self.kind in ("number", "boolean")

    @property
    def note(self) -> str:
        """Description of the encoding for messages."""
        how = f"{len(self.values)} columns of 0 and 1" if self.one_hot else _CODES[str(self.kind)]
        return f"{self.name!r} as {how}"

    def encode(self, values: Any, uri: str) -> np.ndarray:
        """Return dates or categories encoded as features; missing values are NaN in all of them.

        Parameters
        ----------
        values : pandas Series of shape (n_rows,)
        uri : str
            Name of the table used in error messages.

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
    encoded: Sequence[Column], dropped: Iterable[str], in_folders: Container[str] = ()
) -> list[str]:
    """Return a note on how non-numeric columns are encoded; an empty list if there are none.

    Parameters
    ----------
    encoded : sequence of Column
    dropped : iterable of str
    in_folders : container of str, default=()
        Columns whose values come from folder names, without reading rows.
    """
    parts = [column.note for column in encoded]
    left = [repr(name) for name in dropped]
    notes = [f"read {', '.join(parts)}"] if parts else []
    notes += [f"left out {', '.join(left)}"] if left else []
    settings = "(input.booleans, input.dates, input.categories)"
    read = [
        repr(column.name) for column in encoded if column.values and column.name not in in_folders
    ]
    first = f"; all rows of {', '.join(read)} are read first to find their values" if read else ""
    return [f"columns that are not numbers: {'; '.join(notes)} {settings}{first}"] if notes else []


def in_order(values: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct values sorted: as numbers if all are numeric, else as strings."""
    values = set(values)
    try:
        # Strings of equal value, such as 1 and 01, are sorted as strings. So are those of nan,
        # which come last because they do not compare as numbers.
        numbers = {text: float(text) for text in values}
        of_nan = {text: math.isnan(number) for text, number in numbers.items()}
        return tuple(sorted(values, key=lambda v: (of_nan[v], of_nan[v] or numbers[v], v)))
    except ValueError:
        return tuple(sorted(values))


def distinct_values(values: Iterable[Any], column: str, uri: str) -> tuple[str, ...]:
    """Return the distinct values of a column as sorted strings.

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
                f"{uri}: column {column!r} has more than {_MOST_VALUES:,} different values, too "
                f'many for categories. Leave it out (input.columns: ["!{column}"]), or use it as '
                "row ids (input.index)."
            )
    return in_order(texts)


@dataclass(frozen=True)
class Roles:
    """The roles of the columns of a table: features, row ids, labels."""

    # Names, globs or ranges of the features; those prefixed with ``!`` are excluded. None: all.
    columns: tuple[str, ...] | None = None
    index: str | None = None  # column with the row ids
    # Columns with known classes. ``source``, for several sources, need not be a column.
    labels: tuple[str, ...] = ()
    # For a part of a table: columns with a constant value, taken from the names of the folders that
    # contain it, as Arrow scalars.
    partitions: Mapping[str, Any] | None = None
    encoding: Encoding = DEFAULT  # encoding of non-numeric columns

    @property
    def given(self) -> dict[str, Any]:
        """The given settings that only apply to tables, by name."""
        of_columns = {"columns": self.columns, "index": self.index}
        given = {name: value for name, value in of_columns.items() if value is not None}
        for name in _CHOICES:
            if getattr(self.encoding, name) != getattr(DEFAULT, name):
                given[name] = getattr(self.encoding, name)
        return given

    def features(self, names: list[str], uri: str) -> list[int]:
        """Return the positions of the features among the columns of a table.

        Raises
        ------
        InputError
            If a name or pattern matches no column, or no feature is left.
        """
        wanted = [p for p in self.columns or () if not p.startswith("!") or p in names]
        kept = set(names if not wanted else ())
        for pattern in wanted:
            kept |= _matching(pattern, names, uri)
        for pattern in self.columns or ():
            if pattern not in wanted:
                kept -= _matching(pattern[1:], names, uri)
        for name in (*self.labels, *([] if self.index is None else [self.index])):
            if name == SOURCE and name not in names:
                continue
            kept -= _matching(name, names, uri, exact=True)
        if not kept:
            raise InputError(
                f"{uri}: of {len(names):,} columns, none is left as a feature. Choose others "
                "(input.columns, --columns, columns=)."
            )
        return [position for position, name in enumerate(names) if name in kept]


ALL_FEATURES = Roles()


def roles_of(columns: object, index: object, labels: object, encoding: Encoding) -> Roles:
    """Return the roles described by the arguments; a single name is accepted in place of a list.

    Raises
    ------
    InputError
        If they are not column names.
    """

    def names(what: str, value: object) -> tuple[str, ...]:
        entries = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else value
        entries = () if value is None else tuple(entries)
        if not all(isinstance(name, str) and name for name in entries):
            raise InputError(f"{what} must be column names, as texts. Got {value!r}.")
        return entries

    if index is not None and not (isinstance(index, str) and index):
        raise InputError(f"index must be the name of a column. Got {index!r}.")
    chosen = names("columns", columns)
    return Roles(chosen or None, index, names("labels", labels), encoding=encoding)


def refuse_unusable(
    unusable: Mapping[str, str],
    roles: Roles,
    uri: str,
    *,
    dropped_by: str = "",
) -> None:
    """Raise one InputError naming all non-numeric columns that would be features.

    Parameters
    ----------
    unusable : mapping of str to str
        Content of each of these columns, such as "text (line 2: 'Berlin')".
    roles : Roles
    uri : str
    dropped_by : str, default=""
        For a frame ``X``: the call that drops columns, with a placeholder for their names.
    """
    if not unusable:
        return
    many = len(unusable) > 1
    descriptions = [f"column {name!r} holds {what}" for name, what in unusable.items()]
    more = f"; and {len(descriptions) - _NAMED:,} more" if len(descriptions) > _NAMED else ""
    raise InputError(
        f"{uri}: {len(unusable)} {'columns do' if many else 'column does'} not hold numbers: "
        f"{'; '.join(descriptions[:_NAMED])}{more}. "
        f"{_cure(unusable, roles, dropped_by)}"
    )


def _cure(unusable: Iterable[str], roles: Roles, dropped_by: str) -> str:
    """Return instructions for excluding or encoding columns."""
    others = list(unusable)
    if len(others) > _NAMED:
        return "Name those to keep (input.columns, --columns, columns=), or check the separator."
    patterns = json.dumps(
        [*(roles.columns or ()), *(f"!{name}" for name in others)], ensure_ascii=False
    )
    if dropped_by:
        return (
            f"Leave them out with {dropped_by.format(others)} or bigfs.open_matrix(X, "
            f"columns={patterns}), or encode them: open_matrix(X, categories='one_hot', "
            "dates='numbers')."
        )
    given = shlex.quote(f"input.columns={patterns}")
    return (
        f"Leave them out with --set {given} (ingest: --columns {shlex.quote(patterns)}; Python: "
        f"columns={patterns}), or encode them (input.categories, input.dates). Set input.index to "
        "a column of row ids, and input.labels to one of known classes."
    )


def unlike_others(names: Iterable[str]) -> list[str]:
    """Return the names whose form differs from most, such as a word among wavelengths."""
    forms = {name: re.sub(r"[\d.]+", "0", name) for name in names}
    form, count = Counter(forms.values()).most_common(1)[0] if forms else ("", 0)
    if "0" not in form or count < max(_FEWEST_ALIKE, _ALIKE * len(forms)):
        return []
    return [name for name, own in forms.items() if own != form]


def note_on_names(source: Any) -> str:
    """Return a note on features whose names differ in form from the others; empty if none do."""
    names = unlike_others(source.feature_names or ())
    if not names:
        return ""
    shown = []
    for name in names[:_SHOWN_NAMES]:  # features of an encoded column are shown as that column
        columns = (column for column in source.categories if name.startswith(f"{column}="))
        shown.append(f"!{next(columns, name)}")
    patterns = json.dumps(list(dict.fromkeys(shown)), ensure_ascii=False)
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    return (
        f"Features whose names differ from the others and which may not be features: "
        f"{', '.join(names[:_SHOWN_NAMES])}{more}. To leave them out: input.columns={patterns}, in "
        "Python columns= of bigfs.open_matrix."
    )


def suspicious_columns(source: Any, y: np.ndarray | None = None) -> list[str]:
    """Return notes on named columns that look like ids or equal the labels.

    Only the first rows are checked. A column looks like an id if its values are integers and all
    distinct; if many columns do, they are taken for measurements.

    Parameters
    ----------
    source : RandomAccessSource
    y : ndarray of shape (n_samples,), int64, or None, default=None
        Known classes to compare with.
    """
    names = source.feature_names
    rows = min(source.n_samples, _LOOKED_AT_ROWS, _LOOKED_AT_VALUES // source.n_features)
    if not names or rows < _FEWEST_ROWS:
        return []
    X = source.read(0, rows)
    if not isinstance(X, np.ndarray):  # sparse counts, which are not ids
        return []
    sentences, are_integers = [], (X == np.rint(X)).all(axis=0)
    ids = [j for j in np.flatnonzero(are_integers).tolist() if len(np.unique(X[:, j])) == rows]
    if len(ids) <= _MOST_IDS:
        sentences = [f"{names[j]!r} looks like an id: whole numbers, all different." for j in ids]
    suspects = [names[j] for j in ids[: len(sentences)]]
    if y is not None and y[:rows].any():
        classes, first = np.unique(y[:rows], return_index=True)
        within = (X == X[first[np.searchsorted(classes, y[:rows])]]).all(axis=0)
        for j in np.flatnonzero(within).tolist():
            if len(np.unique(X[first, j])) == len(classes):
                sentences.append(f"{names[j]!r} equals the labels.")
                suspects.append(names[j])
    if sentences:
        patterns = json.dumps([f"!{name}" for name in suspects], ensure_ascii=False)
        given = shlex.quote(f"input.columns={patterns}")
        sentences[-1] += f" It counts as a feature; to leave it out: --set {given}."
    return sentences


def different_units(source: Any) -> str:
    """Return a note if dense features seem to have different units; else an empty string.

    Units are taken to differ if, in the first rows, the largest range of a feature is more than 100
    times the 5th percentile of all ranges, and still more than 30 times without the outermost rows
    of each feature, since a single outlier is no evidence of a unit. Nonnegative integers are
    counts or pixels, which share a unit. A range that may be due to rounding counts as a large one,
    such as that of a time, but never as a small one.

    Parameters
    ----------
    source : Source
    """
    if source.sparse or source.read_once:
        return ""
    n_rows = max(_FEWEST_ROWS, min(_UNIT_ROWS, _LOOKED_AT_VALUES // source.n_features))
    rows, n = [], 0
    with suppress(InputError):  # invalid values are reported when all rows are read
        for block in source.iter_blocks(n_rows):
            rows.append(np.asarray(block)[: n_rows - n])
            n += len(rows[-1])
            if n == n_rows:
                break
    if not n:
        return ""
    X = np.concatenate(rows)
    with np.errstate(invalid="ignore", over="ignore"):
        least, most = np.fmin.reduce(X, initial=np.inf), np.fmax.reduce(X, initial=-np.inf)
        spans = most.astype(np.float64) - least
        varying = np.flatnonzero(np.isfinite(spans) & (spans > 0))
        far = np.maximum(np.abs(least), np.abs(most))[varying]
        exact = spans[varying] > _ROUNDING * far
        counts = least.min() >= 0 and bool(((X == np.floor(X)) | np.isnan(X)).all())
    if counts or not _differ(spans[varying], exact, _UNITS):
        return ""
    inner = np.diff(np.nanquantile(X[:, varying], [0.025, 0.975], axis=0), axis=0)[0]
    if not _differ(inner, exact & (inner > 0), _INNER_UNITS):
        return ""
    largest = int(varying[spans[varying].argmax()])
    smallest = int(varying[exact][spans[varying][exact].argmin()])
    names = source.feature_names or [f"feature {i}" for i in range(source.n_features)]
    return (
        f"Units differ: {names[smallest]} has a range of {spans[smallest]:.3g}, {names[largest]} "
        f"of {spans[largest]:.3g}. preprocess 'auto' and 'minmax' scale each feature to [0, 1]; "
        "'none' leaves them as they are."
    )


def _differ(spans: np.ndarray, small: np.ndarray, factor: float) -> bool:
    return bool(small.any()) and bool(spans.max() > factor * np.quantile(spans[small], 0.05))


def as_number(text: str) -> float | None:
    """Return a name as a number, such as a wavelength; None if it is not one."""
    try:
        number = float(text)
    except ValueError:
        return None
    # float() accepts 1_5, which is the name of a pair.
    return number if math.isfinite(number) and "_" not in text else None


def _matching(pattern: str, names: list[str], uri: str, *, exact: bool = False) -> set[str]:
    """Return the columns that match a name, a numeric range or a glob; names take precedence."""
    if pattern in names:
        return {pattern}
    matches = set() if exact else {name for name in names if fnmatchcase(name, pattern)}
    low, dots, high = pattern.partition("..")
    high = high if dots else low  # a single number also matches other spellings: 690 is 690.0
    least = as_number(low) if low else -math.inf
    most = as_number(high) if high else math.inf
    if not exact and least is not None and most is not None:
        numbers = zip(names, map(as_number, names), strict=True)
        matches |= {name for name, x in numbers if x is not None and least <= x <= most}
    if not matches:
        raise InputError(f"{uri} has no column {pattern!r}{_hint(pattern, names)}")
    return matches


def _hint(pattern: str, names: list[str]) -> str:
    """Return a hint, for the error message, about a pattern that matches no name."""
    from bigfs.store.source import listed

    numbers = [number for name in names if (number := as_number(name)) is not None]
    if numbers and re.fullmatch(r"[\d.]+(\.\.|-|:|,)[\d.]*|\.\.[\d.]+", pattern):
        return (
            f": names run from {min(numbers):g} to {max(numbers):g}. A range is written "
            "'LOW..HIGH', the smaller number first."
        )
    if "::" in pattern:
        return f". It has {listed(names)}. Set evaluate.labels for classes in another file."
    near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f". It has {listed(names)}."
