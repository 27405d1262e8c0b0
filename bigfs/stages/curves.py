"""Curves over the number of features, and reasons for each selection: in memory and stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.stages.scores import falling
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes

# Ratio of successive numbers of features; between them curves are interpolated linearly.
_RATIO = 1.25
_ARRAYS = ("sizes", "order", "adds", "closest", "correlation")
_OTHERS = ("explains", "number", "n_rows", "n_neighbors", "notes")


@dataclass(frozen=True)
class Curves:
    """Curves over the number of features, measured on all rows or on a sample of them.

    Attributes
    ----------
    sizes : ndarray of shape (n_sizes,), int64
        Numbers of features.
    values : dict of str to ndarray of shape (n_sizes,), float64
        The curves, each between 0 and 1:

        - ``explained_variance``: share of the variance of all features that linear regressions on
          the first m explain;
        - ``explained_others``: the same without the share of itself that each feature explains,
          minus the share that noise features would explain;
        - ``explained_eigenvectors``: share of the eigenvectors of the graph, on average, that
          linear regressions on the first m explain; only if the method uses eigenvectors;
        - ``neighbors_kept``: share of their nearest rows in all features, by Euclidean distance,
          that rows keep among their nearest in the first m, within a sample;
        - ``stability``, if it determines the number: agreement of selections of m features on two
          samples without a common row;
        - ``in_common``, in addition: features that two such selections have in common beyond
          chance, as a share of all.
          chance, as a share of all.
    errors : dict of str to ndarray of shape (n_sizes,), float64
        Standard errors of the curves that are measured on a sample.
    order : ndarray of shape (n_selected,), int64
        The selected features, best first.
    adds : ndarray of shape (n_selected,), float64
        Share of the variance of all features that each adds to those before it; NaN for those that
        a worker has no room for.
    explains : list of n_selected str
        The eigenvector or the clusters that each feature explains best, numbered from 0; empty if
        not known.
    closest : ndarray of shape (n_features,), int64
        For features that are not selected, the selected one of largest absolute correlation; -1 for
        selected ones, if all correlations are 0, and for all features if a worker has no room for
        the products of the selected ones.
    correlation : ndarray of shape (n_features,), float64
        Correlation with that feature; 0 if there is none, NaN if it is not known.
    number : dict or None
        Details on the chosen number of features: ``auto`` (the criterion), ``share``, ``at_most``,
        ``n_features_to_select``, ``largest`` (the largest number considered), ``has_plateau``
        (False: the number is 1, for lack of a better one) and ``rule``, as text. None if the number
        was given.
    n_rows : int
        Number of rows of the sample.
    n_neighbors : int
        Number of nearest rows compared.
    """

    sizes: np.ndarray
    values: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    order: np.ndarray
    adds: np.ndarray
    explains: list[str]
    closest: np.ndarray
    correlation: np.ndarray
    number: dict[str, Any] | None = None
    n_rows: int = 0
    n_neighbors: int = 0
    notes: list[str] = field(default_factory=list)

    def reordered(self, ranking: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a ranking with the selected features first, and scores that fall along it."""
        chosen = np.isin(ranking, self.order)
        reordered = np.concatenate([self.order, ranking[~chosen]])
        return reordered, falling(scores, ranking, reordered)

    def store(self, out: Scratch) -> None:
        """Write everything into a folder."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {"selected": np.sort(self.order), **self.values}
        arrays |= {f"{name}_error": curve for name, curve in self.errors.items()}
        for name, array in arrays.items():
            out.put(name, array)
        others = {name: getattr(self, name) for name in _OTHERS}
        out.describe(curves=list(self.values), errors=list(self.errors), **others)

    @classmethod
    def open(cls, path: Location) -> Curves:
        """Read the curves stored in a folder."""
        about = read_attributes(path)
        fields: dict[str, Any] = {name: ArrayRef.at(path / name).load() for name in _ARRAYS}
        return cls(
            values={name: ArrayRef.at(path / name).load() for name in about["curves"]},
            errors={name: ArrayRef.at(path / f"{name}_error").load() for name in about["errors"]},
            **fields,
            **{name: about[name] for name in _OTHERS},
        )


def curve_sizes(largest: int) -> np.ndarray:
    """Return the numbers of features at which curves are computed: 1, 2, ..., increasingly far."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(largest, max(sizes[-1] + 1, round(sizes[-1] * _RATIO))))
    return np.array(sizes)


def selected_features(finished: dict[str, Location]) -> np.ndarray:
    """Return the selected features, ascending, from the stage that determines them."""
    deciding = finished.get("curves", finished["result"])
    return ArrayRef.at(deciding / "selected").load()


def columns_of_var(
    ranking: np.ndarray, scores: np.ndarray, selected: np.ndarray, key: str = "bigfs"
) -> dict[str, np.ndarray]:
    """Return rank (1 is the best), score and selection of every feature, by column name."""
    return {
        f"{key}_rank": np.argsort(ranking) + 1,
        f"{key}_score": np.asarray(scores, dtype=np.float64),
        f"{key}_selected": np.isin(np.arange(len(ranking)), selected),
    }


def feature_columns(
    ranking: np.ndarray,
    scores: np.ndarray,
    selected: np.ndarray,
    names: list[str],
    *,
    curves: Curves | None = None,
    redundant_with: np.ndarray | None = None,
    frequencies: np.ndarray | None = None,
    consensus: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the columns of the table of all features, best first, by name.

    Parameters
    ----------
    ranking : ndarray of shape (n_features,), int64
    scores : ndarray of shape (n_features,), float64
    selected : ndarray of shape (n_selected,), int64
    names : list of n_features str
    curves : Curves or None, default=None
        Provides ``adds``, ``explains``, ``closest_selected`` and ``correlation``: NaN or an empty
        string if not known for a feature.
    redundant_with : ndarray of shape (n_features,), int64, or None, default=None
        The kept feature because of which a feature was skipped, -1 for all others.
    frequencies : ndarray of shape (n_features,), float64, or None, default=None
        Share of the fits on samples that select each feature: ``frequency``.
    consensus : ndarray of shape (n_features,), int64, or None, default=None
        Features by frequency, best first: ``consensus_rank``.
    """
    named = np.array([*names, ""], dtype=object)  # the last entry is for index -1
    columns: dict[str, Any] = {
        "rank": np.arange(1, len(ranking) + 1),
        "index": ranking,
        "name": named[ranking].tolist(),
        "score": scores[ranking],
        "selected": np.isin(ranking, selected),
    }
    if redundant_with is not None:
        columns["redundant_with"] = named[redundant_with[ranking]].tolist()
    if frequencies is not None:
        columns["frequency"] = frequencies[ranking]
    if consensus is not None:
        columns["consensus_rank"] = 1 + np.argsort(consensus)[ranking]
    if curves is None:
        return columns
    adds = np.full(len(ranking), np.nan)
    adds[curves.order] = curves.adds
    explains = dict(zip(curves.order.tolist(), curves.explains, strict=True))
    return {
        **columns,
        "adds": adds[ranking],
        "explains": [explains.get(feature, "") for feature in ranking.tolist()],
        "closest_selected": named[curves.closest[ranking]].tolist(),
        "correlation": np.where(columns["selected"], np.nan, curves.correlation[ranking]),
    }
