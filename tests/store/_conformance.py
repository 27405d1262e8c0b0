"""Files of every format, and what the library that wrote each one reads from it.

    python -m tests.store._conformance [--only WORDS]

Each file is written by its own library into a folder, read again by that library, and opened by
bigfs: values, missing ones, names, ids and labels must be the same, or the file is refused with
a reason. The table has a line for each.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import BigfsError, InputError
from bigfs.store.labels import read_values
from bigfs.store.source import open_matrix

# The modules that have the files, by what they hold.
_MODULES = ("tables", "science", "matrices", "installed")
_ROWS = 7


@dataclass(frozen=True)
class Own:
    """What the library's own reader says of a file.

    Attributes
    ----------
    values : array-like of shape (n_samples, n_features)
        NaN where a value is missing.
    names : list of str or None
        Of the features, where the format has them.
    ids : list of str or None
        Of the rows. None: not compared.
    labels : mapping of str to array-like
        Values by the URI that names them, in which ``{}`` is the path.
    """

    values: Any
    names: list[str] | None = None
    ids: list[str] | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A file, and what must come of it.

    Attributes
    ----------
    make : callable
        ``make(folder)`` writes it, and returns its path and an `Own` (None if it is refused).
    settings : mapping
        What `open_matrix` is given.
    needs : tuple of str
        Packages; without them the case is skipped.
    refused : str or None
        Words of the reason why it is refused. None: it must be read; "": it may be refused.
    today : str or None
        Why it is not so yet.
    """

    make: Callable[[Path], tuple[Any, Own | None]]
    settings: Mapping[str, Any]
    needs: tuple[str, ...]
    refused: str | None
    today: str | None

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


CASES: dict[str, Case] = {}


def case(
    name: str,
    *,
    needs: tuple[str, ...] = (),
    refused: str | None = None,
    today: str | None = None,
    **settings: Any,
) -> Callable[[Any], Any]:
    """Take down what makes a file."""

    def note(make: Any) -> Any:
        assert name not in CASES, name
        CASES[name] = Case(make, settings, needs, refused, today)
        return make

    return note


@cache
def all_cases() -> dict[str, Case]:
    """Return the cases of all modules by name."""
    for module in _MODULES:
        importlib.import_module(f"tests.store._conformance_{module}")
    return CASES


def judged(chosen: Case, folder: Path) -> tuple[str, str]:
    """Return "agree", "refused" or "differ" for a file, and the reason.

    A refusal counts as one only where it is wanted; any error but bigfs' own is a difference.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, of what they write
        path, own = chosen.make(folder)
        try:
            difference = _difference(path, own, chosen.settings)
        except BigfsError as error:
            said = str(error)
            if chosen.refused is not None and chosen.refused in said:
                return "refused", said
            return "differ", f"refused: {said}"
        except Exception as error:
            return "differ", f"{type(error).__name__}: {error}"
    return ("differ", difference) if difference else ("agree", "")


def _difference(path: Any, own: Own | None, settings: Mapping[str, Any]) -> str:
    """Return in which way bigfs reads something else; nothing if it does not."""
    source = open_matrix(str(path), **settings)
    source.begin()
    blocks = list(source.iter_blocks(_ROWS))
    if not blocks:
        raise InputError(f"{path} has no rows")
    values = np.concatenate(blocks)
    if own is None:
        return f"read as {values.shape} instead of refused"
    expected = np.asarray(own.values)
    if values.shape != expected.shape:
        return f"shape {values.shape}, own {expected.shape}"
    if source.n_features != values.shape[1] or source.n_samples not in (None, len(values)):
        return f"announced as {source.n_samples} x {source.n_features}, read as {values.shape}"
    if source.feature_names != own.names:
        return f"names {source.feature_names}, own {own.names}"
    wide = expected.astype(np.float64)
    if not np.array_equal(values.astype(np.float64), wide, equal_nan=True):
        same = (values == wide) | (np.isnan(values) & np.isnan(wide))
        row, column = (int(i[0]) for i in np.nonzero(~same))
        return f"row {row}, column {column}: {values[row, column]}, own {wide[row, column]}"
    ids = [name for piece in source.iter_index() for name in piece]
    if own.ids is not None and ids != own.ids:
        return f"ids {ids[:3]}, own {own.ids[:3]}"
    for uri, labels in own.labels.items():
        got, given = read_values(uri.format(path)), np.asarray(labels).ravel()
        as_text = given.dtype.kind in "OUS"
        if list(map(str, got) if as_text else got) != list(map(str, given) if as_text else given):
            return f"labels {got[:3]}, own {given[:3]}"
    return ""


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose names have these words")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    print("| file | verdict | reason |\n| --- | --- | --- |")
    for name, chosen in all_cases().items():
        if options.only not in name:
            continue
        if chosen.missing:
            verdict, reason = "skipped", f"needs {', '.join(chosen.missing)}"
        else:
            with tempfile.TemporaryDirectory() as folder:
                verdict, reason = judged(chosen, Path(folder))
                reason = reason.replace(f"{folder}/", "").replace("\n", " ")
        counts[verdict] += 1
        print(f"| {name} | {verdict} | {reason} |", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


if __name__ == "__main__":
    from tests.store._conformance import main as run  # the module that holds the cases

    run()
