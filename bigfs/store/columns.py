"""Columns of a table: features, ids of the rows, and labels, which are never features."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.uris import SOURCE
from bigfs.store.encoding import DEFAULT, Encoding

# Columns that one message names; a file that is no table of numbers may have thousands.
_NAMED = 100
# Of the first rows, how many are looked at for columns that are no measurements.
_LOOKED_AT_ROWS, _LOOKED_AT_VALUES, _FEWEST_ROWS = 10_000, 10**6, 20
_MOST_IDS = 3


@dataclass(frozen=True)
class Roles:
    """The part that each column of a table has."""

    # Names or globs of the features; those behind a ``!`` are left out. None: all.
    columns: tuple[str, ...] | None = None
    index: str | None = None  # the column with the rows' ids
    # Columns of known classes. ``source``, of several sources, need not be a column.
    labels: tuple[str, ...] = ()
    # Of a part of a table: columns of one value, in the names of the folders that it is in. The
    # value, and the kind of those of all parts if they are no numbers.
    partitions: Mapping[str, tuple[str | None, str | None]] | None = None
    encoding: Encoding = DEFAULT  # treatment of columns that do not hold numbers

    @property
    def narrow(self) -> bool:
        """True if only a table can provide them."""
        given = self.columns is not None or self.index is not None
        return given or self.encoding != DEFAULT

    def features(self, names: list[str], uri: str) -> list[int]:
        """Return the positions of the features among the columns of a table.

        Raises
        ------
        InputError
            If a name or pattern matches no column, or nothing is left.
        """
        wanted = [pattern for pattern in self.columns or () if not _is_exclude(pattern, names)]
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
                f"{uri}: no column is left as a feature, of {len(names):,}. Choose others "
                "(input.columns, --columns, columns=)."
            )
        return [position for position, name in enumerate(names) if name in kept]

    def leave_out(self, others: Iterable[str], names: list[str]) -> tuple[str, ...]:
        """Return patterns for `columns` that also leave out other columns."""
        return (*(self.columns or ()), *(f"!{name}" for name in others))


ALL_FEATURES = Roles()


def roles_of(
    columns: object = None,
    index: object = None,
    labels: object = None,
    encoding: Encoding = DEFAULT,
) -> Roles:
    """Return the roles that arguments name; one name may stand for a list of one.

    Raises
    ------
    InputError
        If they are no names.
    """

    def names(what: str, value: object) -> tuple[str, ...]:
        entries = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else value
        entries = () if value is None else tuple(entries)
        if not all(isinstance(name, str) and name for name in entries):
            raise InputError(f"{what} must be names of columns. Got {value!r}.")
        return entries

    if index is not None and not (isinstance(index, str) and index):
        raise InputError(f"index must be the name of a column. Got {index!r}.")
    chosen = names("columns", columns)
    return Roles(chosen or None, index, names("labels", labels), encoding=encoding)


def refuse_unusable(
    unusable: Mapping[str, str],
    roles: Roles,
    names: list[str],
    uri: str,
    *,
    dropped_by: str = "",
) -> None:
    """Raise InputError if columns that would be features hold no numbers: all of them at once.

    Parameters
    ----------
    unusable : mapping of str to str
        What each of these columns holds, such as "text (line 2: 'Berlin')".
    roles : Roles
    names : list of str
        Of all columns.
    uri : str
    dropped_by : str, default=""
        Of a frame ``X``: the call that leaves out columns, with a place for their names.
    """
    if not unusable:
        return
    many = len(unusable) > 1
    descriptions = [f"column {name!r} holds {what}" for name, what in unusable.items()]
    more = f"; and {len(descriptions) - _NAMED:,} more" if len(descriptions) > _NAMED else ""
    raise InputError(
        f"{uri}: {len(unusable)} {'columns do' if many else 'column does'} not hold numbers: "
        f"{'; '.join(descriptions[:_NAMED])}{more}. "
        f"{_cure(unusable, roles, names, dropped_by)}"
    )


def _cure(unusable: Iterable[str], roles: Roles, names: list[str], dropped_by: str) -> str:
    """Return in words how columns are left out."""
    others = list(unusable)
    if len(others) > _NAMED:
        return "Name those to keep (input.columns, --columns, columns=), or check the separator."
    patterns = json.dumps(list(roles.leave_out(others, names)), ensure_ascii=False)
    if dropped_by:
        return (
            f"Leave them out by {dropped_by.format(others)}, or read bigfs.open_matrix(X, "
            f"columns={patterns}), or encode them: open_matrix(X, categories='one_hot', "
            "dates='numbers')."
        )
    given = shlex.quote(f"input.columns={patterns}")
    return (
        f"Leave them out by --set {given} (ingest: --columns {shlex.quote(patterns)}; Python: "
        f"columns={patterns}), or encode them (input.categories, input.dates). A column of ids may "
        "be named as input.index, one of known classes as input.labels."
    )


def suspicious_columns(source: Any, y: np.ndarray | None = None) -> list[str]:
    """Return sentences on named columns that look like ids, or equal the labels.

    The first rows are looked at. An id is a whole number of its own in every row; where many
    columns are like that, they are measurements.

    Parameters
    ----------
    source : RandomAccessSource
    y : ndarray of shape (n_samples,), int64, or None, default=None
        Classes to judge by.
    """
    names = source.feature_names
    rows = min(source.n_samples, _LOOKED_AT_ROWS, _LOOKED_AT_VALUES // source.n_features)
    if not names or rows < _FEWEST_ROWS:
        return []
    X = source.read(0, rows)
    if not isinstance(X, np.ndarray):  # counts, which are not ids
        return []
    sentences, few = [], X[:_FEWEST_ROWS]
    integral = np.flatnonzero((few == np.rint(few)).all(axis=0))
    ids = [j for j in integral.tolist() if (X[:, j] == np.rint(X[:, j])).all()]
    ids = [j for j in ids if len(np.unique(X[:, j])) == rows]
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


def _is_exclude(pattern: str, names: list[str]) -> bool:
    return pattern.startswith("!") and pattern not in names


def _matching(pattern: str, names: list[str], uri: str, *, exact: bool = False) -> set[str]:
    """Return the columns of a name or glob; a name counts before a glob."""
    if pattern in names:
        return {pattern}
    matches = set() if exact else {name for name in names if fnmatchcase(name, pattern)}
    if not matches:
        near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.6)
        from bigfs.store.source import listed

        hint = f"did you mean {near[0]!r}?" if near else f"It has {listed(names)}."
        raise InputError(f"{uri} has no column {pattern!r}{'; ' if near else '. '}{hint}")
    return matches
